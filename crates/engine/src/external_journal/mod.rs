//! Stores whose commits come from a log that the caller keeps, and that write no log themselves.
//!
//! A state machine that is fed from a replicated log would write everything twice if it had a log of
//! its own. So such a store keeps what it is given in memtables until they are in tables, and its
//! owner keeps the entries until then, and gives them once more after a restart. What this asks of
//! the owner is [`ExternalJournal`]; what the store does in turn is [`Db::apply`](crate::Db::apply),
//! [`Db::flushed`](crate::Db::flushed), [`Db::links`](crate::Db::links) and
//! [`Db::adopt`](crate::Db::adopt).

mod adopt;
mod apply;

use std::sync::Arc;
use std::{fmt, io};

use collie_log::Lsn;

/// Who keeps the commits that are in no table yet; see [`Options::journal`](crate::Options::journal).
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub enum Journal {
    /// The store, in a log of its own; none with [`Options::disable_wal`](crate::Options::disable_wal).
    #[default]
    Own,
    /// The caller, in another log. The store writes none, and takes writes only by
    /// [`Db::apply`](crate::Db::apply). The options of the log (`wal_*`, `ring*`, `segment_bytes`,
    /// `max_workers`, `durability`) do nothing then.
    External(Arc<dyn ExternalJournal>),
}

/// The log that a store's commits come from, as its owner shows it to the store.
///
/// Its entries have sequence numbers, ascending and not necessarily dense. They become those of the
/// writes in memtables and tables, so another store that applied the same entries has the same, and
/// tables may be passed from one to the other. They are at least 2³² and less than 2⁶².
///
/// The owner keeps every entry above [`Db::flushed`](crate::Db::flushed), and applies these again
/// after each opening, in order.
///
/// ```
/// use std::io;
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use collie_db::{Batch, Db, ExternalJournal, Journal, Options};
///
/// /// A log of which everything is durable at once.
/// #[derive(Debug, Default)]
/// struct Log {
///     end: AtomicU64,
///     flushed: AtomicU64,
/// }
///
/// impl ExternalJournal for Log {
///     fn durable(&self) -> u64 {
///         self.end.load(Ordering::Acquire)
///     }
///     fn wait_durable(&self, seq: u64) -> io::Result<()> {
///         assert!(seq <= self.durable(), "only what was applied is waited for");
///         Ok(())
///     }
///     fn flushed(&self, seq: u64) {
///         self.flushed.store(seq, Ordering::Release); // Entries up to here may be removed.
///     }
/// }
///
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// let log = Arc::new(Log::default());
/// let options = Options { journal: Journal::External(log.clone()), ..Options::default() };
/// let db = Db::open(&path, options.clone())?;
/// let mut batch = Batch::new();
/// batch.put(&db.default_family(), "key", "value")?;
/// let seq = (1 << 32) + 7;
/// log.end.store(seq, Ordering::Release);
/// db.apply(&batch, seq)?; // Visible when this returns; in no file.
/// assert_eq!(db.get("key")?.unwrap(), "value");
///
/// db.flush()?; // Now it is in a table.
/// assert_eq!(log.flushed.load(Ordering::Acquire), seq);
/// # drop(batch);
/// db.close()?;
/// let db = Db::open(&path, options)?;
/// assert_eq!(db.flushed(), seq); // Entries above are to be applied again.
/// assert_eq!(db.get("key")?.unwrap(), "value");
/// # Ok::<(), collie_db::Error>(())
/// ```
pub trait ExternalJournal: fmt::Debug + Send + Sync {
    /// Every entry at or below this sequence number is durable. It never goes back. Must not block:
    /// reads at the durable boundary call it ([`ReadOptions::durable`](crate::ReadOptions::durable)).
    fn durable(&self) -> Lsn;

    /// Blocks until every entry at or below `seq` is durable. `seq` is that of an entry that was
    /// applied. A table is registered only after this has returned for its last entry, so no table
    /// is ever ahead of the log. It is called on flush threads, and by calls that flush; it must not
    /// call into the store, and has to return in the end, since closing the store waits for it.
    ///
    /// # Errors
    /// They will never be durable. The store writes no table from then on and applies nothing
    /// ([`Error::Poisoned`](crate::Error::Poisoned), with this error's text as the cause), until it
    /// is opened again; reads go on.
    fn wait_durable(&self, seq: Lsn) -> io::Result<()>;

    /// [`Db::flushed`](crate::Db::flushed) has risen to `seq`: entries at or below are not needed any
    /// more. It is called on the thread that flushed, while other flushes of the store wait, and
    /// must neither block nor flush. After [`Db::adopt`](crate::Db::adopt) `seq` may lie above
    /// [`durable`](Self::durable): the entries up to there came with the tables, and this journal need
    /// not have them.
    fn flushed(&self, seq: Lsn) {
        let _ = seq;
    }

    /// Whether a row may still be asked for, by its key. Merges of tables remove rows of which this says
    /// no; they are found until then. What is not kept is never again: it is neither read nor written, also
    /// where the store is opened again or its tables are [linked](crate::Db::links). It is called for each
    /// row of a merge, and must neither block nor panic.
    fn keeps(&self, key: &[u8]) -> bool {
        let _ = key;
        true
    }
}
