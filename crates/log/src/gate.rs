//! Group commit: one thread flushes for everybody who waits.
//!
//! The first waiter that finds the lead free takes it and flushes inline. Whoever comes meanwhile sleeps:
//! on the *current* flight's word if that flight covers what it waits for, on the *next* one's otherwise.
//! When the flight is over one call wakes all who were on board, and one of the next group, who takes the
//! lead for that group. Nobody hops to another thread unless it has to, and no timer is involved.
//!
//! With many committers the scheduler's work, to send a thread to sleep and to wake it, is most of what a
//! commit costs. So a waiter gives up its time slice a few times before it sleeps: who is about to append
//! does so meanwhile, and comes along.
//!
//! A flight's word and its target are one atomic, so nobody pairs the target of one flight with the word
//! of another. The lead is freed, then **both** words are bumped, then sleepers are woken: a waiter reads
//! both words before it tries the lead, so if it found the lead taken and then missed the wake-up, the word
//! has changed under it and it does not sleep. (A first design bumped only the flown group's word; a waiter
//! of the next group could then sleep on an unbumped word with no leader left to wake it.)

use std::sync::TryLockError;
use std::time::Duration;

use crate::Lsn;
use crate::sync::{ALL, AtomicU64, Mutex, MutexGuard, Ordering, WaitWord, lock};

/// The lead, and the two groups of sleepers. `F` is what only the leader touches.
#[derive(Debug)]
pub(crate) struct Gate<F> {
    lead: Mutex<F>,
    /// The target of the flight in the air or, between flights, of the last; bit 0 is its word.
    flight: AtomicU64,
    words: [WaitWord; 2],
    /// Sleepers for room in the ring rather than for durability.
    room: WaitWord,
}

/// How often a waiter gives up its time slice before it sleeps. Bounded, so that an idle processor is not
/// kept busy for the time of a sync; docs/experiments.md has the figures.
const YIELDS: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 4 };

/// Set while a leader may announce its flight.
pub(crate) struct Flight<'a> {
    flight: &'a AtomicU64,
    word: usize,
    announced: bool,
}

impl Flight<'_> {
    /// Says how far this flight goes, as soon as that is known. Who waits for no more will sleep until the
    /// flight is over; who waits for more, until it can be led itself.
    pub(crate) fn announce(&mut self, target: Lsn) {
        debug_assert!(target.is_multiple_of(2));
        // Release pairs with the Acquire in `Gate::wait`.
        self.flight.store(target | self.word as u64, Ordering::Release);
        self.announced = true;
    }
}

impl<F> Gate<F> {
    pub(crate) fn new(leader: F) -> Self {
        Self {
            lead: Mutex::new(leader),
            flight: AtomicU64::new(0),
            words: [WaitWord::new(), WaitWord::new()],
            room: WaitWord::new(),
        }
    }

