//! Disks of nodes that are drained, in clusters that serve meanwhile.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use collie_cluster::testing::Retention;
use collie_cluster::testing::map::LEVEL_OF_DISKS;
use collie_cluster::{Begin, Layout};
use collie_io::{Clock, Device, Dir, Entry, File, FsStat, OpenMode, RealDevice, Stat};
use collie_server::cluster::{LeftOnDisk, LogLayout, LogsOf, NodeRequest, Settled};

use super::moves::{ask, assert_has, write};
use super::sites::{Site, bootstrap, settled, sites, until};
use super::splits::{StopsAtTheEnd, increment, read};

const PARTITIONS: u16 = 4;
/// A slot of each partition.
const SLOTS: [u16; 4] = [5, 5000, 9000, 16_000];

/// Nodes with two disks each.
fn cluster(nodes: usize, replicas: u8, layout: Layout) -> Vec<Site> {
    let sites = sites(nodes);
    for (at, site) in sites.iter().enumerate() {
        let begin = match at {
            0 => bootstrap(replicas, PARTITIONS),
            _ => Begin::Join(vec![sites[0].peer]),
        };
        start(site, layout, &["disk0", "disk1"], begin);
    }
    settled(&sites, nodes, PARTITIONS);
    sites
}

fn options(site: &Site, layout: Layout, disks: &[&str]) -> collie_cluster::ClusterOptions {
    let mut options = site.options();
    options.store.disks = disks.iter().map(|disk| site.dir.path().join(disk)).collect();
    options.store.layout = layout.into();
    options
}

fn start(site: &Site, layout: Layout, disks: &[&str], begin: Begin) {
    site.try_start(options(site, layout, disks), begin).unwrap();
}

fn drain(node: u64, disk: u32) -> NodeRequest {
    NodeRequest::DrainDisk { node, disk }
}

/// Waits until a disk of a node is drained, and has nothing but this.
fn drained(sites: &[Site], site: &Site, disk: u32, left: LeftOnDisk) {
    until(sites, "the end of a drain", || {
        let topology = site.with(|node, _| node.cluster().topology());
        let here = topology.drained_here.iter().find(|here| here.disk == disk);
        here.is_some_and(|here| here.left == left).then_some(())
    });
}

/// Neither tables nor logs of a partition's replica are on a disk of a node.
fn assert_has_nothing(site: &Site, disk: &str, but: &[u64]) {
    let dir = site.dir.path().join(disk);
    let names = |dir: &Path| -> Vec<String> {
        let names = std::fs::read_dir(dir).into_iter().flatten();
        names
            .map(|name| name.unwrap().file_name().into_string().unwrap())
            .collect()
    };
    let tables = names(&dir.join("replicas")).into_iter();
    let tables: Vec<u64> = tables.filter_map(|name| name.parse().ok()).collect();
    assert_eq!(tables, but);
    let logs = names(&dir.join("raft"));
    assert!(logs.iter().all(|name| name == "shared"), "{logs:?}");
    let logs = site.with(|node, _| node.node().logs());
    let logs = logs.iter().filter(|log| log.dir().starts_with(&dir));
    let replicas: Vec<_> = logs
        .flat_map(|log| log.replicas())
        .map(|log| log.replica())
        .collect();
    assert_eq!(replicas, but);
}

/// Counts in each partition while something is done, and compares at the end.
fn counting(sites: &[Site], done: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let before = SLOTS.map(|slot| read(sites, slot));
    let counted = std::thread::scope(|scope| {
        let all = SLOTS.map(|slot| {
            let stop = &stop;
            scope.spawn(move || {
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    match increment(sites, slot) {
                        Some(Settled::Holds) => count += 1,
                        Some(Settled::Unknown) => panic!("no node has failed"),
                        Some(Settled::TryAgain) | None => std::thread::sleep(Duration::from_millis(1)),
                    }
                }
                count
            })
        });
        let stopping = StopsAtTheEnd(&stop);
        done();
        drop(stopping);
        all.map(|thread| thread.join().unwrap())
    });
    assert!(counted.iter().all(|count| *count > 0), "{counted:?}");
    let sums = [0, 1, 2, 3].map(|at| before[at] + counted[at]);
    assert_eq!(SLOTS.map(|slot| read(sites, slot)), sums);
}

