//! Group commit: one thread flushes for everybody who waits.
//!
//! The first waiter that finds work to do takes the lead, plans a flight, frees the lead again and flies:
//! writes what it planned, for everybody. Whoever comes meanwhile may start another flight, where there is
//! enough for one and the two do not touch the same block; else it sleeps, on the word of the flight that
//! covers what it waits for, or on that of the next one. Flights land in their order, however they end: what
//! lies behind a hole is not durable. A landing wakes all who were on board with one call, and one of the next
//! group, who takes the lead for that group. Nobody hops to another thread unless it has to, and no timer
//! is involved.
//!
//! With many committers the scheduler's work, to send a thread to sleep and to wake it, is most of what a
//! commit costs. So a waiter gives up its time slice a few times before it sleeps: who is about to append
//! does so meanwhile, and comes along.
//!
//! **No wake-up is lost.** Flights are numbered; a number's place, modulo [`WORDS`], holds its target and its
//! word. Fewer flights are in the air than there are places, so the next one's is free. At a landing the
//! watermarks are raised, then `landed`; the lead is freed, then the words of all that landed **and** the
//! next one's are bumped, then sleepers are woken. A waiter reads all words before anything else. So when it
//! falls asleep it has seen neither the landing of the flight that it is on board of, nor, where it is on board
//! of none, a landing that came after its try for the lead; and there is one to come: either a flight
//! was in the air when it had the lead, or somebody else had it, who starts a flight, is landing one, or passes the
//! lead on. Of the next group one is woken, so nobody may sleep there who has been served: a waiter looks
//! once more after it has found its flight's number.
//! (A first design bumped only the flown group's word; a waiter of the next group could then sleep on an
//! unbumped word with no leader left to wake it.)

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::TryLockError;
use std::time::Duration;

use crate::Lsn;
use crate::sync::{ALL, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, WaitWord, lock};

/// The most flights that any log has in the air at once.
pub(crate) const IN_FLIGHT_MAX: usize = 3;
/// Places for flights: those in the air, and the next one.
const WORDS: usize = IN_FLIGHT_MAX + 1;

/// How often a waiter gives up its time slice before it sleeps. Bounded, so that an idle processor is not
/// kept busy for the time of a sync; docs/experiments.md has the figures.
const YIELDS: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 4 };

/// What flights do.
pub(crate) trait Pilot {
    /// What only the one with the lead touches.
    type Desk;
    /// What a flight carries.
    type Load;
    /// How far a waiter needs the flight to go.
    type Until: Copy;

    /// Plans the next flight, with the lead, for somebody who waits for `end`.
    fn start(
        &self,
        desk: &mut Self::Desk,
        end: Lsn,
        until: Self::Until,
        takeoff: &mut Takeoff<'_>,
    ) -> Start<Self::Load>;

    /// Flies, without the lead; `false` if the flight failed, and nothing may ever land again.
    fn fly(&self, load: &mut Self::Load) -> bool;

    /// Raises the watermarks, with the lead, in the order in which flights were started.
    fn land(&self, desk: &mut Self::Desk, load: Self::Load);

    /// Whether no flight can be started before one lands that is in the air.
    fn must_wait(&self, desk: &Self::Desk) -> bool;

    /// Called after a landing, without the lead.
    fn landed(&self);
}

/// What came of planning a flight.
pub(crate) enum Start<L> {
    /// Nothing can be done before a flight lands that is in the air, or was when the caller looked.
    Wait,
    /// There is nothing to carry yet, or no more flights; the caller looks again in a moment.
    Idle,
    /// It is over already, with the lead in hand; it was announced, and no other was in the air.
    Over,
    /// It was announced, and is to be flown.
    Off(L),
}

/// Announces a flight.
pub(crate) struct Takeoff<'a> {
    newest: &'a AtomicU64,
    target: &'a AtomicU64,
    number: u64,
    announced: bool,
}

impl Takeoff<'_> {
    /// Says how far this flight goes, as soon as that is known. Who waits for no more will sleep until the
    /// flight is over; who waits for more, until it can start one itself.
    pub(crate) fn announce(&mut self, target: Lsn) {
        // Relaxed: ordered by the next store, with which it is read.
        self.target.store(target, Ordering::Relaxed);
        // Release pairs with the Acquire in `Gate::number_for`.
        self.newest.store(self.number, Ordering::Release);
        self.announced = true;
    }
}

/// What only the one with the lead touches.
#[derive(Debug)]
struct Lead<D, L> {
    desk: D,
    /// The number of the last flight that was announced.
    newest: u64,
    /// In their order; the last is the newest.
    air: VecDeque<Aloft<L>>,
}

impl<D, L> Lead<D, L> {
    fn is_flying(&self) -> bool {
        self.air.iter().any(|aloft| matches!(aloft, Aloft::Flying))
    }
}

