//! Where a replica's log is: in one log of the node, until it [moves](crate::NodeStore::move_log) to another. All
//! handles to the log share it.

use std::sync::Arc;

use arc_swap::ArcSwap;
use collie_log::{Level, Lsn};

use crate::raftlog::error::StoreError;
use crate::raftlog::shared::NodeLogInner;
use crate::raftlog::state::{Presence, ReplicaStream};

/// A log, and the replica's stream in it.
pub(super) struct Place {
    pub(super) log: Arc<NodeLogInner>,
    pub(super) replica: Arc<ReplicaStream>,
}

impl Place {
    /// Waits until the log is durable up to what was appended here. Of a replica that has moved away since, that
    /// was so before.
    pub(super) async fn wait_async(&self, end: Lsn) -> Result<(), StoreError> {
        self.unless_gone(self.log.log.wait_async(end, Level::Disk).await)
    }

    /// As [`Place::wait_async`], and blocks.
    pub(super) fn wait(&self, end: Lsn) -> Result<(), StoreError> {
        self.unless_gone(self.log.log.wait(end, Level::Disk))
    }

    fn unless_gone<T>(&self, waited: Result<T, collie_log::LogError>) -> Result<(), StoreError> {
        match waited {
            Ok(_) => Ok(()),
            Err(_) if self.is_gone() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the replica has moved away.
    pub(super) fn is_gone(&self) -> bool {
        self.replica.live.lock().presence == Presence::Gone
    }
}

/// Where a replica's log is now.
pub(super) struct Home(ArcSwap<Place>);

impl Home {
    pub(super) fn new(log: Arc<NodeLogInner>, replica: Arc<ReplicaStream>) -> Arc<Self> {
        Arc::new(Self(ArcSwap::from_pointee(Place { log, replica })))
    }

    pub(super) fn place(&self) -> Arc<Place> {
        self.0.load_full()
    }

    pub(super) fn set(&self, place: Arc<Place>) {
        self.0.store(place);
    }
}
