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
//! other commit does, nor does the log ahead of need (its room is withheld), nor a compaction
//! (it ends early): they would take what the flush needs that lets the log go.
//!
//! Stores whose journals are external may have one reserve in common: [`DiskReserve`].

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use collie_io::{Clock, Device, RealClock};
use parking_lot::Mutex;

use crate::write::order::Sequencer;
use crate::{Error, Result};

/// The file's name.
pub(crate) const FILE: &str = "RESERVE";
/// How long after an attempt to take the room back a refused write makes another one, in
/// nanoseconds.
const BETWEEN_ATTEMPTS: u64 = 50_000_000;

struct ReserveFile {
    file: collie_io::Reserve,
    /// How much work is under way for which it was given up: it is not taken back before that has
    /// ended.
    relieving: usize,
}

/// What else takes room on the device of a [`DiskReserve`]: the logs of the stores that have it in
/// common. Both calls may come from any thread, and may not call the reserve or a store.
pub trait RoomUser: Send + Sync {
    /// Whether to leave all room of the device to what makes room, from here on.
    fn withhold_room(&self, withheld: bool);

    /// Removes what is not needed, to make room; `false` where there is nothing of the kind.
    fn give_up_spares(&self) -> bool;
}

/// Room on a device that is kept back for all stores on it whose journals are external
/// ([`Options::disk_reserve`](crate::Options::disk_reserve)): each by itself would have to keep as
/// much. It is given up for flushes that remove data, for merges that make room, and for openings and
/// changes of manifests, of any of the stores. While it is missing, the logs on the device take no room.
///
/// Clones are handles to the same.
#[derive(Clone)]
pub struct DiskReserve(Arc<ReserveState>);

impl fmt::Debug for DiskReserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DiskReserve")
            .field(&self.0.room.lock().file)
            .finish()
    }
}

impl DiskReserve {
    /// A reserve of so many bytes in the file `path`, whose directory is there. It counts as missing
    /// until it is [filled](Self::fill).
    #[must_use]
    pub fn new(device: Arc<dyn Device>, path: PathBuf, bytes: u64, logs: Arc<dyn RoomUser>) -> Self {
        let file = collie_io::Reserve::new(path, bytes);
        Self(Arc::new(ReserveState::new(device, file, Some(logs))))
    }

    /// Takes the room that is missing, as far as the device has it. The stores do so by themselves
    /// after work that makes room. Blocks on the device.
    pub fn fill(&self) {
        self.0.fill(None, None);
    }

    /// Whether it was given up, and is not complete again.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.0.is_missing()
    }

    /// Lends the room that is kept back, with what else is free on the device, for work that makes room there
    /// in the end and needs so many bytes until then. `None` where there is less, or another work has it.
    #[must_use]
    pub fn lend(&self, bytes: u64) -> Option<LentReserve> {
        let ReserveState {
            device, room, lent, ..
        } = &*self.0;
        let path = room.lock().file.path().to_owned();
        let held = device.stat(&path).map_or(0, |file| file.len);
        let dir = path.parent().unwrap_or(&path);
        let free = device.statfs(dir).ok();
        let free = free.map_or(0, |free| free.available.saturating_mul(free.block_size));
        // Relaxed: nothing else hangs on it.
        let is_there = bytes <= held.saturating_add(free) && !lent.swap(true, Ordering::Relaxed);
        is_there.then(|| LentReserve(self.clone()))
    }
}

/// The room of a [`DiskReserve`], [lent](DiskReserve::lend) until this is dropped.
#[derive(Debug)]
pub struct LentReserve(DiskReserve);

impl LentReserve {
    /// Does a part of the work. Where the device is full for it, gives the reserve up and does it once more;
    /// the caller that [fills](DiskReserve::fill) the reserve takes the room back then. Blocks on the
    /// device.
    ///
    /// # Errors
    /// Those of the work, of which `is_full` says whether the device is full.
    pub fn relieve<T, E>(
        &self,
        is_full: impl FnOnce(&E) -> bool,
        mut work: impl FnMut() -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        match work() {
            Err(error) if is_full(&error) => match self.0.0.give_up(None) {
                Some(_relieving) => work(),
                None => Err(error),
            },
            done => done,
        }
    }
}

impl Drop for LentReserve {
    fn drop(&mut self) {
        // Relaxed: as where it is lent.
        self.0.0.lent.store(false, Ordering::Relaxed);
    }
}

/// The reserve of a store, which may be one of several that have it.
pub(crate) struct StoreReserve {
    kept: Arc<ReserveState>,
    /// Whether the log is on the same device, and has to leave it what it is to have.
    serves_log: bool,
    /// A merge of this store that makes room is about to begin, and counts on the room that there is.
    awaits_merge: AtomicBool,
}

