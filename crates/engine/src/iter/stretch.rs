//! The removed rows that an iterator walks over between two keys that it returns.

use collie_log::Lsn;

use crate::Key;
use crate::bounds::{Bounds, Edge};
use crate::gaps::{Jump, WORTH, Walked};
use crate::memtable::Direction;

/// Gaps are looked for at the start, and after each so many removed rows.
const LOOKS_AFTER: u64 = 8;
/// A jump costs as much as walking over so many rows, but at the start, where nothing is fetched.
const JUMP: u64 = 64;

/// See the module's page.
pub(super) struct Stretch {
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
pub(super) fn near(key: &Key, direction: Direction) -> Edge {
    match direction {
        Direction::Forward => Edge::Before(key.clone()),
        Direction::Backward => Edge::after(key),
    }
}

pub(super) fn far(key: &Key, direction: Direction) -> Edge {
    match direction {
        Direction::Forward => Edge::after(key),
        Direction::Backward => Edge::Before(key.clone()),
    }
}

impl Stretch {
    /// For an iterator that begins between these bounds.
    pub(super) fn new(bounds: &Bounds) -> Self {
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
    pub(super) fn goes(&mut self, direction: Direction) {
        self.both_ways |= self.toward.is_some_and(|toward| toward != direction);
        self.toward = Some(direction);
    }

    /// A removed row is next.
    pub(super) fn removed(&mut self, key: &Key, direction: Direction) {
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
    pub(super) fn ends(&mut self) {
        self.is_start = false;
        self.looks_at = LOOKS_AFTER;
        if self.from.is_some() {
            (self.from, self.last, self.removed) = (None, None, 0);
            self.is_behind_gap = false;
        }
    }

    /// What lies before this key was noted, and it goes on behind it.
    pub(super) fn goes_on(&mut self, key: &Key, direction: Direction) {
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
    pub(super) fn far(&self, direction: Direction) -> Edge {
        match direction {
            Direction::Forward => Edge::of_high(&self.bounds.1),
            Direction::Backward => Edge::of_low(&self.bounds.0),
        }
    }

    /// Where a gap is looked for, if it is time to do so.
    pub(super) fn looks(&mut self, direction: Direction) -> Option<Edge> {
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
    pub(super) fn may_jump(&self, jump: &Jump) -> bool {
        self.is_start || jump.passed >= JUMP
    }

    /// It jumps, and a stretch begins there. Returns what is left.
    pub(super) fn jumps(&mut self, jump: Jump, direction: Direction) -> Bounds {
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
    pub(super) fn is_long(&self) -> bool {
        self.removed >= WORTH && !self.both_ways
    }

    /// Whether it lies between two gaps where a jump follows: a gap joins them.
    pub(super) fn is_between_gaps(&self) -> bool {
        self.is_behind_gap && self.removed > 0
    }

    /// What was walked over when the iterator has come to an edge.
    pub(super) fn walked(&self, to: Edge, direction: Direction, since: Lsn, seen: Lsn) -> Option<Walked> {
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
