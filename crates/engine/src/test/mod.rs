//! For tests: random numbers from a seed that is printed, and threads that are held at a named
//! point.

mod closing;
mod external_journal;
pub(crate) mod failures;
mod flush_crashes;
mod full;
mod idle;
pub(crate) mod interleavings;
mod large_commits;
mod stalls;
mod whole_merges;

use std::cell::RefCell;
use std::sync::mpsc::{Receiver, Sender, channel};

#[path = "../../tests/common/random.rs"]
#[allow(dead_code, reason = "shared with the integration tests, which use all of it")]
mod random;
pub(crate) use random::{Rng, seeds};

/// Where a thread is to be stopped: the point, the channel on which it reports that it is there,
/// and the one on which it waits to go on.
struct Stop {
    point: &'static str,
    arrived: Sender<()>,
    go: Receiver<()>,
}

thread_local! {
    static STOP: RefCell<Option<Stop>> = const { RefCell::new(None) };
}

/// Called by `reach!`.
pub(crate) fn reach(point: &'static str) {
    let stop = STOP.with(|stop| stop.borrow_mut().take_if(|stop| stop.point == point));
    if let Some(Stop { arrived, go, .. }) = stop {
        // Fails where the test has ended; the thread then goes on.
        let _ = arrived.send(());
        let _ = go.recv();
    }
}

/// A thread that stops when it first reaches a point.
pub(crate) struct Held<T> {
    thread: std::thread::JoinHandle<T>,
    arrived: Receiver<()>,
    go: Sender<()>,
}

/// Runs `work` on a thread that stops at `point`.
pub(crate) fn hold<T: Send + 'static>(
    point: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Held<T> {
    let (arrived, is_there) = channel();
    let (go, may_go) = channel();
    let thread = std::thread::spawn(move || {
        let stop = Stop {
            point,
            arrived,
            go: may_go,
        };
        STOP.with(|slot| *slot.borrow_mut() = Some(stop));
        work()
    });
    Held {
        thread,
        arrived: is_there,
        go,
    }
}

impl<T> Held<T> {
    /// Waits until the thread is at its point.
    pub(crate) fn at_point(self) -> Self {
        self.arrived
            .recv()
            .expect("the thread ended before it reached the point");
        self
    }

    /// Whether the thread is at its point, or ended without passing there.
    pub(crate) fn is_at_point_or_done(&self) -> bool {
        self.thread.is_finished() || self.arrived.try_recv().is_ok()
    }

    /// Lets it run to its end, and returns its result.
    pub(crate) fn finish(self) -> T {
        drop(self.go);
        self.thread.join().expect("the thread panicked")
    }
}
