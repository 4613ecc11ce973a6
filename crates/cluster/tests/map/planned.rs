//! Which replicas move where, by the rules alone: without nodes.

use std::collections::{BTreeMap, BTreeSet};

use collie_cluster::testing::map::{
    Changes, Has, Map, MapError, MapMember, Moved, NodeRole, Nodes, PartitionRecord, Stuck, has_split,
    is_made_by_split, leave, moved, plan, set_disk, set_role, split, stuck, voters,
};
use proptest::prelude::*;

use super::rules::{founded, founding, joined, placed};

/// Partitions on the first nodes, of so many.
pub(super) fn map(replicas: u8, partitions: u16, first: u8, nodes: u8) -> Map {
    let mut map = joined(founded(&founding(replicas, partitions, 3)).0, 2..=first);
    map = placed(map);
    joined(map, first + 1..=nodes)
}

pub(super) fn nodes(map: &Map, gone: &[u64], may_spread: bool) -> Nodes {
    let ready = map.nodes.keys().copied().filter(|node| !gone.contains(node));
    Nodes {
        ready: ready.collect(),
        gone: gone.iter().copied().collect(),
        hanging: BTreeSet::new(),
        settling: BTreeSet::new(),
        may_spread,
    }
}

pub(super) fn given(map: Map, node: u64, role: NodeRole) -> Map {
    let changes = set_role(&map, node, role).unwrap().unwrap();
    map.with(changes)
}

pub(super) fn end(map: Map, group: u64) -> Map {
    let changes = moved(&map, &done(&map, group)).unwrap();
    map.with(changes)
}

/// Raft has brought a group to what it is to have.
fn done(map: &Map, group: u64) -> Moved {
    let partition = &map.partitions[&group];
    Moved {
        group,
        replicas: partition.wanted.iter().map(|member| member.replica).collect(),
        changed: partition.changed,
    }
}

pub(super) fn begun(map: &Map, nodes: &Nodes) -> Map {
    map.clone().with(plan(map, nodes).unwrap())
}

/// The nodes that a partition is to be on.
fn wanted_on(map: &Map, group: u64) -> BTreeSet<u64> {
    let lasting = map.partitions[&group].lasting().iter();
    lasting.map(|member| member.node).collect()
}

pub(super) fn moving(map: &Map) -> Vec<u64> {
    let moving = map
        .partitions
        .values()
        .filter(|partition| !partition.wanted.is_empty());
    moving.map(|partition| partition.group).collect()
}

/// Lets all moves end that begin, one after the other.
pub(super) fn settle(mut map: Map, nodes: &Nodes) -> Map {
    for _ in 0..10_000 {
        if let Some(changes) = plan(&map, nodes) {
            map = map.with(changes);
        }
        match moving(&map).first() {
            Some(group) => map = end(map, *group),
            None => return map,
        }
    }
    panic!("moves never end: {map:#?}")
}

fn on_node(map: &Map) -> BTreeMap<u64, usize> {
    let mut counts: BTreeMap<_, _> = map.nodes.keys().map(|node| (*node, 0)).collect();
    for member in map.partitions.values().flat_map(|partition| &partition.members) {
        *counts.get_mut(&member.node).unwrap() += 1;
    }
    counts
}

#[test]
fn replicas_of_a_node_that_drains_join_others_two_at_a_time() {
    let before = map(3, 8, 3, 4);
    let now = nodes(&before, &[], false);
    assert_eq!(plan(&before, &now), None);
    let draining = given(before.clone(), 2, NodeRole::Drains);
    let first = draining.clone().with(plan(&draining, &now).unwrap());
    assert_eq!(moving(&first), [1, 2], "two at a time join node 4");
    let partition = &first.partitions[&1];
    assert_eq!(partition.members, before.partitions[&1].members);
    let joining = partition.wanted.iter().find(|member| member.node == 4).unwrap();
    assert_eq!(joining.replica, before.cluster.next_replica, "under a new id");
    assert_eq!(plan(&first, &now), None, "until one has joined");
    let after = settle(first, &now);
    assert_eq!(on_node(&after), BTreeMap::from([(1, 8), (2, 0), (3, 8), (4, 8)]));
    // Begun is a group by a replica of its first ones alone, also when that has left.
    for (group, partition) in &after.partitions {
        assert_eq!(partition.begins, before.partitions[group].begins);
    }
}

