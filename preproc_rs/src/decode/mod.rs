//! One file per format; each reads the header, asks the plan for a sink, and pushes rows from top to bottom.
//!
//! A decoder may trust nothing: it checks the pixel budget before it allocates, allocates fallibly, and turns its
//! library's errors into ours. Rows are RGB; alpha is laid onto white, 16 bits become the high 8.

pub mod bmp;
pub mod gif;
#[cfg(any(feature = "avif", feature = "heic"))]
pub mod heif;
pub mod jpeg;
#[cfg(any(test, fuzzing))]
pub mod kept;
pub mod pixels;
pub mod png;
#[cfg(feature = "tiff")]
pub mod tiff;
pub mod turbojpeg;
pub mod webp;

use crate::cancel::CancelToken;
use crate::error::{bail, Result};
use crate::exif::Orientation;

/// What a header says: stored size and how the picture is turned.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    pub width: u32,
    pub height: u32,
    pub orientation: Orientation,
}

/// Budgets and options of one decode.
pub struct Job<'a> {
    pub data: &'a [u8],
    pub max_pixels: u64,
    pub apply_exif: bool,
    pub cancel: &'a CancelToken,
}

/// Takes the header once, then every row.
pub trait Target {
    fn header(&mut self, header: Header) -> Result<()>;
    /// See `resize::stream::Stream::push`.
    fn push(&mut self, band: &[u8], stride: usize, count: usize) -> Result<()>;
    /// Whether `push_planes` may come instead of `push`; asked after the header.
    fn takes_planes(&self) -> bool {
        false
    }
    /// See `resize::stream::Stream::push_planes`.
    fn push_planes(&mut self, _: &[u8], _: usize, _: usize) -> Result<()> {
        bail!(Corrupt, "the decoder gave planes to a target that takes none");
    }
}

impl Job<'_> {
    /// Zero sides and the pixel budget, before anything is allocated.
    pub fn check_size(&self, width: u32, height: u32) -> Result<()> {
        if width == 0 || height == 0 {
            bail!(BadDimensions, "the image is {width} x {height} pixels; both sides must be at least 1");
        }
        let pixels = u64::from(width) * u64::from(height);
        if pixels > self.max_pixels {
            bail!(
                TooManyPixels,
                "the image is {width} x {height} pixels, {:.1} megapixels; the limit is {:.1} megapixels",
                pixels as f64 / 1e6,
                self.max_pixels as f64 / 1e6
            );
        }
        Ok(())
    }

    /// The budget of one image held as a whole, `bytes` a pixel.
    pub fn check_whole(&self, width: u32, height: u32, bytes: u64) -> Result<usize> {
        let total = u64::from(width) * u64::from(height) * bytes;
        if total > crate::limits::WHOLE_IMAGE_BYTES {
            bail!(
                LimitExceeded,
                "decoding this image of {width} x {height} pixels takes {} MiB; the limit is {} MiB",
                total >> 20,
                crate::limits::WHOLE_IMAGE_BYTES >> 20
            );
        }
        Ok(total as usize)
    }
}

/// Formats that are on in this build, as people write them.
pub const FORMATS: &[&str] = &[
    "JPEG",
    "PNG",
    "WebP",
    "GIF",
    "BMP",
    #[cfg(feature = "tiff")]
    "TIFF",
    #[cfg(feature = "avif")]
    "AVIF",
    #[cfg(feature = "heic")]
    "HEIC",
];

/// "JPEG, PNG, WebP, GIF or BMP"
pub fn formats_text() -> String {
    match FORMATS {
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
        [] => String::new(),
    }
}

/// Decodes an image of any format that is on.
pub fn decode(format: &str, job: &Job<'_>, target: &mut dyn Target) -> Result<()> {
    match format {
        "jpeg" => jpeg::decode(job, target),
        "png" => png::decode(job, target),
        "webp" => webp::decode(job, target),
        "gif" => gif::decode(job, target),
        "bmp" => bmp::decode(job, target),
        #[cfg(feature = "tiff")]
        "tiff" => tiff::decode(job, target),
        #[cfg(feature = "avif")]
        "avif" => heif::decode(job, target),
        #[cfg(feature = "heic")]
        "heic" => heif::decode(job, target),
        off if matches!(off, "tiff" | "avif" | "heic") => {
            bail!(DecoderDisabled, "{} images are not accepted here; send {}", off.to_uppercase(), formats_text())
        }
        other => bail!(UnsupportedFormat, "this is {other}, not an image; send {}", formats_text()),
    }
}
