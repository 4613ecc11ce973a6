//! What a transaction has read, and whether that has changed.
//!
//! A key or a range is *changed* where a commit that the snapshot does not show wrote it: where the
//! newest entry of a key has an LSN that is not below the snapshot's. It does not matter where that
//! entry is by now: in a memtable, in a table, or dropped by a compaction as an unneeded tombstone
//! (`removals.rs` keeps those). So neither a flush nor a compaction changes the answer, and a key
//! that got its old value back has changed.
//!
//! The caller holds locks, so that the answer stays true.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use collie_log::Lsn;
use parking_lot::Mutex;

use super::removals::RemovedSince;
use crate::bounds::Bounds;
use crate::iter::Iter;
use crate::memtable::{Direction, Scan};
use crate::{Family, Key, Result, Snapshot, Value};

/// Entries of a memtable that are fetched at once.
const FETCH: usize = 256;

/// Whether a key was written since the snapshot.
pub(crate) fn is_key_changed(snapshot: &Snapshot, family: &Family, key: &[u8]) -> Result<bool> {
    let then = snapshot.view(family)?;
    let (now, point) = family.read_at(false)?;
    if let Some(newest) = point.newest(&now, family.name(), key)? {
        return Ok(newest.at.start >= snapshot.lsn());
    }
    if Arc::ptr_eq(&now.tables, &then.tables) {
        return Ok(false);
    }
    match now.tables.get(key, point.below())? {
        Some(newest) => Ok(newest.key.seqno >= snapshot.lsn()),
        None => Ok(removed_since(snapshot, family).may_have(key)),
    }
}

/// Whether a key between the bounds was written since the snapshot.
pub(crate) fn is_range_changed(snapshot: &Snapshot, family: &Family, bounds: &Bounds) -> Result<bool> {
    let then = snapshot.view(family)?;
    let (now, point) = family.read_at(false)?;
    point.check_any(family.name())?;
    for mem in now.mems() {
        let mut low = bounds.0.clone();
        loop {
            let mut entries = VecDeque::new();
            let scan = Scan {
                low: low.as_ref().map(|key| &**key),
                high: bounds.1.as_ref().map(|key| &**key),
                below: point.searched_below(),
            };
            let exhausted = mem.scan(scan, Direction::Forward, FETCH, &mut entries);
            for entry in &entries {
                point.check(family.name(), &entry.key, entry.found.at)?;
            }
            if entries.iter().any(|entry| entry.found.at.start >= snapshot.lsn()) {
                return Ok(true);
            }
            match entries.pop_back() {
                Some(last) if !exhausted => low = Bound::Excluded(last.key),
                _ => break,
            }
        }
    }
    if Arc::ptr_eq(&now.tables, &then.tables) {
        return Ok(false);
    }
    let (low, high) = bounds.clone();
    let in_tables = now
        .tables
        .has_newer(low.map(|key| key.0), high.map(|key| key.0), snapshot.lsn())?;
    Ok(in_tables || removed_since(snapshot, family).may_have_any(bounds))
}

/// What flushes removed since the snapshot. To be called after the view was loaded: a flush whose
/// tables are in the view has noted its removals before.
fn removed_since(snapshot: &Snapshot, family: &Family) -> RemovedSince {
    let store = family.db().store();
    store.transactions().removed_since(family.id(), snapshot.lsn())
}

/// How much of a range an iterator has returned: what its transaction depends on.
#[derive(Debug)]
pub(crate) struct RangeRead {
    pub(crate) bounds: Bounds,
    /// The last key that was returned from either end.
    ends: Mutex<Ends>,
    /// The newest commit that was seen.
    seen: AtomicU64,
}

#[derive(Debug, Default)]
struct Ends {
    front: Option<Key>,
    back: Option<Key>,
    exhausted: bool,
}

