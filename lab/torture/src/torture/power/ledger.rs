//! What clients were answered, and how a server that came back after a power cut is read for the
//! ledger.
//!
//! The writing clients are the ledger's [`Clients`]: commit `n` of client `t` is one transaction
//! over two databases. It sets `c:t:n` in both, sets `last:t` to `n + 1`, and removes the keys of
//! commit `n − WINDOW`. What any client read of `last:t` counts like an acknowledgement: a reply is
//! sent once every commit that it reflects is durable.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use collie_check::ledger::{self, Clients, Found};
use collie_check::{Promise, Survives, Verdict, Violation};
use collie_cli::resp::{Client, Reply};
use collie_sim::Rng;

/// Clients that write.
pub(crate) const WRITERS: usize = 12;
/// How many of a client's commits are kept.
const WINDOW: u64 = 150;
/// The longest filling of a value, save for a few.
const FILL_MAX: usize = 1_500;
/// Keys that are asked for at once.
const PIECE: u64 = 50;

/// How many commits of each client there are.
pub(crate) type Counts = ledger::Counts<WRITERS>;

/// The commits of one writing client in this life of the server.
#[derive(Debug, Default)]
struct Progress {
    /// Commits that it began to send.
    sent: AtomicU64,
    acknowledged: AtomicU64,
    /// The highest count that any client read.
    read: AtomicU64,
}

/// The ledger of all clients.
#[derive(Debug)]
pub(crate) struct Ledger {
    clients: Clients<WRITERS>,
    progress: [Progress; WRITERS],
    /// Commits that were acknowledged, in all lives.
    acknowledged: AtomicU64,
    /// Counts that were read, in all lives.
    reads: AtomicU64,
    /// Reads that showed less than an earlier answer.
    went_back: AtomicU64,
}

