//! Scans: memtables and tables merged, from either end.

mod sources;

use std::sync::{Arc, Weak};

use collie_log::Lsn;

use crate::iter::sources::{MemSource, TableSource};
use crate::key::{Bounds, Edge, from_key, to_key};
use crate::memtable::Direction;
use crate::memtable::gaps::{Jump, WORTH, Walked};
use crate::store::family::FamilyState;
use crate::store::read_point::ReadPoint;
use crate::store::view::View;
use crate::{Error, Key, Result, Value};

/// Keys and values in a range at one moment, in order; from the back in reverse order.
///
/// It sees the commits below the boundary at which it was made and no later ones, and keeps the
/// memtables and table files that it needs for as long as it lives, and with them the store's lock:
/// a store can be opened again when the last iterator is gone. After an error it ends;
/// [`Error::Forked`] is that of a child that its process forked. One that was
/// made after the log failed returns [`Error::InDoubt`] instead of the first key that is in doubt,
/// and ends there.
///
/// Between the keys that it returns it passes over rows that were removed, and over versions that
/// are newer than what it shows. Long stretches of removed rows are remembered, and not walked over
/// again: taking the first key of a queue costs the same however much went through it. The first
/// walk takes as long as it takes, unless
/// [`set_max_skippable_internal_keys`](Self::set_max_skippable_internal_keys) limits it.
pub struct Iter {
    /// From the newest memtable to the oldest.
    mems: Vec<MemSource>,
    tables: TableSource,
    /// Those that it was made with.
    bounds: Bounds,
    point: ReadPoint,
    /// The family, and its name.
    state: Weak<FamilyState>,
    family: Arc<str>,
    seen: Lsn,
    failed: bool,
    stretch: Stretch,
    skipped: u64,
    most_skipped: u64,
}

/// What is next in the order of keys.
enum Next {
    Live(Key, Value),
    Removed(Key),
    /// Up to this key there is nothing that is shown.
    Passed(Key),
}

impl Iter {
    pub(crate) fn new(
        view: &View,
        bounds: Bounds,
        point: &ReadPoint,
        state: &Arc<FamilyState>,
    ) -> Result<Self> {
        let family = state.name();
        point.check_any(family)?;
        let below = point.searched_below();
        Ok(Self {
            mems: view
                .mems()
                .map(|mem| MemSource::new(Arc::clone(mem), &bounds, below))
                .collect(),
            tables: TableSource::new(&view.tables, &bounds, point.below()),
            stretch: Stretch::new(&bounds),
            bounds,
            point: point.clone(),
            state: Arc::downgrade(state),
            family: Arc::clone(family),
            seen: 0,
            failed: false,
            skipped: 0,
            most_skipped: 0,
        })
    }

    /// The largest end of a commit that was seen so far, removals included; 0 if all of it came
    /// from tables, which hold only what is durable. To promise durability of what was read, wait
    /// for this with [`Db::wait`](crate::Db::wait).
    #[must_use]
    pub fn seen(&self) -> Lsn {
        self.seen
    }

