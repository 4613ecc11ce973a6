//! Where commands run: here, elsewhere, later, or not at all.

use std::net::SocketAddr;
use std::time::Duration;

use collie_server::cluster::{Refused, Settled, slot_of};

use crate::fake::Role;
use crate::support::wait_for;
use crate::{node, pipeline, reply};

const CROSS_SLOT: &str = "-CROSSSLOT Keys in request don't hash to the same slot\r\n";

#[test]
fn keys_of_several_slots_are_refused_even_within_a_partition() {
    let node = node(1);
    let mut client = node.client();
    for line in [
        "MSET a 1 b 2",
        "MGET a b",
        "DEL a b",
        "RENAME a b",
        "COPY a b",
        "BITOP AND a b c",
        "LCS a b",
        "WATCH a b",
        "MSETNX a 1 b 2",
        "EXISTS a a b",
    ] {
        assert_eq!(client.line(line), CROSS_SLOT, "{line}");
    }
    assert_eq!(client.line("MSET {t}a 1 {t}b 2"), "+OK\r\n");
    assert_eq!(
        client.line("MGET {t}a {t}b {t}a"),
        "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n1\r\n"
    );
    assert_eq!(client.line("LCS {t}a {t}b LEN"), ":0\r\n");
    assert_eq!(client.line("RENAME {t}a {t}c"), "+OK\r\n");
    assert_eq!(client.line("EXISTS {t}a {t}b {t}c"), ":2\r\n");
    assert_eq!(client.line("BITOP NOT {t}d {t}c"), ":1\r\n");
    assert_eq!(client.line("DEL {t}a {t}b {t}b {t}c {t}d"), ":3\r\n");
    assert_eq!(node.fake.checked_counts(), (0, 0));
}

#[test]
fn a_key_that_is_led_elsewhere_answers_moved() {
    let node = node(8);
    let mut client = node.client();
    let (four, six): (SocketAddr, SocketAddr) =
        ("10.0.0.7:6379".parse().unwrap(), "[::2]:7".parse().unwrap());
    for (addr, shown) in [(four, "10.0.0.7:6379"), (six, "::2:7")] {
        node.fake.set_role("a", Role::Led(addr));
        let moved = format!("-MOVED {} {shown}\r\n", slot_of(b"a"));
        for line in ["GET a", "SET a 1", "WATCH a", "MSET {a}x 1 a 2"] {
            assert_eq!(client.line(line), moved, "{line}");
        }
    }
    assert_eq!(client.line("SET b 1"), "+OK\r\n", "another partition");
    assert_eq!(
        client.line("GET"),
        "-ERR wrong number of arguments for 'get' command\r\n"
    );
}

#[test]
fn a_command_waits_for_a_leader_and_earlier_replies_do_not() {
    let node = node(8);
    let mut client = node.client();
    node.fake.set_role("a", Role::Leaderless);
    client.send(&pipeline(&["PING", "SET b 1", "SET a 1", "GET a"]));
    assert_eq!(reply(&mut client), "+PONG\r\n");
    assert_eq!(reply(&mut client), "+OK\r\n");
    assert!(client.is_silent_for(Duration::from_millis(50)));
    // A change that does not help.
    node.fake.wake();
    assert!(client.is_silent_for(Duration::from_millis(50)));
    node.fake.set_role("a", Role::Leads);
    assert_eq!(reply(&mut client), "+OK\r\n");
    assert_eq!(reply(&mut client), "$1\r\n1\r\n");
}

#[test]
fn a_slot_without_a_leader_answers_clusterdown_in_the_end() {
    let node = node(8);
    let mut client = node.client();
    node.fake.set_role("a", Role::Leaderless);
    client.send(&pipeline(&["SET a 1", "PING", "MULTI", "SET a 1", "EXEC"]));
    assert_eq!(reply(&mut client), "-CLUSTERDOWN The cluster is down\r\n");
    assert_eq!(reply(&mut client), "+PONG\r\n");
    assert_eq!(reply(&mut client), "+OK\r\n");
    assert_eq!(reply(&mut client), "-CLUSTERDOWN The cluster is down\r\n");
    assert_eq!(
        reply(&mut client),
        "-EXECABORT Transaction discarded because of previous errors.\r\n"
    );
    assert_eq!(client.line("SET b 1"), "+OK\r\n");
}

