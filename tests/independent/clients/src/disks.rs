//! Small disks: filled until writes are refused, emptied, and how long it takes until writes are taken again.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::model::{Model, Rng, Val};
use crate::probe::{Probe, Waits};
use crate::resp::{Conn, Reply, Res};
use crate::server::{Disk, Place, Server, bytes_under};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Del,
    Unlink,
    Flushall,
    Flushdb,
    Expire,
    /// DEL of three in four, in order of keys or not.
    Most,
}

pub const WAYS: [Way; 6] = [
    Way::Del,
    Way::Unlink,
    Way::Flushall,
    Way::Flushdb,
    Way::Expire,
    Way::Most,
];

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub mib: u64,
    pub len: usize,
    pub wal: &'static str,
    pub way: Way,
    pub kill: bool,
    pub cycles: usize,
}

impl Case {
    pub fn random(rng: &mut Rng, sizes: &[u64]) -> Self {
        Self {
            mib: rng.pick(sizes),
            len: rng.pick(&[2_000, 200_000, 70_000, 7_000_000, 1_048_576, 300]),
            wal: rng.pick(&["", "", "8mb", "24mb", "64mb"]),
            way: rng.pick(&WAYS),
            kill: rng.below(3) == 0,
            cycles: 2 + rng.below(3),
        }
    }
}

/// How keys begin that never expire.
const AGAIN: &[u8] = b"again-";

struct Run<'a> {
    case: Case,
    rng: &'a mut Rng,
    model: Model,
    made: u64,
    patience: Duration,
}

fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

pub fn run(place: &Place, case: Case, rng: &mut Rng, patience: Duration, limit: Duration) -> Res<()> {
    let disk = Disk::new(place, "disk", case.mib)?;
    let dir = disk.at.join("store");
    let args: Vec<String> = match case.wal {
        "" => Vec::new(),
        bytes => vec!["--max-total-wal-size".into(), bytes.into()],
    };
    let mut run = Run {
        case,
        rng,
        model: Model::default(),
        made: 0,
        patience,
    };
    let mut server = Server::start(place, &dir, &args)?;
    let mut first = 0;
    for cycle in 0..case.cycles {
        let probe = Probe::start(server.port, true, limit)?;
        let mut conn = server.conn()?;
        // Longer than filling takes.
        let ends = now_ms() + 5_000 + case.mib * 40;
        let begun = Instant::now();
        let filled = run.fill(&mut conn, ends)?;
        let fill = begun.elapsed();
        server
            .judge_health(true)
            .map_err(|e| format!("on the full disk, {e}"))?;
        run.read_some(&mut conn)?;
        server
            .judge_health(true)
            .map_err(|e| format!("on the full disk, {e}"))?;
        let full = probe.take(&format!("a full disk: {case:?}"))?;
        drop(probe);
        let mut started = Duration::ZERO;
        if case.kill {
            run.leave_writes(&mut conn, ends)?;
            drop(conn);
            server.kill();
            server = Server::start(place, &dir, &args).map_err(|e| format!("after a kill when full, {e}"))?;
            started = server.started;
            conn = server.conn()?;
            if case.way != Way::Expire {
                // Of those some may have expired.
                run.model
                    .check(&mut conn)
                    .map_err(|e| format!("after a kill when full, {e}"))?;
            }
        }
        let probe = Probe::start(server.port, true, limit)?;
        let begun = Instant::now();
        let refused = run.empty(&mut conn, ends)?;
        let empty = begun.elapsed();
        let (again, left) = (run.until_taken(&mut conn)?, run.model.bytes());
        server
            .judge_health(false)
            .map_err(|e| format!("after a write was taken, {e}"))?;
        let emptied = probe.take(&format!("emptying: {case:?}"))?;
        drop(probe);
        run.model
            .check(&mut conn)
            .map_err(|e| format!("cycle {cycle} of {case:?}: {e}"))?;
        let on_disk = bytes_under(&dir) >> 20;
        report(
            case,
            cycle,
            filled,
            [fill, empty, again, started],
            refused,
            [full, emptied],
            on_disk,
        );
        // What was left behind before counts as room; so does a flush's fraction.
        first = first.max(if cycle == 0 { filled } else { 0 });
        if cycle > 0 && filled + (left as u64) < first / 2 {
            return Err(format!(
                "cycle {cycle} of {case:?}: {filled} bytes were taken, at first {first}"
            ));
        }
    }
    server.stop()?;
    let server = Server::start(place, &dir, &args)?;
    run.model
        .check(&mut server.conn()?)
        .map_err(|e| format!("after a stop, {e}"))?;
    server.stop()?;
    disk.remove();
    Ok(())
}

