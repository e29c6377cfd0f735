//! WebP through libwebp (vendored, static): lossy with fancy upsampling, lossless, alpha; the first frame of an
//! animation on its canvas. The picture is held as a whole, so it has a budget; the most common kind, lossy without alpha,
//! is not where the CPU can stream it (`v3`).

#[cfg(all(webp_v3, any(test, fuzzing)))]
pub mod compare;
#[cfg(all(webp_v3, test))]
mod tests;
#[cfg(webp_v3)]
mod upsample;
#[cfg(webp_v3)]
mod v3;

use super::{pixels, Header, Job, Target};
use crate::error::{bail, Result};
use crate::exif::{self, Orientation};
use crate::limits::{BAND_ROWS, MAX_CHUNKS};
use crate::memory::try_zeroed;
use crate::resize::stream::row_stride;
use libwebp_sys::*;

/// `WebPBitstreamFeatures::format`
const LOSSY: i32 = 1;

pub fn decode(job: &Job<'_>, target: &mut dyn Target) -> Result<()> {
    let features = features(job.data)?;
    let (width, height) = (features.width as u32, features.height as u32);
    job.check_size(width, height)?;
    let chunks = chunks(job.data);
    let orientation = if job.apply_exif { chunks.orientation } else { Orientation::UPRIGHT };
    let alpha = features.has_alpha != 0;
    let bytes = if alpha { 4 } else { 3 };
    // Inside, libwebp holds 4 bytes a pixel of a lossless picture (an animation may hold one), and lossy alpha.
    let inside = match (features.format, alpha) {
        (LOSSY, false) => 0,
        (LOSSY, true) => 1,
        _ => 4,
    };
    job.check_whole(width, height, bytes as u64 + inside)?;
    target.header(Header { width, height, orientation })?;

    #[cfg(webp_v3)]
    if features.format == LOSSY && !alpha && features.has_animation == 0 && v3::available() {
        return v3::decode(job, width as usize, height as usize, target);
    }
    whole(job, &features, &chunks, target)
}

/// Decodes into memory, then hands out bands.
fn whole(job: &Job<'_>, features: &WebPBitstreamFeatures, chunks: &Chunks<'_>, target: &mut dyn Target) -> Result<()> {
    let (width, height) = (features.width as usize, features.height as usize);
    let alpha = features.has_alpha != 0;
    let bytes = if alpha { 4 } else { 3 };
    let stride = row_stride(width);
    let frame = match (features.has_animation != 0, chunks.first_frame) {
        (false, _) => Frame { x: 0, y: 0, width, height, data: job.data },
        (true, Some(frame)) => frame,
        (true, None) => bail!(Truncated, "the WebP animation has no first frame"),
    };
    if frame.x + frame.width > width || frame.y + frame.height > height {
        bail!(Corrupt, "the first frame of the WebP lies outside its canvas");
    }
    let frame_stride = if alpha { 4 * frame.width } else { row_stride(frame.width) };
    let mut decoded: Vec<u8> = try_zeroed(frame_stride * frame.height)?;
    decode_into(frame.data, frame.width, frame.height, alpha, &mut decoded, frame_stride)?;
    job.cancel.check()?;
    if !alpha && frame.width == width && frame.height == height {
        for (band, rows) in bands(&decoded, frame_stride, height) {
            job.cancel.check()?;
            target.push(band, frame_stride, rows)?;
        }
        return Ok(());
    }
    // Around a smaller frame, and behind transparent pixels, lies white.
    let mut band: Vec<u8> = try_zeroed(BAND_ROWS * stride)?;
    for y in (0..height).step_by(BAND_ROWS) {
        job.cancel.check()?;
        let rows = BAND_ROWS.min(height - y);
        for (i, row) in band.chunks_exact_mut(stride).take(rows).enumerate() {
            row.fill(255);
            let y = y + i;
            if (frame.y..frame.y + frame.height).contains(&y) {
                let source = &decoded[(y - frame.y) * frame_stride..][..frame.width * bytes];
                let rgb = &mut row[3 * frame.x..3 * (frame.x + frame.width)];
                if alpha {
                    pixels::rgba_to_rgb(source, rgb);
                } else {
                    rgb.copy_from_slice(source);
                }
            }
        }
        target.push(&band, stride, rows)?;
    }
    Ok(())
}

