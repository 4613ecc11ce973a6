//! Thread pools: background work as *jobs*, which worker threads run in turns.
//!
//! A job that is called is queued, and the next free worker thread runs it once; what has nothing to
//! do sleeps until it is called, or until its timer expires. So a job without calls costs nothing. A
//! job is in one place at a time (`Place`): no two threads run it, and none runs it any more when
//! [`JobHandle::cancel`] returns.
//!
//! For the crates of this repository.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use collie_io::{Clock, Nanos, Opener, RealClock};

use crate::lockfree::sync::{AtomicU32, Builder, JoinHandle, Mutex, Ordering, ThreadId, current, lock};
use crate::lockfree::wait_word::{ALL, WaitWord};

/// Background work that is done in pieces. One thread at a time runs it.
pub trait Job: Send {
    /// Does what there is to do now.
    fn run(&mut self, cause: Cause) -> Next;

    /// A run panicked on this thread: there is no further one.
    fn panicked(&self);
}

/// Why a job runs. Neither, where it said [`Next::Again`] and in its first run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cause {
    /// It was called since the run before.
    pub called: bool,
    /// The time for which it was to sleep has passed.
    pub timer: bool,
}

/// How a job goes on after a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Never again.
    Stop,
    /// There may be more to do. Other jobs that are queued have a run first.
    Again,
    /// With the next call, or when so much time has passed.
    Sleep(Option<Duration>),
}

/// Worker threads, and the jobs that they run. Dropping it ends the threads after their current
/// runs.
pub struct ThreadPool {
    shared: Arc<PoolState>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The process that the threads are in.
    opener: Opener,
}

/// What a pool's threads and jobs share.
struct PoolState {
    /// Timers expire at multiples of it, so that many jobs do not wake the threads one by one; zero:
    /// each at its time.
    slack: Nanos,
    queue: Mutex<Queue>,
    /// Threads sleep on it until the queue has something for them.
    word: WaitWord,
}

/// Bounded: a job has one timer, and is ready once for a call and once for its timer.
#[derive(Default)]
struct Queue {
    /// The jobs that are to run, oldest first, with the time of the timer that expired.
    ready: VecDeque<(Arc<JobHandle>, Option<Nanos>)>,
    /// The jobs that sleep for a time, by that and their address.
    timers: BTreeMap<(Nanos, usize), Arc<JobHandle>>,
    /// No thread sleeps for longer than until then. So it does not matter which of them is woken for
    /// a job that then runs for long.
    asleep_until: Nanos,
    ended: bool,
}

/// A job, for those that call it.
pub struct JobHandle {
    /// 1 from a call on, until a run begins.
    called: AtomicU32,
    place: Mutex<Place>,
    pool: OnceLock<Arc<PoolState>>,
    /// Who cancels sleeps on it until the run under way has ended.
    stopped: WaitWord,
}

/// Where a job is.
enum Place {
    /// Nowhere: it was not started, or has stopped.
    Gone,
    /// Its timer, if it has one, is among the pool's, or has expired and is in the queue.
    Asleep { job: Box<dyn Job>, until: Option<Nanos> },
    /// In the queue, for one run.
    Queued(Box<dyn Job>),
    /// This thread runs it.
    Running { by: ThreadId, cancelled: bool },
}

impl fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadPool").finish_non_exhaustive()
    }
}

impl fmt::Debug for JobHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobHandle").finish_non_exhaustive()
    }
}

impl ThreadPool {
    /// Starts a thread for each name, which begins with `begin`. Timers expire at multiples of `slack`.
    ///
    /// # Errors
    /// Where a thread does not start; those that did are ended.
    pub fn start(
        names: impl IntoIterator<Item = String>,
        slack: Duration,
        begin: fn(),
    ) -> std::io::Result<Self> {
        let pool = Self {
            shared: Arc::new(PoolState {
                slack: nanos(slack),
                queue: Mutex::default(),
                word: WaitWord::new(),
            }),
            threads: Mutex::new(Vec::new()),
            opener: Opener::here(),
        };
        for name in names {
            let shared = Arc::clone(&pool.shared);
            let thread = Builder::new().name(name).spawn(move || {
                begin();
                shared.work();
            })?;
            lock(&pool.threads).push(thread);
        }
        Ok(pool)
    }

