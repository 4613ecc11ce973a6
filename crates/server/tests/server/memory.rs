//! What clients make grow is counted, bounded, and not kept for ever.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use collie_server::ServerConfig;

use crate::support::{Client, Running, command, config, field, start, wait_for};

#[test]
fn all_requests_together_stay_within_their_memory() {
    let dir = tempfile::tempdir().unwrap();
    let limit = 8 * 1024 * 1024;
    let server = start(
        dir.path(),
        ServerConfig {
            in_flight_bytes_max: limit,
            ..config()
        },
    );
    let mut small = server.client();
    // Ten clients send most of two megabytes and stop there.
    let mut start = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2000000\r\n".to_vec();
    start.extend(vec![b'x'; 1_900_000]);
    let mut hogs: Vec<Client> = (0..10).map(|_| server.client()).collect();
    for hog in &mut hogs {
        // Those that are closed meanwhile fail to send the rest.
        let _ = hog.stream.write_all(&start);
    }
    let mut evicted = 0;
    wait_for("the requests together are within their memory", || {
        evicted = field(&mut small, "stats", "evicted_clients").parse().unwrap();
        let held: i64 = field(&mut small, "memory", "mem_clients_normal").parse().unwrap();
        evicted > 0 && held <= limit as i64
    });
    assert!((1..10).contains(&evicted), "some go, not all: {evicted}");
    assert_eq!(small.line("SET fine 1"), "+OK\r\n");
}

/// The reply to a command, unless the connection has been closed.
fn answer(client: &mut Client, words: &[&str]) -> Option<String> {
    client.try_send(&command(words)).ok()?;
    let reply = client.try_reply().ok()?;
    Some(String::from_utf8(reply).unwrap())
}

/// A server with a password, and a client that has given it.
fn guarded(dir: &std::path::Path) -> (Running, Client) {
    let password = Some("secret".into());
    let server = start(dir, ServerConfig { password, ..config() });
    let mut known = server.client();
    assert_eq!(known.line("AUTH secret"), "+OK\r\n");
    (server, known)
}

#[test]
fn unauthenticated_clients_share_one_bound() {
    const UNAUTHENTICATED: usize = 1_000;
    let dir = tempfile::tempdir().unwrap();
    let (server, mut known) = guarded(dir.path());
    // Each sends nine arguments that an unauthenticated client may send, of a request that it does not finish.
    let mut part = b"*10\r\n".to_vec();
    for _ in 0..9 {
        part.extend(format!("${}\r\n", 16 * 1024).bytes());
        part.extend([b'x'; 16 * 1024]);
        part.extend(b"\r\n");
    }
    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..UNAUTHENTICATED {
        let mut client = server.client();
        // It may be closed before it has sent all.
        let _ = client.stream.write_all(&part);
        clients.push(client);
    }
    let mut late = server.client();
    assert_eq!(late.line("AUTH secret"), "+OK\r\n");
    assert_eq!(late.line("SET k v"), "+OK\r\n");
    // A hundred and fifty million bytes were sent.
    let bound = 64 * 1024 * 1024;
    wait_for("most of the clients are gone", || {
        let evicted: usize = field(&mut known, "stats", "evicted_clients").parse().unwrap();
        let held: usize = field(&mut known, "memory", "mem_clients_normal").parse().unwrap();
        evicted > UNAUTHENTICATED / 3 && held <= bound
    });
    let refused = "-OOM requests of clients that have not authenticated take more than 64 MiB\r\n";
    let mut last_words = clients.iter_mut().map(|client| {
        let mut rest = Vec::new();
        // A connection may be reset before it is read to its end.
        let _ = client.stream.set_read_timeout(Some(Duration::from_millis(10)));
        let _ = client.stream.read_to_end(&mut rest);
        rest
    });
    assert!(last_words.any(|rest| rest == refused.as_bytes()));
}

