//! What an operator accepts as lost.

use std::collections::BTreeSet;

use collie_server::cluster::Durability;

use crate::map::known_node;
use crate::node::shared::ClusterInner;
use crate::raft::LEVEL_OF_LOSSES;
use crate::raftlog::EntryDurability;
use crate::transport::wire::MapRequest;

/// Has the replicas of all nodes vote that may have lost entries, with what they have.
///
/// # Errors
/// What an operator is to do.
pub(super) async fn accept(inner: &ClusterInner, without: &BTreeSet<u64>) -> Result<(), String> {
    let map = inner.map().ok_or("this node has no map yet: ask again")?;
    if map.cluster.level < LEVEL_OF_LOSSES {
        return Err("entries of this cluster wait for the disk: nothing is lost".to_owned());
    }
    for node in without {
        known_node(&map, *node)?;
    }
    let silent: Vec<_> = {
        let states = inner.peers().states();
        let states = states.borrow();
        let silent = map.nodes.keys().filter(|node| !inner.is_alive(&states, **node));
        silent
            .filter(|node| !without.contains(node))
            .map(u64::to_string)
            .collect()
    };
    if !silent.is_empty() {
        let silent = silent.join(", ");
        return Err(format!(
            "node {silent} does not answer, and may have what others have lost: start it; or, where it does not come back, \
             give up what it alone has by --without {silent}"
        ));
    }
    for node in map.nodes.values().filter(|node| !without.contains(&node.number)) {
        let answer = match node.number == inner.number() {
            true => {
                answer(inner);
                Ok(())
            }
            false => inner
                .ask_node(node, MapRequest::AcceptLoss)
                .await
                .map_err(|error| format!("node {} ({error}): ask again", node.number))?,
        };
        answer.map_err(|problem| format!("node {}: {problem}", node.number))?;
    }
    Ok(())
}

/// Accepts what the replicas of this node have lost. Those that have a leader get from it what they lack all the same.
pub(super) fn answer(inner: &ClusterInner) {
    let losses = inner.node.losses();
    losses.accept(&losses.open());
}

impl ClusterInner {
    /// What entries of this node wait for.
    pub(super) fn durability(&self) -> Durability {
        match self.options.store.shared.entries {
            EntryDurability::Disk => Durability::Disk,
            EntryDurability::Process => Durability::Process,
        }
    }
}
