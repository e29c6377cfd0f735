//! One image file to patch rows: sniff, header and budgets, then decode -> resize -> patchify in one pass over rows.

use crate::cancel::CancelToken;
use crate::decode::{self, Header, Job, Target};
use crate::error::{bail, Result};
use crate::exif::Orientation;
use crate::hash;
use crate::limits::*;
use crate::memory::Buffer;
use crate::patchify::{Patches, Rows};
use crate::resize::stream::Stream;
use crate::resize::Form;
use crate::size::SizeRule;
use crate::sniff::sniff;
use std::time::{Duration, Instant};

#[derive(Clone)]
pub struct ImageOptions {
    pub rule: SizeRule,
    pub rows: Rows,
    pub apply_exif: bool,
    pub max_bytes: usize,
    pub max_pixels: u64,
    pub form: Form,
}

impl Default for ImageOptions {
    fn default() -> Self {
        ImageOptions {
            rule: SizeRule::LongSide { cap: LONG_SIDE_DEFAULT },
            rows: Rows::U8,
            apply_exif: true,
            max_bytes: IMAGE_MAX_BYTES,
            max_pixels: IMAGE_MAX_PIXELS,
            form: Form::best(),
        }
    }
}

impl ImageOptions {
    /// Everything that changes the rows, as text.
    fn canonical(&self) -> String {
        let rule = match self.rule {
            SizeRule::Area { max } => format!("area:{max}"),
            SizeRule::LongSide { cap } => format!("long_side:{cap}"),
        };
        format!("image;rule={rule};rows={};exif={}", self.rows.as_str(), u8::from(self.apply_exif))
    }

    pub fn source_key(&self, data: &[u8]) -> String {
        hash::source_key(&self.canonical(), data)
    }
}

/// Patch rows and what the prompt needs. Sizes are of the upright picture; grid is (t, h, w) in patches.
pub struct Prepared {
    pub kind: &'static str,
    pub format: &'static str,
    pub width: u32,
    pub height: u32,
    pub resized_hw: (usize, usize),
    pub grid: [usize; 3],
    pub rows: Rows,
    pub t_dup: u8,
    pub data: Buffer,
    pub row_values: usize,
    pub source_key: String,
    pub hash: String,
    /// Videos: seconds of each temporal patch, and the numbers of the frames kept.
    pub timestamps: Option<Vec<f64>>,
    pub frame_indices: Option<Vec<usize>>,
    /// (step, milliseconds), in order.
    pub ms: Vec<(&'static str, f64)>,
}

impl Prepared {
    pub fn tokens(&self) -> usize {
        self.grid.iter().product::<usize>() / (MERGE * MERGE)
    }
}

/// What `Target` collects while a decoder runs.
struct Pipeline<'a> {
    options: &'a ImageOptions,
    header: Option<Header>,
    size: (usize, usize),
    stream: Option<Stream<Patches>>,
    resizing: Duration,
}

impl Target for Pipeline<'_> {
    fn header(&mut self, header: Header) -> Result<()> {
        let (width, height) = upright(header);
        self.size = self.options.rule.resized(height, width)?;
        let patches = Patches::new(true, 1, self.size.0, self.size.1, self.options.rows)?;
        let stored = (header.height as usize, header.width as usize);
        self.stream = Some(Stream::new(stored, header.orientation, self.size, self.options.form, patches)?);
        self.header = Some(header);
        Ok(())
    }

    fn push(&mut self, band: &[u8], stride: usize, count: usize) -> Result<()> {
        self.resize(|stream| stream.push(band, stride, count))
    }

    fn takes_planes(&self) -> bool {
        self.stream.as_ref().is_some_and(Stream::takes_planes)
    }

    fn push_planes(&mut self, band: &[u8], stride: usize, count: usize) -> Result<()> {
        self.resize(|stream| stream.push_planes(band, stride, count))
    }
}

impl Pipeline<'_> {
    fn resize(&mut self, push: impl FnOnce(&mut Stream<Patches>) -> Result<()>) -> Result<()> {
        let start = Instant::now();
        let Some(stream) = &mut self.stream else {
            bail!(Corrupt, "rows came before the header");
        };
        push(stream)?;
        self.resizing += start.elapsed();
        Ok(())
    }
}

/// (width, height) after turning.
fn upright(header: Header) -> (u32, u32) {
    let Orientation { transposed, .. } = header.orientation;
    if transposed {
        (header.height, header.width)
    } else {
        (header.width, header.height)
    }
}

/// Stops a decoder at its header.
#[derive(Default)]
struct Probe(Option<Header>);

