//! Commands that differ in a cluster, and the metrics.

use std::sync::Arc;

use collie_io::{Clock, Nanos, RealClock};

use crate::fake::Fake;
use crate::node;
use crate::support::{Random, config, options, rounds, run, start, wait_for};

#[test]
fn there_is_one_database() {
    let node = node(1);
    let mut client = node.client();
    for (line, expected) in [
        ("SELECT 0", "+OK\r\n"),
        ("SELECT 1", "-ERR SELECT is not allowed in cluster mode\r\n"),
        ("MOVE a 1", "-ERR MOVE is not allowed in cluster mode\r\n"),
        ("SWAPDB 0 1", "-ERR SWAPDB is not allowed in cluster mode\r\n"),
        (
            "COPY {t}a {t}b DB 1",
            "-ERR Copying to another database is not allowed in cluster mode\r\n",
        ),
        ("SET {t}a 1", "+OK\r\n"),
        ("COPY {t}a {t}b DB 0", ":1\r\n"),
        ("GET {t}b", "$1\r\n1\r\n"),
        ("CLIENT ACK buffered", "+OK\r\n"),
        ("OBJECT ENCODING {t}a", "$3\r\nint\r\n"),
        ("TYPE {t}a", "+string\r\n"),
    ] {
        assert_eq!(client.line(line), expected, "{line}");
    }
    assert!(client.line("HELLO 2").contains("\r\ncluster\r\n"));
}

#[test]
fn the_store_of_the_node_holds_no_keys() {
    let node = node(2);
    let mut client = node.client();
    let before = node.server.db.visible();
    for line in [
        "SET a 1",
        "INCR a",
        "MSET {t}x 1 {t}y 2",
        "APPEND a 1",
        "SETRANGE a 3 x",
        "SETBIT {t}bits 7 1",
        "GETEX a EX 100",
        "EXPIRE a 50",
        "PERSIST a",
        "GETSET a 5",
        "INCRBYFLOAT a 1.5",
        "GETDEL a",
        "PSETEX a 100000 1",
        "RENAME {t}x {t}z",
        "UNLINK {t}z",
        "BITFIELD {t}f SET u8 0 1",
        "FLUSHALL",
    ] {
        let reply = client.line(line);
        assert!(!reply.starts_with('-'), "{line}: {reply}");
    }
    assert_eq!(node.server.db.visible(), before);
    assert_eq!(node.fake.checked_counts(), (0, 0));
}

const KEYS: [&str; 4] = ["{t}a", "{t}b", "{t}", "{t}key:1"];
const VALUES: [&str; 7] = [
    "",
    "1",
    "-5",
    "text",
    "9223372036854775807",
    "3.5",
    "some longer text",
];
const TIMES: [&str; 4] = ["100000000", "0", "-1", "x"];
/// Commands with the kinds of their arguments: a key, a value, a time, a small number.
const COMMANDS: [&str; 52] = [
    "GET k",
    "GET k",
    "SET k v",
    "SET k v",
    "SET k v EX t",
    "SET k v NX",
    "SET k v XX GET",
    "SET k v KEEPTTL",
    "GETDEL k",
    "GETEX k EX t",
    "GETEX k PERSIST",
    "GETSET k v",
    "SETNX k v",
    "SETEX k t v",
    "PSETEX k t v",
    "MGET k k k",
    "MSET k v k v",
    "MSETNX k v k v",
    "APPEND k v",
    "STRLEN k",
    "INCR k",
    "DECRBY k n",
    "INCRBYFLOAT k v",
    "GETRANGE k n n",
    "SETRANGE k n v",
    "LCS k k",
    "SETBIT k n 1",
    "GETBIT k n",
    "BITCOUNT k",
    "BITPOS k 1",
    "BITOP XOR k k k",
    "BITFIELD k INCRBY u8 n 3",
    "DEL k k",
    "UNLINK k",
    "EXISTS k k",
    "TYPE k",
    "EXPIRE k t",
    "PEXPIREAT k t",
    "PERSIST k",
    "RENAME k k",
    "RENAMENX k k",
    "COPY k k",
    "COPY k k REPLACE",
    "OBJECT ENCODING k",
    "MULTI",
    "MULTI",
    "EXEC",
    "EXEC",
    "DISCARD",
    "WATCH k",
    "UNWATCH",
    "FLUSHDB",
];

/// Random commands of two clients, in a cluster and in a server on its own store: the replies are the same,
/// byte for byte.
#[test]
fn commands_on_one_slot_are_answered_as_outside_of_a_cluster() {
    let mut random = Random::new("commands_on_one_slot");
    let node = node(2);
    // Stamps make no difference.
    if random.below(2) == 0 {
        node.fake.stamp(7);
    }
    let dir = tempfile::tempdir().unwrap();
    let alone = start(dir.path(), config());
    let mut clients = [(); 2].map(|()| (node.client(), alone.client()));
    for round in 0..rounds("COLLIE_CLUSTER_COMMANDS", 4_000) {
        let words: Vec<String> = random
            .pick(&COMMANDS)
            .split(' ')
            .map(|word| match word {
                "k" => random.pick(&KEYS).to_owned(),
                "v" => random.pick(&VALUES).to_owned(),
                "t" => random.pick(&TIMES).to_owned(),
                "n" => random.below(20).to_string(),
                word => word.to_owned(),
            })
            .collect();
        let (ours, theirs) = &mut clients[random.below(2)];
        // Emptying all is no part of a transaction in a cluster.
        if words == ["FLUSHDB"] {
            let is_queued = !ours.line("PING").starts_with("+PONG");
            theirs.line("PING");
            if is_queued {
                continue;
            }
        }
        let (our, their) = (ours.call(&words), theirs.call(&words));
        assert_eq!(our, their, "round {round}: {words:?}");
    }
    for (ours, theirs) in &mut clients {
        ours.line("DISCARD");
        theirs.line("DISCARD");
    }
    for (ours, theirs) in &mut clients {
        assert_eq!(ours.line("DBSIZE"), theirs.line("DBSIZE"));
    }
    node.fake.checked_counts();
    wait_for("nothing is locked", || node.fake.is_unlocked());
}

#[test]
fn a_store_with_keys_is_not_hidden_behind_a_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let alone = start(dir.path(), config());
    assert_eq!(alone.client().line("SET a 1"), "+OK\r\n");
    alone.stop().unwrap();
    let db = collie_db::Db::open(dir.path(), options()).unwrap();
    let config = collie_server::ServerConfig {
        cluster: Some(Fake::new(1)),
        ..config()
    };
    let error = collie_server::Server::bind(config, db).unwrap_err();
    assert!(error.to_string().contains("holds keys of users"), "{error}");
}

/// Another year than that of the machine.
#[derive(Debug)]
struct Stopped;

impl Clock for Stopped {
    fn monotonic(&self) -> Nanos {
        RealClock.monotonic()
    }

    fn wall_ms(&self) -> u64 {
        1_000_000_000_000
    }
}

#[test]
fn a_server_in_a_cluster_goes_by_the_clock_of_its_node() {
    let dir = tempfile::tempdir().unwrap();
    let db = collie_db::Db::open(dir.path(), options()).unwrap();
    let addresses = collie_server::Addresses::take(config()).unwrap();
    let addresses = addresses.in_cluster(Fake::new(1), Arc::new(Stopped));
    let server = run(collie_server::Server::listen(addresses, db.clone()).unwrap(), db);
    let time = server.client().line("TIME");
    assert!(time.contains("1000000000\r\n"), "{time}");
}
