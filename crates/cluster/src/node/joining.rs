//! How a process finds out which node it is: by what its directory says, by making a cluster, or by joining one.
//! All of it is durable before the node starts. And how a node takes others into the map, where they ask it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use collie_io::{Clock, Device};
use collie_server::cluster::id_text;
use tokio::time::sleep;

use crate::blocking::blocking;
use crate::identity::{
    Asked, IdentityError, IdentityStore, NodeDisks, NodeIdentity, check_disks, check_free, mark_disks,
};
use crate::map::{self, JoinRequest, NodeRecord};
use crate::node::NodeError;
use crate::node::changing::change;
use crate::node::error::ClusterError;
use crate::node::map_requests;
use crate::node::options::{Begin, ClusterOptions};
use crate::node::shared::ClusterInner;
use crate::proposals::Answer;
use crate::transport::wire::{Join, JoinAnswer, MapRequest, NodeId, PEERS_MAX, Place, VERSION};
use crate::transport::{
    Admission, Admitted, JoinError, MapChanged, Network, PeerError, SKEW_MAX, ask_to_join,
};

/// The pause before the nodes are asked anew, at first; doubled each time.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// So many times in a row a node that was named by another one is asked.
const FOLLOWED: usize = 4;

/// Finds out which node this is, and where its disks are.
pub(super) async fn begin<N: Network>(
    network: &N,
    options: &ClusterOptions,
    store: &IdentityStore,
    begin: Begin,
) -> Result<(NodeIdentity, NodeDisks), ClusterError> {
    let own = store.clone();
    let known = blocking(move || own.identity()).await?;
    match (known, begin) {
        (Some(identity), Begin::Bootstrap { .. }) => Err(IdentityError::Exists {
            dir: options.dir.clone(),
            node: identity.node,
            cluster: id_text(&identity.cluster),
        }
        .into()),
        (Some(identity), begin) => {
            let disks = check_own(network, options, store, &identity).await?;
            if let Begin::Join(peers) = begin {
                check_cluster(network, options, &identity, &peers).await?;
            }
            Ok((identity, disks))
        }
        (None, Begin::Start) => Err(IdentityError::None {
            dir: options.dir.clone(),
        }
        .into()),
        (
            None,
            Begin::Bootstrap {
                replicas,
                partitions,
                voters,
            },
        ) => {
            let asked = ask(network, options, store).await?;
            let identity = NodeIdentity {
                // The same after a stop before the identity was stored: disks may be marked by then.
                cluster: asked.token,
                node: 1,
                replica: 1,
                level: *options.spoken.end(),
                asked,
                founded: Some((replicas, partitions, voters)),
            };
            settle(options, store, identity).await
        }
        (None, Begin::Join(peers)) => {
            let asked = ask(network, options, store).await?;
            let place = join(network, options, &asked, &peers).await?;
            if !options.spoken.contains(&place.level) {
                return Err(ClusterError::Level {
                    found: place.level,
                    spoken: options.spoken.clone(),
                });
            }
            let identity = NodeIdentity {
                cluster: place.cluster,
                node: place.node,
                replica: place.replica,
                level: place.level,
                asked,
                founded: None,
            };
            settle(options, store, identity).await
        }
    }
}

/// A node that is started again has the disks that it had, and addresses that others can reach.
async fn check_own<N: Network>(
    network: &N,
    options: &ClusterOptions,
    store: &IdentityStore,
    identity: &NodeIdentity,
) -> Result<NodeDisks, ClusterError> {
    check_reachable(options)?;
    check_moved(network, options, identity).await?;
    if !options.spoken.contains(&identity.level) {
        return Err(ClusterError::Level {
            found: identity.level,
            spoken: options.spoken.clone(),
        });
    }
    let (device, disks, identity) = (device(options), options.store.disks.clone(), identity.clone());
    let (dir, store) = (options.dir.clone(), store.clone());
    let check = move || check_disks(&*device, (&dir, &disks), &identity, &store.emptied()?);
    Ok(blocking(check).await?)
}

