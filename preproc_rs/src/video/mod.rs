//! One video file to patch rows. Two passes over the packets: the first only reads times, so that the wanted frames are
//! known before anything is decoded; the second decodes, as little as possible, and converts only wanted frames.
//!
//! A frame's number is its place among presented frames (after the edit list); time = number / average frame rate, not
//! the container's time, also for variable frame rate. What is skipped: frames nobody refers to, and whole groups
//! between key frames that hold nothing wanted. If skipping loses a wanted frame (open groups, lying flags), the file is
//! decoded again in full; frames that still do not come are left out, at most half of them.

mod ffi;
mod plan;

use crate::cancel::CancelToken;
use crate::error::{bail, Result};
use crate::exif::Orientation;
use crate::hash;
use crate::image::Prepared;
use crate::limits::*;
use crate::memory::try_zeroed;
use crate::patchify::{Patches, Rows};
use crate::resize::stream::{row_stride, RowSink, Stream};
use crate::resize::Form;
use crate::size::SizeRule;
use crate::sniff::{is_video, sniff};
use ffi::{too_many_pixels, Frame, Info, Sent, Video};
use plan::Plan;
use std::time::{Duration, Instant};

#[derive(Clone)]
pub struct VideoOptions {
    pub fps: f64,
    pub max_frames: Option<usize>,
    pub rule: SizeRule,
    pub rows: Rows,
    pub max_bytes: usize,
    pub max_volume: u64,
    pub deadline_s: f64,
    pub threads: u32,
    /// Decode every frame, also those nothing needs.
    pub exhaustive: bool,
}

impl Default for VideoOptions {
    fn default() -> Self {
        VideoOptions {
            fps: VIDEO_FPS_DEFAULT,
            max_frames: None,
            rule: SizeRule::Area { max: VIDEO_AREA_MAX_PIXELS },
            rows: Rows::U8,
            max_bytes: VIDEO_MAX_BYTES,
            max_volume: VIDEO_VOLUME_PIXELS,
            deadline_s: VIDEO_DEADLINE_S,
            threads: 1,
            exhaustive: false,
        }
    }
}

impl VideoOptions {
    pub fn check(&self) -> Result<()> {
        if !(VIDEO_FPS_MIN..=VIDEO_FPS_MAX).contains(&self.fps) {
            bail!(BadOption, "fps is {}; it must lie in [{VIDEO_FPS_MIN}, {VIDEO_FPS_MAX}]", self.fps);
        }
        if self.max_frames == Some(0) {
            bail!(BadOption, "max_frames is 0; it must be at least 1");
        }
        if self.max_volume == 0 || self.max_volume > VIDEO_VOLUME_MAX_PIXELS {
            bail!(BadOption, "max_volume is {}; it must lie in [1, {VIDEO_VOLUME_MAX_PIXELS}]", self.max_volume);
        }
        if !(1..=VIDEO_MAX_THREADS).contains(&self.threads) {
            bail!(BadOption, "threads is {}; it must lie in [1, {VIDEO_MAX_THREADS}]", self.threads);
        }
        if !(self.deadline_s > 0.0 && self.deadline_s <= 3_600.0) {
            bail!(BadOption, "deadline_s is {}; it must lie in (0, 3600]", self.deadline_s);
        }
        Ok(())
    }

    pub fn source_key(&self, data: &[u8]) -> String {
        let rule = match self.rule {
            SizeRule::Area { max } => format!("area:{max}"),
            SizeRule::LongSide { cap } => format!("long_side:{cap}"),
        };
        let options = format!(
            "video;rule={rule};rows={};fps={};max_frames={:?};volume={}",
            self.rows.as_str(),
            self.fps,
            self.max_frames,
            self.max_volume
        );
        hash::source_key(&options, data)
    }
}

/// Frame `frame` of the result: time slot `frame % 2` of temporal patch `frame / 2`.
struct FrameSink {
    patches: Patches,
    frame: usize,
}

impl RowSink for FrameSink {
    fn row(&mut self, y: usize, rgb: &[u8]) {
        let slot = self.frame % 2;
        self.patches.write(self.frame / 2, slot..slot + 1, y, rgb);
    }
}

