//! Which frames of a video are kept: greedily the first frame at least 1/fps after the last kept one, and always the
//! last frame. This is how the serving engines of this model sample (and its training extractor, but for the last frame).

use crate::error::Result;
use crate::memory::try_vec;

/// Ascending frame numbers below `total`. `source_fps`: average rate of the video; `cap`: at most so many are kept,
/// evenly thinned, the last always among them. Times are compared with the engines' slack of 0.1 ms.
pub fn sample(total: usize, source_fps: f64, fps: f64, cap: Option<usize>) -> Result<Vec<usize>> {
    const SLACK_S: f64 = 1e-4;
    let mut keep: Vec<usize> = try_vec(total)?;
    if total == 0 {
        return Ok(keep);
    }
    keep.push(0);
    if source_fps <= 0.0 || fps <= 0.0 || !source_fps.is_finite() {
        return Ok(keep);
    }
    let mut last = 0usize;
    loop {
        let next = (last as f64 / source_fps + 1.0 / fps - SLACK_S) * source_fps;
        let next = (next.ceil() as usize).max(last + 1);
        if next >= total {
            break;
        }
        keep.push(next);
        last = next;
    }
    let end = total - 1;
    if last != end && end as f64 / source_fps - last as f64 / source_fps > SLACK_S {
        keep.push(end);
    }
    Ok(match cap {
        Some(cap) if keep.len() > cap.max(1) => thin(&keep, cap.max(1)),
        _ => keep,
    })
}

/// `cap` of `keep`, evenly, the last one always.
fn thin(keep: &[usize], cap: usize) -> Vec<usize> {
    let step = keep.len() as f64 / (cap.max(2) - 1) as f64;
    let first = (0..cap - 1).map(|i| keep[((i as f64 * step) as usize).min(keep.len() - 1)]);
    first.chain(keep.last().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::sample;

    #[test]
    fn equals_the_engines() {
        let check = |total, source, fps, cap, expected: &[usize]| {
            assert_eq!(
                sample(total, source, fps, cap).expect("small"),
                expected,
                "{total} at {source}, {fps}, {cap:?}"
            );
        };
        check(1, 30.0, 1.0, None, &[0]);
        check(30, 30.0, 1.0, None, &[0, 29]);
        check(31, 30.0, 1.0, None, &[0, 30]);
        check(250, 25.0, 1.0, None, &[0, 25, 50, 75, 100, 125, 150, 175, 200, 225, 249]);
        check(301, 29.97, 1.0, None, &[0, 30, 60, 90, 120, 150, 180, 210, 240, 270, 300]);
        check(10, 5.0, 1.0, None, &[0, 5, 9]);
        check(90, 30.0, 0.5, None, &[0, 60, 89]);
        check(7, 30.0, 30.0, None, &[0, 1, 2, 3, 4, 5, 6]);
        check(250, 25.0, 1.0, Some(4), &[0, 75, 175, 249]);
        check(250, 25.0, 1.0, Some(1), &[249]);
        check(9, 0.0, 1.0, None, &[0]);
        check(0, 25.0, 1.0, None, &[]);
        let two_a_second = sample(250, 25.0, 2.0, None).expect("small");
        assert_eq!((two_a_second.len(), &two_a_second[18..]), (21, &[234, 247, 249][..]));
    }
}
