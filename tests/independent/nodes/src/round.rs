//! A round: a cluster of a random shape, clients, one cause after another, and a look at everything.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::cluster::{Cluster, Shape};
use crate::judge::Key;
use crate::load::{self, COUNTERS, Figures, Probe, Shared, lock};
use crate::resp::{Client, Outcome, Reply, slot};
use collie_independent_cuts::rng::Rng;

const MIB: u64 = 1 << 20;
const CLIENTS: usize = 4;
/// Writes go on, or resume, within so long of the end of what kept them.
const RESUMES: Duration = Duration::from_secs(30);
/// A cluster is well again, with all nodes as they should be, within so long.
const WELL: Duration = Duration::from_secs(90);

pub struct Settings {
    pub collie: PathBuf,
    pub base: PathBuf,
    pub port: u16,
    pub phases: u64,
    /// Seconds that one cause lasts at most.
    pub lasts: u64,
    pub causes: Vec<&'static str>,
    pub shape: Option<Shape>,
    pub silent: u64,
    pub lies: u64,
    pub quick: bool,
}

pub const CAUSES: [&str; 8] = [
    "stop",
    "kill",
    "term",
    "full",
    "full-kill",
    "all-full",
    "fill",
    "all-kill",
];

#[derive(Default)]
pub struct Report {
    pub problems: Vec<String>,
    pub causes: BTreeMap<&'static str, u64>,
    pub figures: BTreeMap<&'static str, u64>,
    pub longest_ms: BTreeMap<&'static str, u64>,
}

struct Round<'a> {
    settings: &'a Settings,
    cluster: Cluster,
    shared: Arc<Shared>,
    rng: Rng,
    report: Report,
    began: Instant,
    trace: String,
}

fn shape(rng: &mut Rng, quick: bool) -> Shape {
    let partitions = if quick {
        4
    } else {
        rng.pick(&[1, 1, 4, 16, 16, 64])
    };
    let layout = rng.pick(&["per-disk", "shared", "private"]);
    let limit = if rng.chance(70) { Some(64) } else { None };
    let nodes = if !quick && rng.chance(15) { 5 } else { 3 };
    // Each private log has 32 MiB at least, that of the map too.
    let logs = if layout == "private" {
        32 * (partitions + 1)
    } else {
        64
    };
    Shape {
        nodes,
        partitions,
        layout,
        disk: rng.pick(&[260, 320, 400]) + logs.max(64) - 64,
        limit,
    }
}

fn keys(rng: &mut Rng) -> (String, Vec<Vec<Mutex<Key>>>) {
    // Parts, bytes of a part, keys of a client: together up to 8 MiB of a client live.
    let kinds: [(u64, usize, u64); 6] = [
        (1, 100, 8),
        (64, 100, 16),
        (1, 64 << 10, 16),
        (7, 1 << 20, 1),
        (1, 1 << 20, 6),
        (1, 7_800_000, 1),
    ];
    let mix = rng.chance(40);
    let one = rng.pick(&kinds);
    let of = |client: usize, rng: &mut Rng| {
        let (parts, size, count) = if mix { rng.pick(&kinds) } else { one };
        (0..count)
            .map(|k| Mutex::new(Key::new(format!("k{client}-{k}"), parts, size)))
            .collect::<Vec<_>>()
    };
    let keys: Vec<_> = (0..CLIENTS).map(|client| of(client, rng)).collect();
    let shown = keys
        .iter()
        .map(|keys| keys.first().map_or(0, |key| lock(key).size))
        .collect::<Vec<_>>();
    (
        format!("{} parts of {shown:?} bytes", if mix { 0 } else { one.0 }),
        keys,
    )
}

/// Names of keys in the middle of equal ranges of slots.
fn probes(partitions: u64) -> Vec<Mutex<Probe>> {
    let named = |n: u64| {
        let wanted = (16384 / partitions * n + 16384 / partitions / 2) as u16;
        (0u64..)
            .map(|i| format!("probe-{i}"))
            .find(|name| slot(name) == wanted)
            .unwrap_or_default()
    };
    let probe = |name| {
        Mutex::new(Probe {
            name,
            succeeded: Instant::now(),
            failing: None,
        })
    };
    (0..partitions).map(|n| probe(named(n))).collect()
}

