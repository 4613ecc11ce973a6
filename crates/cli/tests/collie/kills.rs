//! SIGKILL of `collie serve`: at the levels that promise it, an acknowledged commit survives, and a
//! transaction survives as a whole or not at all.
//!
//! The long form: `COLLIE_KILLS=50`.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use crate::client::{Client, command, rounds, wait_for};
use crate::serve::Served;

fn counter(server: &Served) -> i64 {
    let text = server.connect().text(&["GET", "counter"]);
    if text == "$-1" { 0 } else { text.parse().unwrap() }
}

/// Increments, one at a time, until the connection breaks. Counts the increments that were sent and
/// those that were acknowledged.
fn increment(addr: SocketAddr, sent: &AtomicI64, acknowledged: &AtomicI64) {
    let Ok(mut client) = Client::try_connect(addr) else {
        return;
    };
    loop {
        sent.fetch_add(1, Ordering::SeqCst);
        match client.try_text(&["INCR", "counter"]) {
            Ok(reply) => assert!(reply.starts_with(':'), "{reply}"),
            Err(_) => return,
        }
        acknowledged.fetch_add(1, Ordering::SeqCst);
    }
}

fn acknowledged_increments_survive_kills(ack: &str) {
    let dir = tempfile::tempdir().unwrap();
    let start = || Served::start(dir.path(), &["--ack", ack]);
    let mut floor = 0;
    for round in 0..rounds("COLLIE_KILLS", 4) {
        let server = start();
        let before = counter(&server);
        assert!(before >= floor, "{before} increments are left of {floor}");
        let (sent, acknowledged) = (AtomicI64::new(0), AtomicI64::new(0));
        let addr = server.addr;
        std::thread::scope(|scope| {
            for _ in 0..50 {
                scope.spawn(|| increment(addr, &sent, &acknowledged));
            }
            // However slow the machine is, the clients get somewhere first.
            wait_for("a hundred increments", || {
                acknowledged.load(Ordering::SeqCst) > 100
            });
            std::thread::sleep(Duration::from_millis(17 * (round as u64 % 5)));
            server.kill();
        });
        let (sent, acknowledged) = (sent.into_inner(), acknowledged.into_inner());
        let server = start();
        let after = counter(&server);
        let done = after - before;
        assert!(
            done >= acknowledged && done <= sent,
            "sent {sent}, acknowledged {acknowledged}, found {done}"
        );
        floor = after;
        server.kill();
    }
    let server = start();
    assert_eq!(counter(&server), floor);
    assert_eq!(server.connect().text(&["DBSIZE"]), ":1");
}

/// Runs transactions, one at a time, until the connection breaks: each sets two keys in each of two
/// databases to the same number, and now and then swaps the databases with it. Returns the last
/// acknowledged number; `count` counts the acknowledged transactions.
fn transact(addr: SocketAddr, lane: usize, first: i64, count: &AtomicI64) -> i64 {
    let Ok(mut client) = Client::try_connect(addr) else {
        return 0;
    };
    let mut acknowledged = 0;
    for number in first.. {
        let value = number.to_string();
        let (here, there) = (format!("a{lane}"), format!("b{lane}"));
        let mut request = Vec::new();
        for args in [
            &["SELECT", "1"][..],
            &["MULTI"],
            &["SET", &here, &value],
            &["SET", &there, &value, "EX", "100000"],
            &["SELECT", "2"],
            &["SET", &here, &value],
            &["SET", &there, &value],
            &["SWAPDB", "1", "2"][..if number % 7 == 0 { 3 } else { 0 }],
            &["EXEC"],
        ] {
            if !args.is_empty() {
                request.extend_from_slice(&command(args));
            }
        }
        if client.try_send(&request).is_err() {
            return acknowledged;
        }
        // SELECT, MULTI, five or six times QUEUED, and the reply to EXEC, all of whose parts are +OK.
        for _ in 0..if number % 7 == 0 { 9 } else { 8 } {
            let Ok(reply) = client.try_reply() else {
                return acknowledged;
            };
            assert!(!reply.contains(&b'-'), "{}", String::from_utf8_lossy(&reply));
        }
        acknowledged = number;
        count.fetch_add(1, Ordering::SeqCst);
    }
    acknowledged
}

