//! The clients of the soak test: some that write and read their own keys, some that read
//! the keys of all, and one that fills a database and empties it again.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Scope, ScopedJoinHandle};

use anyhow::Context;
use collie_cli::resp::{Client, Reply};
use collie_io::{Clock, Nanos, RealClock};
use collie_sim::Rng;
use hdrhistogram::Histogram;
use parking_lot::Mutex;

use super::call::{Call, Outcome};
use super::ledger::{Ledger, Progress, Span, Verdict, key};
use crate::client;

/// Clients that write their own keys, and how many each has.
const WRITERS: u32 = 8;
const KEYS: u32 = 6_000;
/// Clients that read the keys of all.
const READERS: u32 = 2;
/// The client that fills its database with so many keys and empties it.
const EMPTIER: u32 = WRITERS;
const EMPTIER_KEYS: u32 = 2_000;
/// Keys that are set or read at once when all of them are.
const PIECE: u32 = 50;
/// Violations that are described; the others are counted.
const WORDS_MAX: usize = 8;
/// What a latency is recorded as at most, in ns, and to how many digits.
const LONGEST_NS: u64 = 120_000_000_000;
const DIGITS: u8 = 3;
/// How often a number of keys is asked for until what has expired is removed, and the pause in
/// between.
const COUNTS: u32 = 200;
const BETWEEN_COUNTS: std::time::Duration = std::time::Duration::from_millis(50);

/// What all clients share with the thread that watches them.
pub(crate) struct Board {
    progress: Vec<Progress>,
    latencies: Vec<Mutex<Histogram<u64>>>,
    stop: AtomicBool,
    /// Clients that have set all of their keys once.
    filled: AtomicU64,
    pub(crate) findings: Findings,
}

/// What the clients have done and found. The figures are watched and nothing is ordered by them:
/// Relaxed.
#[derive(Default)]
pub(crate) struct Findings {
    commands: AtomicU64,
    wrong: AtomicU64,
    words: Mutex<Vec<String>>,
}

impl Findings {
    pub(crate) fn commands(&self) -> u64 {
        self.commands.load(Ordering::Relaxed)
    }

    /// Replies that were not what the ledger says, and refusals.
    pub(crate) fn wrong(&self) -> u64 {
        self.wrong.load(Ordering::Relaxed)
    }

    /// The first few in words.
    pub(crate) fn words(&self) -> Vec<String> {
        self.words.lock().clone()
    }

    pub(crate) fn add(&self, outcome: Outcome) {
        self.commands.fetch_add(outcome.commands, Ordering::Relaxed);
        let refused = outcome.refused.into_iter().map(|text| format!("refused: {text}"));
        outcome
            .wrong
            .into_iter()
            .chain(refused)
            .for_each(|text| self.find(text));
    }

    pub(crate) fn find(&self, text: String) {
        self.wrong.fetch_add(1, Ordering::Relaxed);
        let mut words = self.words.lock();
        if words.len() < WORDS_MAX {
            words.push(text);
        }
    }
}

impl Board {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let clients = WRITERS + READERS;
        let latencies = (0..clients).map(|_| histogram().map(Mutex::new));
        let mut progress: Vec<Progress> = (0..WRITERS).map(|_| Progress::new(KEYS)).collect();
        progress.push(Progress::new(EMPTIER_KEYS));
        Ok(Self {
            progress,
            latencies: latencies.collect::<anyhow::Result<_>>()?,
            stop: AtomicBool::new(false),
            filled: AtomicU64::new(0),
            findings: Findings::default(),
        })
    }

    /// Has all clients end after their next call.
    pub(crate) fn stop(&self) {
        // Relaxed: a client may make one more call.
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether they were asked to end, or one of them has failed.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Relaxed) == u64::from(WRITERS)
    }

    /// Bytes of keys and values that are there.
    pub(crate) fn live(&self) -> u64 {
        self.progress.iter().map(Progress::live).sum()
    }

    /// How many calls there were since the last time, and the 99th percentile of what they took, in
    /// µs.
    pub(crate) fn take_p99(&self) -> anyhow::Result<(u64, f64)> {
        let mut all = histogram()?;
        for latencies in &self.latencies {
            let mut latencies = latencies.lock();
            all.add(&*latencies).context("latencies of different ranges")?;
            latencies.reset();
        }
        let p99 = all.value_at_quantile(0.99);
        Ok((all.len(), p99 as f64 / 1_000.0))
    }

    fn note(&self, client: u32, took: Nanos) {
        if let Some(latencies) = self.latencies.get(client as usize) {
            latencies.lock().saturating_record(took.max(1));
        }
    }

    fn progress(&self, owner: u32) -> anyhow::Result<&Progress> {
        self.progress
            .get(owner as usize)
            .with_context(|| format!("there is no client {owner}"))
    }
}

