//! The queues of the background threads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::core::FamilyState;

/// Something for a flush thread.
pub(crate) enum FlushTask {
    /// Flush the family's sealed memtables.
    Family(Arc<FamilyState>),
    /// The log has grown past its limit.
    WalSize,
}

/// See the module's page. Bounded: a family is in each queue once at most.
#[derive(Default)]
pub(crate) struct Tasks {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    flushes: VecDeque<FlushTask>,
    compactions: VecDeque<Arc<FamilyState>>,
    stopping: bool,
}

impl Tasks {
    pub(crate) fn flush(&self, family: &Arc<FamilyState>) {
        // AcqRel: whoever clears the flag afterwards sees the memtable that this call is about.
        if !family.flush_queued.swap(true, Ordering::AcqRel) {
            self.state
                .lock()
                .flushes
                .push_back(FlushTask::Family(Arc::clone(family)));
            self.changed.notify_all();
        }
    }

    /// The caller makes sure that it is queued once at most.
    pub(crate) fn look_at_wal_size(&self) {
        self.state.lock().flushes.push_back(FlushTask::WalSize);
        self.changed.notify_all();
    }

    pub(crate) fn compact(&self, family: &Arc<FamilyState>) {
        if !family.compaction_queued.swap(true, Ordering::AcqRel) {
            self.state.lock().compactions.push_back(Arc::clone(family));
            self.changed.notify_all();
        }
    }

    /// The next task for a flush thread; `None` when the store closes.
    pub(crate) fn next_flush(&self) -> Option<FlushTask> {
        self.next(|state| state.flushes.pop_front())
    }

    /// The next family for a compaction thread; `None` when the store closes.
    pub(crate) fn next_compaction(&self) -> Option<Arc<FamilyState>> {
        self.next(|state| state.compactions.pop_front())
    }

    fn next<T>(&self, pop: impl Fn(&mut State) -> Option<T>) -> Option<T> {
        let mut state = self.state.lock();
        loop {
            if state.stopping {
                return None;
            }
            if let Some(task) = pop(&mut state) {
                return Some(task);
            }
            self.changed.wait(&mut state);
        }
    }

    /// Sleeps for `duration`, or until the store closes; returns whether it closes.
    pub(crate) fn pause(&self, duration: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.stopping {
            self.changed.wait_for(&mut state, duration);
        }
        state.stopping
    }

    /// Ends the threads after what they are at.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        // Families in the queues hold parts of the store; they must not keep it alive.
        state.flushes.clear();
        state.compactions.clear();
        drop(state);
        self.changed.notify_all();
    }
}
