//! How long a log may become, and what it keeps of entries that the tables have.
//!
//! Everything here is bytes of the log, since those are what runs out: an entry is as old as what was
//! appended behind it, by whichever replica. So one rule bounds what each replica keeps and what all keep
//! together, and the oldest goes first.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use collie_io::Device;
use collie_log::Lsn;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::raftlog::error::StoreError;
use crate::raftlog::node_log::{NodeLog, NodeLogInner, NodeLogOptions};
use crate::raftlog::replica_log::ReplicaLog;
use crate::raftlog::state::Holding;

/// The limit that a disk of any size has room for; and that of a disk that does not say its size.
const LIMIT_MOST: u64 = 2 << 30;
/// The least limit: a few of the largest entries, and what is written while the log is made shorter.
const LIMIT_LEAST: u64 = 64 << 20;
/// A disk's logs may have so large a part of it.
const OF_DISK: u64 = 8;
/// The least limit of a log that shares its disk's with others.
const SHARE_LEAST: u64 = 32 << 20;
/// A log has at least so many segments when it has reached its limit, as it is cut by whole ones.
const SEGMENTS: u64 = 16;
/// The smallest segment that is made for that.
const SEGMENT_LEAST: u64 = 1 << 20;
/// Of its limit, a log leaves so large a part to what takes data away.
const FOR_REMOVALS: u64 = 16;
/// A log that is full is waited for so long before commands are refused: it is being made shorter.
const PATIENCE: Duration = Duration::from_secs(3);

/// What a log keeps of entries that are in tables, in bytes from its end on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Entries stay for so long, whether a replica lacks them or not: who leads next may meet one that
    /// does.
    pub margin: u64,
    /// Entries that a follower lacks stay for so long. One that is further behind gets tables.
    pub lagging: u64,
}

impl Retention {
    /// What fits a log of so many bytes.
    #[must_use]
    pub fn of(limit: u64) -> Self {
        Self {
            margin: limit / 16,
            lagging: limit / 2,
        }
    }
}

/// From where on a log keeps what its replicas have in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cuts {
    /// Entries in frames below are kept only for those that are known to lack them.
    pub(super) soft: Lsn,
    /// Nothing below is kept for anyone.
    pub(super) hard: Lsn,
}

/// What is known of a log's length.
#[derive(Debug)]
pub(super) struct Limit {
    bytes: AtomicU64,
    /// Wakes who keeps the logs of the node short.
    pressed: Arc<Notify>,
    /// Where the log ended when it last did.
    pressed_at: AtomicU64,
    /// Its disk has little room.
    crowded: AtomicBool,
    /// Since when it is full, for who proposes.
    full_since: Mutex<Option<Instant>>,
    /// Whether `full_since` is set.
    is_full: AtomicBool,
    /// Bytes of removals that were taken since it is.
    removed: AtomicU64,
    /// Something was refused since who waits for room was last woken.
    refused: AtomicBool,
}

impl Limit {
    pub(super) fn new(bytes: u64, pressed: Arc<Notify>) -> Self {
        Self {
            bytes: AtomicU64::new(bytes),
            pressed,
            pressed_at: AtomicU64::new(0),
            crowded: AtomicBool::new(false),
            full_since: Mutex::default(),
            is_full: AtomicBool::new(false),
            removed: AtomicU64::new(0),
            refused: AtomicBool::new(false),
        }
    }

    // Relaxed, here and below: each is a number or a flag by itself that is looked at again and again.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn set_crowded(&self, crowded: bool) {
        self.crowded.store(crowded, Ordering::Relaxed);
    }
}

impl NodeLogOptions {
    /// The limit of a log, or of all logs together, in `dir`: the one that was set, or what fits its disk.
    pub(super) fn limit_in(&self, dir: &Path) -> u64 {
        let fits = || {
            let size = disk(&*self.log.device, dir).map(|(size, _)| size);
            size.map_or(LIMIT_MOST, |size| (size / OF_DISK).clamp(LIMIT_LEAST, LIMIT_MOST))
        };
        self.log_limit.unwrap_or_else(fits)
    }

