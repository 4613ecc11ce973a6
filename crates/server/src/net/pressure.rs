//! Whether the engine may stall a write, which must then not run on a thread that serves
//! connections.
//!
//! The engine applies backpressure by blocking the writer: while a family's memtables wait to be
//! flushed, and while the log's ring is full because the device is too slow. This is rare, and
//! moving a write to another thread costs more than the write. So writes run on the connection's
//! thread unless the engine is under pressure, or the write is [large](crate::cost::LARGE) and may
//! alone fill what is free in the ring.
//!
//! Pressure is detected before it stalls a write. The log prepares half a ring's worth of its files
//! ahead, and wakes its flusher when the ring is half full; the distance between the visible and
//! the durable LSN bounds how full the ring is. The engine delays writes long before it stops them;
//! whether it does is sampled whenever [`STEP`] bytes have been received since the last sample,
//! far less than lies between the first delay and the stop.
//!
//! Two cases remain, and both are short: a write that races with large ones which other threads
//! begin at the same moment, and the first frames of a size that the log has not written before, of
//! which each waits for one sync.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use collie_db::{Db, Stall};

use crate::config::Ack;

/// Bytes that are received between two samples.
const STEP: u64 = 256 * 1024;

/// Detects whether the engine is about to stall writes. All of it is a hint, so all accesses are Relaxed.
#[derive(Debug)]
pub(crate) struct Pressure {
    /// Whether writes were delayed or stopped at the last sample.
    stalls: AtomicBool,
    /// How many bytes had been received at the last sample.
    sampled_at: AtomicU64,
    /// Bytes of the writes that run aside now.
    aside: AtomicU64,
    ring_bytes: u64,
}

impl Pressure {
    pub(crate) fn new(ring_bytes: usize) -> Pressure {
        Pressure {
            stalls: AtomicBool::new(false),
            sampled_at: AtomicU64::new(0),
            aside: AtomicU64::new(0),
            ring_bytes: ring_bytes as u64,
        }
    }

    /// Whether a write may be stalled now. `ack` is the level that the connection waits for.
    pub(crate) fn is_near(&self, db: &Db, ack: Ack) -> bool {
        // If the connection does not wait for the disk, half a ring is ordinary: that is when the
        // flusher is woken.
        let room = match ack {
            Ack::Disk => self.ring_bytes / 4,
            Ack::Process | Ack::Buffered => self.ring_bytes / 2,
        };
        self.stalls.load(Ordering::Relaxed)
            || db.visible().saturating_sub(db.durable()) > room
            || self.aside.load(Ordering::Relaxed) > self.ring_bytes / 8
    }

    /// Whether a [sample](Pressure::sample) is due; `bytes_in` is what all clients have sent so
    /// far.
    pub(crate) fn is_sample_due(&self, bytes_in: u64) -> bool {
        let sampled_at = self.sampled_at.load(Ordering::Relaxed);
        // The difference wraps when the statistics were reset; then a sample comes early.
        let is_due = bytes_in.wrapping_sub(sampled_at) > STEP;
        if is_due {
            self.sampled_at.store(bytes_in, Ordering::Relaxed);
        }
        is_due
    }

    /// Whether writes were stalled at the last sample, or more than half the ring is not durable.
    pub(crate) fn is_high(&self, db: &Db) -> bool {
        self.stalls.load(Ordering::Relaxed) || db.visible().saturating_sub(db.durable()) > self.ring_bytes / 2
    }

    /// Runs a command that works on `bytes`, on a thread that may block.
    pub(crate) fn aside<T>(&self, db: &Db, bytes: usize, write: impl FnOnce() -> T) -> T {
        self.aside.fetch_add(bytes as u64, Ordering::Relaxed);
        let made = write();
        self.aside.fetch_sub(bytes as u64, Ordering::Relaxed);
        self.sample(db);
        made
    }

    /// Asks the engine whether it delays or stops writes.
    pub(crate) fn sample(&self, db: &Db) {
        self.stalls.store(db.stall() != Stall::None, Ordering::Relaxed);
    }
}
