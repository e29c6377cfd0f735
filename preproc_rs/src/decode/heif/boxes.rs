//! Boxes of the ISO base media file format, read in place.

/// Numbers, one after the other; None at the end.
#[derive(Clone, Copy)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (now, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(now)
    }

    /// Big-endian, of up to 8 bytes; of none it is 0.
    pub fn uint(&mut self, bytes: usize) -> Option<u64> {
        Some(self.bytes(bytes)?.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    pub fn u16(&mut self) -> Option<u32> {
        self.uint(2).map(|v| v as u32)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.uint(4).map(|v| v as u32)
    }

    /// Version and flags of a full box.
    pub fn version(&mut self) -> Option<(u64, u64)> {
        Some((self.uint(1)?, self.uint(3)?))
    }

    /// An item's number: 16 bits in old boxes, 32 in new ones.
    pub fn id(&mut self, wide: bool) -> Option<u32> {
        self.uint(if wide { 4 } else { 2 }).map(|v| v as u32)
    }
}

pub type Kind = [u8; 4];

/// The boxes in `data` up to the first whose size does not fit.
pub fn boxes(data: &[u8]) -> impl Iterator<Item = (Kind, &[u8])> {
    let mut rest = Reader(data);
    std::iter::from_fn(move || {
        let before = rest.0.len();
        let size = rest.uint(4)?;
        let kind: Kind = rest.bytes(4)?.try_into().ok()?;
        let size = match size {
            0 => before as u64,
            1 => rest.uint(8)?,
            size => size,
        };
        let head = before - rest.0.len();
        let body = rest.bytes(usize::try_from(size).ok()?.checked_sub(head)?)?;
        Some((kind, body))
    })
}

pub fn find<'a>(data: &'a [u8], kind: &Kind) -> Option<&'a [u8]> {
    boxes(data).find(|(k, _)| k == kind).map(|(_, body)| body)
}

#[cfg(test)]
mod tests {
    use super::{boxes, find};

    #[test]
    fn sizes_of_all_kinds_and_sizes_that_lie() {
        let data = b"\0\0\0\x0bfreeabc\0\0\0\x01wide\0\0\0\0\0\0\0\x12xy\0\0\0\0last...";
        let kinds: Vec<_> = boxes(data).map(|(kind, body)| (kind, body.len())).collect();
        assert_eq!(kinds, [(*b"free", 3), (*b"wide", 2), (*b"last", 3)]);
        for lie in
            [&b"\0\0\0\x07free..."[..], b"\0\0\0\x20free", b"\0\0\0\x01free\xff\xff\xff\xff\xff\xff\xff\xff", b"\0\0"]
        {
            assert_eq!(boxes(lie).count(), 0);
        }
        assert_eq!(find(data, b"wide"), Some(&b"xy"[..]));
    }
}
