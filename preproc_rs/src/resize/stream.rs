//! Rows in, upright resized rows out, without ever holding the picture.
//!
//! Stored rows arrive from top to bottom in bands. The reference resizes the *upright* picture along x first, rounds to
//! bytes, then along y. EXIF orientation is folded in: a mirrored axis uses mirrored taps, and for a transposed picture
//! the upright x axis runs along stored rows, so the row-wise pass comes first. The integers are those of decoding
//! everything, turning it, and resizing.
//!
//! plain:      band -> cols -> ring -> rows(window) -> sink
//! transposed: band -> ring -> rows(window) -> cols -> columns, turned at the end -> sink
//!
//! Memory: a ring of (longest window + 2 bands) rows; for transposed pictures also the resized picture.

use super::{Axis, Form};
use crate::error::{bail, Result};
use crate::exif::Orientation;
use crate::limits::{BAND_ROWS, ROW_PAD};
use crate::memory::{try_vec, try_zeroed};

/// Takes the resized rows of the upright picture, each once, in any order.
pub trait RowSink {
    /// `rgb` holds 3 * width bytes and ROW_PAD more.
    fn row(&mut self, y: usize, rgb: &[u8]);
}

/// Bytes from one padded RGB row to the next.
pub fn row_stride(width: usize) -> usize {
    3 * width + ROW_PAD
}

/// One stored axis: its filter, or none when the size stays, and whether it is stored in reverse.
struct Side {
    axis: Option<Axis>,
    flip: bool,
    n_in: usize,
    n_out: usize,
}

impl Side {
    fn new(n_in: usize, n_out: usize, flip: bool, form: Form) -> Result<Side> {
        Ok(Side { axis: Axis::new(n_in, n_out, flip, form)?, flip, n_in, n_out })
    }

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
        match &self.axis {
            Some(axis) => (axis.taps.windows[i].start, axis.taps.windows[i].len),
            None => (if self.flip { self.n_in - 1 - i } else { i }, 1),
        }
    }

    fn longest(&self) -> usize {
        self.axis.as_ref().map_or(1, |axis| axis.taps.longest)
    }

    /// The pass along each of `count` rows.
    fn along_rows(&self, rows: &[u8], stride: usize, count: usize, out: &mut [u8], out_stride: usize) {
        if let Some(axis) = &self.axis {
            return axis.horizontal(rows, stride, count, out, out_stride);
        }
        let bytes = 3 * self.n_in;
        for (source, target) in rows.chunks_exact(stride).zip(out.chunks_exact_mut(out_stride)).take(count) {
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

pub struct Stream<S: RowSink> {
    pub sink: S,
    transposed: bool,
    cols: Side,
    rows: Side,
    ring: Vec<u8>,
    ring_stride: usize,
    ring_rows: usize,
    /// One result of the row-wise pass.
    line: Vec<u8>,
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
        let (cols, rows) = if turn.transposed {
            (Side::new(in_w, out_h, turn.flip_y, form)?, Side::new(in_h, out_w, turn.flip_x, form)?)
        } else {
            (Side::new(in_w, out_w, turn.flip_x, form)?, Side::new(in_h, out_h, turn.flip_y, form)?)
        };
        let ring_stride = row_stride(if turn.transposed { in_w } else { out_w });
        let ring_rows = (rows.longest() + BAND_ROWS).next_multiple_of(BAND_ROWS);
        Ok(Stream {
            ring: try_zeroed(ring_rows * ring_stride)?,
            line: try_zeroed(ring_stride)?,
            columns: try_zeroed(if turn.transposed { out_w * row_stride(out_h) } else { 0 })?,
            sink,
            transposed: turn.transposed,
            cols,
            rows,
            ring_stride,
            ring_rows,
            pushed: 0,
            emitted: 0,
        })
    }

    /// The next `count` stored rows, `stride` bytes apart, each with ROW_PAD bytes behind its end.
    pub fn push(&mut self, mut band: &[u8], stride: usize, mut count: usize) -> Result<()> {
        if self.pushed + count > self.rows.n_in || stride < row_stride(self.cols.n_in) || band.len() < count * stride {
            bail!(Corrupt, "the decoder gave more rows than the header announced");
        }
        while count > 0 {
            let slot = self.pushed % self.ring_rows;
            let n = count.min(BAND_ROWS).min(self.ring_rows - slot);
            let target = &mut self.ring[slot * self.ring_stride..(slot + n) * self.ring_stride];
            if self.transposed {
                let bytes = self.ring_stride;
                for (from, to) in band.chunks_exact(stride).zip(target.chunks_exact_mut(bytes)) {
                    to.copy_from_slice(&from[..bytes]);
                }
            } else {
                self.cols.along_rows(band, stride, n, target, self.ring_stride);
            }
            self.pushed += n;
            band = &band[n * stride..];
            count -= n;
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
            let line = match &self.rows.axis {
                Some(axis) => {
                    let mut window: Vec<&[u8]> = try_vec(len)?;
                    window.extend((start..start + len).map(at));
                    axis.vertical(i, &window, &mut self.line, self.ring_stride - ROW_PAD);
                    &self.line[..]
                }
                None => at(start),
            };
            if self.transposed {
                let stride = row_stride(self.cols.n_out);
                let column = &mut self.columns[i * stride..(i + 1) * stride];
                self.cols.along_rows(line, self.ring_stride, 1, column, stride);
            } else {
                self.sink.row(i, line);
            }
            self.emitted += 1;
        }
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
