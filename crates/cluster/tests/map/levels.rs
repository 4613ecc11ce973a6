//! A cluster whose nodes are upgraded one after the other, go back, and then use what the new version knows. The old
//! version is this one, which speaks the lowest level alone.

use std::ops::RangeInclusive;
use std::time::Duration;

use collie_cluster::testing::map::LEVEL;
use collie_cluster::{Begin, ClusterError, EntryDurability};
use collie_server::cluster::NodeRequest;

use super::sites::{Site, bootstrap, settled, sites, until};

const OLD: RangeInclusive<u32> = 1..=1;
const NEW: RangeInclusive<u32> = 1..=LEVEL;
const PARK: Duration = Duration::from_millis(300);

fn start(site: &Site, spoken: RangeInclusive<u32>, begin: Begin) -> Result<(), ClusterError> {
    let mut options = site.options();
    options.spoken = spoken;
    options.times.park = PARK;
    site.try_start(options, begin)
}

/// Three nodes of the old version.
fn old_cluster(partitions: u16) -> Vec<Site> {
    let sites = sites(3);
    start(&sites[0], OLD, bootstrap(3, partitions)).unwrap();
    for site in &sites[1..] {
        start(site, OLD, Begin::Join(vec![sites[0].peer])).unwrap();
    }
    settled(&sites, 3, partitions);
    sites
}

fn restart(site: &Site, spoken: RangeInclusive<u32>) {
    if site.is_alive() {
        site.close();
    }
    start(site, spoken, Begin::Start).unwrap();
}

/// Asks for it until the answer is no mere "ask again".
fn ask(sites: &[Site], request: NodeRequest) -> Result<(), String> {
    until(sites, "an answer", || {
        let asked =
            sites[0].with(|node, runtime| runtime.block_on(node.cluster().change_node(request.clone())));
        let is_final = !asked.as_ref().is_err_and(|problem| {
            let again = [": ask again", ": ask again, or another node"];
            again.iter().any(|again| problem.ends_with(again))
        });
        is_final.then_some(asked)
    })
}

fn level(site: &Site) -> u32 {
    site.map().map_or(0, |map| map.cluster.level)
}

fn parked(site: &Site) -> usize {
    let replicas = site.with(|node, _| node.node().replicas());
    replicas.iter().filter(|replica| replica.is_parked()).count()
}

#[test]
fn nodes_are_upgraded_one_by_one_and_go_back_until_it_is_final() {
    let sites = old_cluster(6);
    // One is upgraded, and the others are not.
    restart(&sites[0], NEW);
    settled(&sites, 3, 6);
    let problem = until(&sites, "what keeps it", || {
        let problem = ask(&sites, NodeRequest::Finalize).err()?;
        // On a busy machine the leader of the map may be late.
        (!problem.contains("does not answer, or is of an older version")).then_some(problem)
    });
    for expected in [
        &format!("level {LEVEL} is not used before"),
        "node 2: ",
        "it speaks levels 1 to 1",
    ] {
        assert!(problem.contains(expected), "{problem}");
    }
    // It goes back, and then all go on.
    restart(&sites[0], OLD);
    settled(&sites, 3, 6);
    for site in &sites {
        restart(site, NEW);
        settled(&sites, 3, 6);
    }
    assert!(sites.iter().all(|site| level(site) == 1));
    let refused = ask(&sites, NodeRequest::Serve(2)).unwrap_err();
    assert!(refused.contains("feature level 1"), "{refused}");
    std::thread::sleep(4 * PARK);
    assert!(
        sites.iter().all(|site| parked(site) == 0),
        "others do not know that"
    );
    let mut topology = sites[0].with(|node, _| node.cluster().topology());
    assert_eq!((topology.level, topology.newest_level), (1, LEVEL));

    // Entries that wait for no disk: the others would not know what one that lost them asks.
    sites[1].close();
    let mut options = sites[1].options();
    options.spoken = NEW;
    options.store.shared.entries = EntryDurability::Process;
    let refused = sites[1].try_start(options, Begin::Start).unwrap_err().to_string();
    for expected in [
        "`process` needs feature level 5, and the cluster has 1",
        "start with `disk`, ask for `collie cluster finalize`",
    ] {
        assert!(refused.contains(expected), "{refused}");
    }
    restart(&sites[1], NEW);
    settled(&sites, 3, 6);

    // One that is away may be of the old version.
    sites[2].close();
    let problem = until(&sites, "what keeps it", || {
        ask(&sites, NodeRequest::Finalize).err()
    });
    assert!(problem.contains("node 3: "), "{problem}");
    restart(&sites[2], OLD);
    settled(&sites, 3, 6);
    restart(&sites[2], NEW);
    settled(&sites, 3, 6);

    until(&sites, "the new level", || {
        ask(&sites, NodeRequest::Finalize).ok()
    });
    until(&sites, "a map that has it", || {
        sites.iter().all(|site| level(site) == LEVEL).then_some(())
    });
    assert_eq!(ask(&sites, NodeRequest::Finalize), Ok(()), "it has that level");
    topology = sites[1].with(|node, _| node.cluster().topology());
    assert_eq!((topology.level, topology.newest_level), (LEVEL, LEVEL));
    until(&sites, "parked replicas", || {
        sites.iter().all(|site| parked(site) == 7).then_some(())
    });
    // None goes back, and they are as they were.
    sites[1].close();
    let refused = start(&sites[1], OLD, Begin::Start).unwrap_err().to_string();
    assert!(refused.contains(&format!("feature level {LEVEL}")), "{refused}");
    restart(&sites[1], NEW);
    let map = settled(&sites, 3, 6);
    assert_eq!(map.cluster.level, LEVEL);
    assert_eq!(ask(&sites, NodeRequest::Serve(2)), Ok(()), "replicas may move");
}

#[test]
fn a_level_that_is_noted_and_not_used_is_shown_until_it_is() {
    let sites = old_cluster(3);
    for site in &sites {
        restart(site, NEW);
    }
    settled(&sites, 3, 3);
    // It speaks the level, and can note nothing.
    sites[2].with(|node, _| node.db().clone().close()).unwrap();
    let problem = until(&sites, "what keeps it", || {
        ask(&sites, NodeRequest::Finalize).err()
    });
    for expected in ["is noted by some nodes", "node 3: ", "no older version"] {
        assert!(problem.contains(expected), "{problem}");
    }
    let shown = |site: &Site| {
        let problems = site.status().problems;
        problems
            .iter()
            .any(|(_, problem)| problem.contains("is noted here"))
    };
    assert!(shown(&sites[0]) && shown(&sites[1]));
    sites[2].kill();
    restart(&sites[2], NEW);
    settled(&sites, 3, 3);
    until(&sites, "the new level", || {
        ask(&sites, NodeRequest::Finalize).ok()
    });
    until(&sites, "no problem any more", || {
        (!sites.iter().any(shown)).then_some(())
    });
}
