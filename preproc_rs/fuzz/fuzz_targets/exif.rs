//! Any bytes are an EXIF block: never a panic, and the same answer behind the JPEG prefix.
#![no_main]

use libfuzzer_sys::fuzz_target;
use preproc_rs::exif::orientation;

fuzz_target!(|data: &[u8]| {
    let prefixed = [b"Exif\0\0", data].concat();
    if !data.starts_with(b"Exif\0\0") {
        assert_eq!(orientation(data), orientation(&prefixed));
    }
});
