//! The second build of libwebp's decoder gives the bytes and the refusals of the first.

use super::compare::{ways, Outcome};
use super::v3::{available, decode};
use super::{Job, Target};
use crate::cancel::CancelToken;
use crate::decode::kept::Kept;
use crate::decode::Header;
use crate::error::{bail, Code, Result};
use crate::random::Random;
use libwebp_sys::*;

/// What every way makes of a file, if they agree.
fn agreed(data: &[u8], what: &str) -> Option<Outcome> {
    let [expected, tables, symbols] = ways(data)?;
    assert!(expected == tables, "{what}, tables: {:?} and {:?}", expected.err(), tables.err());
    assert!(expected == symbols, "{what}, symbols: {:?} and {:?}", expected.err(), symbols.err());
    Some(expected)
}

/// Flat, smooth or noisy areas and every colour's extremes, so that all kinds of blocks and filters occur.
fn pixels(random: &mut Random, width: usize, height: usize) -> Vec<u8> {
    let (noise, cell) = ([0, 8, 60, 255][random.below(4)], 4 + random.below(40));
    let colours: Vec<u8> = (0..64 * 3).map(|_| [0, 255, random.below(256) as u8][random.below(3)]).collect();
    let mut rgb = Vec::with_capacity(3 * width * height);
    for y in 0..height {
        for x in 0..width {
            let colour = 3 * ((x / cell + 8 * (y / cell)) % 64);
            for c in 0..3 {
                let value = usize::from(colours[colour + c]) + (x * c + y) / 3 % 32 + random.below(noise + 1);
                rgb.push(value.min(255) as u8);
            }
        }
    }
    rgb
}

/// A lossy file of any quality, filter, number of segments and partitions.
fn encoded(random: &mut Random, rgb: &[u8], width: usize, height: usize) -> Vec<u8> {
    // SAFETY: both structures are plain data and filled by libwebp's own functions; the picture's memory and the
    // writer's are freed once, after their last use.
    unsafe {
        let mut writer: WebPMemoryWriter = std::mem::zeroed();
        let mut config = WebPConfig::new().expect("libwebp's own version");
        let mut picture = WebPPicture::new().expect("libwebp's own version");
        config.quality = random.below(101) as f32;
        config.method = random.below(5) as i32;
        config.segments = 1 + random.below(4) as i32;
        config.filter_strength = [0, 20, 60, 100][random.below(4)];
        config.filter_sharpness = random.below(8) as i32;
        config.filter_type = random.below(2) as i32;
        config.partitions = random.below(4) as i32;
        (picture.width, picture.height) = (width as i32, height as i32);
        picture.writer = Some(WebPMemoryWrite);
        picture.custom_ptr = (&raw mut writer).cast();
        WebPMemoryWriterInit(&mut writer);
        assert!(WebPPictureImportRGB(&mut picture, rgb.as_ptr(), 3 * width as i32) != 0);
        assert!(WebPEncode(&config, &mut picture) != 0);
        let data = std::slice::from_raw_parts(writer.mem, writer.size).to_vec();
        WebPPictureFree(&mut picture);
        WebPMemoryWriterClear(&mut writer);
        data
    }
}

#[test]
fn equals_libwebp_on_every_kind_of_picture() {
    if !available() {
        return;
    }
    let mut random = Random(1);
    for round in 0..400 {
        let size = |random: &mut Random| match random.below(4) {
            0 => 1 + random.below(4),
            1 => 16 * (1 + random.below(5)) + random.below(3) - 1,
            _ => 1 + random.below(200),
        };
        let (width, height) = (size(&mut random), size(&mut random));
        let rgb = pixels(&mut random, width, height);
        let data = encoded(&mut random, &rgb, width, height);
        let outcome = agreed(&data, &format!("round {round}: {width} x {height}")).expect("lossy, no alpha");
        assert_eq!(outcome.map(|rows| rows.len()), Ok(3 * width * height), "round {round}");
    }
}

/// Tables serve what lies far enough before the end of a partition: these files have tens of kilobytes, whole or damaged.
#[test]
fn equals_libwebp_on_large_files() {
    if !available() {
        return;
    }
    let mut random = Random(7);
    let (mut refused, mut accepted, mut bytes) = (0, 0, 0);
    for round in 0..40 {
        let (width, height) = (300 + random.below(400), 300 + random.below(300));
        let rgb = pixels(&mut random, width, height);
        let mut data = encoded(&mut random, &rgb, width, height);
        bytes += data.len();
        for damage in 0..4 {
            for _ in 0..damage {
                let at = 20 + random.below(data.len() - 20);
                data[at] ^= 1 << random.below(8);
            }
            let Some(outcome) = agreed(&data, &format!("round {round}, damage {damage}")) else { continue };
            *(if outcome.is_ok() { &mut accepted } else { &mut refused }) += 1;
        }
    }
    assert!(accepted > 80 && bytes > 40 * (48 << 10), "{refused} refused, {accepted} accepted, {bytes} bytes");
}

