//! Which log a replica is in, over changes of the layout and removals.

use std::path::Path;

use collie_cluster::Layout;
use collie_cluster::testing::{LeaderId, Vote};
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
