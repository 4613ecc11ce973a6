//! Keys, values and commits at their limits and one past them: what fits is stored and read back,
//! what does not is refused with its sizes, and the connection stays open.

use crate::support::{Client, Running, check_long_pipeline, config, options, start_on};
use collie_db::{Db, Options};
use collie_server::ServerConfig;

/// The longest key: the engine's limit less the server's prefix in the expiry index.
const KEY_MAX: usize = 65_526;
const VALUE_16_MIB: usize = 16 << 20;

fn start(dir: &std::path::Path, ring_bytes: usize) -> Running {
    let options = Options {
        ring_bytes,
        ..options()
    };
    let config = ServerConfig {
        ring_bytes,
        ..config()
    };
    start_on(Db::open(dir, options).unwrap(), config)
}

/// The content of a bulk string of this length.
fn bulk(reply: &[u8], len: usize) -> &[u8] {
    let head = format!("${len}\r\n");
    assert!(
        reply.starts_with(head.as_bytes()),
        "{:?}",
        String::from_utf8_lossy(&reply[..40.min(reply.len())])
    );
    &reply[head.len()..reply.len() - 2]
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 % 251) as u8).collect()
}

fn set(client: &mut Client, key: &[u8], value: &[u8]) -> String {
    client.call(&[b"SET", key, value])
}

#[test]
fn keys_up_to_the_longest_are_stored_and_longer_ones_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), 4 << 20);
    let mut client = server.client();
    for len in [0, 1, KEY_MAX - 1, KEY_MAX] {
        let key = bytes(len);
        let value = len.to_string().into_bytes();
        assert_eq!(set(&mut client, &key, &value), "+OK\r\n", "{len}");
        assert_eq!(client.call(&[b"EXPIRE", &key[..], b"1000"]), ":1\r\n", "{len}");
        assert_eq!(bulk(&client.call_raw(&[b"GET", &key[..]]), value.len()), value);
    }
    let long = bytes(KEY_MAX + 1);
    let short = b"short".to_vec();
    for words in [
        vec![&b"SET"[..], &long, b"v", b"EX", b"1000"],
        vec![b"SET", &long, b"v"],
        vec![b"SETEX", &long, b"1000", b"v"],
        vec![b"MSET", &short, b"v", &long, b"v"],
        vec![b"APPEND", &long, b"v"],
        vec![b"INCR", &long],
    ] {
        assert_eq!(
            client.call(&words),
            "-ERR the key has 65527 bytes, the limit is 65526\r\n"
        );
    }
    assert_eq!(client.line("GET short"), "$-1\r\n");
    assert_eq!(client.call(&[b"GET", &long[..]]), "$-1\r\n");
    assert_eq!(client.line("DBSIZE"), ":4\r\n");
}

#[test]
fn a_value_of_16_mib_comes_back_whole_after_a_restart_too() {
    let dir = tempfile::tempdir().unwrap();
    let value = bytes(VALUE_16_MIB);
    for round in 0..2 {
        let server = start(dir.path(), 64 << 20);
        let mut client = server.client();
        if round == 0 {
            assert_eq!(set(&mut client, b"large", &value), "+OK\r\n");
        }
        assert!(
            bulk(&client.call_raw(&["GET", "large"]), value.len()) == value,
            "round {round}"
        );
        drop(client);
        server.stop().unwrap();
    }
}

#[test]
fn a_transaction_at_the_limit_is_stored_and_one_past_it_not() {
    let dir = tempfile::tempdir().unwrap();
    let ring = 1 << 20;
    let server = start(dir.path(), ring);
    let mut client = server.client();
    // Four values of a length, in one commit; the longest is found by bisection, then it and the
    // next one are tried.
    let exec = |client: &mut Client, len: usize| {
        client.line("MULTI");
        for key in ["a", "b", "c", "d"] {
            assert_eq!(set(client, key.as_bytes(), &bytes(len)), "+QUEUED\r\n");
        }
        client.line("EXEC")
    };
    let (mut fits, mut too_long) = (1, ring / 2);
    while too_long - fits > 1 {
        let middle = fits + (too_long - fits) / 2;
        match exec(&mut client, middle).starts_with('*') {
            true => fits = middle,
            false => too_long = middle,
        }
    }
    assert!(fits > ring / 8 - 1_000, "{fits}");
    assert_eq!(exec(&mut client, fits).matches("+OK").count(), 4);
    let refused = exec(&mut client, too_long);
    assert!(
        refused.starts_with("-ERR the command would commit ") && refused.ends_with(": split it\r\n"),
        "{refused}"
    );
    for key in ["a", "b", "c", "d"] {
        assert_eq!(
            client.line(&format!("STRLEN {key}")),
            format!(":{fits}\r\n"),
            "unchanged"
        );
    }
}

#[test]
fn a_pipeline_of_100_000_commands_is_answered_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), 4 << 20);
    let mut client = server.client();
    check_long_pipeline(&mut client, 100_000);
}