#[test]
fn equals_libwebp_on_damaged_files() {
    if !available() {
        return;
    }
    let mut random = Random(2);
    let (mut refused, mut accepted) = (0, 0);
    for round in 0..60 {
        let (width, height) = (1 + random.below(80), 1 + random.below(80));
        let rgb = pixels(&mut random, width, height);
        let whole = encoded(&mut random, &rgb, width, height);
        for _ in 0..60 {
            let mut data = whole.clone();
            for _ in 0..random.below(4) {
                let at = random.below(data.len());
                data[at] ^= 1 << random.below(8);
            }
            if random.below(2) == 0 {
                data.truncate(random.below(data.len()) + 1);
            }
            let Some(outcome) = agreed(&data, &format!("round {round}")) else { continue };
            *(if outcome.is_ok() { &mut accepted } else { &mut refused }) += 1;
        }
    }
    assert!(refused > 100 && accepted > 100, "{refused} refused, {accepted} accepted");
}

#[test]
fn a_size_other_than_announced_is_refused() {
    if !available() {
        return;
    }
    let mut random = Random(3);
    let data = encoded(&mut random, &[7; 3 * 40 * 30], 40, 30);
    let cancel = CancelToken::default();
    let job = Job { data: &data, max_pixels: 1 << 24, apply_exif: true, cancel: &cancel };
    for (width, height) in [(39, 30), (40, 31), (400, 300)] {
        let mut kept = Kept { width, ..Kept::default() };
        assert_eq!(decode(&job, width, height, &mut kept).map_err(|e| e.code), Err(Code::Corrupt));
        assert!(kept.rows.is_empty());
    }
}

#[test]
fn a_cancelled_job_stops() {
    if !available() {
        return;
    }
    let mut random = Random(4);
    let data = encoded(&mut random, &[7; 3 * 40 * 300], 40, 300);
    let cancel = CancelToken::default();
    cancel.cancel();
    let job = Job { data: &data, max_pixels: 1 << 24, apply_exif: true, cancel: &cancel };
    let mut kept = Kept { width: 40, ..Kept::default() };
    assert_eq!(decode(&job, 40, 300, &mut kept).map_err(|e| e.code), Err(Code::Cancelled));
    assert!(kept.rows.is_empty());
}

/// Found by fuzzing: a partition of ones starts with a value above its range, which no encoder writes. The excess doubles with
/// every bit until differences no longer fit 31 bits, and the second reader took a zero where libwebp takes a one.
#[test]
fn equals_libwebp_where_the_value_exceeds_the_range() {
    if !available() {
        return;
    }
    let mut random = Random(6);
    for round in 0..200 {
        let most = [60, 400][usize::from(round % 8 == 0)];
        let (width, height) = (1 + random.below(most), 1 + random.below(most));
        let rgb = pixels(&mut random, width, height);
        let mut data = encoded(&mut random, &rgb, width, height);
        // RIFF header, chunk header, frame tag with the length of the first partition, size.
        let tag = u32::from_le_bytes([data[20], data[21], data[22], 0]);
        let tokens = 30 + (tag >> 5) as usize;
        let from = tokens + [0, 3, 6, 9][random.below(4)];
        let ones = 1 + random.below(12);
        data.iter_mut().skip(from).take(ones).for_each(|byte| *byte = 255);
        let what = format!("round {round}: {width} x {height}, {ones} bytes from {from} on");
        let _ = agreed(&data, &what).expect("lossy, no alpha");
    }
}

/// Above the range a stream depends on where bytes are fetched, since each fetch drops what lies over the range: a value of one
/// too many stays so through zeros, and shows when other bytes come. Such a macroblock must be left to libwebp's own steps.
#[test]
fn equals_libwebp_where_fetches_matter() {
    if !available() {
        return;
    }
    let mut random = Random(8);
    let mut accepted = 0;
    for round in 0..300 {
        let (width, height) = (100 + random.below(100), 100 + random.below(100));
        let rgb = pixels(&mut random, width, height);
        let mut data = encoded(&mut random, &rgb, width, height);
        let tag = u32::from_le_bytes([data[20], data[21], data[22], 0]);
        data.truncate(30 + (tag >> 5) as usize);
        data.push(255);
        data.extend(vec![0; random.below(250_000)]);
        data.extend((0..200_000).map(|_| random.below(256) as u8));
        data.extend(vec![0; data.len() % 2]);
        for (at, size) in [(4, data.len() - 8), (16, data.len() - 20)] {
            data[at..at + 4].copy_from_slice(&(size as u32).to_le_bytes());
        }
        accepted += usize::from(agreed(&data, &format!("round {round}")).expect("lossy, no alpha").is_ok());
    }
    assert!(accepted > 100, "{accepted} accepted");
}

/// A target that fails takes the decoder down with its own error or panic, not the process.
#[test]
fn what_a_target_says_comes_through() {
    struct Failing(bool);

    impl Target for Failing {
        fn header(&mut self, _: Header) -> Result<()> {
            Ok(())
        }

        fn push(&mut self, _: &[u8], _: usize, _: usize) -> Result<()> {
            assert!(!self.0, "a bug");
            bail!(Deadline, "too late")
        }
    }

    if !available() {
        return;
    }
    let data = encoded(&mut Random(5), &[7; 3 * 40 * 30], 40, 30);
    let cancel = CancelToken::default();
    let job = Job { data: &data, max_pixels: 1 << 24, apply_exif: true, cancel: &cancel };
    assert_eq!(decode(&job, 40, 30, &mut Failing(false)).map_err(|e| e.code), Err(Code::Deadline));
    let panicked = std::panic::catch_unwind(|| decode(&job, 40, 30, &mut Failing(true)));
    assert_eq!(panicked.expect_err("a panic").downcast_ref::<&str>(), Some(&"a bug"));
}