    /// How many there are.
    pub fn threads(&self) -> usize {
        lock(&self.threads).len()
    }

    /// The process that the threads are in, where that is not this one.
    pub(crate) fn elsewhere(&self) -> Option<u32> {
        (!self.opener.is_here()).then(|| self.opener.pid())
    }

    /// Whether its threads sleep until they are called.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn is_untimed(&self) -> bool {
        lock(&self.shared.queue).timers.is_empty()
    }

    /// Queues a job's first run. A handle is for one job.
    pub fn add(&self, handle: &Arc<JobHandle>, job: Box<dyn Job>) {
        if handle.pool.set(Arc::clone(&self.shared)).is_ok() {
            let mut place = lock(&handle.place);
            *place = Place::Queued(job);
            self.shared.push(handle, None);
            drop(place);
            self.shared.word.wake(1);
        }
    }

    /// Runs jobs that are due, on this thread, until one says that there may be more to do. Says
    /// whether one did. For pools without threads.
    pub fn work_once(&self) -> bool {
        loop {
            let due = lock(&self.shared.queue).take_due();
            match due {
                Some((job, timer)) if job.run(timer) == Some(Next::Again) => return true,
                Some(_) => {}
                None => return false,
            }
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        if !self.opener.is_here() {
            // A child that was forked. The threads are not there, locks may be held for good, and
            // what the jobs hold is the parent's.
            std::mem::forget(std::mem::replace(&mut self.threads, Mutex::new(Vec::new())));
            std::mem::forget(Arc::clone(&self.shared));
            return;
        }
        let threads = std::mem::take(&mut *lock(&self.threads));
        let rest = {
            let mut queue = lock(&self.shared.queue);
            queue.ended = true;
            (
                std::mem::take(&mut queue.ready),
                std::mem::take(&mut queue.timers),
            )
        };
        drop(rest);
        self.shared.word.bump();
        self.shared.word.wake(ALL);
        // One of them ends when it comes back from here, where a job let the pool's last user go.
        let own = current().id();
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != own) {
            if thread.join().is_err() {
                tracing::error!("a background thread panicked");
            }
        }
    }
}

impl Default for JobHandle {
    fn default() -> Self {
        Self {
            called: AtomicU32::new(0),
            place: Mutex::new(Place::Gone),
            pool: OnceLock::new(),
            stopped: WaitWord::new(),
        }
    }
}

impl JobHandle {
    /// Asks for a run. What the caller wrote before is seen by it.
    pub fn call(self: &Arc<Self>) {
        // AcqRel: the call that finds 0 queues the job, and `begin` sees what came before any of
        // them.
        if self.called.swap(1, Ordering::AcqRel) == 0
            && let Some(pool) = self.pool.get()
        {
            self.enqueue(pool);
        }
    }

    /// Whether a call is not answered yet. Relaxed: one too many costs a run.
    pub(crate) fn is_called(&self) -> bool {
        self.called.load(Ordering::Relaxed) != 0
    }

    /// Wakes the job where it sleeps. Where it does not, the run that comes sees that it was called,
    /// or the one under way does at its end.
    fn enqueue(self: &Arc<Self>, pool: &PoolState) {
        let mut place = lock(&self.place);
        *place = match std::mem::replace(&mut *place, Place::Gone) {
            Place::Asleep { job, until } => {
                pool.push(self, until);
                Place::Queued(job)
            }
            other => other,
        };
        drop(place);
        pool.word.wake(1);
    }

    /// Takes the job for a run; `None` where it runs, or is to run at another time.
    fn begin(&self, timer: Option<Nanos>) -> Option<(Box<dyn Job>, Cause)> {
        let mut place = lock(&self.place);
        let job = match std::mem::replace(&mut *place, Place::Gone) {
            Place::Queued(job) => job,
            Place::Asleep { job, until } if timer.is_some() && until == timer => job,
            other => {
                *place = other;
                return None;
            }
        };
        *place = Place::Running {
            by: current().id(),
            cancelled: false,
        };
        // AcqRel pairs with `call`.
        let called = self.called.swap(0, Ordering::AcqRel) != 0;
        let timer = timer.is_some();
        Some((job, Cause { called, timer }))
    }

