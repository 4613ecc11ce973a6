//! Replicas on drained disks, by the rules of the map alone.

use std::collections::BTreeSet;

use collie_cluster::testing::map::{
    Changes, LEVEL_OF_DISKS, Map, MapError, MapMember, NodeRole, Nodes, moved, plan, set_disk, set_role,
    split, stuck,
};

use super::planned::{begun, end, given, map, moving, nodes, settle};

/// Nodes that serve have replicas on no disk that is drained.
pub(super) fn assert_none_is_on_drained_disks(map: &Map) {
    for member in map.partitions.values().flat_map(|one| &one.members) {
        let node = &map.nodes[&member.node];
        let is_drained = node.role == NodeRole::Serves && node.drained.contains(&member.disk);
        assert!(!is_drained, "{member:?} in {map:#?}");
    }
}

fn drained(map: Map, node: u64, disk: u32) -> Map {
    let changes = set_disk(&map, node, disk, true).unwrap().unwrap();
    map.with(changes)
}

fn on(map: &Map, node: u64, disk: u32) -> usize {
    map.count_on(node, disk)
}

/// What takes the place of a replica of a partition on a node.
fn new_on(map: &Map, group: u64, node: u64) -> MapMember {
    let partition = &map.partitions[&group];
    let mut here = partition.members_on(node);
    here.find(|member| !partition.members.contains(member)).unwrap()
}

#[test]
fn replicas_of_a_drained_disk_move_to_others_of_its_node() {
    let before = map(3, 8, 3, 4);
    let now = nodes(&before, &[], false);
    // Node 2 has three disks.
    let there = on(&before, 2, 1);
    assert!(there >= 2);
    let draining = drained(before.clone(), 2, 1);
    let first = begun(&draining, &now);
    assert_eq!(moving(&first).len(), 2, "two at a time");
    let group = moving(&first)[0];
    let new = new_on(&first, group, 2);
    assert_eq!(new.replica, before.cluster.next_replica, "under a new id");
    assert_ne!(new.disk, 1);
    let old = first.partitions[&group].member_on(2).unwrap();
    assert_eq!(old.disk, 1, "the one that goes comes first");
    let away = |map: &Map| [old, new].map(|one| map.has_moved_away((group, one.replica), 2));
    assert_eq!(away(&first), [false, false]);
    assert_eq!(away(&end(first.clone(), group)), [true, false]);
    let after = settle(first, &now);
    assert_none_is_on_drained_disks(&after);
    assert_eq!(on(&after, 2, 1), 0);
    assert_eq!(on(&after, 2, 0) + on(&after, 2, 2), 8, "no other node has more");
    assert!(on(&after, 2, 0).abs_diff(on(&after, 2, 2)) <= 1);
    // What comes to the node later is not put there either.
    let all = settle(given(after, 2, NodeRole::Drains), &now);
    let all = given(given(all, 2, NodeRole::Serves), 3, NodeRole::Drains);
    let two = begun(&all, &now);
    assert_eq!((on(&two, 2, 0), on(&two, 2, 1), on(&two, 2, 2)), (1, 0, 1));
    let all = settle(all, &now);
    assert_eq!((on(&all, 2, 0), on(&all, 2, 1), on(&all, 2, 2)), (4, 0, 4));
    let open = set_disk(&all, 2, 1, false).unwrap().unwrap();
    assert!(all.with(open).nodes[&2].drained.is_empty());
}

