//! Replicas that move between nodes, of clusters that serve meanwhile.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use collie_cluster::Begin;
use collie_cluster::testing::map::{Map, NodeRole};
use collie_server::cluster::{NodeRequest, Partition, Route, Settled};

use super::sites::{Site, bootstrap, settled, sites, until};

const PARTITIONS: u16 = 4;
/// A slot of each partition.
const SLOTS: [u16; PARTITIONS as usize] = [5, 5000, 9000, 16_000];

/// Nodes of which a dead one is replaced soon. The last ones come when the partitions are placed.
fn cluster(first: usize, then: usize, replicas: u8) -> Vec<Site> {
    let sites = sites(first + then);
    for (at, site) in sites.iter().enumerate() {
        if at == first {
            settled(&sites[..first], first, PARTITIONS);
        }
        start(site, begin(&sites[0], at, replicas));
    }
    settled(&sites, first + then, PARTITIONS);
    sites
}

fn begin(first: &Site, at: usize, replicas: u8) -> Begin {
    match at {
        0 => bootstrap(replicas, PARTITIONS),
        _ => Begin::Join(vec![first.peer]),
    }
}

fn start(site: &Site, begin: Begin) {
    let mut options = site.options();
    options.replace_after = Duration::from_millis(700);
    site.try_start(options, begin).unwrap();
}

fn led_here(site: &Site, slot: u16) -> Option<Arc<dyn Partition>> {
    match site.with(|node, _| node.cluster().route(slot)) {
        Route::Here(partition) => Some(partition),
        _ => None,
    }
}

/// Sets a row in each partition.
pub(super) fn write(sites: &[Site], row: &str) {
    for slot in SLOTS {
        until(sites, "a write", || {
            let mut alive = sites.iter().filter(|site| site.is_alive());
            let (site, partition) = alive.find_map(|site| Some((site, led_here(site, slot)?)))?;
            site.with(|_, runtime| {
                let _inside = runtime.enter();
                let command = partition.begin(slot, &[row.as_bytes()], Duration::ZERO).ok()?;
                let changes = vec![(row.as_bytes().to_vec(), Some(row.as_bytes().into()))];
                let settling = command.finish(changes, 1).ok()?;
                (runtime.block_on(settling) == Settled::Holds).then_some(())
            })
        });
    }
}

/// Each partition has these rows, where it is led.
pub(super) fn assert_has(sites: &[Site], rows: &[&str]) {
    for slot in SLOTS {
        until(sites, "a read", || {
            let mut alive = sites.iter().filter(|site| site.is_alive());
            let (site, partition) = alive.find_map(|site| Some((site, led_here(site, slot)?)))?;
            site.with(|_, runtime| {
                let leadership = partition.leadership()?;
                let applied = partition.applied().ok()?;
                let read: Vec<_> = rows
                    .iter()
                    .map(|row| applied.get(slot, row.as_bytes()).unwrap().is_some())
                    .collect();
                let confirmed = runtime.block_on(partition.confirm(leadership, partition.slots(), None));
                (confirmed == Settled::Holds)
                    .then(|| assert!(read.iter().all(|has| *has), "{slot}: {read:?}"))
            })
        });
    }
}

pub(super) fn ask(site: &Site, request: NodeRequest) -> Result<(), String> {
    site.with(|node, runtime| runtime.block_on(node.cluster().change_node(request)))
}

/// The nodes of each partition, once no replica moves.
fn placed(sites: &[Site], what: &str, is_right: impl Fn(&Map) -> bool) -> Arc<Map> {
    until(sites, what, || {
        let mut alive = sites.iter().filter(|site| site.is_alive());
        let map = alive.next()?.map()?;
        let moves = map
            .partitions
            .values()
            .any(|partition| !partition.wanted.is_empty());
        (!moves && is_right(&map)).then_some(map)
    })
}

fn has_replicas(map: &Map, node: u64) -> bool {
    let mut partitions = map.partitions.values();
    partitions.any(|partition| partition.all().any(|member| member.node == node))
}

/// A node has the replicas that the map has there, and no others, nor their tables.
fn assert_has_no_others(site: &Site) {
    until(
        std::slice::from_ref(site),
        "removal of what has moved away",
        || {
            let (map, own) = (site.map()?, site.with(|node, _| node.identity().node));
            let here = map.partitions.values().filter_map(|one| one.member_on(own));
            let here = here.map(|member| member.replica).chain([map.nodes[&own].replica]);
            let here: BTreeSet<_> = here.collect();
            let replicas = site.with(|node, _| node.node().replicas());
            let are: BTreeSet<_> = replicas.iter().map(|replica| replica.id()).collect();
            let tables = std::fs::read_dir(site.disk().join("replicas")).unwrap();
            let tables = tables.map(|dir| dir.unwrap().file_name().into_string().unwrap());
            let tables: BTreeSet<u64> = tables.map(|id| id.parse().unwrap()).collect();
            (are == here && tables == here).then_some(())
        },
    );
}

