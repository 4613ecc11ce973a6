//! The ledger: what a program was acknowledged, at which level, and whether recovery kept it.
//!
//! After a crash three sentences must hold:
//!
//! 1. what was acknowledged at a level is there after the fault that the level names;
//! 2. never a later commit without an earlier one that it could have seen; after a power cut what
//!    is there is a prefix of the commit order;
//! 3. no commit is there in part.
//!
//! A violation of the first is *lost*, of the second *reordered*, of the third *partial*. Which
//! commit comes before which is known in three ways, and each user notes what it has: a position in
//! the commit order, moments at which commits began and could be seen, and what a commit says that
//! it had read.

mod numbered;
mod payload;
#[cfg(test)]
mod tests;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use numbered::{Clients, Counts, Found, read_value, value};
pub use payload::{payload, read_payload};
pub use verdict::{Commit, Promise, Survives, Verdict, Violation};

/// Notes every commit of a program: when it began, its position, when others could see it, and what
/// was acknowledged. Clones share the book; all methods may be called from any thread.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    book: Arc<Mutex<Book>>,
}

#[derive(Debug, Clone, Default)]
struct Book {
    /// Counts everything that is noted, so that any two notes have an order.
    tick: u64,
    next_id: u64,
    commits: BTreeMap<u64, Note>,
    /// When the program gave up everything ordered below what: that may be there or not from then
    /// on.
    released: Vec<(u64, u64)>,
    /// Of each client, the last commit that is in no note any more, as it was removed for good.
    removed: BTreeMap<u64, u64>,
}

#[derive(Debug, Clone)]
struct Note {
    begun: u64,
    order: Option<u64>,
    visible: Option<u64>,
    process: Option<u64>,
    disk: Option<u64>,
    /// The later commit of the same client that removes it.
    removed_by: Option<u64>,
    /// It was refused, or a recovery did without it, so that it must never come back.
    dead: bool,
}

/// The bits of a number that are the same for all commits of a client.
const CLIENT_SHIFT: u32 = 56;

/// The commits of the client of `id`, from that one on.
fn from_on(id: u64) -> std::ops::RangeInclusive<u64> {
    id..=id | ((1 << CLIENT_SHIFT) - 1)
}

impl Ledger {
    /// An empty book.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a commit, which can see all that are visible by now, and returns its number.
    #[must_use]
    pub fn begin(&self) -> u64 {
        let mut book = self.book();
        let id = book.next_id;
        book.next_id += 1;
        book.begin(id);
        id
    }

    /// The same with a number of the caller's. One that was begun before is begun anew only where
    /// it is dead.
    pub fn begin_as(&self, id: u64) {
        self.book().begin(id);
    }

    /// The commit has its position in the order.
    pub fn ordered(&self, id: u64, order: u64) {
        if let Some(note) = self.book().commits.get_mut(&id) {
            note.order = Some(order);
        }
    }

    /// The commit can be seen by those that begin from now on.
    pub fn visible(&self, id: u64, order: u64) {
        let mut book = self.book();
        let now = book.advance();
        if let Some(note) = book.commits.get_mut(&id) {
            note.order = Some(order);
            note.visible.get_or_insert(now);
        }
    }

    /// The commit was acknowledged.
    pub fn promised(&self, id: u64, promise: Promise) {
        let mut book = self.book();
        let now = book.advance();
        if let Some(note) = book.commits.get_mut(&id) {
            note.process.get_or_insert(now);
            if promise == Promise::Disk {
                note.disk.get_or_insert(now);
            }
        }
    }

    /// The commit was refused: it must never be there.
    pub fn refused(&self, id: u64) {
        if let Some(note) = self.book().commits.get_mut(&id) {
            note.dead = true;
        }
    }

    /// Commit `id` removes `old`, an earlier one of the same client.
    pub fn removes(&self, id: u64, old: u64) {
        if let Some(note) = self.book().commits.get_mut(&old) {
            note.removed_by = Some(id);
        }
    }

