//! Power cuts after one injected failure: a Collie store on a file system that forgets, checked from outside.
//! It uses public interfaces only and shares no code with the tests, their simulated device or their file
//! system. It needs `/dev/fuse` and root.
//!
//! Options: `--seed S` and `--jobs J`; `--rounds N` random rounds, or `--only S`, the one of that name;
//! `--fixed N`, `--every M`: N variants of the fixed program, one of M of their rounds; `--lies 1`: syncs of
//! the log do nothing, which the checks must notice.
//!
//! **The disk** is a file system in this process (`src/{fuse,disk}.rs`). A cut leaves of unsynced data
//! nothing, all, or pieces of 512 or 4,096 bytes; names are journaled or independent; a rename across
//! directories is one change or two; pieces whose sync failed count as clean. The shared ring is gone.
//!
//! **A round** is three or four lives of one store: processes open it, read all in two ways, and write,
//! create and drop families, flush and compact on up to three threads. **Once in a round one operation
//! fails**, of any kind, on any file. The process goes on; then the power goes or it is killed, also while
//! the next life opens. A fixed program has each operation failed once, with five ends.
//!
//! **Checked** (`src/judge.rs`):
//!
//! * `Disk` outlives cuts, `Process` a kill, any level a close; the commits are a prefix, none partial;
//!   families are as acknowledged; no answer given as durable is taken back.
//! * Opening succeeds, after a failed open too; a second process is refused.
//! * A write works again, or the store says that it must be reopened; `collie_log::inspect` finds log and
//!   archive sound.

mod child;
mod judge;
mod machine;
mod parent;

use collie_independent_cuts::{disk, fuse, rng};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let life = || child::Life::from_args(args.get(1..).unwrap_or_default());
    let code = match args.first().map(String::as_str) {
        Some("child") => life().map_or(2, |life| child::run(&life)),
        Some("second") => life().map_or(2, |life| child::run_second(&life)),
        _ => parent::run(&args),
    };
    std::process::exit(code);
}
