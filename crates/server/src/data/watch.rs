//! Watched keys: which connections watch a key, and are marked when it changes (`WATCH`).
//!
//! A connection registers its keys here. A command that changes a key marks every connection that
//! watches it, whose next `EXEC` then does nothing. Both hold the key's lock, so that a change
//! either precedes the watch or marks it; and `EXEC`, which also holds the locks of its watched
//! keys, misses no change.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::cluster::Leadership;

/// A key of a database.
pub(crate) type DbKey = (u8, Box<[u8]>);

/// All watched keys.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    /// The number of keys in `keys`, so that writes need not lock it while no key is watched.
    count: AtomicUsize,
    keys: Mutex<HashMap<DbKey, Vec<Watcher>>>,
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
        !self.is_empty() && self.keys.lock().contains_key(&(db, Box::from(key)))
    }

    /// Marks the watches of a key that changed. The caller holds its lock.
    pub(crate) fn changed(&self, db: u8, key: &[u8]) {
        if self.is_empty() {
            return;
        }
        let keys = self.keys.lock();
        for watcher in keys.get(&(db, Box::from(key))).into_iter().flatten() {
            watcher.mark();
        }
    }

    /// As [`changed`](Watches::changed), but for one connection: it changes the key itself, in an `EXEC`
    /// that may have to begin anew.
    pub(crate) fn changed_by(&self, db: u8, key: &[u8], own: &Watching) {
        let keys = self.keys.lock();
        for watcher in keys.get(&(db, Box::from(key))).into_iter().flatten() {
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
        for watcher in keys.get_mut(&(db, Box::from(key))).into_iter().flatten() {
            if watcher.was_expired {
                watcher.was_expired = false;
            } else {
                watcher.mark();
            }
        }
    }

    /// The watched keys of a database. Exact while the caller holds all locks, but for watches that
    /// end.
    pub(crate) fn keys(&self, db: u8) -> Vec<Box<[u8]>> {
        let keys = self.keys.lock();
        let watched = keys.keys().filter(|(watched, _)| *watched == db);
        watched.map(|(_, key)| key.clone()).collect()
    }
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
    keys: Vec<(DbKey, bool)>,
    /// Who led the partition of the keys when the watch began, in a cluster.
    leadership: Option<Leadership>,
}

impl WatchSet {
    pub(crate) fn new(all: Arc<Watches>) -> WatchSet {
        WatchSet {
            all,
            is_dirty: Arc::default(),
            keys: Vec::new(),
            leadership: None,
        }
    }

    /// Begins to watch a key, whose lock the caller holds.
    pub(crate) fn add(&mut self, db: u8, key: &[u8], was_expired: bool) {
        let key: DbKey = (db, key.into());
        if self.keys.iter().any(|(known, _)| *known == key) {
            return;
        }
        let watcher = Watcher {
            is_dirty: Arc::clone(&self.is_dirty),
            was_expired,
        };
        self.all.keys.lock().entry(key.clone()).or_default().push(watcher);
        // Relaxed: see `Watches::is_empty`.
        self.all.count.fetch_add(1, Ordering::Relaxed);
        self.keys.push((key, was_expired));
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
        let mut keys = self.all.keys.lock();
        for (key, _) in self.keys.drain(..) {
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
        one.add(0, b"key", false);
        one.add(0, b"key", false);
        other.add(1, b"key", false);
        all.changed(0, b"another");
        assert!(!one.is_dirty() && !other.is_dirty());
        all.changed_by(0, b"key", &one.watching());
        assert!(!one.is_dirty() && !other.is_dirty());
        all.changed_by(0, b"key", &other.watching());
        assert!(one.is_dirty() && !other.is_dirty());
        one.clear();
        all.changed(0, b"key");
        assert!(!one.is_dirty());
        drop((one, other));
        assert!(all.is_empty() && all.keys.lock().is_empty());
    }

    #[test]
    fn the_removal_of_a_key_that_was_expired_before_is_no_change_but_what_follows_is() {
        let all = Arc::new(Watches::default());
        let (mut stale, mut live) = (WatchSet::new(Arc::clone(&all)), WatchSet::new(Arc::clone(&all)));
        stale.add(0, b"key", true);
        live.add(0, b"key", false);
        all.expired(0, b"key");
        assert!(!stale.is_dirty() && live.is_dirty());
        all.changed(0, b"key");
        assert!(stale.is_dirty());
    }
}
