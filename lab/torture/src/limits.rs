//! What the system allows this process.

use anyhow::Context as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Has this process open so many files.
pub(crate) fn allow_files(count: u64) -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= count) {
        return Ok(());
    }
    let wanted = Rlimit {
        current: Some(count),
        ..limit
    };
    setrlimit(Resource::Nofile, wanted)
        .with_context(|| format!("{count} open files are needed, the limit is {:?}", limit.maximum))
}
