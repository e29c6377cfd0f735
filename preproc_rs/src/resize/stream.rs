//! Rows in, upright resized rows out, without ever holding the picture.
//!
//! Stored rows arrive from top to bottom in bands. The reference resizes the *upright* picture along x first, rounds to
//! bytes, then along y. EXIF orientation is folded in: a mirrored axis uses mirrored taps, and for a transposed picture
//! the upright x axis runs along stored rows, so the row-wise pass comes first. The integers are those of decoding
//! everything, turning it, and resizing.
//!
//! plain:      band -> cols -> ring -> rows(window) -> sink
//! transposed: band -> ring -> rows(window) -> lines -> cols -> columns, turned at the end -> sink
//!
//! Memory: a ring of (longest window + 1 band) rows; for transposed pictures also the resized picture.

use super::{Form, Horizontal, Pixels, Vertical};
use crate::error::{bail, Result};
use crate::exif::Orientation;
use crate::limits::{BAND_ROWS, ROW_PAD};
use crate::memory::{try_vec, try_zeroed, Buffer};

/// Takes the resized rows of the upright picture, each once, in any order.
pub trait RowSink {
    /// `rgb` holds 3 * width bytes and ROW_PAD more.
    fn row(&mut self, y: usize, rgb: &[u8]);
}

/// Bytes from one padded RGB row to the next.
pub fn row_stride(width: usize) -> usize {
    3 * width + ROW_PAD
}

/// Bytes from one plane of a row to the next, in a row of planes: an odd number of cache lines, so that the planes of a band,
/// which are read side by side, lie in different sets of the cache.
pub fn plane_stride(width: usize) -> usize {
    ((width + ROW_PAD).div_ceil(64) | 1) * 64
}

/// One stored axis: its filter, or none when the size stays, and whether it is stored in reverse.
struct Side<Filter> {
    filter: Option<Filter>,
    flip: bool,
    n_in: usize,
    n_out: usize,
}

impl Side<Horizontal> {
    /// The pass along each of `rows`, to the target at its place.
    fn run(&mut self, rows: &[&[u8]], pixels: Pixels, targets: &mut [&mut [u8]]) {
        if let Some(filter) = &mut self.filter {
            return filter.run(rows, pixels, targets);
        }
        let bytes = 3 * self.n_in;
        for (source, target) in rows.iter().zip(targets) {
            if self.flip {
                for (from, to) in source[..bytes].chunks_exact(3).zip(target[..bytes].rchunks_exact_mut(3)) {
                    to.copy_from_slice(from);
                }
            } else {
                target[..bytes].copy_from_slice(&source[..bytes]);
            }
        }
    }
}

impl Side<Vertical> {
    /// The `k`-th output to become ready while stored rows arrive in order.
    fn in_order(&self, k: usize) -> usize {
        if self.flip {
            self.n_out - 1 - k
        } else {
            k
        }
    }

    /// (first row, count) that output `i` needs.
    fn window(&self, i: usize) -> (usize, usize) {
        match &self.filter {
            Some(filter) => (filter.taps.windows[i].start, filter.taps.windows[i].len),
            None => (if self.flip { self.n_in - 1 - i } else { i }, 1),
        }
    }

    fn longest(&self) -> usize {
        self.filter.as_ref().map_or(1, |filter| filter.taps.longest)
    }
}

pub struct Stream<S: RowSink> {
    pub sink: S,
    transposed: bool,
    cols: Side<Horizontal>,
    rows: Side<Vertical>,
    ring: Buffer,
    ring_stride: usize,
    ring_rows: usize,
    /// Results of the pass down columns: one row, or up to BAND_ROWS of a transposed picture.
    lines: Vec<u8>,
    held: usize,
    /// Transposed pictures: upright columns.
    columns: Vec<u8>,
    pushed: usize,
    emitted: usize,
}

impl<S: RowSink> Stream<S> {
    /// Stored size, how it is turned, and the upright resized size.
    pub fn new(
        (in_h, in_w): (usize, usize),
        turn: Orientation,
        (out_h, out_w): (usize, usize),
        form: Form,
        sink: S,
    ) -> Result<Stream<S>> {
        let transposed = turn.transposed;
        let (cols_out, rows_out) = if transposed { (out_h, out_w) } else { (out_w, out_h) };
        let (cols_flip, rows_flip) = if transposed { (turn.flip_y, turn.flip_x) } else { (turn.flip_x, turn.flip_y) };
        let filter = Horizontal::new(in_w, cols_out, cols_flip, form)?;
        let cols = Side { filter, flip: cols_flip, n_in: in_w, n_out: cols_out };
        let filter = Vertical::new(in_h, rows_out, rows_flip, form)?;
        let rows = Side { filter, flip: rows_flip, n_in: in_h, n_out: rows_out };
        let ring_stride = row_stride(if transposed { in_w } else { out_w });
        let ring_rows = rows.longest() + BAND_ROWS;
        Ok(Stream {
            ring: Buffer::take(ring_rows * ring_stride)?,
            lines: try_zeroed(if transposed { BAND_ROWS } else { 1 } * ring_stride)?,
            held: 0,
            columns: try_zeroed(if transposed { out_w * row_stride(out_h) } else { 0 })?,
            sink,
            transposed,
            cols,
            rows,
            ring_stride,
            ring_rows,
            pushed: 0,
            emitted: 0,
        })
    }

