//! TIFF and BigTIFF, the first page: strips or tiles, samples together or in planes, 1 to 16 bits; grey, RGB, palette, CMYK;
//! no compression, LZW, Deflate, PackBits. Read in place by `ifd`, unpacked a row at a time; only a row of tiles is held.
//!
//! Own code around unpackers (weezl, flate2): a TIFF library allocates what the file asks for, and none in Rust reads palettes.

mod colour;
mod header;
mod packed;
#[cfg(test)]
mod tests;

use super::{Header, Job, Target};
use crate::error::{Code, Error, Result};
use crate::limits::BAND_ROWS;
use crate::memory::{try_vec, try_zeroed};
use crate::resize::stream::row_stride;
use header::Layout;
use packed::Source;

pub fn decode(job: &Job<'_>, target: &mut dyn Target) -> Result<()> {
    let layout = Layout::read(job)?;
    target.header(Header {
        width: layout.width as u32,
        height: layout.height as u32,
        orientation: layout.orientation,
    })?;

    let (width, samples) = (layout.width, layout.samples);
    // Tiles side by side are unpacked one after the other, so a whole row of them is held.
    let step = if layout.across == 1 { BAND_ROWS.min(layout.chunk_height) } else { layout.chunk_height };
    let mut values: Vec<u8> = try_zeroed(step.min(layout.height) * width * samples)?;
    let mut raw: Vec<u8> = try_zeroed(layout.row_bytes())?;
    let stride = row_stride(width);
    let mut band: Vec<u8> = try_zeroed(BAND_ROWS * stride)?;
    let mut sources: Vec<Source<'_>> = try_vec(layout.planes)?;
    for top in (0..layout.height).step_by(layout.chunk_height) {
        let rows = layout.chunk_height.min(layout.height - top);
        for y in (0..rows).step_by(step) {
            let rows = step.min(rows - y);
            for column in 0..layout.across {
                job.cancel.check()?;
                if y == 0 {
                    sources.clear();
                    for plane in 0..layout.planes {
                        sources.push(layout.source(job.data, plane, top / layout.chunk_height, column)?);
                    }
                }
                unpack(&layout, &mut sources, column, rows, &mut raw, &mut values)?;
            }
            for (group, values) in values[..rows * width * samples].chunks(BAND_ROWS * width * samples).enumerate() {
                job.cancel.check()?;
                for (row, out) in values.chunks_exact(width * samples).zip(band.chunks_exact_mut(stride)) {
                    colour::to_rgb(&layout.colour, layout.alpha, samples, row, &mut out[..3 * width]);
                }
                target.push(&band, stride, BAND_ROWS.min(rows - group * BAND_ROWS))?;
            }
        }
    }
    Ok(())
}

/// `rows` rows of one column of strips or tiles into `values`, which are rows of the picture.
fn unpack(
    layout: &Layout,
    sources: &mut [Source<'_>],
    column: usize,
    rows: usize,
    raw: &mut [u8],
    values: &mut [u8],
) -> Result<()> {
    let (samples, planes) = (layout.samples, layout.planes);
    let left = column * layout.chunk_width;
    let columns = layout.chunk_width.min(layout.width - left);
    for row in values.chunks_exact_mut(layout.width * samples).take(rows) {
        let row = &mut row[left * samples..(left + columns) * samples];
        for (plane, source) in sources.iter_mut().enumerate() {
            source.fill(raw)?;
            if layout.differences {
                layout.depth.add_up(raw, samples / planes);
            }
            layout.depth.to_bytes(raw, &mut row[plane..], planes);
        }
    }
    Ok(())
}

fn missing(what: &str) -> Error {
    Error::new(Code::Corrupt, format!("the TIFF is corrupt ({what} is missing or broken)"))
}
