//! `collie log dump | tail | verify | repair`.

mod frames;
mod tail;

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use collie_cli::Outcome;
use collie_cli::output::{self, Results};
use collie_io::{Device, RealDevice};
use collie_log::inspect::{Inspection, Repair, inspect, repair};
use collie_log::{LogError, RingOutcome, TornTail};
use serde::Serialize;

use crate::args::LogCommand;
use frames::{Shown, frame_heading, frame_line, frame_text, name_of};

pub(crate) fn run(command: &LogCommand) -> anyhow::Result<Outcome> {
    let device: Arc<dyn Device> = Arc::new(RealDevice::new());
    match command {
        LogCommand::Dump { dir, json, payload } => {
            let shown = if *payload { Shown::Payload } else { Shown::Preview };
            dump(&device, &log_dir(&*device, dir)?, *json, shown)
        }
        LogCommand::Tail {
            dir,
            json,
            payload,
            from,
            follow,
        } => {
            let wanted = tail::Wanted {
                from: *from,
                follow: *follow,
                json: *json,
                shown: if *payload { Shown::Payload } else { Shown::Preview },
            };
            let dir = log_dir(&*device, dir)?;
            if is_archive(&*device, &dir) {
                bail!(
                    "{} is the archive of a log; name the log's directory, whose tail begins in the archive",
                    dir.display()
                );
            }
            tail::tail(&device, &dir, wanted)
        }
        LogCommand::Verify { dir, json } => verify(&device, &log_dir(&*device, dir)?, *json),
        LogCommand::Repair { dir, json } => repair_log(&device, &log_dir(&*device, dir)?, *json),
    }
}

/// The log's directory: the given one or, if that is a store's, its directory `log`.
fn log_dir(device: &dyn Device, dir: &Path) -> anyhow::Result<PathBuf> {
    let holds_segments = |dir: &Path| -> io::Result<bool> {
        let entries = device.list(dir)?;
        Ok(entries.iter().any(|e| !e.is_dir() && e.name.ends_with(".seg")))
    };
    if holds_segments(dir).with_context(|| format!("cannot list {}", dir.display()))? {
        return Ok(dir.to_owned());
    }
    let inner = dir.join("log");
    if holds_segments(&inner).unwrap_or(false) {
        output::note(format_args!("the log is in {}", inner.display()));
        return Ok(inner);
    }
    bail!(
        "there is no log in {}: neither it nor a directory `log` in it contains segments (files named *.seg)",
        dir.display()
    )
}

/// Whether it contains archived segments, whose names contain the time of archiving.
fn is_archive(device: &dyn Device, dir: &Path) -> bool {
    let is_archived = |name: &str| name.strip_suffix(".seg").is_some_and(|name| name.contains('-'));
    let entries = device.list(dir).unwrap_or_default();
    entries
        .iter()
        .any(|entry| !entry.is_dir() && is_archived(&entry.name))
}

fn dump(device: &Arc<dyn Device>, dir: &Path, json: bool, shown: Shown) -> anyhow::Result<Outcome> {
    let mut results = Results::new();
    if !json {
        results.line(frame_heading())?;
    }
    let mut printed: io::Result<()> = Ok(());
    let found = inspect(device, dir, |frame| {
        if printed.is_ok() {
            printed = if json {
                results.json(&frame_line(&frame, shown))
            } else {
                results.line(frame_text(&frame_line(&frame, shown), frame.payload, shown))
            };
        }
    });
    results.flush()?;
    printed?;
    let found = found?;
    output::note(summary(&found));
    Ok(Outcome::Good)
}

#[derive(Serialize)]
struct VerifyLine<'a> {
    ok: bool,
    dir: Cow<'a, str>,
    #[serde(flatten)]
    found: Option<FoundLine>,
    error: Option<String>,
}

#[derive(Serialize)]
struct FoundLine {
    segments: usize,
    frames: u64,
    first_frame: u64,
    end: u64,
    /// Everything below this LSN is known to have been durable.
    durable_mark: u64,
    torn_at: Option<u64>,
    ring: String,
    strays: Vec<String>,
}

