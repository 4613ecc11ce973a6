//! Clients that write and read all the time, probes that say since when writes are refused, and who asks the
//! nodes how they are.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::judge::{Counter, Key, values};
use crate::resp::{Client, Outcome, Reply, Stopped, slot};
use collie_independent_cuts::rng::Rng;

pub const COUNTERS: u64 = 8;

/// A key that is written every second, and how that goes.
pub struct Probe {
    pub name: String,
    pub succeeded: Instant,
    /// When the first attempt began that failed, of those since the last success.
    pub failing: Option<(Instant, String)>,
}

#[derive(Default)]
pub struct Figures {
    pub acknowledged: AtomicU64,
    pub bytes: AtomicU64,
    pub refused: AtomicU64,
    pub unknown: AtomicU64,
    pub reads: AtomicU64,
    pub statuses: AtomicU64,
}

pub struct Shared {
    pub began: Instant,
    pub ports: Vec<u16>,
    pub stopped: Stopped,
    pub stop: AtomicBool,
    pub pause: AtomicBool,
    pub at_rest: AtomicUsize,
    pub figures: Figures,
    pub keys: Vec<Vec<Mutex<Key>>>,
    /// By their names: raised by INCR, and by COLLIE.ONCE.
    pub counters: Mutex<BTreeMap<String, Counter>>,
    pub epoch: AtomicU64,
    pub probes: Vec<Mutex<Probe>>,
    /// From when on writes go, by what is done to the nodes; none: they need not.
    pub serves: Mutex<Option<Instant>>,
    pub code: Mutex<(i32, String)>,
    pub problems: Mutex<Vec<String>>,
    /// All writes may fail for so long before nodes must say that something is wrong.
    pub silent: Duration,
    /// One SET of so many is not sent, and counted as acknowledged. 0: none.
    pub lies: u64,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn problem(&self, text: String) {
        lock(&self.problems).push(text);
    }