    /// These, with segments that are not too large for a log of so many bytes.
    pub(super) fn fitting(mut self, limit: u64) -> Self {
        let most = (limit / SEGMENTS).max(SEGMENT_LEAST) / 4096 * 4096;
        self.log.segment_bytes = self.log.segment_bytes.min(most);
        self
    }
}

/// What each of so many logs may have of a limit.
pub(super) fn share(limit: u64, logs: usize) -> u64 {
    let logs = logs.max(1) as u64;
    (limit / logs).max(SHARE_LEAST.min(limit))
}

/// The bytes of the file system of a directory, which need not be there yet, and those that are free.
pub(crate) fn disk(device: &dyn Device, dir: &Path) -> Option<(u64, u64)> {
    let stat = dir.ancestors().find_map(|dir| device.statfs(dir).ok())?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.block_size);
    Some((bytes(stat.blocks), bytes(stat.available)))
}

impl NodeLogInner {
    /// What the log keeps now. Where its disk has little room, or it is full, at least its oldest quarter
    /// goes.
    pub(super) fn cuts(&self) -> Cuts {
        let limit = self.limit.bytes();
        let Retention { margin, lagging } = self.options.retention.unwrap_or_else(|| Retention::of(limit));
        let (used, end) = (self.used(), self.log.appended());
        let is_pressed = self.limit.crowded.load(Ordering::Relaxed) || used >= writes_below(limit);
        let oldest_quarter = (end - used) + used / 4;
        let far = end.saturating_sub(lagging);
        let hard = if is_pressed { far.max(oldest_quarter) } else { far };
        Cuts {
            soft: end.saturating_sub(margin).max(hard),
            hard,
        }
    }

    /// Says who holds the log if it has so many bytes.
    fn full_at(&self, bytes: u64) -> Option<StoreError> {
        let used = self.used();
        if used < bytes {
            if self.limit.is_full.load(Ordering::Relaxed) {
                self.not_full();
            }
            return None;
        }
        let since = *self.limit.full_since.lock().get_or_insert_with(Instant::now);
        self.limit.is_full.store(true, Ordering::Relaxed);
        let (holder, held, why) = self.holder();
        Some(StoreError::Full {
            used,
            limit: self.limit.bytes(),
            holder,
            held,
            why,
            lasts: since.elapsed() >= PATIENCE,
        })
    }

    fn not_full(&self) {
        let mut since = self.limit.full_since.lock();
        if self.used() < writes_below(self.limit.bytes()) {
            *since = None;
            self.limit.is_full.store(false, Ordering::Relaxed);
            self.limit.removed.store(0, Ordering::Relaxed);
        }
    }

    /// Who holds the log's oldest part, how much of the log that is, and why.
    fn holder(&self) -> (String, u64, Option<Holding>) {
        let Some((name, from)) = self.log.holders().into_iter().next() else {
            return ("its last segment".to_owned(), self.used(), None);
        };
        let replicas = self.replicas();
        let replica = replicas.iter().find(|replica| replica.holder() == name);
        let why = replica.map(|replica| replica.holding());
        (name, self.log.appended().saturating_sub(from), why)
    }

    /// Refuses a write where the log is full or its disk is.
    pub(super) fn admit(&self) -> Result<(), StoreError> {
        let limit = self.limit.bytes();
        self.press(limit);
        let full = self.shortage();
        self.refuse(full.or_else(|| self.full_at(writes_below(limit))))
    }

    /// Refuses what takes data away where the log is full for that, too: it has reached its limit, and has
    /// taken removals since for the part that is kept for them. Entries of other leaders may have taken that
    /// part, and more, before a removal came that lets them go.
    pub(super) fn admit_removal(&self) -> Result<(), StoreError> {
        let limit = self.limit.bytes();
        self.press(limit);
        let full = self.full_at(limit);
        let is_left = self.limit.removed.load(Ordering::Relaxed) < limit / FOR_REMOVALS;
        self.refuse(full.filter(|_| !is_left))
    }

