//! `COLLIE.ONCE`: a command takes effect once, however often it is sent.

use collie_io::{Clock, RealClock};
use collie_server::cluster::slot_of;

use crate::support::{command, wait_for};
use crate::{Node, node, pipeline, reply};

/// Rows of a tag in the slot of a key, with what they hold.
fn rows(node: &Node, key: &str, tag: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    node.fake.of(key).rows(slot_of(key.as_bytes()), tag)
}

#[test]
fn a_command_that_is_repeated_takes_effect_once() {
    let node = node(4);
    let mut client = node.client();
    let incr = "COLLIE.ONCE {t}n me 1 INCR {t}n";
    assert_eq!(client.line(incr), ":1\r\n");
    assert_eq!(client.line(incr), ":1\r\n");
    assert_eq!(client.line("collie.once {t}n me 2 INCRBY {t}n 10"), ":11\r\n");
    assert_eq!(client.line(incr), ":1\r\n");
    // Another client, another slot, or another number is another command.
    assert_eq!(client.line("COLLIE.ONCE {t}n you 1 INCR {t}n"), ":12\r\n");
    assert_eq!(client.line("COLLIE.ONCE other me 1 INCR other"), ":1\r\n");
    assert_eq!(client.line("GET {t}n"), "$2\r\n12\r\n");
    // A command that changes nothing is executed, too: its answer stays.
    assert_eq!(client.line("COLLIE.ONCE {t}n me 3 SETNX {t}n x"), ":0\r\n");
    assert_eq!(client.line("COLLIE.ONCE {t}n me 4 GETDEL {t}n"), "$2\r\n12\r\n");
    assert_eq!(client.line("COLLIE.ONCE {t}n me 3 SETNX {t}n x"), ":0\r\n");
    assert_eq!(client.line("COLLIE.ONCE {t}n me 4 GETDEL {t}n"), "$2\r\n12\r\n");
    assert_eq!(client.line("EXISTS {t}n"), ":0\r\n");
    // Several keys, and a reply of several parts.
    assert_eq!(client.line("COLLIE.ONCE {t}a me 5 MSET {t}a 1 {t}b 2"), "+OK\r\n");
    assert_eq!(client.line("MGET {t}a {t}b"), "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
    // Records are no keys.
    assert_eq!(client.line("DBSIZE"), ":3\r\n");
    assert_eq!(
        crate::support::sorted_names(&client.call_raw(&["KEYS", "*"])).len(),
        3
    );
    assert_eq!(client.line("FLUSHALL"), "+OK\r\n");
    assert_eq!(client.line(incr), ":1\r\n", "records outlive the keys");
    assert_eq!(client.line("DBSIZE"), ":0\r\n");
}

#[test]
fn a_repetition_finds_the_record_before_it_is_applied() {
    let node = node(1);
    let (mut one, mut other) = (node.client(), node.client());
    node.fake.hold();
    one.send(&pipeline(&[
        "COLLIE.ONCE n me 1 INCR n",
        "COLLIE.ONCE n me 1 INCR n",
        "INCR n",
    ]));
    other.send(&pipeline(&["COLLIE.ONCE n me 1 INCR n"]));
    wait_for("all are evaluated", || {
        node.fake.of("n").log().len() == 2 && node.fake.of("n").begun() >= 4
    });
    node.fake.release();
    let replies: Vec<_> = (0..3).map(|_| reply(&mut one)).collect();
    assert_eq!(replies, [":1\r\n", ":1\r\n", ":2\r\n"]);
    assert_eq!(reply(&mut other), ":1\r\n");
}

#[test]
fn a_client_that_has_lost_its_answer_gets_it_when_it_asks_again() {
    let node = node(1);
    for number in 1..=20_u32 {
        let incr = format!("COLLIE.ONCE n me {number} INCR n");
        node.fake.hold();
        let mut lost = node.client();
        let before = node.fake.of("n").log().len();
        lost.send(&pipeline(&[&incr]));
        wait_for("it is submitted", || node.fake.of("n").log().len() > before);
        drop(lost);
        node.fake.release();
        let mut client = node.client();
        assert_eq!(client.line(&incr), format!(":{number}\r\n"));
        assert_eq!(
            client.line("GET n"),
            format!("${}\r\n{number}\r\n", number.to_string().len())
        );
    }
}

#[test]
fn a_command_that_fails_leaves_no_record() {
    let node = node(1);
    let mut client = node.client();
    client.line("SET n x");
    let incr = "COLLIE.ONCE n me 1 INCR n";
    assert!(client.line(incr).starts_with("-ERR value is not an integer"));
    assert_eq!(rows(&node, "n", b"y"), []);
    client.line("SET n 7");
    assert_eq!(client.line(incr), ":8\r\n");
    assert_eq!(client.line(incr), ":8\r\n");
}

#[test]
fn what_cannot_be_executed_once_is_refused() {
    let node = node(8);
    let mut client = node.client();
    for (line, refusal) in [
        ("COLLIE.ONCE a me 1", "-ERR wrong number of arguments"),
        ("COLLIE.ONCE a me 1 NOSUCH a", "-ERR unknown command 'NOSUCH'"),
        (
            "COLLIE.ONCE a me 1 INCR",
            "-ERR wrong number of arguments for 'incr'",
        ),
        ("COLLIE.ONCE a me -1 INCR a", "-ERR the number of a command"),
        ("COLLIE.ONCE a me x INCR a", "-ERR the number of a command"),
        (
            "COLLIE.ONCE a me 1 GET a",
            "-ERR GET cannot be executed by COLLIE.ONCE",
        ),
        (
            "COLLIE.ONCE a me 1 PING a",
            "-ERR PING cannot be executed by COLLIE.ONCE",
        ),
        ("COLLIE.ONCE a me 1 FLUSHALL ASYNC", "-ERR FLUSHALL cannot"),
        ("COLLIE.ONCE a me 1 EXEC a", "-ERR wrong number"),
        (
            "COLLIE.ONCE a me 1 COLLIE.ONCE a me 2 INCR a",
            "-ERR COLLIE.ONCE cannot",
        ),
        ("COLLIE.ONCE a me 1 INCR b", "-CROSSSLOT "),
        ("COLLIE.ONCE a me 1 MSET a 1 b 2", "-CROSSSLOT "),
    ] {
        let found = client.line(line);
        assert!(found.starts_with(refusal), "{line}: {found}");
    }
    let long = "c".repeat(257);
    let refused = client.line(&format!("COLLIE.ONCE a {long} 1 INCR a"));
    assert!(refused.starts_with("-ERR the name of a client"), "{refused}");
    client.line("MULTI");
    let refused = client.line("COLLIE.ONCE a me 1 INCR a");
    assert!(refused.starts_with("-ERR Command not allowed inside a transaction"));
    client.line("DISCARD");
    assert_eq!(client.line("EXISTS a"), ":0\r\n");
    // The number was used for something else.
    assert_eq!(client.line("COLLIE.ONCE a me 1 INCR a"), ":1\r\n");
    let refused = client.line("COLLIE.ONCE a me 1 INCRBY a 1");
    assert!(
        refused.starts_with("-ERR this client has sent another command"),
        "{refused}"
    );
    // The reply was encoded for another protocol.
    client.line("HELLO 3");
    let refused = client.line("COLLIE.ONCE a me 1 INCR a");
    assert!(refused.contains("send HELLO 2 first"), "{refused}");
    client.line("HELLO 2");
    assert_eq!(client.line("COLLIE.ONCE a me 1 INCR a"), ":1\r\n");
}

#[test]
fn a_slot_that_is_full_of_records_is_busy_and_forgets_none() {
    let node = node(1);
    let mut client = node.client();
    assert_eq!(client.line("COLLIE.ONCE n me 1 INCR n"), ":1\r\n");
    let full = [1_000_000_u64.to_le_bytes(), 5_u64.to_le_bytes()].concat();
    node.fake.of("n").plant(slot_of(b"n"), b"yc", &full, 0);
    let refused = client.line("COLLIE.ONCE n me 2 INCR n");
    assert!(
        refused.starts_with("-BUSY the slot of the key has 1000000 records"),
        "{refused}"
    );
    assert_eq!(client.line("GET n"), "$1\r\n1\r\n");
    assert_eq!(
        client.line("COLLIE.ONCE n me 1 INCR n"),
        ":1\r\n",
        "it was executed before"
    );
    // Another slot has room.
    assert_eq!(client.line("COLLIE.ONCE m me 2 INCR m"), ":1\r\n");
}

#[test]
fn a_record_is_kept_for_an_hour_and_goes_then_with_its_count() {
    const HOUR_MS: u64 = 3_600_000;
    let node = node(1);
    let mut client = node.client();
    for number in 0..3 {
        client.line(&format!("COLLIE.ONCE n me {number} INCR n"));
    }
    let records = rows(&node, "n", b"yr");
    assert_eq!((records.len(), rows(&node, "n", b"yt").len()), (3, 3));
    // As if the first had been executed an hour ago, and the second nearly so.
    let now_ms = RealClock.wall_ms();
    let slot = slot_of(b"n");
    for (number, ago_ms) in [(0_u64, HOUR_MS + 1), (1, HOUR_MS - 600_000)] {
        let (row, mut value) = records[number as usize].clone();
        let old = [
            &b"yt"[..],
            &value[2..10].iter().rev().copied().collect::<Vec<_>>()[..],
            &row[2..],
        ]
        .concat();
        let time_ms = now_ms - ago_ms;
        value[2..10].copy_from_slice(&time_ms.to_le_bytes());
        let due = [&b"yt"[..], &time_ms.to_be_bytes()[..], &row[2..]].concat();
        node.fake.of("n").unplant(slot, &old);
        node.fake.of("n").plant(slot, &row, &value, 0);
        node.fake.of("n").plant(slot, &due, b"", 0);
    }
    wait_for("the first goes", || rows(&node, "n", b"yr").len() == 2);
    assert_eq!(rows(&node, "n", b"yt").len(), 2);
    let (_, count) = &rows(&node, "n", b"yc")[0];
    assert_eq!(count[..8], 2_u64.to_le_bytes());
    assert_eq!(client.line("COLLIE.ONCE n me 1 INCR n"), ":2\r\n");
    assert_eq!(
        client.line("COLLIE.ONCE n me 0 INCR n"),
        ":4\r\n",
        "it is forgotten"
    );
}

#[test]
fn a_large_command_is_executed_once_aside() {
    let node = node(1);
    let mut client = node.client();
    let large = "v".repeat(300_000);
    for _ in 0..2 {
        client.send(&command(&["COLLIE.ONCE", "n", "me", "1", "GETSET", "n", &large]));
        assert_eq!(reply(&mut client), "$-1\r\n");
    }
    client.send(&command(&["COLLIE.ONCE", "n", "me", "2", "GETSET", "n", "x"]));
    assert_eq!(client.reply().len(), large.len() + "$300000\r\n\r\n".len());
}
