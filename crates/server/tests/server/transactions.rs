//! `MULTI` and `EXEC`: one step for all other clients, one commit in the store.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{Random, config, start};

/// Sends lines and returns the last one's reply.
fn run(client: &mut crate::support::Client, lines: &[&str]) -> String {
    lines
        .iter()
        .map(|line| client.line(line))
        .last()
        .unwrap_or_default()
}

#[test]
fn only_reads_inside_exec_see_its_writes_before_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let (mut one, mut other) = (server.client(), server.client());
    run(
        &mut one,
        &[
            "SET stays 1",
            "SET goes 1 EX 1000",
            "SELECT 3",
            "SET there 1",
            "SELECT 0",
        ],
    );
    let lines = [
        "MULTI",
        "SET a 1",
        "INCR a",
        "GET a",
        "DEL goes",
        "KEYS *",
        "DBSIZE",
        "EXISTS goes a stays",
        "MGET a goes",
        "SELECT 3",
        "GET there",
        "FLUSHDB",
        "GET there",
        "SET fresh 1",
        "KEYS *",
        "DBSIZE",
        "SELECT 0",
        "SWAPDB 0 3",
        "KEYS *",
        "MOVE fresh 5",
        "DBSIZE",
        "SCAN 0",
    ];
    for line in &lines[1..] {
        assert_eq!(
            if *line == "SET a 1" {
                one.line("MULTI")
            } else {
                "+OK\r\n".into()
            },
            "+OK\r\n"
        );
        assert_eq!(one.line(line), "+QUEUED\r\n", "{line}");
    }
    assert_eq!(other.line("KEYS *").matches('$').count(), 2);
    let expected = "*21\r\n+OK\r\n:2\r\n$1\r\n2\r\n:1\r\n*2\r\n$1\r\na\r\n$5\r\nstays\r\n:2\r\n:2\r\n*2\r\n$1\r\n2\r\n$-1\r\n\
                    +OK\r\n$1\r\n1\r\n+OK\r\n$-1\r\n+OK\r\n*1\r\n$5\r\nfresh\r\n:1\r\n+OK\r\n+OK\r\n*1\r\n$5\r\nfresh\r\n\
                    :1\r\n:0\r\n*2\r\n$1\r\n0\r\n*0\r\n";
    assert_eq!(one.line("EXEC"), expected);
    assert_eq!(other.line("DBSIZE"), ":0\r\n");
    assert_eq!(
        run(&mut other, &["SELECT 3", "MGET a stays goes"]),
        "*3\r\n$1\r\n2\r\n$1\r\n1\r\n$-1\r\n"
    );
    assert_eq!(run(&mut other, &["SELECT 5", "GET fresh"]), "$1\r\n1\r\n");
    drop((one, other));
    server.stop().unwrap();
    // The same after a restart: which family a database has is part of the commit.
    let server = start(dir.path(), config());
    let mut client = server.client();
    assert_eq!(client.line("DBSIZE"), ":0\r\n");
    assert_eq!(run(&mut client, &["SELECT 3", "DBSIZE"]), ":2\r\n");
    assert_eq!(run(&mut client, &["SELECT 5", "DBSIZE"]), ":1\r\n");
}

#[test]
fn a_transaction_over_keys_and_databases_is_one_commit() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let mut client = server.client();
    let frames = |client: &mut crate::support::Client| -> u64 {
        let info = client.line("INFO log");
        let frames = info.lines().find_map(|line| line.strip_prefix("frames:"));
        frames.unwrap().parse().unwrap()
    };
    run(&mut client, &["SELECT 1", "SELECT 0", "SET old 1 EX 1000"]);
    let before = frames(&mut client);
    for line in [
        "MULTI",
        "SET a 1",
        "SET b 2 EX 1000",
        "DEL old",
        "SELECT 1",
        "MSET c 3 d 4",
        "SWAPDB 0 1",
    ] {
        client.line(line);
    }
    assert!(client.line("EXEC").starts_with("*6\r\n+OK"));
    assert_eq!(frames(&mut client) - before, 1);
    // A transaction that changes nothing commits nothing.
    run(&mut client, &["MULTI", "GET c", "DEL nokey", "EXEC"]);
    assert_eq!(frames(&mut client) - before, 1);
}

#[test]
fn a_transaction_too_large_for_one_commit_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let mut client = server.client();
    let large = "x".repeat(9_000_000);
    run(
        &mut client,
        &["SET first before", "MULTI", "SET first after", "FLUSHALL"],
    );
    for key in ["a", "b"] {
        assert_eq!(client.call(&["SET", key, &large]), "+QUEUED\r\n");
    }
    let refused = client.line("EXEC");
    assert!(
        refused.starts_with("-ERR the command would commit 180"),
        "{refused}"
    );
    assert_eq!(client.line("GET first"), "$6\r\nbefore\r\n");
    assert_eq!(client.line("DBSIZE"), ":1\r\n");
    assert_eq!(client.line("EXEC"), "-ERR EXEC without MULTI\r\n");
}

