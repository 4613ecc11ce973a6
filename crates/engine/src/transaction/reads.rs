//! What a transaction has read, and whether that has changed.
//!
//! A key or a range is *changed* where a commit that the snapshot does not show wrote it: where the
//! newest entry of a key has an LSN that is not below the snapshot's. It does not matter where that
//! entry is by now: in a memtable, in a table, or dropped by a compaction as an unneeded tombstone
//! (`registry.rs` keeps those). So neither a flush nor a compaction changes the answer, and a key
//! that got its old value back has changed.
//!
//! The caller holds locks, so that the answer stays true.

use std::collections::VecDeque;
use std::ops::{Bound, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use collie_log::Lsn;
use parking_lot::Mutex;

use crate::iter::Iter;
use crate::key::{Bounds, contains, from_key, to_key};
use crate::memtable::{Direction, End, Portion, Scan};
use crate::transaction::registry::RemovedSince;
use crate::{Family, Key, Result, Snapshot, Value};

/// Entries of a memtable that are fetched at once.
const FETCH: usize = 256;
/// So many parts of a range are kept apart; with more all of it counts as read.
const PARTS_MOST: usize = 64;

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
            let scanned = mem.scan(scan, Direction::Forward, Portion::keys(FETCH), &mut entries);
            for entry in &entries {
                point.check(family.name(), &entry.key, entry.found.at)?;
            }
            if entries.iter().any(|entry| entry.found.at.start >= snapshot.lsn()) {
                return Ok(true);
            }
            match entries.pop_back() {
                Some(last) if scanned.end != End::Exhausted => low = Bound::Excluded(last.key),
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
    bounds: Bounds,
    progress: Mutex<Progress>,
    /// The newest commit that was seen.
    seen: AtomicU64,
}

#[derive(Debug)]
struct Progress {
    /// What was read before the last seek.
    before: Vec<Bounds>,
    current: Ends,
}

/// What was read between two bounds.
#[derive(Debug)]
struct Ends {
    bounds: Bounds,
    /// The last key that was returned from either end.
    front: Option<Key>,
    back: Option<Key>,
    exhausted: bool,
}

impl Ends {
    fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            front: None,
            back: None,
            exhausted: false,
        }
    }

    fn parts(&self) -> impl Iterator<Item = Bounds> {
        let (low, high) = self.bounds.clone();
        let all = self.exhausted.then(|| (low.clone(), high.clone()));
        let open = !self.exhausted;
        let front = self.front.clone().filter(|_| open);
        let back = self.back.clone().filter(|_| open);
        let front = front.map(|key| (low, Bound::Included(key)));
        let back = back.map(|key| (Bound::Included(key), high));
        all.into_iter().chain(front).chain(back)
    }
}

impl RangeRead {
    pub(crate) fn new(bounds: Bounds) -> Arc<Self> {
        let progress = Progress {
            before: Vec::new(),
            current: Ends::new(bounds.clone()),
        };
        Arc::new(Self {
            bounds,
            progress: Mutex::new(progress),
            seen: AtomicU64::new(0),
        })
    }

    /// From here on a part of the range is read, from either end.
    fn restart(&self, bounds: Bounds) {
        let Progress { before, current } = &mut *self.progress.lock();
        before.extend(current.parts());
        if before.len() > PARTS_MOST {
            *before = vec![self.bounds.clone()];
        }
        *current = Ends::new(bounds);
    }

    /// The newest commit that was seen; 0 where none was.
    pub(crate) fn seen(&self) -> Lsn {
        // Relaxed: written and read by the transaction's thread, or sent to another thread with it.
        self.seen.load(Ordering::Relaxed)
    }

    /// The parts of the range that were read.
    pub(crate) fn parts(&self) -> Vec<Bounds> {
        let progress = self.progress.lock();
        progress
            .before
            .iter()
            .cloned()
            .chain(progress.current.parts())
            .collect()
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
    /// The transaction's writes in the whole range, and which of them are still to come.
    own: Vec<(Key, Option<Value>)>,
    coming: Range<usize>,
    read: Arc<RangeRead>,
    failed: bool,
}

impl TransactionIter {
    pub(crate) fn new(committed: Iter, own: Vec<(Key, Option<Value>)>, read: Arc<RangeRead>) -> Self {
        Self {
            committed,
            front: None,
            back: None,
            coming: 0..own.len(),
            own,
            read,
            failed: false,
        }
    }

    /// As [`Iter::seek`]. An optimistic serializable transaction depends on what was read before and
    /// after, and not on what was passed over (of more than 64 seeks in one iterator: on its whole
    /// range).
    pub fn seek(&mut self, key: impl AsRef<[u8]>) {
        self.committed.seek(&key);
        self.restart(from_key(&self.read.bounds, key.as_ref()));
    }

    /// As [`Iter::seek_back`], and [`TransactionIter::seek`].
    pub fn seek_back(&mut self, key: impl AsRef<[u8]>) {
        self.committed.seek_back(&key);
        self.restart(to_key(&self.read.bounds, key.as_ref()));
    }

    /// `committed` is at these bounds already.
    fn restart(&mut self, bounds: Bounds) {
        (self.front, self.back) = (None, None);
        let from_low = (bounds.0.clone(), Bound::Unbounded);
        let start = self.own.partition_point(|(key, _)| !contains(&from_low, key));
        let inside = self.own[start..].partition_point(|(key, _)| contains(&bounds, key));
        self.coming = start..start + inside;
        self.read.restart(bounds);
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
                Direction::Forward => self.own[self.coming.clone()].first(),
                Direction::Backward => self.own[self.coming.clone()].last(),
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
            let next = match direction {
                Direction::Forward => self.coming.next(),
                Direction::Backward => self.coming.next_back(),
            };
            let Some((key, value)) = next.map(|next| &self.own[next]) else {
                return Ok(None);
            };
            if near.as_ref().is_some_and(|(committed, _)| committed == key) {
                near.take();
            }
            if let Some(value) = value {
                return Ok(Some((key.clone(), value.clone())));
            }
            // Removed by the transaction: neither is shown.
        }
    }

    fn show(&mut self, direction: Direction) -> Option<Result<(Key, Value)>> {
        if self.failed {
            return None;
        }
        let here = self.committed.check_process();
        let stepped = here.and_then(|()| self.step(direction));
        self.failed = stepped.is_err();
        let ends = &mut self.read.progress.lock().current;
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