fn bands(data: &[u8], stride: usize, height: usize) -> impl Iterator<Item = (&[u8], usize)> {
    (0..height).step_by(BAND_ROWS).map(move |y| (&data[y * stride..], BAND_ROWS.min(height - y)))
}

fn features(data: &[u8]) -> Result<WebPBitstreamFeatures> {
    // SAFETY: plain integers; zero is a valid value of each.
    let mut features: WebPBitstreamFeatures = unsafe { std::mem::zeroed() };
    // SAFETY: pointer and length of a live slice, and a struct to fill.
    let status = unsafe { WebPGetFeatures(data.as_ptr(), data.len(), &mut features) };
    check(status)?;
    if features.width <= 0 || features.height <= 0 {
        bail!(BadDimensions, "the WebP is {} x {} pixels", features.width, features.height);
    }
    Ok(features)
}

fn decode_into(data: &[u8], width: usize, height: usize, alpha: bool, out: &mut [u8], stride: usize) -> Result<()> {
    let inner = features(data)?;
    if (inner.width as usize, inner.height as usize) != (width, height) || stride * height > out.len() {
        bail!(Corrupt, "the WebP contradicts its own header");
    }
    // SAFETY: the struct is plain data, and WebPInitDecoderConfig fills it before use.
    let mut config: WebPDecoderConfig = unsafe { std::mem::zeroed() };
    // SAFETY: a struct to fill.
    if !unsafe { WebPInitDecoderConfig(&mut config) } {
        bail!(Corrupt, "libwebp has another version than its header");
    }
    config.output.colorspace = if alpha { WEBP_CSP_MODE::MODE_RGBA } else { WEBP_CSP_MODE::MODE_RGB };
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = out.as_mut_ptr();
    config.output.u.RGBA.stride = stride as i32;
    config.output.u.RGBA.size = stride * height;
    // SAFETY: input is a live slice; output memory is `out`, whose stride and size were just checked and given.
    check(unsafe { WebPDecode(data.as_ptr(), data.len(), &mut config) })
}

fn check(status: VP8StatusCode) -> Result<()> {
    match status {
        VP8StatusCode::VP8_STATUS_OK => Ok(()),
        VP8StatusCode::VP8_STATUS_OUT_OF_MEMORY => {
            bail!(OutOfMemory, "there is not enough memory to decode this WebP")
        }
        VP8StatusCode::VP8_STATUS_NOT_ENOUGH_DATA | VP8StatusCode::VP8_STATUS_SUSPENDED => {
            bail!(Truncated, "the WebP ends too early")
        }
        VP8StatusCode::VP8_STATUS_UNSUPPORTED_FEATURE => {
            bail!(UnsupportedFormat, "this kind of WebP is not supported")
        }
        _ => bail!(Corrupt, "the WebP is corrupt"),
    }
}

#[derive(Clone, Copy)]
struct Frame<'a> {
    x: usize,
    y: usize,
    width: usize,
    height: usize,
    /// The frame's own chunks (ALPH, VP8 or VP8L), which libwebp reads without a RIFF header.
    data: &'a [u8],
}

struct Chunks<'a> {
    orientation: Orientation,
    first_frame: Option<Frame<'a>>,
}

/// Walks the RIFF chunks for EXIF and the first animation frame.
fn chunks(data: &[u8]) -> Chunks<'_> {
    let mut found = Chunks { orientation: Orientation::UPRIGHT, first_frame: None };
    let mut at = 12usize;
    for _ in 0..MAX_CHUNKS {
        let Some(head) = data.get(at..at + 8) else { break };
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let body = data.get(at + 8..(at + 8).saturating_add(length).min(data.len())).unwrap_or_default();
        match &head[..4] {
            b"EXIF" => found.orientation = exif::orientation(body),
            b"ANMF" if found.first_frame.is_none() => found.first_frame = frame(body),
            _ => {}
        }
        match at.checked_add(8 + length.next_multiple_of(2)) {
            Some(next) => at = next,
            None => break,
        }
    }
    found
}

fn frame(body: &[u8]) -> Option<Frame<'_>> {
    let u24 = |at: usize| {
        Some(usize::from(*body.get(at)?) | usize::from(*body.get(at + 1)?) << 8 | usize::from(*body.get(at + 2)?) << 16)
    };
    Some(Frame { x: 2 * u24(0)?, y: 2 * u24(3)?, width: u24(6)? + 1, height: u24(9)? + 1, data: body.get(16..)? })
}
