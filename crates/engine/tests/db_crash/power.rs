//! The engine with its tables on the file system that forgets: the power is cut while threads
//! write, batches and transactions, at operations of each kind of file, and what was acknowledged,
//! or seen by what is there, must be there. It needs `/dev/fuse` and the right to mount; where they
//! are missing the test says so and passes, unless `COLLIE_REQUIRE_TOOLS` is set.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends where its assumptions do, prints its seed, and says what it skips"
)]

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use collie_check::ledger::{self, Clients, Found};
use collie_check::{Promise, Survives};
use collie_db::{
    Batch, Db, Family, FamilyOptions, Options, Result, RingMode, TransactionOptions, Value, WriteOptions,
};
use collie_io::{Device, RealDevice};
use collie_sim::faultfs::{self, FaultFs, Moment, Names, Trap};
use collie_sim::{PowerCut, Rng};

const THREADS: usize = 4;
/// How many of a thread's commits are kept.
const WINDOW: u64 = 60;
/// The longest filling of a value, save for a few.
const FILL_MAX: usize = 1_000;
/// How long a store lives at most, when what a cut is aimed at does not come about.
const LIFE: Duration = Duration::from_secs(10);

/// What a cut is aimed at, by a part of the path, and how many of its operations pass at most.
const AIMS: [(&str, u64); 6] = [
    ("", 800),
    ("MANIFEST", 12),
    ("/tables/", 60),
    ("current", 8),
    (".seg", 200),
    ("families", 80),
];

/// Commits of each thread.
type Counts = ledger::Counts<THREADS>;

/// A store on the file system, and the ledger of its threads.
struct Test {
    fs: FaultFs,
    rng: Rng,
    threads: Clients<THREADS>,
    /// Commits of each thread that are there, or were acknowledged since.
    counts: Counts,
    /// In memory, as a power cut takes it away.
    rings: tempfile::TempDir,
    seed: u64,
}

fn family() -> FamilyOptions {
    FamilyOptions {
        write_buffer_bytes: 48 << 10,
        table_bytes: 32 << 10,
        ..FamilyOptions::default()
    }
}

/// With a private ring the log is synced, with a shared one it is written past the page cache where
/// that is faster.
fn options(rings: &Path, rng: &mut Rng) -> Options {
    let shared = RingMode::Shared {
        dir: rings.to_owned(),
    };
    Options {
        ring: if rng.coin() { shared } else { RingMode::Private },
        pad_to_block: rng.coin(),
        ring_bytes: 1 << 20,
        segment_bytes: 128 << 10,
        max_total_wal_size: Some(512 << 10),
        family_options: vec![("second".to_owned(), family())],
        default_family: family(),
        ..Options::default()
    }
}

fn open(dir: &Path, options: Options) -> Result<(Db, [Family; 2])> {
    let db = Db::open(dir.join("store"), options)?;
    let second = match db.family("second") {
        Some(second) => second,
        None => db.create_family("second", family())?,
    };
    let first = db.default_family();
    Ok((db, [first, second]))
}

fn key(thread: usize, n: u64) -> String {
    format!("{thread}/{n:012}")
}

fn last(thread: usize) -> String {
    format!("last/{thread}")
}

fn count(value: Option<Value>) -> u64 {
    value.map_or(0, |count| u64::from_le_bytes(count[..].try_into().unwrap()))
}

/// Writes from commit `first` on until the store fails, and notes in `acknowledged` how many
/// commits were. Every other one is a transaction.
fn write(
    db: &Db,
    families: &[Family; 2],
    (thread, first): (usize, u64),
    life: u64,
    acknowledged: &AtomicU64,
) {
    for n in first.. {
        let written = match n % 2 {
            0 => batch(db, families, (thread, n), life),
            _ => transaction(db, families, (thread, n), life),
        };
        if written.is_err() {
            return;
        }
        acknowledged.store(n + 1, Ordering::SeqCst);
    }
}

fn batch(db: &Db, families: &[Family; 2], (thread, n): (usize, u64), life: u64) -> Result<()> {
    let mut batch = Batch::new();
    let value = ledger::value((thread, n), life, &Counts::default(), FILL_MAX);
    for family in families {
        batch.put(family, key(thread, n), &value)?;
        if let Some(old) = n.checked_sub(WINDOW) {
            batch.delete(family, key(thread, old))?;
        }
    }
    batch.put(&families[1], last(thread), (n + 1).to_le_bytes())?;
    db.write_ref(&batch, &WriteOptions::disk())?;
    Ok(())
}

/// The same, and it stores what it saw of another thread, which need not be durable yet.
fn transaction(db: &Db, families: &[Family; 2], (thread, n): (usize, u64), life: u64) -> Result<()> {
    let tx = db.transaction(TransactionOptions::default())?;
    let (mut seen, other) = (Counts::default(), (thread + 1) % THREADS);
    seen[other] = count(tx.get(&families[1], last(other))?);
    let value = ledger::value((thread, n), life, &seen, FILL_MAX);
    for family in families {
        tx.put(family, key(thread, n), &value)?;
        if let Some(old) = n.checked_sub(WINDOW) {
            tx.delete(family, key(thread, old))?;
        }
    }
    tx.put(&families[1], last(thread), (n + 1).to_le_bytes())?;
    tx.commit()?;
    Ok(())
}

