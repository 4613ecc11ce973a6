//! What the daemon does by itself: commits what was written, so that a sync finds little to do;
//! brings pages home; writes the map.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::tree::Tree;
use crate::{FrontError, Scope};

/// How old a written page becomes before it is committed.
const EVERY: Duration = Duration::from_secs(1);
/// So much log is read at most after a crash.
const LOG_BYTES: u64 = 64 << 20;
/// Pages that are brought home at once.
const DRAINED_AT_ONCE: usize = 256;

/// Whether the thread goes on.
#[derive(Debug, Default)]
struct Signal {
    is_stopped: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    /// Waits for the next turn; `false` when there is none.
    fn wait(&self) -> bool {
        let mut is_stopped = self.is_stopped.lock();
        if !*is_stopped {
            let _ = self.changed.wait_for(&mut is_stopped, EVERY);
        }
        !*is_stopped
    }
}

/// The thread. Ends when this is dropped, which waits for it.
#[derive(Debug)]
pub(super) struct Background {
    signal: Arc<Signal>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    pub(super) fn start(tree: &Arc<Tree>) -> io::Result<Background> {
        let signal = Arc::new(Signal::default());
        let (until, tree) = (Arc::clone(&signal), Arc::clone(tree));
        let named = std::thread::Builder::new().name("front-background".to_owned());
        let thread = named.spawn(move || run(&tree, &until))?;
        Ok(Background {
            signal,
            thread: Some(thread),
        })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        *self.signal.is_stopped.lock() = true;
        self.signal.changed.notify_all();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the background thread panicked");
        }
    }
}

fn run(tree: &Tree, signal: &Signal) {
    let mut is_reported = false;
    while signal.wait() {
        match turn(tree) {
            Ok(()) => is_reported = false,
            Err(error) => {
                // The same error comes back each second: once is enough.
                if !is_reported {
                    tracing::error!("background work: {error}");
                }
                is_reported = true;
            }
        }
    }
}

fn turn(tree: &Tree) -> Result<(), FrontError> {
    let volume = &tree.volume;
    let before = volume.status();
    if before.poisoned.is_some() {
        return Ok(());
    }
    volume.forget_removed()?;
    volume.commit_all(Scope::Steady)?;
    let status = volume.status();
    // Half of the shadow file is left for what is written next; the rest goes home when nothing is
    // being written.
    let is_scarce = status.free_slots < status.slots / 2;
    let is_idle = before.dirty == 0 && before.log_bytes == status.log_bytes;
    if is_scarce || is_idle {
        let wanted = if is_scarce {
            16 * DRAINED_AT_ONCE
        } else {
            4 * DRAINED_AT_ONCE
        };
        volume.drain_some(wanted)?;
    }
    if volume.status().log_bytes >= LOG_BYTES {
        volume.checkpoint()?;
    }
    volume.close_idle();
    Ok(())
}
