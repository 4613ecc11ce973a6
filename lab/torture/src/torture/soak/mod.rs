//! `collie-lab torture soak`: a server under a mixed load for a long time, whose memory, disk and
//! latencies are watched and whose every reply is compared with a ledger; at the end it is started
//! again and everything is read.

pub(crate) mod call;
pub(crate) mod gauge;
pub(crate) mod ledger;
mod load;
mod report;
pub(crate) mod sizes;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use collie_cli::Outcome;
use collie_cli::output::note;
use collie_io::{Clock, Nanos, RealClock};
use collie_sim::Rng;

use super::served::{Served, moderate};
use crate::args::SoakArgs;
use crate::figures;
use crate::temporary::Temporary;
use load::{Board, Load};
use report::Report;

/// How long a window of the run is, of which each has a p99.
const WINDOW: Duration = Duration::from_secs(5);
/// How often memory and disk are looked at.
const SAMPLE: Duration = Duration::from_secs(2);
/// How often the clients are looked at.
const TICK: Duration = Duration::from_millis(200);

pub(crate) fn run(args: &SoakArgs, seed: u64) -> anyhow::Result<Outcome> {
    let temporary = Temporary::new("collie-soak-", &std::env::temp_dir())?;
    let store = args.dir.as_deref().unwrap_or(temporary.path()).join("store");
    let board = Board::new()?;
    let mut soak = Soak {
        store,
        rings: temporary.rings().map(Path::to_owned),
        rng: Rng::new(seed),
        report: Report::new(args.minutes, seed, args.drift_max),
    };
    let ran = soak.run(&board, Duration::from_secs(60 * args.minutes));
    let report = &mut soak.report;
    report.found(&board.findings);
    if let Err(error) = &ran {
        report.violations.push(format!("{error:#}"));
    }
    let good = report.violations.is_empty();
    report.violations.iter().for_each(note);
    if good {
        temporary.close()?;
    } else {
        note(format_args!("the store is kept in {}", soak.store.display()));
        temporary.keep();
    }
    report.print(args.seeded.json)?;
    Ok(if good { Outcome::Good } else { Outcome::Bad })
}

struct Soak {
    store: PathBuf,
    rings: Option<PathBuf>,
    rng: Rng,
    report: Report,
}

impl Soak {
    fn start(&self) -> anyhow::Result<Served> {
        Served::start(&[], &moderate(&self.store, self.rings.as_deref())?)
    }

    fn run(&mut self, board: &Board, life: Duration) -> anyhow::Result<()> {
        let mut server = self.start()?;
        let (port, pid) = (server.port, server.pid());
        let ran = std::thread::scope(|scope| {
            let load = Load::start(scope, board, port, &mut self.rng);
            let watched = watch(board, pid, &self.store, life, &mut self.report);
            board.stop();
            let joined = load.join();
            // What a client met comes of what the server did.
            watched.and(joined)
        });
        let said = |server: &Served| format!("the server said:\n{}", server.said());
        let mut ledgers = ran.with_context(|| said(&server))?;
        load::look_at_everything(server.port, &mut ledgers, &board.findings)
            .with_context(|| said(&server))?;
        self.end(&mut server)?;
        let mut server = self.start()?;
        load::look_at_everything(server.port, &mut ledgers, &board.findings)
            .with_context(|| said(&server))?;
        self.report.looked_again = true;
        self.end(&mut server)
    }

    /// Has a server end in order.
    fn end(&mut self, server: &mut Served) -> anyhow::Result<()> {
        let status = server.end()?;
        anyhow::ensure!(
            status.success(),
            "the server ended with {status}, asked to end in order; it said:\n{}",
            server.said()
        );
        let panics = server.panics();
        anyhow::ensure!(
            panics.is_empty(),
            "the server's threads panicked:\n{}",
            panics.join("\n")
        );
        Ok(())
    }
}

/// Watches until the time is up, or a client has ended.
fn watch(board: &Board, pid: u32, store: &Path, life: Duration, report: &mut Report) -> anyhow::Result<()> {
    while !board.is_filled() && !board.is_stopped() {
        std::thread::sleep(TICK);
    }
    board.take_p99()?;
    let clock = RealClock;
    let (began, length) = (clock.monotonic(), nanos(life));
    let bar = figures::progress("soak", life.as_secs());
    let (mut next_window, mut next_sample) = (nanos(WINDOW), 0);
    loop {
        let now = clock.monotonic().saturating_sub(began);
        if now >= next_sample {
            report.sample(gauge::memory(pid)?, gauge::disk(store)?, board.live());
            next_sample += nanos(SAMPLE);
        }
        if now >= next_window {
            let (calls, p99) = board.take_p99()?;
            report.window(calls, p99);
            next_window += nanos(WINDOW);
        }
        if now >= length || board.is_stopped() {
            break;
        }
        bar.set_position(now / 1_000_000_000);
        bar.set_message(report.progress());
        std::thread::sleep(TICK);
    }
    bar.finish_and_clear();
    Ok(())
}

fn nanos(span: Duration) -> Nanos {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
