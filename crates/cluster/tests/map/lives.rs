//! Clusters that are made, joined, killed and started again.

use std::collections::{BTreeMap, BTreeSet};

use collie_cluster::Begin;
use collie_cluster::testing::map::LEVEL;
use collie_cluster::testing::wire::JoinAnswer;
use collie_io::RealClock;
use collie_server::cluster::{Route, SLOTS};

use super::sites::{Site, ask, cluster, map_leader, request, runtime, settled, sites, until};

/// On each node, each slot is led here, or at the address of the node that says so of itself.
fn routes_agree(sites: &[Site]) {
    until(sites, "routes that agree", || {
        let clusters: Vec<_> = sites
            .iter()
            .map(|site| (site.client, site.with(|node, _| node.cluster())))
            .collect();
        (0..SLOTS)
            .step_by(97)
            .chain([SLOTS - 1])
            .all(|slot| {
                let here = |(client, cluster): &(_, std::sync::Arc<dyn collie_server::cluster::Cluster>)| {
                    match cluster.route(slot) {
                        Route::Here(partition) if partition.slots().contains(&slot) => Some(*client),
                        _ => None,
                    }
                };
                let leaders: Vec<_> = clusters.iter().filter_map(here).collect();
                let sent = |cluster: &std::sync::Arc<dyn collie_server::cluster::Cluster>| match cluster
                    .route(slot)
                {
                    Route::Here(_) => leaders.len() == 1,
                    Route::At(client) => leaders == [client.address],
                    Route::Nowhere => false,
                };
                clusters.iter().all(|(_, cluster)| sent(cluster))
            })
            .then_some(())
    });
}

#[test]
fn three_nodes_keep_their_partitions_over_restarts() {
    let sites = cluster(3, 3, 32);
    let map = settled(&sites, 3, 32);
    // Each node has all partitions, and begins as many of them as the others.
    let mut first = BTreeMap::<u64, usize>::new();
    for partition in map.partitions.values() {
        let lowest = partition
            .members
            .iter()
            .min_by_key(|member| member.replica)
            .unwrap();
        *first.entry(lowest.node).or_default() += 1;
    }
    assert_eq!(first.into_values().collect::<Vec<_>>(), [11, 11, 10]);
    until(&sites, "three voters", || {
        let voters = |site: &Site| site.status().nodes.iter().filter(|node| node.votes).count();
        sites.iter().all(|site| voters(site) == 3).then_some(())
    });
    until(&sites, "a leader on each node", || {
        let leads = |site: &Site| !site.with(|node, _| node.cluster().led()).is_empty();
        sites.iter().all(leads).then_some(())
    });
    routes_agree(&sites);
    let topology = sites[1].with(|node, _| node.cluster().topology());
    assert_eq!(topology.own, 2);
    assert_eq!(topology.nodes[2].client.address, sites[2].client);
    assert!(topology.nodes.iter().all(|node| node.name.len() == 40));
    assert_eq!(
        topology
            .partitions
            .first()
            .map(|partition| *partition.slots.start()),
        Some(0)
    );
    assert_eq!(
        topology.partitions.last().map(|partition| *partition.slots.end()),
        Some(SLOTS - 1)
    );

    // One is killed and started again, as the others had to do without it; then all are.
    let led: Vec<_> = sites[1].with(|node, _| {
        let led = node.cluster().led();
        led.iter().map(|partition| *partition.slots().start()).collect()
    });
    let mut changes = sites[0].with(|node, _| node.cluster().changes());
    changes.mark_unchanged();
    sites[1].kill();
    until(&sites, "other leaders of what the dead node led", || {
        let cluster = sites[0].with(|node, _| node.cluster());
        let elsewhere = |slot: &u16| match cluster.route(*slot) {
            Route::Here(_) => true,
            Route::At(client) => client.address == sites[2].client,
            Route::Nowhere => false,
        };
        led.iter().all(elsewhere).then_some(())
    });
    assert!(
        changes.has_changed().unwrap(),
        "who waits for a leader looks again"
    );
    sites[1].start(Begin::Start);
    assert_eq!(settled(&sites, 3, 32), map);
    for site in &sites {
        site.kill();
    }
    for site in &sites {
        site.start(Begin::Join(vec![sites[0].peer, sites[1].peer]));
    }
    assert_eq!(settled(&sites, 3, 32), map);
    routes_agree(&sites);
    // Closed, and not killed, they come back as well.
    for site in &sites {
        site.close();
    }
    for site in &sites {
        site.start(Begin::Start);
    }
    assert_eq!(settled(&sites, 3, 32), map);
    for site in &sites {
        assert_eq!(site.status().problems, []);
    }
}

