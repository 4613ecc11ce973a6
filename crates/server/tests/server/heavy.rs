//! Small requests that work on large values, that wait, or that arrive by the thousand: other
//! clients of the same thread are served meanwhile.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Client, Running, check_long_pipeline, command, config, options, start, start_on};
use collie_db::{Db, Options, RingMode};
use collie_server::ServerConfig;
use collie_sim::SimDevice;

/// A large value, and how often it is written: several times the capacity of the log's ring.
const LARGE: usize = 100_000;
const TIMES: usize = 40;
const RING: usize = 1 << 20;
/// Above what a command may read on the connection's thread.
const HEAVY: usize = 1_000_000;

/// One thread, so that a command which blocks it blocks all clients.
fn one_thread() -> ServerConfig {
    ServerConfig {
        threads: 1,
        ..config()
    }
}

/// A server on a device whose syncs can be blocked.
fn start_simulated(dir: &std::path::Path) -> (Running, SimDevice) {
    let device = SimDevice::new(17);
    // Writes that are durable when they return would not be blocked with the syncs.
    device.support_direct(false);
    let options = Options {
        device: Arc::new(device.clone()),
        ring: RingMode::Private,
        ring_bytes: RING,
        segment_bytes: 16 << 20,
        ..options()
    };
    let config = ServerConfig {
        ring_bytes: RING,
        ..one_thread()
    };
    (start_on(Db::open(dir, options).unwrap(), config), device)
}

/// A figure of `INFO`.
fn figure(client: &mut Client, section: &str, name: &str) -> u64 {
    let info = client.line(&format!("INFO {section}"));
    let found = info
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found
        .unwrap_or_else(|| panic!("no {name} in {info}"))
        .parse()
        .unwrap()
}

fn pipeline(lines: &[String]) -> Vec<u8> {
    let words = |line: &String| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    lines.iter().flat_map(|line| command(&words(line))).collect()
}

/// While the device is blocked each of these fills the ring by requests of a few bytes. The thread
/// that reads them is not blocked.
#[test]
fn gets_are_answered_while_large_writes_wait_for_the_device() {
    for (name, lines) in [
        ("EXPIRE", vec!["EXPIRE big 1000", "EXPIRE big 2000"]),
        ("PERSIST", vec!["PERSIST due", "EXPIRE due 1000"]),
        ("GETEX", vec!["GETEX big EX 1000", "GETEX big EX 2000"]),
        ("SETRANGE", vec!["SETRANGE big 5 x", "SETRANGE new 100000 x"]),
        ("APPEND", vec!["APPEND big x"]),
        ("SETBIT", vec!["SETBIT big 7 1", "SETBIT big 7 0"]),
        (
            "BITFIELD",
            vec!["BITFIELD big SET u8 0 1", "BITFIELD big SET u8 0 2"],
        ),
        ("BITOP", vec!["BITOP OR target big due"]),
        ("COPY", vec!["COPY big other REPLACE"]),
        ("RENAME", vec!["RENAME big moved", "RENAME moved big"]),
        ("EXEC", vec!["MULTI", "APPEND big x", "SETRANGE due 1 y", "EXEC"]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (server, device) = start_simulated(dir.path());
        let (mut writer, mut reader) = (server.client(), server.client());
        let value = "v".repeat(LARGE);
        assert_eq!(writer.call(&["SET", "big", &value]), "+OK\r\n");
        assert_eq!(writer.call(&["SET", "due", &value, "EX", "1000"]), "+OK\r\n");
        assert_eq!(writer.line("SET small x"), "+OK\r\n");
        let held_syncs = device.hold_syncs();
        let lines: Vec<String> = lines.iter().map(|&line| line.to_owned()).collect();
        let lines = vec![lines.clone(); TIMES / lines.len()].concat();
        writer.send(&pipeline(&lines));
        for n in 0..1_000 {
            assert_eq!(reader.line("GET small"), "$1\r\nx\r\n", "{name}, GET number {n}");
        }
        held_syncs.release();
        for (n, line) in lines.iter().enumerate() {
            let reply = writer.reply();
            assert!(
                !reply.starts_with(b"-"),
                "{line}, number {n}: {:?}",
                String::from_utf8_lossy(&reply)
            );
        }
    }
}

#[test]
fn a_client_that_waits_for_a_row_delays_no_other_of_its_thread() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), one_thread());
    let (mut writer, mut reader) = (server.client(), server.client());
    // Commands wait longer than that for locks.
    let patience = Some(Duration::from_secs(20));
    reader.stream.set_read_timeout(patience).unwrap();
    assert_eq!(writer.line("SET row 1"), "+OK\r\n");
    assert_eq!(writer.line("SET small x"), "+OK\r\n");
    for lines in [
        vec!["INCR row"],
        vec!["MSET row 1 other 2"],
        vec!["MULTI", "INCR row", "EXEC"],
        vec!["RENAME row row2", "RENAME row2 row"],
    ] {
        // The program that shares the store with its clients changes the same row.
        let family = server.db.family("db0.0").unwrap();
        let mut owner = server.db.row_owner("a program");
        let locked = server
            .db
            .lock_rows(&mut owner, [(&family, &b"krow"[..])], Duration::from_secs(30));
        let locked = locked.unwrap();
        let lines: Vec<String> = lines.iter().map(|&line| line.to_owned()).collect();
        writer.send(&pipeline(&lines));
        for _ in 0..1_000 {
            assert_eq!(reader.line("GET small"), "$1\r\nx\r\n", "{lines:?}");
        }
        drop(locked);
        for line in &lines {
            assert!(!writer.reply().starts_with(b"-"), "{line}");
        }
    }
    assert_eq!(reader.line("GET row"), "$1\r\n2\r\n");
}