    /// The program gave up every commit ordered below `order`: it may be there or not from now on.
    pub fn released(&self, order: u64) {
        let mut book = self.book();
        let now = book.advance();
        book.released.push((now, order));
    }

    /// This moment, for [`SimDevice::tag_snapshots`](collie_sim::SimDevice::tag_snapshots).
    #[must_use]
    pub fn now(&self) -> u64 {
        self.book().tick
    }

    /// Number of commits in the book.
    #[must_use]
    pub fn len(&self) -> usize {
        self.book().commits.len()
    }

    /// Whether no commit has begun.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Judges what was found, in the order in which it was found, after a crash at the moment
    /// `tag`.
    #[must_use]
    pub fn check(&self, tag: u64, survives: Survives, found: &[Commit]) -> Verdict {
        let book = self.book();
        let mut verdict = Verdict {
            recovered: found.len() as u64,
            ..Verdict::default()
        };
        let there = book.check_each(found, &mut verdict);
        book.check_acknowledged(tag, survives, &there, &mut verdict);
        book.check_order(tag, survives, &there, &mut verdict);
        book.check_seen(tag, found, &there, &mut verdict);
        verdict
    }

    /// A book of its own for the life after a recovery at which `found` was there: that is durable
    /// now, and what was not there must never come back.
    #[must_use]
    pub fn after(&self, found: &[Commit]) -> Self {
        let mut book = self.book().clone();
        let now = book.advance();
        let there: BTreeSet<u64> = found.iter().filter_map(|c| c.id).collect();
        let released = book.released_by(now);
        let removed = &mut book.removed;
        book.commits.retain(|&id, note| {
            if there.contains(&id) || !note.is_removed(&there) {
                return true;
            }
            let last = removed.entry(id >> CLIENT_SHIFT).or_default();
            *last = id.max(*last);
            false
        });
        for (id, note) in &mut book.commits {
            let given_up = note.order.is_some_and(|order| order < released);
            note.dead |= !there.contains(id) && !given_up;
            if !note.dead {
                note.visible.get_or_insert(now);
                note.process.get_or_insert(now);
                note.disk.get_or_insert(now);
            }
        }
        Self {
            book: Arc::new(Mutex::new(book)),
        }
    }
}

impl Note {
    /// Whether a commit is there that removes it, or a later one of that client.
    fn is_removed(&self, there: &BTreeSet<u64>) -> bool {
        let by = self.removed_by;
        by.is_some_and(|by| there.range(from_on(by)).next().is_some())
    }
}

