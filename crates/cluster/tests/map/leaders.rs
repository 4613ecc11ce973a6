//! What nodes say of leaders: those that have a replica of a partition, and those that have none.

use std::collections::BTreeMap;

use collie_cluster::Begin;
use collie_server::cluster::{NodeRequest, Route, Topology};

use super::moves::ask;
use super::sites::{Site, cluster, map_leader, settled, until};

/// What a node that is alive says of the partitions: group, leader, whether it is served.
fn said(topology: &Topology) -> BTreeMap<u64, (Option<u64>, bool)> {
    let partitions = topology.partitions.iter();
    partitions
        .map(|partition| (partition.group, (partition.leader, partition.is_served)))
        .collect()
}

/// Waits until each node that is alive says of each partition what its leader says of itself.
fn all_agree(sites: &[Site], what: &str) {
    until(sites, what, || {
        let alive = || sites.iter().filter(|site| site.is_alive());
        let mut leaders = BTreeMap::new();
        for site in alive() {
            let (own, led) = site.with(|node, _| (node.identity().node, node.cluster().led()));
            for partition in led {
                leaders.insert(partition.group(), (Some(own), true));
            }
        }
        let mut views = alive().map(|site| site.with(|node, _| said(&node.cluster().topology())));
        views
            .all(|view| view.len() == leaders.len() && view == leaders)
            .then_some(())
    });
}

fn led_by(site: &Site) -> usize {
    site.with(|node, _| node.cluster().led().len())
}

#[test]
fn nodes_without_a_replica_know_the_leaders_after_each_change() {
    let sites = cluster(5, 3, 21);
    let map = settled(&sites, 5, 21);
    // They are placed once three nodes are ready, on those that are.
    let replicas = |at: usize| {
        let partitions = map.partitions.values();
        let own = partitions.filter(|partition| partition.member_on(at as u64 + 1).is_some());
        own.count()
    };
    let [one, other] = [0, 1].map(|nth| (0..5).filter(|at| replicas(*at) > 0).nth(nth).unwrap());
    assert!((0..5).any(|at| replicas(at) < 21), "one lacks some");
    all_agree(&sites, "agreement when all has begun");

    // One takes over all that it can, and others take that again.
    for at in [one, other] {
        until(&sites, "a node that takes over", || {
            let asked = sites[at].with(|node, _| node.cluster().take_over());
            (asked.is_err() && led_by(&sites[at]) == replicas(at)).then_some(())
        });
        all_agree(&sites, "agreement when one has taken over");
    }
    sites[other].kill();
    until(&sites, "other leaders of what the dead node led", || {
        let topology = sites[one].with(|node, _| node.cluster().topology());
        let mut served = topology.partitions.iter();
        served.all(|partition| partition.is_served).then_some(())
    });
    all_agree(&sites, "agreement when one is dead");
    sites[other].start(Begin::Start);
    settled(&sites, 5, 21);
    all_agree(&sites, "agreement when it is back");
    // Clients are sent to the leader at once, and not by way of another.
    for partition in &sites[0].with(|node, _| node.cluster().topology()).partitions {
        let leader = &sites[partition.leader.unwrap() as usize - 1];
        for site in &sites {
            let route = site.with(|node, _| node.cluster().route(*partition.slots.start()));
            match route {
                Route::Here(_) => assert_eq!(site.client, leader.client),
                Route::At(client) => assert_eq!(client.address, leader.client),
                Route::Nowhere => panic!("{partition:?} is led nowhere"),
            }
        }
    }
}

#[test]
fn where_no_majority_is_left_nothing_is_served() {
    let sites = cluster(3, 3, 4);
    all_agree(&sites, "agreement when all has begun");
    sites[1].kill();
    sites[2].kill();
    until(&sites, "nothing that is served", || {
        let topology = sites[0].with(|node, _| node.cluster().topology());
        let mut partitions = topology.partitions.iter();
        partitions
            .all(|partition| !partition.is_served && partition.leader.is_none())
            .then_some(())
    });
}

/// A busy machine may take leaderships from the last node: then none stands for election any more, and it is begun
/// anew.
#[test]
fn a_node_that_is_to_end_hands_over_all_that_it_leads() {
    assert!((0..5).any(|_| the_last_node_leads_on()));
}

fn the_last_node_leads_on() -> bool {
    let sites = cluster(3, 3, 9);
    until(&sites, "a leader on each node", || {
        sites.iter().all(|site| led_by(site) > 0).then_some(())
    });
    let retire = |site: &Site| site.with(|node, runtime| runtime.block_on(node.cluster().retire()));
    assert!(retire(&sites[0]), "something went over");
    let leads_map = |site: &Site| site.status().map.is_some_and(|map| map.leads);
    assert_eq!((led_by(&sites[0]), leads_map(&sites[0])), (0, false));
    // Another one ends at the same time, whose next one is the first: it may not give to that.
    assert!(retire(&sites[2]));
    assert_eq!((led_by(&sites[0]), led_by(&sites[2])), (0, 0));
    until(&sites, "the last one leads all", || {
        (led_by(&sites[1]) == 9 && leads_map(&sites[1])).then_some(())
    });
    // It has nobody to hand over to, and serves until it ends.
    !retire(&sites[1]) && led_by(&sites[1]) == 9
}

/// Its leader is killed: first the others believe that it leads, then that none does.
#[test]
fn what_a_map_without_a_leader_is_asked_is_to_be_asked_again() {
    let sites = cluster(3, 3, 3);
    map_leader(&sites).kill();
    let alive = sites.iter().find(|site| site.is_alive()).unwrap();
    let mut refusals = Vec::new();
    until(&sites, "an answer of the next leader", || {
        let asked = ask(alive, NodeRequest::Serve(2));
        asked.map_err(|refusal| refusals.push(refusal)).ok()
    });
    assert!(!refusals.is_empty());
    for refusal in refusals {
        let again = [": ask again", ": ask again, or another node"];
        assert!(again.iter().any(|end| refusal.ends_with(end)), "{refusal}");
    }
}
