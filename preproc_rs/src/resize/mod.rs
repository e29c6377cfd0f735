//! Resize of interleaved RGB bytes, bit for bit the reference processor's: horizontal pass, bytes, vertical pass, bytes.
//!
//! `taps` makes the integer filter of an axis; `native`, `avx2`, `avx512`, `neon` apply it, and `lanes` is what the vector forms
//! share. All forms give equal bytes (`tests/resize.rs` runs every form the CPU has on odd sizes). `stream` feeds rows
//! through both passes without holding the picture.

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
mod lanes;
pub mod native;
#[cfg(target_arch = "aarch64")]
pub mod neon;
pub mod stream;
pub mod taps;

use crate::error::Result;
use lanes::{Packed, LANES};
use taps::Taps;

/// Which instructions do the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Native,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Form {
    /// Every form this CPU has, the plainest first.
    pub fn available() -> &'static [Form] {
        #[cfg(target_arch = "x86_64")]
        if avx512::available() {
            return &[Form::Native, Form::Avx2, Form::Avx512];
        } else if avx2::available() {
            return &[Form::Native, Form::Avx2];
        }
        #[cfg(target_arch = "aarch64")]
        if neon::available() {
            return &[Form::Native, Form::Neon];
        }
        &[Form::Native]
    }

    pub fn best() -> Form {
        Form::available().last().copied().unwrap_or(Form::Native)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Form::Native => "native",
            #[cfg(target_arch = "x86_64")]
            Form::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Form::Avx512 => "avx512",
            #[cfg(target_arch = "aarch64")]
            Form::Neon => "neon",
        }
    }

    /// None when this CPU has no form of that name.
    pub fn named(name: &str) -> Option<Form> {
        Form::available().iter().copied().find(|form| form.as_str() == name)
    }
}

/// What a row holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pixels {
    Rgb,
    /// Three planes of equal length: Y, Cb, Cr of JPEG. Only forms that `Horizontal::takes_planes`.
    Ycc,
}

/// What the horizontal pass of a vector form takes: rows, what they hold, their filter, where to.
type HorizontalPass = fn(&[&[u8]], Pixels, &mut Packed, &mut [&mut [u8]]);
type VerticalPass = fn(&[&[u8]], &[i16], u32, &mut [u8], usize);

impl Form {
    fn horizontal(self) -> Option<HorizontalPass> {
        match self {
            Form::Native => None,
            #[cfg(target_arch = "x86_64")]
            Form::Avx2 => Some(avx2::horizontal),
            #[cfg(target_arch = "x86_64")]
            Form::Avx512 => Some(avx512::horizontal),
            #[cfg(target_arch = "aarch64")]
            Form::Neon => Some(neon::horizontal),
        }
    }

    /// Whether its horizontal pass makes RGB of planes.
    fn takes_planes(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Form::Avx2 | Form::Avx512 => true,
            _ => false,
        }
    }

    fn vertical(self) -> VerticalPass {
        match self {
            Form::Native => native::vertical,
            #[cfg(target_arch = "x86_64")]
            Form::Avx2 => avx2::vertical,
            #[cfg(target_arch = "x86_64")]
            Form::Avx512 => avx512::vertical,
            #[cfg(target_arch = "aarch64")]
            Form::Neon => neon::vertical,
        }
    }
}

fn taps_of(n_in: usize, n_out: usize, mirrored: bool) -> Result<Taps> {
    let taps = Taps::new(n_in, n_out)?;
    Ok(if mirrored { taps.mirrored(n_in) } else { taps })
}

/// The pass along rows, ready to run.
pub struct Horizontal {
    taps: Taps,
    /// A vector form and its filter; None: the plain form.
    vectors: Option<(HorizontalPass, Packed)>,
    takes_planes: bool,
}

impl Horizontal {
    /// None when the axis keeps its size: the reference skips such a pass. `mirrored`: the axis is stored in reverse.
    pub fn new(n_in: usize, n_out: usize, mirrored: bool, form: Form) -> Result<Option<Horizontal>> {
        if n_in == n_out {
            return Ok(None);
        }
        let taps = taps_of(n_in, n_out, mirrored)?;
        let vectors = match form.horizontal() {
            Some(pass) => Some((pass, Packed::new(&taps)?)),
            None => None,
        };
        Ok(Some(Horizontal { taps, vectors, takes_planes: form.takes_planes() }))
    }

    pub fn takes_planes(&self) -> bool {
        self.takes_planes
    }

    /// Each of `rows` to the target at its place; best LANES at a time. Rows and targets are padded to ROW_PAD. Panics at planes
    /// that the form does not take.
    pub fn run(&mut self, rows: &[&[u8]], pixels: Pixels, targets: &mut [&mut [u8]]) {
        assert!(pixels == Pixels::Rgb || self.takes_planes);
        for (rows, targets) in rows.chunks(LANES).zip(targets.chunks_mut(LANES)) {
            match &mut self.vectors {
                Some((pass, packed)) => pass(rows, pixels, packed, targets),
                None => {
                    for (row, target) in rows.iter().zip(targets) {
                        native::horizontal(row, &self.taps, target);
                    }
                }
            }
        }
    }
}

/// The pass down columns, ready to run.
pub struct Vertical {
    pub taps: Taps,
    pass: VerticalPass,
}

impl Vertical {
    /// As `Horizontal::new`.
    pub fn new(n_in: usize, n_out: usize, mirrored: bool, form: Form) -> Result<Option<Vertical>> {
        if n_in == n_out {
            return Ok(None);
        }
        Ok(Some(Vertical { taps: taps_of(n_in, n_out, mirrored)?, pass: form.vertical() }))
    }

    /// Output row `i` from its window of rows, `n` bytes; a window of odd length repeats its last row. Rows and `out` are
    /// padded to ROW_PAD.
    pub fn run(&self, i: usize, rows: &[&[u8]], out: &mut [u8], n: usize) {
        (self.pass)(rows, self.taps.weights_in_pairs(self.taps.windows[i]), self.taps.bits, out, n);
    }
}
