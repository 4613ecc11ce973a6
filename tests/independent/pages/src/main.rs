//! Files on Collie's mount, through power cuts, kills and unmounts, by plain file I/O and without PostgreSQL.
//! It runs `collie mount` as it is installed and shares no code with the tests; the disk that forgets is that
//! of the member `cuts`. It needs root and `/dev/fuse`, and mounts in a namespace of its own.
//!
//! Options of `run`: `--collie PROGRAM`; `--seed S`; `--rounds N` or `--seconds N`; `--only 1`, the one round
//! of that seed; `--lies 1`: syncs of the log do nothing, which the checks must notice.
//!
//! **A round** is one directory on one disk and 3 to 10 lives of its mount: each ends with a power cut,
//! anywhere, also in its start, with a kill, an unmount or a drain. A cut leaves of unsynced data nothing,
//! all, or pieces of 512 or 4,096 bytes, and takes shared memory. Pages have 4 to 32 KiB, the shadow file 64
//! pages or more. In one life of four an operation of the disk fails. Up to three clients write pages, parts
//! of pages and across pages, cached, with `O_DIRECT`, `O_DSYNC` and mappings; cut, grow, allocate, copy,
//! remove (and go on writing), rename, replace and make anew files, and rename and remove directories, while
//! another commits and drains.
//!
//! **Checked**: reads return exactly what was written; after a crash each page is one that a write left and
//! not older than a sync, or nothing where the file grew since; lengths and names likewise; a file whose name
//! was synced is somewhere, no other file's bytes are in it, no name comes back; what was seen after a cut
//! stays; a mount starts, `front check` and a drain succeed, the drained directory is plain; no call fails
//! unless the disk did, and writes that fail for good are in the status. A round with a violation is kept,
//! with all events in the file `events`.

#![allow(clippy::disallowed_methods, reason = "it stands outside of the store's seam")]

mod machine;
mod model;
mod names;
mod round;
mod worker;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use round::{Figures, Plan};

fn option(args: &[String], name: &str) -> Option<String> {
    let at = args.iter().position(|arg| arg == name)?;
    args.get(at + 1).cloned()
}

fn run(args: &[String]) -> Result<bool, String> {
    let number = |name: &str, default: u64| match option(args, name) {
        Some(text) => text.parse().map_err(|_| format!("{name} takes a number")),
        None => Ok(default),
    };
    let (seed, rounds, seconds) = (
        number("--seed", 1)?,
        number("--rounds", 10)?,
        number("--seconds", 0)?,
    );
    let collie = option(args, "--collie")
        .map(PathBuf::from)
        .ok_or("--collie PROGRAM is needed")?;
    let collie = collie
        .canonicalize()
        .map_err(|e| format!("{}: {e}", collie.display()))?;
    if !Path::new("/dev/fuse").exists() {
        return Err("no /dev/fuse here: this program cannot run".into());
    }
    machine::enter().map_err(|e| format!("no mount namespace: {e}"))?;
    let lies = number("--lies", 0)? == 1;
    let base = std::env::temp_dir().join(format!("collie-pages-{}", std::process::id()));
    let (since, mut total, mut violations) = (Instant::now(), Figures::default(), 0);
    for number in 0.. {
        let is_over = since.elapsed() > Duration::from_secs(seconds);
        if if seconds > 0 { is_over } else { number >= rounds } {
            break;
        }
        let seed = if args.iter().any(|arg| arg == "--only") {
            seed
        } else {
            seed.wrapping_mul(1_000_003) + number
        };
        let place = base.join(number.to_string());
        let plan = Plan {
            collie: &collie,
            base: &place,
            seed,
            lies,
        };
        match plan.run(&mut total) {
            Ok(()) => drop(std::fs::remove_dir_all(&place)),
            Err(_) if lies => {
                violations += 1;
                let _ = std::fs::remove_dir_all(&place);
            }
            Err(report) => {
                violations += 1;
                let text = format!("VIOLATION seed {seed} (--only 1 --seed {seed})\n{report}\n");
                let _ = std::fs::write(place.join("report"), &text);
                println!("{text}see {}\n", place.display());
            }
        }
        total.rounds += 1;
    }
    let _ = std::fs::remove_dir(&base);
    println!(
        "figures: {total}, {violations} violations, {} s",
        since.elapsed().as_secs()
    );
    if lies && violations == 0 {
        return Err("the checks did not notice wrong answers".into());
    }
    Ok(lies || violations == 0)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let code = match args.first().map(String::as_str) {
        Some("run") => match run(&args) {
            Ok(true) => 0,
            Ok(false) => 1,
            Err(error) => {
                eprintln!("{error}");
                2
            }
        },
        _ => {
            eprintln!(
                "usage: run --collie PROGRAM [--seed N] [--rounds N | --seconds N] [--only 1] [--lies 1]"
            );
            2
        }
    };
    std::process::exit(code);
}
