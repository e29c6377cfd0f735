//! AVX-512 form of both passes (VNNI: multiply-add-accumulate). Integers throughout, so the bytes equal `native`'s.
//!
//! Horizontal: see `lanes`; a unit is a register, and two taps of a channel in all rows are one instruction. Turning the
//! rows and writing them back are `avx2`'s. Vertical: as in `avx2`, with twice the width and a fused accumulate.

use super::avx2::{turn_of, write, Words};
use super::lanes::{Packed, Unit, Windows, GROUP, LANES};
use super::Pixels;
use crate::limits::ROW_PAD;
use std::arch::x86_64::*;

pub fn available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("avx2")
}

/// Up to LANES rows.
pub fn horizontal(rows: &[&[u8]], pixels: Pixels, packed: &mut Packed, out: &mut [&mut [u8]]) {
    assert!(available());
    // SAFETY: the features were detected.
    unsafe { packed.run((rows, pixels), out, turn_of(pixels), filter) }
}

/// `lanes::Filter`.
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn filter(windows: Windows<'_>, bits: u32, first: usize, out: &[*mut u8; LANES]) {
    let half = _mm512_set1_epi32(1 << (bits - 1));
    let shift = _mm_cvtsi32_si128(bits as i32);
    let mut words = Words([[0; LANES]; 3 * GROUP]);
    for (g, group) in windows.groups().enumerate() {
        let count = group.len();
        for ((units, weights), words) in group.zip(words.0.chunks_exact_mut(3)) {
            let mut acc = [half; 3];
            let add = |acc: &mut [__m512i; 3], units: *const Unit, pair: i32| {
                let weights = _mm512_set1_epi32(pair);
                for (c, acc) in acc.iter_mut().enumerate() {
                    // SAFETY: `groups` gives 3 units for each pair of weights.
                    let samples = unsafe { _mm512_load_si512(units.add(c).cast()) };
                    *acc = _mm512_dpwssd_epi32(*acc, weights, samples);
                }
            };
            // SAFETY: as above.
            unsafe {
                let mut two = weights.chunks_exact(2);
                let mut unit = units;
                for pairs in &mut two {
                    add(&mut acc, unit, pairs[0]);
                    add(&mut acc, unit.add(3), pairs[1]);
                    unit = unit.add(6);
                }
                if let [pair] = two.remainder() {
                    add(&mut acc, unit, *pair);
                }
            }
            for (acc, words) in acc.iter().zip(words) {
                let sums = _mm512_sra_epi32(*acc, shift);
                let packed = _mm256_packs_epi32(_mm512_castsi512_si256(sums), _mm512_extracti64x4_epi64(sums, 1));
                // SAFETY: 32 bytes of an array; Words is aligned.
                unsafe { _mm256_store_si256(words.as_mut_ptr().cast(), packed) };
            }
        }
        // SAFETY: AVX2, and the caller's rows reach 16 bytes behind the last pixel.
        unsafe { write(&words, count, 3 * (first + g * GROUP), out) };
    }
}

/// See `native::vertical`. Rows and `out` need ROW_PAD bytes behind the `n` that count; both lists are even in length.
pub fn vertical(rows: &[&[u8]], weights: &[i16], bits: u32, out: &mut [u8], n: usize) {
    assert!(available() && rows.len() == weights.len() && rows.len().is_multiple_of(2) && !rows.is_empty());
    let reach = n.next_multiple_of(64);
    const { assert!(ROW_PAD >= 64) };
    assert!(out.len() >= reach && rows.iter().all(|r| r.len() >= reach));
    // SAFETY: the features were detected; all accesses are 64 bytes at multiples of 64 below `reach`, checked above; weights
    // are read in pairs, and there is one for each row.
    unsafe { vertical_blocks(rows, weights, bits, out, reach) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn vertical_blocks(rows: &[&[u8]], weights: &[i16], bits: u32, out: &mut [u8], reach: usize) {
    let half = _mm512_set1_epi32(1 << (bits - 1));
    let shift = _mm_cvtsi32_si128(bits as i32);
    let zero = _mm512_setzero_si512();
    for x in (0..reach).step_by(64) {
        let mut acc = [half; 4];
        for (rows, weights) in rows.chunks_exact(2).zip(weights.chunks_exact(2)) {
            // SAFETY: two weights; x + 64 <= reach <= length of every row.
            let (pair, a, b) = unsafe {
                let load = |row: &[u8]| _mm512_loadu_si512(row.as_ptr().add(x).cast());
                let pair = weights.as_ptr().cast::<i32>().read_unaligned();
                (_mm512_set1_epi32(pair), load(rows[0]), load(rows[1]))
            };
            let (low, high) = (_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b));
            acc[0] = _mm512_dpwssd_epi32(acc[0], _mm512_unpacklo_epi8(low, zero), pair);
            acc[1] = _mm512_dpwssd_epi32(acc[1], _mm512_unpackhi_epi8(low, zero), pair);
            acc[2] = _mm512_dpwssd_epi32(acc[2], _mm512_unpacklo_epi8(high, zero), pair);
            acc[3] = _mm512_dpwssd_epi32(acc[3], _mm512_unpackhi_epi8(high, zero), pair);
        }
        let done = acc.map(|a| _mm512_sra_epi32(a, shift));
        let bytes = _mm512_packus_epi16(_mm512_packs_epi32(done[0], done[1]), _mm512_packs_epi32(done[2], done[3]));
        // SAFETY: x + 64 <= reach <= out.len().
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().add(x).cast(), bytes) };
    }
}
