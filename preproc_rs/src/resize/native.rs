//! The plain form of both passes; every other form must give the same bytes.

use super::taps::Taps;

/// Clamp of a fixed-point accumulator to a byte.
#[inline]
fn to_byte(acc: i32, bits: u32) -> u8 {
    (acc >> bits).clamp(0, 255) as u8
}

/// One RGB row of any width to `taps.windows.len()` pixels. `out` holds 3 bytes a pixel (and maybe padding).
pub fn horizontal(row: &[u8], taps: &Taps, out: &mut [u8]) {
    let half = 1i32 << (taps.bits - 1);
    for (window, pixel) in taps.windows.iter().zip(out.chunks_exact_mut(3)) {
        let mut acc = [half; 3];
        let source = &row[3 * window.start..3 * (window.start + window.len)];
        for (weight, rgb) in taps.weights(*window).iter().zip(source.chunks_exact(3)) {
            for c in 0..3 {
                acc[c] += i32::from(*weight) * i32::from(rgb[c]);
            }
        }
        for c in 0..3 {
            pixel[c] = to_byte(acc[c], taps.bits);
        }
    }
}

/// Weighted sum of rows, byte by byte: `rows[k]` with `weights[k]`, `n` bytes of each.
pub fn vertical(rows: &[&[u8]], weights: &[i16], bits: u32, out: &mut [u8], n: usize) {
    let half = 1i32 << (bits - 1);
    for (x, byte) in out[..n].iter_mut().enumerate() {
        let mut acc = half;
        for (row, weight) in rows.iter().zip(weights) {
            acc += i32::from(*weight) * i32::from(row[x]);
        }
        *byte = to_byte(acc, bits);
    }
}
