//! Resize of interleaved RGB bytes, bit for bit the reference processor's: horizontal pass, bytes, vertical pass, bytes.
//!
//! `taps` makes the integer filter of an axis; `native`, `avx2`, `avx512` apply it. The form is chosen once per axis by what the
//! CPU has; all forms give equal bytes (tests below run every form the CPU has on odd sizes). `stream` feeds rows
//! through both passes without holding the picture.

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
pub mod native;
pub mod stream;
pub mod taps;

use crate::error::Result;
use taps::Taps;

/// Which instructions do the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Native,
    Avx2,
    Avx512,
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
        &[Form::Native]
    }

    pub fn best() -> Form {
        Form::available().last().copied().unwrap_or(Form::Native)
    }
}

/// The filter of the horizontal pass as its form wants it.
enum Kernel {
    Native,
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Packed),
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Packed),
}

/// One axis, ready to run.
pub struct Axis {
    pub taps: Taps,
    kernel: Kernel,
    form: Form,
}

impl Axis {
    /// None when the axis keeps its size: the reference skips such a pass. `mirrored`: the axis is stored in reverse.
    pub fn new(n_in: usize, n_out: usize, mirrored: bool, form: Form) -> Result<Option<Axis>> {
        if n_in == n_out {
            return Ok(None);
        }
        let taps = Taps::new(n_in, n_out)?;
        let taps = if mirrored { taps.mirrored(n_in) } else { taps };
        let kernel = match form {
            Form::Native => Kernel::Native,
            #[cfg(target_arch = "x86_64")]
            Form::Avx2 => Kernel::Avx2(avx2::Packed::new(&taps)?),
            #[cfg(target_arch = "x86_64")]
            Form::Avx512 => match avx512::Packed::new(&taps, n_in)? {
                Some(packed) => Kernel::Avx512(packed),
                None => Kernel::Avx2(avx2::Packed::new(&taps)?),
            },
            #[cfg(not(target_arch = "x86_64"))]
            _ => Kernel::Native,
        };
        Ok(Some(Axis { taps, kernel, form }))
    }

    /// Rows of `stride` bytes each, `count` of them, to rows of `out_stride` bytes each. Both strides include ROW_PAD.
    pub fn horizontal(&self, rows: &[u8], stride: usize, count: usize, out: &mut [u8], out_stride: usize) {
        let mut sources = rows.chunks_exact(stride).take(count);
        let mut targets = out.chunks_exact_mut(out_stride).take(count);
        match &self.kernel {
            Kernel::Native => {
                for (source, target) in sources.zip(targets) {
                    native::horizontal(source, &self.taps, target);
                }
            }
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2(packed) => {
                while let (Some(s), Some(t)) = (next4(&mut sources), next4(&mut targets)) {
                    avx2::horizontal(s, packed, t);
                }
                for (source, target) in sources.zip(targets) {
                    avx2::horizontal_one(source, packed, target);
                }
            }
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512(packed) => {
                while let (Some(s), Some(t)) = (next4(&mut sources), next4(&mut targets)) {
                    avx512::horizontal::<4>(s, packed, t);
                }
                for (source, target) in sources.zip(targets) {
                    avx512::horizontal::<1>([source], packed, [target]);
                }
            }
        }
    }

    /// Output row `i` from its window of rows, `n` bytes; rows and `out` are padded to ROW_PAD.
    pub fn vertical(&self, i: usize, rows: &[&[u8]], out: &mut [u8], n: usize) {
        let weights = self.taps.weights(self.taps.windows[i]);
        match self.form {
            #[cfg(target_arch = "x86_64")]
            Form::Avx512 => avx512::vertical(rows, weights, self.taps.bits, out, n),
            #[cfg(target_arch = "x86_64")]
            Form::Avx2 => avx2::vertical(rows, weights, self.taps.bits, out, n),
            _ => native::vertical(rows, weights, self.taps.bits, &mut out[..n]),
        }
    }
}

/// The next 4, or None (and nothing taken) when fewer are left.
fn next4<I: ExactSizeIterator>(items: &mut I) -> Option<[I::Item; 4]> {
    if items.len() < 4 {
        return None;
    }
    Some([items.next()?, items.next()?, items.next()?, items.next()?])
}
