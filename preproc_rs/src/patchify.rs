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

/// Patch rows of one picture or video under construction.
pub struct Patches {
    pub data: Buffer,
    pub rows: Rows,
    /// 1: a still image's bytes, the engine repeats the frame. 0: both time slots are written.
    pub t_dup: u8,
    /// (temporal patches, patch rows, patch columns)
    pub grid: [usize; 3],
    planes: Vec<u8>,
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
            planes: try_zeroed(3 * width)?,
            table: Box::new(table()),
        })
    }

    /// Values of one row: 588 or 1176.
    pub fn row_values(&self) -> usize {
        PATCH_VALUES * if self.t_dup == 1 { 1 } else { 2 }
    }

    /// Row `y` of a frame into temporal patch `k`, time slots `slots` (0..1, 1..2 or 0..2).
    pub fn write(&mut self, k: usize, slots: std::ops::Range<usize>, y: usize, rgb: &[u8]) {
        let [_, gh, gw] = self.grid;
        let width = gw * PATCH;
        deinterleave(&rgb[..3 * width], &mut self.planes, width);
        let (gy, py) = (y / PATCH, y % PATCH);
        let times = if self.t_dup == 1 { 1 } else { 2 };
        let row_bytes = times * PATCH_VALUES * self.rows.bytes();
        let first = k * gh * gw + gy / MERGE * MERGE * gw + gy % MERGE * MERGE;
        for gx in 0..gw {
            let patch = first + gx / MERGE * MERGE * MERGE + gx % MERGE;
            let row = &mut self.data[patch * row_bytes..(patch + 1) * row_bytes];
            for c in 0..3 {
                let source = &self.planes[c * width + gx * PATCH..][..PATCH];
                for time in slots.clone() {
                    let at = (c * times + time) * PATCH * PATCH + py * PATCH;
                    match self.rows {
                        Rows::U8 => row[at..at + PATCH].copy_from_slice(source),
                        Rows::F32 => {
                            let target = &mut row[4 * at..4 * (at + PATCH)];
                            for (value, four) in source.iter().zip(target.chunks_exact_mut(4)) {
                                four.copy_from_slice(&self.table[c][usize::from(*value)].to_le_bytes());
                            }
                        }
                    }
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

/// RGB RGB ... to RR.. GG.. BB..
fn deinterleave(rgb: &[u8], planes: &mut [u8], width: usize) {
    let (red, rest) = planes.split_at_mut(width);
    let (green, blue) = rest.split_at_mut(width);
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
