//! The replies of a server whose log has failed: none that a restart could contradict.

use std::time::Duration;

use crate::support::{Client, command, config, open_on, start_on};
use collie_server::{Ack, ServerConfig};
use collie_sim::{Fault, FaultKind, SimDevice};

/// Long enough for a reply that does not wait to have arrived.
const A_WHILE: Duration = Duration::from_millis(150);
const MISCONF: &str = "-MISCONF Errors writing to the AOF file: ";
const LEVELS: [Ack; 3] = [Ack::Disk, Ack::Process, Ack::Buffered];

fn with(ack: Ack) -> ServerConfig {
    ServerConfig { ack, ..config() }
}

/// Makes every sync of the log fail from now on.
fn break_log(device: &SimDevice) {
    device.inject(Fault::new(FaultKind::SyncFails).on("/log/"));
}

/// Writes the initial data and makes it durable.
fn set_up(client: &mut Client, lines: &[&str], ack: Ack) {
    assert_eq!(client.line("CLIENT ACK disk"), "+OK\r\n");
    for line in lines {
        assert_eq!(client.line(line), "+OK\r\n");
    }
    let name = match ack {
        Ack::Disk => "disk",
        Ack::Process => "process",
        Ack::Buffered => "buffered",
    };
    assert_eq!(client.line(&format!("CLIENT ACK {name}")), "+OK\r\n");
}

fn is_refused(client: &mut Client, line: &str, ack: Ack) {
    let reply = client.line(line);
    assert!(reply.starts_with(MISCONF), "{ack:?}, {line}: {reply}");
}

#[test]
fn what_is_in_doubt_is_refused_and_all_else_is_answered() {
    for ack in LEVELS {
        let dir = tempfile::tempdir().unwrap();
        let device = SimDevice::new(1);
        let server = start_on(open_on(&device, dir.path()), with(ack));
        let mut client = server.client();
        set_up(&mut client, &["MSET old 1 changed 1 removed 1"], ack);
        let held_syncs = device.hold_syncs();
        let mut writer = server.client();
        assert_eq!(writer.line("CLIENT ACK buffered"), "+OK\r\n");
        assert_eq!(writer.line("SET changed 2"), "+OK\r\n");
        assert_eq!(writer.line("DEL removed"), ":1\r\n");
        assert_eq!(writer.line("SET added 1 EX 1000"), "+OK\r\n");
        assert_eq!(writer.line("GET changed"), "$1\r\n2\r\n");
        break_log(&device);
        held_syncs.release();
        assert_eq!(writer.line("CLIENT ACK disk"), "+OK\r\n");
        is_refused(&mut writer, "SET x 1", Ack::Disk);
        for key in ["changed", "removed", "added", "x"] {
            for of_one in [
                "GET", "EXISTS", "DEL", "STRLEN", "TTL", "TYPE", "WATCH", "GETDEL", "INCR", "TOUCH",
            ] {
                is_refused(&mut client, &format!("{of_one} {key}"), ack);
            }
            for line in [
                "MGET old KEY",
                "EXISTS old KEY",
                "SETNX KEY 3",
                "GETRANGE KEY 0 -1",
                "COPY KEY y",
            ] {
                is_refused(&mut client, &line.replace("KEY", key), ack);
            }
        }
        for line in ["SCAN 0", "KEYS *", "KEYS c*", "DBSIZE"] {
            is_refused(&mut client, line, ack);
        }
        for (line, expected) in [
            ("GET old", "$1\r\n1\r\n"),
            ("GET nothing", "$-1\r\n"),
            ("MGET old nothing", "*2\r\n$1\r\n1\r\n$-1\r\n"),
            ("EXISTS old nothing", ":1\r\n"),
            ("DEL nothing", ":0\r\n"),
            ("TTL old", ":-1\r\n"),
            ("SETNX old 2", ":0\r\n"),
            ("KEYS o*", "*1\r\n$3\r\nold\r\n"),
            ("PING", "+PONG\r\n"),
        ] {
            assert_eq!(client.line(line), expected, "{ack:?}, {line}");
        }
        // In a transaction each command gets its own reply.
        for line in [
            "MULTI",
            "GET old",
            "GET changed",
            "EXISTS removed",
            "DBSIZE",
            "GET nothing",
        ] {
            client.line(line);
        }
        let all = client.line("EXEC");
        assert!(
            all.starts_with(&format!("*5\r\n$1\r\n1\r\n{MISCONF}")),
            "{ack:?}: {all}"
        );
        assert_eq!(all.matches(MISCONF).count(), 3, "{ack:?}: {all}");
        assert!(all.ends_with("\r\n$-1\r\n"), "{ack:?}: {all}");
        for line in ["MULTI", "GET old", "SET old 2"] {
            client.line(line);
        }
        is_refused(&mut client, "EXEC", ack);
        assert_eq!(client.line("GET old"), "$1\r\n1\r\n", "{ack:?}");
        drop((client, writer));
        assert!(server.stop().is_err());
        device.heal();
        let server = start_on(open_on(&device, dir.path()), with(ack));
        let mut client = server.client();
        assert_eq!(client.line("MGET old nothing"), "*2\r\n$1\r\n1\r\n$-1\r\n");
        assert_eq!(client.line("SET changed 3"), "+OK\r\n");
    }
}

