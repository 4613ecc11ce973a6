//! Room that is kept back in the store's directory, so that a full device can become an emptier one from inside.
//!
//! The work that makes room needs some at first: a flush writes a table before the log lets go, a family that is
//! dropped is a change of the manifest, a compaction writes what stays before it removes the rest. Where the device
//! is full for such work, the reserve is given up and the work done once more. From then on, until the reserve is
//! there again, only writes are let in that take data away.
//!
//! That the device is full for a commit alone does not touch the reserve: the log keeps room of its own for relief.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use collie_io::{Clock, Device, RealClock};
use parking_lot::Mutex;

use crate::journal::Journal;
use crate::{Error, Options, Result};

/// The file's name.
pub(crate) const FILE: &str = "RESERVE";
/// For changes of the manifest, and an opening's beginning of a log segment, beside a memtable's flush.
const SMALL_WORK: u64 = 4 << 20;
/// How long after an attempt to take the room again writes that were refused make another one, in nanoseconds.
const BETWEEN_ATTEMPTS: u64 = 50_000_000;

/// What a store keeps back where its options do not say.
pub(crate) fn default_bytes(options: &Options) -> u64 {
    let families = options.family_options.iter().map(|(_, family)| family);
    let buffers = families
        .chain([&options.default_family])
        .map(|f| f.write_buffer_bytes);
    // A table is about as large as its memtable. An opening copies from the ring what no segment has.
    buffers.max().unwrap_or(0).max(options.ring_bytes as u64) + SMALL_WORK
}

/// See the module's page.
pub(crate) struct Reserve {
    device: Arc<dyn Device>,
    file: Mutex<collie_io::Reserve>,
    /// It was given up, and is not all there again.
    missing: AtomicBool,
    /// When it was tried last to take the room again.
    tried: AtomicU64,
}

impl Reserve {
    pub(crate) fn new(path: &std::path::Path, options: &Options) -> Self {
        let bytes = options.reserve_bytes.unwrap_or_else(|| default_bytes(options));
        Self {
            device: Arc::clone(&options.device),
            file: Mutex::new(collie_io::Reserve::new(path.join(FILE), bytes)),
            missing: AtomicBool::new(true),
            tried: AtomicU64::new(0),
        }
    }

    /// Does work that makes room, or that nothing goes on without; once more with the reserve's room where the device
    /// is full.
    pub(crate) fn relieve<T, E: AsRef<Error>>(&self, mut work: impl FnMut() -> Result<T, E>) -> Result<T, E> {
        match work() {
            Err(error) if matches!(error.as_ref(), Error::StorageFull { .. }) && self.give_up() => work(),
            done => done,
        }
    }

    /// `false` where there is nothing to give.
    fn give_up(&self) -> bool {
        let file = self.file.lock();
        // Relaxed: who is let in although it changes now finds the device full, no more.
        self.missing.store(true, Ordering::Relaxed);
        match file.give_up(&*self.device) {
            Ok(given) => {
                if given {
                    tracing::warn!(path = %file.path().display(), bytes = file.bytes(), "the device is full: the reserve is given up");
                }
                given
            }
            Err(error) => {
                tracing::warn!(path = %file.path().display(), %error, "the reserve cannot be given up");
                false
            }
        }
    }

    /// Takes the room again where it is missing, from the log's spare segments if need be.
    pub(crate) fn fill(&self, journal: Option<&Journal>) {
        if !self.missing.load(Ordering::Relaxed) {
            return;
        }
        let file = self.file.lock();
        self.tried.store(RealClock.monotonic(), Ordering::Relaxed);
        let mut filled = file.fill(&*self.device);
        if let Ok(false) = filled
            && journal.is_some_and(Journal::give_up_spares)
        {
            filled = file.fill(&*self.device);
        }
        match filled {
            Ok(true) => self.missing.store(false, Ordering::Relaxed),
            Ok(false) => {}
            // Nothing is refused because of it where it is no lack of room.
            Err(error) => {
                self.missing.store(false, Ordering::Relaxed);
                tracing::warn!(path = %file.path().display(), %error, "no room is kept back on this device");
            }
        }
    }

    /// Lets a write in that brings data, unless the reserve is missing and there is no room for it.
    pub(crate) fn admit(&self, journal: &Journal) -> Result<()> {
        if !self.missing.load(Ordering::Relaxed) {
            return Ok(());
        }
        // One in so long a time asks the device; Relaxed: it does no harm if it is two.
        let waited = RealClock
            .monotonic()
            .saturating_sub(self.tried.load(Ordering::Relaxed));
        if waited >= BETWEEN_ATTEMPTS {
            self.fill(Some(journal));
        }
        if !self.missing.load(Ordering::Relaxed) {
            return Ok(());
        }
        let file = self.file.lock();
        Err(Error::StorageFull {
            needed: format!(
                "of the {} bytes that are kept back for what makes room (reserve_bytes) not all are there",
                file.bytes()
            ),
            path: file.path().into(),
        })
    }
}
