//! Positions in an order without a log.

use std::sync::Arc;

use crate::error::LogError;
use crate::lockfree::applied::{Applied, Stuck};
use crate::lockfree::boundary::{Reservations, SlotId};
use crate::lockfree::sync::{Ordering, fence};
use crate::{Lsn, Span};

/// An order without a log: positions as [`Log`](crate::Log) gives them, and the same applied
/// boundary, for a store that writes nothing, or whose commits another log orders. Clones are
/// handles to the same order; all methods may be called from any thread, and but for
/// [`Sequence::wait_applied`] none blocks.
#[derive(Debug, Clone)]
pub struct Sequence(Arc<Positions>);

#[derive(Debug)]
struct Positions {
    next: Reservations,
    applied: Applied,
    max_workers: usize,
}

/// Takes positions of a [`Sequence`]; one thread at a time.
#[derive(Debug)]
pub struct SequenceWorker {
    positions: Arc<Positions>,
    /// Always there until the worker is dropped.
    slot: Option<SlotId>,
    /// What it took is not applied and will not be.
    is_stuck: bool,
}

impl Sequence {
    /// An order whose next position is `next` (below 2⁶²), and where everything below is applied.
    #[must_use]
    pub fn new(max_workers: usize, next: Lsn) -> Self {
        Self(Arc::new(Positions {
            next: Reservations::new(next),
            applied: Applied::new(max_workers, next),
            max_workers,
        }))
    }

    /// The right to take positions.
    ///
    /// # Errors
    /// [`LogError::TooManyWorkers`].
    pub fn worker(&self) -> Result<SequenceWorker, LogError> {
        let slot = self.0.applied.register().ok_or(LogError::TooManyWorkers {
            limit: self.0.max_workers,
        })?;
        Ok(SequenceWorker {
            positions: Arc::clone(&self.0),
            slot: Some(slot),
            is_stuck: false,
        })
    }

    /// The next position: all below are taken.
    #[must_use]
    pub fn next(&self) -> Lsn {
        self.0.next.cutoff()
    }

    /// The next position is `next` or above. What is skipped counts as applied.
    pub fn advance_to(&self, next: Lsn) {
        self.0.next.advance_to(next);
        self.0.applied.scan(&self.0.next);
    }

    /// As [`Log::applied`](crate::Log::applied).
    #[must_use]
    pub fn applied(&self) -> Lsn {
        self.0.applied.boundary()
    }

    /// As [`Log::wait_applied`](crate::Log::wait_applied).
    ///
    /// # Errors
    /// [`LogError::Unapplied`]; [`LogError::Options`] where `end` is beyond [`Sequence::next`].
    pub fn wait_applied(&self, end: Lsn) -> Result<(), LogError> {
        let next = self.next();
        if end > next {
            return Err(LogError::Options {
                option: "end",
                value: end.to_string(),
                reason: format!("positions are taken up to {next}, so a wait would never end"),
            });
        }
        let reached = self.0.applied.wait(end, &self.0.next);
        reached.map_err(|Stuck| LogError::Unapplied)
    }
}

impl SequenceWorker {
    /// Takes `len` positions and applies with `apply` what is to stand there, as
    /// [`Worker::append_then`](crate::Worker::append_then). `len` may be 0: a position between what
    /// was taken before and what is taken later.
    ///
    /// # Errors
    /// [`LogError::Unapplied`] where `apply` panicked earlier in this worker. Nothing was taken.
    pub fn take_then<T>(&mut self, len: u64, apply: impl FnOnce(Span) -> T) -> Result<(Span, T), LogError> {
        self.apply(
            |order, slot| {
                let start = order.applied.reserve(slot, &order.next, len);
                Span {
                    start,
                    end: start + len,
                }
            },
            apply,
        )
    }

    /// As [`SequenceWorker::take_then`], at `at`. One thread at a time calls this, and `at` is
    /// [`Sequence::next`] or above; what is skipped counts as applied.
    ///
    /// # Errors
    /// As [`SequenceWorker::take_then`]; [`LogError::Options`] where `at` is below.
    pub fn place_then<T>(
        &mut self,
        at: Lsn,
        len: u64,
        apply: impl FnOnce(Span) -> T,
    ) -> Result<(Span, T), LogError> {
        let next = self.positions.next.cutoff();
        if at < next {
            return Err(LogError::Options {
                option: "at",
                value: at.to_string(),
                reason: format!("positions are taken up to {next}"),
            });
        }
        self.apply(
            |order, slot| {
                order.applied.place(slot, &order.next, at, len);
                Span {
                    start: at,
                    end: at + len,
                }
            },
            apply,
        )
    }

    fn apply<T>(
        &mut self,
        reserve: impl FnOnce(&Positions, &SlotId) -> Span,
        apply: impl FnOnce(Span) -> T,
    ) -> Result<(Span, T), LogError> {
        let Some(slot) = self.slot.as_ref().filter(|_| !self.is_stuck) else {
            return Err(LogError::Unapplied);
        };
        let order = &*self.positions;
        self.is_stuck = true;
        let span = reserve(order, slot);
        let pending = Pending(&order.applied);
        fence(Ordering::Acquire);
        let done = apply(span);
        std::mem::forget(pending);
        order.applied.complete(slot, span.end, &order.next);
        self.is_stuck = false;
        Ok((span, done))
    }
}

impl Drop for SequenceWorker {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take()
            && !self.is_stuck
        {
            self.positions.applied.unregister(slot);
        }
    }
}

/// Dropped where what was reserved is not applied and will not be.
pub(crate) struct Pending<'a>(pub(crate) &'a Applied);

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.leave_stuck();
    }
}
