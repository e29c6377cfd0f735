//! Long work lets others run. A thread that needs its core for tens of milliseconds would keep an event loop on the same core
//! waiting until the kernel's next tick, four milliseconds each time; giving the core away costs nothing when nobody waits.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

/// The longest that work goes on without a pause, where it can pause.
const STRETCH: Duration = Duration::from_micros(500);
/// Bytes that are looked at, hashed or copied between two pauses: about as long.
pub const PIECE_BYTES: usize = 256 << 10;

thread_local! {
    static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Called between two steps of long work, as often as it likes.
pub fn pause() {
    LAST.with(|last| {
        let now = Instant::now();
        if last.get().is_none_or(|then| now.duration_since(then) >= STRETCH) {
            thread::yield_now();
            last.set(Some(Instant::now()));
        }
    });
}

/// `data` in pieces, with a pause before each.
pub fn pieces(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    data.chunks(PIECE_BYTES).inspect(|_| pause())
}
