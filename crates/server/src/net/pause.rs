//! `CLIENT PAUSE`: commands wait until a time, or until the pause is ended.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// The pause that is in force, if there is one.
#[derive(Debug)]
pub(crate) struct ClientPause {
    /// Whether `pause` may be set, so that commands need not read it otherwise.
    is_set: AtomicBool,
    pause: watch::Sender<Option<Pause>>,
    /// Commands that wait; a statistic, so its accesses are Relaxed.
    waiting: AtomicUsize,
}

/// A command that waits.
struct PausedCommand<'a>(&'a AtomicUsize);

impl Drop for PausedCommand<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug, Clone, Copy)]
struct Pause {
    until: Instant,
    /// Whether reads wait too.
    everything: bool,
}

impl Pause {
    fn delays(self, is_write: bool) -> bool {
        (self.everything || is_write) && self.until > Instant::now()
    }
}

/// Longest pause, in milliseconds: what is longer is as good as for ever.
const PAUSE_MS_MAX: u64 = 100 * 365 * 24 * 3600 * 1000;

impl Default for ClientPause {
    fn default() -> ClientPause {
        ClientPause {
            is_set: AtomicBool::new(false),
            pause: watch::Sender::new(None),
            waiting: AtomicUsize::new(0),
        }
    }
}

impl ClientPause {
    /// Starts a pause. If one is in force already, the later end and the wider scope of the two
    /// apply, as in Redis.
    pub(crate) fn start(&self, ms: u64, everything: bool) {
        let until = Instant::now() + Duration::from_millis(ms.min(PAUSE_MS_MAX));
        self.pause.send_modify(|pause| {
            let before = pause.filter(|before| before.until > Instant::now());
            *pause = Some(Pause {
                until: before.map_or(until, |before| before.until.max(until)),
                everything: everything || before.is_some_and(|before| before.everything),
            });
        });
        // Release pairs with the Acquire in `is_off`.
        self.is_set.store(true, Ordering::Release);
    }

    /// Ends the pause.
    pub(crate) fn end(&self) {
        // Release: see `start`. A command that still reads `true` finds no pause.
        self.is_set.store(false, Ordering::Release);
        self.pause.send_replace(None);
    }

    /// Whether there certainly is no pause.
    pub(crate) fn is_off(&self) -> bool {
        // Acquire pairs with the Release in `start`.
        !self.is_set.load(Ordering::Acquire)
    }

    /// Whether a pause is in force, of writes or of everything. Nothing is removed then, expired keys
    /// neither, as in Redis.
    pub(crate) fn is_on(&self) -> bool {
        !self.is_off() && self.delays(true)
    }

    /// How many commands wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Whether a command must wait now.
    pub(crate) fn delays(&self, is_write: bool) -> bool {
        let pause = *self.pause.borrow();
        pause.is_some_and(|pause| pause.delays(is_write))
    }

    /// Returns when the command may run.
    pub(crate) async fn wait(&self, is_write: bool) {
        let mut changes = self.pause.subscribe();
        loop {
            let pause = *changes.borrow_and_update();
            let Some(pause) = pause.filter(|pause| pause.delays(is_write)) else {
                return;
            };
            self.waiting.fetch_add(1, Ordering::Relaxed);
            let _waiting = PausedCommand(&self.waiting);
            tokio::select! {
                () = tokio::time::sleep_until(pause.until) => {}
                // The sender lives as long as `self`.
                _ = changes.changed() => {}
            }
        }
    }
}
