//! Following the map: after each change the node has the peers, the replicas, each made once, and the routes that
//! the map gives it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::time::{Instant, sleep, sleep_until};

use crate::blocking::blocking;
use crate::ids::{GroupId, ReplicaId};
use crate::map::{Has, MAP_GROUP, Map, MapError, MapMember, PartitionRecord, is_made_by_split};
use crate::node::NodeError;
use crate::node::changing::{members, row};
use crate::node::routing::Routing;
use crate::node::shared::ClusterInner;
use crate::raft::{AppliedRows, Member, Replica, ReplicaError, ReplicaState};
use crate::raftlog::StoreError;
use crate::replica_store::stays_free;

/// So many replicas are made at a time.
const MADE_AT_A_TIME: usize = 32;
/// The pause before what could not be done is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Follows the map until the node ends.
pub(super) async fn follow(inner: Arc<ClusterInner>) {
    let mut ended_at_once = false;
    loop {
        match ensure_map_replica(&inner).await {
            Ok(replica) => {
                inner.report("the map's group", None);
                let began = Instant::now();
                let ended = follow_replica(&inner, &replica).await;
                // One that was just made does not run for a moment.
                if std::mem::replace(&mut ended_at_once, began.elapsed() < AGAIN) || !ended_at_once {
                    inner.report("the map's group", Some(ended.to_string()));
                }
            }
            Err(problem) => inner.report("the map's group", Some(problem)),
        }
        sleep(AGAIN).await;
    }
}

async fn follow_replica(inner: &Arc<ClusterInner>, replica: &Replica) -> ReplicaError {
    let mut known: Option<ReplicaState> = None;
    // Whether something that the map asks for is still to be done, and when that is tried again.
    let mut is_behind = true;
    let mut again_at = Instant::now();
    loop {
        let state = tokio::select! {
            changed = replica.state_other_than(known.as_ref()) => changed,
            // What is known is looked at again.
            () = sleep_until(again_at), if is_behind => replica.state(),
            () = inner.node.made(), if !is_behind => {
                // A split may have put a replica here that the map has elsewhere by now.
                is_behind = has_what_moved_away(inner);
                continue;
            }
        };
        let state = match state {
            Ok(state) => state,
            Err(error) => return error,
        };
        let applied = known.as_ref().and_then(|known| known.applied);
        if known.is_none() || applied != state.applied || is_behind {
            is_behind = !catch_up(inner, replica).await;
            again_at = Instant::now() + AGAIN;
        }
        known = Some(state);
    }
}

/// Reads the map, if it has changed, and does what it asks for; says whether all of it is done.
async fn catch_up(inner: &Arc<ClusterInner>, replica: &Replica) -> bool {
    let rows = match replica.applied_rows() {
        Ok(rows) => rows,
        Err(_) => return false,
    };
    let epoch = inner.map().map(|map| map.cluster.epoch);
    let read = blocking(move || read(&rows, epoch)).await;
    let problem = match read {
        Ok(Some(map)) => {
            inner.report("the map", None);
            inner.peers().set_level(map.cluster.level);
            inner.map.send_replace(Some(Arc::new(map)));
            None
        }
        Ok(None) => None,
        Err(problem) => Some(problem),
    };
    if let Some(problem) = problem {
        inner.report("the map", Some(problem));
        return false;
    }
    match inner.map() {
        Some(map) => obey(inner, &map).await,
        None => true,
    }
}

/// The map, if it has another epoch than the one that is known.
fn read(rows: &AppliedRows, epoch: Option<u64>) -> Result<Option<Map>, String> {
    enum UnreadTable {
        Table(collie_db::Error),
        Map(MapError),
    }
    impl From<MapError> for UnreadTable {
        fn from(error: MapError) -> Self {
            Self::Map(error)
        }
    }
    let get = |key| rows.get(&row(key)).map_err(UnreadTable::Table);
    let now = Map::read_epoch(get).and_then(|now| match now == epoch {
        true => Ok(None),
        false => Map::read(get),
    });
    now.map_err(|error| match error {
        UnreadTable::Table(error) => error.to_string(),
        UnreadTable::Map(error) => error.to_string(),
    })
}

