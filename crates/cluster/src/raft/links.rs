//! The links of a replica to the others of its group: requests to them, and what their answers mean to raft.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use openraft::errors::{NetworkError, RPCError, Unreachable};

use crate::ids::{GroupId, ReplicaId};
use crate::raft::followers::Followers;
use crate::raft::leases::Leases;
use crate::raft::options::GroupTimes;
use crate::raft::transfers::{TransferTurn, Transfers};
use crate::raft::types::Groups;
use crate::transport::wire::{NodeId, Refusal, Request, Response};
use crate::transport::{Call, PeerError, Peers};

/// Another replica says within this time whether it has room, and whether it may lead.
pub(super) const ASK_WITHIN: Duration = Duration::from_secs(1);

pub(super) type Failed = RPCError<Groups>;

/// Makes the links of one replica to the others.
#[derive(Clone)]
pub(super) struct ReplicaLinks {
    pub(super) peers: Arc<Peers>,
    pub(super) group: GroupId,
    pub(super) replica: ReplicaId,
    /// The index up to which entries are purged here. It keeps no log open.
    pub(super) purged: Arc<dyn Fn() -> Option<u64> + Send + Sync>,
    pub(super) times: GroupTimes,
    pub(super) followers: Arc<Followers>,
    pub(super) leases: Arc<Leases>,
    /// Numbers of the snapshots that were offered.
    pub(super) snapshots: Arc<AtomicU64>,
    pub(super) transfers: Arc<Transfers>,
}

/// The link to one other replica.
#[derive(Clone)]
pub(super) struct ReplicaLink {
    pub(super) links: ReplicaLinks,
    pub(super) node: NodeId,
    pub(super) disk: u32,
    pub(super) target: ReplicaId,
}

impl ReplicaLinks {
    /// Asks another replica something that it answers at once.
    pub(super) async fn ask(
        &self,
        (node, to): (NodeId, ReplicaId),
        request: Request,
    ) -> Result<Response, PeerError> {
        let call = Call {
            node,
            group: self.group,
            from: self.replica,
            to,
            request,
            within: ASK_WITHIN,
        };
        self.peers.call(call).await
    }
}

impl ReplicaLink {
    pub(super) fn to_call(&self, request: Request, within: Duration) -> Call {
        Call {
            node: self.node,
            group: self.links.group,
            from: self.links.replica,
            to: self.target,
            request,
            within,
        }
    }

    pub(super) fn times(&self) -> &GroupTimes {
        &self.links.times
    }

    /// The number of another snapshot.
    pub(super) fn next_snapshot(&self) -> u64 {
        // Only that no number comes twice.
        self.links.snapshots.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits for its turn to send tables.
    pub(super) async fn transfer_turn(&self) -> TransferTurn {
        self.links.transfers.turn(self.target).await
    }

    pub(super) async fn call(&self, request: Request, within: Duration) -> Result<Response, Failed> {
        let is_of_tables = matches!(
            request,
            Request::Room(_) | Request::Offer(_) | Request::Piece(_) | Request::SnapshotEnd(_)
        );
        let answer = self.links.peers.call(self.to_call(request, within)).await;
        let followers = &self.links.followers;
        match &answer {
            Ok(Response::Refusal(Refusal::NoRoom)) if is_of_tables => followers.tables(self.target, true),
            Ok(Response::Stored(_)) => followers.tables(self.target, false),
            Ok(Response::Installed(_)) => followers.installed(self.target),
            _ => {}
        }
        self.answered(answer)
    }

    pub(super) fn answered(&self, answer: Result<Response, PeerError>) -> Result<Response, Failed> {
        match answer {
            Ok(Response::Refusal(refusal)) => Err(self.refused(&refusal)),
            Ok(response) => Ok(response),
            Err(error) => Err(failed(&error)),
        }
    }

    /// A replica that is not there does not come by asking again soon, nor does room on its disk; another
    /// one's answer in its place would be believed to be its.
    fn refused(&self, refusal: &Refusal) -> Failed {
        let text = format!("replica {} on node {}: {refusal}", self.target, self.node);
        match refusal {
            Refusal::Gone | Refusal::Unknown | Refusal::NoRoom => Unreachable::from_string(text).into(),
            Refusal::Busy | Refusal::Failed(_) => NetworkError::from_string(text).into(),
        }
    }

    /// What came is no answer to what was asked.
    pub(super) fn unexpected(&self, response: &Response) -> Failed {
        let kind = response.kind();
        let text = format!("replica {} on node {} answered by {kind}", self.target, self.node);
        NetworkError::from_string(text).into()
    }
}

/// What is certain not to have arrived may be tried elsewhere; what may have arrived is sent again.
pub(super) fn failed(error: &PeerError) -> Failed {
    match error {
        PeerError::NoPeer { .. } | PeerError::Unreachable { .. } | PeerError::Address { .. } => {
            Unreachable::new(error).into()
        }
        _ => NetworkError::new(error).into(),
    }
}
