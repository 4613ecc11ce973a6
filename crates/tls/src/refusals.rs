//! The limit on log messages about refused connections.

use std::time::Duration;

use parking_lot::Mutex;

/// In which [`MOST`] refusals are logged.
const PERIOD: Duration = Duration::from_secs(10);
/// Without it any client could fill the disk that holds the log.
const MOST: u32 = 10;

/// Counts refused connections, of which a limited number is logged: ten in ten seconds.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// When the current period began.
    begun: Option<Duration>,
    /// Refusals logged in it.
    logged: u32,
    /// Refusals since the last that was logged.
    left_out: u64,
}

impl Refusals {
    /// How many refusals were left out before this one; `None` where this one is to be. `now` is
    /// the time since any fixed moment.
    pub fn next(&self, now: Duration) -> Option<u64> {
        let mut state = self.0.lock();
        if state
            .begun
            .is_none_or(|begun| now.saturating_sub(begun) >= PERIOD)
        {
            (state.begun, state.logged) = (Some(now), 0);
        }
        if state.logged == MOST {
            state.left_out += 1;
            return None;
        }
        state.logged += 1;
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_is_counted_in_the_next_period() {
        let (refusals, begun) = (Refusals::default(), Duration::from_secs(5));
        for _ in 0..MOST {
            assert_eq!(refusals.next(begun), Some(0));
        }
        for _ in 0..500 {
            assert_eq!(refusals.next(begun + PERIOD / 2), None);
        }
        assert_eq!(refusals.next(begun + PERIOD), Some(500));
        assert_eq!(refusals.next(begun + PERIOD), Some(0));
    }
}
