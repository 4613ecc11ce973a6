//! The oracle: what a program was promised, and whether recovery kept it.
//!
//! After a crash three sentences must hold:
//!
//! 1. what was acknowledged at a level is there after the fault that the level names;
//! 2. never a later commit without an earlier one that it could have seen; after a power cut what is
//!    there is a prefix of the commit order;
//! 3. no commit is there in part.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::rng::{Rng, mix};

/// What an acknowledgement promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Promise {
    /// The commit survives the death of its process.
    Process,
    /// The commit survives a loss of power.
    Disk,
}

/// What the fault left whole, hence what must be there after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survives {
    /// A process died: every acknowledgement holds.
    Process,
    /// The power went, or the shared memory is gone or not ours: acknowledgements at
    /// [`Promise::Disk`] hold, and what is there is a prefix.
    Power,
    /// A process died, and the power went before the next one had recovered: acknowledgements at
    /// [`Promise::Disk`] hold; a commit may be there without an earlier one that the dead process never
    /// completed.
    ProcessThenPower,
    /// The device itself lost or damaged what it had: no acknowledgement can hold, but what is there is a
    /// prefix of whole commits.
    Damage,
}

/// A commit that recovery found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// Its number in the ledger; `None` where its content is not whole.
    pub id: Option<u64>,
    /// Its place in the commit order.
    pub order: u64,
}

/// What one check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Commits whose acknowledgement covers the fault.
    pub acknowledged: u64,
    /// Commits that recovery found.
    pub recovered: u64,
    /// Acknowledged commits that are not there.
    pub lost: u64,
    /// Commits that are there in part, or that nobody made.
    pub partial: u64,
    /// Commits that are missing though a later one is there, that are out of order, there twice, or back
    /// after a recovery without them.
    pub reordered: u64,
    /// The first few violations in words.
    pub findings: Vec<String>,
}

/// Violations that a verdict describes; the others it counts.
const FINDINGS_MAX: usize = 8;

impl Verdict {
    /// Whether all three sentences hold.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.lost == 0 && self.partial == 0 && self.reordered == 0
    }

    fn find(&mut self, text: impl FnOnce() -> String) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(text());
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "acknowledged {} · recovered {} · lost {} · partial {} · reordered {}",
            self.acknowledged, self.recovered, self.lost, self.partial, self.reordered
        )?;
        self.findings.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

/// Notes every commit of a program: when it began, its place, when others could see it, and what was
/// promised. Clones share the book; all methods may be called from any thread.
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
    /// When the program gave up everything ordered below what: that may be there or not from then on.
    released: Vec<(u64, u64)>,
}

