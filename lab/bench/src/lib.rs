//! Collie measured, side by side with other ways to do the same work.
//!
//! * [`LogBench`]: appends to Collie's log and to three lock-based ones (one mutex, the insertion
//!   locks of PostgreSQL, the link buffer of MySQL 8), by threads, frame size and durability.
//! * [`WorkloadBench`]: fillseq, fillrandom, overwrite and readrandom on the store, as db_bench
//!   does them, and recovery.
//! * [`CommitBench`] and [`OrdersBench`]: transactions on hot rows, and order entry, by when their
//!   commits release locks.
//! * [`FamiliesBench`]: what many families cost.
//! * [`LocksBench`]: row and range locks that many want.
//! * [`BesideBench`]: durable writes beside flushes and compactions, by how these share the device.
//! * [`FrontBench`]: PostgreSQL, as it is, on Collie's mount and on other storages.
//! * [`SetBench`]: many small logs in one process.
//! * [`PartitionsBench`]: partitions of a replicated store, by which logs they have.
//! * [`SyncDevice`]: a disk whose syncs take longer, or none, under any of them.
//!
//! Repeats are interleaved, so that what disturbs the machine disturbs all alike; results are
//! medians with their spread. Latencies are those of single operations; where an operation takes
//! about as long as reading the clock only one in so many is timed, and the result says so.
//!
//! Only public interfaces of the measured crates are used.

mod baselines;
mod beside;
mod contender;
mod dirs;
mod disks;
mod error;
mod families;
mod front;
mod latency;
mod locks;
mod logs;
mod names;
mod partitions;
mod rng;
mod sets;
mod syncs;
mod transactions;
mod usage;
mod workloads;

pub use beside::{BesideBench, BesideResult};
pub use disks::{Interrupt, Verified};
pub use error::BenchError;
pub use families::{FamiliesBench, FamiliesResult};
pub use front::{
    AdoptResult, CheckpointSpan, FrontBench, FrontLoad, FrontMode, FrontResult, FrontSecond, MountFigures,
    ScanResult, TransactionFigures, draw_plots, save_results,
};
pub use latency::{LatencyColumns, LatencySummary};
pub use locks::{BesideScanners, LocksBench, LocksResult};
pub use logs::{LogBench, LogKind, LogResult};
pub use names::{level_name, ring_name};
pub use partitions::{
    LogPlace, Mix, PartitionsBench, PartitionsResult, draw_partitions, median_of_partitions,
};
pub use sets::{SetBench, SetResult};
pub use syncs::SyncDevice;
pub use transactions::{
    CommitBench, CommitKind, CommitResult, OrdersBench, OrdersResult, TransactionResult, TransactionRun,
};
pub use workloads::{LongWrite, Progress, UnknownWorkload, Workload, WorkloadBench, WorkloadResult};
