//! The safe side of csrc/still_shim.c: one coded picture, its planes.

use crate::error::{bail, Code, Error, Result};
use crate::limits::LIBAV_MAX_ALLOC;
use crate::memory::out_of_memory;
use std::ffi::c_int;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    Av1,
    Hevc,
}

#[repr(C)]
struct Raw {
    _private: [u8; 0],
}

#[repr(C)]
struct RawFrame {
    planes: [*const u8; 3],
    strides: [i64; 3],
    bits: i32,
    colours: i32,
    shift_x: i32,
    shift_y: i32,
    full_range: i32,
    matrix: i32,
}

extern "C" {
    fn catalejo_still_open(
        av1: c_int,
        config: *const u8,
        config_size: usize,
        width: c_int,
        height: c_int,
        max_alloc: usize,
        status: *mut c_int,
    ) -> *mut Raw;
    fn catalejo_still_decode(s: *mut Raw, data: *const u8, size: usize, frame: *mut RawFrame) -> c_int;
    fn catalejo_still_close(s: *mut Raw);
}

/// Decodes pictures of one codec, configuration and size, one after the other.
pub struct Decoder {
    raw: *mut Raw,
    width: usize,
    height: usize,
}

/// One plane: `rows` rows of `width` samples, `stride` bytes apart.
#[derive(Clone, Copy)]
pub struct Plane<'a> {
    bytes: &'a [u8],
    stride: usize,
    pub width: usize,
    pub rows: usize,
}

impl<'a> Plane<'a> {
    /// The bytes of row `y`; samples of more than 8 bits take two, the low one first.
    pub fn row(&self, y: usize, bits: u32) -> &'a [u8] {
        let bytes = self.width * if bits > 8 { 2 } else { 1 };
        &self.bytes[y * self.stride..][..bytes]
    }
}

/// A decoded picture.
pub struct Frame<'a> {
    pub bits: u32,
    pub luma: Plane<'a>,
    pub chroma: Option<[Plane<'a>; 2]>,
    /// Chroma planes have half the columns; half the rows.
    pub shift_x: u32,
    pub shift_y: u32,
    /// As the codec says it; the container may say otherwise.
    pub full_range: bool,
    pub matrix: u32,
}

impl Decoder {
    pub fn new(codec: Codec, config: &[u8], width: usize, height: usize) -> Result<Decoder> {
        let av1 = c_int::from(codec == Codec::Av1);
        // The sequence header of an AV1 picture stands in the picture itself.
        let config = if codec == Codec::Av1 { &[][..] } else { config };
        let mut status = 0;
        // SAFETY: pointer and length of a live slice, which is copied; a status to fill. Sides are below 2^16.
        let raw = unsafe {
            catalejo_still_open(
                av1,
                config.as_ptr(),
                config.len(),
                width as c_int,
                height as c_int,
                LIBAV_MAX_ALLOC,
                &mut status,
            )
        };
        if raw.is_null() {
            return Err(error(status));
        }
        Ok(Decoder { raw, width, height })
    }

    pub fn decode(&mut self, data: &[u8]) -> Result<Frame<'_>> {
        // SAFETY: plain numbers and pointers; zero is a valid value of each.
        let mut raw: RawFrame = unsafe { std::mem::zeroed() };
        // SAFETY: an open handle, pointer and length of a live slice, a frame to fill.
        let status = unsafe { catalejo_still_decode(self.raw, data.as_ptr(), data.len(), &mut raw) };
        if status != 0 {
            return Err(error(status));
        }
        let bits = raw.bits as u32;
        let plane = |i: usize, width: usize, rows: usize| {
            let stride = raw.strides[i] as usize;
            // SAFETY: the decoder's rows of `width` samples, `stride` bytes apart, good while `self` is borrowed.
            let bytes = unsafe {
                std::slice::from_raw_parts(raw.planes[i], stride * (rows - 1) + width * if bits > 8 { 2 } else { 1 })
            };
            Plane { bytes, stride, width, rows }
        };
        let (shift_x, shift_y) = (raw.shift_x as u32, raw.shift_y as u32);
        if !matches!(bits, 8..=12) || shift_x > 1 || shift_y > 1 {
            bail!(UnsupportedFormat, "a picture of {bits} bits a sample is not supported");
        }
        let (half_w, half_h) = (self.width.div_ceil(1 << shift_x), self.height.div_ceil(1 << shift_y));
        Ok(Frame {
            bits,
            luma: plane(0, self.width, self.height),
            chroma: (raw.colours == 2).then(|| [1, 2].map(|i| plane(i, half_w, half_h))),
            shift_x,
            shift_y,
            full_range: raw.full_range != 0,
            matrix: raw.matrix as u32,
        })
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: `raw` came from open and is closed once.
        unsafe { catalejo_still_close(self.raw) }
    }
}

fn error(status: c_int) -> Error {
    match status {
        2 => Error::new(Code::UnsupportedFormat, "this kind of coded picture is not supported"),
        3 => out_of_memory(1024),
        5 => Error::new(
            Code::DecoderDisabled,
            "AVIF and HEIC images of this codec are not accepted here: this server's libavcodec has no decoder for it",
        ),
        4 => Error::new(Code::Corrupt, "the picture has another size than its file says"),
        _ => Error::new(Code::Corrupt, "the coded picture is corrupt"),
    }
}
