//! The horizontal pass of the vector forms: rows in lanes.
//!
//! LANES rows are turned on their side: a `Unit` holds one channel of two neighbouring pixels, a pair of taps, of every row,
//! widened to 16 bits. A window is then a run of units, and two of its taps for all rows are one multiply-add by one
//! broadcast pair of weights: no shuffle, no idle lane. A pixel is turned once for the four or so windows it lies in.
//! Output pixels go tile by tile, so that their units stay in the cache.
//!
//! This file plans and checks; a form turns (`Turn`) and filters (`Filter`). Rows carry ROW_PAD bytes behind their end: reads
//! may touch them, their values meet weight zero only; writes may, too.

use super::taps::Taps;
use super::Pixels;
use crate::error::Result;
use crate::limits::ROW_PAD;
use crate::memory::{try_vec, try_zeroed};
use std::ops::Range;

/// Rows handled at once.
pub const LANES: usize = 16;
/// Pairs of pixels turned at once: 24 bytes of a row, and how many bytes that may read, or 8 bytes of each plane.
pub const STEP_PAIRS: usize = 4;
const STEP_READS: usize = 28;
const STEP_READS_PLANE: usize = 8;
/// Output pixels written at once; a form may write WRITE_PAD bytes behind the last.
pub const GROUP: usize = 16;
const WRITE_PAD: usize = 16;
/// Pairs of a tile, unless one window alone has more: 27 KiB of units.
const TILE_PAIRS: usize = 144;

