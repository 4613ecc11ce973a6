//! Whether an epoch, from an open to a close or a kill, went as the store promises.
//!
//! Dependencies between transactions are followed by `adya`. What a history has no place for is
//! checked here: which commits outlive the process, and what a snapshot's LSN says.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use adya::history::{Interner, Mop, Op, OpType, ReadValue, Scalar};
use adya::{History, Opts, Valid, Workload};

use crate::events::{Element, Event, ListId, Step, TxId, appender};
use crate::plan::{Plan, Rule, is_passing};

pub type Lists = BTreeMap<ListId, Vec<Element>>;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    /// Nothing was tried to be committed yet.
    Open,
    Committing,
    Ok {
        end: u64,
        promised: bool,
    },
    Failed,
}

#[derive(Debug, Clone)]
struct Tx {
    thread: u32,
    kind: String,
    begun: usize,
    ended: usize,
    steps: Vec<Step>,
    outcome: Outcome,
    /// What a failed one tried to append.
    tried: Vec<(ListId, Element)>,
    lsn: Option<u64>,
}

impl Tx {
    fn appended(&self) -> impl Iterator<Item = (ListId, Element)> {
        self.steps.iter().filter_map(|step| match step {
            Step::Append(list, element) => Some((*list, *element)),
            Step::Read(..) => None,
        })
    }
}

/// What happened between an open and the next.
#[derive(Debug, Default)]
pub struct Epoch {
    initial: Lists,
    txs: BTreeMap<TxId, Tx>,
    clock: usize,
    promised: u64,
    flushed: Vec<(ListId, Element)>,
    has_begun: bool,
    pub closed: bool,
}

/// How an epoch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Closed,
    Killed,
}

#[derive(Debug, Default)]
pub struct Found {
    pub violations: Vec<String>,
    pub survived: u64,
    pub lost: u64,
}

impl Epoch {
    pub fn new(initial: Lists) -> Self {
        Self {
            initial,
            ..Self::default()
        }
    }

    /// Takes an event in.
    pub fn note(&mut self, event: &Event) -> Result<(), String> {
        self.clock += 1;
        let clock = self.clock;
        match event {
            Event::Emptied { lists } => {
                self.has_begun = true;
                for list in lists {
                    self.initial.insert(*list, Vec::new());
                }
            }
            Event::Begin { id, thread, kind } => {
                let tx = Tx {
                    thread: *thread,
                    kind: kind.clone(),
                    begun: clock,
                    ended: usize::MAX,
                    steps: Vec::new(),
                    outcome: Outcome::Open,
                    tried: Vec::new(),
                    lsn: None,
                };
                self.txs.insert(*id, tx);
            }
            Event::Commit { id, steps } => {
                let tx = self.tx(*id)?;
                tx.steps.clone_from(steps);
                tx.outcome = Outcome::Committing;
            }
            Event::Ok {
                id,
                steps,
                end,
                promised,
                ..
            } => {
                let tx = self.tx(*id)?;
                tx.steps.clone_from(steps);
                tx.outcome = Outcome::Ok {
                    end: *end,
                    promised: *promised,
                };
                tx.ended = clock;
                if *promised {
                    self.promised = self.promised.max(*end);
                }
            }
            Event::Fail { id, appended, .. } => {
                let tx = self.tx(*id)?;
                tx.tried.clone_from(appended);
                tx.steps.clear();
                tx.outcome = Outcome::Failed;
                tx.ended = clock;
            }
            Event::Snapshot { id, lsn } => self.tx(*id)?.lsn = Some(*lsn),
            Event::Promise { end } => self.promised = self.promised.max(*end),
            Event::Flushed { list, element } => self.flushed.push((*list, *element)),
            _ => {}
        }
        Ok(())
    }

    pub fn kind(&self, id: TxId) -> &str {
        self.txs.get(&id).map_or("", |tx| &tx.kind)
    }

    fn tx(&mut self, id: TxId) -> Result<&mut Tx, String> {
        self.txs
            .get_mut(&id)
            .ok_or_else(|| format!("the transaction {id} ends without having begun"))
    }

