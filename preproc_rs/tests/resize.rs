//! Every form of the resize gives the same bytes, and streaming with EXIF orientation equals turning first.

use preproc_rs::exif::Orientation;
use preproc_rs::limits::ROW_PAD;
use preproc_rs::resize::stream::{plane_stride, row_stride, RowSink, Stream};
use preproc_rs::resize::taps::Taps;
use preproc_rs::resize::{native, Form};

/// A picture without padding: rows of 3 * width bytes.
#[derive(Clone, Debug, PartialEq)]
struct Picture {
    height: usize,
    width: usize,
    bytes: Vec<u8>,
}

impl Picture {
    /// High-contrast noise: every clamp is met.
    fn noise(height: usize, width: usize, seed: u64) -> Picture {
        let mut state = seed * 2 + 1;
        let bytes = (0..3 * height * width)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                match state >> 61 {
                    0..=2 => 0,
                    3..=5 => 255,
                    _ => (state >> 40) as u8,
                }
            })
            .collect();
        Picture { height, width, bytes }
    }

    fn pixel(&self, y: usize, x: usize) -> &[u8] {
        &self.bytes[3 * (y * self.width + x)..][..3]
    }

    /// The upright picture of a stored one.
    fn turned(&self, turn: Orientation) -> Picture {
        let (height, width) = if turn.transposed { (self.width, self.height) } else { (self.height, self.width) };
        let mut bytes = Vec::new();
        for y in 0..height {
            for x in 0..width {
                let (fx, fy) =
                    (if turn.flip_x { width - 1 - x } else { x }, if turn.flip_y { height - 1 - y } else { y });
                bytes.extend_from_slice(if turn.transposed { self.pixel(fx, fy) } else { self.pixel(fy, fx) });
            }
        }
        Picture { height, width, bytes }
    }

    /// Both passes in the plainest way.
    fn resized(&self, height: usize, width: usize) -> Picture {
        let mut wide = self.clone();
        if width != self.width {
            let taps = Taps::new(self.width, width).expect("small");
            wide = Picture { height: self.height, width, bytes: vec![0; 3 * self.height * width] };
            for (from, to) in self.bytes.chunks_exact(3 * self.width).zip(wide.bytes.chunks_exact_mut(3 * width)) {
                native::horizontal(from, &taps, to);
            }
        }
        if height == wide.height {
            return wide;
        }
        let taps = Taps::new(wide.height, height).expect("small");
        let rows: Vec<&[u8]> = wide.bytes.chunks_exact(3 * width).collect();
        let mut bytes = vec![0; 3 * height * width];
        for (window, out) in taps.windows.iter().zip(bytes.chunks_exact_mut(3 * width)) {
            let rows = &rows[window.start..window.start + window.len];
            native::vertical(rows, taps.weights(*window), taps.bits, out, 3 * width);
        }
        Picture { height, width, bytes }
    }
}

struct Collect(Picture);

impl RowSink for Collect {
    fn row(&mut self, y: usize, rgb: &[u8]) {
        let bytes = 3 * self.0.width;
        assert!(rgb.len() >= bytes + ROW_PAD);
        self.0.bytes[y * bytes..][..bytes].copy_from_slice(&rgb[..bytes]);
    }
}

/// JPEG's conversion in libjpeg's 16-bit fixed point.
fn rgb([y, cb, cr]: [u8; 3]) -> [u8; 3] {
    let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
    let sum = |blue: i32, red: i32| (y + ((blue * cb + red * cr + (1 << 15)) >> 16)).clamp(0, 255) as u8;
    [sum(0, 91_881), sum(-22_554, -46_802), sum(116_130, 0)]
}

/// `ycc` has the three samples of a pixel side by side; the stream gets them as planes.
fn streamed_planes(ycc: &Picture, turn: Orientation, size: (usize, usize), form: Form, band: usize) -> Option<Picture> {
    let sink = Collect(Picture { height: size.0, width: size.1, bytes: vec![0; 3 * size.0 * size.1] });
    let mut stream = Stream::new((ycc.height, ycc.width), turn, size, form, sink).expect("small");
    if !stream.takes_planes() {
        return None;
    }
    let plane = plane_stride(ycc.width);
    for rows in ycc.bytes.chunks(3 * ycc.width * band) {
        let count = rows.len() / (3 * ycc.width);
        let mut planes = vec![0xa5; count * 3 * plane];
        for (row, planes) in rows.chunks_exact(3 * ycc.width).zip(planes.chunks_exact_mut(3 * plane)) {
            for (x, samples) in row.chunks_exact(3).enumerate() {
                for (k, sample) in samples.iter().enumerate() {
                    planes[k * plane + x] = *sample;
                }
            }
        }
        stream.push_planes(&planes, 3 * plane, count).expect("in order");
    }
    stream.finish().expect("complete");
    Some(stream.sink.0)
}

