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

use support::{Client, Random, Running, config, reply_len, rounds, sorted_names, start};

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

/// Gives Redis the limit of a value's length that ours has: with its own, 512 MiB, it would go on where ours refuses,
/// as `docs/server.md` says.
fn limit_like(server: &Running, redis: &Redis) {
    let limit = server.client().call(&["CONFIG", "GET", "proto-max-bulk-len"]);
    let bytes = limit.lines().last().unwrap();
    let set = Client::connect(redis.addr).call(&["CONFIG", "SET", "proto-max-bulk-len", bytes]);
    assert_eq!(set, "+OK\r\n", "{limit:?}");
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
const NAMES: [&str; 84] = [
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
    "SETEX",
    "PSETEX",
    "GETSET",
    "MSETNX",
    "GETRANGE",
    "SUBSTR",
    "SETRANGE",
    "INCRBYFLOAT",
    "INCRBYFLOAT",
    "LCS",
    "SETBIT",
    "SETBIT",
    "GETBIT",
    "BITCOUNT",
    "BITPOS",
    "BITOP",
    "BITFIELD",
    "BITFIELD",
    "BITFIELD_RO",
    "RENAME",
    "RENAMENX",
    "COPY",
    "MOVE",
    "SWAPDB",
    "TOUCH",
    "OBJECT",
    "SLOWLOG",
    "LATENCY",
    "MULTI",
    "MULTI",
    "MULTI",
    "MULTI",
    "EXEC",
    "EXEC",
    "EXEC",
    "EXEC",
    "EXEC",
    "DISCARD",
    "WATCH",
    "WATCH",
    "WATCH",
    "UNWATCH",
    "FLUSHALL",
    "RESET",
];
const FLOATS: [&str; 18] = [
    "0.1",
    "-0.1",
    "1e-20",
    "1e17",
    "1e18",
    "3.0e3",
    "0x1p-3",
    "inf",
    "-inf",
    "nan",
    "1e400",
    "1e4932",
    "1e4933",
    "1e-4950",
    "1e",
    ".5",
    " 1",
    "123456789.123456789",
];
const PLACES: [&str; 12] = ["0", "1", "2", "7", "8", "20", "-1", "-2", "-3", "-30", "100", "x"];
const DATABASES: [&str; 6] = ["0", "1", "0", "1", "16", "x"];

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
        "PING" | "DBSIZE" | "FLUSHDB" | "FLUSHALL" | "MULTI" | "EXEC" | "DISCARD" | "UNWATCH" | "RESET" => {
            vec![name]
        }
        "WATCH" | "TOUCH" => vec![name, key, random.pick(&KEYS)],
        "SETEX" | "PSETEX" => vec![name, key, time, value],
        "GETSET" => vec![name, key, value],
        "MSETNX" => vec![name, key, value, random.pick(&KEYS), random.pick(&VALUES)],
        "GETRANGE" | "SUBSTR" => vec![name, key, random.pick(&PLACES), random.pick(&PLACES)],
        "SETRANGE" => vec![name, key, random.pick(&PLACES), value],
        "INCRBYFLOAT" => vec![
            name,
            key,
            if random.below(3) == 0 {
                value
            } else {
                random.pick(&FLOATS)
            },
        ],
        "LCS" => {
            let mut args = vec![name, key, random.pick(&KEYS)];
            for _ in 0..random.below(3) {
                match random.pick(&["LEN", "IDX", "WITHMATCHLEN", "MINMATCHLEN", "BAD"]) {
                    "MINMATCHLEN" => args.extend(["MINMATCHLEN", random.pick(&["0", "2", "-1", "x"])]),
                    word => args.push(word),
                }
            }
            args
        }
        "SETBIT" => vec![
            name,
            key,
            random.pick(&PLACES),
            random.pick(&["0", "1", "1", "2", "x"]),
        ],
        "GETBIT" => vec![name, key, random.pick(&PLACES)],
        "BITCOUNT" | "BITPOS" => {
            let mut args = vec![name, key];
            if name == "BITPOS" {
                args.push(random.pick(&["0", "1", "0", "1", "2", "x"]));
            }
            for _ in 0..random.below(3) {
                args.push(random.pick(&PLACES));
            }
            if random.below(2) == 0 {
                args.push(random.pick(&["BIT", "BYTE", "bit", "BAD"]));
            }
            args
        }
        "BITOP" => {
            let operation = random.pick(&["AND", "OR", "XOR", "NOT", "and", "BAD"]);
            let mut args = vec![name, operation, key, random.pick(&KEYS)];
            for _ in 0..random.below(3) {
                args.push(random.pick(&KEYS));
            }
            args
        }
        "BITFIELD" | "BITFIELD_RO" => {
            let mut args = vec![name, key];
            for _ in 0..random.below(4) {
                let kind = random.pick(&["u8", "i8", "u1", "i64", "u63", "i5", "u13", "u64", "x"]);
                let place = random.pick(&["0", "1", "7", "#1", "#2", "100", "-1", "x"]);
                let by = random.pick(&[
                    "1",
                    "-1",
                    "127",
                    "300",
                    "-9223372036854775808",
                    "9223372036854775807",
                    "x",
                ]);
                match random.below(if name == "BITFIELD" { 5 } else { 2 }) {
                    0 | 1 => args.extend(["GET", kind, place]),
                    2 => args.extend(["SET", kind, place, by]),
                    3 => args.extend(["INCRBY", kind, place, by]),
                    _ => args.extend(["OVERFLOW", random.pick(&["WRAP", "SAT", "FAIL", "BAD"])]),
                }
            }
            args
        }
        "RENAME" | "RENAMENX" => vec![name, key, random.pick(&KEYS)],
        "COPY" => {
            let mut args = vec![name, key, random.pick(&KEYS)];
            for _ in 0..random.below(3) {
                match random.below(3) {
                    0 => args.push(random.pick(&["REPLACE", "BAD"])),
                    _ => args.extend(["DB", random.pick(&DATABASES)]),
                }
            }
            args
        }
        "MOVE" => vec![name, key, random.pick(&DATABASES)],
        "SWAPDB" => vec![name, random.pick(&DATABASES), random.pick(&DATABASES)],
        "OBJECT" => vec![name, random.pick(&["FREQ", "NOSUB"]), key],
        "SLOWLOG" => vec![name, random.pick(&["LEN", "RESET", "NOSUB"])],
        "LATENCY" => vec![name, random.pick(&["LATEST", "RESET", "NOSUB", "HISTORY"])],
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
        ("COMMAND" | "SLOWLOG", Some(_), Some(_)) => true,
        _ => ours == theirs,
    }
}

