//! BMP, read straight from the bytes: 1, 4, 8, 16, 24 and 32 bits, bit fields, RLE8 and RLE4, either row order.
//!
//! Like Pillow: 32 bits without bit fields have no alpha; a k-bit sample v becomes v * 255 / (2^k - 1). Only RLE files
//! are held as a whole (one byte a pixel).

use super::{pixels, Header, Job, Target};
use crate::error::{bail, Result};
use crate::exif::Orientation;
use crate::limits::BAND_ROWS;
use crate::memory::try_zeroed;
use crate::resize::stream::row_stride;

const RGB: u32 = 0;
const RLE8: u32 = 1;
const RLE4: u32 = 2;
const BITFIELDS: u32 = 3;
const ALPHABITFIELDS: u32 = 6;

struct File<'a> {
    data: &'a [u8],
    width: usize,
    height: usize,
    top_down: bool,
    bits: usize,
    compression: u32,
    pixels_at: usize,
    palette: [[u8; 3]; 256],
    /// red, green, blue, alpha
    masks: [u32; 4],
}

pub fn decode(job: &Job<'_>, target: &mut dyn Target) -> Result<()> {
    let file = header(job)?;
    let (width, height) = (file.width, file.height);
    target.header(Header { width: width as u32, height: height as u32, orientation: Orientation::UPRIGHT })?;
    let indices = if matches!(file.compression, RLE8 | RLE4) { Some(file.unpack_runs()?) } else { None };
    let stride = row_stride(width);
    let mut band: Vec<u8> = try_zeroed(BAND_ROWS * stride)?;
    for y in (0..height).step_by(BAND_ROWS) {
        job.cancel.check()?;
        let rows = BAND_ROWS.min(height - y);
        for (i, row) in band.chunks_exact_mut(stride).take(rows).enumerate() {
            let stored = if file.top_down { y + i } else { height - 1 - (y + i) };
            let rgb = &mut row[..3 * width];
            match &indices {
                Some(all) => file.indexed(&all[stored * width..][..width], 8, rgb),
                None => file.row(stored, rgb)?,
            }
        }
        target.push(&band, stride, rows)?;
    }
    Ok(())
}

fn header<'a>(job: &Job<'a>) -> Result<File<'a>> {
    let data = job.data;
    let u16_at = |at: usize| data.get(at..at + 2).map(|b| u32::from(u16::from_le_bytes([b[0], b[1]])));
    let u32_at = |at: usize| data.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let fields = || {
        let (pixels_at, size) = (u32_at(10)? as usize, u32_at(14)? as usize);
        Some(if size == 12 {
            (pixels_at, size, i64::from(u16_at(18)?), i64::from(u16_at(20)?), u16_at(24)?, RGB, 0)
        } else {
            let signed = |v: u32| i64::from(v as i32);
            // The header of 16 bytes ends before these two.
            let later = |at: usize| if size == 16 { 0 } else { u32_at(at).unwrap_or(0) };
            (pixels_at, size, signed(u32_at(18)?), signed(u32_at(22)?), u16_at(28)?, later(30), later(46))
        })
    };
    let Some((pixels_at, size, width, signed_height, bits, compression, used)) = fields() else {
        bail!(Truncated, "the BMP ends inside its header");
    };
    let height = signed_height.unsigned_abs();
    let Ok(width) = u32::try_from(width) else {
        bail!(BadDimensions, "the BMP is {width} pixels wide");
    };
    job.check_size(width, u32::try_from(height).unwrap_or(u32::MAX))?;
    let ok = match compression {
        RGB => matches!(bits, 1 | 4 | 8 | 16 | 24 | 32),
        RLE8 => bits == 8,
        RLE4 => bits == 4,
        BITFIELDS | ALPHABITFIELDS => matches!(bits, 16 | 32),
        _ => false,
    };
    if !ok {
        bail!(UnsupportedFormat, "a BMP of {bits} bits with compression {compression} is not supported");
    }
    let masks = if matches!(compression, BITFIELDS | ALPHABITFIELDS) {
        let alpha = if size >= 56 || compression == ALPHABITFIELDS { u32_at(66).unwrap_or(0) } else { 0 };
        match (u32_at(54), u32_at(58), u32_at(62)) {
            // Left blank: the order of nearly all files that have masks.
            (Some(0), Some(0), Some(0)) if bits == 32 => [0x00ff_0000, 0xff00, 0xff, 0xff00_0000],
            (Some(r), Some(g), Some(b)) => [r, g, b, alpha],
            _ => bail!(Truncated, "the BMP ends inside its bit fields"),
        }
    } else if bits == 16 {
        [0x7c00, 0x03e0, 0x001f, 0]
    } else {
        [0x00ff_0000, 0xff00, 0xff, 0]
    };
    let mut palette = [[0; 3]; 256];
    let mut palette_bytes = 0;
    if bits <= 8 {
        let (entry, count) = (if size == 12 { 3 } else { 4 }, if used == 0 { 1 << bits } else { used.min(256) });
        palette_bytes = entry * count as usize;
        for (i, colour) in palette.iter_mut().enumerate().take(count as usize) {
            let at = 14 + size + i * entry;
            let Some(bgr) = data.get(at..at + 3) else { break };
            *colour = [bgr[2], bgr[1], bgr[0]];
        }
    }
    let mask_bytes = match (size, compression) {
        (40, BITFIELDS) => 12,
        (40, ALPHABITFIELDS) => 16,
        _ => 0,
    };
    // No offset: the pixels stand behind all this.
    let pixels_at = if pixels_at == 0 { 14 + size + mask_bytes + palette_bytes } else { pixels_at };
    Ok(File {
        data,
        width: width as usize,
        height: height as usize,
        top_down: signed_height < 0,
        bits: bits as usize,
        compression,
        pixels_at,
        palette,
        masks,
    })
}

