//! Histories of transactions on a store that crashes and is opened again.
//!
//! Transactions append to lists, as in [`crate::appends`], and each that appends sets a mark of its
//! own beside them. All lists and marks are read after every crash. A list that is there holds the
//! elements of all that appended before, also of those that the crash has taken: that these are not
//! there shows in their marks. What is there is judged by the [`Ledger`], in which a transaction's
//! number is its mark; whether it was isolated, by [`crate::appends`].

use std::collections::{BTreeMap, BTreeSet};

use crate::appends::{self, Demand, Step, Transaction};
use crate::ledger::{Commit, Ledger, Promise, Survives, Verdict, Violation};

/// How far a transaction came, as far as its client knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It ended without a commit: nothing of it is ever there.
    Failed,
    /// The crash came before an answer, or the answer was that the outcome is unknown.
    Unknown,
    /// It was committed, and not acknowledged at a level that covers the crash that came.
    Visible,
    /// It was acknowledged at such a level, and with it all that it saw.
    Safe,
}

/// A transaction, and what its client knows of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Its mark, which no other sets. It sets it if it appends.
    pub mark: u64,
    /// What it did. Each append comes after a read of the same list, so that what it wrote is
    /// known.
    pub steps: Vec<Step>,
    /// How far it came.
    pub outcome: Outcome,
    /// Its position in the order of commits, where it appended and its client knows.
    pub place: Option<u64>,
}

/// What is there after a crash.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// The lists that are there.
    pub lists: BTreeMap<u64, Vec<u64>>,
    /// The marks that are there.
    pub marks: BTreeSet<u64>,
}

/// What happened between two crashes, and what was there after the second.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Life {
    /// The transactions, in any order.
    pub attempts: Vec<Attempt>,
    /// What was there afterwards.
    pub found: Found,
}

/// Checks a history, from an empty store on: what the ledger says of each life, and whether the
/// transactions of each life were isolated, also those that a crash has taken, and those of all
/// lives that are there.
///
/// # Errors
/// What is wrong with it, in words: the life, and the transactions by their marks.
pub fn check(lives: &[Life], demand: Demand) -> Result<(), String> {
    let nothing = Found::default();
    let (mut before, mut past) = (&nothing, Past::default());
    for (number, life) in lives.iter().enumerate() {
        let in_life = |what: String| format!("life {number}: {what}");
        let mut verdict = past.check(life);
        for (list, elements) in &before.lists {
            let now = life.found.list(*list);
            let kept = now.starts_with(elements);
            verdict.find(Violation::Lost, u64::from(!kept), || {
                format!("list {list} was {elements:?} after the crash before and is {now:?}")
            });
        }
        if let Some(first) = verdict.findings.into_iter().next() {
            return Err(in_life(first));
        }
        let isolation = Isolation { before, life };
        isolation.check(demand).map_err(in_life)?;
        before = &life.found;
    }
    let mut all: Vec<Transaction> = lives
        .iter()
        .flat_map(|life| life.attempts.iter().map(|attempt| life.surviving(attempt)))
        .collect();
    all.push(before.reader());
    appends::check(&all, demand).map_err(|what| format!("all that survived: {what}"))
}

/// The lives so far.
#[derive(Default)]
struct Past<'a> {
    ledger: Ledger,
    /// Those that appended, by their marks.
    writers: BTreeMap<u64, &'a Attempt>,
    /// Which of them appended an element to a list.
    writer_of: BTreeMap<(u64, u64), u64>,
    /// What only read, and was acknowledged with what it saw.
    readers: Vec<&'a Attempt>,
}

impl<'a> Past<'a> {
    /// What the ledger says of a further life.
    fn check(&mut self, life: &'a Life) -> Verdict {
        life.attempts.iter().for_each(|attempt| self.note(attempt));
        let found = self.found(life);
        let verdict = self.ledger.check(self.ledger.now(), Survives::Power, &found);
        self.ledger = self.ledger.after(&found);
        verdict
    }

    fn note(&mut self, attempt: &'a Attempt) {
        let (mark, safe) = (attempt.mark, attempt.outcome == Outcome::Safe);
        if attempt.writes() {
            self.writers.insert(mark, attempt);
            self.writer_of
                .extend(attempt.appends().map(|append| (append, mark)));
        } else if safe {
            self.readers.push(attempt);
        } else {
            return;
        }
        self.ledger.begin_as(mark);
        if let Some(place) = attempt.place {
            self.ledger.ordered(mark, place);
        }
        match attempt.outcome {
            // What covers the crash that came is the highest level here.
            Outcome::Safe => self.ledger.promised(mark, Promise::Disk),
            Outcome::Failed => self.ledger.refused(mark),
            Outcome::Unknown | Outcome::Visible => {}
        }
    }

