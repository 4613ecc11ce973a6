//! Leaders that are spread over the nodes again, and a node that takes over on request.

use std::time::Duration;

use collie_cluster::Begin;
use collie_server::cluster::NodeRequest;

use super::sites::{Site, bootstrap, settled, sites, until};

const PARTITIONS: u16 = 9;

/// A cluster whose leaders are spread after so long.
fn cluster(nodes: usize, spread_after: Duration) -> Vec<Site> {
    let sites = sites(nodes);
    for (number, site) in sites.iter().enumerate() {
        let begin = match number {
            0 => bootstrap(3, PARTITIONS),
            _ => Begin::Join(vec![sites[0].peer]),
        };
        start(site, begin, spread_after);
    }
    settled(&sites, nodes, PARTITIONS);
    sites
}

fn start(site: &Site, begin: Begin, spread_after: Duration) {
    let mut options = site.options();
    options.spread_after = spread_after;
    site.try_start(options, begin).unwrap();
}

/// How many partitions each of the sites leads that are alive.
fn leads(sites: &[Site]) -> Vec<usize> {
    let alive = sites.iter().filter(|site| site.is_alive());
    alive
        .map(|site| site.with(|node, _| node.cluster().led().len()))
        .collect()
}

#[test]
fn leaders_are_spread_again_when_a_node_is_back() {
    let after = Duration::from_millis(300);
    let sites = cluster(3, after);
    until(&sites, "leaders on all nodes", || {
        (leads(&sites) == [3, 3, 3]).then_some(())
    });
    sites[1].kill();
    until(&sites, "leaders of all partitions on the others", || {
        let leads = leads(&sites);
        // They are spread over the two as well.
        (leads.iter().sum::<usize>() == 9 && leads.iter().all(|leads| *leads >= 4)).then_some(())
    });
    start(&sites[1], Begin::Start, after);
    until(&sites, "leaders on all nodes again", || {
        (leads(&sites) == [3, 3, 3]).then_some(())
    });
}

#[test]
fn leaders_are_spread_by_a_node_without_a_replica_of_theirs() {
    let sites = cluster(4, Duration::from_secs(1));
    // It leads the map's group all the same.
    let drained = sites[0].with(|node, runtime| {
        let request = NodeRequest::Drain(1);
        runtime.block_on(node.cluster().change_node(request))
    });
    drained.unwrap();
    until(&sites, "leaders on the others", || {
        let map = sites[0].map()?;
        let mut partitions = map.partitions.values();
        let all_moved = partitions.all(|one| one.wanted.is_empty() && one.member_on(1).is_none());
        (all_moved && leads(&sites) == [0, 3, 3, 3]).then_some(())
    });
    // One leads all, until they are spread again.
    until(&sites, "a node that leads most", || {
        let taken = sites[3].with(|node, _| node.cluster().take_over());
        (taken.is_err() || leads(&sites)[3] > 6).then_some(())
    });
    until(&sites, "leaders on the others again", || {
        (leads(&sites) == [0, 3, 3, 3]).then_some(())
    });
}

#[test]
fn a_node_takes_over_all_its_replicas_where_it_is_asked_to() {
    let sites = cluster(3, Duration::from_secs(3600));
    let asked = &sites[2];
    until(&sites, "it leads all", || {
        let taken = asked.with(|node, _| node.cluster().take_over());
        if leads(&sites) == [0, 0, 9] {
            let why = taken.unwrap_err();
            assert!(why.contains("leads all"), "{why}");
            return Some(());
        }
        // What did not come about is asked for again, as an operator would.
        std::thread::sleep(Duration::from_millis(500));
        None
    });
    // Also what a dead node led.
    sites[0].kill();
    let other = &sites[1];
    until(&sites, "another leads all", || {
        let taken = other.with(|node, _| node.cluster().take_over());
        if leads(&sites) == [9, 0] {
            assert!(taken.is_err());
            return Some(());
        }
        std::thread::sleep(Duration::from_millis(500));
        None
    });
}
