//! Background threads: what one does for a log, a *duty*, in turns; how it is called; and threads
//! that have one duty for many logs, a *crew*.
//!
//! A thread of a log's own sleeps on its [`Signal`] between its turns. In a crew a call puts a log's duty in the queue, and the next free thread gives it a turn; so a log
//! without calls costs nothing. At each period one of the threads looks through the duties that sleep
//! for a time, and puts those in the queue for which it has passed and which then have something to
//! do: there is no timer per log.
//!
//! A duty is in one place at a time, its [`Seat`]: so no two threads give it a turn, and what leaves
//! is in no thread's hands when [`Member::leave`] returns.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use collie_io::{Clock, IoClass, Nanos, Opener, RealClock};

use crate::lockfree::sync::{AtomicU32, Builder, JoinHandle, Mutex, Ordering, ThreadId, current, lock};
use crate::lockfree::wait_word::{ALL, WaitWord};

/// How long after a failure what may pass is tried again.
pub(crate) const RETRY: Duration = Duration::from_millis(100);

/// A background thread's work for one log, in turns: so that a thread of its own can do it, and one
/// that many logs share ([`Crew`]). One thread at a time has its turn.
pub(crate) trait Duty: Send {
    /// Does what there is to do. `called`: a call came since the turn before.
    fn turn(&mut self, called: bool) -> Next;

    /// The time that the last turn gave has passed without a call. Whether there is something to do
    /// for the next turn; a thread of its own takes that anyway.
    fn interval_passed(&mut self) -> bool;

    /// A turn panicked: there is no further one, and the log must not go on without.
    fn abandon(&self);
}

/// How a duty goes on after a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// The log has stopped: never again.
    Stop,
    /// There may be more to do.
    Again,
    /// With the next call, or when so much time has passed.
    Sleep(Option<Duration>),
}

/// Which of a log's duties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Flushes what no thread waits for.
    Flush,
    /// Writes for tasks while the flusher syncs.
    Write,
    /// Prepares segments, and releases what no holder retains.
    Prepare,
}

impl Role {
    pub(crate) fn thread_name(self) -> &'static str {
        match self {
            Self::Flush => "collie-flush",
            Self::Write => "collie-write",
            Self::Prepare => "collie-prepare",
        }
    }

    /// What a thread does first.
    pub(crate) fn begin(self) {
        // A commit that runs out of room waits for it.
        if self == Self::Prepare
            && let Err(error) = collie_io::set_io_class(IoClass::Foreground)
        {
            tracing::debug!(%error, "no I/O classes here");
        }
    }
}

/// The threads, and the duties that they have. Dropping it ends them.
pub(crate) struct Crew {
    shared: Arc<CrewState>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The process that the threads are in.
    opener: Opener,
}

/// What a crew's threads and members share.
struct CrewState {
    /// How often the sleepers are looked through; `None`: no duty sleeps for a time.
    period: Option<Duration>,
    members: Mutex<Vec<Arc<Member>>>,
    queue: Mutex<Queue>,
    /// Threads sleep on it until the queue has something for them.
    word: WaitWord,
    /// How many duties sleep for a time. Without any the threads sleep until they are called.
    timed: AtomicU32,
}

/// The duties that are to have a turn, oldest call first.
#[derive(Default)]
struct Queue {
    ready: VecDeque<Arc<Member>>,
    /// When the sleepers were looked through.
    looked: Nanos,
    ended: bool,
}

/// A log's duty among others.
pub(crate) struct Member {
    seat: Mutex<Seat>,
    crew: Arc<CrewState>,
    /// Who leaves sleeps on it until the turn under way has ended.
    left: WaitWord,
}

/// Where a duty is.
enum Seat {
    /// It has nothing to do before a call, or before so many periods have passed.
    Asleep {
        duty: Box<dyn Duty>,
        /// Of how many periods it sleeps, and how many are left.
        periods: Option<(u32, u32)>,
    },
    /// In the queue, for one turn.
    Queued { duty: Box<dyn Duty>, called: bool },
    /// This thread gives it a turn; and it was called, or asked to leave, meanwhile.
    InTurn {
        by: ThreadId,
        called: bool,
        leaving: bool,
    },
    /// It is no more.
    Left,
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members = lock(&self.shared.members).len();
        f.debug_struct("Crew")
            .field("members", &members)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").finish_non_exhaustive()
    }
}

