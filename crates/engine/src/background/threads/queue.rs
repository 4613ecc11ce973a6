//! The queues of a store's background work.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use collie_io::{Clock, Nanos, RealClock};
use parking_lot::{Condvar, Mutex};

use crate::background::threads::pool::{Member, TaskKind, ThreadPool};
use crate::store::family::FamilyState;

/// Something for a flush thread.
pub(crate) enum FlushTask {
    /// Flush the family's sealed memtables.
    Family(Arc<FamilyState>),
    /// The log has grown past its limit.
    WalSize,
    /// The device is full.
    Room,
}

/// What a store's background threads are to do. Bounded: a family is in each queue once at most,
/// and so is the check of the log's size.
#[derive(Default)]
pub(crate) struct TaskQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
    /// Whose threads do the tasks, and for which store, if that has no threads of its own.
    pool: OnceLock<(Arc<ThreadPool>, Weak<dyn Member>)>,
}

#[derive(Default)]
struct QueueState {
    flushes: Queue<FlushTask>,
    compactions: Queue<Arc<FamilyState>>,
    whole_merges: Queue<Arc<FamilyState>>,
    stopping: bool,
    /// Tasks that threads of a pool do now.
    running: usize,
    /// A thread of a pool flushes. No other one does, for it might only wait for the same log.
    flushing: bool,
    /// Tickets for flushes that came up meanwhile.
    deferred: usize,
}

