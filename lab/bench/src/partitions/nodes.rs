//! The nodes of a cluster in this process.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use collie_cluster::{
    Begin, ClusterNode, ClusterOptions, Layout, NodeLogOptions, NodeStoreOptions, PlainTcp,
};
use collie_db::{Options, Shared, SharedOptions};
use collie_io::{Device, RealDevice};
use collie_log::{Log, LogOptions, LogSet, LogSetOptions, RingMode, WritePath};
use collie_server::cluster::Cluster;
use tokio::runtime::{Builder, Runtime};

use super::{LogPlace, PartitionsBench};
use crate::error::{At, BenchError};
use crate::syncs::SyncDevice;

/// As `collie node` has it.
const OWN_RING_BYTES: usize = 1 << 20;
const SMALL_RING_BYTES: usize = 16 << 20;
const SMALL_SEGMENT_BYTES: u64 = 4 << 20;
const SMALL_CACHE_BYTES: u64 = 4 << 20;
/// A cluster serves within this time, or something is wrong.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(20);

/// A cluster that serves all slots.
pub(super) struct Nodes {
    runtime: Runtime,
    nodes: Vec<ClusterNode>,
    /// As a server sees it, of each node.
    clusters: Vec<Arc<dyn Cluster>>,
    /// Logs that get each write a second time, by partition.
    seconds: Vec<Log>,
}

fn failed(what: &'static str, problem: impl ToString) -> BenchError {
    BenchError::Program {
        program: what.to_owned(),
        said: problem.to_string(),
    }
}

impl Nodes {
    /// Starts the nodes on these disks, each on as many.
    pub(super) fn start(
        bench: &PartitionsBench,
        place: LogPlace,
        disks: &[PathBuf],
    ) -> Result<Self, BenchError> {
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.thread_name("collie-node").enable_all().build();
        let runtime = runtime.map_err(|error| failed("tokio", error))?;
        let device: Arc<dyn Device> = match bench.sync {
            true => Arc::new(RealDevice::new()),
            false => Arc::new(SyncDevice::without_syncs()),
        };
        let (mut nodes, mut first) = (Vec::new(), None);
        for disks in disks.chunks(bench.disks) {
            let peer = free_address()?;
            let options = options(bench, place, disks, &device, peer)?;
            let begin = match first {
                None => Begin::Bootstrap {
                    replicas: bench.nodes as u8,
                    partitions: bench.partitions,
                    voters: bench.nodes as u8,
                },
                Some(first) => Begin::Join(vec![first]),
            };
            first.get_or_insert(peer);
            let node = runtime.block_on(ClusterNode::start(PlainTcp, options, begin));
            nodes.push(node.map_err(|error| failed("a node", error))?);
        }
        let clusters: Vec<_> = nodes.iter().map(ClusterNode::cluster).collect();
        let seconds = match place {
            LogPlace::Dual => second_logs(bench, disks, &device)?,
            _ => Vec::new(),
        };
        let this = Self {
            runtime,
            nodes,
            clusters,
            seconds,
        };
        this.wait_until_served(bench)?;
        Ok(this)
    }

