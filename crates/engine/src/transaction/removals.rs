//! Keys that were removed while transactions are open, which tables may not tell of any more.
//!
//! Whether a key was written since a snapshot is decided by the LSN of its newest entry, which a table keeps too. But a
//! removal's entry, the tombstone, is dropped by a compaction into the last level, and then nothing tells a key that was
//! never there from one that was put and removed since. The table library does that whatever watermark it is given
//! (docs/decisions/0008). So a flush notes here what it removes, before its tables replace the memtable in the view, as
//! long as a transaction is open whose snapshot may be older.
//!
//! *Nothing is missed.* A transaction is in the registry before it takes its snapshot. Where a flush does not find it
//! there, the snapshot is taken after that, under whose boundary is all that the flush has: it waited for that before.
//!
//! *There is a limit* to how many keys are noted. Past it the oldest are forgotten, and a transaction that is older than
//! these is told so: it cannot know.

use std::ops::Bound;
use std::sync::Arc;

use collie_log::Lsn;

use super::registry::Registry;
use super::shard::contains;
use crate::Key;
use crate::iter::Bounds;
use crate::memtable::Entry;

/// What one flush removed.
#[derive(Debug)]
struct Flushed {
    family: u32,
    /// The end of the memtable.
    until: Lsn,
    /// In the order of the keys.
    keys: Vec<(Key, Lsn)>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Removals {
    /// From the oldest to the newest.
    flushed: Vec<Arc<Flushed>>,
    /// In all of them.
    keys: usize,
    limit: usize,
    /// Below this, removals may have been forgotten that open transactions may ask for.
    forgotten: Lsn,
}

impl Removals {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            flushed: Vec::new(),
            keys: 0,
            limit,
            forgotten: 0,
        }
    }

    fn add(&mut self, new: Flushed) {
        // An attempt before it may have failed later on.
        self.retain(|old| (old.family, old.until) != (new.family, new.until));
        while self.keys + new.keys.len() > self.limit && !self.flushed.is_empty() {
            let oldest = self.flushed.remove(0);
            self.keys -= oldest.keys.len();
            self.forgotten = self.forgotten.max(oldest.until);
        }
        if new.keys.len() > self.limit {
            self.forgotten = self.forgotten.max(new.until);
        } else {
            self.keys += new.keys.len();
            self.flushed.push(Arc::new(new));
        }
    }

    fn retain(&mut self, is_kept: impl Fn(&Flushed) -> bool) {
        self.flushed.retain(|flushed| is_kept(flushed));
        self.keys = self.flushed.iter().map(|flushed| flushed.keys.len()).sum();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.flushed.is_empty()
    }

    /// Forgets what no open transaction asks for; `oldest` is the lower bound of all their snapshots, if there are any.
    pub(crate) fn forget(&mut self, oldest: Option<Lsn>) {
        self.retain(|flushed| oldest.is_some_and(|oldest| flushed.until > oldest));
    }

    /// What was removed from a family, and flushed, since `since`.
    pub(crate) fn since(&self, family: u32, since: Lsn) -> RemovedSince {
        let is_asked_for = |flushed: &&Arc<Flushed>| flushed.family == family && flushed.until > since;
        RemovedSince {
            flushed: self.flushed.iter().filter(is_asked_for).cloned().collect(),
            since,
            is_whole: since >= self.forgotten,
        }
    }
}

/// What was removed from a family since a snapshot.
#[derive(Debug)]
pub(crate) struct RemovedSince {
    flushed: Vec<Arc<Flushed>>,
    since: Lsn,
    /// Nothing of it was forgotten.
    is_whole: bool,
}

impl RemovedSince {
    /// Whether a key may have been removed, of which the tables know nothing.
    pub(crate) fn may_have(&self, key: &[u8]) -> bool {
        let has = |flushed: &Arc<Flushed>| {
            let found = flushed.keys.binary_search_by(|(removed, _)| (**removed).cmp(key));
            found.is_ok_and(|at| flushed.keys[at].1 >= self.since)
        };
        !self.is_whole || self.flushed.iter().any(has)
    }

