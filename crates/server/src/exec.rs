//! What commands are made of: reading a key, and changing it with its lock held.
//!
//! Every change goes through [`Exec::store`] or [`Exec::remove`], so that the key, its entry in the expiry
//! index, the counts of the database and those who watch the key change together. They write to the engine at its
//! weakest level, which applies the write and returns; when the reply may leave is the connection's business.
//! Inside a [transaction](crate::transaction) they write there instead, and reads look there first.

use std::sync::Arc;

use collie_db::{Batch, Error as DbError, Lsn, ReadOptions, Snapshot, Value};
use collie_protocol::ReplyBuffer;

use crate::cost::{Aside, HEAVY, LARGE, LOOKUP};
use crate::failure::Failure;
use crate::health::Effect;
use crate::keyspace::Keyspace;
use crate::locks::{Held, LOCKED_ONE_BY_ONE, LOCKED_WRITE, Waiting};
use crate::session::{Session, Shared};
use crate::store::DATABASES;
use crate::transaction::{Database, Transaction};
use crate::value::{self, Header};

/// One command at work.
pub(crate) struct Exec<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) session: &'a mut Session,
    pub(crate) reply: &'a mut ReplyBuffer,
    /// The time, the same for the whole command.
    pub(crate) now_ms: u64,
    /// Whether it runs on a thread that may block.
    pub(crate) may_block: bool,
    /// What it has cost so far, in bytes.
    pub(crate) weight: usize,
    /// What it is to be counted with when it has not gone aside.
    pub(crate) noted: Noted,
    /// What the command is a part of, in `EXEC` and in commands that change several keys.
    pub(crate) transaction: Option<Transaction<'a>>,
}

/// What the connection does after a command.
#[derive(Debug)]
pub(crate) enum Flow {
    /// Goes on; the reply is encoded.
    Next,
    /// Sends what is encoded and closes.
    Close,
    /// Does what takes longer than a command may keep a thread, and encodes the reply then.
    Pause(Pause),
    /// Runs the command again on a thread that may block: it has done nothing yet.
    Aside(Aside),
}

/// What takes longer than a command may keep a thread.
#[derive(Debug)]
pub(crate) enum Pause {
    /// `SELECT` of a database that has no family yet.
    Select(u8),
    /// `KEYS` with its pattern.
    Keys(Vec<u8>),
    /// `DBSIZE` while keys are being counted.
    Size(Arc<Keyspace>),
    /// `INFO` of these sections. The engine's figures wait for writers that it holds up.
    Info(Vec<String>),
    /// `WAITAOF`: whether its own log counts, and milliseconds to wait, 0 meaning for ever.
    Local {
        wanted: bool,
        replicas: i64,
        timeout_ms: u64,
    },
    /// `WAIT` for replicas that will not come: milliseconds, 0 meaning for ever.
    Replicas { timeout_ms: u64 },
}

/// What statistics are to be told of a command, or of all that `EXEC` runs.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    hits: u64,
    misses: u64,
    pub(crate) failures: u64,
    /// By the number of the command in the table: whether it failed, and the time that it took.
    pub(crate) calls: Vec<(usize, bool, u64)>,
}

/// How a command ends.
pub(crate) type Outcome = Result<Flow, Failure>;

/// A key that is there.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    value: Value,
    pub(crate) header: Header,
}

impl Found {
    /// What the user stored.
    pub(crate) fn payload(&self) -> &[u8] {
        self.value.get(self.header.payload..).unwrap_or_default()
    }
}

/// What stands at a key whose lock is held, expired or not.
#[derive(Debug, Clone)]
pub(crate) struct Prior {
    stored: Option<Found>,
    is_live: bool,
}

impl Prior {
    /// The key, where it is there and not expired.
    pub(crate) fn live(&self) -> Option<&Found> {
        self.stored.as_ref().filter(|_| self.is_live)
    }

    /// The expiry of a live key.
    pub(crate) fn live_expiry(&self) -> Option<u64> {
        self.live().and_then(|found| found.header.expiry_ms)
    }

    /// Whether something is stored that is past its expiry.
    pub(crate) fn is_expired(&self) -> bool {
        self.stored.is_some() && !self.is_live
    }

    /// By how much the numbers of keys, and of keys with an expiry, change when the key is to be there or not.
    fn difference(&self, is_there: bool, expiry_ms: Option<u64>) -> (i64, i64) {
        let keys = i64::from(is_there) - i64::from(self.stored.is_some());
        let expiring = i64::from(expiry_ms.is_some()) - i64::from(self.stored_expiry().is_some());
        (keys, expiring)
    }

    fn stored_expiry(&self) -> Option<u64> {
        self.stored.as_ref().and_then(|found| found.header.expiry_ms)
    }
}

