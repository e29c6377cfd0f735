//! AVX2 form of both passes. Integer arithmetic throughout, so the bytes equal `native`'s.
//!
//! Horizontal: each half of a register is one row. 16 source bytes hold 5 RGB pixels; a byte shuffle turns 2 of them into
//! 16-bit pairs [r0 r1 g0 g1 b0 b1 0 0], and one multiply-add with [w0 w1 w0 w1 ..] does 2 taps of a pixel in 2 rows. 4 rows
//! go together so that weights are loaded once. Vertical: two rows are interleaved byte by byte, and one multiply-add
//! does 2 taps of 8 bytes.
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

/// Weights of an axis in pairs, as one 32-bit word each; an odd last tap is followed by a zero.
pub struct Packed {
    pairs: Vec<i32>,
    /// (first source byte, first pair, pairs) of each output pixel.
    windows: Vec<(u32, u32, u32)>,
    bits: u32,
    /// Source bytes a row must have so that every read stays inside.
    reach: usize,
}

impl Packed {
    pub fn new(taps: &Taps) -> Result<Packed> {
        let total = taps.windows.iter().map(|w| w.len.div_ceil(2)).sum();
        let mut pairs: Vec<i32> = try_vec(total)?;
        let mut windows: Vec<(u32, u32, u32)> = try_vec(taps.windows.len())?;
        let mut reach = 0;
        for window in &taps.windows {
            let first = pairs.len();
            for pair in taps.weights(*window).chunks(2) {
                let second = pair.get(1).copied().unwrap_or(0);
                pairs.push(i32::from(pair[0]) & 0xffff | i32::from(second) << 16);
            }
            let n = pairs.len() - first;
            windows.push((3 * window.start as u32, first as u32, n as u32));
            reach = reach.max(3 * window.start + 12 * ((n - 1) / 2) + 16);
        }
        Ok(Packed { pairs, windows, bits: taps.bits, reach })
    }
}

/// 4 rows at once. Panics when a slice is too short, so that the unsafe part cannot leave it.
pub fn horizontal(rows: [&[u8]; 4], taps: &Packed, mut out: [&mut [u8]; 4]) {
    assert!(available());
    for (row, out) in rows.iter().zip(&out) {
        assert!(row.len() >= taps.reach, "row of {} bytes, {} needed", row.len(), taps.reach);
        assert!(out.len() > 3 * taps.windows.len(), "output row lacks its padding byte");
    }
    let sources = rows.map(<[u8]>::as_ptr);
    let targets = out.each_mut().map(|o| o.as_mut_ptr());
    // SAFETY: AVX2 was detected; reads end at `reach`, checked above for each row; writes are 4 bytes at 3 * i, so they
    // end one byte behind the last pixel, checked above.
    unsafe { horizontal_rows(sources, taps, targets) }
}