pub fn run(settings: &Settings, seed: u64) -> Report {
    let mut rng = Rng::new(seed);
    let drawn = shape(&mut rng, settings.quick);
    let shape = settings.shape.clone().unwrap_or(drawn);
    let (kind, keys) = keys(&mut rng);
    let trace = format!("seed {seed}: {shape:?}, {kind}");
    println!("{trace}");
    let base = settings.base.join(format!("seed-{seed}"));
    let cluster = match Cluster::new(&settings.collie, &base, settings.port, shape.clone()) {
        Ok(cluster) => cluster,
        Err(problem) => {
            return Report {
                problems: vec![problem],
                ..Report::default()
            };
        }
    };
    let shared = Arc::new(Shared {
        began: Instant::now(),
        ports: cluster.ports(),
        stopped: cluster.stopped.clone(),
        stop: AtomicBool::new(false),
        pause: AtomicBool::new(true),
        at_rest: AtomicUsize::new(0),
        figures: Figures::default(),
        keys,
        counters: Mutex::default(),
        epoch: AtomicU64::new(0),
        probes: probes(shape.partitions),
        serves: Mutex::new(None),
        code: Mutex::new((-1, String::new())),
        problems: Mutex::default(),
        silent: Duration::from_secs(settings.silent),
        lies: settings.lies,
    });
    let mut round = Round {
        settings,
        cluster,
        shared: shared.clone(),
        rng,
        report: Report::default(),
        began: Instant::now(),
        trace,
    };
    let mut threads = Vec::new();
    let outcome = round.up().and_then(|()| {
        let probers = shared.probes.len().min(16);
        for number in 0..CLIENTS {
            let shared = shared.clone();
            threads.push(std::thread::spawn(move || load::work(&shared, number, seed)));
        }
        for number in 0..probers {
            let shared = shared.clone();
            threads.push(std::thread::spawn(move || load::probe(&shared, number, probers)));
        }
        let (shared, collie) = (shared.clone(), settings.collie.clone());
        threads.push(std::thread::spawn(move || load::watch(&shared, &collie)));
        round.phases()
    });
    if let Err(problem) = outcome {
        shared.problem(problem);
    }
    shared.stop.store(true, Ordering::Relaxed);
    let mut report = std::mem::take(&mut round.report);
    report.problems = std::mem::take(&mut *lock(&shared.problems));
    if !report.problems.is_empty() {
        let (code, status) = Cluster::status(&settings.collie, &shared.ports);
        let text = format!(
            "{}\n{}\nstatus {code}: {status}\n",
            round.trace,
            report.problems.join("\n")
        );
        let _ = std::fs::write(base.join("violation"), text);
        for (node, port) in shared.ports.iter().enumerate() {
            if let Ok((_, metrics)) = Cluster::http(*port, "/metrics") {
                let _ = std::fs::write(base.join(format!("metrics-{}", node + 1)), metrics);
            }
        }
        report.problems.push(format!("kept: {}", base.display()));
    }
    round.cluster.close(!report.problems.is_empty());
    threads.into_iter().for_each(|thread| drop(thread.join()));
    let figures = &shared.figures;
    for (name, figure) in [
        ("acknowledged", &figures.acknowledged),
        ("MiB", &figures.bytes),
        ("refused", &figures.refused),
        ("unknown", &figures.unknown),
        ("reads", &figures.reads),
        ("statuses", &figures.statuses),
    ] {
        let value = figure.load(Ordering::Relaxed);
        report
            .figures
            .insert(name, if name == "MiB" { value / MIB } else { value });
    }
    report
}