fn report(
    case: Case,
    cycle: usize,
    filled: u64,
    t: [Duration; 4],
    refused: u64,
    w: [Waits; 2],
    on_disk: u64,
) {
    let Case {
        mib,
        len,
        wal,
        way,
        kill,
        ..
    } = case;
    let [fill, empty, again, started] = t.map(|d| d.as_secs_f64());
    println!(
        "disk {mib:4} MiB, {len:8} B, wal {wal:5} {way:9?} {} cycle {cycle}: {:5} MB in {fill:5.2} s, emptied \
         in {empty:5.2} s, {refused} refused, taken again after {again:6.3} s, started in {started:5.2} s, \
         {on_disk} MiB used; full: {}; emptying: {}",
        if kill { "killed" } else { "      " },
        filled / 1_000_000,
        w[0],
        w[1]
    );
}

impl Run<'_> {
    fn key(&mut self) -> Vec<u8> {
        // Most are new, in no order; some are there.
        self.made += 1;
        if self.rng.below(10) == 0 && self.case.way != Way::Expire {
            let from = format!("{:016x}", self.rng.next()).into_bytes();
            if let Some((key, _)) = self.model.keys.range(from..).next() {
                return key.clone();
            }
        }
        format!("{:016x}-{}", self.rng.next(), self.made).into_bytes()
    }

    fn push(&mut self, conn: &mut Conn, len: usize, ends: u64) -> (Vec<u8>, Val) {
        let (key, ends) = (self.key(), ends.to_string());
        let val = Val {
            version: self.made,
            len,
        };
        let bytes = val.bytes(&key);
        match self.case.way {
            Way::Expire => conn.push(&[b"SET", &key, &bytes, b"PXAT", ends.as_bytes()]),
            _ => conn.push(&[b"SET", &key, &bytes]),
        }
        (key, val)
    }

    /// Until for a second none was taken, of the case's size, of 2 kB and of a few bytes: the bytes taken.
    fn fill(&mut self, conn: &mut Conn, ends: u64) -> Res<u64> {
        let mut taken = 0;
        let mut sizes = vec![self.case.len, 2_000, 10];
        sizes.dedup();
        for len in sizes {
            let (depth, begun, mut last) = ((1 << 20) / len, Instant::now(), Instant::now());
            while last.elapsed() < Duration::from_secs(1) {
                if len == 10 && begun.elapsed() > Duration::from_secs(2) {
                    break; // The rest would take long.
                }
                let batch: Vec<_> = (0..depth.clamp(1, 64))
                    .map(|_| self.push(conn, len, ends))
                    .collect();
                conn.flush()?;
                let before = taken;
                for (key, val) in batch {
                    let reply = conn.reply()?;
                    if reply.is_ok() {
                        taken += len as u64;
                        self.model.set(&key, Some(val));
                    } else if !reply.refused() {
                        return Err(format!("SET of {len} bytes: {}", reply.brief()));
                    }
                }
                if taken > before {
                    last = Instant::now();
                } else {
                    std::thread::sleep(Duration::from_millis(20));
                }
                if taken > self.case.mib << 21 && self.model.bytes() as u64 > self.case.mib << 20 {
                    return Err(format!("{taken} bytes were taken, which the disk cannot hold"));
                }
            }
        }
        // The last one is refused, whatever was freed meanwhile.
        let begun = Instant::now();
        loop {
            let (key, val) = self.push(conn, self.case.len, ends);
            conn.flush()?;
            let reply = conn.reply()?;
            if reply.refused() {
                return Ok(taken);
            }
            taken += val.len as u64;
            self.model.set(&key, Some(val));
            if begun.elapsed() > Duration::from_secs(60) {
                return Err(format!("the disk does not get full: {}", reply.brief()));
            }
        }
    }

    /// Some of what is there reads well on the full disk.
    fn read_some(&mut self, conn: &mut Conn) -> Res<()> {
        for (key, may) in self.model.keys.iter().step_by(1 + self.model.len() / 50) {
            let reply = conn.call(&[b"GET", key])?;
            let right =
                matches!((&may[0], &reply), (Some(val), Reply::Bulk(found)) if val.bytes(key) == *found);
            if !right && (self.case.way != Way::Expire || reply != Reply::Null) {
                return Err(format!(
                    "on the full disk, {key:?}: {may:?}, found {}",
                    reply.brief()
                ));
            }
        }
        Ok(())
    }

    /// Writes of which no reply is read.
    fn leave_writes(&mut self, conn: &mut Conn, ends: u64) -> Res<()> {
        for _ in 0..20 {
            let (key, val) = self.push(conn, self.case.len.min(20_000), ends);
            self.model.doubt(&key, Some(val));
        }
        conn.flush()
    }

    /// The number of refusals, each tried again.
    fn empty(&mut self, conn: &mut Conn, ends: u64) -> Res<u64> {
        let begun = Instant::now();
        let mut refused = 0;
        let mut must = |conn: &mut Conn, args: &[&[u8]]| -> Res<Reply> {
            loop {
                let reply = conn.call(args)?;
                if !reply.refused() {
                    return Ok(reply);
                }
                refused += 1;
                if begun.elapsed() > self.patience {
                    return Err(format!("{} refused for {:?}", reply.brief(), begun.elapsed()));
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        let mut keys: Vec<Vec<u8>> = self.model.keys.keys().cloned().collect();
        match self.case.way {
            Way::Del | Way::Unlink | Way::Most => {
                let name: &[u8] = if self.case.way == Way::Unlink {
                    b"UNLINK"
                } else {
                    b"DEL"
                };
                if self.case.way == Way::Most {
                    keys = keys
                        .into_iter()
                        .enumerate()
                        .filter(|(n, _)| n % 4 > 0)
                        .map(|(_, key)| key)
                        .collect();
                }
                if self.rng.below(2) == 0 {
                    (1..keys.len()).for_each(|n| keys.swap(n, self.rng.below(n + 1)));
                }
                let mut rest = &keys[..];
                while !rest.is_empty() {
                    let (now, then) = rest.split_at(self.rng.pick(&[1, 3, 100, 900]).min(rest.len()));
                    let args: Vec<&[u8]> = [name].into_iter().chain(now.iter().map(Vec::as_slice)).collect();
                    let reply = must(conn, &args)?;
                    if reply != Reply::Int(now.len() as i64) {
                        return Err(format!("DEL of {} keys: {}", now.len(), reply.brief()));
                    }
                    now.iter().for_each(|key| self.model.set(key, None));
                    rest = then;
                }
            }
            Way::Flushall | Way::Flushdb => {
                let name: &[u8] = if self.case.way == Way::Flushall {
                    b"FLUSHALL"
                } else {
                    b"FLUSHDB"
                };
                let reply = must(conn, &[name])?;
                if !reply.is_ok() {
                    return Err(format!("a flush: {}", reply.brief()));
                }
                self.model = Model::default();
            }
            Way::Expire => {
                std::thread::sleep(Duration::from_millis(ends.saturating_sub(now_ms())));
                self.model.keys.retain(|key, _| key.starts_with(AGAIN));
            }
        }
        Ok(refused)
    }

    fn until_taken(&mut self, conn: &mut Conn) -> Res<Duration> {
        let begun = Instant::now();
        loop {
            let key = [AGAIN, self.made.to_string().as_bytes()].concat();
            self.made += 1;
            let val = Val {
                version: self.made,
                len: self.case.len,
            };
            let reply = conn.call(&[b"SET", &key, &val.bytes(&key)])?;
            if reply.is_ok() {
                self.model.set(&key, Some(val));
                return Ok(begun.elapsed());
            }
            if !reply.refused() || begun.elapsed() > self.patience {
                let log = conn.info("log_last_refusal").unwrap_or_default();
                let waited = begun.elapsed();
                return Err(format!(
                    "{:?}: after {waited:?} writes get {} {log}",
                    self.case,
                    reply.brief()
                ));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
