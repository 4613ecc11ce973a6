//! Large values, which lie in pieces: what touches little of them is cheap, what reads all of them
//! sees one moment, and nothing of them is left behind.

use std::sync::atomic::{AtomicBool, Ordering};

use collie_db::Db;
use collie_server::ServerConfig;

use crate::support::{Client, Running, config, field, start, wait_for};

/// Values of more than 32 bytes in pieces of 16.
fn tiny_pieces() -> ServerConfig {
    ServerConfig {
        piece_bytes: 16,
        ..config()
    }
}

/// The rows of pieces in all databases.
fn pieces(db: &Db) -> usize {
    let families = db.families().into_iter().filter(|name| name.starts_with("db"));
    let rows = families.filter_map(|name| db.family(&name)).map(|family| {
        let rows = family.prefix([b'v']).unwrap();
        rows.inspect(|row| assert!(row.is_ok(), "{row:?}")).count()
    });
    rows.sum()
}

/// Removes all keys of all databases, one by one.
pub(crate) fn nothing_is_left_of_removed_values(server: &Running) {
    let mut client = server.client();
    for database in 0..16 {
        client.call(&["SELECT", &database.to_string()]);
        loop {
            let key = client.call(&["RANDOMKEY"]);
            let Some((_, key)) = key.split_once("\r\n") else {
                break;
            };
            if key.is_empty() {
                break;
            }
            client.call(&["DEL", key.trim_end_matches("\r\n")]);
        }
        assert_eq!(client.line("DBSIZE"), ":0\r\n");
    }
    assert_eq!(pieces(&server.db), 0);
}

/// How many bytes of commits a command writes.
fn written(server: &Running, client: &mut Client, words: &[&str]) -> u64 {
    let before = server.db.stats().commit_bytes;
    let reply = client.call(words);
    assert!(!reply.starts_with('-'), "{words:?}: {reply}");
    server.db.stats().commit_bytes - before
}

#[test]
fn a_small_change_of_a_large_value_writes_little() {
    const LEN: usize = 5_000_000;
    const PIECE: u64 = 32 * 1024;
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let mut client = server.client();
    assert_eq!(client.call(&["SET", "big", &"v".repeat(LEN)]), "+OK\r\n");
    assert_eq!(pieces(&server.db), LEN.div_ceil(32 * 1024));
    // After a large request a connection expects another.
    let mut client = server.client();
    let aside = |client: &mut Client| field(client, "stats", "commands_aside");
    let before = aside(&mut client);
    for (line, most) in [
        ("EXPIRE big 1000", 300),
        ("PERSIST big", 300),
        ("RENAME big other", 300),
        ("RENAME other big", 300),
        ("SETRANGE big 1000000 x", PIECE + 300),
        ("APPEND big x", PIECE + 300),
        ("SETBIT big 7 1", PIECE + 300),
        ("BITFIELD big SET u8 9 1 GET u8 0", PIECE + 300),
        // A gap takes no space, but for the piece that it ends in.
        ("SETRANGE far 15000000 x", PIECE + 300),
        ("SETBIT wide 100000000 1", PIECE + 300),
        ("STRLEN big", 0),
        ("TTL big", 0),
        ("EXISTS big far", 0),
        ("TYPE big", 0),
        ("OBJECT ENCODING big", 0),
        ("GETRANGE big 999999 1000001", 0),
        ("GETBIT big 8000000", 0),
        ("BITCOUNT big 10 20", 0),
        ("BITFIELD_RO big GET u8 100", 0),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let bytes = written(&server, &mut client, &words);
        assert!(bytes <= most, "{line} wrote {bytes} bytes");
    }
    assert_eq!(aside(&mut client), before);
    // Over the border of two pieces, which together are written aside.
    let bytes = written(&server, &mut client, &["SETRANGE", "big", "1048575", "xy"]);
    assert!(bytes <= 2 * PIECE + 300, "{bytes} bytes");
    let beside: u64 = before.parse().unwrap();
    assert_eq!(aside(&mut client), (beside + 1).to_string());
    assert_eq!(client.line("GETRANGE big 999999 1000001"), "$3\r\nvxv\r\n");
    assert_eq!(client.line("GETRANGE big 1048574 1048577"), "$4\r\nvxyv\r\n");
    assert_eq!(client.line("STRLEN big"), format!(":{}\r\n", LEN + 1));
    assert_eq!(client.line("GETRANGE big -2 -1"), "$2\r\nvx\r\n");
    assert_eq!(client.line("STRLEN far"), ":15000001\r\n");
    assert_eq!(client.line("BITCOUNT far"), ":4\r\n");
    assert_eq!(client.line("BITPOS wide 1"), ":100000000\r\n");
    let far = client.call_raw(&["GET", "far"]);
    assert_eq!(far.len(), 15_000_001 + "$15000001\r\n\r\n".len());
    assert!(far[11..].iter().take(15_000_000).all(|&byte| byte == 0));
    assert!(far.ends_with(b"x\r\n"));
}