#[test]
fn a_client_without_the_password_is_closed_when_its_time_is_up() {
    let dir = tempfile::tempdir().unwrap();
    let (server, mut known) = guarded(dir.path());
    let (mut silent, mut busy) = (server.client(), server.client());
    busy.send(b"*2\r\n$4\r\nAUTH\r\n");
    assert_eq!(known.line("CONFIG SET authentication-timeout 1"), "+OK\r\n");
    assert_eq!(silent.rest(), "", "closed without a word");
    assert_eq!(busy.rest(), "");
    // One that logs out is unauthenticated again, from then on.
    let mut former = server.client();
    if answer(&mut former, &["AUTH", "secret"]).as_deref() == Some("+OK\r\n") {
        assert_eq!(former.line("RESET"), "+RESET\r\n");
        assert_eq!(former.rest(), "");
    }
    assert_eq!(known.line("SET k v"), "+OK\r\n", "a known client may be silent");
    assert_eq!(
        known
            .line("CONFIG GET authentication-timeout")
            .matches("$1\r\n1\r\n")
            .count(),
        1
    );
}

#[test]
fn watched_keys_are_charged_to_the_client_that_watches_them() {
    let dir = tempfile::tempdir().unwrap();
    let in_flight_bytes_max = 8 * 1024 * 1024;
    let server = start(
        dir.path(),
        ServerConfig {
            in_flight_bytes_max,
            ..config()
        },
    );
    let (mut small, mut hog) = (server.client(), server.client());
    let key = |number: usize| format!("{number:05}{}", "k".repeat(4_000));
    assert_eq!(hog.call(&["WATCH", &key(0), &key(1), &key(0)]), "+OK\r\n");
    let list = small.line("CLIENT LIST");
    // The key, and 256 bytes beside it; the second time it takes nothing.
    assert!(
        list.contains(&format!(" multi-mem={} ", 2 * (4_005 + 256))),
        "{list}"
    );
    assert_eq!(hog.line("UNWATCH"), "+OK\r\n");
    let list = small.line("CLIENT LIST");
    assert_eq!(list.matches(" multi-mem=0 ").count(), 2, "{list}");

    let refused = "-OOM requests and replies of all clients take more than maxmemory-clients\r\n";
    let answers: Vec<String> = (0..4_000)
        .map_while(|number| answer(&mut hog, &["WATCH", &key(number)]))
        .collect();
    let (last, watched) = answers.split_last().unwrap();
    assert_eq!(last, refused);
    assert!(watched.iter().all(|answer| answer == "+OK\r\n"));
    // What it takes beyond 256 KiB is charged.
    let taken = watched.len() * (4_005 + 256);
    assert!((8 << 20..10 << 20).contains(&taken), "{taken}");
    assert_eq!(small.line("SET fine 1"), "+OK\r\n");
    wait_for("its memory is free", || {
        field(&mut small, "memory", "mem_clients_normal") == "0"
    });
}

#[test]
fn the_watch_of_too_many_keys_keeps_exec_from_doing_anything() {
    const MOST: usize = 16 * 1024;
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let mut client = server.client();
    let keys: Vec<String> = (0..=MOST).map(|number| format!("k{number}")).collect();
    let watch = |keys: &[String]| {
        let words: Vec<&str> = std::iter::once("WATCH")
            .chain(keys.iter().map(String::as_str))
            .collect();
        command(&words)
    };
    client.send(&watch(&keys[..MOST]));
    assert_eq!(client.reply(), b"+OK\r\n");
    for line in ["MULTI", "SET a 1"] {
        client.line(line);
    }
    assert_eq!(client.line("EXEC"), "*1\r\n+OK\r\n");
    client.send(&watch(&keys));
    assert_eq!(
        client.reply(),
        b"-ERR a connection watches at most 16384 keys\r\n"
    );
    for line in ["MULTI", "SET a 2"] {
        client.line(line);
    }
    assert_eq!(client.line("EXEC"), "*-1\r\n");
    assert_eq!(client.line("GET a"), "$1\r\n1\r\n");
    // After it the client may watch again.
    assert_eq!(client.line("WATCH a"), "+OK\r\n");
    for line in ["MULTI", "SET a 3"] {
        client.line(line);
    }
    assert_eq!(client.line("EXEC"), "*1\r\n+OK\r\n");
}
