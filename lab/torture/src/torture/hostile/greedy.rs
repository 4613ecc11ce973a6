//! A good client beside clients that take what a server has few of: threads, memory, places for
//! probes. Many that wait for one row; some that watch very many keys; many that send part of a
//! request before the password, and no more; sockets that keep the page of health waiting.
//!
//! The good client reads one small key, all the while. What is judged is the longest of its reads
//! beside each, the server's memory, and that the others get what they are due.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use collie_cli::resp::{Client, Reply};
use collie_io::{Clock, Device, OpenMode, RealClock, RealDevice, write_all_at};
use serde::Serialize;

use super::heavy;
use super::stage::Stage;
use crate::args::HostileArgs;
use crate::client;
use crate::limits::allow_files;
use crate::torture::ports;
use crate::torture::served::{Served, collie};
use crate::torture::soak::gauge::{forget_most, memory};

const PASSWORD: &[u8] = b"secret";
/// How long a reply may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Clients that write one row, more than a server has threads that may wait, and the bytes that
/// each writes.
const WAITERS: usize = 600;
const ROW: usize = 500_000;
/// Clients that watch keys, how many each, in commands of how many, and their length.
const WATCHERS: usize = 12;
const WATCHED: usize = 16_000;
const WATCHED_AT_ONCE: usize = 100;
const KEY: usize = 1_000;
/// Clients before the password, and the bytes that each sends.
const STRANGERS: usize = 1_000;
const PART: usize = 140_000;
/// How long the server may take until it has read what they sent.
const RECEIVED: Duration = Duration::from_secs(20);
/// `maxmemory-clients` for both. More memory than that and as much again for the allocator is a
/// violation.
const MEMORY: u64 = 64 << 20;
/// Sockets that are silent where health is asked for, and how often it is asked for beside them.
const SILENT: usize = 200;
const PROBES: usize = 50;

/// How many times as long as beside one client with heavy commands a read may take: these are
/// hundreds, and connect all at once.
const TIMES: f64 = 2.0;

/// What was measured.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Report {
    /// The good client's longest read beside each, in ms.
    worst_ms: Vec<(&'static str, f64)>,
    /// Its reads in all.
    calls: u64,
    /// Clients that had to go because they watched too much, and before the password.
    watchers_refused: usize,
    strangers_refused: usize,
    /// By how much the server's memory grew beside each, in bytes.
    watched_bytes: u64,
    strangers_bytes: u64,
    /// The longest answer about health beside silent sockets, in ms.
    probe_ms: f64,
}

impl Report {
    pub(crate) fn line(&self) -> String {
        let each = self.worst_ms.iter().map(|(name, ms)| format!("{name} {ms:.0}"));
        format!(
            "greedy clients: longest of {} reads of a good client beside each, in ms: {} · watchers took {} MiB, {} of \
             {WATCHERS} were refused · strangers {} MiB, {} of {STRANGERS} refused · longest probe {:.0} ms",
            self.calls,
            each.collect::<Vec<_>>().join(", "),
            self.watched_bytes >> 20,
            self.watchers_refused,
            self.strangers_bytes >> 20,
            self.strangers_refused,
            self.probe_ms
        )
    }

    fn judge(&self, args: &HostileArgs) -> Vec<String> {
        let mut found = Vec::new();
        let most = TIMES * args.heavy_ms;
        for (name, ms) in &self.worst_ms {
            if *ms > most {
                found.push(format!(
                    "beside {name} a good client's read took {ms:.0} ms, at most {most} were expected"
                ));
            }
        }
        let taken = [
            ("watchers", self.watched_bytes, self.watchers_refused),
            ("strangers", self.strangers_bytes, self.strangers_refused),
        ];
        for (who, bytes, refused) in taken {
            if bytes > 2 * MEMORY {
                let most = 2 * MEMORY;
                found.push(format!(
                    "{who} took {bytes} bytes of memory, at most {most} were expected"
                ));
            }
            if refused == 0 {
                found.push(format!("of all {who} none was refused"));
            }
        }
        if self.probe_ms > most {
            found.push(format!(
                "beside {SILENT} silent sockets a probe took {:.0} ms, at most {most} were expected",
                self.probe_ms
            ));
        }
        found
    }
}

