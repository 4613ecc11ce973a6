//! The limit on the memory of memtables, of one store or of all that share it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::shared::pool::Member;

/// The limit where none is set, unless a single family may have half of it or more.
const LEAST: u64 = 1 << 30;
/// Of what may be in memory before anything is sealed so large a part is sealed at a time, and the
/// next look comes after half of it.
const AT_ONCE: u64 = 16;

/// See the file's page. All atomics are Relaxed: they decide when to look, and publish nothing.
pub(crate) struct Budget {
    most: AtomicU64,
    is_set: bool,
    /// The bytes in memory at which memtables are looked at next.
    look_at: AtomicU64,
    /// Held by the thread that seals.
    sealing: Mutex<()>,
    members: Mutex<Vec<Weak<dyn Member>>>,
}

impl Budget {
    pub(super) fn new(most: Option<u64>) -> Self {
        let is_set = most.is_some();
        let most = most.unwrap_or(LEAST);
        Self {
            most: AtomicU64::new(most),
            is_set,
            look_at: AtomicU64::new(most / 2),
            sealing: Mutex::new(()),
            members: Mutex::default(),
        }
    }

    /// A store's memtables count from now on.
    pub(crate) fn join(&self, store: Weak<dyn Member>) {
        let mut members = self.members.lock();
        members.retain(|member| member.strong_count() > 0);
        members.push(store);
    }

    /// A single family never meets a limit that was not set.
    pub(crate) fn fit(&self, write_buffer_bytes: u64, max_write_buffers: usize) {
        if !self.is_set {
            let of_family = write_buffer_bytes.saturating_mul(max_write_buffers as u64);
            let most = of_family.saturating_mul(4);
            if self.most.fetch_max(most, Ordering::Relaxed) < most {
                self.look_at.fetch_max(most / 2, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    /// From here on memtables are sealed.
    fn soft(&self) -> u64 {
        self.most() / 2
    }

    /// Whether so many bytes in memory ask for a look at the memtables.
    pub(crate) fn asks_for_look(&self, bytes: u64) -> bool {
        bytes >= self.look_at.load(Ordering::Relaxed)
    }

    /// Memtables were flushed, and `bytes` are left.
    pub(crate) fn has_eased(&self, bytes: u64) {
        let soft = self.soft();
        if bytes < soft {
            self.look_at.store(soft, Ordering::Relaxed);
        }
    }

    /// Seals the largest active memtables, where all together, `bytes`, have grown large, unless more
    /// is on its way to tables already than is active. What waits for a log is not on its way: a log
    /// that stands still would keep the memtables of all other stores from being flushed.
    #[cold]
    pub(crate) fn seal_largest(&self, bytes: impl FnOnce() -> u64) {
        let Some(_sealing) = self.sealing.try_lock() else {
            return;
        };
        let (bytes, soft) = (bytes(), self.soft());
        if bytes < soft {
            return;
        }
        let stores: Vec<Arc<dyn Member>> = self.members.lock().iter().filter_map(Weak::upgrade).collect();
        let mut by_size = Vec::new();
        for store in &stores {
            let mems = store.active_mems();
            by_size.extend(mems.into_iter().map(|(bytes, family)| (bytes, store, family)));
        }
        if by_size.is_empty() {
            return;
        }
        self.look_at.store(bytes + soft / AT_ONCE / 2, Ordering::Relaxed);
        let active: u64 = by_size.iter().map(|(bytes, ..)| bytes).sum();
        let waiting: u64 = stores.iter().map(|store| store.waiting_mem_bytes()).sum();
        if active < bytes.saturating_sub(waiting) / 2 {
            return;
        }
        by_size.sort_unstable_by_key(|(bytes, ..)| std::cmp::Reverse(*bytes));
        let mut sealed = 0;
        for (bytes, store, family) in by_size {
            if sealed >= soft / AT_ONCE || bytes == 0 {
                break;
            }
            if store.seal(family) {
                sealed += bytes;
            }
        }
    }
}