    /// From now on a step that has passed over so many entries without finding a key to return gives
    /// [`Error::Incomplete`]; 0, as at first, is no limit. The iterator does not end with that: the
    /// next step goes on where this one stopped. (RocksDB: `ReadOptions::max_skippable_internal_keys`
    /// and `Status::Incomplete`.)
    ///
    /// For callers that must not take long at a time, whatever was removed.
    ///
    /// ```
    /// # fn main() -> collie_db::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = collie_db::Db::open(dir.path().join("store"), collie_db::Options::default())?;
    /// use collie_db::Error;
    ///
    /// for n in 0..1_000_u32 {
    ///     db.put(n.to_be_bytes(), "")?;
    ///     if n < 999 {
    ///         db.delete(n.to_be_bytes())?;
    ///     }
    /// }
    /// let mut entries = db.iter()?;
    /// entries.set_max_skippable_internal_keys(100);
    /// let mut steps = 1;
    /// while let Some(Err(Error::Incomplete { .. })) = entries.next() {
    ///     steps += 1; // Here others may have their turn.
    /// }
    /// assert!(steps > 5);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_max_skippable_internal_keys(&mut self, most: u64) {
        self.most_skipped = most;
    }

    /// How many entries it has passed over since it was made: rows that were removed, and versions
    /// that are newer than what it shows. (RocksDB: `internal_key_skipped_count` and
    /// `internal_delete_skipped_count`.)
    #[must_use]
    pub fn internal_keys_skipped(&self) -> u64 {
        self.skipped
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
        self.tables.check_process()
    }

    fn restart(&mut self, bounds: &Bounds) {
        if self.check_process().is_err() {
            return;
        }
        self.stretch = Stretch::new(bounds);
        self.go_to(bounds);
    }

    fn go_to(&mut self, bounds: &Bounds) {
        for mem in &mut self.mems {
            mem.restart(bounds);
        }
        self.tables.restart(bounds);
    }

    fn step(&mut self, direction: Direction) -> Option<Result<(Key, Value)>> {
        if self.failed {
            return None;
        }
        if let Err(forked) = self.check_process() {
            self.failed = true;
            return Some(Err(forked));
        }
        self.stretch.goes(direction);
        let before = self.skipped;
        loop {
            self.jump(direction);
            let left = match self.most_skipped {
                0 => usize::MAX,
                most => most.saturating_sub(self.skipped - before) as usize,
            };
            let next = match self.step_or_fail(direction, left) {
                Ok(next) => next,
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            };
            let key = match next {
                None => {
                    if self.stretch.is_long() {
                        self.note(self.stretch.far(direction), direction);
                    }
                    self.stretch.ends();
                    return None;
                }
                Some(Next::Live(key, value)) => {
                    if self.stretch.is_long() {
                        self.note(near(&key, direction), direction);
                    }
                    self.stretch.ends();
                    return Some(Ok((key, value)));
                }
                Some(Next::Removed(key)) => {
                    self.skipped += 1;
                    self.stretch.removed(&key, direction);
                    key
                }
                Some(Next::Passed(key)) => key,
            };
            if self.most_skipped > 0 && self.skipped - before >= self.most_skipped {
                if self.stretch.is_long() {
                    self.note(far(&key, direction), direction);
                    self.stretch.goes_on(&key, direction);
                }
                return Some(Err(Error::Incomplete { at: key }));
            }
        }
    }

    /// Jumps over gaps that begin here.
    fn jump(&mut self, direction: Direction) {
        let Some(mem) = self.mems.first() else { return };
        let gaps = mem.mem().gaps();
        if !gaps.any() || !self.point.is_certain() {
            return;
        }
        let Some(at) = self.stretch.looks(direction) else {
            return;
        };
        let jump = gaps.past(&at, direction, self.point.below());
        if let Some(jump) = jump.filter(|jump| self.stretch.may_jump(jump)) {
            if self.stretch.is_between_gaps() {
                self.note(at, direction);
            }
            self.seen = self.seen.max(jump.seen);
            let left = self.stretch.jumps(jump, direction);
            self.go_to(&left);
        }
    }

    /// Notes that nothing is live from where the stretch began to an edge. Where the log has failed,
    /// what was removed may be in doubt.
    fn note(&self, to: Edge, direction: Direction) {
        if self.point.is_certain()
            && let Some(state) = self.state.upgrade()
            && let Some(walked) = self.stretch.walked(to, direction, self.point.below(), self.seen)
        {
            state.note_gap(&walked);
        }
    }

    /// What is next, if anything is. Looks at about `most` entries of each memtable at most.
    fn step_or_fail(&mut self, direction: Direction, most: usize) -> Result<Option<Next>> {
        self.tables.fill(direction)?;
        for mem in &mut self.mems {
            self.skipped += mem.fill(direction, most);
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
            let popped = self.tables.pop(direction);
            return Ok(popped.map(|(key, value)| Next::of(key, value)));
        };
        let Some((key, mut newest)) = self.mems[number].pop(direction) else {
            return Ok(None);
        };
        for mem in &mut self.mems[number + 1..] {
            if mem.next_key(direction) == Some(&key)
                && let Some((_, found)) = mem.pop(direction)
            {
                newest = newest.or(found);
            }
        }
        let in_tables = match self.tables.next_key(direction) == Some(&key) {
            true => self.tables.pop(direction),
            false => None,
        };
        Ok(Some(match (newest, in_tables) {
            (Some(found), _) => {
                self.point.check(&self.family, &key, found.at)?;
                self.seen = self.seen.max(found.at.end);
                Next::of(key, found.value)
            }
            (None, Some((key, value))) => Next::of(key, value),
            (None, None) => Next::Passed(key),
        }))
    }
}

impl Next {
    fn of(key: Key, value: Option<Value>) -> Self {
        match value {
            Some(value) => Self::Live(key, value),
            None => Self::Removed(key),
        }
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

/// The keys of a scan, without their values: of an [`Iter`] or a
/// [`TransactionIter`](crate::TransactionIter), with the errors of that one. From the back in reverse
/// order.
#[derive(Debug)]
pub struct Keys<I = Iter>(I);

impl<I> Keys<I> {
    pub(crate) fn new(entries: I) -> Self {
        Self(entries)
    }

    /// The scan itself, which goes on from here.
    pub fn into_entries(self) -> I {
        self.0
    }
}

impl<I: Iterator<Item = Result<(Key, Value)>>> Iterator for Keys<I> {
    type Item = Result<Key>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|entry| entry.map(|(key, _)| key))
    }
}

impl<I: DoubleEndedIterator<Item = Result<(Key, Value)>>> DoubleEndedIterator for Keys<I> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back().map(|entry| entry.map(|(key, _)| key))
    }
}