#[test]
fn a_disk_is_drained_while_keys_are_written_and_taken_away() {
    let sites = cluster(3, 3, Layout::PerDisk);
    write(&sites, "before");
    let replicas = sites[0].with(|node, _| node.node().replicas().len());
    counting(&sites, || {
        ask(&sites[1], drain(1, 1)).unwrap();
        drained(&sites, &sites[0], 1, LeftOnDisk::Replicas(0));
    });
    assert_has_nothing(&sites[0], "disk1", &[]);
    assert_eq!(sites[0].with(|node, _| node.node().replicas().len()), replicas);
    let info = sites[2].with(|node, _| node.cluster().topology());
    assert_eq!(info.nodes[0].drained, [(1, 0)]);
    assert!(info.nodes[1].drained.is_empty());
    let said = ask(&sites[2], drain(1, 0)).unwrap_err();
    assert!(said.contains("has no other disk"), "{said}");

    // It is not needed any more, and disks keep their numbers.
    sites[0].close();
    std::fs::remove_dir_all(sites[0].dir.path().join("disk1")).unwrap();
    start(&sites[0], Layout::PerDisk, &["disk0"], Begin::Start);
    settled(&sites, 3, PARTITIONS);
    drained(&sites, &sites[0], 1, LeftOnDisk::Absent);
    let place = sites[0].dir.path().join("absent-disks/1");
    let names: Vec<_> = std::fs::read_dir(&place).unwrap().collect();
    assert_eq!(names.len(), 1, "the mark alone: {names:?}");
    write(&sites, "without it");
    // A disk in its place is as empty, and may be given replicas.
    sites[0].kill();
    start(&sites[0], Layout::PerDisk, &["disk0", "new"], Begin::Start);
    settled(&sites, 3, PARTITIONS);
    drained(&sites, &sites[0], 1, LeftOnDisk::Replicas(0));
    let serve = NodeRequest::ServeDisk { node: 1, disk: 1 };
    until(&sites, "acceptance", || ask(&sites[1], serve.clone()).ok());
    until(&sites, "acceptance", || ask(&sites[1], drain(1, 0)).ok());
    drained(&sites, &sites[0], 0, LeftOnDisk::Map);
    let own = sites[0].map().unwrap().nodes[&1].replica;
    assert_has_nothing(&sites[0], "disk0", &[own]);
    assert_has(&sites, &["before", "without it"]);

    // What has the map is needed; a copy of it will do.
    sites[0].close();
    let said = sites[0].refusal(options(&sites[0], Layout::PerDisk, &["new"]), Begin::Start);
    assert!(said.contains("disk 0 of node 1 is not among those"), "{said}");
    let (from, to) = ["disk0", "copy"]
        .map(|disk| sites[0].dir.path().join(disk))
        .into();
    std::fs::rename(from, to).unwrap();
    start(&sites[0], Layout::PerDisk, &["copy", "new"], Begin::Start);
    settled(&sites, 3, PARTITIONS);
    write(&sites, "after");
    assert_has(&sites, &["before", "without it", "after"]);
}

#[test]
fn a_disk_that_is_not_empty_is_needed() {
    let sites = cluster(1, 1, Layout::PerDisk);
    let site = &sites[0];
    site.close();
    let refused = |disks: &[&str], text: &str| {
        let said = site.refusal(options(site, Layout::PerDisk, disks), Begin::Start);
        assert!(said.contains(text), "{said}");
    };
    refused(
        &["disk0"],
        "disk 1 of node 1 is not among those that it is started with: it may have replicas",
    );
    refused(&["disk0", "new"], "disk 1 of node 1");
    refused(&["disk1", "disk0"], "expected disk 0 of node 1");
    start(site, Layout::PerDisk, &["disk0", "disk1"], Begin::Start);
    settled(&sites, 1, PARTITIONS);
    until(&sites, "acceptance", || ask(site, drain(1, 1)).ok());
    drained(&sites, site, 1, LeftOnDisk::Replicas(0));
    site.close();
    refused(&["disk1"], "it has the node's replica of the map, so name it");
    refused(&["disk0", "disk0", "disk1"], "has 2 disks, and is started with 3");
    refused(&["new"], "has no mark");
    start(site, Layout::PerDisk, &["disk0"], Begin::Start);
    settled(&sites, 1, PARTITIONS);
    // Nothing is put where no disk is.
    let serve = NodeRequest::ServeDisk { node: 1, disk: 1 };
    until(&sites, "acceptance", || ask(site, serve.clone()).ok());
    until(&sites, "acceptance", || ask(site, drain(1, 0)).ok());
    until(&sites, "a problem", || {
        let problems = site.status().problems;
        let said = problems
            .iter()
            .any(|(_, text)| text.contains("disk 1 is to have it, and the node was started without that"));
        said.then_some(())
    });
    // Nor is it needed now: a disk is given for it.
    site.close();
    start(site, Layout::PerDisk, &["disk0", "new"], Begin::Start);
    drained(&sites, site, 0, LeftOnDisk::Map);
    write(&sites, "after");
    assert_has(&sites, &["after"]);
}

