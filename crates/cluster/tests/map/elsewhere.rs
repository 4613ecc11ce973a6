//! Nodes that are started at other addresses, or in another zone, than before.

use std::net::SocketAddr;

use collie_cluster::Begin;
use collie_server::cluster::Route;

use super::sites::{Site, cluster, settled, until};
use crate::addresses::addresses;

/// These are elsewhere from now on.
fn moved(sites: Vec<Site>, which: &[usize]) -> Vec<Site> {
    let new = addresses(2 * sites.len());
    let elsewhere = |(at, site): (usize, Site)| match which.contains(&at) {
        true => site.moved(new[2 * at], new[2 * at + 1]),
        false => site,
    };
    sites.into_iter().enumerate().map(elsewhere).collect()
}

/// All nodes know where all are, and clients are sent there.
fn assert_known(sites: &[Site], partitions: u16) {
    until(sites, "a map with all addresses", || {
        let maps: Option<Vec<_>> = sites.iter().map(Site::map).collect();
        let expected: Vec<_> = sites.iter().map(|site| (site.peer, site.client)).collect();
        let has = |map: &std::sync::Arc<collie_cluster::testing::map::Map>| {
            let nodes = map.nodes.values();
            nodes.map(|node| (node.peer, node.client)).collect::<Vec<_>>() == expected
        };
        maps?.iter().all(has).then_some(())
    });
    settled(sites, sites.len(), partitions);
    let clients: Vec<SocketAddr> = sites.iter().map(|site| site.client).collect();
    until(sites, "a way to the leader", || {
        let mut routes = sites
            .iter()
            .map(|site| site.with(|node, _| node.cluster().route(1)));
        let leads_on = |route| match route {
            Route::Here(_) => true,
            Route::At(client) => clients.contains(&client.address),
            Route::Nowhere => false,
        };
        routes.all(leads_on).then_some(())
    });
    until(sites, "no problem", || {
        let mut problems = sites.iter().flat_map(|site| site.status().problems);
        problems.next().is_none().then_some(())
    });
}

#[test]
fn a_node_that_is_started_elsewhere_is_found_by_all() {
    let sites = cluster(3, 3, 4);
    for site in &sites {
        site.close();
    }
    let sites = moved(sites, &[2]);
    for site in &sites {
        site.start(Begin::Start);
    }
    assert_known(&sites, 4);
    // Only where clients reach it.
    sites[0].close();
    let client = addresses(1)[0];
    let elsewhere = |(at, site): (usize, Site)| match (at, site.peer) {
        (0, peer) => site.moved(peer, client),
        _ => site,
    };
    let sites: Vec<_> = sites.into_iter().enumerate().map(elsewhere).collect();
    sites[0].start(Begin::Start);
    assert_known(&sites, 4);
}

#[test]
fn nodes_that_are_all_started_elsewhere_find_each_other() {
    let sites = cluster(3, 3, 4);
    for site in &sites {
        site.close();
    }
    let sites = moved(sites, &[0, 1, 2]);
    // As by the name of a host: of the last one alone.
    let seed = sites[2].peer;
    for site in &sites {
        site.start(Begin::Join(vec![seed]));
    }
    assert_known(&sites, 4);
    // From now on they know.
    for site in &sites {
        site.close();
    }
    for site in &sites {
        site.start(Begin::Start);
    }
    assert_known(&sites, 4);
}

#[test]
fn a_used_address_is_a_problem_and_a_zone_or_host_is_not() {
    let sites = cluster(2, 1, 1);
    sites[1].close();
    let mut options = sites[1].options();
    options.client = sites[0].client;
    options.zone = "west".to_owned();
    sites[1].try_start(options, Begin::Start).unwrap();
    until(&sites, "a problem", || {
        let problems = sites[1].status().problems;
        let taken = |text: &str| text.contains("is an address of node 1") && text.contains("give this node");
        problems.iter().any(|(_, text)| taken(text)).then_some(())
    });
    assert_eq!(sites[0].map().unwrap().nodes[&2].client, sites[1].client);
    sites[1].close();
    let mut options = sites[1].options();
    options.zone = "west".to_owned();
    options.client_host = "two.example".to_owned();
    sites[1].try_start(options, Begin::Start).unwrap();
    until(&sites, "a zone and a host", || {
        let zone = sites[0].map()?.nodes[&2].zone.clone();
        let topology = sites[0].with(|node, _| node.cluster().topology());
        let host = topology.nodes[1].client.host.clone();
        (zone == "west" && host.as_deref() == Some("two.example")).then_some(())
    });
    assert_known(&sites, 1);
}
