//! Planes of luma and chroma to RGB rows: 8 bits in libyuv's fixed point, which Pillow's AVIF decoder uses, with its bilinear
//! chroma; more bits in floating point, cut to 8.

use super::coded::{Frame, Plane};
use super::picture::Nclx;
use crate::error::{bail, Result};
use crate::memory::try_zeroed;

/// Whose pixels.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// libavif's, as Pillow decodes AVIF.
    Avif,
    /// libheif's, as pillow-heif decodes HEIC: the chroma sample a pixel lies in, no interpolation.
    Heic,
}

/// Chroma sums count this many.
const WEIGHTS: u32 = 16;

/// Turns rows of frames of one size into RGB.
pub struct Converter {
    style: Style,
    /// 9, 3, 3 and 1 times the four nearest chroma samples, of U and of V.
    sums: [Vec<u32>; 2],
}

impl Converter {
    pub fn new(style: Style, width: usize) -> Result<Converter> {
        Ok(Converter { style, sums: [try_zeroed(width)?, try_zeroed(width)?] })
    }

    /// The first pixels of row `y`, as many as `rgb` takes. What the container says of the colours goes before what the codec says.
    pub fn row(&mut self, frame: &Frame<'_>, said: Option<Nclx>, y: usize, rgb: &mut [u8]) -> Result<()> {
        let full_range = said.map_or(frame.full_range, |n| n.full_range);
        let matrix = match said.map(|n| n.matrix) {
            None | Some(2) => frame.matrix,
            Some(matrix) => matrix,
        };
        let luma = frame.luma.row(y, frame.bits);
        let Some(chroma) = &frame.chroma else {
            for (x, pixel) in rgb.chunks_exact_mut(3).enumerate() {
                pixel.fill(gray(sample(luma, x, frame.bits), frame.bits, full_range));
            }
            return Ok(());
        };
        for (sums, plane) in self.sums.iter_mut().zip(chroma) {
            upsample(plane, frame, self.style, y, sums);
        }
        let [u, v] = &self.sums;
        let pixels = rgb.chunks_exact_mut(3).zip(u.iter().zip(v)).enumerate();
        if matrix == 0 {
            // Green, blue and red themselves.
            if !full_range {
                bail!(UnsupportedFormat, "a picture that stores RGB in limited range is not supported");
            }
            for (x, (pixel, (b, r))) in pixels {
                let values = [*r, sample(luma, x, frame.bits) * WEIGHTS, *b];
                for (to, value) in pixel.iter_mut().zip(values) {
                    *to = gray((value + WEIGHTS / 2) / WEIGHTS, frame.bits, true);
                }
            }
        } else if frame.bits == 8 && self.style == Style::Avif {
            let fixed = Fixed::of(matrix, full_range);
            for (x, (pixel, (u, v))) in pixels {
                let [u, v] = [*u, *v].map(|sum| ((sum + WEIGHTS / 2) / WEIGHTS) as i32);
                pixel.copy_from_slice(&fixed.rgb(luma[x], u, v));
            }
        } else if frame.bits == 8 && full_range && (frame.shift_x, frame.shift_y) == (1, 1) {
            let whole = Float::of(matrix, full_range, frame.bits).in_256ths();
            for (x, (pixel, (u, v))) in pixels {
                let [u, v] = [*u, *v].map(|sum| (sum / WEIGHTS) as i32 - 128);
                let y = i32::from(luma[x]);
                let offsets = [whole[0] * v, whole[1] * u + whole[2] * v, whole[3] * u];
                for (to, offset) in pixel.iter_mut().zip(offsets) {
                    *to = (y + ((offset + 128) >> 8)).clamp(0, 255) as u8;
                }
            }
        } else {
            let float = Float::of(matrix, full_range, frame.bits);
            for (x, (pixel, (u, v))) in pixels {
                let [u, v] = [*u, *v].map(|sum| sum as f32 / WEIGHTS as f32);
                pixel.copy_from_slice(&float.rgb(sample(luma, x, frame.bits) as f32, u, v));
            }
        }
        Ok(())
    }
}

/// Row `y` of a plane of alpha or grey, as bytes of full range.
pub fn gray_row(frame: &Frame<'_>, full_range: bool, y: usize, out: &mut [u8]) {
    let luma = frame.luma.row(y, frame.bits);
    for (x, to) in out.iter_mut().enumerate() {
        *to = gray(sample(luma, x, frame.bits), frame.bits, full_range);
    }
}

fn sample(row: &[u8], x: usize, bits: u32) -> u32 {
    if bits > 8 {
        u32::from(u16::from_le_bytes([row[2 * x], row[2 * x + 1]]))
    } else {
        u32::from(row[x])
    }
}

fn gray(value: u32, bits: u32, full_range: bool) -> u8 {
    let scale = bits - 8;
    let (low, span) = if full_range { (0, (1 << bits) - 1) } else { (16 << scale, 219 << scale) };
    // Rounded to the nearest.
    (((value.saturating_sub(low) * 255 * 2 + span) / (2 * span)).min(255)) as u8
}

