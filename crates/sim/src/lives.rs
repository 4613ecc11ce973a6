//! Histories of transactions on a store that crashes and is opened again: what has to be there, and what must not be
//! there alone.
//!
//! Transactions append to lists, as in [`crate::appends`], and each that appends sets a mark of its own beside
//! them. All lists and marks are read after every crash. A list that is there holds the elements of whoever appended
//! before, also of those that the crash has taken: that these are not there shows in their marks.

use std::collections::{BTreeMap, BTreeSet};

use crate::appends::{self, Demand, Step, Transaction};

/// How far a transaction came, as far as its client knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It ended without a commit: nothing of it is ever there.
    Failed,
    /// The crash came before an answer, or the answer was that nobody knows.
    Unknown,
    /// It was committed, and nobody promised that it survives the crash that came.
    Visible,
    /// It was promised to survive that crash, with all that it saw.
    Safe,
}

/// A transaction, and what its client knows of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Its mark, which nobody else sets. It sets it if it appends.
    pub mark: u64,
    /// What it did. Each append comes after a read of the same list, so that what it wrote is known.
    pub steps: Vec<Step>,
    /// How far it came.
    pub outcome: Outcome,
    /// Its place in the order of commits, where it appended and its client was told.
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
    /// Who tried what, in any order.
    pub attempts: Vec<Attempt>,
    /// What was there afterwards.
    pub found: Found,
}

/// Checks a history, from an empty store on:
///
/// 1. who was promised to survive is there, and who failed is not; what was there after one crash is there after the
///    next;
/// 2. nobody is there in part;
/// 3. nobody is there without an earlier one in the order of commits;
/// 4. nobody who is there, or was promised to survive, saw what is not there;
/// 5. the transactions of each life were isolated, also those that a crash has taken, and so are those of all lives that
///    are there.
///
/// # Errors
/// What is wrong with it, in words: the life, and the transactions by their marks.
pub fn check(lives: &[Life], demand: Demand) -> Result<(), String> {
    let nothing = Found::default();
    let mut before = &nothing;
    for (number, life) in lives.iter().enumerate() {
        let in_life = |what: String| format!("life {number}: {what}");
        let judge = Judge { before, life };
        judge.check(demand).map_err(in_life)?;
        before = &life.found;
    }
    let mut all: Vec<Transaction> = lives
        .iter()
        .flat_map(|life| life.attempts.iter().map(|attempt| life.surviving(attempt)))
        .collect();
    all.push(before.reader());
    appends::check(&all, demand).map_err(|what| format!("all that survived: {what}"))
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

    /// The attempt as it is after the crash. What a reader saw counts where that was promised.
    fn surviving(&self, attempt: &Attempt) -> Transaction {
        let promised = attempt.outcome == Outcome::Safe;
        attempt.as_committed(self.is_there(attempt) || (promised && !attempt.writes()))
    }
}

/// One life, and what was there when it began.
struct Judge<'a> {
    before: &'a Found,
    life: &'a Life,
}

