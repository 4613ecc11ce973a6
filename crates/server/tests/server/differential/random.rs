//! Random commands of three clients at a time.

use collie_server::ServerConfig;

use super::{Redis, limit_like, redis};
use crate::pieces::nothing_is_left_of_removed_values;
use crate::support::{Client, Random, Running, config, elements, rounds, sorted_names, start};

const KEYS: [&str; 6] = ["a", "b", "key:1", "key:2", "", "a key\r\nwith\0all"];
const VALUES: [&str; 15] = [
    "",
    "0",
    "1",
    "-1",
    "10",
    "9223372036854775807",
    "-9223372036854775808",
    "a value of more than two pieces of sixteen bytes each",
    "9223372036854775808",
    " 1",
    "01",
    "x",
    "3.5",
    "some longer value",
    "\r\n",
];
/// No expiry falls into the run of the test, because the moment of a removal is not deterministic.
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

/// A future time that no other command uses: of two equal ones one server may see the later one a
/// millisecond later, and the other one not, which `GT` and `LT` distinguish.
fn apart(arg: &str, number: usize) -> String {
    match arg {
        "100000000" | "500000000" | "1000000000" => {
            (arg.parse::<usize>().unwrap() + 1_000 * number).to_string()
        }
        _ => arg.to_owned(),
    }
}

/// One command, valid more often than not.
fn command(random: &mut Random, number: usize) -> Vec<String> {
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
    // Occasionally an argument too many or too few.
    match random.below(25) {
        0 => args.push("extra"),
        1 if args.len() > 1 => {
            args.pop();
        }
        _ => {}
    }
    args.into_iter().map(|arg| apart(arg, number)).collect()
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
        ("TTL" | "EXPIRETIME", Some(a), Some(b)) => (a - b).abs() <= 60,
        ("PTTL" | "PEXPIRETIME", Some(a), Some(b)) => (a - b).abs() <= 60_000,
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

    /// The keys of commands that may make or lengthen a value and are no change to Redis' watchers:
    /// BITFIELD whose overflow fails.
    fn changes_quietly(&self, args: &[String]) -> Vec<String> {
        let none = Vec::new();
        let executed = match (args[0].as_str(), &self.queued) {
            ("EXEC", Some(queued)) => queued,
            ("EXEC", None) | (_, Some(_)) => &none,
            _ => &vec![args.to_vec()],
        };
        let quiet = executed
            .iter()
            .filter(|args| args[0] == "BITFIELD" && args.len() > 1 && args.iter().any(|arg| arg == "FAIL"));
        quiet.map(|args| args[1].clone()).collect()
    }

    /// Sends one command to both and compares the replies.
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

#[test]
fn random_commands_are_answered_as_redis_answers_them() {
    compare("random_commands_are_answered_as_redis_answers_them", config());
}

#[test]
fn random_commands_on_values_in_pieces_are_answered_as_by_redis() {
    compare(
        "random_commands_on_values_in_pieces_are_answered_as_by_redis",
        ServerConfig {
            piece_bytes: 16,
            ..config()
        },
    );
}

fn compare(test: &str, config: ServerConfig) {
    // By three clients of each server, so that one changes what another one watches.
    let Some(redis) = redis() else { return };
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), config);
    limit_like(&server, &redis);
    let mut pairs: Vec<Pair> = (0..3).map(|_| Pair::connect(&server, &redis)).collect();
    let mut outsider = Pair::connect(&server, &redis);
    let mut random = Random::new(test);
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
        let args = command(&mut random, i);
        executed +=
            usize::from(args == ["EXEC"] && pair.queued.as_ref().is_some_and(|queued| queued.len() > 2));
        let quiet = pair.changes_quietly(&args);
        let compared = pair.call(&args);
        for key in &quiet {
            let touch = ["SETRANGE", key, "0", "1"].map(String::from);
            outsider.call(&touch).unwrap();
        }
        history.push((client, args));
        let recent = &history[history.len().saturating_sub(12)..];
        assert!(compared.is_ok(), "after {recent:?}: {}", compared.unwrap_err());
    }
    println!(
        "figures: {executed} transactions of three commands and more among {} commands",
        history.len()
    );
    assert!(executed > history.len() / 200, "only {executed} transactions");
    drop((pairs, outsider));
    nothing_is_left_of_removed_values(&server);
}
