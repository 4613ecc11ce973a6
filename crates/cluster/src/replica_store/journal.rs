//! The replica's log as the journal of its store.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use collie_db::ExternalJournal;
use collie_log::Lsn;
use parking_lot::{Mutex, MutexGuard};

use crate::raftlog::ReplicaLog;
use crate::replica_store::keys::{index_of, last_of};
use crate::replica_store::positions::Positions;
use crate::replica_store::store::OnFlush;

/// What the store asks of the log, and what it reports.
pub(super) struct LogJournal {
    log: ReplicaLog,
    positions: Mutex<Positions>,
    /// The most that was ever called durable. A rewrite gives entries another place, which is not
    /// durable at once; the old one is kept until then.
    durable: AtomicU64,
    on_flush: Option<OnFlush>,
}

impl fmt::Debug for LogJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogJournal").field(&self.log).finish()
    }
}

impl LogJournal {
    pub(super) fn new(log: ReplicaLog, on_flush: Option<OnFlush>) -> Arc<Self> {
        Arc::new(Self {
            log,
            positions: Mutex::default(),
            durable: AtomicU64::new(0),
            on_flush,
        })
    }

    pub(super) fn positions(&self) -> MutexGuard<'_, Positions> {
        self.positions.lock()
    }
}

impl ExternalJournal for LogJournal {
    fn durable(&self) -> Lsn {
        let now = self.log.durable_through().map_or(0, last_of);
        self.durable.fetch_max(now, Ordering::Relaxed).max(now)
    }

    fn wait_durable(&self, seq: Lsn) -> io::Result<()> {
        match index_of(seq) {
            Some(index) => self.log.wait_durable(index).map_err(io::Error::other),
            None => Ok(()),
        }
    }

    fn flushed(&self, seq: Lsn) {
        let Some(index) = index_of(seq) else {
            return;
        };
        self.positions.lock().flush(index);
        if let Some(on_flush) = &self.on_flush {
            on_flush(index);
        }
    }
}
