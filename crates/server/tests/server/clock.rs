//! A wall clock that is stepped back and forth, as an administrator or a time service does: expired
//! keys stay removed, other keys stay, and no entry is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::support::{Client, Random, Running, config, field, rounds, start, until, wait_for};
use collie_io::{Clock, Nanos, RealClock};
use collie_server::ServerConfig;

const START_MS: u64 = 1_800_000_000_000;
const HOUR_MS: u64 = 3_600_000;

/// A wall clock that tests set. The monotonic clock is the real one.
#[derive(Debug)]
struct Stepped(AtomicU64);

impl Stepped {
    fn new() -> Arc<Stepped> {
        Arc::new(Stepped(AtomicU64::new(START_MS)))
    }

    fn set(&self, ms: u64) {
        self.0.store(ms, Ordering::SeqCst);
    }
}

impl Clock for Stepped {
    fn monotonic(&self) -> Nanos {
        RealClock.monotonic()
    }

    fn wall_ms(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

fn with_clock(clock: &Arc<Stepped>) -> ServerConfig {
    ServerConfig {
        clock: Arc::clone(clock) as Arc<dyn Clock>,
        ..config()
    }
}

/// How many entries the engine stores for the databases, keys and index entries alike.
fn entries(server: &Running) -> usize {
    let families = server.db.families();
    let databases = families.iter().filter(|name| name.starts_with("db"));
    databases
        .map(|name| server.db.family(name).unwrap().iter().unwrap().count())
        .sum()
}

#[test]
fn an_expired_key_stays_gone_when_the_clock_steps_back() {
    const KEYS: usize = 40;
    let clock = Stepped::new();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), with_clock(&clock));
    let mut client = server.client();
    let commands: [(&str, &str); 8] = [
        ("GET", "$-1\r\n"),
        ("EXISTS", ":0\r\n"),
        ("TTL", ":-2\r\n"),
        ("TYPE", "+none\r\n"),
        ("STRLEN", ":0\r\n"),
        ("MGET", "*1\r\n$-1\r\n"),
        ("BITCOUNT", ":0\r\n"),
        ("PTTL", ":-2\r\n"),
    ];
    for (command, gone) in commands {
        for i in 0..KEYS {
            client.line(&format!("SET {command}{i} v PX 1000"));
        }
        for i in 0..KEYS {
            clock.set(START_MS + 1_001);
            assert_eq!(client.line(&format!("{command} {command}{i}")), gone);
            clock.set(START_MS);
            assert_eq!(
                client.line(&format!("GET {command}{i}")),
                "$-1\r\n",
                "{command} {i}"
            );
        }
    }
    // A page of keys never contains the expired ones.
    for i in 0..KEYS {
        client.line(&format!("SET scanned{i} v PX 1000"));
    }
    clock.set(START_MS + 1_001);
    assert_eq!(client.line("SCAN 0 COUNT 1000"), "*2\r\n$1\r\n0\r\n*0\r\n");
    clock.set(START_MS);
    assert_eq!(client.line("KEYS *"), "*0\r\n");
    assert_eq!(client.line("DBSIZE"), ":0\r\n");
    let expired = KEYS * (commands.len() + 1);
    assert_eq!(
        field(&mut client, "stats", "expired_keys"),
        expired.to_string(),
        "each once"
    );
    assert_eq!(entries(&server), 0);
}

/// As Redis: the keys are gone for readers, and counted, until the pause is over.
#[test]
fn a_pause_of_clients_removes_no_expired_key() {
    const KEYS: usize = 20;
    let clock = Stepped::new();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), with_clock(&clock));
    let mut client = server.client();
    for i in 0..KEYS {
        client.line(&format!("SET k{i} v PX 1000"));
    }
    client.line("CLIENT PAUSE 1000000 WRITE");
    clock.set(START_MS + 1_001);
    for i in 0..KEYS {
        assert_eq!(client.line(&format!("GET k{i}")), "$-1\r\n");
    }
    assert_eq!(client.line("SCAN 0 COUNT 1000"), "*2\r\n$1\r\n0\r\n*0\r\n");
    // As long as several sweeps take.
    for _ in 0..50 {
        assert_eq!(client.line("DBSIZE"), format!(":{KEYS}\r\n"));
        assert_eq!(entries(&server), 2 * KEYS, "keys and index entries");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    client.line("CLIENT UNPAUSE");
    until(&mut client, "DBSIZE", ":0\r\n");
    assert_eq!(entries(&server), 0);
}

#[test]
fn steps_before_an_expiry_expire_nothing() {
    const KEYS: usize = 300;
    let clock = Stepped::new();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), with_clock(&clock));
    let mut client = server.client();
    let mut random = Random::new("clock");
    for i in 0..KEYS {
        client.line(&format!("SET k{i} v PX 10000"));
    }
    for _ in 0..rounds("COLLIE_CLOCK_STEPS", 100) {
        // From an hour before to exactly the expiry.
        clock.set(START_MS + 10_000 - random.below(HOUR_MS as usize) as u64);
        assert_eq!(client.line("EXISTS k0 k1 k2"), ":3\r\n");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(client.line("DBSIZE"), format!(":{KEYS}\r\n"));
    assert_eq!(field(&mut client, "stats", "expired_keys"), "0");
    clock.set(START_MS - HOUR_MS);
    assert_eq!(client.line("PTTL k0"), format!(":{}\r\n", HOUR_MS + 10_000));
    clock.set(START_MS + 10_001);
    until(&mut client, "DBSIZE", ":0\r\n");
}

