//! The open transactions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use collie_io::Clock;
use collie_log::Lsn;
use parking_lot::Mutex;

use crate::Key;
use crate::locks::owner::Owner;
use crate::transaction::removals::Removals;

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

/// See the module's page.
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