#[test]
fn readers_see_one_moment_of_a_value_that_others_change() {
    const ROUNDS: usize = 3_000;
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), tiny_pieces());
    let letters = |letter: char| letter.to_string().repeat(100);
    let is_over = AtomicBool::new(false);
    server
        .client()
        .call(&["MSET", "k", &letters('a'), "l", &letters('a')]);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let mut client = server.client();
            for round in 0..ROUNDS {
                let value = letters(char::from(b'a' + (round % 26) as u8));
                match round % 9 {
                    0 => client.call(&["SETRANGE", "k", "0", &value]),
                    1 => client.call(&["RENAME", "l", "k"]),
                    2 => client.call(&["SET", "k", &value, "PX", "100000"]),
                    3 => client.call(&["PERSIST", "k"]),
                    4 => client.call(&["COPY", "k", "l", "REPLACE"]),
                    5 => client.call(&["SETRANGE", "l", "0", &value]),
                    6 => client.call(&["GETDEL", "k"]),
                    7 => client.call(&["MSET", "k", &value, "l", &value]),
                    _ if round % 90 == 8 => client.call(&["FLUSHDB"]),
                    _ => client.call(&["SET", "k", "short"]),
                };
            }
            is_over.store(true, Ordering::Relaxed);
        });
        for reader in 0..2 {
            let (server, is_over) = (&server, &is_over);
            scope.spawn(move || {
                let mut client = server.client();
                let (mut whole, mut looks) = (0, 0);
                while !is_over.load(Ordering::Relaxed) || looks < 100 {
                    looks += 1;
                    let reply = match reader {
                        0 => client.call(&["GET", "k"]),
                        _ => client.call(&["MGET", "k", "l"]),
                    };
                    assert!(!reply.starts_with('-'), "{reply}");
                    let values = reply.split("\r\n").filter(|line| line.len() == 100);
                    for value in values {
                        whole += 1;
                        let first = &value[..1];
                        assert_eq!(value, first.repeat(100), "a value of two moments");
                    }
                    for line in reply.split("\r\n").filter(|line| line.starts_with('$')) {
                        assert!(["$-1", "$5", "$100"].contains(&line), "{reply}");
                    }
                }
                assert!(whole > 0);
            });
        }
        writing.join().unwrap();
    });
    nothing_is_left_of_removed_values(&server);
}

#[test]
fn a_read_beside_an_emptying_finds_the_value_or_nothing() {
    const FLUSHES: usize = 60;
    const LEN: usize = 100_000;
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), tiny_pieces());
    let value = "v".repeat(LEN);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let emptying = scope.spawn(|| {
            let mut client = server.client();
            for _ in 0..FLUSHES {
                assert_eq!(client.call(&["SET", "k", &value]), "+OK\r\n");
                assert_eq!(client.line("FLUSHALL"), "+OK\r\n");
            }
            is_over.store(true, Ordering::Relaxed);
        });
        for _ in 0..3 {
            scope.spawn(|| {
                let mut client = server.client();
                while !is_over.load(Ordering::Relaxed) {
                    let reply = client.text(&["GET", "k"]);
                    assert!(reply == "$-1" || reply == value, "{:.80}", reply);
                }
            });
        }
        emptying.join().unwrap();
    });
}

