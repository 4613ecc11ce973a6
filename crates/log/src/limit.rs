//! How far frames may be reserved, at the price of one load and one comparison.
//!
//! A small frame is admitted while `next + slack <= limit`. Between that look and its reservation each of
//! the other workers may reserve one small frame that passed the same look, and no worker can overrun twice,
//! since its own reservation shows it how far `next` is. So `next` never passes the limit if `slack` is the
//! number of slots times the largest small frame, whatever the interleaving and however stale the loads are.
//!
//! Larger frames take turns, so at most one of them can be between its look and its reservation. What it
//! needs is kept beyond the limit.
//!
//! Where flights pad, each frame may be followed by a filler, which is not admitted: a frame that was must reach the
//! device, however full it is. After `next` has passed `limit - slack` at most one filler stands before the first
//! frame that is reserved, and one behind each: `slack` has room for them.
//!
//! Commits are admitted while `next + slack + kept <= limit`, marks without `kept`. The argument does not ask
//! which of the two a worker was admitted by, so `next` never passes the limit; and by the same argument commits
//! alone never pass `limit - kept`. What `kept` has beyond another `slack` is therefore there for marks,
//! however full the device is.

use crate::Lsn;
use crate::herd::Reservations;
use crate::sync::{AtomicU64, Ordering};

/// Who asks for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// Whoever brings data.
    Commit,
    /// Whoever may make room by it: see [`Worker::append_mark`](crate::Worker::append_mark).
    Mark,
}

/// Where the reservation counter may be at most when a frame is admitted.
#[derive(Debug)]
pub(crate) struct Limit {
    /// `slack` included. Only grows.
    at: AtomicU64,
    /// What all workers together may reserve after a look at `at`.
    slack: u64,
    /// The largest small frame.
    small: u64,
    /// What commits leave to marks.
    kept: u64,
}

impl Limit {
    /// A limit for `workers` workers whose small frames have up to `small` bytes, and their fillers up to `filler`.
    /// `frames` of both for each of them are left to marks.
    pub(crate) fn new(workers: usize, [small, filler]: [u64; 2], frames: u64, at: Lsn) -> Self {
        let once = workers as u64 * (small + filler);
        Self {
            at: AtomicU64::new(at),
            slack: once + filler,
            small,
            kept: once * frames,
        }
    }

    /// Whether a frame of `len` bytes needs no turn.
    pub(crate) fn is_small(&self, len: u64) -> bool {
        len <= self.small
    }

    /// Whether a frame may be reserved now, by the worker that asks.
    pub(crate) fn admits(&self, next: &Reservations, room: Room) -> bool {
        // A stale value of the counter serves: see the module.
        let next = next.glance();
        match room {
            Room::Commit => self.is_ahead(next, 0),
            Room::Mark => self.has_room(next),
        }
    }

    /// Whether commits of `ahead` further bytes are admitted beyond `next`.
    pub(crate) fn is_ahead(&self, next: Lsn, ahead: u64) -> bool {
        self.has_room(next + self.kept + ahead)
    }

    /// Acquire pairs with the Release in `raise`: whatever was prepared before the limit was raised is there.
    fn has_room(&self, next: Lsn) -> bool {
        next + self.slack <= self.at.load(Ordering::Acquire)
    }

    /// The limit as it is; for whoever raises it. Relaxed: raises are ordered by the raiser's lock.
    pub(crate) fn get(&self) -> Lsn {
        self.at.load(Ordering::Relaxed)
    }

    /// Raises the limit to what is prepared; it never goes back.
    pub(crate) fn raise(&self, to: Lsn) {
        // Release pairs with the Acquire in `has_room`.
        self.at.fetch_max(to, Ordering::Release);
    }
}
