//! Workloads on the store, by db_bench's names.
//!
//! `--num` keys are written or read in all, shared out among the threads (db_bench gives each
//! thread that many). fillseq and fillrandom begin with a new store; overwrite and readrandom take
//! the store as the one before left it.

mod data;
mod longest;
mod run;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use collie_db::{Compression, Db, Family, FamilyOptions, Options, RingMode, WriteOptions};
use collie_io::{Device, RealDevice};
use collie_log::Level;
use serde::Serialize;

use crate::dirs;
use crate::error::{At, BenchError};
use crate::latency::{LatencySummary, median, spread};
use crate::names::{level_name, ring_name};
use crate::rng::Rng;

pub use longest::LongWrite;
use run::Measured;

/// The directory inside the one that was named which the store is put into: fills replace it.
const STORE: &str = "collie-bench";
const THREADS_MAX: usize = 1024;
const FAMILIES_MAX: usize = 1024;

/// What is done to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Workload {
    /// Writes all keys in order into a new store; each thread a part of them.
    FillSeq,
    /// Writes keys in random order, some twice, into a new store.
    FillRandom,
    /// Writes random keys over those that are there.
    Overwrite,
    /// Reads random keys.
    ReadRandom,
    /// Closes the store and opens it again, which replays what the log has and the tables have not.
    /// Operations are the commits replayed.
    Recovery,
}

