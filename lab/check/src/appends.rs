//! Histories of transactions that append to lists and read them, and whether they were isolated.
//!
//! Every element is appended once, so a list that was read gives the order of all appends before
//! it, and with it who came before whom: those that appended (ww), that read what another appended
//! (wr), and that read a list before another appended to it (rw). Transactions are serializable
//! if and only if that order has no ring. With snapshot isolation each ring has two rw steps in a
//! row. The method is that of Kingsbury and Alvaro, *Elle*, VLDB 2020; the rule for snapshots is
//! Cerone's and Gotsman's (*Analysing Snapshot Isolation*, PODC 2016).

use std::collections::{BTreeMap, HashMap, HashSet};

/// What a transaction did with a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// It appended an element, which no other appends.
    Append(u64, u64),
    /// It read the list so, its own appends before that included.
    Read(u64, Vec<u64>),
}

/// A transaction, with its steps in their order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Transaction {
    /// What it did.
    pub steps: Vec<Step>,
    /// Whether it was committed.
    pub committed: bool,
}

/// What is demanded of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// Each transaction read from one moment, and of two that wrote the same list the second
    /// failed.
    Snapshot,
    /// As if one ran after the other.
    Serializable,
}

/// Checks a history. The lists as they were in the end are given by a last transaction that reads
/// all of them.
///
/// # Errors
/// What is wrong with it, in words: the name of the anomaly, and which transactions by their places
/// in `history`.
pub fn check(history: &[Transaction], demand: Demand) -> Result<(), String> {
    match find_ring(history, demand)? {
        None => Ok(()),
        Some(ring) => Err(format!(
            "the transactions {ring:?} each come before the next, and the last before the first"
        )),
    }
}

/// As [`check`]; transactions that each come before the next, and the last before the first, are no
/// error here.
pub(crate) fn find_ring(history: &[Transaction], demand: Demand) -> Result<Option<Vec<usize>>, String> {
    let lists = Lists::new(history)?;
    let edges = lists.edges(history)?;
    Ok(match demand {
        Demand::Serializable => {
            let all: Vec<Vec<usize>> = edges.iter().map(Edges::all).collect();
            ring(&all)
        }
        Demand::Snapshot => {
            // A dependency, and behind it at most one rw step.
            let composed: Vec<Vec<usize>> = edges
                .iter()
                .map(|from| {
                    let behind = from
                        .dependencies
                        .iter()
                        .flat_map(|&to| edges[to].rw.iter().copied());
                    from.dependencies.iter().copied().chain(behind).collect()
                })
                .collect();
            ring(&composed)
        }
    })
}

/// Who comes directly before whom.
#[derive(Debug, Clone, Default)]
struct Edges {
    /// ww and wr.
    dependencies: HashSet<usize>,
    rw: HashSet<usize>,
}

impl Edges {
    fn all(&self) -> Vec<usize> {
        self.dependencies.union(&self.rw).copied().collect()
    }
}

/// The lists as they grew.
struct Lists {
    longest: BTreeMap<u64, Vec<u64>>,
    /// Who appended an element.
    writers: HashMap<(u64, u64), usize>,
}

impl Lists {
    fn new(history: &[Transaction]) -> Result<Self, String> {
        let (mut longest, mut writers) = (BTreeMap::<u64, Vec<u64>>::new(), HashMap::new());
        for (number, transaction) in history.iter().enumerate() {
            for step in &transaction.steps {
                match step {
                    Step::Append(list, element) => {
                        if writers.insert((*list, *element), number).is_some() {
                            return Err(format!("element {element} was appended twice to list {list}"));
                        }
                    }
                    Step::Read(list, read) if transaction.committed => {
                        let known = longest.entry(*list).or_default();
                        let (shorter, longer) = if read.len() > known.len() {
                            (&*known, read)
                        } else {
                            (read, &*known)
                        };
                        if !longer.starts_with(shorter) {
                            return Err(format!(
                                "lost update: transaction {number} read list {list} as {read:?}, another as {known:?}"
                            ));
                        }
                        if read.len() > known.len() {
                            known.clone_from(read);
                        }
                    }
                    Step::Read(..) => {}
                }
            }
        }
        Ok(Self { longest, writers })
    }