/// Takes wanted frames in order and writes them.
struct Writer {
    stream: Option<Stream<FrameSink>>,
    stored: (u32, u32),
    turn: Orientation,
    size: (usize, usize),
    rgb: Vec<u8>,
    /// Frames are converted as a whole; otherwise in groups of rows that are resized while they are in the cache.
    whole: bool,
    /// Numbers of the frames written.
    taken: Vec<usize>,
    converting: Duration,
}

impl Writer {
    fn take(&mut self, video: &mut Video<'_>, frame: Frame, number: usize) -> Result<()> {
        let start = Instant::now();
        let (width, height) = (frame.width as usize, frame.height as usize);
        if width == 0 || height == 0 {
            bail!(Corrupt, "a frame of the video has no pixels");
        }
        let stride = row_stride(width).next_multiple_of(64);
        let Some(stream) = self.stream.take() else {
            bail!(Corrupt, "an earlier frame of the video failed");
        };
        let mut stream = if self.stored == (frame.width, frame.height) {
            stream
        } else {
            self.stored = (frame.width, frame.height);
            Stream::new((height, width), self.turn, self.size, Form::best(), stream.sink)?
        };
        stream.sink.frame = self.taken.len();
        let mut first = 0;
        while first < height {
            let count = if self.whole { height } else { VIDEO_GROUP_ROWS.min(height - first) };
            if self.rgb.len() < stride * count {
                self.rgb = try_zeroed(stride * count)?;
            }
            let written = video.rgb(frame, &mut self.rgb, stride, first, count)?;
            if written == count {
                stream.push(&self.rgb, stride, count)?;
                first += count;
            } else if first == 0 && !self.whole {
                self.whole = true;
            } else {
                bail!(Corrupt, "a frame of the video cannot be converted");
            }
        }
        stream.finish()?;
        self.stream = Some(stream);
        self.taken.push(number);
        self.converting += start.elapsed();
        Ok(())
    }
}

/// Samples, decodes, resizes and patchifies `data`.
pub fn prepare_video(data: &[u8], options: &VideoOptions, cancel: &CancelToken) -> Result<Prepared> {
    let start = Instant::now();
    options.check()?;
    if data.len() > options.max_bytes {
        bail!(TooManyBytes, "the video file is {} bytes; the limit is {}", data.len(), options.max_bytes);
    }
    cancel.check()?;
    let format = match sniff(data) {
        Some(format) if is_video(format) => format,
        Some(other) => {
            bail!(UnsupportedFormat, "this is {other}, not a video; send MP4, WebM, Matroska, MPEG-TS or AVI")
        }
        None if data.is_empty() => bail!(Truncated, "the video file is empty"),
        None => bail!(
            UnsupportedFormat,
            "the file is not a video of a known format; send MP4, WebM, Matroska, MPEG-TS or AVI"
        ),
    };
    let mut video = Video::open(data, format, VIDEO_MAX_FRAME_PIXELS, options.deadline_s, options.threads, cancel)?;
    let info = video.info();
    if u64::from(info.width) * u64::from(info.height) > VIDEO_MAX_FRAME_PIXELS {
        return Err(too_many_pixels(info.width, info.height));
    }
    if info.width == 0 || info.height == 0 {
        bail!(Corrupt, "the video stream has no readable header (no key frame was found)");
    }
    let turn = Orientation { transposed: info.transposed, flip_x: info.flip_x, flip_y: info.flip_y };
    let (width, height) = if turn.transposed { (info.height, info.width) } else { (info.width, info.height) };
    let size = options.rule.resized(height, width)?;
    let plan = Plan::read(&mut video, &info, options, size)?;
    let reading = start.elapsed();

    let mut writer = decode(&mut video, &info, &plan, options, size, !options.exhaustive)?;
    if !options.exhaustive && writer.taken.len() < plan.wanted.len() && plan.skips() {
        writer = decode(&mut video, &info, &plan, options, size, false)?;
    }
    if writer.taken.is_empty() || 2 * writer.taken.len() < plan.wanted.len() {
        bail!(Corrupt, "only {} of {} frames of the video can be decoded", writer.taken.len(), plan.wanted.len());
    }
    let decoding = start.elapsed().saturating_sub(reading + writer.converting);
    let Some(stream) = writer.stream else {
        bail!(Corrupt, "the video holds no frame");
    };
    let frames = writer.taken.len();
    let patches = stream.sink.patches.of_frames(frames);

    let hashing = Instant::now();
    let source_key = options.source_key(data);
    let hash = hash::item_hash("video", patches.grid, patches.rows.as_str(), patches.t_dup, &patches.data);
    let milliseconds = |d: Duration| d.as_secs_f64() * 1e3;
    let seconds = |number: usize| if plan.fps > 0.0 { number as f64 / plan.fps } else { 0.0 };
    let timestamps = (0..patches.grid[0]).map(|k| seconds(writer.taken[(2 * k).min(frames - 1)])).collect();
    Ok(Prepared {
        kind: "video",
        format,
        width,
        height,
        resized_hw: size,
        grid: patches.grid,
        rows: patches.rows,
        t_dup: patches.t_dup,
        row_values: patches.row_values(),
        data: patches.data,
        source_key,
        hash,
        timestamps: Some(timestamps),
        frame_indices: Some(writer.taken),
        ms: vec![
            ("read", milliseconds(reading)),
            ("decode", milliseconds(decoding)),
            ("resize", milliseconds(writer.converting)),
            ("hash", milliseconds(hashing.elapsed())),
            ("total", milliseconds(start.elapsed())),
        ],
    })
}

