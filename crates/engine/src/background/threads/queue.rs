//! The queues of a store's background work.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use collie_io::{Clock, Nanos, RealClock};
use collie_log::threads::JobHandle;
use parking_lot::Mutex;

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

/// What is to be done for a store in the background. Bounded: a family is in each queue once at
/// most, and so is the check of the log's size.
#[derive(Default)]
pub(crate) struct TaskQueue {
    state: Mutex<QueueState>,
}

#[derive(Default)]
struct QueueState {
    flushes: Queue<FlushTask>,
    compactions: Queue<Arc<FamilyState>>,
    whole_merges: Queue<Arc<FamilyState>>,
    stopping: bool,
}

/// Tasks with the time before which they are not to be tried, 0 for at once; and the jobs that do
/// them, as many as may do such tasks at once.
struct Queue<T> {
    tasks: VecDeque<(Nanos, T)>,
    jobs: Vec<Arc<JobHandle>>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            tasks: VecDeque::new(),
            jobs: Vec::new(),
        }
    }
}

impl<T> Queue<T> {
    fn push(&mut self, due: Nanos, task: T) {
        self.tasks.push_back((due, task));
        self.call();
    }

    /// Has the jobs look for tasks that are due.
    fn call(&self) {
        self.jobs.iter().for_each(JobHandle::call);
    }

    /// The first task that is due, or how long to wait for the next one.
    fn pop(&mut self) -> Result<T, Option<Duration>> {
        let now = RealClock.monotonic();
        if let Some(at) = self.tasks.iter().position(|(due, _)| *due <= now)
            && let Some((_, task)) = self.tasks.remove(at)
        {
            return Ok(task);
        }
        let next = self.tasks.iter().map(|(due, _)| *due).min();
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
    /// From now on these do the tasks, of each kind as many at once.
    pub(crate) fn done_by(
        &self,
        flushes: &[Arc<JobHandle>],
        compactions: &[Arc<JobHandle>],
        whole_merges: &[Arc<JobHandle>],
    ) {
        let mut state = self.state.lock();
        state.flushes.jobs = flushes.to_vec();
        state.compactions.jobs = compactions.to_vec();
        state.whole_merges.jobs = whole_merges.to_vec();
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
            state.flushes.push(due, task);
        }
    }

    pub(crate) fn check_wal_size(&self) {
        let mut state = self.state.lock();
        state.flushes.push(0, FlushTask::WalSize);
    }

    /// Takes a family out of the queues that was dropped: what is to be tried later would keep its
    /// files, and their space, until then. None is queued again.
    pub(crate) fn forget(&self, family: &FamilyState) {
        fn take<T>(queue: &mut Queue<T>, is: impl Fn(&T) -> bool) -> Vec<T> {
            let (taken, kept) = std::mem::take(&mut queue.tasks)
                .into_iter()
                .partition(|(_, task)| is(task));
            queue.tasks = kept;
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
        let flushes = &mut state.flushes;
        let queued = flushes
            .tasks
            .iter_mut()
            .find(|(_, task)| matches!(task, FlushTask::Room));
        match queued {
            Some((earlier, _)) if *earlier <= due => {}
            Some((later, _)) => {
                *later = due;
                flushes.call();
            }
            None => flushes.push(due, FlushTask::Room),
        }
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
            state.compactions.push(due, Arc::clone(family));
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
        let mut queued = state.whole_merges.tasks.iter_mut();
        if let Some((due, _)) = queued.find(|(due, queued)| *due > 0 && queued.id() == family.id()) {
            *due = 0;
            state.whole_merges.call();
        }
    }

    pub(crate) fn merge_whole_after(&self, family: &Arc<FamilyState>, pause: Duration) {
        if family.whole_merges().enqueue() {
            let due = due(pause);
            let mut state = self.state.lock();
            if family.is_dropped() {
                return;
            }
            state.whole_merges.push(due, Arc::clone(family));
        }
    }

    /// The first task of the flush queue that is due, or how long to wait for one.
    pub(crate) fn next_flush(&self) -> Result<FlushTask, Option<Duration>> {
        self.next(|state| state.flushes.pop())
    }

    /// The first family that is due for a compaction, or how long to wait for one.
    pub(crate) fn next_compaction(&self) -> Result<Arc<FamilyState>, Option<Duration>> {
        self.next(|state| state.compactions.pop())
    }

    /// The first family that is due for a whole merge, or how long to wait for one.
    pub(crate) fn next_whole_merge(&self) -> Result<Arc<FamilyState>, Option<Duration>> {
        self.next(|state| state.whole_merges.pop())
    }

    fn next<T>(
        &self,
        pop: impl FnOnce(&mut QueueState) -> Result<T, Option<Duration>>,
    ) -> Result<T, Option<Duration>> {
        let mut state = self.state.lock();
        if state.stopping {
            Err(None)
        } else {
            pop(&mut state)
        }
    }

    /// Waits for the tasks under way. After [`TaskQueue::stop`] none begins.
    pub(crate) fn wait_for_running(&self) {
        let mut state = self.state.lock();
        let jobs = [
            std::mem::take(&mut state.flushes.jobs),
            std::mem::take(&mut state.compactions.jobs),
            std::mem::take(&mut state.whole_merges.jobs),
        ];
        drop(state);
        jobs.iter().flatten().for_each(JobHandle::cancel);
    }

    /// No task begins any more.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        // Families in the queues refer to parts of the store; they must not keep it alive.
        state.flushes.tasks.clear();
        state.compactions.tasks.clear();
        state.whole_merges.tasks.clear();
    }
}

/// How long to wait after so many failures in a row.
pub(crate) fn pause_after(failures: u32) -> Duration {
    const FIRST_MS: u64 = 50;
    Duration::from_millis(FIRST_MS << failures.min(6))
}
