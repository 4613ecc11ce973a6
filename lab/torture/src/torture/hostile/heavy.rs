//! A good client beside one that sends little and asks for much: a few bytes that write, read or
//! compare megabytes.
//!
//! The good client reads one small key, all the while. What is judged is the longest of its reads
//! beside each command.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use collie_cli::resp::{Client, Reply};
use collie_io::{Clock, Device, OpenMode, RealClock, RealDevice, write_all_at};
use serde::Serialize;

use super::stage::Stage;
use crate::args::HostileArgs;
use crate::client;
use crate::torture::served::{Served, collie};
use crate::torture::soak::gauge::{forget_most, memory};

/// The large values: about the longest that a ring of the default size takes.
const LARGE: usize = 33_000_000;
/// Keys of a hostile length, and how many.
const LONG_KEY: usize = 4_000;
const LONG_KEYS: usize = 40;
/// How long a server may take for a reply.
const PATIENCE: Duration = Duration::from_secs(300);
/// How much more memory than after the values were set the server may have resident at any time, in
/// bytes: what is worked on at a time is bounded, however much is asked for.
const MEMORY_MAX: u64 = 1 << 30;

/// Commands that are sent again and again. None fails, and what one set removes another one of it
/// brings back.
const COMMANDS: [(&str, &[&str]); 20] = [
    ("GET", &["GET big"]),
    ("GETRANGE", &["GETRANGE big 0 32000000"]),
    ("STRLEN", &["STRLEN big"]),
    ("EXPIRE", &["EXPIRE big 1000", "EXPIRE big 2000"]),
    ("PERSIST", &["PERSIST due", "EXPIRE due 1000"]),
    ("SETRANGE", &["SETRANGE big 5 x"]),
    ("APPEND", &["APPEND grows x"]),
    ("SETBIT", &["SETBIT big 7 1", "SETBIT big 7 0"]),
    ("GETSET", &["GETSET copy x", "COPY big copy REPLACE"]),
    ("GETDEL", &["GETDEL copy", "COPY big copy REPLACE"]),
    ("COPY", &["COPY big copy REPLACE"]),
    ("RENAME", &["RENAME big moved", "RENAME moved big"]),
    ("BITCOUNT", &["BITCOUNT big"]),
    ("BITPOS", &["BITPOS big 0 33000000"]),
    ("BITOP", &["BITOP OR target big due"]),
    ("LCS", &["LCS one other LEN"]),
    ("MGET", &["MGET big big due big"]),
    ("SCAN", &["SCAN 0 MATCH *PATTERN COUNT 10000"]),
    ("KEYS", &["KEYS *PATTERN"]),
    ("EXEC", &["MULTI", "APPEND grows x", "BITCOUNT big", "EXEC"]),
];

