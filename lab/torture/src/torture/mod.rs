//! `collie-lab torture kill | images | power | soak | hostile | cluster`: crash tests on the real
//! binary, on the simulated device, and on a file system that forgets; the real binary for a long
//! time, or under hostile clients; and a cluster of real processes.

pub(crate) mod child;
pub(crate) mod cluster;
pub(crate) mod history;
mod hostile;
pub(crate) mod kill;
pub(crate) mod messages;
mod mountable;
mod ports;
pub(crate) mod power;
pub(crate) mod resized;
pub(crate) mod served;
pub(crate) mod soak;
pub(crate) mod writer;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use collie_check::Verdict;
use collie_check::images::{ImagesConfig, ImagesReport};
use collie_cli::Outcome;
use collie_cli::output::{Results, grouped, note};
use collie_sim::faultfs::Names;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::Serialize;

use crate::args::{NamesArg, PowerArgs, TortureCommand};
use crate::diagnostics;
use crate::figures;
use crate::temporary::Temporary;

use kill::{Kills, Report};
use power::{Plan, Power};

pub(crate) fn run(command: &TortureCommand) -> anyhow::Result<Outcome> {
    match command {
        TortureCommand::Kill(args) => kills(
            args.rounds,
            args.seeded.seed()?,
            args.seeded.json,
            args.dir.as_ref(),
        ),
        TortureCommand::Images(args) => images(args.rounds, args.seeded.seed()?, args.seeded.json),
        TortureCommand::Power(args) => power(args),
        TortureCommand::Hostile(args) => hostile::run(args, args.seeded.seed()?),
        TortureCommand::Cluster(args) => cluster::run(args, args.seeded.seed()?),
        TortureCommand::Soak(args) => soak::run(args, args.seeded.seed()?),
    }
}

/// Becomes another program, which ends when the process that started this one does: it would go on
/// for ever on a disk that is gone.
pub(crate) fn leashed(program: &Path, arguments: &[OsString]) -> anyhow::Result<Outcome> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot tie the server to its parent")?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}

/// The figures that all tortures print.
#[derive(Serialize)]
struct Line<More> {
    test: &'static str,
    rounds: u64,
    #[serde(flatten)]
    verdict: Counts,
    seed: u64,
    #[serde(flatten)]
    more: More,
}

/// The counts of a verdict.
#[derive(Serialize)]
struct Counts {
    acknowledged: u64,
    recovered: u64,
    lost: u64,
    partial: u64,
    reordered: u64,
}

impl Counts {
    fn of(verdict: &Verdict) -> Self {
        Self {
            acknowledged: verdict.acknowledged,
            recovered: verdict.recovered,
            lost: verdict.lost,
            partial: verdict.partial,
            reordered: verdict.reordered,
        }
    }
}

fn in_words(verdict: &Verdict) -> String {
    format!(
        "acknowledged {} · recovered {} · lost {} · partial {} · reordered {}",
        grouped(verdict.acknowledged),
        grouped(verdict.recovered),
        verdict.lost,
        verdict.partial,
        verdict.reordered
    )
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
    let bar = figures::progress("kill", rounds);
    let rings = temporary.as_ref().and_then(Temporary::rings);
    let mut kills = Kills::new(&store, rings, seed);
    let ran = kills.run(rounds, |report| {
        bar.set_position(report.rounds);
        bar.set_message(format!("{} acknowledged", grouped(report.verdict.acknowledged)));
    });
    bar.finish_and_clear();
    let report = &kills.report;
    let good = ran.is_ok() && report.verdict.holds();
    if !good && let Some(temporary) = temporary {
        // What was found can be examined then.
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
            verdict: Counts::of(&report.verdict),
            seed,
            more: KillMore {
                kills_in_recovery: report.in_recovery,
                checks: report.checks,
            },
        })?;
    } else {
        results.line(format_args!(
            "{} kills ({} during recovery) · {} · seed {seed}",
            report.rounds,
            report.in_recovery,
            in_words(&report.verdict),
        ))?;
    }
    results.flush()?;
    report.verdict.findings.iter().for_each(note);
    Ok(())
}

#[derive(Serialize)]
struct PowerMore<'a> {
    system: &'static str,
    names: &'static str,
    reads: u64,
    went_back: u64,
    repaired: u64,
    refused: u64,
    cuts_in_recovery: u64,
    checks: u64,
    changes_kept: u64,
    changes_lost: u64,
    names_lost: u64,
    lengths_lost: u64,
    garbage: u64,
    fell: &'a BTreeMap<&'static str, u64>,
    ways: &'a BTreeMap<&'static str, u64>,
}