    fn ends(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether clients are to go on with what has no outcome yet.
    fn goes_on(&self) -> bool {
        !self.ends() && !self.pause.load(Ordering::Relaxed)
    }

    /// The probe that has failed for longest, since when, and what it was told.
    pub fn failing(&self) -> Option<(Instant, String)> {
        let failing = self.probes.iter().filter_map(|probe| {
            let probe = lock(probe);
            probe
                .failing
                .clone()
                .map(|(since, text)| (since, format!("SET {}: {text}", probe.name)))
        });
        failing.min()
    }

    pub fn counter_name(&self, kind: &str, number: u64) -> String {
        format!("{kind}-{}-{number}", self.epoch.load(Ordering::Relaxed))
    }

    /// A reply of an unexpected kind, or none for so long that the node hangs.
    fn unexpected(&self, command: &str, outcome: &Outcome) {
        match outcome {
            Outcome::Done(reply) => self.problem(format!("{command} was answered by {reply:?}")),
            Outcome::Unknown(text) if text.contains("HANGS") => self.problem(format!("{command}: {text}")),
            _ => {}
        }
    }
}

/// Writes a value, or removes it.
pub fn write(
    shared: &Shared,
    client: &mut Client,
    key: &mut Key,
    remove: bool,
    patience: Duration,
) -> Outcome {
    key.versions += 1;
    let version = (!remove).then_some(key.versions);
    let names: Vec<String> = (0..key.parts).map(|part| key.part(part)).collect();
    let mut arguments: Vec<Vec<u8>> = vec![if remove { "DEL" } else { "MSET" }.into()];
    for (name, part) in names.iter().zip(0..) {
        arguments.push(name.as_bytes().to_vec());
        arguments.extend(version.map(|version| key.value(part, version)));
    }
    let bytes: usize = arguments.iter().map(Vec::len).sum();
    let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
    let began = Instant::now();
    let lie = shared.lies > 0 && !remove && key.versions.is_multiple_of(shared.lies);
    let outcome = match lie {
        true => Outcome::Done(Reply::Text("OK".into())),
        false => client.call(slot(&names[0]), patience, &arguments),
    };
    let figures = &shared.figures;
    let (at, took) = (shared.began.elapsed(), began.elapsed());
    key.note(format!(
        "{at:.1?}, in {took:.1?}: version {version:?}: {}",
        outcome.brief()
    ));
    match &outcome {
        Outcome::Done(Reply::Text(_) | Reply::Number(_)) => {
            key.wrote(version, true);
            figures.acknowledged.fetch_add(1, Ordering::Relaxed);
            figures.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        Outcome::Not(_) => drop(figures.refused.fetch_add(1, Ordering::Relaxed)),
        other => {
            figures.unknown.fetch_add(1, Ordering::Relaxed);
            shared.unexpected(if remove { "DEL" } else { "MSET" }, other);
            key.wrote(version, false);
        }
    }
    outcome
}

/// Reads a value and judges it; false where it was not answered.
pub fn read(shared: &Shared, client: &mut Client, key: &mut Key, patience: Duration) -> bool {
    let names: Vec<String> = (0..key.parts).map(|part| key.part(part)).collect();
    let mut arguments: Vec<&[u8]> = vec![b"MGET"];
    arguments.extend(names.iter().map(String::as_bytes));
    match client.call(slot(&names[0]), patience, &arguments) {
        Outcome::Done(reply) => {
            shared.figures.reads.fetch_add(1, Ordering::Relaxed);
            key.note(format!("{:.1?}: read", shared.began.elapsed()));
            if let Err(problem) = values(reply).and_then(|found| key.read(&found)) {
                shared.problem(problem);
            }
            true
        }
        other => {
            shared.unexpected("MGET", &other);
            false
        }
    }
}

fn raise(shared: &Shared, client: &mut Client, name: String, once: Option<(&str, u64)>) {
    let floor = lock(&shared.counters).entry(name.clone()).or_default().floor();
    let number = once.map_or(0, |(_, number)| number).to_string();
    let mut arguments: Vec<&[u8]> = Vec::new();
    if let Some((who, _)) = once {
        arguments.extend::<[&[u8]; 4]>([b"COLLIE.ONCE", name.as_bytes(), who.as_bytes(), number.as_bytes()]);
    }
    arguments.extend::<[&[u8]; 2]>([b"INCR", name.as_bytes()]);
    let mut sent_before = false;
    loop {
        let outcome = client.call(slot(&name), Duration::from_secs(5), &arguments);
        let mut counters = lock(&shared.counters);
        let counter = counters.entry(name.clone()).or_default();
        match outcome {
            Outcome::Done(Reply::Number(reply)) => {
                shared.figures.acknowledged.fetch_add(1, Ordering::Relaxed);
                if let Err(problem) = counter.raised(floor, reply) {
                    shared.problem(format!("{name}: {problem}"));
                }
                return;
            }
            // One that is to be executed once is sent again, with the same number. Not for as long as disks are
            // full, where it may wait for all that time.
            Outcome::Unknown(_) if once.is_some() && shared.goes_on() => sent_before = true,
            Outcome::Not(_) if sent_before && shared.goes_on() => {}
            Outcome::Not(_) if !sent_before => return,
            other => {
                counter.unknown += 1;
                shared.figures.unknown.fetch_add(1, Ordering::Relaxed);
                shared.unexpected("INCR", &other);
                return;
            }
        }
        drop(counters);
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// One client: the keys with its number are written by it alone.
pub fn work(shared: &Shared, number: usize, seed: u64) {
    let mut rng = Rng::new(seed ^ (number as u64) << 32);
    let mut client = Client::new(&shared.ports, &shared.stopped, number);
    let who = format!("client-{number}");
    let mut once = 0;
    while !shared.ends() {
        if shared.pause.load(Ordering::Relaxed) {
            shared.at_rest.fetch_add(1, Ordering::Relaxed);
            while shared.pause.load(Ordering::Relaxed) && !shared.ends() {
                std::thread::sleep(Duration::from_millis(20));
            }
            shared.at_rest.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let key = &shared.keys[number][rng.below(shared.keys[number].len() as u64) as usize];
        let name = |kind: &str, of: u64| shared.counter_name(kind, of);
        let patience = Duration::from_secs(5);
        match rng.below(100) {
            0..60 => {
                if matches!(
                    write(shared, &mut client, &mut lock(key), false, patience),
                    Outcome::Not(_)
                ) {
                    std::thread::sleep(Duration::from_millis(200));
                }
            }
            60..64 => drop(write(shared, &mut client, &mut lock(key), true, patience)),
            64..80 => drop(read(shared, &mut client, &mut lock(key), patience)),
            80..92 => raise(shared, &mut client, name("counter", rng.below(COUNTERS)), None),
            _ => {
                once += 1;
                raise(
                    shared,
                    &mut client,
                    name("once", rng.below(COUNTERS)),
                    Some((&who, once)),
                );
            }
        }
    }
}

/// Writes to every probe of those with this number.
pub fn probe(shared: &Shared, number: usize, of: usize) {
    let mut client = Client::new(&shared.ports, &shared.stopped, number);
    let mut count = 0u64;
    while !shared.ends() {
        for probe in shared.probes.iter().skip(number).step_by(of) {
            let name = lock(probe).name.clone();
            count += 1;
            let began = Instant::now();
            let outcome = client.call(
                slot(&name),
                Duration::from_secs(4),
                &[b"SET", name.as_bytes(), count.to_string().as_bytes()],
            );
            let text = match outcome {
                Outcome::Done(Reply::Text(_)) => None,
                Outcome::Done(reply) => Some(format!("{reply:?}")),
                Outcome::Not(text) | Outcome::Unknown(text) => Some(text),
            };
            let mut probe = lock(probe);
            match text {
                None => (probe.succeeded, probe.failing) = (began, None),
                Some(text) => {
                    let since = probe.failing.take().map_or(began, |(since, _)| since);
                    probe.failing = Some((since, text));
                }
            }
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Asks for the status all the time: it must not be well while writes are refused, nor bad while none is.
pub fn watch(shared: &Shared, collie: &Path) {
    let mut unserved: Option<Instant> = None;
    // Since when a write was refused that the last status did not show.
    let mut hidden: Option<Instant> = None;
    while !shared.ends() {
        let (began, failed) = (Instant::now(), shared.failing());
        let (code, text) = Cluster::status(collie, &shared.ports);
        shared.figures.statuses.fetch_add(1, Ordering::Relaxed);
        *lock(&shared.code) = (code, text.clone());
        // Refused since 10 s before it was asked, and still after that.
        let long = failed.zip(shared.failing()).filter(|((before, _), (since, _))| {
            before == since && began.saturating_duration_since(*before) > Duration::from_secs(10)
        });
        let before = hidden.take();
        hidden = long.as_ref().filter(|_| code == 0).map(|(_, (since, _))| *since);
        // Twice: the writes may go from the moment on at which it was asked, and the next is yet to come.
        if let Some((_, (since, told))) = long.filter(|_| hidden.is_some() && hidden == before) {
            let stopped = shared.stopped.values().any(|s| s.load(Ordering::Relaxed));
            shared.problem(format!(
                "`cluster status` is 0 (stopped: {stopped}), and for {:?} {told}\n{text}",
                since.elapsed()
            ));
        }
        let all_fail = shared.probes.iter().all(|probe| {
            lock(probe)
                .failing
                .as_ref()
                .is_some_and(|(since, _)| since.elapsed() > shared.silent)
        });
        if all_fail {
            judge_answers(shared);
        }
        // Writes go everywhere, and it says that slots are not served.
        unserved = unserved
            .filter(|_| code >= 3 && shared.failing().is_none())
            .or((code >= 3).then(Instant::now));
        if unserved.is_some_and(|since| since.elapsed() > Duration::from_secs(20))
            && shared.failing().is_none()
        {
            shared.problem(format!(
                "`cluster status` is {code} for 20 s while all writes go\n{text}"
            ));
        }
        std::thread::sleep(Duration::from_millis(1500));
    }
}

/// All writes have failed for long: no node that serves slots may say that nothing is wrong, nor may all nodes.
/// One that serves none knows of its own disks only.
fn judge_answers(shared: &Shared) {
    let mut client = Client::new(&shared.ports, &shared.stopped, 0);
    let mut praise = Vec::new();
    let mut complain = false;
    for &port in &shared.ports {
        if shared.stopped[&port].load(Ordering::Relaxed) {
            continue;
        }
        let Ok(Reply::Bulk(Some(info))) = client.ask(port, &[b"CLUSTER", b"INFO"]) else {
            continue;
        };
        let info = String::from_utf8_lossy(&info).into_owned();
        let serves = info.lines().any(|line| {
            let led = line.strip_prefix("collie_slots_led:");
            led.is_some_and(|led| !led.trim().is_empty())
        });
        complain |= info.contains("collie_problem");
        if info.contains("cluster_state:ok") && !info.contains("collie_problem") {
            let health = Cluster::http(port, "/healthz");
            praise.push((serves, format!("{port}: CLUSTER INFO {info:?}, {health:?}")));
        }
    }
    praise.retain(|(serves, _)| *serves || !complain);
    if praise.is_empty() {
        return;
    }
    // Writes may have come back since: each is tried twice a second.
    std::thread::sleep(Duration::from_secs(2));
    if shared.probes.iter().all(|probe| lock(probe).failing.is_some()) {
        shared.problem(format!(
            "all writes fail for {:?} ({:?}), and there is no problem: {praise:?}",
            shared.silent,
            shared.failing()
        ));
    }
}
