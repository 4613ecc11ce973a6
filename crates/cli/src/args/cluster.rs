//! `collie cluster`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Subcommand;

use super::address::address;
use super::ca::CaCommand;
use super::node::{EntriesOn, LogLayout, ReadsBy, log_limit};

/// A cluster on this machine, to try, and the state of any.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Starts a cluster of several nodes on this machine, each a process of its own, or starts the one
    /// in the directory again. Waits until it serves all keys; the nodes run on in the background.
    Up(UpArgs),
    /// Ends the nodes of the cluster in a directory, in order. `up` starts them again.
    Down(DownArgs),
    /// Makes a CA for a cluster, and certificates by which its nodes authenticate each other.
    #[command(subcommand)]
    Ca(CaCommand),
    /// Shows the nodes of a cluster, and what a client would meet. The exit code is 0 where all slots are
    /// served and nothing is wrong, 1 where all are served but a node is away or has a problem, 3 where
    /// some are not served, and 4 where no node can be asked.
    Status(StatusArgs),
    /// Lists the nodes of a cluster: whether each is to have replicas, how many it has and leads, and how
    /// many are on their way.
    Nodes(NodesArgs),
    /// Lists the partitions of a cluster: which slots each has, which node leads it, which have it, and whether it is
    /// served, moves or is split.
    Partitions(NodesArgs),
    /// Moves the replicas of a node to other nodes: it stays in the cluster, without any. With --disk: those on one of its
    /// data disks to its others; `status` says when the node can be started without that one.
    Drain(DiskArgs),
    /// Lets a node have replicas again that was drained, or was to be removed; with --disk, a disk of it.
    Serve(DiskArgs),
    /// Moves the replicas of a node, also of a dead one, to other nodes, and removes it from the cluster. It
    /// can then only join anew, with an empty directory.
    Remove(OneNodeArgs),
    /// Moves the replicas of a node, also of a dead one, to one that has joined in its place, and removes it
    /// from the cluster.
    Replace(ReplaceArgs),
    /// Moves the logs of a node's replicas, while they serve: to one log for all, one per disk, or one for each
    /// partition. `status` shows how many are still to move.
    Layout(LayoutArgs),
    /// Splits a partition, while it serves: a slot of it and all behind go to a new partition, on the same nodes.
    /// `partitions` shows which slots a partition has.
    Split(SplitArgs),
    /// Has the rows of a cluster go to another one, too: first all that are there, then each that changes.
    #[command(subcommand)]
    Duplicate(DuplicateCommand),
    /// After most nodes of a partition lost power with `collie node --durability process`, and no leader is found: has
    /// its replicas go on with what they have. Writes that were acknowledged may be lost. All nodes have to answer, as
    /// any may have what others have lost.
    AcceptLoss(AcceptLossArgs),
    /// After an upgrade of all nodes: has the cluster use what the new version can. Before that, nodes can go
    /// back to the version before.
    Finalize(WhereArgs),
}