    fn wait_until_served(&self, bench: &PartitionsBench) -> Result<(), BenchError> {
        for _ in 0..PATIENCE.as_millis() / LOOK.as_millis() {
            bench.interrupt.check()?;
            let led: usize = self.clusters.iter().map(|cluster| cluster.led().len()).sum();
            if led == usize::from(bench.partitions) {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
        let problems = self.clusters.iter().flat_map(|cluster| cluster.problems());
        let problems = problems.collect::<Vec<_>>().join("; ");
        Err(failed("a cluster", format!("it does not serve: {problems}")))
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(super) fn clusters(&self) -> &[Arc<dyn Cluster>] {
        &self.clusters
    }

    pub(super) fn second_logs(&self) -> &[Log] {
        &self.seconds
    }

    /// Syncs of all logs so far.
    pub(super) fn syncs(&self) -> u64 {
        let figures = self.clusters.iter().flat_map(|cluster| cluster.figures());
        let syncs = figures.filter(|figure| figure.name == "collie_cluster_log_syncs_total");
        let of_nodes: u64 = syncs
            .flat_map(|figure| figure.samples)
            .map(|(_, syncs)| syncs)
            .sum();
        of_nodes + self.seconds.iter().map(|log| log.stats().syncs).sum::<u64>()
    }

    pub(super) fn close(self) -> Result<(), BenchError> {
        drop(self.clusters);
        for node in self.nodes {
            let closed = self.runtime.block_on(node.close());
            closed.map_err(|error| failed("a node", error))?;
        }
        self.seconds.into_iter().try_for_each(Log::close)?;
        Ok(())
    }
}

fn free_address() -> Result<SocketAddr, BenchError> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(|error| failed("a port", error))?;
    listener.local_addr().map_err(|error| failed("a port", error))
}

fn options(
    bench: &PartitionsBench,
    place: LogPlace,
    disks: &[PathBuf],
    device: &Arc<dyn Device>,
    peer: SocketAddr,
) -> Result<ClusterOptions, BenchError> {
    let Some(first) = disks.first() else {
        return Err(failed("a node", "it has no disk"));
    };
    let shared = Shared::new(SharedOptions::default())?;
    let set = LogSet::new(LogSetOptions::default())?;
    let mut options = ClusterOptions::new(first.join("node"), peer, free_address()?);
    options.own = Options {
        shared: Some(shared.clone()),
        ring: RingMode::Private,
        ring_bytes: OWN_RING_BYTES,
        segment_bytes: OWN_RING_BYTES as u64,
        reserve_bytes: Some(0),
        device: Arc::clone(device),
        ..Options::default()
    };
    let log = log_options(bench, device);
    options.store = NodeStoreOptions {
        disks: disks.to_vec(),
        layout: match place {
            LogPlace::Dual | LogPlace::Shared => Layout::Shared,
            LogPlace::PerDisk => Layout::PerDisk,
            LogPlace::Home | LogPlace::Data => Layout::Private,
        }
        .into(),
        shared: NodeLogOptions {
            log: log.clone(),
            ..NodeLogOptions::default()
        },
        private: NodeLogOptions {
            log: small(log),
            cache_bytes: SMALL_CACHE_BYTES,
            ..NodeLogOptions::default()
        },
        set: Some(set),
        ..NodeStoreOptions::default()
    };
    options.machine.db = Options {
        shared: Some(shared),
        max_row_locks: 1 << 26,
        device: Arc::clone(device),
        ..Options::default()
    };
    if place == LogPlace::Home {
        disks.iter().skip(1).zip(1..).try_for_each(|(disk, number)| {
            let home = first.join(format!("raft-of-disk-{number}"));
            device.create_dir_all(&home).at("make", &home)?;
            let link = disk.join("raft");
            device.symlink(&home, &link).at("link", &link)
        })?;
    }
    Ok(options)
}

fn log_options(bench: &PartitionsBench, device: &Arc<dyn Device>) -> LogOptions {
    let options = LogOptions {
        ring: RingMode::Private,
        device: Arc::clone(device),
        ..LogOptions::default()
    };
    match bench.sync {
        true => options,
        // Writes past the page cache would be durable by themselves.
        false => LogOptions {
            write_path: WritePath::FdataSync,
            ..options
        },
    }
}

fn small(options: LogOptions) -> LogOptions {
    LogOptions {
        ring_bytes: SMALL_RING_BYTES,
        segment_bytes: SMALL_SEGMENT_BYTES,
        reserve_bytes: Some(0),
        ..options
    }
}

/// A log for each partition on the disks of the first node, which nothing waits for.
fn second_logs(
    bench: &PartitionsBench,
    disks: &[PathBuf],
    device: &Arc<dyn Device>,
) -> Result<Vec<Log>, BenchError> {
    let set = LogSet::new(LogSetOptions::default())?;
    let options = LogOptions {
        set: Some(set),
        ..small(log_options(bench, device))
    };
    let disk = |number: usize| {
        disks
            .get(number % bench.disks)
            .map_or(Path::new(""), PathBuf::as_path)
    };
    let logs = (0..usize::from(bench.partitions)).map(|number| {
        let dir = disk(number).join(format!("second-{number}"));
        Log::open(dir, options.clone())
    });
    Ok(logs.collect::<Result<_, _>>()?)
}
