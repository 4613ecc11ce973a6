//! Until when appends wait for room on a full disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;

/// From one attempt of an append that waits to the next.
const PAUSE: Duration = Duration::from_millis(200);

/// Until when appends wait for room on a full disk.
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    /// Ends all waits once it is `true`, or gone.
    stop: watch::Receiver<bool>,
    /// How many wait.
    waiting: Arc<AtomicUsize>,
}

impl Patience {
    pub(crate) fn until(stop: watch::Receiver<bool>) -> Self {
        Self {
            stop,
            waiting: Arc::default(),
        }
    }

    /// Whether an append waits.
    pub(crate) fn is_waiting(&self) -> bool {
        // Relaxed: it is shown, and nothing hangs on it.
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Waits a moment; `false` where it is to wait no longer.
    pub(super) async fn pause(&self) -> bool {
        let _counted = Counted::new(&self.waiting);
        let mut stop = self.stop.clone();
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => false,
            () = tokio::time::sleep(PAUSE) => true,
        }
    }
}

/// One that waits. Dropped, it waits no longer.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        // Relaxed, also below: see `is_waiting`.
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
