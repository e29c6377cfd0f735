//! Lossy WebP without alpha on CPUs of level x86-64-v3: libwebp's decoder, compiled for them and with a faster reader
//! (csrc/webp), and its fancy upsampling done by `upsample`. Rows leave while they are in the cache and the picture is never
//! held; every byte equals libwebp's own RGB (`tests`).

use super::upsample::Upsampler;
use super::{check, Job, Target};
use crate::error::{bail, Error, Result};
use crate::memory::try_zeroed;
use libwebp_sys::VP8StatusCode;
use std::any::Any;
use std::ffi::{c_int, c_void};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

/// Luma rows libwebp hands over at once: 16, and 8 held back by the loop filter.
const MOST_ROWS: usize = 24;

type TakeRows = extern "C" fn(*mut c_void, c_int, c_int, *const u8, *const u8, *const u8, c_int, c_int) -> c_int;

extern "C" {
    fn catalejo_webp_decode(
        data: *const u8,
        size: usize,
        width: c_int,
        height: c_int,
        tables: c_int,
        take: TakeRows,
        user: *mut c_void,
    ) -> VP8StatusCode;
}

pub fn available() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("movbe")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

/// Bytes of a file worth the tables: filling them takes about as long as they save in these.
const WORTH_TABLES: usize = 16 << 10;

/// Decodes a file whose header said `width` x `height`, lossy, no alpha, no animation.
pub fn decode(job: &Job<'_>, width: usize, height: usize, target: &mut dyn Target) -> Result<()> {
    decode_by(job, width, height, job.data.len() >= WORTH_TABLES, target)
}

/// With tokens looked up in tables (csrc/webp/tokens.h), or symbol by symbol.
pub fn decode_by(job: &Job<'_>, width: usize, height: usize, tables: bool, target: &mut dyn Target) -> Result<()> {
    assert!(available());
    let mut rows = Rows::new(job, width, height, target)?;
    let user: *mut Rows<'_> = &mut rows;
    // SAFETY: a live slice; `user` is the `Rows` that `take` expects and lives through the call.
    let status = unsafe {
        let (data, size) = (job.data.as_ptr(), job.data.len());
        catalejo_webp_decode(data, size, width as c_int, height as c_int, c_int::from(tables), take, user.cast())
    };
    match rows.failed {
        Some(Failure::Error(error)) => return Err(error),
        Some(Failure::Panic(payload)) => resume_unwind(payload),
        None => {}
    }
    check(status)?;
    if rows.done != height {
        bail!(Corrupt, "the WebP contradicts its own header");
    }
    Ok(())
}

/// What libwebp has handed over, and where it goes.
struct Rows<'a> {
    job: &'a Job<'a>,
    target: &'a mut dyn Target,
    height: usize,
    upsampler: Upsampler,
    /// The last luma row so far, when it waits for the chroma row below, and the last chroma rows.
    luma: Vec<u8>,
    chroma: [Vec<u8>; 2],
    waiting: bool,
    band: Vec<u8>,
    stride: usize,
    done: usize,
    failed: Option<Failure>,
}

/// Why `take` stopped the decoder. A panic must not cross C.
enum Failure {
    Error(Error),
    Panic(Box<dyn Any + Send>),
}

/// Called by libwebp with each group of finished rows.
extern "C" fn take(
    user: *mut c_void,
    y: c_int,
    count: c_int,
    luma: *const u8,
    u: *const u8,
    v: *const u8,
    luma_stride: c_int,
    chroma_stride: c_int,
) -> c_int {
    // SAFETY: `user` is what `decode` gave, and nobody else uses it meanwhile.
    let rows = unsafe { &mut *user.cast::<Rows<'_>>() };
    let (y, count) = (y as usize, count as usize);
    let (luma_stride, chroma_stride) = (luma_stride as usize, chroma_stride as usize);
    let (width, chroma_width) = (rows.upsampler.width, rows.upsampler.chroma_width());
    if count == 0 {
        return 1;
    }
    // SAFETY: libwebp's rows: `count` of luma and half as many (rounded up) of each chroma plane, so far apart.
    let planes = unsafe {
        let plane = |from, stride, rows, width| std::slice::from_raw_parts(from, stride * (rows - 1) + width);
        let chroma_rows = count.div_ceil(2);
        [
            plane(luma, luma_stride, count, width),
            plane(u, chroma_stride, chroma_rows, chroma_width),
            plane(v, chroma_stride, chroma_rows, chroma_width),
        ]
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| rows.take(y, count, planes, luma_stride, chroma_stride)));
    rows.failed = match outcome {
        Ok(Ok(())) => return 1,
        Ok(Err(error)) => Some(Failure::Error(error)),
        Err(payload) => Some(Failure::Panic(payload)),
    };
    0
}

impl<'a> Rows<'a> {
    fn new(job: &'a Job<'a>, width: usize, height: usize, target: &'a mut dyn Target) -> Result<Rows<'a>> {
        let upsampler = Upsampler::new(width)?;
        let stride = upsampler.stride();
        let chroma_width = upsampler.chroma_width();
        Ok(Rows {
            job,
            target,
            height,
            upsampler,
            luma: try_zeroed(width)?,
            chroma: [try_zeroed(chroma_width)?, try_zeroed(chroma_width)?],
            waiting: false,
            band: try_zeroed((MOST_ROWS + 1) * stride)?,
            stride,
            done: 0,
            failed: None,
        })
    }

    /// Row `y` takes 9/16 of the chroma row it lies in, 3/16 of the nearer neighbour above or below, and as much along x: the
    /// last row of a group therefore waits for the next group, unless it is the last of the picture.
    fn take(
        &mut self,
        y: usize,
        count: usize,
        planes: [&[u8]; 3],
        luma_stride: usize,
        chroma_stride: usize,
    ) -> Result<()> {
        self.job.cancel.check()?;
        let (width, chroma_width) = (self.upsampler.width, self.upsampler.chroma_width());
        if count > MOST_ROWS
            || !y.is_multiple_of(2)
            || y + count > self.height
            || y != self.done + usize::from(self.waiting)
        {
            bail!(Corrupt, "the WebP decoder gave rows out of order");
        }
        let [luma, chroma @ ..] = planes;
        let luma = |i: usize| &luma[i * luma_stride..][..width];
        let chroma = |k: usize| chroma.map(|plane| &plane[k * chroma_stride..][..chroma_width]);
        let mut made = 0;
        let mut emit = |luma: &[u8], near: [&[u8]; 2], far: [&[u8]; 2]| {
            self.upsampler.row(luma, near, far, &mut self.band[made * self.stride..][..self.stride]);
            made += 1;
        };
        let before = [&self.chroma[0][..], &self.chroma[1][..]];
        if self.waiting {
            emit(&self.luma, before, chroma(0));
        }
        let mut waiting = false;
        for i in 0..count {
            let near = chroma(i / 2);
            let far = match i % 2 {
                0 if i > 0 => chroma(i / 2 - 1),
                0 if y > 0 => before,
                1 if i + 1 < count => chroma(i / 2 + 1),
                1 if y + count < self.height => {
                    waiting = true;
                    break;
                }
                _ => near,
            };
            emit(luma(i), near, far);
        }
        if waiting {
            self.luma.copy_from_slice(luma(count - 1));
        }
        for (kept, last) in self.chroma.iter_mut().zip(chroma((count - 1) / 2)) {
            kept.copy_from_slice(last);
        }
        self.waiting = waiting;
        self.done += made;
        self.target.push(&self.band, self.stride, made)
    }
}