impl Judge<'_> {
    fn check(&self, demand: Demand) -> Result<(), String> {
        self.check_former()?;
        self.check_outcomes()?;
        self.check_whole()?;
        self.check_order()?;
        self.check_seen()?;
        self.check_isolated(demand)
    }

    /// What survived a crash before is there, and of what is there everything was written by somebody.
    fn check_former(&self) -> Result<(), String> {
        let (before, found) = (self.before, &self.life.found);
        if let Some(mark) = before.marks.difference(&found.marks).next() {
            return Err(format!("lost: {mark} was there after the crash before"));
        }
        for (list, elements) in &before.lists {
            if !found.list(*list).starts_with(elements) {
                return Err(format!(
                    "lost: list {list} was {elements:?} after the crash before and is {:?}",
                    found.list(*list)
                ));
            }
        }
        let known: BTreeSet<u64> = self.life.attempts.iter().map(|attempt| attempt.mark).collect();
        let new = found.marks.difference(&before.marks);
        match new.copied().find(|mark| !known.contains(mark)) {
            Some(mark) => Err(format!("{mark} is there, and is nobody's")),
            None => Ok(()),
        }
    }

    fn check_outcomes(&self) -> Result<(), String> {
        for attempt in self.life.attempts.iter().filter(|attempt| attempt.writes()) {
            let mark = attempt.mark;
            match (attempt.outcome, self.life.is_there(attempt)) {
                (Outcome::Safe, false) => {
                    return Err(format!("lost: {mark} was promised to survive, and is gone"));
                }
                (Outcome::Failed, true) => return Err(format!("{mark} failed, and is there")),
                _ => {}
            }
        }
        Ok(())
    }

    fn check_whole(&self) -> Result<(), String> {
        for attempt in &self.life.attempts {
            let there = self.life.is_there(attempt);
            for (list, element) in attempt.appends() {
                let appended = self.life.found.list(list).contains(&element);
                if appended && !there {
                    return Err(format!(
                        "in part, or gone from under a later one: {element} of {} is in list {list} without its mark",
                        attempt.mark
                    ));
                }
                if there && !appended {
                    return Err(format!(
                        "in part: {} is there without its {element} in list {list}",
                        attempt.mark
                    ));
                }
            }
        }
        Ok(())
    }

    /// What the crash took is the end of what was committed.
    fn check_order(&self) -> Result<(), String> {
        let placed = |there: bool| {
            let attempts = self.life.attempts.iter();
            let asked =
                attempts.filter(move |attempt| attempt.writes() && self.life.is_there(attempt) == there);
            asked.filter_map(|attempt| attempt.place.map(|place| (place, attempt.mark)))
        };
        match (placed(true).max(), placed(false).min()) {
            (Some((later, there)), Some((earlier, gone))) if earlier < later => Err(format!(
                "not the end: {gone} is gone, which was committed up to {earlier}, and {there} is there, which was up to {later}"
            )),
            _ => Ok(()),
        }
    }

    /// Nobody saw what is not there any more.
    fn check_seen(&self) -> Result<(), String> {
        for attempt in &self.life.attempts {
            if !self.life.surviving(attempt).committed {
                continue;
            }
            let mut own = BTreeSet::new();
            for step in &attempt.steps {
                match step {
                    Step::Append(_, element) => drop(own.insert(element)),
                    Step::Read(list, read) => {
                        let there = self.life.found.list(*list);
                        if there.starts_with(read) {
                            continue;
                        }
                        let mut others = read.iter().filter(|element| !own.contains(element));
                        if let Some(gone) = others.find(|element| !there.contains(element)) {
                            return Err(format!(
                                "{} stayed, and saw {gone} in list {list}, which is gone",
                                attempt.mark
                            ));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn check_isolated(&self, demand: Demand) -> Result<(), String> {
        let committed = self.committed();
        let attempts = self.life.attempts.iter();
        let mut history: Vec<Transaction> = attempts
            .zip(&committed)
            .map(|(attempt, committed)| attempt.as_committed(*committed))
            .collect();
        // What was there before, as if somebody had written it just then, and what was there at the end.
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

    /// Which attempts count as committed before the crash: of those that were not answered the ones that are there, or
    /// that somebody saw.
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

    /// Whoever appended behind another has a later place.
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
            "lost: 1 was promised",
        );
        let attempts = vec![
            append(1, &[], Safe, Some(10)),
            append(2, &[1], Unknown, None),
            reader(3, &[1, 2], Safe),
        ];
        judge(&[life(attempts, found(&[1]))], "3 stayed, and saw 2");
        let first = life(vec![append(1, &[], Visible, Some(10))], found(&[1]));
        judge(
            &[first, life(vec![], found(&[]))],
            "life 1: lost: 1 was there after the crash before",
        );
    }

    #[test]
    fn what_failed_and_is_there_is_found() {
        judge(
            &[life(vec![append(1, &[], Failed, None)], found(&[1]))],
            "1 failed, and is there",
        );
        judge(&[life(vec![], found(&[1]))], "nobody's");
    }

    #[test]
    fn a_dependent_without_its_predecessor_is_found() {
        // It has overwritten the list, and holds its element.
        let attempts = vec![append(1, &[], Unknown, None), append(2, &[1], Visible, Some(20))];
        let mut gone = found(&[1, 2]);
        gone.marks.remove(&1);
        judge(&[life(attempts, gone)], "gone from under a later one");
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
            "2 stayed, and saw 1 in list 1, which is gone",
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
        judge(&[life(attempts.clone(), gone.clone())], "not the end: 1 is gone");
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
        judge(&[life(vec![both.clone()], part.clone())], "in part");
        part.lists.insert(OTHER, vec![1]);
        judge(&[life(vec![both.clone()], part.clone())], "");
        part.marks.clear();
        judge(&[life(vec![both], part)], "in part");
    }

    #[test]
    fn those_that_the_crash_took_were_isolated_too() {
        let attempts = vec![
            append(1, &[], Visible, Some(10)),
            append(2, &[], Visible, Some(20)),
        ];
        judge(&[life(attempts, found(&[]))], "lost update");
        // Two that nobody answered, one of which was seen by somebody who was.
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
