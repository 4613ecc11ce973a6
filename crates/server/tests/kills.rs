//! SIGKILL: what was acknowledged is there when the server starts again, at the levels that promise it.
//!
//! The server runs in a process of its own, which is this test binary started with a variable set. The long
//! form: `COLLIE_KILLS=50`.

#![expect(clippy::unwrap_used, reason = "a test ends where its assumptions do")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use collie_db::{Db, Options, RingMode};
use collie_server::{Ack, Server, ServerConfig, termination};
use support::{Client, PATIENCE, command, config, options, rounds, wait_for};

const CHILD_DIR: &str = "COLLIE_TEST_CHILD_DIR";
const CHILD_RINGS: &str = "COLLIE_TEST_CHILD_RINGS";
const CHILD_ACK: &str = "COLLIE_TEST_CHILD_ACK";

/// Not a test of its own: the process that is killed.
#[test]
fn child_server() {
    let Ok(dir) = std::env::var(CHILD_DIR) else { return };
    let ack: Ack = std::env::var(CHILD_ACK).unwrap().parse().unwrap();
    let options = Options {
        ring: RingMode::Shared {
            dir: std::env::var_os(CHILD_RINGS).unwrap().into(),
        },
        ..options()
    };
    let db = Db::open(dir, options).unwrap();
    let server = Server::bind(ServerConfig { ack, ..config() }, db).unwrap();
    println!("\nlistening {}", server.local_addr());
    server.run(termination()).unwrap();
}

/// A server in another process; killed when dropped.
struct Process {
    child: Child,
    addr: SocketAddr,
}