impl File<'_> {
    /// Stored row `y` of an uncompressed file.
    fn row(&self, y: usize, rgb: &mut [u8]) -> Result<()> {
        let stride = (self.width * self.bits).div_ceil(32) * 4;
        let bytes = (self.width * self.bits).div_ceil(8);
        let at = self.pixels_at + y * stride;
        let Some(source) = self.data.get(at..at + bytes) else {
            bail!(Truncated, "the BMP ends inside its pixels");
        };
        match self.bits {
            1 | 4 | 8 => self.indexed(source, self.bits, rgb),
            24 => {
                for (bgr, pixel) in source.chunks_exact(3).zip(rgb.chunks_exact_mut(3)) {
                    pixel.copy_from_slice(&[bgr[2], bgr[1], bgr[0]]);
                }
            }
            bits => {
                for (raw, pixel) in source.chunks_exact(bits / 8).zip(rgb.chunks_exact_mut(3)) {
                    let value = raw.iter().rev().fold(0u32, |v, b| v << 8 | u32::from(*b));
                    let [r, g, b, a] = self.masks.map(|mask| sample(value, mask));
                    if self.masks[3] == 0 {
                        pixel.copy_from_slice(&[r, g, b]);
                    } else {
                        pixels::rgba_to_rgb(&[r, g, b, a], pixel);
                    }
                }
            }
        }
        Ok(())
    }

    fn indexed(&self, source: &[u8], bits: usize, rgb: &mut [u8]) {
        let per_byte = 8 / bits;
        for (x, pixel) in rgb.chunks_exact_mut(3).enumerate() {
            let shift = 8 - bits * (x % per_byte + 1);
            let index = source[x / per_byte] >> shift & (0xffu16 >> (8 - bits)) as u8;
            pixel.copy_from_slice(&self.palette[usize::from(index)]);
        }
    }

    /// RLE8 and RLE4 to one index a pixel, stored row order. Skipped pixels are colour 0.
    fn unpack_runs(&self) -> Result<Vec<u8>> {
        let mut out: Vec<u8> = try_zeroed(self.width * self.height)?;
        let four = self.compression == RLE4;
        let mut at = self.pixels_at;
        let (mut x, mut y) = (0usize, 0usize);
        let mut put = |x: &mut usize, y: usize, value: u8| {
            if *x < self.width && y < self.height {
                out[y * self.width + *x] = value;
            }
            *x += 1;
        };
        while y < self.height {
            let Some(&[count, value]) = self.data.get(at..at + 2).and_then(|b| b.first_chunk::<2>()) else {
                bail!(Truncated, "the BMP ends inside its runs");
            };
            at += 2;
            let nibble = |byte: u8, i: usize| if i.is_multiple_of(2) { byte >> 4 } else { byte & 15 };
            match (count, value) {
                (0, 0) => (x, y) = (0, y + 1),
                (0, 1) => break,
                (0, 2) => {
                    let Some(&[dx, dy]) = self.data.get(at..at + 2).and_then(|b| b.first_chunk::<2>()) else {
                        bail!(Truncated, "the BMP ends inside its runs");
                    };
                    at += 2;
                    (x, y) = (x + usize::from(dx), y + usize::from(dy));
                }
                (0, n) => {
                    let n = usize::from(n);
                    let bytes = if four { n.div_ceil(2) } else { n };
                    let Some(literal) = self.data.get(at..at + bytes) else {
                        bail!(Truncated, "the BMP ends inside its runs");
                    };
                    at += bytes.next_multiple_of(2);
                    for i in 0..n {
                        put(&mut x, y, if four { nibble(literal[i / 2], i) } else { literal[i] });
                    }
                }
                (n, value) => {
                    for i in 0..usize::from(n) {
                        put(&mut x, y, if four { nibble(value, i) } else { value });
                    }
                }
            }
        }
        Ok(out)
    }
}

/// The masked bits of a pixel as 0..=255.
fn sample(value: u32, mask: u32) -> u8 {
    if mask == 0 {
        return 0;
    }
    let shift = mask.trailing_zeros();
    let (v, most) = (u64::from((value & mask) >> shift), u64::from(mask >> shift));
    (v * 255 / most).min(255) as u8
}
