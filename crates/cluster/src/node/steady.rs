//! A node's time: that of its machine's clock, as long as that one does not jump.
//!
//! Keys expire by the time of who leads, for good, and time does not go back. So a clock that jumps is
//! not followed until something else says that it is right, and a node whose time is off leads by that
//! of most nodes where it has to lead: see [`clocks`](super::clocks).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use collie_io::{Clock, Nanos};
use parking_lot::Mutex;

use crate::transport::SKEW_MAX;

/// The time that a node goes by.
///
/// Steps of the machine's clock up to [`SKEW_MAX`] are followed, as its drift is. Beyond that time goes
/// on with the machine's monotonic clock, until the clock is back or its time is [adopted](Self::adopt).
pub(super) struct SteadyClock {
    machine: Arc<dyn Clock>,
    time: Mutex<Time>,
}

struct Time {
    /// The time at the beginning of the monotonic clock, in microseconds.
    origin_us: i64,
    jumped: Option<Jumped>,
    verdict: ClockVerdict,
}

/// What is known of a node's time.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClockVerdict {
    /// Nothing says that it is wrong.
    #[default]
    Right,
    /// It is ahead of the times of most nodes by so many milliseconds.
    Off(i64),
    /// It was off when it was last compared, in a process before this one.
    WasOff,
}

/// The machine's clock has left the node's time.
struct Jumped {
    by_us: i64,
    /// By the monotonic clock, in microseconds.
    since_us: i64,
}

/// By how much a machine's clock has jumped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Jump {
    /// Milliseconds by which the clock is ahead of the node's time.
    pub(super) ahead_ms: i64,
    /// For how long it has been there.
    pub(super) lasted: Duration,
}

impl SteadyClock {
    /// Begins with the time of the machine's clock.
    pub(super) fn new(machine: Arc<dyn Clock>) -> Self {
        let origin_us = wall_us(&*machine) - monotonic_us(&*machine);
        let time = Time {
            origin_us,
            jumped: None,
            verdict: ClockVerdict::Right,
        };
        Self {
            machine,
            time: Mutex::new(time),
        }
    }

    /// What is known of its time.
    pub(super) fn verdict(&self) -> ClockVerdict {
        self.time.lock().verdict
    }

    pub(super) fn set_verdict(&self, verdict: ClockVerdict) {
        self.time.lock().verdict = verdict;
    }

    /// Where the machine's clock is, if it has jumped.
    pub(super) fn jump(&self) -> Option<Jump> {
        let mut time = self.time.lock();
        let now_us = time.now_us(&*self.machine) - time.origin_us;
        let jumped = time.jumped.as_ref()?;
        Some(Jump {
            ahead_ms: jumped.by_us / 1000,
            lasted: Duration::from_micros(now_us.abs_diff(jumped.since_us)),
        })
    }

    /// Goes on with the time of the machine's clock, if it is still where this jump has led it. Whether
    /// it is.
    pub(super) fn adopt(&self, jump: Jump) -> bool {
        let mut time = self.time.lock();
        time.now_us(&*self.machine);
        let there = |jumped: &Jumped| is_near(jumped.by_us, jump.ahead_ms.saturating_mul(1000));
        let Some(jumped) = time.jumped.take_if(|jumped| there(jumped)) else {
            return false;
        };
        time.origin_us += jumped.by_us;
        if let ClockVerdict::Off(ahead_ms) = &mut time.verdict {
            // Until it is compared again, the time of most nodes stays what it was.
            *ahead_ms += jumped.by_us / 1000;
        }
        true
    }
}

/// The time by which a node leads: its own, or, where that is off, that of most nodes. An entry carries
/// it on, so that one by a wrong time would do harm long after the clock is right.
#[derive(Debug)]
pub(super) struct LeadingClock(pub(super) Arc<SteadyClock>);

impl Clock for LeadingClock {
    fn monotonic(&self) -> Nanos {
        self.0.monotonic()
    }

    fn boot(&self) -> Nanos {
        self.0.boot()
    }

    fn wall_ms(&self) -> u64 {
        self.wall_us() / 1000
    }

    fn wall_us(&self) -> u64 {
        let mut time = self.0.time.lock();
        let now_us = time.now_us(&*self.0.machine);
        let ahead_us = match time.verdict {
            ClockVerdict::Off(ahead_ms) => ahead_ms.saturating_mul(1000),
            ClockVerdict::Right | ClockVerdict::WasOff => 0,
        };
        now_us.saturating_sub(ahead_us).max(0).unsigned_abs()
    }
}