#[test]
fn replicas_of_a_node_that_is_gone_move_where_others_are() {
    let three = map(3, 4, 3, 3);
    let gone = nodes(&three, &[3], true);
    assert_eq!(plan(&three, &gone), None);
    assert_eq!(stuck(&three, &gone).nodes, BTreeSet::from([3]));
    assert_eq!(stuck(&three, &nodes(&three, &[], true)), Stuck::default());
    let four = map(3, 4, 3, 4);
    let gone = nodes(&four, &[3], true);
    assert_eq!(stuck(&four, &gone), Stuck::default(), "they move");
    let after = settle(four, &gone);
    assert_eq!(on_node(&after), BTreeMap::from([(1, 4), (2, 4), (3, 0), (4, 4)]));
}

#[test]
fn a_move_to_a_gone_node_goes_to_another_or_is_taken_back() {
    let five = map(3, 2, 3, 5);
    let draining = given(five, 1, NodeRole::Drains);
    let begun = draining
        .clone()
        .with(plan(&draining, &nodes(&draining, &[], false)).unwrap());
    let to: BTreeSet<u64> = begun.partitions[&1]
        .wanted
        .iter()
        .map(|member| member.node)
        .collect();
    assert!(to.contains(&4), "{to:?}");
    let turned = begun
        .clone()
        .with(plan(&begun, &nodes(&begun, &[4], false)).unwrap());
    let partition = &turned.partitions[&1];
    let to: BTreeSet<u64> = partition.wanted.iter().map(|member| member.node).collect();
    assert_eq!(to, BTreeSet::from([2, 3, 5]));
    let away = begun.partitions[&1].member_on(4).unwrap().replica;
    assert!(!turned.has_moved_away((1, away), 4), "raft may have taken it in");
    let ended = end(turned.clone(), 1);
    assert!(ended.has_moved_away((1, away), 4));
    let ids = |map: &Map| {
        map.partitions[&1]
            .wanted
            .iter()
            .map(|member| member.replica)
            .max()
    };
    assert!(ids(&turned) > ids(&begun), "never under an id that was given out");
    // None is left.
    let back = begun
        .clone()
        .with(plan(&begun, &nodes(&begun, &[4, 5], false)).unwrap());
    let partition = &back.partitions[&1];
    assert_eq!(partition.wanted, partition.members);
    assert_eq!(moving(&end(back, 1)), [2], "raft is brought back first");
}

#[test]
fn a_replica_has_moved_away_by_no_map_that_is_older() {
    let before = map(3, 1, 3, 4);
    let now = nodes(&before, &[], false);
    let draining = given(before.clone(), 1, NodeRole::Drains);
    let begun = draining.clone().with(plan(&draining, &now).unwrap());
    let done = end(begun.clone(), 1);
    let old = before.partitions[&1].member_on(1).unwrap().replica;
    let new = begun.partitions[&1].member_on(4).unwrap().replica;
    let away = |map: &Map| [(old, 1), (new, 4)].map(|(id, node)| map.has_moved_away((1, id), node));
    assert_eq!(
        away(&draining),
        [false, false],
        "as after a restart: it knows nothing of the new one"
    );
    assert_eq!(away(&begun), [false, false]);
    assert_eq!(away(&done), [true, false]);
    assert!(!done.has_moved_away((0, 1), 1), "each node has one of the map");
}

#[test]
fn replicas_spread_over_the_nodes_where_nothing_else_moves() {
    let five = map(3, 10, 3, 5);
    assert_eq!(plan(&five, &nodes(&five, &[], false)), None);
    let after = settle(five.clone(), &nodes(&five, &[], true));
    assert_eq!(
        on_node(&after),
        BTreeMap::from([(1, 6), (2, 6), (3, 6), (4, 6), (5, 6)])
    );
}

#[test]
fn replicas_of_a_partition_go_to_different_zones() {
    let mut four = map(2, 6, 2, 4);
    for (number, node) in &mut four.nodes {
        node.zone = if *number < 3 { "west" } else { "east" }.to_owned();
    }
    let after = settle(four.clone(), &nodes(&four, &[], true));
    for partition in after.partitions.values() {
        let zones = partition
            .members
            .iter()
            .map(|member| &after.nodes[&member.node].zone);
        assert_eq!(zones.collect::<BTreeSet<_>>().len(), 2, "{partition:?}");
    }
    let counts = on_node(&after);
    assert!(counts.values().all(|count| *count == 3), "{counts:?}");
}