#[test]
fn many_that_wait_for_a_row_keep_no_heavy_command_waiting() {
    // More than there are threads that may block.
    const CROWD: usize = 700;
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), one_thread());
    let mut other = server.client();
    other
        .stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    assert_eq!(other.call(&["SET", "big", &"v".repeat(HEAVY)]), "+OK\r\n");
    let mut crowd: Vec<Client> = (0..CROWD).map(|_| server.client()).collect();
    let family = server.db.family("db0.0").unwrap();
    let mut owner = server.db.row_owner("a program");
    let locked = server
        .db
        .lock_rows(&mut owner, [(&family, &b"krow"[..])], Duration::from_secs(30));
    let locked = locked.unwrap();
    let waiting = command(&["INCR", "row"]);
    crowd.iter_mut().for_each(|client| client.send(&waiting));
    // All of them are read before it, and it is served again and again.
    for _ in 0..10 {
        assert_eq!(other.line("BITCOUNT big"), format!(":{}\r\n", 5 * HEAVY));
        assert_eq!(other.line("GET nothing"), "$-1\r\n");
    }
    drop(locked);
    for client in &mut crowd {
        assert!(client.reply().starts_with(b":"));
    }
    assert_eq!(other.line("GET row"), format!("$3\r\n{CROWD}\r\n"));
}

#[test]
fn heavy_commands_run_aside_once_and_light_ones_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), one_thread());
    let (mut client, mut watcher) = (server.client(), server.client());
    assert_eq!(client.call(&["SET", "big", &"v".repeat(HEAVY)]), "+OK\r\n");
    assert_eq!(client.call(&["SET", "big2", &"w".repeat(HEAVY)]), "+OK\r\n");
    for (line, light) in [
        ("GET big", "GET a"),
        ("GETRANGE big 0 900000", "GETRANGE a 0 10"),
        ("MGET a big", "MGET a b"),
        ("BITCOUNT big", "BITCOUNT a"),
        ("BITPOS big 0", "BITPOS a 0"),
        ("BITOP AND t big big2", "BITOP AND t a b"),
        ("LCS big a LEN", "LCS a a LEN"),
        ("COPY big other", "COPY a b"),
        ("GETEX big", "GETEX a"),
        (
            "BITFIELD big SET u8 0 1 SET u8 7000000 1",
            "BITFIELD a SET u8 0 1",
        ),
        ("GETDEL big", "GETDEL a"),
    ] {
        // A connection of its own: after a heavy command a connection expects another.
        let mut client = server.client();
        let before = figure(&mut watcher, "stats", "commands_aside");
        client.line(light);
        assert_eq!(figure(&mut watcher, "stats", "commands_aside"), before, "{light}");
        client.line(line);
        assert_eq!(
            figure(&mut watcher, "stats", "commands_aside"),
            before + 1,
            "{line}"
        );
    }
}

