//! The open transactions, and the keys that were removed while they are open.
//!
//! # Removed keys
//!
//! Whether a key was written since a snapshot is decided by the LSN of its newest entry, which a
//! table keeps too. But a compaction into the last level drops tombstones, and then a key that
//! never existed cannot be distinguished from one that was put and removed since. The table library
//! does that whatever the watermark (docs/design/decisions/0008). So a flush notes here the keys that it
//! removes, before its tables replace the memtable in the view, as long as a transaction is open
//! whose snapshot may be older.
//!
//! *Nothing is missed.* A transaction is in the registry before it takes its snapshot. Where a
//! flush does not find it there, the snapshot is taken later, and its boundary is above all commits
//! of the flush, which waited until they were visible.
//!
//! *The number of keys is limited.* Beyond the limit the oldest are discarded, and for a
//! transaction that is older than these every key may have been removed.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use collie_io::Clock;
use collie_log::Lsn;
use parking_lot::Mutex;

use crate::Key;
use crate::key::{Bounds, contains};
use crate::locks::owner::Owner;
use crate::memtable::Entry;

/// An open transaction, as others see it.
#[derive(Debug)]
pub(crate) struct OpenTransaction {
    owner: Arc<Owner>,
    /// By the monotonic clock, in nanoseconds.
    began: u64,
    /// All commits below this are in its snapshot.
    from: Lsn,
    thread: Option<String>,
    /// The locks that it holds, or that an optimistic one will take at its commit, and the size of
    /// its commit so far. Relaxed: they are only shown.
    pub(crate) locks: AtomicUsize,
    pub(crate) bytes: AtomicUsize,
}

impl OpenTransaction {
    pub(crate) fn id(&self) -> u64 {
        self.owner.id
    }
}

/// An open transaction; see [`Db::transactions`](crate::Db::transactions).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransactionInfo {
    /// Its number.
    pub id: u64,
    /// The name that its options gave it.
    pub name: String,
    /// The thread that began it, where that has a name.
    pub thread: Option<String>,
    /// How long ago that was.
    pub age: Duration,
    /// Rows and ranges that it has locked; of an optimistic one, keys that its commit will check.
    pub locks: usize,
    /// Bytes of its commit so far.
    pub bytes: usize,
    /// The row that it waits for, by family and key, if it waits; the key is empty where it is a
    /// range.
    pub waits_for: Option<(String, Key)>,
}

/// How transactions ended so far.
#[derive(Debug, Default)]
pub(crate) struct TransactionCounters {
    pub(crate) begun: AtomicU64,
    pub(crate) committed: AtomicU64,
    pub(crate) conflicts: AtomicU64,
}

/// The open transactions of a store.
#[derive(Debug)]
pub(crate) struct Registry {
    open: Mutex<Open>,
    pub(crate) counters: TransactionCounters,
}

#[derive(Debug)]
struct Open {
    entries: BTreeMap<u64, Arc<OpenTransaction>>,
    /// Removals that the open transactions may need.
    removals: Removals,
}

impl Open {
    fn oldest(&self) -> Option<Lsn> {
        self.entries.values().map(|entry| entry.from).min()
    }
}

impl Registry {
    /// An empty registry, which keeps `limit` removals at most.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            open: Mutex::new(Open {
                entries: BTreeMap::new(),
                removals: Removals::new(limit),
            }),
            counters: TransactionCounters::default(),
        }
    }

    /// Adds a transaction, before its snapshot is taken. `visible` is the boundary, now or earlier.
    pub(crate) fn enter(&self, owner: &Arc<Owner>, clock: &dyn Clock, visible: Lsn) -> Arc<OpenTransaction> {
        let entry = Arc::new(OpenTransaction {
            owner: Arc::clone(owner),
            began: clock.monotonic(),
            from: visible,
            thread: std::thread::current().name().map(str::to_owned),
            locks: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        });
        self.counters.begun.fetch_add(1, Ordering::Relaxed);
        self.open.lock().entries.insert(entry.id(), Arc::clone(&entry));
        entry
    }

    pub(crate) fn leave(&self, entry: &OpenTransaction) {
        let mut open = self.open.lock();
        open.entries.remove(&entry.id());
        if !open.removals.is_empty() {
            let oldest = open.oldest();
            if oldest.is_none_or(|oldest| oldest > entry.from) {
                open.removals.forget(oldest);
            }
        }
    }

    /// How many are open.
    pub(crate) fn open(&self) -> usize {
        self.open.lock().entries.len()
    }

    /// Runs `work` with the removals, and with the lower bound of the open transactions' snapshots,
    /// if there are any.
    pub(crate) fn with_removals<T>(&self, work: impl FnOnce(&mut Removals, Option<Lsn>) -> T) -> T {
        let mut open = self.open.lock();
        let oldest = open.oldest();
        work(&mut open.removals, oldest)
    }

    /// All that are open, from the oldest on. `waits_for` returns the row that one waits for.
    pub(crate) fn list(
        &self,
        now: u64,
        waits_for: impl Fn(u64) -> Option<(String, Key)>,
    ) -> Vec<TransactionInfo> {
        let open: Vec<_> = self.open.lock().entries.values().cloned().collect();
        open.iter()
            .map(|entry| TransactionInfo {
                id: entry.id(),
                name: entry.owner.name.to_string(),
                thread: entry.thread.clone(),
                age: Duration::from_nanos(now.saturating_sub(entry.began)),
                locks: entry.locks.load(Ordering::Relaxed),
                bytes: entry.bytes.load(Ordering::Relaxed),
                waits_for: waits_for(entry.id()),
            })
            .collect()
    }
}

