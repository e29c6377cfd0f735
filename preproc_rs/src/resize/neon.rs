//! NEON form of both passes. Integers throughout, so the bytes equal `native`'s.
//!
//! Horizontal: see `lanes`; a unit is the first pixel of 16 rows, then the second, since the multiply-add takes one tap at a
//! time. Loads take the channels apart, and 8 x 8 bytes are transposed in each half of a register. Vertical: one row at a
//! time.

use super::lanes::{Packed, Unit, Windows, GROUP, LANES};
use super::Pixels;
use crate::limits::ROW_PAD;
use std::arch::aarch64::*;

pub fn available() -> bool {
    std::arch::is_aarch64_feature_detected!("neon")
}

/// Up to LANES rows.
pub fn horizontal(rows: &[&[u8]], pixels: Pixels, packed: &mut Packed, out: &mut [&mut [u8]]) {
    assert!(available() && pixels == Pixels::Rgb);
    // SAFETY: NEON was detected.
    unsafe { packed.run((rows, pixels), out, turn, filter) }
}

/// 8 x 8 bytes in each half: byte j of row i to byte i of row j.
#[inline]
#[target_feature(enable = "neon")]
fn transposed(m: [uint8x16_t; 8]) -> [uint8x16_t; 8] {
    let bytes = |a, b| (vreinterpretq_u16_u8(vtrn1q_u8(a, b)), vreinterpretq_u16_u8(vtrn2q_u8(a, b)));
    // Each of two rows: columns 0, 2, 4, 6 and columns 1, 3, 5, 7.
    let two = [bytes(m[0], m[1]), bytes(m[2], m[3]), bytes(m[4], m[5]), bytes(m[6], m[7])];
    let words = |a, b| [vreinterpretq_u32_u16(vtrn1q_u16(a, b)), vreinterpretq_u32_u16(vtrn2q_u16(a, b))];
    // Rows 0..4 and 4..8: columns 0 and 4, 2 and 6 of the even ones, 1 and 5, 3 and 7 of the odd ones.
    let even = [words(two[0].0, two[1].0), words(two[2].0, two[3].0)];
    let odd = [words(two[0].1, two[1].1), words(two[2].1, two[3].1)];
    let near = |a, b| vreinterpretq_u8_u32(vtrn1q_u32(a, b));
    let far = |a, b| vreinterpretq_u8_u32(vtrn2q_u32(a, b));
    [
        near(even[0][0], even[1][0]),
        near(odd[0][0], odd[1][0]),
        near(even[0][1], even[1][1]),
        near(odd[0][1], odd[1][1]),
        far(even[0][0], even[1][0]),
        far(odd[0][0], odd[1][0]),
        far(even[0][1], even[1][1]),
        far(odd[0][1], odd[1][1]),
    ]
}

/// `lanes::Turn`.
#[target_feature(enable = "neon")]
unsafe fn turn(rows: &[*const u8; LANES], _plane: usize, steps: usize, units: *mut Unit) {
    for step in 0..steps {
        // SAFETY: 24 readable bytes of each row for each step.
        let row = |r: usize| unsafe { vld3_u8(rows[r].add(24 * step)) };
        let near: [uint8x8x3_t; 8] = std::array::from_fn(row);
        let far: [uint8x8x3_t; 8] = std::array::from_fn(|r| row(r + 8));
        let channels = [
            transposed(std::array::from_fn(|r| vcombine_u8(near[r].0, far[r].0))),
            transposed(std::array::from_fn(|r| vcombine_u8(near[r].1, far[r].1))),
            transposed(std::array::from_fn(|r| vcombine_u8(near[r].2, far[r].2))),
        ];
        for (c, pixels) in channels.into_iter().enumerate() {
            for (x, lanes) in pixels.into_iter().enumerate() {
                // SAFETY: 12 writable units of 32 words for each step: x / 2 is the pair, x % 2 the tap in it.
                unsafe {
                    let tap = units.add(12 * step + 3 * (x / 2) + c).cast::<u16>().add(LANES * (x % 2));
                    vst1q_u16(tap, vmovl_u8(vget_low_u8(lanes)));
                    vst1q_u16(tap.add(8), vmovl_high_u8(lanes));
                }
            }
        }
    }
}

/// Accumulators of 16 samples to bytes. `shift` is negative: to the right.
#[inline]
#[target_feature(enable = "neon")]
fn to_bytes(acc: [int32x4_t; 4], shift: int32x4_t) -> uint8x16_t {
    let narrow = |a, b| vqmovn_high_s32(vqmovn_s32(vshlq_s32(a, shift)), vshlq_s32(b, shift));
    vqmovun_high_s16(vqmovun_s16(narrow(acc[0], acc[1])), narrow(acc[2], acc[3]))
}