impl Target for Probe {
    fn header(&mut self, header: Header) -> Result<()> {
        self.0 = Some(header);
        bail!(Cancelled, "only the header was wanted");
    }

    fn push(&mut self, _: &[u8], _: usize, _: usize) -> Result<()> {
        Ok(())
    }
}

/// What a header announces: upright size and the tokens it would take.
#[derive(Debug, PartialEq, Eq)]
pub struct Announced {
    pub format: &'static str,
    pub width: u32,
    pub height: u32,
    pub tokens: usize,
}

/// Reads and checks the header; decodes no pixel. Refuses what `prepare_image` would refuse by header, byte count and size.
pub fn probe(data: &[u8], options: &ImageOptions) -> Result<Announced> {
    let format = format_of(data, options)?;
    let cancel = CancelToken::default();
    let job = Job { data, max_pixels: options.max_pixels, apply_exif: options.apply_exif, cancel: &cancel };
    let mut probe = Probe::default();
    let outcome = decode::decode(format, &job, &mut probe);
    let Some(header) = probe.0 else {
        outcome?;
        bail!(Corrupt, "the decoder found no picture");
    };
    let (width, height) = upright(header);
    let (h, w) = options.rule.resized(height, width)?;
    Ok(Announced { format, width, height, tokens: h * w / (FACTOR * FACTOR) })
}

/// Takes rows and keeps nothing.
struct Nowhere;

impl Target for Nowhere {
    fn header(&mut self, _: Header) -> Result<()> {
        Ok(())
    }

    fn push(&mut self, band: &[u8], _: usize, _: usize) -> Result<()> {
        std::hint::black_box(band);
        Ok(())
    }
}

/// The decoder alone, for measurements: a JPEG into memory, other formats with their rows thrown away.
pub fn decode_alone(data: &[u8], options: &ImageOptions) -> Result<()> {
    let format = format_of(data, options)?;
    let cancel = CancelToken::default();
    let job = Job { data, max_pixels: options.max_pixels, apply_exif: options.apply_exif, cancel: &cancel };
    match format {
        "jpeg" => decode::turbojpeg::decode_into_memory(&job),
        _ => decode::decode(format, &job, &mut Nowhere),
    }
}

fn format_of(data: &[u8], options: &ImageOptions) -> Result<&'static str> {
    if data.len() > options.max_bytes {
        bail!(TooManyBytes, "the image file is {} bytes; the limit is {}", data.len(), options.max_bytes);
    }
    match sniff(data) {
        Some(format) => Ok(format),
        None if data.is_empty() => bail!(Truncated, "the image file is empty"),
        None => {
            bail!(UnsupportedFormat, "the file is not an image of a known format; send {}", decode::formats_text())
        }
    }
}

/// Decodes, resizes and patchifies `data`. Equals the reference processor to the bit.
pub fn prepare_image(data: &[u8], options: &ImageOptions, cancel: &CancelToken) -> Result<Prepared> {
    let start = Instant::now();
    cancel.check()?;
    let format = format_of(data, options)?;
    let mut pipeline = Pipeline { options, header: None, size: (0, 0), stream: None, resizing: Duration::ZERO };
    let job = Job { data, max_pixels: options.max_pixels, apply_exif: options.apply_exif, cancel };
    decode::decode(format, &job, &mut pipeline)?;
    let (Some(mut stream), Some(header)) = (pipeline.stream, pipeline.header) else {
        bail!(Corrupt, "the decoder found no picture");
    };
    let finishing = Instant::now();
    stream.finish()?;
    let patches = stream.sink;
    let resizing = pipeline.resizing + finishing.elapsed();
    let decoding = start.elapsed().saturating_sub(resizing);

    let hashing = Instant::now();
    let source_key = options.source_key(data);
    let hash = hash::item_hash("image", patches.grid, patches.rows.as_str(), patches.t_dup, &patches.data);
    let milliseconds = |d: Duration| d.as_secs_f64() * 1e3;
    let (width, height) = upright(header);
    Ok(Prepared {
        kind: "image",
        format,
        width,
        height,
        resized_hw: pipeline.size,
        grid: patches.grid,
        rows: patches.rows,
        t_dup: patches.t_dup,
        row_values: patches.row_values(),
        data: patches.data,
        source_key,
        hash,
        timestamps: None,
        frame_indices: None,
        ms: vec![
            ("decode", milliseconds(decoding)),
            ("resize", milliseconds(resizing)),
            ("hash", milliseconds(hashing.elapsed())),
            ("total", milliseconds(start.elapsed())),
        ],
    })
}
