//! The replicas that a split puts beside those of the group that is split.
//!
//! Each replica makes the one beside it before it applies the entry, of its own tables: all of them begin with the
//! same rows, and no replica is past the split without the other one. One that gets past it by tables of another
//! replica makes none; that of the new group then gets its tables from its leader, as any that joins.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::sleep;

use crate::blocking::blocking;
use crate::ids::{EntryId, ReplicaId};
use crate::raft::full_device::{ROOM_PAUSE, failed, is_full, when_there_is_room};
use crate::replica_store::{Beside, Machine, MachineError};

/// What has the replicas of a node, for those that splits put there.
pub trait SplitHost: fmt::Debug + Send + Sync {
    /// The right to make a replica; none: it is on this node, or was removed from it, or is not to be made here.
    fn claim(&self, replica: ReplicaId) -> Option<Claim>;

    /// Begins the log of a replica whose tables are made, and opens it. Resolves when the log is durable.
    fn begin(&self, beside: Beside) -> Pin<Box<dyn Future<Output = Result<(), MachineError>> + Send>>;
}

/// Of which replicas the tables and the log are just being made, or what is left of them is being removed.
#[derive(Debug, Clone, Default)]
pub struct Claims(Arc<Mutex<BTreeSet<ReplicaId>>>);

impl Claims {
    /// Nobody else makes this replica, or removes what is left of it, before what is returned is dropped. None: another
    /// one does.
    #[must_use]
    pub fn take(&self, replica: ReplicaId) -> Option<Claim> {
        let is_free = self.0.lock().insert(replica);
        is_free.then(|| Claim(self.clone(), replica))
    }
}

/// See [`Claims::take`].
#[derive(Debug)]
pub struct Claim(Claims, ReplicaId);

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.0.lock().remove(&self.1);
    }
}

/// Makes the replica that an entry puts beside this one, if it is a split that is applied next; waits where there is
/// no room as long as `waits` says so.
pub(super) async fn make_beside(
    machine: &Machine,
    host: &dyn SplitHost,
    (id, payload): (EntryId, &[u8]),
    waits: impl Fn() -> bool + Clone + Send + 'static,
) -> io::Result<()> {
    let Some(beside) = machine.beside(id, payload).map_err(failed)? else {
        return Ok(());
    };
    let Some(_claim) = host.claim(beside.replica) else {
        return Ok(());
    };
    let made = {
        let (machine, beside, payload) = (machine.clone(), beside.clone(), payload.to_vec());
        let waits = waits.clone();
        move || when_there_is_room(&id, &waits, || machine.make_tables(&payload, &beside))
    };
    blocking(made).await?;
    loop {
        match host.begin(beside.clone()).await {
            Err(full) if is_full(&full) && waits() => sleep(ROOM_PAUSE).await,
            begun => return begun.map_err(failed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_makes_a_replica() {
        let claims = Claims::default();
        let first = claims.take(7);
        assert!(first.is_some() && claims.clone().take(7).is_none() && claims.take(8).is_some());
        drop(first);
        assert!(claims.take(7).is_some());
    }
}
