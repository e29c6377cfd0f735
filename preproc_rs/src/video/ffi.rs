//! The safe side of csrc/video_shim.c: one video, its packets, its frames.

use crate::cancel::CancelToken;
use crate::error::{Code, Error, Result};
use crate::limits::*;
use crate::memory::out_of_memory;
use std::ffi::{c_char, c_int, CStr};

#[repr(C)]
struct RawLimits {
    max_pixels: i64,
    max_alloc: i64,
    deadline_ms: i64,
    probe_bytes: i64,
    probe_packets: i32,
    max_streams: i32,
    threads: i32,
    cancel: *const u8,
}

#[repr(C)]
struct RawInfo {
    width: i32,
    height: i32,
    transposed: i32,
    flip_x: i32,
    flip_y: i32,
    fps_num: i64,
    fps_den: i64,
    base_num: i64,
    base_den: i64,
}

#[repr(C)]
#[derive(Default)]
struct RawPacket {
    pts: i64,
    key: i32,
    discard: i32,
}

#[repr(C)]
struct Raw {
    _private: [u8; 0],
}

extern "C" {
    fn catalejo_video_now_ms() -> i64;
    fn catalejo_video_new(data: *const u8, size: i64, demuxer: *const c_char, limits: *const RawLimits) -> *mut Raw;
    fn catalejo_video_close(v: *mut Raw);
    fn catalejo_video_message(v: *const Raw) -> *const c_char;
    fn catalejo_video_open(v: *mut Raw) -> c_int;
    fn catalejo_video_describe(v: *const Raw, info: *mut RawInfo);
    fn catalejo_video_read(v: *mut Raw, packet: *mut RawPacket) -> c_int;
    fn catalejo_video_start(v: *mut Raw) -> c_int;
    fn catalejo_video_flush(v: *mut Raw);
    fn catalejo_video_send(v: *mut Raw, rank: i64, skip: c_int) -> c_int;
    fn catalejo_video_drain(v: *mut Raw) -> c_int;
    fn catalejo_video_receive(
        v: *mut Raw,
        rank: *mut i64,
        width: *mut i32,
        height: *mut i32,
        damaged: *mut i32,
    ) -> c_int;
    fn catalejo_video_rgb(
        v: *mut Raw,
        out: *mut u8,
        stride: i64,
        first: c_int,
        count: c_int,
        written: *mut c_int,
    ) -> c_int;
}

/// What the container says about its video stream.
#[derive(Clone, Debug)]
pub struct Info {
    pub width: u32,
    pub height: u32,
    pub transposed: bool,
    pub flip_x: bool,
    pub flip_y: bool,
    /// Average frame rate, or 0 when unknown.
    pub fps: f64,
    /// Seconds of one unit of a packet's time.
    pub time_unit_s: f64,
}

#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Presentation time in `time_unit_s`.
    pub time: Option<i64>,
    pub key: bool,
    /// Decoded for others, never shown (cut away by an edit list).
    pub hidden: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Frame {
    pub rank: i64,
    pub width: u32,
    pub height: u32,
    pub damaged: bool,
}

/// What sending a packet came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    Taken,
    /// Receive frames first, then send again.
    Full,
    /// The decoder refused the packet's content.
    Damaged,
}

/// An open video over borrowed bytes. Every call may fail with deadline, cancelled or out of memory.
pub struct Video<'a> {
    raw: *mut Raw,
    _data: &'a [u8],
    _cancel: CancelToken,
}

impl Drop for Video<'_> {
    fn drop(&mut self) {
        // SAFETY: `raw` came from new and is closed once.
        unsafe { catalejo_video_close(self.raw) }
    }
}

