//! Histories of many threads on one store whose process dies or whose power fails, again and again,
//! and whose device is slow now and then: every key behaves as one copy, no part of a batch is ever
//! seen, and what a snapshot shows is a prefix of the commits. `COLLIE_HISTORIES` sets their
//! number, `COLLIE_SEED` where they begin. The tables are on the real file system, and no memtable
//! is flushed: the log is what is tested here.

#![expect(clippy::unwrap_used, reason = "a test ends where its assumptions do")]

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use collie_check::history::{self, Action, Event, Recorder};
use collie_db::{Batch, Db, Durability, Error, Options, RingMode, WriteOptions};
use collie_io::RealDevice;
use collie_sim::{PowerCut, Rng, SimDevice, SplitDevice, VOLATILE_DIR};

const THREADS: u32 = 4;
const KEYS: u32 = 8;
/// The last pair of keys is only written together.
const PAIR: [u32; 2] = [KEYS, KEYS + 1];
const LIVES: u64 = 4;
/// Operations of a life, of all threads.
const OPERATIONS: u64 = 500;

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// A commit that returned: where it ends in the log, and what it wrote.
type Commits = BTreeMap<u64, Vec<(u32, u64)>>;

/// What was seen of all keys at once.
type Seen = BTreeMap<u32, u64>;

#[derive(Default)]
struct Run {
    recorder: Recorder,
    commits: Mutex<Commits>,
    snapshots: Mutex<Vec<Seen>>,
    values: AtomicU64,
}

fn key(number: u32) -> String {
    format!("key/{number:02}")
}

fn number(key: &[u8]) -> u32 {
    std::str::from_utf8(&key[4..]).unwrap().parse().unwrap()
}

fn value(bytes: &[u8]) -> u64 {
    std::str::from_utf8(bytes).unwrap().trim().parse().unwrap()
}

impl Run {
    fn note(&self, client: u32, call: u64, returned: Option<u64>, actions: &[(u32, Action)]) {
        for &(key, action) in actions {
            self.recorder.note(Event {
                client,
                key,
                action,
                call,
                returned,
            });
        }
    }

    /// Writes keys in one commit.
    fn write(&self, db: &Db, client: u32, keys: &[u32], level: Durability) -> Result<(), Error> {
        // Relaxed: only uniqueness counts.
        let value = self.values.fetch_add(1, Ordering::Relaxed);
        let mut batch = Batch::new();
        for number in keys {
            batch.put(&db.default_family(), key(*number), format!("{value:<90}"))?;
        }
        let writes: Vec<_> = keys.iter().map(|key| (*key, value)).collect();
        let actions: Vec<_> = keys.iter().map(|key| (*key, Action::Write(value))).collect();
        let call = self.recorder.now();
        let options = WriteOptions {
            durability: level,
            ..WriteOptions::default()
        };
        let written = db.write(batch, &options);
        let returned = written.is_ok().then(|| self.recorder.now());
        self.note(client, call, returned, &actions);
        self.commits.lock().unwrap().insert(written?, writes);
        Ok(())
    }

    /// Reads one key, or all of them in a snapshot.
    fn read(&self, db: &Db, client: u32, one: Option<u32>, level: Option<Durability>) -> Result<(), Error> {
        let call = self.recorder.now();
        let found: Vec<(u32, Option<u64>)> = match one {
            Some(number) => vec![(number, db.get(key(number))?.map(|found| value(&found)))],
            None => {
                let snapshot = db.snapshot();
                let entries = snapshot.prefix(&db.default_family(), "key/")?;
                let entries = entries.map(|entry| entry.map(|(key, found)| (number(&key), value(&found))));
                let seen: Seen = entries.collect::<Result<_, _>>()?;
                let found = (0..KEYS + 2).map(|key| (key, seen.get(&key).copied())).collect();
                self.snapshots.lock().unwrap().push(seen);
                found
            }
        };
        if let Some(level) = level {
            db.wait(db.visible(), level)?;
        }
        let returned = Some(self.recorder.now());
        let actions: Vec<_> = found
            .into_iter()
            .map(|(key, value)| (key, Action::Read(value)))
            .collect();
        self.note(client, call, returned, &actions);
        Ok(())
    }

