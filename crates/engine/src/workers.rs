//! The hands that append: a bounded pool of log workers, each with its slot in the visible herd.
//!
//! A hand is held from the reservation until the commit is applied, never while anything is waited for
//! that needs another hand. A thread starts its search at a place of its own, so on a quiet machine every
//! thread finds the same free hand again and no two of them touch the same lock.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use collie_log::{AppendHook, Lsn, SlotId, Span};
use parking_lot::{Mutex, MutexGuard};

use crate::codec::{self, Op};
use crate::journal::{Journal, JournalWorker};
use crate::memtable::At;
use crate::visible::Visible;
use crate::{Error, Result};

/// What a commit's frame holds.
#[derive(Clone, Copy)]
pub(crate) enum Record<'a> {
    /// One operation, to be encoded.
    One(Op<'a>),
    /// Operations that a batch has encoded already.
    Encoded(&'a [u8]),
    /// Nothing: a place in the order.
    Place,
}

/// Which room of the log is a commit's: for the last two some is kept when it is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// It brings data.
    Commit,
    /// It takes data away, or is for what does.
    Relief,
    /// A rotation's place: what is flushed up to there is let go of.
    Mark,
}

/// One worker of the log with its slot in the visible herd.
pub(crate) struct Hand {
    journal: JournalWorker,
    slot: SlotId,
    staging: Vec<u8>,
    /// Its slot is BLACK for good: a commit ended in mid-apply, and nothing may ever pass it.
    stuck: bool,
    pub(crate) commits: u64,
    pub(crate) bytes: u64,
}

/// A staging buffer that grew beyond this for one commit is given back.
const STAGING_KEPT: usize = 1 << 20;

impl Hand {
    pub(crate) fn new(journal: &Journal, visible: &Visible) -> Result<Self> {
        let worker = journal.worker()?;
        let slot = visible.register().ok_or_else(|| {
            // One slot per hand was made room for.
            Error::Background {
                cause: "no slot is left for a worker".into(),
            }
        })?;
        Ok(Self {
            journal: worker,
            slot,
            staging: Vec::new(),
            stuck: false,
            commits: 0,
            bytes: 0,
        })
    }

    /// Takes a place in the order, copies the record there, and applies it with `apply`. When this returns
    /// the commit is in its memtables, but older ones may not be yet. An error from before the
    /// reservation leaves nothing behind. An error after it, or a panic in `apply`, leaves the slot BLACK:
    /// the visible boundary stays below the commit for good, and `true` says so.
    pub(crate) fn commit(
        &mut self,
        journal: &Journal,
        visible: &Visible,
        kind: u8,
        record: Record<'_>,
        room: Room,
        apply: impl FnOnce(At),
    ) -> std::result::Result<At, (Error, bool)> {
        let Self {
            journal: worker,
            slot,
            staging,
            stuck,
            commits,
            bytes,
        } = self;
        if *stuck {
            let cause = "an earlier commit ended before it was applied".into();
            return Err((Error::Background { cause }, false));
        }
        let payload = match record {
            Record::One(op) => {
                staging.clear();
                codec::encode(staging, op);
                &**staging
            }
            Record::Encoded(payload) => payload,
            Record::Place => &[],
        };
        // Cleared when all went well; a panic on the way leaves it set.
        *stuck = true;
        let mut hook = Turn {
            visible,
            slot,
            black: false,
        };
        let span = match journal.append(worker, kind, payload, room, &mut hook) {
            Ok(span) => span,
            Err(error) => {
                *stuck = hook.black;
                return Err((error, hook.black));
            }
        };
        *commits += 1;
        *bytes += payload.len() as u64;
        reach!("appended");
        // Pairs with the Release of a rotation's reservation: if that has a smaller LSN than ours, its
        // `rotating` flag is seen from here on (see `Family::mem_for`).
        std::sync::atomic::fence(Ordering::Acquire);
        let at = At {
            start: span.start,
            end: span.end,
        };
        apply(at);
        visible.white(slot, at.end, journal);
        *stuck = false;
        if staging.capacity() > STAGING_KEPT {
            *staging = Vec::new();
        }
        Ok(at)
    }
}

/// Turns the slot BLACK around the log's reservation.
struct Turn<'a> {
    visible: &'a Visible,
    slot: &'a SlotId,
    black: bool,
}

impl AppendHook for Turn<'_> {
    fn before_reserve(&mut self, next: Lsn) {
        self.black = true;
        self.visible.black(self.slot, next);
    }

    fn reserved(&mut self, span: Span) {
        reach!("reserved");
        self.visible.black(self.slot, span.start);
    }
}

/// A hand's place in the pool, alone on its cache lines.
#[repr(align(128))]
struct Place(Mutex<Option<Hand>>);

/// The pool.
pub(crate) struct Workers {
    places: Box<[Place]>,
    /// Threads start their search in the first so many places; with more threads than these, they share:
    /// only so many run at once, and every hand more is a slot more that each commit scans.
    spread: usize,
}

impl Workers {
    pub(crate) fn new(places: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(4, std::num::NonZero::get);
        Self {
            places: (0..places).map(|_| Place(Mutex::new(None))).collect(),
            spread: (4 * cores).clamp(1, places),
        }
    }

    /// A free hand; waits where all are busy.
    pub(crate) fn take(&self) -> MutexGuard<'_, Option<Hand>> {
        let first = thread_number() % self.spread;
        let (before, from) = self.places.split_at(first);
        from.iter()
            .chain(before)
            .find_map(|Place(hand)| hand.try_lock())
            .unwrap_or_else(|| self.places[first].0.lock())
    }

    /// Returns when every commit that was under way is applied.
    pub(crate) fn pass(&self) {
        for Place(hand) in &self.places {
            drop(hand.lock());
        }
    }

    /// Commits and their bytes so far.
    pub(crate) fn totals(&self) -> (u64, u64) {
        self.places.iter().fold((0, 0), |(commits, bytes), Place(hand)| {
            hand.lock().as_ref().map_or((commits, bytes), |hand| {
                (commits + hand.commits, bytes + hand.bytes)
            })
        })
    }

    /// Gives all hands back to the log, before it closes. Later takers find none.
    pub(crate) fn clear(&self) {
        for Place(hand) in &self.places {
            drop(hand.lock().take());
        }
    }
}

/// A small number of the calling thread.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            // Relaxed: only uniqueness counts.
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}