#[test]
fn a_node_leaves_the_map_only_when_it_has_nothing() {
    let four = map(3, 2, 3, 4);
    assert_eq!(leave(&four, 4), None, "it is not to leave");
    let leaving = given(four, 3, NodeRole::Leaves { to: Some(4) });
    assert_eq!(leave(&leaving, 3), None, "it has replicas");
    let after = settle(leaving.clone(), &nodes(&leaving, &[], false));
    let after = after.clone().with(leave(&after, 3).unwrap());
    assert_eq!(after.nodes.keys().copied().collect::<Vec<_>>(), [1, 2, 4]);
}

#[test]
fn a_move_is_over_only_with_the_replicas_that_are_wanted() {
    let four = map(3, 1, 3, 4);
    let draining = given(four, 1, NodeRole::Drains);
    let begun = draining
        .clone()
        .with(plan(&draining, &nodes(&draining, &[], false)).unwrap());
    let members = begun.partitions[&1].members.iter();
    let other = Moved {
        replicas: members.map(|member| member.replica).collect(),
        ..done(&begun, 1)
    };
    let refused = moved(&begun, &other).unwrap_err();
    assert!(refused.contains("is to have the replicas"), "{refused}");
    let said = done(&begun, 1);
    let after = begun.clone().with(moved(&begun, &said).unwrap());
    assert!(after.partitions[&1].wanted.is_empty());
    let refused = moved(&after, &said).unwrap_err();
    assert!(refused.contains("was changed with epoch"), "{refused}");
}

#[test]
fn a_word_that_comes_late_ends_no_later_move() {
    let five = map(1, 1, 1, 3);
    let draining = given(five, 1, NodeRole::Drains);
    let (all, none) = (nodes(&draining, &[], false), nodes(&draining, &[2, 3], false));
    // Twice it begins, and is taken back: the group has what it had, each time.
    let back = begun(&begun(&draining, &all), &none);
    let first = done(&back, 1);
    let back = begun(&begun(&end(back, 1), &all), &none);
    assert_eq!(done(&back, 1).replicas, first.replicas);
    let refused = moved(&back, &first).unwrap_err();
    assert!(refused.contains("was changed with epoch"), "{refused}");
}

#[test]
fn a_move_that_hangs_goes_to_another_node_if_there_is_any() {
    let five = map(3, 1, 3, 5);
    let draining = given(five, 1, NodeRole::Drains);
    let first = begun(&draining, &nodes(&draining, &[], false));
    assert_eq!(wanted_on(&first, 1), BTreeSet::from([2, 3, 4]));
    let hangs = |map: &Map, gone: &[u64]| Nodes {
        hanging: BTreeSet::from([(1, map.partitions[&1].changed)]),
        ..nodes(map, gone, false)
    };
    assert_eq!(plan(&first, &hangs(&first, &[5])), None, "it may go on");
    let second = begun(&first, &hangs(&first, &[]));
    assert_eq!(wanted_on(&second, 1), BTreeSet::from([2, 3, 5]));
    assert_eq!(plan(&second, &hangs(&first, &[])), None, "this one does not hang");
    let third = begun(&second, &hangs(&second, &[]));
    assert_eq!(wanted_on(&third, 1), BTreeSet::from([2, 3, 4]));
    // To one node alone it goes to no other.
    let replacing = given(map(3, 1, 3, 5), 1, NodeRole::Leaves { to: Some(5) });
    let first = begun(&replacing, &nodes(&replacing, &[], false));
    assert_eq!(wanted_on(&first, 1), BTreeSet::from([2, 3, 5]));
    assert_eq!(plan(&first, &hangs(&first, &[])), None);
    let back = begun(&first, &nodes(&first, &[5], false));
    assert_eq!(wanted_on(&back, 1), BTreeSet::from([1, 2, 3]));
    let ended = end(back, 1);
    let now = nodes(&ended, &[5], false);
    assert_eq!(plan(&ended, &now), None);
    assert_eq!(stuck(&ended, &now).replaced, BTreeMap::from([(1, 5)]));
}

