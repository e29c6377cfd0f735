//! AVX-512 form of both passes (VBMI for the byte shuffle across lanes, VNNI for multiply-add-accumulate). Integers
//! throughout, so the bytes equal `native`'s.
//!
//! Horizontal: a weight w = 256 * high + low with both halves signed bytes, so that samples stay bytes: one shuffle
//! brings 8 pixels into [r0 r1 r2 r3 g0..g3 b0..b3 -- | r4 .. r7 g4.. b4.. --], and two byte multiply-adds (high, low)
//! do 8 taps. Every window gets the same number of groups; windows at the right edge start earlier, with leading zero
//! weights, so that reads stay within ROW_PAD of the row. Two pixels of up to 4 rows are finished together.
//! Vertical: as in `avx2`, with twice the width and a fused accumulate.

use super::taps::Taps;
use crate::error::Result;
use crate::limits::ROW_PAD;
use crate::memory::try_zeroed;
use std::arch::x86_64::*;

pub fn available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vbmi")
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("avx2")
}

/// Weights of an axis, `groups` groups of 8 for each output pixel: 8 low halves, then 8 high halves.
pub struct Packed {
    weights: Vec<i8>,
    groups: usize,
    /// First source byte of each output pixel.
    starts: Vec<u32>,
    bits: u32,
    /// Source bytes a row must have so that every read stays inside.
    reach: usize,
}

impl Packed {
    /// None when a weight's high half does not fit a signed byte (weights of 32,640 and more; `avx2` takes those).
    pub fn new(taps: &Taps, n_in: usize) -> Result<Option<Packed>> {
        let groups = taps.longest.div_ceil(8);
        let mut weights: Vec<i8> = try_zeroed(16 * groups * taps.windows.len())?;
        let mut starts: Vec<u32> = try_zeroed(taps.windows.len())?;
        let mut reach = 0;
        for (i, window) in taps.windows.iter().enumerate() {
            let start = window.start.min(n_in.saturating_sub(8 * groups));
            let of_pixel = &mut weights[16 * groups * i..16 * groups * (i + 1)];
            for (k, w) in taps.weights(*window).iter().enumerate() {
                let (group, place) = ((window.start - start + k) / 8, (window.start - start + k) % 8);
                let low = *w as i8;
                let Ok(high) = i8::try_from((i32::from(*w) - i32::from(low)) >> 8) else { return Ok(None) };
                of_pixel[16 * group + place] = low;
                of_pixel[16 * group + 8 + place] = high;
            }
            starts[i] = 3 * start as u32;
            reach = reach.max(3 * start + 24 * (groups - 1) + 32);
        }
        Ok(Some(Packed { weights, groups, starts, bits: taps.bits, reach }))
    }
}

/// `R` rows at once. Panics when a slice is too short, so that the unsafe part cannot leave it.
pub fn horizontal<const R: usize>(rows: [&[u8]; R], taps: &Packed, mut out: [&mut [u8]; R]) {
    assert!(R <= 4 && available());
    for r in 0..R {
        assert!(rows[r].len() >= taps.reach, "row of {} bytes, {} needed", rows[r].len(), taps.reach);
        assert!(out[r].len() >= 3 * taps.starts.len() + 8, "output row lacks its padding");
    }
    let sources = rows.map(<[u8]>::as_ptr);
    let targets = out.each_mut().map(|o| o.as_mut_ptr());
    // SAFETY: the features were detected; reads end at `reach`, checked above for each row; writes are 8 bytes at
    // 3 * i, so they end at most 8 bytes behind the last pixel, checked above.
    unsafe { horizontal_rows(sources, taps, targets) }
}

#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")]
unsafe fn horizontal_rows<const R: usize>(rows: [*const u8; R], taps: &Packed, out: [*mut u8; R]) {
    let mut pick = [0u8; 32];
    for (at, byte) in pick.iter_mut().enumerate() {
        let (lane, channel, tap) = (at / 16, at % 16 / 4, at % 4);
        *byte = if channel < 3 { (12 * lane + channel + 3 * tap) as u8 } else { 0 };
    }
    // SAFETY: 32 bytes of an array.
    let pick = unsafe { _mm256_loadu_si256(pick.as_ptr().cast()) };
    let low_half = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    let high_half = _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3);
    // Rounding, once: the two lanes of an accumulator are added at the end.
    let half = 1 << (taps.bits - 1);
    let rounding = _mm256_setr_epi32(half, half, half, 0, 0, 0, 0, 0);
    let shift = _mm_cvtsi32_si128(taps.bits as i32);
    let zero = _mm256_setzero_si256();
    let close = _mm_setr_epi8(0, 1, 2, 4, 5, 6, -1, -1, 8, 9, 10, 12, 13, 14, -1, -1);
    let pixels = taps.starts.len();
    let group_bytes = 16;
    for i in (0..pixels).step_by(2) {
        let pair = [i, (i + 1).min(pixels - 1)];
        let mut sums = [[zero; R]; 2];
        for (sum, &pixel) in sums.iter_mut().zip(&pair) {
            let (mut low, mut high) = ([rounding; R], [zero; R]);
            let mut source = taps.starts[pixel] as usize;
            // SAFETY: `groups` groups of this pixel lie in `weights`; source + 32 <= reach for the last of them.
            unsafe {
                let mut w = taps.weights.as_ptr().add(group_bytes * taps.groups * pixel);
                for _ in 0..taps.groups {
                    let both = _mm256_castsi128_si256(_mm_loadu_si128(w.cast()));
                    let weights_low = _mm256_permutevar8x32_epi32(both, low_half);
                    let weights_high = _mm256_permutevar8x32_epi32(both, high_half);
                    for r in 0..R {
                        let bytes = _mm256_loadu_si256(rows[r].add(source).cast());
                        let samples = _mm256_permutexvar_epi8(pick, bytes);
                        low[r] = _mm256_dpbusd_epi32(low[r], samples, weights_low);
                        high[r] = _mm256_dpbusd_epi32(high[r], samples, weights_high);
                    }
                    w = w.add(group_bytes);
                    source += 24;
                }
            }
            for r in 0..R {
                sum[r] = _mm256_add_epi32(_mm256_slli_epi32(high[r], 8), low[r]);
            }
        }
        // [first pixel | second pixel] of row r as 32-bit sums.
        let both = |r: usize| {
            if r >= R {
                return zero;
            }
            let (a, b) = (sums[0][r], sums[1][r]);
            let sum = _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
            _mm256_sra_epi32(sum, shift)
        };
        let bytes = _mm256_packus_epi16(_mm256_packs_epi32(both(0), both(1)), _mm256_packs_epi32(both(2), both(3)));
        let (first, second) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
        let rows_01 = _mm_shuffle_epi8(_mm_unpacklo_epi32(first, second), close);
        let rows_23 = _mm_shuffle_epi8(_mm_unpackhi_epi32(first, second), close);
        let eight = [rows_01, _mm_unpackhi_epi64(rows_01, rows_01), rows_23, _mm_unpackhi_epi64(rows_23, rows_23)];
        for r in 0..R {
            // SAFETY: 8 bytes at 3 * i end inside the row and its padding.
            unsafe { _mm_storel_epi64(out[r].add(3 * i).cast(), eight[r]) };
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
