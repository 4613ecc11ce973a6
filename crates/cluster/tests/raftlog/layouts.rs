//! Which log a replica is in, over changes of the layout and removals.

use std::path::Path;

use collie_cluster::Layout;
use collie_cluster::testing::{Entry, EntryId, LeaderId, Vote};
use collie_io::Device;
use collie_sim::SimDevice;

use crate::driver::{Node, Setup};
use crate::plain::found;

fn names(device: &SimDevice, dir: &str) -> Vec<String> {
    let names = device.list(Path::new(dir)).unwrap();
    names.into_iter().map(|name| name.name).collect()
}

/// Opened in another layout, a node finds its replicas where they are; new ones go elsewhere.
#[test]
fn a_replica_stays_in_its_log_when_the_layout_changes() {
    let node = Node::start(Setup::plain(Layout::Shared), SimDevice::new(1));
    let vote = Vote {
        leader: LeaderId { term: 5, replica: 2 },
        committed: true,
    };
    node.drive(node.replica(3).save_vote(vote)).unwrap();
    let (device, before) = (node.device.clone(), found(&node.store, 1..=8));
    node.close();
    let private = Node::start_at(Setup::plain(Layout::Private), device.clone(), 8);
    assert_eq!(found(&private.store, 1..=8), before);
    assert_eq!(private.replica(3).vote(), Some(vote));
    let here = names(&device, "/disk0/raft");
    let own = here.iter().filter(|name| name.starts_with("replica-")).count();
    assert_eq!((own, here.len()), (8, 9), "{here:?}");
    private.close();
    let store = Setup::plain(Layout::PerDisk).open(&device).unwrap();
    assert_eq!(store.replicas().len(), 16);
    assert_eq!(names(&device, "/disk1/raft"), ["shared"]);
}

/// Its tombstone is in the shared log.
#[test]
fn the_private_log_of_a_removed_replica_is_gone() {
    let node = Node::start(Setup::plain(Layout::Private), SimDevice::new(2));
    node.drive(node.store.remove(2, 3)).unwrap();
    let here = names(&node.device, "/disk0/raft");
    assert!(!here.iter().any(|name| name.contains("replica-3")), "{here:?}");
    let again = node.drive(node.store.create(2, 3, 0)).unwrap_err();
    assert!(again.to_string().contains("was removed"), "{again}");
    let device = node.device.clone();
    node.close();
    let store = Setup::plain(Layout::Private).open(&device).unwrap();
    assert!(store.replica(3).unwrap_err().to_string().contains("was removed"));
    assert_eq!(store.replicas().len(), 7);
}

/// Appends an entry, and waits until it is on the device.
fn append(node: &Node, id: u64, index: u64) {
    let leader = LeaderId { term: 1, replica: id };
    let entry = Entry {
        id: EntryId { leader, index },
        payload: vec![7; 100].into(),
    };
    let replica = node.replica(id);
    node.drive(replica.append(vec![entry], |_| {})).unwrap();
    node.flush();
}

/// What an earlier attempt left goes, and the replica holds the log all the same.
#[test]
fn a_replica_holds_its_log_after_an_attempt_that_failed() {
    let node = Node::start(Setup::plain(Layout::PerDisk), SimDevice::new(4));
    append(&node, 1, 0);
    for _ in 0..2 {
        let stopped = node.drive(node.store.move_replica(1, 1, &|| false));
        stopped.unwrap_err();
        append(&node, 1, node.replica(1).bounds().last.unwrap().index + 1);
    }
    assert!(node.drive(node.store.move_replica(1, 1, &|| true)).unwrap());
    node.flush();
    let to = node.store.logs().remove(1);
    let holders = to.log().holders();
    let held = holders
        .iter()
        .any(|(name, _)| name.starts_with("raft/replica 1 of group 0"));
    assert!(held, "{holders:?}");
    assert_eq!(node.replica(1).read(0..10).unwrap().len(), 3);
}

/// Its copies in other logs, which were given up, are found after a stop, and go as it has.
#[test]
fn copies_of_a_removed_replica_go() {
    let node = Node::start(Setup::plain(Layout::PerDisk), SimDevice::new(5));
    append(&node, 1, 0);
    for _ in 0..2 {
        node.drive(node.store.move_replica(1, 1, &|| false)).unwrap_err();
    }
    node.drive(node.store.remove(0, 1)).unwrap();
    let device = node.device.snapshot().process_death().device();
    let store = Setup::plain(Layout::PerDisk).open(&device).unwrap();
    assert!(store.quarantined().is_empty(), "{:?}", store.quarantined());
}