/// If the log fails during an exchange of databases, it is unknown until a restart which family a
/// database has: neither the keys of one, nor that it is empty, may be reported.
#[test]
fn a_database_that_was_exchanged_in_doubt_is_refused() {
    const READS: [&str; 9] = [
        "GET key",
        "GET other",
        "EXISTS key",
        "MGET key other",
        "TYPE key",
        "SCAN 0",
        "KEYS *",
        "DBSIZE",
        "RANDOMKEY",
    ];
    for ack in LEVELS {
        for line in ["FLUSHALL", "FLUSHDB", "SWAPDB 0 1"] {
            // The new families take some syncs of their own.
            for skip in 0.. {
                assert!(skip < 20, "{ack:?}, {line}: never in doubt");
                let dir = tempfile::tempdir().unwrap();
                let device = SimDevice::new(2);
                let server = start_on(open_on(&device, dir.path()), with(ack));
                let mut client = server.client();
                set_up(
                    &mut client,
                    &["SET key 1", "SELECT 1", "SET other 1", "SELECT 0"],
                    ack,
                );
                device.inject(Fault::new(FaultKind::SyncFails).on("/log/").after(skip));
                client.line(line);
                // A client that waits for the disk makes the failure known.
                let mut strict = server.client();
                strict.line("CLIENT ACK disk");
                while strict.line("SET x 1") == "+OK\r\n" {}
                let before = READS.map(|read| client.line(read));
                let is_in_doubt = before[0].starts_with(MISCONF);
                if is_in_doubt {
                    is_refused(&mut client, "DEL key", ack);
                    assert!(
                        before.iter().all(|reply| reply.starts_with(MISCONF)),
                        "{before:?}"
                    );
                }
                drop((client, strict));
                assert!(server.stop().is_err());
                device.heal();
                let server = start_on(open_on(&device, dir.path()), with(ack));
                let mut client = server.client();
                for (read, before) in READS.iter().zip(before) {
                    let is_answer = !before.starts_with(MISCONF);
                    assert!(
                        !is_answer || client.line(read) == before,
                        "{ack:?}, {line}, sync {skip}: {read} was {before}, and is {}",
                        client.line(read)
                    );
                }
                if is_in_doubt {
                    break;
                }
            }
        }
    }
}

/// Which family a database has is committed like any other write: a reply that reflects its keys
/// waits for that commit.
#[test]
fn a_reply_waits_for_the_exchange_of_its_database() {
    let dir = tempfile::tempdir().unwrap();
    let device = SimDevice::new(3);
    let server = start_on(open_on(&device, dir.path()), config());
    let mut client = server.client();
    set_up(
        &mut client,
        &["SET key 1", "SELECT 1", "SET other 1", "SELECT 0"],
        Ack::Disk,
    );
    let held_syncs = device.hold_syncs();
    client.send(&command(&["SWAPDB", "0", "1"]));
    // It is done when a client with a weaker level sees it.
    let mut weak = server.client();
    weak.line("CLIENT ACK buffered");
    while weak.line("GET key") != "$-1\r\n" {
        std::thread::yield_now();
    }
    let mut waiting = Vec::new();
    for (line, expected) in [
        ("GET key", "$-1\r\n"),
        ("EXISTS key", ":0\r\n"),
        ("GET other", "$1\r\n1\r\n"),
        ("KEYS k*", "*0\r\n"),
        ("SCAN 0 MATCH k*", "*2\r\n$1\r\n0\r\n*0\r\n"),
        ("DBSIZE", ":1\r\n"),
    ] {
        let mut reader = server.client();
        reader.send(&command(&line.split(' ').collect::<Vec<_>>()));
        assert!(
            reader.is_silent_for(A_WHILE),
            "{line} was answered before it was durable"
        );
        waiting.push((reader, line, expected));
    }
    held_syncs.release();
    assert_eq!(client.reply(), b"+OK\r\n");
    for (mut reader, line, expected) in waiting {
        assert_eq!(String::from_utf8(reader.reply()).unwrap(), expected, "{line}");
    }
}