fn verify(device: &Arc<dyn Device>, dir: &Path, json: bool) -> anyhow::Result<Outcome> {
    let bar = output::spinner("verify");
    let found = inspect(device, dir, |frame| {
        bar.inc(1);
        if frame.lsn.is_multiple_of(1 << 12) {
            bar.set_message(format!("frames, LSN {}", frame.end));
        }
    });
    bar.finish_and_clear();
    let mut results = Results::new();
    match found {
        Ok(found) => {
            if json {
                results.json(&VerifyLine {
                    ok: true,
                    dir: dir.to_string_lossy(),
                    found: Some(found_line(&found)),
                    error: None,
                })?;
            } else {
                results.line(summary(&found))?;
                results.line(format_args!("{}: no damage", dir.display()))?;
            }
            results.flush()?;
            Ok(Outcome::Good)
        }
        Err(error @ LogError::Corrupt { .. }) if !json => {
            output::complain(&error.into());
            if is_archive(&**device, dir) {
                output::note(
                    "an archive is not repaired: what lies before the damage cannot be read on from there",
                );
            } else {
                output::note(format_args!(
                    "`collie log repair {}` cuts the log there, if nothing can be restored",
                    dir.display()
                ));
            }
            Ok(Outcome::Bad)
        }
        Err(error @ LogError::Corrupt { .. }) => {
            results.json(&VerifyLine {
                ok: false,
                dir: dir.to_string_lossy(),
                found: None,
                error: Some(error.to_string()),
            })?;
            results.flush()?;
            Ok(Outcome::Bad)
        }
        Err(error) => Err(error.into()),
    }
}

fn found_line(found: &Inspection) -> FoundLine {
    FoundLine {
        segments: found.segments.len(),
        frames: found.frames,
        first_frame: found.first_frame,
        end: found.end,
        durable_mark: found.durable_mark,
        torn_at: found.torn.as_ref().map(|torn| torn.lsn),
        ring: ring(&found.ring),
        strays: found
            .strays
            .iter()
            .map(|path| path.display().to_string())
            .collect(),
    }
}

/// The result of an inspection as text.
fn summary(found: &Inspection) -> String {
    use fmt::Write;
    let epochs = found.segments.last().map_or(0, |s| s.epoch);
    let mut text = format!(
        "{} frames in {} segment{}, LSN {} to {}, epoch {epochs}, durable for certain below {}",
        found.frames,
        found.segments.len(),
        if found.segments.len() == 1 { "" } else { "s" },
        found.first_frame,
        found.end,
        found.durable_mark,
    );
    let mut add = |line: fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n{line}");
    };
    if let Some(torn) = &found.torn {
        add(format_args!("{}", torn_tail(torn)));
    }
    add(format_args!("ring: {}", ring(&found.ring)));
    for stray in &found.strays {
        add(format_args!("not part of the log: {}", stray.display()));
    }
    text
}

/// A torn tail as text.
pub(crate) fn torn_tail(torn: &TornTail) -> String {
    format!(
        "torn tail in {} at byte {} (LSN {}): {}; the next open truncates it; nothing that is left of the log shows that it was durable",
        name_of(&torn.path),
        torn.offset,
        torn.lsn,
        torn.found
    )
}

/// The outcome of a ring as text.
pub(crate) fn ring(outcome: &RingOutcome) -> String {
    match outcome {
        RingOutcome::None => "none".to_owned(),
        RingOutcome::Closed => "none needed, the log was closed".to_owned(),
        RingOutcome::Recovered { frames, holes } => {
            format!("found; it has {frames} frames that the segments lack, and {holes} unfinished ones")
        }
        RingOutcome::Gone { same_boot: true } => {
            "gone without a restart of the machine: what was acknowledged at the process level and not yet flushed \
             is lost"
                .to_owned()
        }
        RingOutcome::Gone { same_boot: false } => "gone with a restart of the machine".to_owned(),
        RingOutcome::Refused { reason } => format!("not used: {reason}"),
        _ => "in a state that this program does not know".to_owned(),
    }
}

#[derive(Serialize)]
struct RepairLine {
    repaired: bool,
    damage: Option<String>,
    end: u64,
    kept: Vec<String>,
}

fn repair_log(device: &Arc<dyn Device>, dir: &Path, json: bool) -> anyhow::Result<Outcome> {
    let bar = output::spinner("repair");
    let done = repair(device, dir);
    bar.finish_and_clear();
    let done = done?;
    let mut results = Results::new();
    if json {
        results.json(&RepairLine {
            repaired: done.damage.is_some(),
            end: done.end,
            kept: done.kept.iter().map(|path| path.display().to_string()).collect(),
            damage: done.damage,
        })?;
    } else {
        print_repair(&mut results, dir, &done)?;
    }
    results.flush()?;
    Ok(Outcome::Good)
}

fn print_repair(results: &mut Results, dir: &Path, done: &Repair) -> io::Result<()> {
    let Some(damage) = &done.damage else {
        return results.line(format_args!("{}: no damage, nothing was changed", dir.display()));
    };
    results.line(format_args!("found: {damage}"))?;
    results.line(format_args!(
        "truncated: the log ends at LSN {} now; what followed is lost to it",
        done.end
    ))?;
    for kept in &done.kept {
        results.line(format_args!("kept as it was: {}", kept.display()))?;
    }
    Ok(())
}
