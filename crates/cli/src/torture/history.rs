//! What the writer of the kill test commits, and what must be there of it afterwards.
//!
//! Each thread numbers its commits. Commit `n` of thread `t` is one batch over two families: it puts key
//! `(t, n)` into both, sets `last/t` to `n + 1`, and removes the keys of commit `n − WINDOW`, so that a
//! store stays small however long the test runs. Its value tells which commits of all threads it has read,
//! so that a later check can see whether one is there without what came before it.

use std::path::Path;

use anyhow::Context;
use collie_db::{Batch, Db, Family, FamilyOptions, Options, Snapshot};
use collie_log::Level;
use collie_sim::Rng;

use super::findings::Findings;
use crate::temporary::shared_in;

/// Threads of a writer, each at a level of its own. What `Buffered` commits promise nothing, but others see
/// them.
pub(crate) const LEVELS: [Level; 5] = [
    Level::Disk,
    Level::Process,
    Level::Disk,
    Level::Process,
    Level::Buffered,
];
pub(crate) const THREADS: usize = LEVELS.len();

/// How many of a thread's commits are kept.
pub(crate) const WINDOW: u64 = 500;
/// The longest filling of a value, save for a few that are [`FILL_LARGE`].
const FILL_MAX: usize = 600;
const FILL_LARGE: usize = 20_000;
const CHECKSUM: usize = 4;
/// Thread, number, what was seen.
const HEAD: usize = 8 + 8 + 8 * THREADS;

/// How many commits of each thread there are.
pub(crate) type Counts = [u64; THREADS];

/// The families of a history, in an open store.
#[derive(Debug, Clone)]
pub(crate) struct Tables {
    pub(crate) first: Family,
    second: Family,
}

/// Options under which memtables, segments and the ring are so small that flushes, compactions, rotations
/// and full rings happen all the time.
pub(crate) fn options() -> Options {
    let family = FamilyOptions {
        write_buffer_bytes: 512 << 10,
        table_bytes: 256 << 10,
        ..FamilyOptions::default()
    };
    Options {
        ring_bytes: 1 << 20,
        segment_bytes: 1 << 20,
        max_total_wal_size: Some(8 << 20),
        family_options: vec![(SECOND.to_owned(), family.clone())],
        default_family: family,
        ..Options::default()
    }
}

/// As [`options`], with the ring's file in `rings`.
pub(crate) fn options_with(rings: Option<&Path>) -> Options {
    let options = options();
    Options {
        ring: shared_in(rings, options.ring),
        ..options
    }
}

const SECOND: &str = "second";

impl Tables {
    pub(crate) fn open(db: &Db) -> anyhow::Result<Self> {
        Ok(Self {
            first: db.default_family(),
            second: db.open_family(SECOND, options().default_family)?,
        })
    }

    /// How many commits of each thread the store shows now.
    pub(crate) fn counts(&self) -> anyhow::Result<Counts> {
        let mut counts = Counts::default();
        for (thread, count) in counts.iter_mut().enumerate() {
            if let Some(value) = self.second.get(last_key(thread))? {
                *count = decode(&value).context("a count has not eight bytes")?;
            }
        }
        Ok(counts)
    }

    /// Fills `batch` with commit `n` of a thread, which has seen what `seen` tells.
    pub(crate) fn commit(
        &self,
        batch: &mut Batch,
        thread: usize,
        n: u64,
        seen: &Counts,
    ) -> anyhow::Result<()> {
        let value = value(thread, n, seen);
        batch.clear();
        batch.put(&self.first, key(thread, n), &value)?;
        batch.put(&self.second, key(thread, n), crc(&value).to_le_bytes())?;
        batch.put(&self.second, last_key(thread), (n + 1).to_le_bytes())?;
        if let Some(old) = n.checked_sub(WINDOW) {
            batch.delete(&self.first, key(thread, old))?;
            batch.delete(&self.second, key(thread, old))?;
        }
        Ok(())
    }
}

fn key(thread: usize, n: u64) -> [u8; 10] {
    let mut key = *b"c_........";
    if let ([_, t, number @ ..], Ok(thread)) = (&mut key, u8::try_from(thread)) {
        *t = thread;
        number.copy_from_slice(&n.to_be_bytes());
    }
    key
}

fn last_key(thread: usize) -> String {
    format!("last/{thread}")
}

