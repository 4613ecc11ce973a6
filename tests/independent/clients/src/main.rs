//! A Collie server under deletes, overwrites and full disks, from outside: the program runs the binary
//! `collie serve`, and speaks RESP with a client of its own. It needs root.
//!
//! `run` has `--seed N`, `--rounds N` or `--seconds N`; `--only tombstones|overwrites|disks` (also `starts`,
//! and `table`, all sizes of disks in a row); `--keys N`, `--writes N`, `--sizes MIB,…` of disks; `--limit-ms
//! N`, `--patience S`; `--collie FILE`, `--under DIR`; `--lies 1`: keys are changed behind its back, which
//! the checks must notice.
//!
//! **A round** has three parts. A client that sends PING and GET at a steady rate runs beside all; the same
//! of a socket without a server, and a thread that computes, are controls: what the machine does is no fault of
//! the server.
//!
//! * `src/tombstones.rs`: keys that are set, deleted and expire, a queue, then SCAN, KEYS, RANDOMKEY, DBSIZE
//!   and SWAPDB beside a client that writes, in and out of MULTI; a kill, and all of it again.
//! * `src/overwrites.rs`: a few keys overwritten while others hold what is old: watched keys, an open cursor,
//!   replies that are not read. Reads must not get slower, nor memory grow.
//! * `src/disks.rs`: a small disk is filled until writes are refused, perhaps the server is killed, then most
//!   or all is deleted, flushed or expires: in cycles.
//!
//! **Checked:** all that was acknowledged, by GET, SCAN and DBSIZE, after kills and stops too; SCAN is in
//! order, complete, and has nothing that never was; EXEC sees all of an MSET or nothing; no command holds up
//! other clients longer than `--limit-ms`, as often as computing is slowed, and three times the control;
//! writes are taken again within `--patience`, as much as before; `/healthz`, `/metrics` and `INFO` say alike
//! whether they are refused. After a violation the folder is kept, and its file systems are.

mod disks;
mod model;
mod overwrites;
mod probe;
mod resp;
mod server;
mod starts;
mod tombstones;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::disks::{Case, Way};
use crate::model::{Model, Rng, Val};
use crate::resp::Res;
use crate::server::{Place, Server};

struct Options {
    seed: u64,
    rounds: u64,
    seconds: u64,
    only: String,
    keys: usize,
    writes: usize,
    sizes: Vec<u64>,
    limit: Duration,
    patience: Duration,
    lies: bool,
    collie: PathBuf,
    under: PathBuf,
}

fn options(args: &[String]) -> Res<Options> {
    let mut options = Options {
        seed: 1,
        rounds: 1,
        seconds: u64::MAX,
        only: String::new(),
        keys: 40_000,
        writes: 40_000,
        sizes: vec![128, 160],
        limit: Duration::from_millis(400),
        patience: Duration::from_secs(30),
        lies: false,
        collie: "target/release/collie".into(),
        under: std::env::temp_dir(),
    };
    if args.first().is_none_or(|first| first != "run") {
        return Err(
            "usage: run [--seed N] [--rounds N | --seconds N] [--only PART] [--keys N] [--writes N] \
             [--sizes MIB,...] [--limit-ms N] [--patience S] [--lies 1] [--collie FILE] [--under DIR]"
                .into(),
        );
    }
    for pair in args[1..].chunks(2) {
        let [name, value] = pair else {
            return Err(format!("{} needs a value", pair[0]));
        };
        let number = || {
            value
                .parse::<u64>()
                .map_err(|_| format!("{name} {value}: not a number"))
        };
        match name.as_str() {
            "--seed" => options.seed = number()?,
            "--rounds" => options.rounds = number()?,
            "--seconds" => (options.rounds, options.seconds) = (u64::MAX, number()?),
            "--only" => options.only.clone_from(value),
            "--keys" => options.keys = number()?.max(1_000) as usize,
            "--writes" => options.writes = number()? as usize,
            "--sizes" => options.sizes = value.split(',').filter_map(|mib| mib.parse().ok()).collect(),
            "--limit-ms" => options.limit = Duration::from_millis(number()?),
            "--patience" => options.patience = Duration::from_secs(number()?),
            "--lies" => options.lies = number()? > 0,
            "--collie" => options.collie = value.into(),
            "--under" => options.under = value.into(),
            _ => return Err(format!("unknown option {name}")),
        }
    }
    Ok(options)
}

