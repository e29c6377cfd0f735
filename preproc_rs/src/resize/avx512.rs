//! AVX-512 form of both passes (VBMI for the byte shuffle across lanes, VNNI for multiply-add-accumulate), the same
//! scheme as `avx2` with twice the width: 8 taps of a pixel, or 2 taps of 16 bytes, to an instruction. Integers
//! throughout, so the bytes equal `native`'s.

use super::taps::Taps;
use crate::error::Result;
use crate::limits::ROW_PAD;
use crate::memory::try_vec;
use std::arch::x86_64::*;

pub fn available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vbmi")
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("avx2")
}

/// Weights of an axis padded with zeros to groups of 8.
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
        let groups: usize = taps.windows.iter().map(|w| w.len.div_ceil(8)).sum();
        let mut weights: Vec<i16> = try_vec(8 * groups)?;
        let mut windows: Vec<(u32, u32, u32)> = try_vec(taps.windows.len())?;
        let mut reach = 0;
        for window in &taps.windows {
            let first = weights.len() / 8;
            weights.extend_from_slice(taps.weights(*window));
            weights.resize(weights.len().next_multiple_of(8), 0);
            let n = weights.len() / 8 - first;
            windows.push((3 * window.start as u32, first as u32, n as u32));
            reach = reach.max(3 * window.start + 24 * (n - 1) + 32);
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
    // SAFETY: the features were detected; reads end at `reach`, checked above for each row; writes are 4 bytes at
    // 3 * i, so they end one byte behind the last pixel, checked above.
    unsafe { horizontal_rows(sources, taps, targets) }
}

/// Positions 0, 2, .. 10 of each 16 bytes hold samples; the rest is zero.
const SAMPLES: __mmask64 = 0x0555_0555_0555_0555;

#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vbmi,avx512vnni")]
unsafe fn horizontal_rows<const R: usize>(rows: [*const u8; R], taps: &Packed, out: [*mut u8; R]) {
    let mut pick = [0u8; 64];
    for (at, byte) in pick.iter_mut().enumerate() {
        let (lane, within) = (at / 16, at % 16 / 2);
        *byte = (6 * lane + within / 2 + within % 2 * 3) as u8; // r r' g g' b b' of pixels 2 lane, 2 lane + 1
    }
    // SAFETY: 64 bytes of an array.
    let pick = unsafe { _mm512_loadu_si512(pick.as_ptr().cast()) };
    let spread = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    let half = _mm256_set1_epi32(1 << (taps.bits - 1));
    let shift = _mm_cvtsi32_si128(taps.bits as i32);
    let zero = _mm256_setzero_si256();
    for (i, &(first_byte, first_group, groups)) in taps.windows.iter().enumerate() {
        let mut acc = [_mm512_setzero_si512(); R];
        let mut source = first_byte as usize;
        // SAFETY: groups of this window lie in `weights`; source + 32 <= reach for the last group (see Packed::new).
        unsafe {
            let mut w = taps.weights.as_ptr().add(8 * first_group as usize);
            for _ in 0..groups {
                let eight = _mm512_castsi128_si512(_mm_loadu_si128(w.cast()));
                let pairs = _mm512_permutexvar_epi32(spread, eight);
                for r in 0..R {
                    let bytes = _mm512_castsi256_si512(_mm256_loadu_si256(rows[r].add(source).cast()));
                    let samples = _mm512_maskz_permutexvar_epi8(SAMPLES, pick, bytes);
                    acc[r] = _mm512_dpwssd_epi32(acc[r], samples, pairs);
                }
                w = w.add(8);
                source += 24;
            }
        }
        let at = |r: usize| {
            if r < R {
                _mm256_add_epi32(_mm512_castsi512_si256(acc[r]), _mm512_extracti64x4_epi64(acc[r], 1))
            } else {
                zero
            }
        };
        let fold = |a: __m256i, b: __m256i| {
            let sum = _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
            _mm256_sra_epi32(_mm256_add_epi32(sum, half), shift)
        };
        let words = _mm256_packs_epi32(fold(at(0), at(1)), fold(at(2), at(3)));
        let bytes = _mm256_packus_epi16(words, zero);
        let (low, high) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
        let pixels =
            [_mm_cvtsi128_si32(low), _mm_cvtsi128_si32(high), _mm_extract_epi32(low, 1), _mm_extract_epi32(high, 1)];
        for r in 0..R {
            // SAFETY: 4 bytes at 3 * i end inside the row and its padding byte.
            unsafe { out[r].add(3 * i).cast::<i32>().write_unaligned(pixels[r]) };
        }
    }
}

/// See `native::vertical`. Rows and `out` need ROW_PAD bytes behind the `n` that count.
pub fn vertical(rows: &[&[u8]], weights: &[i16], bits: u32, out: &mut [u8], n: usize) {
    assert!(available() && rows.len() == weights.len() && !rows.is_empty());
    let reach = n.next_multiple_of(64);
    const { assert!(ROW_PAD >= 64) };
    assert!(out.len() >= reach && rows.iter().all(|r| r.len() >= reach));
    // SAFETY: the features were detected; all accesses are 64 bytes at multiples of 64 below `reach`, checked above.
    unsafe { vertical_blocks(rows, weights, bits, out, reach) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn vertical_blocks(rows: &[&[u8]], weights: &[i16], bits: u32, out: &mut [u8], reach: usize) {
    let half = _mm512_set1_epi32(1 << (bits - 1));
    let shift = _mm_cvtsi32_si128(bits as i32);
    let zero = _mm512_setzero_si512();
    for x in (0..reach).step_by(64) {
        let mut acc = [half; 4];
        for (pair, two) in rows.chunks(2).zip(weights.chunks(2)) {
            let second = two.get(1).copied().unwrap_or(0);
            let weights = _mm512_set1_epi32(i32::from(two[0]) & 0xffff | i32::from(second) << 16);
            // SAFETY: x + 64 <= reach <= length of every row.
            let (a, b) = unsafe {
                let load = |row: &[u8]| _mm512_loadu_si512(row.as_ptr().add(x).cast());
                (load(pair[0]), pair.get(1).map_or(zero, |row| load(row)))
            };
            let (low, high) = (_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b));
            acc[0] = _mm512_dpwssd_epi32(acc[0], _mm512_unpacklo_epi8(low, zero), weights);
            acc[1] = _mm512_dpwssd_epi32(acc[1], _mm512_unpackhi_epi8(low, zero), weights);
            acc[2] = _mm512_dpwssd_epi32(acc[2], _mm512_unpacklo_epi8(high, zero), weights);
            acc[3] = _mm512_dpwssd_epi32(acc[3], _mm512_unpackhi_epi8(high, zero), weights);
        }
        let done = acc.map(|a| _mm512_sra_epi32(a, shift));
        let bytes = _mm512_packus_epi16(_mm512_packs_epi32(done[0], done[1]), _mm512_packs_epi32(done[2], done[3]));
        // SAFETY: x + 64 <= reach <= out.len().
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().add(x).cast(), bytes) };
    }
}
