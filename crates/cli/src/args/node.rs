//! `collie node`.

use std::path::PathBuf;

use clap::ValueEnum;
use collie_cluster::{EntryDurability, Layout};
use serde::{Deserialize, Serialize};

use super::address::Address;
use super::serve::{ServingArgs, size};
use super::tls::TlsArgs;

/// A node of a cluster. It runs until SIGTERM, SIGINT or SHUTDOWN. Settings given here override the configuration file,
/// which overrides the defaults; --dir, --listen and --peer have none.
#[derive(Debug, Clone, clap::Args)]
#[command(group(clap::ArgGroup::new("how").args(["bootstrap", "join"])))]
pub(crate) struct NodeArgs {
    /// The node's directory: who it is, and the first data disk unless --data says otherwise. Created
    /// if it does not exist.
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
    /// A directory on a disk for logs and data; once for each disk. Default: the node's directory.
    /// They stay what they were when the node was made.
    #[arg(long, value_name = "DISK")]
    pub(crate) data: Vec<PathBuf>,
    /// Where to listen for clients. Here and below, ADDR is an IP address or the name of a host, which
    /// is looked up once, at the start.
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Option<Address>,
    /// Where other nodes send clients, if that is not --listen: to the name of a host, where one is given.
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) advertise_client: Option<Address>,
    /// Where to listen for the other nodes. Off loopback it needs certificates.
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) peer: Option<Address>,
    /// Where the other nodes reach it, if that is not --peer. A node may be started with other addresses than before:
    /// it tells the others.
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) advertise_peer: Option<Address>,
    /// Make a new cluster, of which this is the first node. No configuration file has it: it is for the first start
    /// alone.
    #[arg(long)]
    pub(crate) bootstrap: bool,
    /// With --bootstrap: how many nodes have each partition: 1, 3 or 5. Keys are served once as many
    /// nodes are there. Default: 3.
    #[arg(long, value_name = "N", requires = "bootstrap", default_value = "3", value_parser = ["1", "3", "5"])]
    pub(crate) replicas: String,
    /// With --bootstrap: how many partitions there are, of up to 4096. Default: 32.
    #[arg(long, value_name = "N", requires = "bootstrap", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) partitions: u16,
    /// Join the cluster of these nodes: their addresses for other nodes. A node that has joined finds the others there
    /// if all of them have other addresses than before.
    #[arg(long, value_name = "ADDR:PORT", value_delimiter = ',')]
    pub(crate) join: Vec<Address>,
    /// The CA of the cluster's nodes, this node's certificate and its private key, in PEM, as `collie
    /// cluster ca` makes them: nodes speak to each other by TLS then, and a node without a certificate
    /// of the same CA is turned away. SIGHUP reads them anew.
    #[arg(long, value_name = "FILE")]
    pub(crate) peer_ca: Option<PathBuf>,
    /// See --peer-ca.
    #[arg(long, value_name = "FILE")]
    pub(crate) peer_cert: Option<PathBuf>,
    /// See --peer-ca.
    #[arg(long, value_name = "FILE")]
    pub(crate) peer_key: Option<PathBuf>,
    /// Which logs there are: one per disk (the default, at a restart too), one for all disks, or one for each partition.
    /// Another one than the last time has all logs moved; the same one keeps what `collie cluster layout` said.
    #[arg(long, value_enum)]
    pub(crate) layout: Option<LogLayout>,
    /// How leaders on this node make sure that reads are of the newest state: they ask a majority (the default), or count
    /// on a lease that a majority has given them, without a round trip. Then a read may be old where a machine's clock
    /// runs more than a tenth slower than others, or stands while the machine does.
    #[arg(long, value_enum)]
    pub(crate) reads: Option<ReadsBy>,
    /// When a replica on this node says that it has an entry: once it is on disk (the default), or in memory outside of the
    /// process. Then writes wait for no disk, and are lost where a majority of a partition's nodes lose power within a
    /// moment. A node that has lost power votes again once it has caught up.
    #[arg(long, value_enum)]
    pub(crate) durability: Option<EntriesOn>,
    /// How long the log of each data disk may become, as in 512mb or 10gb; at least 64mb. With the layout
    /// `private`, all logs of a disk together, and each has at least 32mb. Default: an eighth of the disk,
    /// from 64mb to 2gb.
    #[arg(long, value_name = "BYTES", value_parser = log_limit)]
    pub(crate) log_limit: Option<i64>,
    /// The replicas of a node that has not answered for so many seconds move to others that can take them. All
    /// nodes should be started with the same. At least 10; default: 300.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(i64::from(REPLACE_AFTER_LEAST)..))]
    pub(crate) replace_after: Option<u32>,
    /// How many bytes of tables the node sends to others in a second, where replicas move or lack more than the log
    /// has, as in 100mb, the default; 0: as many as there are.
    #[arg(long, value_name = "BYTES", value_parser = rate)]
    pub(crate) transfer_rate: Option<i64>,
    /// Nodes of one zone may fail together, as those of a rack: replicas of a partition are in different zones, where
    /// there are so many. Default: a zone of its own.
    #[arg(long, value_name = "NAME")]
    pub(crate) zone: Option<String>,
    /// The password of the clusters that rows are duplicated to is the first line of this file. It, and the files
    /// below, are read at each connection.
    #[arg(long, value_name = "FILE")]
    pub(crate) duplicate_password_file: Option<PathBuf>,
    /// Speak TLS to them: the CAs that signed what their nodes show clients, PEM.
    #[arg(long, value_name = "FILE")]
    pub(crate) duplicate_tls_ca_cert_file: Option<PathBuf>,
    /// The certificate of this node as their client, PEM, if they want one.
    #[arg(long, value_name = "FILE")]
    pub(crate) duplicate_tls_cert_file: Option<PathBuf>,
    /// Its private key, PEM.
    #[arg(long, value_name = "FILE")]
    pub(crate) duplicate_tls_key_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    #[command(flatten)]
    pub(crate) serving: ServingArgs,
}

