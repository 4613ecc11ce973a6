//! The memory of all memtables together; of all stores, where they share it.
//!
//! Each family bounds its own memtables, and with a thousand families that bounds nothing. So the
//! bytes of all memtables that wait to be flushed are counted, active ones included. From half of
//! the limit on the largest active memtables are sealed and flushed; at the limit writes stop until
//! flushes have caught up.
//!
//! A large commit's memtables do not count: at as many bytes again the next large commit waits, and
//! no other write. Nor do those that are flushed and that a snapshot or an iterator still reads.

use std::sync::Weak;
use std::sync::atomic::Ordering;

use collie_log::{Level, Lsn};

use crate::store::Store;
use crate::store::stall::Holds;
use crate::{Error, Result, Stall};

impl Store {
    /// Its memtables count in the budget from now on.
    pub(crate) fn join_budget(&self, this: Weak<Self>) {
        self.budget.join(this);
    }

    /// Bytes of all memtables that wait to be flushed, large commits' own excepted.
    pub(crate) fn memtable_bytes(&self) -> u64 {
        self.chunks.unflushed()
    }

    /// The limit on them.
    pub(crate) fn max_memtable_bytes(&self) -> u64 {
        self.budget.most()
    }

    /// Seals the largest memtables where all of them together have grown large. For writers, after
    /// each commit.
    pub(crate) fn check_memory(&self) {
        if self.budget.asks_for_look(self.memtable_bytes()) {
            self.seal_largest();
        }
    }

    /// Whether a writer has to wait until memtables are flushed. One that holds locks goes on for an
    /// eighth more.
    pub(super) fn is_memory_full(&self, holds: Holds) -> bool {
        let most = self.budget.most();
        let more = match holds {
            Holds::Nothing => 0,
            Holds::Locks => most / 8,
        };
        self.memtable_bytes() >= most + more
    }

    /// The most that is done to writes now.
    pub(crate) fn stall(&self) -> Stall {
        match self.is_memory_full(Holds::Nothing) {
            true => Stall::Stopped,
            false => self.worst_family(),
        }
    }

    /// Whether the memtables of large commits that wait to be flushed take as much as all others may.
    pub(crate) fn is_full_of_large(&self) -> bool {
        let families = self.families();
        let bytes: u64 = families.iter().map(|family| family.view().large_bytes()).sum();
        bytes >= self.budget.most()
    }

    /// Waits until the log is durable up to `end`. For flushes: what they would flush does not leave
    /// memory meanwhile.
    pub(crate) fn wait_for_log(&self, end: Lsn) -> Result<()> {
        // Relaxed, as the load: it decides which memtables are sealed, and publishes nothing.
        self.log_waits.fetch_add(1, Ordering::Relaxed);
        let durable = self.sequencer.wait(end, Level::Disk);
        self.log_waits.fetch_sub(1, Ordering::Relaxed);
        durable
    }

    /// Whether a flush waits for the log.
    pub(crate) fn waits_for_log(&self) -> bool {
        self.log_waits.load(Ordering::Relaxed) > 0
    }

    /// Memtables were flushed.
    pub(crate) fn memory_has_eased(&self) {
        self.budget.has_eased(self.memtable_bytes());
    }

    /// Seals the largest active memtables, those of stores with which this one shares included.
    #[cold]
    pub(super) fn seal_largest(&self) {
        self.budget.seal_largest(|| self.memtable_bytes());
    }

    /// Why no memtable can be flushed, where each of the families that have one to flush fails to.
    pub(super) fn flushes_fail(&self) -> Option<Error> {
        let families = self.families();
        let waiting = families.iter().filter(|family| !family.view().sealed.is_empty());
        let mut errors = waiting.map(|family| family.flushes().error());
        let first = errors.next().flatten()?;
        errors.all(|error| error.is_some()).then_some(first)
    }
}