#[test]
fn replicas_of_a_drained_node_move_and_lose_nothing() {
    let sites = cluster(3, 1, 3);
    write(&sites, "before");
    ask(&sites[1], NodeRequest::Drain(1)).unwrap();
    write(&sites, "meanwhile");
    let map = placed(&sites, "moves", |map| !has_replicas(map, 1));
    write(&sites, "after");
    assert_has(&sites, &["before", "meanwhile", "after"]);
    assert_has_no_others(&sites[0]);
    assert_eq!(map.nodes[&1].role, NodeRole::Drains);
    assert_eq!(map.nodes.len(), 4);
    // A stop before its tables were removed: they are when it starts.
    sites[0].close();
    let gone = map.cluster.next_replica - 1;
    let gone = (1..gone).find(|id| !map.partitions.values().any(|one| one.node_of(*id).is_some()) && *id > 4);
    let left = sites[0].disk().join("replicas").join(gone.unwrap().to_string());
    std::fs::create_dir(&left).unwrap();
    std::fs::write(left.join("file"), "of tables").unwrap();
    start(&sites[0], Begin::Start);
    assert!(!left.exists());
    // They stay where they are when it serves again, and it can be given others.
    until(&sites, "acceptance", || {
        ask(&sites[0], NodeRequest::Serve(1)).ok()
    });
    ask(&sites[0], NodeRequest::Drain(2)).unwrap();
    placed(&sites, "moves back", |map| {
        !has_replicas(map, 2) && has_replicas(map, 1)
    });
    assert_has(&sites, &["before", "meanwhile", "after"]);
    assert_has_no_others(&sites[1]);
}

#[test]
fn what_a_dead_node_had_is_replaced_and_goes_when_it_is_back() {
    let sites = cluster(3, 1, 3);
    write(&sites, "before");
    sites[2].kill();
    placed(&sites, "replacement", |map| !has_replicas(map, 3));
    write(&sites, "after");
    // Now another one may fail.
    sites[1].kill();
    write(&sites, "with two of four");
    assert_has(&sites, &["before", "after", "with two of four"]);
    start(&sites[2], Begin::Start);
    assert_has_no_others(&sites[2]);
}

#[test]
fn a_dead_node_is_removed_and_its_vote_goes_to_another() {
    let sites = cluster(3, 1, 3);
    write(&sites, "before");
    sites[0].kill();
    until(&sites, "acceptance", || {
        ask(&sites[1], NodeRequest::Remove(1)).ok()
    });
    let map = placed(&sites, "removal", |map| !map.nodes.contains_key(&1));
    assert!(!has_replicas(&map, 1));
    until(&sites, "votes of the others", || {
        let status = sites[1].status();
        let voters = status.nodes.iter().filter(|node| node.votes);
        let voters: BTreeSet<_> = voters.map(|node| node.number).collect();
        (voters == BTreeSet::from([2, 3, 4])).then_some(())
    });
    assert_has(&sites, &["before"]);
    start(&sites[0], Begin::Start);
    until(&sites[..1], "a word of it", || {
        let problems = sites[0].status().problems;
        problems
            .iter()
            .any(|(_, text)| text.contains("was removed"))
            .then_some(())
    });
}

#[test]
fn a_node_is_replaced_by_another_one_and_leaves() {
    let sites = cluster(3, 2, 3);
    write(&sites, "before");
    // It leads all, the map too, and goes all the same.
    ask(&sites[0], NodeRequest::Replace { node: 1, by: 5 }).unwrap();
    let map = placed(&sites[1..], "replacement", |map| !map.nodes.contains_key(&1));
    assert!(map.partitions.values().all(|partition| {
        let nodes: BTreeSet<_> = partition.members.iter().map(|member| member.node).collect();
        nodes == BTreeSet::from([2, 3, 5])
    }));
    write(&sites[1..], "after");
    assert_has(&sites[1..], &["before", "after"]);
}

#[test]
fn replicas_that_cannot_move_are_a_problem_until_they_can() {
    let sites = cluster(3, 1, 3);
    ask(&sites[0], NodeRequest::Drain(1)).unwrap();
    placed(&sites, "moves", |map| !has_replicas(map, 1));
    // The drained node takes nothing.
    sites[1].kill();
    until(&sites, "a problem", || {
        let alive = sites.iter().filter(|site| site.is_alive());
        let problems: Vec<_> = alive.flat_map(|site| site.status().problems).collect();
        let said = problems
            .iter()
            .find(|(_, text)| text.contains("no other node can take them"));
        said.map(|(_, text)| assert!(text.contains("away from node 2,"), "{text}"))
    });
    start(&sites[1], Begin::Start);
    until(&sites, "no problem", || {
        let problems = sites.iter().flat_map(|site| site.status().problems);
        let mut moves = problems.filter(|(about, _)| about == "moves of replicas");
        moves.next().is_none().then_some(())
    });
}