impl RangeRead {
    pub(crate) fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self {
            bounds,
            ends: Mutex::default(),
            seen: AtomicU64::new(0),
        })
    }

    /// The newest commit that was seen; 0 where none was.
    pub(crate) fn seen(&self) -> Lsn {
        // Relaxed: written and read by the transaction's thread, or sent to another thread with it.
        self.seen.load(Ordering::Relaxed)
    }

    /// The parts of the range that were read.
    pub(crate) fn parts(&self) -> Vec<Bounds> {
        let (low, high) = &self.bounds;
        let ends = self.ends.lock();
        if ends.exhausted {
            return vec![(low.clone(), high.clone())];
        }
        let front = ends.front.clone().map(|key| (low.clone(), Bound::Included(key)));
        let back = ends.back.clone().map(|key| (Bound::Included(key), high.clone()));
        front.into_iter().chain(back).collect()
    }
}

/// The keys and values that a transaction sees in a range: committed ones, overlaid with its own
/// writes. Ordered by key; from the back in reverse order. After an error it ends.
///
/// It shows the transaction's writes as of its creation.
#[derive(Debug)]
pub struct TransactionIter {
    committed: Iter,
    front: Option<(Key, Value)>,
    back: Option<(Key, Value)>,
    own: VecDeque<(Key, Option<Value>)>,
    read: Arc<RangeRead>,
    failed: bool,
}

impl TransactionIter {
    pub(crate) fn new(committed: Iter, own: Vec<(Key, Option<Value>)>, read: Arc<RangeRead>) -> Self {
        Self {
            committed,
            front: None,
            back: None,
            own: own.into(),
            read,
            failed: false,
        }
    }

    /// The next committed entry from one end, without taking it.
    fn peek(&mut self, direction: Direction) -> Result<Option<&Key>> {
        let Self {
            committed,
            front,
            back,
            read,
            ..
        } = self;
        let (near, far) = match direction {
            Direction::Forward => (front, back),
            Direction::Backward => (back, front),
        };
        if near.is_none() {
            let next = match direction {
                Direction::Forward => committed.next(),
                Direction::Backward => committed.next_back(),
            };
            // Relaxed: see `RangeRead::seen`.
            read.seen.fetch_max(committed.seen(), Ordering::Relaxed);
            // The entry that the other end has fetched is the last one.
            *near = next.transpose()?.or_else(|| far.take());
        }
        Ok(near.as_ref().map(|(key, _)| key))
    }

    fn step(&mut self, direction: Direction) -> Result<Option<(Key, Value)>> {
        loop {
            let committed = self.peek(direction)?.cloned();
            let own = match direction {
                Direction::Forward => self.own.front(),
                Direction::Backward => self.own.back(),
            };
            let own_first = match (&committed, own) {
                (None, own) => own.is_some(),
                (Some(_), None) => false,
                (Some(committed), Some((own, _))) => match direction {
                    Direction::Forward => own <= committed,
                    Direction::Backward => own >= committed,
                },
            };
            let near = match direction {
                Direction::Forward => &mut self.front,
                Direction::Backward => &mut self.back,
            };
            if !own_first {
                return Ok(near.take());
            }
            let own = match direction {
                Direction::Forward => self.own.pop_front(),
                Direction::Backward => self.own.pop_back(),
            };
            let Some((key, value)) = own else { return Ok(None) };
            if near.as_ref().is_some_and(|(committed, _)| *committed == key) {
                near.take();
            }
            if let Some(value) = value {
                return Ok(Some((key, value)));
            }
            // Removed by the transaction: neither is shown.
        }
    }

    fn show(&mut self, direction: Direction) -> Option<Result<(Key, Value)>> {
        if self.failed {
            return None;
        }
        let stepped = self.step(direction);
        self.failed = stepped.is_err();
        let mut ends = self.read.ends.lock();
        match (&stepped, direction) {
            (Ok(Some((key, _))), Direction::Forward) => ends.front = Some(key.clone()),
            (Ok(Some((key, _))), Direction::Backward) => ends.back = Some(key.clone()),
            // An error may have hidden anything.
            (Ok(None) | Err(_), _) => ends.exhausted = true,
        }
        stepped.transpose()
    }
}

impl Iterator for TransactionIter {
    type Item = Result<(Key, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.show(Direction::Forward)
    }
}

impl DoubleEndedIterator for TransactionIter {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.show(Direction::Backward)
    }
}
