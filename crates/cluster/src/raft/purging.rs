//! Purging the log of a replica that runs.

use std::sync::Arc;
use std::time::Duration;

use openraft::LogIdOptionExt;
use openraft::RaftMetrics;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::Fatal;
use tokio::sync::Notify;

use crate::ids::ReplicaId;
use crate::raft::followers::Followers;
use crate::raft::network::Links;
use crate::raft::tasks::Raft;
use crate::raft::types::Groups;
use crate::replica_store::Machine;
use crate::transport::wire::{NodeId, Request, Response, Room};

/// Raft has a snapshot of what was flushed within this time, or is asked again: while it builds one, it
/// ignores requests for the next.
const SNAPSHOT_WITHIN: Duration = Duration::from_millis(100);

/// A follower that has refused entries for so many times the longest time for an election, for want of room,
/// is asked whether it takes tables.
const TABLES_AFTER: u32 = 4;

/// After each flush, and whenever the log wants room: gives raft its new snapshot, and purges the entries
/// that the log does not keep. Followers that lack some of them get tables.
///
/// openraft 0.10.0-alpha.37 panics where a purge overtakes an apply that is queued (issue 2116 there).
/// None of these can: what is flushed was applied before.
pub(super) async fn purge(
    raft: Raft,
    machine: Machine,
    flushed: Arc<Notify>,
    followers: Arc<Followers>,
    links: Links,
) {
    loop {
        let mut want_tables = Vec::new();
        tokio::select! {
            () = flushed.notified() => {}
            () = machine.log().purge_wanted() => {}
            () = followers.refused() => {
                want_tables = followers.without_room_for(links.times.election_max * TABLES_AFTER);
                if want_tables.is_empty() {
                    continue;
                }
            }
        }
        let in_tables = machine.snapshot().map(|position| position.applied.index);
        if has_snapshot(&raft, in_tables).await.is_err() {
            return;
        }
        let lag = lag(&raft);
        machine.log().note_holding(machine.holding(&lag));
        let needed = lag.iter().map(|(_, _, last)| *last);
        let limit = match take_tables(&want_tables, &machine, &lag, &links).await {
            takers if takers.is_empty() => machine.purge_limit(needed),
            takers => {
                let others = lag.iter().filter(|(id, ..)| !takers.contains(id));
                machine.purge_limit_for_tables(others.map(|(_, _, last)| *last))
            }
        };
        let Some(limit) = limit else {
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

/// Those of the followers that have room for tables, and none for entries. What was removed since may have
/// made the tables small, and a full disk is relieved when they take the place of its own.
async fn take_tables(
    want: &[ReplicaId],
    machine: &Machine,
    lag: &[(ReplicaId, NodeId, u64)],
    links: &Links,
) -> Vec<ReplicaId> {
    let mut takers = Vec::new();
    for (id, node, _) in lag.iter().filter(|(id, ..)| want.contains(id)) {
        let bytes = machine.bytes();
        let asked = links.ask((*node, *id), Request::Room(Room { bytes }));
        if matches!(asked.await, Ok(Response::HasRoom)) {
            tracing::info!(
                follower = id,
                node,
                bytes,
                "a follower without room for entries gets tables"
            );
            takers.push(*id);
        }
    }
    takers
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
