//! Reads and writes of keys at random, each waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use collie_db::Value;
use collie_io::{Clock, RealClock};
use collie_log::Worker;
use collie_server::cluster::{Partition, Refused, Route, SLOTS, Settled, slot_of};
use parking_lot::Mutex;

use super::nodes::Nodes;
use super::{LogPlace, Mix, PartitionsBench, PartitionsResult};
use crate::error::BenchError;
use crate::latency::Latencies;
use crate::rng::Rng;
use crate::usage;

/// Threads that write the keys first.
const FILLERS: usize = 64;
/// How long a row that another thread has locked is waited for.
const LOCKED: Duration = Duration::from_secs(10);
/// What a partition refuses for the moment is tried again after this time, so often.
const PAUSE: Duration = Duration::from_millis(1);
const ATTEMPTS: u32 = 10_000;

/// What threads read and write.
pub(super) struct Load<'a> {
    bench: &'a PartitionsBench,
    nodes: &'a Nodes,
    value: Value,
    /// Of each log that gets writes a second time.
    seconds: Vec<Mutex<Worker>>,
}

/// What a thread did.
struct Done {
    reads: Latencies,
    writes: Latencies,
}

impl<'a> Load<'a> {
    pub(super) fn new(bench: &'a PartitionsBench, nodes: &'a Nodes) -> Self {
        let bytes: Vec<u8> = (0..bench.value_bytes).map(|at| at as u8).collect();
        let workers = nodes.second_logs().iter().filter_map(|log| log.worker().ok());
        Self {
            bench,
            nodes,
            value: bytes.as_slice().into(),
            seconds: workers.map(Mutex::new).collect(),
        }
    }