/// A task is done by a thread of a pool as long as this lives.
pub(crate) struct Running<'a>(&'a TaskQueue, TaskKind);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.running -= 1;
        let deferred = match self.1 {
            TaskKind::Flush => {
                state.flushing = false;
                std::mem::take(&mut state.deferred)
            }
            TaskKind::Compaction | TaskKind::WholeMerge => 0,
        };
        drop(state);
        self.0.changed.notify_all();
        for _ in 0..deferred {
            // Behind those of other stores. They are due: a thread had taken them.
            self.0.announce(TaskKind::Flush, 0);
        }
    }
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
    /// From now on threads of the pool do the tasks. The store has none of its own.
    pub(crate) fn join(&self, pool: Arc<ThreadPool>, store: Weak<dyn Member>) {
        // A store is opened once.
        let _ = self.pool.set((pool, store));
    }

    /// Announces a further task to the threads that do them.
    fn announce(&self, kind: TaskKind, due: Nanos) {
        match self.pool.get() {
            Some((pool, store)) => pool.add(kind, due, Weak::clone(store)),
            None => {
                self.changed.notify_all();
            }
        }
    }

    pub(crate) fn flush(&self, family: &Arc<FamilyState>) {
        self.flush_after(family, Duration::ZERO);
    }

    /// Queues a flush that is not to be tried before `pause` has passed; others run first.
    pub(crate) fn flush_after(&self, family: &Arc<FamilyState>, pause: Duration) {
        if family.flushes().enqueue() {
            let task = FlushTask::Family(Arc::clone(family));
            let due = due(pause);
            let mut state = self.state.lock();
            if family.is_dropped() {
                return;
            }
            state.flushes.0.push_back((due, task));
            drop(state);
            self.announce(TaskKind::Flush, due);
        }
    }

    pub(crate) fn check_wal_size(&self) {
        let mut state = self.state.lock();
        state.flushes.0.push_back((0, FlushTask::WalSize));
        drop(state);
        self.announce(TaskKind::Flush, 0);
    }

    /// Takes a family out of the queues that was dropped: what is to be tried later would keep its
    /// files, and their space, until then. None is queued again.
    pub(crate) fn forget(&self, family: &FamilyState) {
        fn take<T>(queue: &mut Queue<T>, is: impl Fn(&T) -> bool) -> Vec<T> {
            let (taken, kept) = std::mem::take(&mut queue.0)
                .into_iter()
                .partition(|(_, task)| is(task));
            queue.0 = kept;
            let taken: VecDeque<(Nanos, T)> = taken;
            taken.into_iter().map(|(_, task)| task).collect()
        }
        let is = |queued: &Arc<FamilyState>| queued.id() == family.id();
        let mut state = self.state.lock();
        let flushes = take(
            &mut state.flushes,
            |task| matches!(task, FlushTask::Family(queued) if is(queued)),
        );
        let compactions = take(&mut state.compactions, is);
        let whole_merges = take(&mut state.whole_merges, is);
        // Without the lock: the last handle of a dropped family removes files.
        drop(state);
        drop((flushes, compactions, whole_merges));
    }

    /// Queues an attempt to make room, or brings it forward.
    pub(crate) fn make_room_after(&self, pause: Duration) {
        let due = due(pause);
        let mut state = self.state.lock();
        let flushes = &mut state.flushes.0;
        let queued = flushes
            .iter_mut()
            .find(|(_, task)| matches!(task, FlushTask::Room));
        match queued {
            Some((earlier, _)) if *earlier <= due => return,
            Some((later, _)) => *later = due,
            None => flushes.push_back((due, FlushTask::Room)),
        }
        drop(state);
        self.announce(TaskKind::Flush, due);
    }

    pub(crate) fn compact(&self, family: &Arc<FamilyState>) {
        self.compact_after(family, Duration::ZERO);
    }

    pub(crate) fn compact_after(&self, family: &Arc<FamilyState>, pause: Duration) {
        if family.compactions().enqueue() {
            let due = due(pause);
            let mut state = self.state.lock();
            if family.is_dropped() {
                return;
            }
            state.compactions.0.push_back((due, Arc::clone(family)));
            drop(state);
            self.announce(TaskKind::Compaction, due);
        }
    }

    /// Queues a merge of all of a family's tables.
    pub(crate) fn merge_whole(&self, family: &Arc<FamilyState>) {
        self.merge_whole_after(family, Duration::ZERO);
    }

    /// As [`TaskQueue::merge_whole`], and brings one forward that is to be tried later.
    pub(crate) fn merge_whole_now(&self, family: &Arc<FamilyState>) {
        self.merge_whole(family);
        let mut state = self.state.lock();
        let mut queued = state.whole_merges.0.iter_mut();
        if let Some((due, _)) = queued.find(|(due, queued)| *due > 0 && queued.id() == family.id()) {
            *due = 0;
            drop(state);
            self.announce(TaskKind::WholeMerge, 0);
        }
    }

    pub(crate) fn merge_whole_after(&self, family: &Arc<FamilyState>, pause: Duration) {
        if family.whole_merges().enqueue() {
            let due = due(pause);
            let mut state = self.state.lock();
            if family.is_dropped() {
                return;
            }
            state.whole_merges.0.push_back((due, Arc::clone(family)));
            drop(state);
            self.announce(TaskKind::WholeMerge, due);
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

    /// The next family for the thread that merges whole ones; `None` when the store closes.
    pub(crate) fn next_whole_merge(&self) -> Option<Arc<FamilyState>> {
        self.next(|state| state.whole_merges.pop())
    }

    fn next<T>(&self, pop: impl Fn(&mut QueueState) -> Result<T, Option<Duration>>) -> Option<T> {
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

    /// The next task that is due, for a flush thread of a pool. `None`, too, while another one
    /// flushes: the pool gets the ticket back when that one is done.
    pub(crate) fn try_flush(&self) -> Option<(FlushTask, Running<'_>)> {
        let mut state = self.state.lock();
        if state.flushing {
            state.deferred += 1;
            return None;
        }
        let (task, running) = self.try_next(&mut state, TaskKind::Flush, |state| state.flushes.pop())?;
        state.flushing = true;
        Some((task, running))
    }

    /// The next family that is due, for a compaction thread of a pool.
    pub(crate) fn try_compaction(&self) -> Option<(Arc<FamilyState>, Running<'_>)> {
        let mut state = self.state.lock();
        self.try_next(&mut state, TaskKind::Compaction, |state| state.compactions.pop())
    }

    /// The next family that is due, for the thread of a pool that merges whole ones.
    pub(crate) fn try_whole_merge(&self) -> Option<(Arc<FamilyState>, Running<'_>)> {
        let mut state = self.state.lock();
        self.try_next(&mut state, TaskKind::WholeMerge, |state| state.whole_merges.pop())
    }

    fn try_next<T>(
        &self,
        state: &mut QueueState,
        kind: TaskKind,
        pop: impl Fn(&mut QueueState) -> Result<T, Option<Duration>>,
    ) -> Option<(T, Running<'_>)> {
        if state.stopping {
            return None;
        }
        let task = pop(state).ok()?;
        state.running += 1;
        Some((task, Running(self, kind)))
    }

    /// Waits for the tasks that threads of a pool do. After [`TaskQueue::stop`] they begin none.
    pub(crate) fn wait_for_running(&self) {
        let mut state = self.state.lock();
        while state.running > 0 {
            self.changed.wait(&mut state);
        }
    }

    /// Ends the threads after their current tasks.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        // Families in the queues refer to parts of the store; they must not keep it alive.
        state.flushes.0.clear();
        state.compactions.0.clear();
        state.whole_merges.0.clear();
        drop(state);
        self.changed.notify_all();
    }
}

/// How long to wait after so many failures in a row.
pub(crate) fn pause_after(failures: u32) -> Duration {
    const FIRST_MS: u64 = 50;
    Duration::from_millis(FIRST_MS << failures.min(6))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;

    #[test]
    fn a_flush_that_came_up_during_another_gets_its_ticket_back() {
        let (queue, pool) = (TaskQueue::default(), Arc::new(ThreadPool::default()));
        queue.join(Arc::clone(&pool), Weak::<Store>::new());
        queue.check_wal_size();
        let (_, running) = queue.try_flush().unwrap();
        queue.check_wal_size();
        assert_eq!(pool.flush_tickets(), 2);
        assert!(queue.try_flush().is_none(), "a second thread flushes");
        assert_eq!(pool.flush_tickets(), 2);
        drop(running);
        assert_eq!(pool.flush_tickets(), 3);
        drop(queue.try_flush().unwrap());
        // Nothing was deferred meanwhile.
        assert_eq!(pool.flush_tickets(), 3);
    }
}
