//! `collie log`.

use std::path::PathBuf;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum LogCommand {
    /// Shows every frame of the log.
    Dump {
        /// The log's directory, or the store's that holds it.
        dir: PathBuf,
        /// Print one JSON object per frame.
        #[arg(long)]
        json: bool,
        /// Print whole payloads, in hexadecimal.
        #[arg(long)]
        payload: bool,
    },
    /// Shows the frames that are durable for certain, while another process may be writing the log: takes no lock
    /// and holds nothing back. A frame comes once a later one proves that it was durable. What was released is read
    /// from the log's archive, if there is one; where it is gone, the command fails, and never leaves anything out.
    /// SIGINT ends it.
    Tail {
        /// The log's directory, or the store's that holds it.
        dir: PathBuf,
        /// Print one JSON object per frame, with the fields of `dump`.
        #[arg(long)]
        json: bool,
        /// Print whole payloads, in hexadecimal.
        #[arg(long)]
        payload: bool,
        /// The LSN to begin at: a frame's `lsn` or `end`. Without it, the oldest frame, in the archive
        /// where there is one.
        #[arg(long, value_name = "LSN")]
        from: Option<u64>,
        /// Go on with frames to come.
        #[arg(long)]
        follow: bool,
    },
    /// Reads the whole log and says where it is damaged, if it is; then the exit code is 1.
    Verify {
        /// The log's directory, or the store's that holds it.
        dir: PathBuf,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Cuts the log at its first damage, so that it opens again without what followed. What is cut away is
    /// kept in files that end in `.cut`.
    Repair {
        /// The log's directory, or the store's that holds it.
        dir: PathBuf,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
}