    /// Writes all keys.
    pub(super) fn fill(&self) -> Result<(), BenchError> {
        let keys = self.bench.keys;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..FILLERS as u64)
                .map(|thread| {
                    scope.spawn(move || {
                        let own = (thread..keys).step_by(FILLERS);
                        own.into_iter().try_for_each(|key| {
                            self.bench.interrupt.check()?;
                            self.write(key)
                        })
                    })
                })
                .collect();
            threads.into_iter().try_for_each(joined)
        })
    }

    /// Measures a mix.
    pub(super) fn run(&self, mix: Mix, place: LogPlace) -> Result<PartitionsResult, BenchError> {
        let clock = RealClock;
        let (syncs, bytes, cpu) = (self.nodes.syncs(), usage::written_bytes(), usage::cpu_time());
        let (begin, stop) = (clock.monotonic(), AtomicBool::new(false));
        let all = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..mix.threads)
                .map(|thread| {
                    let stop = &stop;
                    scope.spawn(move || self.work(mix, thread, stop))
                })
                .collect();
            std::thread::sleep(self.bench.duration);
            // Relaxed: it orders nothing.
            stop.store(true, Ordering::Relaxed);
            let mut all = Done::new()?;
            for thread in threads {
                let done = joined(thread)?;
                all.reads.merge(&done.reads);
                all.writes.merge(&done.writes);
            }
            Ok::<_, BenchError>(all)
        })?;
        let seconds = (clock.monotonic() - begin) as f64 / 1e9;
        let cpu = usage::cpu_time() - cpu;
        let syncs = self.nodes.syncs() - syncs;
        let bytes = usage::written_bytes()
            .zip(bytes)
            .map(|(now, before)| now - before);
        let (reads, writes) = (all.reads.count(), all.writes.count());
        let per_write = |sum: u64| sum as f64 / writes as f64;
        Ok(PartitionsResult {
            place,
            mix: mix.to_string(),
            nodes: self.bench.nodes,
            disks: self.bench.disks,
            limit: self.bench.limit,
            sync: self.bench.sync,
            per_sec: (reads + writes) as f64 / seconds,
            reads: (reads > 0).then(|| all.reads.columns()),
            writes: (writes > 0).then(|| all.writes.columns()),
            syncs_per_write: (self.bench.sync && writes > 0).then(|| per_write(syncs)),
            bytes_per_write: bytes.filter(|_| writes > 0).map(per_write),
            processor_us: cpu as f64 / 1000.0 / (reads + writes).max(1) as f64,
        })
    }

    fn work(&self, mix: Mix, thread: usize, stop: &AtomicBool) -> Result<Done, BenchError> {
        let mut rng = Rng::new(1, thread);
        let mut done = Done::new()?;
        // Relaxed: see where it is stored.
        while !stop.load(Ordering::Relaxed) {
            let reads = rng.below((mix.reads + mix.writes).into()) < mix.reads.into();
            let key = rng.below(self.bench.keys);
            let begin = RealClock.monotonic();
            match reads {
                true => self.read(key)?,
                false => self.write(key)?,
            }
            let latencies = match reads {
                true => &mut done.reads,
                false => &mut done.writes,
            };
            latencies.add(RealClock.monotonic() - begin);
        }
        Ok(done)
    }

    /// Where a slot is led.
    fn partition(&self, slot: u16) -> Option<Arc<dyn Partition>> {
        let mut clusters = self.nodes.clusters().iter();
        clusters.find_map(|cluster| match cluster.route(slot) {
            Route::Here(partition) => Some(partition),
            Route::At(_) | Route::Nowhere => None,
        })
    }

    /// Does something until it is done, as clients do that are to try again.
    fn until_done(
        &self,
        slot: u16,
        mut attempt: impl FnMut(&dyn Partition) -> Attempt,
    ) -> Result<(), BenchError> {
        let _inside = self.nodes.runtime().enter();
        for _ in 0..ATTEMPTS {
            match self.partition(slot).map(|partition| attempt(&*partition)) {
                Some(Ok(settling)) => match self.nodes.runtime().handle().block_on(settling) {
                    Settled::Holds => return Ok(()),
                    Settled::TryAgain | Settled::Unknown => {}
                },
                Some(Err(Refused::Text(problem))) => return Err(refused(problem)),
                Some(Err(_)) | None => std::thread::sleep(PAUSE),
            }
        }
        Err(refused("it refuses for seconds".to_owned()))
    }

    fn write(&self, key: u64) -> Result<(), BenchError> {
        let (name, slot) = name(key);
        self.until_done(slot, |partition| {
            let evaluation = partition.begin(slot, &[&name], LOCKED)?;
            let changes = vec![(name.clone(), Some(self.value.clone()))];
            evaluation.finish(changes, 0)
        })?;
        if !self.seconds.is_empty() {
            let log = usize::from(slot) * self.seconds.len() / usize::from(SLOTS);
            if let Some(worker) = self.seconds.get(log) {
                worker.lock().append(0, 1, &self.value)?;
            }
        }
        Ok(())
    }

    fn read(&self, key: u64) -> Result<(), BenchError> {
        let (name, slot) = name(key);
        let mut found = false;
        self.until_done(slot, |partition| {
            let leadership = partition.leadership().ok_or(Refused::NotNow)?;
            let applied = partition.applied()?;
            found = applied.get(slot, &name)?.is_some();
            Ok(partition.confirm(leadership, partition.slots(), None))
        })?;
        match found {
            true => Ok(()),
            false => Err(BenchError::Inconsistent {
                what: format!("key {key} is not there, which was written"),
            }),
        }
    }
}

type Attempt = Result<collie_server::cluster::Settling, Refused>;

impl Done {
    fn new() -> Result<Self, BenchError> {
        Ok(Self {
            reads: Latencies::new()?,
            writes: Latencies::new()?,
        })
    }
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T, BenchError>>) -> Result<T, BenchError> {
    thread.join().unwrap_or(Err(BenchError::Panicked))
}

fn refused(said: String) -> BenchError {
    BenchError::Program {
        program: "a partition".to_owned(),
        said,
    }
}

fn name(key: u64) -> (Vec<u8>, u16) {
    let name = format!("key:{key:012}").into_bytes();
    let slot = slot_of(&name);
    (name, slot)
}
