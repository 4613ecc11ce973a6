//! What the tasks of a node share, and the groups that have replicas on it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use arc_swap::ArcSwap;
use collie_db::Db;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::duplication::Senders;
use crate::identity::{IdentityStore, NodeIdentity};
use crate::ids::{GroupId, ReplicaId};
use crate::map::{Founding, JoinRequest, MAP_GROUP, Map, NodeRecord};
use crate::node::Node;
use crate::node::drained::DrainedDisks;
use crate::node::options::ClusterOptions;
use crate::node::routing::{Routing, is_alive};
use crate::node::steady::SteadyClock;
use crate::raft::Replica;
use crate::transport::wire::{MapRequest, NodeId, Refusal, Request, Response};
use crate::transport::{Call, NodeStates, PeerError, Peers};

/// What the tasks of a node share.
pub(super) struct ClusterInner {
    pub(super) node: Arc<Node>,
    pub(super) options: ClusterOptions,
    /// The time that everything here goes by.
    pub(super) clock: Arc<SteadyClock>,
    pub(super) identity: NodeIdentity,
    pub(super) store: IdentityStore,
    /// The map as this node has applied it; none before it has anything of it.
    pub(super) map: watch::Sender<Option<Arc<Map>>>,
    pub(super) routing: ArcSwap<Routing>,
    /// For the figures.
    pub(super) looked: LastLook,
    /// This node is about to end, and takes over nothing.
    pub(super) retires: AtomicBool,
    /// Woken when this node is to take over what others lead.
    pub(super) taking_over: Notify,
    /// Where nodes said that they are, and the map does not have them yet.
    pub(super) said_at: Mutex<BTreeMap<NodeId, SocketAddr>>,
    /// The newest feature level that this node has noted.
    pub(super) noted: AtomicU32,
    /// One at a time changes which logs the replicas of this node are to be in.
    pub(super) changing_layout: tokio::sync::Mutex<()>,
    /// Groups whose moves do not go on, as their leaders say, each with the epoch of its partition's last change.
    pub(super) hanging: Mutex<BTreeSet<(GroupId, u64)>>,
    /// Replicas that splits have put here, and that are noted to have been made.
    pub(super) noted_made: Mutex<BTreeSet<ReplicaId>>,
    /// What is left on the disks of this node that are drained.
    pub(super) disks: DrainedDisks,
    /// What sends rows to other clusters.
    pub(super) senders: Mutex<Senders>,
    /// Who lags behind the leaders on this node, as of the last look.
    pub(super) lagging: Mutex<LagLook>,
    /// What is wrong, by what it is about.
    problems: Mutex<BTreeMap<String, String>>,
}

/// The nodes that lag behind leaders, and the groups in which they do.
pub(super) type Lagging = BTreeMap<NodeId, BTreeSet<GroupId>>;

/// As which process each node answers; `None`: it does not.
pub(super) type Answering = BTreeMap<NodeId, Option<[u8; 16]>>;

/// What a look at the followers of this node's leaders has shown.
#[derive(Debug, Clone, Default)]
pub(super) struct LagLook {
    pub(super) answering: Answering,
    pub(super) lagging: Lagging,
}

impl ClusterInner {
    pub(super) fn new(
        node: Arc<Node>,
        options: ClusterOptions,
        clock: Arc<SteadyClock>,
        identity: NodeIdentity,
        store: IdentityStore,
    ) -> Self {
        Self {
            node,
            options,
            clock,
            store,
            map: watch::Sender::new(None),
            routing: ArcSwap::default(),
            looked: LastLook::default(),
            retires: AtomicBool::new(false),
            taking_over: Notify::new(),
            said_at: Mutex::default(),
            noted: AtomicU32::new(identity.level),
            changing_layout: tokio::sync::Mutex::default(),
            identity,
            hanging: Mutex::default(),
            noted_made: Mutex::default(),
            disks: DrainedDisks::default(),
            senders: Mutex::default(),
            lagging: Mutex::default(),
            problems: Mutex::default(),
        }
    }

    /// This node's number.
    pub(super) fn number(&self) -> NodeId {
        self.identity.node
    }

    /// The map as this node has applied it.
    pub(super) fn map(&self) -> Option<Arc<Map>> {
        self.map.borrow().clone()
    }

    /// This node's replica of group 0, once it is there.
    pub(super) fn map_replica(&self) -> Option<Arc<Replica>> {
        self.node.replica(self.identity.replica)
    }

    pub(super) fn peers(&self) -> &Peers {
        self.node.peers()
    }

    /// Whether a node answers. This one does.
    pub(super) fn is_alive(&self, states: &NodeStates, node: NodeId) -> bool {
        is_alive(self.number(), states, node)
    }

    /// The same, as of now.
    pub(super) fn hears(&self, node: NodeId) -> bool {
        self.is_alive(&self.peers().states().borrow(), node)
    }

    /// Asks another node about what is its own, not the map's. The inner error is that of the node.
    ///
    /// # Errors
    /// There is no answer: a node of an older version ends the connection.
    pub(super) async fn ask_node(
        &self,
        node: &NodeRecord,
        request: MapRequest,
    ) -> Result<Result<(), String>, PeerError> {
        let call = Call {
            node: node.number,
            group: MAP_GROUP,
            from: self.identity.replica,
            to: node.replica,
            request: Request::ChangeMap(request),
            within: self.options.times.append,
        };
        let answer = self.peers().call(call).await.inspect_err(|error| {
            tracing::debug!(%error, node = node.number, "a node does not answer a question about itself");
        })?;
        Ok(changed(answer))
    }

