//! What an iterator merges: each memtable, and the tables.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use collie_log::Lsn;

use crate::key::{Bounds, is_empty};
use crate::memtable::{Direction, End, Entry, Found, Mem, Portion, Scan};
use crate::tables::{Pinned, TableIter};
use crate::{Key, Result, Value};

/// Keys that are fetched from a memtable at first, and at most; each fetch takes so many times the
/// one before.
const FIRST_FETCH: usize = 12;
const FETCH_GROWTH: usize = 4;
const LARGEST_FETCH: usize = 1024;
/// Entries that a fetch examines for each key: others are newer than what is shown.
const EXAMINED_FOR_EACH: usize = 5;

/// A memtable's keys between two bounds, which close in from both ends.
pub(super) struct MemSource {
    mem: Arc<Mem>,
    low: Bound<Key>,
    high: Bound<Key>,
    below: Lsn,
    front: Fetched,
    back: Fetched,
}

/// Entries fetched ahead at one end. They follow each other from the bound on.
struct Fetched {
    entries: VecDeque<Entry>,
    /// Behind the entries, nothing is left up to this key.
    passed: Option<Key>,
    exhausted: bool,
    fetch: usize,
}

impl Fetched {
    fn new(exhausted: bool) -> Self {
        Self {
            entries: VecDeque::new(),
            passed: None,
            exhausted,
            fetch: FIRST_FETCH,
        }
    }

    fn next_key(&self) -> Option<&Key> {
        match self.entries.front() {
            Some(entry) => Some(&entry.key),
            None => self.passed.as_ref(),
        }
    }
}

fn as_slice(bound: &Bound<Key>) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &**key)
}

impl MemSource {
    pub(super) fn new(mem: Arc<Mem>, bounds: &Bounds, below: Lsn) -> Self {
        let exhausted = is_empty(bounds);
        let (low, high) = bounds.clone();
        Self {
            mem,
            low,
            high,
            below,
            front: Fetched::new(exhausted),
            back: Fetched::new(exhausted),
        }
    }

    pub(super) fn restart(&mut self, bounds: &Bounds) {
        *self = Self::new(Arc::clone(&self.mem), bounds, self.below);
    }

    pub(super) fn mem(&self) -> &Mem {
        &self.mem
    }

    /// Fetches the next entry, if there is one, or learns up to which key there is none. Returns how
    /// many entries it has passed over: about `most` at most.
    pub(super) fn fill(&mut self, direction: Direction, most: usize) -> u64 {
        let Self {
            mem,
            low,
            high,
            below,
            front,
            back,
        } = self;
        let ahead = match direction {
            Direction::Forward => front,
            Direction::Backward => back,
        };
        let mut passed = 0;
        if ahead.next_key().is_none() && !ahead.exhausted {
            let scan = Scan {
                low: as_slice(low),
                high: as_slice(high),
                below: *below,
            };
            let portion = Portion {
                keys: ahead.fetch,
                examined: most.min(EXAMINED_FOR_EACH * ahead.fetch),
            };
            let scanned = mem.scan(scan, direction, portion, &mut ahead.entries);
            passed = (scanned.examined - ahead.entries.len()) as u64;
            match scanned.end {
                End::Exhausted => ahead.exhausted = true,
                End::Full => {}
                End::Passed(key) => ahead.passed = Some(key),
            }
            ahead.fetch = (ahead.fetch * FETCH_GROWTH).min(LARGEST_FETCH);
        }
        // The other end may have come closer since they were fetched.
        let Some(key) = ahead.next_key() else {
            return passed;
        };
        let inside = match direction {
            Direction::Forward => match high {
                Bound::Included(high) => key <= high,
                Bound::Excluded(high) => key < high,
                Bound::Unbounded => true,
            },
            Direction::Backward => match low {
                Bound::Included(low) => key >= low,
                Bound::Excluded(low) => key > low,
                Bound::Unbounded => true,
            },
        };
        if !inside {
            ahead.entries.clear();
            ahead.passed = None;
            ahead.exhausted = true;
        }
        passed
    }

    /// The key that `fill` fetched, or up to which there is none.
    pub(super) fn next_key(&self, direction: Direction) -> Option<&Key> {
        match direction {
            Direction::Forward => self.front.next_key(),
            Direction::Backward => self.back.next_key(),
        }
    }

    /// Takes what `fill` fetched: a key, and its newest version if it has one.
    pub(super) fn pop(&mut self, direction: Direction) -> Option<(Key, Option<Found>)> {
        let (ahead, bound) = match direction {
            Direction::Forward => (&mut self.front, &mut self.low),
            Direction::Backward => (&mut self.back, &mut self.high),
        };
        let popped = match ahead.entries.pop_front() {
            Some(Entry { key, found }) => (key, Some(found)),
            None => (ahead.passed.take()?, None),
        };
        *bound = Bound::Excluded(popped.0.clone());
        Some(popped)
    }
}

/// The tables' entries, with the next one of either end fetched.
pub(super) struct TableSource {
    tables: Arc<Pinned>,
    bounds: Bounds,
    below: Lsn,
    /// Made by the first `fill`.
    iter: Option<TableIter>,
    front: Option<(Key, Option<Value>)>,
    back: Option<(Key, Option<Value>)>,
}

impl TableSource {
    pub(super) fn new(tables: &Arc<Pinned>, bounds: &Bounds, below: Lsn) -> Self {
        Self {
            tables: Arc::clone(tables),
            bounds: bounds.clone(),
            below,
            iter: None,
            front: None,
            back: None,
        }
    }

    pub(super) fn restart(&mut self, bounds: &Bounds) {
        *self = Self::new(&self.tables, bounds, self.below);
    }

    /// Fails in a child of the process that made it.
    pub(super) fn check_process(&self) -> Result<()> {
        self.tables.check_process()
    }

    /// Fetches the next entry, if there is one.
    pub(super) fn fill(&mut self, direction: Direction) -> Result<()> {
        let Self {
            tables,
            bounds,
            below,
            iter,
            front,
            back,
        } = self;
        let (near, far) = match direction {
            Direction::Forward => (front, back),
            Direction::Backward => (back, front),
        };
        if near.is_some() || is_empty(bounds) {
            return Ok(());
        }
        let iter = iter.get_or_insert_with(|| {
            let (low, high) = bounds.clone();
            tables.range(low.map(|key| key.0), high.map(|key| key.0), *below)
        });
        let next = match direction {
            Direction::Forward => iter.next(),
            Direction::Backward => iter.next_back(),
        };
        *near = match next {
            Some(Ok(item)) => {
                let value = (!item.is_tombstone()).then_some(Value(item.value));
                Some((Key(item.key.user_key), value))
            }
            Some(Err(error)) => {
                let (low, high) = bounds.clone();
                return Err(tables.range_failed(low.map(|key| key.0), high.map(|key| key.0), error));
            }
            // The entry that the other end has fetched is the last one.
            None => far.take(),
        };
        Ok(())
    }

    /// The key that `fill` fetched.
    pub(super) fn next_key(&self, direction: Direction) -> Option<&Key> {
        let near = match direction {
            Direction::Forward => &self.front,
            Direction::Backward => &self.back,
        };
        near.as_ref().map(|(key, _)| key)
    }

    /// Takes what `fill` fetched; `None` is a tombstone's value.
    pub(super) fn pop(&mut self, direction: Direction) -> Option<(Key, Option<Value>)> {
        match direction {
            Direction::Forward => self.front.take(),
            Direction::Backward => self.back.take(),
        }
    }
}
