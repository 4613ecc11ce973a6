//! What the reads and writes of a command go through if they belong together.

use crate::exec_batch::{Pending, StoreTransaction};
use crate::partitions::transaction::PartitionTransaction;
use crate::session::Shared;

/// A transaction under way: its reads find its own changes first, and these are written together.
#[expect(
    clippy::large_enum_variant,
    reason = "a transaction outside of a cluster takes no allocation of its own"
)]
pub(crate) enum Transaction<'a> {
    /// On the databases of the server's own store.
    Store(StoreTransaction<'a>),
    /// On rows of one slot, in a cluster.
    Partition(Box<PartitionTransaction>),
}

impl Transaction<'_> {
    /// Notes that a command changed a key, whose lock the transaction holds.
    pub(crate) fn changed(&mut self, shared: &Shared, db: u8, key: &[u8]) {
        match self {
            Transaction::Store(transaction) => transaction.changed(shared, db, key),
            Transaction::Partition(transaction) => transaction.changed(shared, key),
        }
    }

    /// Whether it holds the lock of a key, given in the engine's form.
    pub(crate) fn covers(&self, shared: &Shared, db: u8, key: &[u8]) -> bool {
        match self {
            Transaction::Store(transaction) => transaction.covers(shared, db, key),
            Transaction::Partition(transaction) => transaction.covers(key),
        }
    }

    /// What it is going to write to a database.
    pub(crate) fn pending(&mut self, shared: &Shared, db: u8) -> Option<&mut Pending> {
        match self {
            Transaction::Store(transaction) => transaction
                .database(shared, db)
                .map(|database| &mut database.pending),
            Transaction::Partition(transaction) => Some(transaction.pending()),
        }
    }
}
