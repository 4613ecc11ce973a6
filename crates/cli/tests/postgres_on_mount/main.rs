//! PostgreSQL 15, as it is, on `collie mount`. It needs root, `/dev/fuse` and Debian's
//! `postgresql-15`; where they are missing the tests say so and pass, unless
//! `COLLIE_REQUIRE_TOOLS` is set.
//!
//! Power cuts and kills of the daemon: `COLLIE_PG_MOUNT_CUTS` and `COLLIE_PG_MOUNT_KILLS` of them,
//! from `COLLIE_SEED`; without the former there are none. Which operation a cut falls on is up to
//! the machine, so a seed repeats the ways, and not the run: `COLLIE_PG_EVIDENCE` names a directory
//! where the disk of a life that was harmed is kept, as the cut left it and as it was found, with
//! the logs.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test ends where its assumptions do, says what it skips, and uses files as any program does"
)]

mod daemon;
mod lives;
mod load;
mod machine;
mod regrown;
mod settled;
#[path = "../shared/mod.rs"]
mod shared;
mod statements;

use collie_check::postgres;
use collie_sim::faultfs;

/// Whether the tests cannot run here, and says why.
fn skipped() -> bool {
    let missing = faultfs::available().err().map(|e| e.to_string());
    let Some(missing) = missing.or_else(postgres::missing) else {
        return false;
    };
    assert!(std::env::var_os("COLLIE_REQUIRE_TOOLS").is_none(), "{missing}");
    println!("SKIPPED: {missing}");
    true
}
