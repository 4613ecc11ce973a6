//! The sixteen databases: which family each one has, and how that changes.
//!
//! The engine's default family maps each database to the *name* of its family: the database for
//! which it was created and a generation, so that database 3 may have the family `db3.7`, or
//! `db5.2` after a `SWAPDB 3 5`. `FLUSHDB` never deletes keys. It
//!
//! 1. creates a family of a new generation, which the engine makes durable, with no lock held;
//! 2. takes all key locks, so that no write is under way, commits the new name — in one ordinary
//!    commit, which for `FLUSHALL` covers all databases, and for `EXEC` all that the transaction
//!    writes — and installs the new family;
//! 3. waits until that commit is on disk, and only then drops the old family.
//!
//! A crash before the commit is durable leaves the old family current and complete, a crash after
//! it the new one; no crash leaves a mixture. The commit has its position in the log, so any later
//! commit that is durable implies that it is durable. A family that belongs to no database is
//! dropped when the store is opened.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use collie_db::{Batch, Db, Durability, Error, Family, FamilyOptions, Lsn, RowOwner};
use parking_lot::Mutex;

use crate::data::cursors::Cursors;
use crate::data::kept_counts::{self, KeptCounts};
use crate::data::keyspace::{DATABASES, FamilyName, Keyspace, OpenError};
use crate::data::locks::{Held, KeyLocks, LOCKED_WRITE};
use crate::data::value::DATA;
use crate::health::{Effect, WriteHealth};

/// All databases of a server.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) db: Db,
    pub(crate) health: WriteHealth,
    pub(crate) locks: KeyLocks,
    pub(crate) cursors: Mutex<Cursors>,
    current: Mutex<[Option<Arc<Keyspace>>; DATABASES as usize]>,
    /// Grows whenever a database gets another family. Changed while all key locks are held.
    generation: AtomicU64,
    /// The end of the newest commit that gave a database another family.
    exchanged: AtomicU64,
    /// The generation of the next family. Locked to create or drop families, only on threads that
    /// may block.
    families: Mutex<u64>,
    /// Options of new families.
    family_options: FamilyOptions,
    stop_counting: Arc<AtomicBool>,
}

impl Store {
    /// Finds the databases in `db`, drops the families that a crash left behind, and starts to
    /// count the keys. Creates database 0 if it is missing.
    pub(crate) fn open(db: Db, cursor_seed: u64, family_options: FamilyOptions) -> Result<Store, OpenError> {
        let store = Store {
            health: WriteHealth::default(),
            locks: KeyLocks::default(),
            cursors: Mutex::new(Cursors::new(cursor_seed)),
            current: Mutex::new([const { None }; DATABASES as usize]),
            generation: AtomicU64::new(0),
            exchanged: AtomicU64::new(0),
            families: Mutex::new(1),
            family_options,
            stop_counting: Arc::new(AtomicBool::new(false)),
            db,
        };
        let mut names = [None; DATABASES as usize];
        for (slot, index) in names.iter_mut().zip(0..) {
            let name = store.stored_name(index)?;
            *slot = Some(name);
            store.keep_above(name.generation);
        }
        let kept = KeptCounts::read(&store.db)?;
        for name in store.db.families() {
            let (Some(name), Some(family)) = (FamilyName::parse(&name), store.db.family(&name)) else {
                continue;
            };
            store.keep_above(name.generation);
            let Some(index) = names.iter().position(|stored| *stored == Some(name)) else {
                store.db.drop_family(&family)?;
                continue;
            };
            let keyspace = match kept.of(name) {
                Some(counts) => Arc::new(Keyspace::counted_before(name, family, counts)?),
                None => {
                    let found = Arc::new(Keyspace::found(name, family)?);
                    found.count(&store.stop_counting)?;
                    found
                }
            };
            if let Some(slot) = store.current.lock().get_mut(index) {
                *slot = Some(keyspace);
            }
        }
        store.create(0)?;
        Ok(store)
    }

    /// Gives later families generations above `generation`.
    fn keep_above(&self, generation: u64) {
        let mut next = self.families.lock();
        *next = (*next).max(generation.saturating_add(1));
    }

    /// Grows whenever a database gets another family; keyspaces that were fetched before must be
    /// fetched again. Exact while a key lock is held.
    pub(crate) fn generation(&self) -> u64 {
        // Acquire pairs with the Release in `replace`.
        self.generation.load(Ordering::Acquire)
    }

