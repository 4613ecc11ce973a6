//! Commands over a real socket, as far as they cannot be compared with Redis: they depend on time
//! or on order, or are Collie's own.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::{Client, Random, config, field, rounds, sorted_names, start, until, wait_for};
use collie_io::{Clock, Nanos};
use collie_server::ServerConfig;

/// A wall clock that tests set. The engine has its own.
#[derive(Debug)]
struct TestClock(AtomicU64);

impl TestClock {
    fn new() -> Arc<TestClock> {
        Arc::new(TestClock(AtomicU64::new(1_800_000_000_000)))
    }

    fn advance(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn monotonic(&self) -> Nanos {
        self.wall_ms() * 1_000_000
    }

    fn wall_ms(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

fn with_clock(clock: &Arc<TestClock>) -> ServerConfig {
    ServerConfig {
        clock: Arc::clone(clock) as Arc<dyn Clock>,
        ..config()
    }
}

#[test]
fn an_expired_key_is_gone_for_every_client_at_once() {
    let clock = TestClock::new();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), with_clock(&clock));
    let mut client = server.client();
    client.line("SET k v PX 1000");
    clock.advance(1_000);
    assert_eq!(
        client.line("GET k"),
        "$1\r\nv\r\n",
        "it exists at its exact expiry"
    );
    assert_eq!(client.line("PTTL k"), ":0\r\n");
    clock.advance(1);
    for (line, expected) in [
        ("EXISTS k", ":0\r\n"),
        ("GET k", "$-1\r\n"),
        ("TTL k", ":-2\r\n"),
        ("TYPE k", "+none\r\n"),
        ("KEYS *", "*0\r\n"),
        ("RANDOMKEY", "$-1\r\n"),
        ("DEL k", ":0\r\n"),
        ("DBSIZE", ":0\r\n"),
        ("SETNX k w", ":1\r\n"),
        ("TTL k", ":-1\r\n"),
        ("GET k", "$1\r\nw\r\n"),
    ] {
        assert_eq!(client.line(line), expected, "{line}");
    }
}

#[test]
fn expired_keys_are_removed_without_being_accessed() {
    let clock = TestClock::new();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), with_clock(&clock));
    let mut client = server.client();
    // More than the sweeper removes in one sweep, in two databases, and some that stay.
    for i in 0..1_500 {
        client.line(&format!("SET a{i} v PX {}", 1_000 + i % 7));
    }
    client.line("SELECT 3");
    for i in 0..20 {
        client.line(&format!("SET b{i} v PX 500"));
    }
    client.line("SET stays v PX 5000000");
    client.line("SET moved v PX 500");
    client.line("PEXPIRE moved 9000000");
    clock.advance(2_000);
    until(&mut client, "DBSIZE", ":2\r\n");
    client.line("SELECT 0");
    until(&mut client, "DBSIZE", ":0\r\n");
    // A removed key is counted once.
    wait_for("1520 expired keys are counted", || {
        field(&mut client, "stats", "expired_keys") == "1520"
    });
    // The index follows every change: a key whose expiry was moved is removed at its new time and
    // no earlier.
    client.line("SELECT 3");
    assert_eq!(client.line("EXISTS moved stays"), ":2\r\n");
    clock.advance(10_000_000);
    until(&mut client, "DBSIZE", ":0\r\n");
    // A key that was persisted, or set again, is not removed by its old entry.
    client.line("SET p v PX 100");
    client.line("PERSIST p");
    client.line("SET q v PX 100");
    client.line("SET q w");
    client.line("SET last v PX 100");
    clock.advance(1_000);
    until(&mut client, "DBSIZE", ":2\r\n");
    assert_eq!(client.line("MGET p q"), "*2\r\n$1\r\nv\r\n$1\r\nw\r\n");
}

#[test]
fn a_restart_keeps_data_expiries_databases_and_counts() {
    let clock = TestClock::new();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), with_clock(&clock));
    let mut client = server.client();
    for i in 0..300 {
        client.line(&format!("SET key{i} value{i}"));
    }
    client.line("DEL key7");
    client.line("SET ttl v PX 60000");
    client.line("SET gone v PX 1000");
    client.line("SELECT 9");
    client.line("SET nine 9");
    client.line("SELECT 4");
    client.line("SET four 4");
    client.line("FLUSHDB");
    drop(client);
    server.stop().unwrap();
    clock.advance(10_000);
    for _ in 0..2 {
        let server = start(dir.path(), with_clock(&clock));
        let mut client = server.client();
        until(&mut client, "DBSIZE", ":300\r\n"); // Without `gone`, which the sweeper takes.
        assert_eq!(client.line("GET key299"), "$8\r\nvalue299\r\n");
        assert_eq!(client.line("EXISTS key7 gone"), ":0\r\n");
        assert_eq!(client.line("PTTL ttl"), ":50000\r\n");
        assert!(
            client.line("INFO keyspace").contains("db0:keys=300,expires=1,"),
            "{}",
            client.line("INFO")
        );
        client.line("SELECT 9");
        assert_eq!(client.line("GET nine"), "$1\r\n9\r\n");
        client.line("SELECT 4");
        assert_eq!(client.line("DBSIZE"), ":0\r\n");
        drop(client);
        server.stop().unwrap();
    }
}