#[test]
fn what_is_taken_back_goes_on_where_another_node_is_gone() {
    let five = map(3, 1, 3, 5);
    let draining = given(five, 1, NodeRole::Drains);
    let first = begun(&draining, &nodes(&draining, &[5], false));
    let back = begun(&first, &nodes(&first, &[4, 5], false));
    assert_eq!(wanted_on(&back, 1), BTreeSet::from([1, 2, 3]));
    let on = begun(&back, &nodes(&back, &[3, 4], false));
    assert_eq!(wanted_on(&on, 1), BTreeSet::from([1, 2, 5]), "what is gone first");
}

#[test]
fn a_move_waits_for_a_node_that_has_enough_to_do() {
    let five = map(3, 8, 3, 5);
    let draining = given(five, 1, NodeRole::Drains);
    let first = begun(&draining, &nodes(&draining, &[], false));
    assert_eq!(moving(&first).len(), 4, "two at each new node");
    // Those of node 4 could go to node 5, once it has less to do.
    assert_eq!(plan(&first, &nodes(&first, &[4], false)), None);
    let to = |map: &Map, node| {
        let groups = moving(map).into_iter();
        groups
            .filter(|group| wanted_on(map, *group).contains(&node))
            .collect::<Vec<_>>()
    };
    let done = to(&first, 5)[0];
    let next = end(first.clone(), done);
    let turned = begun(&next, &nodes(&next, &[4], false));
    assert_eq!(to(&turned, 5).len(), 2);
    assert_eq!(to(&turned, 4).len(), 1);
}

#[test]
fn partitions_without_a_majority_keep_no_others_from_moving() {
    // Partitions 1 and 4 are on nodes 1 to 3, 2 and 5 on 2 to 4, and so on.
    let five = map(3, 10, 5, 6);
    let draining = given(five.clone(), 6, NodeRole::Drains);
    // While moves to a node begin, two of those that stay are lost.
    let gone = nodes(&draining, &[1, 2], true);
    let lost: BTreeSet<u64> = draining
        .partitions
        .values()
        .filter(|partition| partition.member_on(1).is_some() && partition.member_on(2).is_some())
        .map(|partition| partition.group)
        .collect();
    assert_eq!(stuck(&draining, &gone).lost, lost);
    let serving = given(draining, 6, NodeRole::Serves);
    let mut after = serving;
    for _ in 0..100 {
        let Some(changes) = plan(&after, &gone) else { break };
        after = after.with(changes);
        for group in moving(&after) {
            assert!(!lost.contains(&group), "raft can change nothing there");
            after = end(after, group);
        }
    }
    let on_gone = |group: u64| wanted_on(&after, group).iter().any(|node| *node < 3);
    let left = after.partitions.keys().copied().filter(|group| on_gone(*group));
    assert_eq!(left.collect::<BTreeSet<_>>(), lost, "all others have moved");
    // One that was lost while it moved takes no place of others.
    let replacing = given(five, 1, NodeRole::Leaves { to: Some(6) });
    let begun = begun(&replacing, &nodes(&replacing, &[], false));
    let moving = moving(&begun);
    assert_eq!(moving.len(), 2, "two at a time");
    let mut gone = wanted_on(&begun, moving[0]);
    gone.remove(&6);
    let now = nodes(&begun, &gone.into_iter().collect::<Vec<_>>(), false);
    assert!(stuck(&begun, &now).lost.contains(&moving[0]));
    let on = plan(&begun, &now).unwrap().partitions;
    assert!(on.iter().all(|partition| partition.group != moving[0]));
    assert!(on.iter().any(|partition| partition.member_on(6).is_some()));
}

