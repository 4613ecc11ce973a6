//! Stretches of keys that are known to have no value, so that scans need not walk over what was
//! removed.
//!
//! Who takes the first key of a queue again and again would step over the tombstones of all that
//! went through it. So an iterator that has passed over many removed rows notes a *gap*: at LSN L,
//! no key between two edges is live. Iterators jump over gaps.
//!
//! # Why no live key is jumped over
//!
//! *What was removed stays removed.* Below L the newest version of each of these keys is a
//! tombstone, if there is one. A read at a boundary V ≥ L finds a live key there only where it was
//! put from L on.
//!
//! *Puts split gaps.* A put looks for the gap of its key when its entry is in the memtable and
//! before it is visible. A read looks for gaps when it has its boundary V: by then all puts below V
//! have done so.
//!
//! *Also those from between L and the note.* The iterator first *announces* what it has walked over:
//! from then on puts leave their keys there. Then it searches the memtables of the family's current
//! view for puts from L on; where tables may have such puts it gives up. Last, the gap is noted
//! without the keys of both. An entry that the search does not find was inserted after the search
//! had the bucket's lock, and so its put sees what was announced. Views change under the lock under
//! which is announced: a search has either the new view, or the puts that use it see the announcement.
//! A memtable that is linked as a
//! whole, of a large commit, drops gaps and announcements of its family when it is linked.
//!
//! # Which gaps are kept
//!
//! At most [`MOST`] of a family. The one that is discarded is the one that saved least lately:
//! a gap's priority is a clock, which follows the priorities of those that were discarded, plus the
//! number of rows that it passes over. Gaps that touch become one, with the larger L, when the newer
//! one is noted and neither is much smaller than the other: else a small one would make a large one
//! useless to reads at older snapshots, and these would walk again and again. A scan passes those that
//! touch at once.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use collie_log::Lsn;
use parking_lot::{Mutex, MutexGuard};

use crate::Key;
use crate::key::{Direction, Edge};

/// So many removed rows in a row are worth a gap.
pub(crate) const WORTH: u64 = 16;
/// Gaps of a family.
const MOST: usize = 256;
/// A gap that touches one up to so many times as large becomes part of it.
const ALIKE: u64 = 4;
/// Puts that an announced gap is noted without; with more it is given up, or ends there.
const PUTS_MOST: usize = 8;

/// No key between its edges is live for reads from `since` on.
#[derive(Debug)]
struct Gap {
    low: Edge,
    high: Edge,
    since: Lsn,
    /// The end of the newest commit that removed one of them.
    seen: Lsn,
    /// Removed rows that it passes over, about.
    passed: u64,
    /// Relaxed, as all accesses: it decides what is discarded, and orders nothing.
    priority: AtomicU64,
}

impl Gap {
    fn priority(&self) -> u64 {
        self.priority.load(Ordering::Relaxed)
    }

    /// Two gaps are left of one without what is between two edges, or fewer.
    fn without(&self, low: &Edge, high: &Edge) -> impl Iterator<Item = Arc<Self>> + use<> {
        let part = |low: &Edge, high: &Edge| {
            let part = Self {
                low: low.clone(),
                high: high.clone(),
                since: self.since,
                seen: self.seen,
                passed: self.passed.div_ceil(2),
                priority: AtomicU64::new(self.priority()),
            };
            (low < high).then(|| Arc::new(part))
        };
        let before = part(&self.low, low.min(&self.high));
        before.into_iter().chain(part(high.max(&self.low), &self.high))
    }
}

/// What an iterator has walked over: from `since` on no key between the edges is live, unless it was
/// put since.
#[derive(Debug)]
pub(crate) struct Walked {
    pub(crate) low: Edge,
    pub(crate) high: Edge,
    pub(crate) since: Lsn,
    pub(crate) seen: Lsn,
    /// Removed rows, apart from those in gaps that it jumped over.
    pub(crate) passed: u64,
}

/// Whether a key was put since an LSN.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PutSince {
    No,
    /// This one was, and none before it.
    Key(Key),
    /// It is not known, or takes long to find out.
    Unknown,
}

/// Where an iterator goes on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Jump {
    pub(crate) to: Edge,
    /// The newest commit that is seen by that.
    pub(crate) seen: Lsn,
    /// Removed rows that it passes over, about.
    pub(crate) passed: u64,
}

/// The gaps of a family: ranges of keys without a live value, which iterators jump over.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    /// Whether there may be any, noted or announced, so that puts need not look.
    any: AtomicBool,
    list: ArcSwap<List>,
    /// Held while the list is replaced.
    edit: Mutex<GapEdit>,
    /// The priority of the gap that was discarded last. Relaxed, as priorities.
    clock: AtomicU64,
}

#[derive(Debug, Default)]
struct List {
    /// In order; none overlaps another.
    gaps: Vec<Arc<Gap>>,
    announced: Vec<Announced>,
}

