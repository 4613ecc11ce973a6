//! What commands are made of: reading a key, and changing it with its lock held.
//!
//! Every change goes through [`Exec::store`] or [`Exec::remove`], so that the key, its entry in the expiry
//! index and the counts of the database change together. They write to the engine at its weakest level, which
//! applies the write and returns; when the reply may leave is the connection's business.

use std::sync::Arc;

use collie_db::{Error as DbError, ReadOptions, Snapshot, Value, WriteOptions};
use collie_protocol::ReplyBuffer;
use parking_lot::MutexGuard;

use crate::failure::Failure;
use crate::locks::Held;
use crate::session::{Session, Shared};
use crate::store::Keyspace;
use crate::value::{self, Header};

/// One command at work.
pub(crate) struct Exec<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) session: &'a mut Session,
    pub(crate) reply: &'a mut ReplyBuffer,
    /// The time, the same for the whole command.
    pub(crate) now_ms: u64,
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
    /// `FLUSHDB` and `FLUSHALL`.
    Flush(Vec<u8>),
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

    fn stored_expiry(&self) -> Option<u64> {
        self.stored.as_ref().and_then(|found| found.header.expiry_ms)
    }
}

impl<'a> Exec<'a> {
    /// Takes the lock of a key. What is read and written until the guard goes is one step to all others.
    pub(crate) fn lock(&mut self, key: &[u8]) -> MutexGuard<'a, ()> {
        let shared = self.shared;
        let guard = shared.store.locks.one(self.session.keyspace.index, key);
        self.session.refresh(&shared.store);
        guard
    }

    /// Takes the locks of several keys.
    pub(crate) fn lock_several<'k>(&mut self, keys: impl Iterator<Item = &'k [u8]>) -> Held<'a> {
        let shared = self.shared;
        let held = shared.store.locks.several(self.session.keyspace.index, keys);
        self.session.refresh(&shared.store);
        held
    }

    /// Reads a key without its lock. One that is past its expiry is removed and not found.
    pub(crate) fn find(&mut self, key: &[u8]) -> Result<Option<Found>, Failure> {
        value::data_key(&mut self.session.scratch.key, key);
        let options = ReadOptions::default();
        let read = match self
            .session
            .keyspace
            .family
            .get_with(&self.session.scratch.key, &options)
        {
            // The database was emptied after this command began: it is read as it is now.
            Err(DbError::FamilyDropped { .. }) => {
                self.session.refresh(&self.shared.store);
                self.session
                    .keyspace
                    .family
                    .get_with(&self.session.scratch.key, &options)?
            }
            read => read?,
        };
        self.session.note(read.seen);
        self.judge(key, read.value)
    }

    /// Reads a key as it was at a snapshot.
    pub(crate) fn find_at(&mut self, snapshot: &Snapshot, key: &[u8]) -> Result<Option<Found>, Failure> {
        value::data_key(&mut self.session.scratch.key, key);
        let read = match snapshot.get_with(&self.session.keyspace.family, &self.session.scratch.key) {
            // The database was emptied after this command began.
            Err(DbError::FamilyDropped { .. }) => {
                self.session.refresh(&self.shared.store);
                snapshot.get_with(&self.session.keyspace.family, &self.session.scratch.key)?
            }
            read => read?,
        };
        self.session.note(read.seen);
        self.judge(key, read.value)
    }

    fn judge(&mut self, key: &[u8], stored: Option<Value>) -> Result<Option<Found>, Failure> {
        let Some(stored) = stored else { return Ok(None) };
        let header = value::read_header(&stored)?;
        if header.is_expired(self.now_ms) {
            self.expire_in_passing(key);
            return Ok(None);
        }
        Ok(Some(Found {
            value: stored,
            header,
        }))
    }

    /// Counts a read for `keyspace_hits` and `keyspace_misses`.
    pub(crate) fn count_lookup(&self, found: bool) {
        let counters = &self.shared.counters;
        if found {
            counters.hits.add(1)
        } else {
            counters.misses.add(1)
        }
    }

    /// Reads a key whose lock is held.
    pub(crate) fn prior(&mut self, key: &[u8]) -> Result<Prior, Failure> {
        value::data_key(&mut self.session.scratch.key, key);
        let read = self
            .session
            .keyspace
            .family
            .get_with(&self.session.scratch.key, &ReadOptions::default())?;
        self.session.note(read.seen);
        let Some(stored) = read.value else {
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
        let session = &mut *self.session;
        let family = &session.keyspace.family;
        value::data_key(&mut session.scratch.key, key);
        value::encode(&mut session.scratch.value, expiry_ms, payload);
        let end = if expiry_ms.is_none() && prior.stored_expiry().is_none() {
            family.put_with(
                &session.scratch.key,
                &session.scratch.value,
                &WriteOptions::buffered(),
            )?
        } else {
            let batch = &mut session.scratch.batch;
            batch.clear();
            batch.put(family, &session.scratch.key, &session.scratch.value)?;
            index(
                batch,
                &session.keyspace,
                &mut session.scratch.key,
                key,
                prior,
                expiry_ms,
            )?;
            let end = family.db().write_ref(batch, &WriteOptions::buffered())?;
            session.scratch.empty_batch();
            end
        };
        self.applied(prior, true, expiry_ms, end);
        Ok(())
    }

    /// Stores several keys in one commit, their locks held. Each key must come once.
    pub(crate) fn store_several(&mut self, entries: &[(&[u8], &[u8], Prior)]) -> Result<(), Failure> {
        let session = &mut *self.session;
        let batch = &mut session.scratch.batch;
        batch.clear();
        for (key, payload, prior) in entries {
            value::data_key(&mut session.scratch.key, key);
            value::encode(&mut session.scratch.value, None, payload);
            batch.put(
                &session.keyspace.family,
                &session.scratch.key,
                &session.scratch.value,
            )?;
            index(
                batch,
                &session.keyspace,
                &mut session.scratch.key,
                key,
                prior,
                None,
            )?;
        }
        let end = session
            .keyspace
            .family
            .db()
            .write_ref(batch, &WriteOptions::buffered())?;
        session.scratch.empty_batch();
        for (_, _, prior) in entries {
            self.applied(prior, true, None, end);
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
        let session = &mut *self.session;
        let batch = &mut session.scratch.batch;
        batch.clear();
        let mut removed = 0;
        for (key, prior) in entries.iter().filter(|(_, prior)| prior.stored.is_some()) {
            value::data_key(&mut session.scratch.key, key);
            batch.delete(&session.keyspace.family, &session.scratch.key)?;
            index(
                batch,
                &session.keyspace,
                &mut session.scratch.key,
                key,
                prior,
                None,
            )?;
            removed += 1;
        }
        if removed == 0 {
            return Ok(0);
        }
        let end = session
            .keyspace
            .family
            .db()
            .write_ref(batch, &WriteOptions::buffered())?;
        session.scratch.empty_batch();
        for (_, prior) in entries.iter().filter(|(_, prior)| prior.stored.is_some()) {
            self.applied(prior, false, None, end);
        }
        Ok(removed)
    }

    /// Brings the counts and the sweeper's hint up to date after a commit.
    fn applied(&mut self, prior: &Prior, is_there: bool, expiry_ms: Option<u64>, end: collie_db::Lsn) {
        let keyspace = &self.session.keyspace;
        let keys = i64::from(is_there) - i64::from(prior.stored.is_some());
        let expiring = i64::from(expiry_ms.is_some()) - i64::from(prior.stored_expiry().is_some());
        keyspace.changed(keys, expiring);
        if let Some(expiry) = expiry_ms {
            keyspace.expiry_added(expiry);
        }
        self.session.note(end);
    }

    /// Removes a key if it is past its expiry; says whether it was.
    pub(crate) fn expire(&mut self, key: &[u8]) -> Result<bool, Failure> {
        let _lock = self.lock(key);
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
    /// are held up, for whoever only reads must not be.
    pub(crate) fn expire_in_passing(&mut self, key: &[u8]) {
        if self.shared.pressure.is_high(&self.shared.store.db) {
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

    /// Notes that the reply tells of everything that is visible now.
    pub(crate) fn note_all(&mut self) {
        let visible = self.shared.store.db.visible();
        self.session.note(visible);
    }
}

/// Brings the expiry index from what stood at a key to what will.
fn index(
    batch: &mut collie_db::Batch,
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
