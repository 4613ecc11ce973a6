//! Random transactions of several threads on lists in two families, each with a mark in a third.

use std::collections::VecDeque;
use std::future::IntoFuture;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake};
use std::time::Duration;

use collie_check::appends::{Demand, Step};
use collie_check::lives::Found;
use collie_db::{
    CommitMode, Concurrency, Db, Durability, Error, Family, Isolation, Lsn, Options, Result, Ticket,
    Transaction, TransactionOptions, Value,
};

use crate::common::Rng;
use crate::ledger::Report;

/// Lists; the even ones in one family, the odd ones in another.
const LISTS: u64 = 8;
/// Commits of a thread that wait for the log while it goes on, at most.
const WAITING: u64 = 12;
/// An element is its transaction's mark and the number of its step.
const STEPS_BITS: u32 = 4;

/// A store with its families.
pub(crate) struct Store {
    pub(crate) db: Db,
    lists: [Family; 2],
    marks: Family,
}

impl Store {
    pub(crate) fn open(path: &Path, options: Options) -> Result<Self> {
        let family_options = options.default_family.clone();
        let db = Db::open(path, options)?;
        let family = |name: &str| match db.family(name) {
            Some(family) => Ok(family),
            None => db.create_family(name, family_options.clone()),
        };
        let (odd, marks) = (family("odd")?, family("marks")?);
        Ok(Self {
            lists: [db.default_family(), odd],
            marks,
            db,
        })
    }

    fn family(&self, list: u64) -> &Family {
        &self.lists[(list % 2) as usize]
    }

    /// All that is there.
    pub(crate) fn found(&self) -> Found {
        let mut found = Found::default();
        for family in &self.lists {
            for row in family.iter().unwrap() {
                let (list, value) = row.unwrap();
                found.lists.insert(number(&list), elements(Some(&value)));
            }
        }
        let marks = self.marks.iter().unwrap();
        found.marks = marks.map(|row| number(&row.unwrap().0)).collect();
        found
    }
}

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn number(key: &[u8]) -> u64 {
    u64::from_be_bytes(key.try_into().unwrap())
}

fn elements(value: Option<&Value>) -> Vec<u64> {
    let bytes = value.map_or(&[][..], |value| value);
    let (elements, rest) = bytes.as_chunks::<8>();
    assert!(rest.is_empty(), "a list is whole");
    elements.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
}

/// Which transactions a history is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mixture {
    concurrency: &'static [Concurrency],
    isolation: &'static [Isolation],
    pub(crate) demand: Demand,
    /// The store's level, where a transaction asks for none.
    pub(crate) durability: Durability,
    /// Whether memtables are flushed and tables merged meanwhile.
    pub(crate) flushes: bool,
}

const BOTH: &[Concurrency] = &[Concurrency::Pessimistic, Concurrency::Optimistic];

impl Mixture {
    /// Each seed's own.
    pub(crate) fn new(seed: u64, flushes: bool) -> Self {
        let (concurrency, isolation): (_, &[_]) = match seed % 4 {
            0 => (BOTH, &[Isolation::Snapshot, Isolation::Serializable]),
            1 => (BOTH, &[Isolation::Serializable]),
            2 => (&BOTH[..1], &[Isolation::Serializable]),
            _ => (&BOTH[1..], &[Isolation::Serializable]),
        };
        Self {
            concurrency,
            isolation,
            demand: match isolation.len() {
                1 => Demand::Serializable,
                _ => Demand::Snapshot,
            },
            durability: [Durability::Disk, Durability::Process][(seed / 4 % 2) as usize],
            flushes,
        }
    }

    fn options(&self, rng: &mut Rng) -> TransactionOptions {
        let (concurrency, isolation) = (pick(self.concurrency, rng), pick(self.isolation, rng));
        TransactionOptions {
            concurrency,
            isolation,
            commit_mode: match rng.below(8) {
                0 => CommitMode::Sync,
                1 => CommitMode::Async,
                _ => CommitMode::EarlyRelease,
            },
            durability: match rng.below(12) {
                0 => Some(Durability::Buffered),
                1 | 2 => Some(Durability::Process),
                3..6 => Some(Durability::Disk),
                _ => None,
            },
            lock_timeout: Duration::from_secs(60),
            snapshot_at_begin: rng.one_in(6),
            ..TransactionOptions::default()
        }
    }
}

fn pick<T: Copy>(all: &[T], rng: &mut Rng) -> T {
    all[rng.below(all.len() as u64) as usize]
}

/// A thread that runs transactions until the marks are used up or the store fails.
pub(crate) struct Client<'a> {
    pub(crate) store: &'a Store,
    pub(crate) mixture: Mixture,
    pub(crate) rng: Rng,
    /// The next mark, and the first that is not for this life.
    pub(crate) marks: (&'a AtomicU64, u64),
    pub(crate) report: &'a (dyn Fn(Report) + Sync),
}

/// A commit that waits for the log.
type Waiting = (u64, Durability, Ticket);