    /// Looks at all of it. `after` is what the next open found.
    pub fn judge(&self, plan: &Plan, end: End, after: &Lists) -> Found {
        let mut found = Found::default();
        if !self.has_begun {
            self.nothing_happened(after, &mut found);
            return found;
        }
        let unlogged = |list: ListId| {
            plan.lists
                .iter()
                .any(|other| other.id == list && matches!(other.rule, Rule::Unlogged(_)))
        };
        self.elements_are_known(after, &mut found);
        self.snapshots_are_prefixes(&mut found);
        let lost = self.survivors(end, after, &unlogged, &mut found);
        // What was seen while the store was open.
        let last = (end == End::Closed).then_some(after);
        self.check("while it was open", last, &BTreeSet::new(), &|_| true, &mut found);
        if end == End::Killed {
            self.check(
                "after the kill",
                Some(after),
                &lost,
                &|list| !unlogged(list),
                &mut found,
            );
            self.unlogged(after, &unlogged, &mut found);
        }
        found
    }

    fn nothing_happened(&self, after: &Lists, found: &mut Found) {
        for (list, elements) in &self.initial {
            let now = after.get(list).cloned().unwrap_or_default();
            // It may have been killed as it emptied long lists.
            let part = now.iter().all(|element| elements.contains(element));
            if now != *elements && (!part || is_passing(*list)) {
                found.violations.push(format!(
                    "list {list} was {elements:?}, and after nothing was done it is {now:?}"
                ));
            }
        }
    }

    fn elements_are_known(&self, after: &Lists, found: &mut Found) {
        let mut written: BTreeSet<(ListId, Element)> = BTreeSet::new();
        for tx in self
            .txs
            .values()
            .filter(|tx| matches!(tx.outcome, Outcome::Committing | Outcome::Ok { .. }))
        {
            written.extend(tx.appended());
        }
        for (list, elements) in &self.initial {
            written.extend(elements.iter().map(|element| (*list, *element)));
        }
        let mut look = |list: ListId, elements: &[Element], who: String| {
            if let Some(element) = elements
                .iter()
                .find(|element| !written.contains(&(list, **element)))
            {
                let by = appender(*element);
                found.violations.push(format!(
                    "{who} shows {element} of transaction {by} in list {list}, which did not commit that: {elements:?}"
                ));
            }
        };
        for (id, tx) in &self.txs {
            for step in &tx.steps {
                if let Step::Read(list, elements, _) = step {
                    // Its own, which it has taken back or not.
                    let others: Vec<Element> = elements
                        .iter()
                        .copied()
                        .filter(|element| appender(*element) != *id)
                        .collect();
                    look(*list, &others, format!("transaction {id}"));
                }
            }
        }
        for (list, elements) in after {
            look(*list, elements, "the next open".into());
        }
    }

    fn snapshots_are_prefixes(&self, found: &mut Found) {
        for (id, tx) in &self.txs {
            let Some(lsn) = tx.lsn else { continue };
            let read: BTreeMap<ListId, BTreeSet<Element>> = tx
                .steps
                .iter()
                .filter_map(|step| match step {
                    Step::Read(list, elements, _) => Some((*list, elements.iter().copied().collect())),
                    Step::Append(..) => None,
                })
                .collect();
            for (other, writer) in &self.txs {
                let Outcome::Ok { end, .. } = writer.outcome else {
                    continue;
                };
                for (list, element) in writer.appended() {
                    let Some(elements) = read.get(&list) else { continue };
                    if elements.contains(&element) != (end <= lsn) {
                        found.violations.push(format!(
                            "the snapshot {id} at {lsn} {} the commit {other} that ends at {end}, in list {list}",
                            if end <= lsn { "does not show" } else { "shows" }
                        ));
                    }
                }
            }
        }
    }