/// A node that is started elsewhere than before does not run there.
async fn check_moved<N: Network>(
    network: &N,
    options: &ClusterOptions,
    identity: &NodeIdentity,
) -> Result<(), ClusterError> {
    let there = identity.asked.peer;
    if there == options.peer {
        return Ok(());
    }
    let join = request(options, &identity.asked, Some(identity));
    let within = options.peer_times.greeting;
    match ask_to_join(network, there, join, &*options.clock, within).await {
        Ok(JoinAnswer::Known { node, .. }) if node == identity.node => {
            Err(IdentityError::Runs { node, there }.into())
        }
        // It is where another node is now, or no node.
        _ => Ok(()),
    }
}

/// What this process asks to join by, or makes a cluster with: durable when this returns. The token
/// and the disks' identities are those of an attempt before, if there was one.
async fn ask<N: Network>(
    network: &N,
    options: &ClusterOptions,
    store: &IdentityStore,
) -> Result<Asked, ClusterError> {
    check_reachable(options)?;
    let bind = |problem: String| {
        NodeError::Peers(PeerError::Bind {
            address: options.listen,
            problem,
        })
    };
    network
        .check(options.listen)
        .map_err(|problem| NodeError::Peers(PeerError::Address { problem }))?;
    // An address that this process cannot have must not get into the map.
    let listener = network.bind(options.listen).await;
    drop(listener.map_err(|error| bind(error.to_string()))?);
    let (device, disks, store) = (device(options), options.store.disks.clone(), store.clone());
    let (peer, client) = (options.peer, options.client);
    blocking(move || {
        let random = || {
            let mut id = [0; 16];
            device
                .random(&mut id)
                .map(|()| id)
                .map_err(|error| ClusterError::System {
                    what: "random bytes",
                    problem: error.to_string(),
                })
        };
        let before = store.asked()?;
        let mut ids = before
            .as_ref()
            .map(|asked| asked.disks.clone())
            .unwrap_or_default();
        ids.truncate(disks.len());
        while ids.len() < disks.len() {
            ids.push(random()?);
        }
        check_free(&*device, &disks, &ids)?;
        let asked = Asked {
            token: before.as_ref().map_or_else(random, |asked| Ok(asked.token))?,
            peer,
            client,
            disks: ids,
        };
        if before.as_ref() != Some(&asked) {
            store.set_asked(&asked)?;
        }
        Ok(asked)
    })
    .await
}

/// Other nodes and clients are sent to these addresses.
fn check_reachable(options: &ClusterOptions) -> Result<(), ClusterError> {
    for (option, address) in [("peer", options.peer), ("client", options.client)] {
        if address.ip().is_unspecified() {
            let problem = format!(
                "others connect to this address, and {address} is one to listen on alone: name one of this machine \
                 (--advertise-peer, --advertise-client)"
            );
            return Err(ClusterError::Options { option, problem });
        }
    }
    Ok(())
}

/// The identity is durable, and the disks are marked, when this returns.
async fn settle(
    options: &ClusterOptions,
    store: &IdentityStore,
    identity: NodeIdentity,
) -> Result<(NodeIdentity, NodeDisks), ClusterError> {
    let (device, disks, store) = (device(options), options.store.disks.clone(), store.clone());
    blocking(move || {
        // The marks first: with the identity, a disk without one is a disk that was emptied.
        mark_disks(&*device, &disks, &identity)?;
        store.set_identity(&identity)?;
        let disks = NodeDisks {
            dirs: disks,
            absent: BTreeSet::new(),
        };
        Ok((identity, disks))
    })
    .await
}

pub(super) fn request(options: &ClusterOptions, asked: &Asked, known: Option<&NodeIdentity>) -> Join {
    Join {
        version: VERSION,
        known: known.map(|identity| (identity.cluster, identity.node)),
        token: asked.token,
        peer: asked.peer,
        client: asked.client,
        disks: asked.disks.clone(),
        least: *options.spoken.start(),
        most: *options.spoken.end(),
        wall_ms: 0,
    }
}