/// `lanes::Filter`.
#[target_feature(enable = "neon")]
unsafe fn filter(windows: Windows<'_>, bits: u32, first: usize, out: &[*mut u8; LANES]) {
    let half = vdupq_n_s32(1 << (bits - 1));
    let shift = vdupq_n_s32(-(bits as i32));
    // [pixel and channel] of all rows.
    let mut columns = [vdupq_n_u8(0); 3 * GROUP];
    for (g, group) in windows.groups().enumerate() {
        let count = group.len();
        for ((units, weights), columns) in group.zip(columns.chunks_exact_mut(3)) {
            let mut acc = [[half; 4]; 3];
            for (k, pair) in weights.iter().enumerate() {
                let pair = vreinterpret_s16_s32(vdup_n_s32(*pair));
                for (c, acc) in acc.iter_mut().enumerate() {
                    // SAFETY: `groups` gives 3 units of 32 words for each pair of weights.
                    let load = |i: usize| unsafe { vld1q_s16(units.add(3 * k + c).cast::<i16>().add(8 * i)) };
                    for (h, acc) in acc.chunks_exact_mut(2).enumerate() {
                        let (a, b) = (load(h), load(h + 2));
                        acc[0] = vmlal_lane_s16::<0>(acc[0], vget_low_s16(a), pair);
                        acc[1] = vmlal_high_lane_s16::<0>(acc[1], a, pair);
                        acc[0] = vmlal_lane_s16::<1>(acc[0], vget_low_s16(b), pair);
                        acc[1] = vmlal_high_lane_s16::<1>(acc[1], b, pair);
                    }
                }
            }
            for (acc, column) in acc.into_iter().zip(columns) {
                *column = to_bytes(acc, shift);
            }
        }
        let blocks = columns.as_chunks::<8>().0.iter().take((3 * count).div_ceil(8));
        for (block, columns) in blocks.enumerate() {
            let at = 3 * (first + g * GROUP) + 8 * block;
            for (r, two) in transposed(*columns).into_iter().enumerate() {
                // SAFETY: the caller's rows reach 16 bytes behind the last pixel.
                unsafe {
                    vst1_u8(out[r].add(at), vget_low_u8(two));
                    vst1_u8(out[r + 8].add(at), vget_high_u8(two));
                }
            }
        }
    }
}

/// See `native::vertical`. Rows and `out` need ROW_PAD bytes behind the `n` that count.
pub fn vertical(rows: &[&[u8]], weights: &[i16], bits: u32, out: &mut [u8], n: usize) {
    assert!(available() && rows.len() == weights.len());
    let reach = n.next_multiple_of(32);
    const { assert!(ROW_PAD >= 32) };
    assert!(out.len() >= reach && rows.iter().all(|r| r.len() >= reach));
    // SAFETY: NEON was detected; all accesses are 32 bytes at multiples of 32 below `reach`, checked above.
    unsafe { vertical_blocks(rows, weights, bits, out, reach) }
}

#[target_feature(enable = "neon")]
unsafe fn vertical_blocks(rows: &[&[u8]], weights: &[i16], bits: u32, out: &mut [u8], reach: usize) {
    let half = vdupq_n_s32(1 << (bits - 1));
    let shift = vdupq_n_s32(-(bits as i32));
    for x in (0..reach).step_by(32) {
        let mut acc = [[half; 4]; 2];
        for (row, weight) in rows.iter().zip(weights) {
            let weight = vdup_n_s16(*weight);
            for (side, acc) in acc.iter_mut().enumerate() {
                // SAFETY: x + 32 <= reach <= length of every row.
                let bytes = unsafe { vld1q_u8(row.as_ptr().add(x + 16 * side)) };
                let low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(bytes)));
                let high = vreinterpretq_s16_u16(vmovl_high_u8(bytes));
                acc[0] = vmlal_lane_s16::<0>(acc[0], vget_low_s16(low), weight);
                acc[1] = vmlal_high_lane_s16::<0>(acc[1], low, weight);
                acc[2] = vmlal_lane_s16::<0>(acc[2], vget_low_s16(high), weight);
                acc[3] = vmlal_high_lane_s16::<0>(acc[3], high, weight);
            }
        }
        for (side, acc) in acc.into_iter().enumerate() {
            // SAFETY: x + 32 <= reach <= out.len().
            unsafe { vst1q_u8(out.as_mut_ptr().add(x + 16 * side), to_bytes(acc, shift)) };
        }
    }
}
