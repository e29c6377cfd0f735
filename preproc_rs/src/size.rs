//! Which size a picture is resized to. Both rules give sides that are multiples of 28.
//!
//! `Area` is the reference processor's rule (transformers 5.24, `smart_resize`); `LongSide` is the serving rule that
//! keeps pages and screenshots legible. The arithmetic is double precision with Python's rounding (half to even), in
//! the reference's order of operations, so that both agree on every size.

use crate::error::{bail, Result};
use crate::limits::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeRule {
    /// At most `max` pixels, at least `AREA_MIN_PIXELS`.
    Area { max: u64 },
    /// Long side at most `cap`; a short side below 112 is raised.
    LongSide { cap: u32 },
}

impl SizeRule {
    /// (height, width) of the resized picture.
    pub fn resized(self, height: u32, width: u32) -> Result<(usize, usize)> {
        if height == 0 || width == 0 {
            bail!(BadDimensions, "the picture is {width} x {height} pixels; both sides must be at least 1");
        }
        let (long, short) = (u64::from(height.max(width)), u64::from(height.min(width)));
        if long > MAX_ASPECT_RATIO * short {
            bail!(
                BadAspectRatio,
                "the picture is {width} x {height} pixels, an aspect ratio of {:.2}; the limit is {MAX_ASPECT_RATIO}",
                long as f64 / short as f64
            );
        }
        match self {
            SizeRule::Area { max } => Ok(area(height, width, max)),
            SizeRule::LongSide { cap } => long_side(height, width, cap),
        }
    }
}

fn multiple(side: f64) -> usize {
    (side / FACTOR as f64).round_ties_even() as usize * FACTOR
}

fn area(height: u32, width: u32, max: u64) -> (usize, usize) {
    let (h, w) = (f64::from(height), f64::from(width));
    let pixels = h * w;
    let (mut oh, mut ow) = (multiple(h), multiple(w));
    let factor = FACTOR as f64;
    let now = (oh * ow) as u64;
    if now > max {
        let beta = (pixels / max as f64).sqrt();
        oh = ((h / beta / factor).floor() as usize * FACTOR).max(FACTOR);
        ow = ((w / beta / factor).floor() as usize * FACTOR).max(FACTOR);
    } else if now < AREA_MIN_PIXELS {
        let beta = (AREA_MIN_PIXELS as f64 / pixels).sqrt();
        oh = (h * beta / factor).ceil() as usize * FACTOR;
        ow = (w * beta / factor).ceil() as usize * FACTOR;
    }
    (oh, ow)
}

fn long_side(height: u32, width: u32, cap: u32) -> Result<(usize, usize)> {
    let (long, short, cap) = (f64::from(height.max(width)), f64::from(height.min(width)), f64::from(cap));
    let floor = f64::from(SHORT_SIDE_FLOOR);
    let scale = if long > cap {
        cap / long
    } else if short < floor {
        (floor / short).min(cap / long)
    } else {
        1.0
    };
    let side = |n: u32| multiple(f64::from(n) * scale).max(FACTOR);
    let (oh, ow) = (side(height), side(width));
    if (oh * ow) as u64 > LONG_SIDE_MAX_PIXELS {
        bail!(LimitExceeded, "the resized picture is {ow} x {oh} pixels; the limit is {LONG_SIDE_MAX_PIXELS} pixels");
    }
    Ok((oh, ow))
}

/// Checks a caller's cap: a multiple of 28 in [112, 3584].
pub fn check_cap(cap: u32) -> Result<u32> {
    if !cap.is_multiple_of(FACTOR as u32) || !(LONG_SIDE_MIN..=LONG_SIDE_MAX).contains(&cap) {
        bail!(
            BadOption,
            "max_long_side_pixel is {cap}; it must be a multiple of {FACTOR} in [{LONG_SIDE_MIN}, {LONG_SIDE_MAX}]"
        );
    }
    Ok(cap)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn area_rule_matches_the_reference_table() {
        let rule = SizeRule::Area { max: AREA_MAX_PIXELS };
        for (h, w, oh, ow) in [
            (1, 1, 56, 56),
            (42, 42, 56, 56),
            (70, 98, 56, 112),
            (90, 150, 84, 140),
            (480, 640, 476, 644),
            (686, 686, 672, 672),
            (1080, 1920, 504, 896),
            (2000, 100, 1988, 112),
            (28, 5600, 28, 5600),
            (4000, 20, 4004, 28),
            (10, 1500, 28, 700),
        ] {
            assert_eq!(rule.resized(h, w), Ok((oh, ow)), "{h} x {w}");
        }
        assert_eq!(rule.resized(4001, 20).unwrap_err().code, Code::BadAspectRatio);
        assert_eq!(rule.resized(0, 20).unwrap_err().code, Code::BadDimensions);
    }

    #[test]
    fn long_side_rule_matches_the_token_table() {
        let rule = SizeRule::LongSide { cap: LONG_SIDE_DEFAULT };
        for (h, w, tokens) in [(1080, 1920, 2_691), (3000, 4000, 3_888), (2200, 1700, 4_032), (48, 64, 20)] {
            let (oh, ow) = rule.resized(h, w).expect("fits");
            assert_eq!(oh * ow / (FACTOR * FACTOR), tokens, "{h} x {w}");
        }
    }

    #[test]
    fn caps() {
        assert!(check_cap(112).is_ok() && check_cap(3_584).is_ok());
        for bad in [0, 84, 113, 3_612] {
            assert_eq!(check_cap(bad).unwrap_err().code, Code::BadOption);
        }
    }
}