impl Round<'_> {
    fn say(&mut self, text: &str) {
        let line = format!("  {:7.1} s: {text}", self.began.elapsed().as_secs_f64());
        println!("{line}");
        self.trace = format!("{}\n{line}", self.trace);
    }

    fn longest(&mut self, name: &'static str, since: Instant) {
        let ms = since.elapsed().as_millis() as u64;
        let longest = self.report.longest_ms.entry(name).or_default();
        *longest = ms.max(*longest);
    }

    /// Whether all is as it should be at every moment.
    fn look(&mut self) -> Result<(), String> {
        if !lock(&self.shared.problems).is_empty() {
            return Err("see above".into());
        }
        for node in 0..self.cluster.shape.nodes {
            if let Some(ended) = self.cluster.ended(node)? {
                return Err(format!("{ended}, and nobody ended it: see node-{}.log", node + 1));
            }
        }
        let serves = *lock(&self.shared.serves);
        if let (Some(serves), Some((since, told))) = (serves, self.shared.failing()) {
            let since = serves.max(since);
            if since.elapsed() > RESUMES {
                return Err(format!(
                    "writes must go since {:?}, and for {:?}: {told}",
                    serves.elapsed(),
                    since.elapsed()
                ));
            }
        }
        Ok(())
    }

    fn until(
        &mut self,
        what: &'static str,
        most: Duration,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> Result<(), String> {
        let began = Instant::now();
        while !done(self) {
            self.look()?;
            if began.elapsed() > most {
                let (code, status) = lock(&self.shared.code).clone();
                let failing = self.shared.failing();
                return Err(format!(
                    "not within {most:?}: {what}; status {code}, writes: {failing:?}\n{status}"
                ));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        self.longest(what, began);
        Ok(())
    }

    fn up(&mut self) -> Result<(), String> {
        for node in 0..self.cluster.shape.nodes {
            self.cluster.start(node)?;
            // The first one must listen before others join.
            let port = self.cluster.port(node);
            self.until("a new node listens", Duration::from_secs(20), |_| {
                Cluster::http(port, "/livez").is_ok()
            })?;
        }
        self.until("a new cluster serves", Duration::from_secs(60), |round| {
            Cluster::status(&round.settings.collie, &round.shared.ports).0 == 0
        })
    }

    /// Everything is right from now on: writes go soon, and a little later the status says so.
    fn healed(&mut self) -> Result<(), String> {
        let since = Instant::now();
        *lock(&self.shared.serves) = Some(since);
        self.until("writes resume", RESUMES + Duration::from_secs(10), |round| {
            round
                .shared
                .probes
                .iter()
                .all(|probe| lock(probe).succeeded > since)
        })?;
        self.until("the status is 0", WELL, |round| lock(&round.shared.code).0 == 0)
    }

    /// Writes a multiple of the log's limit, or as much as goes in time.
    fn load(&mut self) -> Result<(), String> {
        let limits = 1 + self.rng.below(4);
        let written = |round: &Self| round.shared.figures.bytes.load(Ordering::Relaxed) / MIB;
        let (first, began) = (written(self), Instant::now());
        let wanted = limits * self.cluster.shape.limit.unwrap_or(64);
        self.shared.pause.store(false, Ordering::Relaxed);
        while written(self) - first < wanted && began.elapsed().as_secs() < self.settings.lasts {
            self.look()?;
            std::thread::sleep(Duration::from_millis(100));
        }
        // Long enough for refusals to be seen.
        std::thread::sleep(Duration::from_secs(self.rng.below(5)));
        let mib = written(self) - first;
        self.say(&format!(
            "{mib} MiB written in {:.1} s",
            began.elapsed().as_secs_f64()
        ));
        self.look()
    }

    fn phases(&mut self) -> Result<(), String> {
        self.load()?;
        self.healed()?;
        for _ in 0..self.settings.phases {
            let cause = self.rng.pick(&self.settings.causes);
            *self.report.causes.entry(cause).or_default() += 1;
            self.cause(cause)?;
            if let Some(panic) = self.cluster.panics() {
                return Err(panic);
            }
        }
        self.compare()
    }

    fn cause(&mut self, cause: &str) -> Result<(), String> {
        let nodes = self.cluster.shape.nodes;
        let first = self.rng.below(nodes as u64) as usize;
        let few: Vec<usize> = (0..1 + self.rng.below(nodes as u64 / 2) as usize)
            .map(|n| (first + n) % nodes)
            .collect();
        self.say(&format!(
            "{cause}, nodes {:?}",
            few.iter().map(|n| n + 1).collect::<Vec<_>>()
        ));
        let serves = |round: &Self, serves: bool| *lock(&round.shared.serves) = serves.then(Instant::now);
        match cause {
            "stop" => {
                few.iter()
                    .for_each(|&node| self.cluster.signal(node, libc::SIGSTOP));
                serves(self, true);
                self.load()?;
                few.iter()
                    .for_each(|&node| self.cluster.signal(node, libc::SIGCONT));
            }
            "kill" | "term" => {
                let signal = if cause == "kill" {
                    libc::SIGKILL
                } else {
                    libc::SIGTERM
                };
                few.iter().try_for_each(|&node| self.cluster.end(node, signal))?;
                serves(self, true);
                self.load()?;
                few.iter().try_for_each(|&node| self.cluster.start(node))?;
                if self.rng.chance(30) {
                    // Once more, while it catches up.
                    std::thread::sleep(Duration::from_millis(self.rng.below(5000)));
                    self.say("again, while it returns");
                    self.cluster.end(few[0], libc::SIGKILL)?;
                    self.cluster.start(few[0])?;
                }
            }
            "full" | "full-kill" => {
                let left = self.rng.pick(&[0, 4096, MIB, 5 * MIB]);
                few.iter()
                    .try_for_each(|&node| self.cluster.ballast(node, left))?;
                serves(self, true);
                self.load()?;
                if cause == "full-kill" {
                    few.iter()
                        .try_for_each(|&node| self.cluster.end(node, libc::SIGKILL))?;
                    self.load()?;
                    few.iter().for_each(|&node| self.cluster.no_ballast(node));
                    few.iter().try_for_each(|&node| self.cluster.start(node))?;
                }
                few.iter().for_each(|&node| self.cluster.no_ballast(node));
            }
            "all-full" => {
                serves(self, false);
                (0..nodes).try_for_each(|node| self.cluster.ballast(node, 0))?;
                self.load()?;
                self.rest()?;
                self.remove_some()?;
                (0..nodes).for_each(|node| self.cluster.no_ballast(node));
            }
            "fill" => self.fill()?,
            _ => {
                serves(self, false);
                (0..nodes).try_for_each(|node| self.cluster.end(node, libc::SIGKILL))?;
                (0..nodes).try_for_each(|node| self.cluster.start(node))?;
            }
        }
        self.shared.pause.store(false, Ordering::Relaxed);
        self.healed()?;
        if self.rng.chance(50) {
            // What has just come back is needed at once.
            let other = (few[0] + 1) % nodes;
            self.say(&format!("well; kill of node {}", other + 1));
            self.cluster.end(other, libc::SIGKILL)?;
            *lock(&self.shared.serves) = Some(Instant::now());
            self.load()?;
            self.cluster.start(other)?;
            self.healed()?;
        }
        self.say("well");
        Ok(())
    }

    /// All clients pause.
    fn rest(&mut self) -> Result<(), String> {
        self.shared.pause.store(true, Ordering::Relaxed);
        self.until("clients come to rest", Duration::from_secs(60), |round| {
            round.shared.at_rest.load(Ordering::Relaxed) == CLIENTS
        })
    }

    /// On full disks what only removes goes, if it is tried for a while.
    fn remove_some(&mut self) -> Result<(), String> {
        let (shared, mut client) = (self.shared.clone(), self.client());
        let refused = self.shared.failing();
        for keys in &shared.keys {
            let mut key = lock(&keys[0]);
            self.until_ok("DEL on full disks", |_| {
                match load::write(&shared, &mut client, &mut key, true, Duration::from_secs(5)) {
                    Outcome::Done(_) => None,
                    other => Some(format!("{other:?}")),
                }
            })?;
        }
        self.say(&format!(
            "a key of each client removed while disks are full; refused: {refused:?}"
        ));
        Ok(())
    }

    fn until_ok(
        &mut self,
        what: &'static str,
        mut attempt: impl FnMut(&mut Self) -> Option<String>,
    ) -> Result<(), String> {
        let began = Instant::now();
        while let Some(refused) = attempt(self) {
            self.look()?;
            if began.elapsed() > RESUMES {
                let (code, status) = lock(&self.shared.code).clone();
                return Err(format!(
                    "{what}: refused for {:?}: {refused}; status {code}\n{status}",
                    began.elapsed()
                ));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        self.longest(what, began);
        Ok(())
    }

    fn client(&mut self) -> Client {
        Client::new(
            &self.shared.ports,
            &self.shared.stopped,
            self.rng.below(3) as usize,
        )
    }

    /// The data itself fills the disks; then some or all of it is removed, and writes go again by themselves.
    fn fill(&mut self) -> Result<(), String> {
        *lock(&self.shared.serves) = None;
        let (shared, mut client) = (self.shared.clone(), self.client());
        let size = self.rng.pick(&[100 << 10, 1 << 20, 7_000_000]);
        let mut filled: Vec<Key> = Vec::new();
        let (mut refused, mut bytes) = (0, 0);
        self.rest()?;
        while refused < 3 && bytes < 2 * self.cluster.shape.disk * MIB {
            self.look()?;
            let mut key = Key::new(format!("fill-{}", filled.len()), 1, size);
            match load::write(&shared, &mut client, &mut key, false, Duration::from_secs(5)) {
                Outcome::Not(_) => refused += 1,
                _ => (refused, bytes) = (0, bytes + size as u64),
            }
            filled.push(key);
        }
        self.say(&format!(
            "{} keys of {size} bytes written until {:?}",
            filled.len(),
            shared.failing()
        ));
        if self.rng.chance(50) {
            self.shared.pause.store(false, Ordering::Relaxed);
            std::thread::sleep(Duration::from_secs(3));
            self.rest()?;
        }
        for key in filled.iter_mut().rev().take(20) {
            load::read(&shared, &mut client, key, Duration::from_secs(20));
        }
        if self.rng.chance(50) {
            for key in &mut filled {
                self.until_ok("DEL on full disks", |_| {
                    match load::write(&shared, &mut client, key, true, Duration::from_secs(5)) {
                        Outcome::Done(_) => None,
                        other => Some(format!("{other:?}")),
                    }
                })?;
            }
            self.say("all of them removed");
        } else {
            // Each node removes what it leads: while slots are led by none, nobody removes what is there.
            self.until_ok("FLUSHALL on full disks", |round| {
                let ports = round.cluster.ports();
                for &port in &ports {
                    match client.ask(port, &[b"FLUSHALL"]) {
                        Ok(Reply::Text(_)) => {}
                        other => return Some(format!("{other:?}")),
                    }
                }
                let (code, text) = Cluster::status(&round.settings.collie, &ports);
                // The probes go on.
                let most = round.shared.probes.len() as i64;
                let left: i64 = ports
                    .iter()
                    .map(|&port| match client.ask(port, &[b"DBSIZE"]) {
                        Ok(Reply::Number(left)) => left,
                        _ => i64::from(i32::MAX),
                    })
                    .sum();
                (code >= 3 || left > most).then(|| format!("{left} keys are left, status {code}\n{text}"))
            })?;
            let key = |key: &mut Key| {
                key.acknowledged = None;
                key.note("all removed".to_owned());
            };
            shared.keys.iter().flatten().for_each(|k| key(&mut lock(k)));
            filled.iter_mut().for_each(key);
            lock(&shared.counters).clear();
            shared.epoch.fetch_add(1, Ordering::Relaxed);
            self.say("FLUSHALL of all nodes");
        }
        // Also of those whose writes are unknown.
        self.shared.pause.store(false, Ordering::Relaxed);
        self.healed()?;
        for key in &mut filled {
            load::read(&shared, &mut client, key, Duration::from_secs(20));
            if key.acknowledged.is_some() {
                load::write(&shared, &mut client, key, true, Duration::from_secs(20));
            }
        }
        Ok(())
    }

    /// Each node leads everything once, and has everything.
    fn compare(&mut self) -> Result<(), String> {
        self.rest()?;
        let shared = self.shared.clone();
        for node in 0..self.cluster.shape.nodes {
            let port = self.cluster.port(node);
            let mut client = self.client();
            let text = format!("127.0.0.1:{port} ");
            self.until("a node leads all", Duration::from_secs(60), |round| {
                let _ = client.ask(port, &[b"CLUSTER", b"FAILOVER"]);
                std::thread::sleep(Duration::from_millis(400));
                Cluster::status(&round.settings.collie, &[port])
                    .1
                    .lines()
                    .any(|line| {
                        line.starts_with(&text) && line.split_whitespace().any(|word| word == "16384")
                    })
            })?;
            for key in shared.keys.iter().flatten() {
                let mut key = lock(key);
                if !load::read(&shared, &mut client, &mut key, Duration::from_secs(20)) {
                    return Err(format!("key {} is not read within 20 s, at the end", key.name));
                }
            }
            for number in 0..COUNTERS {
                for kind in ["counter", "once"] {
                    let name = shared.counter_name(kind, number);
                    let reply = client.call(slot(&name), Duration::from_secs(20), &[b"GET", name.as_bytes()]);
                    let found = match &reply {
                        Outcome::Done(Reply::Bulk(None)) => Some(0),
                        Outcome::Done(Reply::Bulk(Some(b))) => String::from_utf8_lossy(b).parse().ok(),
                        _ => None,
                    };
                    let found = found.ok_or(format!("GET {name}: {reply:?}"))?;
                    lock(&shared.counters)
                        .entry(name.clone())
                        .or_default()
                        .read(found)
                        .map_err(|e| format!("{name}: {e}"))?;
                }
            }
            let healthy = Cluster::http(port, "/healthz");
            if !matches!(healthy, Ok((200, _))) {
                return Err(format!(
                    "/healthz of node {}, which leads all: {healthy:?}",
                    node + 1
                ));
            }
            // Nobody reads any more. What merges replaced is closed a moment later.
            self.until("removed files are closed", Duration::from_secs(20), |round| {
                round.cluster.removed(node) < 4 * MIB
            })?;
            self.say(&format!("node {} has everything", node + 1));
            self.look()?;
        }
        Ok(())
    }
}
