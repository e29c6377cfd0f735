//! A flag shared with the caller: set it, and the work stops at its next check with `cancelled`.

use crate::courtesy;
use crate::error::{bail, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

#[derive(Clone, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// The flag as one byte, for decoders written in C. Valid while a clone of this token lives.
    pub fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr().cast()
    }

    /// Called between two steps of the work, which is also where it lets others run.
    pub fn check(&self) -> Result<()> {
        courtesy::pause();
        if self.is_cancelled() {
            bail!(Cancelled, "the request was cancelled");
        }
        Ok(())
    }
}