    /// Waits until `done` gives an answer, leading flights where nobody else does. `end` is what the caller
    /// waits for, to be compared with a flight's target. `fly` must make progress towards `done`, or give up
    /// its time slice.
    pub(crate) fn wait<R>(
        &self,
        end: Lsn,
        mut done: impl FnMut() -> Option<R>,
        mut fly: impl FnMut(&mut F, &mut Flight<'_>),
    ) -> R {
        let mut yields = 0;
        // The word of the flight that this thread was on board of when it fell asleep.
        let mut slept_on = None;
        loop {
            let seen = [self.words[0].read(), self.words[1].read()];
            if let Some(answer) = done() {
                self.pass_on(slept_on);
                return answer;
            }
            if let Some(lead) = self.try_lead() {
                self.lead(lead, &mut fly);
                slept_on = None;
                continue;
            }
            if yields < YIELDS {
                yields += 1;
                crate::sync::yield_now();
                continue;
            }
            // Acquire pairs with the Release in `announce`.
            let flight = self.flight.load(Ordering::Acquire);
            let on_board = flight & !1 >= end;
            let word = if on_board {
                word_of(flight)
            } else {
                1 - word_of(flight)
            };
            self.words[word].wait(seen[word], None);
            slept_on = on_board.then_some(word);
        }
    }

    /// As [`Gate::wait`], for room in the ring: woken after every write, not only when a flight is over.
    pub(crate) fn wait_for_room<R>(
        &self,
        mut done: impl FnMut() -> Option<R>,
        mut fly: impl FnMut(&mut F, &mut Flight<'_>),
    ) -> R {
        loop {
            let seen = self.room.read();
            if let Some(answer) = done() {
                return answer;
            }
            match self.try_lead() {
                Some(lead) => self.lead(lead, &mut fly),
                None => self.room.wait(seen, None),
            }
        }
    }

    /// Does `work` while no flight is in the air.
    pub(crate) fn alone(&self, work: impl FnOnce()) {
        let _lead = lock(&self.lead);
        work();
    }

    /// There is more room in the ring.
    pub(crate) fn made_room(&self) {
        self.room.bump();
        self.room.wake(ALL);
    }

    /// Something happened that every sleeper must look at (poison, close).
    pub(crate) fn wake_all(&self) {
        for word in self.words.iter().chain([&self.room]) {
            word.bump();
        }
        for word in self.words.iter().chain([&self.room]) {
            word.wake(ALL);
        }
    }

    fn try_lead(&self) -> Option<MutexGuard<'_, F>> {
        match self.lead.try_lock() {
            Ok(guard) => Some(guard),
            // A leader panicked; the log is poisoned, and whoever leads next finds that out first.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn lead(&self, lead: MutexGuard<'_, F>, fly: &mut impl FnMut(&mut F, &mut Flight<'_>)) {
        // Relaxed: only leaders store it, and the lock orders them.
        let word = 1 - word_of(self.flight.load(Ordering::Relaxed));
        // Lands also when `fly` panics, so that nobody sleeps for ever.
        let mut landing = Landing {
            gate: self,
            word,
            all: true,
            lead: Some(lead),
        };
        let mut flight = Flight {
            flight: &self.flight,
            word,
            announced: false,
        };
        if let Some(lead) = &mut landing.lead {
            fly(lead, &mut flight);
        }
        // Without an announcement the words still belong to the flight before: wake both groups.
        landing.all = !flight.announced;
    }

    /// A thread that was woken to lead the next flight, and need not, wakes another in its place.
    ///
    /// That can only be one that boarded a flight when it had landed already (it had only written, and the
    /// thread waits for the sync): it sleeps among the next group. Who fell asleep as one of the next group
    /// is served by a later flight, whose landing wakes that whole group anyway.
    fn pass_on(&self, slept_on: Option<usize>) {
        if let Some(word) = slept_on {
            // Relaxed: a flight announced since then wakes its group by itself; an extra wake is harmless.
            if word_of(self.flight.load(Ordering::Relaxed)) != word {
                self.words[word].wake(1);
            }
        }
    }
}

fn word_of(flight: u64) -> usize {
    (flight & 1) as usize
}

/// Ends a flight: frees the lead, then bumps both words, then wakes.
struct Landing<'a, F> {
    gate: &'a Gate<F>,
    word: usize,
    all: bool,
    lead: Option<MutexGuard<'a, F>>,
}

impl<F> Drop for Landing<'_, F> {
    fn drop(&mut self) {
        drop(self.lead.take());
        let Gate { words, room, .. } = self.gate;
        words[0].bump();
        words[1].bump();
        room.bump();
        words[self.word].wake(ALL);
        words[1 - self.word].wake(if self.all { ALL } else { 1 });
        room.wake(ALL);
    }
}

/// Sleeps a moment while another thread, which holds nothing of ours, finishes its copy.
pub(crate) fn stand_by(tries: u32) {
    const SPINS: u32 = 16;
    if tries < SPINS || cfg!(any(loom, shuttle)) {
        crate::sync::yield_now();
    } else {
        std::thread::sleep(Duration::from_micros(50));
    }
}
