//! A TIFF directory read in place: nothing is copied, so a hostile one costs no memory. EXIF blocks are TIFF files too.
//!
//! Classic and BigTIFF, both byte orders. A field that lies outside the file, or has another type than asked for, reads as none.

use crate::limits::IFD_MAX_ENTRIES;

#[derive(Clone, Copy)]
pub struct Directory<'a> {
    data: &'a [u8],
    big_endian: bool,
    /// BigTIFF: offsets and counts of 8 bytes.
    big: bool,
    entries_at: usize,
    entries: usize,
    /// All entries lie in the file, and none is left out for their number.
    pub complete: bool,
}

/// Values of one field.
#[derive(Clone, Copy)]
pub struct Field<'a> {
    directory: Directory<'a>,
    kind: u16,
    pub count: usize,
    at: usize,
}

impl<'a> Directory<'a> {
    /// The first directory; the ones behind it (pages, thumbnails) are never followed.
    pub fn first(data: &'a [u8]) -> Option<Directory<'a>> {
        let (big_endian, big) = match data.get(..4)? {
            b"II*\0" => (false, false),
            b"MM\0*" => (true, false),
            b"II+\0" => (false, true),
            b"MM\0+" => (true, true),
            _ => return None,
        };
        let mut directory = Directory { data, big_endian, big, entries_at: 0, entries: 0, complete: false };
        let (count, head) = if big {
            if directory.uint(4, 2)? != 8 {
                return None;
            }
            let at = usize::try_from(directory.uint(8, 8)?).ok()?;
            directory.entries_at = at;
            (directory.uint(at, 8)?, 8)
        } else {
            let at = directory.uint(4, 4)? as usize;
            directory.entries_at = at;
            (directory.uint(at, 2)?, 2)
        };
        directory.entries_at = directory.entries_at.checked_add(head)?;
        let count = usize::try_from(count).ok()?;
        directory.entries = count.min(IFD_MAX_ENTRIES);
        let end = directory.entries_at.checked_add(directory.entries * directory.entry_bytes())?;
        directory.complete = count <= IFD_MAX_ENTRIES && end <= data.len();
        Some(directory)
    }

    pub fn big_endian(&self) -> bool {
        self.big_endian
    }

    fn entry_bytes(&self) -> usize {
        if self.big {
            20
        } else {
            12
        }
    }

    /// The first field with that tag.
    pub fn field(&self, tag: u16) -> Option<Field<'a>> {
        let word = if self.big { 8 } else { 4 };
        for i in 0..self.entries {
            let at = self.entries_at.checked_add(self.entry_bytes() * i)?;
            if self.uint(at, 2)? != u64::from(tag) {
                continue;
            }
            let kind = self.uint(at + 2, 2)? as u16;
            let count = usize::try_from(self.uint(at + 4, word)?).ok()?;
            let bytes = count.checked_mul(width(kind)?)?;
            let value = at + 4 + word;
            let at = if bytes <= word { value } else { usize::try_from(self.uint(value, word)?).ok()? };
            return Some(Field { directory: *self, kind, count, at });
        }
        None
    }

    /// The only value of a field.
    pub fn value(&self, tag: u16) -> Option<u64> {
        self.field(tag).filter(|f| f.count == 1)?.get(0)
    }

    fn uint(&self, at: usize, bytes: usize) -> Option<u64> {
        let source = self.data.get(at..at.checked_add(bytes)?)?;
        let join = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        Some(if self.big_endian { source.iter().fold(0, join) } else { source.iter().rev().fold(0, join) })
    }
}

/// Bytes of one value. Types that no tag here has (rationals, text) are not read.
fn width(kind: u16) -> Option<usize> {
    match kind {
        1 | 7 => Some(1),
        3 => Some(2),
        4 | 13 => Some(4),
        16 | 18 => Some(8),
        _ => None,
    }
}

impl<'a> Field<'a> {
    /// Value `i`, of whatever width.
    pub fn get(&self, i: usize) -> Option<u64> {
        let bytes = width(self.kind)?;
        (i < self.count).then_some(())?;
        self.directory.uint(self.at.checked_add(i.checked_mul(bytes)?)?, bytes)
    }

    /// Is this a field of 16-bit values?
    pub fn is_short(&self) -> bool {
        self.kind == 3
    }

    /// The values as bytes, for fields of bytes.
    pub fn bytes(&self) -> Option<&'a [u8]> {
        (width(self.kind)? == 1).then_some(())?;
        self.directory.data.get(self.at..self.at.checked_add(self.count)?)
    }
}

#[cfg(test)]
mod tests {
    use super::Directory;

    /// One entry: tag 0x0112, short, count 1, value 6.
    fn big_tiff(big_endian: bool) -> Vec<u8> {
        let numbers: [(u64, usize); 9] =
            [(43, 2), (8, 2), (0, 2), (16, 8), (1, 8), (0x0112, 2), (3, 2), (1, 8), (6, 2)];
        let mut data = if big_endian { b"MM".to_vec() } else { b"II".to_vec() };
        for (value, bytes) in numbers {
            let le = value.to_le_bytes();
            let wanted = le[..bytes].iter().copied();
            if big_endian {
                data.extend(wanted.rev());
            } else {
                data.extend(wanted);
            }
        }
        data.extend([0; 6]);
        data
    }

    #[test]
    fn fields_of_a_big_tiff_in_both_byte_orders_and_every_cut() {
        for big_endian in [false, true] {
            let data = big_tiff(big_endian);
            let found = Directory::first(&data).expect("a directory");
            assert_eq!((found.value(0x0112), found.value(0x0113)), (Some(6), None));
            for cut in 0..data.len() - 6 {
                assert_eq!(Directory::first(&data[..cut]).and_then(|d| d.value(0x0112)), None, "{cut}");
            }
        }
    }

    #[test]
    fn numbers_that_point_nowhere_are_none() {
        assert!(Directory::first(b"II*\0\xff\xff\xff\xff").is_none());
        let mut data = big_tiff(false);
        data[8..16].fill(0xff);
        assert!(Directory::first(&data).is_none());
        let mut data = big_tiff(false);
        data[28..36].fill(0xff); // a count whose bytes do not fit 64 bits
        assert!(Directory::first(&data).is_some_and(|d| d.field(0x0112).is_none()));
    }
}
