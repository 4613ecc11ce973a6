//! `collie-lab torture`.

use std::path::PathBuf;

use clap::Subcommand;
use collie_io::{Device, RealDevice};

use crate::torture::cluster::{Entries, Fault, Product, Reads};
use crate::torture::power::{Aim, System};

#[derive(Debug, Subcommand)]
pub(crate) enum TortureCommand {
    /// Kills a process that writes, some of the time while it recovers, and looks for what it had
    /// acknowledged.
    Kill(TortureArgs),
    /// Cuts the power of a simulated device under the log at all kinds of moments, and recovers.
    Images(ImagesArgs),
    /// Runs a server on a file system that forgets what was not synced, cuts its power while many
    /// clients write and read, and checks that what was acknowledged to them is there. It needs
    /// /dev/fuse and root's rights, or fusermount3.
    Power(PowerArgs),
    /// Runs a server under a mixed load, compares every reply with a ledger, watches memory, disk
    /// and latencies, and reads everything again after a restart.
    ///
    /// It is a violation, and the exit code is 1: a reply that is not what the ledger says; more
    /// memory than buffers, cache, ring and 160 MiB for the rest; more disk than twice the live
    /// data, the log's limit and 28 MiB for what is being merged or recycled; a p99 that drifts.
    Soak(SoakArgs),
    /// Runs a server among a thousand connections that are silent or send a byte now and then, on a
    /// disk that is filled and freed, and on files that vanish.
    ///
    /// It is a violation, and the exit code is 1: a good client that waits longer than the factor
    /// says; an acknowledged write that is lost; a refusal that does not say what to do; a write
    /// that is acknowledged five seconds after the store was removed; a panic. Disk and files need
    /// a mount namespace (unshare); without one they are skipped, which is a failure where
    /// COLLIE_REQUIRE_TOOLS is set.
    Hostile(HostileArgs),
    /// Runs a cluster of real processes under clients, kills and holds nodes, cuts links between them,
    /// takes their power away, makes their disks slow or full, and checks that what the clients saw
    /// fits one order of their operations.
    ///
    /// It is a violation, and the exit code is 1: keys whose history is not linearizable, or of
    /// which the checker does not know within its limit; a counter that is less than what was
    /// acknowledged or more than that and what is unknown; a reply that a command may not have; a
    /// cluster that does not serve all slots two minutes after a fault; a node that ends by itself,
    /// save that each full disk allows one new start of its node; fewer than ten acknowledged writes
    /// in a second while one node has a slow or a full disk; a panic.
    ///
    /// With the fault duplicate there are two clusters, each of which duplicates to the other. It is a violation, too:
    /// a cluster that two minutes after all lacks something of the other one, by its own word; a key that differs
    /// between them after that; a key of both whose value is not what was written last.
    ///
    /// With the faults power, power-all, slow-disk, full and mixed, nodes of Collie are on two disks of
    /// their own each, which forget what was not synced. That needs /dev/fuse and root's rights, or
    /// fusermount3.
    Cluster(ClusterArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ClusterArgs {
    /// How many rounds, each with new keys and one to three faults.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rounds: u64,
    /// Operations of a round that are acknowledged, or whose outcome is unknown, at least.
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) operations: u64,
    /// What is done to nodes.
    #[arg(long, value_enum, default_value = "mixed")]
    pub(crate) fault: Fault,
    /// How many nodes: 3 or 5.
    #[arg(long, value_name = "N", default_value = "3", value_parser = ["3", "5"])]
    pub(crate) nodes: String,
    /// How many clients.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) clients: u16,
    /// How leaders of Collie make sure that reads are of the newest state.
    #[arg(long, value_enum, default_value = "index")]
    pub(crate) reads: Reads,
    /// What entries of Collie wait for.
    #[arg(long, value_enum, default_value = "disk")]
    pub(crate) durability: Entries,
    /// The product under test.
    #[arg(long, value_enum, default_value = "collie")]
    pub(crate) system: Product,
    /// The product's program, if not this one or the one along the path.
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
    /// For --fault upgrade: the `collie` of the version before.
    #[arg(long, value_name = "FILE")]
    pub(crate) before: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) seeded: SeededArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct HostileArgs {
    /// One part alone.
    #[arg(long, value_enum)]
    pub(crate) part: Option<HostilePart>,
    /// How many slow connections, every second one silent.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) connections: u16,
    /// How often the good client is measured, alone and beside them, for 1.5 s each.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) turns: u32,
    /// How many times its p99 alone (the median of the turns) that beside them may be.
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0)]
    pub(crate) factor: f64,
    /// Below this its p99 beside them is no violation, in µs: what a scheduler of few cores does is
    /// no fault.
    #[arg(long, value_name = "US", default_value_t = 2_000.0)]
    pub(crate) floor_us: f64,
    /// How often each heavy command is sent, in one go.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) heavy_times: u32,
    /// How long a good client's longest read beside heavy commands may take, in ms; twice that
    /// beside greedy clients. 50 are the aim on an idle machine.
    #[arg(long, value_name = "MS", default_value_t = 250.0)]
    pub(crate) heavy_ms: f64,
    #[command(flatten)]
    pub(crate) seeded: SeededArgs,
}