#[target_feature(enable = "avx2")]
unsafe fn horizontal_rows(rows: [*const u8; 4], taps: &Packed, out: [*mut u8; 4]) {
    let first_two =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
    let next_two =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
    let half = _mm256_set1_epi32(1 << (taps.bits - 1));
    let shift = _mm_cvtsi32_si128(taps.bits as i32);
    let pairs = taps.pairs.as_ptr();
    for (i, &(first_byte, first_pair, n)) in taps.windows.iter().enumerate() {
        let mut acc = [half; 2];
        let mut source = first_byte as usize;
        // SAFETY: the `n` pairs of this window lie in `pairs`; source + 16 <= reach for the last two (see Packed::new).
        unsafe {
            let load = |r: usize, source: usize| {
                let low = _mm256_castsi128_si256(_mm_loadu_si128(rows[r].add(source).cast()));
                _mm256_inserti128_si256(low, _mm_loadu_si128(rows[r + 1].add(source).cast()), 1)
            };
            let add = |acc: __m256i, bytes: __m256i, pick: __m256i, weights: __m256i| {
                _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_shuffle_epi8(bytes, pick), weights))
            };
            let mut w = pairs.add(first_pair as usize);
            for _ in 0..n / 2 {
                let (first, next) = (_mm256_set1_epi32(*w), _mm256_set1_epi32(*w.add(1)));
                let bytes = [load(0, source), load(2, source)];
                for (acc, bytes) in acc.iter_mut().zip(bytes) {
                    *acc = add(add(*acc, bytes, first_two, first), bytes, next_two, next);
                }
                w = w.add(2);
                source += 12;
            }
            if n % 2 == 1 {
                let first = _mm256_set1_epi32(*w);
                for (acc, bytes) in acc.iter_mut().zip([load(0, source), load(2, source)]) {
                    *acc = add(*acc, bytes, first_two, first);
                }
            }
            let words = _mm256_packs_epi32(_mm256_sra_epi32(acc[0], shift), _mm256_sra_epi32(acc[1], shift));
            let bytes = _mm256_packus_epi16(words, words);
            // Halves hold rows 0, 2 and rows 1, 3.
            let even = _mm256_castsi256_si128(bytes);
            let odd = _mm256_extracti128_si256(bytes, 1);
            let pixels = [
                _mm_cvtsi128_si32(even),
                _mm_cvtsi128_si32(odd),
                _mm_extract_epi32(even, 1),
                _mm_extract_epi32(odd, 1),
            ];
            for r in 0..4 {
                out[r].add(3 * i).cast::<i32>().write_unaligned(pixels[r]);
            }
        }
    }
}

/// One row, for what 4 do not divide: the halves of a register are two pairs of taps.
pub fn horizontal_one(row: &[u8], taps: &Packed, out: &mut [u8]) {
    assert!(available() && row.len() >= taps.reach, "row of {} bytes, {} needed", row.len(), taps.reach);
    assert!(out.len() > 3 * taps.windows.len(), "output row lacks its padding byte");
    // SAFETY: AVX2 was detected; reads and writes end where those of `horizontal` do, checked above.
    unsafe { horizontal_row(row.as_ptr(), taps, out.as_mut_ptr()) }
}

#[target_feature(enable = "avx2")]
unsafe fn horizontal_row(row: *const u8, taps: &Packed, out: *mut u8) {
    let pick = _mm256_setr_epi8(
        0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, //
        6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1,
    );
    let half = _mm_set1_epi32(1 << (taps.bits - 1));
    let shift = _mm_cvtsi32_si128(taps.bits as i32);
    let pairs = taps.pairs.as_ptr();
    for (i, &(first_byte, first_pair, n)) in taps.windows.iter().enumerate() {
        let mut acc = _mm256_setzero_si256();
        let mut source = first_byte as usize;
        // SAFETY: as in `horizontal_rows`.
        unsafe {
            let mut w = pairs.add(first_pair as usize);
            let add = |acc: __m256i, source: usize, weights: __m256i| {
                let bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128(row.add(source).cast()));
                _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_shuffle_epi8(bytes, pick), weights))
            };
            for _ in 0..n / 2 {
                let weights = _mm256_set_m128i(_mm_set1_epi32(*w.add(1)), _mm_set1_epi32(*w));
                acc = add(acc, source, weights);
                w = w.add(2);
                source += 12;
            }
            if n % 2 == 1 {
                acc = add(acc, source, _mm256_zextsi128_si256(_mm_set1_epi32(*w)));
            }
            let sum = _mm_add_epi32(_mm256_castsi256_si128(acc), _mm256_extracti128_si256(acc, 1));
            let words = _mm_sra_epi32(_mm_add_epi32(sum, half), shift);
            let bytes = _mm_packus_epi16(_mm_packs_epi32(words, words), words);
            out.add(3 * i).cast::<i32>().write_unaligned(_mm_cvtsi128_si32(bytes));
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