pub(crate) fn run(stage: &Stage, args: &HostileArgs, violations: &mut Vec<String>) -> anyhow::Result<Report> {
    allow_files(STRANGERS as u64 + 64)?;
    let config = stage.dir.join("greedy.toml");
    let file = RealDevice::new().open(&config, OpenMode::OpenOrCreate)?;
    let text = "[store]\nring = \"private\"\n[server]\nrequirepass = \"secret\"\n[limits]\nmaxmemory-clients = \"64mb\"\n";
    write_all_at(&*file, text.as_bytes(), 0)?;
    let health = ports::free(1)?.first().copied().context("no port is free")?;
    let metrics = format!("127.0.0.1:{health}");
    let more = ["--metrics", metrics.as_str()];
    let mut server = Served::start(&[], &collie(&stage.dir.join("greedy"), &config, &more)?)?;
    let mut report = Report::default();
    let ran = report.all(&server, health);
    ran.with_context(|| format!("the server said:\n{}", server.said()))?;
    stage.end(&mut server, violations)?;
    violations.extend(report.judge(args));
    Ok(report)
}

impl Report {
    fn all(&mut self, server: &Served, health: u16) -> anyhow::Result<()> {
        let port = server.port;
        let mut first = known(port)?;
        first.call(&[b"SET", b"small", b"x"])?.good()?;
        first.call(&[b"SET", b"row", &vec![b'r'; ROW]])?.good()?;
        let mut good: Vec<Client> = (0..4).map(|_| known(port)).collect::<Result<_, _>>()?;
        let before = memory(server.pid())?.now;
        forget_most(server.pid())?;
        self.watchers_refused = self.beside("watchers", &mut good, || watch(port))?;
        self.watched_bytes = memory(server.pid())?.most.saturating_sub(before);
        forget_most(server.pid())?;
        let (refused, strangers) = self.beside("strangers", &mut good, || send_parts(port))?;
        self.strangers_refused = refused;
        self.strangers_bytes = memory(server.pid())?.most.saturating_sub(before);
        first
            .call(&[b"CONFIG", b"SET", b"authentication-timeout", b"1"])?
            .good()?;
        self.beside("strangers that go", &mut good, || await_ends(strangers))?;
        self.beside("waiters", &mut good, || wait(port))?;
        self.probe_ms = self.beside("silent sockets", &mut good, || probe(health))?;
        Ok(())
    }

    /// Does something while the good clients read.
    fn beside<T>(
        &mut self,
        name: &'static str,
        good: &mut [Client],
        hostile: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let readers: Vec<_> = good
                .iter_mut()
                .map(|client| scope.spawn(|| heavy::read(client, &over)))
                .collect();
            let done = hostile();
            // Relaxed: a read more does no harm.
            over.store(true, Ordering::Relaxed);
            let mut worst = 0;
            for reader in readers {
                let Ok(read) = reader.join() else {
                    anyhow::bail!("a good client's thread panicked")
                };
                let (calls, longest) = read.context(name)?;
                self.calls += calls;
                worst = worst.max(longest);
            }
            self.worst_ms.push((name, worst as f64 / 1e6));
            done.context(name)
        })
    }
}

/// A client that has given the password.
fn known(port: u16) -> anyhow::Result<Client> {
    let mut client = client::connect_for(port, PATIENCE)?;
    client.call(&[b"AUTH", PASSWORD])?.good()?;
    Ok(client)
}

/// All write one row at once, and each is answered.
fn wait(port: u16) -> anyhow::Result<()> {
    let mut waiters: Vec<Client> = (0..WAITERS).map(|_| known(port)).collect::<Result<_, _>>()?;
    for waiter in &mut waiters {
        waiter.push(&[b"COPY", b"row", b"hot", b"REPLACE"]);
        waiter.push(&[b"APPEND", b"hot", b"x"]);
        waiter.send()?;
    }
    for waiter in &mut waiters {
        waiter.reply()?.good()?;
        waiter.reply()?.good()?;
    }
    Ok(())
}