#[test]
fn private_logs_and_only_replicas_leave_a_drained_disk() {
    let sites = cluster(1, 1, Layout::Private);
    write(&sites, "before");
    counting(&sites, || {
        ask(&sites[0], drain(1, 1)).unwrap();
        drained(&sites, &sites[0], 1, LeftOnDisk::Replicas(0));
    });
    assert_has_nothing(&sites[0], "disk1", &[]);
    assert_has(&sites, &["before"]);
}

#[test]
fn a_drain_goes_on_after_stops_in_the_middle() {
    let sites = cluster(3, 3, Layout::PerDisk);
    write(&sites, "before");
    ask(&sites[1], drain(1, 1)).unwrap();
    for wait in [0, 20, 60, 120, 250] {
        std::thread::sleep(Duration::from_millis(wait));
        sites[0].kill();
        start(&sites[0], Layout::PerDisk, &["disk0", "disk1"], Begin::Start);
    }
    drained(&sites, &sites[0], 1, LeftOnDisk::Replicas(0));
    assert_has_nothing(&sites[0], "disk1", &[]);
    write(&sites, "after");
    assert_has(&sites, &["before", "after"]);
    // Its disks have all that they are to have, and nothing more.
    let (map, here) = (
        sites[0].map().unwrap(),
        sites[0].with(|node, _| node.node().replicas()),
    );
    assert_eq!(here.len(), 1 + map.count_on(1, 0));
}

/// The map that it reads first may be older than what it has removed by then.
#[test]
fn what_moved_away_before_a_stop_is_no_problem_after_it() {
    let sites = cluster(3, 3, Layout::PerDisk);
    let site = &sites[0];
    ask(&sites[1], drain(1, 1)).unwrap();
    let mut here: Vec<u64> = site.with(|node, _| node.node().replicas().iter().map(|one| one.id()).collect());
    let problems = || site.with(|node, _| node.cluster().problems());
    for _ in 0..PARTITIONS / 2 {
        until(&sites, "a removal", || {
            let removed = |id: &u64| site.with(|node, _| node.node().remembers_removal_of(*id));
            let at = here.iter().position(removed)?;
            Some(here.swap_remove(at))
        });
        site.kill();
        start(site, Layout::PerDisk, &["disk0", "disk1"], Begin::Start);
    }
    drained(&sites, site, 1, LeftOnDisk::Replicas(0));
    settled(&sites, 3, PARTITIONS);
    until(&sites, "no problem", || problems().is_empty().then_some(()));
}

#[test]
fn layouts_and_splits_meet_a_drain() {
    let sites = cluster(3, 3, Layout::PerDisk);
    write(&sites, "before");
    let layout = |layout| NodeRequest::Layout {
        node: 1,
        of: LogsOf::Node,
        layout,
    };
    counting(&sites, || {
        ask(&sites[0], layout(LogLayout::Private)).unwrap();
        ask(&sites[1], drain(1, 1)).unwrap();
        ask(&sites[0], layout(LogLayout::PerDisk)).unwrap();
        let mut refused = 0;
        for first in [2000, 6000, 10_000, 14_000] {
            until(&sites, "a split", || {
                match ask(&sites[1], NodeRequest::Split(first)) {
                    Ok(()) => Some(()),
                    Err(problem) if problem.contains("begins with slot") => Some(()),
                    Err(problem) => {
                        assert!(problem.contains("ask again"), "{problem}");
                        refused += 1;
                        None
                    }
                }
            });
        }
        assert!(refused > 0, "what moves is split later");
        drained(&sites, &sites[0], 1, LeftOnDisk::Replicas(0));
    });
    settled(&sites, 3, 2 * PARTITIONS);
    assert_has_nothing(&sites[0], "disk1", &[]);
    assert_eq!(
        sites[0].map().unwrap().count_on(1, 0),
        usize::from(2 * PARTITIONS)
    );
    assert_has(&sites, &["before"]);
}

/// A device of which the disk of a path has another free part, in percent.
#[derive(Debug)]
struct Narrow {
    real: RealDevice,
    below: std::path::PathBuf,
    /// Only where there is such a file below.
    with: &'static str,
    free: AtomicU64,
}