impl<'a> Exec<'a> {
    /// A command of a connection's own thread, outside of any transaction.
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
            weight: 0,
            noted: Noted::default(),
            transaction: None,
        }
    }

    /// Counts bytes that the command reads, or makes, or their like in other work. To be asked before anything is changed:
    /// a command that becomes too heavy for a thread that serves connections ends here, and runs again aside.
    pub(crate) fn weigh(&mut self, bytes: usize) -> Result<(), Failure> {
        self.weight = self.weight.saturating_add(bytes);
        if self.weight >= HEAVY && !self.may_block {
            return Err(Failure::Aside(Aside::Heavy(self.weight)));
        }
        Ok(())
    }

    /// As [`weigh`](Exec::weigh), of bytes that are written at once.
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

    /// Takes the lock of a key. What is read and written until the guard goes is one step to all others. A
    /// transaction holds the locks of all its keys already.
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
        let _asking = store.locks.asking(waiting)?;
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

    /// Takes the locks of keys of any databases; of all keys where these are very many. The databases were selected
    /// before.
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
        let asking = store.locks.asking(waiting)?;
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
        store.locks.several(asking, &store.db, owner, rows, waiting)
    }

    /// Does several changes as one commit: a part of the transaction that is under way, or one of its own, which
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

    /// Begins a transaction under the locks that are held.
    pub(crate) fn begin(&mut self, held: Held<'a>, spare: Vec<Arc<Keyspace>>) {
        self.session.refresh(&self.shared.store);
        self.transaction = Some(Transaction::new(held, spare));
    }

    /// Ends the transaction: commits it, or lets it be as if it had never begun.
    pub(crate) fn finish(&mut self, commit: bool) -> Result<(), Failure> {
        let Some(transaction) = self.transaction.take() else {
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

    /// The session's database, as the transaction sees it.
    pub(crate) fn database(&mut self) -> Option<&mut Database> {
        let db = self.session.db;
        self.transaction.as_mut()?.database(self.shared, db)
    }

    /// What stands under the engine's key in the session's scratch memory. The transaction's own changes are not
    /// known to the log yet; they count as seen when it commits.
    fn read(&mut self, snapshot: Option<&Snapshot>) -> Result<Option<Value>, Failure> {
        let (shared, db) = (self.shared, self.session.db);
        let is_inside = self.transaction.is_some();
        let family = match &mut self.transaction {
            Some(transaction) => {
                let Some(database) = transaction.database(shared, db) else {
                    return Ok(None);
                };
                if let Some(changed) = database.changes.get(&self.session.scratch.key) {
                    return Ok(changed.clone());
                }
                &database.keyspace.family
            }
            None => &self.session.keyspace.family,
        };
        let read = match snapshot {
            Some(snapshot) if !is_inside => snapshot.get_with(family, &self.session.scratch.key)?,
            // Inside a transaction the locks keep what is read as it is.
            Some(_) | None => family.get_with(&self.session.scratch.key, &ReadOptions::default())?,
        };
        self.session.note(read.seen);
        self.session.note_database(&self.shared.store)?;
        Ok(read.value)
    }

    fn read_anew(&mut self, snapshot: Option<&Snapshot>) -> Result<Option<Value>, Failure> {
        let mut read = self.read(snapshot);
        // The database was emptied after this command began: it is read as it is now.
        if let Err(Failure::Engine(DbError::FamilyDropped { .. })) = read {
            self.session.refresh(&self.shared.store);
            read = self.read(snapshot);
        }
        // And after the snapshot was taken, which does not know what came then.
        if let Err(Failure::Engine(DbError::FamilyTooNew { .. })) = read {
            read = self.read(None);
        }
        read
    }

    /// Reads a key without its lock. One that is past its expiry is removed and not found.
    pub(crate) fn find(&mut self, key: &[u8]) -> Result<Option<Found>, Failure> {
        value::data_key(&mut self.session.scratch.key, key);
        let stored = self.read_anew(None)?;
        self.judge(key, stored)
    }

    /// Reads a key as it was at a snapshot.
    pub(crate) fn find_at(&mut self, snapshot: &Snapshot, key: &[u8]) -> Result<Option<Found>, Failure> {
        value::data_key(&mut self.session.scratch.key, key);
        let stored = self.read_anew(Some(snapshot))?;
        self.judge(key, stored)
    }

    fn judge(&mut self, key: &[u8], stored: Option<Value>) -> Result<Option<Found>, Failure> {
        let Some(stored) = stored else {
            self.weigh(LOOKUP)?;
            return Ok(None);
        };
        let header = value::read_header(&stored)?;
        if header.is_expired(self.now_ms) {
            self.expire_in_passing(key);
            return Ok(None);
        }
        self.weigh(LOOKUP + stored.len())?;
        Ok(Some(Found {
            value: stored,
            header,
        }))
    }

    /// Counts a read for `keyspace_hits` and `keyspace_misses`.
    pub(crate) fn count_lookup(&mut self, found: bool) {
        if found {
            self.noted.hits += 1;
        } else {
            self.noted.misses += 1;
        }
    }

    /// Tells the statistics what was noted.
    pub(crate) fn hand_in(&mut self) {
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
        let is_live = !header.is_expired(self.now_ms);
        Ok(Prior {
            stored: Some(Found {
                value: stored,
                header,
            }),
            is_live,
        })
    }

    /// Stores `payload` at a key whose lock is held.
    pub(crate) fn store(
        &mut self,
        key: &[u8],
        prior: &Prior,
        payload: &[u8],
        expiry_ms: Option<u64>,
    ) -> Result<(), Failure> {
        self.weigh_write(payload.len())?;
        if self.transaction.is_some() {
            return self.keep(key, prior, payload, expiry_ms);
        }
        let health = &self.shared.health;
        let session = &mut *self.session;
        let family = &session.keyspace.family;
        value::data_key(&mut session.scratch.key, key);
        value::encode(&mut session.scratch.value, expiry_ms, payload);
        let end = if expiry_ms.is_none() && prior.stored_expiry().is_none() {
            let written = family.put_with(&session.scratch.key, &session.scratch.value, &LOCKED_WRITE);
            health.note(Effect::Adds, written)?
        } else {
            let batch = &mut session.scratch.batch;
            batch.clear();
            batch.put(family, &session.scratch.key, &session.scratch.value)?;
            let keyspace = &session.keyspace;
            index(batch, keyspace, &mut session.scratch.key, key, prior, expiry_ms)?;
            let end = health.note(Effect::Adds, family.db().write_ref(batch, &LOCKED_WRITE))?;
            session.scratch.empty_batch();
            end
        };
        self.applied(key, prior, true, expiry_ms, end);
        Ok(())
    }

    /// Stores several keys in one commit, their locks held. Each key must come once.
    pub(crate) fn store_several(&mut self, entries: &[(&[u8], &[u8], Prior)]) -> Result<(), Failure> {
        if self.transaction.is_some() {
            return entries
                .iter()
                .try_for_each(|(key, payload, prior)| self.keep(key, prior, payload, None));
        }
        let session = &mut *self.session;
        let batch = &mut session.scratch.batch;
        batch.clear();
        for (key, payload, prior) in entries {
            let keyspace = &session.keyspace;
            value::data_key(&mut session.scratch.key, key);
            value::encode(&mut session.scratch.value, None, payload);
            batch.put(&keyspace.family, &session.scratch.key, &session.scratch.value)?;
            index(batch, keyspace, &mut session.scratch.key, key, prior, None)?;
        }
        let db = session.keyspace.family.db();
        let written = db.write_ref(batch, &LOCKED_WRITE);
        let end = self.shared.health.note(Effect::Adds, written)?;
        session.scratch.empty_batch();
        for (key, _, prior) in entries {
            self.applied(key, prior, true, None, end);
        }
        Ok(())
    }

    /// Removes a key whose lock is held; expired ones too. `false` where nothing was stored.
    pub(crate) fn remove(&mut self, key: &[u8], prior: &Prior) -> Result<bool, Failure> {
        self.remove_several(&[(key, prior.clone())])
            .map(|removed| removed > 0)
    }

    /// Removes several keys in one commit, their locks held. Each key must come once. Gives how many were
    /// stored.
    pub(crate) fn remove_several(&mut self, entries: &[(&[u8], Prior)]) -> Result<usize, Failure> {
        if self.transaction.is_some() {
            return self.drop_several(entries);
        }
        let session = &mut *self.session;
        let batch = &mut session.scratch.batch;
        batch.clear();
        let mut removed = 0;
        for (key, prior) in entries.iter().filter(|(_, prior)| prior.stored.is_some()) {
            let keyspace = &session.keyspace;
            value::data_key(&mut session.scratch.key, key);
            batch.delete(&keyspace.family, &session.scratch.key)?;
            index(batch, keyspace, &mut session.scratch.key, key, prior, None)?;
            removed += 1;
        }
        if removed == 0 {
            return Ok(0);
        }
        let db = session.keyspace.family.db();
        let written = db.write_ref(batch, &LOCKED_WRITE);
        let end = self.shared.health.note(Effect::Removes, written)?;
        session.scratch.empty_batch();
        for (key, prior) in entries.iter().filter(|(_, prior)| prior.stored.is_some()) {
            self.applied(key, prior, false, None, end);
        }
        Ok(removed)
    }

    /// Brings the counts, the sweeper's hint and those who watch the key up to date after a commit.
    fn applied(&mut self, key: &[u8], prior: &Prior, is_there: bool, expiry_ms: Option<u64>, end: Lsn) {
        let keyspace = &self.session.keyspace;
        let (keys, expiring) = prior.difference(is_there, expiry_ms);
        keyspace.changed(keys, expiring);
        if let Some(expiry) = expiry_ms {
            keyspace.expiry_added(expiry);
        }
        let watches = &self.shared.watches;
        if is_there || prior.is_live {
            watches.changed(self.session.db, key);
        } else {
            watches.expired(self.session.db, key);
        }
        self.session.note(end);
    }

    /// Stores a key in the transaction.
    fn keep(
        &mut self,
        key: &[u8],
        prior: &Prior,
        payload: &[u8],
        expiry_ms: Option<u64>,
    ) -> Result<(), Failure> {
        let mut encoded = Vec::new();
        value::encode(&mut encoded, expiry_ms, payload);
        self.change(key, prior, Some(Value::from(encoded.as_slice())), expiry_ms)
    }

    /// Removes keys in the transaction. What is past its expiry is left to the sweeper: to the transaction it is
    /// not there, and so it changes nothing.
    fn drop_several(&mut self, entries: &[(&[u8], Prior)]) -> Result<usize, Failure> {
        let live = entries.iter().filter(|(_, prior)| prior.is_live);
        let mut removed = 0;
        for (key, prior) in live {
            self.change(key, prior, None, None)?;
            removed += 1;
        }
        Ok(removed)
    }

    fn change(
        &mut self,
        key: &[u8],
        prior: &Prior,
        stored: Option<Value>,
        expiry_ms: Option<u64>,
    ) -> Result<(), Failure> {
        let Some(database) = self.database() else {
            return Err("ERR internal error: the database was not prepared".into());
        };
        let (keys, expiring) = prior.difference(stored.is_some(), expiry_ms);
        database.count(keys, expiring, expiry_ms);
        let mut own = Vec::with_capacity(key.len() + 1);
        value::data_key(&mut own, key);
        database.changes.insert(own, stored);
        let before = prior.stored_expiry();
        if before == expiry_ms {
            return Ok(());
        }
        for (expiry, entry) in [(before, None), (expiry_ms, Some(Value::from(&b""[..])))] {
            if let Some(expiry) = expiry {
                let mut own = Vec::with_capacity(key.len() + 9);
                value::expiry_key(&mut own, expiry, key);
                database.changes.insert(own, entry);
            }
        }
        Ok(())
    }

    /// Removes a key if it is past its expiry; says whether it was.
    pub(crate) fn expire(&mut self, key: &[u8]) -> Result<bool, Failure> {
        let _lock = self.lock(key)?;
        let prior = self.prior(key)?;
        if prior.stored.is_none() || prior.is_live {
            return Ok(false);
        }
        self.remove(key, &prior)?;
        self.shared.counters.expired.add(1);
        Ok(true)
    }

    /// Removes an expired key that a command came upon. A failure is no failure of the command: it answers that
    /// the key is gone either way, and the sweeper comes again. It is left to the sweeper as well while writes
    /// are held up, for whoever only reads must not be, and inside a transaction.
    pub(crate) fn expire_in_passing(&mut self, key: &[u8]) {
        if self.transaction.is_some() || self.shared.pressure.is_high(&self.shared.store.db) {
            return;
        }
        if let Err(error) = self.expire(key) {
            tracing::debug!(%error, "an expired key stays for now");
        }
    }

    /// Whether the reply has grown beyond what the connection may send. A command that could make it grow much
    /// further stops there; the connection sees the same and closes.
    pub(crate) fn reply_is_too_long(&self) -> bool {
        self.reply.len() > self.shared.settings.reply_bytes_max()
    }

    /// Notes that the reply tells how many keys there are in a keyspace of the session's database, counted before.
    pub(crate) fn note_count(&mut self, keyspace: &Keyspace) -> Result<(), Failure> {
        keyspace.family.check_certain()?;
        self.session.note_database(&self.shared.store)?;
        self.note_all();
        Ok(())
    }

    /// Notes that the reply tells of everything that is visible now.
    pub(crate) fn note_all(&mut self) {
        let visible = self.shared.store.db.visible();
        self.session.note(visible);
    }
}

/// Brings the expiry index from what stood at a key to what will.
fn index(
    batch: &mut Batch,
    keyspace: &Keyspace,
    scratch: &mut Vec<u8>,
    key: &[u8],
    prior: &Prior,
    expiry_ms: Option<u64>,
) -> Result<(), Failure> {
    let before = prior.stored_expiry();
    if before == expiry_ms {
        return Ok(());
    }
    if let Some(before) = before {
        value::expiry_key(scratch, before, key);
        batch.delete(&keyspace.family, &scratch)?;
    }
    if let Some(expiry) = expiry_ms {
        value::expiry_key(scratch, expiry, key);
        batch.put(&keyspace.family, &scratch, b"")?;
    }
    Ok(())
}