#[test]
fn a_heavy_transaction_runs_once_and_is_counted_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), one_thread());
    let (mut client, mut other) = (server.client(), server.client());
    assert_eq!(client.call(&["SET", "big", &"v".repeat(HEAVY)]), "+OK\r\n");
    // Another connection, which does not know yet that its values are large.
    let mut client = server.client();
    assert_eq!(client.line("CONFIG RESETSTAT"), "+OK\r\n");
    let queue = |client: &mut Client| {
        assert_eq!(client.line("MULTI"), "+OK\r\n");
        for line in [
            "INCR n",
            "GET nothing",
            "APPEND log x",
            "STRLEN big",
            "INCRBY big 1",
            "BITCOUNT big",
        ] {
            assert_eq!(client.line(line), "+QUEUED\r\n");
        }
    };
    client.line("WATCH n");
    queue(&mut client);
    let replies = client.line("EXEC");
    // Of a "v" five bits are set.
    const BITS: usize = 5 * HEAVY;
    let expected = format!(
        "*6\r\n:1\r\n$-1\r\n:1\r\n:{HEAVY}\r\n-ERR value is not an integer or out of range\r\n:{BITS}\r\n"
    );
    assert_eq!(replies, expected);
    for (section, name, value) in [
        ("stats", "commands_aside", 1),
        ("stats", "keyspace_misses", 1),
        ("stats", "total_error_replies", 1),
    ] {
        assert_eq!(figure(&mut other, section, name), value, "{name}");
    }
    // The watch works on that thread as well.
    client.line("WATCH n");
    queue(&mut client);
    assert_eq!(other.line("INCR n"), ":2\r\n");
    assert_eq!(client.line("EXEC"), "*-1\r\n");
    assert_eq!(other.line("GET log"), "$1\r\nx\r\n");
    // The connection is not in a transaction any more.
    assert_eq!(client.line("INCR n"), ":3\r\n");
}

#[test]
fn a_long_pipeline_gives_others_a_turn_and_keeps_its_order() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), one_thread());
    let mut client = server.client();
    check_long_pipeline(&mut client, 50_000);
    assert!(figure(&mut client, "stats", "turns_given") > 0);
}

#[test]
fn slow_patterns_are_searched_for_aside_and_find_all_matches() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), one_thread());
    let mut client = server.client();
    let mut long = "a".repeat(2_000);
    for n in 0..20 {
        assert_eq!(client.call(&["SET", &format!("{long}{n}"), "x"]), "+OK\r\n");
    }
    // 600 comparisons at each of 1,400 positions of each key.
    let pattern = format!("*{}b*", "a".repeat(600));
    let before = figure(&mut client, "stats", "commands_aside");
    let page = client.call(&["SCAN", "0", "MATCH", &pattern, "COUNT", "100"]);
    assert!(
        page.ends_with("*0\r\n") && !page.contains("$1\r\n0"),
        "it ends early: {page}"
    );
    assert_eq!(figure(&mut client, "stats", "commands_aside"), before + 1);
    assert_eq!(client.call(&["KEYS", &pattern]), "*0\r\n");
    let pattern = format!("*{}7", "a".repeat(600));
    assert_eq!(client.call(&["KEYS", &pattern]).matches("aaa7\r\n").count(), 1);
    long.push('3');
    assert_eq!(
        client.call(&["KEYS", &long]),
        format!("*1\r\n$2001\r\n{long}\r\n")
    );
    for n in 0..3_000 {
        client.line(&format!("SET many:{n} x"));
    }
    assert!(client.line("KEYS many:*").starts_with("*3000\r\n"));
}
