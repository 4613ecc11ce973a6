//! The open store as the child's threads share it.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use collie_db::{Db, Durability, Error, Family, Options, RingMode};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::events::{Element, Event, ListId, TxId};
use crate::forms::{Found, How, Reader, Tried, Trouble, decode, wrong};
use crate::plan::{Form, List, Plan, Rule, passing_lists};

/// Where events go: standard output. What the parent has read was written before the kill.
pub struct Out;

impl Out {
    pub fn send(&self, event: &Event) {
        let mut line = serde_json::to_vec(event).expect("an event");
        line.push(b'\n');
        let mut out = std::io::stdout().lock();
        out.write_all(&line)
            .and_then(|()| out.flush())
            .expect("the parent reads");
    }

    pub fn violation(&self, text: impl Into<String>) {
        self.send(&Event::Violation { text: text.into() });
    }
}

/// A key and its value.
type Entry = (Vec<u8>, Vec<u8>);

/// A family that comes and goes.
#[derive(Clone)]
pub struct Passing {
    pub family: Family,
    pub lists: Vec<List>,
}

pub struct World {
    pub db: Db,
    pub plan: Arc<Plan>,
    pub options: Options,
    pub out: Arc<Out>,
    pub families: Vec<Family>,
    pub passing: RwLock<Vec<Passing>>,
    /// Steps that all threads have made.
    pub steps: AtomicU64,
    pub next_tx: AtomicU64,
    pub flush_in_transactions: bool,
    /// Guards get a new value each time that they are written.
    pub changing_guards: bool,
    pub lock_timeouts: Vec<Duration>,
}

impl World {
    pub fn limit(&self) -> usize {
        self.plan.value_limit
    }

    pub fn family_of(&self, list: &List) -> Family {
        self.families[list.family].clone()
    }

    /// A new transaction's number.
    pub fn tx(&self) -> TxId {
        // Relaxed: only that it is given out once.
        self.next_tx.fetch_add(1, Ordering::Relaxed)
    }

    pub fn step(&self) -> u64 {
        // Relaxed: a clock that nothing depends on.
        self.steps.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether a write that is acknowledged at this level survives the process.
    pub fn survives(&self, level: Durability) -> bool {
        match level {
            Durability::Buffered => false,
            Durability::Process => !(self.options.manual_wal_flush && self.options.ring == RingMode::Private),
            Durability::Disk => true,
        }
    }

    /// Lets others go on for some steps, or for a moment where there are none.
    pub fn pause(&self, steps: u64) {
        let until = self.steps.load(Ordering::Relaxed) + steps;
        for _ in 0..20 {
            if self.steps.load(Ordering::Relaxed) >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// All lists, each read in several ways that must agree.
    pub fn state(&self, seed: u64) -> Tried<BTreeMap<ListId, Vec<Element>>> {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let snapshot = self.db.snapshot();
        let mut lists = BTreeMap::new();
        let mut all: Vec<(Family, List)> = Vec::new();
        all.extend(
            self.plan
                .lists
                .iter()
                .map(|list| (self.family_of(list), list.clone())),
        );
        let passing = self
            .passing
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        for one in passing {
            all.extend(one.lists.iter().map(|list| (one.family.clone(), list.clone())));
        }
        // Every key of every family belongs to something.
        let mut keys: BTreeMap<u32, (Family, Vec<Entry>)> = BTreeMap::new();
        for name in self.db.families() {
            let family = self
                .db
                .family(&name)
                .ok_or(Trouble::Wrong(format!("the family {name} has no handle")))?;
            let entries = snapshot
                .iter(&family)?
                .map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())));
            let entries = entries.collect::<Result<Vec<_>, Error>>()?;
            let mut back = snapshot.iter(&family)?.rev().collect::<Result<Vec<_>, Error>>()?;
            back.reverse();
            let same = back.iter().map(|(key, value)| (&key[..], &value[..]));
            if !same.eq(entries.iter().map(|(key, value)| (&key[..], &value[..]))) {
                return wrong(format!(
                    "the family {name} is another one from its end than from its start"
                ));
            }
            keys.insert(family.id(), (family, entries));
        }
        for (family, list) in &all {
            let found = Reader::Snapshot(&snapshot).list(rng, family, list, How::Plain, self.limit())?;
            let now = Reader::Now.list(rng, family, list, How::Plain, self.limit())?;
            if found != now {
                return wrong(format!(
                    "list {}: a snapshot shows {found:?}, a read {now:?}",
                    list.id
                ));
            }
            lists.insert(list.id, found.elements());
            let Some((_, entries)) = keys.get_mut(&family.id()) else {
                return wrong(format!("the family {:?} is not among all", family.name()));
            };
            let mut rows = Vec::new();
            let mut values = Vec::new();
            entries.retain(|(key, value)| {
                let mine = match list.form {
                    Form::Value => *key == list.key,
                    Form::Moving => crate::forms::places(list).contains(key),
                    Form::Rows => key.starts_with(&list.key),
                };
                if mine {
                    match list.form {
                        Form::Rows => rows.push((key.clone(), value.clone())),
                        _ => values.push(value.clone()),
                    }
                }
                !mine
            });
            let iterated = match list.form {
                Form::Rows => rows
                    .iter()
                    .map(|(key, value)| crate::forms::row(list, key, value, self.limit()).map(|row| row.1))
                    .collect::<Tried<Vec<_>>>()?
                    .concat(),
                _ => values
                    .iter()
                    .map(|value| decode(list, value, self.limit()))
                    .collect::<Tried<Vec<_>>>()?
                    .concat(),
            };
            if iterated != found.elements() {
                return wrong(format!(
                    "list {}: an iterator shows {iterated:?}, reads {found:?}",
                    list.id
                ));
            }
        }
        for (family, entries) in keys.values() {
            for (key, value) in entries {
                let guard = self.plan.guards.iter().find(|guard| guard.key == *key);
                let known = guard
                    .is_some_and(|guard| self.changing_guards || guard.value.as_ref() == Some(value))
                    || key.starts_with(b"filler");
                if !known {
                    let key = String::from_utf8_lossy(&key[..key.len().min(40)]).into_owned();
                    return wrong(format!(
                        "the family {:?} has a key that was never written: {key:?}",
                        family.name()
                    ));
                }
            }
        }
        for guard in &self.plan.guards {
            let value = self.families[guard.family].get(&guard.key)?;
            if !self.changing_guards
                && value.as_deref() != guard.value.as_deref()
                && !lists.values().all(Vec::is_empty)
            {
                return wrong(format!("the guard {:?} is {value:?}", guard.key));
            }
        }
        Ok(lists)
    }

