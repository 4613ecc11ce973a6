//! Random commands, answered byte for byte as a real Redis 7.0 answers them.
//!
//! Needs `redis-server` (Debian's redis-server package). Where it is missing the tests say so and pass, unless
//! `COLLIE_REQUIRE_TOOLS` is set. `COLLIE_DIFF_COMMANDS` sets how many commands are compared.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test ends where its assumptions do, and says what it skips"
)]

mod support;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use support::{Client, Random, config, rounds, sorted_names, start};

/// A real Redis on a port of its own.
struct Redis {
    child: Child,
    addr: SocketAddr,
    _dir: tempfile::TempDir,
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn redis() -> Option<Redis> {
    let version = Command::new("redis-server").arg("--version").output();
    let found = version
        .as_ref()
        .is_ok_and(|v| String::from_utf8_lossy(&v.stdout).contains("v=7.0."));
    if !found {
        assert!(
            std::env::var_os("COLLIE_REQUIRE_TOOLS").is_none(),
            "redis-server 7.0 is missing: {version:?}"
        );
        println!("skipped: redis-server 7.0 is missing (Debian: redis-server)");
        return None;
    }
    // Somebody else may take the port before the server does; then another one is tried.
    let started = (0..5).find_map(|_| start_redis());
    assert!(started.is_some(), "redis-server does not start");
    started
}

/// Starts a server; `None` where it ended, or another one listens on its port.
fn start_redis() -> Option<Redis> {
    let dir = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let child = Command::new("redis-server")
        .args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--dir",
        ])
        .arg(dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let addr = SocketAddr::from(([127, 0, 0, 1], port));
    let mut redis = Redis {
        child,
        addr,
        _dir: dir,
    };
    let own = format!("process_id:{}\r\n", redis.child.id());
    for _ in 0..200 {
        if redis.child.try_wait().unwrap().is_some() {
            return None;
        }
        if TcpStream::connect(addr).is_ok() {
            let is_it = Client::connect(addr).line("INFO server").contains(&own);
            return is_it.then_some(redis);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    None
}

const KEYS: [&str; 6] = ["a", "b", "key:1", "key:2", "", "a key\r\nwith\0all"];
const VALUES: [&str; 14] = [
    "",
    "0",
    "1",
    "-1",
    "10",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    " 1",
    "01",
    "x",
    "3.5",
    "some longer value",
    "\r\n",
];
/// Nothing that is set to expire does so while the test runs: when it is counted out is a matter of chance.
const TIMES: [&str; 9] = [
    "100000000",
    "500000000",
    "0",
    "-1",
    "9223372036854775807",
    "-9223372036854775808",
    "x",
    "9223372036854775",
    "1000000000",
];
const PATTERNS: [&str; 9] = [
    "*", "", "key:*", "k?y:[12]", "k[^a]*", "[a-b]", "\\a", "a*l", "**",
];
const NAMES: [&str; 40] = [
    "GET",
    "SET",
    "SET",
    "GETDEL",
    "GETEX",
    "SETNX",
    "MGET",
    "MSET",
    "APPEND",
    "STRLEN",
    "INCR",
    "DECR",
    "INCRBY",
    "DECRBY",
    "DEL",
    "UNLINK",
    "EXISTS",
    "TYPE",
    "EXPIRE",
    "PEXPIRE",
    "EXPIREAT",
    "PEXPIREAT",
    "TTL",
    "PTTL",
    "PERSIST",
    "EXPIRETIME",
    "PEXPIRETIME",
    "KEYS",
    "DBSIZE",
    "PING",
    "ECHO",
    "SELECT",
    "FLUSHDB",
    "NOSUCH",
    "CLIENT",
    "CONFIG",
    "WAIT",
    "OBJECTX",
    "COMMAND",
    "SCAN",
];

/// One command, right more often than wrong.
fn command(random: &mut Random) -> Vec<String> {
    let name = random.pick(&NAMES);
    let key = random.pick(&KEYS);
    let value = random.pick(&VALUES);
    let time = random.pick(&TIMES);
    let mut args: Vec<&str> = match name {
        "GET" | "GETDEL" | "STRLEN" | "INCR" | "DECR" | "TYPE" | "TTL" | "PTTL" | "PERSIST"
        | "EXPIRETIME" | "PEXPIRETIME" => vec![name, key],
        "SET" => {
            let mut args = vec![name, key, value];
            for _ in 0..random.below(3) {
                let word = random.pick(&[
                    "NX", "XX", "GET", "KEEPTTL", "EX", "PX", "EXAT", "PXAT", "nx", "BAD",
                ]);
                args.push(word);
                if word.len() > 3 && word != "KEEPTTL" {
                    args.push(random.pick(&["99999999999999", "x", "0", "9223372036854775807"]));
                } else if matches!(word, "EX" | "PX") {
                    args.push(random.pick(&["100000000", "x", "0", "-5", "9223372036854775807"]));
                }
            }
            args
        }
        "GETEX" => {
            let mut args = vec![name, key];
            match random.below(4) {
                0 => args.push("PERSIST"),
                1 => args.extend(["EX", time]),
                2 => args.extend([
                    random.pick(&["PXAT", "EXAT"]),
                    random.pick(&["99999999999", "1", "0", "x"]),
                ]),
                _ => {}
            }
            args
        }
        "SETNX" | "APPEND" | "INCRBY" | "DECRBY" => vec![name, key, value],
        "MSET" => vec![name, key, value, random.pick(&KEYS), random.pick(&VALUES)],
        "MGET" | "DEL" | "UNLINK" | "EXISTS" => vec![name, key, random.pick(&KEYS), random.pick(&KEYS)],
        "EXPIRE" | "PEXPIRE" | "EXPIREAT" | "PEXPIREAT" => {
            let mut args = vec![name, key, time];
            if name.ends_with("AT") && random.below(2) == 0 {
                args[2] = random.pick(&["99999999999", "99999999990000"]);
            }
            for _ in 0..random.below(3) {
                args.push(random.pick(&["NX", "XX", "GT", "LT", "gt", "BAD"]));
            }
            args
        }
        "KEYS" => vec![name, random.pick(&PATTERNS)],
        "PING" | "DBSIZE" | "FLUSHDB" => vec![name],
        "ECHO" => vec![name, value],
        "SELECT" => vec![
            name,
            random.pick(&["0", "1", "15", "16", "-1", "x", "99999999999999"]),
        ],
        "CLIENT" => {
            let sub = random.pick(&["SETNAME", "GETNAME", "NOSUB", "NO-EVICT", "KILL"]);
            vec![
                name,
                sub,
                random.pick(&["name", "bad name", "on", "maybe", "1.2.3.4:5"]),
            ]
        }
        "CONFIG" => vec![
            name,
            random.pick(&["GET", "NOSUB", "SET"]),
            random.pick(&["databases", "nope"]),
        ],
        "WAIT" => vec![
            name,
            random.pick(&["0", "-1", "x"]),
            random.pick(&["0", "-1", "x", "10"]),
        ],
        "COMMAND" => vec![
            name,
            random.pick(&["NOSUB", "COUNT", "GETKEYS", "INFO"]),
            "x",
            "y",
        ],
        "SCAN" => vec![
            name,
            random.pick(&["x", "1x", " 1", "-"]),
            "COUNT",
            random.pick(&["0", "x", "5"]),
        ],
        _ => vec![name, key, value],
    };
    // Now and then an argument too many or too few.
    match random.below(25) {
        0 => args.push("extra"),
        1 if args.len() > 1 => {
            args.pop();
        }
        _ => {}
    }
    args.into_iter().map(String::from).collect()
}

/// Whether the replies agree. Times may differ by what passed between the two calls.
fn agree(args: &[String], ours: &[u8], theirs: &[u8]) -> bool {
    let name = args[0].as_str();
    if name == "KEYS" && ours[0] == b'*' && theirs[0] == b'*' {
        return sorted_names(ours) == sorted_names(theirs);
    }
    let number = |reply: &[u8]| -> Option<i64> {
        std::str::from_utf8(reply)
            .ok()?
            .strip_prefix(':')?
            .trim_end()
            .parse()
            .ok()
    };
    match (name, number(ours), number(theirs)) {
        ("TTL" | "EXPIRETIME", Some(a), Some(b)) => (a - b).abs() <= 3,
        ("PTTL" | "PEXPIRETIME", Some(a), Some(b)) => (a - b).abs() <= 3_000,
        ("COMMAND", Some(_), Some(_)) => true,
        _ => ours == theirs,
    }
}

#[test]
fn random_commands_are_answered_as_redis_answers_them() {
    let Some(redis) = redis() else { return };
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let (mut ours, mut theirs) = (server.client(), Client::connect(redis.addr));
    let mut random = Random::new("random_commands_are_answered_as_redis_answers_them");
    let mut history = Vec::new();
    for i in 0..rounds("COLLIE_DIFF_COMMANDS", 5_000) {
        if i % 1_000 == 500 {
            // The same from here on in the other version of the protocol.
            for client in [&mut ours, &mut theirs] {
                assert!(
                    client
                        .line(if i % 2_000 == 500 { "HELLO 3" } else { "HELLO 2" })
                        .starts_with(['%', '*'])
                );
            }
        }
        let args = command(&mut random);
        let (our, their) = (ours.call_raw(&args), theirs.call_raw(&args));
        history.push(args);
        let recent = &history[history.len().saturating_sub(6)..];
        assert!(
            agree(&history[i], &our, &their),
            "after {recent:?}\n ours   {:?}\n theirs {:?}",
            String::from_utf8_lossy(&our),
            String::from_utf8_lossy(&their),
        );
    }
}

#[test]
fn fixed_commands_and_broken_ones_are_answered_as_redis_answers_them() {
    let Some(redis) = redis() else { return };
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    let (mut ours, mut theirs) = (server.client(), Client::connect(redis.addr));
    for line in [
        "SET k v PXAT 1",
        "GET k",
        "SET k v EX 100 PX 100",
        "SET k v EX 100 EX 200",
        "SET k v KEEPTTL EX 3",
        "SET k v NX XX",
        "SET k v NX GET",
        "SET k v XX GET",
        "SET k v GET",
        "SET n",
        "GET",
        "MSET a",
        "MSET a 1 b",
        "SET k 9223372036854775807",
        "INCR k",
        "DECRBY k -9223372036854775808",
        "INCRBY k 1x",
        "DECRBY z -1",
        "HELLO 4",
        "HELLO x",
        "HELLO 3 FOO",
        "HELLO 3 SETNAME",
        "HELLO 3 AUTH default",
        "HELLO 2 SETNAME a\tb",
        "AUTH x",
        "AUTH default x",
        "AUTH other x",
        "AUTH a b c",
        "RESET",
        "PING a b",
        "PING hello",
        "EXPIRE nokey 100 NX XX",
        "EXPIRE nokey 100 GT LT",
        "EXPIRE nokey x",
        "EXPIRE k 100 FOO",
        "EXPIRE k 9223372036854775807",
        "PEXPIRE k 9223372036854775807",
        "EXPIRE k 100",
        "EXPIRE k 50 GT",
        "EXPIRE k 200 LT",
        "EXPIRE k -1",
        "EXISTS k",
        "SCAN",
        "SCAN 0 COUNT",
        "SCAN 0 MATCH x TYPE",
        "SCAN 0 FOO bar",
        "SCAN 0 COUNT 0",
        "SCAN abc",
        "SCAN 0 TYPE list",
        "CLIENT",
        "CLIENT FOO",
        "CLIENT KILL 1.1.1.1:1",
        "CLIENT KILL ID x",
        "CLIENT KILL ID 0",
        "CLIENT KILL TYPE foo",
        "CLIENT KILL FOO bar",
        "CLIENT KILL ID",
        "CLIENT KILL USER foo",
        "CLIENT KILL SKIPME maybe",
        "CLIENT KILL ID 9999",
        "CLIENT LIST TYPE foo",
        "CLIENT LIST ID x",
        "CLIENT LIST FOO",
        "CLIENT GETNAME",
        "CLIENT SETNAME x",
        "CLIENT GETNAME",
        "CLIENT REPLY foo",
        "CLIENT REPLY ON",
        "CLIENT NO-EVICT foo",
        "CLIENT NO-EVICT on",
        "CLIENT GETREDIR",
        "CONFIG",
        "CONFIG FOO",
        "CONFIG SET nope 1",
        "CONFIG SET maxclients 0",
        "CONFIG SET maxclients x",
        "CONFIG SET databases 1",
        "CONFIG SET timeout -1",
        "CONFIG SET timeout 5 timeout 6",
        "CONFIG SET proto-max-bulk-len x",
        "CONFIG SET proto-max-bulk-len 5",
        "CONFIG SET timeout",
        "CONFIG SET timeout 5 maxclients",
        "CONFIG SET client-output-buffer-limit x",
        "CONFIG SET client-output-buffer-limit foo\t1\t2\t3",
        "CONFIG GET databases",
        "CONFIG GET maxmemory-policy",
        "CONFIG GET SAVE",
        "CONFIG GET",
        "CONFIG RESETSTAT",
        "CONFIG REWRITE",
        "COMMAND FOO",
        "COMMAND INFO nosuch",
        "COMMAND GETKEYS MSET a 1 b 2",
        "COMMAND GETKEYS GET",
        "COMMAND GETKEYS PING",
        "COMMAND GETKEYS nosuch x",
        "COMMAND GETKEYS DEL a b c",
        "COMMAND LIST FOO",
        "COMMAND LIST FILTERBY MODULE x",
        "COMMAND LIST FILTERBY PATTERN setnx",
        "COMMAND LIST FILTERBY FOO bar",
        "COMMAND DOCS nosuch",
        "WAIT 0 0",
        "WAIT x 0",
        "WAIT 0 x",
        "WAIT 0 -1",
        "WAIT 1 20",
        "TIME x",
        "DBSIZE x",
        "FLUSHDB FOO",
        "FLUSHDB ASYNC",
        "FLUSHALL SYNC x",
        "FLUSHALL SYNC",
        "FUNCTION FLUSH FOO",
        "FUNCTION FLUSH SYNC",
        "FUNCTION FLUSH",
        "FUNCTION FOO",
        "SHUTDOWN FOO",
        "SHUTDOWN ABORT NOW",
        "SHUTDOWN SAVE NOSAVE",
        "SHUTDOWN ABORT",
        "RANDOMKEY",
        "SELECT 16",
        "SELECT x",
        "SELECT -1",
        "INFO nosuchsection",
        "ECHO",
        "QUIT now",
    ] {
        let args: Vec<String> = line.split(' ').map(|arg| arg.replace('\t', " ")).collect();
        let (our, their) = (ours.call(&args), theirs.call(&args));
        assert_eq!(our, their, "{line}");
        if line.starts_with("QUIT") {
            (ours, theirs) = (server.client(), Client::connect(redis.addr));
        }
    }
    ours.line("CONFIG SET proto-max-bulk-len 1mb");
    theirs.line("CONFIG SET proto-max-bulk-len 1mb");
    let half = "x".repeat(600_000);
    for args in [["APPEND", "big", &half], ["APPEND", "big", &half]] {
        assert_eq!(ours.call(&args), theirs.call(&args));
    }
}

#[test]
fn hostile_frames_get_the_error_of_redis_and_a_closed_connection() {
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
        // Containers list their subcommands, of which there are fewer here; the others are later or our own.
        if [
            "client",
            "config",
            "command",
            "function",
            "waitaof",
            "client|ack",
            "client|setinfo",
        ]
        .contains(&name)
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
    assert!(compared > 60, "only {compared} commands were compared");
}
