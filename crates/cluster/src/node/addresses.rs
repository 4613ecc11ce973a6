//! Where nodes are, and in which zone, when that changes: a node that is started elsewhere says so by itself.
//!
//! The map has it once the leader of the map's group has heard it. Until then others may not reach the node, nor each
//! other, where all have moved: so it tells each node that it can reach, by the map and by the addresses that it was
//! started with, and these say who they are. What a node has heard so counts until the map says the same.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};

use crate::blocking::blocking;
use crate::map::{LEVEL_OF_MOVES, Map, NodeRecord};
use crate::node::joining::request;
use crate::node::map_requests::ask;
use crate::node::options::ClusterOptions;
use crate::node::shared::ClusterInner;
use crate::transport::wire::{JoinAnswer, MapRequest, NodeId, Site};
use crate::transport::{Network, ask_to_join};

/// From one attempt to the next.
const AGAIN: Duration = Duration::from_secs(1);
/// So many nodes are told at a time.
const AT_A_TIME: usize = 8;
/// What the problem is about.
const ABOUT: &str = "the addresses of this node";

/// Has the map say of this node what it was started with, until the node ends.
pub(super) async fn announce<N: Network>(inner: Arc<ClusterInner>, network: N, seeds: Vec<SocketAddr>) {
    let mut ticks = inner.peers().beat().every(AGAIN.min(inner.options.look * 4));
    let asked = &inner.identity.asked;
    let mut is_kept = (asked.peer, asked.client) == (inner.options.peer, inner.options.client);
    loop {
        ticks.tick().await;
        let Some(map) = inner.map() else { continue };
        let Some(own) = map.nodes.get(&inner.number()) else {
            continue;
        };
        let problem = match described(&inner, own) {
            None if is_kept => None,
            None => {
                let problem = keep(&inner).await;
                is_kept = problem.is_none();
                problem
            }
            Some(_) if map.cluster.level < LEVEL_OF_MOVES => Some(format!(
                "the map has this node at {}, clients at {}, zone {:?}, and at the cluster's feature level {} that does not \
                 change: start it so",
                own.peer, own.client, own.zone, map.cluster.level
            )),
            Some(description) => match ask(&inner, description).await {
                Ok(()) => None,
                Err(problem) => {
                    tell_all(&inner, &network, &map, &seeds).await;
                    Some(format!("the map does not have them yet: {problem}"))
                }
            },
        };
        inner.report(ABOUT, problem);
    }
}

/// Where this node is, for its next start.
async fn keep(inner: &ClusterInner) -> Option<String> {
    let (store, at) = (inner.store.clone(), (inner.options.peer, inner.options.client));
    let kept =
        blocking(move || store.change_identity(|identity| (identity.asked.peer, identity.asked.client) = at));
    kept.await.err().map(|error| error.to_string())
}

/// What the map is to say of this node, unless it does.
fn described(inner: &ClusterInner, own: &NodeRecord) -> Option<MapRequest> {
    let ClusterOptions {
        peer,
        client,
        client_host,
        zone,
        ..
    } = &inner.options;
    let site = Site {
        peer: *peer,
        client: *client,
        host: client_host.clone(),
        zone: zone.clone(),
    };
    let node = own.number;
    (site != site_of(own)).then_some(MapRequest::Describe { node, site })
}

/// Where the map has a node.
fn site_of(node: &NodeRecord) -> Site {
    Site {
        peer: node.peer,
        client: node.client,
        host: node.host.clone(),
        zone: node.zone.clone(),
    }
}

/// Tells all nodes where this one is.
async fn tell_all<N: Network>(inner: &ClusterInner, network: &N, map: &Map, seeds: &[SocketAddr]) {
    let others = map.nodes.values().filter(|node| node.number != inner.number());
    let mut addresses: Vec<_> = seeds
        .iter()
        .copied()
        .chain(others.map(|node| inner.address_of(node)))
        .filter(|address| *address != inner.options.peer)
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    stream::iter(addresses)
        .for_each_concurrent(AT_A_TIME, |address| async move {
            let identity = &inner.identity;
            let mut join = request(&inner.options, &identity.asked, Some(identity));
            (join.peer, join.client) = (inner.options.peer, inner.options.client);
            let within = inner.options.peer_times.greeting;
            match ask_to_join(network, address, join, &*inner.options.clock, within).await {
                Ok(JoinAnswer::Known { node, peer }) => inner.reach(node, peer),
                Ok(other) => tracing::debug!(%address, ?other, "a node does not say who it is"),
                Err(error) => tracing::debug!(%address, %error, "a node cannot be told where this one is"),
            }
        })
        .await;
}

impl ClusterInner {
    /// Where a node is: where it said that it is, or else where the map has it.
    pub(super) fn address_of(&self, node: &NodeRecord) -> SocketAddr {
        let said = self.said_at.lock().get(&node.number).copied();
        said.unwrap_or(node.peer)
    }

    /// A node says where it is. It may not reach the leader of the map's group: this one tells it.
    pub(super) async fn is_at(&self, node: &NodeRecord, (peer, client): (SocketAddr, SocketAddr)) {
        if (node.peer, node.client) == (peer, client) {
            return;
        }
        self.reach(node.number, peer);
        let described = MapRequest::Describe {
            node: node.number,
            site: Site {
                peer,
                client,
                ..site_of(node)
            },
        };
        if let Err(problem) = ask(self, described).await {
            tracing::debug!(
                node = node.number,
                problem,
                "the map does not have where a node is"
            );
        }
    }

    /// Reaches a node where it is, until the map says so.
    fn reach(&self, node: NodeId, peer: SocketAddr) {
        let map = self.map();
        let known = map.as_ref().and_then(|map| map.nodes.get(&node));
        if node == self.number() || known.is_none_or(|known| known.peer == peer) {
            return;
        }
        self.said_at.lock().insert(node, peer);
        let problem = self.node.set_peer(node, peer).err();
        self.report(&format!("node {node}"), problem.map(|error| error.to_string()));
    }

    /// What nodes said of themselves counts until the map says the same.
    pub(super) fn forget_what_the_map_has(&self, map: &Map) {
        self.said_at.lock().retain(|node, said| {
            let known = map.nodes.get(node);
            known.is_some_and(|known| known.peer != *said)
        });
    }
}
