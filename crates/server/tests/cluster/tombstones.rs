//! Tombstones go when they are of no use any more.

use std::sync::atomic::Ordering;

use collie_io::{Clock, RealClock};
use collie_server::cluster::slot_of;

use crate::support::wait_for;
use crate::{Node, node};

const OWN: u64 = 5;
const HOUR_MS: u64 = 3_600_000;

/// A tombstone that was written then.
fn tombstone(written_ms: u64) -> Vec<u8> {
    [
        &[1][..],
        &7_u64.to_le_bytes(),
        &OWN.to_le_bytes(),
        &written_ms.to_le_bytes(),
    ]
    .concat()
}

fn count(node: &Node, key: &str) -> usize {
    node.fake.of(key).rows(slot_of(key.as_bytes()), b"d").len()
}

fn forget_before(node: &Node, before_ms: u64) {
    for partition in &node.fake.partitions {
        partition.forgets_before_ms.store(before_ms, Ordering::SeqCst);
    }
}

#[test]
fn tombstones_go_once_they_are_old_enough() {
    let node = node(2);
    node.fake.stamp(OWN);
    let mut client = node.client();
    let now_ms = RealClock.wall_ms();
    let slot = slot_of(b"t");
    // More than one evaluation removes, in several slots and both partitions.
    for number in 0..250 {
        let row = format!("d{{t}}{number}");
        let ago_ms = if number < 10 { HOUR_MS } else { 3 * HOUR_MS };
        node.fake
            .of("t")
            .plant(slot, row.as_bytes(), &tombstone(now_ms - ago_ms), 0);
    }
    for key in ["a", "b", "c", "foo", "bar"] {
        assert_eq!(client.line(&format!("SET {key} 1")), "+OK\r\n");
        assert_eq!(client.line(&format!("DEL {key}")), ":1\r\n");
    }
    assert_eq!(client.line("SET {t}x 1"), "+OK\r\n");
    let log = node.fake.of("t").log().len();
    assert!(
        node.fake
            .partitions
            .iter()
            .all(|partition| !partition.log().is_empty())
    );
    // Two sweeps and more: nothing is removed without a time.
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!((count(&node, "t"), count(&node, "foo")), (250, 1));
    forget_before(&node, now_ms - 2 * HOUR_MS);
    wait_for("the old ones go", || count(&node, "t") == 10);
    let removed = node.fake.of("t").log().split_off(log);
    assert!(
        removed
            .iter()
            .flatten()
            .all(|(row, value)| row[0] == b'd' && value.is_none())
    );
    assert!(removed.len() >= 3, "in parts: {}", removed.len());
    // Later: one walk removes what has become old in some minutes.
    for partition in &node.fake.partitions {
        partition.ahead_ms.store(HOUR_MS, Ordering::SeqCst);
    }
    forget_before(&node, now_ms + HOUR_MS / 2);
    for key in ["t", "a", "b", "c", "foo", "bar"] {
        wait_for("all go", || count(&node, key) == 0);
    }
    assert_eq!(client.line("DBSIZE"), ":1\r\n");
    assert_eq!(node.fake.checked_counts(), (1, 0));
}

#[test]
fn a_tombstone_that_was_written_anew_stays() {
    let node = node(1);
    node.fake.stamp(OWN);
    let mut client = node.client();
    let now_ms = RealClock.wall_ms();
    let partition = node.fake.of("key");
    partition.plant(slot_of(b"key"), b"dkey", &tombstone(now_ms - 3 * HOUR_MS), 0);
    // What is applied still has the old one when the sweeper comes.
    node.fake.hold();
    client.send(&crate::pipeline(&["SET key 1", "DEL key"]));
    wait_for("both are submitted", || partition.log().len() == 2);
    let begun = partition.begun();
    forget_before(&node, now_ms - 2 * HOUR_MS);
    wait_for("the sweeper has looked at it", || partition.begun() > begun);
    wait_for("it is done with it", || node.fake.is_unlocked());
    node.fake.release();
    assert_eq!(crate::reply(&mut client), "+OK\r\n");
    assert_eq!(crate::reply(&mut client), ":1\r\n");
    assert_eq!(partition.log().len(), 2);
    assert_eq!(count(&node, "key"), 1);
}

#[test]
fn a_partition_without_tombstones_is_walked_over_once() {
    let node = node(1);
    let mut client = node.client();
    assert_eq!(client.line("SET key 1"), "+OK\r\n");
    let partition = &node.fake.partitions[0];
    let walks = || partition.reads.load(Ordering::SeqCst);
    let rest = || std::thread::sleep(std::time::Duration::from_millis(1_700));
    rest();
    assert_eq!(walks(), 0, "it forgets nothing");
    node.fake.stamp(OWN);
    forget_before(&node, u64::MAX);
    wait_for("the first walk", || walks() == 1);
    rest();
    assert_eq!(walks(), 1);
    partition.ahead_ms.store(HOUR_MS, Ordering::SeqCst);
    wait_for("another one, later", || walks() == 2);
}
