//! Any bytes: rows that fit their grid, or a typed error, within the deadline.
#![no_main]

use libfuzzer_sys::fuzz_target;
use preproc_rs::cancel::CancelToken;
use preproc_rs::size::SizeRule;
use preproc_rs::video::{prepare_video, VideoOptions};

fuzz_target!(|data: &[u8]| {
    let options = VideoOptions {
        rule: SizeRule::LongSide { cap: 112 },
        max_frames: Some(4),
        deadline_s: 2.0,
        ..VideoOptions::default()
    };
    if let Ok(done) = prepare_video(data, &options, &CancelToken::default()) {
        assert_eq!(done.data.len(), done.grid.iter().product::<usize>() * done.row_values);
        assert_eq!(done.timestamps.map(|t| t.len()), Some(done.grid[0]));
    }
});