impl Client<'_> {
    pub(crate) fn run(mut self) {
        let mut waiting: VecDeque<Waiting> = VecDeque::new();
        // Relaxed: only uniqueness counts.
        loop {
            let mark = self.marks.0.fetch_add(1, Ordering::Relaxed);
            if mark >= self.marks.1 {
                break;
            }
            let options = self.mixture.options(&mut self.rng);
            let level = options.durability.unwrap_or(self.mixture.durability);
            let mode = options.commit_mode;
            match self.attempt(mark, options) {
                Ok(Some(ticket)) if mode == CommitMode::Async => drop(ticket),
                Ok(Some(ticket)) if mode == CommitMode::Sync => self.redeem((mark, level, ticket)),
                Ok(Some(ticket)) => waiting.push_back((mark, level, ticket)),
                Ok(None) => {}
                Err(_) => break,
            }
            if waiting.len() as u64 > self.rng.below(WAITING)
                && let Some(oldest) = waiting.pop_front()
            {
                self.redeem(oldest);
            }
            if self.mixture.flushes {
                self.maintain();
            }
        }
        waiting.into_iter().for_each(|ticket| self.redeem(ticket));
    }

    fn maintain(&mut self) {
        // A store that has failed refuses, and the next transaction finds that out.
        if self.rng.one_in(80) {
            drop(self.store.db.flush());
        }
        if self.rng.one_in(200) {
            drop(self.store.lists[0].compact());
        }
    }

    /// Waits until a commit is safe, by blocking or as a future.
    fn redeem(&mut self, (mark, level, ticket): Waiting) {
        let safe = match self.rng.one_in(4) {
            true => block_on(ticket),
            false => ticket.wait(),
        };
        if safe.is_ok() {
            (self.report)(Report::Safe(mark, level));
        }
    }

    /// Runs a transaction. `None` where nothing of it is written; an error where that is not known.
    fn attempt(&mut self, mark: u64, options: TransactionOptions) -> Result<Option<Ticket>> {
        let waits = options.commit_mode != CommitMode::Async;
        let tx = self.store.db.transaction(options)?;
        let mut steps = Vec::new();
        let ran = self.steps(&tx, mark, &mut steps);
        if is_refusal(&ran) || self.rng.one_in(12) {
            return Ok(None);
        }
        ran?;
        // What a waiting reader has seen counts once it got the answer.
        let reads = !steps.iter().any(|step| matches!(step, Step::Append(..)));
        (self.report)(Report::Asks(mark, steps));
        let committed = tx.commit_ticket();
        if is_refusal(&committed) {
            (self.report)(Report::Failed(mark));
            return Ok(None);
        }
        let ticket = committed?;
        if !(reads && waits) {
            (self.report)(Report::Visible(mark, ticket.end()));
        }
        Ok(Some(ticket))
    }

    fn steps(&mut self, tx: &Transaction, mark: u64, steps: &mut Vec<Step>) -> Result<()> {
        let mut appended = false;
        for step in 0..1 + self.rng.below(4) {
            let (list, element) = (self.rng.below(LISTS), mark << STEPS_BITS | step);
            match self.rng.below(9) {
                0..4 => {
                    self.append(tx, list, element, steps)?;
                    appended = true;
                }
                4 => {
                    // What is rolled back is never visible, however the transaction ends.
                    tx.set_savepoint();
                    self.append(tx, list, element, &mut Vec::new())?;
                    tx.rollback_to_savepoint()?;
                }
                5 | 6 => steps.push(Step::Read(list, self.read(tx, list)?)),
                _ => self.scan(tx, list, steps)?,
            }
            if self.rng.one_in(2) {
                std::thread::yield_now();
            }
        }
        if appended {
            tx.put(&self.store.marks, key(mark), [])?;
        }
        Ok(())
    }

    fn read(&mut self, tx: &Transaction, list: u64) -> Result<Vec<u64>> {
        let (family, key) = (self.store.family(list), key(list));
        let read = match self.rng.below(4) {
            0 => tx.get_for_share(family, key)?,
            _ => tx.get(family, key)?,
        };
        Ok(elements(read.as_ref()))
    }

    fn append(&mut self, tx: &Transaction, list: u64, element: u64, steps: &mut Vec<Step>) -> Result<()> {
        let (family, key) = (self.store.family(list), key(list));
        let read = match self.rng.below(3) {
            0 => tx.get(family, key)?,
            _ => tx.get_for_update(family, key)?,
        };
        let mut all = elements(read.as_ref());
        steps.push(Step::Read(list, all.clone()));
        all.push(element);
        let bytes: Vec<u8> = all.iter().flat_map(|element| element.to_le_bytes()).collect();
        tx.put(family, key, bytes)?;
        steps.push(Step::Append(list, element));
        steps.push(Step::Read(list, elements(tx.get(family, key)?.as_ref())));
        Ok(())
    }

    /// All lists of a family from this one on, or as many as it takes to find one that is there.
    fn scan(&mut self, tx: &Transaction, list: u64, steps: &mut Vec<Step>) -> Result<()> {
        let mut absent = list;
        for row in tx.range(self.store.family(list), key(list)..)? {
            let (found, value) = row?;
            let found = number(&found);
            steps.extend(
                (absent..found)
                    .step_by(2)
                    .map(|list| Step::Read(list, Vec::new())),
            );
            steps.push(Step::Read(found, elements(Some(&value))));
            absent = found + 2;
            if self.rng.one_in(3) {
                return Ok(());
            }
        }
        steps.extend(
            (absent..LISTS)
                .step_by(2)
                .map(|list| Step::Read(list, Vec::new())),
        );
        Ok(())
    }
}

/// Errors that say that nothing was written, and leave the store as it is.
fn is_refusal<T>(result: &Result<T>) -> bool {
    matches!(
        result,
        Err(Error::Conflict { .. } | Error::Deadlock { .. } | Error::StorageFull { .. })
    )
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on(ticket: Ticket) -> Result<Lsn> {
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = pin!(ticket.into_future());
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        std::thread::park();
    }
}
