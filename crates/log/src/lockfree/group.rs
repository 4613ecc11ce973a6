//! Group commit: one thread works for all that wait.
//!
//! A log has two stages, each with a [`GroupCommit`] of its own (`flush/flush.rs`): the *write group*
//! takes complete frames from the ring to the segments, and where writes go to the page cache the
//! *sync group* makes them durable. The first waiter of a stage that finds work to do becomes its
//! leader, announces how far the group goes, and does the work with the lead in hand. The others
//! sleep: on the word of the group that covers them, or on that of the next one. A completed group
//! wakes all its waiters with one call, and one waiter of the next group, which leads that. No timer
//! is involved, and a thread changes only where it must.
//!
//! With many committers the scheduler's work of sending a thread to sleep and waking it is most of
//! what a commit costs. So a waiter gives up its time slice a few times before it sleeps: threads
//! that are about to append do so meanwhile, and join the next group. Where the processor goes to
//! strangers instead it sleeps at once ([`Yielding`](collie_io::Yielding)).
//!
//! **No wake-up is lost.** Groups are numbered; a number's place, modulo [`WORDS`], holds its word.
//! When a group completes, its leader raises the watermarks, frees the lead, bumps the group's word
//! **and** the next one's, then wakes sleepers. A waiter reads both words before anything else. So
//! a waiter that falls asleep has missed no completion, and one is to come: another thread had the
//! lead, which completes a group or passes the lead on. (A first design bumped only the completed
//! group's word. A waiter of the next group could then sleep on an unbumped word while no leader
//! was left to wake it.)

use std::sync::TryLockError;
use std::time::Duration;

use crate::Lsn;
use crate::lockfree::sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock};
use crate::lockfree::wait_word::{ALL, WaitWord};

/// Places for groups: the one in flight, and the next one.
const WORDS: usize = 2;

/// How often a waiter gives up its time slice before it sleeps. Bounded, so that an idle processor
/// is not kept busy for the time of a sync; docs/results has the figures.
const YIELDS: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 4 };

/// What a stage's leader does.
pub(crate) trait GroupWriter {
    /// What only the leader touches.
    type LeaderState;

    /// Does the next group's work, with the lead in hand. It announces how far the group goes
    /// before it does what takes long, and raises the watermarks before it returns. A group that
    /// was not announced did nothing.
    fn write_group(&self, state: &mut Self::LeaderState, group: &mut Announcement<'_>);

    /// Called after a group has completed, without the lead.
    fn completed(&self);

    /// Gives up the processor, or returns `false` where a thread that waits had better sleep.
    fn give_way(&self) -> bool;
}

/// Says how far the group in flight goes.
pub(crate) struct Announcement<'a> {
    newest: &'a AtomicU64,
    target: &'a AtomicU64,
    number: u64,
    made: bool,
}

impl Announcement<'_> {
    /// The group covers waiters up to `target`. They sleep until it has completed; waiters for more
    /// sleep until one of them can lead the next group.
    pub(crate) fn announce(&mut self, target: Lsn) {
        // Relaxed: ordered by the next store, with which it is read.
        self.target.store(target, Ordering::Relaxed);
        // Release pairs with the Acquire in `GroupCommit::number_for`.
        self.newest.store(self.number, Ordering::Release);
        self.made = true;
    }
}

/// What only the leader touches.
#[derive(Debug)]
struct Lead<S> {
    state: S,
    /// The number of the last group that was announced.
    newest: u64,
}

/// One stage: its lead, and its sleepers.
#[derive(Debug)]
pub(crate) struct GroupCommit<S> {
    lead: Mutex<Lead<S>>,
    /// The number of the last group that was announced, and how far the last two go.
    newest: AtomicU64,
    targets: [AtomicU64; WORDS],
    words: [WaitWord; WORDS],
    /// Sleepers for room in the ring, and for the lead whatever becomes of it: each release of the
    /// lead wakes them all.
    room: WaitWord,
}

impl<S> GroupCommit<S> {
    pub(crate) fn new(state: S) -> Self {
        Self {
            lead: Mutex::new(Lead { state, newest: 0 }),
            newest: AtomicU64::new(0),
            targets: std::array::from_fn(|_| AtomicU64::new(0)),
            words: std::array::from_fn(|_| WaitWord::new()),
            room: WaitWord::new(),
        }
    }

    /// Waits until `done` gives an answer, and leads where no other thread does. `end` is what the
    /// caller waits for, to be compared with a group's target.
    pub(crate) fn wait<R>(
        &self,
        writer: &impl GroupWriter<LeaderState = S>,
        end: Lsn,
        mut done: impl FnMut() -> Option<R>,
    ) -> R {
        let (mut yields, mut idles) = (0, 0);
        loop {
            let seen = self.words.each_ref().map(WaitWord::read);
            if let Some(answer) = done() {
                return answer;
            }
            if self.try_lead(writer, &mut idles) {
                continue;
            }
            if yields < YIELDS {
                yields = if writer.give_way() { yields + 1 } else { YIELDS };
                continue;
            }
            let number = self.number_for(end);
            #[expect(clippy::indexing_slicing, reason = "a place is always below WORDS")]
            self.word(number).wait(seen[place_of(number)], None);
        }
    }