impl Crew {
    /// Starts so many threads. The sleepers are looked through once per `period`.
    pub(crate) fn start(role: Role, threads: usize, period: Option<Duration>) -> std::io::Result<Self> {
        // A model has no time, and what it does must not depend on the machine's.
        let period = period.filter(|_| !cfg!(shuttle));
        let shared = Arc::new(CrewState {
            period,
            members: Mutex::new(Vec::new()),
            queue: Mutex::new(Queue {
                looked: RealClock.monotonic(),
                ..Queue::default()
            }),
            word: WaitWord::new(),
            timed: AtomicU32::new(0),
        });
        let crew = Self {
            shared,
            threads: Mutex::new(Vec::new()),
            opener: Opener::here(),
        };
        for _ in 0..threads {
            let shared = Arc::clone(&crew.shared);
            let thread = Builder::new()
                .name(role.thread_name().to_owned())
                .spawn(move || {
                    role.begin();
                    shared.serve();
                })?;
            lock(&crew.threads).push(thread);
        }
        Ok(crew)
    }

    /// The process that the threads are in, where that is not this one.
    pub(crate) fn elsewhere(&self) -> Option<u32> {
        (!self.opener.is_here()).then(|| self.opener.pid())
    }

    /// Whether its threads sleep until they are called.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn is_untimed(&self) -> bool {
        self.shared.timed.load(Ordering::Relaxed) == 0
    }

    /// Takes a duty on. Its first turn comes with its first call, or after its first period.
    pub(crate) fn join(&self, duty: Box<dyn Duty>) -> Arc<Member> {
        let member = Arc::new(Member {
            seat: Mutex::new(Seat::Asleep {
                duty,
                periods: self.shared.period.map(|_| (1, 1)),
            }),
            crew: Arc::clone(&self.shared),
            left: WaitWord::new(),
        });
        lock(&self.shared.members).push(Arc::clone(&member));
        if self.shared.period.is_some() {
            self.shared.add_timed();
        }
        member
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        let threads = std::mem::take(&mut *lock(&self.threads));
        if !self.opener.is_here() {
            // A child that was forked: they are not there.
            std::mem::forget(threads);
            return;
        }
        lock(&self.shared.queue).ended = true;
        self.shared.word.bump();
        self.shared.word.wake(ALL);
        // One of them ends when it comes back from here, where a waker that it ran let the last log go.
        let own = current().id();
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != own) {
            if thread.join().is_err() {
                tracing::error!("a thread of a set of logs panicked");
            }
        }
    }
}

impl Member {
    /// Asks for a turn. What the caller wrote before is seen by it.
    pub(crate) fn call(self: &Arc<Self>) {
        self.enqueue(true);
    }

    fn enqueue(self: &Arc<Self>, is_call: bool) {
        let mut seat = lock(&self.seat);
        *seat = match std::mem::replace(&mut *seat, Seat::Left) {
            Seat::Asleep { duty, periods } => {
                self.crew.remove_timed(periods);
                lock(&self.crew.queue).ready.push_back(Arc::clone(self));
                self.crew.word.bump();
                Seat::Queued {
                    duty,
                    called: is_call,
                }
            }
            Seat::Queued { duty, called } => Seat::Queued {
                duty,
                called: called || is_call,
            },
            Seat::InTurn { by, called, leaving } => Seat::InTurn {
                by,
                called: called || is_call,
                leaving,
            },
            Seat::Left => Seat::Left,
        };
        drop(seat);
        // Where nothing came to the queue that is one look at the number of sleepers.
        self.crew.word.wake(1);
    }

    /// Takes the duty for a turn; `None` where it left meanwhile. With it, whether it was called.
    fn begin(&self) -> Option<(Box<dyn Duty>, bool)> {
        let mut seat = lock(&self.seat);
        match std::mem::replace(&mut *seat, Seat::Left) {
            Seat::Queued { duty, called } => {
                *seat = Seat::InTurn {
                    by: current().id(),
                    called: false,
                    leaving: false,
                };
                Some((duty, called))
            }
            other => {
                *seat = other;
                None
            }
        }
    }

