//! A queue of jobs: workers claim them by locking their rows, so that no job is done twice and none
//! is lost, however a worker ends.
//!
//! ```text
//! cargo run --example work_queue            # in a temporary directory
//! cargo run --example work_queue -- DIR     # in DIR, which keeps the queue for the next run
//! ```
//!
//! * A **claim** is an open transaction that has locked the job's row. What the work writes, and
//!   that the job is done, become one commit. Where a worker gives up, panics or is killed, the
//!   claim is rolled back, and the next worker finds the job. (This suits work of seconds. An open
//!   transaction keeps what its snapshot needs from being freed; for work of hours, commit a row
//!   that says which worker has the job, and until when.)
//! * A job whose work **fails** is put back with one attempt more in its row. After the third it is
//!   moved to the family `dead`, with the reason, so that a poisonous job does not keep the workers
//!   busy for ever.
//! * Commits are **acknowledged** many at a time: each leaves a ticket, and waiting for the newest
//!   waits for all before it.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use collie_db::{Db, Error, Family, FamilyOptions, Key, Options, Ticket, Transaction, TransactionOptions};
use serde::{Deserialize, Serialize};

const WORKERS: usize = 4;
/// Jobs that a run adds, and how many at a time.
const JOBS: u64 = 400;
const JOBS_AT_ONCE: u64 = 50;
/// A job whose work failed so often is dead.
const ATTEMPTS_MAX: u32 = 3;
/// Commits that a worker acknowledges together.
const ACKNOWLEDGED_AT_ONCE: usize = 16;
/// A worker is called away from one of so many jobs that it claims.
const CALLED_AWAY_EVERY: u64 = 40;
/// The row of the family `default` with the number of the last job that was added.
const LAST_JOB: &str = "last job";

/// A job that waits. Its row's key is its number, big-endian: the oldest come first.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Job {
    /// Words to count the letters of.
    text: String,
    /// How often its work has failed.
    attempts: u32,
}

/// A job that is not tried any more.
#[derive(Debug, Serialize, Deserialize)]
struct Dead {
    job: Job,
    reason: String,
}

#[derive(Debug)]
struct Queue {
    db: Db,
    waiting: Family,
    /// By job's number: the worker that did it.
    done: Family,
    dead: Family,
    /// What the work is for: letters by job's number and word.
    letters: Family,
}

/// A job that is this worker's alone, as long as the transaction is open.
struct Claim {
    tx: Transaction,
    key: Key,
    job: Job,
}

impl Queue {
    fn new(db: Db) -> Result<Self, Error> {
        let family = |name| db.open_family(name, FamilyOptions::default());
        Ok(Self {
            waiting: family("waiting")?,
            done: family("done")?,
            dead: family("dead")?,
            letters: family("letters")?,
            db,
        })
    }

    /// Adds jobs, all or none of them. On return they are durable.
    fn add(&self, texts: impl Iterator<Item = String>) -> anyhow::Result<()> {
        let counters = self.db.default_family();
        let tx = self.db.transaction(TransactionOptions::default())?;
        // The first step waits for the row's lock: several that add at once do not conflict.
        let mut last: u64 = match tx.get_for_update(&counters, LAST_JOB)? {
            Some(row) => decode(&row)?,
            None => 0,
        };
        for text in texts {
            last += 1;
            let job = Job { text, attempts: 0 };
            tx.put(&self.waiting, last.to_be_bytes(), encode(&job)?)?;
        }
        tx.put(&counters, LAST_JOB, encode(&last)?)?;
        tx.commit()?;
        Ok(())
    }