    /// Removals of so many bytes are taken.
    pub(super) fn count_removals(&self, bytes: u64) {
        if self.limit.is_full.load(Ordering::Relaxed) {
            self.limit.removed.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn refuse(&self, full: Option<StoreError>) -> Result<(), StoreError> {
        let Some(full) = full else { return Ok(()) };
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        self.limit.refused.store(true, Ordering::Relaxed);
        Err(full)
    }

    /// Has the log made shorter before it is full.
    fn press(&self, limit: u64) {
        if self.used() < limit / 8 * 5 {
            return;
        }
        let (end, step) = (self.log.appended(), limit / 32);
        let before = self.limit.pressed_at.load(Ordering::Relaxed);
        if end >= before.saturating_add(step) || self.used() >= writes_below(limit) {
            self.limit.pressed_at.store(end, Ordering::Relaxed);
            self.limit.pressed.notify_one();
        }
    }
}

/// Writes are taken while a log of this limit has fewer bytes than that.
fn writes_below(limit: u64) -> u64 {
    limit - limit / FOR_REMOVALS
}

impl NodeLog {
    /// Where the log is full, why: as [`NodeLog::admit`] would say.
    pub(crate) fn full(&self) -> Option<StoreError> {
        self.shared.full_at(writes_below(self.shared.limit.bytes()))
    }

    /// Why it takes no writes, where that lasts: its disk is full, or it has been too long for seconds.
    pub(crate) fn takes_no_writes(&self) -> Option<StoreError> {
        let full = || self.full().filter(StoreError::lasts);
        self.shortage().or_else(full)
    }

    /// Whether a write was refused since this was last asked.
    pub(crate) fn has_refused(&self) -> bool {
        self.shared.limit.refused.swap(false, Ordering::Relaxed)
    }

    pub(super) fn set_limit(&self, bytes: u64) {
        self.shared.limit.bytes.store(bytes, Ordering::Relaxed);
    }
}

impl ReplicaLog {
    /// The last entry that the log keeps only for those that are known to lack it, and the last that it
    /// keeps for none of them.
    pub(crate) fn dispensable(&self) -> (Option<u64>, Option<u64>) {
        let cuts = self.shared().cuts();
        self.entries_below(cuts)
    }

    /// Where its log is full, why.
    pub(crate) fn full(&self) -> Option<StoreError> {
        self.node_log().full()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{EntryId, LeaderId};
    use crate::raftlog::{Entry, Purpose};
    use collie_sim::SimDevice;

    #[test]
    fn the_default_limit_fits_the_disk() {
        const GIB: u64 = 1 << 30;
        for (size, limit) in [
            (400 << 20, 64 << 20),
            (2 * GIB, 256 << 20),
            (8 * GIB, GIB),
            (100 * GIB, 2 * GIB),
        ] {
            let device = SimDevice::new(1);
            device.limit_space(Some(size));
            let mut options = NodeLogOptions::default();
            options.log.device = Arc::new(device);
            let found = options.limit_in(Path::new("/not/there/yet"));
            // The device counts what it has itself, and whole blocks.
            assert!(found.abs_diff(limit) < 1 << 20, "{size}: {found}");
            options.log_limit = Some(5);
            assert_eq!(options.limit_in(Path::new("/")), 5);
        }
    }

    #[test]
    fn logs_on_a_disk_share_its_limit_and_each_takes_large_entries() {
        assert_eq!(share(2 << 30, 0), 2 << 30);
        assert_eq!(share(2 << 30, 16), 128 << 20);
        assert_eq!(share(2 << 30, 1_000), SHARE_LEAST);
        assert_eq!(share(1 << 20, 4), 1 << 20, "a test's");
    }
    /// Refused writes cause no flush, so the purge must not wait for one.
    #[test]
    fn who_purges_is_woken_by_the_log_and_not_by_flushes_alone() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut options = NodeLogOptions {
                log_limit: Some(1 << 20),
                ..NodeLogOptions::default()
            };
            options.log.device = Arc::new(SimDevice::new(1));
            options.log.ring = collie_log::RingMode::Private;
            options.log.ring_bytes = 64 << 10;
            let log = NodeLog::open("/log", options).unwrap();
            tokio::spawn(log.run());
            let replica = log.create(1, 10).await.unwrap();
            let leader = LeaderId { term: 1, replica: 10 };
            let mut index = 0;
            let flushes = std::sync::Mutex::new(0);
            let mut write = async |bytes: u64| {
                for _ in 0..bytes / 10_000 {
                    let id = EntryId { leader, index };
                    let payload = vec![7; 10_000].into();
                    replica.append(vec![Entry { id, payload }], |_| {}).await.unwrap();
                    index += 1;
                }
                log.maintain(&|_| *flushes.lock().unwrap() += 1).await.unwrap();
            };
            let woken = async || {
                let wanted = tokio::time::timeout(Duration::from_secs(30), replica.purge_wanted());
                wanted.await.expect("who purges is not woken");
            };
            write(50_000).await;
            assert!(futures_util::poll!(std::pin::pin!(replica.purge_wanted())).is_pending());
            assert_eq!(replica.dispensable(), (None, None));
            // More than a sixteenth of the limit, and less than half.
            write(100_000).await;
            woken().await;
            let (unasked, beyond) = replica.dispensable();
            assert!(unasked.is_some() && beyond.is_none() && *flushes.lock().unwrap() == 0);
            write(600_000).await;
            woken().await;
            let (unasked, beyond) = replica.dispensable();
            assert!(unasked > beyond && beyond.is_some() && *flushes.lock().unwrap() == 1);
        });
    }