#[test]
fn transfers_are_atomic_and_watch_loses_no_update() {
    // Four clients move money with WATCH, and four with blind transactions; others add up all
    // accounts, with one MGET and inside a transaction. The sum never changes.
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let accounts = ["a", "b", "c", "d", "e"];
    let mut client = server.client();
    for account in accounts {
        client.line(&format!("SET {account} 100"));
    }
    let done = AtomicBool::new(false);
    let sum = |reply: &str| -> i64 {
        let numbers = reply.lines().filter(|line| !line.starts_with(['$', '*']));
        numbers.map(|line| line.parse::<i64>().unwrap()).sum()
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                let (mut client, mut random) = (server.client(), Random::seeded(writer + 7));
                scope.spawn(move || {
                    let mut done = 0;
                    while done < 200 {
                        let (from, to) = (random.pick(&accounts), random.pick(&accounts));
                        if writer % 2 == 0 {
                            run(
                                &mut client,
                                &["MULTI", &format!("DECRBY {from} 7"), &format!("INCRBY {to} 7")],
                            );
                            assert!(client.line("EXEC").starts_with("*2"));
                            done += 1;
                            continue;
                        }
                        client.line(&format!("WATCH {from} {to}"));
                        let (has, gets) = (
                            client.line(&format!("GET {from}")),
                            client.line(&format!("GET {to}")),
                        );
                        if from == to {
                            client.line("UNWATCH");
                            continue;
                        }
                        let (has, gets) = (sum(&has) - 3, sum(&gets) + 3);
                        run(
                            &mut client,
                            &["MULTI", &format!("SET {from} {has}"), &format!("SET {to} {gets}")],
                        );
                        done += usize::from(client.line("EXEC").starts_with("*2"));
                    }
                })
            })
            .collect();
        for reader in 0..2 {
            let (mut client, done) = (server.client(), &done);
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    let reply = if reader == 0 {
                        client.line("MGET a b c d e")
                    } else {
                        run(
                            &mut client,
                            &["MULTI", "GET a", "GET b", "GET c", "GET d", "GET e", "EXEC"],
                        )
                    };
                    assert_eq!(sum(&reply), 500, "{reply}");
                }
            });
        }
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::SeqCst);
    });
    assert_eq!(sum(&client.line("MGET a b c d e")), 500);
}

/// Whether a transaction of one client, in database 0, makes another's `EXEC` do nothing that
/// watches `key` in a database. The key exists in none.
fn is_seen_by_watch(server: &crate::support::Running, watched: &str, commands: &[&str]) -> bool {
    let (mut watcher, mut writer) = (server.client(), server.client());
    run(
        &mut writer,
        &["FLUSHALL", "SET 0 stays", "SELECT 1", "SET 1 stays", "SELECT 0"],
    );
    run(&mut watcher, &[&format!("SELECT {watched}"), "WATCH key"]);
    run(&mut writer, &["MULTI"]);
    run(&mut writer, commands);
    let done = writer.line("EXEC");
    assert!(
        done.starts_with('*') && !done.contains("-ERR"),
        "{commands:?}: {done:?}"
    );
    let answer = run(&mut watcher, &["MULTI", "PING", "EXEC"]);
    assert!(
        ["*-1\r\n", "*1\r\n+PONG\r\n"].contains(&answer.as_str()),
        "{answer:?}"
    );
    answer == "*-1\r\n"
}

#[test]
fn a_watch_sees_changes_in_the_database_that_was_current_then() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    for (commands, in_0, in_1) in [
        (&["SET key 1", "FLUSHDB"][..], true, false),
        (&["SET key 1", "FLUSHALL", "SET other 1"], true, false),
        (&["SET key 1", "DEL key"], true, false),
        (&["SET key 1", "DEL key", "SWAPDB 0 1"], true, false),
        (&["SET key 1", "SWAPDB 0 1", "FLUSHDB"], true, true),
        (&["SET key 1", "SWAPDB 0 1", "FLUSHALL"], true, true),
        (&["SET key 1", "SWAPDB 0 0"], true, false),
        (&["SWAPDB 1 1"], false, false),
        (&["SET key 1", "SWAPDB 0 1"], true, true),
        (&["SWAPDB 0 1", "SET key 1"], true, false),
        (&["SELECT 1", "SET key 1", "SELECT 0"], false, true),
        (&["SET other 1", "SWAPDB 0 1", "FLUSHALL"], false, false),
        (&["GET key", "DEL key", "SWAPDB 0 1"], false, false),
    ] {
        assert_eq!(
            is_seen_by_watch(&server, "0", commands),
            in_0,
            "database 0: {commands:?}"
        );
        assert_eq!(
            is_seen_by_watch(&server, "1", commands),
            in_1,
            "database 1: {commands:?}"
        );
    }
}

