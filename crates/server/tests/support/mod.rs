//! A server on a temporary directory, and a client that shows replies as they come over the wire.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test ends where its assumptions do")]
#![allow(clippy::print_stdout, reason = "a random test prints its seed")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use collie_db::{Db, Options};
use collie_io::{Clock, RealClock};
use collie_server::{Server, ServerConfig, ServerError};
use tokio::sync::oneshot;

/// How long a test waits for a reply or a state before it fails: so long that only what never comes meets it.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A configuration for tests: any port, two threads.
pub fn config() -> ServerConfig {
    ServerConfig {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        threads: 2,
        ..ServerConfig::default()
    }
}

/// Engine options for tests.
pub fn options() -> Options {
    Options {
        create_if_missing: true,
        ..Options::default()
    }
}

/// A running server.
pub struct Running {
    pub addr: SocketAddr,
    pub metrics: Option<SocketAddr>,
    pub db: Db,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
}

/// Starts a server on the store in `dir`.
pub fn start(dir: &Path, config: ServerConfig) -> Running {
    start_on(Db::open(dir, options()).unwrap(), config)
}

/// Starts a server on an open store.
pub fn start_on(db: Db, config: ServerConfig) -> Running {
    let server = Server::bind(config, db.clone()).unwrap();
    let (addr, metrics) = (server.local_addr(), server.metrics_addr());
    let (stop, stopped) = oneshot::channel();
    let thread = std::thread::spawn(move || {
        server.run(async {
            // A sender that is dropped stops the server as well.
            let _ = stopped.await;
        })
    });
    Running {
        addr,
        metrics,
        db,
        stop: Some(stop),
        thread: Some(thread),
    }
}

impl Running {
    pub fn client(&self) -> Client {
        Client::connect(self.addr)
    }

    /// Asks the server to end, as a signal does, and waits for it.
    pub fn stop(mut self) -> Result<(), ServerError> {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap()
    }

    /// Waits for a server that was told to end otherwise.
    pub fn join(mut self) -> Result<(), ServerError> {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap().unwrap();
            }
        }
    }
}

/// A client.
pub struct Client {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    pub fn connect(addr: SocketAddr) -> Client {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client {
            stream,
            buffer: Vec::new(),
        }
    }

    /// Sends one command and gives its reply as it came.
    pub fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> String {
        String::from_utf8_lossy(&self.call_raw(args)).into_owned()
    }

    /// Sends a line, split at blanks, as one command and gives its reply as it came.
    pub fn line(&mut self, line: &str) -> String {
        let args: Vec<&str> = line.split(' ').collect();
        self.call(&args)
    }

    pub fn call_raw<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Vec<u8> {
        self.send(&command(args));
        self.reply()
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next reply.
    pub fn reply(&mut self) -> Vec<u8> {
        loop {
            if let Some(len) = reply_len(&self.buffer) {
                return self.buffer.drain(..len).collect();
            }
            assert!(
                self.fill(),
                "the connection ended in the middle of a reply: {:?}",
                self.buffer
            );
        }
    }

    /// Reads more; `false` at the end of the stream.
    fn fill(&mut self) -> bool {
        let mut chunk = [0; 16 * 1024];
        let n = self.stream.read(&mut chunk).unwrap();
        self.buffer.extend_from_slice(&chunk[..n]);
        n > 0
    }

    /// Everything up to the end of the stream.
    pub fn rest(&mut self) -> String {
        while self.fill() {}
        String::from_utf8_lossy(&std::mem::take(&mut self.buffer)).into_owned()
    }

    /// Whether no reply comes within a while.
    pub fn is_silent_for(&mut self, time: Duration) -> bool {
        self.stream.set_read_timeout(Some(time)).unwrap();
        let mut byte = [0];
        let silent = self.buffer.is_empty() && self.stream.peek(&mut byte).is_err();
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        silent
    }
}

/// A command as an array of bulk strings.
pub fn command<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend_from_slice(format!("${}\r\n", arg.as_ref().len()).as_bytes());
        bytes.extend_from_slice(arg.as_ref());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Length of the reply at the start of `bytes`, where it is complete.
pub fn reply_len(bytes: &[u8]) -> Option<usize> {
    let line_end = bytes.windows(2).position(|pair| pair == b"\r\n")? + 2;
    let number = || -> i64 {
        std::str::from_utf8(&bytes[1..line_end - 2])
            .unwrap()
            .parse()
            .unwrap()
    };
    match bytes[0] {
        b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => Some(line_end),
        b'$' | b'=' => {
            let len = usize::try_from(number()).map_or(0, |len| len + 2);
            (bytes.len() >= line_end + len).then_some(line_end + len)
        }
        b'*' | b'~' | b'>' => several(bytes, line_end, number()),
        b'%' => several(bytes, line_end, number() * 2),
        other => panic!("no reply starts with {:?}", char::from(other)),
    }
}

fn several(bytes: &[u8], mut at: usize, count: i64) -> Option<usize> {
    for _ in 0..count {
        at += reply_len(&bytes[at..])?;
    }
    Some(at)
}

/// The elements of an array of bulk strings, sorted.
pub fn sorted_names(reply: &[u8]) -> Vec<Vec<u8>> {
    assert_eq!(reply[0], b'*', "{:?}", String::from_utf8_lossy(reply));
    let mut names = Vec::new();
    let mut at = reply.windows(2).position(|pair| pair == b"\r\n").unwrap() + 2;
    while at < reply.len() {
        let len = reply_len(&reply[at..]).unwrap();
        names.push(reply[at..at + len].to_vec());
        at += len;
    }
    names.sort();
    names
}

/// The number of rounds of a long test: the variable, or a share that suits every run.
pub fn rounds(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |value| value.parse().unwrap())
}

/// A reproducible source of chance.
pub struct Random(u64);

impl Random {
    /// Seeds from `COLLIE_SEED`, or from the time, and prints how to run the same again.
    pub fn new(test: &str) -> Random {
        let seed = std::env::var("COLLIE_SEED")
            .map_or_else(|_| RealClock.monotonic(), |value| value.parse().unwrap());
        println!("to run it again: COLLIE_SEED={seed} cargo test -p collie-server {test}");
        Random(seed | 1)
    }

    /// A source that another one chose the seed for.
    pub fn seeded(seed: usize) -> Random {
        Random(seed as u64 | 1)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        // xorshift64*, good enough to choose commands.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }

    pub fn pick<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }
}

/// Waits for a state that another thread brings about.
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = RealClock.monotonic();
    while !is_so() {
        let waited = Duration::from_nanos(RealClock.monotonic() - began);
        assert!(waited < PATIENCE, "{what}: has not come about in {waited:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Asks until the answer is as expected.
pub fn until(client: &mut Client, line: &str, expected: &str) {
    wait_for(&format!("{line} answers {expected:?}"), || {
        client.line(line) == expected
    });
}

/// The value of a line of `INFO`.
pub fn field(client: &mut Client, section: &str, name: &str) -> String {
    let info = client.line(&format!("INFO {section}"));
    let value = info
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("no {name} in {info}")).to_owned()
}