async fn obey(inner: &Arc<ClusterInner>, map: &Arc<Map>) -> bool {
    let own = inner.number();
    if !map.nodes.contains_key(&own) {
        let problem = (own < map.cluster.next_node).then(|| {
            format!("node {own} was removed from the cluster: stop it, and let it join anew with an empty directory")
        });
        inner.report("this node", problem);
        return true;
    }
    inner.report("this node", None);
    inner.forget_what_the_map_has(map);
    let is_named = map.named();
    inner.forget_replicas(|id| is_named(id) || inner.node.replica(id).is_some());
    let mut knows_all = true;
    for node in map.nodes.values().filter(|node| node.number != own) {
        let problem = inner.node.set_peer(node.number, inner.address_of(node)).err();
        knows_all &= problem.is_none();
        let problem = problem.map(|error| error.to_string());
        inner.report(&format!("node {}", node.number), problem);
    }
    for number in (1..map.cluster.next_node).filter(|number| !map.nodes.contains_key(number)) {
        inner.peers().remove_peer(number);
    }
    route(inner, map);
    let here = map.partitions.values().flat_map(|partition| {
        let members = partition.members_on(own);
        let missing = members.filter(|member| is_to_be_made(inner, partition, member.replica));
        missing.map(move |member| (partition, member))
    });
    let removed = remove_what_moved_away(inner, map).await && remove_strays(inner, map).await;
    let all: Vec<_> = here
        .map(|(partition, member)| make(Arc::clone(inner), Arc::clone(map), partition.clone(), member))
        .collect();
    let made: Vec<bool> = stream::iter(all).buffer_unordered(MADE_AT_A_TIME).collect().await;
    knows_all && removed && made.into_iter().all(|done| done)
}

fn has_what_moved_away(inner: &ClusterInner) -> bool {
    let Some(map) = inner.map() else { return false };
    let mut replicas = inner.node.replicas().into_iter();
    map.nodes.contains_key(&inner.number())
        && replicas.any(|replica| map.has_moved_away((replica.group(), replica.id()), inner.number()))
}

/// Removes tables that splits have left of replicas that are not to be here any more. Says whether that is done.
async fn remove_strays(inner: &ClusterInner, map: &Map) -> bool {
    let removed = inner.node.remove_strays(map.named()).await;
    let is_done = removed.is_ok();
    inner.report("tables of replicas", removed.err().map(|error| error.to_string()));
    is_done
}

/// Removes the replicas on this node that the map has elsewhere by now. Says whether that is done.
async fn remove_what_moved_away(inner: &Arc<ClusterInner>, map: &Map) -> bool {
    let mut is_done = true;
    for replica in inner.node.replicas() {
        let (id, group) = (replica.id(), replica.group());
        if !map.has_moved_away((group, id), inner.number()) {
            continue;
        }
        // Nothing routes to it any more.
        drop(replica);
        let removed = inner.node.remove(id).await;
        if removed.is_ok() {
            tracing::info!(replica = id, group, "a replica has moved away, and is removed");
        }
        is_done &= removed.is_ok();
        let problem = removed
            .err()
            .map(|error| format!("it has moved away, and cannot be removed: {error}"));
        inner.report(&format!("replica {id}"), problem);
    }
    is_done
}

/// Whether a replica is not there, or was kept by a stop from beginning its group.
fn is_to_be_made(inner: &ClusterInner, partition: &PartitionRecord, id: u64) -> bool {
    let Some(replica) = inner.node.replica(id) else {
        return true;
    };
    if partition.from != 0 && !inner.noted_made.lock().contains(&id) {
        return true;
    }
    let begun = || replica.state().is_ok_and(|state| state.last.is_some());
    partition.begins == id && !begun()
}

async fn make(
    inner: Arc<ClusterInner>,
    map: Arc<Map>,
    partition: PartitionRecord,
    member: MapMember,
) -> bool {
    // One that takes the place of another one gets its tables from the leader.
    let is_first = partition.members.contains(&member);
    if is_first && inner.node.replica(member.replica).is_none() && makes_it_itself(&inner, &map, &partition) {
        return false;
    }
    let about = format!("replica {}", member.replica);
    // It is shown as that.
    let mut quarantined = inner.node.quarantined().into_iter();
    if quarantined.any(|lost| lost.replica == member.replica) {
        return true;
    }
    if !is_first && let Err(problem) = check_room(&inner, partition.group, member).await {
        inner.report(&about, Some(problem));
        return false;
    }
    let begins = partition.begins == member.replica;
    let all = begins.then(|| members(&map, &partition));
    let made = ensure(&inner, partition.group, (member.replica, member.disk), all).await;
    match made {
        Ok(_) => {
            inner.noted_made.lock().insert(member.replica);
            inner.report(&about, None);
            route(&inner, &map);
            true
        }
        Err(problem) => {
            inner.report(&about, Some(problem));
            false
        }
    }
}

