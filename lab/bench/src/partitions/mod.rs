//! Partitions of a replicated store, by which logs they have: Pegasus' measurement of shared against private logs.
//!
//! Each layout has a cluster of its own, in this process: what is measured is raft, its log and the state machines,
//! without servers. The layouts take turns, each round in another order. [`nodes`] starts a cluster, [`load`] reads and writes.

mod load;
mod nodes;
mod plots;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

use crate::dirs::{Fresh, fresh};
use crate::disks::{Disk, FileSystem, Group, Image, Interrupt, is_there, verify};
use crate::error::BenchError;
use crate::latency::LatencyColumns;
use load::Load;
use nodes::Nodes;

pub use plots::draw_partitions;

/// Where the logs of partitions are. Tables are always on all disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogPlace {
    /// A shared log on the first disk, which writes wait for, and private ones that they do not wait for: what
    /// Pegasus had.
    Dual,
    /// One shared log, on the first disk.
    Shared,
    /// A private log each, all on the first disk: Pegasus' "home".
    Home,
    /// A private log each, on the disk of its tables: Pegasus' "data".
    Data,
    /// A log for each disk.
    PerDisk,
}

impl LogPlace {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Dual, Self::Shared, Self::Home, Self::Data, Self::PerDisk];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Dual => "dual",
            Self::Shared => "shared",
            Self::Home => "home",
            Self::Data => "data",
            Self::PerDisk => "per-disk",
        }
    }
}

/// Reads to writes, and how many threads do them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Mix {
    /// So many reads
    pub reads: u32,
    /// to so many writes.
    pub writes: u32,
    /// By so many threads, each of which waits for each operation.
    pub threads: usize,
}

impl Mix {
    /// Pegasus' seven.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mix = |(reads, writes, threads)| Self {
            reads,
            writes,
            threads,
        };
        let all = [
            (0, 1, 15),
            (1, 0, 50),
            (1, 1, 30),
            (1, 3, 15),
            (1, 30, 15),
            (3, 1, 30),
            (30, 1, 50),
        ];
        all.map(mix).into()
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}@{}", self.reads, self.writes, self.threads)
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('@').and_then(|(ratio, threads)| {
            let (reads, writes) = ratio.split_once(':')?;
            Some(Self {
                reads: reads.parse().ok()?,
                writes: writes.parse().ok()?,
                threads: threads.parse().ok()?,
            })
        });
        let mix = parts.filter(|mix| mix.reads + mix.writes > 0 && (1..=1000).contains(&mix.threads));
        mix.ok_or_else(|| "expected reads:writes@threads, as in 1:3@15".to_owned())
    }
}

/// A comparison of the places of logs.
#[derive(Debug, Clone)]
pub struct PartitionsBench {
    /// Where the logs are, each in a cluster of its own.
    pub places: Vec<LogPlace>,
    /// What is done in each cluster, one after the other.
    pub mixes: Vec<Mix>,
    /// How many nodes have a replica of each partition: 1 or 3, all in this process.
    pub nodes: usize,
    /// How many partitions.
    pub partitions: u16,
    /// Keys that are written before anything is measured, and read and written at random then.
    pub keys: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Disks of a node: directories, or with a limit file systems in images on loop devices.
    pub disks: usize,
    /// Bytes per second that each disk takes at most.
    pub limit: Option<u64>,
    /// Bytes of the image of a disk.
    pub image_bytes: u64,
    /// Whether a write waits until it is on the device; otherwise nothing is synced at all.
    pub sync: bool,
    /// How long each mix is measured.
    pub duration: Duration,
    /// How often all of it is done.
    pub rounds: usize,
    /// All files go into a new directory in here.
    pub dir: PathBuf,
    /// Asks it to stop.
    pub interrupt: Interrupt,
}

