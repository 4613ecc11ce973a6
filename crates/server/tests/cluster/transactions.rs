//! `MULTI`, `EXEC` and `WATCH` in a cluster.

use collie_server::cluster::{Refused, slot_of};

use crate::fake::Role;
use crate::{node, pipeline, reply};

#[test]
fn a_transaction_is_submitted_at_once() {
    let node = node(4);
    let mut client = node.client();
    client.line("SET {t}old 1 PX 100000");
    client.send(&pipeline(&[
        "MULTI",
        "SET {t}a 1",
        "INCR {t}a",
        "PING",
        "DEL {t}old",
        "SET {t}c x EX 100",
        "EXEC",
        "MGET {t}a {t}old {t}c",
    ]));
    assert_eq!(reply(&mut client), "+OK\r\n");
    for _ in 0..5 {
        assert_eq!(reply(&mut client), "+QUEUED\r\n");
    }
    assert_eq!(reply(&mut client), "*5\r\n+OK\r\n:2\r\n+PONG\r\n:1\r\n+OK\r\n");
    assert_eq!(reply(&mut client), "*3\r\n$1\r\n2\r\n$-1\r\n$1\r\nx\r\n");
    let log = node.fake.of("{t}").log();
    assert_eq!(log.len(), 2);
    // Three keys, an index entry that goes and one that comes.
    assert_eq!(log[1].len(), 5);
    assert_eq!(node.fake.checked_counts(), (2, 1));
}

#[test]
fn a_failed_command_of_a_transaction_does_not_undo_the_others() {
    let node = node(1);
    let mut client = node.client();
    client.send(&pipeline(&[
        "MULTI",
        "SET {t}a text",
        "INCR {t}a",
        "SET {t}b 1",
        "EXEC",
    ]));
    for _ in 0..4 {
        client.reply();
    }
    let replies = "*3\r\n+OK\r\n-ERR value is not an integer or out of range\r\n+OK\r\n";
    assert_eq!(reply(&mut client), replies);
    assert_eq!(node.fake.checked_counts(), (2, 0));
}

#[test]
fn a_transaction_on_several_slots_or_elsewhere_is_discarded() {
    let node = node(8);
    let mut client = node.client();
    let cross = "-CROSSSLOT Keys in request don't hash to the same slot\r\n";
    let aborted = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    // Each command is right on its own.
    client.send(&pipeline(&[
        "MULTI", "SET a 1", "SET b 1", "EXEC", "EXEC", "DBSIZE",
    ]));
    let replies = [
        "+OK\r\n",
        "+QUEUED\r\n",
        "+QUEUED\r\n",
        cross,
        "-ERR EXEC without MULTI\r\n",
        ":0\r\n",
    ];
    for expected in replies {
        assert_eq!(reply(&mut client), expected);
    }
    client.send(&pipeline(&["MULTI", "MGET a b", "EXEC"]));
    for expected in ["+OK\r\n", cross, aborted] {
        assert_eq!(reply(&mut client), expected);
    }
    client.send(&pipeline(&["WATCH a", "MULTI", "SET b 1", "EXEC"]));
    for expected in ["+OK\r\n", "+OK\r\n", "+QUEUED\r\n", cross] {
        assert_eq!(reply(&mut client), expected);
    }
    // Moved while commands are queued, and before EXEC.
    let addr = "10.0.0.7:6379".parse().unwrap();
    let moved = format!("-MOVED {} 10.0.0.7:6379\r\n", slot_of(b"a"));
    for is_late in [false, true] {
        node.fake.set_role("a", Role::Leads);
        assert_eq!(client.line("MULTI"), "+OK\r\n");
        if is_late {
            assert_eq!(client.line("SET a 1"), "+QUEUED\r\n");
        }
        node.fake.set_role("a", Role::Led(addr));
        if !is_late {
            assert_eq!(client.line("SET a 1"), moved);
        }
        assert_eq!(client.line("EXEC"), if is_late { &moved } else { aborted });
        assert_eq!(client.line("EXEC"), "-ERR EXEC without MULTI\r\n");
    }
    for line in ["FLUSHALL", "DBSIZE", "KEYS *", "SCAN 0", "RANDOMKEY"] {
        client.line("MULTI");
        let refused = client.line(line);
        assert!(
            refused.ends_with("cannot be part of a transaction in a cluster\r\n"),
            "{refused}"
        );
        assert_eq!(client.line("EXEC"), aborted);
    }
}