#[test]
fn increments_inside_transactions_of_many_are_exact() {
    // Pipelines of transactions on two threads, all of the same two keys: without the locks some
    // would read what another one is about to overwrite.
    const CLIENTS: usize = 4;
    const TRANSACTIONS: usize = 3_000;
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let mut connection = server.client();
            scope.spawn(move || {
                let keys = if client % 2 == 0 { ["a", "b"] } else { ["b", "a"] };
                let one = [["MULTI", ""], ["INCR", keys[0]], ["INCR", keys[1]], ["EXEC", ""]];
                let one: Vec<u8> = one
                    .iter()
                    .flat_map(|args| {
                        crate::support::command(if args[1].is_empty() { &args[..1] } else { args })
                    })
                    .collect();
                for _ in 0..TRANSACTIONS / 50 {
                    connection.send(&one.repeat(50));
                    for _ in 0..50 * 4 {
                        assert_ne!(connection.reply()[0], b'-');
                    }
                }
            });
        }
    });
    let sum = CLIENTS * TRANSACTIONS;
    let expected = format!("*2\r\n${0}\r\n{sum}\r\n${0}\r\n{sum}\r\n", sum.to_string().len());
    assert_eq!(server.client().line("MGET a b"), expected);
}

#[test]
fn transactions_over_all_databases_beside_flushes_and_swaps_end() {
    // Locks in every order, and commands that take all of them: a deadlock would hang the test.
    // Each transaction leaves its two keys equal wherever they end up.
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    std::thread::scope(|scope| {
        for client in 0..6 {
            let (mut client, mut random) = (server.client(), Random::seeded(client + 3));
            scope.spawn(move || {
                for i in 0..150 {
                    let (a, b) = (random.below(3), random.below(3));
                    match random.below(8) {
                        0 => drop(client.line("FLUSHDB")),
                        1 => drop(client.line(&format!("SWAPDB {a} {b}"))),
                        2 => drop(client.line(&format!("SELECT {a}"))),
                        3 => drop(client.line(&format!("RENAME x{a} x{b}"))),
                        _ => {
                            run(
                                &mut client,
                                &["MULTI", &format!("SET k 1{i}"), &format!("SET l 1{i}")],
                            );
                            client.line(&format!("COPY k m DB {b} REPLACE"));
                            client.line(["GET k", "FLUSHDB", "KEYS *", "SWAPDB 0 1"][random.below(4)]);
                            let reply = client.line("EXEC");
                            assert!(reply.starts_with("*4\r\n+OK\r\n+OK\r\n"), "{reply}");
                        }
                    }
                    let pair = client.line("MGET k l");
                    let values: Vec<&str> = pair.lines().skip(1).collect();
                    assert_eq!(values[..values.len() / 2], values[values.len() / 2..], "{pair}");
                }
            });
        }
    });
}

#[test]
fn increments_beside_swaps_of_their_databases_are_exact() {
    // A command that waited for a lock while databases were swapped has locked the wrong row: the
    // key is in another keyspace by then. And a command that locks many keys, one by one, must not
    // run at the same time as one that locks all.
    const CLIENTS: usize = 4;
    const ROUNDS: usize = 20;
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    server.client().line("MSET a 0 b 0");
    run(&mut server.client(), &["SELECT 1", "MSET a 0 b 0"]);
    std::thread::scope(|scope| {
        let increments = (0..CLIENTS).map(|client| {
            let mut connection = server.client();
            scope.spawn(move || {
                let keys = if client % 2 == 0 { ["a", "b"] } else { ["b", "a"] };
                let others: Vec<String> = (0..1_800).map(|key| format!("other{key}")).collect();
                let others: Vec<&str> = ["MSET"]
                    .into_iter()
                    .chain(others.iter().map(String::as_str))
                    .collect();
                let lines: [&[&str]; 6] = [
                    &["MULTI"],
                    &["INCR", keys[0]],
                    &["INCR", keys[1]],
                    &["EXEC"],
                    &["INCR", keys[0]],
                    &others,
                ];
                let once: Vec<u8> = lines
                    .iter()
                    .flat_map(|line| crate::support::command(line))
                    .collect();
                for _ in 0..ROUNDS {
                    connection.send(&once.repeat(10));
                    for _ in 0..10 * lines.len() {
                        let reply = connection.reply();
                        assert_ne!(reply[0], b'-', "{}", String::from_utf8_lossy(&reply));
                    }
                }
            })
        });
        let increments: Vec<_> = increments.collect();
        let mut client = server.client();
        while !increments.iter().all(|thread| thread.is_finished()) {
            assert_eq!(client.line("SWAPDB 0 1"), "+OK\r\n");
        }
    });
    let mut sum = 0;
    for database in 0..2 {
        let values = run(&mut server.client(), &[&format!("SELECT {database}"), "MGET a b"]);
        let numbers = values.lines().filter(|line| !line.starts_with(['*', '$']));
        sum += numbers.map(|line| line.parse::<usize>().unwrap()).sum::<usize>();
    }
    assert_eq!(sum, CLIENTS * ROUNDS * 10 * 3);
}

