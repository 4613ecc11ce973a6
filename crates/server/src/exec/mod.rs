//! The operations that commands are made of: reading a key, and changing it while its lock is held.
//!
//! Every change goes through [`Exec::store`] or [`Exec::remove`], so that the key, its entry in the
//! expiry index, the counts of the database and the watches on the key change together. They write
//! to the engine at its weakest level, which applies the write and returns; the connection waits
//! for durability before it sends the reply. Inside a [transaction](crate::exec_batch) they write
//! to the transaction's changes instead, and reads check these first.

mod changes;
mod merge;
mod transaction;
mod values;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use collie_db::{Error as DbError, ReadOptions, Snapshot, Value};
use collie_protocol::ReplyBuffer;
use tokio::sync::watch;

use crate::cost::{Aside, HEAVY, LARGE, LOOKUP};
use crate::data::keyspace::{DATABASES, Keyspace};
use crate::data::locks::{Held, LOCKED_ONE_BY_ONE, Waiting};
use crate::data::value::{self, Body, Header, Pieces};
use crate::exec_batch::{Database, Pending, StoreTransaction};
use crate::failure::Failure;
use crate::session::{Session, Shared};

pub(crate) use changes::PAUSED;
pub(crate) use transaction::Transaction;

/// One command under way.
pub(crate) struct Exec<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) session: &'a mut Session,
    pub(crate) reply: &'a mut ReplyBuffer,
    /// The current time, the same for the whole command.
    pub(crate) now_ms: u64,
    /// Whether it runs on a thread that may block.
    pub(crate) may_block: bool,
    /// Whether it may return [`Flow::Later`]: not once it has waited for long enough.
    pub(crate) may_wait: bool,
    /// The bytes that it has worked on so far.
    pub(crate) weight: usize,
    /// What to count for it in the statistics, once it is certain that it will not run again aside.
    pub(crate) noted: Noted,
    /// The transaction that the command is a part of: that of `EXEC`, or of a command that changes
    /// several keys. In a cluster each command that names keys is in one.
    pub(crate) transaction: Option<Transaction<'a>>,
}

/// What the connection does after a command.
#[derive(Debug)]
pub(crate) enum Flow {
    /// Executes the next command; the reply is encoded.
    Next,
    /// Sends what is encoded and closes.
    Close,
    /// Does work that would take a thread for too long, and encodes the reply then.
    Deferred(Deferred),
    /// Runs the command again on a thread that may block: it has done nothing yet.
    Aside(Aside),
    /// Sends the replies before it, waits, and runs the command again: it has done nothing yet.
    Later(Later),
}

/// What a command waits for that cannot run yet, see [`Flow::Later`].
#[derive(Debug)]
pub(crate) enum Later {
    /// For a thread that may block: so many commands wait on those that it would keep one from a
    /// command that need not wait. It is tried again after a moment.
    Thread,
    /// In a cluster, for the commands before it of the same connection: it reads only what is applied.
    Settled,
    /// In a cluster, for a change of it that is newer than what this receiver has seen, at most for so
    /// long.
    Change {
        changes: watch::Receiver<u64>,
        limit: Duration,
    },
}

/// Work that would take a thread that serves connections for too long. The connection's task does
/// it on other threads, or waits without a thread.
#[derive(Debug)]
pub(crate) enum Deferred {
    /// `SELECT` of a database that has no family yet.
    Select(u8),
    /// `KEYS` with its pattern.
    Keys(Vec<u8>),
    /// `DBSIZE` while keys are being counted.
    Size(Arc<Keyspace>),
    /// `INFO` with these sections. The engine's statistics wait for writers that are stalled.
    Info(Vec<String>),
    /// `WAITAOF`: whether the own log is to be waited for, and for how many milliseconds, 0 meaning
    /// for ever.
    Local {
        wanted: bool,
        replicas: i64,
        timeout_ms: u64,
    },
    /// `WAIT` for more replicas than there are: milliseconds, 0 meaning for ever, and how many there
    /// are.
    Replicas { timeout_ms: u64, held: i64 },
}

/// What to count in the statistics for a command, or for all commands of an `EXEC`.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    hits: u64,
    misses: u64,
    pub(crate) failures: u64,
    /// Number of the command in the table, whether it failed, and the time that it took.
    pub(crate) calls: Vec<(usize, bool, u64)>,
}