#[test]
fn emptied_databases_stay_empty_over_a_restart_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let (mut client, mut other) = (server.client(), server.client());
    for db in 0..3 {
        client.line(&format!("SELECT {db}"));
        client.line("MSET a 1 b 2");
    }
    other.line("SELECT 1");
    client.line("SELECT 1");
    assert_eq!(client.line("FLUSHDB"), "+OK\r\n");
    assert_eq!(
        other.line("GET a"),
        "$-1\r\n",
        "another connection in the same database sees it too"
    );
    other.line("SET after 1");
    assert_eq!(client.line("KEYS *"), "*1\r\n$5\r\nafter\r\n");
    drop((client, other));
    server.stop().unwrap();
    let server = start(dir.path(), config());
    let mut client = server.client();
    for (db, size) in [(0, 2), (1, 1), (2, 2)] {
        client.line(&format!("SELECT {db}"));
        assert_eq!(client.line("DBSIZE"), format!(":{size}\r\n"), "database {db}");
    }
    client.line("FLUSHALL");
    drop(client);
    server.stop().unwrap();
    let server = start(dir.path(), config());
    let mut client = server.client();
    for db in 0..3 {
        client.line(&format!("SELECT {db}"));
        assert_eq!(client.line("DBSIZE"), ":0\r\n", "database {db}");
    }
    assert_eq!(
        server.db.families().len(),
        4,
        "what was replaced is dropped: {:?}",
        server.db.families()
    );
}

#[test]
fn silent_connections_do_not_keep_an_emptied_database_on_disk() {
    // Every connection has used the database that is emptied, and is silent from now on.
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let mut silent: Vec<Client> = (0..20).map(|_| server.client()).collect();
    for (i, client) in silent.iter_mut().enumerate() {
        assert_eq!(client.line(&format!("SET k{i} v EX 1000")), "+OK\r\n");
    }
    let directories = || {
        let all: Vec<_> = walk(dir.path());
        all.len()
    };
    let before = directories();
    let mut client = server.client();
    for _ in 0..3 {
        assert_eq!(client.line("FLUSHDB"), "+OK\r\n");
    }
    wait_for("what was replaced is removed", || directories() <= before);
    assert_eq!(silent[7].line("GET k7"), "$-1\r\n");
}

/// All directories below one.
fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    // Entries that are removed meanwhile are not listed.
    for entry in collie_io::Device::list(&collie_io::RealDevice::new(), dir).unwrap_or_default() {
        if entry.is_dir() {
            let path = dir.join(entry.name);
            found.extend(walk(&path));
            found.push(path);
        }
    }
    found
}

/// Scans to the end with options; returns every name as often as it was returned.
fn scan(client: &mut Client, options: &str, mut between: impl FnMut(usize)) -> Vec<Vec<u8>> {
    let (mut cursor, mut names) = ("0".to_owned(), Vec::new());
    for call in 0..100_000 {
        let reply = client.call_raw(&format!("SCAN {cursor}{options}").split(' ').collect::<Vec<_>>());
        let text = String::from_utf8(reply).unwrap();
        let mut parts = text.splitn(4, "\r\n");
        cursor = parts.nth(2).unwrap().to_owned();
        names.extend(sorted_names(parts.next().unwrap().as_bytes()));
        if cursor == "0" {
            return names;
        }
        between(call);
    }
    panic!("a scan without end");
}

#[test]
fn a_scan_returns_all_that_stays_whatever_comes_and_goes() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let (mut client, mut other) = (server.client(), server.client());
    let mut random = Random::new("a_scan_returns_all_that_stays_whatever_comes_and_goes");
    for i in 0..500 {
        client.line(&format!("SET stays:{i} v"));
        client.line(&format!("SET goes:{i} v"));
    }
    for options in [
        "",
        " COUNT 1000",
        " COUNT 7 MATCH stays:*",
        " MATCH *ays:*",
        " TYPE string COUNT 3",
    ] {
        let names = scan(&mut client, options, |_| {
            let i = random.below(500);
            other.line(&format!("DEL goes:{i}"));
            other.line(&format!("SET new:{} v", random.below(10_000)));
        });
        let mut found: BTreeSet<Vec<u8>> = BTreeSet::new();
        for name in names {
            assert!(found.insert(name), "in the order of the keys nothing comes twice");
        }
        for i in 0..500 {
            let name = format!("stays:{i}");
            let framed = format!("${}\r\n{name}\r\n", name.len()).into_bytes();
            assert!(found.contains(&framed), "{name} with{options}");
        }
    }
    assert_eq!(scan(&mut client, " TYPE list", |_| {}), Vec::<Vec<u8>>::new());
    // An unknown cursor restarts the scan, which loses nothing.
    assert!(client.line("SCAN 99999999 COUNT 10").contains("goes:") || client.line("DBSIZE") == ":0\r\n");
}

