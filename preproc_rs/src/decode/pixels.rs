//! Small conversions of rows to RGB. Each equals Pillow's integer arithmetic.

/// round(a * b / 255) as Pillow does it.
#[inline]
fn mul_div_255(a: u32, b: u32) -> u32 {
    let t = a * b + 128;
    ((t >> 8) + t) >> 8
}

/// One channel over opaque white.
#[inline]
fn over_white(value: u8, alpha: u8) -> u8 {
    let (v, a) = (u32::from(value), u32::from(alpha));
    // Pillow's alpha_composite: 7 extra bits of precision, then a division by 255 through shifts.
    let t = v * a * 128 + 255 * (255 * 128 - a * 128) + (0x80 << 7);
    (((t >> 8) + t) >> 8 >> 7) as u8
}

pub fn gray_to_rgb(gray: &[u8], rgb: &mut [u8]) {
    for (g, pixel) in gray.iter().zip(rgb.chunks_exact_mut(3)) {
        pixel.fill(*g);
    }
}

pub fn gray_alpha_to_rgb(source: &[u8], rgb: &mut [u8]) {
    for (ga, pixel) in source.chunks_exact(2).zip(rgb.chunks_exact_mut(3)) {
        pixel.fill(over_white(ga[0], ga[1]));
    }
}

pub fn rgba_to_rgb(source: &[u8], rgb: &mut [u8]) {
    for (from, to) in source.chunks_exact(4).zip(rgb.chunks_exact_mut(3)) {
        for c in 0..3 {
            to[c] = over_white(from[c], from[3]);
        }
    }
}

/// One pixel, whose colours may be multiplied with its alpha already.
#[cfg(any(feature = "tiff", feature = "avif", feature = "heic"))]
pub fn lay_onto_white(rgb: &mut [u8], alpha: u8, multiplied: bool) {
    for value in rgb {
        if multiplied {
            *value = match alpha {
                0 => 0,
                alpha => (255 * u32::from(*value) / u32::from(alpha)).min(255) as u8,
            };
        }
        *value = over_white(*value, alpha);
    }
}

/// CMYK as stored in JPEGs (inverted, with or without an Adobe marker), as Pillow reads it.
pub fn inverted_cmyk_to_rgb(source: &[u8], rgb: &mut [u8]) {
    for (cmyk, to) in source.chunks_exact(4).zip(rgb.chunks_exact_mut(3)) {
        let key = u32::from(cmyk[3]);
        for c in 0..3 {
            to[c] = key.saturating_sub(mul_div_255(255 - u32::from(cmyk[c]), key)) as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_the_scale() {
        for v in 0..=255 {
            assert_eq!(over_white(v, 255), v);
            assert_eq!(over_white(v, 0), 255);
            assert_eq!(over_white(255, v), 255);
        }
        let mut rgb = [0; 3];
        inverted_cmyk_to_rgb(&[255, 255, 255, 255], &mut rgb);
        assert_eq!(rgb, [255; 3]);
        inverted_cmyk_to_rgb(&[255, 255, 255, 0], &mut rgb);
        assert_eq!(rgb, [0; 3]);
    }
}