impl Book {
    fn advance(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    fn begin(&mut self, id: u64) {
        let begun = self.advance();
        let note = Note {
            begun,
            order: None,
            visible: None,
            process: None,
            disk: None,
            removed_by: None,
            dead: false,
        };
        match self.commits.get_mut(&id) {
            Some(known) if !known.dead => {}
            Some(dead) => *dead = note,
            None => drop(self.commits.insert(id, note)),
        }
    }

    /// Everything ordered below was given up by `tag`.
    fn released_by(&self, tag: u64) -> u64 {
        let then = self.released.iter().filter(|&&(at, _)| at <= tag);
        then.map(|&(_, order)| order).max().unwrap_or(0)
    }

    /// Whether a commit was removed and has no note any more.
    fn was_removed(&self, id: u64) -> bool {
        let last = self.removed.get(&(id >> CLIENT_SHIFT));
        last.is_some_and(|last| id <= *last) && !self.commits.contains_key(&id)
    }

    /// Every commit by itself: whole, known, at its position, once. Returns the numbers of those
    /// found.
    fn check_each(&self, found: &[Commit], verdict: &mut Verdict) -> BTreeSet<u64> {
        let known = |id: &u64| self.commits.contains_key(id);
        let all: BTreeSet<u64> = found.iter().filter_map(|c| c.id).filter(known).collect();
        let mut there = BTreeSet::new();
        let mut last = None;
        for commit in found {
            let Some(id) = commit.id.filter(|id| known(id) || self.was_removed(*id)) else {
                verdict.find(Violation::Partial, 1, || {
                    format!(
                        "at {:?}: not a whole commit of ours: {:?}",
                        commit.order, commit.id
                    )
                });
                continue;
            };
            let note = self.commits.get(&id);
            let twice = !there.insert(id);
            let was = note.and_then(|note| note.order);
            let moved = was.is_some() && commit.order.is_some() && was != commit.order;
            let backwards = last.is_some() && last >= commit.order;
            let dead = note.is_none_or(|note| note.dead || note.is_removed(&all));
            last = commit.order;
            if twice || moved || backwards || dead {
                verdict.find(Violation::Reordered, 1, || {
                    let order = commit.order;
                    format!("commit {id} at {order:?}: was at {was:?}, there twice: {twice}, out of order: {backwards}, back from the dead: {dead}")
                });
            } else if !commit.whole {
                verdict.find(Violation::Partial, 1, || {
                    format!("commit {id} at {:?} is not there as a whole", commit.order)
                });
            }
        }
        there
    }

    /// The notes that must be judged of commits that are not there, with whether the program gave
    /// them up by `tag`.
    fn missing(&self, tag: u64, there: &BTreeSet<u64>) -> impl Iterator<Item = (u64, &Note)> {
        let released = self.released_by(tag);
        self.commits.iter().filter_map(move |(&id, note)| {
            let gave_up = note.order.is_some_and(|order| order < released);
            let excused = note.dead || gave_up || there.contains(&id) || note.is_removed(there);
            (!excused).then_some((id, note))
        })
    }

    /// The first sentence.
    fn check_acknowledged(&self, tag: u64, survives: Survives, there: &BTreeSet<u64>, verdict: &mut Verdict) {
        let promised = |note: &Note| {
            let at = match survives {
                Survives::Process => note.process,
                Survives::Power | Survives::ProcessThenPower => note.disk,
                Survives::Damage => None,
            };
            at.is_some_and(|at| at <= tag)
        };
        let released = self.released_by(tag);
        let counted = |note: &&Note| {
            let gave_up = note.order.is_some_and(|order| order < released);
            !note.dead && !gave_up && promised(note)
        };
        verdict.acknowledged = self.commits.values().filter(counted).count() as u64;
        for (id, note) in self.missing(tag, there).filter(|(_, note)| promised(note)) {
            verdict.find(Violation::Lost, 1, || {
                format!("commit {id} at {:?} was acknowledged and is lost", note.order)
            });
        }
    }

    /// The second sentence, by positions and moments.
    fn check_order(&self, tag: u64, survives: Survives, there: &BTreeSet<u64>, verdict: &mut Verdict) {
        let found = there.iter().filter_map(|id| self.commits.get(id));
        let (mut last_begun, mut last_order) = (0, None);
        for note in found {
            last_begun = last_begun.max(note.begun);
            last_order = last_order.max(note.order);
        }
        let prefix = matches!(survives, Survives::Power | Survives::Damage);
        for (id, note) in self.missing(tag, there) {
            let seen = note.visible.is_some_and(|at| at < last_begun);
            let hole = prefix && note.order.is_some() && note.order < last_order;
            if seen || hole {
                verdict.find(Violation::Reordered, 1, || {
                    let order = note.order;
                    format!("commit {id} at {order:?} is missing, a later one is there (up to {last_order:?}); it could be seen: {seen}")
                });
            }
        }
    }

    /// The second sentence, by what commits had read.
    fn check_seen(&self, tag: u64, found: &[Commit], there: &BTreeSet<u64>, verdict: &mut Verdict) {
        let released = self.released_by(tag);
        let may_be_gone = |id: u64| {
            self.was_removed(id)
                || self.commits.get(&id).is_some_and(|note| {
                    note.is_removed(there) || note.order.is_some_and(|order| order < released)
                })
        };
        for commit in found {
            let gone = |id: &&u64| !there.contains(id) && !may_be_gone(**id);
            for gone in commit.saw.iter().filter(gone) {
                verdict.find(Violation::Reordered, 1, || {
                    format!(
                        "commit {:?} is there and had seen {gone}, which is missing",
                        commit.id
                    )
                });
            }
        }
    }
}
