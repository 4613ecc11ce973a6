//! Admission: space on the device is secured before an LSN is reserved.
//!
//! A small frame costs one load and one comparison: it is admitted while `next + slack <= limit`. Between
//! that look and its reservation each of the other workers may reserve one small frame that passed the same
//! look, and no worker can overrun twice, since its own reservation shows it how far `next` is. So `next`
//! never passes the limit if `slack` is the number of slots times the largest small frame, whatever the
//! interleaving and however stale the loads are.
//!
//! Larger frames take turns, so at most one of them can be between its look and its reservation. `reserve`
//! bytes beyond the limit are kept for it: as many as the largest frame so far had.

use crate::Lsn;
use crate::error::LogError;
use crate::segments::{Builder, Segments};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock};

#[derive(Debug)]
pub(crate) struct Space {
    /// Where `next` may be at most when a frame is admitted, `slack` included. Only grows.
    limit: AtomicU64,
    /// What small frames may reserve after a look at `limit`.
    slack: u64,
    /// The largest small frame.
    small: u64,
    /// The turn of larger frames, and what is kept for the one whose turn it is.
    large: Mutex<()>,
    /// Written with the builder's lock held: `limit + reserve` is at most what is prepared.
    reserve: AtomicU64,
}

/// The turn of a large frame, from its admission to its reservation.
pub(crate) type LargeTurn<'a> = MutexGuard<'a, ()>;

impl Space {
    pub(crate) fn new(max_workers: usize, segment_bytes: u64, total: Lsn) -> Self {
        let workers = max_workers as u64;
        let small = (segment_bytes / 8 / workers).clamp(64, 4096);
        Self {
            limit: AtomicU64::new(total),
            slack: workers * small,
            small,
            large: Mutex::new(()),
            reserve: AtomicU64::new(0),
        }
    }

    fn fits(&self, next: &AtomicU64) -> bool {
        // Relaxed for `next`: see the module's argument. Acquire pairs with the Release in `publish`: the
        // segments that the limit tells of are in the table.
        next.load(Ordering::Relaxed) + self.slack <= self.limit.load(Ordering::Acquire)
    }

    /// Whether `ahead` further bytes are prepared beyond what is reserved.
    pub(crate) fn is_ahead(&self, next: Lsn, ahead: u64) -> bool {
        next + self.slack + ahead <= self.limit.load(Ordering::Acquire)
    }

    /// Raises the limit to what is prepared; the builder's lock is held.
    fn publish(&self, builder: &Builder) {
        let limit = builder
            .total()
            .saturating_sub(self.reserve.load(Ordering::Relaxed));
        // Release pairs with the Acquire in `fits`.
        self.limit.fetch_max(limit, Ordering::Release);
    }

    /// Prepares one step more, unless `enough` says so once it has the right to.
    pub(crate) fn extend_unless(
        &self,
        segments: &Segments,
        enough: impl FnOnce() -> bool,
    ) -> Result<(), LogError> {
        let mut builder = segments.builder();
        if enough() {
            return Ok(());
        }
        segments.extend(&mut builder)?;
        self.publish(&builder);
        Ok(())
    }

    /// Secures room for a frame of `len` bytes. The answer is to be kept until the reservation is made.
    pub(crate) fn admit<'a>(
        &'a self,
        segments: &Segments,
        next: &AtomicU64,
        len: u64,
    ) -> Result<Option<LargeTurn<'a>>, LogError> {
        let turn = (len > self.small).then(|| lock(&self.large));
        if turn.is_some() && len > self.reserve.load(Ordering::Relaxed) {
            // In steps, so that slowly growing frames do not prepare space each time.
            self.raise_reserve(segments, len.next_power_of_two())?;
        }
        while !self.fits(next) {
            self.extend_unless(segments, || self.fits(next))?;
        }
        Ok(turn)
    }

    /// Keeps `len` bytes beyond the limit from now on. The limit cannot go back, so they are prepared first.
    fn raise_reserve(&self, segments: &Segments, len: u64) -> Result<(), LogError> {
        let mut builder = segments.builder();
        while builder.total() < self.limit.load(Ordering::Relaxed) + len {
            segments.extend(&mut builder)?;
        }
        self.reserve.store(len, Ordering::Relaxed);
        Ok(())
    }
}
