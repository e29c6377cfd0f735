//! AVX2 form of both passes. Integer arithmetic throughout, so the bytes equal `native`'s.
//!
//! Horizontal: see `lanes`. A unit is rows [0..4, 8..12 | 4..8, 12..16], each row's two pixels side by side: a byte shuffle
//! widens 8 bytes of RGB to 4 units of one row, and 4 x 4 of these are transposed in each half of a register.
//! Vertical: two rows are interleaved byte by byte, and one multiply-add does 2 taps of 8 bytes.

use super::lanes::{Packed, Turn, Unit, Windows, GROUP, LANES};
use super::Pixels;
use crate::limits::ROW_PAD;
use std::arch::x86_64::*;

pub fn available() -> bool {
    is_x86_feature_detected!("avx2")
}

/// Up to LANES rows.
pub fn horizontal(rows: &[&[u8]], pixels: Pixels, packed: &mut Packed, out: &mut [&mut [u8]]) {
    assert!(available());
    // SAFETY: AVX2 was detected.
    unsafe { packed.run((rows, pixels), out, turn_of(pixels), filter) }
}

/// AVX2 is all it needs.
pub fn turn_of(pixels: Pixels) -> Turn {
    match pixels {
        Pixels::Rgb => turn,
        Pixels::Ycc => turn_planes,
    }
}

/// The 8 rows of one half of each unit, which a loop can hold in registers: lanes 0..4 are the first four.
fn rows_of_half(rows: &[*const u8; LANES], half: usize) -> [*const u8; 8] {
    std::array::from_fn(|j| rows[4 * half + j % 4 + j / 4 * 8])
}

/// 4 x 4 words of 32 bits in each half of the registers, transposed.
#[inline]
#[target_feature(enable = "avx2")]
fn transposed([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let low = [_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d)];
    let high = [_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d)];
    [
        _mm256_unpacklo_epi64(low[0], low[1]),
        _mm256_unpackhi_epi64(low[0], low[1]),
        _mm256_unpacklo_epi64(high[0], high[1]),
        _mm256_unpackhi_epi64(high[0], high[1]),
    ]
}

/// `lanes::Turn` of RGB: 24 * steps + 4 readable bytes of each row.
#[target_feature(enable = "avx2")]
unsafe fn turn(rows: &[*const u8; LANES], _plane: usize, steps: usize, units: *mut Unit) {
    const NONE: i8 = -1;
    let pick = |a: [i8; 4], b: [i8; 4]| {
        let of = |i: usize| [a[i], NONE, b[i], NONE];
        let (p, q, r, s) = (of(0), of(1), of(2), of(3));
        _mm256_broadcastsi128_si256(_mm_setr_epi8(
            p[0], p[1], p[2], p[3], q[0], q[1], q[2], q[3], r[0], r[1], r[2], r[3], s[0], s[1], s[2], s[3],
        ))
    };
    // 8 pixels are 12 units: 4 from the bytes at 0, 4 from those at 6, 4 from those at 12.
    let picks =
        [pick([0, 1, 2, 6], [3, 4, 5, 9]), pick([1, 2, 6, 7], [4, 5, 9, 10]), pick([2, 6, 7, 8], [5, 9, 10, 11])];
    for half in 0..2 {
        let rows = rows_of_half(rows, half);
        for step in 0..steps {
            for (part, pick) in picks.iter().enumerate() {
                // SAFETY: 24 * step + 12 + 16 <= 24 * steps + 4; 12 * step + 4 * part + 3 < 12 * steps.
                unsafe {
                    let row = |j: usize| {
                        let at = 24 * step + 6 * part;
                        let low = _mm256_castsi128_si256(_mm_loadu_si128(rows[j].add(at).cast()));
                        let both = _mm256_inserti128_si256(low, _mm_loadu_si128(rows[j + 4].add(at).cast()), 1);
                        _mm256_shuffle_epi8(both, *pick)
                    };
                    let turned = transposed([row(0), row(1), row(2), row(3)]);
                    for (k, turned) in turned.into_iter().enumerate() {
                        let unit = units.add(12 * step + 4 * part + k);
                        _mm256_store_si256(unit.cast::<__m256i>().add(half), turned);
                    }
                }
            }
        }
    }
}