impl Process {
    fn start(dir: &Path, rings: &Path, ack: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_server", "--nocapture"])
            .env(CHILD_DIR, dir)
            .env(CHILD_RINGS, rings)
            .env(CHILD_ACK, ack)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let addr = loop {
            let line = lines.next().unwrap().unwrap();
            if let Some(addr) = line.strip_prefix("listening ") {
                break addr.parse().unwrap();
            }
        };
        // What it says later goes nowhere, and must not block it.
        std::thread::spawn(move || lines.for_each(drop));
        Process { child, addr }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn counter(addr: SocketAddr) -> i64 {
    let reply = Client::connect(addr).line("GET counter");
    reply.trim_end().rsplit('\n').next().unwrap().parse().unwrap_or(0)
}

/// Increments, one at a time, until the connection breaks. Counts what was sent and what was acknowledged.
fn increment(addr: SocketAddr, sent: &AtomicI64, acknowledged: &AtomicI64) {
    let Ok(mut stream) = TcpStream::connect(addr) else {
        return;
    };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = command(&["INCR", "counter"]);
    let mut reply = [0; 64];
    loop {
        sent.fetch_add(1, Ordering::SeqCst);
        if stream.write_all(&request).is_err() {
            return;
        }
        match stream.read(&mut reply) {
            Ok(n) if reply[..n].starts_with(b":") && reply[..n].ends_with(b"\r\n") => {
                acknowledged.fetch_add(1, Ordering::SeqCst);
            }
            _ => return,
        }
    }
}

fn acknowledged_increments_survive_kills(ack: &str) {
    let dir = tempfile::tempdir().unwrap();
    // What the killed leave in shared memory goes with this.
    let rings = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut floor = 0;
    for round in 0..rounds("COLLIE_KILLS", 4) {
        let server = Process::start(dir.path(), rings.path(), ack);
        let before = counter(server.addr);
        assert!(before >= floor, "{before} increments are left of {floor}");
        let (sent, acknowledged) = (AtomicI64::new(0), AtomicI64::new(0));
        let addr = server.addr;
        std::thread::scope(|scope| {
            for _ in 0..50 {
                scope.spawn(|| increment(addr, &sent, &acknowledged));
            }
            // However slow the machine is, the clients get somewhere first.
            wait_for("a hundred increments", || {
                acknowledged.load(Ordering::SeqCst) > 100
            });
            std::thread::sleep(Duration::from_millis(17 * (round as u64 % 5)));
            drop(server);
        });
        let (sent, acknowledged) = (sent.into_inner(), acknowledged.into_inner());
        let server = Process::start(dir.path(), rings.path(), ack);
        let after = counter(server.addr);
        let done = after - before;
        assert!(
            done >= acknowledged && done <= sent,
            "sent {sent}, acknowledged {acknowledged}, found {done}"
        );
        floor = after;
    }
    let server = Process::start(dir.path(), rings.path(), ack);
    assert_eq!(counter(server.addr), floor);
    assert_eq!(Client::connect(server.addr).line("DBSIZE"), ":1\r\n");
}

/// Runs transactions, one at a time, until the connection breaks: each sets two keys in each of two databases to
/// the same number, and now and then empties or swaps databases with it. Gives the last acknowledged number, and
/// counts them.
fn transact(addr: SocketAddr, lane: usize, first: i64, count: &AtomicI64) -> i64 {
    let Ok(mut stream) = TcpStream::connect(addr) else {
        return 0;
    };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut reply = [0; 4096];
    let mut acknowledged = 0;
    for number in first.. {
        let value = number.to_string();
        let (here, there) = (format!("a{lane}"), format!("b{lane}"));
        let mut request = Vec::new();
        for args in [
            &["SELECT", "1"][..],
            &["MULTI"],
            &["SET", &here, &value],
            &["SET", &there, &value, "EX", "100000"],
            &["SELECT", "2"],
            &["SET", &here, &value],
            &["SET", &there, &value],
            &["SWAPDB", "1", "2"][..if number % 7 == 0 { 3 } else { 0 }],
            &["EXEC"],
        ] {
            if !args.is_empty() {
                request.extend_from_slice(&command(args));
            }
        }
        if stream.write_all(&request).is_err() {
            return acknowledged;
        }
        let mut told = Vec::new();
        // SELECT, MULTI, five or six times QUEUED, and the reply to EXEC, whose parts all are +OK.
        let lines = if number % 7 == 0 { 15 } else { 13 };
        while told.iter().filter(|byte| **byte == b'\n').count() < lines {
            match stream.read(&mut reply) {
                Ok(n) if n > 0 => told.extend_from_slice(&reply[..n]),
                _ => return acknowledged,
            }
        }
        assert!(!told.contains(&b'-'), "{}", String::from_utf8_lossy(&told));
        acknowledged = number;
        count.fetch_add(1, Ordering::SeqCst);
    }
    acknowledged
}

#[test]
fn transactions_are_whole_or_not_there_after_kills() {
    const LANES: usize = 4;
    let dir = tempfile::tempdir().unwrap();
    let rings = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut next = 1;
    for round in 0..rounds("COLLIE_KILLS", 4) {
        let server = Process::start(
            dir.path(),
            rings.path(),
            if round % 2 == 0 { "disk" } else { "process" },
        );
        let (addr, count) = (server.addr, AtomicI64::new(0));
        let acknowledged: Vec<i64> = std::thread::scope(|scope| {
            let count = &count;
            let lanes: Vec<_> = (0..LANES)
                .map(|lane| scope.spawn(move || transact(addr, lane, next, count)))
                .collect();
            wait_for("two hundred transactions", || count.load(Ordering::SeqCst) > 200);
            std::thread::sleep(Duration::from_millis(17 * (round as u64 % 5)));
            drop(server);
            lanes.into_iter().map(|lane| lane.join().unwrap()).collect()
        });
        let server = Process::start(dir.path(), rings.path(), "disk");
        let mut client = Client::connect(server.addr);
        for (lane, acknowledged) in acknowledged.iter().enumerate() {
            let mut found = Vec::new();
            for db in 1..=2 {
                client.line(&format!("SELECT {db}"));
                for key in ["a", "b"] {
                    let reply = client.line(&format!("GET {key}{lane}"));
                    let number = reply
                        .lines()
                        .nth(1)
                        .map_or(0, |number| number.parse::<i64>().unwrap());
                    found.push(number);
                }
            }
            assert!(
                found.iter().all(|number| *number == found[0]) && found[0] >= *acknowledged,
                "lane {lane}: found {found:?}, acknowledged {acknowledged}"
            );
            next = next.max(found[0] + 1);
        }
    }
}

#[test]
fn acknowledged_increments_survive_kills_at_disk() {
    acknowledged_increments_survive_kills("disk");
}

#[test]
fn acknowledged_increments_survive_kills_at_process() {
    acknowledged_increments_survive_kills("process");
}
