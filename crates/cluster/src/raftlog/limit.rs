//! How long a log may become, and what it keeps of entries that the tables have.
//!
//! Everything here is bytes of the log, since those are what runs out: an entry is as old as what was
//! appended behind it, by whichever replica. So one rule bounds what each replica keeps and what all keep
//! together, and the oldest goes first.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use collie_io::{Device, file_system_bytes};
use collie_log::{Log, Lsn};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::raftlog::options::{NodeLogOptions, Retention};

/// The limit that a disk of any size has room for; and that of a disk that does not say its size.
const LIMIT_MOST: u64 = 2 << 30;
/// The least limit: a few of the largest entries, and what is written while the log is made shorter.
const LIMIT_LEAST: u64 = 64 << 20;
/// A disk's logs may have so large a part of it.
const OF_DISK: u64 = 8;
/// The least limit of a log that shares its disk's with others.
pub(super) const SHARE_LEAST: u64 = 32 << 20;
/// A log has at least so many segments when it has reached its limit, as it is cut by whole ones.
const SEGMENTS: u64 = 16;
/// The smallest segment that is made for that.
const SEGMENT_LEAST: u64 = 1 << 20;
/// A log takes what leaders elsewhere send until it is so large a part longer than its limit: they may have
/// admitted a command of that size.
const BEYOND: u64 = 3;
/// Where a log that takes none has not become shorter for so long, what it waits for may be in what it does
/// not take: it takes so large a part of its limit more.
const UNCHANGED: Duration = Duration::from_secs(2);
const MORE: u64 = 8;
/// Of its limit, a log leaves so large a part to what takes data away.
pub(super) const FOR_REMOVALS: u64 = 16;

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
    alarms: Alarms,
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
    /// Since it takes nothing of leaders elsewhere.
    brake: Mutex<Option<Brake>>,
}

/// A log that is beyond its limit by what leaders elsewhere have sent.
#[derive(Debug)]
struct Brake {
    /// Since when it begins there.
    since: Instant,
    oldest: Lsn,
    /// It takes entries below so many bytes.
    most: u64,
}

/// What the logs of a node ask of who looks after them. A log that goes away takes none of it along.
#[derive(Debug, Clone, Default)]
pub(super) struct Alarms {
    /// Woken when a log is to be made shorter at once.
    pub(super) pressed: Arc<Notify>,
    /// A write was refused since who waits for room was last woken.
    pub(super) refused: Arc<AtomicBool>,
}

impl Limit {
    pub(super) fn new(bytes: u64, alarms: Alarms) -> Self {
        Self {
            bytes: AtomicU64::new(bytes),
            alarms,
            pressed_at: AtomicU64::new(0),
            crowded: AtomicBool::new(false),
            full_since: Mutex::default(),
            is_full: AtomicBool::new(false),
            removed: AtomicU64::new(0),
            brake: Mutex::default(),
        }
    }

    // Relaxed, here and below: each is a number or a flag by itself that is looked at again and again.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn set_crowded(&self, crowded: bool) {
        self.crowded.store(crowded, Ordering::Relaxed);
    }

    /// A write was refused: who waits for room is woken soon.
    pub(super) fn note_refusal(&self) {
        // Relaxed: a flag by itself.
        self.alarms.refused.store(true, Ordering::Relaxed);
    }

    /// What the log keeps now. Where its disk has little room, or it is full, at least its oldest quarter
    /// goes.
    pub(super) fn cuts(&self, log: &Log, retention: Option<Retention>) -> Cuts {
        let limit = self.bytes();
        let Retention { margin, lagging } = retention.unwrap_or_else(|| Retention::of(limit));
        let (used, end) = (used(log), log.appended());
        let is_pressed = self.crowded.load(Ordering::Relaxed) || used >= writes_below(limit);
        let oldest_quarter = (end - used) + used / 4;
        let far = end.saturating_sub(lagging);
        let hard = if is_pressed { far.max(oldest_quarter) } else { far };
        Cuts {
            soft: end.saturating_sub(margin).max(hard),
            hard,
        }
    }

    /// If the log has so many bytes: how many it has, and since when it is full.
    pub(super) fn full_since(&self, log: &Log, bytes: u64) -> Option<(u64, Instant)> {
        let used = used(log);
        if used < bytes {
            if self.is_full.load(Ordering::Relaxed) {
                self.not_full(log);
            }
            return None;
        }
        let since = *self.full_since.lock().get_or_insert_with(Instant::now);
        self.is_full.store(true, Ordering::Relaxed);
        Some((used, since))
    }

    fn not_full(&self, log: &Log) {
        let mut since = self.full_since.lock();
        if used(log) < writes_below(self.bytes()) {
            *since = None;
            self.is_full.store(false, Ordering::Relaxed);
            self.removed.store(0, Ordering::Relaxed);
        }
    }

    /// Removals of so many bytes are taken.
    pub(super) fn count_removals(&self, bytes: u64) {
        if self.is_full.load(Ordering::Relaxed) {
            self.removed.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Whether removals that were taken since the log is full leave some of the part that is kept for them.
    pub(super) fn takes_removals(&self) -> bool {
        self.removed.load(Ordering::Relaxed) < self.bytes() / FOR_REMOVALS
    }

    /// Whether a log takes more of what leaders elsewhere send, when it has taken but not yet appended
    /// `coming` bytes. What they have in it is let go of when it is applied and in tables; but in three logs
    /// full of entries that each of the others lacks nothing can be committed. So one that does not become
    /// shorter takes more, a part at a time.
    pub(super) fn takes_of_leaders(&self, log: &Log, coming: u64) -> bool {
        let (used, oldest) = (used(log).saturating_add(coming), log.oldest());
        let (limit, more) = (self.bytes(), self.bytes() / MORE);
        let least = limit + limit / BEYOND;
        let mut brake = self.brake.lock();
        if used < least {
            *brake = None;
            return true;
        }
        let now = Instant::now();
        let begun = |most| Brake {
            since: now,
            oldest,
            most,
        };
        let brake = brake.get_or_insert_with(|| begun(least));
        if brake.oldest != oldest {
            *brake = begun(least);
        } else if now.duration_since(brake.since) >= UNCHANGED {
            *brake = begun(used + more);
        }
        used < brake.most
    }

    /// Has the log made shorter before it is full.
    pub(super) fn press(&self, log: &Log) {
        let limit = self.bytes();
        if used(log) < limit / 8 * 5 {
            return;
        }
        let (end, step) = (log.appended(), limit / 32);
        let before = self.pressed_at.load(Ordering::Relaxed);
        if end >= before.saturating_add(step) || used(log) >= writes_below(limit) {
            self.pressed_at.store(end, Ordering::Relaxed);
            self.alarms.pressed.notify_one();
        }
    }
}

/// Writes are taken while a log of this limit has fewer bytes than that.
pub(super) fn writes_below(limit: u64) -> u64 {
    limit - limit / FOR_REMOVALS
}

/// Bytes from the oldest segment on.
pub(super) fn used(log: &Log) -> u64 {
    log.appended().saturating_sub(log.oldest())
}

impl NodeLogOptions {
    /// The limit of a log, or of all logs together, in `dir`: the one that was set, or what fits its disk.
    pub(super) fn limit_in(&self, dir: &Path) -> u64 {
        let fits = || {
            let size = file_system_bytes(&*self.log.device, dir);
            (size / OF_DISK).clamp(LIMIT_LEAST, LIMIT_MOST)
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ids::{EntryId, LeaderId};
    use crate::raftlog::{Entry, NodeLog};
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
}
