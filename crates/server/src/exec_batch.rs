//! Several changes that are made as one commit.
//!
//! A transaction holds the locks of all keys that it may read or change. Its changes are kept in
//! memory, in front of the databases: its own reads find them first, and no other connection sees
//! them. At the end they are written as one batch, so that other connections, and recovery after a
//! crash, find all of them or none. Databases that it empties or swaps are part of the batch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use collie_db::{Batch, Value};

use crate::data::keyspace::{DATABASES, Keyspace};
use crate::data::locks::{Held, LOCKED_WRITE};
use crate::data::store::Replaced;
use crate::data::value;
use crate::data::watch::DbKey;
use crate::failure::Failure;
use crate::health::Effect;
use crate::session::Shared;

/// The writes by the engine's key; `None` is a removal.
pub(crate) type Changes = BTreeMap<Vec<u8>, Option<Value>>;

/// A transaction on the databases of the server's own store.
pub(crate) struct StoreTransaction<'a> {
    held: Held<'a>,
    databases: [Option<Database>; DATABASES as usize],
    /// Keyspaces without keys, for databases that are emptied.
    spare: Vec<Arc<Keyspace>>,
    /// Whether a database was emptied or swapped.
    is_rearranged: bool,
    /// The watched keys that its commands changed, each with the database that was theirs then.
    /// Later commands may have emptied or exchanged it.
    changed: BTreeSet<DbKey>,
}

/// A database as the transaction sees it.
#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) keyspace: Arc<Keyspace>,
    /// Whether the keyspace was a spare one.
    is_spare: bool,
    pub(crate) pending: Pending,
}

/// What a transaction is going to write.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) changes: Changes,
    /// The numbers of values in pieces that are removed.
    pub(crate) freed: Vec<u64>,
    /// By how much the numbers of keys, and of keys with an expiry, have changed.
    pub(crate) keys: i64,
    expiring: i64,
    /// The earliest expiry that was set.
    expiry_first_ms: u64,
}

impl Default for Pending {
    fn default() -> Pending {
        Pending {
            changes: Changes::new(),
            freed: Vec::new(),
            keys: 0,
            expiring: 0,
            expiry_first_ms: u64::MAX,
        }
    }
}

impl Pending {
    /// Notes that the number of keys, and of keys with an expiry, changed.
    pub(crate) fn count(&mut self, keys: i64, expiring: i64, expiry_ms: Option<u64>) {
        self.keys += keys;
        self.expiring += expiring;
        self.expiry_first_ms = self.expiry_first_ms.min(expiry_ms.unwrap_or(u64::MAX));
    }

    /// The earliest expiry that was set.
    pub(crate) fn expiry_first_ms(&self) -> Option<u64> {
        (self.expiry_first_ms != u64::MAX).then_some(self.expiry_first_ms)
    }
}

impl Database {
    fn new(keyspace: Arc<Keyspace>, is_spare: bool) -> Database {
        Database {
            keyspace,
            is_spare,
            pending: Pending::default(),
        }
    }

    /// The stored value of a key, given in the engine's form, the transaction's own changes included.
    fn get(&self, key: &[u8]) -> Result<Option<Value>, Failure> {
        match self.pending.changes.get(key) {
            Some(changed) => Ok(changed.clone()),
            None => Ok(self.keyspace.family.get(key)?),
        }
    }

    /// The number of keys, the transaction's own changes included.
    pub(crate) fn size(&self) -> i64 {
        (self.keyspace.size().0 + self.pending.keys).max(0)
    }
}

