//! `collie mount`, `umount`, `drain` and `front`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use collie_io::Policy;

use super::serve::size;

#[derive(Debug, clap::Args)]
pub(crate) struct MountArgs {
    /// The data directory; the mount covers it.
    pub(crate) dir: PathBuf,
    /// Room for pages that are not at home, taken when the directory is mounted for the first time.
    /// Units as in 10gb. It can be raised later, and stays at least what it was.
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "1gb")]
    pub(crate) shadow: i64,
    /// Bytes of a page, where no cluster in the directory says so; default: 8192.
    #[arg(long, value_name = "BYTES")]
    pub(crate) page_size: Option<u32>,
    /// Let all users see the mount, as far as the files' permissions go. Always so for root's; for
    /// others it needs user_allow_other in /etc/fuse.conf.
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// What goes first where the device is the limit.
    #[arg(long, value_enum, default_value_t = MountPolicy::Classes)]
    pub(crate) policy: MountPolicy,
    /// How long a slow device is kept for the next read of a query before that of another one is
    /// done, in milliseconds, from 0 to 10.
    #[arg(long, value_name = "MS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=10))]
    pub(crate) idle_slice: u64,
}

/// What goes first.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum MountPolicy {
    /// Everything as it comes.
    None,
    /// The daemon's own work a piece at a time; scans share the device evenly.
    Fair,
    /// What users wait for before the daemon's own work; one query's scan before the next.
    Classes,
}

impl From<MountPolicy> for Policy {
    fn from(policy: MountPolicy) -> Policy {
        match policy {
            MountPolicy::None => Policy::None,
            MountPolicy::Fair => Policy::Fair,
            MountPolicy::Classes => Policy::Classes,
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct UmountArgs {
    /// The mounted directory.
    pub(crate) dir: PathBuf,
    /// Bring every page home first, so that the directory is a plain one afterwards. Where that
    /// fails it stays mounted.
    #[arg(long)]
    pub(crate) drain: bool,
    /// Only take away a mount whose daemon has died; leave any other as it is.
    #[arg(long, conflicts_with = "drain")]
    pub(crate) dead: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DrainArgs {
    /// The directory.
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FrontCommand {
    /// Shows the state of the daemon of a mounted directory.
    Status {
        /// The mounted directory.
        dir: PathBuf,
        /// Print one JSON object.
        #[arg(long, conflicts_with = "prometheus")]
        json: bool,
        /// Print metrics in Prometheus's text format.
        #[arg(long)]
        prometheus: bool,
    },
    /// Recovers a directory that is not mounted and reads every page that is not at home; the exit
    /// code is 1 if one is damaged, or a file with such pages is missing.
    Check {
        /// The directory.
        dir: PathBuf,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
}
