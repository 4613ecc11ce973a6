//! Whether file systems that forget can be mounted here.

use anyhow::Context;
use collie_cli::output::note;
use collie_sim::faultfs::{available, unmount_abandoned};

/// Unmounts what dead processes have left, and fails where nothing can be mounted: the error says what
/// is missing.
pub(crate) fn ensure_mountable() -> anyhow::Result<()> {
    for at in unmount_abandoned().context("cannot look for what an earlier run left")? {
        note(format_args!(
            "unmounted {}, which a dead process had left",
            at.display()
        ));
    }
    available().context("no file system can be mounted")
}