/// The sweeper has read the index up to the clock; after a step back it still finds what expires
/// before that.
#[test]
fn keys_set_after_a_step_back_expire_by_the_new_clock() {
    let clock = Stepped::new();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), with_clock(&clock));
    let mut client = server.client();
    client.line("SET first v PX 1");
    client.line(&format!("SET late v PX {}", 100 * HOUR_MS));
    clock.set(START_MS + 24 * HOUR_MS);
    until(&mut client, "DBSIZE", ":1\r\n");
    for days in [30, 2, 7] {
        let now = START_MS - days * 24 * HOUR_MS;
        clock.set(now);
        for i in 0..50 {
            client.line(&format!("SET again{i} v PX {}", 1 + i));
        }
        assert_eq!(client.line("EXISTS again49 late"), ":2\r\n");
        clock.set(now + 51);
        // The keys are not accessed, so that only the sweeper removes them.
        until(&mut client, "DBSIZE", ":1\r\n");
    }
    assert_eq!(entries(&server), 2, "the late one and its index entry");
}

#[test]
fn a_start_with_a_clock_stepped_back_brings_nothing_back() {
    let clock = Stepped::new();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), with_clock(&clock));
    let mut client = server.client();
    for i in 0..20 {
        client.line(&format!("SET short{i} v PX 1000"));
        client.line(&format!("SET long{i} v PX 60000"));
    }
    clock.set(START_MS + 1_001);
    until(&mut client, "DBSIZE", ":20\r\n");
    drop(client);
    server.stop().unwrap();
    clock.set(START_MS - HOUR_MS);
    let server = start(dir.path(), with_clock(&clock));
    let mut client = server.client();
    assert_eq!(client.line("DBSIZE"), ":20\r\n");
    assert_eq!(client.line("EXISTS short0 short19"), ":0\r\n");
    assert_eq!(client.line("PTTL long0"), format!(":{}\r\n", HOUR_MS + 60_000));
    clock.set(START_MS + 60_001);
    until(&mut client, "DBSIZE", ":0\r\n");
    assert_eq!(entries(&server), 0);
}

#[test]
fn at_the_ends_of_time_expiries_are_refused_or_kept() {
    let clock = Stepped::new();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), with_clock(&clock));
    let mut client = server.client();
    let refused = "-ERR invalid expire time in 'set' command\r\n";
    // The start of 1970; the last time of the kernel's clock; the last possible expiry.
    let last = i64::MAX.unsigned_abs();
    for (now, expected) in [
        (0, "+OK\r\n"),
        (9_223_372_036_854, "+OK\r\n"),
        (last - 1_000, "+OK\r\n"),
        (last, refused),
        (u64::MAX, refused),
    ] {
        clock.set(now);
        assert_eq!(client.line("SET k v PX 1000"), expected, "at {now}");
        client.line("SET k v");
        for line in [
            "EXPIRE k 1",
            "EXPIRETIME k",
            "TTL k",
            "PTTL k",
            "TIME",
            "INFO",
            "CLIENT LIST",
        ] {
            assert!(!client.line(line).is_empty(), "{line} at {now}");
        }
        client.line("SLOWLOG GET 10");
        client.line("DEL k");
    }
    clock.set(START_MS);
    assert_eq!(client.line("SET k v PX 1000"), "+OK\r\n");
    assert_eq!(client.line("PTTL k"), ":1000\r\n");
}

#[test]
fn counts_and_index_stay_exact_while_the_clock_steps() {
    const CLIENTS: usize = 4;
    let clock = Stepped::new();
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), with_clock(&clock));
    let mut random = Random::new("clock");
    let seeds: Vec<usize> = (0..CLIENTS).map(|_| random.below(usize::MAX >> 1)).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = seeds
            .into_iter()
            .map(|seed| {
                let client = server.client();
                scope.spawn(move || change_at_random(client, seed))
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                clock.set(START_MS + random.below(20_000) as u64);
                std::thread::sleep(std::time::Duration::from_millis(3));
            }
        });
        for client in clients {
            client.join().unwrap();
        }
        done.store(true, Ordering::SeqCst);
    });
    let mut client = server.client();
    // Every key with an expiry is removed, and leaves no entry behind; the others are counted.
    clock.set(START_MS + HOUR_MS);
    wait_for("nothing is left that expires", || {
        field(&mut client, "keyspace", "db0").contains(",expires=0,")
    });
    let names = client.line("KEYS *");
    let count = names.split("\r\n").filter(|line| line.starts_with('k')).count();
    assert!(count > 0);
    assert_eq!(client.line("DBSIZE"), format!(":{count}\r\n"));
    assert_eq!(entries(&server), count, "entries of keys, and none of the index");
}

fn change_at_random(mut client: Client, seed: usize) {
    let mut random = Random::seeded(seed);
    for _ in 0..rounds("COLLIE_CLOCK_COMMANDS", 4_000) {
        let (key, ms) = (random.below(60), 1 + random.below(20_000));
        let line = match random.below(9) {
            0 | 1 => format!("SET k{key} v PX {ms}"),
            2 => format!("SET k{key} v"),
            3 => format!("PEXPIRE k{key} {ms}"),
            4 => format!("PERSIST k{key}"),
            5 => format!("DEL k{key}"),
            6 => "SCAN 0 COUNT 100".to_owned(),
            7 => format!("GETEX k{key} PX {ms}"),
            _ => format!("GET k{key}"),
        };
        let reply = client.line(&line);
        assert!(!reply.starts_with('-'), "{line}: {reply}");
    }
}
