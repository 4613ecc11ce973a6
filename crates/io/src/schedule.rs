//! When background I/O may begin.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{Clock, Nanos, RealClock};

/// Background I/O waits at most so many times as long as its last piece took: a fifth of the device's
/// time is its own.
const WAITS: u32 = 4;

/// How background I/O shares the device with I/O that a user waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// All I/O begins at once.
    None,
    /// Background I/O is one piece at a time, and takes its turn as any other.
    Fair,
    /// One piece at a time, and it begins while no user waits, or when it has waited four times as
    /// long as its last piece took.
    #[default]
    Classes,
}

/// Decides when pieces of background I/O begin. One per device; all threads share it.
///
/// What a user waits for never waits here: it only says that it is under way. Background work calls
/// [`Scheduler::background`] before each piece, and holds no lock meanwhile that a user may wait
/// for: so there is no priority to be inherited.
///
/// ```
/// use collie_io::{Policy, Scheduler};
///
/// let scheduler = Scheduler::new(Policy::Classes);
/// {
///     let _sync = scheduler.foreground();
///     // A commit's sync.
/// }
/// {
///     let _piece = scheduler.background();
///     // 512 KiB of a compaction.
/// }
/// ```
#[derive(Debug, Default)]
pub struct Scheduler {
    policy: Policy,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// I/Os under way that users wait for.
    foreground: usize,
    /// Users that wait for background work itself.
    urgent: usize,
    /// Pieces under way.
    running: usize,
    /// Pieces that wait.
    waiting: usize,
    /// How long the last piece took.
    took: Duration,
    begun: Begun,
}

/// What has begun since a scheduler was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Begun {
    /// I/Os that users wait for.
    pub foreground: u64,
    /// Pieces of background I/O.
    pub background: u64,
}

/// What a piece of background I/O is to do.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    Begin,
    /// Wait for a change, and no longer than this, if it says so.
    Wait(Option<Duration>),
}

impl State {
    fn turn(&self, policy: Policy, waited: Duration) -> Turn {
        if policy == Policy::None || self.urgent > 0 {
            return Turn::Begin;
        }
        if self.running > 0 {
            return Turn::Wait(None);
        }
        if policy == Policy::Fair || self.foreground == 0 {
            return Turn::Begin;
        }
        match (self.took * WAITS).checked_sub(waited) {
            Some(rest) if !rest.is_zero() => Turn::Wait(Some(rest)),
            _ => Turn::Begin,
        }
    }
}

/// Waiting is done in real time, whatever clock a device has.
fn now() -> Nanos {
    RealClock.monotonic()
}

fn since(then: Nanos) -> Duration {
    Duration::from_nanos(now().saturating_sub(then))
}

impl Scheduler {
    /// With no I/O under way.
    #[must_use]
    pub fn new(policy: Policy) -> Scheduler {
        Scheduler {
            policy,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// The policy it was made with.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// How much of each class has begun so far.
    #[must_use]
    pub fn begun(&self) -> Begun {
        self.state().begun
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing here panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An I/O that a user waits for is under way until the guard is dropped. Does not wait.
    pub fn foreground(&self) -> Foreground<'_> {
        let mut state = self.state();
        state.foreground += 1;
        state.begun.foreground += 1;
        Foreground(self)
    }

    /// A user waits for background work, or soon has to: until the guard is dropped no piece waits.
    pub fn urgent(&self) -> Urgent<'_> {
        self.state().urgent += 1;
        self.changed.notify_all();
        Urgent(self)
    }

    /// Waits until a piece of background I/O may begin; it is under way until the guard is dropped. A
    /// piece is as much as a user may have to wait for, some hundred KiB.
    pub fn background(&self) -> Background<'_> {
        let asked = now();
        let mut state = self.state();
        state.waiting += 1;
        loop {
            state = match state.turn(self.policy, since(asked)) {
                Turn::Begin => break,
                Turn::Wait(None) => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Turn::Wait(Some(rest)) => {
                    let waited = self.changed.wait_timeout(state, rest);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        state.waiting -= 1;
        state.running += 1;
        state.begun.background += 1;
        Background {
            scheduler: self,
            begun: now(),
        }
    }
}

/// An I/O that a user waits for; see [`Scheduler::foreground`].
#[derive(Debug)]
#[must_use = "the I/O is under way until this is dropped"]
pub struct Foreground<'s>(&'s Scheduler);

impl Drop for Foreground<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.foreground -= 1;
        if state.foreground == 0 && state.waiting > 0 {
            drop(state);
            self.0.changed.notify_all();
        }
    }
}