/// Rounds until the first violation: how many, and the figures.
fn rounds(place: &Place, options: &Options) -> Result<Vec<String>, (u64, String)> {
    let (begun, mut figures) = (Instant::now(), Vec::new());
    for seed in options.seed..options.seed.saturating_add(options.rounds) {
        if begun.elapsed().as_secs() > options.seconds {
            break;
        }
        round(place, options, seed, &mut figures).map_err(|e| (seed, e))?;
    }
    Ok(figures)
}

fn round(place: &Place, options: &Options, seed: u64, figures: &mut Vec<String>) -> Res<()> {
    let rng = &mut Rng(seed);
    let is = |name: &str| options.only.is_empty() || options.only == name;
    let dir = place.base.join("store");
    let mut done = |figure: String| {
        println!("seed {seed}: {figure}");
        figures.push(figure);
        let _ = std::fs::remove_dir_all(&dir);
    };
    if is("tombstones") {
        done(tombstones::run(place, &dir, options.keys, rng, options.limit)?);
    }
    if is("overwrites") {
        done(overwrites::run(place, &dir, options.writes, rng, options.limit)?);
    }
    if options.only == "starts" {
        done(starts::run(place, &dir, options.keys)?);
    }
    if options.only == "table" {
        // A table of all sizes; a violation is no reason to end it.
        let mut first = Ok(());
        for (mib, len) in options
            .sizes
            .iter()
            .flat_map(|mib| [200_000, 2_000, 7_000_000].map(|len| (*mib, len)))
        {
            for (way, kill) in [
                (Way::Del, false),
                (Way::Del, true),
                (Way::Flushall, false),
                (Way::Expire, true),
            ] {
                let case = Case {
                    mib,
                    len,
                    wal: "",
                    way,
                    kill,
                    cycles: 2,
                };
                if let Err(e) = disks::run(place, case, rng, options.patience, options.limit) {
                    println!("VIOLATION {e}");
                    first = first.and(Err(e));
                }
            }
        }
        first?;
    }
    if is("disks") {
        let cases = [(); 2].map(|()| Case::random(rng, &options.sizes));
        for case in cases {
            disks::run(place, case, rng, options.patience, options.limit)
                .map_err(|e| format!("{case:?}: {e}"))?;
        }
        done(format!("{} small disks", cases.len()));
    }
    Ok(())
}

/// Changes behind the model's back, which it must find.
fn lies(place: &Place) -> Res<()> {
    let dir = place.base.join("lies");
    let server = Server::start(place, &dir, &[])?;
    for lie in [
        "",
        "DEL k7",
        "APPEND k8 x",
        "SETRANGE k9 30 y",
        "SET foreign x",
        "RENAME k1 k2",
        "FLUSHDB",
    ] {
        // Another connection each time: the check ends in the middle of replies.
        let mut conn = server.conn()?;
        conn.words("FLUSHDB")?;
        let mut model = Model::default();
        for n in 0..20 {
            let (key, val) = (
                format!("k{n}").into_bytes(),
                Val {
                    version: n,
                    len: 70_000,
                },
            );
            conn.call(&[b"SET", &key, &val.bytes(&key)])?;
            model.set(&key, Some(val));
        }
        if !lie.is_empty() {
            conn.words(lie)?;
        }
        match model.check(&mut conn) {
            Ok(()) if lie.is_empty() => {}
            Err(found) if !lie.is_empty() => println!("{lie}: found: {found}"),
            other => return Err(format!("{lie:?} of a key: {other:?}")),
        }
    }
    if server.judge_health(true).is_ok() {
        return Err("a server that takes writes passed for one that refuses them".into());
    }
    server.stop().map(drop)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let fail = |code: i32, text: String| -> ! {
        eprintln!("{text}");
        std::process::exit(code)
    };
    let options = options(&args).unwrap_or_else(|e| fail(2, e));
    let place = Place::new(options.collie.clone(), &options.under).unwrap_or_else(|e| fail(2, e));
    let begun = Instant::now();
    let done = if options.lies {
        lies(&place)
            .map(|()| vec!["all lies were found".into()])
            .map_err(|e| (0, e))
    } else {
        rounds(&place, &options)
    };
    match done {
        Ok(figures) => {
            place.remove();
            println!(
                "figures: {}; in {:.0} s",
                figures.join("; "),
                begun.elapsed().as_secs_f64()
            );
        }
        Err((seed, e)) => fail(
            1,
            format!("VIOLATION, seed {seed}: {e}\nkept: {}", place.base.display()),
        ),
    }
}
