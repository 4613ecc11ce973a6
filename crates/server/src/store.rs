//! The sixteen databases: which family each one is, and how one is emptied.
//!
//! The engine's default family holds, for each database, the *generation* of its family; database 3 in
//! generation 7 is the family `db3.7`. `FLUSHDB` never deletes keys. It
//!
//! 1. creates the family of the next generation, which the engine makes durable, with no lock held;
//! 2. takes all key locks, so that no write is under way, commits the new generation — one ordinary commit,
//!    which for `FLUSHALL` covers all databases — and hands out the new family;
//! 3. waits until that commit is on disk, and only then drops the old family.
//!
//! A crash before the commit is durable leaves the old family current and complete, a crash after it the new
//! one; no crash leaves a part. Since the commit has its place in the log, whatever is durable after it
//! implies that it is durable. A family whose generation is not current is dropped when the store is opened.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use collie_db::{Batch, Db, Durability, Error, Family, FamilyOptions, Lsn, WriteOptions};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::cursors::Cursors;
use crate::locks::KeyLocks;
use crate::value::{DATA, EXPIRY};

/// Number of databases.
pub(crate) const DATABASES: u8 = 16;
/// Keys between two looks at whether counting shall stop.
const COUNT_STEP: usize = 1024;

/// One database in one generation.
#[derive(Debug)]
pub(crate) struct Keyspace {
    /// The database's number.
    pub(crate) index: u8,
    generation: u64,
    /// Where its keys lie.
    pub(crate) family: Family,
    /// Keys, those included that are past their expiry and not yet removed; without what was there at open
    /// until that is counted.
    keys: AtomicI64,
    /// Keys with an expiry, counted likewise.
    expiring: AtomicI64,
    /// No entry of the expiry index lies before this time, in milliseconds since the Unix epoch. It saves the
    /// sweeper from walking over the tombstones of what it removed.
    pub(crate) sweep_from: AtomicU64,
    counted: watch::Sender<Count>,
}

/// How far the count of the keys that were there at open has come.
#[derive(Debug, Clone)]
enum Count {
    Running,
    Done,
    Failed(Arc<str>),
}

impl Keyspace {
    fn new(index: u8, generation: u64, family: Family, count: Count) -> Keyspace {
        Keyspace {
            index,
            generation,
            family,
            keys: AtomicI64::new(0),
            expiring: AtomicI64::new(0),
            sweep_from: AtomicU64::new(0),
            counted: watch::Sender::new(count),
        }
    }

    /// Notes that a write changed the number of keys, and of keys with an expiry. The caller holds the
    /// key's lock.
    pub(crate) fn changed(&self, keys: i64, expiring: i64) {
        // Relaxed: the counters order nothing; a reader sees its own earlier writes, made on its thread or
        // made visible to it by the reply that it waited for.
        if keys != 0 {
            self.keys.fetch_add(keys, Ordering::Relaxed);
        }
        if expiring != 0 {
            self.expiring.fetch_add(expiring, Ordering::Relaxed);
        }
    }

    /// Notes that an entry of the expiry index was written.
    pub(crate) fn expiry_added(&self, expiry_ms: u64) {
        // Relaxed: the hint only says where the sweeper looks first. It is lowered after the entry was applied,
        // so a sweep that took the hint before and missed the entry is followed by one that finds it.
        if expiry_ms < self.sweep_from.load(Ordering::Relaxed) {
            self.sweep_from.fetch_min(expiry_ms, Ordering::Relaxed);
        }
    }

    /// Keys and keys with an expiry, as far as counted.
    pub(crate) fn size(&self) -> (i64, i64) {
        // Relaxed: see `changed`.
        (
            self.keys.load(Ordering::Relaxed).max(0),
            self.expiring.load(Ordering::Relaxed).max(0),
        )
    }

    /// Whether [`size`](Keyspace::size) is the whole truth already.
    pub(crate) fn is_counted(&self) -> bool {
        matches!(*self.counted.borrow(), Count::Done)
    }