    /// Takes up the families that come and go.
    pub fn adopt(&self) {
        let mut passing = self.passing.write().unwrap_or_else(PoisonError::into_inner);
        passing.clear();
        for name in self.db.families() {
            if let Some(family) = name
                .starts_with("passing")
                .then(|| self.db.family(&name))
                .flatten()
            {
                let lists = passing_lists(family.id());
                passing.push(Passing { family, lists });
            }
        }
    }

    /// Empties lists that have grown long, and makes the guards.
    pub fn prepare(&self, state: &BTreeMap<ListId, Vec<Element>>, longest: usize) -> Tried<()> {
        let rng = &mut SmallRng::seed_from_u64(self.plan.seed);
        let mut emptied = Vec::new();
        let mut batch = collie_db::Batch::new();
        for list in &self.plan.lists {
            let len = state.get(&list.id).map_or(0, Vec::len);
            if len <= longest {
                continue;
            }
            let family = self.family_of(list);
            let keys = match Reader::Now.list(rng, &family, list, How::Plain, self.limit())? {
                Found::Value(_) => vec![list.key.clone()],
                Found::Moving(_) => crate::forms::places(list).to_vec(),
                Found::Rows(rows) => rows
                    .iter()
                    .map(|(position, _)| crate::forms::row_key(list, *position))
                    .collect(),
            };
            for key in keys {
                // A list may be in parts if it is killed here.
                if batch.size_bytes() + key.len() > self.plan.ring_bytes / 4 {
                    self.db
                        .write(std::mem::take(&mut batch), &collie_db::WriteOptions::disk())?;
                }
                batch.delete(&family, key)?;
            }
            emptied.push(list.id);
        }
        for guard in &self.plan.guards {
            if let Some(value) = &guard.value {
                batch.put(&self.families[guard.family], &guard.key, value)?;
            }
        }
        let end = self.db.write(batch, &collie_db::WriteOptions::disk())?;
        self.out.send(&Event::Promise { end });
        self.out.send(&Event::Emptied { lists: emptied });
        Ok(())
    }

    pub fn owned_by(&self, thread: u32, unlogged: bool) -> Vec<List> {
        let rule = if unlogged {
            Rule::Unlogged(thread)
        } else {
            Rule::Owned(thread)
        };
        self.plan
            .lists
            .iter()
            .filter(|list| list.rule == rule)
            .cloned()
            .collect()
    }
}

/// Whether an error is one that a transaction may get when nothing is wrong.
pub fn is_expected(error: &Error) -> bool {
    matches!(
        error,
        Error::Conflict { .. }
            | Error::Deadlock { .. }
            | Error::LockTimeout { .. }
            | Error::TooManyLocks { .. }
    )
}

pub fn name_of(error: &Error) -> &'static str {
    match error {
        Error::Conflict { .. } => "conflict",
        Error::Deadlock { .. } => "deadlock",
        Error::LockTimeout { .. } => "lock timeout",
        Error::TooManyLocks { .. } => "too many locks",
        Error::FamilyDropped { .. } => "family dropped",
        Error::FamilyTooNew { .. } => "family too new",
        Error::BatchTooLarge { .. } => "too large",
        Error::TransactionAborted { .. } => "aborted",
        _ => "other",
    }
}

pub fn chance(rng: &mut SmallRng, of: u32) -> bool {
    rng.random_ratio(1, of)
}