#[test]
fn a_drain_of_a_disk_is_refused_and_says_what_to_do() {
    let map = map(3, 4, 3, 4);
    let refused = |map: &Map, node, disk, part: &str| {
        let said = set_disk(map, node, disk, true).unwrap_err();
        assert!(said.contains(part), "{said}");
    };
    refused(
        &map,
        3,
        0,
        "has no other disk that may have replicas: `collie cluster drain 3`",
    );
    refused(&map, 2, 3, "node 2 has no disk 3: it has 3, counted from 0");
    refused(&map, 9, 0, "has no node 9; it has nodes 1, 2, 3, 4");
    let one = drained(map.clone(), 1, 0);
    refused(
        &one,
        1,
        1,
        "or `collie cluster serve 1 --disk 0` lets another disk",
    );
    assert_eq!(set_disk(&one, 1, 0, true), Ok(None), "said again");
    assert_eq!(set_disk(&one, 1, 1, false), Ok(None));
    let two = drained(drained(map.clone(), 2, 0), 2, 2);
    refused(&two, 2, 1, "no other disk");
    let draining = given(map.clone(), 2, NodeRole::Drains);
    refused(&draining, 2, 0, "run `collie cluster serve 2` first");
    let mut older = map;
    older.cluster.level = LEVEL_OF_DISKS - 1;
    refused(&older, 2, 0, "disks are drained from level 5 on");
    // A version of that level would not see that it is drained.
    let mut rows = Changes::of(&one);
    rows.cluster.level = LEVEL_OF_DISKS - 1;
    rows.nodes = vec![one.nodes[&1].clone()];
    assert!(
        Map::rows(&rows)
            .unwrap_err()
            .to_string()
            .contains("level 4 has no drained disks")
    );
}

#[test]
fn a_node_that_drains_or_is_gone_gives_its_replicas_to_others() {
    let four = drained(map(3, 4, 3, 4), 2, 1);
    let now = nodes(&four, &[], false);
    let begun_on_disk = begun(&four, &now);
    let group = moving(&begun_on_disk)[0];
    let draining = given(begun_on_disk.clone(), 2, NodeRole::Drains);
    let turned = begun(&draining, &now);
    let nodes_of = |map: &Map| {
        let lasting = map.partitions[&group].lasting().iter();
        lasting.map(|member| member.node).collect::<BTreeSet<_>>()
    };
    assert_eq!(nodes_of(&turned), BTreeSet::from([1, 3, 4]));
    let after = settle(turned, &now);
    assert_eq!(
        after.nodes[&2].drained,
        BTreeSet::from([1]),
        "it is still drained"
    );
    // A node that does not answer takes none, and is said to be waited for.
    let silent = Nodes {
        ready: BTreeSet::from([1, 3, 4]),
        ..now.clone()
    };
    assert_eq!(plan(&four, &silent), None);
    assert_eq!(stuck(&four, &silent).disks, BTreeSet::from([(2, 1)]));
    assert_eq!(stuck(&four, &now).disks, BTreeSet::new());
    let gone = settle(begun_on_disk, &nodes(&four, &[2], false));
    assert_eq!(on(&gone, 2, 0) + on(&gone, 2, 1) + on(&gone, 2, 2), 0);
}

#[test]
fn a_move_that_hangs_goes_to_a_third_disk_or_waits() {
    let hanging = |map: &Map, group: u64| Nodes {
        hanging: BTreeSet::from([(group, map.partitions[&group].changed)]),
        ..nodes(map, &[], false)
    };
    // Node 2 has a third one.
    let begun_on_two = begun(
        &drained(map(3, 4, 3, 4), 2, 1),
        &nodes(&map(3, 4, 3, 4), &[], false),
    );
    let group = moving(&begun_on_two)[0];
    let first = new_on(&begun_on_two, group, 2);
    let turned = begun(&begun_on_two, &hanging(&begun_on_two, group));
    let second = new_on(&turned, group, 2);
    assert!(second.disk != first.disk && second.disk != 1 && second.replica > first.replica);
    // Node 1 has no third one, and other nodes are not asked.
    let before = map(3, 4, 3, 4);
    let on_one = begun(&drained(before.clone(), 1, 1), &nodes(&before, &[], false));
    let group = moving(&on_one)[0];
    assert_eq!(plan(&on_one, &hanging(&on_one, group)), None);
    // If it need not go any more, it stays.
    let open = on_one
        .clone()
        .with(set_disk(&on_one, 1, 1, false).unwrap().unwrap());
    assert_eq!(
        plan(&open, &nodes(&open, &[], false)),
        None,
        "what goes on goes on"
    );
    let back = begun(&open, &hanging(&open, group));
    let partition = &back.partitions[&group];
    assert_eq!(partition.wanted, partition.members);
    // The disk that it moves to is drained, too.
    let other = drained(begun_on_two, 2, first.disk);
    let group = moving(&other)[0];
    let turned = begun(&other, &nodes(&other, &[], false));
    assert!(![1, first.disk].contains(&new_on(&turned, group, 2).disk));
    assert_none_is_on_drained_disks(&settle(turned, &nodes(&other, &[], false)));
}

