//! Taking nodes into the map, where they ask this one.

use std::sync::{Arc, OnceLock, Weak};

use collie_io::Clock;

use crate::identity::hex;
use crate::map::{self, JoinRequest, NodeRecord};
use crate::node::changing::change;
use crate::node::shared::Inner;
use crate::proposals::Answer;
use crate::transport::wire::{Join, JoinAnswer, PEERS_MAX, Place};
use crate::transport::{Admission, Admitted, SKEW_MAX};

/// Answers those that ask to join, once the node runs.
#[derive(Default)]
pub(super) struct Gate {
    inner: OnceLock<Weak<Inner>>,
}

impl Gate {
    /// The node runs.
    pub(super) fn open(&self, inner: &Arc<Inner>) {
        // An error: it was open.
        let _open = self.inner.set(Arc::downgrade(inner));
    }
}

impl Admission for Gate {
    fn join(&self, join: Join) -> Admitted {
        let inner = self.inner.get().and_then(Weak::upgrade);
        Box::pin(async move {
            match inner {
                Some(inner) => judge(&inner, join).await,
                None => Ok(JoinAnswer::Elsewhere(None)),
            }
        })
    }
}

async fn judge(inner: &Inner, join: Join) -> Result<JoinAnswer, String> {
    let cluster = inner.identity.cluster;
    let level = inner.map().map_or(inner.identity.level, |map| map.cluster.level);
    if let Some((other, node)) = join.known.filter(|(other, _)| *other != cluster) {
        return Err(format!(
            "node {node} is of cluster {}, and this node of cluster {}: give it the peers of its own cluster, or an empty \
             directory to join this one",
            hex(&other),
            hex(&cluster)
        ));
    }
    if !(join.least..=join.most).contains(&level) {
        return Err(format!(
            "the cluster has feature level {level}, and the node speaks levels {} to {}: run a version on it that speaks \
             level {level}",
            join.least, join.most
        ));
    }
    if let Some((_, node)) = join.known {
        return known(inner, &join, node);
    }
    let elsewhere = Ok(JoinAnswer::Elsewhere(None));
    let Some(replica) = inner.map_replica() else {
        return elsewhere;
    };
    match replica.state() {
        Ok(state) if state.leads => {}
        Ok(state) => return Ok(JoinAnswer::Elsewhere(leader(inner, state.leader))),
        Err(_) => return elsewhere,
    }
    if inner.map().is_none() {
        // The first node has not written it yet.
        return elsewhere;
    }
    let ours = inner.clock.wall_ms();
    if u128::from(ours.abs_diff(join.wall_ms)) > SKEW_MAX.as_millis() {
        return Ok(JoinAnswer::Clock(ours));
    }
    let request = JoinRequest {
        token: join.token,
        peer: join.peer,
        client: join.client,
        disks: join.disks,
    };
    let rule = move |map: Option<&map::Map>| match map {
        Some(map) => map::join(map, &request).map(|(node, changes)| (Some(place(map, &node)), changes)),
        // Its first entry is on its way.
        None => Ok((None, None)),
    };
    match change(&replica, rule).await {
        Ok(Answer::Reply(Ok(Some(place)))) => {
            tracing::info!(node = place.node, "a node has joined");
            Ok(JoinAnswer::Taken(place))
        }
        Ok(Answer::Reply(Ok(None))) => elsewhere,
        Ok(Answer::Reply(Err(reason))) => Err(reason),
        // Whatever became of it, the token is the same at the next attempt.
        Ok(Answer::TryAgain | Answer::Unknown) | Err(_) => elsewhere,
    }
}

/// A node that has joined asks whether this is its cluster.
fn known(inner: &Inner, join: &Join, number: u64) -> Result<JoinAnswer, String> {
    let Some(map) = inner.map() else {
        return Ok(JoinAnswer::Elsewhere(None));
    };
    match map.nodes.get(&number) {
        Some(node) if node.token == join.token => Ok(JoinAnswer::Taken(place(&map, node))),
        Some(node) => Err(format!(
            "node {number} is another one, at {}: take the directory of this one away",
            node.peer
        )),
        // This node may be behind.
        None if number >= map.cluster.next_node => Ok(JoinAnswer::Elsewhere(None)),
        None => Err(format!(
            "node {number} was removed from the cluster: let it join anew, with an empty directory"
        )),
    }
}

fn leader(inner: &Inner, leader: Option<u64>) -> Option<std::net::SocketAddr> {
    let map = inner.map()?;
    let node = map.node_of_replica(leader?)?;
    (node.number != inner.number()).then_some(node.peer)
}

fn place(map: &map::Map, node: &NodeRecord) -> Place {
    let others = map.nodes.values().filter(|other| other.number != node.number);
    let peers = std::iter::once(node).chain(others).take(PEERS_MAX);
    Place {
        cluster: map.cluster.id,
        node: node.number,
        replica: node.replica,
        level: map.cluster.level,
        peers: peers.map(|node| (node.number, node.peer)).collect(),
    }
}
