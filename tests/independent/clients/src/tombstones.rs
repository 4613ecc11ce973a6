//! Very many removed keys, and commands that walk over them while others ask.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::model::{Model, Rng, Val, judge_scan, scan_all};
use crate::probe::{Probe, Waits};
use crate::resp::{Conn, Reply, Res};
use crate::server::{Place, Server};

struct Run {
    model: Model,
    /// Keys that other clients set and delete.
    churned: BTreeSet<Vec<u8>>,
    worst: Waits,
    worst_of: String,
    asked: usize,
}

/// Sets and deletes the same keys until it is dropped.
struct Churn {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Churn {
    fn start(port: u16, keys: Vec<Vec<u8>>) -> Res<Self> {
        let (stop, mut conn) = (Arc::new(AtomicBool::new(false)), Conn::open(port)?);
        let ends = stop.clone();
        let thread = std::thread::spawn(move || {
            for some in keys.chunks(100).cycle() {
                if ends.load(Ordering::Relaxed) {
                    break;
                }
                for key in some {
                    conn.push(&[b"SET", key, b"churn"]);
                    conn.push(&[b"DEL", key]);
                }
                if conn.flush().is_err() || some.iter().any(|_| conn.reply().and(conn.reply()).is_err()) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

pub fn run(place: &Place, dir: &Path, keys: usize, rng: &mut Rng, limit: Duration) -> Res<String> {
    let mut server = Server::start(place, dir, &[])?;
    let churned = (0..2_000)
        .map(|_| format!("{:016x}-churn", rng.next()).into_bytes())
        .collect();
    let (model, worst) = (Model::default(), Waits::default());
    let mut run = Run {
        model,
        churned,
        worst,
        worst_of: String::new(),
        asked: 0,
    };
    let mut conn = server.conn()?;
    let idle = {
        let probe = Probe::start(server.port, false, limit)?;
        std::thread::sleep(Duration::from_millis(500));
        probe.take("nothing")?
    };
    let probe = Probe::start(server.port, false, limit)?;
    run.fill(&mut conn, keys, rng)?;
    run.look(probe.take("SET")?, "SET");
    queue(&mut conn, keys / 4)?;
    run.look(probe.take("a queue")?, "a queue");
    run.walk(&server, &mut conn, &probe)?;
    drop(probe);
    drop(conn);
    server.kill();
    server = Server::start(place, dir, &[])?;
    let started = server.started;
    let mut conn = server.conn()?;
    let probe = Probe::start(server.port, false, limit)?;
    let begun = Instant::now();
    conn.int("DBSIZE")?;
    let counted = begun.elapsed();
    run.look(probe.take("the first DBSIZE")?, "the first DBSIZE");
    run.model
        .check(&mut conn)
        .map_err(|e| format!("after a kill, {e}"))?;
    run.look(probe.take("all reads")?, "all reads");
    run.walk(&server, &mut conn, &probe)?;
    for line in ["FLUSHDB", "SCAN 0 COUNT 1", "RANDOMKEY", "KEYS *", "DBSIZE"] {
        run.timed(&mut conn, &probe, line)?;
    }
    drop(probe);
    // This removes the key that the probe reads, too.
    let probe = Probe::start(server.port, true, limit)?;
    run.timed(&mut conn, &probe, "FLUSHALL ASYNC")?;
    drop(probe);
    server.stop()?;
    Ok(format!(
        "{keys} tombstones: {} asks, worst {} ({}), idle {idle}; started in {started:.1?}, counted in {counted:.1?}",
        run.asked, run.worst, run.worst_of
    ))
}

/// SET at the end, SCAN 0 for the head, DEL of it: how many pages until the head.
fn queue(conn: &mut Conn, len: usize) -> Res<()> {
    conn.words("SELECT 2")?;
    let key = |n: usize| format!("q{n:012}").into_bytes();
    let (mut head, mut tail, mut pages) = (0, 0, 0);
    while head < len {
        for _ in 0..500 {
            conn.push(&[b"SET", &key(tail), b"item"]);
            tail += 1;
        }
        for _ in 0..499 {
            conn.push(&[b"DEL", &key(head)]);
            head += 1;
        }
        conn.flush()?;
        (0..999).try_for_each(|_| conn.reply().map(drop))?;
        let (mut cursor, mut walked) = (b"0".to_vec(), 0);
        let first = loop {
            let (next, keys) = conn.scan(&cursor, "COUNT 1")?;
            walked += 1;
            if let Some(first) = keys.into_iter().next() {
                break first;
            }
            if next == b"0" {
                return Err(format!("SCAN finds no head of a queue of {} keys", tail - head));
            }
            cursor = next;
        };
        pages = walked.max(pages);
        if first != key(head) {
            let first = String::from_utf8_lossy(&first).into_owned();
            return Err(format!("SCAN 0 COUNT 1: expected {head}, found {first}"));
        }
    }
    // A page passes over 4,096 removed keys.
    if pages > len / 4_096 + 2 {
        return Err(format!(
            "{pages} pages to the head of a queue after {len} removals"
        ));
    }
    conn.words("SELECT 0").map(drop)
}

impl Run {
    fn look(&mut self, waits: Waits, what: &str) {
        self.asked += waits.asked;
        if std::env::var_os("CLIENTS_VERBOSE").is_some() {
            println!("  {what}: {waits}");
        }
        if waits.max > self.worst.max {
            (self.worst, self.worst_of) = (waits, what.to_owned());
        }
    }

    /// SET of all, DEL of nearly all, and a fifth as many that expire at once.
    fn fill(&mut self, conn: &mut Conn, keys: usize, rng: &mut Rng) -> Res<()> {
        let ordered = rng.below(2) == 0;
        let names: Vec<Vec<u8>> = (0..keys)
            .map(|n| if ordered { n as u64 } else { rng.next() })
            .map(|n| format!("{n:016x}").into_bytes())
            .collect();
        for (n, some) in names.chunks(500).enumerate() {
            for key in some {
                let val = Val {
                    version: n as u64,
                    len: 20,
                };
                conn.push(&[b"SET", key, &val.bytes(key)]);
                self.model.set(key, Some(val));
            }
            for m in 0..some.len() / 5 {
                conn.push(&[
                    b"SET",
                    format!("{n:x}{m:03}-ends").as_bytes(),
                    b"soon",
                    b"PX",
                    b"300",
                ]);
            }
            conn.flush()?;
            for _ in 0..some.len() + some.len() / 5 {
                let reply = conn.reply()?;
                if !reply.is_ok() {
                    return Err(format!("SET: {}", reply.brief()));
                }
            }
        }
        // One in a thousand stays, the last ones too.
        let gone: Vec<&Vec<u8>> = names[..keys - 20]
            .iter()
            .enumerate()
            .filter(|n| n.0 % 1_000 > 0)
            .map(|n| n.1)
            .collect();
        for some in gone.chunks(500) {
            some.iter().for_each(|key| conn.push(&[b"DEL", key]));
            conn.flush()?;
            for key in some {
                match conn.reply()? {
                    Reply::Int(1) => self.model.set(key, None),
                    other => return Err(format!("DEL of a key that is there: {}", other.brief())),
                }
            }
        }
        std::thread::sleep(Duration::from_millis(600));
        Ok(())
    }

    fn timed(&mut self, conn: &mut Conn, probe: &Probe, line: &str) -> Res<Reply> {
        let begun = Instant::now();
        let reply = conn.words(line)?;
        let (waits, took) = (probe.take(line)?, begun.elapsed());
        self.look(waits, &format!("{line} of {took:.1?}"));
        match reply {
            Reply::Error(text) => Err(format!("{line}: {text}")),
            reply => Ok(reply),
        }
    }

    /// All commands that walk over keys, beside a client that sets and deletes; then without it.
    fn walk(&mut self, server: &Server, conn: &mut Conn, probe: &Probe) -> Res<()> {
        let always: BTreeSet<Vec<u8>> = self.model.keys.keys().cloned().collect();
        let ever: BTreeSet<Vec<u8>> = always.union(&self.churned).cloned().collect();
        let churn = Churn::start(server.port, self.churned.iter().cloned().collect())?;
        for options in [
            "COUNT 1",
            "",
            "COUNT 100000",
            "COUNT 3 MATCH *",
            "TYPE string COUNT 50",
        ] {
            judge_scan(&scan_all(conn, options)?, &always, &ever)?;
            self.look(
                probe.take(&format!("SCAN {options}"))?,
                &format!("SCAN {options}"),
            );
        }
        for options in ["COUNT 1 MATCH nothing*", "COUNT 10000 TYPE list"] {
            judge_scan(&scan_all(conn, options)?, &BTreeSet::new(), &BTreeSet::new())?;
            self.look(
                probe.take(&format!("SCAN {options}"))?,
                &format!("SCAN {options}"),
            );
        }
        for line in ["KEYS *", "KEYS nothing*", "KEYS [0-3]*"] {
            let Reply::Array(found) = self.timed(conn, probe, line)? else {
                return Err(format!("{line}: no array"));
            };
            let mut found: Vec<Vec<u8>> = found
                .into_iter()
                .filter_map(|r| if let Reply::Bulk(key) = r { Some(key) } else { None })
                .collect();
            found.sort();
            let part = |keys: &BTreeSet<Vec<u8>>| match line {
                "KEYS *" => keys.clone(),
                "KEYS [0-3]*" => keys
                    .iter()
                    .filter(|key| (b'0'..=b'3').contains(&key[0]))
                    .cloned()
                    .collect(),
                _ => BTreeSet::new(),
            };
            judge_scan(&found, &part(&always), &part(&ever)).map_err(|e| format!("{line}: {e}"))?;
        }
        for _ in 0..30 {
            match self.timed(conn, probe, "RANDOMKEY")? {
                Reply::Bulk(key) if ever.contains(&key) => {}
                other => return Err(format!("RANDOMKEY: {}", other.brief())),
            }
        }
        let Reply::Int(size) = self.timed(conn, probe, "DBSIZE")? else {
            return Err("DBSIZE is no number".into());
        };
        if !(always.len() as i64..=ever.len() as i64).contains(&size) {
            return Err(format!("DBSIZE {size}, of at least {}", always.len()));
        }
        // All keys are locked while such an EXEC runs.
        for line in ["KEYS *", "SCAN 0 COUNT 100000", "RANDOMKEY", "DBSIZE"] {
            conn.words("MULTI")?;
            conn.words(line)?;
            self.timed(conn, probe, "EXEC")
                .map_err(|e| format!("{line} in {e}"))?;
        }
        drop(churn);
        for line in ["SWAPDB 0 5", "SWAPDB 5 0"] {
            self.timed(conn, probe, line)?;
        }
        let size = conn.int("DBSIZE")?;
        if size == always.len() as i64 {
            Ok(())
        } else {
            Err(format!("DBSIZE {size} of {} keys", always.len()))
        }
    }
}