fn histogram() -> anyhow::Result<Histogram<u64>> {
    Histogram::new_with_max(LONGEST_NS, DIGITS).context("cannot make a histogram of latencies")
}

/// The clients of a server.
pub(crate) struct Load<'scope, 'env> {
    owners: Vec<ScopedJoinHandle<'scope, anyhow::Result<Ledger<'env>>>>,
    readers: Vec<ScopedJoinHandle<'scope, anyhow::Result<()>>>,
}

impl<'scope, 'env> Load<'scope, 'env> {
    pub(crate) fn start(
        scope: &'scope Scope<'scope, 'env>,
        board: &'env Board,
        port: u16,
        rng: &mut Rng,
    ) -> Self {
        let owners = (0..=EMPTIER).map(|owner| {
            let mut rng = rng.fork();
            scope.spawn(move || {
                let ended = match owner {
                    EMPTIER => empty_again(board, port),
                    _ => write(board, port, owner, &mut rng),
                };
                stopping(board, ended)
            })
        });
        let owners = owners.collect();
        let readers = (WRITERS..WRITERS + READERS).map(|client| {
            let mut rng = rng.fork();
            scope.spawn(move || stopping(board, read(board, port, client, &mut rng)))
        });
        Self {
            owners,
            readers: readers.collect(),
        }
    }

    /// Waits for the end of all, and gives what each has stored.
    pub(crate) fn join(self) -> anyhow::Result<Vec<Ledger<'env>>> {
        let panicked = "a client's thread panicked";
        let owners: Vec<_> = self.owners.into_iter().map(ScopedJoinHandle::join).collect();
        for reader in self.readers {
            reader.join().map_err(|_| anyhow::anyhow!(panicked))??;
        }
        let ledgers = owners.into_iter().map(|ended| match ended {
            Ok(ledger) => ledger,
            Err(_) => anyhow::bail!(panicked),
        });
        ledgers.collect()
    }
}

/// One client that ends too early ends all.
fn stopping<T>(board: &Board, ended: anyhow::Result<T>) -> anyhow::Result<T> {
    board.stop();
    ended
}

/// The database in which an owner's keys are.
fn database(owner: u32) -> u32 {
    match owner {
        EMPTIER => 2,
        _ => owner % 2,
    }
}

fn connect(port: u16, owner: u32) -> io::Result<Client> {
    let mut client = client::connect(port)?;
    let database = database(owner).to_string();
    client.call(&[b"SELECT", database.as_bytes()])?.good()?;
    Ok(client)
}

fn pieces(keys: u32) -> impl Iterator<Item = std::ops::Range<u32>> {
    let starts = (0..keys).step_by(PIECE as usize);
    starts.map(move |from| from..keys.min(from + PIECE))
}

fn write<'a>(board: &'a Board, port: u16, owner: u32, rng: &mut Rng) -> anyhow::Result<Ledger<'a>> {
    let mut ledger = Ledger::new(owner, board.progress(owner)?);
    let mut client = connect(port, owner)?;
    for keys in pieces(ledger.keys()) {
        let outcome = Call::set_all(owner, keys).make(&mut client, &mut ledger)?;
        board.findings.add(outcome);
    }
    board.filled.fetch_add(1, Ordering::Relaxed);
    while !board.is_stopped() {
        let call = Call::draw(rng, owner, ledger.keys());
        let outcome = call.make(&mut client, &mut ledger)?;
        board.note(owner, outcome.took);
        board.findings.add(outcome);
    }
    Ok(ledger)
}

