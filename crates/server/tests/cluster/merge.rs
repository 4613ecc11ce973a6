//! `COLLIE.MERGE`: rows of another cluster are taken over where they are newer, with their stamps.

use std::sync::atomic::Ordering;

use collie_io::{Clock, RealClock};
use collie_server::cluster::slot_of;
use collie_server::duplication::{Stamp, record, rows_of, stamp_of};

use crate::support::{Client, command, content, elements, start, wait_for};
use crate::{Node, node, reply};

/// The cluster of the node, and another one.
const OWN: u64 = 5;
const OTHER: u64 = 8;
const KEY: &str = "{t}key";

fn stamping(partitions: u16) -> Node {
    let node = node(partitions);
    node.fake.stamp(OWN);
    node
}

/// The header and the payload of a record.
type Sent = (Vec<u8>, Vec<u8>);

/// A record of the other cluster: a value, or that the key was removed.
fn of(time: u64, origin: u64, value: Option<(&str, Option<u64>)>) -> Sent {
    let form = if value.is_some() { b'k' } else { b'd' };
    let mut bytes = [&[1, form][..], &time.to_le_bytes(), &origin.to_le_bytes()].concat();
    if let Some((_, expiry_ms)) = value {
        bytes.push(if expiry_ms.is_some() { 0x80 } else { 0 });
        bytes.extend(expiry_ms.iter().flat_map(|expiry_ms| expiry_ms.to_le_bytes()));
    }
    let payload = value.map_or("", |(payload, _)| payload);
    (bytes, payload.as_bytes().to_vec())
}

fn put(time: u64, value: &str) -> Sent {
    of(time, OTHER, Some((value, None)))
}

fn removal(time: u64) -> Sent {
    of(time, OTHER, None)
}

fn merge(client: &mut Client, rows: &[(&str, Sent)]) -> String {
    let mut args = vec![b"COLLIE.MERGE".to_vec()];
    for (key, (header, payload)) in rows {
        args.extend([key.as_bytes().to_vec(), header.clone(), payload.clone()]);
    }
    client.send(&command(&args));
    reply(client)
}

/// The stamp of a key's row, and whether that is a tombstone.
fn stored(node: &Node, key: &str) -> Option<(Stamp, bool)> {
    let partition = node.fake.of(key);
    let found = rows_of(key.as_bytes()).map(|row| {
        let mut rows = partition.rows(slot_of(key.as_bytes()), &row);
        rows.retain(|(own, _)| *own == row);
        rows.pop()
            .map(|(row, stored)| (stamp_of(&row, &stored, OWN).unwrap(), row[0] == b'd'))
    });
    assert!(
        found[0].is_none() || found[1].is_none(),
        "{key} has a value and a tombstone"
    );
    found.into_iter().flatten().next()
}

fn stamp(time: u64) -> Stamp {
    Stamp { time, origin: OTHER }
}

fn now_ms() -> u64 {
    RealClock.wall_ms()
}

#[test]
fn the_last_stamp_wins_in_any_order() {
    let node = stamping(2);
    let mut client = node.client();
    for (record, taken, value, after) in [
        (put(10, "a"), 1, Some("a"), (10, false)),
        (put(10, "a"), 0, Some("a"), (10, false)),
        (put(9, "older"), 0, Some("a"), (10, false)),
        (removal(10), 0, Some("a"), (10, false)),
        (put(11, "b"), 1, Some("b"), (11, false)),
        (removal(12), 1, None, (12, true)),
        (removal(12), 0, None, (12, true)),
        (put(11, "b"), 0, None, (12, true)),
        (put(12, "c"), 0, None, (12, true)),
        (removal(13), 1, None, (13, true)),
        (put(14, "d"), 1, Some("d"), (14, false)),
        (removal(13), 0, Some("d"), (14, false)),
    ] {
        assert_eq!(merge(&mut client, &[(KEY, record)]), format!(":{taken}\r\n"));
        assert_eq!(stored(&node, KEY), Some((stamp(after.0), after.1)));
        let exists = usize::from(value.is_some());
        assert_eq!(client.line("DBSIZE"), format!(":{exists}\r\n"));
        assert_eq!(
            content(client.line(&format!("GET {KEY}")).as_bytes()),
            value.unwrap_or("$-1")
        );
        assert_eq!(node.fake.checked_counts(), (exists, 0));
    }
    // Of the same time, the greater origin.
    let tie = |origin| of(14, origin, Some(("e", None)));
    assert_eq!(merge(&mut client, &[(KEY, tie(OTHER - 1))]), ":0\r\n");
    assert_eq!(merge(&mut client, &[(KEY, tie(OTHER + 1))]), ":1\r\n");
    // A key that neither has, and one whose value has no stamp yet.
    assert_eq!(merge(&mut client, &[("{t}gone", removal(1))]), ":1\r\n");
    assert_eq!(stored(&node, "{t}gone"), Some((stamp(1), true)));
    node.fake
        .of("old")
        .plant(slot_of(b"old"), b"kold", b"\x01\0before", 1);
    assert_eq!(
        merge(&mut client, &[("old", of(0, OWN, Some(("own", None))))]),
        ":0\r\n"
    );
    assert_eq!(
        merge(&mut client, &[("old", of(0, OWN + 1, Some(("after", None))))]),
        ":1\r\n"
    );
    assert_eq!(client.line("GET old"), "$5\r\nafter\r\n");
    node.fake.checked_counts();
}

