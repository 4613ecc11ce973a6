//! `collie torture kill | images`: crash tests on the real binary and on the simulated device.

pub(crate) mod child;
pub(crate) mod history;
pub(crate) mod kill;
pub(crate) mod messages;
pub(crate) mod writer;

use std::collections::BTreeMap;
use std::path::PathBuf;

use collie_io::{Device, RealDevice};
use collie_sim::images::{ImagesConfig, ImagesReport};
use serde::Serialize;

use crate::Outcome;
use crate::args::TortureCommand;
use crate::output::{self, Results, grouped, note};
use crate::temporary::Temporary;

use kill::{Kills, Report};

pub(crate) fn run(command: &TortureCommand) -> anyhow::Result<Outcome> {
    match command {
        TortureCommand::Kill(args) => kills(args.rounds, seed(args.seed)?, args.json, args.dir.as_ref()),
        TortureCommand::Images(args) => images(args.rounds, seed(args.seed)?, args.json),
    }
}

/// The seed that was given, or a new one.
fn seed(given: Option<u64>) -> anyhow::Result<u64> {
    if let Some(seed) = given {
        return Ok(seed);
    }
    let mut bytes = [0; 4];
    RealDevice::new().random(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes).into())
}

/// What all tortures tell.
#[derive(Serialize)]
struct Line<More> {
    test: &'static str,
    rounds: u64,
    acknowledged: u64,
    recovered: u64,
    lost: u64,
    partial: u64,
    reordered: u64,
    seed: u64,
    #[serde(flatten)]
    more: More,
}

#[derive(Serialize)]
struct KillMore {
    kills_in_recovery: u64,
    checks: u64,
}

fn kills(rounds: u64, seed: u64, json: bool, dir: Option<&PathBuf>) -> anyhow::Result<Outcome> {
    let temporary = match dir {
        Some(_) => None,
        None => Some(Temporary::new("collie-torture-", &std::env::temp_dir())?),
    };
    let parent = dir.map(PathBuf::as_path).or(temporary.as_ref().map(|t| t.path()));
    let store = parent.unwrap_or(std::path::Path::new(".")).join("store");
    let bar = output::progress("kill", rounds);
    let rings = temporary.as_ref().and_then(Temporary::rings);
    let mut kills = Kills::new(&store, rings, seed);
    let ran = kills.run(rounds, |report| {
        bar.set_position(report.rounds);
        bar.set_message(format!("{} acknowledged", grouped(report.acknowledged)));
    });
    bar.finish_and_clear();
    let report = &kills.report;
    let good = ran.is_ok() && report.holds();
    if !good && let Some(temporary) = temporary {
        // What was found is to be looked at.
        let kept = temporary.keep();
        note(format_args!("the store is kept in {}", kept.display()));
    }
    ran?;
    print_kills(report, seed, json)?;
    Ok(if good { Outcome::Good } else { Outcome::Bad })
}

fn print_kills(report: &Report, seed: u64, json: bool) -> anyhow::Result<()> {
    let mut results = Results::new();
    if json {
        results.json(&Line {
            test: "kill",
            rounds: report.rounds,
            acknowledged: report.acknowledged,
            recovered: report.recovered,
            lost: report.lost,
            partial: report.partial,
            reordered: report.reordered,
            seed,
            more: KillMore {
                kills_in_recovery: report.in_recovery,
                checks: report.checks,
            },
        })?;
    } else {
        results.line(format_args!(
            "{} kills ({} during recovery) · acknowledged {} · recovered {} · lost {} · partial {} · reordered {} · \
             seed {seed}",
            report.rounds,
            report.in_recovery,
            grouped(report.acknowledged),
            grouped(report.recovered),
            report.lost,
            report.partial,
            report.reordered,
        ))?;
    }
    results.flush()?;
    report.words.iter().for_each(note);
    Ok(())
}

#[derive(Serialize)]
struct ImagesMore<'a> {
    programs: u64,
    refused: u64,
    failed: u64,
    faults: &'a BTreeMap<&'static str, u64>,
}

fn images(rounds: u64, seed: u64, json: bool) -> anyhow::Result<Outcome> {
    let bar = output::progress("images", rounds);
    let config = ImagesConfig {
        images: rounds,
        seed,
        ..ImagesConfig::default()
    };
    let report =
        output::quietly(|| collie_sim::images::run(&config, |report| bar.set_position(report.rounds)));
    bar.finish_and_clear();
    let mut results = Results::new();
    if json {
        results.json(&Line {
            test: "images",
            rounds: report.rounds,
            acknowledged: report.acknowledged,
            recovered: report.recovered,
            lost: report.lost,
            partial: report.partial,
            reordered: report.reordered,
            seed,
            more: ImagesMore {
                programs: report.programs,
                refused: report.refused,
                failed: report.failed,
                faults: &report.faults,
            },
        })?;
    } else {
        print_images(&mut results, &report)?;
    }
    results.flush()?;
    report.failures.iter().for_each(note);
    Ok(if report.failed == 0 {
        Outcome::Good
    } else {
        Outcome::Bad
    })
}

fn print_images(results: &mut Results, report: &ImagesReport) -> std::io::Result<()> {
    results.line(format_args!(
        "{} crash images of {} programs · acknowledged {} · recovered {} · lost {} · partial {} · reordered {} · seed {}",
        grouped(report.rounds),
        grouped(report.programs),
        grouped(report.acknowledged),
        grouped(report.recovered),
        report.lost,
        report.partial,
        report.reordered,
        report.seed,
    ))?;
    results.line("how often each fault struck:")?;
    for (fault, times) in &report.faults {
        results.line(format_args!("  {fault:<32} {:>10}", grouped(*times)))?;
    }
    Ok(())
}