/// How a command ends.
pub(crate) type Outcome = Result<Flow, Failure>;

/// A stored key. [`Exec::payload`] and [`Exec::part`] return its value.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    row: Value,
    pub(crate) header: Header,
    /// Where its pieces are read, if it has some and its lock is not held: others may change them.
    at: Option<At>,
}

/// A moment of a keyspace.
#[derive(Debug, Clone)]
struct At {
    snapshot: Snapshot,
    keyspace: Arc<Keyspace>,
}

impl Found {
    /// The length of the user's value, in bytes.
    pub(crate) fn len(&self) -> usize {
        match self.header.body {
            Body::Inline { start } => self.row.len() - start,
            Body::Pieces(pieces) => pieces.len,
        }
    }

    fn pieces(&self) -> Option<Pieces> {
        match self.header.body {
            Body::Inline { .. } => None,
            Body::Pieces(pieces) => Some(pieces),
        }
    }
}

/// What is stored at a key whose lock is held, expired or not.
#[derive(Debug, Clone)]
pub(crate) struct Prior {
    stored: Option<Found>,
    is_live: bool,
}

impl Prior {
    /// The key, if it exists and has not expired.
    pub(crate) fn live(&self) -> Option<&Found> {
        self.stored.as_ref().filter(|_| self.is_live)
    }

    /// The expiry of a live key.
    pub(crate) fn live_expiry(&self) -> Option<u64> {
        self.live().and_then(|found| found.header.expiry_ms)
    }

    /// Whether the stored key has expired.
    pub(crate) fn is_expired(&self) -> bool {
        self.stored.is_some() && !self.is_live
    }

    /// How the numbers of keys, and of keys with an expiry, change if the key will exist
    /// (`is_there`), with that expiry, or not.
    fn difference(&self, is_there: bool, expiry_ms: Option<u64>) -> (i64, i64) {
        let keys = i64::from(is_there) - i64::from(self.stored.is_some());
        let expiring = i64::from(expiry_ms.is_some()) - i64::from(self.stored_expiry().is_some());
        (keys, expiring)
    }

    /// The pieces of what is stored, expired or not.
    fn stored_pieces(&self) -> Option<Pieces> {
        self.stored.as_ref().and_then(Found::pieces)
    }

    /// The number of the value that is stored, if it has pieces, and theirs.
    fn all_pieces(&self) -> Option<(u64, Range<usize>)> {
        self.stored_pieces().map(|pieces| (pieces.id, pieces.all()))
    }

    /// The number of the value that is stored, if what replaces it does not have it.
    fn freed(&self, by: Option<u64>) -> Option<u64> {
        let before = self.stored_pieces().map(|pieces| pieces.id);
        before.filter(|_| before != by)
    }

    fn stored_expiry(&self) -> Option<u64> {
        self.stored.as_ref().and_then(|found| found.header.expiry_ms)
    }
}

