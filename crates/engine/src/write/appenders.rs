//! The appenders: a bounded pool of the right to append to the order.
//!
//! A thread has an appender from the reservation until the commit is applied, and never waits
//! meanwhile for anything that needs another appender. Each thread starts its search at an index of
//! its own, so without contention every thread finds the same free appender again and no two of
//! them touch the same lock.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use collie_log::Lsn;
use parking_lot::{Mutex, MutexGuard};

use crate::Result;
use crate::write::encoding::Op;
use crate::write::order::{Sequencer, SequencerWorker};

/// The right to append, and what a thread needs beside it.
pub(crate) struct Appender {
    pub(crate) worker: SequencerWorker,
    /// Where a single operation is encoded.
    pub(crate) staging: Vec<u8>,
    pub(crate) commits: u64,
    pub(crate) bytes: u64,
}

impl Appender {
    pub(crate) fn new(sequencer: &Sequencer) -> Result<Self> {
        Ok(Self {
            worker: sequencer.worker()?,
            staging: Vec::new(),
            commits: 0,
            bytes: 0,
        })
    }
}

/// An appender in the pool, alone on its cache lines.
#[repr(align(128))]
struct PoolSlot(Mutex<Option<Appender>>);

/// The appenders of a store, each of which one thread has at a time.
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

/// What brings commits into the order, and makes them visible.
pub(crate) struct Pipeline {
    pub(crate) sequencer: Sequencer,
    pub(crate) appenders: Appenders,
    /// The appender for marks. No thread waits for a rotation while it has this one, so a rotation
    /// always gets it, even if every other appender waits for that rotation.
    pub(crate) system: Mutex<Option<Appender>>,
    /// The largest payload of a frame.
    pub(crate) max_payload: usize,
    /// How long threads waited for earlier commits to be applied, in nanoseconds.
    pub(crate) apply_wait_ns: AtomicU64,
    #[cfg(test)]
    pub(crate) waiters: AtomicUsize,
}

impl Pipeline {
    pub(crate) fn new(sequencer: Sequencer, max_workers: usize, max_payload: usize) -> Result<Self> {
        let system = Appender::new(&sequencer)?;
        Ok(Self {
            sequencer,
            // One appender is the system's.
            appenders: Appenders::new(max_workers - 1),
            system: Mutex::new(Some(system)),
            max_payload,
            apply_wait_ns: AtomicU64::new(0),
            #[cfg(test)]
            waiters: Default::default(),
        })
    }
}

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