    /// Waits until the keys that were there at open are counted.
    pub(crate) async fn counted(&self) -> Result<(), String> {
        let mut receiver = self.counted.subscribe();
        let state = receiver.wait_for(|count| !matches!(count, Count::Running)).await;
        match state.as_deref() {
            Ok(Count::Failed(cause)) => Err(format!("ERR the keys could not be counted: {cause}")),
            // The sender lives as long as this keyspace does.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Counts what is there as of now. Called before the first write, so that what the scan finds and what
    /// later writes report add up.
    fn count(self: &Arc<Self>, stop: &Arc<AtomicBool>) -> Result<(), OpenError> {
        let scans = [
            (self.family.prefix([DATA])?, true),
            (self.family.prefix([EXPIRY])?, false),
        ];
        let (keyspace, stop) = (Arc::clone(self), Arc::clone(stop));
        let thread = std::thread::Builder::new().name(format!("collie-count-{}", self.index));
        let counting = move || {
            let mut result = Count::Done;
            for (scan, is_data) in scans {
                let mut found: i64 = 0;
                for (i, item) in scan.enumerate() {
                    // Relaxed: a hint to end early.
                    if i % COUNT_STEP == 0 && stop.load(Ordering::Relaxed) {
                        return;
                    }
                    match item {
                        Ok(_) => found += 1,
                        Err(error) => {
                            tracing::error!(database = keyspace.index, %error, "counting the keys failed");
                            result = Count::Failed(error.to_string().into());
                            break;
                        }
                    }
                }
                if is_data {
                    keyspace.changed(found, 0)
                } else {
                    keyspace.changed(0, found)
                }
            }
            keyspace.counted.send_replace(result);
        };
        thread.spawn(counting).map(drop).map_err(OpenError::Thread)
    }
}

/// All databases of a server.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) db: Db,
    pub(crate) locks: KeyLocks,
    pub(crate) cursors: Mutex<Cursors>,
    current: Mutex<[Option<Arc<Keyspace>>; DATABASES as usize]>,
    /// Grows whenever a database gets another family. Changed with all key locks held.
    generation: AtomicU64,
    /// Held by whoever creates, replaces or drops families. Those are threads that may block.
    changing: Mutex<()>,
    stop_counting: Arc<AtomicBool>,
}

impl Store {
    /// Finds the databases in `db`, drops the families that a crash left over, and starts to count the
    /// keys. Database 0 is created where it is missing.
    pub(crate) fn open(db: Db, cursor_seed: u64) -> Result<Store, OpenError> {
        let store = Store {
            locks: KeyLocks::new(),
            cursors: Mutex::new(Cursors::new(cursor_seed)),
            current: Mutex::new([const { None }; DATABASES as usize]),
            generation: AtomicU64::new(0),
            changing: Mutex::new(()),
            stop_counting: Arc::new(AtomicBool::new(false)),
            db,
        };
        for name in store.db.families() {
            let Some((index, generation)) = read_family_name(&name) else {
                continue;
            };
            let Some(family) = store.db.family(&name) else {
                continue;
            };
            if generation != store.stored_generation(index)? {
                store.db.drop_family(&family)?;
                continue;
            }
            let keyspace = Arc::new(Keyspace::new(index, generation, family, Count::Running));
            keyspace.count(&store.stop_counting)?;
            if let Some(slot) = store.current.lock().get_mut(usize::from(index)) {
                *slot = Some(keyspace);
            }
        }
        store.create(0)?;
        Ok(store)
    }

    /// Grows whenever a database gets another family; a keyspace that was fetched before is then to be
    /// fetched again. Exact for whoever holds a key lock.
    pub(crate) fn generation(&self) -> u64 {
        // Acquire pairs with the Release in `replace`.
        self.generation.load(Ordering::Acquire)
    }

    /// Has the threads that count keys end soon.
    pub(crate) fn stop_counting(&self) {
        // Relaxed: pairs with the load in `Keyspace::count`, a hint.
        self.stop_counting.store(true, Ordering::Relaxed);
    }

    /// The database, where it was ever selected.
    pub(crate) fn keyspace(&self, index: u8) -> Option<Arc<Keyspace>> {
        self.current.lock().get(usize::from(index)).cloned().flatten()
    }

    /// All databases that were ever selected.
    pub(crate) fn keyspaces(&self) -> Vec<Arc<Keyspace>> {
        self.current.lock().iter().flatten().cloned().collect()
    }

    /// The database; where it was never selected, its family is created. That syncs: it is for threads
    /// that may block.
    pub(crate) fn create(&self, index: u8) -> Result<Arc<Keyspace>, Error> {
        let _changing = self.changing.lock();
        if let Some(there) = self.keyspace(index) {
            return Ok(there);
        }
        let generation = self.stored_generation(index)?;
        let family = self.new_family(index, generation)?;
        let keyspace = Arc::new(Keyspace::new(index, generation, family, Count::Done));
        if let Some(slot) = self.current.lock().get_mut(usize::from(index)) {
            *slot = Some(Arc::clone(&keyspace));
        }
        Ok(keyspace)
    }

