//! What keeps the log short.

use std::sync::Mutex;

use collie_cluster::Layout;
use collie_cluster::testing::{Entry, EntryId, LeaderId, NodeLog, ReplicaId, StoreError, Vote};
use collie_sim::SimDevice;

use crate::driver::{Node, Setup};
use crate::plain::found;

const LIMIT: u64 = 400 << 10;

fn node(seed: u64) -> Node {
    let setup = Setup {
        layout: Layout::Shared,
        shared_ring: false,
        direct: false,
        cache_bytes: 20_000,
        log_limit: LIMIT,
        free_min: 0,
        moves: false,
    };
    Node::start(setup, SimDevice::new(seed))
}

fn log(node: &Node) -> NodeLog {
    node.store.logs().remove(0)
}

const LEADER: LeaderId = LeaderId { term: 1, replica: 1 };

/// Appends entries of 1,000 bytes.
fn append(node: &Node, replica: ReplicaId, indexes: std::ops::Range<u64>) {
    for index in indexes {
        let id = EntryId {
            leader: LEADER,
            index,
        };
        let payload = vec![index as u8; 1_000].into();
        let entries = vec![Entry { id, payload }];
        node.drive(node.replica(replica).append(entries, |_| {})).unwrap();
    }
}

/// One replica is busy and purges, the others are quiet after a vote and a few entries.
#[test]
fn quiet_replicas_do_not_hold_the_log_for_ever() {
    let node = node(1);
    for replica in 2..=8 {
        append(&node, replica, 0..3);
        let vote = Vote {
            leader: LEADER,
            committed: true,
        };
        node.drive(node.replica(replica).save_vote(vote)).unwrap();
    }
    let log = log(&node);
    for round in 0..200_u64 {
        append(&node, 1, round * 10..round * 10 + 10);
        let index = round * 10 + 9;
        node.drive(node.replica(1).purge(EntryId {
            leader: LEADER,
            index,
        }))
        .unwrap();
        node.flush();
        node.drive(log.maintain(&|id| panic!("replica {id} has few entries")))
            .unwrap();
        node.flush();
        log.admit().unwrap();
    }
    let stats = log.stats();
    assert!(
        stats.rewrites > 7 && stats.refused == 0 && stats.flushes == 0,
        "{stats:?}"
    );
    assert!(
        stats.used < LIMIT && log.log().durable() > 4 * LIMIT + (1 << 32),
        "{stats:?}"
    );
    assert!(stats.cached < 50_000, "{stats:?}");
    // The log begins in the middle of every stream by now.
    let (setup, device, before) = (node.setup, node.device.clone(), found(&node.store, 1..=8));
    node.close();
    let store = setup.open(&device).unwrap();
    assert!(store.quarantined().is_empty(), "{:?}", store.quarantined());
    assert_eq!(found(&store, 1..=8), before);
    for replica in 2..=8 {
        let replica = store.replica(replica).unwrap();
        let entries = replica.read(0..10).unwrap();
        let payloads: Vec<_> = entries.iter().map(|entry| entry.payload[999]).collect();
        let committed = replica.vote().map(|vote| vote.committed);
        assert_eq!((payloads, committed), (vec![0, 1, 2], Some(true)));
    }
}

/// A replica with more entries than are rewritten is asked to flush; as long as it does not purge,
/// its name is in the refusals, and what is no proposal goes on.
#[test]
fn a_replica_that_does_not_purge_is_named_where_the_log_is_full() {
    let setup = Setup {
        log_limit: 3 << 20,
        ..node(2).setup
    };
    let node = Node::start(setup, SimDevice::new(2));
    let log = log(&node);
    let asked = Mutex::new(Vec::new());
    let mut index = 0;
    let refused = loop {
        if let Err(refused) = log.admit() {
            break refused;
        }
        append(&node, 3, index..index + 100);
        index += 100;
        node.flush();
        node.drive(log.maintain(&|id| asked.lock().unwrap().push(id)))
            .unwrap();
        node.flush();
    };
    assert!(asked.lock().unwrap().iter().all(|id| *id == 3) && !asked.lock().unwrap().is_empty());
    match &refused {
        StoreError::Full { holder, .. } => assert_eq!(holder, "raft/replica 3 of group 2", "{refused}"),
        other => panic!("{other}"),
    }
    assert!(refused.to_string().starts_with("BUSY log full ("), "{refused}");
    assert!(log.stats().refused == 1 && log.stats().flushes > 0);
    append(&node, 3, index..index + 1);
    let through = EntryId {
        leader: LEADER,
        index: index - 10,
    };
    node.drive(node.replica(3).purge(through)).unwrap();
    node.flush();
    node.drive(log.maintain(&|_| {})).unwrap();
    node.flush();
    append(&node, 3, index + 1..index + 2);
    node.flush();
    log.admit().unwrap();
}

/// A crash before the purge is durable finds the entries that it purged wanted.
#[test]
fn the_log_lets_go_of_entries_once_their_purge_is_durable() {
    let node = node(3);
    append(&node, 1, 0..50);
    // From here on only entries stand where they were.
    node.drive(node.replica(1).rewrite(false)).unwrap();
    node.flush();
    let held_from = || {
        let all = log(&node).log().holders();
        let own = all
            .into_iter()
            .find(|(name, _)| name == "raft/replica 1 of group 0");
        own.unwrap().1
    };
    let before = held_from();
    let through = EntryId {
        leader: LEADER,
        index: 40,
    };
    node.drive(node.replica(1).purge(through)).unwrap();
    assert_eq!(held_from(), before, "not durable yet");
    node.flush();
    assert!(held_from() > before);
}

/// The limit is far away, and the disk is not: a quarter of it is to be free.
#[test]
fn little_room_on_the_disk_keeps_the_log_short() {
    for free_min in [0, 8 << 20] {
        let setup = Setup {
            log_limit: 1 << 30,
            free_min,
            ..node(4).setup
        };
        let node = Node::start(setup, SimDevice::new(4));
        append(&node, 2, 0..3);
        node.device.limit_space(Some(4 << 20));
        let log = log(&node);
        for round in 0..280_u64 {
            append(&node, 1, round * 10..round * 10 + 10);
            let index = round * 10 + 9;
            node.drive(node.replica(1).purge(EntryId {
                leader: LEADER,
                index,
            }))
            .unwrap();
            node.flush();
            node.drive(log.maintain(&|id| panic!("replica {id} has few entries")))
                .unwrap();
            node.flush();
        }
        let stats = log.stats();
        let is_short = stats.used < 1 << 20 && stats.rewrites > 0;
        assert_eq!(is_short, free_min > 0, "{stats:?}");
    }
}