/// One client of each server, and what both have queued since `MULTI`.
struct Pair {
    ours: Client,
    theirs: Client,
    queued: Option<Vec<Vec<String>>>,
}

impl Pair {
    fn connect(server: &Running, redis: &Redis) -> Pair {
        Pair {
            ours: server.client(),
            theirs: Client::connect(redis.addr),
            queued: None,
        }
    }

    /// Sends one command to both and compares what they answer.
    fn call(&mut self, args: &[String]) -> Result<(), String> {
        let (ours, theirs) = (self.ours.call_raw(args), self.theirs.call_raw(args));
        let agrees = match (args[0].as_str(), args.len(), &mut self.queued) {
            ("EXEC", 1, Some(queued)) if ours[0] == b'*' && theirs[0] == b'*' => {
                let (ours, theirs) = (elements(&ours), elements(&theirs));
                let mut each = queued.iter().zip(ours.iter().zip(&theirs));
                ours.len() == theirs.len() && each.all(|(args, (ours, theirs))| agree(args, ours, theirs))
            }
            (_, _, Some(queued)) if ours == b"+QUEUED\r\n" => {
                queued.push(args.to_vec());
                ours == theirs
            }
            _ => agree(args, &ours, &theirs),
        };
        match (args[0].as_str(), ours[0]) {
            ("MULTI", b'+') => self.queued = Some(Vec::new()),
            ("EXEC" | "DISCARD", b'*' | b'+' | b'_') | ("RESET", b'+') => self.queued = None,
            ("EXEC", b'-') if ours.starts_with(b"-EXECABORT") => self.queued = None,
            _ => {}
        }
        let text = |reply: &[u8]| String::from_utf8_lossy(reply).into_owned();
        agrees
            .then_some(())
            .ok_or_else(|| format!("{args:?}\n ours   {:?}\n theirs {:?}", text(&ours), text(&theirs)))
    }
}