    /// Whether a key between the bounds may have been removed.
    pub(crate) fn may_have_any(&self, bounds: &Bounds) -> bool {
        let has = |flushed: &Arc<Flushed>| {
            let is_below = |(key, _): &(Key, Lsn)| match &bounds.0 {
                Bound::Included(low) => key < low,
                Bound::Excluded(low) => key <= low,
                Bound::Unbounded => false,
            };
            let first = flushed.keys.partition_point(is_below);
            let inside = flushed.keys.iter().skip(first);
            inside
                .take_while(|(key, _)| contains(bounds, key))
                .any(|(_, at)| *at >= self.since)
        };
        !self.is_whole || self.flushed.iter().any(has)
    }
}

/// Notes what a flush removes.
pub(crate) struct Noting<'a> {
    registry: &'a Registry,
    flushed: Flushed,
    /// Removals from here on are asked for; `None`: nobody asks.
    oldest: Option<Lsn>,
    limit: usize,
}

impl Noting<'_> {
    pub(crate) fn note(&mut self, entry: &Entry) {
        // One more than the limit tells that it is passed.
        if self.oldest.is_some_and(|oldest| entry.found.at.start >= oldest)
            && entry.found.value.is_none()
            && self.flushed.keys.len() <= self.limit
        {
            // A copy: the entry's own may keep more alive.
            let key = Key::from(&*entry.key);
            self.flushed.keys.push((key, entry.found.at.start));
        }
    }

    /// To be called before the flush's tables are seen.
    pub(crate) fn keep(self) {
        if !self.flushed.keys.is_empty() {
            self.registry.with_removals(|removals, oldest| {
                removals.add(self.flushed);
                // Whoever asked for it may be gone by now.
                removals.forget(oldest);
            });
        }
    }
}

impl Registry {
    /// Begins to note what the flush of a memtable that ends at `until` removes. All that is in it is visible.
    pub(crate) fn note_removals(&self, family: u32, until: Lsn) -> Noting<'_> {
        let (oldest, limit) = self.with_removals(|removals, oldest| (oldest, removals.limit));
        Noting {
            registry: self,
            flushed: Flushed {
                family,
                until,
                keys: Vec::new(),
            },
            oldest: oldest.filter(|oldest| *oldest < until),
            limit,
        }
    }

    pub(crate) fn removed_since(&self, family: u32, since: Lsn) -> RemovedSince {
        self.with_removals(|removals, _| removals.since(family, since))
    }
}

#[cfg(test)]
mod tests {
    use crate::interleavings::{put, store};
    use crate::testing::hold;
    use crate::{Db, Error, TransactionOptions};

    fn kept(db: &Db) -> (usize, usize) {
        let registry = &db.core().transactions;
        registry.with_removals(|removals, _| (removals.flushed.len(), removals.keys))
    }

    #[test]
    fn removals_are_kept_as_long_as_a_transaction_is_open_that_may_ask_for_them() {
        let (_dir, db) = store();
        let family = db.default_family();
        let remove = |keys: &[&str]| {
            for key in keys {
                family.delete(key).unwrap();
            }
            family.flush().unwrap();
        };
        remove(&["nobody", "asks"]);
        assert_eq!(kept(&db), (0, 0));
        let first = db.transaction(TransactionOptions::default()).unwrap();
        remove(&["a"]);
        let second = db.transaction(TransactionOptions::optimistic()).unwrap();
        put(&family, "x", "no removal");
        remove(&["b", "c"]);
        assert_eq!(kept(&db), (2, 3));
        drop(first);
        assert_eq!(kept(&db), (1, 2), "the first asked for `a`");
        let third = db.transaction(TransactionOptions::default()).unwrap();
        drop(second);
        assert_eq!(kept(&db), (0, 0));
        drop(third);
    }

    /// A flush has looked who is there, and the transaction begins before the tables are seen.
    #[test]
    fn a_transaction_that_begins_during_a_flush_sees_the_removals_or_conflicts() {
        let (_dir, db) = store();
        let family = db.default_family();
        put(&family, "k", "v");
        family.delete("k").unwrap();
        let flush = {
            let family = family.clone();
            hold("tables are written", move || family.flush()).at_point()
        };
        let tx = db.transaction(TransactionOptions::default()).unwrap();
        assert_eq!(tx.get(&family, "k").unwrap(), None);
        put(&family, "later", "v");
        family.delete("later").unwrap();
        flush.finish().unwrap();
        family.flush().unwrap();
        family.compact().unwrap();
        tx.get_for_update(&family, "k").unwrap();
        let refused = tx.get_for_update(&family, "later");
        assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
    }
}
