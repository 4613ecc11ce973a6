//! `collie-lab torture hostile`: a server under hostile clients and fault injection. A crowd of slow
//! connections beside a good client; small requests that make much work beside one; clients that wait
//! or take memory beside one; a disk that is filled and freed; files that vanish.

mod crowd;
mod full;
mod gone;
mod greedy;
mod heavy;
mod stage;
mod tmpfs;
mod writers;

use std::path::Path;

use anyhow::Context;
use collie_cli::Outcome;
use collie_cli::output::{Results, note};
use collie_sim::Rng;
use serde::Serialize;

use super::served::Served;
use crate::args::{HostileArgs, HostilePart};
use crate::temporary::Temporary;
use stage::Stage;
use tmpfs::Tmpfs;

/// Where it is set, what cannot be tested is a failure.
const REQUIRE_TOOLS: &str = "COLLIE_REQUIRE_TOOLS";
/// The size of a file system that is mounted to see whether one can be, in bytes.
const TRIAL: u64 = 1 << 20;

/// What was found in all parts.
#[derive(Debug, Serialize)]
struct Report {
    test: &'static str,
    seed: u64,
    crowd: Option<crowd::Report>,
    heavy: Option<heavy::Report>,
    greedy: Option<greedy::Report>,
    full: Option<full::Report>,
    vanished: Option<gone::Report>,
    violations: Vec<String>,
}

pub(crate) fn run(args: &HostileArgs, seed: u64) -> anyhow::Result<Outcome> {
    let temporary = Temporary::new("collie-hostile-", &std::env::temp_dir())?;
    let stage = Stage {
        dir: temporary.path().to_owned(),
        rings: temporary.rings().map(Path::to_owned),
    };
    let mut report = Report {
        test: "hostile",
        seed,
        crowd: None,
        heavy: None,
        greedy: None,
        full: None,
        vanished: None,
        violations: Vec::new(),
    };
    report.run(args, &stage)?;
    report.violations.iter().for_each(note);
    report.print(args.seeded.json)?;
    let good = report.violations.is_empty();
    if good {
        temporary.close()?;
    } else {
        note(format_args!("what is left is kept in {}", stage.dir.display()));
        temporary.keep();
    }
    Ok(if good { Outcome::Good } else { Outcome::Bad })
}

impl Report {
    fn run(&mut self, args: &HostileArgs, stage: &Stage) -> anyhow::Result<()> {
        let is_wanted = |part| args.part.is_none_or(|wanted| wanted == part);
        if is_wanted(HostilePart::Crowd) {
            self.crowd = Some(self.crowd(args, stage).context("the crowd")?);
        }
        if is_wanted(HostilePart::Heavy) {
            let heavy = heavy::run(stage, args, &mut self.violations);
            self.heavy = Some(heavy.context("the heavy commands")?);
        }
        if is_wanted(HostilePart::Greedy) {
            let greedy = greedy::run(stage, args, &mut self.violations);
            self.greedy = Some(greedy.context("the greedy clients")?);
        }
        if args.part.is_some_and(|part| !part.needs_mounts()) {
            return Ok(());
        }
        if let Err(missing) = Tmpfs::mount(&stage.dir.join("trial"), TRIAL) {
            let skipped = format!("SKIPPED: full disk and vanishing files: {missing:#}");
            anyhow::ensure!(std::env::var_os(REQUIRE_TOOLS).is_none(), "{skipped}");
            note(skipped);
            return Ok(());
        }
        if is_wanted(HostilePart::Full) {
            let mut rng = Rng::new(self.seed);
            let full = full::run(stage, &mut rng, &mut self.violations);
            self.full = Some(full.context("the full disk")?);
        }
        if is_wanted(HostilePart::Vanished) {
            let vanished = gone::run(stage, &mut self.violations);
            self.vanished = Some(vanished.context("the vanishing files")?);
        }
        Ok(())
    }

    fn crowd(&mut self, args: &HostileArgs, stage: &Stage) -> anyhow::Result<crowd::Report> {
        let plan = crowd::Plan {
            connections: args.connections.into(),
            turns: args.turns,
            factor: args.factor,
            floor_us: args.floor_us,
        };
        let mut server = Served::start(&[], &stage.server(&stage.dir.join("crowd"))?)?;
        let ran = crowd::run(server.port, plan, &mut self.violations);
        let report = ran.with_context(|| format!("the server said:\n{}", server.said()))?;
        stage.end(&mut server, &mut self.violations)?;
        Ok(report)
    }

    fn print(&self, json: bool) -> anyhow::Result<()> {
        let mut results = Results::new();
        if json {
            results.json(self)?;
        } else {
            let lines = [
                self.crowd.as_ref().map(crowd::Report::line),
                self.heavy.as_ref().map(heavy::Report::line),
                self.greedy.as_ref().map(greedy::Report::line),
                self.full.as_ref().map(full::Report::line),
                self.vanished.as_ref().map(gone::Report::line),
            ];
            for line in lines.into_iter().flatten() {
                results.line(line)?;
            }
            let count = self.violations.len();
            results.line(format_args!("violations {count} · seed {}", self.seed))?;
        }
        results.flush()?;
        Ok(())
    }
}
