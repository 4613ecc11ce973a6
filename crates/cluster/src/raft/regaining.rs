//! How a replica that may have lost entries gets to vote and stand again. See [`losses`](crate::raft::losses).

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use openraft::async_runtime::watch::WatchReceiver;
use tokio::time::sleep;

use crate::ids::{EntryId, LeaderId, ReplicaId};
use crate::raft::elections::elected;
use crate::raft::links::ReplicaLinks;
use crate::raft::losses::{Loss, Losses};
use crate::raft::machine::Raft;
use crate::raft::types::ReplicaState;
use crate::raftlog::ReplicaLog;
use crate::transport::wire::{LastEntry, NodeId, Request, Response};

/// A replica, for as long as it may have lost entries.
pub(super) struct Regaining {
    pub(super) raft: Raft,
    pub(super) log: ReplicaLog,
    pub(super) links: ReplicaLinks,
    pub(super) losses: Arc<Losses>,
}

/// What a replica says of its last entry, where raft says this of it. The entry is read first: a leader saves another
/// vote before it withdraws any.
pub(super) fn last_entry(log: &ReplicaLog, state: impl FnOnce() -> ReplicaState) -> LastEntry {
    let last = log.bounds().last;
    let vote = log.vote();
    let state = state();
    let leads = state.leads && vote.is_some_and(|vote| vote.committed && vote.leader == state.vote);
    LastEntry {
        last,
        leads: vote.filter(|_| leads).map(|vote| vote.leader),
    }
}

/// Ends when the replica has all that it can have acknowledged, or its loss is accepted; or with raft.
pub(super) async fn regain(replica: Regaining) {
    let pause = replica.links.times.heartbeat / 2;
    let own = replica.links.replica;
    while let Some(loss) = replica.losses.of(own) {
        let is_over = match replica.led().await {
            Some((led, last)) => matches!(loss, Loss::VotesOnly { .. }) || replica.has_all(led, last),
            None if loss == Loss::Accepted => replica.stands_if_it_has_most(pause).await,
            None => false,
        };
        if is_over {
            replica.losses.end(own).await;
            replica.raft.runtime_config().elect(true);
            tracing::info!(
                replica = own,
                group = replica.links.group,
                "a replica votes again"
            );
            return;
        }
        sleep(pause).await;
    }
}

impl Regaining {
    /// Who leads, by what this replica has heard, maybe long ago; and on which node.
    fn leader(&self) -> Option<(NodeId, ReplicaId)> {
        let metrics = self.raft.metrics();
        let now = metrics.borrow_watched();
        let leader = elected(now.current_leader, &now.vote).filter(|leader| *leader != self.links.replica)?;
        let member = now.membership_config.membership().get_node(&leader)?.node;
        Some((member, leader))
    }

    /// As whom a replica leads, by its own word, and its last entry.
    async fn led(&self) -> Option<(LeaderId, Option<EntryId>)> {
        let (node, leader) = self.leader()?;
        let said = self.last_of(node, leader).await?;
        Some((said.leads?, said.last))
    }

    async fn last_of(&self, node: NodeId, replica: ReplicaId) -> Option<LastEntry> {
        match self.links.ask((node, replica), Request::LastEntry).await {
            Ok(Response::LastEntry(last)) => Some(last),
            // It is asked again.
            _ => None,
        }
    }

    /// Whether all of that leader's log is here, which is the leader of the last vote.
    fn has_all(&self, led: LeaderId, last: Option<EntryId>) -> bool {
        let follows = self
            .log
            .vote()
            .is_some_and(|vote| vote.committed && vote.leader == led);
        follows && last.is_none_or(|last| self.log.had(last))
    }

    /// Where the loss is accepted: votes, and stands if no other that answers has more. Otherwise it waits for those
    /// first. Answers whether it may stand by now.
    async fn stands_if_it_has_most(&self, pause: Duration) -> bool {
        let others: Vec<_> = {
            let metrics = self.raft.metrics();
            let now = metrics.borrow_watched();
            let members = now.membership_config.membership().nodes();
            let others = members.filter(|(id, _)| **id != self.links.replica);
            others.map(|(id, member)| (member.node, *id)).collect()
        };
        let asked = others.into_iter().map(|(node, id)| self.last_of(node, id));
        let most: Option<EntryId> = join_all(asked)
            .await
            .into_iter()
            .flatten()
            .filter_map(|said| said.last)
            .max();
        self.losses.votes(self.links.replica, most);
        if self.log.bounds().last >= most {
            self.raft.runtime_config().elect(true);
            // An error: raft has ended.
            drop(self.raft.trigger().elect(true).await);
            return true;
        }
        let turns = 2 * (self.links.times.election_max + self.links.times.election_min);
        for _ in 0..turns.as_millis().div_ceil(pause.as_millis().max(1)) {
            sleep(pause).await;
            if self.led().await.is_some() {
                break;
            }
        }
        true
    }
}