/// What is searched for puts now.
#[derive(Debug, Clone)]
struct Announced {
    number: u64,
    low: Edge,
    high: Edge,
}

#[derive(Debug, Default)]
struct GapEdit {
    /// Of the last that was announced.
    number: u64,
    /// Keys that were put in what is announced, with its number.
    puts: Vec<(u64, Key)>,
}

impl List {
    /// The gap that a key is in.
    fn find(&self, key: &[u8]) -> Option<usize> {
        let at = self.gaps.partition_point(|gap| gap.high.is_before(key));
        let gap = self.gaps.get(at)?;
        gap.low.is_before(key).then_some(at)
    }

    fn announced(&self, key: &[u8]) -> impl Iterator<Item = &Announced> {
        let has = |announced: &&Announced| announced.low.is_before(key) && !announced.high.is_before(key);
        self.announced.iter().filter(has)
    }
}

impl Gaps {
    /// Whether there may be any.
    pub(crate) fn any(&self) -> bool {
        // Relaxed: for reads a hint; for puts see `put`.
        self.any.load(Ordering::Relaxed)
    }

    /// Where a read below `below`, which has come to an edge, goes on: behind all gaps that follow
    /// there without a break. To be called after the read has its boundary.
    pub(crate) fn past(&self, at: &Edge, direction: Direction, below: Lsn) -> Option<Jump> {
        let list = self.list.load();
        let gaps = &list.gaps;
        let mut jump = Jump {
            to: at.clone(),
            seen: 0,
            passed: 0,
        };
        let mut next = match direction {
            Direction::Forward => gaps.partition_point(|gap| gap.high <= *at),
            Direction::Backward => gaps.partition_point(|gap| gap.low < *at).wrapping_sub(1),
        };
        while let Some(gap) = gaps.get(next)
            && gap.since <= below
            && gap.low <= jump.to
            && jump.to <= gap.high
        {
            let priority = self.clock.load(Ordering::Relaxed) + gap.passed;
            gap.priority.store(priority, Ordering::Relaxed);
            jump.seen = jump.seen.max(gap.seen);
            jump.passed += gap.passed;
            (jump.to, next) = match direction {
                Direction::Forward => (gap.high.clone(), next + 1),
                Direction::Backward => (gap.low.clone(), next.wrapping_sub(1)),
            };
        }
        (jump.passed > 0).then_some(jump)
    }

    /// A key was put. To be called when its entry is in the memtable, and before it is visible.
    pub(crate) fn put(&self, key: &[u8]) {
        // The lock of the key's bucket orders this behind an announcement whose search has had that
        // lock before.
        if !self.any() {
            return;
        }
        let list = self.list.load();
        if list.find(key).is_some() || list.announced(key).next().is_some() {
            self.split(key);
        }
    }

    #[cold]
    fn split(&self, key: &[u8]) {
        let mut edit = self.edit.lock();
        let list = self.list.load();
        let mut new = List {
            gaps: list.gaps.clone(),
            announced: list.announced.clone(),
        };
        if let Some(at) = list.find(key) {
            let parts = list.gaps[at].without(&Edge::before(key), &Edge::after(key));
            new.gaps
                .splice(at..=at, parts.filter(|part| part.passed >= WORTH / 2));
        }
        for announced in list.announced(key) {
            let number = announced.number;
            edit.puts.push((number, Key::from(key)));
            if edit.puts.iter().filter(|(of, _)| *of == number).count() > PUTS_MOST {
                edit.puts.retain(|(of, _)| *of != number);
                new.announced.retain(|announced| announced.number != number);
            }
        }
        self.replace(&edit, new);
    }

    /// Replaces the family's view: see the file's page.
    pub(crate) fn change_view(&self, change: impl FnOnce()) {
        let _apart = self.edit.lock();
        change();
    }

    /// Drops all of them: keys were put which were not compared with them one by one. To be called when a
    /// search finds them, and before they are visible.
    pub(crate) fn clear(&self) {
        let mut edit = self.edit.lock();
        edit.puts.clear();
        self.replace(&edit, List::default());
    }

    fn replace(&self, _edit: &MutexGuard<'_, GapEdit>, new: List) {
        let any = !new.gaps.is_empty() || !new.announced.is_empty();
        self.list.store(Arc::new(new));
        // Relaxed: see `put`.
        self.any.store(any, Ordering::Relaxed);
    }

    /// Notes a gap. `put_since` finds the first key that was put since, between two edges, in the
    /// view that the family has when it is called.
    pub(crate) fn note(&self, walked: &Walked, put_since: impl FnMut(&Edge, &Edge) -> PutSince) {
        // Many small ones would only displace each other.
        let is_full = self.any() && self.list.load().gaps.len() >= MOST;
        if is_full && walked.passed < ALIKE * WORTH {
            return;
        }
        let number = self.announce(walked);
        reach!("a gap is announced");
        let (puts, until) = search(walked, put_since);
        reach!("a gap is searched");
        self.add(walked, number, puts, until);
    }