/// `lanes::Turn` of planes: 8 * steps readable bytes of each. RGB is libjpeg-turbo's to the bit, each sum rounded as its
/// 16-bit conversion rounds: R - Y = 1.402 Cr, G - Y = -0.34414 Cb - 0.71414 Cr, B - Y = 1.772 Cb.
#[target_feature(enable = "avx2")]
unsafe fn turn_planes(rows: &[*const u8; LANES], plane: usize, steps: usize, units: *mut Unit) {
    let middle = _mm256_set1_epi16(128);
    // 0.402 and -0.228 in 15 bits; -0.34414 and 1 - 0.71414 in 16.
    let (of_red, of_blue) = (_mm256_set1_epi16(13_173), _mm256_set1_epi16(-7_471));
    let of_green = _mm256_set1_epi32(-22_554 & 0xffff | 18_734 << 16);
    let half_bit = _mm256_set1_epi32(1 << 15);
    let zero = _mm256_setzero_si256();
    for half in 0..2 {
        let rows = rows_of_half(rows, half);
        for step in 0..steps {
            let mut colours = [[zero; 4]; 3];
            let at = [8 * step, plane + 8 * step, 2 * plane + 8 * step];
            for j in 0..4 {
                // 8 samples of two rows, as words. SAFETY: 8 readable bytes of each plane for each step.
                let load = |k: usize| unsafe {
                    let first = _mm_castsi128_pd(_mm_loadl_epi64(rows[j].add(at[k]).cast()));
                    _mm256_cvtepu8_epi16(_mm_castpd_si128(_mm_loadh_pd(first, rows[j + 4].add(at[k]).cast())))
                };
                let (y, cb, cr) = (load(0), _mm256_sub_epi16(load(1), middle), _mm256_sub_epi16(load(2), middle));
                let red = _mm256_add_epi16(_mm256_mulhrs_epi16(cr, of_red), cr);
                let blue = _mm256_add_epi16(_mm256_mulhrs_epi16(cb, of_blue), _mm256_add_epi16(cb, cb));
                let sum = |two| _mm256_srai_epi32(_mm256_add_epi32(_mm256_madd_epi16(two, of_green), half_bit), 16);
                let green = _mm256_packs_epi32(sum(_mm256_unpacklo_epi16(cb, cr)), sum(_mm256_unpackhi_epi16(cb, cr)));
                colours[0][j] = _mm256_add_epi16(y, red);
                colours[1][j] = _mm256_add_epi16(y, _mm256_sub_epi16(green, cr));
                colours[2][j] = _mm256_add_epi16(y, blue);
            }
            for (channel, [a, b, c, d]) in colours.into_iter().enumerate() {
                // Clamped to bytes, a pair of pixels is 16 bits wide; pairs of 4 rows come together, then are words again.
                let (first, second) = (_mm256_packus_epi16(a, b), _mm256_packus_epi16(c, d));
                let (even, odd) = (_mm256_unpacklo_epi16(first, second), _mm256_unpackhi_epi16(first, second));
                let (low, high) = (_mm256_unpacklo_epi16(even, odd), _mm256_unpackhi_epi16(even, odd));
                let turned = [
                    _mm256_unpacklo_epi8(low, zero),
                    _mm256_unpackhi_epi8(low, zero),
                    _mm256_unpacklo_epi8(high, zero),
                    _mm256_unpackhi_epi8(high, zero),
                ];
                for (pair, turned) in turned.into_iter().enumerate() {
                    // SAFETY: 12 writable units for each step.
                    unsafe {
                        let unit = units.add(12 * step + 3 * pair + channel);
                        _mm256_store_si256(unit.cast::<__m256i>().add(half), turned);
                    }
                }
            }
        }
    }
}

/// The 3 * GROUP bytes of each row before they are bytes: [pixel and channel][row].
#[repr(align(64))]
pub struct Words(pub [[i16; LANES]; 3 * GROUP]);

