//! Resized RGB rows to patch rows.
//!
//! Patch order: merge-block row, merge-block column, dy, dx (2x2 blocks). A patch row holds, per channel, 14 rows of 14:
//! still images as bytes once, [588] = (channel, y, x); everything else twice in time, [1176] = (channel, time, y, x).
//! Float values are `(u8 - f32(255 * mean)) / f32(255 * std)`, each product rounded to float32 first: exactly the
//! reference processor's (`(x / 255 - mean) / std` differs in 537 of 768 entries).

use crate::error::Result;
use crate::limits::{MEAN, MERGE, PATCH, PATCH_VALUES, STD};
use crate::memory::{try_zeroed, Buffer};
use crate::resize::stream::RowSink;
use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    U8,
    F32,
}

impl Rows {
    pub fn as_str(self) -> &'static str {
        match self {
            Rows::U8 => "u8",
            Rows::F32 => "f32",
        }
    }

    pub fn bytes(self) -> usize {
        match self {
            Rows::U8 => 1,
            Rows::F32 => 4,
        }
    }
}

/// How many patches before it is written a row is fetched into the cache.
const AHEAD: usize = 2;

/// Patch rows of one picture or video under construction.
pub struct Patches {
    pub data: Buffer,
    pub rows: Rows,
    /// 1: a still image's bytes, the engine repeats the frame. 0: both time slots are written.
    pub t_dup: u8,
    /// (temporal patches, patch rows, patch columns)
    pub grid: [usize; 3],
    /// The 14 picture rows of one row of patches, as [channel][y][x], and how many of them are there. Whole patches are
    /// written at once: row by row, every write would miss the cache.
    band: Vec<u8>,
    in_band: usize,
    table: Box<[[f32; 256]; 3]>,
}

impl Patches {
    /// `image`: one temporal patch; byte rows are stored once.
    pub fn new(image: bool, t: usize, height: usize, width: usize, rows: Rows) -> Result<Patches> {
        let t_dup = u8::from(image && rows == Rows::U8);
        let grid = [t, height / PATCH, width / PATCH];
        let values = grid.iter().product::<usize>() * PATCH_VALUES * if t_dup == 1 { 1 } else { 2 };
        Ok(Patches {
            data: Buffer::take(values * rows.bytes())?,
            rows,
            t_dup,
            grid,
            band: try_zeroed(3 * PATCH * width)?,
            in_band: 0,
            table: Box::new(table()),
        })
    }

    /// Values of one row: 588 or 1176.
    pub fn row_values(&self) -> usize {
        PATCH_VALUES * if self.t_dup == 1 { 1 } else { 2 }
    }

    /// Row `y` of a frame into temporal patch `k`, time slots `slots` (0..1, 1..2 or 0..2). Every row comes once, the rows
    /// of a frame from top to bottom or from bottom to top.
    pub fn write(&mut self, k: usize, slots: Range<usize>, y: usize, rgb: &[u8]) {
        let width = self.grid[2] * PATCH;
        let plane = PATCH * width;
        let (red, rest) = self.band.split_at_mut(plane);
        let (green, blue) = rest.split_at_mut(plane);
        let line = y % PATCH * width..(y % PATCH + 1) * width;
        deinterleave(&rgb[..3 * width], &mut red[line.clone()], &mut green[line.clone()], &mut blue[line]);
        self.in_band += 1;
        if self.in_band == PATCH {
            self.in_band = 0;
            self.write_band(k, slots, y / PATCH);
        }
    }

    /// Row `gy` of patches of temporal patch `k`.
    fn write_band(&mut self, k: usize, slots: Range<usize>, gy: usize) {
        let [_, gh, gw] = self.grid;
        let width = gw * PATCH;
        let times = if self.t_dup == 1 { 1 } else { 2 };
        let value_bytes = self.rows.bytes();
        let row_bytes = times * PATCH_VALUES * value_bytes;
        let first = k * gh * gw + gy / MERGE * MERGE * gw + gy % MERGE * MERGE;
        for gx in 0..gw {
            let at = |gx: usize| first + gx / MERGE * MERGE * MERGE + gx % MERGE;
            if gx + AHEAD < gw {
                fetch_ahead(&self.data, at(gx + AHEAD) * row_bytes, row_bytes);
            }
            let patch = at(gx);
            let row = &mut self.data[patch * row_bytes..(patch + 1) * row_bytes];
            for (c, channel) in row.chunks_exact_mut(times * PATCH * PATCH * value_bytes).enumerate() {
                let lines = self.band[c * PATCH * width..][..PATCH * width].chunks_exact(width);
                let square = PATCH * PATCH * value_bytes;
                let target = &mut channel[slots.start * square..(slots.start + 1) * square];
                for (line, to) in lines.zip(target.chunks_exact_mut(PATCH * value_bytes)) {
                    let source = &line[gx * PATCH..(gx + 1) * PATCH];
                    match self.rows {
                        Rows::U8 => to[..PATCH].copy_from_slice(&source[..PATCH]),
                        Rows::F32 => {
                            for (value, four) in source.iter().zip(to.chunks_exact_mut(4)) {
                                four.copy_from_slice(&self.table[c][usize::from(*value)].to_le_bytes());
                            }
                        }
                    }
                }
                if slots.len() == 2 {
                    channel.copy_within(..square, square);
                }
            }
        }
    }
}

impl Patches {
    /// The result once `frames` frames are written: temporal patches without a frame are dropped, and an odd last frame
    /// is repeated in its second time slot.
    pub fn of_frames(mut self, frames: usize) -> Patches {
        let [_, gh, gw] = self.grid;
        let row_bytes = self.row_values() * self.rows.bytes();
        let patch_bytes = gh * gw * row_bytes;
        self.grid[0] = frames.div_ceil(2);
        self.data.truncate(self.grid[0] * patch_bytes);
        if !frames.is_multiple_of(2) {
            let plane = PATCH * PATCH * self.rows.bytes();
            for row in self.data[(self.grid[0] - 1) * patch_bytes..].chunks_exact_mut(row_bytes) {
                for channel in row.chunks_exact_mut(2 * plane) {
                    channel.copy_within(..plane, plane);
                }
            }
        }
        self
    }
}

/// A still image fills every time slot of its one temporal patch.
impl RowSink for Patches {
    fn row(&mut self, y: usize, rgb: &[u8]) {
        let slots = if self.t_dup == 1 { 0..1 } else { 0..2 };
        self.write(0, slots, y, rgb);
    }
}

/// The normalised value of each byte of each channel.
pub fn table() -> [[f32; 256]; 3] {
    let mut table = [[0.0; 256]; 3];
    for c in 0..3 {
        let (mean, std) = (MEAN[c] * 255.0, STD[c] * 255.0);
        for (v, entry) in table[c].iter_mut().enumerate() {
            *entry = (v as f32 - mean) / std;
        }
    }
    table
}

/// Asks for the cache lines of `data[start..start + length]`: rows are too far apart for the CPU to guess the next, and
/// stores that miss the cache wait for it.
fn fetch_ahead(data: &[u8], start: usize, length: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in data[start..start + length].chunks(64) {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        // SAFETY: a hint; the address lies inside `data`.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (data, start, length);
}

/// RGB RGB ... to RR.. GG.. BB..
fn deinterleave(rgb: &[u8], red: &mut [u8], green: &mut [u8], blue: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    let done = crate::resize::avx2::deinterleave(rgb, red, green, blue);
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    for (x, pixel) in rgb.chunks_exact(3).enumerate().skip(done) {
        red[x] = pixel[0];
        green[x] = pixel[1];
        blue[x] = pixel[2];
    }
}