/// Fills a database with what goes to tables in part, and replaces its family by an empty one.
fn empty_again(board: &Board, port: u16) -> anyhow::Result<Ledger<'_>> {
    let mut ledger = Ledger::new(EMPTIER, board.progress(EMPTIER)?);
    let mut client = connect(port, EMPTIER)?;
    while !board.is_stopped() {
        for keys in pieces(ledger.keys()) {
            let outcome = Call::set_all(EMPTIER, keys).make(&mut client, &mut ledger)?;
            board.findings.add(outcome);
        }
        look_at_all(&mut client, &mut ledger, &board.findings)?;
        client.call(&[b"FLUSHDB"])?.good()?;
        ledger.emptied();
        look_at_all(&mut client, &mut ledger, &board.findings)?;
    }
    Ok(ledger)
}

fn read(board: &Board, port: u16, number: u32, rng: &mut Rng) -> anyhow::Result<()> {
    let mut clients = [connect(port, 0)?, connect(port, 1)?];
    while !board.is_stopped() {
        let owner = u32::try_from(rng.below(WRITERS.into()))?;
        let which = u32::try_from(rng.below(KEYS.into()))?;
        let progress = board.progress(owner)?;
        let since = progress.acknowledged(which);
        let client = clients
            .get_mut(database(owner) as usize)
            .context("there is no client for the database")?;
        let clock = RealClock;
        let began = clock.monotonic();
        let reply = client.call(&[b"GET", &key(owner, which)])?;
        let took = clock.monotonic().saturating_sub(began);
        board.note(number, took);
        let mut outcome = Outcome {
            commands: 1,
            took,
            ..Outcome::default()
        };
        match progress.judge(owner, which, since, &reply) {
            Verdict::Right => {}
            Verdict::Refused(text) => outcome.refused.push(text),
            Verdict::Wrong(text) => outcome.wrong.push(text),
        }
        board.findings.add(outcome);
    }
    Ok(())
}

/// Reads all keys of an owner.
fn look_at_all(client: &mut Client, ledger: &mut Ledger<'_>, findings: &Findings) -> io::Result<()> {
    for keys in pieces(ledger.keys()) {
        findings.add(Call::get_all(ledger.owner(), keys).make(client, ledger)?);
    }
    Ok(())
}

/// Reads everything that the owners have stored, and compares the numbers of keys. No client writes
/// meanwhile.
pub(crate) fn look_at_everything(
    port: u16,
    ledgers: &mut [Ledger<'_>],
    findings: &Findings,
) -> anyhow::Result<()> {
    for ledger in ledgers.iter_mut() {
        let mut client = connect(port, ledger.owner())?;
        look_at_all(&mut client, ledger, findings)?;
    }
    for owner in [0, 1, EMPTIER] {
        let mut client = connect(port, owner)?;
        let of_database = ledgers.iter().filter(|l| database(l.owner()) == database(owner));
        let of_database: Vec<&Ledger<'_>> = of_database.collect();
        if let Some(text) = count(&mut client, &of_database)? {
            findings.find(format!("database {}: {text}", database(owner)));
        }
    }
    Ok(())
}

/// What is wrong with the number of keys of a database, once what has expired is removed.
fn count(client: &mut Client, ledgers: &[&Ledger<'_>]) -> anyhow::Result<Option<String>> {
    let mut text = None;
    for _ in 0..COUNTS {
        let before = RealClock.wall_ms();
        let found = match client.call(&[b"DBSIZE"])?.good()? {
            Reply::Number(found) => found.unsigned_abs(),
            other => anyhow::bail!("DBSIZE was answered with {other:?}"),
        };
        let span = Span {
            before,
            after: RealClock.wall_ms(),
        };
        let counts = ledgers.iter().map(|ledger| ledger.count(span));
        let (least, most) = counts.fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
        if (least..=most).contains(&found) {
            return Ok(None);
        }
        text = Some(format!("{found} keys, expected {least} to {most}"));
        std::thread::sleep(BETWEEN_COUNTS);
    }
    Ok(text)
}
