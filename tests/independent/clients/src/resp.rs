//! A client of the protocol: as little of RESP2 as the checks need.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

pub type Res<T> = Result<T, String>;

/// A reply that takes longer is a hang.
pub const HANGS: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Status(String),
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    Null,
    Array(Vec<Reply>),
}

impl Reply {
    pub fn is_ok(&self) -> bool {
        matches!(self, Reply::Status(text) if text == "OK")
    }

    pub fn refused(&self) -> bool {
        matches!(self, Reply::Error(text) if text.starts_with("MISCONF"))
    }

    /// For reports: not all of a large value.
    pub fn brief(&self) -> String {
        let mut text = match self {
            Reply::Bulk(bytes) => {
                format!(
                    "{} bytes {:?}",
                    bytes.len(),
                    String::from_utf8_lossy(&bytes[..bytes.len().min(60)])
                )
            }
            other => format!("{other:?}"),
        };
        text.truncate(text.char_indices().nth(200).map_or(text.len(), |(at, _)| at));
        text
    }
}

pub struct Conn {
    stream: TcpStream,
    out: Vec<u8>,
    read: Vec<u8>,
    at: usize,
}

impl Conn {
    pub fn open(port: u16) -> Res<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).map_err(|e| format!("connect: {e}"))?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        stream.set_read_timeout(Some(HANGS)).map_err(|e| e.to_string())?;
        stream.set_write_timeout(Some(HANGS)).map_err(|e| e.to_string())?;
        Ok(Self {
            stream,
            out: Vec::new(),
            read: Vec::new(),
            at: 0,
        })
    }

    /// Adds a command to those that the next [`Conn::flush`] sends.
    pub fn push(&mut self, args: &[&[u8]]) {
        self.out
            .extend_from_slice(format!("*{}\r\n", args.len()).as_bytes());
        for arg in args {
            self.out
                .extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            self.out.extend_from_slice(arg);
            self.out.extend_from_slice(b"\r\n");
        }
    }

    pub fn flush(&mut self) -> Res<()> {
        let sent = self.stream.write_all(&self.out).map_err(|e| format!("send: {e}"));
        self.out.clear();
        sent
    }

    pub fn call(&mut self, args: &[&[u8]]) -> Res<Reply> {
        self.push(args);
        self.flush()?;
        self.reply()
    }

    /// [`Conn::call`] of words behind spaces.
    pub fn words(&mut self, line: &str) -> Res<Reply> {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.call(&args).map_err(|e| format!("{line}: {e}"))
    }

    pub fn int(&mut self, line: &str) -> Res<i64> {
        match self.words(line)? {
            Reply::Int(n) => Ok(n),
            other => Err(format!("{line}: expected a number, found {}", other.brief())),
        }
    }

    pub fn info(&mut self, field: &str) -> Res<String> {
        let Reply::Bulk(text) = self.words("INFO")? else {
            return Err("INFO is no text".into());
        };
        let text = String::from_utf8_lossy(&text).into_owned();
        let found = text
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        found
            .map(|value| value.trim().to_owned())
            .ok_or_else(|| format!("INFO has no {field}"))
    }

    /// One page: the next cursor and the keys.
    pub fn scan(&mut self, cursor: &[u8], options: &str) -> Res<(Vec<u8>, Vec<Vec<u8>>)> {
        let mut args: Vec<&[u8]> = vec![b"SCAN", cursor];
        args.extend(
            options
                .split(' ')
                .filter(|word| !word.is_empty())
                .map(str::as_bytes),
        );
        let reply = self.call(&args)?;
        if let Reply::Array(parts) = &reply
            && let [Reply::Bulk(next), Reply::Array(keys)] = &parts[..]
        {
            let keys = keys.iter().filter_map(|key| match key {
                Reply::Bulk(key) => Some(key.clone()),
                _ => None,
            });
            return Ok((next.clone(), keys.collect()));
        }
        Err(format!(
            "SCAN {options}: expected a page, found {}",
            reply.brief()
        ))
    }

    fn fill(&mut self) -> Res<()> {
        if self.at > 1 << 20 {
            self.read.drain(..self.at);
            self.at = 0;
        }
        let mut piece = [0; 1 << 16];
        match self.stream.read(&mut piece) {
            Ok(0) => Err("the server closed the connection".into()),
            Ok(n) => {
                self.read.extend_from_slice(&piece[..n]);
                Ok(())
            }
            Err(e) => Err(format!("no reply within {HANGS:?}: {e}")),
        }
    }

    fn line(&mut self) -> Res<String> {
        let mut seen = self.at;
        loop {
            if let Some(n) = self.read[seen..].windows(2).position(|two| two == b"\r\n") {
                let line = String::from_utf8_lossy(&self.read[self.at..seen + n]).into_owned();
                self.at = seen + n + 2;
                return Ok(line);
            }
            let from = self.read.len().saturating_sub(1).max(self.at) - self.at;
            self.fill()?;
            seen = self.at + from;
        }
    }

    pub fn reply(&mut self) -> Res<Reply> {
        let line = self.line()?;
        let rest = line.get(1..).unwrap_or_default();
        let number = || rest.parse::<i64>().map_err(|_| format!("broken reply {line:?}"));
        Ok(match line.as_bytes().first() {
            Some(b'+') => Reply::Status(rest.to_owned()),
            Some(b'-') => Reply::Error(rest.to_owned()),
            Some(b':') => Reply::Int(number()?),
            Some(b'$' | b'*') if number()? < 0 => Reply::Null,
            Some(b'$') => {
                let len = number()? as usize;
                while self.read.len() < self.at + len + 2 {
                    self.fill()?;
                }
                let bytes = self.read[self.at..self.at + len].to_vec();
                self.at += len + 2;
                Reply::Bulk(bytes)
            }
            Some(b'*') => {
                let parts = (0..number()?).map(|_| self.reply());
                Reply::Array(parts.collect::<Res<_>>()?)
            }
            _ => return Err(format!("broken reply {line:?}")),
        })
    }
}
