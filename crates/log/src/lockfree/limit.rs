//! How far frames may be reserved, at the price of one load and one comparison.
//!
//! A small frame is admitted while `next + slack <= limit`. Between that look and its reservation
//! each of the other workers may reserve one small frame that passed the same look, and no worker
//! can overrun twice, since its own reservation shows it how far `next` is. So `next` never passes
//! the limit if `slack` is the number of slots times the largest small frame, whatever the
//! interleaving and however stale the loads are.
//!
//! Larger frames take turns, so at most one of them can be between its look and its reservation.
//! What it needs is kept beyond the limit.
//!
//! Where groups are padded, each frame may be followed by a filler, which is not admitted: a frame
//! that was must reach the device, however full it is. After `next` has passed `limit - slack` at
//! most one filler stands before the first frame that is reserved, and one behind each: `slack` has
//! room for them.
//!
//! Room is reserved at the end of what is prepared, so that a full log can become an emptier one:
//!
//! ```text
//! … commits …  | relief | the largest relief | marks | slack |
//!              ^                                            ^ prepared
//! ```
//!
//! Commits stop before all four; relief stops before the marks' part, and marks before the slack. A
//! frame of any kind is admitted while `next + slack`, and the parts behind its own, fit. The argument
//! above does not depend on the kind that a frame was admitted as. So `next` never passes what is
//! prepared, commits alone never pass the beginning of the relief, and commits and relief never pass
//! that of the marks. A large commit needs its room before all four (`limit` is `prepared` without
//! them), a large relief before the marks.

use crate::Lsn;
use crate::lockfree::boundary::Reservations;
use crate::lockfree::sync::{AtomicU64, Ordering};

/// Which of the prepared room a frame may use: where the device is full, some is left to frames by
/// which there is more in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// It adds data.
    Commit,
    /// It takes data away rather than bringing some. A part of the prepared space is kept for these: a
    /// sixteenth of a segment, 512 KiB at most, and as much for one large frame.
    Relief,
    /// It is small and may help to make room: such as the mark up to which something is about to be saved
    /// elsewhere. By default there is room for ten thousand without a payload. One that is not small (64
    /// bytes in the log always are, 1 KiB are with large segments and few workers) has the room of
    /// [`Room::Commit`].
    Mark,
}

/// Where the reservation counter may be at most when a frame is admitted.
#[derive(Debug)]
pub(crate) struct Limit {
    /// For commits, `slack` and what is kept included. Only grows.
    at: AtomicU64,
    /// For all others. Only grows, and is never below `at`.
    prepared: AtomicU64,
    /// What all workers together may reserve after a look at `at`.
    slack: u64,
    /// The largest small frame.
    small: u64,
    /// What all others leave to marks.
    marks: u64,
    /// What commits leave to relief, beside its largest frame.
    relief: u64,
    /// The largest frame of relief that has room there.
    relief_max: u64,
}

/// What is kept of the prepared room.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kept {
    /// Small frames per worker, with their fillers, for marks.
    pub(crate) marks: u64,
    /// Bytes for relief, and as many once more for its largest frame.
    pub(crate) relief: u64,
}

impl Limit {
    /// A limit for `workers` workers whose small frames have up to `small` bytes, and their fillers
    /// up to `filler`.
    pub(crate) fn new(workers: usize, [small, filler]: [u64; 2], kept: Kept, at: Lsn) -> Self {
        let once = workers as u64 * (small + filler);
        Self {
            at: AtomicU64::new(at),
            prepared: AtomicU64::new(at),
            slack: once + filler,
            small,
            marks: once * kept.marks,
            relief: kept.relief,
            relief_max: kept.relief,
        }
    }

    /// How much of what is prepared lies beyond what commits are admitted to.
    pub(crate) fn kept(&self) -> u64 {
        self.slack + self.relief + self.relief_max + self.marks
    }

    /// By which rule a frame of `len` bytes is admitted: what is too large for what is kept for its
    /// kind is a commit.
    pub(crate) fn room_for(&self, len: u64, room: Room) -> Room {
        match room {
            Room::Relief if !self.is_small(len) && len > self.relief_max => Room::Commit,
            Room::Mark if !self.is_small(len) => Room::Commit,
            room => room,
        }
    }

    /// Whether a frame of `len` bytes needs no turn.
    pub(crate) fn is_small(&self, len: u64) -> bool {
        len <= self.small
    }

    /// Whether a frame may be reserved now, by the worker that asks.
    pub(crate) fn admits(&self, next: &Reservations, room: Room) -> bool {
        // A stale value of the counter serves: `slack` has room for all that overrun their look.
        let next = next.glance();
        match room {
            Room::Commit => self.is_ahead(next, 0),
            Room::Relief => self.has_room(&self.prepared, next + self.relief_max + self.marks),
            Room::Mark => self.has_room(&self.prepared, next),
        }
    }

    /// Whether commits of `ahead` further bytes are admitted beyond `next`.
    pub(crate) fn is_ahead(&self, next: Lsn, ahead: u64) -> bool {
        self.has_room(
            &self.at,
            next + self.relief + self.relief_max + self.marks + ahead,
        )
    }

    /// Acquire pairs with the Release in `raise`: whatever was prepared before the limit was raised
    /// is there.
    fn has_room(&self, limit: &AtomicU64, next: Lsn) -> bool {
        next + self.slack <= limit.load(Ordering::Acquire)
    }

    /// The limit as it is; for the thread that raises it. Relaxed: raises are ordered by the
    /// raiser's lock.
    pub(crate) fn get(&self) -> Lsn {
        self.at.load(Ordering::Relaxed)
    }

    /// Raises the limit to what is prepared, for commits without what a large one of them needs; it
    /// never goes back.
    pub(crate) fn raise(&self, prepared: Lsn, large: u64) {
        // Release pairs with the Acquire in `has_room`.
        self.prepared.fetch_max(prepared, Ordering::Release);
        self.at
            .fetch_max(prepared.saturating_sub(large), Ordering::Release);
    }
}