/// See [`HostileArgs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum HostilePart {
    /// Slow connections.
    Crowd,
    /// Small requests that work on large values, or compare much.
    Heavy,
    /// Clients that wait, or take memory.
    Greedy,
    /// A disk that is filled and freed.
    Full,
    /// A file system, a directory, a ring that go.
    Vanished,
}

impl HostilePart {
    /// Whether file systems are mounted for it.
    pub(crate) fn needs_mounts(self) -> bool {
        matches!(self, Self::Full | Self::Vanished)
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct SoakArgs {
    /// How long, after all keys were set once.
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) minutes: u64,
    #[command(flatten)]
    pub(crate) seeded: SeededArgs,
    /// The store goes into a directory `store` in here, which must not hold one, and stays; by
    /// default a temporary one is used, and kept only if something was found.
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
    /// How many times the median p99 of the first third of the run that of the last may be, where
    /// it is above 20 ms. Generous, for other work of the machine counts.
    #[arg(long, value_name = "FACTOR", default_value_t = 4.0)]
    pub(crate) drift_max: f64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PowerArgs {
    /// How many power cuts.
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rounds: u64,
    #[command(flatten)]
    pub(crate) seeded: SeededArgs,
    /// What makes a name in a directory durable: a sync of that directory, or, as with ext4's
    /// journal, any sync.
    #[arg(long, value_enum, default_value = "posix")]
    pub(crate) names: NamesArg,
    /// Aim all cuts at this.
    #[arg(long, value_enum)]
    pub(crate) aim: Option<Aim>,
    /// The product under test.
    #[arg(long, value_enum, default_value = "collie")]
    pub(crate) system: System,
    /// The product's program, if not the one beside this one or along the path.
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
}

/// See [`PowerArgs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum NamesArg {
    /// A sync of the directory.
    Posix,
    /// Any sync.
    Journal,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TortureArgs {
    /// How many kills.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rounds: u64,
    #[command(flatten)]
    pub(crate) seeded: SeededArgs,
    /// The store goes into a directory `store` in here, and stays; by default a temporary one is
    /// used, and kept only if something was found.
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ImagesArgs {
    /// How many crash images, about.
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rounds: u64,
    #[command(flatten)]
    pub(crate) seeded: SeededArgs,
}

/// What all crash tests take.
#[derive(Debug, clap::Args)]
pub(crate) struct SeededArgs {
    /// What is done, and when, follows from it; by default a new one, which is printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

impl SeededArgs {
    /// The seed that was given, or a new one.
    pub(crate) fn seed(&self) -> anyhow::Result<u64> {
        if let Some(seed) = self.seed {
            return Ok(seed);
        }
        let mut bytes = [0; 4];
        RealDevice::new().random(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes).into())
    }
}
