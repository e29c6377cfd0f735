//! The directory of a TIFF as numbers that fit each other, with all budgets checked. Nothing is allocated that grows with
//! the file.

use super::colour::{Alpha, Colour, Depth};
use super::packed::{Packing, Source};
use super::{missing, Job};
use crate::error::{bail, Result};
use crate::exif::Orientation;
use crate::ifd::{Directory, Field};
use crate::limits::*;

const WIDTH: u16 = 256;
const HEIGHT: u16 = 257;
const BITS_PER_SAMPLE: u16 = 258;
const COMPRESSION: u16 = 259;
const PHOTOMETRIC: u16 = 262;
const FILL_ORDER: u16 = 266;
const STRIP_OFFSETS: u16 = 273;
const ORIENTATION: u16 = 274;
const SAMPLES_PER_PIXEL: u16 = 277;
const ROWS_PER_STRIP: u16 = 278;
const STRIP_BYTE_COUNTS: u16 = 279;
const PLANAR: u16 = 284;
const PREDICTOR: u16 = 317;
const COLOUR_MAP: u16 = 320;
const TILE_WIDTH: u16 = 322;
const TILE_HEIGHT: u16 = 323;
const TILE_OFFSETS: u16 = 324;
const TILE_BYTE_COUNTS: u16 = 325;
const EXTRA_SAMPLES: u16 = 338;
const SAMPLE_FORMAT: u16 = 339;

pub struct Layout<'a> {
    pub width: usize,
    pub height: usize,
    pub orientation: Orientation,
    pub depth: Depth,
    /// Samples of a pixel; planes they lie in: 1, or as many as samples.
    pub samples: usize,
    pub planes: usize,
    pub colour: Colour,
    pub alpha: Alpha,
    /// Predictor 2.
    pub differences: bool,
    /// A strip is as wide as the picture. The last ones may reach beyond it.
    pub chunk_width: usize,
    pub chunk_height: usize,
    pub across: usize,
    down: usize,
    packing: Packing,
    offsets: Field<'a>,
    lengths: Option<Field<'a>>,
}