/// The elements of an array, or none of one that is not there.
fn elements(reply: &[u8]) -> Vec<&[u8]> {
    let mut at = reply.windows(2).position(|pair| pair == b"\r\n").unwrap() + 2;
    let mut elements = Vec::new();
    while at < reply.len() {
        let len = reply_len(&reply[at..]).unwrap();
        elements.push(&reply[at..at + len]);
        at += len;
    }
    elements
}

#[test]
fn random_commands_are_answered_as_redis_answers_them() {
    // By three clients of each server, so that what one watches another one changes.
    let Some(redis) = redis() else { return };
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    limit_like(&server, &redis);
    let mut pairs: Vec<Pair> = (0..3).map(|_| Pair::connect(&server, &redis)).collect();
    let mut random = Random::new("random_commands_are_answered_as_redis_answers_them");
    let mut history = Vec::new();
    let mut executed = 0;
    for i in 0..rounds("COLLIE_DIFF_COMMANDS", 8_000) {
        let client = random.below(pairs.len());
        let pair = &mut pairs[client];
        if i % 500 == 250 && pair.queued.is_none() {
            // The same from here on in the other version of the protocol.
            for client in [&mut pair.ours, &mut pair.theirs] {
                assert!(
                    client
                        .line(if i % 1_000 == 250 { "HELLO 3" } else { "HELLO 2" })
                        .starts_with(['%', '*'])
                );
            }
        }
        let args = command(&mut random);
        executed +=
            usize::from(args == ["EXEC"] && pair.queued.as_ref().is_some_and(|queued| queued.len() > 2));
        let compared = pair.call(&args);
        history.push((client, args));
        let recent = &history[history.len().saturating_sub(12)..];
        assert!(compared.is_ok(), "after {recent:?}: {}", compared.unwrap_err());
    }
    println!(
        "figures: {executed} transactions of three commands and more among {} commands",
        history.len()
    );
    assert!(executed > history.len() / 200, "only {executed} transactions");
}

