//! Replies that say that a key has expired: the partition learns of each before it is sent.

use std::sync::atomic::Ordering;

use collie_server::cluster::slot_of;

use crate::{Node, node, pipeline, reply};

const KEY: &str = "key";
const AHEAD_MS: u64 = 2_000_000;

/// A node that leads one key, which has expired and which no sweep finds: it is in no index.
fn expired() -> Node {
    let node = node(1);
    node.fake.stamp(7);
    let mut client = node.client();
    assert_eq!(client.line(&format!("SET {KEY} 7 PX 1000000")), "+OK\r\n");
    let (partition, slot) = (node.fake.of(KEY), slot_of(KEY.as_bytes()));
    for (row, _) in partition.rows(slot, b"") {
        if row[0] != b'k' {
            partition.unplant(slot, &row);
        }
    }
    partition.ahead_ms.store(AHEAD_MS, Ordering::SeqCst);
    node
}

#[test]
fn each_way_to_find_a_key_expired_tells_its_partition() {
    for (lines, expected) in [
        (&["GET key"][..], "$-1\r\n"),
        (&["MGET key"], "*1\r\n$-1\r\n"),
        (&["EXISTS key"], ":0\r\n"),
        (&["TTL key"], ":-2\r\n"),
        (&["PTTL key"], ":-2\r\n"),
        (&["EXPIRETIME key"], ":-2\r\n"),
        (&["TYPE key"], "+none\r\n"),
        (&["STRLEN key"], ":0\r\n"),
        (&["GETRANGE key 0 9"], "$0\r\n\r\n"),
        (&["GETDEL key"], "$-1\r\n"),
        (&["GETEX key"], "$-1\r\n"),
        (&["SET key 8 XX"], "$-1\r\n"),
        (&["SET key 8 NX"], "+OK\r\n"),
        (&["INCR key"], ":1\r\n"),
        (&["DEL key"], ":0\r\n"),
        (&["PERSIST key"], ":0\r\n"),
        (&["EXPIRE key 10"], ":0\r\n"),
        (&["TOUCH key"], ":0\r\n"),
        (&["RENAME key {key}"], "-ERR no such key\r\n"),
        (&["OBJECT ENCODING key"], "$-1\r\n"),
        (&["MULTI", "GET key", "EXEC"], "*1\r\n$-1\r\n"),
        (&["COLLIE.ONCE key me 1 INCR key"], ":1\r\n"),
        // The record: a value of the time 0, by the origin 0.
        (
            &["COLLIE.MERGE key \x01k\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0 v"],
            ":0\r\n",
        ),
        (&["KEYS *"], "*0\r\n"),
        (&["SCAN 0"], "*2\r\n$1\r\n0\r\n*0\r\n"),
        (&["RANDOMKEY"], "$-1\r\n"),
    ] {
        let node = expired();
        let mut client = node.client();
        let mut last = String::new();
        for line in lines {
            client.send(&pipeline(&[line]));
            last = reply(&mut client);
        }
        assert_eq!(last, expected, "{lines:?}");
        let told = node.fake.of(KEY).expired.lock().unwrap().clone();
        assert!(!told.is_empty(), "{lines:?}: the partition does not know");
    }
}

#[test]
fn a_watch_that_ends_by_an_expiry_tells_its_partition() {
    let node = node(1);
    let mut client = node.client();
    for line in ["SET key 7 PX 1000000", "WATCH key", "MULTI"] {
        assert_eq!(client.line(line), "+OK\r\n");
    }
    assert_eq!(client.line("SET key 8"), "+QUEUED\r\n");
    let partition = node.fake.of(KEY);
    // No sweep removes it before: that would mark the watch, too.
    let slot = slot_of(KEY.as_bytes());
    for (row, _) in partition.rows(slot, b"") {
        if row[0] != b'k' {
            partition.unplant(slot, &row);
        }
    }
    partition.ahead_ms.store(AHEAD_MS, Ordering::SeqCst);
    assert_eq!(client.line("EXEC"), "*-1\r\n");
    assert!(!partition.expired.lock().unwrap().is_empty());
}

#[test]
fn a_key_that_is_there_tells_nothing() {
    let node = node(1);
    let mut client = node.client();
    assert_eq!(client.line("SET key 7 PX 1000000"), "+OK\r\n");
    for line in ["GET key", "TTL key", "KEYS *", "SCAN 0", "RANDOMKEY", "DBSIZE"] {
        client.line(line);
    }
    assert_eq!(*node.fake.of(KEY).expired.lock().unwrap(), [0; 0]);
}
