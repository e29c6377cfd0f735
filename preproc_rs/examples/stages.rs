//! Time of each stage on one file, one thread: `cargo run --release --example stages FILE [area|long_side] [u8|f32] [FORM]`.
//! FORM is one of the resize's that this CPU has (native, avx2, avx512, neon); without it, the best. "alone" is `image::decode_alone`.
#![allow(clippy::print_stdout, reason = "a command line program")]

use preproc_rs::cancel::CancelToken;
use preproc_rs::image::{decode_alone, prepare_image, ImageOptions};
use preproc_rs::limits::AREA_MAX_PIXELS;
use preproc_rs::patchify::Rows;
use preproc_rs::resize::Form;
use preproc_rs::size::SizeRule;

/// CPU seconds of this thread: the neighbours do not count.
fn now() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a struct to fill.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
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
            "long_side" | "u8" => {}
            name => options.form = Form::named(name).ok_or_else(|| format!("{name}: no such form on this CPU"))?,
        }
    }
    let cancel = CancelToken::default();
    let (mut alone, mut whole) = (Vec::new(), Vec::new());
    let mut steps: Vec<(&str, Vec<f64>)> = Vec::new();
    for _ in 0..9 {
        let start = now();
        decode_alone(&data, &options)?;
        alone.push((now() - start) * 1e3);
        let start = now();
        let done = prepare_image(&data, &options, &cancel)?;
        whole.push((now() - start) * 1e3);
        for (step, ms) in &done.ms {
            match steps.iter_mut().find(|(name, _)| name == step) {
                Some((_, values)) => values.push(*ms),
                None => steps.push((step, vec![*ms])),
            }
        }
    }
    let (alone, whole) = (median(alone), median(whole));
    println!("decode alone {alone:.2} ms, whole {whole:.2} ms, ratio {:.3}", whole / alone);
    let steps = steps.into_iter().map(|(name, values)| format!("{name} {:.2}", median(values)));
    println!("wall ms of the whole: {}", steps.collect::<Vec<_>>().join(", "));
    Ok(())
}
