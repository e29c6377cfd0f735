//! AVX2 form of both passes. Integer arithmetic throughout, so the bytes equal `native`'s.
//!
//! Horizontal: 16 source bytes hold 5 RGB pixels; a byte shuffle turns 4 of them into 16-bit pairs
//! [r0 r1 g0 g1 b0 b1 0 0 | r2 r3 g2 g3 b2 b3 0 0], one multiply-add with [w0 w1 .. | w2 w3 ..] does 4 taps of a pixel.
//! Up to 4 rows go together so that weights are loaded once. Vertical: two rows are interleaved byte by byte, and one
//! multiply-add does 2 taps of 8 bytes.
//!
//! Rows carry ROW_PAD bytes behind their end: reads may touch them, their values meet weight zero only.

use super::taps::Taps;
use crate::error::Result;
use crate::limits::ROW_PAD;
use crate::memory::try_vec;
use std::arch::x86_64::*;

pub fn available() -> bool {
    is_x86_feature_detected!("avx2")
}

/// Weights of an axis padded with zeros to groups of 4.
pub struct Packed {
    weights: Vec<i16>,
    /// (first source byte, first group, groups) of each output pixel.
    windows: Vec<(u32, u32, u32)>,
    bits: u32,
    /// Source bytes a row must have so that every read stays inside.
    reach: usize,
}

impl Packed {
    pub fn new(taps: &Taps) -> Result<Packed> {
        let groups: usize = taps.windows.iter().map(|w| w.len.div_ceil(4)).sum();
        let mut weights: Vec<i16> = try_vec(4 * groups)?;
        let mut windows: Vec<(u32, u32, u32)> = try_vec(taps.windows.len())?;
        let mut reach = 0;
        for window in &taps.windows {
            let first = weights.len() / 4;
            weights.extend_from_slice(taps.weights(*window));
            weights.resize(weights.len().next_multiple_of(4), 0);
            let n = weights.len() / 4 - first;
            windows.push((3 * window.start as u32, first as u32, n as u32));
            reach = reach.max(3 * window.start + 12 * (n - 1) + 16);
        }
        Ok(Packed { weights, windows, bits: taps.bits, reach })
    }
}

/// `R` rows at once. Panics when a slice is too short, so that the unsafe part cannot leave it.
pub fn horizontal<const R: usize>(rows: [&[u8]; R], taps: &Packed, mut out: [&mut [u8]; R]) {
    assert!(R <= 4 && available());
    for r in 0..R {
        assert!(rows[r].len() >= taps.reach, "row of {} bytes, {} needed", rows[r].len(), taps.reach);
        assert!(out[r].len() > 3 * taps.windows.len(), "output row lacks its padding byte");
    }
    let sources = rows.map(<[u8]>::as_ptr);
    let targets = out.each_mut().map(|o| o.as_mut_ptr());
    // SAFETY: AVX2 was detected; reads end at `reach`, checked above for each row; writes are 4 bytes at 3 * i, so they
    // end one byte behind the last pixel, checked above.
    unsafe { horizontal_rows(sources, taps, targets) }
}

#[target_feature(enable = "avx2")]
unsafe fn horizontal_rows<const R: usize>(rows: [*const u8; R], taps: &Packed, out: [*mut u8; R]) {
    let pick = _mm256_setr_epi8(
        0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, //
        6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1,
    );
    // Within each half: the pair of this half, four times.
    let spread = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    let half = _mm256_set1_epi32(1 << (taps.bits - 1));
    let shift = _mm_cvtsi32_si128(taps.bits as i32);
    let weights = taps.weights.as_ptr();
    for (i, &(first_byte, first_group, groups)) in taps.windows.iter().enumerate() {
        let mut acc = [_mm256_setzero_si256(); R];
        let mut source = first_byte as usize;
        // SAFETY: groups of this window lie in `weights`; source + 16 <= reach for the last group (see Packed::new).
        unsafe {
            let mut w = weights.add(4 * first_group as usize);
            for _ in 0..groups {
                let four = _mm256_castsi128_si256(_mm_loadl_epi64(w.cast()));
                let pair = _mm256_permutevar8x32_epi32(four, spread);
                for r in 0..R {
                    let bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128(rows[r].add(source).cast()));
                    acc[r] = _mm256_add_epi32(acc[r], _mm256_madd_epi16(_mm256_shuffle_epi8(bytes, pick), pair));
                }
                w = w.add(4);
                source += 12;
            }
            // Low half + high half of each accumulator, two rows to a register.
            let zero = _mm256_setzero_si256();
            let at = |r: usize| if r < R { acc[r] } else { zero };
            let fold = |a: __m256i, b: __m256i| {
                let sum =
                    _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
                _mm256_sra_epi32(_mm256_add_epi32(sum, half), shift)
            };
            let words = _mm256_packs_epi32(fold(at(0), at(1)), fold(at(2), at(3)));
            let bytes = _mm256_packus_epi16(words, zero);
            let low = _mm256_castsi256_si128(bytes);
            let high = _mm256_extracti128_si256(bytes, 1);
            let pixels = [
                _mm_cvtsi128_si32(low),
                _mm_cvtsi128_si32(high),
                _mm_extract_epi32(low, 1),
                _mm_extract_epi32(high, 1),
            ];
            for r in 0..R {
                out[r].add(3 * i).cast::<i32>().write_unaligned(pixels[r]);
            }
        }
    }
}

