//! Stores that earlier servers wrote, as files: they are served with all their keys. They are never
//! written again.
//!
//! | fixture | written by | what is in it |
//! |---|---|---|
//! | values-v1 | dbc9f074 | values in their rows, expiries, databases swapped and flushed |
//! | values-v2 | dbab70d1 | the same, and values in pieces of 16 and of 1,024 bytes |

#![expect(clippy::disallowed_methods, reason = "copies fixtures")]

use std::fs;
use std::path::Path;

use collie_db::{Db, Options, RingMode};
use collie_server::ServerConfig;

use crate::support::{Client, Running, config, start_on};

/// A copy of a fixture. Directories without files, which git does not keep, are made.
fn copy(name: &str) -> tempfile::TempDir {
    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let (from, to) = {
                let entry = entry.unwrap();
                (entry.path(), to.join(entry.file_name()))
            };
            match from.is_dir() {
                true => copy(&from, &to),
                false => drop(fs::copy(from, to).unwrap()),
            }
        }
    }
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name);
    let dir = tempfile::tempdir().unwrap();
    copy(&fixture, dir.path());
    for family in fs::read_dir(dir.path().join("families")).unwrap() {
        fs::create_dir_all(family.unwrap().path().join("tables")).unwrap();
    }
    dir
}

fn start(dir: &Path) -> Running {
    let options = Options {
        max_commit_bytes: 0,
        ring: RingMode::Private,
        ring_bytes: 16 << 10,
        segment_bytes: 32 << 10,
        reserve_bytes: Some(0),
        ..Options::default()
    };
    let config = ServerConfig {
        piece_bytes: 16,
        ..config()
    };
    start_on(Db::open(dir, options).unwrap(), config)
}

/// A bulk string, or an error, an integer, or that there is nothing.
fn get(client: &mut Client, key: &[u8]) -> Option<Vec<u8>> {
    let reply = client.call_raw(&[b"GET", key]);
    if reply == b"$-1\r\n" {
        return None;
    }
    let at = reply.windows(2).position(|two| two == b"\r\n").unwrap();
    Some(reply[at + 2..reply.len() - 2].to_vec())
}

const LATER: &str = ":4102444800123\r\n";

fn plain_values(client: &mut Client) {
    let long = b"0123456789".repeat(300);
    let expected: [(&[u8], Option<&[u8]>); 10] = [
        (b"plain", Some(b"a value")),
        (b"empty", Some(b"")),
        (b"", Some(b"under the empty key")),
        (b"\0\xff\r\n", Some(b"\xfe\0")),
        (b"long", Some(&long)),
        (b"number", Some(b"42")),
        (b"later", Some(b"expires in 2100")),
        (b"moved", Some(b"expires in 2101")),
        (b"gone", None),
        (b"soon", None),
    ];
    assert_eq!(client.line("SELECT 0"), "+OK\r\n");
    for (key, value) in expected {
        assert_eq!(get(client, key).as_deref(), value, "{}", key.escape_ascii());
    }
    assert_eq!(get(client, b"kept").unwrap(), b"expired no more");
    assert_eq!(client.line("PEXPIRETIME later"), LATER);
    assert_eq!(client.line("PEXPIRETIME moved"), ":4133980800456\r\n");
    assert_eq!(client.line("PEXPIRETIME plain"), ":-1\r\n");
    assert_eq!(client.line("PEXPIRETIME kept"), ":-1\r\n");
    for (database, value) in [
        (1, Some(&b"of 2"[..])),
        (2, Some(b"of 1")),
        (3, Some(b"of 3, after a flush")),
        (4, None),
        (15, Some(b"of 15")),
    ] {
        assert_eq!(client.line(&format!("SELECT {database}")), "+OK\r\n");
        assert_eq!(get(client, b"key").as_deref(), value, "database {database}");
        let keys = u8::from(value.is_some());
        assert_eq!(client.line("DBSIZE"), format!(":{keys}\r\n"));
    }
    assert_eq!(client.line("SELECT 0"), "+OK\r\n");
}

fn values_in_pieces(client: &mut Client) {
    let digits: Vec<u8> = (0..100).map(|n| b'0' + n % 10).collect();
    assert_eq!(get(client, b"pieces").unwrap(), [&digits[..], b"more"].concat());
    let gap = [&digits[..], &[0; 200], b"behind a gap"].concat();
    assert_eq!(get(client, b"gap").unwrap(), gap);
    assert_eq!(get(client, b"renamed").unwrap(), digits);
    assert_eq!(client.line("PEXPIRETIME renamed"), ":4102444800789\r\n");
    assert_eq!(client.line("EXISTS lasting"), ":0\r\n");
    assert_eq!(get(client, b"replaced").unwrap(), b"short");
    let byte = |n: u32| (n.wrapping_mul(0x9e37_79b1) >> 24) as u8;
    let mut large: Vec<u8> = (0..5000).map(byte).collect();
    large[2000..2013].copy_from_slice(b"in the middle");
    assert_eq!(get(client, b"large").unwrap(), large);
}

/// The rows of pieces in all databases.
fn pieces(server: &Running) -> usize {
    let families = server.db.families();
    let families = families.iter().filter_map(|name| server.db.family(name));
    families
        .map(|family| family.prefix([b'v']).unwrap().count())
        .sum()
}

#[test]
fn values_of_version_1_are_served() {
    let dir = copy("values-v1");
    let server = start(dir.path());
    let mut client = server.client();
    plain_values(&mut client);
    assert_eq!(client.line("DBSIZE"), ":9\r\n");
    // A key of version 1 gets a value of version 2.
    let now = "x".repeat(100);
    assert_eq!(client.call(&["SET", "added", &now]), "+OK\r\n");
    assert_eq!(pieces(&server), 7);
    drop(client);
    server.stop().unwrap();

    let server = start(dir.path());
    let mut client = server.client();
    plain_values(&mut client);
    assert_eq!(get(&mut client, b"added").unwrap(), now.as_bytes());
    assert_eq!(client.line("FLUSHALL"), "+OK\r\n");
    assert_eq!(client.line("DBSIZE"), ":0\r\n");
}

#[test]
fn values_of_version_2_are_served() {
    let dir = copy("values-v2");
    let server = start(dir.path());
    let mut client = server.client();
    plain_values(&mut client);
    values_in_pieces(&mut client);
    assert_eq!(client.line("DBSIZE"), ":14\r\n");
    // In pieces of 16 bytes: 3,000 bytes; 104; 312 without pieces for zeros; 100. In pieces of 1,024:
    // 5,000 bytes.
    let found = pieces(&server);
    assert_eq!(found, 188 + 7 + 9 + 7 + 5);
    let now = "x".repeat(100);
    assert_eq!(client.call(&["SET", "added", &now]), "+OK\r\n");
    assert_eq!(pieces(&server), found + 7, "its number is no other value's");
    values_in_pieces(&mut client);
    drop(client);
    server.stop().unwrap();

    let server = start(dir.path());
    let mut client = server.client();
    plain_values(&mut client);
    values_in_pieces(&mut client);
    assert_eq!(get(&mut client, b"added").unwrap(), now.as_bytes());
    for key in ["long", "pieces", "gap", "renamed", "large", "added"] {
        assert_eq!(client.line(&format!("DEL {key}")), ":1\r\n", "{key}");
    }
    assert_eq!(pieces(&server), 0, "nothing of them is left");
}
