//! What the log says of connections that are refused.

use std::net::SocketAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::error::End;

/// In which [`MOST`] refusals are logged.
const PERIOD: Duration = Duration::from_secs(10);
/// Above it a stranger could fill the disk that holds the log.
const MOST: u32 = 10;

/// Logs refused connections, a limited number of them.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The current period's begin.
    begun: Option<Instant>,
    /// Refusals logged in it.
    logged: u32,
    /// Refusals since the last that was logged.
    left_out: u64,
}

impl Refusals {
    /// Logs a refusal, unless too many were logged lately.
    pub(super) fn report(&self, address: SocketAddr, end: &End) {
        match self.0.lock().next(Instant::now()) {
            Some(0) => tracing::warn!(%address, %end, "the connection of a peer is refused"),
            Some(left_out) => tracing::warn!(
                %address, %end, left_out,
                "the connection of a peer is refused, as others were that are not logged"
            ),
            None => tracing::debug!(%address, %end, "the connection of a peer is refused"),
        }
    }
}

impl State {
    /// How many refusals were left out before this one; `None` where this one is to be.
    fn next(&mut self, now: Instant) -> Option<u64> {
        if self.begun.is_none_or(|begun| now - begun >= PERIOD) {
            (self.begun, self.logged) = (Some(now), 0);
        }
        if self.logged == MOST {
            self.left_out += 1;
            return None;
        }
        self.logged += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_is_counted_and_the_next_period_says_how_many_there_were() {
        let (mut state, begun) = (State::default(), Instant::now());
        for _ in 0..MOST {
            assert_eq!(state.next(begun), Some(0));
        }
        for _ in 0..500 {
            assert_eq!(state.next(begun + PERIOD / 2), None);
        }
        assert_eq!(state.next(begun + PERIOD), Some(500));
        assert_eq!(state.next(begun + PERIOD), Some(0));
    }
}
