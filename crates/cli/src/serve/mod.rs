//! `collie serve`.

mod config;
mod file;
mod limits;
mod listening;
mod logging;
mod reload;
mod store;
mod values;

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use collie_cli::Outcome;
use collie_cli::output::{Results, grouped};
use collie_db::{Db, Options, RecoveryReport};
use collie_io::{Clock, RealClock};
use collie_log::{RingMode, RingOutcome};
use collie_server::{
    Ack, Addresses, Server, ServerConfig, ServerError, Verbosity, ignore_hangup, termination,
};

use crate::args::ServeArgs;
use crate::notify::Supervisor;
use crate::{log, rings};
pub(crate) use config::{Config, Effective, Settings};
pub(crate) use file::read_password;
#[cfg(test)]
pub(crate) use file::{examples, parse};
pub(crate) use limits::{Diagnostics, Limits};
pub(crate) use listening::Listening;
pub(crate) use logging::{Filter, LogFormat, announce};
pub(crate) use reload::Reload;
pub(crate) use store::Store;
pub(crate) use values::{Bytes, Number};

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<Outcome> {
    let effective = Effective::<Config>::read(args)?;
    if args.serving.check_config {
        return show(&effective);
    }
    let (options, dir) = (effective.options(), effective.dir.clone());
    let (config, reload) = prepare(args, effective)?;
    let format = reload.format();
    ended(serve(&dir, options, config, reload), format)
}

/// Prints a configuration, after a look at the files of TLS that it names.
pub(crate) fn show<S: Settings>(effective: &Effective<S>) -> anyhow::Result<Outcome> {
    if let Some(tls) = &effective.server().tls {
        let clock: Arc<dyn Clock> = Arc::new(RealClock);
        tls.settings.verify(&clock).context("TLS")?;
    }
    let mut results = Results::new();
    results.line(effective.shown()?.trim_end())?;
    results.flush()?;
    effective.warnings.iter().for_each(collie_cli::output::note);
    Ok(Outcome::Good)
}

/// Starts the diagnostics, and returns the server's configuration and what SIGHUP reloads.
pub(crate) fn prepare<S: Settings>(
    args: &S::Args,
    effective: Effective<S>,
) -> anyhow::Result<(ServerConfig, Reload<S>)> {
    ignore_hangup().context("SIGHUP cannot be ignored")?;
    let settings = &effective.config.diagnostics;
    let diagnostics = logging::start(&settings.log_level, settings.log_format)?;
    for warning in &effective.warnings {
        tracing::warn!("{warning}");
    }
    let config = ServerConfig {
        verbosity: Some(Arc::clone(&diagnostics) as Arc<dyn Verbosity>),
        ..effective.server()
    };
    let reload = Reload {
        args: args.clone(),
        effective,
        diagnostics,
    };
    Ok((config, reload))
}

/// The outcome of a server that has ended.
pub(crate) fn ended(served: anyhow::Result<Outcome>, format: LogFormat) -> anyhow::Result<Outcome> {
    match (served, format) {
        // A program that reads JSON objects finds the error among them.
        (Err(error), LogFormat::Json) => {
            tracing::error!("{error:#}");
            Ok(Outcome::Bad)
        }
        (served, _) => served,
    }
}

/// Opens the store in `dir`, reports what was recovered, and serves until shutdown. SIGHUP reloads
/// the settings of `reload`.
fn serve(
    dir: &Path,
    options: Options,
    config: ServerConfig,
    reload: Reload<Config>,
) -> anyhow::Result<Outcome> {
    let format = reload.format();
    let ack = config.ack;
    let ring = options.ring.clone();
    let config = ServerConfig {
        ring_bytes: options.ring_bytes,
        ..config
    };
    let ring_bytes = config.ring_bytes as u64;
    // Before the store is opened or created: a refused start leaves nothing behind.
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
    if let Some(line) = rings::dead_line(&ring) {
        tracing::warn!("{line}");
    }
    let server = match Server::listen(addresses, db.clone()) {
        Ok(server) => server,
        Err(error) => {
            // The state of the store has been reported; the reason why it is not served is the
            // error to return.
            let _ = db.close();
            return Err(error.into());
        }
    };
    drop(db);
    announce(
        format,
        format_args!("ack {ack}: replies are sent once {}", when(ack)),
    );
    if let Some(addr) = server.tls_addr() {
        announce(format, format_args!("TLS at {addr}"));
    }
    serve_until(termination(), server, reload, &format!(", ack {ack}"))?;
    announce(format, "ended in order: everything is on disk");
    Ok(Outcome::Good)
}

/// Serves clients until `ended` completes or a client shuts the server down, and reloads settings at
/// each SIGHUP. Once the signals are caught, announces the address, and notifies the supervisor with
/// `status` behind it.
pub(crate) fn serve_until<S: Settings>(
    ended: impl Future<Output = ()>,
    server: Server,
    reload: Reload<S>,
    status: &str,
) -> Result<(), ServerError> {
    let format = reload.format();
    if let Some(addr) = server.metrics_addr() {
        announce(format, format_args!("metrics at http://{addr}/metrics"));
    }
    let listening = format!("listening on {}", server.local_addr());
    let supervisor = Supervisor::from_environment();
    let ending = supervisor.clone().stopping_on_drop();
    let on_first_poll = || {
        announce(format, &listening);
        supervisor.ready(&format!("{listening}{status}"));
    };
    let settings = server.settings();
    server.run(async {
        // The server drops this future when it stops accepting, whatever the reason.
        let _ending = ending;
        let ended_or_reloading = async {
            tokio::select! {
                () = ended => {}
                () = reload.at_hangups(settings) => {}
            }
        };
        after_first_poll(ended_or_reloading, on_first_poll).await;
    })
}

/// Calls `on_first_poll` once `future` has been polled. By then the signals that end the server are
/// caught: a supervisor that learns that the server listens may end it at once, and it ends in
/// order.
async fn after_first_poll(future: impl Future<Output = ()>, on_first_poll: impl FnOnce()) {
    let mut future = std::pin::pin!(future);
    let mut on_first_poll = Some(on_first_poll);
    std::future::poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        if let Some(on_first_poll) = on_first_poll.take() {
            on_first_poll();
        }
        polled
    })
    .await;
}

/// Where the ring lies, and what its frames survive.
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
            "ring of {size} bytes in the process, since {} has no space for it",
            dir.display()
        ),
        RingMode::Private => format!("ring of {size} bytes in the process, as asked"),
    }
}

fn when(ack: Ack) -> &'static str {
    match ack {
        Ack::Disk => "their commits survive a power cut",
        Ack::Process => "their commits survive the death of the process (not a power cut)",
        Ack::Buffered => "they are ready: a crash may take back what they reflect",
    }
}

/// The result of opening a store, in one line.
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
