//! Threads for scheduled reads: those of scans, and those of the server's background processes.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use collie_io::{Clock, Policy, RealClock};
use parking_lot::{Condvar, Mutex};

use super::tasks::{Class, Opener};
use super::turns::{Time, Turn, Turns};

/// Reads at one time: enough to keep a device busy, and few, so that the first task has most of it.
const AT_ONCE: usize = 4;
/// A longer read is one of a scan: the kernel reads ahead.
const SCANS: usize = 32 << 10;

type Job = Box<dyn FnOnce() + Send>;

struct ReadTurns {
    turns: Turns<Job>,
    threads: usize,
    is_closed: bool,
}

struct ReadQueue {
    state: Mutex<ReadTurns>,
    changed: Condvar,
}

/// The threads. They end after [`Reads::finish`], and when this is dropped.
pub(super) struct Reads {
    policy: Policy,
    shared: Arc<ReadQueue>,
}

impl Reads {
    pub(super) fn start(policy: Policy, idle_slice: Duration) -> io::Result<Reads> {
        let reads = Reads {
            policy,
            shared: Arc::new(ReadQueue {
                state: Mutex::new(ReadTurns {
                    turns: Turns::new(policy, idle_slice),
                    threads: 0,
                    is_closed: false,
                }),
                changed: Condvar::new(),
            }),
        };
        if policy != Policy::None {
            for _ in 0..AT_ONCE {
                let shared = Arc::clone(&reads.shared);
                let named = std::thread::Builder::new().name("front-reads".to_owned());
                named.spawn(move || work(&shared))?;
                reads.shared.state.lock().threads += 1;
            }
        }
        Ok(reads)
    }

    /// Whether a read of so many bytes takes its turn. Any other is done at once: it is one of a
    /// single page that a user waits for.
    pub(super) fn takes_turns(&self, opener: Opener, bytes: usize) -> bool {
        self.policy != Policy::None && (bytes > SCANS || opener.class == Class::Background)
    }

    /// Does `read` on another thread when it is its turn.
    pub(super) fn run(&self, opener: Opener, bytes: usize, read: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.state.lock();
        state.turns.ask(opener, bytes as u64, now(), Box::new(read));
        drop(state);
        self.shared.changed.notify_one();
    }

    fn close(&self) {
        self.shared.state.lock().is_closed = true;
        self.shared.changed.notify_all();
    }

    /// Ends the threads after what was asked for is done. Not to be called by one of them.
    pub(super) fn finish(&self) {
        self.close();
        let mut state = self.shared.state.lock();
        while state.threads > 0 {
            self.shared.changed.wait(&mut state);
        }
    }
}

impl Drop for Reads {
    /// Waits for nothing: the last read may be what drops it.
    fn drop(&mut self) {
        self.close();
    }
}

/// Waiting is done in real time, whatever clock a device has.
fn now() -> Time {
    Duration::from_nanos(RealClock.monotonic())
}

fn work(shared: &ReadQueue) {
    let mut state = shared.state.lock();
    loop {
        match state.turns.next(now()) {
            Turn::Read(under_way, read) => {
                drop(state);
                let begun = now();
                // A request that panics is answered with an error when its reply is dropped.
                let _ = catch_unwind(AssertUnwindSafe(read));
                state = shared.state.lock();
                let ended = now();
                state.turns.ended(&under_way, ended.saturating_sub(begun), ended);
                // One that waits for this task's next read may go on.
                shared.changed.notify_one();
            }
            Turn::Wait(None) if state.is_closed => {
                state.threads -= 1;
                shared.changed.notify_all();
                return;
            }
            Turn::Wait(None) => shared.changed.wait(&mut state),
            Turn::Wait(Some(rest)) => {
                let _ = shared.changed.wait_for(&mut state, rest);
            }
        }
    }
}
