//! The queues of the background threads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use collie_io::{Clock, Nanos, RealClock};
use parking_lot::{Condvar, Mutex};

use super::family_state::FamilyState;

/// Something for a flush thread.
pub(crate) enum FlushTask {
    /// Flush the family's sealed memtables.
    Family(Arc<FamilyState>),
    /// The log has grown past its limit.
    WalSize,
}

/// See the module's page. Bounded: a family is in each queue once at most, and so is the check of
/// the log's size.
#[derive(Default)]
pub(crate) struct TaskQueue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    flushes: Queue<FlushTask>,
    compactions: Queue<Arc<FamilyState>>,
    stopping: bool,
}

/// Tasks with the time before which they are not to be tried; 0 for at once.
struct Queue<T>(VecDeque<(Nanos, T)>);

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Queue<T> {
    /// The first task that is due, or how long to wait for the next one.
    fn pop(&mut self) -> Result<T, Option<Duration>> {
        let now = RealClock.monotonic();
        if let Some(at) = self.0.iter().position(|(due, _)| *due <= now)
            && let Some((_, task)) = self.0.remove(at)
        {
            return Ok(task);
        }
        let next = self.0.iter().map(|(due, _)| *due).min();
        Err(next.map(|due| Duration::from_nanos(due.saturating_sub(now))))
    }
}

fn due(pause: Duration) -> Nanos {
    if pause.is_zero() {
        0
    } else {
        RealClock.monotonic() + pause.as_nanos() as Nanos
    }
}

impl TaskQueue {
    pub(crate) fn flush(&self, family: &Arc<FamilyState>) {
        self.flush_after(family, Duration::ZERO);
    }

    /// Queues a flush that is not to be tried before `pause` has passed; others run first.
    pub(crate) fn flush_after(&self, family: &Arc<FamilyState>, pause: Duration) {
        if family.flushes().enqueue() {
            let task = FlushTask::Family(Arc::clone(family));
            self.state.lock().flushes.0.push_back((due(pause), task));
            self.changed.notify_all();
        }
    }

    pub(crate) fn check_wal_size(&self) {
        let flushes = &mut self.state.lock().flushes.0;
        // The limit and a full device ask for the check independently.
        if !flushes.iter().any(|(_, task)| matches!(task, FlushTask::WalSize)) {
            flushes.push_back((0, FlushTask::WalSize));
            self.changed.notify_all();
        }
    }

    pub(crate) fn compact(&self, family: &Arc<FamilyState>) {
        self.compact_after(family, Duration::ZERO);
    }

    pub(crate) fn compact_after(&self, family: &Arc<FamilyState>, pause: Duration) {
        if family.compactions().enqueue() {
            self.state
                .lock()
                .compactions
                .0
                .push_back((due(pause), Arc::clone(family)));
            self.changed.notify_all();
        }
    }

    /// The next task for a flush thread; `None` when the store closes.
    pub(crate) fn next_flush(&self) -> Option<FlushTask> {
        self.next(|state| state.flushes.pop())
    }

    /// The next family for a compaction thread; `None` when the store closes.
    pub(crate) fn next_compaction(&self) -> Option<Arc<FamilyState>> {
        self.next(|state| state.compactions.pop())
    }

    fn next<T>(&self, pop: impl Fn(&mut State) -> Result<T, Option<Duration>>) -> Option<T> {
        let mut state = self.state.lock();
        loop {
            if state.stopping {
                return None;
            }
            match pop(&mut state) {
                Ok(task) => return Some(task),
                Err(None) => self.changed.wait(&mut state),
                Err(Some(pause)) => {
                    self.changed.wait_for(&mut state, pause);
                }
            }
        }
    }

    /// Ends the threads after their current tasks.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        // Families in the queues refer to parts of the store; they must not keep it alive.
        state.flushes.0.clear();
        state.compactions.0.clear();
        drop(state);
        self.changed.notify_all();
    }
}

/// How long to wait after so many failures in a row.
pub(crate) fn pause_after(failures: u32) -> Duration {
    const FIRST_MS: u64 = 50;
    Duration::from_millis(FIRST_MS << failures.min(6))
}