#[test]
fn a_database_that_is_opened_again_goes_on_behind_its_values() {
    let dir = tempfile::tempdir().unwrap();
    let value = |letter: &str| letter.repeat(1_000);
    {
        let server = start(dir.path(), tiny_pieces());
        let mut client = server.client();
        for letter in ["a", "b", "c"] {
            assert_eq!(client.call(&["SET", letter, &value(letter)]), "+OK\r\n");
        }
        client.line("SELECT 1");
        assert_eq!(client.call(&["SET", "d", &value("d")]), "+OK\r\n");
        server.stop().unwrap();
    }
    // Values that are there keep their pieces, of whatever size new ones are.
    for piece_bytes in [16, 64] {
        let server = start(
            dir.path(),
            ServerConfig {
                piece_bytes,
                ..config()
            },
        );
        let mut client = server.client();
        assert_eq!(client.call(&["SET", "e", &value("e")]), "+OK\r\n");
        for letter in ["a", "b", "c", "e"] {
            assert_eq!(client.text(&["GET", letter]), value(letter));
        }
        client.line("SELECT 1");
        assert_eq!(client.call(&["SET", "e", &value("e")]), "+OK\r\n");
        assert_eq!(client.call(&["MOVE", "e", "0"]), ":0\r\n");
        assert_eq!(client.text(&["GET", "d"]), value("d"));
        server.stop().unwrap();
    }
    let server = start(dir.path(), tiny_pieces());
    nothing_is_left_of_removed_values(&server);
}

#[test]
fn a_value_of_the_first_version_is_read_and_changed() {
    let dir = tempfile::tempdir().unwrap();
    let value = "v".repeat(1_000);
    {
        // As all were stored before there were pieces.
        let server = start(dir.path(), config());
        let mut client = server.client();
        for key in ["plain", "due", "grows"] {
            assert_eq!(client.call(&["SET", key, &value]), "+OK\r\n");
        }
        assert_eq!(client.line("EXPIRE due 1000"), ":1\r\n");
        assert_eq!(pieces(&server.db), 0);
        server.stop().unwrap();
    }
    let server = start(dir.path(), tiny_pieces());
    let mut client = server.client();
    assert_eq!(client.text(&["GET", "plain"]), value);
    assert_eq!(client.line("EXPIRE plain 1000"), ":1\r\n");
    assert_eq!(client.line("PERSIST due"), ":1\r\n");
    assert_eq!(client.text(&["GET", "due"]), value);
    assert_eq!(pieces(&server.db), 0, "the expiry alone moves no value");
    assert_eq!(client.line("APPEND grows x"), ":1001\r\n");
    assert_eq!(client.text(&["GET", "grows"]), format!("{value}x"));
    assert_eq!(pieces(&server.db), 63);
    nothing_is_left_of_removed_values(&server);
}

#[test]
fn an_expired_value_takes_its_pieces_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), tiny_pieces());
    let mut client = server.client();
    let value = "v".repeat(1_000);
    for number in 0..20 {
        let key = format!("k{number}");
        assert_eq!(client.call(&["SET", &key, &value, "PX", "1"]), "+OK\r\n");
        // Replaced when it has expired, or about to be.
        if number % 3 == 0 {
            assert_eq!(client.call(&["SET", &key, "short", "PX", "1"]), "+OK\r\n");
        }
        if number % 3 == 1 {
            client.call(&["APPEND", &key, &value]);
            client.call(&["PEXPIRE", &key, "1"]);
        }
    }
    wait_for("nothing is left of what has expired", || pieces(&server.db) == 0);
    assert_eq!(client.line("DBSIZE"), ":0\r\n");
}

