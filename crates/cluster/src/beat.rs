//! The beat of a node: its periodic tasks tick at the same moments, so that a node that does nothing wakes up
//! a few times a second however many partitions it has.

use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// When the ticks of a node began.
#[derive(Debug, Clone, Copy)]
pub struct Beat(Instant);

impl Beat {
    /// Begins now.
    pub fn begin() -> Self {
        Self(Instant::now())
    }

    /// Ticks at once, and then at the multiples of `period` since the beginning. Those that a task is late
    /// for are left out: one that could not run sends one ping, not ten.
    pub(crate) fn every(self, period: Duration) -> Interval {
        let mut ticks = interval_at(self.0, period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        ticks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tasks_that_begin_at_different_times_tick_together() {
        let beat = Beat::begin();
        let begun = Instant::now();
        let mut early = beat.every(Duration::from_millis(200));
        early.tick().await;
        tokio::time::sleep(Duration::from_millis(330)).await;
        let mut late = beat.every(Duration::from_millis(100));
        late.tick().await;
        assert_eq!(
            begun.elapsed(),
            Duration::from_millis(330),
            "the first comes at once"
        );
        late.tick().await;
        early.tick().await;
        assert_eq!(
            begun.elapsed(),
            Duration::from_millis(400),
            "the one at 200 ms was missed, and comes at once"
        );
    }
}