    /// Runs the job, if it is due, and puts it back.
    fn run(self: &Arc<Self>, timer: Option<Nanos>) -> Option<Next> {
        let (mut job, cause) = self.begin(timer)?;
        let next = catch_unwind(AssertUnwindSafe(|| job.run(cause))).unwrap_or_else(|_| {
            job.panicked();
            Next::Stop
        });
        self.end(job, next);
        Some(next)
    }

    fn end(self: &Arc<Self>, job: Box<dyn Job>, next: Next) {
        let Some(pool) = self.pool.get() else { return };
        let mut place = lock(&self.place);
        let is_cancelled = matches!(*place, Place::Running { cancelled: true, .. });
        match next {
            _ if is_cancelled || next == Next::Stop => {
                *place = Place::Gone;
                drop(place);
                self.stopped.bump();
                self.stopped.wake(ALL);
                // The last handle to what it works for may go with it.
                drop(job);
            }
            Next::Sleep(time) if !self.is_called() => {
                let until = pool.time_after(time);
                *place = Place::Asleep { job, until };
                pool.add_timer(self, until);
            }
            _ => {
                *place = Place::Queued(job);
                // This thread goes on to the queue, and needs no call.
                pool.push(self, None);
            }
        }
    }

    /// No run begins after this, and none is under way when it returns, unless the caller is in that
    /// run itself.
    pub fn cancel(self: &Arc<Self>) {
        loop {
            let seen = self.stopped.read();
            let mut place = lock(&self.place);
            if let Place::Running { by, cancelled } = &mut *place {
                *cancelled = true;
                let is_own = *by == current().id();
                drop(place);
                if is_own {
                    return;
                }
                self.stopped.wait(seen, None);
                continue;
            }
            let gone = std::mem::replace(&mut *place, Place::Gone);
            drop(place);
            if let (Place::Asleep { until, .. }, Some(pool)) = (&gone, self.pool.get()) {
                lock(&pool.queue).remove_timer(self, *until);
            }
            return;
        }
    }
}

impl PoolState {
    /// A thread's life.
    fn work(&self) {
        loop {
            let seen = self.word.read();
            let mut queue = lock(&self.queue);
            if queue.ended {
                return;
            }
            if let Some((job, timer)) = queue.take_due() {
                drop(queue);
                job.run(timer);
                continue;
            }
            let next = queue.timers.first_key_value().map(|((until, _), _)| *until);
            queue.asleep_until = queue.asleep_until.max(next.unwrap_or(Nanos::MAX));
            drop(queue);
            let pause = next.map(|until| until.saturating_sub(RealClock.monotonic()));
            self.word.wait(seen, pause.map(Duration::from_nanos));
        }
    }

    /// Queues a job, which needs its timer no more. The caller, which holds its place, wakes a thread.
    fn push(&self, job: &Arc<JobHandle>, timer: Option<Nanos>) {
        let mut queue = lock(&self.queue);
        queue.remove_timer(job, timer);
        queue.ready.push_back((Arc::clone(job), None));
        self.word.bump();
    }

    /// When a timer expires that is set now. A model has no time, and what it does must not depend on
    /// the machine's.
    fn time_after(&self, time: Option<Duration>) -> Option<Nanos> {
        let time = nanos(time.filter(|_| !cfg!(shuttle))?);
        let now = RealClock.monotonic();
        Some(match self.slack {
            0 => now.saturating_add(time),
            slack => (now / slack)
                .saturating_add(time.div_ceil(slack).max(1))
                .saturating_mul(slack),
        })
    }

    fn add_timer(&self, job: &Arc<JobHandle>, until: Option<Nanos>) {
        let Some(until) = until else { return };
        let mut queue = lock(&self.queue);
        queue.timers.insert((until, address(job)), Arc::clone(job));
        if until < queue.asleep_until {
            queue.asleep_until = 0;
            drop(queue);
            self.word.bump();
            self.word.wake(ALL);
        }
    }
}

impl Queue {
    /// The caller has the job as well: nothing is dropped here.
    fn remove_timer(&mut self, job: &Arc<JobHandle>, timer: Option<Nanos>) {
        if let Some(until) = timer {
            self.timers.remove(&(until, address(job)));
        }
    }

