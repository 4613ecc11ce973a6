//! What operators of the server use: client pauses, the slow log, transactions in `CLIENT LIST`,
//! and their limit.

use std::time::Duration;

use crate::support::{Client, command, config, field, start, wait_for};
use collie_io::{Clock, RealClock};

/// Long enough for a reply that is not delayed.
const SILENCE: Duration = Duration::from_millis(150);

#[test]
fn a_pause_holds_back_writes_or_everything_until_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let (mut admin, mut writer, mut reader) = (server.client(), server.client(), server.client());
    writer.line("SET key before");
    admin.line("CLIENT PAUSE 1000000 WRITE");
    assert_eq!(reader.line("GET key"), "$6\r\nbefore\r\n");
    assert_eq!(reader.line("MULTI"), "+OK\r\n");
    assert_eq!(reader.line("GET key"), "+QUEUED\r\n");
    assert_eq!(reader.line("EXEC"), "*1\r\n$6\r\nbefore\r\n");
    for request in [["MULTI"].as_slice(), &["SET", "key", "after"], &["EXEC"]] {
        writer.send(&command(request));
    }
    assert_eq!(
        (writer.reply(), writer.reply()),
        (b"+OK\r\n".to_vec(), b"+QUEUED\r\n".to_vec())
    );
    let mut has_come = false;
    wait_for("a transaction that writes is delayed", || {
        has_come = !writer.is_silent_for(Duration::from_millis(1));
        has_come || field(&mut admin, "clients", "blocked_clients") == "1"
    });
    assert!(
        !has_come && writer.is_silent_for(SILENCE),
        "a transaction that writes is not delayed"
    );
    assert_eq!(reader.line("GET key"), "$6\r\nbefore\r\n");
    assert_eq!(admin.line("CLIENT UNPAUSE"), "+OK\r\n");
    assert_eq!(writer.reply(), b"*1\r\n+OK\r\n");
    // A pause of everything ends at its time, and no earlier.
    let began = RealClock.monotonic();
    admin.line("CLIENT PAUSE 300");
    reader.send(&command(&["GET", "key"]));
    assert_eq!(reader.reply(), b"$5\r\nafter\r\n");
    let waited = Duration::from_nanos(RealClock.monotonic() - began);
    assert!(
        waited >= Duration::from_millis(300),
        "a read is not delayed: {waited:?}"
    );
}

/// Everything in the slow log.
fn logged(client: &mut Client) -> String {
    client.line("SLOWLOG GET -1")
}

#[test]
fn the_slow_log_has_slow_commands_and_no_password() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let mut client = server.client();
    assert_eq!(client.line("CONFIG SET slowlog-log-slower-than 0"), "+OK\r\n");
    assert_eq!(client.line("SLOWLOG RESET"), "+OK\r\n");
    for line in [
        "AUTH default secret",
        "MULTI",
        "SET inside 1",
        "EXEC",
        "CONFIG SET requirepass secret",
    ] {
        client.line(line);
    }
    let args: Vec<String> = std::iter::once("DEL".to_owned())
        .chain((0..40).map(|i| format!("{i}{}", "x".repeat(200))))
        .collect();
    client.call(&args);
    let log = logged(&mut client);
    assert!(log.contains("$6\r\ninside\r\n"), "{log}");
    assert!(!log.contains("secret") && !log.contains("EXEC"), "{log}");
    assert!(
        log.contains("... (10 more arguments)") && log.contains("... (73 more bytes)"),
        "{log}"
    );
    assert_eq!(client.line("CONFIG SET slowlog-max-len 2"), "+OK\r\n");
    client.line("PING");
    assert_eq!(client.line("SLOWLOG LEN"), ":2\r\n");
    client.line("CONFIG SET slowlog-log-slower-than -1");
    client.line("SLOWLOG RESET");
    client.line("PING");
    assert_eq!(client.line("SLOWLOG LEN"), ":0\r\n");
}

#[test]
fn what_a_client_queues_is_shown_and_limited() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let (mut admin, mut client) = (server.client(), server.client());
    assert_eq!(admin.line("CONFIG SET client-query-buffer-limit 1mb"), "+OK\r\n");
    client.line("CLIENT SETNAME queueing");
    for line in ["MULTI", "PING", "PING"] {
        client.line(line);
    }
    let list = admin.line("CLIENT LIST");
    let own = list.lines().find(|line| line.contains("name=queueing")).unwrap();
    assert!(own.contains(" flags=x ") && own.contains(" multi=2 "), "{own}");
    let large = "x".repeat(600_000);
    assert_eq!(client.call(&["SET", "a", &large]), "+QUEUED\r\n");
    let refused = client.call(&["SET", "b", &large]);
    assert!(refused.contains("client-query-buffer-limit"), "{refused}");
    assert_eq!(client.rest(), "");
    assert_eq!(admin.line("EXISTS a b"), ":0\r\n");
}

#[test]
fn a_failed_transaction_leaves_the_connection_in_its_database() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let mut client = server.client();
    let large = "x".repeat(9_000_000);
    for line in ["SET here 0", "MULTI", "SELECT 1"] {
        client.line(line);
    }
    for key in ["a", "b"] {
        client.call(&["SET", key, &large]);
    }
    assert!(client.line("EXEC").starts_with("-ERR the command would commit"));
    assert_eq!(client.line("GET here"), "$1\r\n0\r\n");
}
