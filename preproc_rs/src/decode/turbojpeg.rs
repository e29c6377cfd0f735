//! For measurements only: the same vendored libjpeg-turbo through its TurboJPEG interface, the whole picture as RGB into
//! memory that was touched before. This is "the decoder alone" that benchmarks compare with.

use super::Job;
use crate::error::{bail, Result};
use crate::memory::Buffer;
use std::ffi::c_int;
use turbojpeg_sys::*;

/// Closes the instance on every way out.
struct Instance(tjhandle);

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: made by tj3Init, destroyed once; null is allowed.
        unsafe { tj3Destroy(self.0) }
    }
}

pub fn decode_into_memory(job: &Job<'_>) -> Result<()> {
    // SAFETY: no preconditions.
    let instance = Instance(unsafe { tj3Init(TJINIT_TJINIT_DECOMPRESS as c_int) });
    if instance.0.is_null() {
        bail!(OutOfMemory, "TurboJPEG does not start");
    }
    // SAFETY: a live instance, pointer and length of a live slice.
    if unsafe { tj3DecompressHeader(instance.0, job.data.as_ptr(), job.data.len() as _) } != 0 {
        bail!(Corrupt, "TurboJPEG cannot read this header");
    }
    // SAFETY: a live instance whose header has been read.
    let side = |which: TJPARAM| unsafe { tj3Get(instance.0, which as c_int) }.max(0) as u32;
    let (width, height) = (side(TJPARAM_TJPARAM_JPEGWIDTH), side(TJPARAM_TJPARAM_JPEGHEIGHT));
    job.check_size(width, height)?;
    let pitch = 3 * width as usize;
    let mut rgb = Buffer::take(pitch * height as usize)?;
    // SAFETY: as above; `rgb` holds `height` rows of `pitch` bytes.
    let status = unsafe {
        tj3Decompress8(
            instance.0,
            job.data.as_ptr(),
            job.data.len() as _,
            rgb.as_mut_ptr(),
            pitch as c_int,
            TJPF_TJPF_RGB,
        )
    };
    std::hint::black_box(&rgb[..]);
    if status != 0 {
        bail!(Corrupt, "TurboJPEG cannot decode this picture");
    }
    Ok(())
}