    /// The commits that are there after a life: whole with a mark and all elements, else torn.
    fn found(&self, life: &Life) -> Vec<Commit> {
        let there = |append: &(u64, u64)| life.found.list(append.0).contains(&append.1);
        let readers = self.readers.iter();
        let readers = readers.map(|reader| Commit::whole(reader.mark, None).after(self.saw(reader, life)));
        let strangers = life
            .found
            .marks
            .iter()
            .filter(|mark| !self.writers.contains_key(mark));
        let strangers = strangers.map(|mark| Commit::torn(Some(*mark), None));
        let writers = self.writers.values().filter_map(|writer| {
            let marked = life.found.marks.contains(&writer.mark);
            if marked && writer.appends().all(|append| there(&append)) {
                Some(Commit::whole(writer.mark, None).after(self.saw(writer, life)))
            } else if marked || writer.appends().any(|append| there(&append)) {
                Some(Commit::torn(Some(writer.mark), None))
            } else {
                None
            }
        });
        readers.chain(strangers).chain(writers).collect()
    }

    /// The transactions whose elements an attempt read, where the list does not show them any more.
    fn saw(&self, attempt: &Attempt, life: &Life) -> Vec<u64> {
        let mut saw = BTreeSet::new();
        for step in &attempt.steps {
            if let Step::Read(list, read) = step
                && !life.found.list(*list).starts_with(read)
            {
                let writers = read
                    .iter()
                    .filter_map(|element| self.writer_of.get(&(*list, *element)));
                saw.extend(writers.filter(|writer| **writer != attempt.mark));
            }
        }
        saw.into_iter().collect()
    }
}

impl Attempt {
    fn appends(&self) -> impl Iterator<Item = (u64, u64)> {
        self.steps.iter().filter_map(|step| match step {
            Step::Append(list, element) => Some((*list, *element)),
            Step::Read(..) => None,
        })
    }

    fn writes(&self) -> bool {
        self.appends().next().is_some()
    }

    /// Whether its client knows that it was committed.
    fn is_answered(&self) -> bool {
        matches!(self.outcome, Outcome::Visible | Outcome::Safe)
    }

    fn as_committed(&self, committed: bool) -> Transaction {
        Transaction {
            steps: self.steps.clone(),
            committed,
        }
    }
}

impl Found {
    fn list(&self, list: u64) -> &[u64] {
        self.lists.get(&list).map_or(&[], |list| list)
    }

    /// A transaction that reads all.
    fn reader(&self) -> Transaction {
        let read = |(list, elements): (&u64, &Vec<u64>)| Step::Read(*list, elements.clone());
        Transaction {
            steps: self.lists.iter().map(read).collect(),
            committed: true,
        }
    }
}

impl Life {
    fn is_there(&self, attempt: &Attempt) -> bool {
        self.found.marks.contains(&attempt.mark)
    }

    /// The attempt as it is after the crash. What a reader saw counts where it was acknowledged.
    fn surviving(&self, attempt: &Attempt) -> Transaction {
        let safe = attempt.outcome == Outcome::Safe;
        attempt.as_committed(self.is_there(attempt) || (safe && !attempt.writes()))
    }
}

/// One life, and what was there when it began.
struct Isolation<'a> {
    before: &'a Found,
    life: &'a Life,
}