// Orderings, here and below: the figures of one client are written by one thread, and all threads
// have ended when they are read here. What a reader compares with reached it over the socket, by
// way of the store. So all are Relaxed, but for `read` and `acknowledged`, which other clients
// compare with while they run: Release and Acquire.
impl Ledger {
    /// The ledger of an empty store.
    pub(crate) fn new() -> Self {
        Self {
            clients: Clients::new(WINDOW, FILL_MAX),
            progress: Default::default(),
            acknowledged: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            went_back: AtomicU64::new(0),
        }
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    pub(crate) fn went_back(&self) -> u64 {
        self.went_back.load(Ordering::Relaxed)
    }

    /// How many commits of each client were acknowledged, or read by any client.
    pub(crate) fn answered(&self) -> Counts {
        self.progress.each_ref().map(|progress| {
            let acknowledged = progress.acknowledged.load(Ordering::Acquire);
            acknowledged.max(progress.read.load(Ordering::Acquire))
        })
    }

    /// How many commits of each client there are, as a client reads it and as it counts from now
    /// on.
    pub(crate) fn read_counts(&self, client: &mut Client) -> io::Result<Counts> {
        let before = self.answered();
        let counts = counts(client)?;
        self.reads.fetch_add(1, Ordering::Relaxed);
        for ((progress, &count), before) in self.progress.iter().zip(&counts).zip(before) {
            if count < before {
                self.went_back.fetch_add(1, Ordering::Relaxed);
            }
            progress.read.fetch_max(count, Ordering::Release);
        }
        Ok(counts)
    }

    /// Reads one of the last commits of a client, which is whole or, where it was removed
    /// meanwhile, not there.
    pub(crate) fn read_one(&self, client: &mut Client, rng: &mut Rng) -> io::Result<bool> {
        let thread = rng.index(WRITERS);
        let count = self.answered().get(thread).copied().unwrap_or(0);
        let n = count.saturating_sub(1 + rng.below(WINDOW));
        match client.call(&[b"GET", &key(thread, n)])?.good()? {
            Reply::Bulk(value) => Ok(ledger::read_value::<WRITERS>(&value, (thread, n), FILL_MAX).is_some()),
            _ => Ok(true),
        }
    }

    /// Makes commit `n` of a client, which has read `seen`, and notes that it was acknowledged.
    pub(crate) fn commit(&self, client: &mut Client, thread: usize, n: u64, seen: &Counts) -> io::Result<()> {
        let progress = self.progress.get(thread).ok_or(io::ErrorKind::InvalidInput)?;
        progress.sent.fetch_max(n + 1, Ordering::Relaxed);
        let value = ledger::value((thread, n), self.clients.life(), seen, FILL_MAX);
        let (key_n, last, check) = (key(thread, n), last_key(thread), crc(&value).to_le_bytes());
        let old = n.checked_sub(WINDOW).map(|old| key(thread, old));
        let (first, second): (&[u8], &[u8]) = (b"0", b"1");
        client.push(&[b"MULTI"]);
        client.push(&[b"SET", &key_n, &value]);
        client.push(&[b"SET", &last, (n + 1).to_string().as_bytes()]);
        old.iter().for_each(|old| client.push(&[b"DEL", old]));
        client.push(&[b"SELECT", second]);
        client.push(&[b"SET", &key_n, &check]);
        old.iter().for_each(|old| client.push(&[b"DEL", old]));
        client.push(&[b"SELECT", first]);
        client.push(&[b"EXEC"]);
        client.send()?;
        let queued = 6 + 2 * usize::from(old.is_some());
        for _ in 0..queued {
            client.reply()?.good()?;
        }
        match client.reply()?.good()? {
            Reply::Array(_) => {}
            other => return Err(io::Error::other(format!("EXEC was answered with {other:?}"))),
        }
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
        progress.acknowledged.fetch_max(n + 1, Ordering::Release);
        Ok(())
    }

    /// Judges everything that a server has, and begins a new life with what is there.
    pub(crate) fn check(&mut self, client: &mut Client) -> io::Result<Verdict> {
        let found = self.read(client)?;
        let sent = self
            .progress
            .each_ref()
            .map(|progress| progress.sent.load(Ordering::Relaxed));
        self.clients.sent(&sent);
        self.clients.acknowledged(&self.answered(), Promise::Disk);
        let mut verdict = self.clients.check(Survives::Power, &found);
        check_number_of_keys(client, &found.counts, &mut verdict)?;
        self.begin_life(&found.counts);
        Ok(verdict)
    }

    /// The server's store is an empty one from now on.
    pub(crate) fn start_over(&mut self) {
        self.clients = self.clients.start_over();
        self.begin_life(&Counts::default());
    }

    fn begin_life(&mut self, counts: &Counts) {
        self.clients.begin_life(counts);
        for (progress, &count) in self.progress.iter_mut().zip(counts) {
            for figure in [&mut progress.sent, &mut progress.acknowledged, &mut progress.read] {
                *figure.get_mut() = count;
            }
        }
    }

    /// The commits that must be there, in both databases.
    fn read(&self, client: &mut Client) -> io::Result<Found<WRITERS>> {
        let mut found = Found::new(counts(client)?);
        for (thread, count) in found.counts.into_iter().enumerate() {
            let kept = self.clients.kept(count);
            for from in kept.clone().step_by(PIECE as usize) {
                let piece = from..kept.end.min(from + PIECE);
                let firsts = values(client, b"0", thread, piece.clone())?;
                let seconds = values(client, b"1", thread, piece.clone())?;
                for ((n, first), second) in piece.zip(firsts).zip(seconds) {
                    let sum = first.as_deref().map_or(0, crc).to_le_bytes();
                    let agrees = second.map(|second| second == sum);
                    self.clients
                        .add(&mut found, (thread, n), first.as_deref(), agrees);
                }
            }
            client.call(&[b"SELECT", b"0"])?.good()?;
        }
        Ok(found)
    }
}

/// Nothing else is there: what was removed is not back.
fn check_number_of_keys(client: &mut Client, counts: &Counts, verdict: &mut Verdict) -> io::Result<()> {
    let lasts = counts.iter().filter(|&&count| count > 0).count() as u64;
    let kept: u64 = counts.iter().map(|&count| count.min(WINDOW)).sum();
    for (database, expected) in [(b"1", kept), (b"0", kept + lasts)] {
        client.call(&[b"SELECT", database])?.good()?;
        let found = match client.call(&[b"DBSIZE"])?.good()? {
            Reply::Number(found) => found.unsigned_abs(),
            other => return Err(io::Error::other(format!("DBSIZE was answered with {other:?}"))),
        };
        verdict.find(Violation::Reordered, found.saturating_sub(expected), || {
            let database = String::from_utf8_lossy(database);
            format!("database {database} has {found} keys, expected {expected}")
        });
    }
    Ok(())
}

fn key(thread: usize, n: u64) -> Vec<u8> {
    format!("c:{thread}:{n}").into_bytes()
}

fn last_key(thread: usize) -> Vec<u8> {
    format!("last:{thread}").into_bytes()
}

fn crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

fn counts(client: &mut Client) -> io::Result<Counts> {
    let keys: Vec<Vec<u8>> = (0..WRITERS).map(last_key).collect();
    let found = multiple(client, &keys)?;
    let mut counts = Counts::default();
    for (count, value) in counts.iter_mut().zip(found) {
        if let Some(value) = value {
            let number = std::str::from_utf8(&value)
                .ok()
                .and_then(|text| text.parse().ok());
            *count = number.ok_or_else(|| io::Error::other("a count is not a number"))?;
        }
    }
    Ok(counts)
}

fn multiple(client: &mut Client, keys: &[Vec<u8>]) -> io::Result<Vec<Option<Vec<u8>>>> {
    let mut words: Vec<&[u8]> = vec![b"MGET"];
    words.extend(keys.iter().map(Vec::as_slice));
    bulks(client.call(&words)?.good()?)
}

/// The elements of an array of bulk strings, of which some may be nothing.
fn bulks(reply: Reply) -> io::Result<Vec<Option<Vec<u8>>>> {
    let wrong =
        |what: Reply| io::Error::other(format!("the server sent {what:?} where values were asked for"));
    let Reply::Array(elements) = reply else {
        return Err(wrong(reply));
    };
    let bulk = |element| match element {
        Reply::Bulk(bytes) => Ok(Some(bytes)),
        Reply::Nothing => Ok(None),
        other => Err(wrong(other)),
    };
    elements.into_iter().map(bulk).collect()
}

fn values(
    client: &mut Client,
    database: &[u8],
    thread: usize,
    numbers: std::ops::Range<u64>,
) -> io::Result<Vec<Option<Vec<u8>>>> {
    client.call(&[b"SELECT", database])?.good()?;
    let keys: Vec<Vec<u8>> = numbers.map(|n| key(thread, n)).collect();
    multiple(client, &keys)
}
