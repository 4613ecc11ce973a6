//! Changing keys whose locks are held: outside of a transaction at once in a commit of its own,
//! inside it in the transaction's changes.

use std::ops::Range;

use collie_db::{Batch, Lsn, MAX_KEY_BYTES, Value};

use super::values::New;
use super::{Exec, Prior, Transaction};
use crate::cluster::MAX_ROW_BYTES;
use crate::data::keyspace::Keyspace;
use crate::data::locks::LOCKED_WRITE;
use crate::data::value::{self, Row};
use crate::failure::Failure;
use crate::health::Effect;
use crate::session::Session;

impl Exec<'_> {
    /// Stores a key whose lock is held.
    pub(super) fn put(
        &mut self,
        key: &[u8],
        prior: &Prior,
        new: New<'_>,
        expiry_ms: Option<u64>,
    ) -> Result<(), Failure> {
        self.weigh_write(new.bytes())?;
        self.check_key(key)?;
        if self.transaction.is_some() {
            return self.keep(key, prior, &new, expiry_ms);
        }
        let health = &self.shared.store.health;
        let session = &mut *self.session;
        let family = &session.keyspace.family;
        let is_alone = new.pieces.is_empty() && new.dropped(prior).is_none();
        let end = if is_alone && expiry_ms.is_none() && prior.stored_expiry().is_none() {
            value::data_key(&mut session.scratch.key, key);
            value::encode(&mut session.scratch.value, expiry_ms, new.row);
            session.unthrottled += session.scratch.key.len() + session.scratch.value.len();
            let written = family.put_with(&session.scratch.key, &session.scratch.value, &LOCKED_WRITE);
            health.note(Effect::Adds, written)?
        } else {
            session.scratch.batch.clear();
            batch_put(session, key, prior, &new, expiry_ms)?;
            session.unthrottled += session.scratch.batch.size_bytes();
            let db = session.keyspace.family.db();
            let written = db.write_ref(&session.scratch.batch, &LOCKED_WRITE);
            let end = health.note(Effect::Adds, written)?;
            session.scratch.empty_batch();
            end
        };
        self.applied(key, prior, Some(&new), expiry_ms, end);
        Ok(())
    }

    /// Refuses a key that could not be given an expiry.
    pub(super) fn check_key(&self, key: &[u8]) -> Result<(), Failure> {
        let limit = value::key_max(match &self.transaction {
            Some(Transaction::Partition(_)) => MAX_ROW_BYTES,
            _ => MAX_KEY_BYTES,
        });
        match key.len() <= limit {
            true => Ok(()),
            false => Err(format!("ERR the key has {} bytes, the limit is {limit}", key.len()).into()),
        }
    }

    /// Stores several keys in one commit. Their locks are held, and each key occurs once.
    pub(crate) fn store_several(&mut self, entries: &[(&[u8], &[u8], Prior)]) -> Result<(), Failure> {
        entries.iter().try_for_each(|(key, ..)| self.check_key(key))?;
        let mut new = Vec::with_capacity(entries.len());
        for (_, payload, prior) in entries {
            new.push(self.new_value(prior, payload)?);
        }
        if self.transaction.is_some() {
            let mut all = entries.iter().zip(&new);
            return all.try_for_each(|((key, _, prior), new)| self.keep(key, prior, new, None));
        }
        let session = &mut *self.session;
        session.scratch.batch.clear();
        for ((key, _, prior), new) in entries.iter().zip(&new) {
            batch_put(session, key, prior, new, None)?;
        }
        session.unthrottled += session.scratch.batch.size_bytes();
        let db = session.keyspace.family.db();
        let written = db.write_ref(&session.scratch.batch, &LOCKED_WRITE);
        let end = self.shared.store.health.note(Effect::Adds, written)?;
        session.scratch.empty_batch();
        for ((key, _, prior), new) in entries.iter().zip(&new) {
            self.applied(key, prior, Some(new), None, end);
        }
        Ok(())
    }

    /// Removes a key whose lock is held, also an expired one. `false` if nothing was stored.
    pub(crate) fn remove(&mut self, key: &[u8], prior: &Prior) -> Result<bool, Failure> {
        self.remove_several(&[(key, prior.clone())])
            .map(|removed| removed > 0)
    }

    /// Removes several keys in one commit. Their locks are held, and each key occurs once. Returns
    /// how many were stored.
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
            drop_pieces(batch, keyspace, &mut session.scratch.key, prior.all_pieces())?;
            index(batch, keyspace, &mut session.scratch.key, key, prior, None)?;
            removed += 1;
        }
        if removed == 0 {
            return Ok(0);
        }
        session.unthrottled += batch.size_bytes();
        let db = session.keyspace.family.db();
        let written = db.write_ref(batch, &LOCKED_WRITE);
        let end = self.shared.store.health.note(Effect::Removes, written)?;
        session.scratch.empty_batch();
        for (key, prior) in entries.iter().filter(|(_, prior)| prior.stored.is_some()) {
            self.applied(key, prior, None, None, end);
        }
        Ok(removed)
    }

    /// Updates the counts, the free numbers, the sweeper's hint and the watches on the key after a
    /// commit.
    fn applied(
        &mut self,
        key: &[u8],
        prior: &Prior,
        new: Option<&New<'_>>,
        expiry_ms: Option<u64>,
        end: Lsn,
    ) {
        let keyspace = &self.session.keyspace;
        let is_there = new.is_some();
        if let Some(freed) = prior.freed(new.and_then(New::id)) {
            keyspace.numbers.put_back(freed);
        }
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
        new: &New<'_>,
        expiry_ms: Option<u64>,
    ) -> Result<(), Failure> {
        let mut row = Vec::new();
        value::encode(&mut row, expiry_ms, new.row);
        self.change(key, prior, Some(Value::from(row.as_slice())), expiry_ms)?;
        self.drop_pieces(new.dropped(prior), prior.freed(new.id()))?;
        if let Row::Pieces(pieces) = new.row {
            let Some(pending) = self.pending() else {
                return Err(NOT_PREPARED.into());
            };
            for (number, piece) in &new.pieces {
                let mut own = Vec::new();
                value::piece_key(&mut own, pieces.id, *number);
                pending.changes.insert(own, Some(Value::from(&**piece)));
            }
        }
        Ok(())
    }

    /// Removes pieces in the transaction. `freed`: the number of their value, if that is gone.
    fn drop_pieces(
        &mut self,
        pieces: Option<(u64, Range<usize>)>,
        freed: Option<u64>,
    ) -> Result<(), Failure> {
        let Some((id, numbers)) = pieces else {
            return Ok(());
        };
        let Some(pending) = self.pending() else {
            return Err(NOT_PREPARED.into());
        };
        pending.freed.extend(freed);
        for number in numbers {
            let mut own = Vec::new();
            value::piece_key(&mut own, id, number);
            pending.changes.insert(own, None);
        }
        Ok(())
    }

    /// Removes keys in the transaction. Expired keys are left to the sweeper: they do not exist for
    /// the transaction, so that it changes nothing.
    fn drop_several(&mut self, entries: &[(&[u8], Prior)]) -> Result<usize, Failure> {
        let live = entries.iter().filter(|(_, prior)| prior.is_live);
        let mut removed = 0;
        for (key, prior) in live {
            self.change(key, prior, None, None)?;
            self.drop_pieces(prior.all_pieces(), prior.freed(None))?;
            removed += 1;
        }
        Ok(removed)
    }

    /// Removes a live key in the transaction, but not its value: that is another key's now.
    pub(super) fn leave(&mut self, key: &[u8], prior: &Prior) -> Result<(), Failure> {
        self.change(key, prior, None, None)
    }

    /// Changes a key in the transaction, and its index entry with it.
    pub(super) fn change(
        &mut self,
        key: &[u8],
        prior: &Prior,
        stored: Option<Value>,
        expiry_ms: Option<u64>,
    ) -> Result<(), Failure> {
        let index = self.session.db;
        if let Some(transaction) = &mut self.transaction {
            transaction.changed(self.shared, index, key);
        }
        self.write_row(key, prior, stored, expiry_ms)
    }

    /// The same, without its watches.
    pub(super) fn write_row(
        &mut self,
        key: &[u8],
        prior: &Prior,
        stored: Option<Value>,
        expiry_ms: Option<u64>,
    ) -> Result<(), Failure> {
        let Some(pending) = self.pending() else {
            return Err(NOT_PREPARED.into());
        };
        let (keys, expiring) = prior.difference(stored.is_some(), expiry_ms);
        pending.count(keys, expiring, expiry_ms);
        let mut own = Vec::with_capacity(key.len() + 1);
        value::data_key(&mut own, key);
        pending.changes.insert(own, stored);
        let before = prior.stored_expiry();
        if before == expiry_ms {
            return Ok(());
        }
        for (expiry, entry) in [(before, None), (expiry_ms, Some(Value::from(&b""[..])))] {
            if let Some(expiry) = expiry {
                let mut own = Vec::with_capacity(key.len() + 9);
                value::expiry_key(&mut own, expiry, key);
                pending.changes.insert(own, entry);
            }
        }
        Ok(())
    }

    /// Removes a key if it has expired; returns whether it had. Refused during a client pause, also
    /// one that began while this waited for the lock.
    pub(crate) fn expire(&mut self, key: &[u8]) -> Result<bool, Failure> {
        let _lock = self.lock(key)?;
        if self.shared.client_pause.is_on() {
            return Err(PAUSED.into());
        }
        let prior = self.prior(key)?;
        if prior.stored.is_none() || prior.is_live {
            return Ok(false);
        }
        self.remove(key, &prior)?;
        self.shared.counters.expired.add(1);
        Ok(true)
    }

    /// Removes an expired key that a command has found. If that fails the command does not: it
    /// answers that the key does not exist either way, and the sweeper will remove it. The key is
    /// left to the sweeper too while writes are stalled, so that a read is never stalled with them,
    /// and inside a transaction.
    pub(crate) fn expire_in_passing(&mut self, key: &[u8]) {
        if self.transaction.is_some() || self.shared.pressure.is_high(&self.shared.store.db) {
            return;
        }
        if let Err(error) = self.expire(key) {
            tracing::debug!(%error, "an expired key stays for now");
        }
    }
}

