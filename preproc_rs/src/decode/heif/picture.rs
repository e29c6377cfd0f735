//! The primary picture of a HEIF file: one coded picture, or a grid of them, with all budgets checked.

use super::boxes::Reader;
use super::coded::Codec;
use super::meta::{Meta, Property};
use super::Job;
use crate::error::{bail, Code, Error, Result};
use crate::exif::Orientation;
use crate::limits::*;
use crate::memory::try_vec;

/// A picture made of tiles of one size; of one tile, when it is no grid.
pub struct Picture<'a> {
    pub width: usize,
    pub height: usize,
    pub tile_width: usize,
    pub tile_height: usize,
    pub columns: usize,
    pub codec: Codec,
    /// "hvcC" of the tiles.
    pub config: &'a [u8],
    pub colour: Option<Nclx>,
    /// Bytes of the tiles, row by row, in pieces.
    pub tiles: Vec<Vec<&'a [u8]>>,
}

/// What the container says about the colours.
#[derive(Clone, Copy)]
pub struct Nclx {
    pub matrix: u32,
    pub full_range: bool,
}

/// What is done with the decoded picture: cut, then turn.
pub struct Shown {
    pub left: usize,
    pub top: usize,
    pub width: usize,
    pub height: usize,
    pub orientation: Orientation,
}

pub fn corrupt(what: &str) -> Error {
    Error::new(Code::Corrupt, format!("the file is corrupt ({what} is missing or broken)"))
}

impl<'a> Picture<'a> {
    pub fn read(job: &Job<'a>, meta: &Meta<'a>, item: u32) -> Result<Picture<'a>> {
        let kind = meta.kind(item).ok_or_else(|| corrupt("the kind of the picture"))?;
        let (width, height) = size(meta, item)?;
        job.check_size(width as u32, height as u32)?;
        let grid = &kind == b"grid";
        let (columns, ids) = if grid { grid_of(job, meta, item, width, height)? } else { (1, vec![item]) };
        let first = *ids.first().ok_or_else(|| corrupt("the list of tiles"))?;
        let (tile_width, tile_height) = size(meta, first)?;
        let tile_kind = meta.kind(first);
        let (codec, config_kind) = match tile_kind.as_ref().map(|k| &k[..]) {
            Some(b"av01") => (Codec::Av1, b"av1C"),
            Some(b"hvc1") => (Codec::Hevc, b"hvcC"),
            other => {
                let name = other.map(|k| k.escape_ascii().to_string()).unwrap_or_default();
                bail!(UnsupportedFormat, "a picture of kind {name:?} is not supported; AV1 and HEVC are")
            }
        };
        let config = meta.properties(first).find(|p| &p.kind == config_kind);
        let config = config.ok_or_else(|| corrupt("the decoder's configuration"))?.body;
        let rows = ids.len() / columns;
        let covered = tile_width * columns >= width && tile_height * rows >= height;
        let needed = tile_width * (columns - 1) < width && tile_height * (rows - 1) < height;
        if !covered || !needed {
            bail!(Corrupt, "the tiles of the picture do not cover it as they should");
        }
        let tile_pixels = tile_width as u64 * tile_height as u64;
        if tile_pixels > CODED_MAX_PIXELS {
            bail!(
                TooManyPixels,
                "the image is coded as one picture of {tile_width} x {tile_height} pixels; the limit is {:.1} megapixels",
                CODED_MAX_PIXELS as f64 / 1e6
            );
        }
        let picture_pixels = width as u64 * height as u64;
        if tile_pixels * ids.len() as u64 > picture_pixels * TILES_FACTOR + TILES_BYTES {
            bail!(LimitExceeded, "the tiles of this picture are too large for its {width} x {height} pixels");
        }
        let budget = job.data.len() as u64 * PACKED_FACTOR + PACKED_BYTES;
        let mut packed = 0u64;
        let mut tiles = try_vec(ids.len())?;
        for id in &ids {
            if grid && (meta.kind(*id) != tile_kind || size(meta, *id)? != (tile_width, tile_height)) {
                bail!(UnsupportedFormat, "a picture of tiles that differ in kind or size is not supported");
            }
            let Some(pieces) = meta.pieces(*id) else {
                bail!(Truncated, "a part of the picture lies beyond the end of the file");
            };
            packed += pieces.iter().map(|p| p.len() as u64).sum::<u64>();
            if packed > budget {
                bail!(LimitExceeded, "the tiles of this picture lie over each other");
            }
            tiles.push(pieces);
        }
        let colour = meta.properties(item).chain(meta.properties(first)).find_map(nclx);
        Ok(Picture { width, height, tile_width, tile_height, columns, codec, config, colour, tiles })
    }
}

/// Columns and tiles of a grid.
fn grid_of(job: &Job<'_>, meta: &Meta<'_>, item: u32, width: usize, height: usize) -> Result<(usize, Vec<u32>)> {
    let pieces = meta.pieces(item).unwrap_or_default();
    let mut reader = Reader(pieces.first().copied().unwrap_or_default());
    let mut fields = || {
        let (_version, flags) = (reader.uint(1)?, reader.uint(1)?);
        let (rows, columns) = (reader.uint(1)? as usize + 1, reader.uint(1)? as usize + 1);
        let side = if flags & 1 != 0 { 4 } else { 2 };
        Some((rows, columns, reader.uint(side)? as usize, reader.uint(side)? as usize))
    };
    let (rows, columns, w, h) = fields().ok_or_else(|| corrupt("the grid"))?;
    if (w, h) != (width, height) {
        bail!(Corrupt, "the grid of the picture contradicts its size");
    }
    let count = rows * columns;
    if count > HEIF_MAX_TILES {
        bail!(LimitExceeded, "the picture has {count} tiles; the limit is {HEIF_MAX_TILES}");
    }
    job.cancel.check()?;
    let mut ids = try_vec(count)?;
    ids.extend(meta.references(b"dimg", item, false).take(count));
    if ids.len() != count || ids.contains(&item) {
        return Err(corrupt("the list of tiles"));
    }
    Ok((columns, ids))
}