impl Time {
    fn now_us(&mut self, machine: &dyn Clock) -> i64 {
        // The thread may be stopped between two reads. What is no jump by either is none.
        let before_us = monotonic_us(machine);
        let clock_us = wall_us(machine);
        let after_us = monotonic_us(machine);
        let by = |at_us: i64| clock_us - (at_us + self.origin_us);
        let by_us = match (by(before_us), by(after_us)) {
            (before, after) if before.abs() < after.abs() => before,
            (_, after) => after,
        };
        if is_near(by_us, 0) {
            self.origin_us += by_us;
            self.jumped = None;
            return clock_us;
        }
        match &mut self.jumped {
            Some(jumped) if is_near(jumped.by_us, by_us) => jumped.by_us = by_us,
            jumped => {
                *jumped = Some(Jumped {
                    by_us,
                    since_us: after_us,
                });
            }
        }
        after_us + self.origin_us
    }
}

impl Clock for SteadyClock {
    fn monotonic(&self) -> Nanos {
        self.machine.monotonic()
    }

    fn boot(&self) -> Nanos {
        self.machine.boot()
    }

    fn wall_ms(&self) -> u64 {
        self.wall_us() / 1000
    }

    fn wall_us(&self) -> u64 {
        self.time.lock().now_us(&*self.machine).max(0).unsigned_abs()
    }
}

impl fmt::Debug for SteadyClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SteadyClock")
            .field("machine", &self.machine)
            .finish_non_exhaustive()
    }
}

/// Whether two times differ by what clocks may differ by.
fn is_near(one_us: i64, other_us: i64) -> bool {
    u128::from(one_us.abs_diff(other_us)) <= SKEW_MAX.as_micros()
}

/// Half of what fits, so that sums and differences of two do: 146,000 years.
const FAR_US: i64 = i64::MAX / 2;

fn wall_us(machine: &dyn Clock) -> i64 {
    i64::try_from(machine.wall_us()).map_or(FAR_US, |us| us.min(FAR_US))
}

