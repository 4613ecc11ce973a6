//! Logs that move to another layout, of a cluster that serves meanwhile.

use collie_cluster::testing::map::LEVEL;
use collie_cluster::{Begin, Layout};
use collie_server::cluster::{LogLayout, LogsOf, NodeRequest};

use super::moves::{ask, assert_has, write};
use super::sites::{Site, bootstrap, settled, sites, until};

const PARTITIONS: u16 = 4;

/// Three nodes with two disks each.
fn cluster(most: u32) -> Vec<Site> {
    let sites = sites(3);
    for (at, site) in sites.iter().enumerate() {
        let begin = match at {
            0 => bootstrap(3, PARTITIONS),
            _ => Begin::Join(vec![sites[0].peer]),
        };
        start(site, Layout::PerDisk, most, begin);
    }
    settled(&sites, 3, PARTITIONS);
    sites
}

fn start(site: &Site, layout: Layout, most: u32, begin: Begin) {
    let mut options = site.options();
    options.store.disks = [0, 1]
        .map(|disk| site.dir.path().join(format!("disk{disk}")))
        .into();
    options.store.layout = layout.into();
    options.spoken = 1..=most;
    site.try_start(options, begin).unwrap();
}

/// The names of the logs on a disk.
fn logs(site: &Site, disk: usize) -> Vec<String> {
    let dir = site.dir.path().join(format!("disk{disk}/raft"));
    let names = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn private(site: &Site) -> usize {
    let logs = [0, 1].into_iter().flat_map(|disk| logs(site, disk));
    logs.filter(|name| name.starts_with("replica-")).count()
}

/// Waits until the logs of a node are where they are to be.
fn moved(site: &Site) {
    until(std::slice::from_ref(site), "the end of the moves", || {
        let topology = site.with(|node, _| node.cluster().topology());
        (topology.logs.to_move == 0).then_some(())
    });
}

fn layout(node: u64, of: LogsOf, layout: LogLayout) -> NodeRequest {
    NodeRequest::Layout { node, of, layout }
}

#[test]
fn logs_move_to_other_layouts_while_keys_are_written() {
    let sites = cluster(LEVEL);
    let replicas = sites[0].with(|node, _| node.node().replicas().len());
    assert_eq!(private(&sites[0]), 0);
    write(&sites, "before");
    ask(&sites[1], layout(1, LogsOf::Node, LogLayout::Private)).unwrap();
    write(&sites, "meanwhile");
    moved(&sites[0]);
    assert_eq!(private(&sites[0]), replicas);
    assert_eq!(
        logs(&sites[0], 1).iter().filter(|name| *name == "shared").count(),
        0
    );
    write(&sites, "private");
    assert_eq!(private(&sites[1]), 0, "another node");
    let moves = sites[0].with(|node, _| node.node().log_moves_made());
    assert_eq!(moves, replicas as u64);

    // What was asked for outlasts the process; so does what is said of a disk and of a partition.
    sites[0].close();
    start(&sites[0], Layout::PerDisk, LEVEL, Begin::Start);
    settled(&sites, 3, PARTITIONS);
    assert_eq!(private(&sites[0]), replicas);
    assert_has(&sites, &["before", "meanwhile", "private"]);
    ask(&sites[0], layout(1, LogsOf::Disk(1), LogLayout::PerDisk)).unwrap();
    moved(&sites[0]);
    assert_eq!(logs(&sites[0], 1), ["shared"]);
    let here = private(&sites[0]);
    assert!(here > 0 && here < replicas, "{here}");
    let map = sites[0].map().unwrap();
    let on_other = |disk: u32| {
        let partitions = map.partitions.values();
        let mut here = partitions.filter(|one| one.member_on(1).is_some_and(|member| member.disk == disk));
        here.next().unwrap().group
    };
    ask(
        &sites[0],
        layout(1, LogsOf::Partition(on_other(0)), LogLayout::Shared),
    )
    .unwrap();
    ask(
        &sites[0],
        layout(1, LogsOf::Partition(on_other(1)), LogLayout::Private),
    )
    .unwrap();
    moved(&sites[0]);
    assert_eq!(private(&sites[0]), here);
    write(&sites, "mixed");

    // Another option than the last time counts for all.
    sites[0].close();
    start(&sites[0], Layout::Shared, LEVEL, Begin::Start);
    settled(&sites, 3, PARTITIONS);
    moved(&sites[0]);
    assert_eq!(
        (logs(&sites[0], 0), logs(&sites[0], 1)),
        (vec!["shared".to_owned()], vec![])
    );
    write(&sites, "shared");
    sites[0].kill();
    start(&sites[0], Layout::Shared, LEVEL, Begin::Start);
    settled(&sites, 3, PARTITIONS);
    assert_has(&sites, &["before", "meanwhile", "private", "mixed", "shared"]);
}

#[test]
fn a_layout_is_refused_with_what_is_wrong() {
    let sites = cluster(LEVEL);
    let refused = |request, text: &str| {
        let refusal = ask(&sites[1], request).unwrap_err();
        assert!(refusal.starts_with(text), "{refusal}");
    };
    refused(
        layout(9, LogsOf::Node, LogLayout::Shared),
        "the cluster has no node 9; it has nodes 1, 2, 3",
    );
    refused(
        layout(1, LogsOf::Disk(2), LogLayout::Shared),
        "node 1: this node has no disk 2: it has 2, counted from 0",
    );
    refused(
        layout(2, LogsOf::Disk(2), LogLayout::Shared),
        "node 2: this node has no disk 2: it has 2, counted from 0",
    );
    refused(
        layout(1, LogsOf::Partition(77), LogLayout::Shared),
        "node 1: this node has no replica of partition 77",
    );
    sites[0].close();
    until(&sites, "a refusal that names what is wrong", || {
        let asked = ask(&sites[1], layout(1, LogsOf::Node, LogLayout::Shared)).unwrap_err();
        // As long as the end was not noticed, the request may be on its way.
        (!asked.starts_with("node 1 does not answer, and its logs may move")).then(|| {
            assert!(asked.starts_with("nothing was changed: "), "{asked}");
        })
    });
}

/// By a file where the log is to be.
#[test]
fn a_log_that_does_not_move_is_named_with_its_partition() {
    let sites = cluster(LEVEL);
    let map = sites[0].map().unwrap();
    let partition = map.partitions.values().next().unwrap();
    let (group, member) = (partition.group, partition.member_on(1).unwrap());
    let disk = sites[0].dir.path().join(format!("disk{}", member.disk));
    let file = disk.join(format!("raft/replica-{}", member.replica));
    std::fs::write(&file, "in the way").unwrap();
    ask(&sites[0], layout(1, LogsOf::Partition(group), LogLayout::Private)).unwrap();
    let expected = format!(
        "the log of replica {}, of partition {group}, does not move",
        member.replica
    );
    until(&sites, "a problem", || {
        let problems = sites[0].status().problems;
        problems
            .iter()
            .any(|(_, problem)| problem.contains(&expected))
            .then_some(())
    });
    std::fs::remove_file(&file).unwrap();
    moved(&sites[0]);
    assert!(file.is_dir());
}

/// A version that does not speak the level would take a copy that is not complete for the replica.
#[test]
fn no_log_moves_at_an_older_feature_level() {
    let sites = cluster(2);
    let refusal = ask(&sites[0], layout(1, LogsOf::Node, LogLayout::Private)).unwrap_err();
    assert!(refusal.contains("logs move from level 3 on"), "{refusal}");
    sites[0].close();
    start(&sites[0], Layout::Private, LEVEL, Begin::Start);
    settled(&sites, 3, PARTITIONS);
    write(&sites, "before");
    let to_move = until(&sites, "a look", || {
        let to_move = sites[0].with(|node, _| node.cluster().topology().logs.to_move);
        (to_move > 0 || private(&sites[0]) > 0).then_some(to_move)
    });
    let replicas = sites[0].with(|node, _| node.node().replicas().len());
    assert_eq!((to_move, private(&sites[0])), (replicas, 0));
    for site in &sites[1..] {
        site.close();
        start(site, Layout::PerDisk, LEVEL, Begin::Start);
        settled(&sites, 3, PARTITIONS);
    }
    until(&sites, "a finalize", || {
        ask(&sites[0], NodeRequest::Finalize).ok()
    });
    moved(&sites[0]);
    assert_eq!(private(&sites[0]), replicas);
    assert_has(&sites, &["before"]);
}
