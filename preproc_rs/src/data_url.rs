//! `data:` URLs of media (RFC 2397): any case, any parameters, base64 required, whitespace and percent escapes inside
//! the payload, both base64 alphabets, padding required. The byte budget is checked before memory is taken.

use crate::courtesy;
use crate::error::{bail, Result};
use crate::memory::try_vec;

/// (declared media type in lower case or "", bytes).
pub fn decode(bytes: &[u8], max_bytes: usize) -> Result<(String, Vec<u8>)> {
    if !bytes.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"data:")) {
        bail!(BadDataUrl, "the URL does not begin with data:");
    }
    let Some(comma) = bytes.iter().take(4096).position(|b| *b == b',') else {
        bail!(BadDataUrl, "the data URL has no comma between its media type and its data");
    };
    let head = String::from_utf8_lossy(&bytes[5..comma]);
    let mut parts = head.split(';');
    let media_type = parts.next().unwrap_or_default().trim().to_ascii_lowercase();
    if !parts.any(|p| p.trim().eq_ignore_ascii_case("base64")) {
        bail!(BadDataUrl, "the data URL is not base64; write data:<type>;base64,<data>");
    }
    let media = ["image/", "video/"].iter().any(|m| media_type.starts_with(m));
    if !media && !matches!(media_type.as_str(), "" | "application/octet-stream" | "binary/octet-stream") {
        bail!(BadDataUrl, "the data URL declares {media_type:?}, which is neither an image nor a video");
    }
    Ok((media_type, base64(&bytes[comma + 1..], max_bytes)?))
}

const SKIP: u8 = 64;
const PAD: u8 = 65;
const PERCENT: u8 = 66;
const BAD: u8 = 255;

const VALUES: [u8; 256] = {
    let mut table = [BAD; 256];
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut i = 0;
    while i < 64 {
        table[alphabet[i] as usize] = i as u8;
        i += 1;
    }
    table[b'-' as usize] = 62;
    table[b'_' as usize] = 63;
    table[b'=' as usize] = PAD;
    table[b'%' as usize] = PERCENT;
    let blank = b" \t\r\n\x0c";
    i = 0;
    while i < blank.len() {
        table[blank[i] as usize] = SKIP;
        i += 1;
    }
    table
};

fn base64(text: &[u8], max_bytes: usize) -> Result<Vec<u8>> {
    // An upper bound; three bytes of slack for the last group.
    let expected = (text.len() / 4 * 3 + 3).min(max_bytes.saturating_add(3));
    let mut out: Vec<u8> = try_vec(expected)?;
    let (mut group, mut have, mut pads) = (0u32, 0u32, 0u32);
    let mut rest = text;
    let mut paused = rest.len();
    while let Some((&first, tail)) = rest.split_first() {
        if paused - rest.len() > courtesy::PIECE_BYTES {
            paused = rest.len();
            courtesy::pause();
        }
        // Four plain digits at once while nothing special is around.
        if have == 0 && pads == 0 && rest.len() >= 4 {
            let v = [
                VALUES[rest[0] as usize],
                VALUES[rest[1] as usize],
                VALUES[rest[2] as usize],
                VALUES[rest[3] as usize],
            ];
            if v.iter().all(|d| *d < 64) {
                let g = u32::from(v[0]) << 18 | u32::from(v[1]) << 12 | u32::from(v[2]) << 6 | u32::from(v[3]);
                push(&mut out, &g.to_be_bytes()[1..], max_bytes)?;
                rest = &rest[4..];
                continue;
            }
        }
        let mut byte = first;
        rest = tail;
        if VALUES[byte as usize] == PERCENT {
            let hex = |b: Option<&u8>| b.and_then(|b| char::from(*b).to_digit(16));
            let (Some(high), Some(low)) = (hex(rest.first()), hex(rest.get(1))) else {
                bail!(BadDataUrl, "the data URL holds a percent sign without two hex digits");
            };
            byte = (high << 4 | low) as u8;
            rest = &rest[2..];
        }
        match VALUES[byte as usize] {
            SKIP => {}
            PAD => {
                pads += 1;
                if pads > 2 || have + pads > 4 || have < 2 {
                    bail!(BadDataUrl, "the base64 data is padded wrongly");
                }
            }
            digit @ 0..64 if pads == 0 => {
                group = group << 6 | u32::from(digit);
                have += 1;
                if have == 4 {
                    push(&mut out, &group.to_be_bytes()[1..], max_bytes)?;
                    (group, have) = (0, 0);
                }
            }
            _ => bail!(BadDataUrl, "the base64 data holds a character that is not base64, after {} bytes", out.len()),
        }
    }
    match (have, pads) {
        (0, 0) => {}
        (2, 2) => push(&mut out, &[(group >> 4) as u8], max_bytes)?,
        (3, 1) => push(&mut out, &[(group >> 10) as u8, (group >> 2) as u8], max_bytes)?,
        _ => bail!(BadDataUrl, "the base64 data is cut: its length is not a multiple of 4"),
    }
    Ok(out)
}

fn push(out: &mut Vec<u8>, bytes: &[u8], max_bytes: usize) -> Result<()> {
    if out.len() + bytes.len() > max_bytes {
        bail!(TooManyBytes, "the data URL holds more than {max_bytes} bytes, which is the limit");
    }
    out.extend_from_slice(bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn forms() {
        for url in
            ["data:;base64,aGk+Pw==", "DATA:IMAGE/PNG;Base64,aGk-Pw%3D%3d", "data:image/png;a=b;base64,aG\r\n k+ Pw=="]
        {
            assert_eq!(decode(url.as_bytes(), 4).expect(url).1, b"hi>?", "{url}");
        }
        assert_eq!(decode(b"data:;base64,", 4).expect("empty").1, b"");
        for (url, code) in [
            ("http://x", Code::BadDataUrl),
            ("data:image/png;base64", Code::BadDataUrl),
            ("data:image/png,aGk=", Code::BadDataUrl),
            ("data:text/html;base64,aGk=", Code::BadDataUrl),
            ("data:;base64,aGk", Code::BadDataUrl),
            ("data:;base64,aGk=x", Code::BadDataUrl),
            ("data:;base64,a=k=", Code::BadDataUrl),
            ("data:;base64,@@@@", Code::BadDataUrl),
            ("data:;base64,%4", Code::BadDataUrl),
            ("data:;base64,aGkhaGkh", Code::TooManyBytes),
        ] {
            assert_eq!(decode(url.as_bytes(), 4).unwrap_err().code, code, "{url}");
        }
    }
}
