//! All keys that a node leads: counted, listed, removed, and expired.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use collie_server::cluster::{Refused, Settled, slot_of};

use crate::fake::Role;
use crate::support::{Client, elements, sorted_names, until, wait_for};
use crate::{Node, node, pipeline, reply};

fn fill(node: &Node, keys: usize) {
    let mut client = node.client();
    for i in 0..keys {
        client.send(&pipeline(&[&format!("SET key{i} {i} PX {}", 1_000_000 + i)]));
        assert_eq!(reply(&mut client), "+OK\r\n");
    }
}

/// All names that a scan returns.
fn scan(client: &mut Client, options: &str) -> Vec<String> {
    let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
    loop {
        let page = client.line(&format!("SCAN {cursor}{options}")).into_bytes();
        let parts = elements(&page);
        cursor = crate::support::content(parts[0]);
        found.extend(elements(parts[1]).into_iter().map(crate::support::content));
        if cursor == "0" {
            return found;
        }
    }
}

#[test]
fn commands_over_all_keys_see_what_this_node_leads() {
    let node = node(8);
    fill(&node, 200);
    let mut client = node.client();
    assert_eq!(client.line("DBSIZE"), ":200\r\n");
    let all: BTreeSet<String> = (0..200).map(|i| format!("key{i}")).collect();
    let names = sorted_names(&client.call_raw(&["KEYS", "*"]));
    assert_eq!(names.len(), 200);
    assert_eq!(sorted_names(&client.call_raw(&["KEYS", "key1?"])).len(), 10);
    assert_eq!(scan(&mut client, "").into_iter().collect::<BTreeSet<_>>(), all);
    assert_eq!(scan(&mut client, " MATCH key1? COUNT 7").len(), 10);
    assert_eq!(scan(&mut client, " TYPE list"), [""; 0]);
    let info = client.line("INFO");
    assert!(
        info.contains("\r\ncluster_enabled:1\r\n") && info.contains("\r\ndb0:keys=200\r\n"),
        "{info}"
    );
    assert!(info.contains("\r\nredis_mode:cluster\r\n"));
    let drawn: BTreeSet<String> = (0..100).map(|_| client.text(&["RANDOMKEY"])).collect();
    assert!(drawn.len() > 10 && drawn.is_subset(&all), "{drawn:?}");
    let slot = slot_of(b"key7").to_string();
    assert_eq!(client.call(&["CLUSTER", "COUNTKEYSINSLOT", &slot]), ":1\r\n");
    assert_eq!(
        client.call(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]),
        "*1\r\n$4\r\nkey7\r\n"
    );
    // Half of them are led elsewhere.
    let addr = "10.0.0.7:6379".parse().unwrap();
    for partition in node.fake.partitions.iter().step_by(2) {
        partition.set_role(Role::Led(addr));
    }
    node.fake.wake();
    let led = all.iter().filter(|key| node.fake.leads(key)).count();
    assert!(led > 50 && led < 150);
    assert_eq!(client.line("DBSIZE"), format!(":{led}\r\n"));
    assert_eq!(scan(&mut client, "").len(), led);
    assert_eq!(sorted_names(&client.call_raw(&["KEYS", "*"])).len(), led);
    assert_eq!(client.line("FLUSHALL"), "+OK\r\n");
    assert_eq!(client.line("DBSIZE"), ":0\r\n");
    assert_eq!(client.line("RANDOMKEY"), "$-1\r\n");
    assert_eq!(node.fake.checked_counts(), (200 - led, 200 - led));
}

