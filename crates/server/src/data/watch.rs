//! Watched keys: which connections watch a key, and are marked when it changes (`WATCH`).
//!
//! A connection registers its keys here. A command that changes a key marks every connection that
//! watches it, whose next `EXEC` then does nothing. Both hold the key's lock, so that a change
//! either precedes the watch or marks it; and `EXEC`, which also holds the locks of its watched
//! keys, misses no change.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::cluster::Leadership;
use crate::data::keyspace::DATABASES;

/// A key of a database.
pub(crate) type DbKey = (u8, Arc<[u8]>);

/// The most keys that one connection watches: so many can be let go at once.
pub(crate) const WATCHED_MAX: usize = 16 * 1024;

/// What a watched key takes beside its own bytes: its places in both tables, and the allocations.
const BESIDE_KEY: usize = 256;

/// The memory, in bytes, that the watch of a key of so many bytes takes.
pub(crate) fn watch_bytes(key: &[u8]) -> usize {
    key.len() + BESIDE_KEY
}

/// The watched keys of one database.
type Watched = HashMap<Arc<[u8]>, Vec<Watcher>>;

/// All watched keys.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    /// The number of watches in `keys`, so that writes need not lock it while no key is watched.
    count: AtomicUsize,
    keys: Mutex<[Watched; DATABASES as usize]>,
}

#[derive(Debug)]
struct Watcher {
    is_dirty: Arc<AtomicBool>,
    /// The key had already expired when the watch began, so that its removal counts as no change.
    was_expired: bool,
}

impl Watches {
    fn is_empty(&self) -> bool {
        // Relaxed: the caller holds the lock of a key, and so did the connection that began to
        // watch that key.
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Whether any connection watches a key. Exact while the caller holds its lock, but for watches
    /// that end.
    pub(crate) fn is_watched(&self, db: u8, key: &[u8]) -> bool {
        !self.is_empty()
            && self
                .keys
                .lock()
                .get(usize::from(db))
                .is_some_and(|keys| keys.contains_key(key))
    }

    /// Marks the watches of a key that changed. The caller holds its lock.
    pub(crate) fn changed(&self, db: u8, key: &[u8]) {
        if self.is_empty() {
            return;
        }
        let keys = self.keys.lock();
        for watcher in watchers(&*keys, db, key) {
            watcher.mark();
        }
    }

    /// As [`changed`](Watches::changed), but for one connection: it changes the key itself, in an `EXEC`
    /// that may have to begin anew.
    pub(crate) fn changed_by(&self, db: u8, key: &[u8], own: &Watching) {
        let keys = self.keys.lock();
        for watcher in watchers(&*keys, db, key) {
            if !Arc::ptr_eq(&watcher.is_dirty, &own.0) {
                watcher.mark();
            }
        }
    }

    /// Marks the watches of a key that was removed because it had expired. The caller holds its
    /// lock.
    pub(crate) fn expired(&self, db: u8, key: &[u8]) {
        if self.is_empty() {
            return;
        }
        let mut keys = self.keys.lock();
        let watched = keys.get_mut(usize::from(db)).and_then(|keys| keys.get_mut(key));
        for watcher in watched.into_iter().flatten() {
            if watcher.was_expired {
                watcher.was_expired = false;
            } else {
                watcher.mark();
            }
        }
    }

    /// The watched keys of a database. Exact while the caller holds all locks, but for watches that
    /// end.
    pub(crate) fn keys(&self, db: u8) -> Vec<Arc<[u8]>> {
        let keys = self.keys.lock();
        let watched = keys.get(usize::from(db)).into_iter().flat_map(HashMap::keys);
        watched.cloned().collect()
    }
}

fn watchers<'k>(keys: &'k [Watched], db: u8, key: &[u8]) -> impl Iterator<Item = &'k Watcher> {
    let watchers = keys.get(usize::from(db)).and_then(|keys| keys.get(key));
    watchers.into_iter().flatten()
}

impl Watcher {
    fn mark(&self) {
        // Relaxed: readers take the key's lock first, which the caller holds.
        self.is_dirty.store(true, Ordering::Relaxed);
    }
}

/// Identifies the watches of one connection.
#[derive(Debug, Clone)]
pub(crate) struct Watching(Arc<AtomicBool>);

/// The keys that one connection watches. Dropping it ends the watch.
#[derive(Debug)]
pub(crate) struct WatchSet {
    all: Arc<Watches>,
    is_dirty: Arc<AtomicBool>,
    /// With whether each had expired when the watch began.
    keys: BTreeMap<DbKey, bool>,
    /// The memory that they take, in bytes.
    bytes: usize,
    /// Who led the partition of the keys when the watch began, in a cluster.
    leadership: Option<Leadership>,
}

impl WatchSet {
    pub(crate) fn new(all: Arc<Watches>) -> WatchSet {
        WatchSet {
            all,
            is_dirty: Arc::default(),
            keys: BTreeMap::new(),
            bytes: 0,
            leadership: None,
        }
    }

