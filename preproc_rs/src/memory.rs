//! Fallible allocation, and a pool of output buffers.
//!
//! Fresh pages cost ten times the arithmetic done in them (the kernel zeroes each on first touch), so the rows of one
//! image are written into the buffer of an earlier one. The pool is bounded by POOL_BYTES.

use crate::error::{Code, Error, Result};
use crate::limits::POOL_BYTES;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

/// An empty vector with room for `n`, or `out_of_memory`.
pub fn try_vec<T>(n: usize) -> Result<Vec<T>> {
    let mut v = Vec::new();
    v.try_reserve_exact(n).map_err(|_| out_of_memory(n.saturating_mul(size_of::<T>())))?;
    Ok(v)
}

/// `n` default values, or `out_of_memory`.
pub fn try_zeroed<T: Clone + Default>(n: usize) -> Result<Vec<T>> {
    let mut v = try_vec(n)?;
    v.resize(n, T::default());
    Ok(v)
}

pub fn out_of_memory(bytes: usize) -> Error {
    Error::new(Code::OutOfMemory, format!("{bytes} bytes of memory are not available"))
}

static POOL: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// Bytes that return to the pool when dropped.
pub struct Buffer(Vec<u8>);

impl Buffer {
    /// `n` bytes of any content: the caller writes all of them.
    pub fn take(n: usize) -> Result<Buffer> {
        let found = {
            let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
            // The smallest that fits and is not more than twice too large.
            let best = (0..pool.len())
                .filter(|&i| pool[i].len() >= n && pool[i].len() / 2 <= n)
                .min_by_key(|&i| pool[i].len());
            best.map(|i| pool.swap_remove(i))
        };
        match found {
            Some(mut bytes) => {
                bytes.truncate(n);
                Ok(Buffer(bytes))
            }
            None => Ok(Buffer(try_zeroed(n)?)),
        }
    }
}

impl Buffer {
    pub fn truncate(&mut self, n: usize) {
        self.0.truncate(n);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.0);
        let capacity = bytes.capacity();
        if capacity == 0 {
            return;
        }
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        let held: usize = pool.iter().map(Vec::len).sum();
        if held + capacity <= POOL_BYTES && pool.len() < 64 {
            bytes.resize(capacity, 0);
            pool.push(bytes);
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_sizes_are_errors() {
        assert_eq!(try_zeroed::<u64>(usize::MAX / 16).unwrap_err().code, Code::OutOfMemory);
        assert_eq!(try_vec::<u8>(isize::MAX as usize).unwrap_err().code, Code::OutOfMemory);
    }

    #[test]
    fn a_buffer_comes_back() {
        let first = Buffer::take(54_321).expect("small");
        drop(first);
        assert_eq!(Buffer::take(54_000).expect("small").len(), 54_000);
    }
}
