//! Resize of interleaved RGB bytes, bit for bit the reference processor's: horizontal pass, bytes, vertical pass, bytes.
//!
//! `taps` makes the integer filter of an axis; `native`, `avx2` apply it. The form is chosen once per axis by what the
//! CPU has; all forms give equal bytes (tests below run every form the CPU has on odd sizes). `stream` feeds rows
//! through both passes without holding the picture.

#[cfg(target_arch = "x86_64")]
pub mod avx2;
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
}

impl Form {
    pub fn best() -> Form {
        #[cfg(target_arch = "x86_64")]
        if avx2::available() {
            return Form::Avx2;
        }
        Form::Native
    }

    pub fn available() -> Vec<Form> {
        if Form::best() == Form::Native {
            vec![Form::Native]
        } else {
            vec![Form::Native, Form::Avx2]
        }
    }
}

/// One axis, ready to run.
pub struct Axis {
    pub taps: Taps,
    #[cfg(target_arch = "x86_64")]
    packed: Option<avx2::Packed>,
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
        Ok(Some(Axis {
            #[cfg(target_arch = "x86_64")]
            packed: if form == Form::Avx2 { Some(avx2::Packed::new(&taps)?) } else { None },
            taps,
            form,
        }))
    }

    /// Rows of `stride` bytes each, `count` of them, to rows of `out_stride` bytes each. Both strides include ROW_PAD.
    pub fn horizontal(&self, rows: &[u8], stride: usize, count: usize, out: &mut [u8], out_stride: usize) {
        #[cfg(target_arch = "x86_64")]
        if let Some(packed) = &self.packed {
            let mut sources = rows.chunks_exact(stride).take(count);
            let mut targets = out.chunks_exact_mut(out_stride).take(count);
            for _ in 0..count / 4 {
                if let (Some(s), Some(t)) = (next4(&mut sources), next4(&mut targets)) {
                    avx2::horizontal::<4>(s, packed, t);
                }
            }
            for (source, target) in sources.zip(targets) {
                avx2::horizontal::<1>([source], packed, [target]);
            }
            return;
        }
        for (source, target) in rows.chunks_exact(stride).zip(out.chunks_exact_mut(out_stride)).take(count) {
            native::horizontal(source, &self.taps, target);
        }
    }

    /// Output row `i` from its window of rows, `n` bytes; rows and `out` are padded to ROW_PAD.
    pub fn vertical(&self, i: usize, rows: &[&[u8]], out: &mut [u8], n: usize) {
        let weights = self.taps.weights(self.taps.windows[i]);
        #[cfg(target_arch = "x86_64")]
        if self.form == Form::Avx2 {
            avx2::vertical(rows, weights, self.taps.bits, out, n);
            return;
        }
        let _ = self.form;
        native::vertical(rows, weights, self.taps.bits, &mut out[..n]);
    }
}

fn next4<T>(items: &mut impl Iterator<Item = T>) -> Option<[T; 4]> {
    Some([items.next()?, items.next()?, items.next()?, items.next()?])
}
