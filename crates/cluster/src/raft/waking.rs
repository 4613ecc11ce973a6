//! How a replica that runs parks, and what wakes it. See [`parking`](crate::raft::parking).

use std::collections::BTreeMap;

use openraft::async_runtime::watch::WatchReceiver;
use tokio::time::Instant;

use crate::raft::parking::Parked;
use crate::raft::running::Running;
use crate::raft::ticks::{may_park, wake};
use crate::raft::types::{from_log_id, from_vote};
use crate::transport::wire::{NodeId, Park, Request};
use crate::transport::{LedByNode, NodeStates};

impl Running {
    /// The replica has something to do: see [`wake`].
    pub(super) async fn wake(&self) {
        wake(&self.raft, &self.parking).await;
    }

    /// Other nodes answer, or have said what they lead: looks whether what a parked replica counts on still holds.
    pub(super) fn look_at(&self, states: &NodeStates, led: &LedByNode) {
        let group = self.machine.log().group();
        let Some(parked) = self.parking.now().filter(|now| !now.holds(group, states, led)) else {
            return;
        };
        if !parked.leads {
            // Until now it has heard its leader, in a way. Those whose turn it is stand for election first.
            self.heard.followed(parked.leader, Instant::now());
            self.ask_leader_to_wake(&parked);
        }
        self.parking.wake_from(&parked);
    }

    /// Has a parked leader send heartbeats again, if it can be asked.
    fn ask_leader_to_wake(&self, parked: &Parked) {
        for node in parked.nodes.keys().copied() {
            let (links, leader) = (self.links.clone(), parked.leader.replica);
            // An error: it is heard of by other ways, or stands no longer.
            tokio::spawn(async move { drop(links.ask((node, leader), Request::Wake).await) });
        }
    }

    /// Has the leader of a parked follower send heartbeats again.
    pub(super) fn wake_leader(&self) {
        if let Some(parked) = self.parking.now().filter(|parked| !parked.leads) {
            self.ask_leader_to_wake(&parked);
        }
    }

    /// Parks, as its leader asks: if it has all entries, and that leader's node says that it leads.
    pub(super) fn park(&self, node: NodeId, Park { vote, last }: Park) -> Result<(), &'static str> {
        if !may_park(&self.links.times) {
            return Err("its elections follow too soon");
        }
        let needed = self.parking.needed();
        {
            let metrics = self.raft.metrics();
            let now = metrics.borrow_watched();
            let follows = from_vote(&now.vote) == vote && now.current_leader == Some(vote.leader.replica);
            let has_all = now.last_applied.as_ref().map(from_log_id) == Some(last);
            if !follows || !has_all || now.last_log_index != Some(last.index) {
                return Err("it follows another leader, or has not applied what that one has");
            }
        }
        let (states, led) = (self.links.peers.states(), self.links.peers.leaders());
        let boot = states.borrow().get(&node).and_then(|state| state.boot);
        let boot = boot.ok_or("it does not hear the leader's node")?;
        let parked = Parked {
            leader: vote.leader,
            leads: false,
            nodes: BTreeMap::from([(node, boot)]),
        };
        if !parked.holds(self.links.group, &states.borrow(), &led.borrow()) {
            return Err("the leader's node does not answer, or does not say that it leads");
        }
        if !self.parking.park(parked, needed) {
            return Err("it has heard from its group since");
        }
        // What has changed meanwhile was not seen by who looks.
        self.look_at(&states.borrow(), &led.borrow());
        match self.parking.is_parked() {
            true => Ok(()),
            false => Err("the leader's node has just ceased to answer, or to say that it leads"),
        }
    }
}
