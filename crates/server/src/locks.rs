//! Key locks for commands that read before they write.
//!
//! A fixed number of mutexes, chosen by the hash of database and key. They are held while a command reads,
//! decides and applies its write to the engine's memtable — never across an await, a sync or a write to a
//! socket. Every command that changes a key takes its lock, a plain SET too: it decides by what was there
//! whether the number of keys grows and which entry of the expiry index goes.

use parking_lot::{Mutex, MutexGuard};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Many more than there can be commands at work at once, so that two seldom meet by chance.
const STRIPES: usize = 1024;

/// The locks of all databases.
#[derive(Debug)]
pub(crate) struct KeyLocks {
    stripes: Box<[Padded]>,
}

/// A line of its own for each lock, so that neighbours do not slow each other.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Padded(Mutex<()>);

/// Locks that are held; dropping it gives them back.
#[must_use]
pub(crate) struct Held<'a> {
    _guards: Vec<MutexGuard<'a, ()>>,
    /// Which ones they are, in order; `None` for all.
    stripes: Option<Vec<usize>>,
}

impl Held<'_> {
    /// Whether all locks are held.
    pub(crate) fn is_all(&self) -> bool {
        self.stripes.is_none()
    }
}

impl KeyLocks {
    pub(crate) fn new() -> KeyLocks {
        KeyLocks {
            stripes: (0..STRIPES).map(|_| Padded::default()).collect(),
        }
    }

    fn stripe(&self, db: u8, key: &[u8]) -> usize {
        // The remainder is below STRIPES, so nothing is cut off.
        (xxh3_64_with_seed(key, u64::from(db)) % STRIPES as u64) as usize
    }

    /// Takes the lock of one key.
    pub(crate) fn one(&self, db: u8, key: &[u8]) -> MutexGuard<'_, ()> {
        self.stripes[self.stripe(db, key)].0.lock()
    }

    /// Takes the locks of several keys, each with its database, in the order of the locks, so that no two
    /// callers wait for each other in a ring.
    pub(crate) fn several<'k>(&self, keys: impl Iterator<Item = (u8, &'k [u8])>) -> Held<'_> {
        let mut stripes: Vec<usize> = keys.map(|(db, key)| self.stripe(db, key)).collect();
        stripes.sort_unstable();
        stripes.dedup();
        Held {
            _guards: stripes
                .iter()
                .map(|stripe| self.stripes[*stripe].0.lock())
                .collect(),
            stripes: Some(stripes),
        }
    }

    /// Takes all locks: nobody changes any key of any database.
    pub(crate) fn all(&self) -> Held<'_> {
        Held {
            _guards: self.stripes.iter().map(|stripe| stripe.0.lock()).collect(),
            stripes: None,
        }
    }

    /// Whether the lock of a key is among those that are held.
    pub(crate) fn covers(&self, held: &Held<'_>, db: u8, key: &[u8]) -> bool {
        let own = self.stripe(db, key);
        held.stripes
            .as_ref()
            .is_none_or(|stripes| stripes.binary_search(&own).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn keys_taken_in_opposite_orders_never_deadlock_and_exclude_each_other() {
        // Four threads take overlapping pairs and all locks; a counter that is read, then written, misses
        // an increment wherever two were inside at once.
        let locks = KeyLocks::new();
        let counter = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let (locks, counter) = (&locks, &counter);
                scope.spawn(move || {
                    for _ in 0..2_000 {
                        let (a, b): (&[u8], &[u8]) = (b"a", b"b");
                        let _held = match thread {
                            0 => locks.several([(0, a), (0, b)].into_iter()),
                            1 => locks.several([(0, b), (0, a)].into_iter()),
                            2 => locks.several([(0, a), (0, a)].into_iter()),
                            _ => locks.all(),
                        };
                        // Relaxed: the locks order the accesses.
                        let seen = counter.load(Ordering::Relaxed);
                        counter.store(seen + 1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(counter.load(Ordering::Relaxed), 8_000);
    }
}