impl Isolation<'_> {
    fn check(&self, demand: Demand) -> Result<(), String> {
        let committed = self.committed();
        let attempts = self.life.attempts.iter();
        let mut history: Vec<Transaction> = attempts
            .zip(&committed)
            .map(|(attempt, committed)| attempt.as_committed(*committed))
            .collect();
        // What was there before, as if one transaction had written it just then, and what was there
        // at the end.
        let mut steps = Vec::new();
        for (list, elements) in &self.before.lists {
            steps.extend(elements.iter().map(|element| Step::Append(*list, *element)));
            steps.push(Step::Read(*list, elements.clone()));
        }
        history.push(Transaction {
            steps,
            committed: true,
        });
        let before = self.life.attempts.len();
        let ring = appends::find_ring(&history, demand).map_err(|what| {
            format!("{what} (by their numbers in this life; {before} is what was there before)")
        })?;
        if let Some(ring) = ring {
            let members: Vec<&Attempt> = ring
                .iter()
                .filter_map(|number| self.life.attempts.get(*number))
                .collect();
            return Err(format!(
                "each comes before the next, and the last before the first: {members:?}"
            ));
        }
        self.check_places()
    }

    /// Which attempts count as committed before the crash: of those that were not answered the ones
    /// that are there, or that another saw.
    fn committed(&self) -> Vec<bool> {
        let attempts = &self.life.attempts;
        let certain = |attempt: &Attempt| attempt.is_answered() || self.life.is_there(attempt);
        let mut committed: Vec<bool> = attempts.iter().map(certain).collect();
        loop {
            let mut seen = BTreeSet::new();
            for (attempt, _) in attempts
                .iter()
                .zip(&committed)
                .filter(|(_, committed)| **committed)
            {
                for step in &attempt.steps {
                    if let Step::Read(list, read) = step {
                        seen.extend(read.iter().map(|element| (*list, *element)));
                    }
                }
            }
            let mut changed = false;
            for (attempt, committed) in attempts.iter().zip(&mut committed) {
                let is_seen = attempt.appends().any(|append| seen.contains(&append));
                if attempt.outcome == Outcome::Unknown && !*committed && is_seen {
                    (*committed, changed) = (true, true);
                }
            }
            if !changed {
                return committed;
            }
        }
    }

    /// What appended behind another has a later position.
    fn check_places(&self) -> Result<(), String> {
        let mut places = BTreeMap::new();
        for attempt in &self.life.attempts {
            if let Some(place) = attempt.place {
                places.extend(attempt.appends().map(|append| (append, (place, attempt.mark))));
            }
        }
        for attempt in self.life.attempts.iter().filter(|attempt| attempt.writes()) {
            let Some(place) = attempt.place else { continue };
            for step in &attempt.steps {
                let Step::Read(list, read) = step else { continue };
                let seen = read.iter().filter_map(|element| places.get(&(*list, *element)));
                if let Some((later, mark)) = seen.max()
                    && *later > place
                {
                    return Err(format!(
                        "{} saw {mark}, and was committed up to {place}, before {later}",
                        attempt.mark
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Step::{Append, Read};
    use super::*;

    const LIST: u64 = 1;
    const OTHER: u64 = 2;

    /// Appends its mark behind `before`.
    fn append(mark: u64, before: &[u64], outcome: Outcome, place: Option<u64>) -> Attempt {
        let after = before.iter().copied().chain([mark]).collect();
        Attempt {
            mark,
            steps: vec![Read(LIST, before.to_vec()), Append(LIST, mark), Read(LIST, after)],
            outcome,
            place,
        }
    }

    fn reader(mark: u64, read: &[u64], outcome: Outcome) -> Attempt {
        Attempt {
            mark,
            steps: vec![Read(LIST, read.to_vec())],
            outcome,
            place: None,
        }
    }

    fn found(marks: &[u64]) -> Found {
        Found {
            lists: BTreeMap::from([(LIST, marks.to_vec())]),
            marks: marks.iter().copied().collect(),
        }
    }

    fn life(attempts: Vec<Attempt>, found: Found) -> Life {
        Life { attempts, found }
    }

    /// Both demands say the same of it: part of the complaint, or nothing.
    fn judge(lives: &[Life], expected: &str) {
        for demand in [Demand::Snapshot, Demand::Serializable] {
            match check(lives, demand) {
                Ok(()) => assert_eq!(expected, "", "{demand:?} passes"),
                Err(what) => assert!(
                    !expected.is_empty() && what.contains(expected),
                    "{demand:?}: {what}"
                ),
            }
        }
    }

    use Outcome::{Failed, Safe, Unknown, Visible};

    #[test]
    fn an_end_that_nobody_was_promised_may_be_gone() {
        let first = vec![
            append(1, &[], Safe, Some(10)),
            append(2, &[1], Visible, Some(20)),
            append(3, &[1, 2], Unknown, None),
            reader(4, &[1, 2, 3], Visible),
            reader(5, &[1], Safe),
            append(6, &[1], Failed, None),
        ];
        for left in [&[1][..], &[1, 2], &[1, 2, 3]] {
            let next: Vec<u64> = left.iter().copied().chain([7]).collect();
            let second = vec![append(7, left, Safe, Some(30)), reader(8, left, Safe)];
            judge(
                &[life(first.clone(), found(left)), life(second, found(&next))],
                "",
            );
        }
    }

    #[test]
    fn what_was_promised_and_is_gone_is_found() {
        judge(
            &[life(vec![append(1, &[], Safe, Some(10))], found(&[]))],
            "lost: commit 1 at Some(10) was acknowledged",
        );
        let attempts = vec![
            append(1, &[], Safe, Some(10)),
            append(2, &[1], Unknown, None),
            reader(3, &[1, 2], Safe),
        ];
        judge(
            &[life(attempts, found(&[1]))],
            "reordered: commit Some(3) is there and had seen 2",
        );
        let first = life(vec![append(1, &[], Visible, Some(10))], found(&[1]));
        judge(&[first, life(vec![], found(&[]))], "life 1: lost: commit 1 at");
    }

    #[test]
    fn what_failed_and_is_there_is_found() {
        judge(
            &[life(vec![append(1, &[], Failed, None)], found(&[1]))],
            "reordered: commit 1 at None: was at None, there twice: false, out of order: false, back from the dead: true",
        );
        judge(
            &[life(vec![], found(&[1]))],
            "partial: at None: not a whole commit of ours: Some(1)",
        );
    }

    #[test]
    fn a_dependent_without_its_predecessor_is_found() {
        // It has overwritten the list, and holds its element.
        let attempts = vec![append(1, &[], Unknown, None), append(2, &[1], Visible, Some(20))];
        let mut gone = found(&[1, 2]);
        gone.marks.remove(&1);
        judge(
            &[life(attempts, gone)],
            "partial: commit 1 at None is not there as a whole",
        );
        // It has only read the list, and appended to another.
        let attempts = vec![
            append(1, &[], Unknown, None),
            Attempt {
                mark: 2,
                steps: vec![
                    Read(LIST, vec![1]),
                    Read(OTHER, vec![]),
                    Append(OTHER, 20),
                    Read(OTHER, vec![20]),
                ],
                outcome: Visible,
                place: Some(20),
            },
        ];
        let gone = Found {
            lists: BTreeMap::from([(OTHER, vec![20])]),
            marks: BTreeSet::from([2]),
        };
        judge(
            &[life(attempts, gone)],
            "reordered: commit Some(2) is there and had seen 1",
        );
    }

    #[test]
    fn an_earlier_one_that_is_gone_alone_is_found() {
        let mut other = append(2, &[], Visible, Some(20));
        other.steps = vec![Read(OTHER, vec![]), Append(OTHER, 2), Read(OTHER, vec![2])];
        let gone = Found {
            lists: BTreeMap::from([(OTHER, vec![2])]),
            marks: BTreeSet::from([2]),
        };
        let mut attempts = vec![append(1, &[], Visible, Some(10)), other];
        judge(
            &[life(attempts.clone(), gone.clone())],
            "reordered: commit 1 at Some(10) is missing",
        );
        attempts[0].place = Some(30);
        judge(&[life(attempts.clone(), gone.clone())], "");
        (attempts[0].place, attempts[0].outcome) = (None, Unknown);
        judge(&[life(attempts, gone)], "");
    }

    #[test]
    fn parts_are_found() {
        let both = Attempt {
            mark: 1,
            steps: vec![
                Read(LIST, vec![]),
                Append(LIST, 1),
                Read(LIST, vec![1]),
                Read(OTHER, vec![]),
                Append(OTHER, 1),
                Read(OTHER, vec![1]),
            ],
            outcome: Unknown,
            place: None,
        };
        let mut part = found(&[1]);
        judge(&[life(vec![both.clone()], part.clone())], "partial: commit 1");
        part.lists.insert(OTHER, vec![1]);
        judge(&[life(vec![both.clone()], part.clone())], "");
        part.marks.clear();
        judge(&[life(vec![both], part)], "partial: commit 1");
    }

    #[test]
    fn those_that_the_crash_took_were_isolated_too() {
        let attempts = vec![
            append(1, &[], Visible, Some(10)),
            append(2, &[], Visible, Some(20)),
        ];
        judge(&[life(attempts, found(&[]))], "lost update");
        // Two without an answer, one of which was seen by one that has one.
        let attempts = vec![
            append(1, &[], Unknown, None),
            append(2, &[], Unknown, None),
            reader(3, &[1], Visible),
        ];
        judge(&[life(attempts.clone(), found(&[]))], "");
        judge(&[life(attempts, found(&[2]))], "lost update");
        // It does not see what was there before.
        let first = life(vec![append(1, &[], Safe, Some(10))], found(&[1]));
        let second = life(vec![append(2, &[], Visible, Some(20))], found(&[1]));
        judge(&[first, second], "lost update");
    }

    #[test]
    fn a_commit_before_one_that_it_saw_is_found() {
        let attempts = vec![
            append(1, &[], Visible, Some(20)),
            append(2, &[1], Visible, Some(10)),
        ];
        judge(&[life(attempts, found(&[]))], "2 saw 1");
    }

    #[test]
    fn write_skew_across_a_crash_is_a_snapshot_and_not_serializable() {
        let mut other = append(2, &[], Safe, Some(20));
        other.steps = vec![
            Read(LIST, vec![]),
            Read(OTHER, vec![]),
            Append(OTHER, 2),
            Read(OTHER, vec![2]),
        ];
        let mut one = append(1, &[], Safe, Some(10));
        one.steps.push(Read(OTHER, vec![]));
        let mut all = found(&[1, 2]);
        all.lists = BTreeMap::from([(LIST, vec![1]), (OTHER, vec![2])]);
        let lives = [life(vec![one, other], all)];
        assert_eq!(check(&lives, Demand::Snapshot), Ok(()));
        let what = check(&lives, Demand::Serializable).unwrap_err();
        assert!(what.contains("each comes before the next"), "{what}");
    }
}
