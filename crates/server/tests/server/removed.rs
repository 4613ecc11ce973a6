//! Commands that walk over keys, where very many were removed.

use crate::support::{Client, Running, command, config, start};
use collie_server::ServerConfig;

/// More than a command passes over at once.
const REMOVED: usize = 20_000;

fn key(n: usize) -> String {
    format!("key:{n:05}")
}

/// A server with one thread, where `key:00000` and the next ones were set and removed.
fn removed() -> (tempfile::TempDir, Running, Client) {
    let dir = tempfile::tempdir().unwrap();
    let config = ServerConfig {
        threads: 1,
        ..config()
    };
    let server = start(dir.path(), config);
    let mut client = server.client();
    for part in (0..REMOVED).collect::<Vec<_>>().chunks(1_000) {
        let keys: Vec<String> = part.iter().map(|n| key(*n)).collect();
        let mut set = vec!["MSET".to_owned()];
        set.extend(keys.iter().flat_map(|key| [key.clone(), "v".to_owned()]));
        let mut del = vec!["DEL".to_owned()];
        del.extend(keys);
        client.send(&[command(&set), command(&del)].concat());
        assert_eq!(client.reply(), b"+OK\r\n");
        assert_eq!(client.reply(), b":1000\r\n");
    }
    (dir, server, client)
}

/// One page: the cursor, and the keys.
fn page(client: &mut Client, line: &str) -> (u64, Vec<String>) {
    let reply = client.call_raw(&line.split(' ').collect::<Vec<_>>());
    read_page(&reply)
}

fn read_page(reply: &[u8]) -> (u64, Vec<String>) {
    let text = String::from_utf8_lossy(reply).into_owned();
    let words: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with(['*', '$']))
        .collect();
    let (cursor, keys) = words.split_first().unwrap();
    (
        cursor.parse().unwrap(),
        keys.iter().map(|key| (*key).to_owned()).collect(),
    )
}

/// The pages of a whole scan, and the keys.
fn scan(client: &mut Client, options: &str) -> (usize, Vec<String>) {
    let (mut cursor, mut pages, mut keys) = (0, 0, Vec::new());
    loop {
        let (next, found) = page(client, &format!("SCAN {cursor}{options}"));
        (cursor, pages) = (next, pages + 1);
        keys.extend(found);
        if cursor == 0 {
            return (pages, keys);
        }
    }
}

/// A page took as long as all that was removed, and every other client waited.
#[test]
fn scan_returns_a_cursor_where_much_was_removed() {
    let (_dir, _server, mut client) = removed();
    client.line("SET key:99999 v");
    let (cursor, keys) = page(&mut client, "SCAN 0 COUNT 1");
    assert!(cursor != 0 && keys.is_empty(), "{cursor}, {keys:?}");
    let (pages, keys) = scan(&mut client, " COUNT 1");
    assert_eq!(keys, ["key:99999"]);
    assert!(pages < REMOVED / 1_000, "{pages} pages");
    // What was walked over is known.
    let (pages, keys) = scan(&mut client, " COUNT 1 MATCH key:*");
    assert_eq!((pages, keys), (1, vec!["key:99999".to_owned()]));
    client.line("DEL key:99999");
    assert_eq!(scan(&mut client, "").1, Vec::<String>::new());
}

/// A page that ends where removed keys were passed over has what the transaction has set before.
#[test]
fn scan_in_a_transaction_skips_none_of_its_own_keys() {
    let (_dir, _server, mut client) = removed();
    client.line("MULTI");
    client.line("SET key:00000 own");
    client.line("SET key:01000 own");
    client.line("SCAN 0 COUNT 100");
    let reply = client.line("EXEC");
    let replies = reply.strip_prefix("*3\r\n+OK\r\n+OK\r\n").unwrap();
    let (mut cursor, mut keys) = read_page(replies.as_bytes());
    while cursor != 0 {
        let (next, found) = page(&mut client, &format!("SCAN {cursor} COUNT 100"));
        cursor = next;
        keys.extend(found);
    }
    assert_eq!(keys, ["key:00000", "key:01000"]);
}

#[test]
fn randomkey_and_keys_find_the_only_key_among_removed_ones() {
    for only in ["key:00000", "key:10000", "key:99999"] {
        let (_dir, _server, mut client) = removed();
        client.line(&format!("SET {only} v"));
        let expected = format!("$9\r\n{only}\r\n");
        assert_eq!(client.line("RANDOMKEY"), expected);
        assert_eq!(client.line("KEYS *"), format!("*1\r\n{expected}"));
        client.line("MULTI");
        client.line("RANDOMKEY");
        client.line("KEYS *");
        assert_eq!(client.line("EXEC"), format!("*2\r\n{expected}*1\r\n{expected}"));
        client.line(&format!("DEL {only}"));
        assert_eq!(
            (client.line("RANDOMKEY"), client.line("DBSIZE")),
            ("$-1\r\n".into(), ":0\r\n".into())
        );
    }
}

/// What was removed before is walked over anew, since nothing of that is stored.
#[test]
fn scan_returns_a_cursor_after_a_restart_too() {
    let (dir, server, client) = removed();
    drop(client);
    server.stop().unwrap();
    let server = start(dir.path(), config());
    let mut client = server.client();
    assert_eq!(client.line("DBSIZE"), ":0\r\n");
    let (cursor, keys) = page(&mut client, "SCAN 0 COUNT 1");
    assert!(keys.is_empty(), "{cursor}, {keys:?}");
    assert_eq!(scan(&mut client, "").1, Vec::<String>::new());
}