#[derive(Debug)]
enum Aloft<L> {
    Flying,
    /// It did what it should, and waits for those before it to land.
    Done(L),
    /// It failed; neither this one nor those behind it ever land.
    Lost,
}

/// The lead, and the groups of sleepers.
#[derive(Debug)]
pub(crate) struct Gate<P: Pilot> {
    lead: Mutex<Lead<P::Desk, P::Load>>,
    /// The number of the last flight that was announced.
    newest: AtomicU64,
    /// The number of the last flight that landed.
    landed: AtomicU64,
    /// 1 while no flight can be started before one lands: nobody need try for the lead then.
    full: AtomicU32,
    targets: [AtomicU64; WORDS],
    words: [WaitWord; WORDS],
    /// Sleepers for room in the ring rather than for durability.
    room: WaitWord,
    /// The most flights in the air at once, at most [`IN_FLIGHT_MAX`].
    most: usize,
}

impl<P: Pilot> Gate<P> {
    pub(crate) fn new(desk: P::Desk, most: usize) -> Self {
        debug_assert!((1..=IN_FLIGHT_MAX).contains(&most), "places are for no more");
        Self {
            most,
            lead: Mutex::new(Lead {
                desk,
                newest: 0,
                air: VecDeque::with_capacity(most),
            }),
            newest: AtomicU64::new(0),
            landed: AtomicU64::new(0),
            full: AtomicU32::new(0),
            targets: std::array::from_fn(|_| AtomicU64::new(0)),
            words: std::array::from_fn(|_| WaitWord::new()),
            room: WaitWord::new(),
        }
    }

    /// Waits until `done` gives an answer, flying where nobody else does. `end` is what the caller waits for,
    /// to be compared with a flight's target.
    pub(crate) fn wait<R>(
        &self,
        pilot: &P,
        end: Lsn,
        until: P::Until,
        mut done: impl FnMut() -> Option<R>,
    ) -> R {
        let (mut yields, mut idles) = (0, 0);
        loop {
            let seen = self.words.each_ref().map(WaitWord::read);
            if let Some(answer) = done() {
                return answer;
            }
            if self.try_fly(pilot, end, until, &mut idles) {
                continue;
            }
            if yields < YIELDS {
                yields += 1;
                crate::sync::yield_now();
                continue;
            }
            let number = self.number_for(end);
            // A flight that landed since the look above is not found any more: who was on board of it must not
            // sleep among the next group, of which only one is woken.
            if let Some(answer) = done() {
                return answer;
            }
            #[expect(clippy::indexing_slicing, reason = "a place is always below WORDS")]
            self.word(number).wait(seen[place_of(number)], None);
        }
    }

    /// As [`Gate::wait`], for room in the ring: woken after every write, not only when a flight is over.
    pub(crate) fn wait_for_room<R>(
        &self,
        pilot: &P,
        end: Lsn,
        until: P::Until,
        mut done: impl FnMut() -> Option<R>,
    ) -> R {
        let mut idles = 0;
        loop {
            let seen = self.room.read();
            if let Some(answer) = done() {
                return answer;
            }
            if !self.try_fly(pilot, end, until, &mut idles) {
                self.room.wait(seen, None);
            }
        }
    }