/// Background work that a user waits for; see [`Scheduler::urgent`].
#[derive(Debug)]
#[must_use = "background work is urgent until this is dropped"]
pub struct Urgent<'s>(&'s Scheduler);

impl Drop for Urgent<'_> {
    fn drop(&mut self) {
        self.0.state().urgent -= 1;
    }
}

/// A piece of background I/O; see [`Scheduler::background`].
#[derive(Debug)]
#[must_use = "the piece is under way until this is dropped"]
pub struct Background<'s> {
    scheduler: &'s Scheduler,
    begun: Nanos,
}

impl Drop for Background<'_> {
    fn drop(&mut self) {
        let mut state = self.scheduler.state();
        state.running -= 1;
        state.took = since(self.begun);
        drop(state);
        self.scheduler.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn state(foreground: usize, urgent: usize, running: usize) -> State {
        State {
            foreground,
            urgent,
            running,
            waiting: 0,
            took: Duration::from_millis(10),
            begun: Begun::default(),
        }
    }

    #[test]
    fn a_piece_waits_while_a_user_does_but_not_for_ever() {
        let turn = |state: &State, waited| state.turn(Policy::Classes, Duration::from_millis(waited));
        let rest = |ms| Turn::Wait(Some(Duration::from_millis(ms)));
        assert_eq!(turn(&state(0, 0, 0), 0), Turn::Begin);
        assert_eq!(turn(&state(2, 0, 0), 0), rest(40));
        assert_eq!(turn(&state(2, 0, 0), 39), rest(1));
        assert_eq!(turn(&state(2, 0, 0), 40), Turn::Begin);
        assert_eq!(turn(&state(2, 0, 0), 4000), Turn::Begin);
        assert_eq!(turn(&state(2, 1, 0), 0), Turn::Begin);
        assert_eq!(
            turn(&state(0, 0, 1), 4000),
            Turn::Wait(None),
            "one piece at a time"
        );
        assert_eq!(
            turn(&state(2, 1, 1), 0),
            Turn::Begin,
            "not where a user waits for it"
        );
    }

    #[test]
    fn the_policies_differ() {
        let now = Duration::ZERO;
        assert_eq!(state(1, 0, 0).turn(Policy::Fair, now), Turn::Begin);
        assert_eq!(state(0, 0, 1).turn(Policy::Fair, now), Turn::Wait(None));
        assert_eq!(state(1, 0, 1).turn(Policy::None, now), Turn::Begin);
    }

    /// Begins a piece on another thread, after one that took an hour; `until` is called once it waits.
    fn piece_beside<T>(scheduler: &Scheduler, foreground: T, until: impl FnOnce(T)) {
        scheduler.state().took = HOUR;
        let has_begun = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _piece = scheduler.background();
                has_begun.store(true, Ordering::SeqCst);
            });
            while scheduler.state().waiting == 0 {
                std::thread::yield_now();
            }
            assert!(!has_begun.load(Ordering::SeqCst), "it does not wait");
            until(foreground);
        });
        assert!(has_begun.load(Ordering::SeqCst));
        let state = scheduler.state();
        assert_eq!((state.running, state.waiting), (0, 0));
        assert!(state.took < HOUR);
    }

    #[test]
    fn a_piece_begins_when_the_last_user_is_served() {
        let scheduler = Scheduler::new(Policy::Classes);
        let (one, two) = (scheduler.foreground(), scheduler.foreground());
        piece_beside(&scheduler, (one, two), |(one, two)| {
            drop(one);
            assert_eq!(scheduler.state().waiting, 1);
            drop(two);
        });
    }

    #[test]
    fn a_piece_begins_when_a_user_waits_for_it() {
        let scheduler = Scheduler::new(Policy::Classes);
        let one = scheduler.foreground();
        piece_beside(&scheduler, one, |one| {
            let urgent = scheduler.urgent();
            // Both stay until it has begun.
            while scheduler.state().waiting > 0 {
                std::thread::yield_now();
            }
            drop((one, urgent));
        });
        assert_eq!(scheduler.state().urgent, 0);
    }

    #[test]
    fn a_piece_begins_when_the_one_before_it_ends() {
        let scheduler = Scheduler::new(Policy::Fair);
        let first = scheduler.background();
        piece_beside(&scheduler, first, drop);
        let begun = scheduler.begun();
        assert_eq!((begun.foreground, begun.background), (0, 2));
    }
}
