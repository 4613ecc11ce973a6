//! Histories of processes that are killed: the test runs itself as a second process whose threads
//! report through a pipe what they ask for and the answers that they get, and which is killed
//! (SIGKILL) at a random moment, also while it opens what another one has left.
//!
//! `COLLIE_RUNS` sets how many histories, `COLLIE_SEED` one seed alone.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use collie_check::lives::{self, Found, Life};
use collie_db::{Compression, Durability, Options, RingMode};

use crate::Replay;
use crate::common::{self, Rng};
use crate::ledger::{self, Figures, Report};
use crate::program::{Client, Mixture, Store};

/// The second process's parameters: a directory, and numbers.
const DIR: &str = "COLLIE_TRANSACTIONS_DIR";
const LIFE: &str = "COLLIE_TRANSACTIONS_LIFE";
/// Its test's name.
const TEST: &str = "kills::what_a_killed_process_runs";

const THREADS: u64 = 5;
/// Processes.
const LIVES: u64 = 7;
/// Transactions of a life, at most.
const TRANSACTIONS: u64 = 500;
/// In microseconds.
const LONGER_THAN_OPENING: u64 = 6_000;

fn options(dir: &Path, seed: u64) -> Options {
    let mut rng = Rng::new(seed ^ 0x6b69_6c6c);
    let shared = RingMode::Shared {
        dir: dir.join("rings"),
    };
    let base = match rng.one_in(3) {
        true => short_log(),
        false => common::small(),
    };
    Options {
        ring: if rng.one_in(2) { shared } else { RingMode::Private },
        pad_to_block: rng.one_in(3),
        wal_compression: [Compression::None, Compression::Lz4][rng.below(2) as usize],
        durability: Mixture::new(seed, true).durability,
        ..base
    }
}

/// Memtables are flushed, and segments used again, all the time.
fn short_log() -> Options {
    Options {
        segment_bytes: 32 << 10,
        max_total_wal_size: Some(64 << 10),
        flush_threads: 2,
        compaction_threads: 2,
        ..common::small()
    }
}

fn open(dir: &Path, seed: u64) -> Store {
    Store::open(&dir.join("store"), options(dir, seed)).unwrap()
}

#[test]
fn what_a_killed_process_runs() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let (dir, number) = (PathBuf::from(dir), |name| common::number(name).unwrap());
    let (seed, life) = (number("COLLIE_SEED"), number(LIFE));
    println!("\n{OPENING}");
    let store = open(&dir, seed);
    ledger::found_lines(&store.found()).for_each(|line| println!("{line}"));
    println!("{OPENED}");
    let mut rng = Rng::new(seed << 8 | life);
    let first = life * TRANSACTIONS;
    let next = AtomicU64::new(first);
    let report = |reported: Report| println!("{reported}");
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let client = Client {
                store: &store,
                mixture: Mixture::new(seed, true),
                rng: Rng::new(rng.next()),
                marks: (&next, first + TRANSACTIONS),
                report: &report,
            };
            scope.spawn(move || client.run());
        }
    });
    println!("{DONE}");
    // The process that started it kills it, or has ended.
    drop(std::io::stdin().read(&mut [0]));
}

/// What the second process reports besides: that it opens the store, that it has opened it and has
/// reported what it found, and that it has ended.
const OPENING: &str = "opening";
const OPENED: &str = "opened";
const DONE: &str = "done";

/// What a second process reported. It begins its transactions when it has reported all that it
/// found.
#[derive(Default)]
struct Heard {
    found: Found,
    is_open: bool,
    reported: Vec<Report>,
    commits: u64,
}

impl Heard {
    fn note(&mut self, line: &str) {
        ledger::note_found(&mut self.found, line);
        self.is_open |= line == OPENED;
        let reported = Report::parse(line);
        self.commits += u64::from(matches!(reported, Some(Report::Visible(..))));
        self.reported.extend(reported);
    }
}

/// Runs a second process, and kills it `delay` after it has begun to open, or has reported so many
/// commits.
fn run(dir: &Path, seed: u64, life: u64, commits: Option<u64>, delay: Duration) -> Heard {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", TEST, "--nocapture"])
        .env(DIR, dir)
        .env(LIFE, life.to_string())
        .env("COLLIE_SEED", seed.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut heard = Heard::default();
    for line in lines.by_ref() {
        let line = line.unwrap();
        heard.note(&line);
        let has_come = commits.map_or(line == OPENING, |commits| heard.commits >= commits);
        if has_come || line == DONE {
            break;
        }
    }
    std::thread::sleep(delay);
    child.kill().unwrap();
    lines.for_each(|line| heard.note(&line.unwrap()));
    let status = child.wait().unwrap();
    assert_eq!(
        status.signal(),
        Some(9),
        "the second process was not killed, it ended by itself ({status}); above is what it said"
    );
    heard
}

#[test]
fn what_transactions_were_promised_survives_kills() {
    let (mut figures, seeds) = (Figures::default(), common::seeds(8));
    let (count, mut opening) = (seeds.len(), 0);
    for seed in seeds {
        let _replay = Replay { seed, test: "kills" };
        opening += history(seed, &mut figures);
    }
    println!(
        "figures: transactions in processes that are killed: {count} histories, {opening} killed while they opened, {figures}"
    );
}

/// One history. How many processes were killed before they had opened the store.
fn history(seed: u64, figures: &mut Figures) -> u64 {
    let mut rng = Rng::new(seed);
    // Where a sync costs nothing, and where commits wait for it.
    let place = match rng.one_in(2) {
        true => common::fast_dir(),
        false => tempfile::tempdir().unwrap(),
    };
    let dir = place.path();
    std::fs::create_dir(dir.join("rings")).unwrap();
    let (mut all, mut attempts, mut opening) = (Vec::new(), Vec::new(), 0);
    for life in 0..LIVES {
        let (commits, delay) = match rng.one_in(3) {
            true => (None, rng.below(LONGER_THAN_OPENING)),
            false => (Some(1 + rng.below(TRANSACTIONS / 2)), rng.below(600)),
        };
        let heard = run(dir, seed, life, commits, Duration::from_micros(delay));
        if heard.is_open {
            all.push(Life {
                attempts,
                found: heard.found,
            });
            attempts = ledger::attempts(&heard.reported, Durability::Process);
        } else {
            opening += 1;
        }
    }
    let store = open(dir, seed);
    all.push(Life {
        attempts,
        found: store.found(),
    });
    store.db.close().unwrap();
    all.iter().for_each(|life| figures.note(life));
    if let Err(what) = lives::check(&all, Mixture::new(seed, true).demand) {
        panic!("{what}");
    }
    opening
}