/// Asks one node after the other, again and again, until one answers.
async fn join<N: Network>(
    network: &N,
    options: &ClusterOptions,
    asked: &Asked,
    peers: &[SocketAddr],
) -> Result<Place, ClusterError> {
    let mut pause = PAUSE;
    loop {
        for peer in peers {
            let mut address = *peer;
            for _ in 0..FOLLOWED {
                let (join, clock, within) = (
                    request(options, asked, None),
                    &options.clock,
                    answer_within(options),
                );
                match ask_to_join(network, address, join, &**clock, within).await {
                    Ok(JoinAnswer::Taken(place)) => return Ok(place),
                    Ok(JoinAnswer::Elsewhere(Some(other))) if other != address => address = other,
                    Ok(_) => break,
                    Err(JoinError::Unanswered { address, problem }) => {
                        tracing::warn!(%address, problem, "cannot join yet");
                        break;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Whether the nodes at these addresses are of this node's cluster. Those that do not answer are not
/// waited for: the map says where the others are.
async fn check_cluster<N: Network>(
    network: &N,
    options: &ClusterOptions,
    identity: &NodeIdentity,
    peers: &[SocketAddr],
) -> Result<(), ClusterError> {
    for address in peers.iter().filter(|address| **address != options.peer) {
        let join = request(options, &identity.asked, Some(identity));
        let within = options.peer_times.greeting;
        let answer = ask_to_join(network, *address, join, &*options.clock, within).await;
        if let Err(error @ JoinError::Refused { .. }) = answer {
            return Err(error.into());
        }
    }
    Ok(())
}

/// The other side has the same time, and the answer is still to come.
fn answer_within(options: &ClusterOptions) -> Duration {
    options.peer_times.join + options.peer_times.greeting
}

fn device(options: &ClusterOptions) -> Arc<dyn Device> {
    Arc::clone(&options.machine.db.device)
}

/// Answers those that ask to join, once the node runs.
#[derive(Default)]
pub(super) struct Gate {
    inner: OnceLock<Weak<ClusterInner>>,
}

impl Gate {
    /// The node runs.
    pub(super) fn open(&self, inner: &Arc<ClusterInner>) {
        // An error: it was open.
        let _open = self.inner.set(Arc::downgrade(inner));
    }
}

impl Admission for Gate {
    fn was_removed(&self, node: NodeId) -> bool {
        let inner = self.inner.get().and_then(Weak::upgrade);
        let map = inner.and_then(|inner| inner.map());
        map.is_some_and(|map| node < map.cluster.next_node && !map.nodes.contains_key(&node))
    }

    fn change_map(&self, request: MapRequest) -> MapChanged {
        let inner = self.inner.get().and_then(Weak::upgrade);
        Box::pin(async move {
            let inner = inner.ok_or("this node is just starting: ask again")?;
            map_requests::answer(&inner, request).await
        })
    }

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

async fn judge(inner: &ClusterInner, join: Join) -> Result<JoinAnswer, String> {
    let cluster = inner.identity.cluster;
    let level = inner.map().map_or(inner.identity.level, |map| map.cluster.level);
    if let Some((other, node)) = join.known.filter(|(other, _)| *other != cluster) {
        return Err(format!(
            "node {node} is of cluster {}, and this node of cluster {}: give it the peers of its own cluster, or an empty \
             directory to join this one",
            id_text(&other),
            id_text(&cluster)
        ));
    }
    let levels = join.least..=join.most;
    if !levels.contains(&level) {
        return Err(other_level(level, &levels));
    }
    if let Some((_, node)) = join.known {
        return known(inner, &join, node).await;
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
    let levels = join.least..=join.most;
    let rule = move |map: Option<&map::Map>| match map {
        // It was raised meanwhile.
        Some(map) if !levels.contains(&map.cluster.level) => Err(other_level(map.cluster.level, &levels)),
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

fn other_level(level: u32, spoken: &RangeInclusive<u32>) -> String {
    format!(
        "the cluster has feature level {level}, and the node speaks levels {} to {}: run a version on it that speaks level \
         {level}",
        spoken.start(),
        spoken.end()
    )
}

/// A node that has joined asks whether this is its cluster.
async fn known(inner: &ClusterInner, join: &Join, number: u64) -> Result<JoinAnswer, String> {
    let Some(map) = inner.map() else {
        return Ok(JoinAnswer::Elsewhere(None));
    };
    match map.nodes.get(&number) {
        Some(node) if node.token == join.token => {
            inner.is_at(node, (join.peer, join.client)).await;
            Ok(JoinAnswer::Known {
                node: inner.number(),
                peer: inner.options.peer,
            })
        }
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

fn leader(inner: &ClusterInner, leader: Option<u64>) -> Option<std::net::SocketAddr> {
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
