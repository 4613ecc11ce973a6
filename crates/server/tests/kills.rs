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
use support::{Client, command, config, options, rounds};

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
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
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
            // However slow the machine is, every client gets somewhere first.
            for _ in 0..3_000 {
                if acknowledged.load(Ordering::SeqCst) > 100 {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            std::thread::sleep(Duration::from_millis(17 * (round as u64 % 5)));
            drop(server);
        });
        let (sent, acknowledged) = (sent.into_inner(), acknowledged.into_inner());
        assert!(
            acknowledged > 100,
            "only {acknowledged} increments in half a minute"
        );
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

#[test]
fn acknowledged_increments_survive_kills_at_disk() {
    acknowledged_increments_survive_kills("disk");
}

#[test]
fn acknowledged_increments_survive_kills_at_process() {
    acknowledged_increments_survive_kills("process");
}