/// See `native::vertical`. Rows and `out` need ROW_PAD bytes behind the `n` that count.
pub fn vertical(rows: &[&[u8]], weights: &[i16], bits: u32, out: &mut [u8], n: usize) {
    assert!(available() && rows.len() == weights.len() && !rows.is_empty());
    let reach = n.next_multiple_of(32);
    const { assert!(ROW_PAD >= 32) };
    assert!(out.len() >= reach && rows.iter().all(|r| r.len() >= reach));
    // SAFETY: AVX2 was detected; all accesses are 32 bytes at multiples of 32 below `reach`, checked above.
    unsafe { vertical_blocks(rows, weights, bits, out, reach) }
}

#[target_feature(enable = "avx2")]
unsafe fn vertical_blocks(rows: &[&[u8]], weights: &[i16], bits: u32, out: &mut [u8], reach: usize) {
    let half = _mm256_set1_epi32(1 << (bits - 1));
    let shift = _mm_cvtsi32_si128(bits as i32);
    let zero = _mm256_setzero_si256();
    for x in (0..reach).step_by(32) {
        let mut acc = [half; 4];
        let mut k = 0;
        while k < rows.len() {
            let last = k + 1 == rows.len();
            let second_weight = if last { 0 } else { weights[k + 1] };
            let pair = _mm256_set1_epi32(i32::from(weights[k]) & 0xffff | i32::from(second_weight) << 16);
            // SAFETY: x + 32 <= reach <= length of every row.
            let (a, b) = unsafe {
                let a = _mm256_loadu_si256(rows[k].as_ptr().add(x).cast());
                (a, if last { zero } else { _mm256_loadu_si256(rows[k + 1].as_ptr().add(x).cast()) })
            };
            let (low, high) = (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b));
            acc[0] = _mm256_add_epi32(acc[0], _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), pair));
            acc[1] = _mm256_add_epi32(acc[1], _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), pair));
            acc[2] = _mm256_add_epi32(acc[2], _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), pair));
            acc[3] = _mm256_add_epi32(acc[3], _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), pair));
            k += 2;
        }
        let done = acc.map(|a| _mm256_sra_epi32(a, shift));
        let bytes = _mm256_packus_epi16(_mm256_packs_epi32(done[0], done[1]), _mm256_packs_epi32(done[2], done[3]));
        // SAFETY: x + 32 <= reach <= out.len().
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(x).cast(), bytes) };
    }
}

/// Splits interleaved RGB into planes, 16 pixels at a time; returns how many pixels are done (a multiple of 16).
pub fn deinterleave(rgb: &[u8], red: &mut [u8], green: &mut [u8], blue: &mut [u8]) -> usize {
    let width = rgb.len() / 3;
    assert!(red.len() >= width && green.len() >= width && blue.len() >= width);
    if !available() {
        return 0;
    }
    // SAFETY: AVX2 was detected; the three planes hold `width` bytes each, checked above.
    unsafe { deinterleave_blocks(rgb, [red.as_mut_ptr(), green.as_mut_ptr(), blue.as_mut_ptr()], width / 16) }
    width / 16 * 16
}

#[target_feature(enable = "avx2")]
unsafe fn deinterleave_blocks(rgb: &[u8], planes: [*mut u8; 3], blocks: usize) {
    // Channel c of source third s: which bytes, and where in the plane they land.
    let mut pick = [[_mm_setzero_si128(); 3]; 3];
    for (c, row) in pick.iter_mut().enumerate() {
        for (s, mask) in row.iter_mut().enumerate() {
            let mut bytes = [0x80u8; 16];
            for (x, byte) in bytes.iter_mut().enumerate() {
                let at = 3 * x + c;
                if at / 16 == s {
                    *byte = (at % 16) as u8;
                }
            }
            // SAFETY: 16 bytes of an array.
            *mask = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
        }
    }
    for block in 0..blocks {
        // SAFETY: 48 * block + 48 <= rgb.len() and 16 * block + 16 <= the length of each plane.
        unsafe {
            let source = rgb.as_ptr().add(48 * block);
            let thirds = [0, 16, 32].map(|at| _mm_loadu_si128(source.add(at).cast()));
            for c in 0..3 {
                let part = |s: usize| _mm_shuffle_epi8(thirds[s], pick[c][s]);
                let plane = _mm_or_si128(part(0), _mm_or_si128(part(1), part(2)));
                _mm_storeu_si128(planes[c].add(16 * block).cast(), plane);
            }
        }
    }
}