    /// A thread's share of a life; ends early where the device fails.
    fn client(&self, db: &Db, client: u32, level: Durability, mut rng: Rng, turns: &Turns<'_>) {
        while turns.take() {
            let one = rng.below(u64::from(KEYS)) as u32;
            let done = match rng.below(10) {
                0..3 => self.write(db, client, &[one], level),
                3 => self.write(db, client, &[one, (one + 1) % KEYS], level),
                4 => self.write(db, client, &PAIR, level),
                5 => self.read(db, client, None, Some(level)),
                _ => self.read(db, client, Some(one), Some(level)),
            };
            if done.is_err() {
                return;
            }
        }
    }
}

/// The operations of a life, of which one thread after the other takes the next.
struct Turns<'a> {
    left: AtomicU64,
    /// With so many left the device dies, amid what the other threads do; with none it lives on.
    dies_at: u64,
    sim: &'a SimDevice,
}

impl Turns<'_> {
    fn take(&self) -> bool {
        // Relaxed: it only counts.
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if taken == Ok(self.dies_at) {
            self.sim.kill();
        }
        taken.is_ok()
    }
}

fn open(path: &Path, sim: &SimDevice, shared: bool) -> Db {
    let tables = path.join("families");
    let device = SplitDevice::new(tables, Arc::new(RealDevice::new()), Arc::new(sim.clone()));
    let ring = match shared {
        true => RingMode::Shared {
            dir: VOLATILE_DIR.into(),
        },
        false => RingMode::Private,
    };
    let options = Options {
        device: Arc::new(device),
        ring,
        ring_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        cache_bytes: 1 << 20,
        ..Options::default()
    };
    Db::open(path, options).unwrap()
}

/// One history: some lives of a store, and what came of them.
fn live(seed: u64) -> Run {
    let mut rng = Rng::new(seed);
    let (run, dir) = (Run::default(), tempfile::tempdir().unwrap());
    let path = dir.path().join("db");
    // What dies with the process is asked for less than what the power takes.
    let deaths = rng.one_in(3);
    let (shared, level) = match deaths {
        true => (true, Durability::Process),
        false => (rng.coin(), Durability::Disk),
    };
    let mut sim = SimDevice::new(rng.next_u64());
    for life in 0..LIVES {
        let db = open(&path, &sim, shared);
        let ended = AtomicBool::new(false);
        let turns = Turns {
            left: AtomicU64::new(OPERATIONS),
            // The last life ends in peace.
            dies_at: if life + 1 == LIVES {
                0
            } else {
                rng.below(OPERATIONS)
            },
            sim: &sim,
        };
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..THREADS)
                .map(|client| {
                    let (run, db, rng, turns) = (&run, &db, rng.fork(), &turns);
                    let client = life as u32 * THREADS + client;
                    scope.spawn(move || run.client(db, client, level, rng, turns))
                })
                .collect();
            let (sim, ended) = (&sim, &ended);
            let mut rng = rng.fork();
            scope.spawn(move || {
                // Relaxed: nothing is handed over by it.
                while !ended.load(Ordering::Relaxed) {
                    let slow = rng.one_in(4);
                    sim.delay_syncs(Duration::from_millis(if slow { 3 } else { 0 }));
                    std::thread::sleep(Duration::from_micros(500));
                }
            });
            for client in clients {
                client.join().unwrap();
            }
            ended.store(true, Ordering::Relaxed);
        });
        let way = rng.index(PowerCut::WAYS.len());
        let snapshot = sim.snapshot();
        let image = match deaths {
            true => snapshot.process_death(),
            false => snapshot.power_cut(PowerCut::WAYS[way].1, rng.next_u64()),
        };
        sim.kill();
        drop(db);
        sim = image.device();
    }
    let db = open(&path, &sim, shared);
    run.read(&db, u32::MAX, None, None).unwrap();
    run
}