    /// Which commits did not outlive the process.
    fn survivors(
        &self,
        end: End,
        after: &Lists,
        unlogged: &dyn Fn(ListId) -> bool,
        found: &mut Found,
    ) -> BTreeSet<TxId> {
        let there: BTreeSet<(ListId, Element)> = after
            .iter()
            .flat_map(|(list, elements)| elements.iter().map(|element| (*list, *element)))
            .collect();
        let mut lost = BTreeSet::new();
        let (mut newest_there, mut oldest_lost) = ((0, 0), (u64::MAX, 0));
        for (id, tx) in &self.txs {
            // Of one that was not acknowledged it is not known where it ends.
            let commit_end = match tx.outcome {
                Outcome::Ok { end, .. } => Some(end),
                Outcome::Committing => None,
                Outcome::Open | Outcome::Failed => continue,
            };
            let looked: Vec<_> = tx
                .appended()
                .filter(|(list, _)| after.contains_key(list) && (end == End::Closed || !unlogged(*list)))
                .collect();
            if looked.is_empty() {
                continue;
            }
            let (is, gone): (Vec<_>, Vec<_>) = looked.into_iter().partition(|one| there.contains(one));
            if !is.is_empty() && !gone.is_empty() {
                found.violations.push(format!(
                    "of transaction {id} ({}) {is:?} is there and {gone:?} is not",
                    tx.kind
                ));
            }
            if !gone.is_empty() {
                lost.insert(*id);
            }
            let Some(commit_end) = commit_end else { continue };
            if gone.is_empty() {
                found.survived += 1;
                newest_there = newest_there.max((commit_end, *id));
                continue;
            }
            found.lost += 1;
            oldest_lost = oldest_lost.min((commit_end, *id));
            if end == End::Closed || commit_end <= self.promised {
                found.violations.push(format!(
                    "transaction {id} ({}) was acknowledged, ends at {commit_end}, and is gone; all below {} was \
                     promised ({end:?})",
                    tx.kind, self.promised
                ));
            }
        }
        if newest_there.0 > oldest_lost.0 {
            found.violations.push(format!(
                "the commit {} that ends at {} is there, and {} that ends at {} is not",
                newest_there.1, newest_there.0, oldest_lost.1, oldest_lost.0
            ));
        }
        lost
    }

    /// Lists that no log holds: each is as it was at some moment, and not before the last flush.
    fn unlogged(&self, after: &Lists, unlogged: &dyn Fn(ListId) -> bool, found: &mut Found) {
        for (list, elements) in after.iter().filter(|(list, _)| unlogged(**list)) {
            let mut expected = self.initial.get(list).cloned().unwrap_or_default();
            for tx in self.txs.values() {
                if matches!(tx.outcome, Outcome::Ok { .. } | Outcome::Committing) {
                    expected.extend(
                        tx.appended()
                            .filter(|(other, _)| other == list)
                            .map(|(_, element)| element),
                    );
                }
            }
            let least = self
                .flushed
                .iter()
                .filter(|(other, _)| other == list)
                .filter_map(|(_, element)| expected.iter().position(|one| one == element))
                .max()
                .map_or(0, |at| at + 1);
            if !expected.starts_with(elements) || elements.len() < least {
                found.violations.push(format!(
                    "list {list}, which no log holds, was {expected:?} with {least} of them flushed, and is {elements:?}"
                ));
            }
        }
    }