fn monotonic_us(machine: &dyn Clock) -> i64 {
    (machine.monotonic() / 1000).cast_signed()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A machine whose time stands still but for what a test does.
    #[derive(Debug, Default)]
    struct Machine {
        monotonic_ms: AtomicU64,
        wall_ms: AtomicU64,
        /// So long the reader is stopped behind its first look at the monotonic clock.
        stop_ms: AtomicU64,
    }

    impl Clock for Machine {
        fn monotonic(&self) -> Nanos {
            let stop_ms = self.stop_ms.swap(0, Ordering::SeqCst);
            self.wall_ms.fetch_add(stop_ms, Ordering::SeqCst);
            self.monotonic_ms.fetch_add(stop_ms, Ordering::SeqCst) * 1_000_000
        }

        /// It was suspended for a second.
        fn boot(&self) -> Nanos {
            self.monotonic() + 1_000_000_000
        }

        fn wall_ms(&self) -> u64 {
            self.wall_ms.load(Ordering::SeqCst)
        }
    }

    const HOUR_MS: u64 = 3_600_000;
    const START_MS: u64 = 1_700_000_000_000;

    impl Machine {
        fn pass(&self, ms: u64) {
            self.monotonic_ms.fetch_add(ms, Ordering::SeqCst);
            self.wall_ms.fetch_add(ms, Ordering::SeqCst);
        }

        fn set(&self, ms: u64) {
            self.wall_ms.store(ms, Ordering::SeqCst);
        }
    }

    #[test]
    fn the_time_of_leases_goes_on_while_the_machine_is_suspended() {
        let (machine, steady) = clock();
        assert_eq!(steady.boot(), machine.boot());
        assert_eq!(LeadingClock(Arc::new(steady)).boot(), machine.boot());
    }

    fn clock() -> (Arc<Machine>, SteadyClock) {
        let machine = Arc::new(Machine::default());
        machine.monotonic_ms.store(77_000, Ordering::SeqCst);
        machine.set(START_MS);
        let steady = SteadyClock::new(Arc::clone(&machine) as _);
        (machine, steady)
    }

    fn jump(ahead_ms: i64, lasted_ms: u64) -> Option<Jump> {
        let lasted = Duration::from_millis(lasted_ms);
        Some(Jump { ahead_ms, lasted })
    }

    #[test]
    fn a_node_that_is_off_leads_by_the_time_of_most() {
        let (machine, steady) = clock();
        let steady = Arc::new(steady);
        let leading = LeadingClock(Arc::clone(&steady));
        steady.set_verdict(ClockVerdict::Off(HOUR_MS as i64));
        assert_eq!(steady.wall_ms(), START_MS);
        assert_eq!(leading.wall_ms(), START_MS - HOUR_MS);
        machine.set(START_MS - HOUR_MS);
        let jump = steady.jump().unwrap();
        assert_eq!(leading.wall_ms(), START_MS - HOUR_MS, "it is not followed yet");
        assert!(steady.adopt(jump));
        assert_eq!(steady.wall_ms(), START_MS - HOUR_MS);
        assert_eq!(leading.wall_ms(), START_MS - HOUR_MS, "nor is it counted twice");
        assert_eq!(steady.verdict(), ClockVerdict::Off(0));
    }

    #[test]
    fn small_steps_and_drift_are_followed_however_far_they_lead() {
        let (machine, steady) = clock();
        let mut clock_ms = START_MS;
        for step in 0..100 {
            machine.pass(1000);
            clock_ms += 1500;
            machine.set(clock_ms);
            assert_eq!((steady.wall_ms(), steady.jump()), (clock_ms, None), "step {step}");
        }
        for step in 0..100 {
            clock_ms -= 500;
            machine.set(clock_ms);
            assert_eq!((steady.wall_ms(), steady.jump()), (clock_ms, None), "step {step}");
        }
        machine.set(clock_ms + 501);
        assert_eq!(steady.wall_ms(), clock_ms, "one millisecond more is a jump");
    }

    #[test]
    fn time_goes_on_without_a_jump_until_the_clock_is_back() {
        for to_ms in [START_MS + HOUR_MS, START_MS - HOUR_MS, 0] {
            let (machine, steady) = clock();
            machine.set(to_ms);
            let by_ms = i64::try_from(to_ms).unwrap() - i64::try_from(START_MS).unwrap();
            assert_eq!(steady.wall_ms(), START_MS);
            assert_eq!(steady.jump(), jump(by_ms, 0));
            machine.pass(70_000);
            assert_eq!(steady.wall_ms(), START_MS + 70_000);
            assert_eq!(steady.jump(), jump(by_ms, 70_000));
            // It is not there for longer than it has been there.
            machine.pass(1000);
            machine.set(START_MS + 2 * HOUR_MS);
            assert_eq!(steady.wall_ms(), START_MS + 71_000);
            assert_eq!(steady.jump().map(|jump| jump.lasted), Some(Duration::ZERO));
            machine.set(START_MS + 71_400);
            assert_eq!((steady.wall_ms(), steady.jump()), (START_MS + 71_400, None));
        }
    }

    #[test]
    fn a_jump_is_adopted_once_and_only_if_the_clock_is_still_there() {
        let (machine, steady) = clock();
        machine.set(START_MS + HOUR_MS);
        let there = steady.jump().unwrap();
        machine.set(START_MS);
        assert!(!steady.adopt(there), "the clock is back");
        machine.set(START_MS + 2 * HOUR_MS);
        assert!(!steady.adopt(there), "the clock is elsewhere");
        assert_eq!(steady.wall_ms(), START_MS);

        machine.set(START_MS + HOUR_MS + 20);
        assert!(steady.adopt(there));
        assert_eq!((steady.wall_ms(), steady.jump()), (START_MS + HOUR_MS + 20, None));
        assert!(!steady.adopt(there), "nothing is left of it");
        machine.pass(10);
        assert_eq!(steady.wall_ms(), START_MS + HOUR_MS + 30);
        machine.set(START_MS);
        assert_eq!(steady.wall_ms(), START_MS + HOUR_MS + 30);
    }

    #[test]
    fn a_thread_that_is_stopped_while_it_reads_sees_no_jump() {
        let (machine, steady) = clock();
        for round in 1..=3 {
            machine.stop_ms.store(HOUR_MS, Ordering::SeqCst);
            assert_eq!(steady.jump(), None);
            machine.stop_ms.store(HOUR_MS, Ordering::SeqCst);
            assert_eq!(steady.wall_ms(), START_MS + 2 * round * HOUR_MS);
        }
        machine.set(START_MS);
        machine.stop_ms.store(HOUR_MS, Ordering::SeqCst);
        assert_eq!(
            steady.wall_ms(),
            START_MS + 7 * HOUR_MS,
            "the clock has jumped meanwhile"
        );
        assert!(steady.jump().is_some());
    }
}
