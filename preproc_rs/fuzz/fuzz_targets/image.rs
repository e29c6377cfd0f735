//! Any bytes: rows that fit their grid, or a typed error; the header read alone agrees with the whole.
#![no_main]

use libfuzzer_sys::fuzz_target;
use preproc_rs::cancel::CancelToken;
use preproc_rs::image::{prepare_image, probe, ImageOptions};
use preproc_rs::limits::AREA_MAX_PIXELS;
use preproc_rs::size::SizeRule;

fuzz_target!(|data: &[u8]| {
    let options = ImageOptions {
        rule: SizeRule::Area { max: AREA_MAX_PIXELS },
        max_pixels: 1_000_000,
        ..ImageOptions::default()
    };
    let announced = probe(data, &options);
    if let Ok(done) = prepare_image(data, &options, &CancelToken::default()) {
        assert_eq!(done.data.len(), done.grid.iter().product::<usize>() * done.row_values);
        let announced = announced.expect("a picture that decodes has a header");
        assert_eq!((announced.width, announced.height, announced.tokens), (done.width, done.height, done.tokens()));
    }
});