#[test]
fn fixed_commands_and_broken_ones_are_answered_as_redis_answers_them() {
    let Some(redis) = redis() else { return };
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config());
    limit_like(&server, &redis);
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
        "SETEX k 0 v",
        "SETEX k x v",
        "SETEX k 9223372036854775807 v",
        "PSETEX k -1 v",
        "SET k foobar",
        "GETRANGE k -3 -1",
        "GETRANGE k -1 -3",
        "GETRANGE nokey x 1",
        "SUBSTR k 0 2",
        "SETRANGE k -1 x",
        "SETRANGE k 9223372036854775807 x",
        "SETRANGE nokey 9223372036854775807 x",
        "MSETNX a",
        "MSETNX a 1 b",
        "BITCOUNT k 1",
        "BITCOUNT nokey 1",
        "BITCOUNT k 0 -1 BAD",
        "BITCOUNT k -1 -30 BAD",
        "BITCOUNT k 5 30 BIT",
        "BITPOS k 1 2 -1 BIT",
        "BITPOS k 0",
        "BITPOS k 2",
        "BITPOS k 1 x",
        "BITPOS k 1 0 -1 BIT x",
        "SETBIT k 4294967296 1",
        "SETBIT k -1 1",
        "SETBIT k 1 2",
        "GETBIT k x",
        "BITOP NOT dest a b",
        "BITOP FOO dest a",
        "BITOP AND k nokey",
        "EXISTS k",
        "BITFIELD k OVERFLOW FOO",
        "BITFIELD k GET u64 0",
        "BITFIELD k GET u8 #x",
        "BITFIELD k GET u8",
        "BITFIELD k OVERFLOW FAIL SET u8 0 300",
        "STRLEN k",
        "BITFIELD k OVERFLOW SAT SET i5 0 -9223372036854775793 GET i5 0",
        "BITFIELD k OVERFLOW SAT SET i5 0 -9223372036854775792 GET i5 0",
        "BITFIELD k OVERFLOW WRAP SET i5 0 -9223372036854775793 GET i5 0",
        "BITFIELD_RO k SET u8 0 1",
        "BITFIELD_RO k SET u8 0 x",
        "INCRBYFLOAT k 1",
        "INCRBYFLOAT f 1e400",
        "INCRBYFLOAT f 0.1",
        "INCRBYFLOAT f inf",
        "INCRBYFLOAT g 1.25e-3",
        "INCRBYFLOAT g x",
        "LCS k",
        "LCS k f LEN IDX",
        "LCS k f MINMATCHLEN",
        "MSET s ohmytext t mynewtext",
        "LCS s t",
        "LCS s t LEN",
        "LCS s t IDX",
        "LCS s t IDX MINMATCHLEN 4 WITHMATCHLEN",
        "INCRBYFLOAT long 1e4932",
        "LCS long long",
        "SETRANGE long 33554432 x",
        "RENAME nokey x",
        "RENAME s s",
        "RENAMENX s t",
        "RENAMENX s s",
        "COPY s s",
        "COPY s t",
        "COPY s t DB",
        "COPY s t DB 16",
        "COPY s t DB x",
        "COPY s t DB 1 REPLACE FOO",
        "MOVE s 0",
        "MOVE s 16",
        "MOVE s x",
        "MOVE s 3",
        "MOVE s 3",
        "SWAPDB 0 16",
        "SWAPDB x 1",
        "SWAPDB 1 x",
        "SWAPDB 0 3",
        "GET s",
        "SWAPDB 3 0",
        "OBJECT FREQ t",
        "OBJECT FREQ nokey",
        "OBJECT ENCODING nokey",
        "OBJECT FOO x",
        "OBJECT",
        "TOUCH s t nokey",
        "EXEC",
        "DISCARD",
        "MULTI now",
        "MULTI",
        "MULTI",
        "WATCH s",
        "SET m 1",
        "INCR t",
        "WAIT 1 0",
        "EXEC",
        "PING",
        "MULTI",
        "GET",
        "PING",
        "EXEC",
        "MULTI",
        "NOSUCH",
        "DISCARD",
        "MULTI",
        "SET m 2",
        "EXEC now",
        "EXEC",
        "MULTI",
        "SHUTDOWN",
        "EXEC",
        "MULTI",
        "EXEC",
        "MULTI",
        "SELECT 5",
        "SET five 5",
        "SELECT 0",
        "GET five",
        "SWAPDB 0 5",
        "GET five",
        "FLUSHALL",
        "DBSIZE",
        "EXEC",
        "WATCH a b c",
        "SET b 1",
        "MULTI",
        "EXEC",
        "WATCH b",
        "UNWATCH",
        "SET b 2",
        "MULTI",
        "PING",
        "EXEC",
        "MULTI",
        "RESET",
        "EXEC",
        "WATCH",
        "SLOWLOG GET x",
        "SLOWLOG GET -2",
        "SLOWLOG FOO",
        "LATENCY HISTORY event",
        "LATENCY GRAPH event",
        "LATENCY RESET event",
        "LATENCY HISTOGRAM nosuch",
        "CLIENT PAUSE x",
        "CLIENT PAUSE -1",
        "CLIENT PAUSE 0 FOO",
        "CLIENT UNPAUSE",
        "CLIENT UNBLOCK x",
        "CLIENT UNBLOCK 99",
        "CLIENT UNBLOCK 99 FOO",
        "CLIENT TRACKING OFF",
        "CLIENT TRACKING FOO",
        "CLIENT TRACKINGINFO",
        "CLIENT CACHING YES",
        "COMMAND GETKEYSANDFLAGS SET a b GET",
        "COMMAND GETKEYSANDFLAGS SET a b",
        "COMMAND GETKEYSANDFLAGS BITFIELD a GET u8 0",
        "COMMAND GETKEYSANDFLAGS BITOP AND a b c",
        "COMMAND GETKEYSANDFLAGS PING x",
        "COMMAND GETKEYS OBJECT FREQ a",
        "COMMAND GETKEYS BITOP AND a b c",
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
            "latency",
            "object",
            "slowlog",
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
    assert!(compared > 100, "only {compared} commands were compared");
}