/// One decoding pass. `fast`: leave out what no wanted frame needs.
fn decode(
    video: &mut Video<'_>,
    info: &Info,
    plan: &Plan,
    options: &VideoOptions,
    size: (usize, usize),
    fast: bool,
) -> Result<Writer> {
    let turn = Orientation { transposed: info.transposed, flip_x: info.flip_x, flip_y: info.flip_y };
    let patches = Patches::new(false, plan.wanted.len().div_ceil(2), size.0, size.1, options.rows)?;
    let stored = (info.height as usize, info.width as usize);
    let stream = Stream::new(stored, turn, size, Form::best(), FrameSink { patches, frame: 0 })?;
    let mut writer = Writer {
        stream: Some(stream),
        stored: (info.width, info.height),
        turn,
        size,
        rgb: Vec::new(),
        whole: false,
        taken: Vec::new(),
        converting: Duration::ZERO,
    };
    let mut output = 0;
    video.reopen()?;
    video.start()?;
    let (mut number, mut decoded, mut skipping) = (0usize, 0usize, false);
    while let Some(_packet) = video.read()? {
        let Some(step) = plan.packets.get(number) else { break };
        number += 1;
        if step.before_first_key || (fast && step.group_unwanted) {
            if fast && step.group_unwanted && !skipping && decoded > 0 {
                // Frames still inside the decoder are wanted ones, maybe.
                video.drain()?;
                receive(video, plan, &mut writer, &mut output)?;
                video.flush();
            }
            skipping = true;
            continue;
        }
        skipping = false;
        decoded += 1;
        if decoded > VIDEO_MAX_DECODED {
            bail!(
                LimitExceeded,
                "the video needs more than {VIDEO_MAX_DECODED} frames to be decoded, which is the limit"
            );
        }
        let skip = fast && plan.by_time && !step.wanted;
        let rank = step.rank.map_or(-1, |r| r as i64);
        // A full decoder gives at least one frame, after which it takes the packet.
        for _ in 0..64 {
            if video.send(rank, skip)? != Sent::Full {
                break;
            }
            receive(video, plan, &mut writer, &mut output)?;
        }
        receive(video, plan, &mut writer, &mut output)?;
        if writer.taken.len() == plan.wanted.len() {
            return Ok(writer);
        }
    }
    video.drain()?;
    receive(video, plan, &mut writer, &mut output)?;
    Ok(writer)
}

/// Everything the decoder has; wanted frames go to the writer, each once and in order.
fn receive(video: &mut Video<'_>, plan: &Plan, writer: &mut Writer, output: &mut usize) -> Result<()> {
    while let Some(frame) = video.receive()? {
        let number = if plan.by_time {
            match usize::try_from(frame.rank) {
                Ok(rank) => rank,
                Err(_) => continue, // a frame that is never shown
            }
        } else {
            *output += 1;
            *output - 1
        };
        let behind = writer.taken.last().is_none_or(|last| *last < number);
        if behind && !frame.damaged && plan.wanted.binary_search(&number).is_ok() {
            writer.take(video, frame, number)?;
        }
    }
    Ok(())
}
