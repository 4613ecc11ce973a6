//! **An embedded, transactional key-value store built around a wait-free log**: many threads write
//! at once, none waits for another's write, and one sync makes all of them durable.
//!
//! * Writes are durable on return by default ([`Durability::Disk`]); [`WriteOptions`] weakens that
//!   per write, down to leaving the log out.
//! * A [`Batch`] commits to any number of families at once; no reader ever sees a part of it.
//! * A [`Snapshot`] is a prefix of the commit order. It is cheap to take, reads take no lock on the
//!   tables, and neither flush nor compaction takes anything from it.
//! * A [`Transaction`] is pessimistic or optimistic, with snapshot isolation or serializable, with
//!   savepoints, and releases its locks before it is durable without weakening what it guarantees
//!   ([`CommitMode`], `docs/book/src/transactions.md`).
//! * Every read returns the newest commit that it depends on ([`Read::seen`]), so that a caller
//!   that promises durability for what it *read* can wait for that commit and for no other.
//! * After a failed write or sync of the log nothing more is accepted ([`Error::Poisoned`]). Keys
//!   whose last write is not durable are in doubt until the store is reopened, and are not read
//!   ([`Error::InDoubt`]); all others are.
//!
//! ```
//! use collie_db::{Batch, Db, FamilyOptions, Options, WriteOptions};
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("store");
//! let db = Db::open(&path, Options::default())?;
//! let orders = db.open_family("orders", FamilyOptions::default())?; // Created where it does not exist.
//!
//! db.put("greeting", "hello")?; // On the device when this returns.
//!
//! let mut batch = Batch::new();
//! batch.put(&orders, "order/1", "3 leashes")?;
//! batch.put(&db.default_family(), "last order", "order/1")?;
//! let end = db.write(batch, &WriteOptions::buffered())?; // Visible, all of it or nothing,
//! db.wait(end, collie_db::Durability::Disk)?; // and now durable.
//!
//! let snapshot = db.snapshot();
//! orders.delete("order/1")?;
//! assert_eq!(snapshot.get(&orders, "order/1")?.unwrap(), "3 leashes");
//! assert_eq!(orders.get("order/1")?, None);
//! for entry in snapshot.prefix(&orders, "order/")?.rev() {
//!     let (key, value) = entry?;
//!     assert_eq!((key, value), ((&b"order/1"[..]).into(), (&b"3 leashes"[..]).into()));
//! }
//! # drop(snapshot);
//! db.close()?;
//! # Ok::<(), collie_db::Error>(())
//! ```
//!
//! # The path of a write
//!
//! A commit is encoded once and gets its position in the log by one reservation. Its start there,
//! an [`Lsn`], is the sequence number of all its writes. It is copied into the log's ring, inserted
//! into the families' memtables, and becomes visible when every commit before it is; then the write
//! waits until it is as durable as its options ask. Full memtables become tables of an LSM-tree in
//! the background, never before the log is durable that far. [`Stats`] shows where time and space
//! go.
//!
//! # Threads
//!
//! Everything here may be used from any thread. At most [`Options::max_workers`] threads append at
//! one instant; more of them wait for a free appender, for as long as a copy takes. Background
//! threads flush, merge tables and free memory.
//!
//! # More
//!
//! | about | in the repository |
//! |---|---|
//! | what each durability level survives | `docs/book/src/durability.md` |
//! | the bytes of the manifest and of a commit in the log | `docs/design/formats/engine.md` |
//! | why the memtable is as it is, with figures | `docs/design/decisions/0003-memtable.md` |
//! | how snapshots and tables fit together | `docs/design/decisions/0005-views.md` |
//! | what transactions see, wait for and promise | `docs/book/src/transactions.md` |
//!
//! The log is a crate of its own, [`collie_log`].

/// The code of README.md compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The book's programs, which are tested as they stand there.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../../../docs/book/src/library.md")]
    struct Library;
    #[doc = include_str!("../../../docs/book/src/transactions.md")]
    struct Transactions;
}

/// A point at which a test can stop a thread; nothing in other builds.
#[cfg(test)]
macro_rules! reach {
    ($point:literal) => {
        $crate::test::reach($point)
    };
}
#[cfg(not(test))]
macro_rules! reach {
    ($point:literal) => {};
}

mod background;
mod batch;
mod catalog;
mod db;
mod error;
mod events;
mod external_journal;
mod family;
mod iter;
mod key;
mod locks;
mod manifest;
mod memtable;
mod options;
mod recovery;
mod snapshot;
mod stats;
mod store;
mod tables;
#[cfg(test)]
mod test;
mod transaction;
mod write;

pub use background::threads::shared::{Shared, SharedOptions};
pub use batch::Batch;
pub use collie_log::{LogId, LogStats, Lsn, RecoveryReport, RingMode};
pub use db::Db;
pub use error::{DeadlockLink, Error, Result, TableError};
pub use events::{Event, FlushCause, Listener};
pub use external_journal::{ExternalJournal, Journal};
pub use family::{Family, NotSwapped};
pub use iter::{Iter, Keys};
pub use key::{Key, Value};
pub use options::{
    Compression, Durability, FamilyOptions, IoPolicy, Options, ReadOptions, ThrottleMode, WalRecoveryMode,
    WriteOptions,
};
pub use snapshot::{Read, Snapshot};
pub use stats::{FamilyStats, Stats, TransactionStats};
pub use store::reserve::{DiskReserve, LentReserve, RoomUser};
pub use transaction::{
    CommitMode, Concurrency, Isolation, OwnedRowLocks, RowLocks, RowOwner, Ticket, Transaction,
    TransactionInfo, TransactionIter, TransactionOptions,
};
pub use write::stall::Stall;

/// The name of the family that every store has.
pub const DEFAULT_FAMILY: &str = "default";

/// The longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 65_535;
