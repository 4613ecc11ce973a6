//! Threads that do the background work of many stores.
//!
//! Each store keeps its own queues of tasks. For each task that it queues, its pool gets a ticket
//! with the store and the time before which the task is not to be tried. A thread takes the first
//! ticket that is due and does one task of that store, so stores take turns however much work one of
//! them has. A flush may wait for its store's log, so a store has one flush thread at most: a ticket
//! that is taken meanwhile comes back when that one is done.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use collie_io::{Clock, Nanos, RealClock};
use parking_lot::{Condvar, Mutex};

/// What a thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskKind {
    Flush,
    Compaction,
    WholeMerge,
}

/// A store, for those that share with it.
pub(crate) trait Member: Send + Sync {
    /// Does one task of that kind that is due, if there is one.
    fn do_one(&self, kind: TaskKind);

    /// A thread panicked in a task.
    fn panicked(&self, thread: &str);

    /// The families' ids with the bytes of their active memtables, which may be sealed.
    fn active_mems(&self) -> Vec<(u64, u32)>;

    /// The bytes of its sealed memtables, while a flush waits for its log.
    fn waiting_mem_bytes(&self) -> u64;

    /// Seals a family's active memtable for its size, and queues its flush. Returns whether it did.
    fn seal(&self, family: u32) -> bool;
}

/// The threads of many stores, and what they are to do. Bounded: a store has a ticket for each of
/// its tasks, which are bounded.
#[derive(Default)]
pub(crate) struct ThreadPool {
    state: Mutex<PoolState>,
    changed: Condvar,
}

#[derive(Default)]
struct PoolState {
    flushes: Tickets,
    compactions: Tickets,
    whole_merges: Tickets,
    ended: bool,
}

type Tickets = VecDeque<(Nanos, Weak<dyn Member>)>;

impl PoolState {
    fn tickets(&mut self, kind: TaskKind) -> &mut Tickets {
        match kind {
            TaskKind::Flush => &mut self.flushes,
            TaskKind::Compaction => &mut self.compactions,
            TaskKind::WholeMerge => &mut self.whole_merges,
        }
    }

    /// The store of the first ticket that is due.
    fn take_due(&mut self, kind: TaskKind, now: Nanos) -> Option<Arc<dyn Member>> {
        let tickets = self.tickets(kind);
        while let Some(at) = tickets.iter().position(|(due, _)| *due <= now) {
            // A store that is gone needs nothing.
            if let Some(store) = tickets.remove(at).and_then(|(_, store)| store.upgrade()) {
                return Some(store);
            }
        }
        None
    }
}

impl ThreadPool {
    /// A store has queued a task that is not to be tried before `due`.
    pub(crate) fn add(&self, kind: TaskKind, due: Nanos, store: Weak<dyn Member>) {
        self.state.lock().tickets(kind).push_back((due, store));
        self.changed.notify_all();
    }

    /// Tickets for flushes.
    #[cfg(test)]
    pub(crate) fn flush_tickets(&self) -> usize {
        self.state.lock().flushes.len()
    }

    /// Ends the threads after their current tasks.
    pub(super) fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }

    /// What a thread of the pool runs.
    pub(super) fn work(&self, kind: TaskKind) {
        while let Some(store) = self.next(kind) {
            let done = catch_unwind(AssertUnwindSafe(|| store.do_one(kind)));
            if done.is_err() {
                let thread = std::thread::current();
                store.panicked(thread.name().unwrap_or("of the background"));
            }
        }
    }

    /// Does one task that is due, if there is one.
    pub(super) fn work_once(&self, kind: TaskKind) -> bool {
        let due = self.state.lock().take_due(kind, RealClock.monotonic());
        due.inspect(|store| store.do_one(kind)).is_some()
    }

    /// The store whose turn it is; `None` at the end.
    fn next(&self, kind: TaskKind) -> Option<Arc<dyn Member>> {
        let mut state = self.state.lock();
        loop {
            if state.ended {
                return None;
            }
            let now = RealClock.monotonic();
            if let Some(store) = state.take_due(kind, now) {
                return Some(store);
            }
            match state.tickets(kind).iter().map(|(due, _)| *due).min() {
                None => self.changed.wait(&mut state),
                Some(due) => {
                    let pause = Duration::from_nanos(due.saturating_sub(now));
                    self.changed.wait_for(&mut state, pause);
                }
            }
        }
    }
}