struct ReserveState {
    device: Arc<dyn Device>,
    room: Mutex<ReserveFile>,
    /// It was given up, and is not complete again.
    missing: Arc<AtomicBool>,
    /// When the last attempt was made to take the room back.
    tried: AtomicU64,
    /// Its room is lent.
    lent: AtomicBool,
    /// Others than the store's log that have to leave it what it is to have.
    others: Option<Arc<dyn RoomUser>>,
}

impl StoreReserve {
    /// One of `bytes` bytes in the store's directory. Nothing is done yet.
    pub(crate) fn in_dir(device: Arc<dyn Device>, dir: &Path, bytes: u64, serves_log: bool) -> Self {
        let file = collie_io::Reserve::new(dir.join(FILE), bytes);
        Self {
            kept: Arc::new(ReserveState::new(device, file, None)),
            serves_log,
            awaits_merge: AtomicBool::new(false),
        }
    }

    /// The one that the store has in common with others.
    pub(crate) fn of_disk(of: &DiskReserve) -> Self {
        Self {
            kept: Arc::clone(&of.0),
            serves_log: false,
            awaits_merge: AtomicBool::new(false),
        }
    }

    /// The store's log, where it is to leave room.
    fn log<'a>(&self, log: Option<&'a Sequencer>) -> Option<&'a Sequencer> {
        log.filter(|_| self.serves_log)
    }

    /// Whether it was given up, and is not complete again, or a merge is to have all the room there is.
    pub(crate) fn is_missing(&self) -> bool {
        self.kept.is_missing() || self.awaits_merge.load(Ordering::Relaxed)
    }

    /// From when a merge that makes room is queued until it has ended the reserve counts as missing: what
    /// was admitted meanwhile would take the room that the merge needs.
    pub(crate) fn await_merge(&self, awaits: bool) {
        // Relaxed, as `missing`.
        self.awaits_merge.store(awaits, Ordering::Relaxed);
    }

    /// Whether it was given up, and is not complete again, for those who write tables.
    pub(crate) fn missing(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.kept.missing)
    }

    /// Whether other stores have it, too.
    pub(crate) fn is_of_disk(&self) -> bool {
        self.kept.others.is_some()
    }

    /// Its size in bytes when it is complete.
    pub(crate) fn bytes(&self) -> u64 {
        self.kept.room.lock().file.bytes()
    }

    /// How much of it is there, in bytes.
    pub(crate) fn held(&self) -> u64 {
        let file = self.kept.device.stat(self.kept.room.lock().file.path());
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
            Err(error) if matches!(error.as_ref(), Error::StorageFull { .. }) => {
                match self.kept.give_up(self.log(log)) {
                    Some(_relieving) => work(),
                    None => Err(error),
                }
            }
            done => done,
        }
    }

    /// Does work that makes room in the reserve's room from the beginning: until it has ended no write
    /// is admitted that brings data, which would take what the work needs.
    pub(crate) fn in_its_room<T>(&self, log: Option<&Sequencer>, work: impl FnOnce() -> T) -> T {
        let _relieving = self.kept.give_up(self.log(log));
        work()
    }

    /// Takes the room back where it is missing, from the log's spare segments if need be.
    pub(crate) fn fill(&self, log: Option<&Sequencer>) {
        self.kept.fill(log, self.log(log));
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
            .saturating_sub(self.kept.tried.load(Ordering::Relaxed));
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
        let file = &self.kept.room.lock().file;
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

impl ReserveState {
    fn new(device: Arc<dyn Device>, file: collie_io::Reserve, others: Option<Arc<dyn RoomUser>>) -> Self {
        Self {
            device,
            room: Mutex::new(ReserveFile { file, relieving: 0 }),
            missing: Arc::new(AtomicBool::new(true)),
            tried: AtomicU64::new(0),
            lent: AtomicBool::new(false),
            others,
        }
    }

    fn is_missing(&self) -> bool {
        self.missing.load(Ordering::Relaxed)
    }

    /// Gives it up until what is returned is dropped. `None` where there was nothing to give up, and
    /// no other work has it.
    fn give_up(&self, log: Option<&Sequencer>) -> Option<Relieving<'_>> {
        let mut room = self.room.lock();
        let ReserveFile { file, relieving } = &mut *room;
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
        if let Some(log) = log {
            log.withhold_room(withheld);
        }
        if let Some(others) = &self.others {
            others.withhold_room(withheld);
        }
    }

    /// Takes the room back where it is missing, from the log's spare segments and others' if need be. From
    /// then on `log` takes room again, or none.
    fn fill(&self, spares: Option<&Sequencer>, log: Option<&Sequencer>) {
        if !self.is_missing() {
            return;
        }
        let ReserveFile { file, relieving } = &*self.room.lock();
        if *relieving > 0 {
            return;
        }
        self.tried.store(RealClock.monotonic(), Ordering::Relaxed);
        let mut filled = file.fill(&*self.device);
        if let Ok(false) = filled {
            let own = spares.is_some_and(Sequencer::give_up_spares);
            if self.others.as_ref().is_some_and(|others| others.give_up_spares()) || own {
                filled = file.fill(&*self.device);
            }
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
}

/// Work goes on in the room that the reserve has left.
struct Relieving<'a>(&'a ReserveState);

impl Drop for Relieving<'_> {
    fn drop(&mut self) {
        self.0.room.lock().relieving -= 1;
    }
}

