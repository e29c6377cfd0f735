//! Any text: decoded within the budget, or a typed error; whitespace in the payload changes nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use preproc_rs::data_url::decode;

fuzz_target!(|text: &str| {
    let url = format!("data:image/png;base64,{text}");
    let plain = decode(&url, 1_000);
    if let Ok((_, bytes)) = &plain {
        assert!(bytes.len() <= 1_000);
    }
    if text.is_ascii() && !text.contains('%') {
        let spaced: String = text.chars().flat_map(|c| [c, '\n']).collect();
        assert_eq!(decode(&format!("data:image/png;base64,{spaced}"), 1_000).ok(), plain.ok());
    }
    let _ = decode(text, 1_000);
});