/// Width and height by "ispe".
fn size(meta: &Meta<'_>, item: u32) -> Result<(usize, usize)> {
    let read = |p: Property<'_>| {
        let mut reader = Reader(p.body);
        reader.version()?;
        Some((reader.u32()?, reader.u32()?))
    };
    let found = meta.properties(item).find(|p| &p.kind == b"ispe").and_then(read);
    let (width, height) = found.ok_or_else(|| corrupt("the size of the picture"))?;
    if width == 0 || height == 0 || width > HEIF_MAX_SIDE || height > HEIF_MAX_SIDE {
        bail!(BadDimensions, "the image is {width} x {height} pixels; both sides must be from 1 to {HEIF_MAX_SIDE}");
    }
    Ok((width as usize, height as usize))
}

fn nclx(property: Property<'_>) -> Option<Nclx> {
    let mut reader = Reader(property.body);
    if &property.kind != b"colr" || reader.bytes(4)? != b"nclx" {
        return None;
    }
    reader.uint(4)?; // primaries and transfer: not converted, as everywhere here
    Some(Nclx { matrix: reader.u16()?, full_range: reader.uint(1)? & 0x80 != 0 })
}

/// The transformations of an item, which belong to the picture and not to its EXIF. A property that must be known and is
/// not refuses the file.
pub fn shown(meta: &Meta<'_>, item: u32, width: usize, height: usize) -> Result<Shown> {
    let mut shown = Shown { left: 0, top: 0, width, height, orientation: Orientation::UPRIGHT };
    for property in meta.properties(item) {
        let turn = &mut shown.orientation;
        match (&property.kind, property.body) {
            (b"irot", [angle, ..]) => {
                for _ in 0..angle & 3 {
                    turn.quarter_left();
                }
            }
            (b"imir", [axis, ..]) => turn.mirror(axis & 1 == 1),
            (b"clap", body) => {
                if *turn != Orientation::UPRIGHT {
                    bail!(UnsupportedFormat, "a picture that is cut after it was turned is not supported");
                }
                (shown.left, shown.top, shown.width, shown.height) =
                    aperture(body, width, height).ok_or_else(|| corrupt("the part of the picture to be shown"))?;
            }
            (b"ispe" | b"pixi" | b"colr" | b"pasp" | b"av1C" | b"hvcC" | b"auxC" | b"clli" | b"mdcv" | b"rloc", _) => {}
            // Layers: the whole picture is decoded, so all of them are shown.
            (b"lsel" | b"a1lx" | b"a1op", _) => {}
            (kind, _) if property.essential => {
                bail!(
                    UnsupportedFormat,
                    "a picture with property {:?} is not supported",
                    kind.escape_ascii().to_string()
                )
            }
            _ => {}
        }
    }
    Ok(shown)
}

/// (left, top, width, height) of a clean aperture in whole pixels inside the picture.
fn aperture(body: &[u8], width: usize, height: usize) -> Option<(usize, usize, usize, usize)> {
    let mut reader = Reader(body);
    let mut fraction = || {
        let (over, under) = (reader.u32()? as i32, reader.u32()? as i32);
        (under > 0).then_some((i64::from(over), i64::from(under)))
    };
    let [w, h, x, y] = [fraction()?, fraction()?, fraction()?, fraction()?];
    let axis = |full: usize, size: (i64, i64), offset: (i64, i64)| {
        let full = full as i64;
        let size = (size.0 % size.1 == 0).then_some(size.0 / size.1).filter(|s| (1..=full).contains(s))?;
        // (full - size) / 2 + offset, rounded down: all of it fits 64 bits.
        let start = ((full - size) * offset.1 + 2 * offset.0).div_euclid(2 * offset.1);
        (0..=full - size).contains(&start).then_some((start as usize, size as usize))
    };
    let ((left, width), (top, height)) = (axis(width, w, x)?, axis(height, h, y)?);
    Some((left, top, width, height))
}

/// The picture that holds the alpha of `item`, and are colours multiplied with it?
pub fn alpha_of(meta: &Meta<'_>, item: u32) -> Option<(u32, bool)> {
    const KINDS: [&[u8]; 2] = [b"urn:mpeg:mpegB:cicp:systems:auxiliary:alpha", b"urn:mpeg:hevc:2015:auxid:1"];
    let is_alpha = |id: &u32| {
        let said = meta.properties(*id).find(|p| &p.kind == b"auxC").map(|p| p.body);
        let name = said.and_then(|body| body.get(4..)?.split(|b| *b == 0).next());
        name.is_some_and(|name| KINDS.contains(&name))
    };
    let alpha = meta.references(b"auxl", item, true).find(is_alpha)?;
    let multiplied = meta.references(b"prem", item, false).any(|id| id == alpha);
    Some((alpha, multiplied))
}