#[test]
fn a_node_that_has_lost_the_majority_knows_of_no_leader() {
    let sites = cluster(3, 3, 9);
    until(&sites, "a leader on each node", || {
        let leads = |site: &Site| !site.with(|node, _| node.cluster().led()).is_empty();
        sites.iter().all(leads).then_some(())
    });
    let mut changes = sites[0].with(|node, _| node.cluster().changes());
    sites[1].kill();
    sites[2].kill();
    changes.mark_unchanged();
    let cluster = sites[0].with(|node, _| node.cluster());
    until(&sites, "no leader of any partition", || {
        let topology = cluster.topology();
        let led = topology
            .partitions
            .iter()
            .any(|partition| partition.leader.is_some());
        (!led && cluster.led().is_empty()).then_some(())
    });
    for slot in (0..SLOTS).step_by(501) {
        assert!(matches!(cluster.route(slot), Route::Nowhere), "{slot}");
    }
    assert!(
        changes.has_changed().unwrap(),
        "who waits for a leader looks again"
    );
    drop(cluster);
    sites[2].start(Begin::Start);
    until(&sites, "leaders of all partitions", || {
        let topology = sites[0].with(|node, _| node.cluster().topology());
        let mut partitions = topology.partitions.iter();
        partitions
            .all(|partition| matches!(partition.leader, Some(1 | 3)))
            .then_some(())
    });
    sites[1].start(Begin::Start);
    settled(&sites, 3, 9);
    routes_agree(&sites);
}

#[test]
fn a_join_whose_answer_is_lost_with_the_leader_makes_one_node() {
    let sites = cluster(3, 3, 2);
    let join = request(9);
    let taken = until(&sites, "an answer", || {
        match ask(map_leader(&sites).peer, &join, &RealClock) {
            Ok(JoinAnswer::Taken(place)) => Some(place),
            _ => None,
        }
    });
    assert_eq!((taken.node, taken.level), (4, LEVEL));
    assert_eq!(taken.peers.len(), 4);
    let leader = map_leader(&sites);
    leader.kill();
    let again = until(&sites, "an answer of the next leader", || {
        let alive = sites.iter().filter(|site| site.is_alive());
        alive
            .map(|site| ask(site.peer, &join, &RealClock))
            .find_map(|answer| match answer {
                Ok(JoinAnswer::Taken(place)) => Some(place),
                _ => None,
            })
    });
    assert_eq!((again.node, again.replica), (taken.node, taken.replica));
    leader.start(Begin::Start);
    let map = settled(&sites, 4, 2);
    assert_eq!(map.nodes.values().filter(|node| node.token == [9; 16]).count(), 1);
}

