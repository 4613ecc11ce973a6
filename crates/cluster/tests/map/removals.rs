//! Maps that name what is gone, and nodes that are gone from the map.

use std::collections::BTreeMap;

use collie_cluster::Begin;
use collie_cluster::testing::Row;
use collie_cluster::testing::map::{Changes, Map};
use collie_cluster::testing::proposals::Answer;

use super::sites::{Site, cluster, settled, sites, until};

/// Changes rows of the map, as no rule does.
fn rewrite(leader: &Site, changed: BTreeMap<Vec<u8>, Option<Vec<u8>>>) {
    let row = |key: Vec<u8>| Row { slot: 0, key };
    let effects: BTreeMap<_, _> = changed
        .into_iter()
        .map(|(key, value)| (row(key), value))
        .collect();
    leader.with(|node, runtime| {
        let replica = node.node().replica(node.identity().replica).unwrap();
        let answer = runtime.block_on(replica.execute(move |_| Ok((effects.clone(), ()))));
        assert_eq!(answer.unwrap(), Answer::Reply(()));
    });
}

fn record(number: u64) -> Vec<u8> {
    [b"node/", &number.to_be_bytes()[..]].concat()
}

/// Removes the record of a node. The epoch stays, so that nodes which have read the map do not notice.
fn remove_record(leader: &Site, number: u64) {
    rewrite(leader, BTreeMap::from([(record(number), None)]));
}

/// Gives the map another epoch: nodes read it anew.
fn next_epoch(leader: &Site) {
    let mut cluster = leader.map().unwrap().cluster.clone();
    cluster.epoch += 1;
    let changes = Changes {
        cluster,
        nodes: Vec::new(),
        removed: Vec::new(),
        partitions: Vec::new(),
        duplications: None,
    };
    let rows = Map::rows(&changes).unwrap().into_iter();
    rewrite(leader, rows.collect());
}

/// Whether the map has a record of a node, as a node has applied it.
fn has_record(site: &Site, number: u64) -> bool {
    let (slot, key) = (0, record(number));
    site.with(|node, _| {
        let replica = node.node().replica(node.identity().replica).unwrap();
        let rows = replica.applied_rows().unwrap();
        rows.get(&Row { slot, key }).unwrap().is_some()
    })
}

fn problem(site: &Site, part: &str) -> String {
    until(std::slice::from_ref(site), part, || {
        let problems = site.status().problems;
        problems
            .into_iter()
            .map(|(_, text)| text)
            .find(|text| text.contains(part))
    })
}

#[test]
fn the_number_of_a_removed_node_is_not_used_again() {
    let all = sites(3);
    all[0].start(super::sites::bootstrap(1, 1));
    all[1].start(Begin::Join(vec![all[0].peer]));
    settled(&all[..2], 2, 1);
    // Node 1 drops its connection to node 2 when it reads of the removal: by then node 2 is to know of it.
    assert!(has_record(&all[1], 2));
    remove_record(&all[0], 2);
    until(&all[..2], "the removal on node 2", || {
        (!has_record(&all[1], 2)).then_some(())
    });
    all[1].with(|node, runtime| {
        let replica = node.node().replica(node.identity().replica).unwrap();
        runtime.block_on(replica.flush()).unwrap();
    });
    all[1].kill();
    all[1].start(Begin::Start);
    let said = problem(&all[1], "node 2 was removed from the cluster");
    assert!(said.contains("an empty directory"), "{said}");
    next_epoch(&all[0]);
    until(&all[..1], "no peer any more", || {
        let states = all[0].with(|node, _| node.node().peers().states());
        (!states.borrow().contains_key(&2)).then_some(())
    });
    all[1].kill();
    let said = all[1].refusal(all[1].options(), Begin::Join(vec![all[0].peer]));
    assert!(said.contains("node 2 was removed"), "{said}");
    assert!(said.contains("an empty directory"), "{said}");
    all[2].start(Begin::Join(vec![all[0].peer]));
    let map = all[2].with(|node, runtime| runtime.block_on(node.ready()));
    assert_eq!(map.nodes.keys().copied().collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn a_replica_that_was_removed_here_is_not_made_again() {
    let all = cluster(1, 1, 2);
    let map = settled(&all, 1, 2);
    let gone = map.partitions[&1].members[0].replica;
    all[0].with(|node, runtime| runtime.block_on(node.node().remove(gone)).unwrap());
    next_epoch(&all[0]);
    let said = problem(&all[0], "was removed from this node for good");
    assert!(said.contains(&format!("replica {gone}")), "{said}");
    // Not after a restart either; and the others run.
    all[0].kill();
    all[0].start(Begin::Start);
    problem(&all[0], "was removed from this node for good");
    let status = all[0].status();
    assert!(status.partitions[0].here.is_none());
    until(&all, "the other partition", || {
        let leads = |site: &Site| site.status().partitions[1].leader;
        leads(&all[0])
    });
}

#[test]
fn a_replica_that_the_disk_has_lost_is_not_made_again() {
    let all = cluster(1, 1, 1);
    all[0].close();
    // The mark is there, and the logs are not.
    std::fs::remove_dir_all(all[0].disk().join("raft")).unwrap();
    std::fs::remove_dir_all(all[0].disk().join("replicas")).unwrap();
    all[0].start(Begin::Start);
    let said = problem(&all[0], "does not have it any more");
    assert!(said.contains("replica 1 of group 0"), "{said}");
    assert!(said.contains("collie cluster remove 1"), "{said}");
    assert!(all[0].map().is_none());
}
