//! What a node's logs do not take, and what they do not open with.

use std::path::Path;
use std::sync::Arc;

use collie_cluster::Layout;
use collie_cluster::testing::frames::KIND_ENTRIES;
use collie_cluster::testing::{Entry, EntryId, LeaderId, StoreError};
use collie_io::{Device, OpenMode, read_exact_at, write_all_at};
use collie_log::{FRAME_HEADER, Level, Log, LogOptions, RingMode, inspect};
use collie_sim::SimDevice;

use crate::driver::{Node, Setup};

fn entry(index: u64) -> Entry {
    let leader = LeaderId { term: 1, replica: 3 };
    let id = EntryId { leader, index };
    let payload = vec![7; 100].into();
    Entry { id, payload }
}

#[test]
fn entries_follow_each_other_and_purged_ones_stay_so() {
    let node = Node::start(Setup::plain(Layout::Shared), SimDevice::new(1));
    let replica = node.replica(3);
    let order = |refused: Result<(), StoreError>, problem: &str| match refused {
        Err(StoreError::Order {
            replica: 3,
            problem: said,
        }) => assert_eq!(said, problem),
        other => panic!("{other:?}"),
    };
    let append = |entries: &[u64]| {
        let entries = entries.iter().copied().map(entry).collect();
        node.drive(replica.append(entries, |_| {}))
    };
    append(&[1, 2, 3]).unwrap();
    order(append(&[5]), "entry 5 does not follow entry 3");
    order(append(&[3]), "entry 3 does not follow entry 3");
    order(append(&[4, 6]), "entry 6 does not follow entry 4");
    order(
        append(&[u64::MAX]),
        "entry 18446744073709551615 does not follow entry 3",
    );
    order(replica.wait_durable(4), "entry 4 is not in the log");
    node.drive(replica.purge(entry(2).id)).unwrap();
    let truncated = node.drive(replica.truncate(Some(entry(1).id)));
    order(truncated, "entries that were purged cannot be truncated");
    // Nothing of it was appended.
    append(&[4]).unwrap();
    assert_eq!(replica.bounds().last, Some(entry(4).id));
}

#[test]
fn a_replica_that_is_there_is_not_created_again() {
    for layout in [Layout::Shared, Layout::PerDisk, Layout::Private] {
        let node = Node::start(Setup::plain(layout), SimDevice::new(2));
        let again = node.drive(node.store.create(7, 3, 0)).unwrap_err();
        assert!(
            matches!(again, StoreError::Exists { group: 7, replica: 3 }),
            "{again}"
        );
    }
}

fn copy(device: &SimDevice, from: &Path, to: &Path) {
    device.create_dir_all(to).unwrap();
    for entry in device.list(from).unwrap() {
        let source = device.open(&from.join(&entry.name), OpenMode::Read).unwrap();
        let mut bytes = vec![0; source.stat().unwrap().len as usize];
        read_exact_at(&*source, &mut bytes, 0).unwrap();
        let target = device.open(&to.join(&entry.name), OpenMode::CreateNew).unwrap();
        write_all_at(&*target, &bytes, 0).unwrap();
    }
}

/// Also where the copy is whole, and damage has taken frames of the log that it was made from: the copy
/// may be of before a vote.
#[test]
fn a_log_that_was_copied_to_another_disk_is_refused() {
    let (log, copied) = (
        Path::new("/disk0/raft/replica-3"),
        Path::new("/disk1/raft/replica-3"),
    );
    for is_damaged in [false, true] {
        let node = Node::start(Setup::plain(Layout::Private), SimDevice::new(3));
        let replica = node.replica(3);
        node.drive(replica.append(vec![entry(1), entry(2)], |_| {}))
            .unwrap();
        node.drive(replica.append(vec![entry(3)], |_| {})).unwrap();
        let device = node.device.clone();
        node.close();
        copy(&device, log, copied);
        let mut image = device.snapshot().process_death();
        if is_damaged {
            let mut first = None;
            let device: Arc<dyn Device> = Arc::new(device);
            inspect::inspect(&device, log, |frame| {
                if frame.kind == KIND_ENTRIES && first.is_none() {
                    first = frame.place.map(|(path, at)| (path.to_owned(), at));
                }
            })
            .unwrap();
            let (path, at) = first.unwrap();
            assert!(image.flip_bit(&path, 8 * (at + FRAME_HEADER as u64 + 3)));
        }
        let device = image.device();
        match Setup::plain(Layout::PerDisk).open(&device).unwrap_err() {
            StoreError::TwoLogs { replica: 3, paths } => assert_eq!(paths, [log, copied]),
            other => panic!("{other}"),
        }
        device.remove_dir_all(copied).unwrap();
        let store = Setup::plain(Layout::PerDisk).open(&device).unwrap();
        let found = (store.replicas().len(), store.quarantined().len());
        assert_eq!(found, if is_damaged { (7, 1) } else { (8, 0) });
    }
}

/// A later version may have kinds of frames that this one does not know.
#[test]
fn a_frame_of_another_version_is_refused_with_its_place() {
    let node = Node::start(Setup::plain(Layout::Shared), SimDevice::new(4));
    let device = node.device.clone();
    node.close();
    let options = LogOptions {
        device: Arc::new(device.clone()),
        ring: RingMode::Private,
        ring_bytes: 64 << 10,
        segment_bytes: 32 << 10,
        threads: false,
        ..LogOptions::default()
    };
    let log = Log::open("/disk0/raft/shared", options).unwrap();
    let at = log.worker().unwrap().append(3, 99, &[0; 20]).unwrap();
    log.flush(Level::Disk).unwrap();
    log.close().unwrap();
    match Setup::plain(Layout::Shared).open(&device).unwrap_err() {
        error @ StoreError::Frame { lsn, stream: 3, .. } if lsn == at.start => {
            assert!(
                error
                    .to_string()
                    .contains("open it with the version that wrote it"),
                "{error}"
            );
        }
        other => panic!("{other}"),
    }
}
