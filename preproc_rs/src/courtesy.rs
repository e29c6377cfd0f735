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

/// Called between two steps of long work, as often as it likes. Says whether it gave the core away.
pub fn pause() -> bool {
    LAST.with(|last| {
        let now = Instant::now();
        let due = last.get().is_none_or(|then| now.duration_since(then) >= STRETCH);
        if due {
            thread::yield_now();
            last.set(Some(Instant::now()));
        }
        due
    })
}

/// `data` in pieces, with a pause before each.
pub fn pieces(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    data.chunks(PIECE_BYTES).inspect(|_| {
        pause();
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_of_work_ends_with_a_pause() {
        assert!(pause(), "nobody knows how long it has worked before");
        for _ in 0..3 {
            thread::sleep(STRETCH);
            assert!(pause());
        }
    }

    #[test]
    fn pieces_are_all_of_it() {
        let data: Vec<u8> = (0..3 * PIECE_BYTES + 1).map(|i| i as u8).collect();
        assert_eq!(pieces(&data).map(<[u8]>::len).collect::<Vec<_>>(), [PIECE_BYTES, PIECE_BYTES, PIECE_BYTES, 1]);
        assert_eq!(pieces(&data).collect::<Vec<_>>().concat(), data);
        assert_eq!(pieces(&[]).count(), 0);
    }
}