/// `lanes::Filter`.
#[target_feature(enable = "avx2")]
unsafe fn filter(windows: Windows<'_>, bits: u32, first: usize, out: &[*mut u8; LANES]) {
    let half = _mm256_set1_epi32(1 << (bits - 1));
    let shift = _mm_cvtsi32_si128(bits as i32);
    let mut words = Words([[0; LANES]; 3 * GROUP]);
    for (g, group) in windows.groups().enumerate() {
        let count = group.len();
        for ((units, weights), words) in group.zip(words.0.chunks_exact_mut(3)) {
            let mut acc = [[half; 2]; 3];
            let add = |acc: &mut [[__m256i; 2]; 3], units: *const Unit, pair: i32| {
                let weights = _mm256_set1_epi32(pair);
                for (c, acc) in acc.iter_mut().enumerate() {
                    for (h, acc) in acc.iter_mut().enumerate() {
                        // SAFETY: `groups` gives 3 units for each pair of weights.
                        let samples = unsafe { _mm256_load_si256(units.add(c).cast::<__m256i>().add(h)) };
                        *acc = _mm256_add_epi32(*acc, _mm256_madd_epi16(weights, samples));
                    }
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
                let packed = _mm256_packs_epi32(_mm256_sra_epi32(acc[0], shift), _mm256_sra_epi32(acc[1], shift));
                // SAFETY: 32 bytes of an array; Words is aligned.
                unsafe { _mm256_store_si256(words.as_mut_ptr().cast(), packed) };
            }
        }
        // SAFETY: AVX2, and the caller's rows reach 16 bytes behind the last pixel.
        unsafe { write(&words, count, 3 * (first + g * GROUP), out) };
    }
}

/// Turns `pixels` of `words` back into rows, at byte `at` of each, 16 bytes at a time.
///
/// # Safety
/// AVX2; each row has room for 3 * pixels bytes at `at`, rounded up to 16.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn write(words: &Words, pixels: usize, at: usize, out: &[*mut u8; LANES]) {
    for (block, columns) in words.0.chunks_exact(16).take((3 * pixels).div_ceil(16)).enumerate() {
        // SAFETY: 32 bytes of an array; Words is aligned.
        let load = |j: usize| unsafe { _mm256_load_si256(columns[j].as_ptr().cast()) };
        // Bytes: column j of rows 0..8, column j + 8 of rows 0..8 | the same of rows 8..16.
        let byte: [__m256i; 8] = std::array::from_fn(|j| _mm256_packus_epi16(load(j), load(j + 8)));
        let low = |a, b| _mm256_unpacklo_epi8(a, b);
        let high = |a, b| _mm256_unpackhi_epi8(a, b);
        // 8 columns of 8 rows, in either half, to two rows a register.
        let rows_of = |m: [__m256i; 4]| {
            let (even, odd) = ([low(m[0], m[2]), high(m[0], m[2])], [low(m[1], m[3]), high(m[1], m[3])]);
            [low(even[0], odd[0]), high(even[0], odd[0]), low(even[1], odd[1]), high(even[1], odd[1])]
        };
        let first = rows_of(std::array::from_fn(|j| low(byte[j], byte[j + 4])));
        let second = rows_of(std::array::from_fn(|j| high(byte[j], byte[j + 4])));
        for (two, (a, b)) in first.into_iter().zip(second).enumerate() {
            for (r, row) in [(2 * two, _mm256_unpacklo_epi64(a, b)), (2 * two + 1, _mm256_unpackhi_epi64(a, b))] {
                // SAFETY: see above.
                unsafe {
                    let to = |r: usize| out[r].add(at + 16 * block).cast();
                    _mm_storeu_si128(to(r), _mm256_castsi256_si128(row));
                    _mm_storeu_si128(to(r + 8), _mm256_extracti128_si256(row, 1));
                }
            }
        }
    }
}

/// See `native::vertical`. Rows and `out` need ROW_PAD bytes behind the `n` that count; both lists are even in length.
pub fn vertical(rows: &[&[u8]], weights: &[i16], bits: u32, out: &mut [u8], n: usize) {
    assert!(available() && rows.len() == weights.len() && rows.len().is_multiple_of(2) && !rows.is_empty());
    let reach = n.next_multiple_of(64);
    const { assert!(ROW_PAD >= 64) };
    assert!(out.len() >= reach && rows.iter().all(|r| r.len() >= reach));
    // SAFETY: AVX2 was detected; all accesses are 64 bytes at multiples of 64 below `reach`, checked above; weights are read
    // in pairs, and there is one for each row.
    unsafe { vertical_blocks(rows, weights, bits, out, reach) }
}

#[target_feature(enable = "avx2")]
unsafe fn vertical_blocks(rows: &[&[u8]], weights: &[i16], bits: u32, out: &mut [u8], reach: usize) {
    let half = _mm256_set1_epi32(1 << (bits - 1));
    let shift = _mm_cvtsi32_si128(bits as i32);
    let zero = _mm256_setzero_si256();
    for x in (0..reach).step_by(64) {
        let mut acc = [[half; 4]; 2];
        for (rows, weights) in rows.chunks_exact(2).zip(weights.chunks_exact(2)) {
            // SAFETY: two weights; x + 64 <= reach <= length of every row.
            unsafe {
                let pair = _mm256_set1_epi32(weights.as_ptr().cast::<i32>().read_unaligned());
                let (a, b) = (rows[0].as_ptr().add(x), rows[1].as_ptr().add(x));
                for (side, acc) in acc.iter_mut().enumerate() {
                    let load = |row: *const u8| _mm256_loadu_si256(row.add(32 * side).cast());
                    let (a, b) = (load(a), load(b));
                    let (low, high) = (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b));
                    let words = [
                        _mm256_unpacklo_epi8(low, zero),
                        _mm256_unpackhi_epi8(low, zero),
                        _mm256_unpacklo_epi8(high, zero),
                        _mm256_unpackhi_epi8(high, zero),
                    ];
                    for (acc, words) in acc.iter_mut().zip(words) {
                        *acc = _mm256_add_epi32(*acc, _mm256_madd_epi16(words, pair));
                    }
                }
            }
        }
        for (side, acc) in acc.into_iter().enumerate() {
            let done = acc.map(|a| _mm256_sra_epi32(a, shift));
            let bytes = _mm256_packus_epi16(_mm256_packs_epi32(done[0], done[1]), _mm256_packs_epi32(done[2], done[3]));
            // SAFETY: x + 64 <= reach <= out.len().
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(x + 32 * side).cast(), bytes) };
        }
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