#[test]
fn a_scan_returns_every_key_that_exists_throughout() {
    let node = node(4);
    fill(&node, 300);
    let mut client = node.client();
    let (mut cursor, mut found, mut round) = ("0".to_owned(), BTreeSet::new(), 0);
    loop {
        let page = client.line(&format!("SCAN {cursor} COUNT 5")).into_bytes();
        let parts = elements(&page);
        cursor = crate::support::content(parts[0]);
        found.extend(elements(parts[1]).into_iter().map(crate::support::content));
        if cursor == "0" {
            break;
        }
        // Keys come and go in all slots, also the one that the cursor names.
        client.line(&format!("SET other{round} x"));
        client.line(&format!("DEL other{}", round / 2));
        if let Some(latest) = found.iter().find(|name| name.starts_with("other")) {
            client.line(&format!("DEL {latest}"));
        }
        round += 1;
    }
    for i in 0..300 {
        assert!(found.contains(&format!("key{i}")), "{i}");
    }
}

#[test]
fn commands_over_all_keys_see_earlier_writes_of_the_pipeline() {
    let node = node(4);
    let mut client = node.client();
    node.fake.hold();
    client.send(&pipeline(&[
        "SET a 1", "DBSIZE", "SET b 1", "KEYS *", "FLUSHALL", "DBSIZE",
    ]));
    wait_for("the first is submitted", || node.fake.of("a").log().len() == 1);
    let releasing = std::thread::spawn({
        let fake = node.fake.clone();
        move || fake.release()
    });
    assert_eq!(reply(&mut client), "+OK\r\n");
    assert_eq!(reply(&mut client), ":1\r\n");
    assert_eq!(reply(&mut client), "+OK\r\n");
    assert_eq!(sorted_names(&client.reply()).len(), 2);
    assert_eq!(reply(&mut client), "+OK\r\n");
    assert_eq!(reply(&mut client), ":0\r\n");
    releasing.join().unwrap();
}

#[test]
fn what_a_deposed_leader_lists_is_not_sent() {
    let node = node(4);
    fill(&node, 20);
    let mut client = node.client();
    node.fake.partitions[2].set_confirm(Settled::TryAgain);
    for line in ["DBSIZE", "KEYS *", "SCAN 0 COUNT 1000", "FLUSHALL"] {
        let refused = client.line(line);
        assert!(refused.starts_with("-TRYAGAIN "), "{line}: {refused}");
    }
}

#[test]
fn what_is_read_over_a_loss_of_leadership_is_not_sent() {
    let node = node(4);
    fill(&node, 20);
    let mut client = node.client();
    let slot = slot_of(b"key7").to_string();
    let (count, list) = (
        format!("CLUSTER COUNTKEYSINSLOT {slot}"),
        format!("CLUSTER GETKEYSINSLOT {slot} 10"),
    );
    let partition = node.fake.of("key7");
    for line in ["DBSIZE", "KEYS *", "SCAN 0 COUNT 1000", &count, &list] {
        partition.set_unstable(true);
        let refused = client.line(line);
        assert!(refused.starts_with("-TRYAGAIN "), "{line}: {refused}");
        partition.set_unstable(false);
        let sent = client.line(line);
        assert!(!sent.starts_with('-'), "{line}: {sent}");
    }
}

#[test]
fn a_flush_removes_keys_in_bounded_parts() {
    let node = node(2);
    let mut client = node.client();
    for part in 0..25 {
        let line = (0..100).fold("MSET".to_owned(), |line, i| line + &format!(" {{t}}{part}:{i} x"));
        assert_eq!(client.line(&line), "+OK\r\n");
    }
    let before = node.fake.of("{t}").log().len();
    node.fake.of("{t}").refuse_begin(Refused::Stale, 3);
    node.fake.of("{t}").refuse_finish(Refused::Stale, 2);
    assert_eq!(client.line("FLUSHDB ASYNC"), "+OK\r\n");
    let log = node.fake.of("{t}").log();
    let parts: Vec<usize> = log[before..].iter().map(Vec::len).collect();
    assert_eq!(parts, [1_000, 1_000, 500]);
    assert_eq!(node.fake.checked_counts(), (0, 0));
    // A part of which it is not known whether it was removed.
    client.line("SET {t}1 x");
    node.fake.of("{t}").set_fate("{t}1", Settled::Unknown);
    client.send(&pipeline(&["FLUSHALL", "PING"]));
    assert!(client.rest().starts_with("-UNKNOWN "));
}