/// Chroma of luma row `y` for each luma column, in sixteenths.
fn upsample(plane: &Plane<'_>, frame: &Frame<'_>, style: Style, y: usize, sums: &mut [u32]) {
    // The sample it lies in and the neighbour it leans to, the same at an edge.
    let pair = |at: usize, shift: u32, count: usize| {
        let near = (at >> shift).min(count - 1);
        let far = match (shift, at % 2) {
            _ if style == Style::Heic => near,
            (0, _) => near,
            (_, 0) => near.saturating_sub(1),
            _ => (near + 1).min(count - 1),
        };
        (near, far)
    };
    let (near, far) = pair(y, frame.shift_y, plane.rows);
    let (near, far) = (plane.row(near, frame.bits), plane.row(far, frame.bits));
    // libyuv takes the last column of an odd width as it is.
    let last_odd = if frame.luma.width.is_multiple_of(2) { 0 } else { frame.luma.width };
    for (x, sum) in sums.iter_mut().enumerate() {
        let (a, mut b) = pair(x, frame.shift_x, plane.width);
        if x + 1 == last_odd {
            b = a;
        }
        let of = |row: &[u8]| 3 * sample(row, a, frame.bits) + sample(row, b, frame.bits);
        *sum = 3 * of(near) + of(far);
    }
}

/// libyuv's conversion: luma times 65536 / 64, chroma in sixty-fourths.
struct Fixed {
    luma: u32,
    luma_bias: i32,
    u_to_b: i32,
    u_to_g: i32,
    v_to_g: i32,
    v_to_r: i32,
}

impl Fixed {
    fn of(matrix: u32, full_range: bool) -> Fixed {
        // The same table as libyuv's, whose factors have 7 bits.
        let (u_to_b, u_to_g, v_to_g, v_to_r) = match (matrix, full_range) {
            (1, true) => (119, 12, 30, 101),
            (1, false) => (128, 14, 34, 115),
            (9, true) => (120, 11, 37, 94),
            (9, false) => (128, 12, 42, 107),
            (_, true) => (113, 22, 46, 90),
            (_, false) => (128, 25, 52, 102),
        };
        let (luma, luma_bias) = match (matrix, full_range) {
            (_, true) => (16_320, 32),
            (9, false) => (19_003, -1160),
            (_, false) => (18_997, -1160),
        };
        Fixed { luma, luma_bias, u_to_b, u_to_g, v_to_g, v_to_r }
    }

    fn rgb(&self, y: u8, u: i32, v: i32) -> [u8; 3] {
        let y = ((u32::from(y) * 0x0101 * self.luma) >> 16) as i32 + self.luma_bias;
        let (u, v) = (u - 128, v - 128);
        [y + v * self.v_to_r, y - u * self.u_to_g - v * self.v_to_g, y + u * self.u_to_b]
            .map(|c| (c >> 6).clamp(0, 255) as u8)
    }
}

struct Float {
    luma_low: f32,
    luma_span: f32,
    chroma_middle: f32,
    chroma_span: f32,
    red: f32,
    blue: f32,
}

impl Float {
    fn of(matrix: u32, full_range: bool, bits: u32) -> Float {
        let scale = (1u32 << (bits - 8)) as f32;
        let most = ((1u32 << bits) - 1) as f32;
        let (red, blue) = match matrix {
            1 => (0.2126, 0.0722),
            9 => (0.2627, 0.0593),
            _ => (0.299, 0.114),
        };
        let (luma_low, luma_span, chroma_span) =
            if full_range { (0.0, most, most) } else { (16.0 * scale, 219.0 * scale, 224.0 * scale) };
        Float { luma_low, luma_span, chroma_middle: 128.0 * scale, chroma_span, red, blue }
    }

    /// What libheif multiplies chroma of full range with: V for red, U and V for green, U for blue.
    fn in_256ths(&self) -> [i32; 4] {
        let (red, blue) = (self.red, self.blue);
        let green = 1.0 - red - blue;
        let factors = [1.0 - red, -blue * (1.0 - blue) / green, -red * (1.0 - red) / green, 1.0 - blue];
        factors.map(|f| (512.0 * f).round() as i32)
    }

    fn rgb(&self, y: f32, u: f32, v: f32) -> [u8; 3] {
        let y = (y - self.luma_low) / self.luma_span;
        let [u, v] = [u, v].map(|c| (c - self.chroma_middle) / self.chroma_span);
        let (red, blue) = (self.red, self.blue);
        let r = y + 2.0 * (1.0 - red) * v;
        let b = y + 2.0 * (1.0 - blue) * u;
        let g = y - 2.0 * (red * (1.0 - red) * v + blue * (1.0 - blue) * u) / (1.0 - red - blue);
        // A cast of a float keeps to the range of a byte.
        [r, g, b].map(|c| (c * 255.0 + 0.5) as u8)
    }
}