    /// Has `adya` look at the epoch twice: all reads for snapshot isolation, and those that hold
    /// until their commits for serializability; both in real time.
    fn check(
        &self,
        when: &str,
        last: Option<&Lists>,
        lost: &BTreeSet<TxId>,
        counts: &dyn Fn(ListId) -> bool,
        found: &mut Found,
    ) {
        let there: Option<BTreeSet<Element>> = last.map(|last| last.values().flatten().copied().collect());
        for (model, all) in [
            ("strong-snapshot-isolation", true),
            ("strict-serializable", false),
        ] {
            let mut ops = Vec::new();
            let step = |step: &Step| match step {
                Step::Append(list, element) => Some((*list, Some(*element), None)),
                Step::Read(list, elements, holds) if all || *holds => {
                    Some((*list, None, Some(elements.clone())))
                }
                Step::Read(..) => None,
            };
            for tx in self.txs.values() {
                let id = tx.appended().next().map(|(_, element)| appender(element));
                let mut steps: Vec<_> = tx
                    .steps
                    .iter()
                    .filter_map(step)
                    .filter(|(list, ..)| counts(*list))
                    .collect();
                let (kind, ended) = match &tx.outcome {
                    Outcome::Open => (OpType::Fail, usize::MAX),
                    Outcome::Committing => {
                        steps.retain(|(_, appended, _)| appended.is_some());
                        let is_lost = id.is_some_and(|id| lost.contains(&id));
                        (if is_lost { OpType::Fail } else { OpType::Info }, usize::MAX)
                    }
                    Outcome::Failed => {
                        steps = tx
                            .tried
                            .iter()
                            .map(|(list, element)| (*list, Some(*element), None))
                            .collect();
                        (OpType::Fail, tx.ended)
                    }
                    Outcome::Ok { .. } if id.is_some_and(|id| lost.contains(&id)) => {
                        steps.retain(|(_, appended, _)| appended.is_some());
                        (OpType::Fail, tx.ended)
                    }
                    Outcome::Ok { promised, .. } => {
                        // A read that promised nothing may have seen what was lost.
                        let saw_lost = steps.iter().any(|(_, _, read)| {
                            read.iter()
                                .flatten()
                                .any(|element| lost.contains(&appender(*element)))
                        });
                        let in_doubt = !lost.is_empty() || there.is_some();
                        if in_doubt && id.is_none() && !promised && saw_lost {
                            continue;
                        }
                        (OpType::Ok, tx.ended)
                    }
                };
                if steps.is_empty() {
                    continue;
                }
                ops.push((tx.begun, ended, i64::from(tx.thread), kind, steps));
            }
            let whole = |lists: &Lists| -> Vec<_> {
                let lists = lists.iter().filter(|(list, _)| counts(**list));
                lists
                    .map(|(list, elements)| (*list, None, Some(elements.clone())))
                    .collect()
            };
            ops.push((0, 0, 1000, OpType::Ok, whole(&self.initial)));
            if let Some(last) = last {
                ops.push((usize::MAX - 1, usize::MAX - 1, 1001, OpType::Ok, whole(last)));
            }
            verdict(&format!("{model}, {when}"), model, ops, found);
        }
    }
}

type AdyaStep = (ListId, Option<Element>, Option<Vec<Element>>);

fn verdict(name: &str, model: &str, ops: Vec<(usize, usize, i64, OpType, Vec<AdyaStep>)>, found: &mut Found) {
    let mut interner = Interner::default();
    let mut events = Vec::new();
    for (begun, ended, process, kind, steps) in ops {
        let mut mops = Vec::new();
        let mut asked = Vec::new();
        for (list, appended, read) in steps {
            let key = interner.intern(Scalar::Str(format!("list {list}")));
            let mut id =
                |element: Element| interner.intern(Scalar::Int(i64::try_from(element).unwrap_or(i64::MAX)));
            if let Some(element) = appended {
                let value = id(element);
                mops.push(Mop::Append { key, value });
                asked.push(Mop::Append { key, value });
            }
            if let Some(elements) = read {
                asked.push(Mop::Read {
                    key,
                    value: ReadValue::Nil,
                });
                mops.push(Mop::Read {
                    key,
                    value: ReadValue::List(elements.into_iter().map(id).collect()),
                });
            }
        }
        // The second number keeps an invocation before its completion where both have one place.
        events.push(((begun, 0), OpType::Invoke, process, asked));
        events.push(((ended, 1), kind, process, mops));
    }
    events.sort_by_key(|(at, ..)| *at);
    let ops = (0..)
        .zip(events)
        .map(|(index, (_, kind, process, value))| Op {
            index,
            kind,
            process: Some(process),
            value,
            time: None,
        })
        .collect();
    let history = History::from_ops(ops, interner);
    let opts = Opts {
        models: vec![model.into()],
        timeout: Duration::from_secs(20),
        ..Opts::default()
    };
    let report = adya::check(&history, Workload::ListAppend, &opts);
    let empty = report
        .anomaly_types
        .iter()
        .all(|kind| kind == "empty-transaction-graph");
    if report.valid == Valid::True || (report.valid == Valid::Unknown && empty) {
        return;
    }
    for (kind, anomalies) in &report.anomalies {
        for anomaly in anomalies.iter().take(2) {
            found
                .violations
                .push(format!("{name}: {kind}: {}", anomaly.explanation));
        }
    }
}

#[cfg(test)]
mod tests;