#[test]
fn all_databases_are_flushed_however_new_they_are() {
    // One client selects databases for the first time while another flushes all: no flush meets a
    // database for which it has no spare keyspace, and what was written before a flush began is
    // gone.
    let thorough = std::env::var_os("COLLIE_THOROUGH").is_some_and(|text| text == "1");
    for round in 0..if thorough { 20 } else { 6 } {
        let dir = tempfile::tempdir().unwrap();
        let server = start(dir.path(), config());
        server.client().line("SET before 1");
        std::thread::scope(|scope| {
            let selecting = scope.spawn(|| {
                let mut client = server.client();
                for database in 1..16 {
                    client.line(&format!("SELECT {database}"));
                    assert_eq!(client.line("SET k v"), "+OK\r\n");
                }
            });
            let mut client = server.client();
            while !selecting.is_finished() {
                let reply = match round % 2 {
                    0 => client.line("FLUSHALL"),
                    _ => run(&mut client, &["MULTI", "FLUSHDB", "FLUSHALL", "SET x 1", "EXEC"]),
                };
                assert!(!reply.contains('-'), "{reply}");
            }
        });
        let mut client = server.client();
        let keys = client.line("KEYS *");
        assert_eq!(keys, ["*0\r\n", "*1\r\n$1\r\nx\r\n"][round % 2]);
        let last = run(&mut client, &["SELECT 15", "SET k w", "FLUSHALL", "KEYS *"]);
        assert_eq!(last, "*0\r\n");
        for database in 0..16 {
            let left = run(&mut client, &[&format!("SELECT {database}"), "DBSIZE"]);
            assert_eq!(left, ":0\r\n", "database {database}");
        }
    }
}

#[test]
fn a_transaction_copies_into_a_database_that_was_never_selected() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let mut client = server.client();
    let lines = [
        "SET a 1",
        "MULTI",
        "FLUSHDB",
        "SET a 2",
        "COPY a b REPLACE REPLACE DB 4",
        "COPY a c DB 99",
        "EXEC",
    ];
    let reply = run(&mut client, &lines);
    assert!(reply.starts_with("*4\r\n+OK\r\n+OK\r\n:1\r\n-ERR"), "{reply}");
    assert_eq!(run(&mut client, &["SELECT 4", "GET b"]), "$1\r\n2\r\n");
    assert_eq!(client.line("DBSIZE"), ":1\r\n");
}

#[test]
fn commands_of_thousands_of_keys_are_one_step_beside_others() {
    // So many that each locks all keys instead of one after the other; some in the opposite order.
    const KEYS: usize = 5_000;
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    std::thread::scope(|scope| {
        for client in 0..3 {
            let mut connection = server.client();
            scope.spawn(move || {
                let mut keys: Vec<usize> = (0..KEYS).collect();
                if client == 1 {
                    keys.reverse();
                }
                for round in 0..10 {
                    let value = format!("{client}.{round}");
                    let names: Vec<String> = keys.iter().map(|key| format!("k{key}")).collect();
                    let mut set = vec!["MSET"];
                    names.iter().for_each(|name| set.extend([name.as_str(), &value]));
                    connection.send(&crate::support::command(&set));
                    assert_eq!(connection.reply(), b"+OK\r\n");
                    connection.line("INCR counter");
                    let few = connection.line("MGET k0 k1 k2500 k4998 k4999");
                    let values: Vec<&str> = few.lines().filter(|line| line.contains('.')).collect();
                    assert!(values.windows(2).all(|two| two[0] == two[1]), "{few}");
                }
            });
        }
    });
    let all: Vec<String> = (0..KEYS).map(|key| format!("k{key}")).collect();
    let mut del = vec!["DEL"];
    del.extend(all.iter().map(String::as_str));
    let mut client = server.client();
    client.send(&crate::support::command(&del));
    assert_eq!(client.reply(), format!(":{KEYS}\r\n").as_bytes());
    assert_eq!(client.line("GET counter"), "$2\r\n30\r\n");
    assert_eq!(client.line("DBSIZE"), ":1\r\n");
}
