//! A client of the Redis protocol that returns replies as they arrive. The tests of the binary
//! `collie` use this file too.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test ends where its assumptions do")]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use collie_io::{Clock, RealClock};

/// How long a test waits for a reply or a state before it fails: much longer than any that comes
/// takes.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A connection to a server.
pub struct Client {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    pub fn connect(addr: SocketAddr) -> Client {
        Client::try_connect(addr).unwrap()
    }

    pub fn try_connect(addr: SocketAddr) -> io::Result<Client> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Client {
            stream,
            buffer: Vec::new(),
        })
    }

    /// Sends one command and returns its reply as it arrived.
    pub fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> String {
        String::from_utf8_lossy(&self.call_raw(args)).into_owned()
    }

    /// Sends a line, split at blanks, as one command and returns its reply as it arrived.
    pub fn line(&mut self, line: &str) -> String {
        let args: Vec<&str> = line.split(' ').collect();
        self.call(&args)
    }

    pub fn call_raw<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Vec<u8> {
        self.send(&command(args));
        self.reply()
    }

    /// Sends one command and returns the content of its reply, see [`content`].
    pub fn text<A: AsRef<[u8]>>(&mut self, args: &[A]) -> String {
        self.try_text(args).unwrap()
    }

    pub fn try_text<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<String> {
        self.try_send(&command(args))?;
        Ok(content(&self.try_reply()?))
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).unwrap();
    }

    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// The next reply.
    pub fn reply(&mut self) -> Vec<u8> {
        self.try_reply()
            .unwrap_or_else(|error| panic!("{error:?} after {:?}", String::from_utf8_lossy(&self.buffer)))
    }

    pub fn try_reply(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(len) = reply_len(&self.buffer) {
                return Ok(self.buffer.drain(..len).collect());
            }
            if !self.fill()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Reads more; `false` at the end of the stream.
    fn fill(&mut self) -> io::Result<bool> {
        let mut chunk = [0; 16 * 1024];
        let n = self.stream.read(&mut chunk)?;
        self.buffer.extend_from_slice(&chunk[..n]);
        Ok(n > 0)
    }

    /// Everything up to the end of the stream.
    pub fn rest(&mut self) -> String {
        while self.fill().unwrap() {}
        String::from_utf8_lossy(&std::mem::take(&mut self.buffer)).into_owned()
    }

    /// Whether no reply arrives for a time.
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

/// Length of the reply at the start of `bytes`, if it is complete.
pub fn reply_len(bytes: &[u8]) -> Option<usize> {
    let line_end = line_len(bytes)?;
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

/// Length of the first line of `bytes`, its end included.
fn line_len(bytes: &[u8]) -> Option<usize> {
    Some(bytes.windows(2).position(|pair| pair == b"\r\n")? + 2)
}

fn several(bytes: &[u8], mut at: usize, count: i64) -> Option<usize> {
    for _ in 0..count {
        at += reply_len(&bytes[at..])?;
    }
    Some(at)
}

/// The content of a bulk string, or else the first line of a reply.
pub fn content(reply: &[u8]) -> String {
    let line_end = line_len(reply).unwrap();
    let text = match reply.get(line_end..reply.len() - 2) {
        Some(bulk) if reply[0] == b'$' => bulk,
        _ => &reply[..line_end - 2],
    };
    String::from_utf8_lossy(text).into_owned()
}

/// The elements of an array, or none if the reply is not one.
pub fn elements(reply: &[u8]) -> Vec<&[u8]> {
    let mut elements = Vec::new();
    let mut at = line_len(reply).unwrap();
    while reply[0] == b'*' && at < reply.len() {
        let len = reply_len(&reply[at..]).unwrap();
        elements.push(&reply[at..at + len]);
        at += len;
    }
    elements
}

/// The number of rounds of a long test: the variable, or a number that suits every run.
pub fn rounds(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |value| value.parse().unwrap())
}

/// Waits for a state that another thread brings about.
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = RealClock.monotonic();
    while !is_so() {
        let waited = Duration::from_nanos(RealClock.monotonic() - began);
        assert!(waited < PATIENCE, "{what}: not reached within {waited:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Repeats a command until its reply is as expected.
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
