//! GIF through the `gif` crate: the first frame on its canvas. Later frames are never decoded.
//!
//! Like Pillow: the canvas grows to hold the frame; around the frame lies the transparent colour (white here) or colour
//! 0; without any palette an index is a grey level.

use super::{Header, Job, Target};
use crate::error::{bail, Code, Error, Result};
use crate::exif::Orientation;
use crate::limits::{BAND_ROWS, WHOLE_IMAGE_BYTES};
use crate::memory::try_zeroed;
use crate::resize::stream::row_stride;
use gif::{ColorOutput, DecodeOptions, DecodingError, MemoryLimit};

pub fn decode(job: &Job<'_>, target: &mut dyn Target) -> Result<()> {
    let Some(&[w0, w1, h0, h1]) = job.data.get(6..10).and_then(|b| b.first_chunk::<4>()) else {
        bail!(Truncated, "the GIF ends inside its header");
    };
    let screen = (u16::from_le_bytes([w0, w1]), u16::from_le_bytes([h0, h1]));
    job.check_size(screen.0.into(), screen.1.into())?;

    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    if let Some(limit) = std::num::NonZeroU64::new(WHOLE_IMAGE_BYTES) {
        options.set_memory_limit(MemoryLimit::Bytes(limit));
    }
    let mut decoder = options.read_info(job.data).map_err(error)?;
    let global = decoder.global_palette().map(<[u8]>::to_vec);
    let Some(frame) = decoder.next_frame_info().map_err(error)? else {
        bail!(Truncated, "the GIF holds no picture");
    };
    let (left, top) = (usize::from(frame.left), usize::from(frame.top));
    let (frame_w, frame_h) = (usize::from(frame.width), usize::from(frame.height));
    let transparent = frame.transparent;
    let palette = frame.palette.clone().or(global);
    let width = (left + frame_w).max(screen.0.into());
    let height = (top + frame_h).max(screen.1.into());
    job.check_size(width as u32, height as u32)?;
    job.check_size(frame_w as u32, frame_h as u32)?;
    let colours = colours(palette.as_deref(), transparent);
    target.header(Header { width: width as u32, height: height as u32, orientation: Orientation::UPRIGHT })?;

    let mut indices: Vec<u8> = try_zeroed(decoder.buffer_size())?;
    if indices.len() != frame_w * frame_h {
        bail!(Corrupt, "the GIF frame has an impossible size");
    }
    decoder.read_into_buffer(&mut indices).map_err(error)?;
    let around = colours[usize::from(transparent.unwrap_or(0))];
    let stride = row_stride(width);
    let mut band: Vec<u8> = try_zeroed(BAND_ROWS * stride)?;
    for y in (0..height).step_by(BAND_ROWS) {
        job.cancel.check()?;
        let rows = BAND_ROWS.min(height - y);
        for (i, row) in band.chunks_exact_mut(stride).take(rows).enumerate() {
            for pixel in row[..3 * width].chunks_exact_mut(3) {
                pixel.copy_from_slice(&around);
            }
            let y = y + i;
            if (top..top + frame_h).contains(&y) {
                let source = &indices[(y - top) * frame_w..][..frame_w];
                for (index, pixel) in source.iter().zip(row[3 * left..].chunks_exact_mut(3)) {
                    pixel.copy_from_slice(&colours[usize::from(*index)]);
                }
            }
        }
        target.push(&band, stride, rows)?;
    }
    Ok(())
}

fn colours(palette: Option<&[u8]>, transparent: Option<u8>) -> [[u8; 3]; 256] {
    let mut colours = [[0; 3]; 256];
    for (i, colour) in colours.iter_mut().enumerate() {
        *colour = match palette {
            Some(p) => p.get(3 * i..3 * i + 3).and_then(|c| c.try_into().ok()).unwrap_or([0; 3]),
            None => [i as u8; 3],
        };
    }
    if let Some(t) = transparent {
        colours[usize::from(t)] = [255; 3];
    }
    colours
}

fn error(e: DecodingError) -> Error {
    match e {
        DecodingError::OutOfMemory => Error::new(Code::OutOfMemory, "there is not enough memory to decode this GIF"),
        DecodingError::MemoryLimit => {
            Error::new(Code::LimitExceeded, format!("the GIF frame takes more than {} MiB", WHOLE_IMAGE_BYTES >> 20))
        }
        DecodingError::UnexpectedEof | DecodingError::EndCodeNotFound => {
            Error::new(Code::Truncated, "the GIF ends too early")
        }
        e => Error::new(Code::Corrupt, format!("the GIF is corrupt ({e})")),
    }
}
