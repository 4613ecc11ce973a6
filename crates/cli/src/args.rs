//! The command line.

mod address;
mod ca;
mod cluster;
mod front;
mod log;
mod node;
mod rings;
mod serve;
mod tls;
pub(crate) mod values;

use clap::{Parser, Subcommand};

pub(crate) use address::Address;
pub(crate) use ca::CaCommand;
pub(crate) use cluster::{
    AcceptLossArgs, AccessArgs, ClusterCommand, DiskArgs, DownArgs, DuplicateCommand, DuplicateNameArgs,
    LayoutArgs, NodesArgs, SplitArgs, StatusArgs, UpArgs, WhereArgs,
};
pub(crate) use front::{DrainArgs, FrontCommand, MountArgs, UmountArgs};
pub(crate) use log::LogCommand;
pub(crate) use node::{EntriesOn, LOG_LIMIT_LEAST, LogLayout, NodeArgs, REPLACE_AFTER_LEAST, ReadsBy};
pub(crate) use rings::RingsArgs;
pub(crate) use serve::{ServeArgs, ServingArgs};
pub(crate) use tls::{AuthClients, TlsArgs};

/// Collie: a transactional store built around its log.
#[derive(Debug, Parser)]
#[command(
    name = "collie",
    version,
    max_term_width = 110,
    disable_help_subcommand = true,
    arg_required_else_help = true
)]
pub(crate) struct Args {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Inspects a closed log, follows one that is in use, or truncates it at its first damage.
    #[command(subcommand)]
    Log(LogCommand),
    /// Lists the rings of logs in shared memory, and removes those whose stores are gone.
    Rings(RingsArgs),
    /// Serves a store to Redis clients, until SIGTERM, SIGINT or SHUTDOWN.
    Serve(Box<ServeArgs>),
    /// Runs a node of a cluster, which Redis Cluster clients speak to, until SIGTERM, SIGINT or SHUTDOWN.
    Node(Box<NodeArgs>),
    /// Starts and ends a cluster on this machine, and shows the state of any.
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Mounts a file system over a PostgreSQL data directory, in which pages are written whole:
    /// full_page_writes can be off. Serves until `collie umount`, SIGTERM or SIGINT; while processes
    /// use it, a signal waits for their end, and a second one detaches it from them.
    Mount(MountArgs),
    /// Makes everything in a mounted directory durable and takes the mount away. Where something
    /// cannot be made durable it says so, takes the mount away all the same, and the exit code is 1:
    /// what was synced is safe.
    Umount(UmountArgs),
    /// Brings every page of a directory home, mounted or not. A directory that was drained and
    /// unmounted is a plain one, in which PostgreSQL starts without a mount.
    Drain(DrainArgs),
    /// Shows the state of a mounted directory, or checks one that is not mounted.
    #[command(subcommand)]
    Front(FrontCommand),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        Args::command().debug_assert();
    }
}