#[test]
fn several_rows_of_one_slot_are_taken_at_once() {
    let node = stamping(2);
    let mut client = node.client();
    let rows = [
        ("{t}a", put(10, "1")),
        ("{t}b", removal(10)),
        ("{t}c", put(10, "3")),
        ("{t}a", put(9, "older")),
        ("{t}c", removal(11)),
        ("{t}c", put(12, "4")),
    ];
    assert_eq!(merge(&mut client, &rows), ":5\r\n");
    assert_eq!(
        client.line("MGET {t}a {t}b {t}c"),
        "*3\r\n$1\r\n1\r\n$-1\r\n$1\r\n4\r\n"
    );
    assert_eq!(merge(&mut client, &rows), ":0\r\n");
    assert_eq!(node.fake.of("{t}a").log().len(), 1, "one commit");
    assert_eq!(node.fake.checked_counts(), (2, 0));
    let other = [("{t}a", put(20, "1")), ("{u}a", put(20, "1"))];
    assert!(merge(&mut client, &other).starts_with("-CROSSSLOT "));
    assert_eq!(stored(&node, "{t}a"), Some((stamp(10), false)));
}

#[test]
fn writes_of_clients_win_over_what_was_merged_before() {
    let node = stamping(1);
    let mut client = node.client();
    // Of a clock that is an hour ahead.
    let ahead = (now_ms() + 3_600_000) << 16;
    assert_eq!(merge(&mut client, &[(KEY, put(ahead, "1"))]), ":1\r\n");
    let mut before = stamp(ahead);
    for (line, is_removal) in [
        ("INCR {t}key", false),
        ("PEXPIRE {t}key 1000000", false),
        ("DEL {t}key", true),
        ("SET {t}key 5", false),
        ("RENAME {t}key {t}other", true),
        ("COPY {t}other {t}key", false),
        ("FLUSHALL", true),
        ("COLLIE.ONCE {t}key me 1 APPEND {t}key x", false),
    ] {
        let reply = client.line(line);
        assert!(!reply.starts_with('-'), "{line}: {reply}");
        let (after, has_tombstone) = stored(&node, KEY).unwrap();
        assert_eq!((after.origin, has_tombstone), (OWN, is_removal), "{line}");
        assert!(after > before, "{line}: {after:?} behind {before:?}");
        before = after;
    }
    // Those of the clock are ahead of those of a transaction's first command by one, too.
    for line in ["MULTI", "SET {t}key 6", "DEL {t}key", "EXEC"] {
        client.line(line);
    }
    let (after, has_tombstone) = stored(&node, KEY).unwrap();
    assert!(after > before && has_tombstone);
    node.fake.checked_counts();
}

#[test]
fn an_expiry_comes_with_its_value_and_its_index_entry() {
    let node = stamping(1);
    let mut client = node.client();
    let later = |seconds: u64| now_ms() + seconds * 1_000;
    let with = |time, expiry_ms| of(time, OTHER, Some(("v", Some(expiry_ms))));
    assert_eq!(merge(&mut client, &[(KEY, with(10, later(100)))]), ":1\r\n");
    assert_eq!(node.fake.checked_counts(), (1, 1));
    let expiry_ms = later(1_000);
    assert_eq!(merge(&mut client, &[(KEY, with(11, expiry_ms))]), ":1\r\n");
    assert_eq!(node.fake.checked_counts(), (1, 1));
    assert_eq!(client.line("PEXPIRETIME {t}key"), format!(":{expiry_ms}\r\n"));
    assert_eq!(merge(&mut client, &[(KEY, put(12, "v"))]), ":1\r\n");
    assert_eq!(node.fake.checked_counts(), (1, 0));
    assert_eq!(merge(&mut client, &[(KEY, with(13, later(100)))]), ":1\r\n");
    assert_eq!(merge(&mut client, &[(KEY, removal(14))]), ":1\r\n");
    assert_eq!(node.fake.checked_counts(), (0, 0));
    // What has expired is a removed key with the same stamp.
    assert_eq!(merge(&mut client, &[(KEY, with(15, now_ms() - 1_000))]), ":1\r\n");
    assert_eq!(stored(&node, KEY), Some((stamp(15), true)));
    assert_eq!(node.fake.checked_counts(), (0, 0));
    // And so is what expires here, whether the sweeper comes or a client empties all.
    assert_eq!(merge(&mut client, &[(KEY, with(16, later(1_000_000)))]), ":1\r\n");
    node.fake.of(KEY).ahead_ms.store(2_000_000_000, Ordering::SeqCst);
    assert_eq!(client.line("FLUSHALL"), "+OK\r\n");
    assert_eq!(stored(&node, KEY), Some((stamp(16), true)));
    node.fake.of(KEY).ahead_ms.store(0, Ordering::SeqCst);
    assert_eq!(merge(&mut client, &[(KEY, with(17, now_ms() + 300))]), ":1\r\n");
    wait_for("it is swept", || stored(&node, KEY) == Some((stamp(17), true)));
    assert_eq!(node.fake.checked_counts(), (0, 0));
}

