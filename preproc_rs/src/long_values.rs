//! Long values of a JSON body: data: URLs, texts and lists of token ids of megabytes, found and read without an interpreter,
//! whose lock would keep every other request waiting. What is odd in any way is left to the parser of the rest.

use crate::courtesy;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A string that begins with `data:` and whose bytes are its characters: ASCII, no escapes.
    Url,
    /// Any other string that is proper JSON and Unicode: no half of a surrogate pair.
    Text,
    /// A list of integers from 0 to 2^32 - 1, not empty.
    Ids,
}

/// Bytes [start, end) of the body: what stands between a string's quotes, or a list with its brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Long {
    pub kind: Kind,
    pub start: usize,
    pub end: usize,
}

/// Lists within lists; a body that nests deeper is refused by any parser.
const MOST_OPEN: usize = 1024;
/// Lists of ids in a list. More are no prompts.
const MOST_SHORT: usize = 1024;

struct OpenList {
    start: usize,
    short: Vec<Long>,
}

/// The values longer than `least` bytes, in order. Lists of ids that stand in a list longer than that count as long, whatever
/// their own length. Of what is no JSON, anything or nothing is found, but never a part of a string that has an end elsewhere.
pub fn find(body: &[u8], least: usize) -> Vec<Long> {
    let mut found = Vec::new();
    let mut open: Vec<OpenList> = Vec::new();
    let mut at = 0;
    while let Some(i) = next(body, at, |b| matches!(b, b'"' | b'[' | b']')) {
        match body[i] {
            b'"' => {
                let Some(end) = string_end(body, i + 1) else { break };
                if end - i - 1 > least {
                    let kind = kind_of(&body[i + 1..end]);
                    found.extend(kind.map(|kind| Long { kind, start: i + 1, end }));
                }
                at = end + 1;
            }
            b'[' => match ids_end(body, i) {
                Some(end) => {
                    let list = Long { kind: Kind::Ids, start: i, end };
                    if end - i > least {
                        found.push(list);
                    } else if let Some(around) = open.last_mut().filter(|_| stands_in_a_list(body, i)) {
                        if around.short.len() < MOST_SHORT {
                            around.short.push(list);
                        }
                    }
                    at = end;
                }
                None if open.len() == MOST_OPEN => return Vec::new(),
                None => {
                    open.push(OpenList { start: i, short: Vec::new() });
                    at = i + 1;
                }
            },
            _ => {
                if let Some(list) = open.pop().filter(|list| i - list.start > least) {
                    found.extend(list.short);
                }
                at = i + 1;
            }
        }
    }
    found.sort_by_key(|long| long.start);
    found
}

/// The UTF-8 bytes of a `Text`, or None when it is none.
pub fn text(content: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(content.len());
    characters(content, |part| out.extend_from_slice(part))?;
    Some(out)
}

/// A list of ids as u32 little-endian, or None when it is none.
pub fn ids(list: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(list.len() * 2);
    let end = each_id(list, 0, |id| out.extend_from_slice(&id.to_le_bytes()))?;
    (end == list.len()).then_some(out)
}

/// Where the first byte from `start` on stands that `wanted` takes. Blocks without one are passed over by vector.
fn next(body: &[u8], start: usize, wanted: impl Fn(u8) -> bool) -> Option<usize> {
    let mut at = start;
    for piece in body[start..].chunks(courtesy::PIECE_BYTES) {
        for block in piece.chunks(64) {
            if block.iter().fold(false, |any, b| any | wanted(*b)) {
                return block.iter().position(|b| wanted(*b)).map(|i| at + i);
            }
            at += block.len();
        }
        courtesy::pause();
    }
    None
}

/// Of the string that begins at `start`: where its closing quote is.
fn string_end(body: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        let i = next(body, at, |b| matches!(b, b'"' | b'\\'))?;
        if body[i] == b'"' {
            return Some(i);
        }
        at = i + 2;
        if at > body.len() {
            return None;
        }
    }
}

fn kind_of(content: &[u8]) -> Option<Kind> {
    if content.starts_with(b"data:") && next(content, 0, |b| b == b'\\' || b < 0x20 || !b.is_ascii()).is_none() {
        return Some(Kind::Url);
    }
    characters(content, |_| ()).map(|()| Kind::Text)
}

fn characters(content: &[u8], mut out: impl FnMut(&[u8])) -> Option<()> {
    std::str::from_utf8(content).ok()?;
    let mut at = 0;
    while at < content.len() {
        let stop = next(content, at, |b| b == b'\\' || b < 0x20).unwrap_or(content.len());
        out(&content[at..stop]);
        at = if stop < content.len() { escape(content, stop, &mut out)? } else { stop };
    }
    Some(())
}

/// Reads what stands at `at`; returns where it ends.
fn escape(content: &[u8], at: usize, out: &mut impl FnMut(&[u8])) -> Option<usize> {
    if content[at] != b'\\' {
        return None; // a control character
    }
    let plain = match content.get(at + 1)? {
        same @ (b'"' | b'\\' | b'/') => *same,
        b'b' => 0x08,
        b'f' => 0x0c,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'u' => {
            let first = hex(content, at + 2)?;
            let (code, end) = if (0xd800..0xdc00).contains(&first) {
                let second = (content.get(at + 6..at + 8)? == b"\\u").then(|| hex(content, at + 8))??;
                if !(0xdc00..0xe000).contains(&second) {
                    return None;
                }
                (0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00), at + 12)
            } else {
                (first, at + 6)
            };
            out(char::from_u32(code)?.encode_utf8(&mut [0; 4]).as_bytes());
            return Some(end);
        }
        _ => return None,
    };
    out(&[plain]);
    Some(at + 2)
}