impl<'a> Layout<'a> {
    pub fn read(job: &Job<'a>) -> Result<Layout<'a>> {
        let Some(directory) = Directory::first(job.data) else {
            bail!(Truncated, "the TIFF has no directory where its header says");
        };
        if !directory.complete {
            bail!(
                Truncated,
                "the TIFF ends inside its directory, or the directory has more than {IFD_MAX_ENTRIES} entries"
            );
        }
        let side = |tag: u16, name: &str| match directory.value(tag) {
            Some(value) => Ok(u32::try_from(value).unwrap_or(u32::MAX)),
            None => Err(missing(name)),
        };
        let (width, height) = (side(WIDTH, "its width")?, side(HEIGHT, "its height")?);
        job.check_size(width, height)?;
        let (width, height) = (width as usize, height as usize);
        let number = |tag: u16, default: u64| match directory.field(tag) {
            None => Some(default),
            Some(field) => field.get(0),
        };
        if number(FILL_ORDER, 1) != Some(1) {
            bail!(UnsupportedFormat, "a TIFF with bits in reverse order is not supported");
        }
        let packing = Packing::of(number(COMPRESSION, 1).ok_or_else(|| missing("its compression"))?)?;
        let (samples, depth, colour, alpha) = pixels(&directory)?;
        let planes = match number(PLANAR, 1) {
            Some(1) => 1,
            Some(2) => samples,
            _ => return Err(missing("its order of samples")),
        };
        let differences = match number(PREDICTOR, 1) {
            Some(1) => false,
            Some(2) if depth.bits >= 8 => true,
            _ => bail!(UnsupportedFormat, "this predictor of a TIFF of {} bits is not supported", depth.bits),
        };
        let tiled = directory.field(TILE_OFFSETS).is_some();
        let (chunk_width, chunk_height) = if tiled {
            (
                side(TILE_WIDTH, "the width of its tiles")? as usize,
                side(TILE_HEIGHT, "the height of its tiles")? as usize,
            )
        } else {
            (width, number(ROWS_PER_STRIP, u64::MAX).map_or(0, |rows| rows.min(height as u64) as usize))
        };
        if chunk_width == 0 || chunk_height == 0 {
            bail!(Corrupt, "the TIFF has strips or tiles without pixels");
        }
        let (at, long) = if tiled { (TILE_OFFSETS, TILE_BYTE_COUNTS) } else { (STRIP_OFFSETS, STRIP_BYTE_COUNTS) };
        let layout = Layout {
            width,
            height,
            orientation: orientation(job, &directory),
            depth,
            samples,
            planes,
            colour,
            alpha,
            differences,
            chunk_width,
            chunk_height: chunk_height.min(height),
            across: width.div_ceil(chunk_width),
            down: height.div_ceil(chunk_height),
            packing,
            offsets: directory.field(at).ok_or_else(|| missing("the place of its pixels"))?,
            lengths: directory.field(long),
        };
        layout.check_budgets(job)?;
        Ok(layout)
    }

    /// Bytes of one row of a strip or tile, of one plane.
    pub fn row_bytes(&self) -> usize {
        self.depth.row_bytes(self.chunk_width * self.samples / self.planes)
    }

    fn check_budgets(&self, job: &Job<'_>) -> Result<()> {
        let (width, samples) = (self.width as u64, self.samples as u64);
        if self.across > 1 || self.chunk_width > self.width {
            let picture = width * self.height as u64 * samples;
            // Sides below 2^32, at most 8 samples of 2 bytes, less than 2^32 rows: 128 bits are enough.
            let tiled = self.across as u128 * self.row_bytes() as u128 * (self.height * self.planes) as u128;
            if tiled > u128::from(picture * TILES_FACTOR + TILES_BYTES) {
                bail!(
                    LimitExceeded,
                    "the tiles of this TIFF take {} MiB, too many for a picture of {} x {} pixels",
                    tiled >> 20,
                    self.width,
                    self.height
                );
            }
            job.check_whole(self.width as u32, self.chunk_height as u32, samples)?;
        }
        let chunks = (self.across * self.down).saturating_mul(self.planes);
        if self.offsets.count < chunks || self.lengths.is_some_and(|l| l.count < chunks) {
            bail!(Truncated, "the TIFF lists {} of its {chunks} strips or tiles", self.offsets.count);
        }
        let Some(lengths) = self.lengths else {
            if chunks > 1 {
                return Err(missing("the length of its strips or tiles"));
            }
            return Ok(());
        };
        let budget = job.data.len() as u64 * PACKED_FACTOR + PACKED_BYTES;
        let mut packed = 0u64;
        for i in 0..chunks {
            packed = packed.saturating_add(lengths.get(i).ok_or_else(|| missing("the length of a strip or tile"))?);
            if packed > budget {
                bail!(LimitExceeded, "the strips or tiles of this TIFF lie over each other");
            }
        }
        Ok(())
    }

    /// The strip or tile of one plane. Without a length it reaches to the end of the file.
    pub fn source(&self, data: &'a [u8], plane: usize, row: usize, column: usize) -> Result<Source<'a>> {
        let i = (plane * self.down + row) * self.across + column;
        let range = || {
            let from = usize::try_from(self.offsets.get(i)?).ok()?;
            let length = match self.lengths {
                Some(lengths) => usize::try_from(lengths.get(i)?).ok()?,
                None => data.len().checked_sub(from)?,
            };
            data.get(from..from.checked_add(length)?)
        };
        match range() {
            Some(packed) => Ok(Source::new(self.packing, packed)),
            None => bail!(Truncated, "a strip or tile of the TIFF lies beyond its end"),
        }
    }
}

fn orientation(job: &Job<'_>, directory: &Directory<'_>) -> Orientation {
    let value = directory.field(ORIENTATION).and_then(|f| f.get(0)).and_then(|v| u16::try_from(v).ok());
    Orientation::from_exif(if job.apply_exif { value.unwrap_or(1) } else { 1 })
}

/// Samples of a pixel and what they are.
fn pixels(directory: &Directory<'_>) -> Result<(usize, Depth, Colour, Alpha)> {
    let samples = directory.field(SAMPLES_PER_PIXEL).map_or(Some(1), |f| f.get(0)).unwrap_or(0);
    if !(1..=TIFF_MAX_SAMPLES as u64).contains(&samples) {
        bail!(UnsupportedFormat, "a TIFF of {samples} samples a pixel is not supported; 1 to {TIFF_MAX_SAMPLES} are");
    }
    let samples = samples as usize;
    let bits = uniform(directory, BITS_PER_SAMPLE, 1, samples)?;
    let format = uniform(directory, SAMPLE_FORMAT, 1, samples)?;
    if !matches!(bits, 1 | 2 | 4 | 8 | 16) || !matches!(format, 1 | 4) {
        bail!(
            UnsupportedFormat,
            "a TIFF of {bits} bits a sample of format {format} is not supported; unsigned 1, 2, 4, 8 and 16 are"
        );
    }
    let photometric =
        directory.field(PHOTOMETRIC).and_then(|f| f.get(0)).ok_or_else(|| missing("the kind of its colours"))?;
    let colour = match photometric {
        0 | 1 => Colour::Gray { white_is_zero: photometric == 0 },
        2 => Colour::Rgb,
        3 if bits <= 8 => Colour::Palette(palette(directory, bits)?),
        5 => Colour::Cmyk,
        other => {
            bail!(UnsupportedFormat, "a TIFF of colour kind {other} is not supported; grey, RGB, palettes and CMYK are")
        }
    };
    let Some(extra) = samples.checked_sub(colour.samples()) else {
        bail!(Corrupt, "the TIFF has {samples} samples a pixel, too few for its colours");
    };
    if bits < 8 && samples > 1 {
        bail!(UnsupportedFormat, "a TIFF of {samples} samples of {bits} bits is not supported");
    }
    let alpha = match directory.field(EXTRA_SAMPLES).map(|f| f.get(0)) {
        _ if extra == 0 => Alpha::None,
        Some(Some(1)) => Alpha::Associated,
        Some(Some(2)) => Alpha::Straight,
        // Four samples of RGB without a word about the fourth, as programs write them.
        None if samples == 4 && matches!(colour, Colour::Rgb) => Alpha::Straight,
        _ => Alpha::None,
    };
    let stretched = !matches!(colour, Colour::Palette(_));
    Ok((samples, Depth { bits, big_endian: directory.big_endian(), stretched }, colour, alpha))
}

/// One value for all samples: written once, or as often as there are samples.
fn uniform(directory: &Directory<'_>, tag: u16, default: u64, samples: usize) -> Result<usize> {
    let Some(field) = directory.field(tag) else { return Ok(default as usize) };
    let first = field.get(0);
    if (1..samples.min(field.count)).any(|i| field.get(i) != first) {
        bail!(UnsupportedFormat, "a TIFF whose samples differ in kind is not supported");
    }
    first.and_then(|v| usize::try_from(v).ok()).ok_or_else(|| missing("the size of its samples"))
}

/// All reds, all greens, all blues, 16 bits each.
fn palette(directory: &Directory<'_>, bits: usize) -> Result<Box<[[u8; 3]; 256]>> {
    let entries = 1 << bits;
    let map = directory.field(COLOUR_MAP).filter(|f| f.count >= 3 * entries).ok_or_else(|| missing("its palette"))?;
    let mut colours = Box::new([[0; 3]; 256]);
    for (i, colour) in colours.iter_mut().take(entries).enumerate() {
        for (c, value) in colour.iter_mut().enumerate() {
            *value = (map.get(c * entries + i).ok_or_else(|| missing("its palette"))? >> 8) as u8;
        }
    }
    Ok(colours)
}