#[test]
fn a_partition_on_a_drained_disk_is_split_when_it_has_moved() {
    let map = map(3, 2, 3, 4);
    let draining = drained(map, 2, 0);
    let group = draining
        .partitions
        .values()
        .find(|one| one.member_on(2).is_some_and(|member| member.disk == 0))
        .unwrap();
    let (group, slot) = (group.group, group.first + 7);
    let said = split(&draining, slot).unwrap_err();
    assert!(
        said.contains("on disk 0 of node 2, which is drained: ask again"),
        "{said}"
    );
    assert!(said.ends_with("`collie cluster serve 2 --disk 0`"), "{said}");
    let now = nodes(&draining, &[], false);
    let moving = begun(&draining, &now);
    assert!(
        split(&moving, slot)
            .unwrap_err()
            .contains("move: ask again when they have")
    );
    let done = end(moving, group);
    assert!(split(&done, slot).unwrap().is_some());
}

#[test]
fn a_node_has_two_replicas_of_a_partition_only_as_one_goes() {
    let before = map(3, 1, 3, 3);
    let refused = |change: &dyn Fn(&mut Vec<MapMember>, &mut Vec<MapMember>)| {
        let mut map = before.clone();
        let partition = map.partitions.get_mut(&1).unwrap();
        map.cluster.next_replica += 10;
        change(&mut partition.members, &mut partition.wanted);
        let rows = super::planned::whole(&map);
        let read = Map::read(|key| Ok::<_, MapError>(rows.get(&key).cloned()));
        read.err().map(|error| error.to_string())
    };
    let next = before.cluster.next_replica;
    // Node 2 has three disks.
    let at = |add: u64, disk| MapMember {
        replica: next + add,
        node: 2,
        disk,
    };
    let own = before.partitions[&1].member_on(2).unwrap();
    let with = |disk| {
        move |members: &mut Vec<MapMember>, wanted: &mut Vec<MapMember>| {
            let others = members.iter().filter(|member| member.node != 2).copied();
            *wanted = others.chain([at(0, disk)]).collect();
        }
    };
    assert_eq!(refused(&with((own.disk + 1) % 3)), None);
    let said = refused(&with(own.disk)).unwrap();
    assert!(said.contains("members on distinct nodes"), "on one disk: {said}");
    let two = refused(&|_, wanted| *wanted = vec![at(0, 0), at(1, 1)]);
    assert!(two.is_some(), "both are to stay");
    assert!(refused(&|members, _| members.push(at(0, (own.disk + 1) % 3))).is_some());
}

/// As a leader says it that knows an older map.
#[test]
fn a_move_between_disks_ends_with_the_replica_that_was_wanted() {
    let before = map(1, 2, 1, 1);
    let now = nodes(&before, &[], false);
    let draining = drained(before.clone(), 1, 0);
    let begun = begun(&draining, &now);
    let group = moving(&begun)[0];
    let partition = &begun.partitions[&group];
    let said = |replicas: BTreeSet<u64>| collie_cluster::testing::map::Moved {
        group,
        replicas,
        changed: partition.changed,
    };
    let old = partition.members.iter().map(|member| member.replica).collect();
    assert!(moved(&begun, &said(old)).is_err());
    let new = partition.wanted.iter().map(|member| member.replica).collect();
    let done = begun.clone().with(moved(&begun, &said(new)).unwrap());
    assert_eq!(done.partitions[&group].members, partition.wanted);
    assert!(set_role(&done, 1, NodeRole::Drains).is_err(), "the only node");
}
