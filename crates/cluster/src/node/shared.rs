//! What the tasks of a node share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use collie_db::Db;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::identity::{IdentityStore, NodeIdentity};
use crate::map::{Founding, JoinRequest, Map};
use crate::node::Node;
use crate::node::cluster_options::ClusterOptions;
use crate::node::figures::Looked;
use crate::node::routing::Routing;
use crate::node::steady::SteadyClock;
use crate::raft::Replica;
use crate::transport::wire::NodeId;
use crate::transport::{NodeStates, Peers};

/// What the tasks of a node share.
pub(super) struct Inner {
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
    pub(super) looked: Looked,
    /// This node is about to end, and takes over nothing.
    pub(super) retires: AtomicBool,
    /// Woken when this node is to take over what others lead.
    pub(super) taking_over: Notify,
    /// What is wrong, by what it is about.
    problems: Mutex<BTreeMap<String, String>>,
}

impl Inner {
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
            identity,
            store,
            map: watch::Sender::new(None),
            routing: ArcSwap::default(),
            looked: Looked::default(),
            retires: AtomicBool::new(false),
            taking_over: Notify::new(),
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
        node == self.number() || states.get(&node).is_some_and(|state| state.is_alive())
    }

    /// The same, as of now.
    pub(super) fn hears(&self, node: NodeId) -> bool {
        self.is_alive(&self.peers().states().borrow(), node)
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
            tracing::error!(node, about, problem, "this node cannot follow the map");
        }
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
