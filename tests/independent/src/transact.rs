//! One random transaction.

mod operations;

use std::collections::BTreeMap;
use std::sync::PoisonError;

use collie_db::{
    CommitMode, Concurrency, Durability, Error, Family, Isolation, Ticket, Transaction, TransactionOptions,
};
use rand::Rng;
use rand::rngs::SmallRng;

use crate::events::{Element, Event, ListId, Step, TxId};
use crate::forms::{Found, How, Reader, Tried, Trouble, wrong};
use crate::plan::{Form, List, Rule, pick};
use crate::world::{World, chance, is_expected, name_of};

/// What a transaction knows of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Known {
    All(Found),
    /// The last row that others have put, and the transaction's own after it.
    Tail(Option<u32>, Vec<(u32, Vec<Element>)>),
}

#[derive(Debug, Clone, Default)]
struct Model {
    lists: BTreeMap<ListId, Known>,
    steps: usize,
    guard: Option<(usize, bool)>,
}

pub struct Run<'a> {
    world: &'a World,
    rng: &'a mut SmallRng,
    tx: Transaction,
    id: TxId,
    options: TransactionOptions,
    appended: u64,
    all_appended: Vec<(ListId, Element)>,
    steps: Vec<Step>,
    model: Model,
    /// Lists as they were without the transaction.
    before: BTreeMap<ListId, Known>,
    saved: Vec<Model>,
    wrote: bool,
    /// Savepoints that it went back to.
    back: u32,
}

/// How it ended.
pub enum Ended {
    Committed,
    Waiting(Ticket, TxId, bool),
    Not,
}

type Place = (Family, List);

fn random_options(world: &World, rng: &mut SmallRng) -> TransactionOptions {
    let mut options = TransactionOptions {
        concurrency: *pick(rng, &[Concurrency::Pessimistic, Concurrency::Optimistic]),
        isolation: *pick(rng, &[Isolation::Snapshot, Isolation::Serializable]),
        commit_mode: *pick(
            rng,
            &[CommitMode::Sync, CommitMode::EarlyRelease, CommitMode::Async],
        ),
        durability: *pick(
            rng,
            &[
                None,
                Some(Durability::Buffered),
                Some(Durability::Process),
                Some(Durability::Process),
                Some(Durability::Disk),
            ],
        ),
        lock_timeout: *pick(rng, &world.lock_timeouts),
        snapshot_at_begin: chance(rng, 4),
        ..TransactionOptions::default()
    };
    if chance(rng, 12) {
        options.max_bytes = rng.random_range(100..5000);
    }
    options
}

fn kind_of(options: &TransactionOptions) -> String {
    let concurrency = if options.concurrency == Concurrency::Pessimistic {
        "pessimistic"
    } else {
        "optimistic"
    };
    let isolation = if options.isolation == Isolation::Snapshot {
        "snapshot"
    } else {
        "serializable"
    };
    format!("{concurrency} {isolation}")
}

/// Runs one and reports every step of it.
pub fn run(world: &World, rng: &mut SmallRng, thread: u32) -> Ended {
    let options = random_options(world, rng);
    let kind = kind_of(&options);
    let id = world.tx();
    // Lists first: which are there is looked up before it begins, so a family may be gone when it is used.
    let places = working_set(world, rng);
    world.out.send(&Event::Begin {
        id,
        thread,
        kind: kind.clone(),
    });
    let tx = match world.db.transaction(options.clone()) {
        Ok(tx) => tx,
        Err(error) => {
            world
                .out
                .violation(format!("a transaction does not begin: {error}"));
            return Ended::Not;
        }
    };
    let mut run = Run {
        world,
        rng,
        tx,
        id,
        options,
        appended: 0,
        all_appended: Vec::new(),
        steps: Vec::new(),
        model: Model::default(),
        before: BTreeMap::new(),
        saved: Vec::new(),
        wrote: false,
        back: 0,
    };
    match run.go(&places) {
        Ok(()) => run.end(&kind),
        Err(trouble) => {
            let why = run.judge(&trouble);
            run.give_up(&why);
            Ended::Not
        }
    }
}