fn power(args: &PowerArgs) -> anyhow::Result<Outcome> {
    let seed = args.seeded.seed()?;
    let plan = Plan {
        system: args.system,
        program: args.program.clone(),
        names: match args.names {
            NamesArg::Posix => Names::Posix,
            NamesArg::Journal => Names::Journal,
        },
        aim: args.aim,
        seed,
    };
    let temporary = Temporary::new("collie-torture-", &std::env::temp_dir())?;
    let mut power = Power::new(plan.clone(), &temporary)?;
    let bar = figures::progress("power", args.rounds);
    let ran = power.run(args.rounds, |report| {
        bar.set_position(report.rounds);
        bar.set_message(format!("{} acknowledged", grouped(report.verdict.acknowledged)));
    });
    bar.finish_and_clear();
    let report = power.report.clone();
    let good = ran.is_ok() && report.holds();
    report.words.iter().for_each(note);
    if !good {
        let kept = power.keep(temporary.path());
        // Before the directory that it is mounted in is left alone.
        drop(power);
        note(format_args!(
            "what the server found is kept in {}",
            temporary.keep().display()
        ));
        note(format_args!(
            "replay: collie-lab torture power {}",
            replay(args, seed)
        ));
        ran?;
        kept?;
    }
    print_power(&report, &plan, args.seeded.json)?;
    Ok(if good { Outcome::Good } else { Outcome::Bad })
}

/// The arguments that aim at the same and lose by the same chances; what the threads do in between
/// is theirs.
fn replay(args: &PowerArgs, seed: u64) -> String {
    let mut text = format!(
        "--rounds {} --seed {seed} --system {}",
        args.rounds,
        args.system.name()
    );
    if args.names == NamesArg::Journal {
        text.push_str(" --names journal");
    }
    if let Some(aim) = args.aim {
        text.push_str(&format!(" --aim {}", aim.name()));
    }
    text
}

fn print_power(report: &power::Report, plan: &Plan, json: bool) -> anyhow::Result<()> {
    let mut results = Results::new();
    if json {
        results.json(&Line {
            test: "power",
            rounds: report.rounds,
            verdict: Counts::of(&report.verdict),
            seed: plan.seed,
            more: PowerMore {
                system: plan.system.name(),
                names: match plan.names {
                    Names::Posix => "posix",
                    Names::Journal => "journal",
                },
                reads: report.reads,
                went_back: report.went_back,
                repaired: report.repaired,
                refused: report.refused,
                cuts_in_recovery: report.in_recovery,
                checks: report.checks,
                changes_kept: report.effects.kept,
                changes_lost: report.effects.lost,
                names_lost: report.effects.names_lost,
                lengths_lost: report.effects.lengths_lost,
                garbage: report.effects.garbage,
                fell: &report.fell,
                ways: &report.ways,
            },
        })?;
    } else {
        print_power_text(&mut results, report, plan)?;
    }
    results.flush()?;
    Ok(())
}

fn print_power_text(results: &mut Results, report: &power::Report, plan: &Plan) -> std::io::Result<()> {
    results.line(format_args!(
        "{} power cuts under {} ({} during recovery) · {} · read {} times · seed {}",
        report.rounds,
        plan.system.name(),
        report.in_recovery,
        in_words(&report.verdict),
        grouped(report.reads),
        plan.seed,
    ))?;
    if report.went_back > 0 {
        results.line(format_args!(
            "{} reads showed less than an earlier answer",
            report.went_back
        ))?;
    }
    if report.refused + report.repaired > 0 {
        results.line(format_args!(
            "{} times the server did not open what a cut had left; {} of them its own tool repaired that",
            report.refused + report.repaired,
            report.repaired
        ))?;
    }
    results.line(format_args!(
        "of what was not durable, {} changes were kept and {} lost, {} names and {} lengths among them",
        grouped(report.effects.kept),
        grouped(report.effects.lost),
        grouped(report.effects.names_lost),
        grouped(report.effects.lengths_lost),
    ))?;
    for (title, counts) in [
        ("where the cuts fell:", &report.fell),
        ("how the power went:", &report.ways),
    ] {
        results.line(title)?;
        for (what, times) in counts {
            results.line(format_args!("  {what:<32} {:>10}", grouped(*times)))?;
        }
    }
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
    let bar = figures::progress("images", rounds);
    let config = ImagesConfig {
        images: rounds,
        seed,
        ..ImagesConfig::default()
    };
    let report =
        diagnostics::quietly(|| collie_check::images::run(&config, |report| bar.set_position(report.rounds)));
    bar.finish_and_clear();
    let mut results = Results::new();
    if json {
        results.json(&Line {
            test: "images",
            rounds: report.rounds,
            verdict: Counts::of(&report.verdict),
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
        "{} crash images of {} programs · {} · seed {}",
        grouped(report.rounds),
        grouped(report.programs),
        in_words(&report.verdict),
        report.seed,
    ))?;
    results.line("how often each fault struck:")?;
    for (fault, times) in &report.faults {
        results.line(format_args!("  {fault:<32} {:>10}", grouped(*times)))?;
    }
    Ok(())
}
