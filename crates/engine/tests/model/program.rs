//! Random programs, and what a store should show after each step of one.
//!
//! A program follows from its seed and its length alone: with both, another process for instance
//! computes every step and the model after it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use crate::common::Rng;

pub(crate) type Map = BTreeMap<Vec<u8>, Vec<u8>>;
pub(crate) type Range = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The families' names. The first is always there; the others come and go.
pub(crate) const NAMES: [&str; 4] = ["default", "second", "third", "fourth"];
/// So many snapshots, and so many iterators, are held at a time.
pub(crate) const HELD_MOST: usize = 5;
/// A kill strikes within so many steps.
const STRETCH_MOST: u64 = 250;

/// What a batch does to a key of a family: a value, or none.
pub(crate) type Write = (usize, Vec<u8>, Option<Vec<u8>>);

/// One operation, the same for every store. Families, snapshots and iterators have numbers.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Put(usize, Vec<u8>, Vec<u8>),
    Delete(usize, Vec<u8>),
    Batch(Vec<Write>),
    Unlogged(usize, Vec<u8>, Vec<u8>),
    Create(usize),
    Drop(usize),
    Snapshot,
    DropSnapshot(u64),
    /// An iterator is opened, on a snapshot if there is one of that number, and held.
    Hold(usize, Option<usize>, Range),
    /// Some entries are taken from a held iterator, from the end where it says so.
    Advance(u64, Vec<bool>),
    LetGo(u64),
    Flush,
    Compact,
    FlushWal,
    Reopen,
    /// A process runs the next steps and is killed among them; then they are all done.
    Kill,
    /// The end of what [`Step::Kill`] began.
    Settle,
    Get(usize, Vec<u8>),
    /// A scan, now and on a snapshot, which takes entries from the end where it says so.
    Scan(usize, Range, u64, Vec<bool>),
}

impl Step {
    /// What it writes.
    pub(crate) fn writes(&self) -> Vec<Write> {
        match self {
            Self::Put(family, key, value) | Self::Unlogged(family, key, value) => {
                vec![(*family, key.clone(), Some(value.clone()))]
            }
            Self::Delete(family, key) => vec![(*family, key.clone(), None)],
            Self::Batch(writes) => writes.clone(),
            _ => Vec::new(),
        }
    }
}

fn key(rng: &mut Rng) -> Vec<u8> {
    match rng.below(3) {
        0 => format!("k{}", rng.below(60)).into_bytes(),
        1 => format!("user/{:06}", rng.below(300)).into_bytes(),
        _ => (0..1 + rng.below(6)).map(|_| (rng.below(4) * 85) as u8).collect(),
    }
}

fn value(rng: &mut Rng) -> Vec<u8> {
    let len = if rng.one_in(100) { 6000 } else { rng.below(120) };
    vec![rng.next() as u8; len as usize]
}

fn bound(rng: &mut Rng) -> Bound<Vec<u8>> {
    match rng.below(3) {
        0 => Bound::Unbounded,
        1 => Bound::Included(key(rng)),
        _ => Bound::Excluded(key(rng)),
    }
}

fn ends(rng: &mut Rng, most: u64) -> Vec<bool> {
    (0..rng.below(most)).map(|_| rng.one_in(3)).collect()
}

/// The steps of a program, one after the other.
pub(crate) struct Program {
    rng: Rng,
    /// One step in so many is a kill.
    kills: u64,
    /// How many steps are left of those that a kill strikes among.
    stretch: Option<u64>,
}

impl Program {
    pub(crate) fn new(seed: u64, ops: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            kills: ops.clamp(200, 1000),
            stretch: None,
        }
    }

    /// The next step, for stores that show what the model does.
    pub(crate) fn next(&mut self, model: &Model) -> Step {
        match &mut self.stretch {
            Some(0) => {
                self.stretch = None;
                return Step::Settle;
            }
            Some(left) => *left -= 1,
            None if self.rng.one_in(self.kills) => {
                self.stretch = Some(1 + self.rng.below(STRETCH_MOST));
                return Step::Kill;
            }
            None => {}
        }
        self.step(model)
    }

    /// What a kill that was just drawn strikes among; `model` is what it was after all of it then.
    pub(crate) fn stretch(&mut self, model: &mut Model) -> Stretch {
        let (before, mut steps) = (model.clone(), Vec::new());
        loop {
            let step = self.next(model);
            model.apply(&step);
            if let Step::Settle = step {
                return Stretch { before, steps };
            }
            steps.push(step);
        }
    }

    fn step(&mut self, model: &Model) -> Step {
        let rng = &mut self.rng;
        let pick = |rng: &mut Rng| {
            let there: Vec<usize> = (0..NAMES.len())
                .filter(|&n| model.families[n].is_some())
                .collect();
            there[rng.below(there.len() as u64) as usize]
        };
        let family = pick(rng);
        match rng.below(1000) {
            0..=429 => Step::Put(family, key(rng), value(rng)),
            430..=529 => Step::Delete(family, key(rng)),
            530..=629 => {
                let len = 1 + rng.below(8);
                let write = |rng: &mut Rng| (pick(rng), key(rng), (!rng.one_in(4)).then(|| value(rng)));
                Step::Batch((0..len).map(|_| write(rng)).collect())
            }
            630..=649 => Step::Unlogged(family, key(rng), value(rng)),
            650..=657 => match (1..NAMES.len()).find(|&n| model.families[n].is_none()) {
                Some(missing) => Step::Create(missing),
                None => Step::Flush,
            },
            658..=661 if family > 0 => Step::Drop(family),
            658..=663 => Step::Snapshot,
            664..=667 => Step::DropSnapshot(rng.next()),
            668..=673 => {
                let snapshot = rng.one_in(2).then(|| rng.below(HELD_MOST as u64) as usize);
                Step::Hold(family, snapshot, (bound(rng), bound(rng)))
            }
            674..=685 => Step::Advance(rng.next(), ends(rng, 60)),
            686..=689 => Step::LetGo(rng.next()),
            690..=696 => Step::Flush,
            697..=698 => Step::Compact,
            699..=700 => Step::FlushWal,
            701..=703 => Step::Reopen,
            704..=899 => Step::Get(family, key(rng)),
            _ => Step::Scan(family, (bound(rng), bound(rng)), rng.next(), ends(rng, 600)),
        }
    }
}