    /// The end of the newest commit that changed which family a database has: every read of a
    /// database depends on it. The caller has fetched the keyspace before.
    ///
    /// # Errors
    /// [`Error::InDoubt`] if the log has failed and it is unknown until a restart which family the
    /// database has.
    pub(crate) fn exchanged(&self, database: u8) -> Result<Lsn, Error> {
        // Acquire pairs with the Release in `replace`; the mutex of the keyspaces orders the
        // caller's fetch before it.
        let end = self.exchanged.load(Ordering::Acquire);
        if end > self.db.durable() {
            self.stored_name(database)?;
        }
        Ok(end)
    }

    /// Stops the threads that count keys.
    pub(crate) fn stop_counting(&self) {
        // Relaxed: pairs with the load in `Keyspace::count`, a hint.
        self.stop_counting.store(true, Ordering::Relaxed);
    }

    /// Ends the store: nothing is written any more. Keeps the numbers of keys, and closes the engine.
    ///
    /// # Errors
    /// The engine did not close cleanly.
    pub(crate) fn close(&self) -> Result<(), Error> {
        self.stop_counting();
        let keyspaces = self.keyspaces();
        let kept = kept_counts::keep(&self.db, keyspaces.iter().map(|(_, keyspace)| &**keyspace));
        if let Err(error) = kept {
            tracing::info!(%error, "the next start counts the keys");
        }
        self.db.clone().close()
    }

    /// The database, if it was ever selected.
    pub(crate) fn keyspace(&self, index: u8) -> Option<Arc<Keyspace>> {
        self.current.lock().get(usize::from(index)).cloned().flatten()
    }

    /// All databases that were ever selected, with their numbers.
    pub(crate) fn keyspaces(&self) -> Vec<(u8, Arc<Keyspace>)> {
        let current = self.current.lock();
        let numbered = (0..).zip(current.iter());
        numbered
            .filter_map(|(index, keyspace)| Some((index, keyspace.clone()?)))
            .collect()
    }

    /// The numbers of all databases that were ever selected.
    pub(crate) fn databases(&self) -> Vec<u8> {
        self.keyspaces().iter().map(|(index, _)| *index).collect()
    }