impl Test {
    fn life(&mut self) {
        let (aim, most) = AIMS[self.rng.index(AIMS.len())];
        let moment = if self.rng.coin() {
            Moment::Before
        } else {
            Moment::After
        };
        // One in four while the store is opened.
        let in_recovery = self.rng.one_in(4);
        let nth = 1 + self.rng.below(if in_recovery { 40 } else { most });
        let aim = if in_recovery { "" } else { aim };
        let trap = Trap::new(nth, moment, move |asked| {
            asked.path.to_string_lossy().contains(aim)
        });
        let dir = self.fs.path().to_owned();
        if in_recovery {
            let options = options(self.rings.path(), &mut self.rng);
            self.fs.set_trap(trap).unwrap();
            let fs = &self.fs;
            std::thread::scope(|scope| {
                let opened = scope.spawn(|| open(&dir, options));
                while !opened.is_finished() && fs.wait_for_stop(Duration::from_millis(1)).unwrap().is_none() {
                }
                let stopped = fs.wait_for_stop(Duration::ZERO).unwrap().is_some();
                fs.stop().unwrap();
                fs.fail_calls().unwrap();
                let opened = opened.join().unwrap();
                assert!(
                    stopped || opened.is_ok(),
                    "seed {}: {:?}",
                    self.seed,
                    opened.err()
                );
            });
        } else {
            let (db, families) = self.opened(&dir);
            self.fs.set_trap(trap).unwrap();
            self.serve(&db, &families);
        }
        for ring in RealDevice::new().list(self.rings.path()).unwrap() {
            RealDevice::new()
                .remove_file(&self.rings.path().join(ring.name))
                .unwrap();
        }
        let way = self.rng.index(PowerCut::WAYS.len());
        self.fs
            .power_cycle(PowerCut::WAYS[way].1, self.rng.next_u64())
            .unwrap();
    }

    /// Has threads write until the disk stops.
    fn serve(&mut self, db: &Db, families: &[Family; 2]) {
        let (acknowledged, life) = (self.counts.map(AtomicU64::new), self.threads.life());
        let fs = &self.fs;
        std::thread::scope(|scope| {
            for (thread, acknowledged) in acknowledged.iter().enumerate() {
                let first = acknowledged.load(Ordering::SeqCst);
                scope.spawn(move || write(db, families, (thread, first), life, acknowledged));
            }
            let _ = fs.wait_for_stop(LIFE).unwrap();
            fs.stop().unwrap();
            fs.fail_calls().unwrap();
        });
        self.counts = acknowledged.map(AtomicU64::into_inner);
        self.threads.acknowledged(&self.counts, Promise::Disk);
        // Each thread ended with one that may be there or not.
        self.threads.sent(&self.counts.map(|count| count + 1));
    }

    /// Opens the store and judges all that is in it.
    fn opened(&mut self, dir: &Path) -> (Db, [Family; 2]) {
        let seed = self.seed;
        let options = options(self.rings.path(), &mut self.rng);
        let (db, families) =
            open(dir, options).unwrap_or_else(|e| panic!("seed {seed}: it does not open: {e}"));
        let [first, second] = &families;
        let counts = std::array::from_fn(|thread| count(second.get(last(thread)).unwrap()));
        let mut found = Found::new(counts);
        for (thread, count) in counts.into_iter().enumerate() {
            for n in count.saturating_sub(2 * WINDOW)..count {
                let value = |family: &Family| family.get(key(thread, n)).unwrap();
                let (first, second) = (value(first), value(second));
                let agrees = second.map(|second| first.as_deref() == Some(&second[..]));
                self.threads
                    .add(&mut found, (thread, n), first.as_deref(), agrees);
            }
        }
        let verdict = self.threads.check(Survives::Power, &found);
        assert!(verdict.holds(), "seed {seed}: {verdict}");
        self.threads.begin_life(&counts);
        self.counts = counts;
        (db, families)
    }
}

#[test]
fn what_was_acknowledged_survives_power_cuts_of_the_whole_store() {
    if let Err(missing) = faultfs::available() {
        assert!(std::env::var_os("COLLIE_REQUIRE_TOOLS").is_none(), "{missing}");
        println!("skipped: {missing}");
        return;
    }
    let asked = |name: &str| std::env::var(name).ok().map(|n| n.parse().unwrap());
    let rounds = asked("COLLIE_POWER_ROUNDS").unwrap_or(40);
    let seed = asked("COLLIE_SEED").unwrap_or(1);
    println!("replay: COLLIE_SEED={seed} cargo test -p collie-db --test db_crash power::");
    let dir = tempfile::tempdir().unwrap();
    let mut test = Test {
        fs: FaultFs::mount(dir.path(), Names::Posix, seed).unwrap(),
        rng: Rng::new(seed),
        threads: Clients::new(WINDOW, FILL_MAX),
        counts: Counts::default(),
        rings: tempfile::tempdir_in("/dev/shm").unwrap(),
        seed,
    };
    (0..rounds).for_each(|_| test.life());
    drop(test.opened(dir.path()));
    let acknowledged: u64 = test.counts.iter().sum();
    println!("figures: {rounds} power cuts under the engine, {acknowledged} commits, lost 0");
    assert!(acknowledged > 0);
}
