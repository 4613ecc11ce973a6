//! What clients were told, and whether a server that came back after a power cut keeps it.
//!
//! Each writing client numbers its commits. Commit `n` of client `t` is one transaction over two databases: it
//! sets `c:t:n` in both, sets `last:t` to `n + 1`, and removes the keys of commit `n − WINDOW`. Its value says
//! which commits of all clients it had read and in which life of the server it was made. What any client read
//! of `last:t` counts as told, like an acknowledgement: a reply leaves when what it tells is durable.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use collie_sim::Rng;

use super::resp::{Client, Reply};
use crate::torture::findings::Findings;

/// Clients that write.
pub(crate) const WRITERS: usize = 12;
/// How many of a client's commits are kept.
pub(crate) const WINDOW: u64 = 150;
/// The longest filling of a value, save for a few that are [`FILL_LARGE`].
const FILL_MAX: usize = 1_500;
const FILL_LARGE: usize = 20_000;
const CHECKSUM: usize = 4;
/// Client, number, life, what was seen.
const HEAD: usize = 8 + 8 + 8 + 8 * WRITERS;
/// Keys that are asked for at once.
const PIECE: u64 = 50;

/// How many commits of each client there are.
pub(crate) type Counts = [u64; WRITERS];

/// What one writing client's commits were told of.
#[derive(Debug, Default)]
struct Book {
    /// Commits that it began to send.
    sent: AtomicU64,
    acknowledged: AtomicU64,
    /// The highest count that anybody read.
    read: AtomicU64,
    /// From which number on commits are of which life, in order.
    lives: Vec<(u64, u64)>,
}

/// The ledger of all clients.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    books: [Book; WRITERS],
    /// The life that goes on now.
    life: u64,
    /// Commits that were acknowledged, in all lives.
    acknowledged: AtomicU64,
    /// Counts that were read, in all lives.
    reads: AtomicU64,
    /// Reads that told less than had been told before.
    went_back: AtomicU64,
}

impl Book {
    /// The life in which commit `n` must have been made.
    fn life_of(&self, n: u64) -> u64 {
        let later = self.lives.partition_point(|&(first, _)| first <= n);
        self.lives.get(later.wrapping_sub(1)).map_or(0, |&(_, life)| life)
    }
}

// Orderings, here and below: the figures of one client are written by one thread, and all threads have ended when
// they are looked at. What a reader compares with is told over the socket, behind the store. So all are Relaxed,
// but for `read` and `acknowledged`, which other clients compare with while they run: Release and Acquire.
impl Ledger {
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    pub(crate) fn went_back(&self) -> u64 {
        self.went_back.load(Ordering::Relaxed)
    }

    /// How many commits of each client somebody was told of.
    pub(crate) fn told(&self) -> Counts {
        self.books.each_ref().map(|book| {
            let acknowledged = book.acknowledged.load(Ordering::Acquire);
            acknowledged.max(book.read.load(Ordering::Acquire))
        })
    }

    /// How many commits of each client there are, as a client reads it and as it counts from now on.
    pub(crate) fn read_counts(&self, client: &mut Client) -> io::Result<Counts> {
        let before = self.told();
        let counts = counts(client)?;
        self.reads.fetch_add(1, Ordering::Relaxed);
        for ((book, &count), before) in self.books.iter().zip(&counts).zip(before) {
            if count < before {
                self.went_back.fetch_add(1, Ordering::Relaxed);
            }
            book.read.fetch_max(count, Ordering::Release);
        }
        Ok(counts)
    }

    /// Reads one of the last commits of a client, which is whole or, where it was removed meanwhile, not there.
    pub(crate) fn read_one(&self, client: &mut Client, rng: &mut Rng) -> io::Result<bool> {
        let thread = rng.index(WRITERS);
        let count = self.told().get(thread).copied().unwrap_or(0);
        let n = count.saturating_sub(1 + rng.below(WINDOW));
        match client.call(&[b"GET", &key(thread, n)])?.good()? {
            Reply::Bulk(value) => Ok(decode(&value, thread, n).is_some()),
            _ => Ok(true),
        }
    }

    /// Makes commit `n` of a client, which has read `seen`, and notes that it was acknowledged.
    pub(crate) fn commit(&self, client: &mut Client, thread: usize, n: u64, seen: &Counts) -> io::Result<()> {
        let book = self.books.get(thread).ok_or(io::ErrorKind::InvalidInput)?;
        book.sent.fetch_max(n + 1, Ordering::Relaxed);
        let value = value(thread, n, self.life, seen);
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
        book.acknowledged.fetch_max(n + 1, Ordering::Release);
        Ok(())
    }

    /// Looks at everything that a server has, and begins a new life with what is there.
    pub(crate) fn check(&mut self, client: &mut Client) -> io::Result<Findings<WRITERS>> {
        let mut findings = Findings::of(counts(client)?);
        let told = self.told();
        for (thread, (&there, &told)) in findings.counts.clone().iter().zip(&told).enumerate() {
            if there < told {
                findings.lost += told - there;
                findings.say(|| format!("client {thread}: {told} commits were told of, {there} are there"));
            }
            let sent = self
                .books
                .get(thread)
                .map_or(0, |book| book.sent.load(Ordering::Relaxed));
            if there > sent {
                findings.reordered += there - sent;
                findings.say(|| format!("client {thread}: {sent} commits were sent, {there} are there"));
            }
        }
        for thread in 0..WRITERS {
            self.check_thread(client, thread, &mut findings)?;
        }
        check_number_of_keys(client, &mut findings)?;
        self.begin_life(&findings.counts);
        Ok(findings)
    }

