//! Requests to change the map: answered by the leader of group 0, and sent to it by the other nodes.

use crate::map::{self, MAP_GROUP, Map, Moved, NodeRole};
use crate::node::changing::{change, decided};
use crate::node::shared::{ClusterInner, changed};
use crate::node::{layout_requests, levels, loss_requests};
use crate::raft::Replica;
use crate::transport::Call;
use crate::transport::wire::{MapRequest, Request};

/// Has the leader of group 0 change the map, on this node or on another one. What was asked for is in the map when
/// this returns, or not: then the error says why, and it may be asked for again.
pub(super) async fn ask(inner: &ClusterInner, request: MapRequest) -> Result<(), String> {
    let replica = inner.map_replica().ok_or("this node has no map yet: ask again")?;
    let state = replica.state().map_err(|error| error.to_string())?;
    if state.leads {
        return answer(inner, request).await;
    }
    let none = "no leader of the map is known at this node: ask again, or another node";
    let leader = state.leader.ok_or(none)?;
    let map = inner.map().ok_or("this node has no map yet: ask again")?;
    let node = map.node_of_replica(leader).ok_or(none)?.number;
    let call = Call {
        node,
        group: MAP_GROUP,
        from: replica.id(),
        to: leader,
        request: Request::ChangeMap(request.clone()),
        within: inner.options.times.command,
    };
    match inner.peers().call(call).await {
        Ok(answer) => changed(answer),
        // An older version ends the connection when it is asked this.
        Err(error) if error.may_be_done() && matches!(request, MapRequest::Finalize(_)) => Err(format!(
            "node {node}, which leads the map, does not answer, or is of an older version: run this version on all nodes, \
             and ask again"
        )),
        // Another node may reach it, or there is another leader soon.
        Err(error) => Err(format!(
            "node {node}, which leads the map, does not answer this node ({error}): ask again"
        )),
    }
}

/// Changes the map, on the node of the leader of group 0; what is asked of each node is answered on each.
pub(super) async fn answer(inner: &ClusterInner, request: MapRequest) -> Result<(), String> {
    match request {
        MapRequest::Speaks(_) | MapRequest::Note(_) => return levels::answer(inner, &request).await,
        MapRequest::AcceptLoss => {
            loss_requests::answer(inner);
            return Ok(());
        }
        MapRequest::Layout { of, layout } => return layout_requests::answer(inner, of, layout).await,
        _ => {}
    }
    let replica = inner.map_replica().filter(|replica| leads(replica));
    let Some(replica) = replica else {
        return Err("this node does not lead the map's group any more: ask again".to_owned());
    };
    if let MapRequest::Hangs { group, changed } = request {
        inner.hanging.lock().insert((group, changed));
    }
    if let MapRequest::Finalize(level) = request {
        return levels::finalize(inner, &replica, level).await;
    }
    let rule = move |map: Option<&Map>| match map {
        Some(map) => Ok(((), changes(map, &request)?)),
        None => Err("the cluster has no map yet: ask again".to_owned()),
    };
    decided(change(&replica, rule).await)
}

fn leads(replica: &Replica) -> bool {
    replica.state().is_ok_and(|state| state.leads)
}

fn changes(map: &Map, request: &MapRequest) -> Result<Option<map::Changes>, String> {
    let (node, role) = match request {
        MapRequest::Moved {
            group,
            replicas,
            changed,
        } => {
            let moved = Moved {
                group: *group,
                replicas: replicas.iter().copied().collect(),
                changed: *changed,
            };
            return map::moved(map, &moved).map(Some);
        }
        MapRequest::Describe { node, site } => return map::describe(map, *node, site),
        MapRequest::IsUnchanged { group, changed } | MapRequest::Hangs { group, changed } => {
            return map::unchanged(map, *group, *changed).map(|_| None);
        }
        MapRequest::DrainDisk { node, disk } => return map::set_disk(map, *node, *disk, true),
        MapRequest::ServeDisk { node, disk } => return map::set_disk(map, *node, *disk, false),
        MapRequest::Split(first) => return map::split(map, *first),
        MapRequest::HasSplit { group, changed } => return map::has_split(map, *group, *changed),
        MapRequest::Duplicate(target) => return map::duplicate(map, target),
        MapRequest::EndDuplication(name) => return map::end_duplication(map, name),
        MapRequest::Receive(from) => return map::receive(map, from),
        MapRequest::PauseDuplication(name) => return map::pause_duplication(map, name),
        MapRequest::ResumeDuplication(name) => return map::resume_duplication(map, name),
        MapRequest::Speaks(_)
        | MapRequest::Note(_)
        | MapRequest::Finalize(_)
        | MapRequest::Layout { .. }
        | MapRequest::AcceptLoss => return Ok(None),
        MapRequest::Serve(node) => (node, NodeRole::Serves),
        MapRequest::Drain(node) => (node, NodeRole::Drains),
        MapRequest::Remove(node) => (node, NodeRole::Leaves { to: None }),
        MapRequest::Replace { node, by } => (node, NodeRole::Leaves { to: Some(*by) }),
    };
    map::set_role(map, *node, role)
}
