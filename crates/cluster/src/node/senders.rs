//! What a node's senders to other clusters are, by the replica that each sends and the target.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::AbortHandle;

use crate::duplication::SenderState;
use crate::ids::{GroupId, ReplicaId};

/// What a sender sends: which replica, to which target.
pub(super) type Which = (ReplicaId, u64);

/// The senders of this node.
#[derive(Default)]
pub(super) struct Senders(pub(super) BTreeMap<Which, RunningSender>);

/// A sender that runs.
pub(super) struct RunningSender {
    pub(super) group: GroupId,
    pub(super) state: Arc<SenderState>,
    pub(super) task: AbortHandle,
}

impl Senders {
    /// Ends those of which this is true.
    pub(super) fn end(&mut self, ends: impl Fn(&Which, &RunningSender) -> bool) {
        self.0.retain(|which, running| {
            let ends = ends(which, running);
            if ends {
                running.task.abort();
            }
            !ends
        });
    }

    /// Those of a target.
    pub(super) fn of(&self, target: u64) -> impl Iterator<Item = (&Which, &RunningSender)> {
        self.0.iter().filter(move |((_, number), _)| *number == target)
    }
}