/// What one flush removed.
#[derive(Debug)]
struct FlushedRemovals {
    family: u32,
    /// The end of the memtable.
    until: Lsn,
    /// Sorted by key.
    keys: Vec<(Key, Lsn)>,
}

/// Keys that flushes have removed and that open transactions may ask for: tables may have lost their
/// tombstones.
#[derive(Debug)]
pub(crate) struct Removals {
    /// From the oldest to the newest.
    flushed: Vec<Arc<FlushedRemovals>>,
    /// In all of them.
    keys: usize,
    limit: usize,
    /// Below this, removals may have been discarded that open transactions may need.
    forgotten: Lsn,
}

impl Removals {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            flushed: Vec::new(),
            keys: 0,
            limit,
            forgotten: 0,
        }
    }

    fn add(&mut self, new: FlushedRemovals) {
        // Replaces that of an earlier attempt at the same flush, which failed afterwards.
        self.retain(|old| (old.family, old.until) != (new.family, new.until));
        while self.keys + new.keys.len() > self.limit && !self.flushed.is_empty() {
            let oldest = self.flushed.remove(0);
            self.keys -= oldest.keys.len();
            self.forgotten = self.forgotten.max(oldest.until);
        }
        if new.keys.len() > self.limit {
            self.forgotten = self.forgotten.max(new.until);
        } else {
            self.keys += new.keys.len();
            self.flushed.push(Arc::new(new));
        }
    }

    fn retain(&mut self, is_kept: impl Fn(&FlushedRemovals) -> bool) {
        self.flushed.retain(|flushed| is_kept(flushed));
        self.keys = self.flushed.iter().map(|flushed| flushed.keys.len()).sum();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.flushed.is_empty()
    }

    /// Discards what no open transaction needs; `oldest` is the lower bound of all their snapshots,
    /// if there are any.
    pub(crate) fn forget(&mut self, oldest: Option<Lsn>) {
        self.retain(|flushed| oldest.is_some_and(|oldest| flushed.until > oldest));
    }

    /// What was removed from a family, and flushed, since `since`.
    pub(crate) fn since(&self, family: u32, since: Lsn) -> RemovedSince {
        let is_asked_for =
            |flushed: &&Arc<FlushedRemovals>| flushed.family == family && flushed.until > since;
        RemovedSince {
            flushed: self.flushed.iter().filter(is_asked_for).cloned().collect(),
            since,
            is_whole: since >= self.forgotten,
        }
    }
}

/// What was removed from a family since a snapshot.
#[derive(Debug)]
pub(crate) struct RemovedSince {
    flushed: Vec<Arc<FlushedRemovals>>,
    since: Lsn,
    /// Nothing of it was discarded.
    is_whole: bool,
}

impl RemovedSince {
    /// Whether a key may have been removed without a trace in the tables.
    pub(crate) fn may_have(&self, key: &[u8]) -> bool {
        let has = |flushed: &Arc<FlushedRemovals>| {
            let found = flushed.keys.binary_search_by(|(removed, _)| (**removed).cmp(key));
            found.is_ok_and(|at| flushed.keys[at].1 >= self.since)
        };
        !self.is_whole || self.flushed.iter().any(has)
    }