#[cfg(test)]
mod tests {

    use collie_io::{OpenMode, write_all_at};
    use collie_sim::SimDevice;

    use super::*;

    /// Another thread took it back between the two attempts, and the second one failed, too.
    #[test]
    fn it_is_not_taken_back_before_the_work_in_it_has_ended() {
        let device = SimDevice::new(1);
        let dir = Path::new("/store");
        device.create_dir(dir, 0o755).unwrap();
        let reserve = StoreReserve::in_dir(Arc::new(device.clone()), dir, 256 << 10, true);
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

    #[test]
    fn what_makes_room_on_a_disk_has_that_of_its_reserve() {
        let device = SimDevice::new(3);
        let dir = Path::new("/disk");
        device.create_dir(dir, 0o755).unwrap();
        let logs = Arc::new(Told::default());
        let all: Arc<dyn Device> = Arc::new(device.clone());
        let reserve = DiskReserve::new(all, dir.join(FILE), 256 << 10, Arc::clone(&logs) as _);
        reserve.fill();
        device.limit_space(Some(0));
        let write = || {
            let file = device.open(&dir.join("file"), OpenMode::OpenOrCreate)?;
            write_all_at(&*file, &[1; 64 << 10], 0)
        };
        let is_full = |error: &std::io::Error| error.kind() == std::io::ErrorKind::StorageFull;
        assert!(reserve.lend((256 << 10) + 1).is_none());
        let lent = reserve.lend(256 << 10).unwrap();
        assert!(reserve.lend(1).is_none(), "it is lent twice");
        // Another error is none that it helps with.
        assert!(lent.relieve(|_| false, write).is_err() && !reserve.is_missing());
        lent.relieve(is_full, write).unwrap();
        drop(lent);
        reserve.fill();
        assert!(reserve.lend(200 << 10).is_none() && reserve.lend(180 << 10).is_some());
        assert!(reserve.is_missing() && logs.0.load(Ordering::Relaxed));
        device.remove_file(&dir.join("file")).unwrap();
        reserve.fill();
        assert!(!reserve.is_missing() && !logs.0.load(Ordering::Relaxed));
    }

    /// Whether it was told to leave room.
    #[derive(Debug, Default)]
    struct Told(AtomicBool);

    impl RoomUser for Told {
        fn withhold_room(&self, withheld: bool) {
            self.0.store(withheld, Ordering::Relaxed);
        }

        fn give_up_spares(&self) -> bool {
            false
        }
    }

    #[test]
    fn stores_with_one_reserve_miss_it_together() {
        let device = SimDevice::new(2);
        let dir = Path::new("/disk");
        device.create_dir(dir, 0o755).unwrap();
        let logs = Arc::new(Told::default());
        let of_disk = DiskReserve::new(
            Arc::new(device.clone()),
            dir.join(FILE),
            256 << 10,
            Arc::clone(&logs) as _,
        );
        of_disk.fill();
        let [one, other] = [(); 2].map(|()| StoreReserve::of_disk(&of_disk));
        let withheld = || logs.0.load(Ordering::Relaxed);
        assert!(!one.is_missing() && !other.is_missing() && !withheld());
        device.limit_space(Some(0));
        let write = || {
            let file = device.open(&dir.join("file"), OpenMode::OpenOrCreate);
            let written = file.and_then(|file| write_all_at(&*file, &[1; 64 << 10], 0));
            written.map_err(|e| Error::io("write", dir, e))
        };
        one.relieve(None, write).unwrap();
        other.fill(None);
        assert!(one.is_missing() && other.is_missing() && withheld());
        assert!(
            (1..256 << 10).contains(&other.held()),
            "what is left is taken back"
        );
        device.limit_space(Some(1 << 20));
        of_disk.fill();
        assert!(!one.is_missing() && !other.is_missing() && !withheld());
    }
}
