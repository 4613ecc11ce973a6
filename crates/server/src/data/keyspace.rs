//! The keys of one database: the family that stores them, and their number.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use collie_db::{Error as DbError, Family};
use tokio::sync::watch;

use crate::data::numbers::Numbers;
use crate::data::value::{DATA, EXPIRY, PIECE, piece_owner};

/// Number of databases.
pub(crate) const DATABASES: u8 = 16;
/// Keys between two checks whether counting shall stop.
const COUNT_STEP: usize = 1024;

/// The contents of a database, from one `FLUSHDB` to the next. `SWAPDB` moves it to another
/// database.
#[derive(Debug)]
pub(crate) struct Keyspace {
    pub(crate) name: FamilyName,
    /// The family that stores the keys.
    pub(crate) family: Family,
    /// The number of keys, including expired ones that are not yet removed, and without the keys
    /// that existed at open until these are counted.
    keys: AtomicI64,
    /// The number of keys with an expiry, counted likewise.
    expiring: AtomicI64,
    /// The numbers of its values in pieces.
    pub(crate) numbers: Numbers,
    /// A lower bound of the expiries in the index, in milliseconds since the Unix epoch. It saves
    /// the sweeper from walking over the tombstones of the entries that it removed.
    pub(crate) sweep_from: AtomicU64,
    counted: watch::Sender<Count>,
}

/// The name of a keyspace's family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FamilyName {
    /// The database that it was created for.
    pub(crate) origin: u8,
    /// Distinguishes it from all others that were created for that database.
    pub(crate) generation: u64,
}

impl FamilyName {
    /// Parses a family's name; `None` if it is not that of a database.
    pub(crate) fn parse(name: &str) -> Option<FamilyName> {
        let (origin, generation) = name.strip_prefix("db")?.split_once('.')?;
        let found = FamilyName {
            origin: origin.parse().ok()?,
            generation: generation.parse().ok()?,
        };
        (found.origin < DATABASES && found.to_string() == name).then_some(found)
    }
}

impl fmt::Display for FamilyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "db{}.{}", self.origin, self.generation)
    }
}

/// Progress of counting the keys that existed at open.
#[derive(Debug, Clone)]
enum Count {
    Running,
    Done,
    Failed(Arc<str>),
}

impl Keyspace {
    /// A keyspace whose keys are yet to be [counted](Keyspace::count).
    pub(crate) fn found(name: FamilyName, family: Family) -> Result<Keyspace, DbError> {
        let last = family.prefix([PIECE])?.next_back().transpose()?;
        let owner = last.and_then(|(row, _)| piece_owner(&row)).unwrap_or(0);
        Ok(Keyspace::new(name, family, Numbers::above(owner), Count::Running))
    }

    /// A keyspace whose keys were counted when the server stopped.
    pub(crate) fn counted_before(
        name: FamilyName,
        family: Family,
        [keys, expiring]: [i64; 2],
    ) -> Result<Keyspace, DbError> {
        let keyspace = Keyspace::found(name, family)?;
        keyspace.changed(keys, expiring);
        keyspace.counted.send_replace(Count::Done);
        Ok(keyspace)
    }

    /// A keyspace without keys.
    pub(crate) fn empty(name: FamilyName, family: Family) -> Keyspace {
        Keyspace::new(name, family, Numbers::default(), Count::Done)
    }

    fn new(name: FamilyName, family: Family, numbers: Numbers, count: Count) -> Keyspace {
        Keyspace {
            name,
            family,
            keys: AtomicI64::new(0),
            expiring: AtomicI64::new(0),
            numbers,
            sweep_from: AtomicU64::new(0),
            counted: watch::Sender::new(count),
        }
    }

    /// Records that a write changed the number of keys, and of keys with an expiry. The caller
    /// holds the key's lock.
    pub(crate) fn changed(&self, keys: i64, expiring: i64) {
        // Relaxed: the counters order nothing. A reader sees its own earlier writes, since it made
        // them on its thread or waited for their reply.
        if keys != 0 {
            self.keys.fetch_add(keys, Ordering::Relaxed);
        }
        if expiring != 0 {
            self.expiring.fetch_add(expiring, Ordering::Relaxed);
        }
    }

    /// Records that an entry of the expiry index was written.
    pub(crate) fn expiry_added(&self, expiry_ms: u64) {
        // Release pairs with the Acquire by which the sweeper takes the hint: the entry was applied
        // before. A sweep that took the hint earlier, and may have missed the entry, is followed by
        // one that finds it. The hint must not be checked first: the check could read a value from
        // before the sweeper took it.
        self.sweep_from.fetch_min(expiry_ms, Ordering::Release);
    }

    /// The number of keys, and of keys with an expiry, as far as counted.
    pub(crate) fn size(&self) -> (i64, i64) {
        // Relaxed: see `changed`.
        (
            self.keys.load(Ordering::Relaxed).max(0),
            self.expiring.load(Ordering::Relaxed).max(0),
        )
    }

    /// Whether [`size`](Keyspace::size) is complete.
    pub(crate) fn is_counted(&self) -> bool {
        matches!(*self.counted.borrow(), Count::Done)
    }

    /// Waits until the keys that existed at open are counted.
    pub(crate) async fn counted(&self) -> Result<(), String> {
        let mut receiver = self.counted.subscribe();
        let state = receiver.wait_for(|count| !matches!(count, Count::Running)).await;
        match state.as_deref() {
            Ok(Count::Failed(cause)) => Err(format!("ERR the keys could not be counted: {cause}")),
            // The sender lives as long as this keyspace does.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Counts the keys in a snapshot. Called before the first write, so that the number found and
    /// the changes of later writes add up.
    pub(crate) fn count(self: &Arc<Self>, stop: &Arc<AtomicBool>) -> Result<(), OpenError> {
        let scans = [
            (self.family.prefix([DATA])?, true),
            (self.family.prefix([EXPIRY])?, false),
        ];
        let (keyspace, stop) = (Arc::clone(self), Arc::clone(stop));
        let thread = std::thread::Builder::new().name(format!("collie-count-{}", self.name.origin));
        let counting = move || {
            let mut result = Count::Done;
            for (mut scan, is_data) in scans {
                let mut found: i64 = 0;
                scan.set_max_skippable_internal_keys(COUNT_STEP as u64);
                for (i, item) in scan.enumerate() {
                    // Relaxed: a hint to end early.
                    if (i % COUNT_STEP == 0 || item.is_err()) && stop.load(Ordering::Relaxed) {
                        return;
                    }
                    match item {
                        Ok(_) => found += 1,
                        Err(DbError::Incomplete { .. }) => {}
                        Err(error) => {
                            tracing::error!(family = %keyspace.name, %error, "counting the keys failed");
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

/// Why databases cannot be opened: their keyspaces cannot be found, or not be counted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    Engine(#[from] DbError),
    #[error("cannot start a thread that counts keys: {0}")]
    Thread(std::io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn family_names_read_back_and_strange_ones_are_left_alone() {
        let name = FamilyName {
            origin: 3,
            generation: 17,
        };
        assert_eq!(FamilyName::parse(&name.to_string()), Some(name));
        for strange in [
            "default", "db", "db3", "db3.", "db03.1", "db16.0", "db1.-1", "db1.1x",
        ] {
            assert_eq!(FamilyName::parse(strange), None, "{strange}");
        }
    }
}