    /// As [`GroupCommit::wait`], for room in the ring: every group that completes makes some.
    pub(crate) fn wait_for_room<R>(
        &self,
        writer: &impl GroupWriter<LeaderState = S>,
        mut done: impl FnMut() -> Option<R>,
    ) -> R {
        let mut idles = 0;
        loop {
            let seen = self.room.read();
            if let Some(answer) = done() {
                return answer;
            }
            if !self.try_lead(writer, &mut idles) {
                self.room.wait(seen, None);
            }
        }
    }

    /// Leads one group, after the one that is in flight; `false` where there was nothing to do, or
    /// `over` says so first. The caller may hold what the leader's wakers need, so it must not
    /// sleep where only the lead's release would wake it.
    pub(crate) fn lead_next(
        &self,
        writer: &impl GroupWriter<LeaderState = S>,
        over: impl Fn() -> bool,
    ) -> bool {
        loop {
            let seen = self.room.read();
            if over() {
                return false;
            }
            if let Some(lead) = self.take_lead() {
                return self.lead(lead, writer);
            }
            self.room.wait(seen, None);
        }
    }

    fn take_lead(&self) -> Option<MutexGuard<'_, Lead<S>>> {
        match self.lead.try_lock() {
            Ok(lead) => Some(lead),
            // A leader panicked; the log is poisoned, and the next leader finds that out first.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Does `work` while no group is in flight.
    pub(crate) fn alone(&self, work: impl FnOnce()) {
        let lead = lock(&self.lead);
        work();
        self.pass_on(lead);
    }

    /// Something happened that every sleeper must check (poison, close).
    pub(crate) fn wake_all(&self) {
        for word in self.words.iter().chain([&self.room]) {
            word.bump();
        }
        for word in self.words.iter().chain([&self.room]) {
            word.wake(ALL);
        }
    }

    /// The group to sleep for: the newest one if it goes as far as `end`, else the next one. It may
    /// have completed meanwhile, but then both words have been bumped.
    fn number_for(&self, end: Lsn) -> u64 {
        // Acquire pairs with the Release in `announce`.
        let newest = self.newest.load(Ordering::Acquire);
        // Relaxed: it may be the target of a later group in the same place, which goes as far.
        let covered = self.target(newest).load(Ordering::Relaxed) >= end;
        newest + u64::from(!covered)
    }

    /// Leads, unless another thread does; `false` if the caller had better sleep.
    fn try_lead(&self, writer: &impl GroupWriter<LeaderState = S>, idles: &mut u32) -> bool {
        let Some(lead) = self.take_lead() else {
            return false;
        };
        if !self.lead(lead, writer) {
            stand_by(writer, *idles);
            *idles += 1;
        }
        true
    }

    fn lead(&self, mut lead: MutexGuard<'_, Lead<S>>, writer: &impl GroupWriter<LeaderState = S>) -> bool {
        let number = lead.newest + 1;
        let mut group = Announcement {
            newest: &self.newest,
            target: self.target(number),
            number,
            made: false,
        };
        writer.write_group(&mut lead.state, &mut group);
        if group.made {
            lead.newest = number;
            self.complete(writer, lead);
            return true;
        }
        // The caller may have been served meanwhile, and not come back: a thread that found the
        // lead taken must check in its place.
        self.pass_on(lead);
        false
    }

    fn target(&self, number: u64) -> &AtomicU64 {
        #[expect(clippy::indexing_slicing, reason = "a place is always below WORDS")]
        &self.targets[place_of(number)]
    }

    fn word(&self, number: u64) -> &WaitWord {
        #[expect(clippy::indexing_slicing, reason = "a place is always below WORDS")]
        &self.words[place_of(number)]
    }

    /// Has one of the next group's waiters check again, and all that wait for room.
    fn pass_on(&self, lead: MutexGuard<'_, Lead<S>>) {
        let next = lead.newest + 1;
        drop(lead);
        self.word(next).bump();
        self.room.bump();
        self.word(next).wake(1);
        self.room.wake(ALL);
    }

    /// Wakes the waiters of the newest group, one of the next, and all that wait for room. The
    /// watermarks were raised before.
    fn complete(&self, writer: &impl GroupWriter<LeaderState = S>, lead: MutexGuard<'_, Lead<S>>) {
        let number = lead.newest;
        drop(lead);
        let (group, next) = (self.word(number), self.word(number + 1));
        group.bump();
        next.bump();
        self.room.bump();
        group.wake(ALL);
        next.wake(1);
        self.room.wake(ALL);
        writer.completed();
    }
}

fn place_of(number: u64) -> usize {
    number as usize % WORDS
}

/// Sleeps a moment while another thread, which holds nothing of ours, finishes its copy.
fn stand_by(writer: &impl GroupWriter, tries: u32) {
    const TRIES: u32 = 16;
    let yields = tries < TRIES || cfg!(any(loom, shuttle));
    if !(yields && writer.give_way()) {
        std::thread::sleep(Duration::from_micros(50));
    }
}