#[test]
fn a_move_that_hangs_is_a_problem_and_turns_to_another_node() {
    let all = sites(5);
    let (sites, last) = all.split_at(4);
    for (at, site) in sites.iter().enumerate() {
        if at == 3 {
            settled(&sites[..3], 3, PARTITIONS);
        }
        start(site, begin(&sites[0], at, 3));
    }
    let map = settled(sites, 4, PARTITIONS);
    write(sites, "before");
    // No replica can be made on node 4.
    let ids = map.cluster.next_replica..map.cluster.next_replica + 100;
    let blocked = sites[3].disk().join("replicas");
    for id in ids {
        std::fs::write(blocked.join(id.to_string()), "no directory").unwrap();
    }
    ask(&sites[1], NodeRequest::Drain(1)).unwrap();
    until(sites, "a problem", || {
        let mut problems = sites.iter().flat_map(|site| site.status().problems);
        let said = problems.find(|(_, text)| text.contains("has not gone on for"));
        said.map(|(_, text)| assert!(text.contains("have not all entries yet"), "{text}"))
    });
    start(&last[0], begin(&sites[0], 4, 3));
    let map = placed(sites, "moves", |map| !has_replicas(map, 1));
    assert!(has_replicas(&map, 5) && !has_replicas(&map, 4));
    assert_has(&all, &["before"]);
    until(sites, "no problem", || {
        let mut problems = sites.iter().flat_map(|site| site.status().problems);
        let moves = |(about, _): &(String, String)| about.starts_with("the partition of group");
        (!problems.any(|problem| moves(&problem))).then_some(())
    });
}

#[test]
fn the_only_replica_of_a_partition_moves() {
    let sites = cluster(1, 1, 1);
    write(&sites, "before");
    ask(&sites[1], NodeRequest::Drain(1)).unwrap();
    placed(&sites, "moves", |map| !has_replicas(map, 1));
    write(&sites, "after");
    assert_has(&sites, &["before", "after"]);
    assert_has_no_others(&sites[0]);
}

/// As a split may leave them that meets a replica's move, or a stop.
#[test]
fn what_is_to_be_nowhere_goes_also_when_the_map_does_not_change() {
    let sites = cluster(1, 1, 1);
    let first = sites[0].map().unwrap();
    until(&sites, "acceptance", || {
        ask(&sites[1], NodeRequest::Drain(1)).ok()
    });
    let map = placed(&sites, "moves", |map| !has_replicas(map, 1));
    let (group, old) = (1, first.partitions[&1].members[0].replica);
    assert_ne!(map.partitions[&group].members[0].replica, old);
    // It was on the other node.
    let site = std::slice::from_ref(&sites[1]);
    site[0].with(|node, runtime| {
        let made = runtime.block_on(node.node().create(group, old, 0));
        drop(made.unwrap());
    });
    until(site, "removal of the replica", || {
        let is_here = site[0].with(|node, _| node.node().replica(old).is_some());
        (!is_here).then_some(())
    });
    assert_eq!(site[0].map().unwrap().cluster.epoch, map.cluster.epoch);
    let older = first.partitions[&2].members[0].replica;
    let yet = map.partitions[&2].members[0].replica;
    let unknown = map.cluster.next_replica;
    sites[1].kill();
    let tables = |replica: u64| site[0].disk().join("replicas").join(replica.to_string());
    std::fs::create_dir_all(tables(older).join("store")).unwrap();
    std::fs::create_dir_all(tables(unknown).join("store")).unwrap();
    start(&sites[1], Begin::Start);
    until(site, "removal of the tables", || {
        (!tables(older).exists()).then_some(())
    });
    assert!(tables(unknown).exists() && tables(yet).exists());
    assert_has(&sites, &[]);
}

#[test]
fn what_cannot_be_is_refused_and_says_what_to_do() {
    let sites = cluster(3, 1, 3);
    let refused = |request, part: &str| {
        let said = ask(&sites[1], request).unwrap_err();
        assert!(said.contains(part), "{said}");
    };
    refused(NodeRequest::Drain(9), "has no node 9; it has nodes 1, 2, 3, 4");
    refused(NodeRequest::Replace { node: 1, by: 1 }, "not another node");
    refused(NodeRequest::Replace { node: 1, by: 2 }, "already that node 1 has");
    ask(&sites[1], NodeRequest::Drain(4)).unwrap();
    refused(NodeRequest::Drain(1), "let another node join first");
    refused(NodeRequest::Replace { node: 1, by: 4 }, "not another node");
    // Asked for again, nothing changes.
    let epoch = sites[1].map().unwrap().cluster.epoch;
    ask(&sites[1], NodeRequest::Drain(4)).unwrap();
    assert_eq!(sites[1].map().unwrap().cluster.epoch, epoch);
}