/// Each watches keys until it is refused; gives how many were.
fn watch(port: u16) -> anyhow::Result<usize> {
    let mut watchers: Vec<Client> = (0..WATCHERS).map(|_| known(port)).collect::<Result<_, _>>()?;
    let mut refused = vec![false; WATCHERS];
    for from in (0..WATCHED).step_by(WATCHED_AT_ONCE) {
        let keys: Vec<Vec<u8>> = (from..from + WATCHED_AT_ONCE)
            .map(|number| format!("{number:0KEY$}").into_bytes())
            .collect();
        let words: Vec<&[u8]> = std::iter::once(&b"WATCH"[..])
            .chain(keys.iter().map(Vec::as_slice))
            .collect();
        for (watcher, refused) in watchers.iter_mut().zip(&mut refused) {
            if !*refused {
                // An error, or the end of the connection.
                *refused = !matches!(watcher.call(&words), Ok(Reply::Text(_)));
            }
        }
    }
    Ok(refused.into_iter().filter(|refused| *refused).count())
}

/// Each sends part of a request; gives how many were refused, and all.
fn send_parts(port: u16) -> anyhow::Result<(usize, Vec<TcpStream>)> {
    let mut part = b"*10\r\n".to_vec();
    while part.len() < PART {
        let argument = PART / 9;
        part.extend_from_slice(format!("${argument}\r\n").as_bytes());
        part.resize(part.len() + argument, b'x');
        part.extend_from_slice(b"\r\n");
    }
    let mut strangers = Vec::with_capacity(STRANGERS);
    for _ in 0..STRANGERS {
        let mut stranger = TcpStream::connect(("127.0.0.1", port))?;
        stranger.set_read_timeout(Some(PATIENCE))?;
        // It may be closed before it has sent all.
        let _ = stranger.write_all(&part);
        strangers.push(stranger);
    }
    let clock = RealClock;
    let began = clock.monotonic();
    // What the server has received it may still have to read.
    loop {
        let refused = ended(&strangers)?;
        let waited = clock.monotonic().saturating_sub(began);
        if refused >= STRANGERS / 3 || waited >= RECEIVED.as_nanos() as u64 {
            return Ok((refused, strangers));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How many of the connections the server has ended, or said something to.
fn ended(connections: &[TcpStream]) -> std::io::Result<usize> {
    let mut count = 0;
    for connection in connections {
        connection.set_nonblocking(true)?;
        let found = connection.peek(&mut [0]);
        let is_open = found.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        count += usize::from(!is_open);
        connection.set_nonblocking(false)?;
    }
    Ok(count)
}

/// Until the server has closed them all.
fn await_ends(strangers: Vec<TcpStream>) -> anyhow::Result<()> {
    for mut stranger in strangers {
        match stranger.read_to_end(&mut Vec::new()) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                anyhow::bail!("a client without the password is not closed when its time is up")
            }
            // Closed, or reset before what it sent was read.
            _ => {}
        }
    }
    Ok(())
}

/// Asks for health beside silent sockets; gives the longest answer in ms.
fn probe(port: u16) -> anyhow::Result<f64> {
    let silent: std::io::Result<Vec<TcpStream>> = (0..SILENT)
        .map(|_| TcpStream::connect(("127.0.0.1", port)))
        .collect();
    let silent = silent?;
    let clock = RealClock;
    let mut longest = 0;
    for _ in 0..PROBES {
        let before = clock.monotonic();
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: collie\r\nConnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        anyhow::ensure!(
            answer.starts_with(b"HTTP/1.1 200 "),
            "a probe got {:?}",
            String::from_utf8_lossy(&answer)
        );
        longest = longest.max(clock.monotonic().saturating_sub(before));
    }
    drop(silent);
    Ok(longest as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        hostile: HostileArgs,
    }

    #[test]
    fn each_bound_is_judged() {
        let args = Line::parse_from(["hostile", "--heavy-ms", "100"]).hostile;
        let good = Report {
            worst_ms: vec![("waiters", 200.0)],
            watchers_refused: 1,
            strangers_refused: 1,
            watched_bytes: 2 * MEMORY,
            strangers_bytes: 2 * MEMORY,
            probe_ms: 200.0,
            ..Report::default()
        };
        assert_eq!(good.judge(&args), Vec::<String>::new());
        let bad = Report {
            worst_ms: vec![("waiters", 201.0)],
            watched_bytes: 2 * MEMORY + 1,
            strangers_bytes: 2 * MEMORY + 1,
            probe_ms: 201.0,
            ..Report::default()
        };
        assert_eq!(bad.judge(&args).len(), 6);
    }
}