    /// The first database that has keys.
    ///
    /// # Errors
    /// Its family cannot be read.
    pub(crate) fn first_with_keys(&self) -> Result<Option<u8>, Error> {
        for (index, keyspace) in self.keyspaces() {
            if keyspace.family.prefix([DATA])?.next().transpose()?.is_some() {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// The database; creates its family if it was never selected. That syncs, so it is for threads
    /// that may block and hold no locks.
    pub(crate) fn create(&self, index: u8) -> Result<Arc<Keyspace>, Error> {
        let _changing = self.families.lock();
        if let Some(there) = self.keyspace(index) {
            return Ok(there);
        }
        let name = self.stored_name(index)?;
        let keyspace = Arc::new(Keyspace::empty(name, self.new_family(name)?));
        // Not while another thread has locked all keys of all existing databases.
        let _guard = self.locks.lock_shared_blocking();
        if let Some(slot) = self.current.lock().get_mut(usize::from(index)) {
            *slot = Some(Arc::clone(&keyspace));
        }
        Ok(keyspace)
    }

    /// Creates keyspaces without keys, to [replace](Store::replace) those of databases. It syncs,
    /// so it is for threads that may block. Unused ones must be [discarded](Store::discard).
    pub(crate) fn spare(&self, databases: &[u8]) -> Result<Vec<Arc<Keyspace>>, Error> {
        let mut spare = Vec::with_capacity(databases.len());
        for &origin in databases {
            let mut next = self.families.lock();
            let name = FamilyName {
                origin,
                generation: *next,
            };
            match self.new_family(name) {
                Ok(family) => {
                    *next += 1;
                    spare.push(Arc::new(Keyspace::empty(name, family)));
                }
                Err(error) => {
                    drop(next);
                    self.discard(&spare);
                    return Err(error);
                }
            }
        }
        Ok(spare)
    }

    /// Drops keyspaces that belong to no database. If that fails, the next opening of the store
    /// does it.
    pub(crate) fn discard(&self, keyspaces: &[Arc<Keyspace>]) {
        // Most commands have none, and must not wait for a thread that adds a database.
        if keyspaces.is_empty() {
            return;
        }
        let _changing = self.families.lock();
        for keyspace in keyspaces {
            if let Err(error) = self.db.drop_family(&keyspace.family) {
                tracing::warn!(family = %keyspace.name, %error, "its space comes back when the store is next opened");
            }
        }
    }

    /// Commits `batch` together with the names of `new`, and installs the keyspaces as those of
    /// their databases. The caller holds all key locks.
    pub(crate) fn replace(&self, batch: &mut Batch, new: &[(u8, Arc<Keyspace>)]) -> Result<Lsn, Error> {
        let names = self.db.default_family();
        // The batch contains only names, so that the families which they replace can be dropped.
        let makes_room = batch.is_relief();
        for (index, keyspace) in new {
            batch.put(&names, meta_key(*index), meta_value(*index, keyspace.name))?;
        }
        if makes_room {
            batch.set_relief();
        }
        let end = self.db.write_ref(batch, &LOCKED_WRITE)?;
        // Before the keyspaces are installed. Release pairs with the Acquire in `exchanged`.
        self.exchanged.fetch_max(end, Ordering::Release);
        let mut current = self.current.lock();
        for (index, keyspace) in new {
            if let Some(slot) = current.get_mut(usize::from(*index)) {
                *slot = Some(Arc::clone(keyspace));
            }
        }
        // Release pairs with the Acquire in `generation`.
        self.generation.fetch_add(1, Ordering::Release);
        Ok(end)
    }

    /// Locks all keys of all databases. Also returns a keyspace without keys for each database that
    /// `emptied` names, to replace its own; to create these it syncs.
    pub(crate) fn lock_all(
        &self,
        owner: &mut RowOwner,
        emptied: impl Fn() -> Vec<u8>,
    ) -> Result<(Held<'_>, Vec<Arc<Keyspace>>), Error> {
        loop {
            let databases = emptied();
            let spare = self.spare(&databases)?;
            let held = self.locks.all(&self.db, owner, || {
                let current = self.keyspaces().into_iter().map(|(_, keyspace)| keyspace);
                current.chain(spare.iter().cloned()).collect()
            });
            let held = held.inspect_err(|_| self.discard(&spare))?;
            // A database may have been added while the spare keyspaces were created; now none can
            // be.
            if emptied() == databases {
                return Ok((held, spare));
            }
            drop(held);
            self.discard(&spare);
        }
    }

    /// Waits until the commit that replaced the keyspaces is on disk, then drops them. Blocks.
    pub(crate) fn drop_replaced(&self, replaced: &Replaced) {
        match self.db.wait(replaced.end, Durability::Disk) {
            Ok(()) => self.discard(&replaced.old),
            Err(error) => {
                tracing::warn!(%error, "an emptied database's space comes back when the store is next opened")
            }
        }
    }

    fn new_family(&self, name: FamilyName) -> Result<Family, Error> {
        let created = self
            .db
            .create_family(&name.to_string(), self.family_options.clone());
        // An empty family needs no space for data, so that its creation does not show that writes
        // are accepted.
        self.health.note(Effect::Removes, created)
    }

    fn stored_name(&self, index: u8) -> Result<FamilyName, Error> {
        let stored = self.db.default_family().get(meta_key(index))?;
        Ok(read_meta_value(index, stored.as_deref().unwrap_or_default()))
    }
}

impl Drop for Store {
    /// Stops the counting, which would keep the engine open.
    fn drop(&mut self) {
        self.stop_counting();
    }
}

/// Keyspaces that no database has any more.
#[derive(Debug)]
pub(crate) struct Replaced {
    /// The end of the commit that replaced them.
    pub(crate) end: Lsn,
    pub(crate) old: Vec<Arc<Keyspace>>,
}

fn meta_key(index: u8) -> Vec<u8> {
    format!("server/database/{index}/generation").into_bytes()
}

/// The generation, and the database for which the family was created if that is another one.
fn meta_value(index: u8, name: FamilyName) -> Vec<u8> {
    let mut value = name.generation.to_le_bytes().to_vec();
    if name.origin != index {
        value.push(name.origin);
    }
    value
}

fn read_meta_value(index: u8, value: &[u8]) -> FamilyName {
    let (generation, origin) = match value.split_first_chunk::<8>() {
        Some((generation, rest)) => (u64::from_le_bytes(*generation), rest.first().copied()),
        None => (0, None),
    };
    FamilyName {
        origin: origin.unwrap_or(index),
        generation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_databases_family_reads_back() {
        for (index, origin, generation) in [(0, 0, 0), (3, 3, 7), (3, 5, 7), (15, 0, u64::MAX)] {
            let name = FamilyName { origin, generation };
            assert_eq!(read_meta_value(index, &meta_value(index, name)), name);
        }
        // A database that was never emptied has no entry.
        let first = FamilyName {
            origin: 4,
            generation: 0,
        };
        assert_eq!(read_meta_value(4, b""), first);
        assert_eq!(
            meta_value(
                3,
                FamilyName {
                    origin: 3,
                    generation: 7
                }
            ),
            [7, 0, 0, 0, 0, 0, 0, 0]
        );
    }
}
