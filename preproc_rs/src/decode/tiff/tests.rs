//! Files of every layout against their own samples, and hostile ones. Pillow's pixels: tests/unit/preproc/test_tiff.py.

use super::decode;
use crate::cancel::CancelToken;
use crate::decode::kept::Kept;
use crate::decode::Job;
use crate::error::{Code, Result};
use crate::image::{probe, ImageOptions};
use crate::random::Random;
use std::io::Write;

/// A TIFF to be written. `samples` are values of `bits` bits, row by row, those of a pixel together.
#[derive(Clone)]
struct File {
    width: usize,
    height: usize,
    channels: usize,
    bits: usize,
    photometric: u64,
    samples: Vec<u16>,
    big_endian: bool,
    big_tiff: bool,
    planar: bool,
    /// Tiles of that size, or strips of that many rows.
    chunk: Chunk,
    compression: u64,
    differences: bool,
    /// Instead of, or beside, the tags written otherwise: (tag, type, values).
    tags: Vec<(u16, u16, Vec<u64>)>,
}

#[derive(Clone, Copy, Debug)]
enum Chunk {
    Strips(usize),
    Tiles(usize, usize),
}

impl File {
    fn rgb(width: usize, height: usize) -> File {
        File {
            width,
            height,
            channels: 3,
            bits: 8,
            photometric: 2,
            samples: (0..3 * width * height).map(|i| (i * 7 % 256) as u16).collect(),
            big_endian: false,
            big_tiff: false,
            planar: false,
            chunk: Chunk::Strips(height),
            compression: 1,
            differences: false,
            tags: Vec::new(),
        }
    }

    fn with(mut self, tag: u16, kind: u16, values: &[u64]) -> File {
        self.tags.retain(|(other, ..)| *other != tag);
        self.tags.push((tag, kind, values.to_vec()));
        self
    }

    fn number(&self, out: &mut Vec<u8>, value: u64, bytes: usize) {
        let le = value.to_le_bytes();
        let part = le[..bytes].iter().copied();
        if self.big_endian {
            out.extend(part.rev());
        } else {
            out.extend(part);
        }
    }

    /// One row of a chunk: what lies beyond the picture is zero.
    fn row(&self, y: usize, left: usize, columns: usize, plane: Option<usize>) -> Vec<u8> {
        let channels = plane.map_or(0..self.channels, |p| p..p + 1);
        let at = |x: usize, c: usize| {
            let inside = x < self.width && y < self.height;
            if inside {
                self.samples[(y * self.width + x) * self.channels + c]
            } else {
                0
            }
        };
        let mut values: Vec<u16> =
            (left..left + columns).flat_map(|x| channels.clone().map(move |c| (x, c))).map(|(x, c)| at(x, c)).collect();
        if self.differences {
            for i in (channels.len()..values.len()).rev() {
                values[i] = values[i].wrapping_sub(values[i - channels.len()]);
            }
        }
        let mut out = Vec::new();
        match self.bits {
            16 => values.iter().for_each(|v| self.number(&mut out, u64::from(*v), 2)),
            bits => {
                for group in values.chunks(8 / bits) {
                    let byte = group.iter().enumerate().map(|(i, v)| (*v as u8 as u32) << (8 - bits - i * bits));
                    out.push(byte.sum::<u32>() as u8);
                }
            }
        }
        out
    }

