//! The ways to decode one file, for tests and fuzzing.

use super::{chunks, features, v3, whole, Job, LOSSY};
use crate::cancel::CancelToken;
use crate::decode::kept::Kept;
use crate::error::{Code, Result};

/// All rows, or why there are none.
pub type Outcome = std::result::Result<Vec<u8>, Code>;

/// What libwebp-sys's libwebp makes of a file, and what the second one does, with tables and without; None when the header is
/// no good.
pub fn ways(data: &[u8]) -> Option<[Outcome; 3]> {
    let cancel = CancelToken::default();
    let job = Job { data, max_pixels: 1 << 20, apply_exif: true, cancel: &cancel };
    let header = features(data).ok()?;
    // Small pictures have every kind of block, and a fuzzer's time is better spent on many of them.
    if !v3::available() || job.check_size(header.width as u32, header.height as u32).is_err() {
        return None;
    }
    if header.format != LOSSY || header.has_alpha != 0 || header.has_animation != 0 {
        return None;
    }
    let (width, height) = (header.width as usize, header.height as usize);
    let outcome = |decode: &dyn Fn(&mut Kept) -> Result<()>| {
        let mut kept = Kept { width, ..Kept::default() };
        decode(&mut kept).map(|()| kept.rows).map_err(|e| e.code)
    };
    let first = outcome(&|kept| whole(&job, &header, &chunks(data), kept));
    let second = |tables| outcome(&|kept| v3::decode_by(&job, width, height, tables, kept));
    Some([first, second(true), second(false)])
}