    /// Does `work` while no flight is in the air.
    pub(crate) fn alone(&self, work: impl FnOnce()) {
        loop {
            let seen = self.room.read();
            let lead = lock(&self.lead);
            if !lead.is_flying() {
                work();
                self.pass_on(lead);
                return;
            }
            drop(lead);
            self.room.wait(seen, None);
        }
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

    /// The flight to sleep for: the one in the air that goes as far as `end`, or the next one.
    fn number_for(&self, end: Lsn) -> u64 {
        // Acquire pairs with the Release in `landed`: who has seen a word bumped for a landing sees here that
        // it is over.
        let landed = self.landed.load(Ordering::Acquire);
        // Acquire pairs with the Release in `announce`.
        let newest = self.newest.load(Ordering::Acquire);
        (landed + 1..=newest)
            // Relaxed: it may be the target of a later flight in the same place, whose word was bumped meanwhile.
            .find(|number| self.target(*number).load(Ordering::Relaxed) >= end)
            .unwrap_or(newest + 1)
    }

    fn try_lead(&self) -> Option<MutexGuard<'_, Lead<P::Desk, P::Load>>> {
        match self.lead.try_lock() {
            Ok(guard) => Some(guard),
            // A leader panicked; the log is poisoned, and whoever leads next finds that out first.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Starts a flight and flies it, if there is one to be flown; `false` if the caller had better sleep.
    fn try_fly(&self, pilot: &P, end: Lsn, until: P::Until, idles: &mut u32) -> bool {
        // Acquire pairs with the Release in `landed`, as that of `landed` itself does in `number_for`.
        if self.full.load(Ordering::Acquire) != 0 {
            return false;
        }
        let Some(mut lead) = self.try_lead() else {
            return false;
        };
        if self.is_full(pilot, &lead) {
            return false;
        }
        let number = lead.newest + 1;
        let mut takeoff = Takeoff {
            newest: &self.newest,
            target: self.target(number),
            number,
            announced: false,
        };
        let start = pilot.start(&mut lead.desk, end, until, &mut takeoff);
        if takeoff.announced {
            lead.newest = number;
        }
        match start {
            Start::Wait if lead.is_flying() => return false,
            // What it would have waited for has landed since the caller looked. It may be served and not come back,
            // as below.
            Start::Wait => self.pass_on(lead),
            Start::Idle => {
                // The caller may have been served meanwhile, and not come back: somebody who found the lead
                // taken must look in its place.
                self.pass_on(lead);
                stand_by(*idles);
                *idles += 1;
            }
            Start::Over => {
                debug_assert!(takeoff.announced && lead.air.is_empty());
                self.landed(pilot, lead, number..number + 1);
            }
            Start::Off(mut load) => {
                debug_assert!(takeoff.announced);
                lead.air.push_back(Aloft::Flying);
                // Relaxed: who does not see it tries for the lead.
                self.full
                    .store(self.is_full(pilot, &lead).into(), Ordering::Relaxed);
                drop(lead);
                let mut flight = Flight {
                    gate: self,
                    pilot,
                    number,
                    load: None,
                };
                if pilot.fly(&mut load) {
                    flight.load = Some(load);
                }
            }
        }
        true
    }

    fn is_full(&self, pilot: &P, lead: &Lead<P::Desk, P::Load>) -> bool {
        lead.air.len() >= self.most || pilot.must_wait(&lead.desk)
    }

    fn target(&self, number: u64) -> &AtomicU64 {
        #[expect(clippy::indexing_slicing, reason = "a place is always below WORDS")]
        &self.targets[place_of(number)]
    }

    fn word(&self, number: u64) -> &WaitWord {
        #[expect(clippy::indexing_slicing, reason = "a place is always below WORDS")]
        &self.words[place_of(number)]
    }

    /// Has one of those who wait for the next flight look again, and one who waits for room.
    fn pass_on(&self, lead: MutexGuard<'_, Lead<P::Desk, P::Load>>) {
        let next = lead.newest + 1;
        drop(lead);
        self.word(next).bump();
        self.room.bump();
        self.word(next).wake(1);
        self.room.wake(1);
    }

    /// Tells everybody who waits for these flights, and one of those who wait for the next. The watermarks
    /// were raised before.
    fn landed(&self, pilot: &P, lead: MutexGuard<'_, Lead<P::Desk, P::Load>>, flights: Range<u64>) {
        // Release pairs with the Acquire in `try_fly`. Who reads 1 and has missed this sleeps on a word that is
        // bumped below.
        self.full
            .store(self.is_full(pilot, &lead).into(), Ordering::Release);
        // Release pairs with the Acquire in `number_for`.
        self.landed.store(flights.end - 1, Ordering::Release);
        let next = lead.newest + 1;
        drop(lead);
        for flight in flights.clone() {
            self.word(flight).bump();
        }
        self.word(next).bump();
        self.room.bump();
        for flight in flights {
            self.word(flight).wake(ALL);
        }
        self.word(next).wake(1);
        self.room.wake(ALL);
        pilot.landed();
    }
}

fn place_of(number: u64) -> usize {
    number as usize % WORDS
}

/// A flight in the air. It ends also when its pilot panics, so that nobody waits for it for ever.
struct Flight<'a, P: Pilot> {
    gate: &'a Gate<P>,
    pilot: &'a P,
    number: u64,
    /// There once it did what it should.
    load: Option<P::Load>,
}

impl<P: Pilot> Drop for Flight<'_, P> {
    /// Lands this flight and those behind it that waited for it, unless one before it is in the air.
    fn drop(&mut self) {
        let mut lead = lock(&self.gate.lead);
        let first = lead.newest + 1 - lead.air.len() as u64;
        if let Some(aloft) = lead.air.get_mut((self.number - first) as usize) {
            *aloft = self.load.take().map_or(Aloft::Lost, Aloft::Done);
        }
        let mut next = first;
        while let Some(aloft) = lead.air.pop_front() {
            match aloft {
                Aloft::Done(load) => self.pilot.land(&mut lead.desk, load),
                unfinished => {
                    lead.air.push_front(unfinished);
                    break;
                }
            }
            next += 1;
        }
        self.gate.landed(self.pilot, lead, first..next);
    }
}

/// Sleeps a moment while another thread, which holds nothing of ours, finishes its copy.
fn stand_by(tries: u32) {
    const SPINS: u32 = 16;
    if tries < SPINS || cfg!(any(loom, shuttle)) {
        crate::sync::yield_now();
    } else {
        std::thread::sleep(Duration::from_micros(50));
    }
}