/// Whether the disk that a replica is to begin on has room for it beside what stays free. Of what moves between disks of
/// this node it is known how much that is.
async fn check_room(inner: &ClusterInner, group: GroupId, member: MapMember) -> Result<(), String> {
    if inner.node.replica(member.replica).is_some() {
        return Ok(());
    }
    let here = inner.node.replicas().into_iter();
    let here = here.filter(|replica| replica.group() == group);
    let bytes = here.map(|replica| replica.table_bytes()).max().unwrap_or(0);
    let (homes, disk) = (inner.node.homes(), member.disk);
    let has_room = move || {
        let dir = homes.disks.get(disk as usize);
        dir.is_none_or(|dir| stays_free(&*homes.device, dir, bytes))
    };
    match blocking(has_room).await {
        true => Ok(()),
        false => {
            let tables = match bytes {
                0 => "tables".to_owned(),
                bytes => format!("{bytes} bytes"),
            };
            Err(format!(
                "it is to begin on disk {disk}, which has no room for its {tables}, as a twentieth is to stay free: make \
                 room there; it goes on by itself"
            ))
        }
    }
}

/// Whether a split makes the replica of a partition here.
fn makes_it_itself(inner: &ClusterInner, map: &Map, partition: &PartitionRecord) -> bool {
    let has = |group, own: Option<ReplicaId>| {
        let all = inner.node.replicas().into_iter();
        let mut all: Vec<_> = all.filter(|replica| replica.group() == group).collect();
        // Of two the one that goes: the other one may begin behind the split.
        all.sort_by_key(|replica| Some(replica.id()) != own);
        if let Some(replica) = all.first() {
            return match replica.state() {
                Err(ReplicaError::Quarantined { .. }) => Has::None,
                _ => Has::Replica(replica.slots()),
            };
        }
        // Its log may have had no room to be opened.
        let mut unopened = inner.node.unopened().into_iter();
        match unopened.any(|(replica, _)| Some(replica) == own) {
            true => Has::Replica(None),
            false => Has::None,
        }
    };
    is_made_by_split(map, partition, inner.number(), &has)
}

/// Routes by the map, and by the replicas that are here.
fn route(inner: &Arc<ClusterInner>, map: &Arc<Map>) {
    let routing = Routing::of(map, (inner.number(), &inner.node), &inner.routing.load());
    inner.routing.store(Arc::new(routing));
    inner.changed();
}

/// This node's replica of a group: the one that is there, or a new one. Where it is to, it begins the group with the
/// members `begin`, if it has not begun. May be called again after any stop.
pub(super) async fn ensure(
    inner: &ClusterInner,
    group: GroupId,
    (id, disk): (ReplicaId, u32),
    begin: Option<BTreeMap<ReplicaId, Member>>,
) -> Result<Arc<Replica>, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let replica = match inner.node.replica(id) {
        Some(replica) => replica,
        None => make_replica(inner, group, id, disk).await?,
    };
    let store = inner.store.clone();
    let noted = blocking(move || match store.was_made(id)? {
        true => Ok(()),
        false => store.set_made(id),
    });
    noted.await.map_err(|error| text(&error))?;
    if let Some(begin) = begin {
        replica.opened().await.map_err(|error| text(&error))?;
        replica.begin(begin).await.map_err(|error| text(&error))?;
    }
    Ok(replica)
}

async fn make_replica(
    inner: &ClusterInner,
    group: GroupId,
    id: ReplicaId,
    disk: u32,
) -> Result<Arc<Replica>, String> {
    if let Some((_, error)) = inner
        .node
        .unopened()
        .into_iter()
        .find(|(replica, _)| *replica == id)
    {
        return Err(format!("its log is not open: {error}"));
    }
    let store = inner.store.clone();
    let was_made = blocking(move || store.was_made(id)).await;
    if was_made.map_err(|error| error.to_string())? {
        let removed = inner.node.remembers_removal_of(id);
        return Err(match removed {
            true => StoreError::Removed { replica: id }.to_string(),
            false => format!(
                "replica {id} of group {group} was made on this node, and disk {disk} does not have it any more. It may \
                 have voted, so it is not made again: `collie cluster remove {}`, and let the node join anew, empty",
                inner.number()
            ),
        });
    }
    // Held until it is there: a disk with it is not noted to be empty.
    let layouts = inner.node.layouts();
    let making = inner.disks.make_on(&inner.store, (layouts.absent(), disk));
    let _making = making.await?;
    match inner.node.create(group, id, disk as usize).await {
        Ok(replica) => Ok(replica),
        Err(error @ NodeError::Store(StoreError::Exists { .. })) => {
            inner.node.replica(id).ok_or_else(|| error.to_string())
        }
        Err(error) => Err(error.to_string()),
    }
}

/// This node's replica of group 0. The node that made the cluster begins the group, alone.
pub(super) async fn ensure_map_replica(inner: &ClusterInner) -> Result<Arc<Replica>, String> {
    let id = inner.identity.replica;
    let alone = inner.founding().map(|founding| {
        let member = Member {
            node: inner.number(),
            disk: 0,
            address: founding.first.peer.to_string(),
        };
        BTreeMap::from([(id, member)])
    });
    ensure(inner, MAP_GROUP, (id, 0), alone).await
}