    /// A follower's log takes what its leader sends, beyond its limit too. What its own leaders remove
    /// would be refused for good, and nothing would let go of the log.
    #[test]
    fn removals_have_their_part_in_a_log_that_is_beyond_its_limit() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            const LIMIT: u64 = 4 << 20;
            let mut options = NodeLogOptions {
                log_limit: Some(LIMIT),
                ..NodeLogOptions::default()
            };
            options.log.device = Arc::new(SimDevice::new(1));
            options.log.ring = collie_log::RingMode::Private;
            options.log.ring_bytes = 64 << 10;
            let log = NodeLog::open("/log", options).unwrap();
            tokio::spawn(log.run());
            let replica = log.create(1, 10).await.unwrap();
            let leader = LeaderId { term: 1, replica: 10 };
            let id = |index| EntryId { leader, index };
            let mut index = 0;
            let mut fill = async || {
                while log.shared.used() < LIMIT * 5 / 4 {
                    let entry = Entry {
                        id: id(index),
                        payload: vec![7; 10_000].into(),
                    };
                    replica.append(vec![entry], |_| {}).await.unwrap();
                    index += 1;
                }
            };
            let removals = || {
                let mut taken = 0;
                while replica.admit_removal().is_ok() {
                    drop(replica.reserve(4 << 10, Purpose::Remove).unwrap());
                    taken += 4 << 10;
                }
                taken
            };
            fill().await;
            assert!(replica.admit().is_err());
            assert_eq!((removals(), removals()), (LIMIT / FOR_REMOVALS, 0));
            // They have let go of it, and it is full again.
            replica
                .purge_durably(replica.bounds().last.unwrap())
                .await
                .unwrap();
            let let_go = async {
                while replica.admit().is_err() {
                    log.maintain(&|_| {}).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let let_go = tokio::time::timeout(Duration::from_secs(30), let_go).await;
            let_go.expect("the log is as long as before");
            fill().await;
            assert!(replica.admit().is_err());
            assert_eq!(removals(), LIMIT / FOR_REMOVALS);
        });
    }
}