    /// The server's store is an empty one from now on.
    pub(crate) fn start_over(&mut self) {
        self.begin_life(&Counts::default());
        self.books.iter_mut().for_each(|book| book.lives.clear());
    }

    /// What is there now is what was told; what is not must never come back.
    fn begin_life(&mut self, counts: &Counts) {
        self.life += 1;
        for (book, &count) in self.books.iter_mut().zip(counts) {
            for figure in [&mut book.sent, &mut book.acknowledged, &mut book.read] {
                *figure.get_mut() = count;
            }
            book.lives.retain(|&(first, _)| first < count);
            book.lives.push((count, self.life));
            // Those of which nothing is left.
            let oldest = book.lives.partition_point(|&(first, _)| first + WINDOW < count);
            book.lives.drain(..oldest.saturating_sub(1));
        }
    }

    fn check_thread(
        &self,
        client: &mut Client,
        thread: usize,
        findings: &mut Findings<WRITERS>,
    ) -> io::Result<()> {
        let count = findings.counts.get(thread).copied().unwrap_or(0);
        let kept = count.saturating_sub(WINDOW)..count;
        for from in kept.clone().step_by(PIECE as usize) {
            let piece = from..kept.end.min(from + PIECE);
            let firsts = values(client, b"0", thread, piece.clone())?;
            let seconds = values(client, b"1", thread, piece.clone())?;
            for ((n, first), second) in piece.zip(firsts).zip(seconds) {
                self.check_commit(thread, n, first, second, findings);
            }
        }
        client.call(&[b"SELECT", b"0"])?.good()?;
        Ok(())
    }

    fn check_commit(
        &self,
        thread: usize,
        n: u64,
        first: Option<Vec<u8>>,
        second: Option<Vec<u8>>,
        findings: &mut Findings<WRITERS>,
    ) {
        let (first, second) = match (first, second) {
            (Some(first), Some(second)) => (first, second),
            (None, None) => {
                findings.lost += 1;
                return findings
                    .say(|| format!("commit {n} of client {thread} is missing, later ones are there"));
            }
            _ => {
                findings.partial += 1;
                return findings.say(|| format!("commit {n} of client {thread} is in one database only"));
            }
        };
        let decoded = decode(&first, thread, n).filter(|_| second == crc(&first).to_le_bytes());
        let Some((life, seen)) = decoded else {
            findings.partial += 1;
            return findings.say(|| format!("commit {n} of client {thread} has a value that is not its own"));
        };
        let made = self.books.get(thread).map_or(0, |book| book.life_of(n));
        if life != made {
            findings.reordered += 1;
            findings.say(|| format!("commit {n} of client {thread} is of life {life}, expected {made}"));
        }
        let there = findings.counts;
        for (other, (&seen, &there)) in seen.iter().zip(&there).enumerate() {
            if seen > there {
                findings.reordered += 1;
                findings.say(|| {
                    format!("commit {n} of client {thread} had read {seen} of client {other}, of which {there} are there")
                });
            }
        }
    }
}

/// Nothing else is there: what was removed is not back.
fn check_number_of_keys(client: &mut Client, findings: &mut Findings<WRITERS>) -> io::Result<()> {
    let lasts = findings.counts.iter().filter(|&&count| count > 0).count() as u64;
    let kept: u64 = findings.counts.iter().map(|&count| count.min(WINDOW)).sum();
    for (database, expected) in [(b"1", kept), (b"0", kept + lasts)] {
        client.call(&[b"SELECT", database])?.good()?;
        let found = match client.call(&[b"DBSIZE"])?.good()? {
            Reply::Number(found) => found.unsigned_abs(),
            other => return Err(io::Error::other(format!("DBSIZE was answered with {other:?}"))),
        };
        if found > expected {
            findings.reordered += found - expected;
            let database = String::from_utf8_lossy(database).into_owned();
            findings.say(|| format!("database {database} has {found} keys, expected {expected}"));
        }
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
    client.call(&words)?.good()?.bulks()
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

/// What commit `n` of a client sets: all of it follows from these four.
fn value(thread: usize, n: u64, life: u64, seen: &Counts) -> Vec<u8> {
    let mut rng = Rng::new((thread as u64) << 48 ^ n);
    let fill = if rng.one_in(64) {
        FILL_LARGE
    } else {
        rng.index(FILL_MAX)
    };
    let mut value = Vec::with_capacity(HEAD + fill + CHECKSUM);
    let words = [thread as u64, n, life].into_iter().chain(seen.iter().copied());
    words.for_each(|word| value.extend_from_slice(&word.to_le_bytes()));
    value.resize(HEAD + fill, 0);
    if let Some(filling) = value.get_mut(HEAD..) {
        rng.fill(filling);
    }
    value.extend_from_slice(&crc(&value).to_le_bytes());
    value
}

/// In which life the value of commit `n` of a client was made, and what it had seen, if it is whole.
fn decode(bytes: &[u8], thread: usize, n: u64) -> Option<(u64, Counts)> {
    let word = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_le_bytes);
    let mut words = bytes.get(16..HEAD)?.chunks_exact(8).map(word);
    let life = words.next()??;
    let mut seen = Counts::default();
    for count in &mut seen {
        *count = words.next()??;
    }
    (value(thread, n, life, &seen) == bytes).then_some((life, seen))
}
