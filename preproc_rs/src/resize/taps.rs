//! Filter taps of one axis: bicubic (a = -0.5) with antialiasing, in torchvision's fixed point.
//!
//! scale = in/out; centre of output i = scale * (i + 0.5); support = 2 * max(scale, 1); taps run from
//! max(int(centre - support + 0.5), 0) to min(int(centre + support + 0.5), in). Weights are normalised in double and
//! stored as int16 with the largest shift `bits` (at most 22) for which round(max weight * 2^bits) < 2^15. Every
//! operation is in the reference's order (tests/unit/preproc/resize_ref.py), so the integers are the same.

use crate::error::Result;
use crate::memory::try_vec;

/// One output sample: `weights` of input samples `start ..`, as a range of `Taps::weights`; a zero follows an odd last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    pub start: usize,
    pub len: usize,
    at: usize,
}

pub struct Taps {
    pub windows: Vec<Window>,
    weights: Vec<i16>,
    /// Right shift after accumulation; 1 ..= 22.
    pub bits: u32,
    pub longest: usize,
}

impl Taps {
    pub fn new(n_in: usize, n_out: usize) -> Result<Taps> {
        let scale = n_in as f64 / n_out as f64;
        let (support, inverse) = if scale >= 1.0 { (2.0 * scale, 1.0 / scale) } else { (2.0, 1.0) };
        let mut windows: Vec<Window> = try_vec(n_out)?;
        let mut exact: Vec<f64> = try_vec(n_out * (2 * support.ceil() as usize + 2))?;
        let mut longest = 0;
        let mut top = 0.0f64;
        for i in 0..n_out {
            let centre = scale * (i as f64 + 0.5);
            // `as usize` truncates like int() and stops at zero like max(.., 0): only values above -1 differ, and they
            // become 0 in both.
            let start = (centre - support + 0.5) as usize;
            let end = ((centre + support + 0.5) as usize).min(n_in);
            let at = exact.len();
            let mut sum = 0.0;
            for j in start..end {
                let weight = cubic((j as f64 - centre + 0.5) * inverse);
                sum += weight;
                exact.push(weight);
            }
            for weight in &mut exact[at..] {
                *weight /= sum;
                top = top.max(*weight);
            }
            longest = longest.max(end - start);
            windows.push(Window { start, len: end - start, at });
            if !(end - start).is_multiple_of(2) {
                exact.push(0.0);
            }
        }
        let mut bits = 0;
        while bits < 22 && ((0.5 + top * f64::from(1u32 << (bits + 1))) as i64) < (1 << 15) {
            bits += 1;
        }
        let one = f64::from(1u32 << bits);
        let mut weights: Vec<i16> = try_vec(exact.len())?;
        weights.extend(exact.iter().map(|v| (v * one + if *v >= 0.0 { 0.5 } else { -0.5 }) as i16));
        Ok(Taps { windows, weights, bits, longest })
    }

    /// The same filter for an axis that is stored in reverse: output i keeps its number, its inputs are mirrored.
    pub fn mirrored(mut self, n_in: usize) -> Taps {
        for window in &mut self.windows {
            self.weights[window.at..window.at + window.len].reverse();
            window.start = n_in - window.start - window.len;
        }
        self
    }

    pub fn weights(&self, window: Window) -> &[i16] {
        &self.weights[window.at..window.at + window.len]
    }

    /// As `weights`, and a zero when they are odd in number.
    pub fn weights_in_pairs(&self, window: Window) -> &[i16] {
        &self.weights[window.at..window.at + window.len.next_multiple_of(2)]
    }
}

fn cubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_sum_to_about_one_and_stay_inside() {
        for (n_in, n_out) in [(1, 1), (1, 56), (7, 56), (4_000, 756), (20_000, 28), (13, 13), (100, 101)] {
            let taps = Taps::new(n_in, n_out).expect("small");
            for window in &taps.windows {
                assert!(window.len > 0 && window.start + window.len <= n_in);
                let sum: i64 = taps.weights(*window).iter().map(|w| i64::from(*w)).sum();
                assert!((sum - (1i64 << taps.bits)).abs() <= window.len as i64, "{n_in} -> {n_out}: {sum}");
            }
        }
    }
}
