//! Samples of a row to RGB, as Pillow turns them, with 16 bits cut to the high 8.

use super::super::pixels;

/// What the colour samples of a pixel mean.
pub enum Colour {
    /// White is zero: the grey is turned over.
    Gray {
        white_is_zero: bool,
    },
    Rgb,
    Palette(Box<[[u8; 3]; 256]>),
    /// Ink, 0 for none.
    Cmyk,
}

impl Colour {
    pub fn samples(&self) -> usize {
        match self {
            Colour::Gray { .. } | Colour::Palette(_) => 1,
            Colour::Rgb => 3,
            Colour::Cmyk => 4,
        }
    }
}

/// The alpha sample behind the colour samples.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Alpha {
    None,
    Straight,
    /// Colours are multiplied with it.
    Associated,
}

/// How samples lie in an unpacked row.
#[derive(Clone, Copy)]
pub struct Depth {
    pub bits: usize,
    pub big_endian: bool,
    /// Samples of fewer than 8 bits fill the byte's range, unless they are indices.
    pub stretched: bool,
}

impl Depth {
    /// Bytes of a row of `samples`.
    pub fn row_bytes(self, samples: usize) -> usize {
        (samples * self.bits).div_ceil(8)
    }

    /// Undoes "each sample is a difference to the one `step` samples before".
    pub fn add_up(self, row: &mut [u8], step: usize) {
        if self.bits == 8 {
            for i in step..row.len() {
                row[i] = row[i].wrapping_add(row[i - step]);
            }
            return;
        }
        let swap = |value: u16| if self.big_endian { value.swap_bytes() } else { value };
        let read = |row: &[u8], i: usize| swap(u16::from_le_bytes([row[i], row[i + 1]]));
        for i in (2 * step..row.len().saturating_sub(1)).step_by(2) {
            let sum = read(row, i).wrapping_add(read(row, i - 2 * step));
            row[i..i + 2].copy_from_slice(&swap(sum).to_le_bytes());
        }
    }

    /// Samples of `row` to bytes, every `step`-th of `out`.
    pub fn to_bytes(self, row: &[u8], out: &mut [u8], step: usize) {
        match self.bits {
            8 if step == 1 => out.copy_from_slice(&row[..out.len()]),
            8 => out.iter_mut().step_by(step).zip(row).for_each(|(to, from)| *to = *from),
            16 => {
                let high = usize::from(!self.big_endian);
                out.iter_mut().step_by(step).zip(row.chunks_exact(2)).for_each(|(to, from)| *to = from[high]);
            }
            bits => {
                let most = (1u8 << bits) - 1;
                let factor = if self.stretched { 255 / most } else { 1 };
                for (i, to) in out.iter_mut().step_by(step).enumerate() {
                    let shift = 8 - bits - i * bits % 8;
                    *to = (row[i * bits / 8] >> shift & most) * factor;
                }
            }
        }
    }
}

/// One row: `samples` values a pixel, of which the first are colours and the next may be alpha.
pub fn to_rgb(colour: &Colour, alpha: Alpha, samples: usize, row: &[u8], rgb: &mut [u8]) {
    let colours = colour.samples();
    for (pixel, out) in row.chunks_exact(samples).zip(rgb.chunks_exact_mut(3)) {
        match colour {
            Colour::Gray { white_is_zero } => out.fill(if *white_is_zero { 255 - pixel[0] } else { pixel[0] }),
            Colour::Rgb => out.copy_from_slice(&pixel[..3]),
            Colour::Palette(colours) => out.copy_from_slice(&colours[usize::from(pixel[0])]),
            Colour::Cmyk => {
                let inverted = [0, 1, 2, 3].map(|i| 255 - pixel[i]);
                pixels::inverted_cmyk_to_rgb(&inverted, out);
            }
        }
        if alpha != Alpha::None {
            pixels::lay_onto_white(out, pixel[colours], alpha == Alpha::Associated);
        }
    }
}