/// None of the other's bytes shows behind its end, nor in a gap.
#[test]
fn a_value_that_replaces_another_has_nothing_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), tiny_pieces());
    let mut client = server.client();
    let (old, new) = ("o".repeat(200), "n".repeat(60));
    let expected = format!("{new}{}x", "\0".repeat(89));
    let reply = format!("$150\r\n{expected}\r\n");
    // How the first value goes, and in a transaction or not.
    let ways = [
        vec!["SET a {new}"],
        vec!["SET a {new} GET"],
        vec!["GETSET a {new}"],
        vec!["MSET a {new} b 1"],
        vec!["DEL a", "SET a {new}"],
        vec!["SET a small", "SET a {new}"],
        vec!["PEXPIRE a -1", "SET a {new}"],
        vec!["SET b {new}", "RENAME b a"],
        vec!["SET b {new}", "COPY b a REPLACE"],
        vec!["RENAME a b", "SET a {new}", "DEL b"],
    ];
    for way in &ways {
        for together in [false, true] {
            client.call(&["SET", "a", &old]);
            if together {
                client.line("MULTI");
            }
            for command in way {
                let command = command.replace("{new}", &new);
                let answer = client.call(&command.split(' ').collect::<Vec<_>>());
                assert!(!answer.starts_with('-'), "{command}: {answer}");
                // What the command was to return of the old value.
                if !together && (command.ends_with("GET") || command.starts_with("GETSET")) {
                    assert_eq!(answer, format!("$200\r\n{old}\r\n"), "{command}");
                }
            }
            if together {
                let answer = client.line("EXEC");
                assert!(!answer.contains("-ERR"), "{way:?}: {answer}");
            }
            // Behind its end as it is now.
            assert_eq!(client.line("SETRANGE a 149 x"), ":150\r\n", "{way:?}");
            assert_eq!(
                client.line("GET a"),
                reply,
                "{way:?}, in a transaction: {together}"
            );
            client.line("DEL a b");
            assert_eq!(pieces(&server.db), 0, "{way:?}");
        }
    }
}

/// Numbers of values that are gone are used again, and each by one value.
#[test]
fn values_that_come_and_go_share_no_piece_and_reuse_rows() {
    const KEYS: usize = 12;
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), tiny_pieces());
    let mut client = server.client();
    let mut there: Vec<Option<String>> = vec![None; KEYS];
    let mut seed = 1_u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % below
    };
    for round in 0..3_000 {
        let (at, to) = (random(KEYS), random(KEYS));
        let (key, other) = (format!("k{at}"), format!("k{to}"));
        let value = format!("{round:06}").repeat(random(30));
        let in_transaction = random(4) == 0;
        if in_transaction {
            client.line("MULTI");
        }
        match random(6) {
            0 => {
                client.call(&["DEL", &key]);
                there[at] = None;
            }
            1 if there[at].is_some() => {
                client.call(&["RENAME", &key, &other]);
                if at != to {
                    there[to] = there[at].take();
                }
            }
            2 => {
                client.call(&["MSET", &key, &value, "k0", "small"]);
                there[at] = Some(value);
                there[0] = Some("small".into());
            }
            3 if there[at].is_some() && at != to => {
                client.call(&["COPY", &key, &other, "REPLACE"]);
                there[to] = there[at].clone();
            }
            4 => {
                client.call(&["APPEND", &key, &value]);
                there[at] = Some(there[at].take().unwrap_or_default() + &value);
            }
            _ => {
                client.call(&["SET", &key, &value]);
                there[at] = Some(value);
            }
        }
        if in_transaction {
            let answer = client.line("EXEC");
            assert!(!answer.contains("-ERR"), "{answer}");
        }
        let at = random(KEYS);
        let expected = match &there[at] {
            Some(value) => format!("${}\r\n{value}\r\n", value.len()),
            None => "$-1\r\n".to_owned(),
        };
        assert_eq!(client.line(&format!("GET k{at}")), expected, "round {round}");
    }
    // As many numbers as there were values at a time, or a few more where one replaced another.
    let family = server.db.family("db0.0").unwrap();
    client.call(&["SET", "last", &"v".repeat(100)]);
    let rows = family.prefix([b'v']).unwrap().map(|row| row.unwrap().0);
    let largest = rows.map(|row| u64::from_be_bytes(*row[1..].first_chunk().unwrap()));
    let largest = largest.max().unwrap();
    assert!(largest <= 3 * KEYS as u64, "value number {largest}");
    nothing_is_left_of_removed_values(&server);
}
