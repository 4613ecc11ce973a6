//! The background threads of a mount: they commit what was written, so that a sync finds little to do,
//! bring pages home, and write the map.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::marker;
use super::tree::Tree;
use crate::{FrontError, Scope};

/// How old a written page becomes before it is committed.
const COMMIT_EVERY: Duration = Duration::from_secs(1);
/// How long a written page may stay in the cache while nothing else is written out.
const WRITE_OUT_EVERY: Duration = Duration::from_millis(50);
/// So much log is read at most after a crash.
const LOG_BYTES: u64 = 64 << 20;
/// Pages that are brought home at once.
const DRAINED_AT_ONCE: usize = 256;

/// Stops the threads.
#[derive(Debug, Default)]
struct Signal {
    is_stopped: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    fn goes_on(&self) -> bool {
        !*self.is_stopped.lock()
    }

    /// Waits for the next turn; `false` when there is none.
    fn wait(&self, time: Duration) -> bool {
        let mut is_stopped = self.is_stopped.lock();
        if !*is_stopped {
            let _ = self.changed.wait_for(&mut is_stopped, time);
        }
        !*is_stopped
    }
}

/// The threads. They end when this is dropped, which waits for them.
#[derive(Debug)]
pub(super) struct Background {
    signal: Arc<Signal>,
    threads: Vec<JoinHandle<()>>,
}

impl Background {
    pub(super) fn start(tree: &Arc<Tree>) -> io::Result<Background> {
        let mut background = Background {
            signal: Arc::default(),
            threads: Vec::new(),
        };
        background.spawn("front-commits", COMMIT_EVERY, tree, turn)?;
        background.spawn("front-writes", WRITE_OUT_EVERY, tree, write_out)?;
        Ok(background)
    }

    fn spawn(
        &mut self,
        name: &str,
        every: Duration,
        tree: &Arc<Tree>,
        work: fn(&Tree, &Signal) -> Result<(), FrontError>,
    ) -> io::Result<()> {
        let (signal, tree) = (Arc::clone(&self.signal), Arc::clone(tree));
        let named = std::thread::Builder::new().name(name.to_owned());
        self.threads
            .push(named.spawn(move || run(&tree, &signal, every, work))?);
        Ok(())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        *self.signal.is_stopped.lock() = true;
        self.signal.changed.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a background thread panicked");
            }
        }
    }
}

fn run(tree: &Tree, signal: &Signal, every: Duration, work: fn(&Tree, &Signal) -> Result<(), FrontError>) {
    let mut is_reported = false;
    while signal.wait(every) {
        match work(tree, signal) {
            Ok(()) => is_reported = false,
            Err(error) => {
                // The same error comes back each time: once is enough.
                if !is_reported {
                    tracing::error!("background work: {error}");
                }
                is_reported = true;
            }
        }
    }
}

/// Writes out what there is, without a pause.
fn write_out(tree: &Tree, signal: &Signal) -> Result<(), FrontError> {
    if tree.volume.is_failed() {
        return Ok(());
    }
    while tree.volume.write_out()? && signal.goes_on() {}
    Ok(())
}

fn turn(tree: &Tree, _: &Signal) -> Result<(), FrontError> {
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
        // Writers will wait for slots soon.
        let _urgent = is_scarce.then(|| tree.scheduler.urgent());
        let wanted = if is_scarce {
            16 * DRAINED_AT_ONCE
        } else {
            4 * DRAINED_AT_ONCE
        };
        volume.drain_some(wanted)?;
    }
    volume.settle_grown(is_idle)?;
    // A cluster that was made on the mount: the map has its identity from here on.
    let is_named = volume.identify(marker::identity(&*tree.device, &tree.root));
    if is_named || volume.status().log_bytes >= LOG_BYTES {
        volume.checkpoint()?;
    }
    volume.close_idle();
    Ok(())
}
