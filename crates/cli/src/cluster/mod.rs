//! `collie cluster`: a cluster on this machine, and the state of any.

mod access;
mod asking;
mod ca;
mod duplicates;
mod local;
mod nodes;
mod partitions;
mod status;
mod up;
mod verdict;
mod view;
mod watch;

pub(crate) use access::Access;
use collie_cli::Outcome;

use crate::args::ClusterCommand;

pub(crate) fn run(command: &ClusterCommand) -> anyhow::Result<Outcome> {
    match command {
        ClusterCommand::Up(args) => up::up(args),
        ClusterCommand::Down(args) => up::down(args),
        ClusterCommand::Ca(command) => ca::run(command),
        ClusterCommand::Status(args) => match args.watch {
            Some(seconds) => watch::watch(args, seconds),
            None => status::status(args),
        },
        ClusterCommand::Nodes(args) => nodes::nodes(args),
        ClusterCommand::Partitions(args) => partitions::partitions(args),
        ClusterCommand::Drain(args) => {
            let follows = match args.disk {
                None => "its replicas move to other nodes",
                Some(_) => "its replicas move to other disks of the node",
            };
            nodes::change_disk("DRAIN", args, follows)
        }
        ClusterCommand::Serve(args) => nodes::change_disk("SERVE", args, "it may be given replicas"),
        ClusterCommand::Remove(args) => {
            let follows = "its replicas move to other nodes, and then it is removed";
            nodes::change(&args.at, &["REMOVE", &args.number.to_string()], follows)
        }
        ClusterCommand::Replace(args) => {
            let (node, by) = (args.number.to_string(), args.by.to_string());
            let follows = format!("its replicas move to node {by}, and then it is removed");
            nodes::change(&args.at, &["REPLACE", &node, &by], &follows)
        }
        ClusterCommand::Layout(args) => nodes::layout(args),
        ClusterCommand::Split(args) => nodes::split(args),
        ClusterCommand::Duplicate(command) => duplicates::duplicate(command),
        ClusterCommand::AcceptLoss(args) => nodes::accept_loss(args),
        ClusterCommand::Finalize(at) => nodes::finalize(at),
    }
}