    /// Puts the duty back after a turn.
    fn end(self: &Arc<Self>, duty: Box<dyn Duty>, next: Next) {
        let mut seat = lock(&self.seat);
        let (called, leaving) = match &*seat {
            Seat::InTurn { called, leaving, .. } => (*called, *leaving),
            _ => (false, true),
        };
        let (put, gone) = match next {
            _ if leaving => (Seat::Left, Some(duty)),
            Next::Stop => (Seat::Left, Some(duty)),
            Next::Again => (Seat::Queued { duty, called }, None),
            Next::Sleep(_) if called => (Seat::Queued { duty, called }, None),
            Next::Sleep(time) => {
                let periods = self.crew.periods_of(time);
                if periods.is_some() {
                    self.crew.add_timed();
                }
                (
                    Seat::Asleep {
                        duty,
                        periods: periods.map(|n| (n, n)),
                    },
                    None,
                )
            }
        };
        let is_queued = matches!(put, Seat::Queued { .. });
        *seat = put;
        if is_queued {
            // This thread goes on to the queue, and needs no call.
            lock(&self.crew.queue).ready.push_back(Arc::clone(self));
        }
        drop(seat);
        if gone.is_some() {
            self.crew.forget(self);
            self.left.bump();
            self.left.wake(ALL);
        }
        // The log's last handle may go with it.
        drop(gone);
    }

    /// No turn begins after this, and none is under way when it returns, unless the caller is in
    /// that turn itself.
    pub(crate) fn leave(self: &Arc<Self>) {
        let own = current().id();
        loop {
            let word = self.left.read();
            let mut seat = lock(&self.seat);
            match std::mem::replace(&mut *seat, Seat::Left) {
                Seat::InTurn { by, called, .. } => {
                    *seat = Seat::InTurn {
                        by,
                        called,
                        leaving: true,
                    };
                    drop(seat);
                    if by == own {
                        return;
                    }
                    self.left.wait(word, None);
                }
                gone => {
                    if let Seat::Asleep { periods, .. } = &gone {
                        self.crew.remove_timed(*periods);
                    }
                    drop(seat);
                    self.crew.forget(self);
                    drop(gone);
                    return;
                }
            }
        }
    }

    /// A period has passed. Whether the duty has something to do for it.
    fn count_period(&self) -> bool {
        let mut seat = lock(&self.seat);
        let Seat::Asleep {
            duty,
            periods: Some((all, left)),
        } = &mut *seat
        else {
            return false;
        };
        *left = left.saturating_sub(1);
        if *left > 0 {
            return false;
        }
        *left = *all;
        duty.interval_passed()
    }
}

impl CrewState {
    /// A thread's life.
    fn serve(&self) {
        loop {
            let word = self.word.read();
            if let Some(member) = self.take() {
                let Ok(member) = member else { return };
                self.give_turn(&member);
                continue;
            }
            // Relaxed: `add_timed` wakes those that may have missed it.
            let is_timed = self.timed.load(Ordering::Relaxed) > 0;
            self.word.wait(word, self.period.filter(|_| is_timed));
        }
    }

    /// A duty sleeps for a time from now on. All threads have to: the one that is first would not
    /// count the periods while it gives a turn.
    fn add_timed(&self) {
        // Before the word: a thread that reads the old number finds the word changed.
        if self.timed.fetch_add(1, Ordering::Release) == 0 {
            self.word.bump();
            self.word.wake(ALL);
        }
    }

