//! What a file is, by its first bytes. The declared media type and the file name are never asked.

/// A short name, or None. Names of images: jpeg png webp gif bmp tiff avif heic; of videos: mp4 webm mkv avi mpegts;
/// svg and pdf are named so that the refusal can say what arrived.
pub fn sniff(data: &[u8]) -> Option<&'static str> {
    let at = |offset: usize, magic: &[u8]| data.get(offset..).is_some_and(|rest| rest.starts_with(magic));
    if at(0, b"\xff\xd8\xff") {
        Some("jpeg")
    } else if at(0, b"\x89PNG\r\n\x1a\n") {
        Some("png")
    } else if at(0, b"RIFF") && at(8, b"WEBP") {
        Some("webp")
    } else if at(0, b"GIF87a") || at(0, b"GIF89a") {
        Some("gif")
    } else if at(0, b"BM") && is_bmp(data) {
        Some("bmp")
    } else if at(0, b"II*\0") || at(0, b"MM\0*") || at(0, b"II+\0") || at(0, b"MM\0+") {
        Some("tiff")
    } else if at(4, b"ftyp") {
        Some(ftyp(data))
    } else if at(0, b"\x1a\x45\xdf\xa3") {
        let head = &data[..data.len().min(64)];
        Some(if head.windows(4).any(|w| w == b"webm") { "webm" } else { "mkv" })
    } else if at(0, b"RIFF") && at(8, b"AVI ") {
        Some("avi")
    } else if at(4, b"moov") || at(4, b"mdat") || at(4, b"moof") || at(4, b"wide") {
        Some("mp4")
    } else if is_mpegts(data) {
        Some("mpegts")
    } else if at(0, b"%PDF") {
        Some("pdf")
    } else if is_svg(data) {
        Some("svg")
    } else {
        None
    }
}

/// "BM" alone is two letters of text: the header size must be one that exists.
fn is_bmp(data: &[u8]) -> bool {
    matches!(data.get(14..18), Some([12 | 16 | 40 | 52 | 56 | 64 | 108 | 124, 0, 0, 0]))
}

fn ftyp(data: &[u8]) -> &'static str {
    match data.get(8..12) {
        Some(b"avif" | b"avis") => "avif",
        Some(b"heic" | b"heix" | b"heim" | b"heis" | b"hevc" | b"hevx" | b"mif1" | b"msf1") => "heic",
        _ => "mp4",
    }
}

fn is_mpegts(data: &[u8]) -> bool {
    data.len() >= 2 * 188 && (0..3).all(|i| data.get(i * 188).is_none_or(|b| *b == 0x47))
}

fn is_svg(data: &[u8]) -> bool {
    let head = &data[..data.len().min(512)];
    head.windows(4).any(|w| w == b"<svg")
}

pub fn is_video(format: &str) -> bool {
    matches!(format, "mp4" | "webm" | "mkv" | "avi" | "mpegts")
}

#[cfg(test)]
mod tests {
    use super::sniff;

    #[test]
    fn short_and_foreign_data() {
        for data in [&b""[..], b"\xff", b"BM", b"RIFF\0\0\0\0", b"#EXTM3U\n", b"ffconcat version 1.0"] {
            assert_eq!(sniff(data), None);
        }
        assert_eq!(sniff(b"\0\0\0\x18ftypavif"), Some("avif"));
        assert_eq!(sniff(b"\0\0\0\x18ftypisom"), Some("mp4"));
        assert_eq!(sniff(b"<?xml version='1.0'?><svg/>"), Some("svg"));
    }
}