impl<'a> Video<'a> {
    /// `format` is one of sniff's video names. Opens the container at its start.
    pub fn open(
        data: &'a [u8],
        format: &str,
        max_pixels: u64,
        deadline_s: f64,
        threads: u32,
        cancel: &CancelToken,
    ) -> Result<Video<'a>> {
        let demuxer = match format {
            "mp4" => c"mov",
            "webm" | "mkv" => c"matroska",
            "avi" => c"avi",
            _ => c"mpegts",
        };
        // SAFETY: reads a clock.
        let now = unsafe { catalejo_video_now_ms() };
        let limits = RawLimits {
            max_pixels: max_pixels as i64,
            max_alloc: LIBAV_MAX_ALLOC as i64,
            deadline_ms: now.saturating_add((deadline_s * 1e3) as i64),
            probe_bytes: VIDEO_PROBE_BYTES,
            probe_packets: VIDEO_PROBE_PACKETS,
            max_streams: VIDEO_MAX_STREAMS,
            threads: threads as i32,
            cancel: cancel.as_ptr(),
        };
        // SAFETY: the data and the cancel flag live as long as `Video`; the name is static; the limits are copied.
        let raw = unsafe { catalejo_video_new(data.as_ptr(), data.len() as i64, demuxer.as_ptr(), &limits) };
        if raw.is_null() {
            return Err(out_of_memory(1024));
        }
        let mut video = Video { raw, _data: data, _cancel: cancel.clone() };
        video.reopen()?;
        Ok(video)
    }

    /// Back to the first packet; the same packets come again.
    pub fn reopen(&mut self) -> Result<()> {
        // SAFETY: a live handle.
        self.check(unsafe { catalejo_video_open(self.raw) })
    }

    pub fn info(&self) -> Info {
        // SAFETY: plain numbers and bytes; zero is valid.
        let mut raw: RawInfo = unsafe { std::mem::zeroed() };
        // SAFETY: an opened handle with a video stream, and a struct to fill.
        unsafe { catalejo_video_describe(self.raw, &mut raw) };
        let ratio = |num: i64, den: i64| if num > 0 && den > 0 { num as f64 / den as f64 } else { 0.0 };
        Info {
            width: raw.width.max(0) as u32,
            height: raw.height.max(0) as u32,
            transposed: raw.transposed != 0,
            flip_x: raw.flip_x != 0,
            flip_y: raw.flip_y != 0,
            fps: ratio(raw.fps_num, raw.fps_den),
            time_unit_s: ratio(raw.base_num, raw.base_den),
        }
    }

    /// The next packet of the video, or None at the end.
    pub fn read(&mut self) -> Result<Option<Packet>> {
        let mut raw = RawPacket::default();
        // SAFETY: an opened handle and a struct to fill.
        match unsafe { catalejo_video_read(self.raw, &mut raw) } {
            END => Ok(None),
            status => {
                self.check(status)?;
                let time = if raw.pts == i64::MIN { None } else { Some(raw.pts) };
                Ok(Some(Packet { time, key: raw.key != 0, hidden: raw.discard != 0 }))
            }
        }
    }

    /// Opens the decoder; before the first `send`.
    pub fn start(&mut self) -> Result<()> {
        // SAFETY: an opened handle.
        self.check(unsafe { catalejo_video_start(self.raw) })
    }

    /// Forgets all frames inside the decoder; the next packet must be a key frame.
    pub fn flush(&mut self) {
        // SAFETY: a started handle.
        unsafe { catalejo_video_flush(self.raw) }
    }

    /// Decodes the packet read last as frame `rank`; `skip`: only if other frames need it.
    pub fn send(&mut self, rank: i64, skip: bool) -> Result<Sent> {
        // SAFETY: a started handle that holds the packet read last.
        match unsafe { catalejo_video_send(self.raw, rank, c_int::from(skip)) } {
            AGAIN => Ok(Sent::Full),
            CORRUPT | END => Ok(Sent::Damaged),
            status => self.check(status).map(|()| Sent::Taken),
        }
    }

    /// No more packets: what is left inside comes out.
    pub fn drain(&mut self) -> Result<()> {
        // SAFETY: a started handle.
        match unsafe { catalejo_video_drain(self.raw) } {
            END | CORRUPT => Ok(()),
            status => self.check(status),
        }
    }

    /// The next decoded frame, or None when the decoder has none.
    pub fn receive(&mut self) -> Result<Option<Frame>> {
        let (mut rank, mut width, mut height, mut damaged) = (0, 0, 0, 0);
        loop {
            // SAFETY: a started handle and four numbers to fill.
            match unsafe { catalejo_video_receive(self.raw, &mut rank, &mut width, &mut height, &mut damaged) } {
                AGAIN | END => return Ok(None),
                CORRUPT => {} // one bad frame; the next call goes on behind it
                TOO_MANY_PIXELS => return Err(too_many_pixels(width as u32, height as u32)),
                status => {
                    self.check(status)?;
                    let (width, height) = (width.max(0) as u32, height.max(0) as u32);
                    return Ok(Some(Frame { rank, width, height, damaged: damaged != 0 }));
                }
            }
        }
    }

    /// `count` rows of the frame received last from row `first` on as RGB, `stride` bytes apart: all of the frame, or group
    /// after group from the top, of even size. How many were written: `count`, or fewer when this pixel format cannot be
    /// converted in groups.
    pub fn rgb(&mut self, frame: Frame, out: &mut [u8], stride: usize, first: usize, count: usize) -> Result<usize> {
        assert!(stride >= 3 * frame.width as usize + ROW_PAD && out.len() >= stride * count);
        assert!(first + count <= frame.height as usize);
        let mut written = 0;
        // SAFETY: the handle holds `frame`, which has these rows; `out` has room for them, checked above, with ROW_PAD bytes
        // behind each for the library's vector stores.
        self.check(unsafe {
            catalejo_video_rgb(self.raw, out.as_mut_ptr(), stride as i64, first as c_int, count as c_int, &mut written)
        })?;
        Ok(written as usize)
    }

    fn check(&self, status: c_int) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: a NUL-terminated string inside the live handle, copied at once.
        let detail = unsafe { CStr::from_ptr(catalejo_video_message(self.raw)) }.to_string_lossy();
        let (code, text) = match status {
            2 => (Code::Corrupt, "the file holds no video stream".to_string()),
            3 => (
                Code::UnsupportedFormat,
                format!("the video codec ({detail}) is not supported; H.264, HEVC, VP8, VP9, AV1 and MPEG-4 are"),
            ),
            // Nearly always the cap on one allocation, which the file itself runs into: trying again is no use.
            4 => (
                Code::LimitExceeded,
                format!(
                    "decoding this video takes more memory than allowed; the limit is {} MiB",
                    LIBAV_MAX_ALLOC >> 20
                ),
            ),
            5 => (Code::Cancelled, "the request was cancelled".to_string()),
            6 => (Code::Deadline, "decoding this video takes longer than allowed".to_string()),
            _ if detail.is_empty() => (Code::Corrupt, "the video is corrupt".to_string()),
            _ => (Code::Corrupt, format!("the video is corrupt ({detail})")),
        };
        Err(Error::new(code, text))
    }
}

const CORRUPT: c_int = 1;
const END: c_int = 7;
const AGAIN: c_int = 8;
const TOO_MANY_PIXELS: c_int = 9;

pub fn too_many_pixels(width: u32, height: u32) -> Error {
    Error::new(
        Code::TooManyPixels,
        format!("the video is {width} x {height} pixels; the limit is {VIDEO_MAX_FRAME_PIXELS} pixels (7680 x 4320)"),
    )
}
