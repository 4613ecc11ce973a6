//! Scans: memtables and tables merged, from either end.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use collie_log::Lsn;

use crate::bounds::{Bounds, from_key, is_empty, to_key};
use crate::memtable::{Direction, Entry, Mem, Scan};
use crate::store::read_point::ReadPoint;
use crate::store::view::View;
use crate::tables::{Pinned, TableIter, TableResult};
use crate::{Key, Result, Value};

/// Keys that are fetched from a memtable at first, and at most; each fetch takes so many times the
/// one before.
const FIRST_FETCH: usize = 12;
const FETCH_GROWTH: usize = 4;
const LARGEST_FETCH: usize = 1024;

/// Keys and values in a range at one moment, in order; from the back in reverse order.
///
/// It sees the commits below the boundary at which it was made and no later ones, and keeps the
/// memtables and table files that it needs for as long as it lives, and with them the store's lock:
/// a store can be opened again when the last iterator is gone. After an error it ends;
/// [`Error::Forked`] is that of a child that its process forked. One that was
/// made after the log failed returns [`Error::InDoubt`] instead of the first key that is in doubt,
/// and ends there.
pub struct Iter {
    /// From the newest memtable to the oldest.
    mems: Vec<MemSource>,
    tables: TableSource,
    /// Those that it was made with.
    bounds: Bounds,
    point: ReadPoint,
    /// The family's name.
    family: Arc<str>,
    seen: Lsn,
    failed: bool,
}

impl Iter {
    pub(crate) fn new(view: &View, bounds: Bounds, point: &ReadPoint, family: &Arc<str>) -> Result<Self> {
        point.check_any(family)?;
        let below = point.searched_below();
        Ok(Self {
            mems: view
                .mems()
                .map(|mem| MemSource::new(Arc::clone(mem), &bounds, below))
                .collect(),
            tables: TableSource::new(&view.tables, &bounds, point.below()),
            bounds,
            point: point.clone(),
            family: Arc::clone(family),
            seen: 0,
            failed: false,
        })
    }

    /// The largest end of a commit that was seen so far, removals included; 0 if all of it came
    /// from tables, which hold only what is durable. To promise durability of what was read, wait
    /// for this with [`Db::wait`](crate::Db::wait).
    #[must_use]
    pub fn seen(&self) -> Lsn {
        self.seen
    }

    /// Goes to the first key of its range that is not before `key`: [`next`](Iterator::next) returns
    /// that one, whatever was returned before, and [`next_back`](DoubleEndedIterator::next_back)
    /// comes down to it from the range's end. (RocksDB: `Seek`.)
    ///
    /// It shows the same moment as before. Reads nothing yet: that is left to the next step, which
    /// costs as much as the first one of a new iterator. One that has ended with an error stays so.
    ///
    /// ```
    /// # fn main() -> collie_db::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = collie_db::Db::open(dir.path().join("store"), collie_db::Options::default())?;
    /// for key in ["anna/1", "anna/2", "berta/1", "carla/1", "carla/2"] {
    ///     db.put(key, "")?;
    /// }
    /// // The first key of each user, without a look at the others.
    /// let mut users = Vec::new();
    /// let mut entries = db.iter()?;
    /// while let Some(entry) = entries.next() {
    ///     let user = String::from_utf8_lossy(&entry?.0).split('/').next().unwrap().to_owned();
    ///     entries.seek(format!("{user}0")); // '0' follows '/'
    ///     users.push(user);
    /// }
    /// assert_eq!(users, ["anna", "berta", "carla"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn seek(&mut self, key: impl AsRef<[u8]>) {
        self.restart(&from_key(&self.bounds, key.as_ref()));
    }

    /// Goes to the last key of its range that is not after `key`: `next_back` returns that one, and
    /// `next` comes up to it from the range's start. (RocksDB: `SeekForPrev`.) Otherwise as
    /// [`Iter::seek`].
    pub fn seek_back(&mut self, key: impl AsRef<[u8]>) {
        self.restart(&to_key(&self.bounds, key.as_ref()));
    }

    /// Fails in a child of the process that made it.
    pub(crate) fn check_process(&self) -> Result<()> {
        self.tables.tables.check_process()
    }

    fn restart(&mut self, bounds: &Bounds) {
        if self.check_process().is_err() {
            return;
        }
        for mem in &mut self.mems {
            mem.restart(bounds);
        }
        self.tables.restart(bounds, self.point.below());
    }

    fn step(&mut self, direction: Direction) -> Option<Result<(Key, Value)>> {
        if self.failed {
            return None;
        }
        if let Err(forked) = self.check_process() {
            self.failed = true;
            return Some(Err(forked));
        }
        loop {
            match self.step_or_fail(direction) {
                Ok(None) => return None,
                Ok(Some((_, None))) => {}
                Ok(Some((key, Some(value)))) => return Some(Ok((key, value))),
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            }
        }
    }

    /// The next key with its value, or without one where it is removed.
    fn step_or_fail(&mut self, direction: Direction) -> Result<Option<(Key, Option<Value>)>> {
        if let Err(error) = self.tables.fill(direction) {
            let (low, high) = self.bounds.clone();
            let tables = &self.tables.tables;
            return Err(tables.range_failed(low.map(|key| key.0), high.map(|key| key.0), error));
        }
        for mem in &mut self.mems {
            mem.fill(direction);
        }
        let before = |a: &Key, b: &Key| match direction {
            Direction::Forward => a < b,
            Direction::Backward => a > b,
        };
        // On a tie the newer memtable wins over the older, and any of them over the tables.
        let mut nearest: Option<(Option<usize>, &Key)> = None;
        let in_mems = self.mems.iter().enumerate();
        let in_mems = in_mems.filter_map(|(number, mem)| Some((Some(number), mem.next_key(direction)?)));
        let in_tables = self.tables.next_key(direction).map(|key| (None, key));
        for (source, key) in in_mems.chain(in_tables) {
            if nearest.is_none_or(|(_, nearest)| before(key, nearest)) {
                nearest = Some((source, key));
            }
        }
        let Some((source, _)) = nearest else {
            return Ok(None);
        };
        let Some(number) = source else {
            return Ok(self.tables.pop(direction));
        };
        let Some(Entry { key, found }) = self.mems[number].pop(direction) else {
            return Ok(None);
        };
        for mem in &mut self.mems[number + 1..] {
            if mem.next_key(direction) == Some(&key) {
                mem.pop(direction);
            }
        }
        if self.tables.next_key(direction) == Some(&key) {
            self.tables.pop(direction);
        }
        self.point.check(&self.family, &key, found.at)?;
        self.seen = self.seen.max(found.at.end);
        Ok(Some((key, found.value)))
    }
}

