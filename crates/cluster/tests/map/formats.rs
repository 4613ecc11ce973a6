//! The directory of a node that an earlier version wrote, as files: the node starts, with its place in
//! the map, its logs and its rows. It is never written again; with `COLLIE_WRITE_FIXTURE=1` it is
//! written where it is missing.
//!
//! node-v1 was made by 5db2efd9: one node with one replica of each of two partitions, and one disk.
//! Entries up to a certain one are in tables and purged, others are in the log alone.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use collie_cluster::testing::map::{
    ClusterRecord, Duplications, Map, MapMember, NodeRecord, NodeRole, PartitionRecord,
};
use collie_cluster::{Asked, Begin, ClusterOptions, NodeIdentity, NodeStoreOptions};
use collie_db::Options;
use collie_server::cluster::{Partition, Route, Settled, Walked};

use super::sites::{Site, bootstrap, settled, until};

/// No other node listens there: the map has these addresses.
const PEER: &str = "127.71.93.4:7101";
const CLIENT: &str = "127.71.93.4:7102";

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/node-v1")
}

/// Copies what is no lock and no reserve. Directories without files, which git does not keep, are made.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        match from.is_dir() {
            true => copy(&from, &to),
            false if ["LOCK", "RESERVE"].contains(&entry.file_name().to_str().unwrap()) => {}
            false => drop(fs::copy(from, to).unwrap()),
        }
    }
    if to.join("current").exists() {
        fs::create_dir_all(to.join("tables")).unwrap();
    }
}

fn options(site: &Site) -> ClusterOptions {
    let mut options = site.options();
    options.own = Options {
        ring_bytes: 8 << 10,
        segment_bytes: 32 << 10,
        ..options.own
    };
    let NodeStoreOptions { shared, private, .. } = &mut options.store;
    for log in [shared, private] {
        log.log.ring_bytes = 64 << 10;
        log.log.segment_bytes = 64 << 10;
    }
    options
}

/// Changes rows of one slot in one entry, and the number of its keys.
fn change(site: &Site, slot: u16, rows: &[(&str, Option<&str>)], keys: i64) {
    until(std::slice::from_ref(site), "the change", || {
        let partition = partition(site, slot)?;
        site.with(|_, runtime| {
            let _inside = runtime.enter();
            let names: Vec<_> = rows.iter().map(|(row, _)| row.as_bytes()).collect();
            let command = partition.begin(slot, &names, Duration::ZERO).ok()?;
            let rows = rows.iter().map(|(row, value)| {
                let value = value.map(|value| value.as_bytes().into());
                (row.as_bytes().to_vec(), value)
            });
            let settling = command.finish(rows.collect(), keys).ok()?;
            (runtime.block_on(settling) == Settled::Holds).then_some(())
        })
    });
}

fn partition(site: &Site, slot: u16) -> Option<std::sync::Arc<dyn Partition>> {
    match site.with(|node, _| node.cluster().route(slot)) {
        Route::Here(partition) => Some(partition),
        _ => None,
    }
}

/// The rows of a partition.
fn rows(site: &Site, slot: u16) -> BTreeMap<(u16, String), String> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let partition = until(std::slice::from_ref(site), "a leader", || partition(site, slot));
    let rows = partition
        .rows_after(None)
        .unwrap()
        .filter_map(|walked| match walked {
            Ok(Walked::Row(row)) => Some(((row.slot, text(&row.row)), text(&row.value))),
            Ok(Walked::Removed { .. }) => None,
            Err(error) => panic!("{error:?}"),
        });
    rows.collect()
}

fn keys(site: &Site, slot: u16) -> u64 {
    let partition = until(std::slice::from_ref(site), "a leader", || partition(site, slot));
    partition.key_count(slot..=slot).unwrap()
}

/// Brings what a replica has applied into tables.
fn flush(site: &Site, slot: u16) {
    let group = partition(site, slot).unwrap().group();
    site.with(|node, runtime| {
        let map = node.map().borrow().clone().unwrap();
        let replica = map.partitions[&group].members[0].replica;
        let replica = node.node().replica(replica).unwrap();
        runtime.block_on(replica.flush()).unwrap();
    });
}

