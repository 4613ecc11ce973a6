//! Which replica a message is for.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::ids::{GroupId, ReplicaId};
use crate::raft::Replica;
use crate::raftlog::{NodeStore, StoreError};
use crate::transport::wire::{MapRequest, Refusal, Request, Response};
use crate::transport::{Admission, Dispatch, Incoming, Reply};

/// The replicas of a node.
pub(super) struct Router {
    pub(super) store: NodeStore,
    /// Changes the map; none: there is none.
    admission: Option<Arc<dyn Admission>>,
    replicas: Mutex<BTreeMap<ReplicaId, Arc<Replica>>>,
}

impl Router {
    pub(super) fn new(store: NodeStore, admission: Option<Arc<dyn Admission>>) -> Arc<Self> {
        Arc::new(Self {
            store,
            admission,
            replicas: Mutex::default(),
        })
    }

    pub(super) fn replica(&self, id: ReplicaId) -> Option<Arc<Replica>> {
        self.replicas.lock().get(&id).cloned()
    }

    pub(super) fn replicas(&self) -> Vec<Arc<Replica>> {
        self.replicas.lock().values().cloned().collect()
    }

    pub(super) fn insert(&self, replica: Arc<Replica>) {
        self.replicas.lock().insert(replica.id(), replica);
    }

    pub(super) fn forget(&self, id: ReplicaId) {
        self.replicas.lock().remove(&id);
    }

    pub(super) fn take_all(&self) -> BTreeMap<ReplicaId, Arc<Replica>> {
        std::mem::take(&mut *self.replicas.lock())
    }

    fn change_map(&self, request: MapRequest, reply: Reply) {
        let Some(admission) = &self.admission else {
            let text = "this node has no map";
            return reply.send(Response::Refusal(Refusal::failed(text)));
        };
        let changed = admission.change_map(request);
        tokio::spawn(async move {
            reply.send(match changed.await {
                Ok(()) => Response::MapChanged,
                Err(problem) => Response::Refusal(Refusal::failed(problem)),
            });
        });
    }

    /// Why a replica that is spoken to does not answer.
    fn absent(&self, group: GroupId, id: ReplicaId) -> Refusal {
        match self.store.replica(id) {
            Err(StoreError::Removed { .. }) => Refusal::Gone,
            Err(StoreError::Unknown { .. }) => Refusal::Unknown,
            Ok(log) if log.group() != group => Refusal::Unknown,
            Ok(_) => Refusal::failed(format!("replica {id} is not open yet")),
            Err(error) => Refusal::failed(error.to_string()),
        }
    }
}

impl Dispatch for Router {
    fn dispatch(&self, incoming: Incoming, reply: Reply) {
        let (group, to) = (incoming.group, incoming.to);
        if let Request::ChangeMap(request) = incoming.request {
            return self.change_map(request, reply);
        }
        let here = self.replica(to).filter(|replica| replica.group() == group);
        match here.filter(|replica| !replica.is_closed()) {
            Some(replica) => replica.handle(incoming, reply),
            None => reply.send(Response::Refusal(self.absent(group, to))),
        }
    }
}

/// Lets the replicas go with the node: they hold its connections, which hold the router.
pub(super) struct Emptied(pub(super) Arc<Router>);

impl Drop for Emptied {
    fn drop(&mut self) {
        drop(self.0.take_all());
    }
}