impl Iterator for Iter {
    type Item = Result<(Key, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(Direction::Forward)
    }
}

impl DoubleEndedIterator for Iter {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Direction::Backward)
    }
}

impl std::fmt::Debug for Iter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Iter")
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}

/// A memtable's keys between two bounds, which close in from both ends.
struct MemSource {
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
    exhausted: bool,
    fetch: usize,
}

impl Fetched {
    fn new(exhausted: bool) -> Self {
        Self {
            entries: VecDeque::new(),
            exhausted,
            fetch: FIRST_FETCH,
        }
    }
}

fn as_slice(bound: &Bound<Key>) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &**key)
}

impl MemSource {
    fn new(mem: Arc<Mem>, bounds: &Bounds, below: Lsn) -> Self {
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

    fn restart(&mut self, bounds: &Bounds) {
        *self = Self::new(Arc::clone(&self.mem), bounds, self.below);
    }

    /// Fetches the next entry, if there is one.
    fn fill(&mut self, direction: Direction) {
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
        if ahead.entries.is_empty() && !ahead.exhausted {
            let scan = Scan {
                low: as_slice(low),
                high: as_slice(high),
                below: *below,
            };
            ahead.exhausted = mem.scan(scan, direction, ahead.fetch, &mut ahead.entries);
            ahead.fetch = (ahead.fetch * FETCH_GROWTH).min(LARGEST_FETCH);
        }
        // The other end may have come closer since they were fetched.
        let Some(Entry { key, .. }) = ahead.entries.front() else {
            return;
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
            ahead.exhausted = true;
        }
    }

    /// The key that `fill` fetched.
    fn next_key(&self, direction: Direction) -> Option<&Key> {
        let ahead = match direction {
            Direction::Forward => &self.front,
            Direction::Backward => &self.back,
        };
        ahead.entries.front().map(|entry| &entry.key)
    }

    /// Takes what `fill` fetched.
    fn pop(&mut self, direction: Direction) -> Option<Entry> {
        let (ahead, bound) = match direction {
            Direction::Forward => (&mut self.front, &mut self.low),
            Direction::Backward => (&mut self.back, &mut self.high),
        };
        let entry = ahead.entries.pop_front()?;
        *bound = Bound::Excluded(entry.key.clone());
        Some(entry)
    }
}

/// The tables' entries, with the next one of either end fetched.
struct TableSource {
    iter: Option<TableIter>,
    tables: Arc<Pinned>,
    front: Option<(Key, Value)>,
    back: Option<(Key, Value)>,
}

impl TableSource {
    fn new(tables: &Arc<Pinned>, bounds: &Bounds, below: Lsn) -> Self {
        let iter = (!is_empty(bounds)).then(|| {
            let (low, high) = bounds.clone();
            tables.range(low.map(|key| key.0), high.map(|key| key.0), below)
        });
        Self {
            iter,
            tables: Arc::clone(tables),
            front: None,
            back: None,
        }
    }

    fn restart(&mut self, bounds: &Bounds, below: Lsn) {
        *self = Self::new(&Arc::clone(&self.tables), bounds, below);
    }

    /// Fetches the next entry, if there is one.
    fn fill(&mut self, direction: Direction) -> TableResult<()> {
        let Self {
            iter, front, back, ..
        } = self;
        let (near, far) = match direction {
            Direction::Forward => (front, back),
            Direction::Backward => (back, front),
        };
        if near.is_none() {
            let next = iter.as_mut().and_then(|iter| match direction {
                Direction::Forward => iter.next(),
                Direction::Backward => iter.next_back(),
            });
            *near = match next {
                Some(Ok(item)) => Some((Key(item.key.user_key), Value(item.value))),
                Some(Err(error)) => return Err(error),
                // The entry that the other end has fetched is the last one.
                None => far.take(),
            };
        }
        Ok(())
    }

    /// The key that `fill` fetched.
    fn next_key(&self, direction: Direction) -> Option<&Key> {
        let near = match direction {
            Direction::Forward => &self.front,
            Direction::Backward => &self.back,
        };
        near.as_ref().map(|(key, _)| key)
    }

    /// Takes what `fill` fetched.
    fn pop(&mut self, direction: Direction) -> Option<(Key, Option<Value>)> {
        let near = match direction {
            Direction::Forward => &mut self.front,
            Direction::Backward => &mut self.back,
        };
        near.take().map(|(key, value)| (key, Some(value)))
    }
}
