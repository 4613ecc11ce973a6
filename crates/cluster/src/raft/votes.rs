//! Votes, and leadership that is handed over. See [`leases`](crate::raft::leases) for what a vote waits for.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use openraft::RaftMetrics;
use tokio::time::timeout;

use crate::ids::{ReplicaId, Vote};
use crate::raft::elections::ElectionCause;
use crate::raft::messages::{from_vote_response, to_transfer, to_vote_request};
use crate::raft::running::Running;
use crate::raft::types::{Groups, Member};
use crate::transport::wire::{Refusal, Request, Response, TransferLeader, VoteRequest};
use crate::transport::{Incoming, Reply};

/// A replica that is to lead waits so long for entries that it lacks.
const TRANSFER_WAITS: Duration = Duration::from_secs(1);

fn failed(error: &dyn std::fmt::Display) -> Response {
    Response::Refusal(Refusal::failed(error.to_string()))
}

impl Running {
    /// Takes a request for a vote as soon as the replica may vote, if it goes on until then. It keeps nothing open
    /// meanwhile.
    pub(super) fn vote_later(self: Arc<Self>, incoming: Incoming, reply: Reply) {
        let (promises, running) = (Arc::clone(&self.promises), Arc::downgrade(&self));
        let mut stop = self.stop.subscribe();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                // An error: it has ended, too.
                _ = stop.wait_for(|stop| *stop) => {}
                () = promises.are_over() => {
                    if let Some(running) = running.upgrade() {
                        running.handle(incoming, reply);
                    }
                }
            }
        });
    }

    /// Votes for a candidate, or does not.
    pub(super) async fn vote(&self, mut request: VoteRequest) -> Response {
        self.parking.need();
        let candidate = request.vote.leader;
        let _turn = match request.leadership_transfer {
            // Where it may have been asked by another leader than this replica follows, raft decides as for any other.
            true => {
                let turn = self.promises.vote().await;
                let now = self.state();
                let led = now.leads.then_some(now.vote);
                request.leadership_transfer = self.promises.allow(request.last, led);
                Some(turn)
            }
            false => None,
        };
        match self.raft.vote(to_vote_request(&request)).await {
            Ok(answer) => {
                if answer.vote_granted {
                    self.links.leases.end(candidate);
                }
                Response::Voted(from_vote_response(&answer))
            }
            Err(error) => failed(&error),
        }
    }

    /// Whether it would vote for a candidate.
    pub(super) async fn pre_vote(&self, request: VoteRequest) -> Response {
        self.wake().await;
        match self.raft.pre_vote(to_vote_request(&request)).await {
            Ok(answer) => Response::PreVoted(from_vote_response(&answer)),
            Err(error) => failed(&error),
        }
    }

    /// Its leader hands over, to this replica or to another.
    pub(super) async fn transfer(&self, transfer: TransferLeader) -> Response {
        self.parking.need();
        if transfer.to == self.links.replica {
            self.elections.asked(ElectionCause::Transfer);
        }
        // It may have come before the last entries, without which the replica cannot lead.
        let last = transfer.last.map(|last| last.index);
        let has_all = |now: &RaftMetrics<Groups>| now.last_log_index >= last;
        let waited = self.raft.wait(Some(TRANSFER_WAITS));
        // An error: raft finds that out itself.
        drop(waited.metrics(has_all, "what the leader has").await);
        let handled = self.raft.handle_transfer_leader(to_transfer(&transfer)).await;
        self.heard.forget();
        match handled {
            Ok(Ok(())) => Response::Transferred,
            Ok(Err(error)) => failed(&error),
            Err(error) => failed(&error),
        }
    }

    /// Asks another replica to lead, if the disk of its log has room.
    pub(super) async fn transfer_to(&self, replica: ReplicaId) -> Result<(), String> {
        self.wake().await;
        if !self.may_lead(replica).await {
            return Err(format!(
                "replica {replica} does not say that it may lead: that the disk of its log has room"
            ));
        }
        let asked = self.raft.trigger().transfer_leader(replica).await;
        asked.map_err(|error| error.to_string())
    }

    /// Has a member stand for election whatever it lacks: one with the votes of a majority lacks nothing that
    /// is committed. Answers whether it does; whether it leads shows later.
    pub(super) async fn give_way_to(&self, to: ReplicaId) -> Result<(), String> {
        let (leader, own) = (self.state().vote, self.links.replica);
        let members = self.members();
        let member = members.all.get(&to);
        let member = member.ok_or_else(|| format!("replica {to} is no member"))?;
        let vote = Vote {
            leader,
            committed: true,
        };
        let transfer = TransferLeader { vote, to, last: None };
        self.links.leases.end(leader);
        // The others vote for it once they follow no longer: its last entry may be of another leader.
        let others = members.all.iter().filter(|(id, _)| **id != own && **id != to);
        let ask = |(id, other): (&ReplicaId, &Member)| {
            let request = Request::Transfer(transfer.clone());
            self.links.ask((other.node, *id), request)
        };
        let asked = join_all(others.map(ask));
        // Errors: it is silent, or votes when its promise is over.
        _ = timeout(self.links.times.heartbeat / 2, asked).await;
        let asked = self.links.ask((member.node, to), Request::Transfer(transfer));
        match asked.await {
            Ok(Response::Transferred) => Ok(()),
            Ok(Response::Refusal(refusal)) => Err(format!("replica {to}: {refusal}")),
            Ok(other) => Err(format!("replica {to} answered by {}", other.kind())),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Whether a member's log has room, or had at its last word: where it has none, nothing that it proposes
    /// could be appended.
    async fn may_lead(&self, replica: ReplicaId) -> bool {
        let Some(member) = self.members().all.remove(&replica) else {
            return false;
        };
        let asked = self.links.ask((member.node, replica), Request::MayLead);
        matches!(asked.await, Ok(Response::Ready))
    }

    /// Hands over to a member that can lead: one that votes and has nearly all entries.
    pub(super) async fn hand_over(&self, to: ReplicaId) -> Result<(), String> {
        let members = self.members();
        if !self.state().leads {
            return Err("this replica does not lead".to_owned());
        }
        if !members.voters.contains(&to) || !members.has_nearly_all(to) {
            return Err(format!("replica {to} has no vote, or lacks entries"));
        }
        self.transfer_to(to).await
    }
}