#[test]
fn a_watched_key_that_changes_makes_exec_do_nothing() {
    let node = node(4);
    let (mut client, mut other) = (node.client(), node.client());
    for (change, expected) in [
        ("SET {t}a 2", "*-1\r\n"),
        ("GET {t}a", "*1\r\n+OK\r\n"),
        ("DEL {t}a", "*-1\r\n"),
        ("SET {t}b 1", "*1\r\n+OK\r\n"),
        ("FLUSHALL", "*-1\r\n"),
    ] {
        other.line("SET {t}a 1");
        assert_eq!(client.line("WATCH {t}a"), "+OK\r\n");
        other.line(change);
        client.send(&pipeline(&["MULTI", "SET {t}x 1", "EXEC"]));
        client.reply();
        client.reply();
        assert_eq!(reply(&mut client), expected, "{change}");
    }
}

#[test]
fn a_watch_ends_with_the_leadership_that_it_began_under() {
    let node = node(4);
    let mut client = node.client();
    let partition = node.fake.of("{t}").clone();
    assert_eq!(client.line("WATCH {t}a"), "+OK\r\n");
    // It does not wait for the replicas.
    node.fake.hold();
    assert_eq!(client.line("WATCH {t}a"), "+OK\r\n");
    node.fake.release();
    // Another node led meanwhile, and may have changed the key.
    partition.set_term(2);
    client.send(&pipeline(&["MULTI", "SET {t}x 1", "EXEC"]));
    client.reply();
    client.reply();
    assert_eq!(reply(&mut client), "*-1\r\n");
    // The next watch has nothing to do with it.
    client.send(&pipeline(&["WATCH {t}a", "MULTI", "SET {t}x 1", "EXEC"]));
    for _ in 0..3 {
        client.reply();
    }
    assert_eq!(reply(&mut client), "*1\r\n+OK\r\n");
    // Between two watches.
    client.line("WATCH {t}a");
    partition.set_term(3);
    client.line("WATCH {t}b");
    client.send(&pipeline(&["MULTI", "PING", "EXEC"]));
    client.reply();
    client.reply();
    assert_eq!(reply(&mut client), "*-1\r\n");
}

#[test]
fn a_transaction_waits_and_goes_aside_as_a_whole() {
    let node = node(1);
    let partition = node.fake.of("a").clone();
    let mut client = node.client();
    let commands = ["MULTI", "INCR {t}a", "INCR {t}a", "EXEC"];
    partition.refuse_begin(Refused::NotNow, 2);
    client.send(&pipeline(&commands));
    for _ in 0..3 {
        client.reply();
    }
    crate::support::wait_for("it waits", || node.fake.waiting() == 1);
    node.fake.wake();
    assert_eq!(reply(&mut client), "*2\r\n:1\r\n:2\r\n");
    partition.lock("{t}a");
    let begun = partition.begun();
    client.send(&pipeline(&commands));
    crate::support::wait_for("it has gone aside", || partition.begun() >= begun + 2);
    partition.unlock("{t}a");
    for _ in 0..3 {
        client.reply();
    }
    assert_eq!(reply(&mut client), "*2\r\n:3\r\n:4\r\n");
}

#[test]
fn a_transaction_tried_again_is_not_stopped_by_its_own_changes() {
    let node = node(1);
    let mut client = node.client();
    assert_eq!(client.line("WATCH {t}a"), "+OK\r\n");
    node.fake.of("{t}").refuse_finish(Refused::Stale, 3);
    client.send(&pipeline(&["MULTI", "SET {t}a 1", "EXEC"]));
    client.reply();
    client.reply();
    assert_eq!(reply(&mut client), "*1\r\n+OK\r\n");
    // Its own change before MULTI counts, as in Redis.
    client.send(&pipeline(&[
        "WATCH {t}a",
        "SET {t}a 2",
        "MULTI",
        "SET {t}a 3",
        "EXEC",
    ]));
    for _ in 0..4 {
        client.reply();
    }
    assert_eq!(reply(&mut client), "*-1\r\n");
}

/// Increments by optimistic locking: a lost update would show in the sum.
#[test]
fn increments_by_watch_and_exec_lose_no_update() {
    const CLIENTS: usize = 6;
    const EACH: usize = 40;
    let node = node(1);
    node.client().line("SET n 0");
    let addr = node.server.addr;
    let threads: Vec<_> = (0..CLIENTS)
        .map(|_| {
            std::thread::spawn(move || {
                let mut client = crate::support::Client::connect(addr);
                let mut done = 0;
                while done < EACH {
                    client.line("WATCH n");
                    let value: usize = client.text(&["GET", "n"]).parse().unwrap();
                    client.send(&pipeline(&["MULTI", &format!("SET n {}", value + 1), "EXEC"]));
                    client.reply();
                    client.reply();
                    done += usize::from(client.reply() != b"*-1\r\n");
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(node.client().text(&["GET", "n"]), (CLIENTS * EACH).to_string());
}
