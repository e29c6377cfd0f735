//! The bytes of one strip or tile, unpacked as far as they are asked for: a strip that would unpack to gigabytes costs one
//! row of memory.

use crate::error::{bail, Code, Error, Result};
use flate2::bufread::ZlibDecoder;
use std::io::{ErrorKind, Read};
use weezl::decode::{Configuration, Decoder};
use weezl::{BitOrder, LzwStatus};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    None,
    Lzw,
    Deflate,
    PackBits,
}

impl Packing {
    /// By the value of the tag Compression.
    pub fn of(compression: u64) -> Result<Packing> {
        Ok(match compression {
            1 => Packing::None,
            5 => Packing::Lzw,
            8 | 32_946 => Packing::Deflate,
            32_773 => Packing::PackBits,
            other => {
                let name = match other {
                    2..=4 => " (fax)",
                    6 | 7 => " (JPEG)",
                    34_925 => " (LZMA)",
                    50_000 => " (Zstandard)",
                    50_001 => " (WebP)",
                    _ => "",
                };
                bail!(
                    UnsupportedFormat,
                    "a TIFF with compression {other}{name} is not supported; none, LZW, Deflate and PackBits are"
                )
            }
        })
    }
}

pub enum Source<'a> {
    None(&'a [u8]),
    Lzw(Decoder, &'a [u8]),
    Deflate(ZlibDecoder<&'a [u8]>),
    PackBits(PackBits<'a>),
}

impl<'a> Source<'a> {
    pub fn new(packing: Packing, data: &'a [u8]) -> Source<'a> {
        match packing {
            Packing::None => Source::None(data),
            Packing::Lzw => {
                // Rows end where they are full, not where the stream says so: files lack its end mark.
                let early = Configuration::with_tiff_size_switch(BitOrder::Msb, 8).with_yield_on_full_buffer(true);
                Source::Lzw(early.build(), data)
            }
            Packing::Deflate => Source::Deflate(ZlibDecoder::new(data)),
            Packing::PackBits => Source::PackBits(PackBits { data, run: Run::Literal(0) }),
        }
    }

    /// Fills `out`, or says that the data end too early or are broken.
    pub fn fill(&mut self, out: &mut [u8]) -> Result<()> {
        match self {
            Source::None(data) => {
                let Some((now, rest)) = data.split_at_checked(out.len()) else { return Err(truncated()) };
                out.copy_from_slice(now);
                *data = rest;
                Ok(())
            }
            Source::Lzw(decoder, data) => lzw(decoder, data, out),
            Source::Deflate(reader) => reader.read_exact(out).map_err(|e| match e.kind() {
                ErrorKind::UnexpectedEof => truncated(),
                _ => corrupt("Deflate"),
            }),
            Source::PackBits(runs) => runs.fill(out),
        }
    }
}

fn lzw(decoder: &mut Decoder, data: &mut &[u8], out: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while done < out.len() {
        let step = decoder.decode_bytes(data, &mut out[done..]);
        *data = &data[step.consumed_in..];
        done += step.consumed_out;
        match step.status {
            // What the decoder holds back comes with the next call, whatever it says of this one.
            Ok(LzwStatus::NoProgress | LzwStatus::Done) if step.consumed_out == 0 => return Err(truncated()),
            Ok(_) => {}
            Err(_) => return Err(corrupt("LZW")),
        }
    }
    Ok(())
}

fn truncated() -> Error {
    Error::new(Code::Truncated, "the TIFF ends too early")
}

fn corrupt(packing: &str) -> Error {
    Error::new(Code::Corrupt, format!("the TIFF is corrupt ({packing} data)"))
}

/// Apple's run lengths.
pub struct PackBits<'a> {
    data: &'a [u8],
    run: Run,
}

/// What is left of the run at hand.
enum Run {
    Literal(usize),
    Repeat(usize, u8),
}

impl PackBits<'_> {
    fn fill(&mut self, mut out: &mut [u8]) -> Result<()> {
        while !out.is_empty() {
            let taken = match &mut self.run {
                Run::Literal(0) | Run::Repeat(0, _) => {
                    self.next()?;
                    0
                }
                Run::Literal(left) => {
                    let n = out.len().min(*left);
                    let Some((now, rest)) = self.data.split_at_checked(n) else { return Err(truncated()) };
                    out[..n].copy_from_slice(now);
                    (self.data, *left) = (rest, *left - n);
                    n
                }
                Run::Repeat(left, value) => {
                    let n = out.len().min(*left);
                    out[..n].fill(*value);
                    *left -= n;
                    n
                }
            };
            out = &mut out[taken..];
        }
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        let Some((&head, rest)) = self.data.split_first() else { return Err(truncated()) };
        (self.run, self.data) = match (head, rest) {
            (0..=127, rest) => (Run::Literal(usize::from(head) + 1), rest),
            (128, rest) => (Run::Literal(0), rest), // means nothing
            (_, [value, rest @ ..]) => (Run::Repeat(257 - usize::from(head), *value), rest),
            (_, []) => return Err(truncated()),
        };
        Ok(())
    }
}
