//! Nodes of a Collie cluster on small disks, under writes counted in bytes, checked from outside. It runs the
//! binary `collie` only, and shares no code with it or its tests. Values of 100 B to 7.8 MB are overwritten
//! in few keys until several times `--log-limit` was written, on disks (tmpfs) of 200 to 500 MiB. It needs
//! root.
//!
//! Options: `--seed S`, `--rounds N` or `--seconds N`; `--phases N` causes in a round of up to `--lasts
//! SECONDS` each; `--only CAUSE,...`; `--shape 3,16,private,400,64` (nodes, partitions, layout, MiB of a disk
//! and of `--log-limit`); `--lies N`: one SET of N is not sent.
//!
//! **A round** is a cluster of three or five nodes, with four clients, a probe for each partition, and
//! `collie cluster status` asked all the time. Then one cause after another: `stop`, `kill`, `term` of a
//! minority; its disks `full`, or `full-kill`; `all-full`, and DEL; `fill`, by the data, and DEL or FLUSHALL
//! of it; `all-kill`. After half of them a node that was well is killed at once.
//!
//! **Checked**
//!
//! * With a majority that has room, writes go in every partition, or go on within 30 s; on full disks what
//!   removes is taken, and what it frees is enough for writes to go on.
//! * Every read is of the last acknowledged write of its key, or of one that is unknown, which comes once at
//!   most; counters are exact, `COLLIE.ONCE` included; each node leads all at the end.
//! * The status is 0 within 90 s of the cause's end, never while writes are refused for 10 s, and not
//!   "unserved" while all go. No node hangs, ends by itself or panics, or keeps removed files open.

#![allow(clippy::disallowed_methods, reason = "it stands outside of the store's seam")]

mod cluster;
mod judge;
mod load;
mod resp;
mod round;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

const USAGE: &str =
    "usage: collie-independent-nodes run --collie BINARY [--seed S] [--rounds N] [--seconds N]
  [--phases N] [--lasts SECONDS] [--only CAUSE,...] [--shape NODES,PARTITIONS,LAYOUT,DISK-MIB,LIMIT-MIB or 0]
  [--port P] [--dir D] [--quick 1] [--silent SECONDS] [--lies N]";

fn settings(options: &BTreeMap<String, String>) -> Result<round::Settings, String> {
    let number = |name: &str, default: u64| {
        options.get(name).map_or(Ok(default), |text| {
            text.parse().map_err(|_| format!("--{name} {text}: no number"))
        })
    };
    let shape = options.get("shape").map(|text| {
        let parts: Vec<&str> = text.split(',').collect();
        let of = |at: usize| {
            parts
                .get(at)
                .and_then(|part| part.parse::<u64>().ok())
                .ok_or(format!("--shape {text}"))
        };
        let layouts = ["per-disk", "shared", "private"].into_iter();
        let layout = layouts
            .into_iter()
            .find(|l| parts.get(2) == Some(l))
            .ok_or(format!("--shape {text}"))?;
        let limit = Some(of(4)?).filter(|limit| *limit > 0);
        Ok::<_, String>(cluster::Shape {
            nodes: of(0)? as usize,
            partitions: of(1)?,
            layout,
            disk: of(3)?,
            limit,
        })
    });
    let only = options
        .get("only")
        .map(|only| only.split(',').collect::<Vec<_>>());
    let is_asked = |cause: &&str| only.as_ref().is_none_or(|only| only.contains(cause));
    let causes: Vec<_> = round::CAUSES.into_iter().filter(is_asked).collect();
    if causes.is_empty() {
        return Err(USAGE.into());
    }
    Ok(round::Settings {
        collie: options.get("collie").map(PathBuf::from).ok_or(USAGE)?,
        base: options
            .get("dir")
            .map_or_else(std::env::temp_dir, PathBuf::from)
            .join("collie-nodes"),
        port: number("port", 23000)? as u16,
        phases: number("phases", 3)?,
        lasts: number("lasts", 25)?,
        causes,
        shape: shape.transpose()?,
        silent: number("silent", 15)?,
        lies: number("lies", 0)?,
        quick: number("quick", 0)? > 0,
    })
}

fn run(arguments: &[String]) -> Result<bool, String> {
    if arguments.first().map(String::as_str) != Some("run") || arguments.len().is_multiple_of(2) {
        return Err(USAGE.into());
    }
    let pairs = arguments[1..]
        .chunks(2)
        .map(|pair| (pair[0].trim_start_matches("--").to_string(), pair[1].clone()));
    let options: BTreeMap<String, String> = pairs.collect();
    let settings = settings(&options)?;
    let number = |name: &str, default: u64| options.get(name).and_then(|n| n.parse().ok()).unwrap_or(default);
    let (seed, rounds, seconds) = (
        number("seed", 1),
        number("rounds", u64::MAX),
        number("seconds", u64::MAX),
    );
    if rounds == u64::MAX && seconds == u64::MAX {
        return Err(USAGE.into());
    }
    cluster::own_mounts()?;
    let (began, mut done) = (Instant::now(), 0);
    let (mut causes, mut figures, mut longest) =
        (BTreeMap::new(), BTreeMap::new(), BTreeMap::<&str, u64>::new());
    let mut violations = 0;
    while done < rounds && began.elapsed().as_secs() < seconds {
        let report = round::run(&settings, seed + done);
        done += 1;
        report
            .causes
            .iter()
            .for_each(|(name, n)| *causes.entry(*name).or_insert(0) += n);
        report
            .figures
            .iter()
            .for_each(|(name, n)| *figures.entry(*name).or_insert(0) += n);
        report.longest_ms.iter().for_each(|(name, ms)| {
            let most = longest.entry(*name).or_default();
            *most = (*most).max(*ms);
        });
        if !report.problems.is_empty() {
            violations += 1;
            println!(
                "VIOLATION, seed {}:\n{}",
                seed + done - 1,
                report.problems.join("\n")
            );
        }
    }
    let shown = |of: BTreeMap<&str, u64>| {
        of.iter()
            .map(|(name, n)| format!("{name} {n}"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    println!(
        "figures: {done} rounds in {} s, {violations} with violations; {}; causes: {}; longest, in ms: {}",
        began.elapsed().as_secs(),
        shown(figures),
        shown(causes),
        shown(longest)
    );
    if settings.lies > 0 {
        println!("lies were {}", if violations > 0 { "found" } else { "NOT FOUND" });
    }
    // With lies the checks must find something in each round.
    Ok(if settings.lies > 0 {
        violations == done
    } else {
        violations == 0
    })
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(true) => {}
        Ok(false) => std::process::exit(1),
        Err(problem) => {
            eprintln!("{problem}");
            std::process::exit(2);
        }
    }
}