    fn writer(&self, history: &[Transaction], list: u64, element: u64) -> Result<usize, String> {
        let writer = self
            .writers
            .get(&(list, element))
            .ok_or_else(|| format!("element {element} of list {list} was never appended"))?;
        if !history.get(*writer).is_some_and(|writer| writer.committed) {
            return Err(format!(
                "aborted read: element {element} of list {list} is of transaction {writer}, which was not committed"
            ));
        }
        Ok(*writer)
    }

    fn edges(&self, history: &[Transaction]) -> Result<Vec<Edges>, String> {
        let mut edges = vec![Edges::default(); history.len()];
        for (list, elements) in &self.longest {
            let mut before: Option<usize> = None;
            for element in elements {
                let writer = self.writer(history, *list, *element)?;
                if let Some(before) = before
                    && before != writer
                {
                    edges[before].dependencies.insert(writer);
                }
                before = Some(writer);
            }
        }
        for (number, transaction) in history.iter().enumerate().filter(|(_, t)| t.committed) {
            let mut own: HashMap<u64, Vec<u64>> = HashMap::new();
            for step in &transaction.steps {
                match step {
                    Step::Append(list, element) => own.entry(*list).or_default().push(*element),
                    Step::Read(list, read) => {
                        let own = own.get(list).map_or(&[][..], |own| own);
                        let others = read.strip_suffix(own).ok_or_else(|| {
                            format!("transaction {number} appended {own:?} to list {list} and read {read:?}")
                        })?;
                        self.read(history, &mut edges, number, *list, others)?;
                    }
                }
            }
            self.check_appended(history, number, &own)?;
        }
        Ok(edges)
    }

    /// A transaction read what others had appended.
    fn read(
        &self,
        history: &[Transaction],
        edges: &mut [Edges],
        reader: usize,
        list: u64,
        others: &[u64],
    ) -> Result<(), String> {
        let all = self.longest.get(&list).map_or(&[][..], |all| all);
        if let Some(last) = others.last() {
            let writer = self.writer(history, list, *last)?;
            if writer == reader {
                return Err(format!(
                    "transaction {reader} read its own {last} in list {list} before it appended it"
                ));
            }
            let next_is_its_own_too = all
                .get(others.len())
                .is_some_and(|next| self.writers.get(&(list, *next)) == Some(&writer));
            if next_is_its_own_too {
                return Err(format!(
                    "intermediate read: transaction {reader} read list {list} in the middle of transaction {writer}"
                ));
            }
            edges[writer].dependencies.insert(reader);
        }
        if let Some(next) = all.get(others.len()) {
            let writer = self.writer(history, list, *next)?;
            if writer != reader {
                edges[reader].rw.insert(writer);
            }
        }
        Ok(())
    }

    /// What a committed transaction appended is there.
    fn check_appended(
        &self,
        _history: &[Transaction],
        number: usize,
        own: &HashMap<u64, Vec<u64>>,
    ) -> Result<(), String> {
        for (list, elements) in own {
            let all = self.longest.get(list).map_or(&[][..], |all| all);
            if !all.windows(elements.len()).any(|part| part == elements) {
                return Err(format!(
                    "lost update: transaction {number} appended {elements:?} to list {list}, which has them nowhere in a row"
                ));
            }
        }
        Ok(())
    }
}