fn decode(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

fn crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// What commit `n` of a thread puts: all of it follows from these three.
fn value(thread: usize, n: u64, seen: &Counts) -> Vec<u8> {
    let mut rng = Rng::new((thread as u64) << 48 ^ n);
    let fill = if rng.one_in(64) {
        FILL_LARGE
    } else {
        rng.index(FILL_MAX)
    };
    let mut value = Vec::with_capacity(HEAD + fill + CHECKSUM);
    value.extend_from_slice(&(thread as u64).to_le_bytes());
    value.extend_from_slice(&n.to_le_bytes());
    seen.iter()
        .for_each(|count| value.extend_from_slice(&count.to_le_bytes()));
    value.resize(HEAD + fill, 0);
    if let Some(filling) = value.get_mut(HEAD..) {
        rng.fill(filling);
    }
    value.extend_from_slice(&crc(&value).to_le_bytes());
    value
}

/// What the value of commit `n` of a thread says that it has seen, if the value is whole.
fn seen_by(bytes: &[u8], thread: usize, n: u64) -> Option<Counts> {
    let mut words = bytes.get(16..HEAD)?.chunks_exact(8).map(decode);
    let mut seen = Counts::default();
    for count in &mut seen {
        *count = words.next()??;
    }
    (value(thread, n, &seen) == bytes).then_some(seen)
}

impl Findings<THREADS> {
    /// A store that was opened shows fewer commits than were acknowledged.
    pub(crate) fn compare(&mut self, acknowledged: &Counts) {
        for (thread, (&acked, &there)) in acknowledged.iter().zip(&self.counts.clone()).enumerate() {
            if there < acked {
                self.lost += acked - there;
                self.say(|| format!("thread {thread}: {acked} commits were acknowledged, {there} are there"));
            }
        }
    }
}

/// Looks at everything in the store. `acknowledged`: how many commits of each thread were.
pub(crate) fn check(db: &Db, acknowledged: &Counts) -> anyhow::Result<Findings<THREADS>> {
    let tables = Tables::open(db)?;
    let mut findings = Findings::of(tables.counts()?);
    findings.compare(acknowledged);
    let snapshot = db.snapshot();
    for thread in 0..THREADS {
        check_thread(&snapshot, &tables, thread, acknowledged, &mut findings)?;
    }
    Ok(findings)
}

fn check_thread(
    snapshot: &Snapshot,
    tables: &Tables,
    thread: usize,
    acknowledged: &Counts,
    findings: &mut Findings<THREADS>,
) -> anyhow::Result<()> {
    let firsts = numbered(snapshot, &tables.first, thread)?;
    let seconds = numbered(snapshot, &tables.second, thread)?;
    let of = |counts: &Counts| counts.get(thread).copied().unwrap_or(0);
    let (count, acked) = (of(&findings.counts), of(acknowledged));
    let kept = count.saturating_sub(WINDOW)..count;
    let find = |entries: &[(u64, Vec<u8>)], n: u64| {
        let at = entries.binary_search_by_key(&n, |(n, _)| *n).ok()?;
        entries.get(at).map(|(_, value)| value.clone())
    };
    for n in kept.clone() {
        let (first, second) = (find(&firsts, n), find(&seconds, n));
        let (Some(first), Some(second)) = (&first, &second) else {
            if first.is_some() || second.is_some() {
                findings.partial += 1;
                findings
                    .say(|| format!("commit {n} of thread {thread} is in one family and not in the other"));
            } else if n < acked {
                findings.lost += 1;
                findings.say(|| format!("commit {n} of thread {thread} was acknowledged and is lost"));
            } else {
                findings.reordered += 1;
                findings.say(|| format!("commit {n} of thread {thread} is missing, later ones are there"));
            }
            continue;
        };
        let seen = seen_by(first, thread, n);
        let Some(seen) = seen.filter(|_| *second == crc(first).to_le_bytes()) else {
            findings.partial += 1;
            findings.say(|| format!("commit {n} of thread {thread} has a value that is not its own"));
            continue;
        };
        let there = findings.counts;
        for (other, (&seen, &there)) in seen.iter().zip(&there).enumerate() {
            if seen > there {
                findings.reordered += 1;
                findings.say(|| {
                    format!("commit {n} of thread {thread} had seen {seen} of thread {other}, of which {there} are there")
                });
            }
        }
    }
    let strays = firsts.iter().chain(&seconds).filter(|(n, _)| !kept.contains(n));
    for (n, _) in strays {
        findings.reordered += 1;
        findings.say(|| {
            let kept = &kept;
            format!("commit {n} of thread {thread} is there, but only {kept:?} should be")
        });
    }
    Ok(())
}

/// A thread's commits in a family, by number.
fn numbered(snapshot: &Snapshot, family: &Family, thread: usize) -> anyhow::Result<Vec<(u64, Vec<u8>)>> {
    let prefix = key(thread, 0);
    let prefix = prefix.get(..2).unwrap_or_default();
    let mut entries = Vec::new();
    for entry in snapshot.prefix(family, prefix)? {
        let (key, value) = entry?;
        let number = key.get(2..).and_then(|bytes| bytes.try_into().ok());
        let number = number.context("a key is not one of the test's")?;
        entries.push((u64::from_be_bytes(number), value.to_vec()));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use collie_db::WriteOptions;

    fn store(commits: u64) -> (tempfile::TempDir, Db, Tables) {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path().join("store"), options()).unwrap();
        let tables = Tables::open(&db).unwrap();
        let mut batch = Batch::new();
        for n in 0..commits {
            for thread in 0..THREADS {
                let seen = tables.counts().unwrap();
                tables.commit(&mut batch, thread, n, &seen).unwrap();
                db.write_ref(&batch, &WriteOptions::buffered()).unwrap();
            }
        }
        (dir, db, tables)
    }

    #[test]
    fn a_whole_history_passes_the_check() {
        for commits in [0, 3, WINDOW + 7] {
            let (_dir, db, _) = store(commits);
            let findings = check(&db, &[commits; THREADS]).unwrap();
            assert_eq!(
                (findings.lost, findings.partial, findings.reordered),
                (0, 0, 0),
                "{findings:?}"
            );
            assert_eq!(findings.counts, [commits; THREADS]);
        }
    }

    #[test]
    fn every_kind_of_violation_is_found() {
        let write = WriteOptions::buffered();
        let (_dir, db, tables) = store(10);
        let findings = check(&db, &[11, 10, 10, 10, 10]).unwrap();
        assert_eq!(
            (findings.lost, findings.partial, findings.reordered),
            (1, 0, 0),
            "{findings:?}"
        );

        tables.second.delete_with(key(1, 4), &write).unwrap();
        let findings = check(&db, &[10; THREADS]).unwrap();
        assert_eq!(
            (findings.lost, findings.partial, findings.reordered),
            (0, 1, 0),
            "{findings:?}"
        );

        tables.first.delete_with(key(1, 4), &write).unwrap();
        let findings = check(&db, &[10; THREADS]).unwrap();
        assert_eq!(
            (findings.lost, findings.partial, findings.reordered),
            (1, 0, 0),
            "{findings:?}"
        );
        let findings = check(&db, &[0; THREADS]).unwrap();
        assert_eq!(
            (findings.lost, findings.partial, findings.reordered),
            (0, 0, 1),
            "{findings:?}"
        );

        tables
            .first
            .put_with(key(2, 5), "something else", &write)
            .unwrap();
        let findings = check(&db, &[0; THREADS]).unwrap();
        assert_eq!(
            (findings.lost, findings.partial, findings.reordered),
            (0, 1, 1),
            "{findings:?}"
        );

        // Thread 0 goes back before commit 3, which all later ones have seen.
        let (_dir, db, tables) = store(10);
        for n in 3..10 {
            tables.first.delete_with(key(0, n), &write).unwrap();
            tables.second.delete_with(key(0, n), &write).unwrap();
        }
        tables
            .second
            .put_with(last_key(0), 3_u64.to_le_bytes(), &write)
            .unwrap();
        let findings = check(&db, &[0; THREADS]).unwrap();
        assert_eq!((findings.lost, findings.partial), (0, 0));
        assert!(findings.reordered >= 6 * 4, "{findings:?}");

        // A commit that was removed is back.
        let (_dir, db, tables) = store(WINDOW + 3);
        tables.first.put_with(key(3, 1), "risen", &write).unwrap();
        let findings = check(&db, &[WINDOW + 3; THREADS]).unwrap();
        assert_eq!(
            (findings.lost, findings.partial, findings.reordered),
            (0, 0, 1),
            "{findings:?}"
        );
    }
}