fn working_set(world: &World, rng: &mut SmallRng) -> Vec<Place> {
    let plan = &world.plan;
    let mut places = Vec::new();
    let hot = rng.random_ratio(2, 3);
    for _ in 0..rng.random_range(1..=4) {
        let many = if hot {
            plan.lists.len().min(10)
        } else {
            plan.lists.len()
        };
        let list = &plan.lists[rng.random_range(0..many)];
        places.push((world.family_of(list), list.clone()));
    }
    if chance(rng, 3) {
        let guard = rng.random_range(0..plan.guards.len());
        places.clear();
        let guarded = plan.lists.iter().filter(|list| list.rule == Rule::Guarded(guard));
        places.extend(guarded.map(|list| (world.family_of(list), list.clone())));
    }
    if chance(rng, 6) {
        let passing = world.passing.read().unwrap_or_else(PoisonError::into_inner);
        if !passing.is_empty() {
            let one = pick(rng, &passing);
            places.extend(one.lists.iter().map(|list| (one.family.clone(), list.clone())));
        }
    }
    places
}

impl Run<'_> {
    fn go(&mut self, places: &[Place]) -> Tried<()> {
        let guard = places.iter().find_map(|(_, list)| match list.rule {
            Rule::Guarded(guard) => Some(guard),
            _ => None,
        });
        let late = chance(self.rng, 3);
        let share = chance(self.rng, 5);
        if let Some(guard) = guard
            && !late
        {
            self.take_guard(guard, share)?;
        }
        for _ in 0..self.rng.random_range(1..=8) {
            self.world.step();
            if chance(self.rng, 5) {
                let steps = self.rng.random_range(1..30);
                self.world.pause(steps);
            }
            let (family, list) = pick(self.rng, places).clone();
            if self.world.flush_in_transactions && chance(self.rng, 8) {
                self.flush(&family)?;
            }
            self.attempt(&family, &list, late.then_some(guard).flatten())?;
        }
        if let Some(guard) = guard
            && late
        {
            self.take_guard(guard, false)?;
        }
        Ok(())
    }

    /// One operation. Where it fails as it may, the transaction often goes on without it.
    fn attempt(&mut self, family: &Family, list: &List, late: Option<usize>) -> Tried<()> {
        let guarded = self.rng.random_ratio(1, 2);
        if guarded {
            self.save();
        }
        match self.operate(family, list, late) {
            Ok(()) => {
                if guarded && chance(self.rng, 3) {
                    // What came before it too, where a place was marked earlier.
                    self.roll_back()?;
                } else if guarded && chance(self.rng, 2) {
                    self.tx.pop_savepoint()?;
                    self.saved.pop();
                } else if !guarded && !self.saved.is_empty() && chance(self.rng, 6) {
                    self.roll_back()?;
                }
                Ok(())
            }
            Err(Trouble::Store(error)) if guarded && self.may_go_on(&error) => {
                self.judge(&Trouble::Store(error));
                self.roll_back()
            }
            Err(trouble) => Err(trouble),
        }
    }

    fn may_go_on(&self, error: &Error) -> bool {
        matches!(
            error,
            Error::Conflict { .. }
                | Error::LockTimeout { .. }
                | Error::TooManyLocks { .. }
                | Error::FamilyDropped { .. }
                | Error::FamilyTooNew { .. }
                | Error::BatchTooLarge { .. }
        )
    }

    fn operate(&mut self, family: &Family, list: &List, late: Option<usize>) -> Tried<()> {
        let may_append = match list.rule {
            Rule::Shared => true,
            // With a guard that comes late, nothing is appended without it: the transaction commits only with it.
            Rule::Guarded(guard) => late == Some(guard) || self.model.guard == Some((guard, true)),
            Rule::Owned(_) | Rule::Unlogged(_) => false,
        };
        match self.rng.random_range(0..12) {
            0..=2 => {
                let how = self.random_how();
                self.read(family, list, how).map(drop)
            }
            3..=8 if may_append => self.append(family, list),
            3..=8 => self.read(family, list, How::Plain).map(drop),
            // An unlogged list must not come into the log.
            9 if !matches!(list.rule, Rule::Unlogged(_)) => self.touch(family, list),
            10 => self.scan_family(family, list),
            _ => {
                self.save();
                Ok(())
            }
        }
    }

    fn random_how(&mut self) -> How {
        *pick(self.rng, &[How::Plain, How::Plain, How::ForUpdate, How::ForShare])
    }

    fn save(&mut self) {
        self.tx.set_savepoint();
        self.model.steps = self.steps.len();
        self.saved.push(self.model.clone());
    }

    /// Goes back to the last savepoint, and looks whether everything is as it was there.
    fn roll_back(&mut self) -> Tried<()> {
        self.tx.rollback_to_savepoint()?;
        let Some(then) = self.saved.pop() else {
            return wrong("a savepoint that was never set".into());
        };
        let after = std::mem::replace(&mut self.model, then);
        self.steps.truncate(self.model.steps);
        for id in after.lists.keys() {
            if !self.model.lists.contains_key(id) {
                self.model.lists.insert(*id, self.before[id].clone());
            }
        }
        self.back += 1;
        // Which lists were touched; their handles are found again by number.
        let touched: Vec<ListId> = after
            .lists
            .iter()
            .filter(|(id, known)| self.model.lists.get(id) != Some(known))
            .map(|(id, _)| *id)
            .collect();
        for id in touched {
            let Some((family, list)) = self.place(id) else {
                continue;
            };
            match self.read(&family, &list, How::Plain) {
                Err(Trouble::Store(error)) if self.may_go_on(&error) => {}
                other => drop(other?),
            }
        }
        Ok(())
    }

    fn place(&self, id: ListId) -> Option<Place> {
        if let Some(list) = self.world.plan.lists.iter().find(|list| list.id == id) {
            return Some((self.world.family_of(list), list.clone()));
        }
        let passing = self.world.passing.read().unwrap_or_else(PoisonError::into_inner);
        let places = passing
            .iter()
            .flat_map(|one| one.lists.iter().map(|list| (one.family.clone(), list.clone())));
        places.into_iter().find(|(_, list)| list.id == id)
    }

    /// Whether reads of this transaction are known to hold until its commit.
    fn holds(&self, list: &List, how: How) -> bool {
        self.options.isolation == Isolation::Serializable
            // Ranges have no such reads.
            || (how != How::Plain && list.form != Form::Rows)
    }

    fn read(&mut self, family: &Family, list: &List, how: How) -> Tried<Found> {
        let reader = Reader::Transaction(&self.tx);
        let found = reader.list(self.rng, family, list, how, self.world.limit())?;
        self.see(list, found.clone(), how)?;
        Ok(found)
    }

    /// Compares what was read with what is known, and notes it.
    fn see(&mut self, list: &List, found: Found, how: How) -> Tried<()> {
        match self.model.lists.get(&list.id) {
            Some(Known::All(known)) if *known != found => {
                return wrong(format!(
                    "transaction {} ({}) reads list {} as {found:?}, and had {known:?}",
                    self.id,
                    kind_of(&self.options),
                    list.id
                ));
            }
            Some(Known::All(_)) => {}
            Some(Known::Tail(last, own)) => {
                let Found::Rows(rows) = &found else {
                    return wrong("rows that are none".into());
                };
                let others = rows.len().checked_sub(own.len());
                let same = others.is_some_and(|others| rows[others..] == own[..]);
                let theirs = others
                    .and_then(|others| others.checked_sub(1))
                    .map(|at| rows[at].0);
                if !same || theirs != *last {
                    return wrong(format!(
                        "transaction {} ({}) reads list {} as {rows:?}, and had {last:?} before its own {own:?}",
                        self.id,
                        kind_of(&self.options),
                        list.id
                    ));
                }
            }
            None => {
                self.before
                    .entry(list.id)
                    .or_insert_with(|| Known::All(found.clone()));
            }
        }
        self.steps
            .push(Step::Read(list.id, found.elements(), self.holds(list, how)));
        self.model.lists.insert(list.id, Known::All(found));
        Ok(())
    }

    /// How a failure is reported; a wrong one is a violation.
    fn judge(&self, trouble: &Trouble) -> String {
        let (id, kind) = (self.id, kind_of(&self.options));
        match trouble {
            Trouble::Wrong(text) => {
                self.world.out.violation(text.clone());
                "wrong".into()
            }
            Trouble::Store(error) => {
                let family = match error {
                    Error::FamilyDropped { name } | Error::FamilyTooNew { name } => {
                        name.starts_with("passing")
                    }
                    Error::BatchTooLarge { .. } => true,
                    error => is_expected(error),
                };
                if !family {
                    self.world
                        .out
                        .violation(format!("transaction {id} ({kind}) fails: {error}"));
                }
                let name = name_of(error);
                if matches!(error, Error::Deadlock { .. })
                    && !matches!(
                        self.tx.get(&self.world.families[0], b"x"),
                        Err(Error::TransactionAborted { .. })
                    )
                {
                    self.world
                        .out
                        .violation(format!("transaction {id} ({kind}) can be used after a deadlock"));
                }
                name.into()
            }
        }
    }

    fn give_up(self, why: &str) {
        let Self {
            world,
            rng,
            tx,
            id,
            all_appended,
            ..
        } = self;
        if rng.random() {
            tx.rollback();
        } else {
            drop(tx);
        }
        world.out.send(&Event::Fail {
            id,
            appended: all_appended,
            why: why.into(),
        });
    }

    fn end(mut self, kind: &str) -> Ended {
        if chance(self.rng, 12) {
            self.give_up("rolled back");
            return Ended::Not;
        }
        // A commit without writes of its own depends on one moment only, and so does one whose guard kept others out.
        let only_read = !self.wrote;
        let lists = &self.world.plan.lists;
        for step in &mut self.steps {
            if let Step::Read(id, _, holds) = step {
                let rule = lists.iter().find(|list| list.id == *id).map(|list| list.rule);
                let guarded = self
                    .model
                    .guard
                    .is_some_and(|(guard, _)| rule == Some(Rule::Guarded(guard)));
                *holds |= only_read || guarded;
            }
        }
        let steps = std::mem::take(&mut self.steps);
        let world = self.world;
        world.out.send(&Event::Commit {
            id: self.id,
            steps: steps.clone(),
        });
        let level = self.options.durability.unwrap_or(world.options.durability);
        let survives = world.survives(level);
        let (id, mode) = (self.id, self.options.commit_mode);
        let ways = self.rng.random_range(0..4);
        let (appended, back) = (self.all_appended, self.back);
        let (end, promised, ticket) = if ways == 0 {
            match self.tx.commit() {
                Ok(end) => (Ok(end), survives && mode != CommitMode::Async, None),
                Err(error) => (Err(error), false, None),
            }
        } else {
            match self.tx.commit_ticket() {
                Ok(ticket) if ways == 1 => (Ok(ticket.end()), false, Some(ticket)),
                Ok(ticket) if ways == 2 => (crate::wait::block_on(ticket), survives, None),
                Ok(ticket) => (ticket.wait(), survives, None),
                Err(error) => (Err(error), false, None),
            }
        };
        match end {
            Ok(end) => {
                world.out.send(&Event::Ok {
                    id,
                    steps,
                    end,
                    promised,
                    back,
                });
                ticket.map_or(Ended::Committed, |ticket| Ended::Waiting(ticket, id, survives))
            }
            Err(error) => {
                let expected = match &error {
                    Error::FamilyDropped { name } | Error::FamilyTooNew { name } => {
                        name.starts_with("passing")
                    }
                    Error::BatchTooLarge { .. } => true,
                    error => is_expected(error),
                };
                if !expected {
                    world
                        .out
                        .violation(format!("transaction {id} ({kind}) does not commit: {error}"));
                }
                world.out.send(&Event::Fail {
                    id,
                    appended,
                    why: name_of(&error).into(),
                });
                Ended::Not
            }
        }
    }
}