/// One mix in one cluster.
#[derive(Debug, Clone, Serialize)]
pub struct PartitionsResult {
    /// Where the logs were.
    pub place: LogPlace,
    /// What was done.
    pub mix: String,
    /// Nodes with a replica each.
    pub nodes: usize,
    /// Disks of a node.
    pub disks: usize,
    /// Bytes per second that each took at most.
    pub limit: Option<u64>,
    /// Whether writes were synced.
    pub sync: bool,
    /// Operations per second.
    pub per_sec: f64,
    /// Each read.
    pub reads: Option<LatencyColumns>,
    /// Each write.
    pub writes: Option<LatencyColumns>,
    /// Syncs of logs per write, where there are any.
    pub syncs_per_write: Option<f64>,
    /// Bytes that this process wrote to files per write, tables included.
    pub bytes_per_write: Option<f64>,
    /// Processor time per operation, in microseconds.
    pub processor_us: f64,
}

/// Of each place and mix the run with the median throughput, in the order of the first runs; of an even number the lower
/// of the middle two.
#[must_use]
pub fn median_of_partitions(results: &[PartitionsResult]) -> Vec<PartitionsResult> {
    let mut medians: Vec<PartitionsResult> = Vec::new();
    for one in results {
        if medians
            .iter()
            .any(|known| known.place == one.place && known.mix == one.mix)
        {
            continue;
        }
        let same = results
            .iter()
            .filter(|other| other.place == one.place && other.mix == one.mix);
        let mut same: Vec<_> = same.collect();
        same.sort_by(|a, b| a.per_sec.total_cmp(&b.per_sec));
        medians.extend(same.get((same.len() - 1) / 2).map(|median| (*median).clone()));
    }
    medians
}

/// What lies below a measurement. Dropped in this order.
struct Place {
    disks: Vec<Disk>,
    _images: Vec<Image>,
    group: Option<Group>,
    _dir: Fresh,
}

