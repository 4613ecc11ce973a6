//! Key locks for commands that read before they write: the engine's row locks.
//!
//! A command holds them while it reads, decides and applies its write to the engine's memtable —
//! never across an await, a sync or a write to a socket. Every command that changes a key takes its
//! lock, also a plain SET: the stored value decides whether the number of keys grows and which
//! entry of the expiry index is removed. The lock of a key also covers its entries in that index.
//!
//! A row is a key of a keyspace, and a database may get another keyspace while a command waits for
//! a row's lock. So a command that has locked one key checks whether the keyspace still is the
//! database's (`Exec::lock`), and a command that locks several keeps keyspaces from being exchanged
//! while it waits.

use std::sync::Arc;
use std::time::Duration;

use collie_db::{Db, Durability, Error, Family, RowLocks, RowOwner, ThrottleMode, WriteOptions};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::cost::Aside;
use crate::data::keyspace::Keyspace;
use crate::failure::Failure;

/// How commands write while they hold the locks: visible on return, at the engine's weakest level.
/// While background work lags behind they wait after that ([`Exec::throttle`](crate::exec::Exec::throttle)).
pub(crate) const LOCKED_WRITE: WriteOptions = WriteOptions {
    durability: Durability::Buffered,
    disable_wal: false,
    skip_row_locks: true,
    throttle: ThrottleMode::HardLimitsOnly,
};

/// How long a command waits for a lock before it fails. Commands never deadlock with each other: a
/// command that locks one key waits for no other; a command that locks several locks them in order,
/// and never at the same time as one that locks all keys. But a command that holds locks may wait for
/// room in the log, and a program that shares the store with its clients may leave a transaction
/// open.
const PATIENCE: Duration = Duration::from_secs(30);

/// A command on more keys than this locks all keys: that is about as cheap then, and so the locks
/// of all threads together fit into the engine's table
/// ([`max_row_locks`](collie_db::Options::max_row_locks), a million by default; `collie serve` sets
/// it above what its threads can take).
pub(crate) const LOCKED_ONE_BY_ONE: usize = 1_000;

/// Whether a command may wait for locks. It may not on a thread that serves connections: there it
/// is run again aside.
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

    fn check<T>(self, locked: Result<T, Error>) -> Result<T, Failure> {
        match locked {
            Err(Error::LockTimeout { .. }) if self == Waiting::GoesAside => Err(Failure::Aside(Aside::Waits)),
            locked => Ok(locked?),
        }
    }
}

/// Excludes commands that lock all keys from commands that lock several, and from threads that add
/// a database.
#[derive(Debug, Default)]
pub(crate) struct KeyLocks {
    everything: RwLock<()>,
}

/// Row locks that are held; dropping it releases them.
#[must_use]
pub(crate) struct Held<'a> {
    rows: RowLocks<'a>,
    /// Set if all keys are locked: excludes other commands that lock all.
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
        let rows = waiting.check(db.lock_rows(owner, [(family, key)], waiting.patience()))?;
        Ok(Held {
            rows,
            everything: None,
        })
    }

    /// Takes the lock of `self` in shared mode: until it is released, no command locks all keys or
    /// exchanges keyspaces.
    pub(crate) fn lock_shared(&self, waiting: Waiting) -> Result<RwLockReadGuard<'_, ()>, Failure> {
        match waiting {
            Waiting::Allowed => Ok(self.lock_shared_blocking()),
            Waiting::GoesAside => self.everything.try_read().ok_or(Failure::Aside(Aside::Waits)),
        }
    }

    /// As [`KeyLocks::lock_shared`], of a thread that may block.
    pub(crate) fn lock_shared_blocking(&self) -> RwLockReadGuard<'_, ()> {
        self.everything.read()
    }

    /// Locks several rows. Their keyspaces were looked up under `_guard`, and stay those of their
    /// databases while one of their rows is locked.
    pub(crate) fn several<'a, 'k>(
        &self,
        _guard: RwLockReadGuard<'_, ()>,
        db: &'a Db,
        owner: &mut RowOwner,
        rows: impl Iterator<Item = (&'k Family, &'k [u8])>,
        waiting: Waiting,
    ) -> Result<Held<'a>, Failure> {
        let rows = waiting.check(db.lock_rows(owner, rows, waiting.patience()))?;
        Ok(Held {
            rows,
            everything: None,
        })
    }

    /// Locks all rows of the keyspaces that `keyspaces` returns, which is called when no others can
    /// be added: all existing ones, and those that may replace them.
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
