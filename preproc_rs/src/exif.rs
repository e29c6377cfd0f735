//! The one EXIF value that changes pixels: orientation, tag 0x0112 of the first directory.
//!
//! Anything odd (offset outside, wrong type, value outside 1..=8) counts as "no orientation"; a broken EXIF block never
//! refuses a picture. Reads are bounded by IFD_MAX_ENTRIES.

use crate::ifd::Directory;

/// How stored rows and columns map to the upright picture. Values are EXIF's, 1..=8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orientation {
    /// Stored columns run along upright rows.
    pub transposed: bool,
    /// After transposing: mirrored left-right, upside down.
    pub flip_x: bool,
    pub flip_y: bool,
}

impl Orientation {
    pub const UPRIGHT: Orientation = Orientation { transposed: false, flip_x: false, flip_y: false };

    pub fn from_exif(value: u16) -> Self {
        let (transposed, flip_x, flip_y) = match value {
            2 => (false, true, false),
            3 => (false, true, true),
            4 => (false, false, true),
            5 => (true, false, false),
            6 => (true, true, false),
            7 => (true, true, true),
            8 => (true, false, true),
            _ => (false, false, false),
        };
        Orientation { transposed, flip_x, flip_y }
    }

    /// Turns what is upright so far by 90 degrees against the clock.
    pub fn quarter_left(&mut self) {
        // Transposing and then turning upside down; a mirror before a transposition is the other mirror behind it.
        let Orientation { transposed, flip_x, flip_y } = *self;
        *self = Orientation { transposed: !transposed, flip_x: flip_y, flip_y: !flip_x };
    }

    /// Mirrors what is upright so far: left and right, or top and bottom.
    pub fn mirror(&mut self, left_right: bool) {
        if left_right {
            self.flip_x = !self.flip_x;
        } else {
            self.flip_y = !self.flip_y;
        }
    }
}

/// Reads a TIFF block (what stands behind "Exif\0\0" in a JPEG, in eXIf of a PNG, in EXIF of a WebP).
pub fn orientation(block: &[u8]) -> Orientation {
    Orientation::from_exif(read(block).unwrap_or(1))
}

fn read(block: &[u8]) -> Option<u16> {
    let block = block.strip_prefix(b"Exif\0\0").unwrap_or(block);
    let field = Directory::first(block)?.field(0x0112)?;
    let value = (field.is_short() && field.count == 1).then(|| field.get(0)).flatten()?;
    u16::try_from(value).ok().filter(|v| (1..=8).contains(v))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(value: u16, big: bool) -> Vec<u8> {
        let mut b = if big {
            b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01".to_vec()
        } else {
            b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0".to_vec()
        };
        b.extend(if big { value.to_be_bytes() } else { value.to_le_bytes() });
        b.extend([0; 6]);
        b
    }

    #[test]
    fn both_byte_orders_and_every_cut() {
        for big in [false, true] {
            for value in 0..=9 {
                assert_eq!(orientation(&block(value, big)), Orientation::from_exif(value));
            }
            let whole = block(6, big);
            for cut in 0..20 {
                orientation(&whole[..cut]);
            }
        }
        assert_eq!(orientation(b"II*\0\xff\xff\xff\xff"), Orientation::UPRIGHT);
    }
}
