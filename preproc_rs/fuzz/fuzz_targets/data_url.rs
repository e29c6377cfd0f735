//! Any bytes: decoded within the budget, or a typed error; whitespace in the payload changes nothing; what is found in a body
//! is a string of it that begins like a data: URL.
#![no_main]

use libfuzzer_sys::fuzz_target;
use preproc_rs::data_url::{decode, find};

fuzz_target!(|data: &[u8]| {
    const HEAD: &[u8] = b"data:image/png;base64,";
    let plain = decode(&[HEAD, data].concat(), 1_000);
    if let Ok((_, bytes)) = &plain {
        assert!(bytes.len() <= 1_000);
    }
    if data.is_ascii() && !data.contains(&b'%') {
        let spaced: Vec<u8> = data.iter().flat_map(|b| [*b, b'\n']).collect();
        assert_eq!(decode(&[HEAD, &spaced].concat(), 1_000).ok(), plain.ok());
    }
    let _ = decode(data, 1_000);
    let mut before = 0;
    for (start, end) in find(data, 8) {
        assert!(before < start && start + 8 < end && end < data.len());
        assert!(data[start - 1] == b'"' && data[start..end].starts_with(b"data:") && data[end] == b'"');
        assert!(data[start..end].iter().all(|b| b.is_ascii() && !b.is_ascii_control() || *b == 0x7f));
        before = end;
    }
});
