//! A log for tests, in memory, that loses in a crash what it was not asked to make durable.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use collie_db::{Batch, Db, ExternalJournal, Journal, Options};
use parking_lot::{Condvar, Mutex};

/// The content of a store.
pub(crate) type Map = BTreeMap<Vec<u8>, Vec<u8>>;
/// Writes of one commit: keys with their values, `None` for a delete.
pub(crate) type Writes = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// The least sequence number.
pub(crate) const FIRST: u64 = 1 << 32;

#[derive(Debug, Default)]
pub(crate) struct TestJournal {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<u64, Writes>,
    durable: u64,
    /// It becomes durable by [`TestJournal::sync`] alone, and not when it is waited for.
    held: bool,
    failed: Option<String>,
    /// The highest that was waited for.
    asked: u64,
    /// What it was told to be flushed.
    told: Vec<u64>,
    /// Keys that begin with this are not kept.
    unneeded: Option<Vec<u8>>,
}

impl ExternalJournal for TestJournal {
    fn durable(&self) -> u64 {
        self.state.lock().durable
    }

    fn wait_durable(&self, seq: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        assert!(
            state.entries.contains_key(&seq),
            "{seq} was waited for and is no entry"
        );
        state.asked = state.asked.max(seq);
        self.changed.notify_all();
        loop {
            if let Some(failed) = &state.failed {
                return Err(io::Error::other(failed.clone()));
            }
            if !state.held {
                state.durable = state.durable.max(seq);
            }
            if state.durable >= seq {
                return Ok(());
            }
            self.changed.wait(&mut state);
        }
    }

    fn flushed(&self, seq: u64) {
        self.state.lock().told.push(seq);
    }

    fn keeps(&self, key: &[u8]) -> bool {
        let state = self.state.lock();
        !state
            .unneeded
            .as_ref()
            .is_some_and(|prefix| key.starts_with(prefix))
    }
}

impl TestJournal {
    /// Appends an entry, and applies it.
    pub(crate) fn apply(&self, db: &Db, seq: u64, writes: Writes) -> collie_db::Result<()> {
        let batch = batch(db, &writes);
        self.append(seq, writes);
        db.apply(&batch, seq)
    }

    pub(crate) fn append(&self, seq: u64, writes: Writes) {
        self.state.lock().entries.insert(seq, writes);
    }

    /// The last entry.
    pub(crate) fn last(&self) -> u64 {
        let state = self.state.lock();
        state.entries.keys().next_back().copied().unwrap_or(FIRST - 1)
    }

    /// The entries above `seq`.
    pub(crate) fn above(&self, seq: u64) -> Vec<(u64, Writes)> {
        let state = self.state.lock();
        let entries = state.entries.range(seq + 1..);
        entries.map(|(seq, writes)| (*seq, writes.clone())).collect()
    }

    /// What a store holds that has applied everything up to `seq`.
    pub(crate) fn map_at(&self, seq: u64) -> Map {
        let mut map = Map::new();
        for writes in self.state.lock().entries.range(..=seq).map(|(_, writes)| writes) {
            for (key, value) in writes {
                match value {
                    Some(value) => drop(map.insert(key.clone(), value.clone())),
                    None => drop(map.remove(key)),
                }
            }
        }
        map
    }

    /// It becomes durable by [`TestJournal::sync`] alone until the result is dropped, also by a test
    /// that fails.
    pub(crate) fn hold(&self) -> Held<'_> {
        self.state.lock().held = true;
        Held(self)
    }

    /// Keys that begin so are needed no more.
    pub(crate) fn let_go(&self, prefix: &[u8]) {
        self.state.lock().unneeded = Some(prefix.to_vec());
    }

    /// All of it is durable.
    pub(crate) fn sync(&self) {
        let mut state = self.state.lock();
        state.durable = state.entries.keys().next_back().copied().unwrap_or(0);
        self.changed.notify_all();
    }

    pub(crate) fn fail(&self, cause: &str) {
        self.state.lock().failed = Some(cause.into());
        self.changed.notify_all();
    }

    /// As good as new, but for what was durable.
    pub(crate) fn heal(&self) {
        self.state.lock().failed = None;
    }

    /// A power cut: what is not durable is gone.
    pub(crate) fn crash(&self) {
        let mut state = self.state.lock();
        let durable = state.durable;
        state.entries.retain(|seq, _| *seq <= durable);
    }

    /// Blocks until a flush waits for `seq` or more.
    pub(crate) fn await_flush(&self, seq: u64) {
        const PATIENCE: Duration = Duration::from_secs(20);
        let mut state = self.state.lock();
        while state.asked < seq {
            let timed_out = self.changed.wait_for(&mut state, PATIENCE).timed_out();
            assert!(!timed_out, "no flush waits for {seq}");
        }
    }

    pub(crate) fn told(&self) -> Vec<u64> {
        self.state.lock().told.clone()
    }

    /// Applies what `db` lacks.
    pub(crate) fn reapply(&self, db: &Db) {
        for (seq, writes) in self.above(db.flushed()) {
            db.apply(&batch(db, &writes), seq).unwrap();
        }
    }
}

pub(crate) struct Held<'a>(&'a TestJournal);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.state.lock().held = false;
        self.0.changed.notify_all();
    }
}

pub(crate) fn batch(db: &Db, writes: &Writes) -> Batch {
    let mut batch = Batch::new();
    let family = db.default_family();
    for (key, value) in writes {
        match value {
            Some(value) => batch.put(&family, key, value).unwrap(),
            None => batch.delete(&family, key).unwrap(),
        }
    }
    batch
}

/// One key set to one value.
pub(crate) fn put(key: &str, value: &str) -> Writes {
    vec![(key.into(), Some(value.into()))]
}

/// Small memtables, and commits from `journal`.
pub(crate) fn options(journal: &Arc<TestJournal>) -> Options {
    Options {
        journal: Journal::External(journal.clone()),
        reserve_bytes: Some(0),
        ..crate::common::small()
    }
}

pub(crate) fn open(path: &Path, journal: &Arc<TestJournal>) -> Db {
    try_open(path, journal).unwrap()
}

pub(crate) fn try_open(path: &Path, journal: &Arc<TestJournal>) -> collie_db::Result<Db> {
    Db::open(path, options(journal))
}

/// All that is in the store.
pub(crate) fn content(db: &Db) -> Map {
    let entries = db.iter().unwrap();
    let pairs = entries.map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())));
    pairs.collect::<collie_db::Result<_>>().unwrap()
}