/// Whether the snapshots show whole batches, and prefixes of the commits.
fn check_snapshots(run: &Run) -> Result<(), String> {
    let commits = run.commits.lock().unwrap();
    let mut orders: HashMap<(u32, u64), u64> = HashMap::new();
    for (order, writes) in commits.iter() {
        orders.extend(writes.iter().map(|write| (*write, *order)));
    }
    for seen in run.snapshots.lock().unwrap().iter() {
        let [one, other] = PAIR.map(|key| seen.get(&key));
        if one != other {
            return Err(format!("part of a batch was seen: {one:?} and {other:?}"));
        }
        let order_of = |key: &u32| {
            seen.get(key)
                .map_or(Some(&0), |value| orders.get(&(*key, *value)))
        };
        let newest = seen.keys().filter_map(order_of).max().copied().unwrap_or(0);
        for (order, writes) in commits.range(..=newest) {
            // What never returned has no place that is known.
            let late = writes
                .iter()
                .find(|(key, _)| order_of(key).is_some_and(|there| there < order));
            if let Some((key, value)) = late {
                return Err(format!(
                    "a snapshot shows the commit that ends at {newest}, and of key {key} an older value than {value}, which was committed up to {order}"
                ));
            }
        }
    }
    Ok(())
}

fn check(run: &Run) -> Result<(), String> {
    history::check(&run.recorder.events()).map_err(|violation| violation.to_string())?;
    check_snapshots(run)
}

#[test]
fn histories_across_crashes_are_linearizable_whole_and_in_order() {
    let (histories, seed) = (from_env("COLLIE_HISTORIES", 10), from_env("COLLIE_SEED", 1));
    let (mut operations, mut unknown) = (0, 0);
    for n in 0..histories {
        let seed = seed + n;
        let run = live(seed);
        let events = run.recorder.events();
        operations += events.len();
        unknown += events.iter().filter(|event| event.returned.is_none()).count();
        if let Err(what) = check(&run) {
            panic!(
                "{what}\nreplay (threads race): COLLIE_SEED={seed} COLLIE_HISTORIES=20 cargo test -p collie-db --test db_crash histories::"
            );
        }
    }
    println!(
        "figures: histories: {histories} · operations {operations} · never returned {unknown} · violations 0"
    );
    assert!(unknown > 0, "no process died in the middle of anything");
}

/// The apparatus finds what it is for: a read that does not wait for what it found is taken back by
/// a power cut.
#[test]
fn reads_that_do_not_wait_are_found_out() {
    for waits in [false, true] {
        let (run, dir) = (Run::default(), tempfile::tempdir().unwrap());
        let (path, sim) = (dir.path().join("db"), SimDevice::new(1));
        let db = open(&path, &sim, false);
        run.write(&db, 0, &[0], Durability::Disk).unwrap();
        let syncs = sim.hold_syncs();
        let image = std::thread::scope(|scope| {
            let write = scope.spawn(|| run.write(&db, 1, &[0], Durability::Disk));
            // It is applied by then, and waits to be durable.
            syncs.wait_for(1);
            let read = scope.spawn(|| run.read(&db, 2, Some(0), waits.then_some(Durability::Disk)));
            let read = if waits { None } else { Some(read.join().unwrap()) };
            let (_, lost) = PowerCut::WAYS[0];
            let image = sim.snapshot().power_cut(lost, 1);
            sim.kill();
            syncs.release();
            assert!(write.join().unwrap().is_err());
            assert!(read.is_none_or(|read| read.is_ok()));
            image
        });
        drop(db);
        let db = open(&path, &image.device(), false);
        run.read(&db, u32::MAX, None, None).unwrap();
        match check(&run) {
            Err(found) => assert!(!waits && found.contains("value"), "{found}"),
            Ok(()) => assert!(waits, "a read was revoked without an error"),
        }
    }
}