fn hex(content: &[u8], at: usize) -> Option<u32> {
    content.get(at..at + 4)?.iter().try_fold(0, |value, b| Some(value << 4 | char::from(*b).to_digit(16)?))
}

/// Of the list of ids that begins at `start`: where it ends, behind its bracket.
fn ids_end(body: &[u8], start: usize) -> Option<usize> {
    each_id(body, start, |_| ())
}

fn each_id(body: &[u8], start: usize, mut out: impl FnMut(u32)) -> Option<usize> {
    let mut at = start + 1;
    let mut paused = at;
    loop {
        at = after_blanks(body, at);
        let first = at;
        let mut id = 0u32;
        while let Some(digit) = body.get(at).and_then(|b| char::from(*b).to_digit(10)) {
            id = id.checked_mul(10)?.checked_add(digit)?;
            at += 1;
        }
        if at == first || (body[first] == b'0' && at > first + 1) {
            return None;
        }
        out(id);
        at = after_blanks(body, at);
        match body.get(at)? {
            b',' => at += 1,
            b']' => return Some(at + 1),
            _ => return None,
        }
        if at - paused > courtesy::PIECE_BYTES {
            paused = at;
            courtesy::pause();
        }
    }
}

fn after_blanks(body: &[u8], mut at: usize) -> usize {
    while body.get(at).is_some_and(|b| is_blank(*b)) {
        at += 1;
    }
    at
}

/// Whether the value at `at` is an entry of a list, and no member of an object.
fn stands_in_a_list(body: &[u8], at: usize) -> bool {
    body[..at].iter().rev().find(|b| !is_blank(**b)).is_some_and(|b| matches!(b, b'[' | b','))
}

fn is_blank(b: u8) -> bool {
    matches!(b, b' ' | b'\t' | b'\r' | b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(body: &str, least: usize) -> Vec<(Kind, &str)> {
        find(body.as_bytes(), least).iter().map(|long| (long.kind, &body[long.start..long.end])).collect()
    }

    #[test]
    fn each_kind_where_it_stands() {
        let (url, words) = (format!("data:;base64,{}", "A".repeat(200)), "wörd \\n".repeat(40));
        let list = format!("[{}]", vec!["4294967295"; 40].join(" ,\n"));
        let body =
            format!(r#"{{"a":"{url}","b":"data:x","c":"{url}\n","d" : "{words}","e":{list},"{words}":[["{url}"]]}}"#);
        let escaped = format!("{url}\\n");
        let expected = [
            (Kind::Url, url.as_str()),
            (Kind::Text, &escaped),
            (Kind::Text, &words),
            (Kind::Ids, &list),
            (Kind::Text, &words),
            (Kind::Url, &url),
        ];
        assert_eq!(found(&body, 100), expected);
        assert!(found(&body, 1000).is_empty());
        for cut in 0..body.len() {
            find(&body.as_bytes()[..cut], 10); // of what is no JSON: no panic
        }
    }

    #[test]
    fn what_is_quoted_in_a_text_is_the_texts() {
        let words = r#"{\"url\": \"data:aaaaaaaa\", [1,2,3]"#;
        let body = format!(r#"{{"text":"{words}","x":[10,20,30]}}"#);
        assert_eq!(found(&body, 8), [(Kind::Text, words), (Kind::Ids, "[10,20,30]")]);
    }

    #[test]
    fn short_lists_in_a_long_one_are_long() {
        let body =
            r#"{"prompt": [[1],[2, 3] , [444444444,5]], "other": [6], "o": [{"in":[7],"an":"xxxxxxxxxxxxxxx"}]}"#;
        let expected = [(Kind::Ids, "[1]"), (Kind::Ids, "[2, 3]"), (Kind::Ids, "[444444444,5]")];
        assert_eq!(found(body, 16), expected);
        assert_eq!(found(body, 10)[2], expected[2]);
        assert!(found(body, 40).is_empty());
    }

    #[test]
    fn what_is_odd_is_left() {
        for odd in [
            r#""aaaaaaaaaa\x""#,
            r#""aaaaaaaaaa\ud83d""#,
            r#""aaaaaaaaaa\ud83d\n""#,
            r#""aaaaaaaaaa\ude00""#,
            r#""aaaaaaaaaa\u12g4""#,
            "\"aaaaaaaaaaaa\n\"",
            "\"aaaaaaaaaaaa\0\"",
            "\"aaaaaaaaaaaa",
            "\"aaaaaaaaaaaa\\",
            "[1,2,3,4,5,6,-7]",
            "[1,2,3,4,5,6,7.0]",
            "[1,2,3,4,5,6,07]",
            "[1,2,3,4,5,6,7e1]",
            "[1,2,3,4294967296]",
            "[1,2,3,4,5,6,,7]",
            "[1,2,3,4,5,6,7,]",
            "[1,2,3,4,5,6,7 8]",
            "[1,2,3,4,5,6,7,8",
            "[              ]",
        ] {
            assert!(found(odd, 8).is_empty(), "{odd}");
        }
        assert!(find(b"\"aaaaaaaaaaaaa\xff\"", 8).is_empty());
    }

    #[test]
    fn read() {
        let all = r#"a\"\\\/\b\f\n\r\té\u00e9\u20AC\ud83d\ude00z"#;
        assert_eq!(text(all.as_bytes()).as_deref(), Some("a\"\\/\u{8}\u{c}\n\r\té\u{e9}€😀z".as_bytes()));
        assert_eq!(text(br"\ud83dx"), None);
        assert_eq!(ids(b"[1, 256 ,0]"), Some(vec![1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]));
        assert_eq!(ids(b"[1]]"), None);
    }
}
