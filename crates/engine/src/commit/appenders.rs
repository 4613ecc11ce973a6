//! The appenders: a bounded pool of log workers, each with its slot for the visible boundary.
//!
//! A thread has an appender from the reservation until the commit is applied, and never waits
//! meanwhile for anything that needs another appender. Each thread starts its search at an index of
//! its own, so without contention every thread finds the same free appender again and no two of
//! them touch the same lock.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use collie_log::{AppendHook, Lsn, SlotId, Span};
use parking_lot::{Mutex, MutexGuard};

use crate::commit::codec::{self, Op};
use crate::commit::parts::KIND_PART;
use crate::commit::sequencer::{LogRoom, Sequencer, SequencerWorker};
use crate::commit::visible::Visible;
use crate::memtable::At;
use crate::{Error, Result};

/// What a commit's frame holds.
#[derive(Clone, Copy)]
pub(crate) enum Record<'a> {
    /// One operation, to be encoded.
    One(Op<'a>),
    /// Operations that a batch has encoded already.
    Encoded(&'a [u8]),
    /// Nothing: it takes a position in the order.
    Empty,
    /// Nothing: it has so many bytes, and its position from an external journal.
    Placed { seq: Lsn, bytes: usize },
}

/// One worker of the log with its slot for the visible boundary.
pub(crate) struct Appender {
    sequencer: SequencerWorker,
    slot: SlotId,
    staging: Vec<u8>,
    /// Its slot is pending for good: a commit ended before it was applied, and the boundary may
    /// never pass it.
    stuck: bool,
    pub(crate) commits: u64,
    pub(crate) bytes: u64,
}

/// A staging buffer that grew beyond this for one commit is freed.
const STAGING_KEPT: usize = 1 << 20;

impl Appender {
    pub(crate) fn new(sequencer: &Sequencer, visible: &Visible) -> Result<Self> {
        let worker = sequencer.worker()?;
        let slot = visible.register().ok_or_else(|| {
            // There is one slot per appender.
            Error::Background {
                cause: "no slot is left for a worker".into(),
            }
        })?;
        Ok(Self {
            sequencer: worker,
            slot,
            staging: Vec::new(),
            stuck: false,
            commits: 0,
            bytes: 0,
        })
    }

    /// Reserves a position, copies the record there, and applies it with `apply`. On return the
    /// commit is in its memtables, but older ones may not be yet. An error from before the
    /// reservation leaves nothing behind. An error after it, or a panic in `apply`, leaves the slot
    /// pending: the visible boundary stays below the commit for good, and the error comes with
    /// `true`.
    pub(crate) fn commit(
        &mut self,
        sequencer: &Sequencer,
        visible: &Visible,
        kind: u8,
        record: Record<'_>,
        room: LogRoom,
        apply: impl FnOnce(At),
    ) -> std::result::Result<At, (Error, bool)> {
        let Self {
            sequencer: worker,
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
            Record::Empty | Record::Placed { .. } => &[],
        };
        let size = match record {
            Record::Placed { bytes, .. } => bytes,
            _ => payload.len(),
        };
        // Cleared at the end; a panic before that leaves it set.
        *stuck = true;
        let mut hook = VisibleSlot {
            visible,
            slot,
            pending: false,
        };
        let reserved = match record {
            Record::Placed { seq, .. } => sequencer.place(seq, &mut hook),
            _ => sequencer.append(worker, kind, payload, room, &mut hook),
        };
        let span = match reserved {
            Ok(span) => span,
            Err(error) => {
                *stuck = hook.pending;
                return Err((error, hook.pending));
            }
        };
        *commits += u64::from(kind != KIND_PART);
        *bytes += size as u64;
        reach!("appended");
        // Pairs with the Release of a rotation's reservation: if that has a smaller LSN than ours,
        // its `rotating` flag is seen from here on (see `FamilyState::with_mem`).
        std::sync::atomic::fence(Ordering::Acquire);
        let at = At {
            start: span.start,
            end: span.end,
        };
        apply(at);
        visible.complete(slot, at.end, sequencer);
        *stuck = false;
        if staging.capacity() > STAGING_KEPT {
            *staging = Vec::new();
        }
        Ok(at)
    }
}

/// Marks the slot pending around the log's reservation.
struct VisibleSlot<'a> {
    visible: &'a Visible,
    slot: &'a SlotId,
    pending: bool,
}

impl AppendHook for VisibleSlot<'_> {
    fn before_reserve(&mut self, next: Lsn) {
        self.pending = true;
        self.visible.set_pending(self.slot, next);
    }

    fn reserved(&mut self, span: Span) {
        reach!("reserved");
        self.visible.set_pending(self.slot, span.start);
    }
}

/// An appender in the pool, alone on its cache lines.
#[repr(align(128))]
struct PoolSlot(Mutex<Option<Appender>>);

/// See the module's page.
pub(crate) struct Appenders {
    slots: Box<[PoolSlot]>,
    /// Threads start their search in the first so many slots. More threads than these share them:
    /// only so many run at once, and each commit scans the slots of all appenders in use.
    spread: usize,
}

impl Appenders {
    pub(crate) fn new(slots: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(4, std::num::NonZero::get);
        Self {
            slots: (0..slots).map(|_| PoolSlot(Mutex::new(None))).collect(),
            spread: (4 * cores).clamp(1, slots),
        }
    }

    /// A free appender; waits where all are busy.
    pub(crate) fn take(&self) -> MutexGuard<'_, Option<Appender>> {
        let first = thread_number() % self.spread;
        let (before, from) = self.slots.split_at(first);
        from.iter()
            .chain(before)
            .find_map(|PoolSlot(appender)| appender.try_lock())
            .unwrap_or_else(|| self.slots[first].0.lock())
    }

    /// Waits until every commit that is under way is applied.
    pub(crate) fn wait_until_applied(&self) {
        for PoolSlot(appender) in &self.slots {
            drop(appender.lock());
        }
    }

    /// Commits and their bytes so far.
    pub(crate) fn totals(&self) -> (u64, u64) {
        self.slots
            .iter()
            .fold((0, 0), |(commits, bytes), PoolSlot(appender)| {
                appender.lock().as_ref().map_or((commits, bytes), |appender| {
                    (commits + appender.commits, bytes + appender.bytes)
                })
            })
    }

    /// Drops all appenders, so that the log can close. Later commits find none.
    pub(crate) fn clear(&self) {
        for PoolSlot(appender) in &self.slots {
            drop(appender.lock().take());
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