#[test]
fn a_node_joins_once_while_the_leader_of_the_map_dies() {
    let all = sites(4);
    let (new, old) = all.split_last().unwrap();
    old[0].start(super::sites::bootstrap(3, 2));
    for site in &old[1..] {
        site.start(Begin::Join(vec![old[0].peer]));
    }
    settled(old, 3, 2);
    let peers: Vec<_> = old.iter().map(|site| site.peer).collect();
    let leader = map_leader(old);
    std::thread::scope(|scope| {
        let joining = scope.spawn(|| new.start(Begin::Join(peers.clone())));
        leader.kill();
        joining.join().unwrap();
    });
    leader.start(Begin::Start);
    let map = settled(&all, 4, 2);
    assert_eq!(map.cluster.next_node, 5);
    let node = &map.nodes[&4];
    assert_eq!((node.peer, node.client), (new.peer, new.client));
    // It follows the map without a vote, and sends clients to those that have the partitions.
    until(&all, "a learner of the map", || {
        let status = map_leader(&all).status();
        let nodes: Vec<_> = status.nodes.iter().map(|node| node.votes).collect();
        (nodes == [true, true, true, false]).then_some(())
    });
    routes_from_outside(&all);
}

/// A node without a replica sends clients to one that has one.
fn routes_from_outside(all: &[Site]) {
    let clients: Vec<_> = all.iter().map(|site| site.client).collect();
    until(all, "a way from the node without a replica", || {
        let cluster = all[3].with(|node, _| node.cluster());
        assert!(cluster.replica(0).is_none());
        match cluster.route(0) {
            Route::At(client) => {
                assert!(clients[..3].contains(&client.address));
                Some(())
            }
            _ => None,
        }
    });
}

/// A join that is given up, and begun again, has one token.
#[test]
fn a_join_goes_on_after_a_restart_with_the_same_token() {
    let sites = sites(2);
    let gone = sites[0].peer;
    let waiting = async {
        let start = collie_cluster::ClusterNode::start(
            collie_cluster::PlainTcp,
            sites[1].options(),
            Begin::Join(vec![gone]),
        );
        tokio::time::timeout(std::time::Duration::from_millis(500), start).await
    };
    assert!(runtime().block_on(waiting).is_err(), "nothing answers");
    let stored = |db: &collie_db::Db| {
        let family = db.family("cluster").unwrap();
        family.get("asked").unwrap().unwrap().to_vec()
    };
    let own = sites[1].dir.path().join("node");
    let db = collie_db::Db::open(own, sites[1].options().own).unwrap();
    let before = stored(&db);
    db.close().unwrap();
    sites[0].start(super::sites::bootstrap(1, 1));
    sites[1].start(Begin::Join(vec![gone]));
    assert_eq!(
        sites[1].with(|node, _| stored(node.db())),
        before,
        "what it asked by is what it asks by"
    );
    let token = sites[1].with(|node, _| node.identity().asked.token);
    assert!(before.windows(16).any(|part| part == token));
    assert_eq!(settled(&sites, 2, 1).nodes[&2].token, token);
}

#[test]
fn a_node_shows_the_figures_that_are_documented() {
    let sites = cluster(1, 1, 2);
    let figures = sites[0].with(|node, _| node.cluster().figures());
    let shown: BTreeSet<_> = figures.iter().map(|figure| figure.name).collect();
    let document = include_str!("../../../../docs/book/src/operations.md");
    let documented: BTreeSet<_> = document
        .split('`')
        .filter_map(|name| name.split('{').next())
        .filter(|name| name.starts_with("collie_cluster_"))
        .collect();
    assert_eq!(shown, documented);
    let sum = |name: &str| -> u64 {
        let figure = figures.iter().find(|figure| figure.name == name).unwrap();
        figure.samples.iter().map(|(_, value)| value).sum()
    };
    // Two partitions, and the map.
    assert_eq!(sum("collie_cluster_replicas"), 3);
    assert_eq!(sum("collie_cluster_partition_leads"), 3);
    assert!(sum("collie_cluster_partition_elections_total") >= 3);
    assert!(sum("collie_cluster_log_syncs_total") > 0 && sum("collie_cluster_log_bytes") > 0);
    assert!(sum("collie_cluster_partition_log_held_bytes") > 0);
    assert_eq!(
        sum("collie_cluster_replicas_with_problems") + sum("collie_cluster_log_full"),
        0
    );
    assert_eq!(sites[0].with(|node, _| node.cluster().problems()), [""; 0]);
}