#[test]
fn watched_keys_change_where_a_row_is_taken() {
    let node = stamping(1);
    let (mut one, mut other) = (node.client(), node.client());
    let mut run = |record: Option<Sent>| {
        for line in ["WATCH {t}key", "MULTI"] {
            assert_eq!(one.line(line), "+OK\r\n");
        }
        one.line("ECHO x");
        if let Some(record) = record {
            merge(&mut other, &[(KEY, record)]);
        }
        one.line("EXEC").starts_with("*1")
    };
    assert!(run(None));
    assert!(!run(Some(put(10, "a"))));
    assert!(run(Some(put(9, "older"))), "it is not taken");
    assert!(!run(Some(removal(11))));
    assert!(run(Some(removal(12))), "it was not there, and is not");
    assert!(!run(Some(put(13, "b"))));
}

#[test]
fn what_is_refused_changes_nothing() {
    let node = stamping(1);
    let mut client = node.client();
    let good = put(10, "a");
    for (bad, expected) in [
        (
            b"\x02k".to_vec(),
            "format version 2, this server takes version 1: use a newer server",
        ),
        (good.0[..17].to_vec(), "17 bytes, expected 18 or more"),
        (
            b"\x01z".to_vec(),
            "'z', expected 'k' for a value or 'd' for a removed key",
        ),
    ] {
        let refused = merge(
            &mut client,
            &[("{t}a", good.clone()), ("{t}b", (bad, Vec::new()))],
        );
        let expected = format!("-ERR argument 5 is no header that COLLIE.MERGE takes: it has {expected}\r\n");
        assert_eq!(refused, expected);
    }
    let hours = |hours: u64| put((now_ms() + hours * 3_600_000) << 16, "ahead");
    let refused = merge(&mut client, &[("{t}a", good.clone()), ("{t}b", hours(25))]);
    assert!(
        refused.starts_with("-ERR argument 5 was written more than a day after"),
        "{refused}"
    );
    let refused = client.line("COLLIE.MERGE {t}a x y {t}b");
    assert!(
        refused.starts_with("-ERR wrong number of arguments for 'collie.merge'"),
        "{refused}"
    );
    let refused = client.line("COLLIE.MERGE {t}a");
    assert!(refused.starts_with("-ERR wrong number of arguments"), "{refused}");
    client.line("MULTI");
    let refused = merge(&mut client, &[(KEY, good.clone())]);
    assert_eq!(refused, "-ERR Command not allowed inside a transaction\r\n");
    client.line("DISCARD");
    let long = "k".repeat(65_600);
    let refused = merge(&mut client, &[(&long, good.clone())]);
    assert!(
        refused.starts_with("-ERR the key has 65600 bytes, the limit is "),
        "{refused}"
    );
    assert!(node.fake.partitions[0].log().is_empty());
    // A partition that does not stamp.
    *node.fake.of(KEY).stamps.lock().unwrap() = None;
    let refused = merge(&mut client, &[(KEY, good.clone())]);
    assert!(
        refused.starts_with("-ERR this cluster is no target of a duplication: "),
        "{refused}"
    );
    assert!(node.fake.partitions[0].log().is_empty());
    // A server without a cluster.
    let dir = tempfile::tempdir().unwrap();
    let alone = start(dir.path(), crate::support::config());
    let refused = merge(&mut alone.client(), &[(KEY, good)]);
    assert!(
        refused.starts_with("-ERR COLLIE.MERGE is for clusters: "),
        "{refused}"
    );
}

