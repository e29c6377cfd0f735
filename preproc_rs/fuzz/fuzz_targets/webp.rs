//! Any bytes: all ways through libwebp's decoder give the same pixels, or refuse with the same code.
#![no_main]

use libfuzzer_sys::{fuzz_target, Corpus};

fuzz_target!(|data: &[u8]| -> Corpus {
    let Some([first, tables, symbols]) = preproc_rs::decode::webp::compare::ways(data) else { return Corpus::Reject };
    assert!(first == tables, "tables: {:?} and {:?}", first.err(), tables.err());
    assert!(first == symbols, "symbols: {:?} and {:?}", first.err(), symbols.err());
    Corpus::Keep
});
