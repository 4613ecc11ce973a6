//! Commands answered byte for byte as a real Redis 7.0 answers them.
//!
//! Needs `redis-server` (Debian's redis-server package). If it is missing the tests print so and
//! pass, unless `COLLIE_REQUIRE_TOOLS` is set. `COLLIE_DIFF_COMMANDS` sets how many commands are
//! compared.

mod fixed;
mod random;

use crate::support::redis::Redis;
use crate::support::{Client, Running, config, sorted_names, start};

fn redis() -> Option<Redis> {
    Redis::start(&[])
}

/// Sets Redis' limit on the length of a value to ours: with its own, 512 MiB, it would succeed
/// where ours refuses, as `docs/book/src/server.md` says.
fn limit_like(server: &Running, redis: &Redis) {
    let limit = server.client().call(&["CONFIG", "GET", "proto-max-bulk-len"]);
    let bytes = limit.lines().last().unwrap();
    let set = Client::connect(redis.addr).call(&["CONFIG", "SET", "proto-max-bulk-len", bytes]);
    assert_eq!(set, "+OK\r\n", "{limit:?}");
}

#[test]
fn hostile_frames_get_redis_errors_and_a_closed_connection() {
    let Some(redis) = redis() else { return };
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let long = "x".repeat(70_000);
    for frame in [
        "*x\r\n",
        "*1\r\n$-1\r\n",
        "*1\r\nGET\r\n",
        "*1\r\n$99999999999\r\n",
        "*99999999999\r\n",
        "\"unbalanced\r\n",
        "PING\r\n*1\r\n:\r\n",
        "*3\r\n$3\r\nSET\r\n$1\r\nx\r\n\r\n\r\n",
        &long,
        &format!("*{long}"),
        &format!("*1\r\n${long}"),
        "*-1\r\n*0\r\n\r\n*1\r\n$a\r\n",
    ] {
        let mut answers = [server.addr, redis.addr].map(|addr| {
            let mut client = Client::connect(addr);
            client.send(frame.as_bytes());
            client.rest()
        });
        let [ours, theirs] = &mut answers;
        assert_eq!(ours, theirs, "{:?}", &frame[..frame.len().min(60)]);
        assert!(ours.contains("-ERR Protocol error"), "{ours:?}");
    }
}

#[test]
fn lines_of_http_end_their_connection_without_a_word() {
    let Some(redis) = redis() else { return };
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    for request in [
        "POST / HTTP/1.1\r\nSET k stolen\r\n",
        "Host: example.com\r\nSET k stolen\r\n",
        "*2\r\n$5\r\nhost:\r\n$1\r\nx\r\n",
    ] {
        for addr in [server.addr, redis.addr] {
            let mut client = Client::connect(addr);
            client.send(request.as_bytes());
            assert_eq!(client.rest(), "", "{request:?}");
            assert_eq!(Client::connect(addr).line("EXISTS k"), ":0\r\n", "{request:?}");
        }
    }
}

#[test]
fn the_command_table_is_that_of_redis() {
    let Some(redis) = redis() else { return };
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let (mut ours, mut theirs) = (server.client(), Client::connect(redis.addr));
    let names = sorted_names(&ours.call_raw(&["COMMAND", "LIST"]));
    let mut compared = 0;
    for name in &names {
        let name = String::from_utf8_lossy(name);
        let name = name.lines().nth(1).unwrap();
        // Containers list their subcommands, of which there are fewer here, or in another order; the
        // others are newer or
        // our own.
        if [
            "client",
            "cluster",
            "config",
            "command",
            "function",
            "latency",
            "object",
            "slowlog",
            "waitaof",
            "client|ack",
            "client|setinfo",
        ]
        .contains(&name)
            || name.starts_with("collie.")
        {
            continue;
        }
        for hello in ["HELLO 2", "HELLO 3"] {
            ours.line(hello);
            theirs.line(hello);
            let args = ["COMMAND", "INFO", name];
            assert_eq!(ours.call(&args), theirs.call(&args), "{name}");
        }
        compared += 1;
    }
    assert!(compared > 100, "only {compared} commands were compared");
}