#[test]
fn transactions_are_whole_or_not_there_after_kills() {
    const LANES: usize = 4;
    let dir = tempfile::tempdir().unwrap();
    let mut next = 1;
    for round in 0..rounds("COLLIE_KILLS", 4) {
        let ack = if round % 2 == 0 { "disk" } else { "process" };
        let server = Served::start(dir.path(), &["--ack", ack]);
        let (addr, count) = (server.addr, AtomicI64::new(0));
        let acknowledged: Vec<i64> = std::thread::scope(|scope| {
            let count = &count;
            let lanes: Vec<_> = (0..LANES)
                .map(|lane| scope.spawn(move || transact(addr, lane, next, count)))
                .collect();
            wait_for("two hundred transactions", || count.load(Ordering::SeqCst) > 200);
            std::thread::sleep(Duration::from_millis(17 * (round as u64 % 5)));
            server.kill();
            lanes.into_iter().map(|lane| lane.join().unwrap()).collect()
        });
        let server = Served::start(dir.path(), &[]);
        let mut client = server.connect();
        for (lane, acknowledged) in acknowledged.iter().enumerate() {
            let mut found = Vec::new();
            for db in 1..=2 {
                client.line(&format!("SELECT {db}"));
                for key in ["a", "b"] {
                    let text = client.text(&["GET", &format!("{key}{lane}")]);
                    let number = if text == "$-1" {
                        0
                    } else {
                        text.parse::<i64>().unwrap()
                    };
                    found.push(number);
                }
            }
            assert!(
                found.iter().all(|number| *number == found[0]) && found[0] >= *acknowledged,
                "lane {lane}: found {found:?}, acknowledged {acknowledged}"
            );
            next = next.max(found[0] + 1);
        }
        server.kill();
    }
    // Ends in order, which removes the ring.
    let (status, last) = Served::start(dir.path(), &[]).end(Signal::TERM);
    assert!(status.success(), "{last}");
}

#[test]
fn acknowledged_increments_survive_kills_at_disk() {
    acknowledged_increments_survive_kills("disk");
}

#[test]
fn acknowledged_increments_survive_kills_at_process() {
    acknowledged_increments_survive_kills("process");
}

#[test]
fn fifty_clients_count_exactly_across_kills() {
    const CLIENTS: u64 = 50;
    const EACH: u64 = 100;
    // The server is killed while all clients count. Each client then connects to the new one and
    // reads its counter, which must have the last acknowledged value or, if the kill lost a reply,
    // one more.
    let dir = tempfile::tempdir().unwrap();
    let kills = rounds("COLLIE_KILLS", 3) as u64;
    let (port, counted) = (AtomicU16::new(0), AtomicU64::new(0));
    let served = Served::start(dir.path(), &[]);
    port.store(served.addr.port(), Ordering::SeqCst);
    let served = std::thread::scope(|scope| {
        let mut served = served;
        let counting: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (port, counted) = (&port, &counted);
                scope.spawn(move || count_to(client, EACH * (kills + 1), port, counted))
            })
            .collect();
        for kill in 0..kills {
            // In the middle of a share of the counting, so that much of it is still to come.
            while counted.load(Ordering::SeqCst) < CLIENTS * (EACH * kill + EACH / 2)
                && counting.iter().all(|client| !client.is_finished())
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            // Another process may get the port meanwhile.
            port.store(0, Ordering::SeqCst);
            served.kill();
            served = Served::start(dir.path(), &[]);
            port.store(served.addr.port(), Ordering::SeqCst);
        }
        counting.into_iter().for_each(|thread| thread.join().unwrap());
        served
    });
    let mut client = served.connect();
    let total: u64 = (0..CLIENTS)
        .map(|n| {
            client
                .text(&["GET", &format!("counter {n}")])
                .parse::<u64>()
                .unwrap()
        })
        .sum();
    assert_eq!(total, CLIENTS * EACH * (kills + 1));
    let (status, last) = served.end(Signal::TERM);
    assert!(status.success(), "{last}");
}

/// Increments a counter of its own until it is `target`, over as many connections as it takes, and
/// checks each reply. Port 0 means that there is no server.
fn count_to(client: u64, target: u64, port: &AtomicU16, counted: &AtomicU64) {
    let key = format!("counter {client}");
    let mut acknowledged = 0;
    while acknowledged < target {
        let addr = SocketAddr::from(([127, 0, 0, 1], port.load(Ordering::SeqCst)));
        let Ok(mut connection) = Client::try_connect(addr) else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        let Ok(there) = connection.try_text(&["GET", &key]) else {
            continue;
        };
        let there: u64 = if there == "$-1" { 0 } else { there.parse().unwrap() };
        assert!(
            there == acknowledged || there == acknowledged + 1,
            "{key}: {acknowledged} was acknowledged, {there} is there"
        );
        acknowledged = there;
        while acknowledged < target {
            let Ok(reply) = connection.try_text(&["INCR", &key]) else {
                break;
            };
            assert_eq!(reply, format!(":{}", acknowledged + 1));
            acknowledged += 1;
            counted.fetch_add(1, Ordering::SeqCst);
        }
    }
}