impl<'a> StoreTransaction<'a> {
    pub(crate) fn new(held: Held<'a>, spare: Vec<Arc<Keyspace>>) -> StoreTransaction<'a> {
        StoreTransaction {
            held,
            databases: [const { None }; DATABASES as usize],
            spare,
            is_rearranged: false,
            changed: BTreeSet::new(),
        }
    }

    /// Notes that a command changed a key, whose lock the transaction holds.
    pub(crate) fn changed(&mut self, shared: &Shared, index: u8, key: &[u8]) {
        if shared.watches.is_watched(index, key) {
            self.changed.insert((index, key.into()));
        }
    }

    /// Whether it holds the lock of a key, given in the engine's form.
    pub(crate) fn covers(&self, shared: &Shared, db: u8, key: &[u8]) -> bool {
        let own = self.databases.get(usize::from(db)).and_then(Option::as_ref);
        let keyspace = match own {
            Some(database) => Some(Arc::clone(&database.keyspace)),
            None => shared.store.keyspace(db),
        };
        keyspace.is_none_or(|keyspace| self.held.covers(&keyspace.family, key))
    }

    /// A database, if it was ever selected. No other connection can exchange it while the
    /// transaction holds locks.
    pub(crate) fn database(&mut self, shared: &Shared, index: u8) -> Option<&mut Database> {
        let slot = self.databases.get_mut(usize::from(index))?;
        if slot.is_none() {
            *slot = Some(Database::new(shared.store.keyspace(index)?, false));
        }
        slot.as_mut()
    }

    /// Empties databases.
    pub(crate) fn empty(&mut self, shared: &Shared, databases: &[u8]) -> Result<(), Failure> {
        debug_assert!(self.held.is_all());
        for index in databases {
            self.removed(shared, &[*index])?;
        }
        let mut fresh = Vec::with_capacity(databases.len());
        for &index in databases {
            let keyspace = match self.database(shared, index) {
                None => continue,
                Some(database) if database.is_spare => Some(Arc::clone(&database.keyspace)),
                Some(_) => self.spare.pop(),
            };
            fresh.push((
                index,
                keyspace.ok_or("ERR internal error: no keyspace was prepared")?,
            ));
        }
        for (index, keyspace) in fresh {
            if let Some(slot) = self.databases.get_mut(usize::from(index)) {
                *slot = Some(Database::new(keyspace, true));
            }
        }
        self.is_rearranged = true;
        Ok(())
    }

    /// Exchanges two databases, both of which were selected before.
    pub(crate) fn swap(&mut self, shared: &Shared, one: u8, other: u8) -> Result<(), Failure> {
        debug_assert!(self.held.is_all());
        if one != other && self.database(shared, one).is_some() && self.database(shared, other).is_some() {
            self.removed(shared, &[one, other])?;
            self.databases.swap(usize::from(one), usize::from(other));
            self.is_rearranged = true;
        }
        Ok(())
    }

    /// Notes that databases are emptied or exchanged: of the watched keys in them, those change
    /// that are in any of them now.
    fn removed(&mut self, shared: &Shared, databases: &[u8]) -> Result<(), Failure> {
        let now_ms = shared.now_ms();
        let mut scratch = Vec::new();
        for index in databases {
            for key in shared.watches.keys(*index) {
                value::data_key(&mut scratch, &key);
                let mut is_there = false;
                for from in databases {
                    let Some(database) = self.database(shared, *from) else {
                        continue;
                    };
                    if let Some(stored) = database.get(&scratch)? {
                        is_there |= !value::read_header(&stored)?.is_expired(now_ms);
                    }
                }
                if is_there {
                    self.changed.insert((*index, key));
                }
            }
        }
        Ok(())
    }

    /// Commits everything, releases the locks, and waits then while the engine's background work lags
    /// behind. Returns the end of the commit, 0 if there was nothing to commit, together with the
    /// keyspaces that no longer belong to a database.
    pub(crate) fn commit(self, shared: &Shared) -> Result<Replaced, Failure> {
        let done = self.write(shared);
        if done.is_ok() {
            self.applied(shared);
        }
        let written = self.written();
        let unused = self.unused(done.is_err());
        if done.is_ok() {
            for (keyspace, bytes) in written {
                keyspace.family.throttle(bytes);
            }
        }
        match done {
            Ok(mut replaced) => {
                replaced.old.extend(unused);
                Ok(replaced)
            }
            Err(failure) => {
                // Where it is in doubt which family a database has, the log may contain the commit
                // all the same, and the next opening either uses these keyspaces or drops them.
                if shared.store.db.default_family().check_certain().is_ok() {
                    shared.store.discard(&unused);
                }
                Err(failure)
            }
        }
    }

    /// Drops the changes and releases the locks.
    pub(crate) fn abandon(self, shared: &Shared) {
        shared.store.discard(&self.unused(true));
    }

    /// The spare keyspaces that did not become a database's; all of them after a failure. Dropping
    /// them syncs, so the locks are released first.
    fn unused(self, has_failed: bool) -> Vec<Arc<Keyspace>> {
        let mut unused = self.spare;
        let taken = self.databases.into_iter().flatten();
        unused.extend(
            taken
                .filter(|database| has_failed && database.is_spare)
                .map(|database| database.keyspace),
        );
        unused
    }

    /// How many bytes it writes to each keyspace.
    fn written(&self) -> Vec<(Arc<Keyspace>, usize)> {
        let size = |(key, value): (&Vec<u8>, &Option<Value>)| {
            key.len() + value.as_ref().map_or(0, |value| value.len())
        };
        let databases = self.databases.iter().flatten();
        databases
            .filter(|database| !database.pending.changes.is_empty())
            .map(|database| {
                let bytes = database.pending.changes.iter().map(size).sum();
                (Arc::clone(&database.keyspace), bytes)
            })
            .collect()
    }

    fn write(&self, shared: &Shared) -> Result<Replaced, Failure> {
        let mut batch = Batch::new();
        for database in self.databases.iter().flatten() {
            let family = &database.keyspace.family;
            for (key, value) in &database.pending.changes {
                match value {
                    Some(value) => batch.put(family, key, value)?,
                    None => batch.delete(family, key)?,
                }
            }
        }
        if self.is_rearranged {
            return self.rearrange(shared, &mut batch);
        }
        let end = if batch.is_empty() {
            0
        } else {
            let is_removal = |change: &Option<Value>| change.is_none();
            let mut changes = self
                .databases
                .iter()
                .flatten()
                .flat_map(|database| database.pending.changes.values());
            let effect = if changes.all(is_removal) {
                Effect::Removes
            } else {
                Effect::Adds
            };
            let written = shared.store.db.write_ref(&batch, &LOCKED_WRITE);
            shared.store.health.note(effect, written)?
        };
        Ok(Replaced { end, old: Vec::new() })
    }

    /// Commits a batch together with the databases that were exchanged.
    fn rearrange(&self, shared: &Shared, batch: &mut Batch) -> Result<Replaced, Failure> {
        let before = shared.store.keyspaces();
        let mut new = Vec::new();
        for (index, old) in &before {
            if let Some(Some(database)) = self.databases.get(usize::from(*index))
                && !Arc::ptr_eq(&database.keyspace, old)
            {
                new.push((*index, Arc::clone(&database.keyspace)));
            }
        }
        let replaced = shared.store.replace(batch, &new);
        let end = shared.store.health.note(Effect::Removes, replaced)?;
        let is_kept = |old: &Arc<Keyspace>| {
            let now = shared.store.keyspaces();
            now.iter().any(|(_, keyspace)| Arc::ptr_eq(keyspace, old))
        };
        let old = before.into_iter().map(|(_, keyspace)| keyspace);
        Ok(Replaced {
            end,
            old: old.filter(|keyspace| !is_kept(keyspace)).collect(),
        })
    }

    /// Updates counts, the free numbers, the sweeper's hint and the watches after the commit.
    fn applied(&self, shared: &Shared) {
        for database in self.databases.iter().flatten() {
            let pending = &database.pending;
            database.keyspace.changed(pending.keys, pending.expiring);
            for number in &pending.freed {
                database.keyspace.numbers.put_back(*number);
            }
            if let Some(first) = pending.expiry_first_ms() {
                database.keyspace.expiry_added(first);
            }
        }
        for (index, key) in &self.changed {
            shared.watches.changed(*index, key);
        }
    }
}