/// Steps among which a kill strikes.
pub(crate) struct Stretch {
    pub(crate) before: Model,
    pub(crate) steps: Vec<Step>,
}

/// The families that there are, and what is in each.
pub(crate) type Families = [Option<Map>; NAMES.len()];
pub(crate) type Entry = (Vec<u8>, Vec<u8>);

/// What the stores should show.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) families: Families,
    pub(crate) snapshots: Vec<Families>,
    /// What each of the iterators has not given yet.
    iterators: Vec<VecDeque<Entry>>,
    /// What the last [`Step::Advance`] gave.
    pub(crate) given: Vec<Option<Entry>>,
}

impl Model {
    pub(crate) fn new() -> Self {
        Self {
            families: [Some(Map::new()), None, None, None],
            snapshots: Vec::new(),
            iterators: Vec::new(),
            given: Vec::new(),
        }
    }

    pub(crate) fn apply(&mut self, step: &Step) {
        for (family, key, value) in step.writes() {
            if let Some(map) = &mut self.families[family] {
                write_to(map, &key, value.as_deref());
            }
        }
        match step {
            Step::Create(family) => self.families[*family] = Some(Map::new()),
            Step::Drop(family) => self.families[*family] = None,
            Step::Snapshot if self.snapshots.len() < HELD_MOST => self.snapshots.push(self.families.clone()),
            Step::DropSnapshot(which) => drop(take(&mut self.snapshots, *which)),
            Step::Hold(family, snapshot, range) if self.iterators.len() < HELD_MOST => {
                let snapshot = snapshot.and_then(|number| self.snapshots.get(number)?[*family].as_ref());
                let map = snapshot.or(self.families[*family].as_ref());
                let inside = map.into_iter().flatten().filter(|(key, _)| inside(range, key));
                let rest = inside.map(|(k, v)| (k.clone(), v.clone())).collect();
                self.iterators.push(rest);
            }
            Step::Advance(which, ends) => {
                self.given.clear();
                if let Some(rest) = choose(&mut self.iterators, *which) {
                    let next = |back: &bool| if *back { rest.pop_back() } else { rest.pop_front() };
                    self.given = ends.iter().map(next).collect();
                }
            }
            Step::LetGo(which) => drop(take(&mut self.iterators, *which)),
            Step::Reopen | Step::Kill | Step::Settle => self.let_go(),
            _ => {}
        }
    }

    /// Nothing is held any more.
    pub(crate) fn let_go(&mut self) {
        self.snapshots.clear();
        self.iterators.clear();
    }
}

pub(crate) fn write_to(map: &mut Map, key: &[u8], value: Option<&[u8]>) {
    match value {
        Some(value) => drop(map.insert(key.into(), value.into())),
        None => drop(map.remove(key)),
    }
}

/// The one that a number means, if there is any.
pub(crate) fn choose<T>(all: &mut [T], which: u64) -> Option<&mut T> {
    let number = which.checked_rem(all.len() as u64)?;
    all.get_mut(number as usize)
}

/// Takes one away, if there is one.
pub(crate) fn take<T>(all: &mut Vec<T>, which: u64) -> Option<T> {
    let number = which.checked_rem(all.len() as u64)?;
    Some(all.remove(number as usize))
}

pub(crate) fn inside((low, high): &Range, key: &Vec<u8>) -> bool {
    (match low {
        Bound::Included(low) => key >= low,
        Bound::Excluded(low) => key > low,
        Bound::Unbounded => true,
    }) && match high {
        Bound::Included(high) => key <= high,
        Bound::Excluded(high) => key < high,
        Bound::Unbounded => true,
    }
}
