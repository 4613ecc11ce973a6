//! The replicas that a split puts beside those of the group that is split.
//!
//! Each replica makes the one beside it before it applies the entry, of its own tables: all of them begin with the
//! same rows, and no replica is past the split without the other one. One that gets past it by tables of another
//! replica makes none; that of the new group then gets its tables from its leader, as any that joins.

use std::fmt;
use std::io;
use std::pin::Pin;

use tokio::time::sleep;

use crate::blocking::blocking;
use crate::ids::{EntryId, ReplicaId};
use crate::raft::full_device::{ROOM_PAUSE, failed, is_full, when_there_is_room};
use crate::replica_store::{Beside, Machine, MachineError};

/// What has the replicas of a node, for those that splits put there.
pub trait SplitHost: fmt::Debug + Send + Sync {
    /// Whether a replica is on this node, or was removed from it.
    fn had(&self, replica: ReplicaId) -> bool;

    /// Begins the log of a replica whose tables are made, and opens it. Resolves when the log is durable.
    fn begin(&self, beside: Beside) -> Pin<Box<dyn Future<Output = Result<(), MachineError>> + Send>>;
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
    if host.had(beside.replica) {
        return Ok(());
    }
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