    fn remove_timed(&self, periods: Option<(u32, u32)>) {
        if periods.is_some() {
            self.timed.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The next in the queue; `Err` at the end. Looks through the sleepers where it is time for that.
    fn take(&self) -> Option<Result<Arc<Member>, ()>> {
        let mut queue = lock(&self.queue);
        if queue.ended {
            return Some(Err(()));
        }
        if let Some(period) = self.period {
            let now = RealClock.monotonic();
            if u128::from(now.saturating_sub(queue.looked)) >= period.as_nanos() {
                queue.looked = now;
                drop(queue);
                self.look_through_sleepers();
                queue = lock(&self.queue);
            }
        }
        queue.ready.pop_front().map(Ok)
    }

    fn look_through_sleepers(&self) {
        let awake: Vec<_> = {
            let members = lock(&self.members);
            members
                .iter()
                .filter(|member| member.count_period())
                .cloned()
                .collect()
        };
        awake.iter().for_each(|member| member.enqueue(false));
    }

    fn give_turn(&self, member: &Arc<Member>) {
        let Some((mut duty, called)) = member.begin() else {
            return;
        };
        let next = catch_unwind(AssertUnwindSafe(|| duty.turn(called))).unwrap_or_else(|_| {
            duty.abandon();
            Next::Stop
        });
        member.end(duty, next);
    }

    /// How many periods are as long as that.
    fn periods_of(&self, time: Option<Duration>) -> Option<u32> {
        let (time, period) = (time?, self.period?);
        let periods = time.as_nanos().div_ceil(period.as_nanos().max(1));
        Some(u32::try_from(periods).unwrap_or(u32::MAX).max(1))
    }

    fn forget(&self, member: &Arc<Member>) {
        lock(&self.members).retain(|one| !Arc::ptr_eq(one, member));
    }
}

/// How each of a log's background threads is called.
#[derive(Debug)]
pub(crate) struct Signals {
    /// Flushes what no thread waits for.
    pub(crate) flusher: Signal,
    /// Writes for tasks while the flusher syncs.
    pub(crate) writer: Signal,
    /// Prepares segments, and releases what no holder retains.
    pub(crate) preparer: Signal,
}

impl Signals {
    pub(crate) fn new() -> Self {
        Self {
            flusher: Signal::new(),
            writer: Signal::new(),
            preparer: Signal::new(),
        }
    }
}

/// Calls one thread, which sleeps between its turns. A call during a turn makes the next one begin
/// at once.
#[derive(Debug)]
pub(crate) struct Signal {
    word: WaitWord,
    /// 1 from a call on, until the thread begins a turn.
    called: AtomicU32,
    /// Who answers where the log has no thread of its own for it.
    member: OnceLock<Arc<Member>>,
}

/// What a thread found at the beginning of a turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    word: u32,
    pub(super) called: bool,
}

impl Signal {
    fn new() -> Self {
        Self {
            word: WaitWord::new(),
            called: AtomicU32::new(0),
            member: OnceLock::new(),
        }
    }

    /// From here on calls go to a thread of a set.
    pub(super) fn answered_by(&self, member: Arc<Member>) {
        // A log joins its set once.
        let _ = self.member.set(member);
    }

    /// What the caller wrote before is seen by the turn that follows.
    pub(crate) fn call(&self) {
        if let Some(member) = self.member.get() {
            return member.call();
        }
        // AcqRel: the call that finds 0 wakes the thread, and `begin` sees what came before any of
        // them.
        if self.called.swap(1, Ordering::AcqRel) == 0 {
            self.word.bump();
            self.word.wake(1);
        }
    }

    /// Whether a call is not answered yet. Relaxed: one too many costs a turn.
    pub(crate) fn is_called(&self) -> bool {
        self.called.load(Ordering::Relaxed) != 0
    }

    /// Begins a turn.
    pub(super) fn begin(&self) -> Turn {
        let word = self.word.read();
        // AcqRel pairs with `call`.
        let called = self.called.swap(0, Ordering::AcqRel) != 0;
        Turn { word, called }
    }

    /// Sleeps until a call since `turn` began, at most `timeout`. May return early.
    pub(super) fn wait(&self, turn: Turn, timeout: Option<Duration>) {
        self.word.wait(turn.word, timeout);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Says that its turn has begun, and ends it when it may.
    struct Held {
        begun: Sender<()>,
        go: Receiver<()>,
        ended: Arc<AtomicBool>,
    }

    #[expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]
    impl Duty for Held {
        fn turn(&mut self, _called: bool) -> Next {
            self.begun.send(()).unwrap();
            self.go.recv().unwrap();
            self.ended.store(true, Ordering::SeqCst);
            Next::Sleep(None)
        }

        fn interval_passed(&mut self) -> bool {
            false
        }

        fn abandon(&self) {}
    }

    #[test]
    fn who_leaves_waits_for_the_turn_under_way_and_has_no_other() {
        let crew = Crew::start(Role::Write, 2, None).unwrap();
        let (begun, has_begun) = channel();
        let (let_go, go) = channel();
        let ended = Arc::new(AtomicBool::new(false));
        let member = crew.join(Box::new(Held {
            begun,
            go,
            ended: Arc::clone(&ended),
        }));
        member.call();
        has_begun.recv().unwrap();
        // There would be a second turn.
        member.call();
        let leaver = std::thread::spawn(move || {
            member.leave();
            member.call();
            ended.load(Ordering::SeqCst)
        });
        // Where it did not wait, it has left by then.
        std::thread::sleep(Duration::from_millis(50));
        let_go.send(()).unwrap();
        assert!(leaver.join().unwrap(), "in mid-turn");
        drop(crew);
        assert!(has_begun.try_recv().is_err());
    }
}
