//! PNG through the `png` crate, row by row; only interlaced files are held as a whole. The first frame of an APNG is
//! its default image. Checksums are verified; ICC, text and other ancillary chunks are skipped, never inflated.

use super::{pixels, Header, Job, Target};
use crate::error::{bail, Code, Error, Result};
use crate::exif::{self, Orientation};
use crate::limits::*;
use crate::memory::try_zeroed;
use crate::resize::stream::row_stride;
use png::{BitDepth, ColorType, DecodingError, Transformations};
use std::io::Cursor;

/// An end chunk: no content, and its checksum.
const END: [u8; 12] = *b"\0\0\0\0IEND\xaeB\x60\x82";

pub fn decode(job: &Job<'_>, target: &mut dyn Target) -> Result<()> {
    let (width, height) = stored_size(job.data)?;
    job.check_size(width, height)?;
    let Some(end) = end_of_unended(job.data) else { return pixels_of(job, job.data, (width, height), target) };
    let mut ended = try_zeroed(end + END.len())?;
    ended[..end].copy_from_slice(&job.data[..end]);
    ended[end..].copy_from_slice(&END);
    pixels_of(job, &ended, (width, height), target).map_err(|e| match e.code {
        Code::Corrupt => Error::new(Code::Truncated, "the PNG ends too early"),
        _ => e,
    })
}

/// `data`: the job's, with an end.
fn pixels_of(job: &Job<'_>, data: &[u8], (width, height): (u32, u32), target: &mut dyn Target) -> Result<()> {
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(data), png::Limits { bytes: PNG_DECODER_BYTES });
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_ignore_text_chunk(true);
    // Palettes, small bit depths and tRNS become 8-bit samples (and alpha); 16 bits become the high 8.
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    let mut reader = decoder.read_info().map_err(error)?;
    let (color, depth) = reader.output_color_type();
    let interlaced = reader.info().interlaced;
    if depth != BitDepth::Eight || (reader.info().width, reader.info().height) != (width, height) {
        bail!(Corrupt, "the PNG contradicts its own header");
    }
    let orientation = if job.apply_exif { orientation(job.data) } else { Orientation::UPRIGHT };
    target.header(Header { width, height, orientation })?;

    let (width, height) = (width as usize, height as usize);
    let stride = row_stride(width);
    let samples = color.samples();
    let mut band: Vec<u8> = try_zeroed(BAND_ROWS * stride)?;
    let whole = if interlaced {
        let mut pixels = try_zeroed(job.check_whole(width as u32, height as u32, samples as u64)?)?;
        reader.next_frame(&mut pixels).map_err(error)?;
        pixels
    } else {
        Vec::new()
    };
    let mut line: Vec<u8> = try_zeroed(if interlaced || samples == 3 { 0 } else { width * samples })?;
    let mut y = 0;
    while y < height {
        job.cancel.check()?;
        let rows = BAND_ROWS.min(height - y);
        for (i, row) in band.chunks_exact_mut(stride).take(rows).enumerate() {
            let rgb = &mut row[..3 * width];
            if interlaced {
                to_rgb(color, &whole[(y + i) * width * samples..][..width * samples], rgb)?;
            } else if samples == 3 {
                read_row(&mut reader, rgb)?;
            } else {
                read_row(&mut reader, &mut line)?;
                to_rgb(color, &line, rgb)?;
            }
        }
        target.push(&band, stride, rows)?;
        y += rows;
    }
    if !interlaced {
        // The rest of the image data: its checksums count too.
        while reader.next_row().map_err(error)?.is_some() {}
    }
    Ok(())
}

fn read_row(reader: &mut png::Reader<Cursor<&[u8]>>, out: &mut [u8]) -> Result<()> {
    match reader.read_row(out).map_err(error)? {
        Some(_) => Ok(()),
        None => bail!(Truncated, "the PNG has fewer rows than its header says"),
    }
}

fn to_rgb(color: ColorType, source: &[u8], rgb: &mut [u8]) -> Result<()> {
    match color {
        ColorType::Grayscale => pixels::gray_to_rgb(source, rgb),
        ColorType::GrayscaleAlpha => pixels::gray_alpha_to_rgb(source, rgb),
        ColorType::Rgb => rgb.copy_from_slice(source),
        ColorType::Rgba => pixels::rgba_to_rgb(source, rgb),
        ColorType::Indexed => bail!(Corrupt, "the PNG has palette indices but no palette"),
    }
    Ok(())
}

/// Width and height from IHDR, which must come first.
fn stored_size(data: &[u8]) -> Result<(u32, u32)> {
    let field = |at: usize| data.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
    match (data.get(12..16), field(16), field(20)) {
        (Some(b"IHDR"), Some(width), Some(height)) => Ok((width, height)),
        (Some(b"IHDR"), ..) => bail!(Truncated, "the PNG ends inside its header"),
        (None, ..) => bail!(Truncated, "the PNG ends before its header"),
        _ => bail!(Corrupt, "the PNG does not begin with its header chunk"),
    }
}

/// Type, place and length of the content of each chunk whose head is there.
fn chunks(data: &[u8]) -> impl Iterator<Item = (&[u8], usize, usize)> {
    let mut at = 8usize;
    std::iter::from_fn(move || {
        let head = data.get(at..at.checked_add(8)?)?;
        let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let content = at + 8;
        at = content + length + 4;
        Some((&head[4..], content, length))
    })
}

/// Where the last chunk ends in a file that lacks only its end chunk, or has a part of it: all image data may be there.
fn end_of_unended(data: &[u8]) -> Option<usize> {
    let (mut end, mut has_pixels) = (0, false);
    for (kind, content, length) in chunks(data) {
        if kind == b"IEND" || content + length + 4 > data.len() {
            break;
        }
        end = content + length + 4;
        has_pixels |= kind == b"IDAT";
    }
    (has_pixels && data.len() - end < END.len()).then_some(end)
}

/// The eXIf chunk may stand before or after the image data.
fn orientation(data: &[u8]) -> Orientation {
    let found = chunks(data).take(MAX_CHUNKS).find(|(kind, ..)| *kind == b"eXIf");
    found.map_or(Orientation::UPRIGHT, |(_, content, length)| {
        exif::orientation(data.get(content..content + length).unwrap_or_default())
    })
}

fn error(e: DecodingError) -> Error {
    match e {
        DecodingError::IoError(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
            Error::new(Code::Truncated, "the PNG ends too early")
        }
        DecodingError::LimitsExceeded => Error::new(
            Code::LimitExceeded,
            format!("the PNG needs more than {} MiB besides its pixels", PNG_DECODER_BYTES >> 20),
        ),
        e => {
            let text = e.to_string();
            let detail = text.split(" while decoding").next().unwrap_or_default();
            Error::new(Code::Corrupt, format!("the PNG is corrupt ({detail})"))
        }
    }
}