#[derive(Debug, Clone)]
struct Note {
    begun: u64,
    order: Option<u64>,
    visible: Option<u64>,
    process: Option<u64>,
    disk: Option<u64>,
    /// A recovery did without it, so that it must never come back.
    dead: bool,
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
        let begun = book.advance();
        let id = book.next_id;
        book.next_id += 1;
        let note = Note {
            begun,
            order: None,
            visible: None,
            process: None,
            disk: None,
            dead: false,
        };
        book.commits.insert(id, note);
        id
    }

    /// The commit has its place in the order.
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

    /// The program gave up every commit ordered below `order`: it may be there or not from now on.
    pub fn released(&self, order: u64) {
        let mut book = self.book();
        let now = book.advance();
        book.released.push((now, order));
    }

    /// This moment, for [`SimDevice::tag_snapshots`](crate::SimDevice::tag_snapshots).
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

    /// Judges what was found, in the order in which it was found, after a crash at the moment `tag`.
    #[must_use]
    pub fn check(&self, tag: u64, survives: Survives, found: &[Commit]) -> Verdict {
        let book = self.book();
        let mut verdict = Verdict {
            recovered: found.len() as u64,
            ..Verdict::default()
        };
        let there = book.check_each(found, &mut verdict);
        book.check_promises(tag, survives, &there, &mut verdict);
        book.check_order(tag, survives, &there, &mut verdict);
        verdict
    }

    /// A book of its own for the life after a recovery at which `found` was there: that is durable now,
    /// and what was not there must never come back.
    #[must_use]
    pub fn after(&self, found: &[Commit]) -> Self {
        let mut book = self.book().clone();
        let now = book.advance();
        let there: BTreeSet<u64> = found.iter().filter_map(|c| c.id).collect();
        let released = book.released_by(now);
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

impl Book {
    fn advance(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    /// Everything ordered below was given up by `tag`.
    fn released_by(&self, tag: u64) -> u64 {
        let then = self.released.iter().filter(|&&(at, _)| at <= tag);
        then.map(|&(_, order)| order).max().unwrap_or(0)
    }

    /// Every commit by itself: whole, known, at its place, once. Returns the numbers of those found.
    fn check_each(&self, found: &[Commit], verdict: &mut Verdict) -> BTreeSet<u64> {
        let mut there = BTreeSet::new();
        let mut last = None;
        for commit in found {
            let Some((id, note)) = commit
                .id
                .and_then(|id| self.commits.get(&id).map(|note| (id, note)))
            else {
                verdict.partial += 1;
                verdict.find(|| format!("at {}: not a whole commit of ours: {:?}", commit.order, commit.id));
                continue;
            };
            let twice = !there.insert(id);
            let moved = note.order.is_some_and(|order| order != commit.order);
            let backwards = last.is_some_and(|last| last >= commit.order);
            last = Some(commit.order);
            if twice || moved || backwards || note.dead {
                verdict.reordered += 1;
                verdict.find(|| {
                    let (order, was) = (commit.order, note.order);
                    let dead = note.dead;
                    format!("commit {id} at {order}: was at {was:?}, there twice: {twice}, out of order: {backwards}, back from the dead: {dead}")
                });
            }
        }
        there
    }

    /// The first sentence.
    fn check_promises(&self, tag: u64, survives: Survives, there: &BTreeSet<u64>, verdict: &mut Verdict) {
        let released = self.released_by(tag);
        for (id, note) in &self.commits {
            let promised = match survives {
                Survives::Process => note.process,
                Survives::Power | Survives::ProcessThenPower => note.disk,
                Survives::Damage => None,
            };
            let gave_up = note.order.is_some_and(|order| order < released);
            if note.dead || gave_up || promised.is_none_or(|at| at > tag) {
                continue;
            }
            verdict.acknowledged += 1;
            if !there.contains(id) {
                verdict.lost += 1;
                verdict.find(|| format!("commit {id} at {:?} was acknowledged and is lost", note.order));
            }
        }
    }

    /// The second sentence.
    fn check_order(&self, tag: u64, survives: Survives, there: &BTreeSet<u64>, verdict: &mut Verdict) {
        let found = there.iter().filter_map(|id| self.commits.get(id));
        let (mut last_begun, mut last_order) = (0, None);
        for note in found {
            last_begun = last_begun.max(note.begun);
            last_order = last_order.max(note.order);
        }
        let released = self.released_by(tag);
        for (id, note) in &self.commits {
            let gave_up = note.order.is_some_and(|order| order < released);
            if note.dead || gave_up || there.contains(id) {
                continue;
            }
            let seen = note.visible.is_some_and(|at| at < last_begun);
            let prefix = matches!(survives, Survives::Power | Survives::Damage);
            let hole = prefix && note.order.is_some() && note.order < last_order;
            if seen || hole {
                verdict.reordered += 1;
                verdict.find(|| {
                    let order = note.order;
                    format!("commit {id} at {order:?} is missing, a later one is there (up to {last_order:?}); it could be seen: {seen}")
                });
            }
        }
    }
}

/// Bytes of a payload before its filling: number, length, check.
const PAYLOAD_HEADER: usize = 24;

/// The payload of commit `id`: about `len` bytes (at least 24) that prove themselves whole.
#[must_use]
pub fn payload(id: u64, len: usize) -> Vec<u8> {
    let len = len.max(PAYLOAD_HEADER);
    let mut bytes = vec![0; len];
    if let Some(filling) = bytes.get_mut(PAYLOAD_HEADER..) {
        Rng::new(id).fill(filling);
    }
    let check = checksum(id, len as u64, bytes.get(PAYLOAD_HEADER..).unwrap_or_default());
    let header = [id, len as u64, check].map(u64::to_le_bytes);
    for (to, from) in bytes.iter_mut().zip(header.iter().flatten()) {
        *to = *from;
    }
    bytes
}

/// The number of the commit whose payload this is, if it is whole.
#[must_use]
pub fn read_payload(bytes: &[u8]) -> Option<u64> {
    let (header, filling) = bytes.split_at_checked(PAYLOAD_HEADER)?;
    let mut words = header
        .chunks_exact(8)
        .filter_map(|w| w.try_into().ok().map(u64::from_le_bytes));
    let (id, len, check) = (words.next()?, words.next()?, words.next()?);
    (len == bytes.len() as u64 && check == checksum(id, len, filling)).then_some(id)
}

fn checksum(id: u64, len: u64, filling: &[u8]) -> u64 {
    filling.iter().fold(mix(id ^ len.rotate_left(32)), |sum, &byte| {
        sum.rotate_left(9).wrapping_mul(0x100_0000_01B3) ^ u64::from(byte)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three commits: 0 on disk, 1 in the process, 2 visible only; each saw those before it.
    fn book() -> Ledger {
        let ledger = Ledger::new();
        for id in 0..3 {
            assert_eq!(ledger.begin(), id);
            ledger.visible(id, 100 + id);
        }
        ledger.promised(0, Promise::Disk);
        ledger.promised(1, Promise::Process);
        ledger
    }

    fn found(ids: &[u64]) -> Vec<Commit> {
        let commit = |&id| Commit {
            id: Some(id),
            order: 100 + id,
        };
        ids.iter().map(commit).collect()
    }

    fn counts(v: &Verdict) -> [u64; 5] {
        [v.acknowledged, v.recovered, v.lost, v.partial, v.reordered]
    }

    #[test]
    fn a_promise_counts_for_the_fault_that_it_names() {
        let ledger = book();
        let now = ledger.now();
        let v = ledger.check(now, Survives::Power, &found(&[0]));
        assert_eq!(counts(&v), [1, 1, 0, 0, 0], "{v}");
        let v = ledger.check(now, Survives::Process, &found(&[0]));
        assert_eq!(counts(&v), [2, 1, 1, 0, 0], "{v}");
        let v = ledger.check(now, Survives::Power, &[]);
        assert_eq!(counts(&v), [1, 0, 1, 0, 0], "{v}");
        let v = ledger.check(0, Survives::Process, &[]);
        assert!(v.holds(), "nothing was promised before the first tick: {v}");
        let v = ledger.check(now, Survives::Damage, &[]);
        assert!(v.holds(), "{v}");
    }

    #[test]
    fn a_later_commit_without_an_earlier_one_is_noticed() {
        let ledger = book();
        let v = ledger.check(0, Survives::Power, &found(&[0, 2]));
        assert_eq!(v.reordered, 1, "{v}");
        let v = ledger.check(0, Survives::Process, &found(&[2]));
        assert_eq!(v.reordered, 2, "{v}");
        let v = ledger.check(0, Survives::Process, &found(&[1, 0]));
        assert_eq!(v.reordered, 1, "{v}");
        let v = ledger.check(0, Survives::Process, &found(&[0, 0]));
        assert_eq!(v.reordered, 1, "{v}");
    }

    #[test]
    fn commits_that_could_not_see_each_other_may_survive_alone_only_in_the_ring() {
        let ledger = Ledger::new();
        let (a, b) = (ledger.begin(), ledger.begin());
        ledger.ordered(a, 100);
        ledger.visible(b, 101);
        ledger.promised(b, Promise::Process);
        let now = ledger.now();
        assert!(ledger.check(now, Survives::Process, &found(&[1])).holds());
        assert!(
            ledger
                .check(now, Survives::ProcessThenPower, &found(&[1]))
                .holds()
        );
        assert_eq!(ledger.check(now, Survives::Power, &found(&[1])).reordered, 1);
    }

    #[test]
    fn what_the_program_gave_up_may_be_there_or_not() {
        let ledger = book();
        ledger.released(101);
        let now = ledger.now();
        assert!(ledger.check(now, Survives::Power, &found(&[1, 2])).holds());
        assert!(ledger.check(now, Survives::Power, &found(&[0, 1])).holds());
        let before = ledger.check(now - 1, Survives::Power, &found(&[1, 2]));
        assert_eq!(
            (before.lost, before.reordered),
            (1, 1),
            "it was not given up yet: {before}"
        );
        let later = ledger.after(&found(&[1]));
        assert!(later.check(later.now(), Survives::Power, &found(&[1])).holds());
        assert!(!later.check(later.now(), Survives::Power, &found(&[0])).holds());
    }

    #[test]
    fn parts_strangers_and_ghosts_are_noticed() {
        let ledger = book();
        let torn = Commit { id: None, order: 100 };
        assert_eq!(ledger.check(0, Survives::Damage, &[torn]).partial, 1);
        assert_eq!(ledger.check(0, Survives::Damage, &found(&[9])).partial, 1);
        let later = ledger.after(&found(&[0]));
        assert!(later.check(0, Survives::Power, &found(&[0])).holds());
        let v = later.check(0, Survives::Power, &found(&[0, 1]));
        assert_eq!(v.reordered, 1, "{v}");
        let v = later.check(later.now(), Survives::Power, &[]);
        assert_eq!(v.lost, 1, "what was recovered is durable: {v}");
    }

    #[test]
    fn a_payload_proves_itself_whole() {
        for len in [0, 24, 25, 1_000] {
            let whole = payload(77, len);
            assert_eq!(read_payload(&whole), Some(77));
            for at in 0..whole.len() {
                let mut torn = whole.clone();
                torn[at] ^= 1;
                assert_eq!(read_payload(&torn), None, "byte {at} of {len}");
            }
            assert_eq!(read_payload(&whole[..whole.len() - 1]), None);
        }
    }
}