/// Why an expired key is not removed now. No client sees it.
pub(crate) const PAUSED: &str = "ERR clients are paused";

const NOT_PREPARED: &str = "ERR internal error: the database was not prepared";

/// Adds to the session's batch what stores a key.
fn batch_put(
    session: &mut Session,
    key: &[u8],
    prior: &Prior,
    new: &New<'_>,
    expiry_ms: Option<u64>,
) -> Result<(), Failure> {
    let (scratch, keyspace) = (&mut session.scratch, &session.keyspace);
    let batch = &mut scratch.batch;
    value::data_key(&mut scratch.key, key);
    value::encode(&mut scratch.value, expiry_ms, new.row);
    batch.put(&keyspace.family, &scratch.key, &scratch.value)?;
    drop_pieces(batch, keyspace, &mut scratch.key, new.dropped(prior))?;
    if let Row::Pieces(pieces) = new.row {
        for (number, piece) in &new.pieces {
            value::piece_key(&mut scratch.key, pieces.id, *number);
            batch.put(&keyspace.family, &scratch.key, piece)?;
        }
    }
    index(batch, keyspace, &mut scratch.key, key, prior, expiry_ms)
}

/// Removes the pieces of a value.
fn drop_pieces(
    batch: &mut Batch,
    keyspace: &Keyspace,
    scratch: &mut Vec<u8>,
    pieces: Option<(u64, Range<usize>)>,
) -> Result<(), Failure> {
    let Some((id, numbers)) = pieces else {
        return Ok(());
    };
    for number in numbers {
        value::piece_key(scratch, id, number);
        batch.delete(&keyspace.family, &scratch)?;
    }
    Ok(())
}

/// Moves a key's entry in the expiry index from its old expiry to its new one.
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
