//! For tests and fuzzing: a target that keeps the rows, without what lies behind their end.

use super::{Header, Target};
use crate::error::Result;

#[derive(Default)]
pub struct Kept {
    pub width: usize,
    pub height: usize,
    pub rows: Vec<u8>,
}

impl Target for Kept {
    fn header(&mut self, header: Header) -> Result<()> {
        (self.width, self.height) = (header.width as usize, header.height as usize);
        Ok(())
    }

    fn push(&mut self, band: &[u8], stride: usize, count: usize) -> Result<()> {
        for row in band.chunks_exact(stride).take(count) {
            self.rows.extend_from_slice(&row[..3 * self.width]);
        }
        Ok(())
    }
}