/// Gaps are looked for at the start, and after each so many removed rows.
const LOOKS_AFTER: u64 = 8;
/// A jump costs as much as walking over so many rows, but at the start, where nothing is fetched.
const JUMP: u64 = 64;

/// The removed rows that an iterator walks over between two keys that it returns.
struct Stretch {
    bounds: Bounds,
    /// Where the iterator goes; `None` at first.
    toward: Option<Direction>,
    /// It went both ways: what is left has no bounds that are known here.
    both_ways: bool,
    /// No key was returned and none passed.
    is_start: bool,
    /// Where it began: at the start, at its first removed row, or behind a gap.
    from: Option<Edge>,
    is_behind_gap: bool,
    /// The last removed row.
    last: Option<Key>,
    removed: u64,
    /// With so many removed rows a gap is looked for.
    looks_at: u64,
}

/// The side of a key that an iterator comes to first, and the other one.
fn near(key: &Key, direction: Direction) -> Edge {
    match direction {
        Direction::Forward => Edge::Before(key.clone()),
        Direction::Backward => Edge::after(key),
    }
}

fn far(key: &Key, direction: Direction) -> Edge {
    match direction {
        Direction::Forward => Edge::after(key),
        Direction::Backward => Edge::Before(key.clone()),
    }
}

impl Stretch {
    /// For an iterator that begins between these bounds.
    fn new(bounds: &Bounds) -> Self {
        Self {
            bounds: bounds.clone(),
            toward: None,
            both_ways: false,
            is_start: true,
            from: None,
            is_behind_gap: false,
            last: None,
            removed: 0,
            looks_at: 0,
        }
    }

    /// A step begins.
    fn goes(&mut self, direction: Direction) {
        self.both_ways |= self.toward.is_some_and(|toward| toward != direction);
        self.toward = Some(direction);
    }

    /// A removed row is next.
    fn removed(&mut self, key: &Key, direction: Direction) {
        if self.from.is_none() {
            self.from = Some(match self.is_start {
                true => self.start(direction),
                false => near(key, direction),
            });
        }
        self.is_start = false;
        self.removed += 1;
        self.last = Some(key.clone());
    }

    /// A key is returned, or nothing is left.
    fn ends(&mut self) {
        self.is_start = false;
        self.looks_at = LOOKS_AFTER;
        if self.from.is_some() {
            (self.from, self.last, self.removed) = (None, None, 0);
            self.is_behind_gap = false;
        }
    }

    /// What lies before this key was noted, and it goes on behind it.
    fn goes_on(&mut self, key: &Key, direction: Direction) {
        self.ends();
        self.from = Some(far(key, direction));
    }

    /// Where the iterator began.
    fn start(&self, direction: Direction) -> Edge {
        match direction {
            Direction::Forward => Edge::of_low(&self.bounds.0),
            Direction::Backward => Edge::of_high(&self.bounds.1),
        }
    }

    /// Where it ends at the latest.
    fn far(&self, direction: Direction) -> Edge {
        match direction {
            Direction::Forward => Edge::of_high(&self.bounds.1),
            Direction::Backward => Edge::of_low(&self.bounds.0),
        }
    }

    /// Where a gap is looked for, if it is time to do so.
    fn looks(&mut self, direction: Direction) -> Option<Edge> {
        if self.removed < self.looks_at || self.both_ways {
            return None;
        }
        self.looks_at = self.removed + LOOKS_AFTER;
        Some(self.position(direction))
    }

    /// Behind the last removed row. To be called where there is one, or at the start.
    fn position(&self, direction: Direction) -> Edge {
        match &self.last {
            Some(last) => far(last, direction),
            None => self.start(direction),
        }
    }

    /// Whether a jump is worth it.
    fn may_jump(&self, jump: &Jump) -> bool {
        self.is_start || jump.passed >= JUMP
    }

    /// It jumps, and a stretch begins there. Returns what is left.
    fn jumps(&mut self, jump: Jump, direction: Direction) -> Bounds {
        let to = self.far(direction);
        let left = match direction {
            Direction::Forward => Edge::between(&jump.to, &to),
            Direction::Backward => Edge::between(&to, &jump.to),
        };
        self.ends();
        self.from = Some(jump.to);
        self.is_behind_gap = true;
        left
    }

    /// Whether it is worth a gap.
    fn is_long(&self) -> bool {
        self.removed >= WORTH && !self.both_ways
    }

    /// Whether it lies between two gaps where a jump follows: a gap joins them.
    fn is_between_gaps(&self) -> bool {
        self.is_behind_gap && self.removed > 0
    }

    /// What was walked over when the iterator has come to an edge.
    fn walked(&self, to: Edge, direction: Direction, since: Lsn, seen: Lsn) -> Option<Walked> {
        let from = self.from.clone()?;
        let (low, high) = match direction {
            Direction::Forward => (from, to),
            Direction::Backward => (to, from),
        };
        let passed = self.removed;
        (low < high).then_some(Walked {
            low,
            high,
            since,
            seen,
            passed,
        })
    }
}