#[test]
fn a_partition_that_is_being_split_moves_when_it_has_been() {
    let before = map(3, 2, 3, 4);
    let now = nodes(&before, &[], false);
    let splitting = before.clone().with(split(&before, 5000).unwrap().unwrap());
    assert_eq!(split(&splitting, 5000), Ok(None));
    assert!(
        split(&splitting, 5001)
            .unwrap_err()
            .contains("is being split at slot 5000")
    );
    let partition = splitting.partitions[&1].clone();
    let new = partition.split.clone().unwrap();
    assert_eq!((new.group, new.first), (3, 5000));
    let draining = begun(&given(splitting, 2, NodeRole::Drains), &now);
    assert_eq!(moving(&draining), [2], "the other one");
    assert!(
        split(&draining, 12_000)
            .unwrap_err()
            .contains("move: ask again when they have")
    );
    assert!(has_split(&draining, 2, draining.partitions[&2].changed).is_err());
    let done = draining
        .clone()
        .with(has_split(&draining, 1, partition.changed).unwrap().unwrap());
    let slots = |group| done.partitions[&group].slots();
    assert_eq!(
        [slots(1), slots(3), slots(2)],
        [0..=4999, 5000..=8191, 8192..=16_383]
    );
    let places = |members: &[MapMember]| members.iter().map(|one| (one.node, one.disk)).collect::<Vec<_>>();
    assert_eq!(places(&done.partitions[&3].members), places(&partition.members));
    assert_eq!(done.partitions[&3].begins, 0, "none begins it alone");
    // Said again, and by a leader that knows an older map.
    assert_eq!(has_split(&done, 1, partition.changed), Ok(None));
    let after = settle(done, &now);
    assert_eq!(on_node(&after)[&2], 0);
    assert!(has_split(&after, 1, partition.changed).is_err());
}

/// A map in which group 1 has just been split, into group 2 beside it, and another node can take replicas.
fn just_split() -> Map {
    let map = map(3, 1, 3, 4);
    let map = map.clone().with(split(&map, 5000).unwrap().unwrap());
    let changed = map.partitions[&1].changed;
    map.clone().with(has_split(&map, 1, changed).unwrap().unwrap())
}

#[test]
fn both_groups_of_a_split_stay_until_all_have_the_rows() {
    let map = just_split();
    let settling = |gone: &[u64], may_spread| Nodes {
        settling: BTreeSet::from([2]),
        ..nodes(&map, gone, may_spread)
    };
    assert!(plan(&map, &nodes(&map, &[], true)).is_some());
    assert_eq!(plan(&map, &settling(&[], true)), None);
    let draining = given(map.clone(), 1, NodeRole::Drains);
    assert_eq!(plan(&draining, &settling(&[], false)), None);
    assert_eq!(
        moving(&begun(&draining, &nodes(&map, &[], false))),
        [1, 2],
        "waited long enough"
    );
    let gone = begun(&map, &settling(&[3], false));
    assert_eq!(
        moving(&gone),
        [1, 2],
        "what is on a node that is gone cannot have them"
    );
    assert_eq!(
        end(gone, 2).partitions[&2].from,
        1,
        "those that stayed may lack them"
    );
    let all = Moved {
        group: 2,
        replicas: map.partitions[&2]
            .members
            .iter()
            .map(|member| member.replica)
            .collect(),
        changed: map.partitions[&2].changed,
    };
    let settled = draining.clone().with(moved(&draining, &all).unwrap());
    assert_eq!(settled.partitions[&2].members, map.partitions[&2].members);
    assert_eq!(moving(&begun(&settled, &settling(&[], false))), [1, 2]);
}

#[test]
fn a_split_makes_its_replica_where_one_is_yet_to_apply_it() {
    let map = just_split();
    // The new one is split again.
    let map = map.clone().with(split(&map, 10_000).unwrap().unwrap());
    let changed = map.partitions[&2].changed;
    let map = map.clone().with(has_split(&map, 2, changed).unwrap().unwrap());
    let is_made = |map: &Map, group: u64, node, has: &[(u64, Has)]| {
        let has = |group, own| {
            let found = has.iter().find(|(of, _)| *of == group);
            assert_eq!(own, map.partitions[&group].member_on(node).map(|own| own.replica));
            found.map_or(Has::None, |(_, has)| has.clone())
        };
        is_made_by_split(map, &map.partitions[&group], node, &has)
    };
    let all = Has::Replica(Some(0..=16_383));
    let past = Has::Replica(Some(0..=4999));
    assert!(is_made(&map, 2, 3, &[(1, all.clone())]));
    assert!(
        !is_made(&map, 2, 3, &[(1, past.clone())]),
        "tables of another replica came"
    );
    assert!(
        is_made(&map, 2, 3, &[(1, Has::Replica(None))]),
        "it is yet to be opened"
    );
    assert!(!is_made(&map, 2, 3, &[]), "it is lost");
    assert!(!is_made(&map, 1, 3, &[]), "of no split");
    assert!(
        is_made(&map, 3, 3, &[(1, all.clone())]),
        "by the one that is yet to be made"
    );
    assert!(
        !is_made(&map, 3, 3, &[(1, past.clone())]),
        "by one that is to be made empty"
    );
    assert!(is_made(
        &map,
        3,
        3,
        &[(1, past), (2, Has::Replica(Some(5000..=16_383)))]
    ));
    assert!(
        !is_made(&map, 3, 4, &[(1, all.clone())]),
        "that node has none of it"
    );
    // One that moves there comes by itself.
    let moving = begun(
        &given(map, 3, NodeRole::Drains),
        &nodes(&just_split(), &[], false),
    );
    assert!(moving.partitions[&2].member_on(4).is_some());
    assert!(!is_made(&moving, 2, 4, &[(1, all)]));
}