impl PartitionsBench {
    /// How many mixes are measured in all.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.rounds * self.places.len() * self.mixes.len()
    }

    /// Measures; calls `stage` with what comes next, and `done` with each result.
    ///
    /// # Errors
    /// An option out of its range, what a limit needs and is not there, and what a cluster reports.
    pub fn run(
        &self,
        mut stage: impl FnMut(&str),
        mut done: impl FnMut(PartitionsResult),
    ) -> Result<(), BenchError> {
        self.check()?;
        for round in 0..self.rounds {
            // None is always the first, nor behind the same one: what was removed is discarded for a while.
            let mut places = self.places.clone();
            places.rotate_left(round % self.places.len().max(1));
            for log_place in places {
                self.interrupt.check()?;
                stage(&format!("{}: disks", log_place.name()));
                let mut place = self.place()?;
                stage(&format!("{}: writes all keys", log_place.name()));
                let nodes = Nodes::start(self, log_place, &place.dirs())?;
                let load = Load::new(self, &nodes);
                load.fill()?;
                place.limit(self.limit)?;
                for &mix in &self.mixes {
                    self.interrupt.check()?;
                    stage(&format!("{}: {mix}", log_place.name()));
                    done(load.run(mix, log_place)?);
                }
                place.lift()?;
                drop(load);
                nodes.close()?;
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), BenchError> {
        let wrong = |option, problem: &str| {
            let problem = problem.to_owned();
            Err(BenchError::Options { option, problem })
        };
        if self.places.is_empty() || self.mixes.is_empty() || self.rounds == 0 {
            return wrong("--layouts, --mixes, --repeat", "there is nothing to measure");
        }
        if ![1, 3].contains(&self.nodes) {
            return wrong("--nodes", "expected 1 or 3");
        }
        if !(1..=4096).contains(&self.partitions) || self.keys == 0 || self.disks == 0 {
            return wrong(
                "--partitions, --keys, --disks",
                "expected at least 1, of partitions at most 4096",
            );
        }
        if self.limit.is_some() && self.nodes > 1 {
            return wrong(
                "--limit",
                "the disks of one node alone are limited: expected --nodes 1",
            );
        }
        let tools = [
            ("losetup", "mount"),
            ("dd", "coreutils"),
            ("mkfs.ext4", "e2fsprogs"),
        ];
        match tools
            .iter()
            .find(|(tool, _)| self.limit.is_some() && !is_there(tool))
        {
            Some((tool, package)) => Err(BenchError::Missing {
                what: format!("--limit: {tool} is not there: install Debian's package {package}"),
            }),
            None => Ok(()),
        }
    }

    fn place(&self) -> Result<Place, BenchError> {
        let dir = fresh(&self.dir)?;
        let at = |what: &str, number: usize| dir.path().join(format!("{what}-{number}"));
        let Some(limit) = self.limit else {
            let disks = (0..self.disks * self.nodes).map(|disk| Disk::directory(at("disk", disk)));
            return Ok(Place {
                disks: disks.collect::<Result<_, _>>()?,
                _images: Vec::new(),
                group: None,
                _dir: dir,
            });
        };
        let mut group = Group::enter()?;
        let (mut images, mut disks) = (Vec::new(), Vec::new());
        for number in 0..self.disks {
            let image = Image::new(at("image", number), self.image_bytes, &self.interrupt)?;
            let disk = Disk::image(at("disk", number), &image, FileSystem::Ext4, &self.interrupt)?;
            if let Some(device) = disk.device() {
                group.limit(device, limit)?;
                let verified = verify(disk.at(), limit, &self.interrupt);
                group.lift()?;
                verified?;
            }
            images.push(image);
            disks.push(disk);
        }
        Ok(Place {
            disks,
            _images: images,
            group: Some(group),
            _dir: dir,
        })
    }
}

impl Place {
    fn dirs(&self) -> Vec<PathBuf> {
        self.disks.iter().map(|disk| disk.at().to_owned()).collect()
    }

    /// Limits all disks from now on.
    fn limit(&mut self, limit: Option<u64>) -> Result<(), BenchError> {
        let (Some(limit), Some(group)) = (limit, &mut self.group) else {
            return Ok(());
        };
        let devices = self.disks.iter().filter_map(Disk::device);
        devices
            .into_iter()
            .try_for_each(|device| group.limit(device, limit))
    }

    fn lift(&mut self) -> Result<(), BenchError> {
        self.group.as_mut().map_or(Ok(()), Group::lift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_reads_as_it_is_written() {
        for mix in Mix::all() {
            assert_eq!(mix.to_string().parse(), Ok(mix));
        }
        for wrong in ["", "1:3", "0:0@5", "1:3@0", "1:3@1001", "a:3@5"] {
            assert!(wrong.parse::<Mix>().is_err(), "{wrong}");
        }
    }

    /// Every place of logs serves, alone and on three nodes.
    #[test]
    fn each_place_of_logs_is_measured() {
        let all = LogPlace::ALL.as_slice();
        let few = &[LogPlace::Dual, LogPlace::Home][..];
        for (nodes, sync, places) in [(1, true, all), (1, false, few), (3, true, few)] {
            let dir = tempfile::tempdir().unwrap();
            let bench = PartitionsBench {
                places: places.into(),
                mixes: vec!["1:1@2".parse().unwrap()],
                nodes,
                partitions: 4,
                keys: 100,
                value_bytes: 100,
                disks: 2,
                limit: None,
                image_bytes: 0,
                sync,
                duration: Duration::from_millis(200),
                rounds: 1,
                dir: dir.path().to_owned(),
                interrupt: Interrupt::default(),
            };
            let mut results = Vec::new();
            bench.run(|_| {}, |result| results.push(result)).unwrap();
            assert_eq!(results.len(), places.len());
            for result in results {
                let PartitionsResult {
                    reads: Some(reads),
                    writes: Some(writes),
                    syncs_per_write,
                    ..
                } = result
                else {
                    panic!("{result:?}")
                };
                assert_eq!(syncs_per_write.is_some(), sync);
                assert!(result.per_sec > 0.0 && reads.min_us <= reads.avg_us, "{result:?}");
                assert!(writes.p95_us <= writes.p9999_us, "{result:?}");
            }
            assert_eq!(
                collie_io::Device::list(&collie_io::RealDevice::new(), dir.path())
                    .unwrap()
                    .len(),
                0,
                "it is taken away"
            );
        }
    }
}