    /// Whether a key between the bounds may have been removed.
    pub(crate) fn may_have_any(&self, bounds: &Bounds) -> bool {
        let has = |flushed: &Arc<FlushedRemovals>| {
            let is_below = |(key, _): &(Key, Lsn)| match &bounds.0 {
                Bound::Included(low) => key < low,
                Bound::Excluded(low) => key <= low,
                Bound::Unbounded => false,
            };
            let first = flushed.keys.partition_point(is_below);
            let inside = flushed.keys.iter().skip(first);
            inside
                .take_while(|(key, _)| contains(bounds, key))
                .any(|(_, at)| *at >= self.since)
        };
        !self.is_whole || self.flushed.iter().any(has)
    }
}

/// Collects what a flush removes.
pub(crate) struct Noting<'a> {
    registry: &'a Registry,
    flushed: FlushedRemovals,
    /// Removals from here on are needed; `None`: no transaction is open that needs any.
    oldest: Option<Lsn>,
    limit: usize,
}

impl Noting<'_> {
    pub(crate) fn note(&mut self, entry: &Entry) {
        // One key more than the limit shows that it is exceeded.
        if self.oldest.is_some_and(|oldest| entry.found.at.start >= oldest)
            && entry.found.value.is_none()
            && self.flushed.keys.len() <= self.limit
        {
            // A copy: the entry's own key may share a larger allocation.
            let key = Key::from(&*entry.key);
            self.flushed.keys.push((key, entry.found.at.start));
        }
    }

    /// Adds them to the registry. To be called before reads see the flush's tables.
    pub(crate) fn keep(self) {
        if !self.flushed.keys.is_empty() {
            self.registry.with_removals(|removals, oldest| {
                removals.add(self.flushed);
                // The transaction that needed it may have ended by now.
                removals.forget(oldest);
            });
        }
    }
}

impl Registry {
    /// Begins to collect what the flush of a memtable that ends at `until` removes. All its commits
    /// are visible.
    pub(crate) fn note_removals(&self, family: u32, until: Lsn) -> Noting<'_> {
        let (oldest, limit) = self.with_removals(|removals, oldest| (oldest, removals.limit));
        Noting {
            registry: self,
            flushed: FlushedRemovals {
                family,
                until,
                keys: Vec::new(),
            },
            oldest: oldest.filter(|oldest| *oldest < until),
            limit,
        }
    }

    pub(crate) fn removed_since(&self, family: u32, since: Lsn) -> RemovedSince {
        self.with_removals(|removals, _| removals.since(family, since))
    }
}

#[cfg(test)]
mod tests {
    use crate::test::hold;
    use crate::test::interleavings::{new_store, put};
    use crate::{Db, Error, TransactionOptions};

    fn kept(db: &Db) -> (usize, usize) {
        let registry = db.store().transactions();
        registry.with_removals(|removals, _| (removals.flushed.len(), removals.keys))
    }

    #[test]
    fn removals_are_kept_while_an_open_transaction_may_need_them() {
        let (_dir, db) = new_store();
        let family = db.default_family();
        let remove = |keys: &[&str]| {
            for key in keys {
                family.delete(key).unwrap();
            }
            family.flush().unwrap();
        };
        remove(&["not", "needed"]);
        assert_eq!(kept(&db), (0, 0));
        let first = db.transaction(TransactionOptions::default()).unwrap();
        remove(&["a"]);
        let second = db.transaction(TransactionOptions::optimistic()).unwrap();
        put(&family, "x", "no removal");
        remove(&["b", "c"]);
        assert_eq!(kept(&db), (2, 3));
        drop(first);
        assert_eq!(kept(&db), (1, 2), "the first needed `a`");
        let third = db.transaction(TransactionOptions::default()).unwrap();
        drop(second);
        assert_eq!(kept(&db), (0, 0));
        drop(third);
    }

    /// A transaction begins after the flush has read the registry and before reads see its tables.
    #[test]
    fn a_transaction_begun_in_a_flush_sees_removals_or_conflicts() {
        let (_dir, db) = new_store();
        let family = db.default_family();
        put(&family, "k", "v");
        family.delete("k").unwrap();
        let flush = {
            let family = family.clone();
            hold("tables are written", move || family.flush()).at_point()
        };
        let tx = db.transaction(TransactionOptions::default()).unwrap();
        assert_eq!(tx.get(&family, "k").unwrap(), None);
        put(&family, "later", "v");
        family.delete("later").unwrap();
        flush.finish().unwrap();
        family.flush().unwrap();
        family.compact().unwrap();
        tx.get_for_update(&family, "k").unwrap();
        let refused = tx.get_for_update(&family, "later");
        assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
    }
}
