//! Why a replica became the leader.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// What an election comes of that is won within so long.
const WITHIN: Duration = Duration::from_secs(5);

/// What made a replica stand for election.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ElectionCause {
    /// It had heard no leader for too long.
    Timeout,
    /// The leader's node does not answer.
    Suspicion,
    /// The leader handed over.
    Transfer,
}

impl ElectionCause {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Timeout, Self::Suspicion, Self::Transfer];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Suspicion => "suspicion",
            Self::Transfer => "transfer",
        }
    }
}

/// The elections that a replica has won since its node started.
#[derive(Debug, Default)]
pub(super) struct Elections {
    asked: Mutex<Option<(Instant, ElectionCause)>>,
    won: [AtomicU64; 3],
}

impl Elections {
    /// It is about to stand for election.
    pub(super) fn asked(&self, cause: ElectionCause) {
        *self.asked.lock() = Some((Instant::now(), cause));
    }

    /// It leads.
    pub(super) fn won(&self) {
        let asked = self.asked.lock().take();
        let asked = asked.filter(|(at, _)| at.elapsed() < WITHIN);
        let cause = asked.map_or(ElectionCause::Timeout, |(_, cause)| cause);
        if let Some(count) = self.won.get(cause as usize) {
            // Relaxed, also below: a count, and nothing hangs on it.
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many of this cause.
    pub(super) fn count(&self, cause: ElectionCause) -> u64 {
        let count = self.won.get(cause as usize);
        count.map_or(0, |count| count.load(Ordering::Relaxed))
    }
}
