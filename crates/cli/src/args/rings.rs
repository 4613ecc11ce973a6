//! `collie rings`.

use std::path::PathBuf;

/// A log's ring outlives its process in shared memory, for the next start. Of a store that was removed
/// it stays until the machine restarts.
#[derive(Debug, clap::Args)]
pub(crate) struct RingsArgs {
    /// Where the rings lie.
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub(crate) ring_dir: PathBuf,
    /// Remove the rings that no process has and whose stores are gone. A store that was moved looks like
    /// that: open it first, unless it lies beside its former place.
    #[arg(long)]
    pub(crate) remove_dead: bool,
    /// Print one JSON object per ring.
    #[arg(long)]
    pub(crate) json: bool,
}