#[test]
fn a_partition_that_takes_no_commands_is_waited_for() {
    let node = node(1);
    let partition = node.fake.of("a").clone();
    let mut client = node.client();
    for (line, expected) in [("INCR a", ":1\r\n"), ("GETSET a 1", "$1\r\n1\r\n")] {
        partition.refuse_begin(Refused::NotNow, 1_000_000);
        let begun = partition.begun();
        client.send(&pipeline(&["PING", line]));
        assert_eq!(reply(&mut client), "+PONG\r\n");
        wait_for("it is tried once more after it subscribed", || {
            partition.begun() == begun + 2
        });
        partition.accept();
        node.fake.wake();
        assert_eq!(reply(&mut client), expected);
    }
    // Refused when it is submitted: evaluated anew, and only then.
    partition.refuse_finish(Refused::NotNow, 2);
    client.send(&pipeline(&["INCR a"]));
    wait_for("it waits", || node.fake.waiting() == 1);
    node.fake.wake();
    assert_eq!(reply(&mut client), ":2\r\n");
}

#[test]
fn a_command_that_waits_does_not_delay_the_shutdown() {
    let node = node(1);
    node.fake.of("a").refuse_begin(Refused::NotNow, 1_000_000);
    let mut client = node.client();
    client.send(&pipeline(&["INCR a"]));
    wait_for("it waits", || node.fake.waiting() == 1);
    // The server ends at once although a command waits.
    let crate::Node { server, .. } = node;
    server.stop().unwrap();
    assert_eq!(client.rest(), "");
}

#[test]
fn a_stale_evaluation_begins_anew_and_leaves_no_trace() {
    let node = node(1);
    let partition = node.fake.of("a");
    let mut client = node.client();
    assert_eq!(client.line("SET a 1"), "+OK\r\n");
    partition.refuse_get(Refused::Stale, 3);
    partition.refuse_finish(Refused::Stale, 5);
    assert_eq!(client.line("INCR a"), ":2\r\n");
    partition.refuse_finish(Refused::Stale, 5);
    client.send(&pipeline(&["MULTI", "INCR a", "GET a", "EXEC"]));
    for _ in 0..3 {
        client.reply();
    }
    assert_eq!(reply(&mut client), "*2\r\n:3\r\n$1\r\n3\r\n");
    // More often than it is tried at once: it waits, and goes on when something changes.
    partition.refuse_begin(Refused::Stale, 20);
    client.send(&pipeline(&["INCR a"]));
    wait_for("it waits", || node.fake.waiting() == 1);
    node.fake.wake();
    assert_eq!(reply(&mut client), ":4\r\n");
    assert_eq!(partition.log().len(), 4);
}

#[test]
fn a_key_that_is_locked_delays_only_the_commands_on_it() {
    let node = node(1);
    let partition = node.fake.of("a").clone();
    partition.lock("a");
    let mut client = node.client();
    client.send(&pipeline(&["SET b 1", "SET a 1", "GET a"]));
    // Connections of both threads.
    for i in 1..=4 {
        assert_eq!(node.client().line("INCR c"), format!(":{i}\r\n"));
    }
    partition.unlock("a");
    for expected in ["+OK\r\n", "+OK\r\n", "$1\r\n1\r\n"] {
        assert_eq!(reply(&mut client), expected);
    }
}

