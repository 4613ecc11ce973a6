//! Where commits live until they are flushed to tables.
//!
//! A memtable keeps every version of a key, ordered by key and then from the newest to the oldest. It is
//! written by many threads at once and read by many more. [`Mem`] is one memtable with its place in the
//! log; [`Sharded`] is the implementation (docs/decisions/0003-memtable.md has the measurements).

mod chunks;
mod leaf;
mod newest;
mod shard;
mod sharded;

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use collie_log::Lsn;

use crate::garbage::Garbage;
use crate::{Key, Value};

pub(crate) use chunks::{Chunks, IDLE};
pub(crate) use sharded::Sharded;

/// What a write does to its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Write<'a> {
    /// Sets the key's value.
    Put(&'a [u8]),
    /// Hides the key, in older memtables and in tables too.
    Delete,
}

/// The place of a commit in the log: its start orders it, its end tells when it is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) start: Lsn,
    pub(crate) end: Lsn,
}

/// The newest version of a key below some LSN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// `None` is a tombstone.
    pub(crate) value: Option<Value>,
    pub(crate) at: At,
}

/// A key with its newest version below some LSN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: Key,
    pub(crate) found: Found,
}

/// The bounds of a scan. `below` is exclusive: versions with `start < below` are seen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scan<'a> {
    pub(crate) low: Bound<&'a [u8]>,
    pub(crate) high: Bound<&'a [u8]>,
    pub(crate) below: Lsn,
}

/// Which way a scan goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

/// A sorted, versioned map in memory. All methods may be called from any thread.
pub(crate) trait Memtable: Send + Sync {
    /// Adds a version. A second write of the same key at the same LSN replaces the first: that is how a
    /// batch's repeated keys are folded, and why replaying a commit twice is harmless.
    fn insert(&self, key: &[u8], at: At, write: Write<'_>);

    /// As `insert`, for many writes that nobody reads yet: they are put in order together, by `sort` or by
    /// whoever looks first. Of repeated keys at one LSN the last counts, as there.
    fn load(&self, key: &[u8], at: At, write: Write<'_>);

    /// Puts in order what was loaded, or the `share`th `of` so many parts of that.
    fn sort(&self, share: usize, of: usize);

    /// The newest version with `start < below`.
    fn get(&self, key: &[u8], below: Lsn) -> Option<Found>;

    /// Appends to `out` the next keys in the bounds, in the direction's order, each with its newest version
    /// below the scan's LSN, tombstones included. About `hint` keys are fetched. Returns whether the bounds
    /// are exhausted; if not, at least one key was appended.
    fn scan(&self, scan: Scan<'_>, direction: Direction, hint: usize, out: &mut VecDeque<Entry>) -> bool;

    /// The newest version of each key, tombstones included, in order; of a memtable that is no longer written.
    fn newest(&self) -> Box<dyn Iterator<Item = Entry> + '_>;

    /// The largest start of all versions; 0 where there are none. Exact for inserts that have returned.
    fn last_start(&self) -> Lsn;

    /// Memory in use, in bytes; lags behind a little.
    fn bytes(&self) -> u64;

    /// Whether nothing was ever inserted. Exact when no insert is under way.
    fn is_empty(&self) -> bool;
}

/// A memtable of a family, with the LSN from which on commits belong to it.
pub(crate) struct Mem {
    /// `None` only while it is dropped.
    table: Option<Box<dyn Memtable>>,
    from: Lsn,
    unlogged: AtomicBool,
    garbage: Sender<Garbage>,
}

impl Mem {
    pub(crate) fn new(
        from: Lsn,
        write_buffer_bytes: u64,
        chunks: &Arc<Chunks>,
        garbage: Sender<Garbage>,
    ) -> Self {
        Self {
            table: Some(Box::new(Sharded::new(write_buffer_bytes, chunks))),
            from,
            unlogged: AtomicBool::new(false),
            garbage,
        }
    }

    /// Commits that start here or later, and before the next memtable's `from`, are in this one.
    pub(crate) fn from(&self) -> Lsn {
        self.from
    }

    /// Notes that it holds writes that are not in the log.
    pub(crate) fn note_unlogged(&self) {
        // A hint for closing, read after all writers are done; checked first to keep the line shared.
        if !self.unlogged.load(Ordering::Relaxed) {
            self.unlogged.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn has_unlogged(&self) -> bool {
        self.unlogged.load(Ordering::Relaxed)
    }

    pub(crate) fn insert(&self, key: &[u8], at: At, write: Write<'_>) {
        if let Some(table) = &self.table {
            table.insert(key, at, write);
        }
    }

    /// As [`Memtable::load`].
    pub(crate) fn load(&self, key: &[u8], at: At, write: Write<'_>) {
        if let Some(table) = &self.table {
            table.load(key, at, write);
        }
    }

    /// As [`Memtable::sort`].
    pub(crate) fn sort(&self, share: usize, of: usize) {
        if let Some(table) = &self.table {
            table.sort(share, of);
        }
    }

    pub(crate) fn get(&self, key: &[u8], below: Lsn) -> Option<Found> {
        self.table.as_ref().and_then(|table| table.get(key, below))
    }

    pub(crate) fn scan(
        &self,
        scan: Scan<'_>,
        direction: Direction,
        hint: usize,
        out: &mut VecDeque<Entry>,
    ) -> bool {
        self.table
            .as_ref()
            .is_none_or(|table| table.scan(scan, direction, hint, out))
    }

    /// As [`Memtable::newest`].
    pub(crate) fn newest(&self) -> impl Iterator<Item = Entry> + '_ {
        self.table.iter().flat_map(|table| table.newest())
    }

    /// As [`Memtable::last_start`].
    pub(crate) fn last_start(&self) -> Lsn {
        self.table.as_ref().map_or(0, |table| table.last_start())
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.table.as_ref().map_or(0, |table| table.bytes())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.as_ref().is_none_or(|table| table.is_empty())
    }
}

impl Drop for Mem {
    fn drop(&mut self) {
        // The last holder may be a reader: freeing takes long and happens on the garbage thread. Where
        // that has ended already (the store is closing), the failed send drops the memtable right here.
        if let Some(table) = self.table.take() {
            drop(self.garbage.send(Garbage::Memtable(table)));
        }
    }
}
