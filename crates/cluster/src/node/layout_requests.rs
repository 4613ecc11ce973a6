//! What an operator asks of the logs of a node: it is stored, and then the logs move.

use crate::blocking::blocking;
use crate::identity::LayoutRecord;
use crate::ids::ReplicaId;
use crate::layouts::{Layout, Layouts};
use crate::map::known_node;
use crate::node::layouts::{Homes, LEVEL_OF_LAYOUTS};
use crate::node::shared::ClusterInner;
use crate::transport::PeerError;
use crate::transport::wire::{LayoutOf, MapRequest, NodeId};

/// Has a node move the logs of replicas.
pub(super) async fn ask(inner: &ClusterInner, node: NodeId, request: MapRequest) -> Result<(), String> {
    let map = inner.map().ok_or("this node has no map yet: ask again")?;
    let level = map.cluster.level;
    if level < LEVEL_OF_LAYOUTS {
        return Err(format!(
            "the cluster has feature level {level}, and logs move from level {LEVEL_OF_LAYOUTS} on: ask for `collie cluster \
             finalize` once all nodes run this version to stay"
        ));
    }
    let record = known_node(&map, node)?;
    let answer = match (node == inner.number(), &request) {
        (true, MapRequest::Layout { of, layout }) => answer(inner, *of, *layout).await,
        _ => {
            let asked = inner.ask_node(record, request).await;
            asked.map_err(|error| unanswered(node, &error))?
        }
    };
    answer.map_err(|problem| format!("node {node}: {problem}"))
}

fn unanswered(node: NodeId, error: &PeerError) -> String {
    match error.may_be_done() {
        true => format!(
            "node {node} does not answer, and its logs may move all the same, at once or later: `collie cluster status` \
             shows whether they do"
        ),
        false => format!("nothing was changed: {error}"),
    }
}

/// Stores which logs replicas of this node are to be in, and has them moved.
pub(super) async fn answer(inner: &ClusterInner, of: LayoutOf, layout: Layout) -> Result<(), String> {
    let _others = inner.changing_layout.lock().await;
    let replicas = inner.node.replicas();
    let ids: Vec<_> = replicas.iter().map(|replica| replica.id()).collect();
    let of_group: Vec<_> = match of {
        LayoutOf::Group(group) => {
            // Two, while it moves to another disk.
            let of_group = replicas.iter().filter(|replica| replica.group() == group);
            let of_group: Vec<_> = of_group.map(|replica| replica.id()).collect();
            if of_group.is_empty() {
                return Err(format!("this node has no replica of partition {group}"));
            }
            of_group
        }
        LayoutOf::Node | LayoutOf::Disk(_) => Vec::new(),
    };
    let (layouts, homes, store) = (inner.node.layouts(), inner.node.homes(), inner.store.clone());
    let option = inner.options.store.layout.node();
    let stored = blocking(move || {
        let layouts = after(layouts, (of, &of_group, layout), &ids, &homes)?;
        let record = LayoutRecord { option, layouts };
        store.set_layout(&record).map_err(|error| error.to_string())?;
        Ok::<_, String>(record.layouts)
    });
    inner.node.set_layouts(stored.await?);
    Ok(())
}

/// The layouts of a node after a change, of one replica or more. Blocks.
fn after(
    mut layouts: Layouts,
    (of, of_group, layout): (LayoutOf, &[ReplicaId], Layout),
    replicas: &[ReplicaId],
    homes: &Homes,
) -> Result<Layouts, String> {
    layouts.keep_replicas(replicas);
    match of {
        LayoutOf::Group(_) => {
            for replica in of_group {
                let disk = homes.disk_of(*replica).unwrap_or(0);
                layouts.set_replica(*replica, disk, layout);
            }
        }
        LayoutOf::Disk(disk) if disk as usize >= homes.disks.len() => {
            return Err(format!(
                "this node has no disk {disk}: it has {}, counted from 0",
                homes.disks.len()
            ));
        }
        LayoutOf::Disk(disk) => {
            let here = replicas.iter().copied();
            let here = here.filter(|id| homes.disk_of(*id) == Some(disk as usize));
            layouts.set_disk(disk, layout, &here.collect::<Vec<_>>());
        }
        LayoutOf::Node => layouts.set_node(layout),
    }
    Ok(layouts)
}