    /// Lets a replica of this node stand for election, or not: none does once the node is about to end.
    pub(super) fn set_stands(&self, replica: &Replica, stands: bool) {
        // Relaxed: it is said again and again.
        replica.set_stands(stands && !self.retires.load(Ordering::Relaxed));
    }

    /// Where a slot is led may have changed.
    pub(super) fn changed(&self) {
        self.node.changed();
    }

    /// Notes what is wrong with something, or that nothing is any more. It is logged once.
    pub(super) fn report(&self, about: &str, problem: Option<String>) {
        let mut problems = self.problems.lock();
        let was = match problem.clone() {
            Some(problem) => problems.insert(about.to_owned(), problem),
            None => problems.remove(about),
        };
        drop(problems);
        if let Some(problem) = problem.filter(|problem| was.as_ref() != Some(problem)) {
            let node = self.number();
            tracing::error!(node, about, problem, "this node has a problem");
        }
    }

    /// Nothing is wrong any more with replicas that are unknown by now: a map that was read after a start may have
    /// been older than what had been removed before.
    pub(super) fn forget_replicas(&self, is_known: impl Fn(ReplicaId) -> bool) {
        self.problems.lock().retain(|about, _| {
            let replica = about.strip_prefix("replica ").and_then(|id| id.parse().ok());
            replica.is_none_or(&is_known)
        });
    }

    pub(super) fn problems(&self) -> BTreeMap<String, String> {
        self.problems.lock().clone()
    }

    /// With what the map begins, on the node that made the cluster.
    pub(super) fn founding(&self) -> Option<Founding> {
        let NodeIdentity {
            cluster,
            level,
            asked,
            founded,
            ..
        } = &self.identity;
        let (replicas, partitions, voters) = (*founded)?;
        Some(Founding {
            id: *cluster,
            level: *level,
            replicas,
            partitions,
            voters,
            first: JoinRequest {
                token: asked.token,
                peer: asked.peer,
                client: asked.client,
                disks: asked.disks.clone(),
            },
        })
    }

    /// The node's own store.
    pub(super) fn db(&self) -> &Db {
        self.store.db()
    }
}

/// What another node says of a change.
pub(super) fn changed(answer: Response) -> Result<(), String> {
    match answer {
        Response::MapChanged => Ok(()),
        Response::Refusal(Refusal::Failed(problem)) => Err(problem),
        Response::Refusal(refusal) => Err(refusal.to_string()),
        other => Err(format!("expected an answer to that, found {}", other.kind())),
    }
}

/// A group with a replica on this node.
pub(super) struct Group {
    /// This node's replica, which votes.
    pub(super) replica: Arc<Replica>,
    /// The replicas that vote, each with its node.
    pub(super) members: BTreeMap<ReplicaId, NodeId>,
}

impl Group {
    /// The other members, each with its node: first the next one in the order of the ids, which goes
    /// round.
    pub(super) fn others(&self) -> impl Iterator<Item = (ReplicaId, NodeId)> + Clone {
        let own = self.replica.id();
        let behind = self.members.range(own..).skip(1);
        let before = self.members.range(..own);
        behind.chain(before).map(|(replica, node)| (*replica, *node))
    }
}

/// The groups with replicas on this node that vote there: the partitions', and the map's.
pub(super) fn groups(inner: &ClusterInner, map: &Map) -> Vec<Group> {
    let partitions = map.partitions.values().flat_map(|partition| {
        let own = partition.members_on(inner.number());
        let replicas = own.filter_map(|own| inner.node.replica(own.replica));
        replicas.filter_map(|replica| group(replica, |id| partition.node_of(id)))
    });
    let of_map = inner.map_replica().and_then(|replica| {
        group(replica, |id| {
            let node = map.node_of_replica(id)?;
            Some(node.number)
        })
    });
    partitions.chain(of_map).collect()
}

/// The group of a replica that votes; none: it does not, or does not run.
fn group(replica: Arc<Replica>, node_of: impl Fn(ReplicaId) -> Option<NodeId>) -> Option<Group> {
    let voters = replica.members().ok()?.voters;
    let is_voter = voters.contains(&replica.id());
    let members = voters.into_iter().filter_map(|id| Some((id, node_of(id)?)));
    let members = members.collect();
    is_voter.then_some(Group { replica, members })
}

/// Partitions that have figures of their own: those with the most entries since the last look.
const BUSIEST: usize = 20;

/// How far the partitions were at the last look.
#[derive(Debug, Default)]
pub(super) struct LastLook(Mutex<BTreeMap<GroupId, u64>>);

impl LastLook {
    /// The busiest of these groups since the last look, each with its last entry.
    pub(super) fn busiest(&self, now: BTreeMap<GroupId, u64>) -> Vec<GroupId> {
        let mut before = self.0.lock();
        let since = |(group, last): (&GroupId, &u64)| {
            let before = before.get(group).copied().unwrap_or(0);
            (Reverse(last.saturating_sub(before)), *group)
        };
        let mut order: Vec<_> = now.iter().map(since).collect();
        order.sort();
        *before = now;
        order.into_iter().take(BUSIEST).map(|(_, group)| group).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_have_the_most_entries_since_the_last_look() {
        let looked = LastLook::default();
        let first = looked.busiest((1..=30).map(|group| (group, 1_000 - group)).collect());
        assert_eq!(first, (1..=20).collect::<Vec<_>>());
        let now = (1..=30).map(|group| (group, 1_000 - group + u64::from(group > 25) * group));
        let next = looked.busiest(now.collect());
        assert_eq!(next[..6], [30, 29, 28, 27, 26, 1]);
        assert_eq!(next.len(), BUSIEST);
    }
}
