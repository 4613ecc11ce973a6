//! A replica of an open log: what its frames say, its last entries, and what it holds of the log.

use std::sync::Arc;

use collie_log::{Log, Lsn};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::ids::{GroupId, ReplicaId};
use crate::raftlog::cache::Cache;
use crate::raftlog::frames::Listed;
use crate::raftlog::limit::Holding;
use crate::raftlog::state::{Identity, ReplicaState};

/// A replica. Its `live` is locked for every frame that is appended: the lock orders the stream.
pub(super) struct Replica {
    pub(super) stream: u32,
    pub(super) identity: Identity,
    pub(super) live: Mutex<Live>,
    holder: String,
    /// From where on it holds the log. Locked after `live`.
    pinned: Mutex<Lsn>,
    /// Why, as who purges it last saw.
    holding: Mutex<Holding>,
    /// Wakes who purges it.
    pub(super) wanted: Notify,
}

/// The name by which a replica holds the log.
pub(crate) fn replica_holder(replica: ReplicaId, group: GroupId) -> String {
    format!("raft/replica {replica} of group {group}")
}

/// What changes with every frame.
#[derive(Default)]
pub(super) struct Live {
    pub(super) state: ReplicaState,
    pub(super) cache: Cache,
    /// Where payloads are encoded.
    pub(super) payload: Vec<u8>,
    /// What the last frame said is committed.
    pub(super) committed_said: Option<u64>,
}

impl Replica {
    pub(super) fn new(stream: u32, identity: Identity, state: ReplicaState) -> Self {
        Self {
            stream,
            identity,
            live: Mutex::new(Live {
                committed_said: state.committed_index(),
                state,
                ..Live::default()
            }),
            holder: replica_holder(identity.replica, identity.group),
            pinned: Mutex::new(0),
            holding: Mutex::default(),
            wanted: Notify::new(),
        }
    }

    /// Holds the log from `oldest` on, and lets go of what is below. All that says so must be
    /// durable.
    pub(super) fn pin(&self, log: &Log, oldest: Lsn) {
        let mut pinned = self.pinned.lock();
        if *pinned < oldest {
            *pinned = oldest;
            log.retain(&self.holder, oldest);
        }
    }

    /// Lets go of the log for good.
    pub(super) fn unpin(&self, log: &Log) {
        *self.pinned.lock() = Lsn::MAX;
        log.release(&self.holder);
    }

    /// From where on it holds the log.
    pub(super) fn pinned(&self) -> Lsn {
        *self.pinned.lock()
    }

    /// The name by which it holds the log.
    pub(super) fn holder(&self) -> &str {
        &self.holder
    }

    /// Why it holds the log.
    pub(super) fn holding(&self) -> Holding {
        *self.holding.lock()
    }

    pub(super) fn set_holding(&self, holding: Holding) {
        *self.holding.lock() = holding;
    }

    /// Its line of a directory that is about to be appended.
    pub(super) fn list(self: &Arc<Self>) -> (Listed, Arc<Self>) {
        let live = self.live.lock();
        let line = Listed {
            stream: self.stream,
            group: self.identity.group,
            replica: self.identity.replica,
            generation: self.identity.generation,
            last_frame: live.state.last_frame,
            oldest: Some(live.state.oldest_needed_once_named()),
        };
        (line, Arc::clone(self))
    }

    /// Forgets payloads of entries in frames that end at `cut` or before.
    pub(super) fn trim_cache(&self, cut: Lsn) {
        self.live.lock().trim_cache(cut);
    }
}

impl Live {
    /// Whether a frame says what is committed.
    pub(super) fn has_said_committed(&self) -> bool {
        self.committed_said == self.state.committed_index()
    }

    pub(super) fn trim_cache(&mut self, cut: Lsn) {
        while let Some(first) = self.cache.first() {
            match self.state.index.run_of(first) {
                Some(run) if run.lsn + u64::from(run.bytes) > cut => return,
                Some(run) => self.cache.drop_below(run.end()),
                // Purged, or truncated: it should not be here.
                None => self.cache.drop_below(first + 1),
            }
        }
    }
}
