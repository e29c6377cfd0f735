//! Time of each stage on one file, one thread: `cargo run --release --example stages FILE [area|long_side] [u8|f32]`.
//! "alone" is the decoder with its rows thrown away.
#![allow(clippy::print_stdout, reason = "a command line program")]

use preproc_rs::cancel::CancelToken;
use preproc_rs::decode::{self, Header, Job, Target};
use preproc_rs::error::Result;
use preproc_rs::image::{prepare_image, ImageOptions};
use preproc_rs::limits::{AREA_MAX_PIXELS, IMAGE_MAX_PIXELS};
use preproc_rs::patchify::Rows;
use preproc_rs::size::SizeRule;
use preproc_rs::sniff::sniff;

/// CPU seconds of this thread: the neighbours do not count.
fn now() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a struct to fill.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

struct Nowhere;

impl Target for Nowhere {
    fn header(&mut self, _: Header) -> Result<()> {
        Ok(())
    }
    fn push(&mut self, band: &[u8], _: usize, _: usize) -> Result<()> {
        std::hint::black_box(band);
        Ok(())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let data = std::fs::read(args.next().ok_or("which file?")?)?;
    let mut options = ImageOptions::default();
    for arg in args {
        match arg.as_str() {
            "area" => options.rule = SizeRule::Area { max: AREA_MAX_PIXELS },
            "f32" => options.rows = Rows::F32,
            _ => {}
        }
    }
    let cancel = CancelToken::default();
    let format = sniff(&data).ok_or("unknown format")?;
    let (mut alone, mut whole) = (Vec::new(), Vec::new());
    for _ in 0..9 {
        let start = now();
        let job = Job { data: &data, max_pixels: IMAGE_MAX_PIXELS, apply_exif: true, cancel: &cancel };
        decode::decode(format, &job, &mut Nowhere)?;
        alone.push((now() - start) * 1e3);
        let start = now();
        let done = prepare_image(&data, &options, &cancel)?;
        whole.push((now() - start) * 1e3);
        drop(done);
    }
    let (alone, whole) = (median(alone), median(whole));
    println!("decode alone {alone:.2} ms, whole {whole:.2} ms, ratio {:.3}", whole / alone);
    Ok(())
}
