//! A client of Redis Cluster, as small as can be: RESP2, redirections, and what is known at the end.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A node that runs has answered by then, also where it waits for room, a leader or a majority.
const HANGS: Duration = Duration::from_secs(40);
/// A node that is stopped has so long to go on.
const STOPPED: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Text(String),
    Error(String),
    Number(i64),
    Bulk(Option<Vec<u8>>),
    Many(Vec<Reply>),
}

/// What a client knows of a command.
#[derive(Debug)]
pub enum Outcome {
    Done(Reply),
    /// It was not executed and never will be.
    Not(String),
    Unknown(String),
}

impl Outcome {
    /// In few words, whatever the reply's size is.
    pub fn brief(&self) -> String {
        let mut text = match self {
            Outcome::Done(Reply::Bulk(_) | Reply::Many(_)) => "done".to_owned(),
            other => format!("{other:?}"),
        };
        text.truncate(text.floor_char_boundary(160));
        text
    }
}

pub fn slot(key: &str) -> u16 {
    let tagged = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let hashed = tagged
        .map(|(tag, _)| tag)
        .filter(|tag| !tag.is_empty())
        .unwrap_or(key);
    let crc = hashed.bytes().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            }
        })
    });
    crc % 16384
}

/// Which nodes are stopped by a signal, by their ports.
pub type Stopped = Arc<HashMap<u16, AtomicBool>>;

pub struct Connection {
    stream: BufReader<TcpStream>,
    port: u16,
    stopped: Stopped,
}

impl Connection {
    pub fn new(port: u16, stopped: &Stopped) -> std::io::Result<Self> {
        let stream =
            TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), Duration::from_secs(1))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_millis(250)))?;
        stream.set_write_timeout(Some(Duration::from_millis(250)))?;
        Ok(Self {
            stream: BufReader::with_capacity(1 << 16, stream),
            port,
            stopped: stopped.clone(),
        })
    }

    /// One step under the rule for how long a node may be silent.
    fn patient<T>(
        &mut self,
        began: Instant,
        mut step: impl FnMut(&mut Self) -> std::io::Result<T>,
    ) -> Result<T, String> {
        loop {
            match step(self) {
                Ok(done) => return Ok(done),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e.to_string()),
            }
            let stopped = self
                .stopped
                .get(&self.port)
                .is_some_and(|s| s.load(Ordering::Relaxed));
            if stopped && began.elapsed() > STOPPED {
                return Err("stopped".into());
            }
            if began.elapsed() > HANGS {
                return Err(format!("HANGS: no answer of {} for {HANGS:?}", self.port));
            }
        }
    }

    fn fill(&mut self, began: Instant, buffer: &mut [u8]) -> Result<(), String> {
        let mut at = 0;
        while at < buffer.len() {
            match self.patient(began, |c| c.stream.read(&mut buffer[at..]))? {
                0 => return Err("closed".into()),
                n => at += n,
            }
        }
        Ok(())
    }

    fn reply(&mut self, began: Instant) -> Result<Reply, String> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            if self.patient(began, |c| c.stream.read_until(b'\n', &mut line))? == 0 {
                return Err("closed".into());
            }
        }
        let line = String::from_utf8_lossy(&line[..line.len() - 2]).into_owned();
        let (kind, rest) = line.split_at(line.len().min(1));
        let number = || rest.parse::<i64>().map_err(|_| format!("reply {line:?}"));
        Ok(match kind {
            "+" => Reply::Text(rest.into()),
            "-" => Reply::Error(rest.into()),
            ":" => Reply::Number(number()?),
            "$" if number()? < 0 => Reply::Bulk(None),
            "$" => {
                let mut bytes = vec![0; number()? as usize + 2];
                self.fill(began, &mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Reply::Bulk(Some(bytes))
            }
            "*" => Reply::Many(
                (0..number()?)
                    .map(|_| self.reply(began))
                    .collect::<Result<_, _>>()?,
            ),
            _ => return Err(format!("reply {line:?}")),
        })
    }

    pub fn call(&mut self, arguments: &[&[u8]]) -> Result<Reply, String> {
        let mut out = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            out.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            out.extend_from_slice(argument);
            out.extend_from_slice(b"\r\n");
        }
        let (began, mut at) = (Instant::now(), 0);
        while at < out.len() {
            at += self.patient(began, |c| c.stream.get_mut().write(&out[at..]))?;
        }
        self.reply(began)
    }
}

