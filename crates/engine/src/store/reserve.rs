//! Room that is kept back in the store's directory, so that a store on a full device can still free
//! space.
//!
//! The work that makes room needs some itself: a flush writes a table before the log is released,
//! dropping a family changes the manifest, a merge of what is mostly deleted writes the rest before
//! it removes the old tables. Where the device is full for such work, the reserve is given up and the
//! work is done once more. From then on, until the reserve is complete again, only writes are
//! admitted that remove data.
//!
//! A commit that removes data takes it where what the log keeps for such commits is used up. No
//! other commit does, nor does the log ahead of need (it is told to take nothing), nor a compaction
//! (it ends early): they would take what the flush needs that lets the log go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use collie_io::{Clock, Device, RealClock};
use parking_lot::Mutex;

use crate::commit::sequencer::Sequencer;
use crate::{Error, Journal, Options, Result};

/// The file's name.
pub(crate) const FILE: &str = "RESERVE";
/// For changes of the manifest and the first segment of an opening, beside a memtable's flush.
const SMALL_WORK: u64 = 4 << 20;
/// How long after an attempt to take the room back a refused write makes another one, in
/// nanoseconds.
const BETWEEN_ATTEMPTS: u64 = 50_000_000;

/// The default of [`Options::reserve_bytes`].
pub(crate) fn default_bytes(options: &Options) -> u64 {
    let families = options.family_options.iter().map(|(_, family)| family);
    let buffers = families
        .chain([&options.default_family])
        .map(|f| f.write_buffer_bytes);
    // A table is about as large as its memtable. An opening copies frames from the ring that no
    // segment has.
    let ring = match options.journal {
        Journal::Own => options.ring_bytes as u64,
        Journal::External(_) => 0,
    };
    buffers.max().unwrap_or(0).max(ring) + SMALL_WORK
}

struct Room {
    file: collie_io::Reserve,
    /// How much work is under way for which it was given up: it is not taken back before that has
    /// ended.
    relieving: usize,
}

/// See the module's page.
pub(crate) struct Reserve {
    device: Arc<dyn Device>,
    room: Mutex<Room>,
    /// It was given up, and is not complete again.
    missing: Arc<AtomicBool>,
    /// A merge that makes room is about to begin, and counts on the room that there is.
    awaits_merge: AtomicBool,
    /// When the last attempt was made to take the room back.
    tried: AtomicU64,
    /// Whether the log is on the same device, and has to leave it what it is to have.
    serves_log: bool,
}

impl Reserve {
    pub(crate) fn new(path: &std::path::Path, options: &Options) -> Self {
        let bytes = options.reserve_bytes.unwrap_or_else(|| default_bytes(options));
        Self {
            device: Arc::clone(&options.device),
            room: Mutex::new(Room {
                file: collie_io::Reserve::new(path.join(FILE), bytes),
                relieving: 0,
            }),
            missing: Arc::new(AtomicBool::new(true)),
            awaits_merge: AtomicBool::new(false),
            tried: AtomicU64::new(0),
            serves_log: options.wal_dir.is_none(),
        }
    }

    /// Whether it was given up, and is not complete again.
    pub(crate) fn is_missing(&self) -> bool {
        self.missing.load(Ordering::Relaxed)
    }

    /// From when a merge that makes room is queued until it has ended it counts as missing: what was
    /// admitted meanwhile would take the room that the merge needs.
    pub(crate) fn await_merge(&self, awaits: bool) {
        // Relaxed, as `missing`.
        self.awaits_merge.store(awaits, Ordering::Relaxed);
        if awaits {
            self.missing.store(true, Ordering::Relaxed);
        }
    }

