//! AVIF and HEIC: the primary picture of a HEIF file. The container is read here; coded pictures go through libavcodec
//! (libdav1d, hevc), which videos go through too: no further library reads strangers' files.
//!
//! A grid is decoded one row of tiles after the other. Transformations that the file names (cut, turn, mirror) are part of the
//! picture and always done; its EXIF orientation repeats them and is ignored, as the standard demands.

mod boxes;
mod coded;
mod meta;
mod picture;
mod yuv;

use super::{pixels, Header, Job, Target};
use crate::error::{bail, Result};
use crate::limits::BAND_ROWS;
use crate::memory::{try_vec, try_zeroed};
use crate::resize::stream::row_stride;
use coded::{Codec, Decoder};
use meta::Meta;
use picture::Picture;
use yuv::{Converter, Style};

pub fn decode(job: &Job<'_>, target: &mut dyn Target) -> Result<()> {
    let Some(meta) = Meta::read(job.data) else {
        bail!(Truncated, "the file ends before it says what is in it");
    };
    let Some(item) = meta.primary() else {
        bail!(Corrupt, "the file names no picture to be shown");
    };
    let picture = Picture::read(job, &meta, item)?;
    let shown = picture::shown(&meta, item, picture.width, picture.height)?;
    let alpha = match picture::alpha_of(&meta, item) {
        None => None,
        Some((id, multiplied)) => Some((Picture::read(job, &meta, id)?, multiplied)),
    };
    let shape = |p: &Picture<'_>| (p.width, p.height, p.tile_width, p.tile_height, p.columns);
    if alpha.as_ref().is_some_and(|(alpha, _)| shape(alpha) != shape(&picture)) {
        bail!(UnsupportedFormat, "a picture whose alpha has another size or other tiles is not supported");
    }
    // One row of tiles as RGB and alpha, and a tile's planes inside the decoder: at most 6 bytes a pixel, twice.
    let across = picture.columns * picture.tile_width;
    job.check_whole(across as u32, picture.tile_height as u32, 4)?;
    job.check_whole(picture.tile_width as u32, picture.tile_height as u32, 12)?;
    target.header(Header { width: shown.width as u32, height: shown.height as u32, orientation: shown.orientation })?;

    let stride = row_stride(across);
    let mut colours: Vec<u8> = try_zeroed(stride * picture.tile_height)?;
    let mut alphas: Vec<u8> = try_zeroed(if alpha.is_some() { across * picture.tile_height } else { 0 })?;
    let style = if picture.codec == Codec::Av1 { Style::Avif } else { Style::Heic };
    let mut converter = Converter::new(style, picture.tile_width)?;
    let mut decoder = Decoder::new(picture.codec, picture.config, picture.tile_width, picture.tile_height)?;
    let mut alpha_decoder = match &alpha {
        Some((p, _)) => Some(Decoder::new(p.codec, p.config, p.tile_width, p.tile_height)?),
        None => None,
    };
    for (row, tiles) in picture.tiles.chunks(picture.columns).enumerate() {
        let top = row * picture.tile_height;
        let rows = picture.tile_height.min(picture.height - top);
        for (column, pieces) in tiles.iter().enumerate() {
            job.cancel.check()?;
            let left = column * picture.tile_width;
            let frame = decoder.decode(&joined(pieces)?)?;
            for (y, out) in colours.chunks_exact_mut(stride).take(rows).enumerate() {
                converter.row(&frame, picture.colour, y, &mut out[3 * left..3 * (left + picture.tile_width)])?;
            }
            let (Some((alpha, multiplied)), Some(decoder)) = (&alpha, &mut alpha_decoder) else { continue };
            let frame = decoder.decode(&joined(&alpha.tiles[row * picture.columns + column])?)?;
            let full_range = alpha.colour.map_or(frame.full_range, |n| n.full_range);
            for y in 0..rows {
                let alpha = &mut alphas[y * across + left..][..picture.tile_width];
                yuv::gray_row(&frame, full_range, y, alpha);
                let rgb = &mut colours[y * stride + 3 * left..][..3 * picture.tile_width];
                for (pixel, alpha) in rgb.chunks_exact_mut(3).zip(alpha) {
                    pixels::lay_onto_white(pixel, *alpha, *multiplied);
                }
            }
        }
        // The rows of this row of tiles that are shown.
        let (first, last) = (shown.top.max(top), (shown.top + shown.height).min(top + rows));
        for y in (first..last.max(first)).step_by(BAND_ROWS) {
            job.cancel.check()?;
            let from = (y - top) * stride + 3 * shown.left;
            target.push(&colours[from..], stride, BAND_ROWS.min(last - y))?;
        }
    }
    Ok(())
}

/// An item in one piece.
fn joined(pieces: &[&[u8]]) -> Result<Vec<u8>> {
    let mut whole = try_vec(pieces.iter().map(|p| p.len()).sum())?;
    pieces.iter().for_each(|p| whole.extend_from_slice(p));
    Ok(whole)
}