    /// Empties the databases at once and gives the end of the commit that did it. It syncs: it is for
    /// threads that may block. `drop_replaced` is to follow.
    pub(crate) fn flush(&self, databases: &[u8]) -> Result<Flushed, Error> {
        let changing = self.changing.lock();
        let old: Vec<Arc<Keyspace>> = databases
            .iter()
            .filter_map(|&index| self.keyspace(index))
            .collect();
        let mut batch = Batch::new();
        let mut new = Vec::with_capacity(old.len());
        for keyspace in &old {
            let (index, generation) = (keyspace.index, keyspace.generation + 1);
            // A family of that name is what an earlier, failed attempt left.
            if let Some(left) = self.db.family(&family_name(index, generation)) {
                self.db.drop_family(&left)?;
            }
            let family = self.new_family(index, generation)?;
            new.push(Arc::new(Keyspace::new(index, generation, family, Count::Done)));
            batch.put(
                &self.db.default_family(),
                meta_key(index),
                generation.to_le_bytes(),
            )?;
        }
        if new.is_empty() {
            return Ok(Flushed {
                end: self.db.visible(),
                old,
            });
        }
        let end = self.replace(&batch, new)?;
        drop(changing);
        Ok(Flushed { end, old })
    }

    fn replace(&self, batch: &Batch, new: Vec<Arc<Keyspace>>) -> Result<Lsn, Error> {
        let _nobody_writes = self.locks.all();
        let end = self.db.write_ref(batch, &WriteOptions::buffered())?;
        let mut current = self.current.lock();
        for keyspace in new {
            let slot = usize::from(keyspace.index);
            if let Some(slot) = current.get_mut(slot) {
                *slot = Some(keyspace);
            }
        }
        // Release pairs with the Acquire in `generation`.
        self.generation.fetch_add(1, Ordering::Release);
        Ok(end)
    }

    /// Waits until a flush is on disk, then drops the families that it replaced. Blocks.
    pub(crate) fn drop_replaced(&self, flushed: &Flushed) -> Result<(), Error> {
        self.db.wait(flushed.end, Durability::Disk)?;
        let _changing = self.changing.lock();
        for keyspace in &flushed.old {
            self.db.drop_family(&keyspace.family)?;
        }
        Ok(())
    }

    fn new_family(&self, index: u8, generation: u64) -> Result<Family, Error> {
        self.db
            .create_family(&family_name(index, generation), FamilyOptions::default())
    }

    fn stored_generation(&self, index: u8) -> Result<u64, Error> {
        let stored = self.db.default_family().get(meta_key(index))?;
        let bytes = stored.as_deref().and_then(|value| value.first_chunk::<8>());
        Ok(bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    }
}

impl Drop for Store {
    /// Ends the counting, which would keep the engine open.
    fn drop(&mut self) {
        self.stop_counting();
    }
}

/// Databases that were emptied.
#[derive(Debug)]
pub(crate) struct Flushed {
    end: Lsn,
    old: Vec<Arc<Keyspace>>,
}

impl Flushed {
    /// The end of the commit that did it.
    pub(crate) fn end(&self) -> Lsn {
        self.end
    }
}

/// Why the databases cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    Engine(#[from] Error),
    #[error("cannot start a thread that counts keys: {0}")]
    Thread(std::io::Error),
}

fn family_name(index: u8, generation: u64) -> String {
    format!("db{index}.{generation}")
}

fn read_family_name(name: &str) -> Option<(u8, u64)> {
    let (index, generation) = name.strip_prefix("db")?.split_once('.')?;
    let found = (index.parse().ok()?, generation.parse().ok()?);
    (found.0 < DATABASES && family_name(found.0, found.1) == name).then_some(found)
}

fn meta_key(index: u8) -> Vec<u8> {
    format!("server/database/{index}/generation").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn family_names_read_back_and_strange_ones_are_left_alone() {
        assert_eq!(read_family_name(&family_name(3, 17)), Some((3, 17)));
        for strange in [
            "default", "db", "db3", "db3.", "db03.1", "db16.0", "db1.-1", "db1.1x",
        ] {
            assert_eq!(read_family_name(strange), None, "{strange}");
        }
    }
}
