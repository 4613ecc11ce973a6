//! `collie serve`.

mod config;
mod logging;
mod notify;
mod store;
mod values;

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context;
use collie_db::{Db, Options, RecoveryReport};
use collie_log::{RingMode, RingOutcome};
use collie_server::{Ack, Addresses, Server, ServerConfig, ignore_hangup, termination};

use crate::args::ServeArgs;
use crate::output::{Results, grouped};
use crate::torture::soak::sizes;
use crate::{Outcome, log};
use config::Effective;
use logging::announce;
pub(crate) use logging::{Filter, LogFormat};
use notify::Supervisor;

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<Outcome> {
    let effective = Effective::read(args)?;
    if args.check_config {
        let mut results = Results::new();
        results.line(effective.shown()?.trim_end())?;
        results.flush()?;
        effective.warnings.iter().for_each(crate::output::note);
        return Ok(Outcome::Good);
    }
    ignore_hangup().context("SIGHUP cannot be ignored")?;
    let diagnostics = &effective.config.diagnostics;
    let format = diagnostics.log_format;
    let verbosity = logging::start(&diagnostics.log_level, format)?;
    for warning in &effective.warnings {
        tracing::warn!("{warning}");
    }
    let mut config = ServerConfig {
        verbosity: Some(verbosity),
        ..effective.server()
    };
    let mut options = effective.options();
    if args.small {
        options = crate::torture::power::small(options);
    }
    if args.moderate {
        options = sizes::options(options);
        config.databases = sizes::databases();
    }
    let served = serve(&effective.dir, options, config, format, |_| {});
    match (served, format) {
        // Whoever reads objects finds the reason among them.
        (Err(error), LogFormat::Json) => {
            tracing::error!("{error:#}");
            Ok(Outcome::Bad)
        }
        (served, _) => served,
    }
}

/// Opens the store in `dir`, says what was recovered, and serves until it is asked to end. `listening` is
/// called as soon as clients can connect.
pub(crate) fn serve(
    dir: &Path,
    options: Options,
    config: ServerConfig,
    format: LogFormat,
    listening: impl FnOnce(SocketAddr),
) -> anyhow::Result<Outcome> {
    let ack = config.ack;
    let ring = options.ring.clone();
    let config = ServerConfig {
        ring_bytes: options.ring_bytes,
        ..config
    };
    let ring_bytes = config.ring_bytes as u64;
    // Before there is a store: a start that is refused leaves nothing behind.
    let addresses = Addresses::take(config)?;
    let db = Db::open(dir, options).with_context(|| format!("cannot open the store in {}", dir.display()))?;
    announce(
        format,
        format_args!(
            "collie {} · {} · {}",
            env!("CARGO_PKG_VERSION"),
            dir.display(),
            db.recovery()
                .map_or_else(|| "the log is off".to_owned(), recovered)
        ),
    );
    if let Some(report) = db.recovery() {
        announce(format, ring_line(&ring, ring_bytes, report.ring_shared));
        for warning in &report.warnings {
            tracing::warn!("{warning}");
        }
    }
    let server = match Server::listen(addresses, db.clone()) {
        Ok(server) => server,
        Err(error) => {
            // What was to be said about the store has been said; why nobody is served counts more.
            let _ = db.close();
            return Err(error.into());
        }
    };
    drop(db);
    let addr = server.local_addr();
    announce(
        format,
        format_args!("ack {ack}: replies leave when {}", when(ack)),
    );
    if let Some(addr) = server.metrics_addr() {
        announce(format, format_args!("metrics at http://{addr}/metrics"));
    }
    let supervisor = Supervisor::from_environment();
    let ending = supervisor.clone().tell_of_the_end();
    let told = || {
        announce(format, format_args!("listening on {addr}"));
        listening(addr);
        supervisor.ready(&format!("listening on {addr}, ack {ack}"));
    };
    server.run(async move {
        // The server drops this when it stops to accept, whoever asked it to.
        let _ending = ending;
        after_first_look(termination(), told).await;
    })?;
    announce(format, "ended in order: everything is on disk");
    Ok(Outcome::Good)
}

/// Calls `told` when `future` was looked at for the first time. For the signals that end the server this means
/// that they are caught: whoever learns that it listens may end it at once, and it ends in order.
async fn after_first_look(future: impl Future<Output = ()>, told: impl FnOnce()) {
    let mut future = std::pin::pin!(future);
    let mut told = Some(told);
    std::future::poll_fn(|context| {
        let looked = future.as_mut().poll(context);
        if let Some(told) = told.take() {
            told();
        }
        looked
    })
    .await;
}

/// Where the ring lies, and what that means for what is in it.
fn ring_line(asked: &RingMode, bytes: u64, is_shared: bool) -> String {
    let size = grouped(bytes);
    match asked {
        RingMode::Shared { dir } if is_shared => {
            format!(
                "ring of {size} bytes in {}: it survives the process",
                dir.display()
            )
        }
        RingMode::Shared { dir } => format!(
            "ring of {size} bytes in the process, since {} has no room for it",
            dir.display()
        ),
        RingMode::Private => format!("ring of {size} bytes in the process, as asked"),
    }
}

fn when(ack: Ack) -> &'static str {
    match ack {
        Ack::Disk => "what they tell survives a power cut",
        Ack::Process => "what they tell survives the death of the process (not a power cut)",
        Ack::Buffered => "they are ready: a crash may take back what they told",
    }
}

/// What opening a store found, in a line.
pub(crate) fn recovered(report: &RecoveryReport) -> String {
    use std::fmt::Write;
    if report.epoch == 1 {
        return "a new store".to_owned();
    }
    let mut text = format!(
        "recovered: epoch {}, {} frames read, log ends at LSN {}",
        report.epoch,
        grouped(report.frames),
        report.end
    );
    // Writing to a string cannot fail.
    let _ = match &report.ring {
        RingOutcome::None | RingOutcome::Closed => Ok(()),
        RingOutcome::Recovered { frames, .. } => {
            write!(text, ", {} of them saved from the shared ring", grouped(*frames))
        }
        other => write!(text, ", ring {}", log::ring(other)),
    };
    if let Some(torn) = &report.torn {
        let _ = write!(text, ", {}", log::torn_tail(torn));
    }
    text
}