fn write(to: &Path) {
    let site = Site::at(PEER.parse().unwrap(), CLIENT.parse().unwrap());
    let begin = |begin| site.try_start(options(&site), begin).unwrap();
    begin(bootstrap(1, 2));
    let one = std::slice::from_ref(&site);
    settled(one, 1, 2);
    for n in 0..5 {
        let (row, value) = (format!("k{n}"), format!("value {n}"));
        change(&site, 5, &[(&row, Some(&value))], 1);
    }
    change(&site, 9000, &[("other", Some("of another partition"))], 1);
    flush(&site, 5);
    site.close();
    begin(Begin::Start);
    settled(one, 1, 2);
    change(
        &site,
        5,
        &[("k1", Some("later")), ("k2", None), ("k9", Some(""))],
        0,
    );
    change(&site, 6, &[("k1", Some("of another slot"))], 1);
    site.kill();
    copy(site.dir.path(), to);
}

const CLUSTER: [u8; 16] = 0xb82f_bf31_15ff_880c_a591_f9ba_3922_8eb0_u128.to_be_bytes();
const DISK: [u8; 16] = 0xb28d_cb81_7285_23f0_1aa9_e7ee_616d_a66a_u128.to_be_bytes();

fn expected_map() -> Map {
    let cluster = ClusterRecord {
        id: CLUSTER,
        epoch: 2,
        level: 1,
        replicas: 1,
        partitions: 2,
        voters: 3,
        next_node: 2,
        next_replica: 4,
        next_group: 3,
    };
    let node = NodeRecord {
        number: 1,
        token: CLUSTER,
        peer: PEER.parse().unwrap(),
        client: CLIENT.parse().unwrap(),
        disks: vec![DISK],
        replica: 1,
        role: NodeRole::Serves,
        zone: String::new(),
        host: String::new(),
        drained: [].into(),
    };
    let partition = |group, first, last, replica| PartitionRecord {
        group,
        first,
        last,
        members: vec![MapMember {
            replica,
            node: 1,
            disk: 0,
        }],
        begins: replica,
        wanted: Vec::new(),
        changed: 0,
        split: None,
        from: 0,
    };
    Map {
        cluster,
        nodes: [(1, node)].into(),
        partitions: [(1, partition(1, 0, 8191, 2)), (2, partition(2, 8192, 16_383, 3))].into(),
        duplications: Duplications::default(),
    }
}

fn expected_identity() -> NodeIdentity {
    NodeIdentity {
        cluster: CLUSTER,
        node: 1,
        replica: 1,
        level: 1,
        asked: Asked {
            token: CLUSTER,
            peer: PEER.parse().unwrap(),
            client: CLIENT.parse().unwrap(),
            disks: vec![DISK],
        },
        founded: Some((1, 2, 3)),
    }
}

#[test]
fn a_nodes_directory_of_version_1_starts() {
    if std::env::var_os("COLLIE_WRITE_FIXTURE").is_some() && !fixture().exists() {
        write(&fixture());
    }
    let site = Site::at(PEER.parse().unwrap(), CLIENT.parse().unwrap());
    copy(&fixture(), site.dir.path());
    let mut expected: BTreeMap<_, _> = [
        (5, "k0", "value 0"),
        (5, "k1", "later"),
        (5, "k3", "value 3"),
        (5, "k4", "value 4"),
        (5, "k9", ""),
        (6, "k1", "of another slot"),
    ]
    .into_iter()
    .map(|(slot, row, value)| ((slot, row.to_owned()), value.to_owned()))
    .collect();
    for round in 0..2 {
        site.try_start(options(&site), Begin::Start).unwrap();
        let map = settled(std::slice::from_ref(&site), 1, 2);
        assert_eq!(*map, expected_map());
        assert_eq!(site.with(|node, _| node.identity().clone()), expected_identity());
        assert_eq!(rows(&site, 5), expected, "round {round}");
        assert_eq!((keys(&site, 5), keys(&site, 6), keys(&site, 9000)), (5, 1, 1));
        let other = [((9000, "other".to_owned()), "of another partition".to_owned())];
        assert_eq!(rows(&site, 9000), other.into());
        let value = format!("of round {round}");
        change(&site, 6, &[("k1", Some(&value))], 0);
        expected.insert((6, "k1".to_owned()), value);
        flush(&site, 5);
        match round {
            0 => site.close(),
            _ => site.kill(),
        }
    }
}
