//! How a transaction behaves.

use std::time::Duration;

use crate::Durability;

/// When conflicts are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum Concurrency {
    /// As they come: rows are locked when they are written, or read to be written, and whoever comes second waits.
    #[default]
    Pessimistic,
    /// At the commit: nobody waits before that, and whoever comes second starts over.
    Optimistic,
}

/// What concurrent transactions may see of each other. `docs/transactions.md` has the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum Isolation {
    /// Reads show one moment, and of two that write the same key the second fails. Two that each write what the other
    /// has read may both commit (write skew). PostgreSQL calls it `REPEATABLE READ`.
    #[default]
    Snapshot,
    /// As if one transaction ran after the other: what was read, ranges with the keys that were not there too, is
    /// still so at the commit.
    Serializable,
}

/// When a commit lets go of its locks, and what its caller waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum CommitMode {
    /// Waits until it is as durable as it should be, then lets go of its locks.
    Sync,
    /// Lets go of its locks once it has its place in the order and is visible, then waits. What it returns is as safe
    /// as with [`CommitMode::Sync`].
    #[default]
    EarlyRelease,
    /// As `EarlyRelease`, but does not wait: a crash may take what was committed, and what was read, though never a
    /// commit without those that it depends on.
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
    /// How long it waits for one lock at most. Default: one second.
    pub lock_timeout: Duration,
    /// The largest commit that it may become, in bytes; at most as the log takes. Default: no less.
    pub max_bytes: usize,
    /// Take the snapshot when it begins, and not at its first step. Default: false.
    pub snapshot_at_begin: bool,
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