    /// Begins to watch a key, whose lock the caller holds. `false` if the connection watches
    /// [`WATCHED_MAX`] others: the watch then counts as changed, so that the next `EXEC` does nothing.
    #[must_use]
    pub(crate) fn add(&mut self, db: u8, key: &[u8], was_expired: bool) -> bool {
        let is_full = self.keys.len() == WATCHED_MAX;
        let key: DbKey = (db, key.into());
        let Entry::Vacant(place) = self.keys.entry(key) else {
            return true;
        };
        if is_full {
            // Relaxed: see `Watcher::mark`.
            self.is_dirty.store(true, Ordering::Relaxed);
            return false;
        }
        let watcher = Watcher {
            is_dirty: Arc::clone(&self.is_dirty),
            was_expired,
        };
        self.bytes += watch_bytes(&place.key().1);
        if let Some(keys) = self.all.keys.lock().get_mut(usize::from(db)) {
            keys.entry(Arc::clone(&place.key().1)).or_default().push(watcher);
        }
        // Relaxed: see `Watches::is_empty`.
        self.all.count.fetch_add(1, Ordering::Relaxed);
        place.insert(was_expired);
        true
    }

    /// The memory that the watched keys take, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Identifies them.
    pub(crate) fn watching(&self) -> Watching {
        Watching(Arc::clone(&self.is_dirty))
    }

    /// Notes who leads the partition of the watched keys, whose locks the caller holds. While that is
    /// the same, all changes of them are made in this process. If it was another one when the watch
    /// of another key began, the watch counts as changed.
    pub(crate) fn led_by(&mut self, leadership: Leadership) {
        if *self.leadership.get_or_insert(leadership) != leadership {
            // Relaxed: see `Watcher::mark`.
            self.is_dirty.store(true, Ordering::Relaxed);
        }
    }

    /// The watched keys, and whether each had expired when the watch began.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (u8, &[u8], bool)> {
        self.keys
            .iter()
            .map(|((db, key), was_expired)| (*db, &**key, *was_expired))
    }

    /// Whether one of them has changed. Exact while their locks are held.
    pub(crate) fn is_dirty(&self) -> bool {
        // Relaxed: see `Watcher::mark`.
        self.is_dirty.load(Ordering::Relaxed)
    }

    /// Ends the watch of all keys.
    pub(crate) fn clear(&mut self) {
        if self.keys.is_empty() {
            return;
        }
        self.leadership = None;
        self.bytes = 0;
        let mut all = self.all.keys.lock();
        for ((db, key), _) in std::mem::take(&mut self.keys) {
            let Some(keys) = all.get_mut(usize::from(db)) else {
                continue;
            };
            let Some(watchers) = keys.get_mut(&key) else {
                continue;
            };
            watchers.retain(|watcher| !Arc::ptr_eq(&watcher.is_dirty, &self.is_dirty));
            if watchers.is_empty() {
                keys.remove(&key);
            }
            // Relaxed: see `Watches::is_empty`.
            self.all.count.fetch_sub(1, Ordering::Relaxed);
        }
        // The tables do not keep the memory of what was once watched.
        for keys in all.iter_mut().filter(|keys| keys.is_empty()) {
            keys.shrink_to_fit();
        }
        // A new flag, so that no mark of this watch reaches the next one.
        self.is_dirty = Arc::default();
    }
}

impl Drop for WatchSet {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_marks_exactly_the_watches_of_the_key() {
        let all = Arc::new(Watches::default());
        let (mut one, mut other) = (WatchSet::new(Arc::clone(&all)), WatchSet::new(Arc::clone(&all)));
        assert!(one.add(0, b"key", false) && one.add(0, b"key", false) && other.add(1, b"key", false));
        assert_eq!(one.bytes(), watch_bytes(b"key"), "it is watched once");
        all.changed(0, b"another");
        assert!(!one.is_dirty() && !other.is_dirty());
        all.changed_by(0, b"key", &one.watching());
        assert!(!one.is_dirty() && !other.is_dirty());
        all.changed_by(0, b"key", &other.watching());
        assert!(one.is_dirty() && !other.is_dirty());
        one.clear();
        assert_eq!(one.bytes(), 0);
        all.changed(0, b"key");
        assert!(!one.is_dirty());
        drop((one, other));
        assert!(all.is_empty() && all.keys.lock().iter().all(HashMap::is_empty));
    }

    #[test]
    fn the_removal_of_a_key_that_had_expired_before_is_no_change() {
        let all = Arc::new(Watches::default());
        let (mut stale, mut live) = (WatchSet::new(Arc::clone(&all)), WatchSet::new(Arc::clone(&all)));
        assert!(stale.add(0, b"key", true) && live.add(0, b"key", false));
        all.expired(0, b"key");
        assert!(!stale.is_dirty() && live.is_dirty());
        all.changed(0, b"key");
        assert!(stale.is_dirty());
    }

    #[test]
    fn a_watch_of_too_many_keys_is_refused_and_counts_as_changed() {
        let mut set = WatchSet::new(Arc::default());
        for number in 0..WATCHED_MAX {
            assert!(set.add(0, &number.to_be_bytes(), false));
        }
        assert!(set.add(0, &0_usize.to_be_bytes(), false), "it is watched already");
        assert!(!set.is_dirty());
        assert!(!set.add(0, b"another", false));
        assert!(set.is_dirty());
        set.clear();
        assert!(set.add(0, b"another", false) && !set.is_dirty());
    }
}