fn streamed(stored: &Picture, turn: Orientation, size: (usize, usize), form: Form, band: usize) -> Picture {
    let sink = Collect(Picture { height: size.0, width: size.1, bytes: vec![0; 3 * size.0 * size.1] });
    let mut stream = Stream::new((stored.height, stored.width), turn, size, form, sink).expect("small");
    let stride = row_stride(stored.width);
    for rows in stored.bytes.chunks(3 * stored.width * band) {
        let count = rows.len() / (3 * stored.width);
        let mut padded = vec![0xa5; count * stride];
        for (from, to) in rows.chunks_exact(3 * stored.width).zip(padded.chunks_exact_mut(stride)) {
            to[..from.len()].copy_from_slice(from);
        }
        stream.push(&padded, stride, count).expect("in order");
    }
    stream.finish().expect("complete");
    stream.sink.0
}

/// Of the last two, one needs several tiles of columns, the other has windows longer than a tile.
const SIZES: [(usize, usize, usize, usize); 16] = [
    (1, 1, 56, 56),
    (1, 200, 28, 812),
    (200, 1, 812, 28),
    (3, 11, 56, 112),
    (7, 13, 28, 28),
    (17, 31, 29, 37),
    (31, 17, 31, 40),
    (64, 48, 48, 48),
    (97, 89, 14, 14),
    (101, 103, 101, 103),
    (257, 5, 28, 28),
    (5, 1031, 28, 84),
    (113, 640, 28, 168),
    (640, 113, 165, 28),
    (18, 3000, 28, 560),
    (19, 4001, 28, 28),
];

#[test]
fn every_form_band_and_orientation_equals_turning_then_resizing() {
    for (n, (in_h, in_w, out_h, out_w)) in SIZES.into_iter().enumerate() {
        let stored = Picture::noise(in_h, in_w, n as u64);
        for exif in 1..=8 {
            let turn = Orientation::from_exif(exif);
            let expected = stored.turned(turn).resized(out_h, out_w);
            for &form in Form::available() {
                for band in [1, 5, 16, 64] {
                    let got = streamed(&stored, turn, (out_h, out_w), form, band);
                    assert!(
                        got == expected,
                        "{in_h}x{in_w} -> {out_h}x{out_w}, EXIF {exif}, {form:?}, bands of {band}"
                    );
                }
            }
        }
    }
}

#[test]
fn planes_give_what_their_rgb_gives() {
    let as_rgb = |ycc: &Picture| {
        let pixels = ycc.bytes.as_chunks().0.iter().flat_map(|samples| rgb(*samples));
        Picture { bytes: pixels.collect(), ..ycc.clone() }
    };
    // Every pair of Cb and Cr.
    let chroma = (0..=255).flat_map(|cb| (0..=255u8).flat_map(move |cr| [cb ^ cr.rotate_left(3), cb, cr]));
    let every = Picture { height: 256, width: 256, bytes: chroma.collect() };
    let noise = SIZES.iter().map(|&(h, w, out_h, out_w)| (Picture::noise(h, w, 7), (out_h, out_w)));
    let mut taken = 0;
    for (ycc, size) in noise.chain([(every.clone(), (252, 252)), (every, (280, 532))]) {
        let stored = as_rgb(&ycc);
        for exif in 1..=8 {
            let turn = Orientation::from_exif(exif);
            for &form in Form::available() {
                for band in [1, 16, 17] {
                    let Some(got) = streamed_planes(&ycc, turn, size, form, band) else { continue };
                    taken += 1;
                    assert!(
                        got == streamed(&stored, turn, size, form, band),
                        "{size:?}, EXIF {exif}, {form:?}, {band}"
                    );
                }
            }
        }
    }
    #[cfg(target_arch = "x86_64")]
    assert!(taken > 0 || Form::best() == Form::Native, "no form took planes");
    #[cfg(not(target_arch = "x86_64"))]
    assert_eq!(taken, 0);
}

#[test]
fn planes_are_refused_where_they_cannot_be_taken() {
    let stored = Picture::noise(9, 40, 1);
    for (exif, form) in [(1, Form::Native), (6, Form::best())] {
        let sink = Collect(Picture { height: 28, width: 28, bytes: vec![0; 3 * 28 * 28] });
        let turn = Orientation::from_exif(exif);
        let mut stream = Stream::new((9, 40), turn, (28, 28), form, sink).expect("small");
        let plane = plane_stride(stored.width);
        assert!(stream.push_planes(&vec![0; 9 * 3 * plane], 3 * plane, 9).is_err());
    }
}

#[test]
fn too_few_rows_and_too_many_are_errors() {
    let stored = Picture::noise(9, 8, 1);
    let new = || {
        let sink = Collect(stored.clone());
        Stream::new((9, 8), Orientation::UPRIGHT, (9, 8), Form::best(), sink).expect("small")
    };
    let stride = row_stride(8);
    let band = vec![0; 10 * stride];
    assert!(new().push(&band, stride, 10).is_err());
    let mut short = new();
    short.push(&band, stride, 8).expect("fits");
    assert!(short.finish().is_err());
}

/// So that no run of these tests passes without the vector forms that every CPU of its kind has.
#[test]
#[cfg(target_arch = "aarch64")]
fn arm_runs_neon() {
    assert_eq!(Form::best(), Form::Neon);
}
