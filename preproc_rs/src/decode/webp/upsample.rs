//! YUV 4:2:0 to RGB with AVX2, bit for bit libwebp's "fancy" upsampling.

use crate::error::Result;
use crate::limits::ROW_PAD;
use crate::memory::try_zeroed;
use std::arch::x86_64::*;

/// Luma pixels converted at once.
const BLOCK: usize = 32;

/// Works on a row at a time. Chroma is (9 a + 3 b + 3 c + d + 8) / 16 of the
/// four nearest samples, each colour a 14-bit fixed-point sum of products cut to 8 bits first.
pub struct Upsampler {
    pub width: usize,
    /// 3 * near + far of each chroma sample, with one more at both ends.
    sums: [Vec<u16>; 2],
    /// The last pixels of a row, padded to a block.
    tail: [u8; BLOCK],
}

impl Upsampler {
    pub fn new(width: usize) -> Result<Upsampler> {
        let n = width.div_ceil(BLOCK) * (BLOCK / 2) + 2;
        Ok(Upsampler { width, sums: [try_zeroed(n)?, try_zeroed(n)?], tail: [0; BLOCK] })
    }

    pub fn chroma_width(&self) -> usize {
        self.width.div_ceil(2)
    }

    /// Bytes of an output row: whole blocks, and what the resize wants behind a row.
    pub fn stride(&self) -> usize {
        3 * self.width.next_multiple_of(BLOCK) + ROW_PAD
    }

    /// `near`, `far`: U and V of the chroma row this row lies in and of the one it leans to.
    pub fn row(&mut self, luma: &[u8], near: [&[u8]; 2], far: [&[u8]; 2], out: &mut [u8]) {
        let (width, n) = (self.width, self.chroma_width());
        assert!(super::v3::available() && luma.len() == width && out.len() >= self.stride());
        let blocks = width.div_ceil(BLOCK);
        for ((sums, near), far) in self.sums.iter_mut().zip(near).zip(far) {
            assert!(near.len() == n && far.len() == n && sums.len() == blocks * (BLOCK / 2) + 2);
            // Plain code: the compiler makes vectors of it.
            for ((sum, near), far) in sums[1..=n].iter_mut().zip(near).zip(far) {
                *sum = 3 * u16::from(*near) + u16::from(*far);
            }
            sums[0] = sums[1];
            sums[n + 1] = sums[n];
        }
        let whole = width / BLOCK;
        self.tail[..width % BLOCK].copy_from_slice(&luma[whole * BLOCK..]);
        let sums = [self.sums[0].as_ptr(), self.sums[1].as_ptr()];
        // SAFETY: AVX2 was detected. Luma is read 32 bytes at multiples of 32 in `luma`'s whole blocks, and from `tail`; sums
        // up to 16 * blocks + 2 and output up to 96 * blocks, both checked above.
        unsafe {
            for block in 0..blocks {
                let luma = if block < whole { luma.as_ptr().add(block * BLOCK) } else { self.tail.as_ptr() };
                let sums = sums.map(|s| s.add(block * (BLOCK / 2)));
                convert(luma, sums, out.as_mut_ptr().add(3 * block * BLOCK));
            }
        }
    }
}

/// 32 pixels. Reads 32 of `luma`, 18 of each of `sums`; writes 96 bytes.
#[target_feature(enable = "avx2")]
unsafe fn convert(luma: *const u8, sums: [*const u16; 2], out: *mut u8) {
    let zero = _mm256_setzero_si256();
    // Bytes of 32 pixels in their order: even ones lean to the sample on the left, odd ones to that on the right.
    let upsample = |sums: *const u16| {
        // SAFETY: the caller gives 18 readable sums.
        let [left, middle, right] = [0, 1, 2].map(|i| unsafe { _mm256_loadu_si256(sums.add(i).cast()) });
        let half = _mm256_set1_epi16(8);
        let three = _mm256_add_epi16(_mm256_add_epi16(middle, half), _mm256_slli_epi16(middle, 1));
        let even = _mm256_srli_epi16(_mm256_add_epi16(three, left), 4);
        let odd = _mm256_srli_epi16(_mm256_add_epi16(three, right), 4);
        _mm256_or_si256(even, _mm256_slli_epi16(odd, 8))
    };
    let (u, v) = (upsample(sums[0]), upsample(sums[1]));
    // SAFETY: the caller gives 32 readable bytes.
    let y = unsafe { _mm256_loadu_si256(luma.cast()) };
    // 16 pixels with their value in the high byte of each word, so that a high product is (value * factor) >> 8.
    let colours = |y: __m256i, u: __m256i, v: __m256i| {
        let factor = |f: u16| _mm256_set1_epi16(f as i16);
        let luma = _mm256_mulhi_epu16(y, factor(19077));
        let red = _mm256_add_epi16(_mm256_sub_epi16(luma, factor(14234)), _mm256_mulhi_epu16(v, factor(26149)));
        let of_green = _mm256_add_epi16(_mm256_mulhi_epu16(u, factor(6419)), _mm256_mulhi_epu16(v, factor(13320)));
        let green = _mm256_sub_epi16(_mm256_add_epi16(luma, factor(8708)), of_green);
        // Blue exceeds 15 bits: unsigned, and cut at zero by saturation.
        let blue = _mm256_adds_epu16(_mm256_mulhi_epu16(u, factor(33050)), luma);
        let blue = _mm256_subs_epu16(blue, factor(17685));
        [_mm256_srai_epi16(red, 6), _mm256_srai_epi16(green, 6), _mm256_srli_epi16(blue, 6)]
    };
    let unpack = |x: __m256i| (_mm256_unpacklo_epi8(zero, x), _mm256_unpackhi_epi8(zero, x));
    let ((y0, y1), (u0, u1), (v0, v1)) = (unpack(y), unpack(u), unpack(v));
    let (first, second) = (colours(y0, u0, v0), colours(y1, u1, v1));
    // Planes of 32 bytes, pixels 0..16 in the low half and 16..32 in the high half.
    let planes = [0, 1, 2].map(|c| _mm256_packus_epi16(first[c], second[c]));
    for third in 0..3 {
        let mut bytes = zero;
        for (plane, mask) in planes.iter().zip(&INTERLEAVE.0[third]) {
            // SAFETY: 16 bytes of an array, aligned like the whole.
            let mask = unsafe { _mm_load_si128(mask.as_ptr().cast()) };
            let part = _mm256_shuffle_epi8(*plane, _mm256_broadcastsi128_si256(mask));
            bytes = _mm256_or_si256(bytes, part);
        }
        // SAFETY: the caller gives 96 writable bytes; each half of the block takes 48.
        unsafe {
            _mm_storeu_si128(out.add(16 * third).cast(), _mm256_castsi256_si128(bytes));
            _mm_storeu_si128(out.add(48 + 16 * third).cast(), _mm256_extracti128_si256(bytes, 1));
        }
    }
}

#[repr(align(16))]
struct Masks([[[u8; 16]; 3]; 3]);

/// [third of 48 bytes][channel]: which pixel's value each byte takes, 0x80 for none.
static INTERLEAVE: Masks = {
    let mut masks = [[[0x80u8; 16]; 3]; 3];
    let mut at = 0;
    while at < 48 {
        masks[at / 16][at % 3][at % 16] = (at / 3) as u8;
        at += 1;
    }
    Masks(masks)
};