    /// The first that is to run. What has slept long enough comes after those that were called
    /// before.
    fn take_due(&mut self) -> Option<(Arc<JobHandle>, Option<Nanos>)> {
        if !self.timers.is_empty() {
            let now = RealClock.monotonic();
            while let Some(first) = self.timers.first_entry()
                && first.key().0 <= now
            {
                let ((until, _), job) = first.remove_entry();
                self.ready.push_back((job, Some(until)));
            }
        }
        self.ready.pop_front()
    }
}

fn address(job: &Arc<JobHandle>) -> usize {
    Arc::as_ptr(job).addr()
}

fn nanos(time: Duration) -> Nanos {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(shuttle)))]
#[expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Longer than any machine takes; only a hang reaches it.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn pool(threads: usize) -> ThreadPool {
        let names = std::iter::repeat_n("collie-test".to_owned(), threads);
        ThreadPool::start(names, Duration::ZERO, || ()).unwrap()
    }

    /// Says that its run has begun, and ends it when it may.
    struct Held {
        begun: Sender<()>,
        go: Receiver<()>,
        ended: Arc<AtomicBool>,
    }

    impl Job for Held {
        fn run(&mut self, _cause: Cause) -> Next {
            self.begun.send(()).unwrap();
            self.go.recv().unwrap();
            self.ended.store(true, Ordering::SeqCst);
            Next::Sleep(None)
        }

        fn panicked(&self) {}
    }

    #[test]
    fn who_cancels_waits_for_the_run_under_way_and_has_no_other() {
        let pool = pool(2);
        let (begun, has_begun) = channel();
        let (let_go, go) = channel();
        let ended = Arc::new(AtomicBool::new(false));
        let handle = Arc::new(JobHandle::default());
        let job = Held {
            begun,
            go,
            ended: Arc::clone(&ended),
        };
        pool.add(&handle, Box::new(job));
        has_begun.recv().unwrap();
        // There would be a second run.
        handle.call();
        let canceller = std::thread::spawn(move || {
            handle.cancel();
            handle.call();
            ended.load(Ordering::SeqCst)
        });
        // Where it did not wait, it has returned by then.
        std::thread::sleep(Duration::from_millis(50));
        let_go.send(()).unwrap();
        assert!(canceller.join().unwrap(), "in mid-run");
        drop(pool);
        assert!(has_begun.try_recv().is_err());
    }

    #[test]
    fn a_call_during_a_run_brings_another_run() {
        let pool = pool(1);
        let (begun, has_begun) = channel();
        let (let_go, go) = channel();
        let (handle, ended) = (Arc::new(JobHandle::default()), Arc::default());
        pool.add(&handle, Box::new(Held { begun, go, ended }));
        for _ in 0..3 {
            has_begun.recv_timeout(PATIENCE).unwrap();
            handle.call();
            let_go.send(()).unwrap();
        }
        has_begun.recv_timeout(PATIENCE).unwrap();
        let_go.send(()).unwrap();
    }

    /// Says why it runs, and sleeps for a time.
    struct Timed(Sender<Cause>, Option<Duration>);

    impl Job for Timed {
        fn run(&mut self, cause: Cause) -> Next {
            self.0.send(cause).unwrap();
            Next::Sleep(self.1)
        }

        fn panicked(&self) {}
    }

    /// The thread that would have woken for the timer runs something long.
    #[test]
    fn a_timer_expires_while_another_job_runs() {
        const FEW: Duration = Duration::from_millis(20);
        let pool = pool(2);
        let (begun, has_begun) = channel();
        let (let_go, go) = channel();
        let (ran, runs) = channel();
        let (timed, held) = (Arc::new(JobHandle::default()), Arc::new(JobHandle::default()));
        pool.add(&timed, Box::new(Timed(ran, Some(FEW))));
        let first = runs.recv().unwrap();
        assert!(!first.timer && !first.called);
        let ended = Arc::default();
        pool.add(&held, Box::new(Held { begun, go, ended }));
        has_begun.recv().unwrap();
        for _ in 0..3 {
            assert!(runs.recv_timeout(PATIENCE).unwrap().timer);
        }
        timed.call();
        while !runs.recv_timeout(PATIENCE).unwrap().called {}
        timed.cancel();
        assert!(pool.is_untimed());
        let_go.send(()).unwrap();
    }
}