/// What was measured.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Report {
    /// The good client's longest read beside each command, in ms.
    worst_ms: Vec<(&'static str, f64)>,
    /// Its reads in all.
    calls: u64,
    /// The server's largest resident memory while the values were set and beside each command, in
    /// bytes.
    memory_before: u64,
    memory: Vec<(&'static str, u64)>,
}

impl Report {
    pub(crate) fn line(&self) -> String {
        let each = self.worst_ms.iter().map(|(name, ms)| format!("{name} {ms:.0}"));
        let memory = self
            .memory
            .iter()
            .map(|(name, bytes)| format!("{name} {}", bytes >> 20));
        format!(
            "heavy commands: longest of {} reads of a good client beside each, in ms: {} · memory in MiB: before them {}, {}",
            self.calls,
            each.collect::<Vec<_>>().join(", "),
            self.memory_before >> 20,
            memory.collect::<Vec<_>>().join(", ")
        )
    }
}

pub(crate) fn run(stage: &Stage, args: &HostileArgs, violations: &mut Vec<String>) -> anyhow::Result<Report> {
    let config = stage.dir.join("heavy.toml");
    let file = RealDevice::new().open(&config, OpenMode::OpenOrCreate)?;
    write_all_at(&*file, b"[store]\nring = \"private\"\n", 0)?;
    let mut server = Served::start(&[], &collie(&stage.dir.join("heavy"), &config, &[])?)?;
    let ran = beside(&server, args, violations);
    let report = ran.with_context(|| format!("the server said:\n{}", server.said()))?;
    stage.end(&mut server, violations)?;
    Ok(report)
}

fn beside(server: &Served, args: &HostileArgs, violations: &mut Vec<String>) -> anyhow::Result<Report> {
    let mut hostile = client::connect_for(server.port, PATIENCE)?;
    // As many as find their way to each of the server's threads.
    let mut good: Vec<Client> = (0..4)
        .map(|_| client::connect(server.port))
        .collect::<Result<_, _>>()?;
    set_up(&mut hostile)?;
    let mut report = Report {
        memory_before: memory(server.pid())?.most,
        ..Report::default()
    };
    let pattern = format!("*{}b*", "a".repeat(LONG_KEY / 2));
    for (name, lines) in COMMANDS {
        let over = AtomicBool::new(false);
        let measured = std::thread::scope(|scope| {
            let readers: Vec<_> = good
                .iter_mut()
                .map(|client| scope.spawn(|| read(client, &over)))
                .collect();
            forget_most(server.pid())?;
            let sent = send(&mut hostile, args.heavy_times, lines, &pattern);
            let bytes = memory(server.pid())?.most;
            report.memory.push((name, bytes));
            // Relaxed: a read more does no harm.
            over.store(true, Ordering::Relaxed);
            let mut worst = 0;
            for reader in readers {
                let Ok(read) = reader.join() else {
                    anyhow::bail!("a good client's thread panicked")
                };
                let (calls, longest) = read?;
                report.calls += calls;
                worst = worst.max(longest);
            }
            sent.with_context(|| name)?;
            Ok(worst)
        });
        let ms = measured? as f64 / 1e6;
        report.worst_ms.push((name, ms));
        if ms > args.heavy_ms {
            violations.push(format!(
                "beside {} times {name} a good client's read took {ms:.0} ms, at most {} were expected",
                args.heavy_times, args.heavy_ms
            ));
        }
    }
    for &(name, bytes) in &report.memory {
        if bytes > report.memory_before + MEMORY_MAX {
            violations.push(format!(
                "beside {} times {name} the server had {bytes} bytes resident, {} before",
                args.heavy_times, report.memory_before
            ));
        }
    }
    Ok(report)
}

fn set_up(client: &mut Client) -> anyhow::Result<()> {
    let large = vec![b'v'; LARGE];
    for key in ["big", "due", "grows", "copy"] {
        client.call(&[b"SET", key.as_bytes(), &large])?.good()?;
    }
    client.call(&[b"EXPIRE", b"due", b"1000"])?.good()?;
    client.call(&[b"SET", b"small", b"x"])?.good()?;
    // Their table has some megabytes, and is filled each time.
    client
        .call(&[b"SET", b"one", "ab".repeat(1_300).as_bytes()])?
        .good()?;
    client
        .call(&[b"SET", b"other", "ba".repeat(1_300).as_bytes()])?
        .good()?;
    for n in 0..LONG_KEYS {
        let key = format!("{}{n}", "a".repeat(LONG_KEY));
        client.call(&[b"SET", key.as_bytes(), b"x"])?.good()?;
    }
    Ok(())
}

/// Sends the lines again and again, all at once, and takes the replies.
fn send(client: &mut Client, times: u32, lines: &[&str], pattern: &str) -> anyhow::Result<()> {
    let times = (times as usize).div_ceil(lines.len());
    for _ in 0..times {
        for line in lines {
            let words: Vec<String> = line
                .split(' ')
                .map(|word| word.replace("*PATTERN", pattern))
                .collect();
            let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
            client.push(&words);
        }
    }
    client.send()?;
    for _ in 0..times * lines.len() {
        client.reply()?.good()?;
    }
    Ok(())
}

/// Reads until it is over; gives how often, and the longest in ns.
pub(super) fn read(client: &mut Client, over: &AtomicBool) -> anyhow::Result<(u64, u64)> {
    let clock = RealClock;
    let (mut calls, mut longest) = (0, 0);
    while !over.load(Ordering::Relaxed) {
        let before = clock.monotonic();
        let reply = client.call(&[b"GET", b"small"])?;
        anyhow::ensure!(
            reply == Reply::Bulk(b"x".to_vec()),
            "a good client read {reply:?}"
        );
        longest = longest.max(clock.monotonic().saturating_sub(before));
        calls += 1;
    }
    Ok((calls, longest))
}