/// One channel of two neighbouring pixels in LANES rows. Which row lies where is the form's affair.
#[repr(align(64))]
#[derive(Clone, Default)]
pub struct Unit(#[expect(dead_code, reason = "read and written as vectors")] [i16; 2 * LANES]);

/// A window: its first unit in the tile (the next pair is 3 units on), its first pair of weights, and how many.
struct Span {
    unit: usize,
    weight: usize,
    pairs: usize,
}

struct Tile {
    outputs: Range<usize>,
    first_pair: usize,
    steps: usize,
}

/// Fills 12 * steps units from `steps` times 24 bytes of each row, or 8 of each of its planes, which lie `plane` bytes apart.
pub type Turn = unsafe fn(rows: &[*const u8; LANES], plane: usize, steps: usize, units: *mut Unit);
/// Writes pixels `first ..` of each row, one for each window.
pub type Filter = unsafe fn(windows: Windows<'_>, bits: u32, first: usize, out: &[*mut u8; LANES]);

/// The windows of a tile, over its units.
pub struct Windows<'a> {
    spans: &'a [Span],
    units: &'a [Unit],
    weights: &'a [i32],
}

impl<'a> Windows<'a> {
    /// GROUP windows at a time, each (units, weights): 3 units for each pair of weights.
    pub fn groups(&self) -> impl Iterator<Item = impl ExactSizeIterator<Item = (*const Unit, &'a [i32])> + '_> + '_ {
        self.spans.chunks(GROUP).map(|group| {
            group.iter().map(|span| {
                let units = &self.units[span.unit..span.unit + 3 * span.pairs];
                (units.as_ptr(), &self.weights[span.weight..span.weight + span.pairs])
            })
        })
    }
}

/// The filter of an axis: weights in pairs (as one 32-bit word) that begin at even pixels, and room for a tile.
pub struct Packed {
    spans: Vec<Span>,
    weights: Vec<i32>,
    tiles: Vec<Tile>,
    units: Vec<Unit>,
    bits: u32,
    /// The last pair of pixels at which a step begins.
    last_step: usize,
}

impl Packed {
    pub fn new(taps: &Taps) -> Result<Packed> {
        let n_out = taps.windows.len();
        let mut weights: Vec<i32> = try_vec(n_out * (taps.longest / 2 + 1))?;
        // First pair of pixels of each window, until its tile is known.
        let mut spans: Vec<Span> = try_vec(n_out)?;
        for window in &taps.windows {
            let all = taps.weights(*window);
            let zeros = all.iter().take_while(|w| **w == 0).count();
            let used = all.len() - all[zeros..].iter().rev().take_while(|w| **w == 0).count();
            let start = window.start + zeros;
            let (first, weight) = (start / 2, weights.len());
            let at = |i: usize| (i >= start).then(|| all[..used].get(i - window.start)).flatten().copied().unwrap_or(0);
            for i in (2 * first..window.start + used).step_by(2) {
                weights.push(i32::from(at(i)) & 0xffff | i32::from(at(i + 1)) << 16);
            }
            spans.push(Span { unit: first, weight, pairs: weights.len() - weight });
        }
        let mut tiles: Vec<Tile> = try_vec(n_out)?;
        let (mut start, mut last_step, mut most) = (0, 0, 0);
        while start < n_out {
            let tile = next_tile(&spans, start);
            for span in &mut spans[tile.outputs.clone()] {
                span.unit = 3 * (span.unit - tile.first_pair);
            }
            start = tile.outputs.end;
            last_step = last_step.max(tile.first_pair + STEP_PAIRS * (tile.steps - 1));
            most = most.max(tile.steps);
            tiles.push(tile);
        }
        let units = try_zeroed(3 * STEP_PAIRS * most)?;
        Ok(Packed { spans, weights, tiles, units, bits: taps.bits, last_step })
    }

    /// Up to LANES rows. Panics when a slice is too short, so that the unsafe part cannot leave it.
    ///
    /// # Safety
    /// The CPU has what `turn` and `filter` need.
    pub unsafe fn run(
        &mut self,
        (rows, pixels): (&[&[u8]], Pixels),
        out: &mut [&mut [u8]],
        turn: Turn,
        filter: Filter,
    ) {
        const { assert!(ROW_PAD >= STEP_READS && ROW_PAD >= WRITE_PAD) };
        // Bytes of a pair in a row or plane, and how far the last step reads in it.
        let (pair, reach) = match pixels {
            Pixels::Rgb => (6, 6 * self.last_step + STEP_READS),
            Pixels::Ycc => (2, 2 * self.last_step + STEP_READS_PLANE),
        };
        assert!(!rows.is_empty() && rows.len() <= LANES && rows.len() == out.len());
        let planes = if pixels == Pixels::Ycc { 3 } else { 1 };
        let plane = rows[0].len() / planes;
        for (row, out) in rows.iter().zip(out.iter()) {
            assert!(row.len() == planes * plane && plane >= reach, "row of {} bytes, {reach} needed", row.len());
            assert!(out.len() >= 3 * self.spans.len() + WRITE_PAD, "output row lacks its padding");
        }
        // Lanes without a row repeat the last one: the same bytes are written again.
        let last = rows.len() - 1;
        let sources: [*const u8; LANES] = std::array::from_fn(|r| rows[r.min(last)].as_ptr());
        let mut targets = [out[last].as_mut_ptr(); LANES];
        for (target, out) in targets.iter_mut().zip(out.iter_mut()) {
            *target = out.as_mut_ptr();
        }
        for tile in &self.tiles {
            // SAFETY: reads end at `reach`, checked above for each row and plane; `units` holds the steps of the largest tile. Writes
            // begin at 3 * output and end WRITE_PAD bytes behind the last, checked above.
            unsafe {
                turn(&sources.map(|row| row.add(pair * tile.first_pair)), plane, tile.steps, self.units.as_mut_ptr());
                let spans = &self.spans[tile.outputs.clone()];
                let windows = Windows { spans, units: &self.units, weights: &self.weights };
                filter(windows, self.bits, tile.outputs.start, &targets);
            }
        }
    }
}

/// The tile that begins at output `start`: as many whole groups as fit, one window at least. Windows run to the right, or
/// to the left on a mirrored axis.
fn next_tile(spans: &[Span], start: usize) -> Tile {
    let extent = |outputs: &Range<usize>| {
        let of = &spans[outputs.clone()];
        let first = of.iter().map(|s| s.unit).min().unwrap_or(0);
        (first, of.iter().map(|s| s.unit + s.pairs).max().unwrap_or(first + 1))
    };
    let mut outputs = start..start + 1;
    let (mut low, mut high) = extent(&outputs);
    for span in &spans[start + 1..] {
        (low, high) = (low.min(span.unit), high.max(span.unit + span.pairs));
        if high - low > TILE_PAIRS {
            break;
        }
        outputs.end += 1;
    }
    if outputs.end < spans.len() && outputs.len() > GROUP {
        outputs.end -= outputs.len() % GROUP;
    }
    let (first_pair, end) = extent(&outputs);
    Tile { outputs, first_pair, steps: (end - first_pair).div_ceil(STEP_PAIRS) }
}