/// One client of the cluster: it keeps connections, and where slots were found.
pub struct Client {
    ports: Vec<u16>,
    connections: HashMap<u16, Connection>,
    found: HashMap<u16, u16>,
    stopped: Stopped,
    turn: usize,
    /// One that did not answer, and when: others are asked where a slot is.
    silent: Option<(u16, Instant)>,
}

impl Client {
    pub fn new(ports: &[u16], stopped: &Stopped, turn: usize) -> Self {
        Self {
            ports: ports.to_vec(),
            connections: HashMap::new(),
            found: HashMap::new(),
            stopped: stopped.clone(),
            turn,
            silent: None,
        }
    }

    fn forget(&mut self, slot: u16, port: u16) {
        self.connections.remove(&port);
        // Neither what it led is asked of it again, nor where that is.
        self.found.retain(|_, at| *at != port);
        self.found.remove(&slot);
        self.turn += 1;
        self.silent = Some((port, Instant::now()));
        std::thread::sleep(Duration::from_millis(20));
    }

    /// Sends it wherever it is directed, until it is executed, refused (BUSY, or for `patience`) or unknown.
    pub fn call(&mut self, slot: u16, patience: Duration, arguments: &[&[u8]]) -> Outcome {
        let began = Instant::now();
        let mut last = String::from("no node can be reached");
        while began.elapsed() < patience {
            let port = *self
                .found
                .entry(slot)
                .or_insert(self.ports[self.turn % self.ports.len()]);
            if !self.connections.contains_key(&port) {
                match Connection::new(port, &self.stopped) {
                    Ok(connection) => drop(self.connections.insert(port, connection)),
                    Err(_) => {
                        self.forget(slot, port);
                        continue;
                    }
                }
            }
            let error = match self.connections.get_mut(&port).map(|c| c.call(arguments)) {
                Some(Ok(Reply::Error(error))) => error,
                Some(Ok(reply)) => return Outcome::Done(reply),
                failed => {
                    self.forget(slot, port);
                    return Outcome::Unknown(failed.and_then(Result::err).unwrap_or_default());
                }
            };
            last = format!("{port}: {error}");
            match error.split(' ').next().unwrap_or_default() {
                "MOVED" | "ASK" => {
                    let to = error.rsplit(':').next().and_then(|port| port.parse().ok());
                    let Some(to) = to.filter(|to| self.ports.contains(to)) else {
                        return Outcome::Done(Reply::Error(error));
                    };
                    if to == port || self.found.insert(slot, to) == Some(to) {
                        self.turn += 1;
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
                "TRYAGAIN" => std::thread::sleep(Duration::from_millis(25)),
                "CLUSTERDOWN" => {
                    self.found.remove(&slot);
                    self.turn += 1;
                    std::thread::sleep(Duration::from_millis(100));
                }
                "BUSY" => return Outcome::Not(last),
                "UNKNOWN" => {
                    self.forget(slot, port);
                    return Outcome::Unknown(last);
                }
                _ => return Outcome::Done(Reply::Error(last)),
            }
        }
        Outcome::Not(last)
    }

    /// One command to one node, and no redirection.
    pub fn ask(&mut self, port: u16, arguments: &[&[u8]]) -> Result<Reply, String> {
        let mut connection = Connection::new(port, &self.stopped).map_err(|e| e.to_string())?;
        connection.call(arguments)
    }
}
