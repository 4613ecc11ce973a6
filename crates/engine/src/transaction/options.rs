//! How a transaction behaves.

use std::time::Duration;

use crate::Durability;

/// When conflicts are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum Concurrency {
    /// At each access: rows are locked when they are written, or read to be written, and the second
    /// transaction waits.
    #[default]
    Pessimistic,
    /// At the commit: no transaction waits before that, and the second one to commit fails and is
    /// run again.
    Optimistic,
}

/// What concurrent transactions may see of each other. `docs/book/src/transactions.md` has the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum Isolation {
    /// Reads show one moment, and of two that write the same key the second fails. Two that each
    /// write what the other has read may both commit (write skew). PostgreSQL calls it
    /// `REPEATABLE READ`.
    #[default]
    Snapshot,
    /// As if one transaction ran after the other: what was read, absent keys in ranges included, is
    /// unchanged at the commit.
    Serializable,
}

/// When a commit releases its locks, and what its caller waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum CommitMode {
    /// Waits until it is as durable as its options ask, then releases its locks.
    Sync,
    /// Releases its locks once it is in the log and visible, then waits. What it returns is as safe
    /// as with [`CommitMode::Sync`].
    #[default]
    EarlyRelease,
    /// As `EarlyRelease`, but does not wait: a crash may lose the commit, and what it read, but
    /// never a commit without all that depend on it.
    Async,
}

/// Options of one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransactionOptions {
    /// Default: pessimistic.
    pub concurrency: Concurrency,
    /// Default: snapshot.
    pub isolation: Isolation,
    /// Default: early release.
    pub commit_mode: CommitMode,
    /// What a commit waits for, but for [`CommitMode::Async`]; `None`: the store's
    /// [`durability`](crate::Options::durability). Default: `None`.
    pub durability: Option<Durability>,
    /// The longest wait for one lock. Default: one second.
    pub lock_timeout: Duration,
    /// The largest commit that it may become, in bytes. The log's limit holds in any case, and is
    /// the default.
    pub max_bytes: usize,
    /// Take the snapshot at the beginning, and not at the first step. Default: false.
    pub snapshot_at_begin: bool,
    /// How often [`Db::transact`](crate::Db::transact) runs it at most; 0 is as 1. Default: 100.
    pub max_attempts: u32,
    /// A name for [`Db::transactions`](crate::Db::transactions) and errors. Default: empty.
    pub name: String,
}

impl Default for TransactionOptions {
    fn default() -> Self {
        Self {
            concurrency: Concurrency::default(),
            isolation: Isolation::default(),
            commit_mode: CommitMode::default(),
            durability: None,
            lock_timeout: Duration::from_secs(1),
            max_bytes: usize::MAX,
            snapshot_at_begin: false,
            max_attempts: 100,
            name: String::new(),
        }
    }
}

impl TransactionOptions {
    /// The default, optimistic.
    #[must_use]
    pub fn optimistic() -> Self {
        Self {
            concurrency: Concurrency::Optimistic,
            ..Self::default()
        }
    }

    /// The default, serializable.
    #[must_use]
    pub fn serializable() -> Self {
        Self {
            isolation: Isolation::Serializable,
            ..Self::default()
        }
    }
}

/// Whether a transaction must be run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rerun {
    No,
    /// Its last request for a lock timed out. It may go on without it.
    AfterTimeout,
    /// It met a conflict or a deadlock.
    Needed,
}
