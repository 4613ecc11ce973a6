//! `collie cluster status --watch`: the status again and again.

use std::io::{self, IsTerminal};
use std::pin::pin;
use std::time::Duration;

use anyhow::Context;
use collie_cli::Outcome;
use collie_cli::output::Results;
use collie_io::{Clock, RealClock};
use collie_server::termination;
use serde::Serialize;
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use super::status::{Asker, not_asked, show};
use super::verdict::{NOT_ASKED, Verdict};
use crate::args::StatusArgs;

/// Has a terminal show what follows from its upper left corner on, and nothing else.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Shows the status every so many seconds, until SIGINT or SIGTERM. The exit code is that of the last one.
pub(super) fn watch(args: &StatusArgs, every_s: u32) -> anyhow::Result<Outcome> {
    let mut asker = match Asker::of(args) {
        Ok(asker) => asker,
        Err(error) => return Ok(not_asked(&error)),
    };
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let redraws = !args.json && io::stdout().is_terminal();
    let mut code = NOT_ASKED;
    let ended: anyhow::Result<()> = runtime.block_on(async {
        let mut terminated = pin!(termination());
        let mut ticks = interval(Duration::from_secs(every_s.into()));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // A thread of its own asks: an end does not wait for nodes that do not answer.
            let asking = async {
                ticks.tick().await;
                let asked = spawn_blocking(move || {
                    let looked = asker.look();
                    (asker, looked)
                });
                asked.await.context("the nodes cannot be asked")
            };
            let (back, looked) = tokio::select! {
                biased;
                () = &mut terminated => return Ok(()),
                asked = asking => asked?,
            };
            asker = back;
            code = looked.as_ref().map_or(NOT_ASKED, |verdict| verdict.state.code());
            if let Ok(verdict) = &looked {
                asker.know(&verdict.nodes);
            }
            block(args, redraws, &looked)?;
        }
    });
    runtime.shutdown_background();
    ended?;
    Ok(Outcome::Code(code))
}

/// In the place of a cluster's state where no node can be asked.
#[derive(Serialize)]
struct Unknown {
    state: &'static str,
    problem: String,
}

fn block(args: &StatusArgs, redraws: bool, looked: &anyhow::Result<Verdict>) -> anyhow::Result<()> {
    let unknown = "unknown";
    let mut results = Results::new();
    if !args.json {
        let state = looked.as_ref().map_or(unknown, |verdict| verdict.state.name());
        let second = RealClock.wall_ms() / 1000 % 86_400;
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let clear = if redraws { CLEAR } else { "" };
        results.line(format_args!(
            "{clear}{hour:02}:{minute:02}:{second:02} UTC  {state}"
        ))?;
    }
    match looked {
        Ok(verdict) => show(&mut results, args, verdict)?,
        Err(problem) if args.json => results.json(&Unknown {
            state: unknown,
            problem: problem.to_string(),
        })?,
        Err(problem) => results.line(problem)?,
    }
    Ok(results.flush()?)
}