    /// The next `count` stored rows, `stride` bytes apart, each with ROW_PAD bytes behind its end. Best BAND_ROWS at once.
    pub fn push(&mut self, band: &[u8], stride: usize, count: usize) -> Result<()> {
        self.push_rows(band, stride, count, Pixels::Rgb)
    }

    /// Whether `push_planes` may be called.
    pub fn takes_planes(&self) -> bool {
        !self.transposed && self.cols.filter.as_ref().is_some_and(Horizontal::takes_planes)
    }

    /// As `push`; a row is full-size planes of JPEG's Y, Cb and Cr, `plane_stride` bytes apart.
    pub fn push_planes(&mut self, band: &[u8], stride: usize, count: usize) -> Result<()> {
        if !self.takes_planes() {
            bail!(Corrupt, "the decoder gave planes to a resize that takes none");
        }
        self.push_rows(band, stride, count, Pixels::Ycc)
    }

    fn push_rows(&mut self, band: &[u8], stride: usize, count: usize, pixels: Pixels) -> Result<()> {
        let least = match pixels {
            Pixels::Rgb => row_stride(self.cols.n_in),
            Pixels::Ycc => 3 * plane_stride(self.cols.n_in),
        };
        let planes_off = pixels == Pixels::Ycc && stride != least;
        if self.pushed + count > self.rows.n_in || stride < least || planes_off || band.len() < count * stride {
            bail!(Corrupt, "the decoder gave more rows than the header announced");
        }
        let mut sources: Vec<&[u8]> = try_vec(count)?;
        sources.extend(band.chunks_exact(stride).take(count));
        for sources in sources.chunks(BAND_ROWS) {
            let (before, after) = self.ring.split_at_mut(self.pushed % self.ring_rows * self.ring_stride);
            let slots = after.chunks_exact_mut(self.ring_stride).chain(before.chunks_exact_mut(self.ring_stride));
            let mut targets: Vec<&mut [u8]> = try_vec(sources.len())?;
            targets.extend(slots.take(sources.len()));
            if self.transposed {
                for (from, to) in sources.iter().zip(targets) {
                    to.copy_from_slice(&from[..self.ring_stride]);
                }
            } else {
                self.cols.run(sources, pixels, &mut targets);
            }
            self.pushed += sources.len();
            self.emit_ready()?;
        }
        Ok(())
    }

    fn emit_ready(&mut self) -> Result<()> {
        while self.emitted < self.rows.n_out {
            let i = self.rows.in_order(self.emitted);
            let (start, len) = self.rows.window(i);
            if start + len > self.pushed {
                break;
            }
            let at = |r: usize| {
                let slot = r % self.ring_rows * self.ring_stride;
                &self.ring[slot..slot + self.ring_stride]
            };
            let line = &mut self.lines[self.held * self.ring_stride..][..self.ring_stride];
            let line = match &self.rows.filter {
                Some(filter) => {
                    let mut window: Vec<&[u8]> = try_vec(len + 1)?;
                    window.extend((start..start + len).map(at));
                    if !len.is_multiple_of(2) {
                        window.push(at(start + len - 1));
                    }
                    filter.run(i, &window, line, self.ring_stride - ROW_PAD);
                    &line[..]
                }
                None if self.transposed => {
                    line.copy_from_slice(at(start));
                    &line[..]
                }
                None => at(start),
            };
            self.emitted += 1;
            if !self.transposed {
                self.sink.row(i, line);
                continue;
            }
            self.held += 1;
            if self.held == BAND_ROWS || self.emitted == self.rows.n_out {
                self.finish_lines()?;
            }
        }
        Ok(())
    }

    /// Transposed pictures: the pass along the rows held, whose results are the last columns that became ready.
    fn finish_lines(&mut self) -> Result<()> {
        let mut lines: Vec<&[u8]> = try_vec(self.held)?;
        lines.extend(self.lines.chunks_exact(self.ring_stride).take(self.held));
        let mut targets: Vec<&mut [u8]> = try_vec(self.held)?;
        let columns = self.columns.chunks_exact_mut(row_stride(self.cols.n_out));
        let first = self.emitted - self.held;
        if self.rows.flip {
            targets.extend(columns.rev().skip(first).take(self.held));
        } else {
            targets.extend(columns.skip(first).take(self.held));
        }
        self.cols.run(&lines, Pixels::Rgb, &mut targets);
        self.held = 0;
        Ok(())
    }

    /// After the last row: checks that every row has come out, and is ready for another picture of the same size.
    pub fn finish(&mut self) -> Result<()> {
        if self.pushed != self.rows.n_in || self.emitted != self.rows.n_out {
            bail!(Truncated, "the picture ends after row {} of {}", self.pushed, self.rows.n_in);
        }
        (self.pushed, self.emitted) = (0, 0);
        if self.transposed {
            let (width, height) = (self.rows.n_out, self.cols.n_out);
            let stride = row_stride(height);
            let mut row: Vec<u8> = try_zeroed(row_stride(width))?;
            for y in 0..height {
                for (pixel, column) in row.chunks_exact_mut(3).zip(self.columns.chunks_exact(stride)) {
                    pixel.copy_from_slice(&column[3 * y..3 * y + 3]);
                }
                self.sink.row(y, &row);
            }
        }
        Ok(())
    }
}
