//! Whether the engine may hold a write up, so that it must not be made on a thread that serves connections.
//!
//! The engine pushes back by blocking the writer: while a family's memtables wait to be flushed, and while the
//! log's ring is full because the device does not keep up. Almost never is there any of that, and handing a
//! write to another thread costs more than the write. So writes are made where they arrive, unless the engine
//! is under pressure, or the write is [large](crate::cost::LARGE), which alone can use up what room there is.
//!
//! That is seen in time. The log prepares half a ring's worth of its files ahead, and calls its flusher when
//! the ring is half full; what is visible and not durable tells how much of that may be used up. The engine
//! delays writes long before it stops them; a look at its figures is taken whenever [`STEP`] bytes have come in
//! since the last one, far less than lies between the first delay and the stop.
//!
//! What is left is bounded: a write that races with large ones which others began at that moment, and the few
//! times that the log meets frames of a size that it has not met before, which waits for one sync.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use collie_db::{Db, Stall};

use crate::config::Ack;

/// Bytes that come in between two looks at the engine's figures.
const STEP: u64 = 256 * 1024;

/// See the module's page. What is kept here is a hint, so all accesses are Relaxed.
#[derive(Debug)]
pub(crate) struct Pressure {
    /// Whether a family delayed or stopped writes at the last look.
    stalls: AtomicBool,
    /// Bytes that had come in at the last look.
    looked_at: AtomicU64,
    /// Bytes of the writes that are made aside right now.
    aside: AtomicU64,
    ring_bytes: u64,
}

impl Pressure {
    pub(crate) fn new(ring_bytes: usize) -> Pressure {
        Pressure {
            stalls: AtomicBool::new(false),
            looked_at: AtomicU64::new(0),
            aside: AtomicU64::new(0),
            ring_bytes: ring_bytes as u64,
        }
    }

    /// Whether any write may be held up now. `ack` is what the asking connection waits for.
    pub(crate) fn is_near(&self, db: &Db, ack: Ack) -> bool {
        // While nobody waits for the disk, half a ring is ordinary: that is when the flusher is called.
        let room = match ack {
            Ack::Disk => self.ring_bytes / 4,
            Ack::Process | Ack::Buffered => self.ring_bytes / 2,
        };
        self.stalls.load(Ordering::Relaxed)
            || db.visible().saturating_sub(db.durable()) > room
            || self.aside.load(Ordering::Relaxed) > self.ring_bytes / 8
    }

    /// Whether it is time for a [look](Pressure::look); `bytes_in` is what all clients have sent so far.
    pub(crate) fn is_look_due(&self, bytes_in: u64) -> bool {
        let looked_at = self.looked_at.load(Ordering::Relaxed);
        // It wraps when the statistics were reset; then a look comes early.
        let is_due = bytes_in.wrapping_sub(looked_at) > STEP;
        if is_due {
            self.looked_at.store(bytes_in, Ordering::Relaxed);
        }
        is_due
    }

    /// Whether writes were held up when it was last looked at.
    pub(crate) fn is_high(&self, db: &Db) -> bool {
        self.stalls.load(Ordering::Relaxed) || db.visible().saturating_sub(db.durable()) > self.ring_bytes / 2
    }

    /// Runs a command that works on `bytes`, on a thread that may block.
    pub(crate) fn aside<T>(&self, db: &Db, bytes: usize, write: impl FnOnce() -> T) -> T {
        self.aside.fetch_add(bytes as u64, Ordering::Relaxed);
        let made = write();
        self.aside.fetch_sub(bytes as u64, Ordering::Relaxed);
        self.look(db);
        made
    }

    /// Takes a look at the engine's figures. It waits for writers that are held up in the log: it is for threads
    /// that may block.
    pub(crate) fn look(&self, db: &Db) {
        let stats = db.stats();
        let stalls = stats.families.values().any(|family| family.stall != Stall::None);
        self.stalls.store(stalls, Ordering::Relaxed);
    }
}