#[test]
fn a_large_row_goes_from_one_cluster_to_another() {
    let (source, target) = (stamping(1), stamping(1));
    let (mut from, mut to) = (source.client(), target.client());
    let large = "v".repeat(300_000);
    from.send(&command(&["SET", KEY, &large, "PX", "1000000"]));
    assert_eq!(reply(&mut from), "+OK\r\n");
    let send = |of: &Node, to: &mut Client| {
        let rows = of.fake.of(KEY).rows(slot_of(KEY.as_bytes()), b"");
        let (row, stored) = rows.iter().find(|(row, _)| row[0] != b'x').unwrap();
        let record = record(row, stored, OTHER).unwrap();
        merge(to, &[(KEY, (record.header, record.payload.to_vec()))])
    };
    assert_eq!(send(&source, &mut to), ":1\r\n");
    assert_eq!(send(&source, &mut to), ":0\r\n");
    assert_eq!(send(&target, &mut from), ":0\r\n", "it is what came from there");
    assert_eq!(
        to.line(&format!("GET {KEY}")).len(),
        large.len() + "$300000\r\n\r\n".len()
    );
    assert_eq!(from.line("PEXPIRETIME {t}key"), to.line("PEXPIRETIME {t}key"));
    assert_eq!(to.line("DEL {t}key"), ":1\r\n");
    assert_eq!(send(&target, &mut from), ":1\r\n");
    assert_eq!(from.line("EXISTS {t}key"), ":0\r\n");
    assert_eq!(stored(&source, KEY), stored(&target, KEY));
}

/// The names in a reply, sorted.
fn names(reply: &[u8]) -> Vec<String> {
    let mut names: Vec<_> = elements(reply).into_iter().map(content).collect();
    names.sort_unstable();
    names
}

#[test]
fn no_command_finds_tombstones() {
    let node = stamping(1);
    let mut client = node.client();
    // Slots with keys behind tombstones, one of them without a name, and a slot with tombstones alone.
    let beside = |slot| {
        let names = (0..).map(|number: u32| number.to_string());
        names.filter(move |name| slot_of(name.as_bytes()) == slot).take(3)
    };
    for name in beside(slot_of(b"")).chain(beside(7)) {
        assert_eq!(merge(&mut client, &[(&name, removal(10))]), ":1\r\n");
    }
    for number in 0..40 {
        assert_eq!(
            merge(&mut client, &[(&format!("{{t}}{number}"), removal(10))]),
            ":1\r\n"
        );
    }
    for key in ["{t}1", "{t}x", "", "other"] {
        client.send(&command(&["SET", key, "v"]));
        assert_eq!(reply(&mut client), "+OK\r\n");
    }
    assert_eq!(client.line("DBSIZE"), ":4\r\n");
    let all = ["", "other", "{t}1", "{t}x"];
    let found = client.call_raw(&["SCAN", "0", "COUNT", "100"]);
    assert_eq!(names(elements(&found)[1]), all);
    assert_eq!(names(&client.call_raw(&["KEYS", "*"])), all);
    let slot = slot_of(b"t").to_string();
    assert_eq!(client.line(&format!("CLUSTER COUNTKEYSINSLOT {slot}")), ":2\r\n");
    let found = client.call_raw(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]);
    assert_eq!(names(&found), all[2..]);
    for _ in 0..20 {
        let found = content(&client.call_raw(&["RANDOMKEY"]));
        assert!(all.contains(&&*found), "{found}");
    }
    assert_eq!(client.line("FLUSHALL"), "+OK\r\n");
    assert_eq!(client.line("DBSIZE"), ":0\r\n");
    assert_eq!(client.line("KEYS *"), "*0\r\n");
    assert_eq!(client.line("RANDOMKEY"), "$-1\r\n");
    assert_eq!(node.fake.checked_counts(), (0, 0));
}

#[test]
fn a_scan_ends_early_in_slots_of_tombstones_alone() {
    let node = stamping(1);
    let mut client = node.client();
    for slot in 0..1_000 {
        // A row that no command reads: where it stands counts.
        node.fake.partitions[0].plant(slot, b"dkey", b"", 0);
    }
    node.fake.partitions[0].plant(1_001, b"kkey", b"\x01\0v", 1);
    let (mut cursor, mut calls, mut found) = ("0".to_owned(), 0, Vec::new());
    loop {
        let reply = client.call_raw(&["SCAN", &cursor]);
        let parts = elements(&reply);
        cursor = content(parts[0]);
        found.extend(names(parts[1]));
        calls += 1;
        if cursor == "0" {
            break;
        }
    }
    assert!((3..=6).contains(&calls), "{calls} calls");
    assert_eq!(found, ["key"]);
}