    /// Claims the first free job from `*from` on, and moves `*from` behind it.
    ///
    /// If all workers began at the oldest job, they would skip each other's jobs again and again,
    /// and the tombstones of jobs that are done. A job that was put back is found in the next
    /// round.
    fn claim(&self, from: &mut Vec<u8>) -> anyhow::Result<Option<Claim>> {
        // Without a lock: these are candidates, and the lock decides.
        for row in self.waiting.range(std::mem::take(from)..)? {
            let (key, _) = row?;
            let options = TransactionOptions {
                // A worker that finds a job locked tries the next one instead of waiting (`SKIP
                // LOCKED`).
                lock_timeout: Duration::ZERO,
                name: "claim".into(),
                ..TransactionOptions::default()
            };
            let tx = self.db.transaction(options)?;
            match tx.get_for_update(&self.waiting, &key) {
                Ok(Some(row)) => {
                    let job = decode(&row)?;
                    *from = [&*key, &[0]].concat();
                    return Ok(Some(Claim { tx, key, job }));
                }
                // Done since the candidates were listed, or being done.
                Ok(None) | Err(Error::LockTimeout { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Does a claimed job's work, and records the outcome.
    fn work(&self, worker: usize, claim: Claim) -> anyhow::Result<(Outcome, Ticket)> {
        let Claim { tx, key, mut job } = claim;
        tx.set_savepoint();
        let outcome = match self.count_letters(&tx, &key, &job)? {
            Ok(()) => {
                tx.delete(&self.waiting, &key)?;
                tx.put(&self.done, &key, encode(&worker)?)?;
                Outcome::Done
            }
            Err(reason) => {
                // Undoes what it had written and keeps the lock: no other worker tries the job
                // before this attempt is in its row.
                tx.rollback_to_savepoint()?;
                job.attempts += 1;
                if job.attempts < ATTEMPTS_MAX {
                    tx.put(&self.waiting, &key, encode(&job)?)?;
                    Outcome::Failed
                } else {
                    tx.delete(&self.waiting, &key)?;
                    tx.put(&self.dead, &key, encode(&Dead { job, reason })?)?;
                    Outcome::Dead
                }
            }
        };
        // Visible from here on, and durable when the ticket says so. Its locks are released
        // already, so other workers do not wait for that.
        Ok((outcome, tx.commit_ticket()?))
    }

    /// The work itself: fails at a word that is none. The store's own errors are the outer ones.
    fn count_letters(&self, tx: &Transaction, key: &Key, job: &Job) -> anyhow::Result<Result<(), String>> {
        for word in job.text.split_whitespace() {
            if !word.chars().all(char::is_alphabetic) {
                return Ok(Err(format!("{word:?} is not a word")));
            }
            let row = [&**key, word.as_bytes()].concat();
            tx.put(&self.letters, row, encode(&word.chars().count())?)?;
        }
        Ok(Ok(()))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    /// It is put back, to be tried again.
    Failed,
    Dead,
}

/// What one worker did.
#[derive(Debug, Default)]
struct Tally {
    /// The jobs that it ended, done or dead, once that was durable: it may report these.
    acknowledged: Vec<u64>,
    done: u64,
    failed: u64,
    dead: u64,
    given_back: u64,
    /// How often it waited for the disk.
    waits: u64,
}

/// Works until no job is left and none will come.
fn run_worker(queue: &Queue, worker: usize, all_added: &AtomicBool) -> anyhow::Result<Tally> {
    let mut tally = Tally::default();
    let mut from = Vec::new();
    let mut claims = 0;
    // Jobs that ended, and the newest commit's ticket.
    let mut ended: Vec<u64> = Vec::new();
    let mut newest: Option<Ticket> = None;
    loop {
        // Read before the queue: jobs that were added before it was set are found.
        let is_last_round = all_added.load(Ordering::Acquire) && from.is_empty();
        let Some(claim) = queue.claim(&mut from)? else {
            if is_last_round && queue.waiting.iter()?.next().is_none() {
                break;
            }
            // Nothing new, or only what others have claimed and may give back. Jobs that ended are
            // acknowledged now, and not when there is more to do.
            acknowledge(&mut tally, &mut ended, newest.take())?;
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        claims += 1;
        if claims % CALLED_AWAY_EVERY == 0 {
            // Dropping the claim rolls it back; the queue needs no other call.
            drop(claim);
            tally.given_back += 1;
            continue;
        }
        let number = number(&claim.key)?;
        let (outcome, ticket) = queue.work(worker, claim)?;
        match outcome {
            Outcome::Done => tally.done += 1,
            Outcome::Failed => tally.failed += 1,
            Outcome::Dead => tally.dead += 1,
        }
        if outcome != Outcome::Failed {
            ended.push(number);
        }
        newest = Some(ticket);
        if ended.len() >= ACKNOWLEDGED_AT_ONCE {
            acknowledge(&mut tally, &mut ended, newest.take())?;
        }
    }
    acknowledge(&mut tally, &mut ended, newest)?;
    Ok(tally)
}

/// Waits once for all jobs that ended: the log is a sequence, and what is durable is a prefix of
/// it.
fn acknowledge(tally: &mut Tally, ended: &mut Vec<u64>, newest: Option<Ticket>) -> anyhow::Result<()> {
    if let Some(ticket) = newest {
        ticket.wait()?;
        tally.waits += 1;
    }
    // From here on they may be reported.
    tally.acknowledged.append(ended);
    Ok(())
}

fn main() -> anyhow::Result<()> {
    // Declared before the store, and so removed after it.
    let temporary;
    let dir = match std::env::args_os().nth(1) {
        Some(dir) => PathBuf::from(dir),
        None => {
            temporary = tempfile::tempdir().context("cannot make a temporary directory")?;
            temporary.path().join("queue")
        }
    };
    let db = Db::open(&dir, Options::default())
        .with_context(|| format!("cannot open the store in {}", dir.display()))?;
    let queue = Queue::new(db)?;
    let found = numbers(&queue.waiting)?.len();
    let ended_before = ended(&queue)?;
    println!(
        "{}: {found} jobs waited already, {JOBS} more come; {WORKERS} workers",
        dir.display()
    );
    let all_added = AtomicBool::new(false);
    let tallies = std::thread::scope(|scope| {
        let workers: Vec<_> = (1..=WORKERS)
            .map(|worker| {
                let (queue, all_added) = (&queue, &all_added);
                scope.spawn(move || run_worker(queue, worker, all_added))
            })
            .collect();
        let added = add_jobs(&queue);
        // Whatever came of it, or the workers would wait for more.
        all_added.store(true, Ordering::Release);
        let tallies = workers.into_iter().map(|worker| {
            let ended = worker.join().map_err(|_| anyhow!("a worker panicked"))?;
            ended.context("a worker stopped")
        });
        let tallies = tallies.collect::<anyhow::Result<Vec<_>>>();
        added.and(tallies)
    })?;
    report(&queue, &ended_before, &tallies)?;
    let wrong = check(&queue, &ended_before, &tallies)?;
    for wrong in &wrong {
        println!("WRONG: {wrong}");
    }
    ensure!(
        wrong.is_empty(),
        "{} things are not as they should be",
        wrong.len()
    );
    println!("Each job was ended once, and none was lost.");
    // A store closes when its last handle is dropped, too, but only `close` returns an error.
    let db = queue.db.clone();
    drop(queue);
    db.close()?;
    Ok(())
}

/// The producer. One job in a hundred is poisonous.
fn add_jobs(queue: &Queue) -> anyhow::Result<()> {
    let text = |number: u64| match number % 100 {
        77 => "herd the sh33p home".to_owned(),
        odd if odd % 2 == 1 => "bring the sheep home before dark".to_owned(),
        _ => "count the lambs".to_owned(),
    };
    for first in (0..JOBS).step_by(JOBS_AT_ONCE as usize) {
        queue.add((first..first + JOBS_AT_ONCE).map(text))?;
    }
    Ok(())
}

fn report(queue: &Queue, before: &BTreeSet<u64>, tallies: &[Tally]) -> anyhow::Result<()> {
    println!(
        "\n{:<9} {:>6} {:>7} {:>6} {:>11} {:>13} {:>6}",
        "", "done", "failed", "dead", "given back", "acknowledged", "waits"
    );
    for (worker, tally) in (1..).zip(tallies) {
        println!(
            "worker {worker:<2} {:>6} {:>7} {:>6} {:>11} {:>13} {:>6}",
            tally.done,
            tally.failed,
            tally.dead,
            tally.given_back,
            tally.acknowledged.len(),
            tally.waits
        );
    }
    let acknowledged: usize = tallies.iter().map(|tally| tally.acknowledged.len()).sum();
    let waits: u64 = tallies.iter().map(|tally| tally.waits).sum();
    println!("\n{acknowledged} jobs were acknowledged, with {waits} waits for the disk");
    for row in queue.dead.iter()? {
        let (key, row) = row?;
        let (number, Dead { job, reason }) = (number(&key)?, decode(&row)?);
        if !before.contains(&number) {
            let Job { text, attempts } = job;
            println!("dead: job {number}, {text:?}, after {attempts} attempts: {reason}");
        }
    }
    Ok(())
}

/// What is not as it should be.
fn check(queue: &Queue, before: &BTreeSet<u64>, tallies: &[Tally]) -> anyhow::Result<Vec<String>> {
    let mut wrong = Vec::new();
    let waiting = numbers(&queue.waiting)?;
    if !waiting.is_empty() {
        wrong.push(format!("jobs {waiting:?} still wait"));
    }
    let (done, dead) = (numbers(&queue.done)?, numbers(&queue.dead)?);
    let both: Vec<_> = done.intersection(&dead).collect();
    if !both.is_empty() {
        wrong.push(format!("jobs {both:?} are done, and dead as well"));
    }
    let ended = ended(queue)?;
    let last: u64 = match queue.db.get(LAST_JOB)? {
        Some(row) => decode(&row)?,
        None => 0,
    };
    let lost: Vec<_> = (1..=last).filter(|job| !ended.contains(job)).collect();
    if !lost.is_empty() {
        wrong.push(format!("jobs {lost:?} are lost"));
    }
    let mut acknowledged = BTreeSet::new();
    for job in tallies.iter().flat_map(|tally| &tally.acknowledged) {
        if before.contains(job) || !acknowledged.insert(*job) {
            wrong.push(format!("job {job} was ended twice"));
        }
    }
    let unreported: Vec<_> = ended
        .difference(before)
        .filter(|job| !acknowledged.contains(job))
        .collect();
    if !unreported.is_empty() {
        wrong.push(format!("jobs {unreported:?} ended and were not acknowledged"));
    }
    let mut with_letters = BTreeSet::new();
    for row in queue.letters.iter()? {
        with_letters.insert(number(&row?.0)?);
    }
    if with_letters != done {
        let differ: Vec<_> = with_letters.symmetric_difference(&done).collect();
        wrong.push(format!(
            "jobs {differ:?} are done without their work, or the other way round"
        ));
    }
    Ok(wrong)
}

/// The jobs that are done or dead.
fn ended(queue: &Queue) -> anyhow::Result<BTreeSet<u64>> {
    let mut ended = numbers(&queue.done)?;
    ended.append(&mut numbers(&queue.dead)?);
    Ok(ended)
}

fn numbers(family: &Family) -> anyhow::Result<BTreeSet<u64>> {
    family.iter()?.map(|row| number(&row?.0)).collect()
}

/// A job's number, with which all keys begin.
fn number(key: &[u8]) -> anyhow::Result<u64> {
    let number = key.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    number.with_context(|| format!("the key {key:?} is no job's; is this directory the queue's?"))
}

fn decode<T: serde::de::DeserializeOwned>(row: &[u8]) -> anyhow::Result<T> {
    postcard::from_bytes(row)
        .context("a row does not read as what it should be; is this directory the queue's?")
}

fn encode(row: &impl Serialize) -> anyhow::Result<Vec<u8>> {
    Ok(postcard::to_stdvec(row)?)
}
