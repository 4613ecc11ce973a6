//! Disks of a node that are to have no replicas: its others take them.

use crate::map::moves::known_node;
use crate::map::records::{LEVEL_OF_DISKS, NodeRecord, NodeRole};
use crate::map::whole::{Changes, Map};
use crate::transport::wire::NodeId;

/// Has the replicas on a disk of a node move to its other disks, or lets the disk have replicas again. They move later.
///
/// # Errors
/// Why it is refused, and what to do.
pub fn set_disk(map: &Map, number: NodeId, disk: u32, drains: bool) -> Result<Option<Changes>, String> {
    if map.cluster.level < LEVEL_OF_DISKS {
        return Err(disks_from(map.cluster.level));
    }
    let node = known_node(map, number)?;
    if disk as usize >= node.disks.len() {
        return Err(format!(
            "node {number} has no disk {disk}: it has {}, counted from 0",
            node.disks.len()
        ));
    }
    if node.drained.contains(&disk) == drains {
        return Ok(None);
    }
    if drains {
        check_draining(node, disk)?;
    }
    let mut drained = node.drained.clone();
    match drains {
        true => drained.insert(disk),
        false => drained.remove(&disk),
    };
    let mut changes = Changes::of(map);
    changes.nodes.push(NodeRecord {
        drained,
        ..node.clone()
    });
    Ok(Some(changes))
}

/// Why no disk is drained at a feature level.
#[must_use]
pub fn disks_from(level: u32) -> String {
    format!(
        "the cluster has feature level {level}, and disks are drained from level {LEVEL_OF_DISKS} on: run `collie cluster \
         finalize` once all nodes have this version"
    )
}

/// Whether other disks of a node can take what one has.
fn check_draining(node: &NodeRecord, disk: u32) -> Result<(), String> {
    let number = node.number;
    if node.role != NodeRole::Serves {
        return Err(format!(
            "all replicas of node {number} are to move to other nodes: if others of its disks are to keep some, run `collie \
             cluster serve {number}` first"
        ));
    }
    if node.open_disks().any(|other| other != disk) {
        return Ok(());
    }
    let end = node.drained.first().map_or(String::new(), |other| {
        format!(", or `collie cluster serve {number} --disk {other}` lets another disk have replicas again")
    });
    Err(format!(
        "node {number} has no other disk that may have replicas: `collie cluster drain {number}` moves them to other \
         nodes{end}"
    ))
}
