//! Changing keys whose locks are held: outside of a transaction at once in a commit of its own,
//! inside it in the transaction's changes.

use collie_db::{Batch, Lsn, Value};

use super::{Exec, Prior};
use crate::data::keyspace::Keyspace;
use crate::data::locks::LOCKED_WRITE;
use crate::data::value;
use crate::failure::Failure;
use crate::health::Effect;

impl Exec<'_> {
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
        let health = &self.shared.store.health;
        let session = &mut *self.session;
        let family = &session.keyspace.family;
        value::data_key(&mut session.scratch.key, key);
        value::encode(&mut session.scratch.value, expiry_ms, payload);
        let end = if expiry_ms.is_none() && prior.stored_expiry().is_none() {
            session.owed += session.scratch.key.len() + session.scratch.value.len();
            let written = family.put_with(&session.scratch.key, &session.scratch.value, &LOCKED_WRITE);
            health.note(Effect::Adds, written)?
        } else {
            let batch = &mut session.scratch.batch;
            batch.clear();
            batch.put(family, &session.scratch.key, &session.scratch.value)?;
            let keyspace = &session.keyspace;
            index(batch, keyspace, &mut session.scratch.key, key, prior, expiry_ms)?;
            session.owed += batch.size_bytes();
            let end = health.note(Effect::Adds, family.db().write_ref(batch, &LOCKED_WRITE))?;
            session.scratch.empty_batch();
            end
        };
        self.applied(key, prior, true, expiry_ms, end);
        Ok(())
    }

    /// Stores several keys in one commit. Their locks are held, and each key occurs once.
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
        session.owed += batch.size_bytes();
        let db = session.keyspace.family.db();
        let written = db.write_ref(batch, &LOCKED_WRITE);
        let end = self.shared.store.health.note(Effect::Adds, written)?;
        session.scratch.empty_batch();
        for (key, _, prior) in entries {
            self.applied(key, prior, true, None, end);
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
            index(batch, keyspace, &mut session.scratch.key, key, prior, None)?;
            removed += 1;
        }
        if removed == 0 {
            return Ok(0);
        }
        session.owed += batch.size_bytes();
        let db = session.keyspace.family.db();
        let written = db.write_ref(batch, &LOCKED_WRITE);
        let end = self.shared.store.health.note(Effect::Removes, written)?;
        session.scratch.empty_batch();
        for (key, prior) in entries.iter().filter(|(_, prior)| prior.stored.is_some()) {
            self.applied(key, prior, false, None, end);
        }
        Ok(removed)
    }

    /// Updates the counts, the sweeper's hint and the watches on the key after a commit.
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

    /// Removes keys in the transaction. Expired keys are left to the sweeper: they do not exist for
    /// the transaction, so that it changes nothing.
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
        let index = self.session.db;
        if let Some(transaction) = &mut self.transaction {
            transaction.changed(self.shared, index, key);
        }
        let Some(pending) = self.pending() else {
            return Err("ERR internal error: the database was not prepared".into());
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

    /// Removes a key if it has expired; returns whether it had.
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
