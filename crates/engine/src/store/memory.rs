//! The memory of all memtables together.
//!
//! Each family bounds its own memtables, and with a thousand families that bounds nothing. So the
//! bytes of all memtables that wait to be flushed are counted, active ones included. From half of
//! the limit on the largest active memtables are sealed and flushed; at the limit writes stop until
//! flushes have caught up.
//!
//! A large commit's memtables do not count: at as many bytes again the next large commit waits, and
//! no other write. Nor do those that are flushed and that a snapshot or an iterator still reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::Store;
use super::family_state::FamilyState;
use super::stall::Holds;
use super::view::FlushCause;
use crate::{Error, FamilyOptions};

/// The limit where none is set, unless a single family may have half of it or more.
const LEAST: u64 = 1 << 30;
/// Of what may be in memory before anything is sealed so large a part is sealed at a time, and the
/// next look comes after half of it.
const AT_ONCE: u64 = 16;

/// See the file's page. All atomics are Relaxed: they decide when to look, and publish nothing.
pub(super) struct MemoryLimit {
    most: AtomicU64,
    is_set: bool,
    /// The bytes in memory at which memtables are looked at next.
    look_at: AtomicU64,
    /// Held by the thread that seals.
    sealing: Mutex<()>,
}

impl MemoryLimit {
    pub(super) fn new(most: Option<u64>) -> Self {
        let is_set = most.is_some();
        let most = most.unwrap_or(LEAST);
        Self {
            most: AtomicU64::new(most),
            is_set,
            look_at: AtomicU64::new(most / 2),
            sealing: Mutex::new(()),
        }
    }

    /// A single family never meets a limit that was not set.
    pub(super) fn fit(&self, family: &FamilyOptions) {
        if !self.is_set {
            let of_family = family
                .write_buffer_bytes
                .saturating_mul(family.max_write_buffers as u64);
            let most = of_family.saturating_mul(4);
            if self.most.fetch_max(most, Ordering::Relaxed) < most {
                self.look_at.fetch_max(most / 2, Ordering::Relaxed);
            }
        }
    }

    fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    /// From here on memtables are sealed.
    fn soft(&self) -> u64 {
        self.most() / 2
    }
}

impl Store {
    /// Bytes of all memtables that wait to be flushed, large commits' own excepted.
    pub(crate) fn memtable_bytes(&self) -> u64 {
        self.chunks.unflushed()
    }

    /// The limit on them.
    pub(crate) fn max_memtable_bytes(&self) -> u64 {
        self.memory.most()
    }

    /// Seals the largest memtables where all of them together have grown large. For writers, after
    /// each commit.
    pub(crate) fn check_memory(&self) {
        if self.memtable_bytes() >= self.memory.look_at.load(Ordering::Relaxed) {
            self.seal_largest();
        }
    }

    /// Whether a writer has to wait until memtables are flushed. One that holds locks goes on for an
    /// eighth more.
    pub(super) fn is_memory_full(&self, holds: Holds) -> bool {
        let most = self.memory.most();
        let more = match holds {
            Holds::Nothing => 0,
            Holds::Locks => most / 8,
        };
        self.memtable_bytes() >= most + more
    }

    /// Whether the memtables of large commits that wait to be flushed take as much as all others may.
    pub(crate) fn is_full_of_large(&self) -> bool {
        let families = self.families();
        let bytes: u64 = families.iter().map(|family| family.view().large_bytes()).sum();
        bytes >= self.memory.most()
    }

    /// Memtables were flushed.
    pub(crate) fn memory_has_eased(&self) {
        let soft = self.memory.soft();
        if self.memtable_bytes() < soft {
            self.memory.look_at.store(soft, Ordering::Relaxed);
        }
    }

    /// Seals the largest active memtables, unless more is sealed already than is active: that is on
    /// its way. Replay seals by itself.
    #[cold]
    pub(super) fn seal_largest(&self) {
        let Some(_sealing) = self.memory.sealing.try_lock() else {
            return;
        };
        let (bytes, soft) = (self.memtable_bytes(), self.memory.soft());
        if bytes < soft || self.is_replaying() {
            return;
        }
        self.memory
            .look_at
            .store(bytes + soft / AT_ONCE / 2, Ordering::Relaxed);
        let families = self.families();
        let mut by_size: Vec<(u64, &Arc<FamilyState>)> = families
            .iter()
            .map(|family| (family.view().active.bytes(), family))
            .collect();
        let active: u64 = by_size.iter().map(|(bytes, _)| bytes).sum();
        if active < bytes / 2 {
            return;
        }
        by_size.sort_unstable_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        let mut sealed = 0;
        for (bytes, family) in by_size {
            if sealed >= soft / AT_ONCE || bytes == 0 {
                break;
            }
            let options = family.options();
            let rotated = self.rotate(family, FlushCause::Memory, |view| {
                view.active.bytes() > 0 && view.buffers(options) < options.max_write_buffers
            });
            match rotated {
                Ok(Some(_)) => {
                    sealed += bytes;
                    self.queue().flush(family);
                    self.update_stall(family);
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(family = %family.name(), %error, "a large memtable is not sealed yet");
                }
            }
        }
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