#[test]
fn replicas_are_named_that_are_or_are_to_be_somewhere() {
    let map = map(3, 1, 3, 4);
    let next = map.cluster.next_replica;
    let splitting = map.clone().with(split(&map, 5000).unwrap().unwrap());
    let named = splitting.named();
    let new = &splitting.partitions[&1].split.as_ref().unwrap().members;
    let members = splitting.partitions[&1].members.iter().chain(new);
    let of_map = splitting.nodes.values().map(|node| node.replica);
    for replica in members.map(|member| member.replica).chain(of_map) {
        assert!(named(replica), "{replica}");
    }
    assert!(named(next + 3), "an older map has nothing to say of it");
    let moving = begun(&given(map, 3, NodeRole::Drains), &nodes(&splitting, &[], false));
    let old = moving.partitions[&1].member_on(3).unwrap().replica;
    assert!(moving.named()(old) && moving.named()(next));
    let moved = end(moving, 1);
    assert!(!moved.named()(old) && moved.named()(next));
}

#[test]
fn a_cluster_has_no_more_partitions_than_it_may() {
    let mut map = map(1, 4095, 1, 1);
    let slots = |map: &Map| {
        let free = map
            .partitions
            .values()
            .filter(|one| one.split.is_none() && one.first < one.last);
        free.map(|one| one.last).collect::<Vec<_>>()
    };
    let first = slots(&map)[0];
    map = map.clone().with(split(&map, first).unwrap().unwrap());
    // What is being split counts.
    let next = slots(&map)[0];
    assert!(split(&map, next).unwrap_err().contains("has 4096 partitions"));
}

#[test]
fn nothing_moves_at_the_feature_level_of_earlier_versions() {
    let mut four = map(3, 2, 3, 4);
    four.cluster.level = 1;
    assert_eq!(plan(&four, &nodes(&four, &[3], true)), None);
    let refused = set_role(&four, 3, NodeRole::Drains).unwrap_err();
    assert!(refused.contains("feature level 1"), "{refused}");
    let rows = Map::rows(&Changes::of(&four)).unwrap();
    assert!(rows.iter().all(|(_, value)| value.as_ref().unwrap()[0] == 1));
}

#[test]
fn votes_of_nodes_that_leave_or_are_gone_go_to_others() {
    let five = map(3, 2, 3, 5);
    let set = |nodes: &[u64]| {
        let replica = |node: &u64| five.nodes[node].replica;
        nodes.iter().map(replica).collect::<BTreeSet<_>>()
    };
    let now = set(&[1, 2, 3]);
    assert_eq!(
        voters(&five, &now, &nodes(&five, &[2], false)),
        Some(set(&[1, 3, 4]))
    );
    assert_eq!(
        voters(&five, &now, &nodes(&five, &[2, 4, 5], false)),
        None,
        "none can take it"
    );
    let leaving = given(five.clone(), 1, NodeRole::Leaves { to: None });
    assert_eq!(
        voters(&leaving, &now, &nodes(&five, &[], false)),
        Some(set(&[2, 3, 4]))
    );
    // Not where those that are left could not decide anything, as one of two does not answer.
    assert_eq!(voters(&leaving, &now, &nodes(&five, &[2, 4, 5], false)), None);
    // It gives its vote up where no other node is ready, too: two votes are left.
    assert_eq!(
        voters(&leaving, &now, &nodes(&five, &[4, 5], false)),
        Some(set(&[2, 3]))
    );
    let draining = given(five.clone(), 1, NodeRole::Drains);
    assert_eq!(
        voters(&draining, &now, &nodes(&five, &[], false)),
        None,
        "it stays"
    );
}

