//! JPEG through libjpeg-turbo, 16 rows at a time: accurate integer DCT, fancy upsampling, as every reference decodes.
//!
//! Where the resize takes them, rows come as planes of Y, Cb and Cr, and it makes RGB of them while it turns them.
//!
//! Only baseline-like files stream; a progressive one is held as coefficients, so it has budgets of its own.

use super::{pixels, Header, Job, Target};
use crate::error::{bail, Code, Error, Result};
use crate::exif::{self, Orientation};
use crate::limits::*;
use crate::memory::{out_of_memory, try_zeroed, Buffer};
use crate::resize::stream::{plane_stride, row_stride};
use std::ffi::{c_char, c_int, CStr};
use turbojpeg_sys as _; // links the vendored library

/// libjpeg-turbo writes rows that begin at multiples of its vector's size past the caches, and the resize, which reads them
/// next, would wait for memory: every row begins CACHED_OFFSET behind such a multiple.
const STORE_BYTES: usize = 32;
const CACHED_OFFSET: usize = 8;

#[repr(C)]
#[derive(Default)]
struct Info {
    width: u32,
    height: u32,
    components: u32,
    four_colours: u32,
    planes: u32,
    multiple_scans: u32,
    coefficient_bytes: u64,
}

#[repr(C)]
struct Raw {
    _private: [u8; 0],
}

extern "C" {
    fn catalejo_jpeg_open(data: *const u8, size: usize, cancel: *const u8, info: *mut Info) -> *mut Raw;
    fn catalejo_jpeg_start(j: *mut Raw, four_colours: c_int, plane: usize, max_scans: c_int) -> c_int;
    fn catalejo_jpeg_read(j: *mut Raw, out: *mut u8, stride: usize, rows: u32) -> c_int;
    fn catalejo_jpeg_status(j: *const Raw) -> c_int;
    fn catalejo_jpeg_message(j: *const Raw) -> *const c_char;
    fn catalejo_jpeg_close(j: *mut Raw);
}

/// Owns the C handle; the data and the cancel flag it points to are borrowed for its life.
struct Handle<'a> {
    raw: *mut Raw,
    _job: &'a Job<'a>,
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        // SAFETY: `raw` came from open and is closed once.
        unsafe { catalejo_jpeg_close(self.raw) }
    }
}

impl<'a> Handle<'a> {
    fn open(job: &'a Job<'a>) -> Result<(Handle<'a>, Info)> {
        let mut info = Info::default();
        // SAFETY: pointer and length of a live slice; the flag lives as long as the job; `info` is written only now.
        let raw = unsafe { catalejo_jpeg_open(job.data.as_ptr(), job.data.len(), job.cancel.as_ptr(), &mut info) };
        if raw.is_null() {
            return Err(out_of_memory(1024));
        }
        let handle = Handle { raw, _job: job };
        // SAFETY: an open handle.
        handle.check(unsafe { catalejo_jpeg_status(handle.raw) })?;
        Ok((handle, info))
    }

    fn check(&self, status: c_int) -> Result<()> {
        let code = match status {
            0 => return Ok(()),
            2 => Code::Truncated,
            3 => Code::UnsupportedFormat,
            4 => return Err(Error::new(Code::OutOfMemory, "there is not enough memory to decode this JPEG")),
            5 => return Err(Error::new(Code::Cancelled, "the request was cancelled")),
            6 => Code::LimitExceeded,
            7 => Code::BadDimensions,
            _ => Code::Corrupt,
        };
        // SAFETY: a NUL-terminated string inside the open handle, copied at once.
        let detail = unsafe { CStr::from_ptr(catalejo_jpeg_message(self.raw)) }.to_string_lossy();
        let what = match code {
            Code::Truncated => "the JPEG ends too early",
            Code::UnsupportedFormat => "this kind of JPEG is not supported",
            Code::LimitExceeded => "the JPEG has too many scans",
            Code::BadDimensions => "the JPEG has an impossible size",
            _ => "the JPEG is corrupt",
        };
        Err(Error::new(code, if detail.is_empty() { what.to_string() } else { format!("{what} ({detail})") }))
    }
}

