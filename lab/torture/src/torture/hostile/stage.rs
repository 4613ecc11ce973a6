//! Where the servers of all parts have their files, how they are started, and how they end.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::torture::served::{Served, moderate};

/// What the servers of all parts have in common.
pub(crate) struct Stage {
    pub(crate) dir: PathBuf,
    pub(crate) rings: Option<PathBuf>,
}

impl Stage {
    /// The command of a server on a store.
    pub(crate) fn server(&self, store: &Path) -> anyhow::Result<Vec<OsString>> {
        moderate(store, self.rings.as_deref())
    }

    /// Has a server end in order.
    pub(crate) fn end(&self, server: &mut Served, violations: &mut Vec<String>) -> anyhow::Result<()> {
        let status = server.end()?;
        if !status.success() {
            violations.push(format!(
                "a server ended with {status}, asked to end in order; it said:\n{}",
                server.said()
            ));
        }
        violations.extend(server.panics());
        Ok(())
    }
}
