//! What waits without a thread: tasks for durability or for room, and tails for more that is
//! durable. They register here, and are woken by the thread that raises the watermarks.
//!
//! A waker is foreign code, and may own a future or the last handle of this log, which come here
//! when they go. So none is cloned or dropped while the registry is locked.

use std::collections::BTreeMap;
use std::task::Waker;

use crate::Lsn;
use crate::lockfree::sync::{AtomicU32, Mutex, Ordering, lock};
use crate::options::Level;

/// Who waits without a thread.
#[derive(Debug)]
pub(crate) struct Tasks {
    pub(crate) waiting: Waiting,
    /// Tasks for which all that is appended is flushed.
    pub(crate) watchers: Watchers,
}

impl Tasks {
    pub(crate) fn new() -> Self {
        Self {
            waiting: Waiting::default(),
            watchers: Watchers::new(),
        }
    }
}

/// Tasks that wait, by what they wait for.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Mutex<Registered>);

/// The registry of who waits.
#[derive(Debug, Default)]
struct Registered {
    next_id: u64,
    tasks: BTreeMap<(Lsn, u64), (Level, Waker)>,
    /// Tails, by number: they wait for more to be durable than this, and do not ask for a flush.
    tails: BTreeMap<u64, (Lsn, Waker)>,
    /// Tasks, by number, that wait until a frame of so many bytes has room.
    rooms: BTreeMap<u64, (u64, Waker)>,
}

impl Registered {
    /// The number of who registers, which is given the first time.
    fn id(&mut self, id: &mut Option<u64>) -> u64 {
        *id.get_or_insert_with(|| {
            self.next_id += 1;
            self.next_id
        })
    }
}

impl Waiting {
    /// Adds a task, or gives a known one a new waker. The caller must look once more at what it
    /// waits for afterwards: `take` may have run just before.
    pub(super) fn register(&self, id: &mut Option<u64>, end: Lsn, level: Level, waker: &Waker) {
        let waker = waker.clone();
        let mut registered = lock(&self.0);
        let id = registered.id(id);
        let before = registered.tasks.insert((end, id), (level, waker));
        drop(registered);
        drop(before);
    }

    pub(super) fn forget(&self, id: u64, end: Lsn) {
        // The lock goes with this statement, and then the waker.
        let forgotten = lock(&self.0).tasks.remove(&(end, id));
        drop(forgotten);
    }

    /// Adds a tail that has all that was durable up to `end`, or gives a known one a new waker. As
    /// with tasks, the caller must look once more afterwards.
    pub(crate) fn follow(&self, id: &mut Option<u64>, end: Lsn, waker: &Waker) {
        let waker = waker.clone();
        let mut registered = lock(&self.0);
        let id = registered.id(id);
        let before = registered.tails.insert(id, (end, waker));
        drop(registered);
        drop(before);
    }

    pub(crate) fn unfollow(&self, id: u64) {
        // The lock goes with this statement, and then the waker.
        let forgotten = lock(&self.0).tails.remove(&id);
        drop(forgotten);
    }

    /// Adds a task that waits for room, or gives a known one a new waker. As with others, the caller
    /// must look once more afterwards.
    pub(super) fn want_room(&self, id: &mut Option<u64>, len: u64, waker: &Waker) {
        let waker = waker.clone();
        let mut registered = lock(&self.0);
        let id = registered.id(id);
        let before = registered.rooms.insert(id, (len, waker));
        drop(registered);
        drop(before);
    }

    pub(super) fn forget_room(&self, id: u64) {
        // The lock goes with this statement, and then the waker.
        let forgotten = lock(&self.0).rooms.remove(&id);
        drop(forgotten);
    }

    /// The longest frame that room is waited for; `None` where it is not.
    pub(crate) fn longest_without_room(&self) -> Option<u64> {
        let registered = lock(&self.0);
        registered.rooms.values().map(|(len, _)| *len).max()
    }

    /// How far, and how safe, the log must get for all tasks to be served; `None` without any.
    pub(crate) fn farthest(&self) -> Option<(Lsn, Level)> {
        let registered = lock(&self.0);
        let ((end, _), _) = registered.tasks.last_key_value()?;
        let level = registered.tasks.values().map(|(level, _)| *level).max()?;
        Some((*end, level))
    }

    /// How far the log must be written for all tasks at [`Level::Process`] to be served.
    pub(crate) fn farthest_written(&self) -> Option<Lsn> {
        let registered = lock(&self.0);
        let tasks = registered.tasks.iter().rev();
        let mut ends = tasks.filter(|(_, (level, _))| *level == Level::Process);
        ends.next().map(|((end, _), _)| *end)
    }

    /// Whether a task waits at [`Level::Process`], or for room: for something to be written.
    pub(super) fn any_for_written(&self) -> bool {
        self.farthest_written().is_some() || self.longest_without_room().is_some()
    }

    /// The wakers of all tasks, and of all tails, that have what they wait for. The watermarks were
    /// raised before the call.
    pub(crate) fn take(
        &self,
        mut reached: impl FnMut(Lsn, Level) -> bool,
        mut more: impl FnMut(Lsn) -> bool,
        mut has_room: impl FnMut(u64) -> bool,
    ) -> Vec<Waker> {
        let mut registered = lock(&self.0);
        let mut ready = Vec::new();
        registered.tasks.retain(|(end, _), (level, waker)| {
            let done = reached(*end, *level);
            if done {
                ready.push(std::mem::replace(waker, Waker::noop().clone()));
            }
            !done
        });
        registered.tails.retain(|_, (end, waker)| {
            let done = more(*end);
            if done {
                ready.push(std::mem::replace(waker, Waker::noop().clone()));
            }
            !done
        });
        registered.rooms.retain(|_, (len, waker)| {
            let done = has_room(*len);
            if done {
                ready.push(std::mem::replace(waker, Waker::noop().clone()));
            }
            !done
        });
        ready
    }
}

/// Who wants a call of the flusher for each append: [`DurableChanges`](crate::DurableChanges), and the
/// flusher itself while it rests. On cache lines of its own, since every append reads it.
///
/// `add` is Relaxed: a task that comes looks at what is appended by then. Of that look and an append
/// beside it each may miss the other; the flusher, which has both when an interval has passed, misses
/// neither. `rest` is SeqCst, as no interval follows: see there.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Watchers(AtomicU32);

/// The flusher rests until it is called.
const RESTING: u32 = 1 << 31;

impl Watchers {
    fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// One call of the flusher too many does no harm.
    pub(super) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether all that is appended is waited for.
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) & !RESTING > 0
    }

    /// Whether an append calls the flusher. SeqCst pairs with `rest`.
    pub(crate) fn want_calls(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }

    /// From here on each append calls the flusher, which must look afterwards, by
    /// [`Reservations::cutoff_in_order`](crate::lockfree::boundary::Reservations::cutoff_in_order), at what
    /// is appended. All four are SeqCst: a reservation that this look misses finds the flusher resting.
    pub(super) fn rest(&self) {
        self.0.fetch_or(RESTING, Ordering::SeqCst);
    }

    /// Relaxed: one call too many does no harm.
    pub(super) fn end_rest(&self) {
        self.0.fetch_and(!RESTING, Ordering::Relaxed);
    }
}
