//! Frames to rows against the reference video processor's golden vectors: frame (t, y, x, c) =
//! (7x + 13y + 29c + 31t + xy/5) mod 256; blake3 of the float32 rows (order: temporal patch, then patches).

use preproc_rs::exif::Orientation;
use preproc_rs::limits::VIDEO_AREA_MAX_PIXELS;
use preproc_rs::patchify::{Patches, Rows};
use preproc_rs::resize::stream::{row_stride, RowSink, Stream};
use preproc_rs::resize::Form;
use preproc_rs::size::SizeRule;

struct Slot {
    patches: Patches,
    frame: usize,
}

impl RowSink for Slot {
    fn row(&mut self, y: usize, rgb: &[u8]) {
        self.patches.write(self.frame / 2, self.frame % 2..self.frame % 2 + 1, y, rgb);
    }
}

fn rows_of(frames: usize, height: usize, width: usize, size: (usize, usize)) -> Patches {
    let patches = Patches::new(false, frames.div_ceil(2), size.0, size.1, Rows::F32).expect("small");
    let sink = Slot { patches, frame: 0 };
    let mut stream = Stream::new((height, width), Orientation::UPRIGHT, size, Form::best(), sink).expect("small");
    let stride = row_stride(width);
    for t in 0..frames {
        let mut rgb = vec![0; stride * height];
        for (y, row) in rgb.chunks_exact_mut(stride).enumerate() {
            for (i, value) in row[..3 * width].iter_mut().enumerate() {
                let (x, c) = (i / 3, i % 3);
                *value = ((7 * x + 13 * y + 29 * c + 31 * t + x * y / 5) % 256) as u8;
            }
        }
        stream.sink.frame = t;
        stream.push(&rgb, stride, height).expect("in order");
        stream.finish().expect("complete");
    }
    stream.sink.patches.of_frames(frames)
}

#[test]
fn rows_equal_the_reference_processor() {
    let rule = SizeRule::Area { max: VIDEO_AREA_MAX_PIXELS };
    for (frames, height, width, t, expected) in [
        (9, 56, 84, 5, "ce4e00e53bd7a61edce24723848596b74cfe3eb29e81bc2a957f64578228bcbe"),
        (11, 56, 56, 6, "af06e9eaad56a190bf5b9dec86cdd66d45e2878768d85d6c3b63b6baaf02b5ae"),
        (1, 56, 56, 1, "dfc61985cfd1bbaa2d12d9ba91c68d19f54b2074fbc5d4fd8197e1cc45e4dc69"),
        (4, 60, 100, 2, "54d243d2e928bafd3fc08485042d66bda29666e80460d6c796d70e33cb6324d5"),
    ] {
        let size = rule.resized(height as u32, width as u32).expect("fits");
        let got = rows_of(frames, height, width, size);
        assert_eq!(got.grid, [t, size.0 / 14, size.1 / 14]);
        assert_eq!(blake3::hash(&got.data).to_hex().as_str(), expected, "{frames} frames of {width} x {height}");
    }
}

#[test]
fn video_sizes_equal_the_reference_processor() {
    let rule = SizeRule::Area { max: VIDEO_AREA_MAX_PIXELS };
    for (h, w, oh, ow) in [(20, 20, 56, 56), (240, 320, 252, 308), (720, 1280, 560, 1008), (1080, 1920, 560, 1008)] {
        assert_eq!(rule.resized(h, w), Ok((oh, ow)));
    }
}