/// The least limit of a node's log, in bytes.
pub(crate) const LOG_LIMIT_LEAST: i64 = 64 << 20;
/// The shortest time after which replicas move, in seconds.
pub(crate) const REPLACE_AFTER_LEAST: u32 = 10;

pub(super) fn log_limit(text: &str) -> Result<i64, String> {
    match size(text)? {
        bytes @ LOG_LIMIT_LEAST.. => Ok(bytes),
        _ => Err("expected at least 64mb: the largest entry has 8mb".to_owned()),
    }
}

fn rate(text: &str) -> Result<i64, String> {
    match size(text)? {
        bytes @ 0.. => Ok(bytes),
        _ => Err("expected no less than 0".to_owned()),
    }
}

/// Which logs a node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LogLayout {
    /// One for each data disk: one sync makes the commits of all partitions on it durable.
    PerDisk,
    /// One for all, on the first data disk.
    Shared,
    /// One for each partition.
    Private,
}

/// How reads are made sure of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ReadsBy {
    /// A majority is asked, once for all reads that wait.
    Index,
    /// A lease; where there is none, as by `index`.
    Lease,
}

/// Where an entry is that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EntriesOn {
    /// On disk: it survives the loss of power.
    Disk,
    /// In memory that survives the process.
    Process,
}

impl EntriesOn {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Process => "process",
        }
    }
}

impl From<EntriesOn> for EntryDurability {
    fn from(entries: EntriesOn) -> Self {
        match entries {
            EntriesOn::Disk => Self::Disk,
            EntriesOn::Process => Self::Process,
        }
    }
}

impl From<ReadsBy> for collie_server::cluster::Reads {
    fn from(reads: ReadsBy) -> Self {
        match reads {
            ReadsBy::Index => Self::Index,
            ReadsBy::Lease => Self::Lease,
        }
    }
}

impl From<LogLayout> for collie_server::cluster::LogLayout {
    fn from(layout: LogLayout) -> Self {
        match layout {
            LogLayout::PerDisk => Self::PerDisk,
            LogLayout::Shared => Self::Shared,
            LogLayout::Private => Self::Private,
        }
    }
}

impl From<LogLayout> for Layout {
    fn from(layout: LogLayout) -> Self {
        match layout {
            LogLayout::PerDisk => Self::PerDisk,
            LogLayout::Shared => Self::Shared,
            LogLayout::Private => Self::Private,
        }
    }
}
