//! Purging the log of a replica that runs.

use std::sync::Arc;
use std::time::Duration;

use openraft::LogIdOptionExt;
use openraft::RaftMetrics;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::Fatal;
use tokio::sync::Notify;

use crate::ids::ReplicaId;
use crate::machine::Machine;
use crate::raft::followers::Followers;
use crate::raft::tasks::Raft;
use crate::raft::types::Groups;
use crate::wire::NodeId;

/// Raft has a snapshot of what was flushed within this time, or is asked again: while it builds one, it
/// ignores requests for the next.
const SNAPSHOT_WITHIN: Duration = Duration::from_millis(100);

/// After each flush, and whenever the log wants room: gives raft its new snapshot, and purges the entries
/// that the log does not keep. Followers that lack some of them get tables.
///
/// openraft 0.10.0-alpha.37 panics where a purge overtakes an apply that is queued (issue 2116 there).
/// None of these can: what is flushed was applied before.
pub(super) async fn purge(raft: Raft, machine: Machine, flushed: Arc<Notify>, followers: Arc<Followers>) {
    loop {
        tokio::select! {
            () = flushed.notified() => {}
            () = machine.log().purge_wanted() => {}
        }
        let in_tables = machine.snapshot().map(|position| position.applied.index);
        if has_snapshot(&raft, in_tables).await.is_err() {
            return;
        }
        let lag = lag(&raft);
        machine.log().note_holding(machine.holding(&lag));
        let Some(limit) = machine.purge_limit(lag.iter().map(|(_, _, last)| *last)) else {
            continue;
        };
        // Raft purges nothing that its snapshot lacks, and more was flushed meanwhile.
        if has_snapshot(&raft, Some(limit)).await.is_err() {
            return;
        }
        if raft.trigger().purge_log(limit).await.is_err() {
            return;
        }
        followers.give_up_below(limit);
        machine.log().note_holding(machine.holding(&lag));
    }
}

/// Returns when raft's snapshot has everything up to this index, which is in tables.
///
/// # Errors
/// Raft has ended.
async fn has_snapshot(raft: &Raft, index: Option<u64>) -> Result<(), Fatal<Groups>> {
    let has = |now: &RaftMetrics<Groups>| now.snapshot.index() >= index;
    while !has(&raft.metrics().borrow_watched()) {
        raft.trigger().snapshot().await?;
        // An error: it is asked again, or has ended, which that request returns.
        drop(
            raft.wait(Some(SNAPSHOT_WITHIN))
                .metrics(has, "a snapshot of what is flushed")
                .await,
        );
    }
    Ok(())
}

/// The members as their leader knows them: the last entry that each of the others has. None on a follower.
fn lag(raft: &Raft) -> Vec<(ReplicaId, NodeId, u64)> {
    let metrics = raft.metrics();
    let now = metrics.borrow_watched();
    let nodes = now.membership_config.membership();
    let matched = now.replication.iter().flatten();
    matched
        .filter(|(id, _)| **id != now.id)
        .map(|(id, last)| {
            let node = nodes.get_node(id).map_or(0, |member| member.node);
            (*id, node, last.index().unwrap_or(0))
        })
        .collect()
}