pub fn decode(job: &Job<'_>, target: &mut dyn Target) -> Result<()> {
    let (handle, info) = Handle::open(job)?;
    job.check_size(info.width, info.height)?;
    if !matches!(info.components, 1 | 3 | 4) {
        bail!(UnsupportedFormat, "a JPEG of {} components is not supported; 1, 3 or 4 are", info.components);
    }
    let pixels = u64::from(info.width) * u64::from(info.height);
    if info.multiple_scans != 0 {
        check_multiple_scans(&info, pixels)?;
    }
    let orientation = if job.apply_exif { orientation(job.data) } else { Orientation::UPRIGHT };
    target.header(Header { width: info.width, height: info.height, orientation })?;

    let max_scans = (JPEG_MAX_SCAN_PIXELS / pixels).clamp(1, JPEG_MAX_SCANS) as c_int;
    let four = info.four_colours != 0;
    let (width, height) = (info.width as usize, info.height as usize);
    let plane = if info.planes != 0 && target.takes_planes() { plane_stride(width) } else { 0 };
    // SAFETY: an open handle on which start has not been called.
    handle.check(unsafe { catalejo_jpeg_start(handle.raw, c_int::from(four), plane, max_scans) })?;
    let stride = match (plane, four) {
        (0, true) => 4 * width,
        (0, false) => row_stride(width),
        (plane, _) => 3 * plane,
    };
    let stride = if plane == 0 { stride.next_multiple_of(STORE_BYTES) } else { stride };
    let mut room = Buffer::take(BAND_ROWS * stride + STORE_BYTES)?;
    let skip = CACHED_OFFSET.wrapping_sub(room.as_ptr().addr()) % STORE_BYTES;
    let band = &mut room[skip..][..BAND_ROWS * stride];
    let mut converted: Vec<u8> = try_zeroed(if four { BAND_ROWS * row_stride(width) } else { 0 })?;
    let mut done = 0;
    while done < height {
        job.cancel.check()?;
        let rows = BAND_ROWS.min(height - done);
        // SAFETY: a started handle; `band` holds `rows` rows of `stride` bytes, and a row of the chosen colour space
        // takes at most `stride` bytes; no more rows are asked for than the picture has left.
        handle.check(unsafe { catalejo_jpeg_read(handle.raw, band.as_mut_ptr(), stride, rows as u32) })?;
        if four {
            for (from, to) in band.chunks_exact(stride).zip(converted.chunks_exact_mut(row_stride(width))) {
                pixels::inverted_cmyk_to_rgb(&from[..4 * width], &mut to[..3 * width]);
            }
            target.push(&converted, row_stride(width), rows)?;
        } else if plane != 0 {
            target.push_planes(band, stride, rows)?;
        } else {
            target.push(band, stride, rows)?;
        }
        done += rows;
    }
    Ok(())
}

fn check_multiple_scans(info: &Info, pixels: u64) -> Result<()> {
    if pixels > PROGRESSIVE_MAX_PIXELS {
        bail!(
            TooManyPixels,
            "the image is a progressive JPEG of {} x {} pixels; the limit for these is {} megapixels",
            info.width,
            info.height,
            PROGRESSIVE_MAX_PIXELS / 1_000_000
        );
    }
    if info.coefficient_bytes > JPEG_COEFFICIENT_BYTES {
        bail!(
            LimitExceeded,
            "decoding this progressive JPEG of {} x {} pixels takes {} MiB; the limit is {} MiB",
            info.width,
            info.height,
            info.coefficient_bytes >> 20,
            JPEG_COEFFICIENT_BYTES >> 20
        );
    }
    Ok(())
}

/// EXIF of the first APP1 block that has it; markers are walked up to the first scan.
fn orientation(data: &[u8]) -> Orientation {
    let mut at = 2;
    for _ in 0..MAX_CHUNKS {
        let Some(&[0xff, marker, high, low]) = data.get(at..at + 4).and_then(|b| b.first_chunk::<4>()) else { break };
        if marker == 0xff {
            at += 1; // fill byte
            continue;
        }
        let length = usize::from(u16::from_be_bytes([high, low]));
        if marker == 0xda || length < 2 {
            break;
        }
        let body = data.get(at + 4..at + 2 + length).unwrap_or_default();
        if marker == 0xe1 && body.starts_with(b"Exif\0\0") {
            return exif::orientation(body);
        }
        at += 2 + length;
    }
    Orientation::UPRIGHT
}