    fn announce(&self, walked: &Walked) -> u64 {
        let mut edit = self.edit.lock();
        edit.number += 1;
        let list = self.list.load();
        let mut announced = list.announced.clone();
        announced.push(Announced {
            number: edit.number,
            low: walked.low.clone(),
            high: walked.high.clone(),
        });
        let gaps = list.gaps.clone();
        self.replace(&edit, List { gaps, announced });
        edit.number
    }

    /// Adds what was announced, up to an edge and without the keys that were put.
    fn add(&self, walked: &Walked, number: u64, mut puts: Vec<Key>, until: Edge) {
        let mut edit = self.edit.lock();
        let list = self.list.load();
        let mut announced = list.announced.clone();
        announced.retain(|announced| announced.number != number);
        let is_given_up = announced.len() == list.announced.len();
        puts.extend(
            edit.puts
                .extract_if(.., |(of, _)| *of == number)
                .map(|(_, key)| key),
        );
        puts.sort_unstable();
        let mut gaps = list.gaps.clone();
        if !is_given_up {
            let mut low = walked.low.clone();
            let ends = puts.iter().map(|key| (Edge::before(key), Edge::after(key)));
            for (high, next) in ends.chain([(walked.high.clone(), Edge::End)]) {
                gaps = self.with(gaps, walked, low, high.min(until.clone()));
                low = next;
            }
        }
        let gaps = self.discard(join(gaps, walked.since));
        self.replace(&edit, List { gaps, announced });
    }

    /// These gaps and another one. Of two that overlap, that which holds for more reads stays.
    fn with(&self, gaps: Vec<Arc<Gap>>, walked: &Walked, low: Edge, high: Edge) -> Vec<Arc<Gap>> {
        let mut new = Vec::with_capacity(gaps.len() + 1);
        let mut parts = vec![(low.clone(), high.clone())];
        for gap in gaps {
            if gap.high <= low || high <= gap.low {
                new.push(gap);
            } else if gap.since > walked.since {
                new.extend(gap.without(&low, &high));
            } else {
                if let Some((from, to)) = parts.pop() {
                    parts.push((from, gap.low.clone()));
                    parts.push((gap.high.clone(), to));
                }
                new.push(gap);
            }
        }
        parts.retain(|(low, high)| low < high);
        let passed = walked.passed.div_ceil(parts.len().max(1) as u64);
        new.extend(parts.into_iter().map(|(low, high)| {
            Arc::new(Gap {
                low,
                high,
                since: walked.since,
                seen: walked.seen,
                passed,
                priority: AtomicU64::new(self.clock.load(Ordering::Relaxed) + passed),
            })
        }));
        new.sort_by(|a, b| a.low.cmp(&b.low));
        new
    }

    fn discard(&self, mut gaps: Vec<Arc<Gap>>) -> Vec<Arc<Gap>> {
        while gaps.len() > MOST
            && let Some(least) = (0..gaps.len()).min_by_key(|n| gaps[*n].priority())
        {
            let discarded = gaps.remove(least);
            self.clock.fetch_max(discarded.priority(), Ordering::Relaxed);
        }
        gaps
    }
}

/// The keys that were put since, and up to where that is known.
fn search(walked: &Walked, mut put_since: impl FnMut(&Edge, &Edge) -> PutSince) -> (Vec<Key>, Edge) {
    let mut puts = Vec::new();
    let mut low = walked.low.clone();
    while puts.len() < PUTS_MOST {
        match put_since(&low, &walked.high) {
            PutSince::No => return (puts, walked.high.clone()),
            PutSince::Unknown => break,
            PutSince::Key(key) => {
                low = Edge::after(&key);
                puts.push(key);
            }
        }
    }
    (puts, low)
}

/// One of those that touch and are alike, where one was noted now, with this `since`.
fn join(gaps: Vec<Arc<Gap>>, since: Lsn) -> Vec<Arc<Gap>> {
    let is_crowded = gaps.len() > MOST / 2;
    let mut joined: Vec<Arc<Gap>> = Vec::with_capacity(gaps.len());
    for mut gap in gaps {
        while let Some(last) = joined.pop_if(|last| {
            let (smaller, larger) = (last.passed.min(gap.passed), last.passed.max(gap.passed));
            let newest = last.since.max(gap.since);
            let alike = is_crowded || last.since == gap.since || newest == since && smaller >= larger / ALIKE;
            last.high == gap.low && alike
        }) {
            gap = Arc::new(Gap {
                low: last.low.clone(),
                high: gap.high.clone(),
                since: last.since.max(gap.since),
                seen: last.seen.max(gap.seen),
                passed: last.passed + gap.passed,
                priority: AtomicU64::new(last.priority().max(gap.priority())),
            });
        }
        joined.push(gap);
    }
    joined
}