impl Device for Narrow {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.real.open(path, mode)
    }
    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.real.stat(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.real.list(dir)
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.real.create_dir_all(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.real.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.real.remove_file(path)
    }
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.real.remove_dir_all(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.real.sync_dir(dir)
    }
    fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn Dir>> {
        self.real.open_dir(dir)
    }
    fn boot_id(&self) -> io::Result<[u8; 16]> {
        self.real.boot_id()
    }
    fn random(&self, buf: &mut [u8]) -> io::Result<()> {
        self.real.random(buf)
    }
    fn uid(&self) -> u32 {
        self.real.uid()
    }
    fn clock(&self) -> &dyn Clock {
        self.real.clock()
    }
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.real.hard_link(from, to)
    }
    fn statfs(&self, path: &Path) -> io::Result<FsStat> {
        let mut stat = self.real.statfs(path)?;
        if path.starts_with(&self.below) && path.join(self.with).exists() {
            stat.available = stat.blocks / 100 * self.free.load(Ordering::Relaxed);
        }
        Ok(stat)
    }
}

/// A node whose first disk has no room by what is asked below a path of it: that is said, and it waits.
fn waits_for_room(below: &str, with: &'static str, text: &str, are_begun: bool) {
    let sites = sites(1);
    let site = &sites[0];
    let device = Arc::new(Narrow {
        real: RealDevice::new(),
        below: site.dir.path().join(below),
        with,
        free: AtomicU64::new(50),
    });
    let mut options = options(site, Layout::PerDisk, &["disk0", "disk1"]);
    options.machine.db.device = Arc::clone(&device) as _;
    options.replace_after = Duration::from_millis(300);
    // Those that join get tables.
    options.store.shared.retention = Some(Retention {
        margin: 0,
        lagging: 0,
    });
    site.try_start(options, bootstrap(1, PARTITIONS)).unwrap();
    settled(&sites, 1, PARTITIONS);
    write(&sites, "before");
    until(&sites, "a purge", || {
        let replicas = site.with(|node, _| node.node().replicas());
        let are = replicas.iter().all(|replica| {
            let flushed = site.with(|_, runtime| runtime.block_on(replica.flush()));
            flushed.is_ok() && replica.state().is_ok_and(|state| state.purged > Some(0))
        });
        are.then_some(())
    });
    device.free.store(4, Ordering::Relaxed);
    let there = site.map().unwrap().count_on(1, 1);
    ask(site, drain(1, 1)).unwrap();
    let says = |text: &str| {
        let problems = site.with(|node, _| node.cluster().problems());
        problems.iter().any(|problem| problem.contains(text))
    };
    until(&sites, "a problem", || says(text).then_some(()));
    until(&sites, "a problem of the move", || {
        says("has not gone on for").then_some(())
    });
    drained(&sites, site, 1, LeftOnDisk::Replicas(there));
    let replicas = site.with(|node, _| node.node().replicas().len());
    assert_eq!(replicas > 1 + usize::from(PARTITIONS), are_begun);
    write(&sites, "meanwhile");
    device.free.store(50, Ordering::Relaxed);
    drained(&sites, site, 1, LeftOnDisk::Replicas(0));
    until(&sites, "no problem", || {
        let problems = site.with(|node, _| node.cluster().problems());
        problems.is_empty().then_some(())
    });
    assert_has(&sites, &["before", "meanwhile"]);
}

#[test]
fn a_drain_waits_where_the_other_disk_has_no_room() {
    waits_for_room("disk0", "", "disk 0, which has no room for its", false);
}

#[test]
fn a_replica_that_begins_takes_no_tables_without_room() {
    waits_for_room(
        "disk0/replicas",
        "",
        "is to begin on a disk that has no room",
        true,
    );
}

/// As where others have taken the room since the first part of them came.
#[test]
fn tables_that_come_stop_where_the_room_ends() {
    waits_for_room(
        "disk0/replicas",
        "staged/files",
        "is to begin on a disk that has no room",
        true,
    );
}

/// A version that does not know it would end the connection, and not see it in the map.
#[test]
fn no_disk_is_drained_at_an_older_feature_level() {
    let sites = sites(1);
    let mut options = options(&sites[0], Layout::PerDisk, &["disk0", "disk1"]);
    options.spoken = 1..=LEVEL_OF_DISKS - 1;
    sites[0].try_start(options, bootstrap(1, PARTITIONS)).unwrap();
    settled(&sites, 1, PARTITIONS);
    let said = ask(&sites[0], drain(1, 1)).unwrap_err();
    assert!(said.contains("disks are drained from level 5 on"), "{said}");
}
