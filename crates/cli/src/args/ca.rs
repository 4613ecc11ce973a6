//! `collie cluster ca`.

use std::path::PathBuf;

use clap::Subcommand;

/// A hundred years: dates beyond have no use, and reckoning with them has limits.
const DAYS: std::ops::RangeInclusive<i64> = 1..=36_525;

#[derive(Debug, Subcommand)]
pub(crate) enum CaCommand {
    /// Makes a CA for a cluster: its certificate ca.pem, which every node needs, and its private key
    /// ca.key, which signs the certificates of nodes. With ca.key a node of the cluster can be made:
    /// keep it away from the nodes. Overwrites nothing.
    New {
        /// The directory of the CA, which is made if it is not there.
        #[arg(long)]
        dir: PathBuf,
        /// How long the CA holds. Every certificate that it has signed ends with it.
        #[arg(long, value_name = "DAYS", default_value_t = 3650, value_parser = clap::value_parser!(u32).range(DAYS))]
        days: u32,
    },
    /// Makes the certificate of a node, NAME.pem, and its private key, NAME.key. Copy both and ca.pem
    /// to the node. Overwrites nothing.
    Node {
        /// The directory of the CA.
        #[arg(long)]
        dir: PathBuf,
        /// What the files are named by. A node's number and addresses are not in its certificate.
        #[arg(long)]
        name: String,
        /// How long the certificate holds.
        #[arg(long, value_name = "DAYS", default_value_t = 825, value_parser = clap::value_parser!(u32).range(DAYS))]
        days: u32,
    },
}
