//! `collie cluster`: a cluster on this machine, and the state of any.

mod access;
mod ca;
mod local;
mod status;
mod up;
mod verdict;
mod view;

use collie_cli::Outcome;

use crate::args::ClusterCommand;

pub(crate) fn run(command: &ClusterCommand) -> anyhow::Result<Outcome> {
    match command {
        ClusterCommand::Up(args) => up::up(args),
        ClusterCommand::Down(args) => up::down(args),
        ClusterCommand::Ca(command) => ca::run(command),
        ClusterCommand::Status(args) => status::status(args),
    }
}
