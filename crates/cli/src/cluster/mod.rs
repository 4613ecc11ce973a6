//! `collie cluster`: a cluster on this machine, and the state of any.

mod access;
mod ca;
mod local;
mod status;
mod up;
mod verdict;

use std::time::Duration;

use collie_cli::Outcome;

use crate::args::ClusterCommand;

/// A node that runs answers within this time.
const PATIENCE: Duration = Duration::from_secs(5);
/// From one look at what is waited for to the next.
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) fn run(command: &ClusterCommand) -> anyhow::Result<Outcome> {
    match command {
        ClusterCommand::Up(args) => up::up(args),
        ClusterCommand::Down(args) => up::down(args),
        ClusterCommand::Ca(command) => ca::run(command),
        ClusterCommand::Status(args) => status::status(args),
    }
}
