//! Admission: space on the device is secured before an LSN is reserved.
//!
//! Small frames are admitted by a look at the [`Limit`]. Larger ones take turns; `reserve` bytes
//! beyond the limit are kept for the one whose turn it is: as many as the largest frame so far had.
//!
//! What commits leave of the prepared space is for relief and marks, by which a full log can become
//! an emptier one.

use crate::Lsn;
use crate::error::{HousekeepingError, LogError};
use crate::flush::writer::FILLER_MAX;
use crate::lockfree::boundary::Reservations;
use crate::lockfree::limit::{Kept, Limit, Room};
use crate::lockfree::sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock};
use crate::options::LogOptions;
use crate::segments::pool::{Builder, Segments};

/// Small frames per worker that are left to marks: one for what commits may overrun their look by,
/// so that the other is there whatever happens.
const FOR_MARKS: u64 = 2;
/// A larger frame takes its turn. Each worker has room kept for small ones, three times so much: with
/// this, what is kept fits what is prepared before a log's first append.
const SMALL_MAX: u64 = 1024;
/// Beyond the limit so much is kept from the beginning for the larger frame whose turn it is.
const LARGE_FIRST: u64 = 4096;
/// Of a segment so large a part is left to relief, and as much to its largest frame; and so many
/// bytes at most.
const FOR_RELIEF: u64 = 16;
const FOR_RELIEF_MOST: u64 = 512 << 10;

/// The prepared space, and who is admitted to it.
#[derive(Debug)]
pub(crate) struct Space {
    limit: Limit,
    /// The turn of larger frames.
    large: Mutex<()>,
    /// What is kept for the one whose turn it is. Written with the builder's lock held:
    /// `limit + reserve` is at most what is prepared.
    reserve: AtomicU64,
    /// Why no more room could be prepared when that was last tried in the background.
    pub(crate) setback: Mutex<Option<LogError>>,
}

/// The turn of a large frame, from its admission to its reservation.
pub(crate) type LargeTurn<'a> = MutexGuard<'a, ()>;

impl Space {
    /// That of a log which is prepared up to `total`. Where room is `owed` to the next opening,
    /// commits get nothing of that: each process that dies on a full disk would leave a segment with
    /// a few frames, until no further one can open.
    pub(crate) fn of(options: &LogOptions, total: Lsn, owed: bool) -> Self {
        let (workers, segment_bytes) = (options.all_workers(), options.segment_bytes);
        // The most bytes that may follow a frame for the sake of its block.
        let filler_max = if options.pad_to_block { FILLER_MAX } else { 0 };
        let small = (segment_bytes / 8 / workers as u64).clamp(64, SMALL_MAX);
        let kept = Kept {
            marks: FOR_MARKS,
            relief: (segment_bytes / FOR_RELIEF).min(FOR_RELIEF_MOST),
        };
        let limit = Limit::new(workers, [small, filler_max], kept, 0);
        limit.raise(total, if owed { total } else { LARGE_FIRST });
        Self {
            limit,
            large: Mutex::new(()),
            reserve: AtomicU64::new(LARGE_FIRST),
            setback: Mutex::new(None),
        }
    }

    /// How much of what is prepared lies beyond what commits are admitted to.
    pub(crate) fn kept(&self) -> u64 {
        self.limit.kept() + LARGE_FIRST
    }

    /// Whether `ahead` further bytes are prepared beyond what is reserved.
    pub(crate) fn is_ahead(&self, next: Lsn, ahead: u64) -> bool {
        self.limit.is_ahead(next, ahead)
    }

    /// Whether a frame of `len` bytes that is reserved exactly at `at` passes nothing that is kept
    /// for others: it needs no turn, whatever its size, for none can be reserved between this look
    /// and its reservation.
    pub(crate) fn admits_exactly(&self, at: Lsn, len: u64) -> bool {
        self.limit.is_ahead(at, len)
    }

    /// Raises the limit to what is prepared; the builder's lock is held.
    fn publish(&self, builder: &Builder) {
        let reserve = self.reserve.load(Ordering::Relaxed);
        self.limit.raise(builder.total(), reserve);
    }

    /// Prepares one step more for `room`, unless `enough` says so once it has the right to.
    pub(crate) fn extend_unless(
        &self,
        segments: &Segments,
        room: Room,
        enough: impl FnOnce() -> bool,
    ) -> Result<(), HousekeepingError> {
        let mut builder = segments.builder();
        if enough() {
            return Ok(());
        }
        extend(segments, &mut builder, room)?;
        self.publish(&builder);
        Ok(())
    }

    /// As [`Space::admit`], where nothing has to be waited for or prepared.
    pub(crate) fn admit_at_once(
        &self,
        next: &Reservations,
        len: u64,
        room: Room,
    ) -> Option<Option<LargeTurn<'_>>> {
        if self.limit.is_small(len) {
            return self.limit.admits(next, room).then_some(None);
        }
        let turn = self.large.try_lock().ok()?;
        let room = self.limit.room_for(len, room);
        // Relaxed: it is changed by the one whose turn it is.
        let has_reserve = room != Room::Commit || len <= self.reserve.load(Ordering::Relaxed);
        (has_reserve && self.limit.admits(next, room)).then_some(Some(turn))
    }

    /// Secures room for a frame of `len` bytes. The answer is to be kept until the reservation is
    /// made.
    pub(crate) fn admit<'a>(
        &'a self,
        segments: &Segments,
        next: &Reservations,
        len: u64,
        asked: Room,
    ) -> Result<Option<LargeTurn<'a>>, HousekeepingError> {
        let turn = (!self.limit.is_small(len)).then(|| lock(&self.large));
        // What is prepared is still for who asks.
        let room = self.limit.room_for(len, asked);
        if turn.is_some() && room == Room::Commit && len > self.reserve.load(Ordering::Relaxed) {
            // In steps, so that slowly growing frames do not prepare space each time.
            self.raise_reserve(segments, asked, len.next_power_of_two())?;
        }
        while !self.limit.admits(next, room) {
            self.extend_unless(segments, asked, || self.limit.admits(next, room))?;
        }
        Ok(turn)
    }

    /// Keeps `len` bytes beyond the limit from now on. The limit cannot go back, so they are
    /// prepared first.
    fn raise_reserve(&self, segments: &Segments, asked: Room, len: u64) -> Result<(), HousekeepingError> {
        let mut builder = segments.builder();
        if segments.owes() {
            // Commits have no limit yet that the turn could be measured by.
            extend(segments, &mut builder, asked)?;
        }
        while builder.total() < self.limit.get() + len {
            extend(segments, &mut builder, asked)?;
        }
        self.reserve.store(len, Ordering::Relaxed);
        self.publish(&builder);
        Ok(())
    }
}

/// Prepares one step more for `room`.
fn extend(segments: &Segments, builder: &mut Builder, room: Room) -> Result<(), HousekeepingError> {
    match room {
        Room::Commit => segments.extend_for_commits(builder),
        Room::Relief | Room::Mark => segments.extend(builder),
    }
}