impl<'a> Exec<'a> {
    /// A command on the connection's own thread, outside of any transaction.
    pub(crate) fn new(
        shared: &'a Shared,
        session: &'a mut Session,
        reply: &'a mut ReplyBuffer,
        now_ms: u64,
    ) -> Exec<'a> {
        Exec {
            shared,
            session,
            reply,
            now_ms,
            may_block: false,
            may_wait: true,
            weight: 0,
            noted: Noted::default(),
            transaction: None,
        }
    }

    /// Adds bytes that the command reads or writes, or the equivalent of other work, to its weight.
    /// Called before anything is changed: a command that becomes too heavy for a thread that serves
    /// connections fails here with [`Failure::Aside`], and is run again aside.
    pub(crate) fn weigh(&mut self, bytes: usize) -> Result<(), Failure> {
        self.weight = self.weight.saturating_add(bytes);
        if self.weight >= HEAVY && !self.may_block {
            return Err(Failure::Aside(Aside::Heavy(self.weight)));
        }
        Ok(())
    }

    /// As [`weigh`](Exec::weigh), for bytes that are written at once.
    fn weigh_write(&mut self, bytes: usize) -> Result<(), Failure> {
        if bytes >= LARGE && !self.may_block {
            return Err(Failure::Aside(Aside::Heavy(self.weight.saturating_add(bytes))));
        }
        self.weigh(bytes)
    }

    fn waiting(&self) -> Waiting {
        if self.may_block {
            Waiting::Allowed
        } else {
            Waiting::GoesAside
        }
    }

    /// Takes the lock of a key. What is read and written until the guard is dropped is one step to
    /// all other connections. In a transaction there is nothing to do: it holds the locks of all
    /// its keys.
    pub(crate) fn lock(&mut self, key: &[u8]) -> Result<Option<Held<'a>>, Failure> {
        let waiting = self.waiting();
        let store = &self.shared.store;
        let session = &mut *self.session;
        value::data_key(&mut session.scratch.key, key);
        if let Some(transaction) = &self.transaction {
            debug_assert!(transaction.covers(self.shared, session.db, &session.scratch.key));
            return Ok(None);
        }
        session.refresh(store);
        let family = &session.keyspace.family;
        let (owner, row) = (&mut session.owner, &session.scratch.key);
        let held = store.locks.one(&store.db, owner, family, row, waiting)?;
        if store.generation() == session.generation {
            return Ok(Some(held));
        }
        drop(held);
        let _guard = store.locks.lock_shared(waiting)?;
        session.refresh(store);
        let family = &session.keyspace.family;
        let (owner, row) = (&mut session.owner, &session.scratch.key);
        Ok(Some(store.locks.one(&store.db, owner, family, row, waiting)?))
    }

    /// Takes the locks of several keys, see [`lock`](Exec::lock).
    pub(crate) fn lock_several<'k>(
        &mut self,
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> Result<Option<Held<'a>>, Failure> {
        if self.transaction.is_some() {
            return Ok(None);
        }
        let db = self.session.db;
        let held = self.lock_keys(keys.map(|key| (db, key)))?;
        self.session.refresh(&self.shared.store);
        Ok(Some(held))
    }

    /// Takes the locks of keys of any databases, or the lock on all keys if there are very many.
    /// The databases have been selected before.
    pub(crate) fn lock_keys<'k>(
        &mut self,
        keys: impl Iterator<Item = (u8, &'k [u8])>,
    ) -> Result<Held<'a>, Failure> {
        let store = &self.shared.store;
        let mut names = Vec::new();
        for (db, key) in keys {
            let mut name = Vec::with_capacity(key.len() + 1);
            value::data_key(&mut name, key);
            names.push((db, name));
        }
        if names.len() > LOCKED_ONE_BY_ONE {
            names.sort_unstable();
            names.dedup();
        }
        let waiting = self.waiting();
        if names.len() > LOCKED_ONE_BY_ONE {
            if waiting == Waiting::GoesAside {
                return Err(Failure::Aside(Aside::Waits));
            }
            let (held, _) = store.lock_all(&mut self.session.owner, Vec::new)?;
            return Ok(held);
        }
        let guard = store.locks.lock_shared(waiting)?;
        let mut keyspaces = [const { None }; DATABASES as usize];
        for (db, keyspace) in store.keyspaces() {
            if let Some(slot) = keyspaces.get_mut(usize::from(db)) {
                *slot = Some(keyspace);
            }
        }
        let rows = names.iter().filter_map(|(db, name)| {
            let keyspace: Option<&Arc<Keyspace>> = keyspaces.get(usize::from(*db))?.as_ref();
            debug_assert!(keyspace.is_some(), "keys of a database that was never selected");
            Some((&keyspace?.family, &**name))
        });
        let owner = &mut self.session.owner;
        store.locks.several(guard, &store.db, owner, rows, waiting)
    }

    /// Makes several changes as one commit: in the current transaction, or in one of its own, which
    /// locks the keys.
    pub(crate) fn step<'k, T>(
        &mut self,
        keys: impl Iterator<Item = (u8, &'k [u8])>,
        work: impl FnOnce(&mut Exec<'a>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if self.transaction.is_some() {
            return work(self);
        }
        let held = self.lock_keys(keys)?;
        self.begin(held, Vec::new());
        let done = work(self);
        self.finish(done.is_ok())?;
        done
    }

    /// Begins a transaction that owns the locks `held`.
    pub(crate) fn begin(&mut self, held: Held<'a>, spare: Vec<Arc<Keyspace>>) {
        self.session.refresh(&self.shared.store);
        self.transaction = Some(Transaction::Store(StoreTransaction::new(held, spare)));
    }

    /// Ends the transaction of [`begin`](Exec::begin): commits it or drops its changes.
    pub(crate) fn finish(&mut self, commit: bool) -> Result<(), Failure> {
        let Some(Transaction::Store(transaction)) = self.transaction.take() else {
            return Ok(());
        };
        if !commit {
            transaction.abandon(self.shared);
            return Ok(());
        }
        let replaced = transaction.commit(self.shared)?;
        self.session.note(replaced.end);
        self.session.refresh(&self.shared.store);
        if !replaced.old.is_empty() {
            self.session.replaced = Some(replaced);
        }
        Ok(())
    }

    /// Waits while the engine's background work lags behind, for what the command has written. To be
    /// called when it has released its locks: others would wait for these meanwhile.
    pub(crate) fn throttle(&mut self) {
        let unthrottled = std::mem::take(&mut self.session.unthrottled);
        if unthrottled > 0 {
            self.session.keyspace.family.throttle(unthrottled);
        }
    }

    /// The session's database, with the transaction's changes.
    pub(crate) fn database(&mut self) -> Option<&mut Database> {
        let db = self.session.db;
        match &mut self.transaction {
            Some(Transaction::Store(transaction)) => transaction.database(self.shared, db),
            Some(Transaction::Partition(_)) | None => None,
        }
    }

    /// What the transaction is going to write to the session's database.
    fn pending(&mut self) -> Option<&mut Pending> {
        let db = self.session.db;
        self.transaction.as_mut()?.pending(self.shared, db)
    }

    /// A snapshot for several reads that must fit together. A transaction needs none: its locks keep
    /// other writers from what it reads.
    pub(crate) fn snapshot(&self) -> Option<Snapshot> {
        let is_inside = self.transaction.is_some();
        (!is_inside).then(|| self.shared.store.db.snapshot())
    }

    /// Reads the engine's key in the session's scratch memory. The transaction's own changes are
    /// not in the log yet; they count as seen when it commits.
    fn read(&mut self, snapshot: Option<&Snapshot>) -> Result<Option<Value>, Failure> {
        let (shared, db) = (self.shared, self.session.db);
        let is_inside = self.transaction.is_some();
        let family = match &mut self.transaction {
            Some(Transaction::Partition(transaction)) => {
                return Ok(transaction.get(&self.session.scratch.key)?);
            }
            Some(Transaction::Store(transaction)) => {
                let Some(database) = transaction.database(shared, db) else {
                    return Ok(None);
                };
                if let Some(changed) = database.pending.changes.get(&self.session.scratch.key) {
                    return Ok(changed.clone());
                }
                &database.keyspace.family
            }
            None => &self.session.keyspace.family,
        };
        let read = match snapshot {
            Some(snapshot) if !is_inside => snapshot.get_with(family, &self.session.scratch.key)?,
            // Inside a transaction the locks keep other writers from what is read.
            Some(_) | None => family.get_with(&self.session.scratch.key, &ReadOptions::default())?,
        };
        self.session.note(read.seen);
        self.session.note_database(&self.shared.store)?;
        Ok(read.value)
    }

    fn read_anew(&mut self, snapshot: Option<&Snapshot>) -> Result<Option<Value>, Failure> {
        let mut read = self.read(snapshot);
        // The database was emptied after this command began: read its new keyspace.
        if let Err(Failure::Engine(DbError::FamilyDropped { .. })) = read {
            self.session.refresh(&self.shared.store);
            read = self.read(snapshot);
        }
        // The new family is newer than the snapshot: read its latest version.
        if let Err(Failure::Engine(DbError::FamilyTooNew { .. })) = read {
            read = self.read(None);
        }
        read
    }

    /// Reads a key without its lock. An expired key is removed and not found.
    pub(crate) fn find(&mut self, key: &[u8]) -> Result<Option<Found>, Failure> {
        value::data_key(&mut self.session.scratch.key, key);
        let stored = self.read_anew(None)?;
        let found = self.found_if_live(key, stored)?;
        if self.transaction.is_some() || found.as_ref().is_none_or(|found| found.pieces().is_none()) {
            return Ok(found);
        }
        // Row and pieces have to fit together.
        let snapshot = self.snapshot();
        self.find_at(snapshot.as_ref(), key)
    }

    /// Reads a key as it was at a [snapshot](Exec::snapshot).
    pub(crate) fn find_at(
        &mut self,
        snapshot: Option<&Snapshot>,
        key: &[u8],
    ) -> Result<Option<Found>, Failure> {
        value::data_key(&mut self.session.scratch.key, key);
        let stored = self.read_anew(snapshot)?;
        let mut found = self.found_if_live(key, stored)?;
        if let Some(found) = found.as_mut().filter(|found| found.pieces().is_some()) {
            let keyspace = &self.session.keyspace;
            found.at = snapshot.map(|snapshot| At {
                snapshot: snapshot.clone(),
                keyspace: Arc::clone(keyspace),
            });
        }
        Ok(found)
    }

    fn found_if_live(&mut self, key: &[u8], stored: Option<Value>) -> Result<Option<Found>, Failure> {
        let Some(stored) = stored else {
            self.weigh(LOOKUP)?;
            return Ok(None);
        };
        let header = value::read_header(&stored)?;
        if self.has_expired(&header) {
            self.expire_in_passing(key);
            return Ok(None);
        }
        self.weigh(LOOKUP + stored.len())?;
        Ok(Some(Found {
            row: stored,
            header,
            at: None,
        }))
    }

    /// Whether a key has expired by the time of the command. If so, that is recorded in its partition.
    fn has_expired(&mut self, header: &Header) -> bool {
        let expired = header.expiry_ms.filter(|_| header.is_expired(self.now_ms));
        if let (Some(expiry_ms), Some(Transaction::Partition(transaction))) = (expired, &mut self.transaction)
        {
            transaction.expired(expiry_ms);
        }
        expired.is_some()
    }

    /// Counts a read for `keyspace_hits` and `keyspace_misses`.
    pub(crate) fn count_lookup(&mut self, found: bool) {
        if found {
            self.noted.hits += 1;
        } else {
            self.noted.misses += 1;
        }
    }

    /// Adds what was noted to the statistics.
    pub(crate) fn count_noted(&mut self) {
        let noted = std::mem::take(&mut self.noted);
        let counters = &self.shared.counters;
        for (counter, more) in [
            (&counters.hits, noted.hits),
            (&counters.misses, noted.misses),
            (&counters.commands_failed, noted.failures),
        ] {
            if more > 0 {
                counter.add(more);
            }
        }
        let tally = &mut self.session.tally;
        for (number, has_failed, took_ns) in noted.calls {
            tally.note(number, has_failed, took_ns, &self.shared.calls);
        }
    }

    /// Reads a key whose lock is held.
    pub(crate) fn prior(&mut self, key: &[u8]) -> Result<Prior, Failure> {
        value::data_key(&mut self.session.scratch.key, key);
        let stored = self.read(None)?;
        self.weigh(LOOKUP + stored.as_ref().map_or(0, |stored| stored.len()))?;
        let Some(stored) = stored else {
            return Ok(Prior {
                stored: None,
                is_live: false,
            });
        };
        let header = value::read_header(&stored)?;
        let is_live = !self.has_expired(&header);
        Ok(Prior {
            stored: Some(Found {
                row: stored,
                header,
                at: None,
            }),
            is_live,
        })
    }

    /// Whether the reply is longer than the connection may send. A command whose reply would grow
    /// much further stops here; the connection checks the same limit and closes.
    pub(crate) fn reply_is_too_long(&self) -> bool {
        self.reply.len() > self.shared.settings.reply_bytes_max()
    }

    /// Notes that the reply reflects the number of keys in a keyspace of the session's database.
    /// The keys were counted before.
    pub(crate) fn note_count(&mut self, keyspace: &Keyspace) -> Result<(), Failure> {
        keyspace.family.check_certain()?;
        self.session.note_database(&self.shared.store)?;
        self.note_all();
        Ok(())
    }

    /// Notes that the reply reflects everything that is visible now.
    pub(crate) fn note_all(&mut self) {
        let visible = self.shared.store.db.visible();
        self.session.note(visible);
    }
}