impl Workload {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::FillSeq,
        Self::FillRandom,
        Self::Overwrite,
        Self::ReadRandom,
        Self::Recovery,
    ];

    /// db_bench's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FillSeq => "fillseq",
            Self::FillRandom => "fillrandom",
            Self::Overwrite => "overwrite",
            Self::ReadRandom => "readrandom",
            Self::Recovery => "recovery",
        }
    }

    /// Whether it writes.
    #[must_use]
    pub fn writes(self) -> bool {
        !matches!(self, Self::ReadRandom | Self::Recovery)
    }

    /// Whether it begins with a new store.
    #[must_use]
    pub fn begins_anew(self) -> bool {
        matches!(self, Self::FillSeq | Self::FillRandom)
    }

    /// The number of the key of an operation: the `op`th of a thread whose part of `num` keys is
    /// `limit` from `first` on.
    fn number(self, rng: &mut Rng, first: u64, limit: u64, op: u64, num: u64) -> u64 {
        match self {
            Self::FillSeq => first + op % limit.max(1),
            _ => rng.below(num),
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no [`Workload`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{found}' is no workload; there are fillseq, fillrandom, overwrite, readrandom, recovery, and log")]
pub struct UnknownWorkload {
    found: String,
}

impl FromStr for Workload {
    type Err = UnknownWorkload;

    fn from_str(word: &str) -> Result<Self, UnknownWorkload> {
        let found = Self::ALL.into_iter().find(|workload| workload.name() == word);
        found.ok_or_else(|| UnknownWorkload {
            found: word.to_owned(),
        })
    }
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct WorkloadBench {
    /// One after the other, in this order.
    pub workloads: Vec<Workload>,
    /// Keys, and operations of all threads together.
    pub num: u64,
    /// Bytes of a key.
    pub key_size: usize,
    /// Bytes of a value.
    pub value_size: usize,
    /// Threads.
    pub threads: usize,
    /// What each write waits for.
    pub durability: Level,
    /// Where the log's ring lies.
    pub ring: RingMode,
    /// No log at all.
    pub disable_wal: bool,
    /// The log is flushed by hand, that is when its buffer is half full and at the end.
    pub manual_wal_flush: bool,
    /// Compression of commits in the log.
    pub wal_compression: Compression,
    /// Past this much live log, the families that pin it are flushed.
    pub max_total_wal_size: Option<u64>,
    /// Families that the keys are spread over.
    pub families: usize,
    /// Bytes of a memtable.
    pub write_buffer_size: u64,
    /// Bytes of the block cache.
    pub cache_size: u64,
    /// Bits per key of the bloom filters.
    pub bloom_bits: u8,
    /// Compression of tables.
    pub compression: Compression,
    /// Run each workload for this long instead of for `num` operations.
    pub duration: Option<Duration>,
    /// How often the whole sequence is repeated.
    pub repeat: usize,
    /// All random choices follow from it.
    pub seed: u64,
    /// After writing, flush and wait for compaction; the time counts apart.
    pub drain: bool,
    /// All the while, merge all tables again and again.
    pub compacting: bool,
    /// Where the store goes, and stays; without it a temporary directory.
    pub dir: Option<PathBuf>,
    /// Where a temporary directory is made.
    pub temporary_in: PathBuf,
}

impl Default for WorkloadBench {
    fn default() -> Self {
        let (store, family) = (Options::default(), FamilyOptions::default());
        Self {
            workloads: Workload::ALL[..4].to_vec(),
            num: 1_000_000,
            key_size: 16,
            value_size: 100,
            threads: 1,
            durability: Level::Disk,
            ring: store.ring,
            disable_wal: false,
            manual_wal_flush: false,
            wal_compression: Compression::None,
            max_total_wal_size: None,
            families: 1,
            write_buffer_size: family.write_buffer_bytes,
            cache_size: store.cache_bytes,
            bloom_bits: family.bloom_bits,
            compression: family.compression,
            duration: None,
            repeat: 1,
            seed: 1,
            drain: false,
            compacting: false,
            dir: None,
            temporary_in: std::env::temp_dir(),
        }
    }
}

/// A workload's figures: medians over the repeats.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct WorkloadResult {
    /// The workload.
    pub bench: &'static str,
    /// Always "collie".
    pub engine: &'static str,
    /// Threads.
    pub threads: usize,
    /// What each write waited for; "none" with the log off.
    pub durability: &'static str,
    /// Where the log's ring lay; "none" with the log off.
    pub ring: &'static str,
    /// Operations of one run.
    pub ops: u64,
    /// From the first thread's start to the last one's end.
    pub seconds: f64,
    /// Operations per second of all threads.
    pub ops_per_sec: f64,
    /// The slowest repeat.
    pub ops_per_sec_min: f64,
    /// The fastest repeat.
    pub ops_per_sec_max: f64,
    /// Keys and values, in units of 2²⁰ bytes per second, as in db_bench.
    pub mb_per_sec: f64,
    /// Microseconds per operation of one thread, as in db_bench.
    pub micros_per_op: f64,
    /// Latencies of the operations that were timed.
    #[serde(flatten)]
    pub latency: LatencySummary,
    /// The longest write of those that were timed, where it took 10 ms or more.
    pub longest: Option<LongWrite>,
    /// How often all tables were merged meanwhile, where that was asked for.
    pub merges: Option<u64>,
    /// One operation in so many was timed.
    pub timed_one_in: u32,
    /// Processor time of the whole process, background threads included, in µs per operation.
    pub cpu_us_per_op: f64,
    /// Syncs of the log, or writes that were durable on return.
    pub syncs: Option<u64>,
    /// Writes per sync.
    pub writes_per_sync: Option<f64>,
    /// Bytes written to devices ÷ bytes of keys and values written, the log and its preparation
    /// included.
    pub waf: Option<f64>,
    /// Bytes of files ÷ bytes of live keys and values, the log's segments included.
    pub saf: Option<f64>,
    /// Memtables that were written to tables.
    pub flushes: u64,
    /// Those by cause, over all families: full, wal-size, manual, close, recovery.
    pub flushes_by_cause: BTreeMap<&'static str, u64>,
    /// The limit on live log that was in force; 0 with the log off.
    pub max_total_wal_size: u64,
    /// Keys found, of those that were read.
    pub found: u64,
    /// Recovery: log replayed, in units of 2²⁰ bytes per second of the whole opening.
    pub log_mb_per_sec: Option<f64>,
    /// Seconds from the last write until flush and compaction were over.
    pub drain_seconds: Option<f64>,
    /// Keys.
    pub num: u64,
    /// Bytes of a key.
    pub key_size: usize,
    /// Bytes of a value.
    pub value_size: usize,
    /// Families.
    pub families: usize,
    /// How often it was measured.
    pub repeats: usize,
}

/// What is reported to a watcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// A workload begins, for the `repeat`th time.
    Begin {
        /// Which.
        workload: Workload,
        /// From 0 on.
        repeat: usize,
    },
    /// So many of its operations are done.
    Done(u64),
}

impl WorkloadBench {
    fn check(&self) -> Result<(), BenchError> {
        let bad = |option, problem: String| Err(BenchError::Options { option, problem });
        data::check(self.num, self.key_size, self.value_size)?;
        if !(1..=THREADS_MAX).contains(&self.threads) || self.threads as u64 > self.num {
            let limit = self.num.min(THREADS_MAX as u64);
            return bad("threads", format!("{} is not from 1 to {limit}", self.threads));
        }
        if !(1..=FAMILIES_MAX).contains(&self.families) {
            return bad(
                "families",
                format!("{} is not from 1 to {FAMILIES_MAX}", self.families),
            );
        }
        if self.repeat == 0 || self.workloads.is_empty() {
            return bad("repeat", "there is nothing to measure".into());
        }
        if self.dir.is_none() && !self.workloads.first().is_some_and(|w| w.begins_anew()) {
            let problem =
                "the first workload takes a store that is there: name its directory, or fill one first";
            return bad("db", problem.into());
        }
        Ok(())
    }

    /// Measures; results come when all repeats are over, in the order of the workloads.
    ///
    /// # Errors
    /// The store's first failure, and options that cannot be measured.
    pub fn run(&self, mut watch: impl FnMut(Progress)) -> Result<Vec<WorkloadResult>, BenchError> {
        self.check()?;
        let fresh = match self.dir {
            Some(_) => None,
            None => Some(dirs::fresh(&self.temporary_in)?),
        };
        let parent = self.dir.as_deref().or(fresh.as_ref().map(dirs::Fresh::path));
        let path = parent.unwrap_or(Path::new(".")).join(STORE);
        let mut measured: Vec<Vec<Measured>> = vec![Vec::new(); self.workloads.len()];
        for repeat in 0..self.repeat {
            let mut open: Option<Open> = None;
            for (&workload, runs) in self.workloads.iter().zip(&mut measured) {
                watch(Progress::Begin { workload, repeat });
                if workload.begins_anew() {
                    if let Some(open) = open.take() {
                        open.close()?;
                    }
                    remove(&path)?;
                }
                if workload == Workload::Recovery {
                    if let Some(open) = open.take() {
                        open.close()?;
                    }
                    let (store, measured) = run::recover(|| Open::at(self, &path, false))?;
                    runs.push(measured);
                    open = Some(store);
                    continue;
                }
                let store = match open.take() {
                    Some(store) => store,
                    None => Open::at(self, &path, workload.begins_anew())?,
                };
                let progress = &mut |done| watch(Progress::Done(done));
                runs.push(run::run(self, workload, &store.db, &store.families, progress)?);
                open = Some(store);
            }
            if let Some(open) = open {
                open.close()?;
            }
        }
        if let Some(fresh) = fresh {
            fresh.remove()?;
        }
        let results = self.workloads.iter().zip(&measured);
        Ok(results
            .map(|(workload, runs)| self.result(*workload, runs))
            .collect())
    }

    fn result(&self, workload: Workload, runs: &[Measured]) -> WorkloadResult {
        let of = |figure: fn(&Measured) -> f64| median(runs.iter().map(figure));
        let maybe = |figure: fn(&Measured) -> Option<f64>| {
            let values: Vec<f64> = runs.iter().filter_map(figure).collect();
            (!values.is_empty()).then(|| median(values))
        };
        let rate = |run: &Measured| run.ops as f64 / run.seconds.max(1e-9);
        let (min, max) = spread(runs.iter().map(rate));
        let bytes_per_op = (self.key_size + self.value_size) as f64;
        let ops_per_sec = median(runs.iter().map(rate));
        let latencies: Vec<_> = runs.iter().map(|run| run.latency).collect();
        WorkloadResult {
            bench: workload.name(),
            engine: "collie",
            threads: self.threads,
            durability: if self.disable_wal {
                "none"
            } else {
                level_name(self.durability)
            },
            ring: if self.disable_wal {
                "none"
            } else {
                ring_name(&self.ring)
            },
            ops: of(|run| run.ops as f64) as u64,
            seconds: of(|run| run.seconds),
            ops_per_sec,
            ops_per_sec_min: min,
            ops_per_sec_max: max,
            mb_per_sec: ops_per_sec * bytes_per_op / f64::from(1 << 20),
            micros_per_op: of(|run| run.thread_seconds * 1e6 / run.ops.max(1) as f64),
            latency: LatencySummary::over(&latencies),
            longest: runs.iter().map(|run| run.longest).fold(None, longest::longer),
            merges: runs.iter().filter_map(|run| run.merges).reduce(u64::min),
            timed_one_in: self.timed_one_in(),
            cpu_us_per_op: of(|run| run.cpu_us_per_op),
            syncs: maybe(|run| run.syncs.map(|syncs| syncs as f64)).map(|syncs| syncs as u64),
            writes_per_sync: maybe(|run| {
                let syncs = run.syncs.filter(|syncs| *syncs > 0)?;
                Some(run.ops as f64 / syncs as f64)
            })
            .filter(|_| workload.writes()),
            waf: maybe(|run| run.waf),
            saf: maybe(|run| run.saf),
            flushes: of(|run| run.flushes.values().sum::<u64>() as f64) as u64,
            flushes_by_cause: flushes_by_cause(runs),
            max_total_wal_size: of(|run| run.max_total_wal_size as f64) as u64,
            found: of(|run| run.found as f64) as u64,
            log_mb_per_sec: maybe(|run| {
                let bytes = run.replayed_bytes? as f64;
                Some(bytes / f64::from(1 << 20) / run.seconds.max(1e-9))
            }),
            drain_seconds: maybe(|run| run.drain_seconds),
            num: self.num,
            key_size: self.key_size,
            value_size: self.value_size,
            families: self.families,
            repeats: runs.len(),
        }
    }

    /// What a thread's choices of keys come from: others for each workload, so that readrandom does
    /// not read in the order in which fillrandom wrote.
    fn rng(&self, workload: Workload, thread: usize) -> Rng {
        Rng::new(self.seed ^ (workload as u64) << 56, thread)
    }

    /// A write that waits for the device takes so much longer than reading the clock that each is
    /// timed.
    fn timed_one_in(&self) -> u32 {
        if self.is_durable() { 1 } else { 16 }
    }

    /// Whether writes wait for the device.
    fn is_durable(&self) -> bool {
        self.durability == Level::Disk && !self.disable_wal
    }

    fn write_options(&self) -> WriteOptions {
        WriteOptions {
            durability: self.durability,
            ..WriteOptions::default()
        }
    }

    /// The first key of a thread's part, and how many keys that has.
    fn share_of(&self, thread: usize) -> (u64, u64) {
        let (threads, thread) = (self.threads as u64, thread as u64);
        let first = self.num / threads * thread + thread.min(self.num % threads);
        (first, self.num / threads + u64::from(thread < self.num % threads))
    }

    fn options(&self) -> Options {
        let family = self.family_options();
        Options {
            disable_wal: self.disable_wal,
            ring: self.ring.clone(),
            manual_wal_flush: self.manual_wal_flush,
            wal_compression: self.wal_compression,
            max_total_wal_size: self.max_total_wal_size,
            cache_bytes: self.cache_size,
            durability: self.durability,
            family_options: (1..self.families)
                .map(|n| (family_name(n), family.clone()))
                .collect(),
            default_family: family,
            ..Options::default()
        }
    }

    fn family_options(&self) -> FamilyOptions {
        FamilyOptions {
            write_buffer_bytes: self.write_buffer_size,
            bloom_bits: self.bloom_bits,
            compression: self.compression,
            ..FamilyOptions::default()
        }
    }
}

/// The median of each cause.
fn flushes_by_cause(runs: &[Measured]) -> BTreeMap<&'static str, u64> {
    let causes = runs.iter().flat_map(|run| run.flushes.keys().copied());
    let count = |run: &Measured, cause| run.flushes.get(cause).copied().unwrap_or(0) as f64;
    causes
        .map(|cause| (cause, median(runs.iter().map(|run| count(run, cause))) as u64))
        .collect()
}

fn family_name(number: usize) -> String {
    format!("family {number}")
}

fn remove(path: &Path) -> Result<(), BenchError> {
    match RealDevice::new().remove_dir_all(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other.at("remove", path),
    }
}

/// A store under measurement.
struct Open {
    db: Db,
    families: Vec<Family>,
}

impl Open {
    fn at(bench: &WorkloadBench, path: &Path, anew: bool) -> Result<Self, BenchError> {
        let mut options = bench.options();
        options.create_if_missing = anew;
        if anew {
            options.family_options.clear();
        }
        let db = Db::open(path, options)?;
        let mut families = vec![db.default_family()];
        for number in 1..bench.families {
            families.push(db.open_family(&family_name(number), bench.family_options())?);
        }
        Ok(Self { db, families })
    }

    fn close(self) -> Result<(), BenchError> {
        drop(self.families);
        Ok(self.db.close()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quick() -> WorkloadBench {
        WorkloadBench {
            num: 3_000,
            threads: 3,
            families: 2,
            durability: Level::Process,
            repeat: 2,
            ..WorkloadBench::default()
        }
    }

    #[test]
    fn all_workloads_do_what_they_say() {
        let mut begun = Vec::new();
        let results = quick()
            .run(|progress| {
                if let Progress::Begin { workload, repeat } = progress {
                    begun.push((workload, repeat));
                }
            })
            .unwrap();
        assert_eq!(begun.len(), 8);
        let names: Vec<_> = results.iter().map(|r| r.bench).collect();
        assert_eq!(names, ["fillseq", "fillrandom", "overwrite", "readrandom"]);
        assert!(
            results
                .iter()
                .all(|r| r.ops == 3_000 && r.ops_per_sec > 0.0 && r.repeats == 2)
        );
        let [seq, random, over, read] = results.as_slice() else {
            panic!("{results:?}")
        };
        assert!(seq.saf.unwrap() > 1.0);
        // Not above 0: so little may still be in shared memory, and a file system in memory writes
        // nothing.
        assert!(seq.waf.unwrap() >= 0.0);
        // No more can be said: how much of the log is prepared by then is a matter of time.
        assert!(random.saf.unwrap() > 1.0);
        // 1 − 1/e of the keys are there after as many random choices as there are keys, and 1 −
        // 1/e² after twice as many; the seed fixes which.
        assert_eq!(over.saf, None);
        assert!((1_600..3_000).contains(&read.found), "{}", read.found);
        assert_eq!((read.waf, read.writes_per_sync), (None, None));
    }

    #[test]
    fn fillseq_writes_every_key_once_on_any_number_of_threads() {
        for threads in [1, 2, 7] {
            let dir = tempfile::tempdir().unwrap();
            let bench = WorkloadBench {
                threads,
                workloads: vec![Workload::FillSeq],
                dir: Some(dir.path().to_owned()),
                drain: true,
                ..quick()
            };
            let results = bench.run(|_| {}).unwrap();
            assert!(results[0].drain_seconds.is_some() && results[0].flushes >= 2);
            let db = Db::open(dir.path().join(STORE), Options::default()).unwrap();
            let count = |family: &Family| family.iter().unwrap().map(Result::unwrap).count();
            let other = db.family(&family_name(1)).unwrap();
            assert_eq!(count(&db.default_family()) + count(&other), 3_000);
        }
    }

    #[test]
    fn recovery_replays_what_the_tables_lack() {
        let bench = WorkloadBench {
            workloads: vec![Workload::FillSeq, Workload::Recovery, Workload::ReadRandom],
            ..quick()
        };
        let results = bench.run(|_| {}).unwrap();
        let [_, recovery, read] = &results[..] else {
            panic!("{results:?}")
        };
        assert_eq!((recovery.bench, recovery.ops), ("recovery", 3_000));
        assert!(recovery.log_mb_per_sec.unwrap() > 0.0);
        assert_eq!((read.found, read.log_mb_per_sec), (3_000, None));
    }

    #[test]
    fn tables_are_merged_all_the_while_where_that_is_asked_for() {
        let bench = WorkloadBench {
            workloads: vec![Workload::FillSeq, Workload::Overwrite],
            compacting: true,
            ..quick()
        };
        let results = bench.run(|_| {}).unwrap();
        assert!(
            results.iter().all(|result| result.merges >= Some(1)),
            "{results:?}"
        );
        assert_eq!(quick().run(|_| {}).unwrap()[0].merges, None);
    }

    #[test]
    fn a_duration_ends_a_run_and_the_log_can_be_off() {
        let bench = WorkloadBench {
            workloads: vec![Workload::FillRandom],
            duration: Some(Duration::from_millis(30)),
            disable_wal: true,
            repeat: 1,
            ..quick()
        };
        let result = &bench.run(|_| {}).unwrap()[0];
        assert!(result.ops > 0 && result.seconds > 0.0, "{result:?}");
        assert_eq!(
            (result.durability, result.ring, result.syncs),
            ("none", "none", None)
        );
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let refused = |bench: WorkloadBench| match bench.run(|_| {}).unwrap_err() {
            BenchError::Options { option, .. } => option,
            other => panic!("{other}"),
        };
        assert_eq!(
            refused(WorkloadBench {
                threads: 0,
                ..quick()
            }),
            "threads"
        );
        assert_eq!(refused(WorkloadBench { num: 0, ..quick() }), "num");
        assert_eq!(
            refused(WorkloadBench {
                families: 0,
                ..quick()
            }),
            "families"
        );
        let read_first = vec![Workload::ReadRandom, Workload::FillSeq];
        assert_eq!(
            refused(WorkloadBench {
                workloads: read_first,
                ..quick()
            }),
            "db"
        );
    }
}