/// A ring, if there is one; its members in their order.
fn ring(edges: &[Vec<usize>]) -> Option<Vec<usize>> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        OnPath,
        Done,
    }
    let mut marks = vec![Mark::New; edges.len()];
    for start in 0..edges.len() {
        if marks[start] != Mark::New {
            continue;
        }
        // The path from `start`, with the next step to try of each.
        let mut path = vec![(start, 0)];
        marks[start] = Mark::OnPath;
        while let Some((at, next)) = path.last_mut() {
            let Some(&to) = edges[*at].get(*next) else {
                marks[*at] = Mark::Done;
                path.pop();
                continue;
            };
            *next += 1;
            match marks[to] {
                Mark::Done => {}
                Mark::OnPath => {
                    let on_path = path.iter().map(|(at, _)| *at);
                    return Some(on_path.skip_while(|at| *at != to).collect());
                }
                Mark::New => {
                    marks[to] = Mark::OnPath;
                    path.push((to, 0));
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::Step::{Append, Read};
    use super::*;

    fn history(transactions: &[&[Step]]) -> Vec<Transaction> {
        transactions
            .iter()
            .map(|steps| Transaction {
                steps: steps.to_vec(),
                committed: true,
            })
            .collect()
    }

    /// What each demand says of a history: part of the complaint, or nothing.
    fn judge(history: &[Transaction], snapshot: &str, serializable: &str) {
        for (demand, expected) in [(Demand::Snapshot, snapshot), (Demand::Serializable, serializable)] {
            match check(history, demand) {
                Ok(()) => assert_eq!(expected, "", "{demand:?} passes"),
                Err(found) => assert!(
                    !expected.is_empty() && found.contains(expected),
                    "{demand:?}: {found}"
                ),
            }
        }
    }

    #[test]
    fn what_runs_one_after_the_other_passes() {
        judge(
            &history(&[
                &[Append(1, 10), Append(2, 20)],
                &[Read(1, vec![10]), Append(1, 11), Read(1, vec![10, 11])],
                &[Read(1, vec![10, 11]), Read(2, vec![20])],
            ]),
            "",
            "",
        );
    }

    #[test]
    fn write_skew_is_a_snapshot_and_not_serializable() {
        judge(
            &history(&[
                &[Read(1, vec![]), Append(2, 20)],
                &[Read(2, vec![]), Append(1, 10)],
                &[Read(1, vec![10]), Read(2, vec![20])],
            ]),
            "",
            "each come before the next",
        );
    }

    #[test]
    fn the_anomaly_of_a_reader_is_a_snapshot_and_not_serializable() {
        // Fekete, O'Neil and O'Neil 2004: a reader sees the second writer and not the first.
        judge(
            &history(&[
                &[Read(1, vec![]), Read(2, vec![]), Append(1, 10)],
                &[Read(2, vec![]), Append(2, 20)],
                &[Read(1, vec![]), Read(2, vec![20])],
                &[Read(1, vec![10]), Read(2, vec![20])],
            ]),
            "",
            "each come before the next",
        );
    }

    #[test]
    fn anomalies_that_no_isolation_allows_are_found() {
        let end = [Read(1, vec![10, 11]), Read(2, vec![20])];
        // A lost update: both read the list empty, and both are there.
        judge(
            &history(&[
                &[Read(1, vec![]), Append(1, 10)],
                &[Read(1, vec![]), Append(1, 11)],
                &[Read(1, vec![10, 11])],
            ]),
            "each come before the next",
            "each come before the next",
        );
        judge(
            &history(&[&[Append(1, 10)], &[Append(1, 11)], &[Read(1, vec![11])]]),
            "lost update",
            "lost update",
        );
        judge(
            &history(&[
                &[Append(1, 10)],
                &[Read(1, vec![10])],
                &[Append(1, 11)],
                &[Read(1, vec![11])],
            ]),
            "lost update",
            "lost update",
        );
        // A read of two moments.
        judge(
            &history(&[
                &[Append(1, 10), Append(2, 20)],
                &[Read(1, vec![10]), Read(2, vec![])],
                &[Append(1, 11)],
                &end,
            ]),
            "each come before the next",
            "each come before the next",
        );
        // In the middle of another.
        judge(
            &history(&[
                &[Append(1, 10), Append(1, 11), Append(2, 20)],
                &[Read(1, vec![10])],
                &end,
            ]),
            "intermediate read",
            "intermediate read",
        );
        // Its own appends are not there.
        judge(
            &history(&[
                &[Append(1, 10), Read(1, vec![])],
                &[Append(1, 11), Append(2, 20)],
                &end,
            ]),
            "transaction 0 appended [10]",
            "transaction 0 appended [10]",
        );
        let mut aborted = history(&[&[Append(1, 10)], &[Append(1, 11), Append(2, 20)], &end]);
        aborted[0].committed = false;
        judge(&aborted, "aborted read", "aborted read");
        judge(
            &history(&[&[Read(1, vec![7])]]),
            "was never appended",
            "was never appended",
        );
    }
}
