//! Key locks for commands that read before they write: the engine's row locks.
//!
//! They are held while a command reads, decides and applies its write to the engine's memtable — never across an await, a
//! sync or a write to a socket. Every command that changes a key takes its lock, a plain SET too: it decides by what was
//! there whether the number of keys grows and which entry of the expiry index goes. A key's entries in that index belong
//! to it, and are locked with it.
//!
//! A row is a key of a keyspace, and a database may get another keyspace while its lock is waited for. So whoever has got
//! the lock of one key looks whether the keyspace is still the database's (`Exec::lock`), and whoever locks several keeps
//! keyspaces from being exchanged while he asks.

use std::sync::Arc;
use std::time::Duration;

use collie_db::{Db, Durability, Error, Family, RowLocks, RowOwner, WriteOptions};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::cost::Aside;
use crate::failure::Failure;
use crate::keyspace::Keyspace;

/// How commands write, the keys' locks held: visible on return, at the engine's weakest level.
pub(crate) const LOCKED_WRITE: WriteOptions = WriteOptions {
    durability: Durability::Buffered,
    disable_wal: false,
    skip_row_locks: true,
};

/// How long a lock is waited for; then the client reads an error. Commands never wait for each other for ever: who locks
/// one key asks for no other; who locks several asks in an order, and never beside somebody who locks all. But the engine
/// may hold up one that has locks, and a program that shares the store with its clients may leave a transaction open.
const PATIENCE: Duration = Duration::from_secs(30);

/// A command that works on more keys than these locks all: about as cheap by then, and so few that the locks of all
/// threads together fit into the engine's table ([`max_row_locks`](collie_db::Options::max_row_locks), a million by
/// default; `collie serve` has room for more than its threads can take).
pub(crate) const LOCKED_ONE_BY_ONE: usize = 1_000;

/// Whether somebody may wait for locks. A thread that serves connections may not: what would wait there runs aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    Allowed,
    GoesAside,
}

impl Waiting {
    fn patience(self) -> Duration {
        match self {
            Waiting::Allowed => PATIENCE,
            Waiting::GoesAside => Duration::ZERO,
        }
    }

    fn judge<T>(self, asked: Result<T, Error>) -> Result<T, Failure> {
        match asked {
            Err(Error::LockTimeout { .. }) if self == Waiting::GoesAside => Err(Failure::Aside(Aside::Waits)),
            asked => Ok(asked?),
        }
    }
}

/// Keeps those who lock all keys from those who lock several, one by one, and from those who add a database.
#[derive(Debug, Default)]
pub(crate) struct KeyLocks {
    everything: RwLock<()>,
}

/// Locks that are held; dropping it gives them back.
#[must_use]
pub(crate) struct Held<'a> {
    rows: RowLocks<'a>,
    /// Where all keys are locked: nobody else locks all.
    everything: Option<RwLockWriteGuard<'a, ()>>,
}

impl Held<'_> {
    /// Whether all keys are locked.
    pub(crate) fn is_all(&self) -> bool {
        self.everything.is_some()
    }

    /// Whether a row is locked.
    pub(crate) fn covers(&self, family: &Family, key: &[u8]) -> bool {
        self.rows.covers(family, key)
    }
}

impl KeyLocks {
    /// Locks one row.
    pub(crate) fn one<'a>(
        &self,
        db: &'a Db,
        owner: &mut RowOwner,
        family: &Family,
        key: &[u8],
        waiting: Waiting,
    ) -> Result<Held<'a>, Failure> {
        let rows = waiting.judge(db.lock_rows(owner, [(family, key)], waiting.patience()))?;
        Ok(Held {
            rows,
            everything: None,
        })
    }

    /// While this is held nobody locks all keys, or exchanges keyspaces.
    pub(crate) fn asking(&self, waiting: Waiting) -> Result<RwLockReadGuard<'_, ()>, Failure> {
        match waiting {
            Waiting::Allowed => Ok(self.asking_patiently()),
            Waiting::GoesAside => self.everything.try_read().ok_or(Failure::Aside(Aside::Waits)),
        }
    }

    /// As [`KeyLocks::asking`], of a thread that may block.
    pub(crate) fn asking_patiently(&self) -> RwLockReadGuard<'_, ()> {
        self.everything.read()
    }

    /// Locks several rows. Their keyspaces were looked up while `_asking`, and stay their databases' while one of their
    /// rows is held.
    pub(crate) fn several<'a, 'k>(
        &self,
        _asking: RwLockReadGuard<'_, ()>,
        db: &'a Db,
        owner: &mut RowOwner,
        rows: impl Iterator<Item = (&'k Family, &'k [u8])>,
        waiting: Waiting,
    ) -> Result<Held<'a>, Failure> {
        let rows = waiting.judge(db.lock_rows(owner, rows, waiting.patience()))?;
        Ok(Held {
            rows,
            everything: None,
        })
    }

    /// Locks all rows of the keyspaces that `keyspaces` gives when no others can come: all that there are, and the ones
    /// that may take their place.
    pub(crate) fn all<'a>(
        &'a self,
        db: &'a Db,
        owner: &mut RowOwner,
        keyspaces: impl FnOnce() -> Vec<Arc<Keyspace>>,
    ) -> Result<Held<'a>, Error> {
        let everything = Some(self.everything.write());
        let keyspaces = keyspaces();
        let families = keyspaces.iter().map(|keyspace| &keyspace.family);
        let rows = db.lock_families(owner, families, PATIENCE)?;
        Ok(Held { rows, everything })
    }
}