/// The clusters that get the rows of a cluster. Both ways are possible: of two changes of a key the later one wins.
#[derive(Debug, Subcommand)]
pub(crate) enum DuplicateCommand {
    /// Has the rows go to another cluster. Asked for again with other addresses, these are used.
    Add(DuplicateAddArgs),
    /// Has nothing go to it any more. What it has stays there.
    End(DuplicateNameArgs),
    /// Lists these clusters, and what each of them lacks.
    List(NodesArgs),
    /// Has nothing go to it for now. The log keeps what it lacks, within its limit.
    Pause(DuplicateNameArgs),
    /// Has it get what it lacks: all again where the log does not have that any more.
    Resume(DuplicateNameArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct DuplicateAddArgs {
    /// A name for the other cluster.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Nodes of it: the addresses that its clients use. One that answers is enough. This cluster's nodes connect with
    /// what `collie node --duplicate-password-file` and --duplicate-tls-ca-cert-file name.
    #[arg(value_name = "HOST:PORT", required = true)]
    pub(crate) addresses: Vec<String>,
    #[command(flatten)]
    pub(crate) at: WhereArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DuplicateNameArgs {
    /// The name that it was given.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) at: WhereArgs,
}

// The nodes that are asked.
#[derive(Debug, clap::Args)]
pub(crate) struct WhereArgs {
    /// The directory of a cluster that `up` has started.
    #[arg(long, default_value = "collie-cluster", conflicts_with = "node")]
    pub(crate) dir: PathBuf,
    /// Ask the first of these nodes that answers instead: the addresses that clients use.
    #[arg(long, value_name = "ADDR:PORT", value_delimiter = ',', value_parser = address)]
    pub(crate) node: Vec<SocketAddr>,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct NodesArgs {
    /// Print one JSON object per line of the table.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) at: WhereArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct OneNodeArgs {
    /// The node, by its number, as `nodes` lists it.
    #[arg(value_name = "NUMBER")]
    pub(crate) number: u64,
    #[command(flatten)]
    pub(crate) at: WhereArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DiskArgs {
    /// The node, by its number, as `nodes` lists it.
    #[arg(value_name = "NUMBER")]
    pub(crate) number: u64,
    /// Only this data disk of the node, counted from 0, in the order of its --data.
    #[arg(long, value_name = "N")]
    pub(crate) disk: Option<u32>,
    #[command(flatten)]
    pub(crate) at: WhereArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReplaceArgs {
    /// The node that goes, by its number, as `nodes` lists it.
    #[arg(value_name = "NUMBER")]
    pub(crate) number: u64,
    /// The node that gets its replicas.
    #[arg(value_name = "BY")]
    pub(crate) by: u64,
    #[command(flatten)]
    pub(crate) at: WhereArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LayoutArgs {
    /// The node, by its number, as `nodes` lists it.
    #[arg(value_name = "NUMBER")]
    pub(crate) number: u64,
    /// Where the logs are to be.
    #[arg(value_enum)]
    pub(crate) layout: LogLayout,
    /// Only of the partitions on this data disk of the node, counted from 0.
    #[arg(long, value_name = "N", conflicts_with = "partition")]
    pub(crate) disk: Option<u32>,
    /// Only of this partition, by its number, as `partitions` lists it.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) partition: Option<u64>,
    #[command(flatten)]
    pub(crate) at: WhereArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AcceptLossArgs {
    /// Nodes, by their numbers, that do not come back: what they alone have is given up.
    #[arg(long, value_name = "NUMBER", value_delimiter = ',')]
    pub(crate) without: Vec<u64>,
    #[command(flatten)]
    pub(crate) at: WhereArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SplitArgs {
    /// The first slot of the new partition.
    #[arg(value_name = "SLOT", value_parser = clap::value_parser!(u16).range(1..=16383))]
    pub(crate) slot: u16,
    #[command(flatten)]
    pub(crate) at: WhereArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct UpArgs {
    /// The directory of the cluster: a directory and a file of diagnostics for each node.
    #[arg(long, default_value = "collie-cluster")]
    pub(crate) dir: PathBuf,
    /// How many nodes. Default: 3. A partition has three replicas, on nodes of which one may fail; with
    /// one node or two it has one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=9))]
    pub(crate) nodes: Option<u16>,
    /// The port of the first node on 127.0.0.1; the others have the ports behind it, and each speaks to
    /// the others at its port + 10000. Default: 7001.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1024..=50000))]
    pub(crate) port: Option<u16>,
    /// How long the log of each node that is started now may become: see `collie node --log-limit`.
    #[arg(long, value_name = "BYTES", value_parser = log_limit)]
    pub(crate) log_limit: Option<i64>,
    /// How leaders on the nodes that are started now make sure of reads: see `collie node --reads`.
    #[arg(long, value_enum)]
    pub(crate) reads: Option<ReadsBy>,
    /// When replicas on the nodes that are started now say that they have an entry: see `collie node --durability`.
    #[arg(long, value_enum)]
    pub(crate) durability: Option<EntriesOn>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DownArgs {
    /// The directory of the cluster.
    #[arg(long, default_value = "collie-cluster")]
    pub(crate) dir: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    /// The directory of a cluster that `up` has started.
    #[arg(long, default_value = "collie-cluster", conflicts_with = "node")]
    pub(crate) dir: PathBuf,
    /// Ask these nodes instead, of any cluster, and all that they name: the addresses that clients use.
    /// One that answers is enough.
    #[arg(long, value_name = "ADDR:PORT", value_delimiter = ',', value_parser = address)]
    pub(crate) node: Vec<SocketAddr>,
    /// Print one JSON object per node, and one for the cluster.
    #[arg(long)]
    pub(crate) json: bool,
    /// Show it again every so many seconds, 2 if no number is given, until SIGINT or SIGTERM; a terminal shows the last
    /// one alone. The exit code is that of the last one. Nodes that do not answer delay it by 3 s.
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = "2",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub(crate) watch: Option<u32>,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

// The password and TLS of connections to the nodes, as for any client.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct AccessArgs {
    /// The password is the first line of this file. Without it, that is in COLLIE_PASSWORD, if it is set.
    #[arg(long, value_name = "FILE", conflicts_with = "password")]
    pub(crate) password_file: Option<PathBuf>,
    /// The password. Every user of this machine can see it here.
    #[arg(long, value_name = "PASSWORD")]
    pub(crate) password: Option<String>,
    /// Speak TLS: the CAs that signed what the nodes show their clients, PEM.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca_cert_file: Option<PathBuf>,
    /// The certificate of this client, PEM.
    #[arg(long, value_name = "FILE", requires_all = ["tls_key_file", "tls_ca_cert_file"])]
    pub(crate) tls_cert_file: Option<PathBuf>,
    /// Its private key, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub(crate) tls_key_file: Option<PathBuf>,
    /// The nodes' certificates are for this name, and not for their addresses.
    #[arg(long, value_name = "NAME", requires = "tls_ca_cert_file")]
    pub(crate) tls_name: Option<String>,
}
