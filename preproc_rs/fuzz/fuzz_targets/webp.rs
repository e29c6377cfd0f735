//! Any bytes: both builds of libwebp's decoder give the same pixels, or refuse with the same code.
#![no_main]

use libfuzzer_sys::{fuzz_target, Corpus};

fuzz_target!(|data: &[u8]| -> Corpus {
    let Some((first, second)) = preproc_rs::decode::webp::compare::both(data) else { return Corpus::Reject };
    assert!(first == second, "{:?} and {:?}", first.err(), second.err());
    Corpus::Keep
});