#[test]
fn expired_keys_are_absent_at_once_and_swept_with_their_index() {
    let node = node(4);
    let mut client = node.client();
    fill(&node, 50);
    client.line("SET lasting 1");
    client.line("SET {t}renewed 1 PX 1000000");
    client.line("SET {t}renewed 1 PX 9000000");
    assert_eq!(node.fake.checked_counts(), (52, 51));
    // Written by another node, which is gone: nothing here says that it is due.
    let foreign = [&[1, 0x80][..], &5_u64.to_le_bytes(), b"v"].concat();
    let partition = node.fake.of("foreign");
    partition.plant(slot_of(b"foreign"), b"kforeign", &foreign, 1);
    partition.plant(
        slot_of(b"foreign"),
        &[&b"x"[..], &5_u64.to_be_bytes(), b"foreign"].concat(),
        b"",
        0,
    );
    // An entry whose key is gone.
    let stale = [&b"x"[..], &6_u64.to_be_bytes(), b"gone"].concat();
    node.fake.of("gone").plant(slot_of(b"gone"), &stale, b"", 0);
    // Entries of keys that have another expiry, or none.
    for key in ["{t}renewed", "lasting"] {
        let stale = [&b"x"[..], &7_u64.to_be_bytes(), key.as_bytes()].concat();
        node.fake.of(key).plant(slot_of(key.as_bytes()), &stale, b"", 0);
    }
    assert_eq!(client.line("GET foreign"), "$-1\r\n");
    let (mut short, mut watcher) = (node.client(), node.client());
    short.line("SET {w}short 1 PX 30");
    watcher.line("WATCH {w}short");
    // The sweeper looks into all slots in turn.
    wait_for("what is due is removed", || {
        node.fake.checked_counts() == (52, 51)
    });
    until(&mut client, "GET {w}short", "$-1\r\n");
    watcher.send(&pipeline(&["MULTI", "SET {w}x 1", "EXEC"]));
    watcher.reply();
    watcher.reply();
    assert_eq!(reply(&mut watcher), "*-1\r\n", "an expired key has changed");
    assert_eq!(client.line("EXISTS lasting"), ":1\r\n");
    assert_eq!(client.line("DBSIZE"), ":52\r\n");
    assert_eq!(client.line("TTL {t}renewed").len(), ":8999\r\n".len());
}

#[test]
fn a_pause_of_clients_sweeps_nothing() {
    let node = node(4);
    let mut client = node.client();
    client.send(&pipeline(&["SET k 1 PX 1000", "CLIENT PAUSE 1000000 WRITE"]));
    assert_eq!(
        (&*reply(&mut client), &*reply(&mut client)),
        ("+OK\r\n", "+OK\r\n")
    );
    until(&mut client, "GET k", "$-1\r\n");
    // As long as several sweeps take.
    for _ in 0..50 {
        assert_eq!(node.fake.checked_counts(), (1, 1));
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    client.line("CLIENT UNPAUSE");
    wait_for("it is removed", || node.fake.checked_counts() == (0, 0));
}

#[test]
fn a_write_that_finds_an_expired_key_counts_it_once() {
    let node = node(1);
    let mut client = node.client();
    // The clock of evaluations is ahead of the sweeper's.
    client.line("SET {t}a 1 PX 100000");
    client.line("SET {t}b 1 PX 100000");
    client.line("SET {t}c 1 PX 100000");
    node.fake.of("{t}").ahead_ms.store(200_000, Ordering::SeqCst);
    assert_eq!(client.line("EXISTS {t}a {t}b {t}c"), ":0\r\n");
    assert_eq!(client.line("INCR {t}a"), ":1\r\n");
    assert_eq!(client.line("DEL {t}b"), ":0\r\n");
    assert_eq!(client.line("SET {t}c 1 NX PX 50000"), "+OK\r\n");
    assert_eq!(client.line("TTL {t}a"), ":-1\r\n");
    let (keys, entries) = node.fake.checked_counts();
    assert_eq!((keys, entries), (3, 2));
}