#[derive(Debug, Clone)]
enum Step {
    Join,
    Role(u64, u8),
    Disk(u64, u32, bool),
    Plan(BTreeSet<u64>, bool),
    End(usize),
    Leave(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        1 => Just(Step::Join),
        2 => (1..9_u64, 0..4_u8).prop_map(|(node, role)| Step::Role(node, role)),
        2 => (1..9_u64, 0..3_u32, any::<bool>()).prop_map(|(node, disk, is)| Step::Disk(node, disk, is)),
        6 => (proptest::collection::btree_set(1..9_u64, 0..3), any::<bool>())
            .prop_map(|(gone, may_spread)| Step::Plan(gone, may_spread)),
        6 => (0..8_usize).prop_map(Step::End),
        1 => (1..9_u64).prop_map(Step::Leave),
    ];
    proptest::collection::vec(step, 0..80)
}

proptest! {
    /// Whatever happens, a partition changes one replica at a time, and all moves end once nothing
    /// happens any more.
    #[test]
    fn moves_change_one_replica_of_a_partition_at_a_time_and_end(
        replicas in 1..4_u8,
        steps in steps(),
    ) {
        let mut map = map(replicas, 6, replicas, replicas);
        let mut token = replicas;
        let mut given: BTreeSet<u64> = BTreeSet::new();
        for step in steps {
            let changes = match step {
                Step::Join if token < 8 => {
                    token += 1;
                    map = joined(map, token..=token);
                    None
                }
                Step::Join => None,
                Step::Role(node, role) => {
                    let role = match role {
                        0 => NodeRole::Drains,
                        1 => NodeRole::Leaves { to: None },
                        _ => NodeRole::Serves,
                    };
                    set_role(&map, node, role).unwrap_or(None)
                }
                Step::Disk(node, disk, drains) => set_disk(&map, node, disk, drains).unwrap_or(None),
                Step::Plan(gone, may_spread) => {
                    let gone: Vec<_> = gone.into_iter().collect();
                    plan(&map, &nodes(&map, &gone, may_spread))
                }
                Step::End(at) => {
                    if let Some(group) = moving(&map).get(at) {
                        map = end(map, *group);
                    }
                    None
                }
                Step::Leave(node) => leave(&map, node),
            };
            if let Some(changes) = changes {
                for PartitionRecord { group, members, wanted, .. } in &changes.partitions {
                    let before = &map.partitions[group];
                    prop_assert_eq!(members, &before.members);
                    let stay = wanted.iter().filter(|member| members.contains(member)).count();
                    prop_assert!(stay + 1 >= members.len(), "{:?} for {:?}", wanted, members);
                    prop_assert_eq!(wanted.len(), members.len());
                    for member in wanted.iter().filter(|member| !before.all().any(|old| old == **member)) {
                        prop_assert!(given.insert(member.replica), "each id once");
                    }
                }
                map = map.with(changes);
            }
            // As it is read: what is wrong with it would stop all nodes from following it.
            let rows: BTreeMap<_, _> = whole(&map);
            let read = Map::read(|key| Ok::<_, MapError>(rows.get(&key).cloned())).unwrap();
            prop_assert_eq!(read.as_ref(), Some(&map));
        }
        let all = nodes(&map, &[], true);
        let after = settle(map, &all);
        prop_assert_eq!(plan(&after, &all), None);
        super::disks::assert_none_is_on_drained_disks(&after);
    }
}

/// All rows of a map.
pub(super) fn whole(map: &Map) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let changes = Changes {
        cluster: map.cluster.clone(),
        nodes: map.nodes.values().cloned().collect(),
        removed: Vec::new(),
        partitions: map.partitions.values().cloned().collect(),
        duplications: None,
    };
    let rows = Map::rows(&changes).unwrap().into_iter();
    rows.map(|(key, value)| (key, value.unwrap())).collect()
}
