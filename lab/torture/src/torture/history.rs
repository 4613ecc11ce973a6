//! What the writer of the kill test commits, and how it is read back for the ledger.
//!
//! Each thread is one of the ledger's [`Clients`]: commit `n` of thread `t` is one batch over two
//! families. It puts key `(t, n)` into both, sets `last/t` to `n + 1`, and removes the keys of
//! commit `n − WINDOW`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use collie_check::ledger::{self, Clients, Found};
use collie_db::{Batch, Db, Family, FamilyOptions, Options, Snapshot};
use collie_log::Level;

use crate::temporary::shared_in;

/// Threads of a writer, each at a level of its own. What `Buffered` commits are acknowledged for is
/// nothing, but others see them.
pub(crate) const LEVELS: [Level; 5] = [
    Level::Disk,
    Level::Process,
    Level::Disk,
    Level::Process,
    Level::Buffered,
];
pub(crate) const THREADS: usize = LEVELS.len();

/// How many of a thread's commits are kept.
const WINDOW: u64 = 500;
/// The longest filling of a value, save for a few.
const FILL_MAX: usize = 600;
/// A number would distinguish one writer's life from the next; a writer does not know it.
const LIFE: u64 = 0;

/// How many commits of each thread there are.
pub(crate) type Counts = ledger::Counts<THREADS>;

/// The threads of an empty store.
pub(crate) fn threads() -> Clients<THREADS> {
    Clients::new(WINDOW, FILL_MAX)
}

/// The families of a history, in an open store.
#[derive(Debug, Clone)]
pub(crate) struct Tables {
    pub(crate) first: Family,
    second: Family,
}

/// Options under which memtables, segments and the ring are so small that flushes, compactions,
/// rotations and full rings happen all the time.
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

    /// Fills `batch` with commit `n` of a thread, which has read `seen`.
    pub(crate) fn commit(
        &self,
        batch: &mut Batch,
        thread: usize,
        n: u64,
        seen: &Counts,
    ) -> anyhow::Result<()> {
        let value = ledger::value((thread, n), LIFE, seen, FILL_MAX);
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

/// Everything that is in the store.
pub(crate) fn read(db: &Db) -> anyhow::Result<Found<THREADS>> {
    let tables = Tables::open(db)?;
    let (threads, snapshot) = (threads(), db.snapshot());
    let mut found = Found::new(tables.counts()?);
    for thread in 0..THREADS {
        let mut entries = BTreeMap::<u64, [Option<Vec<u8>>; 2]>::new();
        for (n, value) in numbered(&snapshot, &tables.first, thread)? {
            entries.entry(n).or_default()[0] = Some(value);
        }
        for (n, value) in numbered(&snapshot, &tables.second, thread)? {
            entries.entry(n).or_default()[1] = Some(value);
        }
        if let Some(last) = found.counts.get(thread).and_then(|count| count.checked_sub(1)) {
            entries.entry(last).or_default();
        }
        for (n, [first, second]) in entries {
            let sum = first.as_deref().map_or(0, crc).to_le_bytes();
            let agrees = second.map(|second| second == sum);
            threads.add(&mut found, (thread, n), first.as_deref(), agrees);
        }
    }
    Ok(found)
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
    use collie_check::{Promise, Survives, Verdict};
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

    /// What the ledger says of the store after a kill.
    fn check(db: &Db, acknowledged: &Counts) -> Verdict {
        let (mut threads, found) = (threads(), read(db).unwrap());
        threads.sent(&found.counts);
        threads.acknowledged(acknowledged, Promise::Process);
        threads.check(Survives::Process, &found)
    }

    fn counts(verdict: &Verdict) -> (u64, u64, u64) {
        (verdict.lost, verdict.partial, verdict.reordered)
    }

    #[test]
    fn a_whole_history_passes_the_check() {
        for commits in [0, 3, WINDOW + 7] {
            let (_dir, db, _) = store(commits);
            let verdict = check(&db, &[commits; THREADS]);
            assert_eq!(counts(&verdict), (0, 0, 0), "{verdict}");
            assert_eq!(verdict.recovered, commits * THREADS as u64);
        }
    }

    #[test]
    fn every_kind_of_violation_is_found() {
        let write = WriteOptions::buffered();
        let (_dir, db, tables) = store(10);
        let verdict = check(&db, &[11, 10, 10, 10, 10]);
        assert_eq!(counts(&verdict), (1, 0, 0), "{verdict}");
        let mut threads = threads();
        threads.acknowledged(&[11, 10, 10, 10, 10], Promise::Process);
        let verdict = threads.check_counts(Survives::Process, &[10; THREADS]);
        assert_eq!(counts(&verdict), (1, 0, 0), "by the counters alone: {verdict}");
        let verdict = threads.check_counts(Survives::Process, &[10; THREADS]);
        assert_eq!(counts(&verdict), (0, 0, 0), "it is counted once: {verdict}");

        tables.second.delete_with(key(1, 4), &write).unwrap();
        let verdict = check(&db, &[10; THREADS]);
        assert_eq!(counts(&verdict), (0, 1, 0), "{verdict}");

        // It is lost, and the next one of its thread had seen it.
        tables.first.delete_with(key(1, 4), &write).unwrap();
        let verdict = check(&db, &[10; THREADS]);
        assert_eq!(verdict.lost, 1, "{verdict}");
        assert!(verdict.reordered > 0, "{verdict}");
        let verdict = check(&db, &[0; THREADS]);
        assert_eq!((verdict.lost, verdict.partial), (0, 0), "{verdict}");
        assert!(verdict.reordered > 0, "{verdict}");
        let before = verdict.reordered;

        tables
            .first
            .put_with(key(2, 5), "something else", &write)
            .unwrap();
        let verdict = check(&db, &[0; THREADS]);
        assert_eq!((verdict.lost, verdict.partial), (0, 1), "{verdict}");
        assert!((1..=before).contains(&verdict.reordered), "{verdict}");

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
        let verdict = check(&db, &[0; THREADS]);
        assert_eq!((verdict.lost, verdict.partial), (0, 0), "{verdict}");
        assert!(verdict.reordered >= 6 * 4, "{verdict}");

        // The last one is not there, and its counter is.
        let (_dir, db, tables) = store(10);
        tables.first.delete_with(key(4, 9), &write).unwrap();
        tables.second.delete_with(key(4, 9), &write).unwrap();
        let verdict = check(&db, &[0; THREADS]);
        assert_eq!(counts(&verdict), (0, 1, 0), "{verdict}");

        // A commit that was removed is back.
        let (_dir, db, tables) = store(WINDOW + 3);
        tables.first.put_with(key(3, 1), "risen", &write).unwrap();
        let verdict = check(&db, &[WINDOW + 3; THREADS]);
        assert_eq!(counts(&verdict), (0, 0, 1), "{verdict}");
    }
}
