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
    /// Shows the frames that are certain to be durable, while another process may be writing the
    /// log: it takes no lock and keeps no segment from being released. A frame is shown once a
    /// later one proves that it is durable. Released frames are read from the log's archive, if
    /// there is one; if they are gone, the command fails instead of skipping them. SIGINT ends it.
    Tail {
        /// The log's directory, or the store's that holds it.
        dir: PathBuf,
        /// Print one JSON object per frame, with the fields of `dump`.
        #[arg(long)]
        json: bool,
        /// Print whole payloads, in hexadecimal.
        #[arg(long)]
        payload: bool,
        /// The LSN to begin at: a frame's `lsn` or `end`. Default: the oldest frame, in the archive
        /// if there is one.
        #[arg(long, value_name = "LSN")]
        from: Option<u64>,
        /// Continue with frames that are written later.
        #[arg(long)]
        follow: bool,
    },
    /// Reads the whole log and reports damage; the exit code is 1 if there is any.
    Verify {
        /// The log's directory, or the store's that holds it.
        dir: PathBuf,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Truncates the log at its first damage, so that it opens again without what followed. The
    /// removed bytes are kept in files that end in `.cut`.
    Repair {
        /// The log's directory, or the store's that holds it.
        dir: PathBuf,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
}