#[test]
fn a_read_that_is_alone_locks_nothing_and_is_confirmed() {
    let node = node(1);
    let partition = node.fake.of("a").clone();
    let mut client = node.client();
    assert_eq!(client.line("MSET a 1 {a}b 2"), "+OK\r\n");
    partition.lock("a");
    let begun = partition.begun();
    assert_eq!(client.line("GET a"), "$1\r\n1\r\n");
    assert_eq!(client.line("MGET a {a}b"), "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
    assert_eq!(client.line("EXISTS a nothing{a}"), ":1\r\n");
    assert_eq!(partition.begun(), begun);
    partition.set_confirm(Settled::TryAgain);
    let refused = client.line("GET a");
    assert!(refused.starts_with("-TRYAGAIN "), "{refused}");
    partition.unlock("a");
}

#[test]
fn a_leader_that_has_just_stepped_down_sends_clients_on() {
    let node = node(1);
    let mut client = node.client();
    node.fake.of("a").refuse_begin(Refused::NotHere, 1);
    assert_eq!(client.line("INCR a"), ":1\r\n", "it leads again");
    node.fake
        .of("a")
        .refuse_finish(Refused::Text("ERR no".to_owned()), 1);
    assert_eq!(client.line("INCR a"), "-ERR no\r\n");
    node.fake
        .of("a")
        .refuse_get(Refused::Text("ERR no".to_owned()), 1);
    assert_eq!(client.line("INCR a"), "-ERR no\r\n");
    assert_eq!(client.line("INCR a"), ":2\r\n");
}

#[test]
fn readonly_lets_a_replica_answer_reads_and_only_reads() {
    let node = node(1);
    let mut client = node.client();
    assert_eq!(client.line("SET a 1"), "+OK\r\n");
    let addr = "10.0.0.7:6379".parse().unwrap();
    node.fake.set_role("a", Role::Led(addr));
    let moved = format!("-MOVED {} 10.0.0.7:6379\r\n", slot_of(b"a"));
    assert_eq!(client.line("GET a"), moved);
    assert_eq!(client.line("READONLY"), "+OK\r\n");
    // What is not confirmed does not wait for the gate.
    node.fake.hold();
    assert_eq!(client.line("GET a"), "$1\r\n1\r\n");
    assert_eq!(client.line("MGET a {a}b"), "*2\r\n$1\r\n1\r\n$-1\r\n");
    assert_eq!(client.line("INCR a"), moved);
    assert_eq!(client.line("GETDEL a"), moved);
    client.send(&pipeline(&["MULTI", "GET a", "STRLEN a", "EXEC"]));
    for _ in 0..3 {
        client.reply();
    }
    assert_eq!(reply(&mut client), "*2\r\n$1\r\n1\r\n:1\r\n");
    for line in ["READWRITE", "RESET"] {
        client.line("READONLY");
        client.line(line);
        assert_eq!(client.line("GET a"), moved, "{line}");
    }
}

#[test]
fn a_command_on_a_replica_reads_its_keys_at_one_moment() {
    let node = node(1);
    let mut client = node.client();
    let partition = node.fake.of("{t}").clone();
    client.line("SET {t}other 2");
    let stored = partition.log()[0][0].1.clone().unwrap();
    client.line("MSET {t}a 1 {t}b 1");
    node.fake
        .set_role("{t}", Role::Led("10.0.0.7:6379".parse().unwrap()));
    client.line("READONLY");
    partition.change_during_read(&["{t}a", "{t}b"], &stored);
    assert_eq!(client.line("MGET {t}a {t}b"), "*2\r\n$1\r\n1\r\n$1\r\n1\r\n");
    assert_eq!(client.line("MGET {t}a {t}b"), "*2\r\n$1\r\n2\r\n$1\r\n2\r\n");
    partition.change_during_read(&["{t}a", "{t}b", "{t}other"], &stored);
    client.send(&pipeline(&["MULTI", "GET {t}a", "GET {t}b", "EXEC"]));
    for _ in 0..3 {
        client.reply();
    }
    assert_eq!(reply(&mut client), "*2\r\n$1\r\n2\r\n$1\r\n2\r\n");
}

#[test]
fn a_partition_that_takes_no_commands_for_long_answers_tryagain() {
    let node = node(1);
    let partition = node.fake.of("a").clone();
    let mut client = node.client();
    partition.refuse_begin(Refused::NotNow, 1_000_000);
    client.send(&pipeline(&["SET a 1", "PING"]));
    assert!(reply(&mut client).starts_with("-TRYAGAIN the partition"));
    assert_eq!(reply(&mut client), "+PONG\r\n");
    partition.accept();
    assert_eq!(client.line("GET a"), "$-1\r\n");
}

#[test]
fn a_command_that_went_aside_waits_like_any_other() {
    let node = node(1);
    let partition = node.fake.of("a").clone();
    let mut client = node.client();
    let large = "v".repeat(100_000);
    for _ in 0..3 {
        partition.refuse_finish(Refused::NotNow, 2);
        client.send(&pipeline(&["PING"]));
        client.send(&crate::support::command(&["SET", "a", &large]));
        client.send(&pipeline(&["STRLEN a"]));
        assert_eq!(reply(&mut client), "+PONG\r\n");
        wait_for("it waits", || node.fake.waiting() == 1);
        node.fake.wake();
        assert_eq!(reply(&mut client), "+OK\r\n");
        assert_eq!(reply(&mut client), ":100000\r\n");
    }
    assert_eq!(partition.log().len(), 3);
}