    fn pack(&self, bytes: &[u8]) -> Vec<u8> {
        match self.compression {
            5 => weezl::encode::Encoder::with_tiff_size_switch(weezl::BitOrder::Msb, 8).encode(bytes).expect("LZW"),
            8 | 32_946 => {
                let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(bytes).expect("memory");
                encoder.finish().expect("memory")
            }
            32_773 => {
                let mut out = Vec::new();
                for run in bytes.chunk_by(|a, b| a == b).flat_map(|run| run.chunks(128)) {
                    match run {
                        [one] => out.extend([128, 0, *one]), // 128 means nothing
                        run => out.extend([(257 - run.len()) as u8, run[0]]),
                    }
                }
                out
            }
            _ => bytes.to_vec(),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let word = if self.big_tiff { 8 } else { 4 };
        let mut out = if self.big_endian { b"MM".to_vec() } else { b"II".to_vec() };
        if self.big_tiff {
            self.number(&mut out, 43, 2);
            self.number(&mut out, 8, 2);
            self.number(&mut out, 0, 2);
        } else {
            self.number(&mut out, 42, 2);
        }
        let pointer = out.len();
        out.resize(pointer + word, 0);
        let (columns, rows) = match self.chunk {
            Chunk::Strips(rows) => (self.width, rows),
            Chunk::Tiles(columns, rows) => (columns, rows),
        };
        let (mut offsets, mut lengths) = (Vec::new(), Vec::new());
        let planes: Vec<Option<usize>> = if self.planar { (0..self.channels).map(Some).collect() } else { vec![None] };
        for plane in planes {
            for top in (0..self.height).step_by(rows) {
                for left in (0..self.width).step_by(columns) {
                    let last =
                        if matches!(self.chunk, Chunk::Strips(_)) { self.height.min(top + rows) } else { top + rows };
                    let chunk: Vec<u8> = (top..last).flat_map(|y| self.row(y, left, columns, plane)).collect();
                    let packed = self.pack(&chunk);
                    offsets.push(out.len() as u64);
                    lengths.push(packed.len() as u64);
                    out.extend(packed);
                }
            }
        }
        let mut tags = vec![
            (256, 4, vec![self.width as u64]),
            (257, 4, vec![self.height as u64]),
            (258, 3, vec![self.bits as u64; self.channels]),
            (259, 3, vec![self.compression]),
            (262, 3, vec![self.photometric]),
            (277, 3, vec![self.channels as u64]),
            (284, 3, vec![1 + u64::from(self.planar)]),
            (317, 3, vec![1 + u64::from(self.differences)]),
        ];
        match self.chunk {
            Chunk::Strips(rows) => tags.extend([(273, 4, offsets), (278, 4, vec![rows as u64]), (279, 4, lengths)]),
            Chunk::Tiles(columns, rows) => tags.extend([
                (322, 3, vec![columns as u64]),
                (323, 3, vec![rows as u64]),
                (324, 4, offsets),
                (325, 4, lengths),
            ]),
        }
        tags.retain(|(tag, ..)| self.tags.iter().all(|(other, ..)| other != tag));
        tags.extend(self.tags.iter().filter(|(_, _, values)| !values.is_empty()).cloned());
        tags.sort_by_key(|(tag, ..)| *tag);
        let mut directory = Vec::new();
        let entry = if self.big_tiff { 20 } else { 12 };
        let behind = out.len() + (if self.big_tiff { 8 } else { 2 }) + entry * tags.len() + word;
        let mut values_far = Vec::new();
        self.number(&mut directory, tags.len() as u64, if self.big_tiff { 8 } else { 2 });
        for (tag, kind, values) in &tags {
            let width = [0, 1, 0, 2, 4][usize::from(*kind)];
            self.number(&mut directory, u64::from(*tag), 2);
            self.number(&mut directory, u64::from(*kind), 2);
            self.number(&mut directory, values.len() as u64, word);
            let mut near = Vec::new();
            values.iter().for_each(|v| self.number(&mut near, *v, width));
            if near.len() > word {
                self.number(&mut directory, (behind + values_far.len()) as u64, word);
                values_far.extend(near);
            } else {
                near.resize(word, 0);
                directory.extend(near);
            }
        }
        directory.resize(directory.len() + word, 0);
        let at = out.len() as u64;
        let mut place = Vec::new();
        self.number(&mut place, at, word);
        out[pointer..pointer + word].copy_from_slice(&place);
        out.extend(directory);
        out.extend(values_far);
        out
    }

    /// RGB by the definition, for pictures without alpha.
    fn expected(&self) -> Vec<u8> {
        let byte = |v: u16| match self.bits {
            16 => (v >> 8) as u8,
            bits => (u32::from(v) * 255 / ((1 << bits) - 1)) as u8,
        };
        let mut out = Vec::new();
        for pixel in self.samples.chunks(self.channels) {
            match self.photometric {
                0 => out.extend([255 - byte(pixel[0]); 3]),
                1 => out.extend([byte(pixel[0]); 3]),
                _ => out.extend(pixel[..3].iter().map(|v| byte(*v))),
            }
        }
        out
    }
}

fn read(data: &[u8]) -> Result<Kept> {
    let cancel = CancelToken::default();
    let job = Job { data, max_pixels: 1 << 20, apply_exif: true, cancel: &cancel };
    let mut kept = Kept::default();
    decode(&job, &mut kept).map(|()| kept)
}

fn refusal(data: &[u8]) -> Option<Code> {
    read(data).err().map(|e| e.code)
}

/// Any layout that is read here.
fn any(random: &mut Random) -> File {
    let (width, height) = (1 + random.below(70), 1 + random.below(70));
    let photometric = random.below(3) as u64;
    let channels = [1, 1, 3][photometric as usize] + if photometric == 2 { random.below(2) } else { 0 };
    let bits = if channels == 1 { [1, 2, 4, 8, 16][random.below(5)] } else { [8, 16][random.below(2)] };
    let chunk = match random.below(3) {
        0 => Chunk::Strips(1 + random.below(height)),
        1 => Chunk::Strips(height),
        _ => Chunk::Tiles(16 * (1 + random.below(3)), 16 * (1 + random.below(2))),
    };
    let samples = (0..width * height * channels).map(|i| (random.below(1 << bits) * (i % 5) / 4) as u16).collect();
    let file = File {
        width,
        height,
        channels,
        bits,
        photometric,
        samples,
        big_endian: random.below(2) == 0,
        big_tiff: random.below(2) == 0,
        planar: channels > 1 && random.below(2) == 0,
        chunk,
        compression: [1, 5, 8, 32_946, 32_773][random.below(5)],
        differences: bits >= 8 && random.below(2) == 0,
        tags: Vec::new(),
    };
    // The fourth sample is of no known use.
    if channels == 4 {
        file.with(338, 3, &[0])
    } else {
        file
    }
}

#[test]
fn every_layout_gives_its_samples() {
    let mut random = Random(11);
    for round in 0..600 {
        let mut file = any(&mut random);
        if file.differences && file.bits == 8 {
            file.samples.iter_mut().for_each(|v| *v &= 255);
        }
        let about = || {
            (
                round,
                file.width,
                file.height,
                file.channels,
                file.bits,
                file.chunk,
                file.compression,
                file.planar,
                file.differences,
            )
        };
        let got = read(&file.bytes()).unwrap_or_else(|e| panic!("{:?}: {e}", about()));
        assert_eq!((got.width, got.height), (file.width, file.height));
        assert!(got.rows == file.expected(), "{:?}", about());
    }
}

#[test]
fn damaged_files_are_typed_and_cut_ones_refused() {
    let mut random = Random(12);
    let mut refused = 0;
    for _ in 0..400 {
        let whole = any(&mut random).bytes();
        let mut data = whole.clone();
        for _ in 0..1 + random.below(4) {
            let at = random.below(data.len());
            data[at] = random.below(256) as u8;
        }
        refused += usize::from(refusal(&data).is_some());
        assert!(refusal(&whole[..random.below(whole.len() - 9)]).is_some());
    }
    assert!(refused > 50, "{refused}");
}

#[test]
fn alpha_is_laid_onto_white() {
    let mut file = File { channels: 4, samples: vec![100, 50, 0, 128], ..File::rgb(1, 1) };
    let straight = vec![177, 152, 127];
    assert_eq!(read(&file.clone().with(338, 3, &[2]).bytes()).map(|k| k.rows), Ok(straight.clone()));
    assert_eq!(read(&file.bytes()).map(|k| k.rows), Ok(straight), "four samples and no word about the fourth");
    assert_eq!(read(&file.clone().with(338, 3, &[0]).bytes()).map(|k| k.rows), Ok(vec![100, 50, 0]));
    // Multiplied already: 100 of 128 was 199 of 255.
    assert_eq!(read(&file.clone().with(338, 3, &[1]).bytes()).map(|k| k.rows), Ok(vec![227, 177, 127]));
    file.samples[3] = 0;
    assert_eq!(read(&file.with(338, 3, &[1]).bytes()).map(|k| k.rows), Ok(vec![255; 3]));
}

#[test]
fn palettes_and_ink() {
    let palette: Vec<u64> = [[0x1200, 0x34ff], [0x5600, 0x7800], [0x9a00, 0xbcde]].concat();
    let file =
        File { channels: 1, bits: 1, photometric: 3, samples: vec![1, 0], ..File::rgb(2, 1) }.with(320, 3, &palette);
    assert_eq!(read(&file.bytes()).map(|k| k.rows), Ok(vec![0x34, 0x78, 0xbc, 0x12, 0x56, 0x9a]));
    assert_eq!(refusal(&file.with(320, 3, &palette[..5]).bytes()), Some(Code::Corrupt), "a palette that is too short");
    let ink =
        File { channels: 4, photometric: 5, samples: vec![0, 0, 0, 0, 255, 0, 0, 0, 0, 0, 0, 255], ..File::rgb(3, 1) };
    assert_eq!(read(&ink.bytes()).map(|k| k.rows), Ok(vec![255, 255, 255, 0, 255, 255, 0, 0, 0]));
}

#[test]
fn the_first_page_alone_is_read_and_turned() {
    let file = File::rgb(3, 2).with(274, 3, &[6]);
    let mut data = file.bytes();
    let directory = u32::from_le_bytes([data[4], data[5], data[6], data[7]]) as usize;
    let entries = usize::from(data[directory]);
    // The next page is this one: a circle.
    let next = directory + 2 + 12 * entries;
    data.copy_within(4..8, next);
    let options = ImageOptions::default();
    let found = probe(&data, &options).expect("a picture");
    assert_eq!((found.format, found.width, found.height), ("tiff", 2, 3));
    let found = probe(&data, &ImageOptions { apply_exif: false, ..options }).expect("a picture");
    assert_eq!((found.width, found.height), (3, 2));
}

#[test]
fn hostile_files_are_refused_before_they_cost_anything() {
    let rgb = || File::rgb(40, 30);
    let cases: Vec<(&str, File, Code)> = vec![
        ("sides of 2^32 - 1", rgb().with(256, 4, &[0xffff_ffff]).with(257, 4, &[0xffff_ffff]), Code::TooManyPixels),
        ("no width", rgb().with(256, 4, &[]), Code::Corrupt),
        ("no height", rgb().with(257, 4, &[0]), Code::BadDimensions),
        ("no pixels", rgb().with(273, 4, &[]), Code::Corrupt),
        ("strips of no rows", rgb().with(278, 4, &[0]), Code::Corrupt),
        ("fewer strips than rows", rgb().with(278, 4, &[1]), Code::Truncated),
        ("a strip beyond the end", rgb().with(273, 4, &[0xffff_fff0]), Code::Truncated),
        ("a strip of no bytes", rgb().with(279, 4, &[0]), Code::Truncated),
        ("a strip as long as 2^32", rgb().with(279, 4, &[0xffff_ffff]), Code::LimitExceeded),
        ("tiles of no width", File { chunk: Chunk::Tiles(16, 16), ..rgb() }.with(322, 4, &[0]), Code::Corrupt),
        (
            "tiles of 2^64 bytes",
            File { chunk: Chunk::Tiles(64, 32), ..rgb() }.with(322, 4, &[0xffff_fff0]),
            Code::LimitExceeded,
        ),
        ("65535 samples a pixel", rgb().with(277, 3, &[65_535]), Code::UnsupportedFormat),
        ("no samples", rgb().with(277, 3, &[0]), Code::UnsupportedFormat),
        ("samples of 0 bits", rgb().with(258, 3, &[0]), Code::UnsupportedFormat),
        ("samples of 32 bits", rgb().with(258, 3, &[32]), Code::UnsupportedFormat),
        ("floating point", rgb().with(339, 3, &[3]), Code::UnsupportedFormat),
        ("samples that differ", rgb().with(258, 3, &[8, 8, 16]), Code::UnsupportedFormat),
        ("too few samples", rgb().with(262, 3, &[5]), Code::Corrupt),
        ("Lab", rgb().with(262, 3, &[8]), Code::UnsupportedFormat),
        ("fax", rgb().with(259, 3, &[4]), Code::UnsupportedFormat),
        ("a predictor for floats", rgb().with(317, 3, &[3]), Code::UnsupportedFormat),
        ("reversed bits", rgb().with(266, 3, &[2]), Code::UnsupportedFormat),
        ("an order of samples that is none", rgb().with(284, 3, &[3]), Code::Corrupt),
        ("LZW that is none", rgb().with(259, 3, &[5]), Code::Corrupt),
        ("Deflate that is none", rgb().with(259, 3, &[8]), Code::Corrupt),
    ];
    for (name, file, code) in cases {
        assert_eq!(refusal(&file.bytes()), Some(code), "{name}");
    }
}

/// A strip of 90 kB that would unpack to 1,000 times that: only the rows of the picture are unpacked.
#[test]
fn a_bomb_is_not_unpacked() {
    let zeros = File { compression: 8, ..File::rgb(1, 1) }.pack(&vec![0; 90_000_000]);
    let mut data = File { samples: vec![0; 3 * 40 * 30], ..File::rgb(40, 30) }.with(259, 3, &[8]).bytes();
    let at = data.len() as u32;
    data.extend(&zeros);
    // Point the only strip at them: its offset and its length are the values of tags 273 and 279.
    for (tag, value) in [(273u16, at), (279, zeros.len() as u32)] {
        let entry = data.windows(4).position(|w| w == [tag as u8, (tag >> 8) as u8, 4, 0]).expect("the entry");
        data[entry + 8..entry + 12].copy_from_slice(&value.to_le_bytes());
    }
    assert_eq!(read(&data).map(|k| k.rows), Ok(vec![0; 3 * 40 * 30]));
}

/// 65,536 rows whose strips are all the same megabyte of nothing.
#[test]
fn strips_over_each_other_are_refused() {
    let rows = 65_536;
    let mut file = File { compression: 32_773, channels: 1, photometric: 1, ..File::rgb(1, rows) };
    file.samples = vec![0; rows];
    let file = file.with(278, 4, &[1]).with(273, 4, &vec![8; rows]).with(279, 4, &vec![1 << 20; rows]);
    assert_eq!(refusal(&file.bytes()), Some(Code::LimitExceeded));
}