    /// As [`Reserve::is_missing`], for those who write tables.
    pub(crate) fn missing(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.missing)
    }

    /// Its size in bytes when it is complete.
    pub(crate) fn bytes(&self) -> u64 {
        self.room.lock().file.bytes()
    }

    /// How much of it is there, in bytes.
    pub(crate) fn held(&self) -> u64 {
        let file = self.device.stat(self.room.lock().file.path());
        file.map_or(0, |file| file.len)
    }

    /// Whether it has room for the log.
    pub(crate) fn serves_log(&self) -> bool {
        self.serves_log
    }

    /// Does work that makes room, or that the store cannot go on without. Where the device is full,
    /// gives up the reserve and does it once more; `log` takes nothing of it for other commits.
    pub(crate) fn relieve<T, E: AsRef<Error>>(
        &self,
        log: Option<&Sequencer>,
        mut work: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        match work() {
            Err(error) if matches!(error.as_ref(), Error::StorageFull { .. }) => match self.give_up(log) {
                Some(_relieving) => work(),
                None => Err(error),
            },
            done => done,
        }
    }

    /// Does work that makes room in the reserve's room from the beginning: until it has ended no write
    /// is admitted that brings data, which would take what the work needs.
    pub(crate) fn in_its_room<T>(&self, log: Option<&Sequencer>, work: impl FnOnce() -> T) -> T {
        let _relieving = self.give_up(log);
        work()
    }

    /// Gives it up until what is returned is dropped. `None` where there was nothing to give up, and
    /// no other work has it.
    fn give_up(&self, log: Option<&Sequencer>) -> Option<Relieving<'_>> {
        let mut room = self.room.lock();
        let Room { file, relieving } = &mut *room;
        // Relaxed: a write that is admitted although the flag changes now finds the device full, no
        // more.
        self.missing.store(true, Ordering::Relaxed);
        // Before there is any room that it could take.
        self.withhold(log, true);
        match file.give_up(&*self.device) {
            Ok(given) => {
                if given {
                    tracing::warn!(path = %file.path().display(), bytes = file.bytes(), "the device is full: the reserve is given up");
                }
                (given || *relieving > 0).then(|| {
                    *relieving += 1;
                    Relieving(self)
                })
            }
            Err(error) => {
                tracing::warn!(path = %file.path().display(), %error, "the reserve cannot be given up");
                None
            }
        }
    }

    fn withhold(&self, log: Option<&Sequencer>, withheld: bool) {
        if self.serves_log
            && let Some(log) = log
        {
            log.withhold_room(withheld);
        }
    }

    /// Takes the room back where it is missing, from the log's spare segments if need be.
    pub(crate) fn fill(&self, log: Option<&Sequencer>) {
        if !self.is_missing() {
            return;
        }
        let Room { file, relieving } = &*self.room.lock();
        if *relieving > 0 || self.awaits_merge.load(Ordering::Relaxed) {
            return;
        }
        self.tried.store(RealClock.monotonic(), Ordering::Relaxed);
        let mut filled = file.fill(&*self.device);
        if let Ok(false) = filled
            && log.is_some_and(Sequencer::give_up_spares)
        {
            filled = file.fill(&*self.device);
        }
        if let Ok(false) = filled {
            self.withhold(log, true);
            return;
        }
        // Another error than a lack of room: writes are not refused because of it.
        if let Err(error) = filled {
            tracing::warn!(path = %file.path().display(), %error, "no room is kept back on this device");
        }
        self.missing.store(false, Ordering::Relaxed);
        self.withhold(log, false);
    }

    /// Admits a write that brings data. Fails while the reserve is missing and the device has no
    /// room for it.
    pub(crate) fn admit(&self, log: &Sequencer) -> Result<()> {
        if !self.is_missing() {
            return Ok(());
        }
        // One write per interval tries. Relaxed: it does no harm if two do.
        let waited = RealClock
            .monotonic()
            .saturating_sub(self.tried.load(Ordering::Relaxed));
        if waited >= BETWEEN_ATTEMPTS {
            self.fill(Some(log));
        }
        match self.is_missing() {
            false => Ok(()),
            true => Err(self.lack()),
        }
    }

    /// What a write that brings data gets while it is missing.
    pub(crate) fn lack(&self) -> Error {
        let file = &self.room.lock().file;
        if self.awaits_merge.load(Ordering::Relaxed) {
            return Error::StorageFull {
                needed: "until a merge has removed what was deleted".to_owned(),
                path: file.path().into(),
            };
        }
        Error::StorageFull {
            needed: format!(
                "of the {} bytes that are kept back for what makes room (reserve_bytes) not all are there",
                file.bytes()
            ),
            path: file.path().into(),
        }
    }
}

/// Work goes on in the room that the reserve has left.
struct Relieving<'a>(&'a Reserve);

impl Drop for Relieving<'_> {
    fn drop(&mut self) {
        self.0.room.lock().relieving -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use collie_io::{OpenMode, write_all_at};
    use collie_sim::SimDevice;

    use super::*;

    /// Another thread took it back between the two attempts, and the second one failed, too.
    #[test]
    fn it_is_not_taken_back_before_the_work_that_it_was_given_up_for_has_ended() {
        let device = SimDevice::new(1);
        let dir = Path::new("/store");
        device.create_dir(dir, 0o755).unwrap();
        let options = Options {
            device: Arc::new(device.clone()),
            reserve_bytes: Some(256 << 10),
            ..Options::default()
        };
        let reserve = Reserve::new(dir, &options);
        reserve.fill(None);
        device.limit_space(Some(0));
        let mut attempts = 0;
        let write = || {
            attempts += 1;
            if attempts == 2 {
                reserve.fill(None);
            }
            let file = device.open(&dir.join("file"), OpenMode::OpenOrCreate);
            let written = file.and_then(|file| write_all_at(&*file, &[1; 64 << 10], 0));
            written.map_err(|e| Error::io("write", dir, e))
        };
        reserve.relieve(None, write).unwrap();
        assert_eq!(attempts, 2);
        device.limit_space(None);
        reserve.fill(None);
        assert_eq!(device.stat(&dir.join(FILE)).unwrap().len, 256 << 10);
    }
}