#[test]
fn every_key_can_be_the_random_one() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let mut client = server.client();
    assert_eq!(client.line("RANDOMKEY"), "$-1\r\n");
    let names = [
        "a",
        "aa",
        "aaa",
        "ab",
        "b",
        "user:1000",
        "user:1001",
        "user:2000",
        "\u{ff}",
    ];
    for name in names {
        client.call(&["SET", name, "v"]);
    }
    client.call(&["SET", "", "v"]);
    let mut drawn = BTreeSet::new();
    for _ in 0..2_000 {
        drawn.insert(client.line("RANDOMKEY"));
    }
    assert_eq!(drawn.len(), names.len() + 1, "{drawn:?}");
}

#[test]
fn fifty_clients_increment_exactly() {
    // The long form: COLLIE_INCR=10000.
    let each = rounds("COLLIE_INCR", 200);
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    std::thread::scope(|scope| {
        for thread in 0..50 {
            let mut client = server.client();
            scope.spawn(move || {
                for i in 0..each {
                    // Half of them pipeline, in fives.
                    if thread % 2 == 0 {
                        assert!(client.line("INCR counter").starts_with(':'));
                    } else {
                        client.send(&crate::support::command(&["INCR", "counter"]));
                        if i % 5 == 4 || i + 1 == each {
                            for _ in 0..(if i % 5 == 4 { 5 } else { each % 5 }) {
                                assert!(client.reply().starts_with(b":"));
                            }
                        }
                    }
                }
            });
        }
    });
    let total = (50 * each).to_string();
    let expected = format!("${}\r\n{total}\r\n", total.len());
    assert_eq!(server.client().line("GET counter"), expected);
    server.stop().unwrap();
    let server = start(dir.path(), config());
    assert_eq!(server.client().line("GET counter"), expected, "after a restart");
    assert_eq!(server.client().line("DBSIZE"), ":1\r\n");
}

#[test]
fn a_set_of_several_keys_is_seen_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    server.client().line("MSET x 0 y 0 z 0");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut client = server.client();
            for i in 0..rounds("COLLIE_ROUNDS", 1_000) {
                client.line(&format!("MSET x {i} y {i} z {i}"));
            }
        });
        let mut client = server.client();
        let mut looks = 0;
        while !writer.is_finished() || looks == 0 {
            let reply = client.line("MGET z x y");
            let values: BTreeSet<&str> = reply
                .split("\r\n")
                .skip(2)
                .step_by(2)
                .filter(|v| !v.is_empty())
                .collect();
            assert_eq!(values.len(), 1, "{reply:?}");
            looks += 1;
        }
    });
}

#[test]
fn counts_stay_exact_under_random_changes_by_many() {
    // Four clients change the same few keys in every way; then DBSIZE and the expiry count must
    // equal what reading every key gives.
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let mut seeds = Random::new("counts_stay_exact_under_random_changes_by_many");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut client = server.client();
            let mut random = Random::seeded(seeds.below(1 << 30));
            scope.spawn(move || {
                for _ in 0..rounds("COLLIE_ROUNDS", 1_000) {
                    let (a, b) = (random.below(8), random.below(8));
                    let reply = client.line(&match random.below(9) {
                        0 => format!("SET k{a} v"),
                        1 => format!("SET k{a} v EX 1000"),
                        2 => format!("DEL k{a} k{b} k{a}"),
                        3 => format!("EXPIRE k{a} 500"),
                        4 => format!("PERSIST k{a}"),
                        5 => format!("MSET k{a} 1 k{b} 2 k{a} 3"),
                        6 => format!("GETDEL k{a}"),
                        7 => format!("EXPIRE k{a} -1"),
                        _ => format!("APPEND k{a} x"),
                    });
                    assert!(!reply.starts_with('-'), "{reply}");
                }
            });
        }
    });
    let mut client = server.client();
    let names = sorted_names(&client.call_raw(&["KEYS", "*"]));
    let expiring = (0..8)
        .filter(|i| !client.line(&format!("TTL k{i}")).starts_with(":-"))
        .count();
    assert_eq!(client.line("DBSIZE"), format!(":{}\r\n", names.len()));
    let expected = if names.is_empty() {
        "# Keyspace\r\n\r\n".to_owned()
    } else {
        format!("# Keyspace\r\ndb0:keys={},expires={expiring},", names.len())
    };
    assert!(
        client.line("INFO keyspace").contains(&expected),
        "{} {expected}",
        client.line("INFO keyspace")
    );
}

#[test]
fn the_time_counts_microseconds() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let mut client = server.client();
    // By chance all of them fall on the start of a millisecond once in 10^60 times.
    let odd = (0..20).any(|_| {
        let reply = client.line("TIME");
        let micros: u64 = reply.lines().last().unwrap().parse().unwrap();
        assert!(micros < 1_000_000, "{reply:?}");
        !micros.is_multiple_of(1_000)
    });
    assert!(odd);
}
