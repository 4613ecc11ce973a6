//! `collie-lab` without a command: what Collie is for, shown in about forty seconds in a temporary
//! directory.

use std::io::{IsTerminal, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use collie_bench::{LogBench, LogKind};
use collie_check::images::{self, ImagesConfig};
use collie_cli::Outcome;
use collie_cli::output::{self, Results, grouped, note};
use collie_db::{Options, RingMode};
use collie_io::{Clock, RealClock};
use collie_server::ServerConfig;
use indicatif::{MultiProgress, ProgressBar};

use crate::args::TourArgs;
use crate::busy::Processors;
use crate::diagnostics;
use crate::figures::{self, count};
use crate::page::{Page, Style};
use crate::server::serve;
use crate::temporary::{self, Temporary};
use crate::torture::child::Writer;
use crate::torture::kill::Kills;
use crate::torture::messages::Message;

/// Threads that append, in one race and in the next.
const THREADS: [usize; 2] = [16, 64];
/// How often each log is measured.
const REPEATS: usize = 3;
/// The longest bar.
const BAR: usize = 36;
/// Behind the bar of what is measured.
const MARK: usize = 2;
/// From this share of the processors on that other programs used, rates compare nothing.
const BUSY: f64 = 0.15;
/// How often what is shown is renewed.
const FRAME: Duration = Duration::from_millis(100);
/// Where the tour serves, if that port is free.
const PORT: u16 = 6380;
/// Crash images between two looks at the clock.
const IMAGES: u64 = 40;

/// How long the parts take.
struct Pace {
    measurement: Duration,
    writing: Duration,
    cutting: Duration,
}

impl Pace {
    const FULL: Self = Self {
        measurement: Duration::from_millis(800),
        writing: Duration::from_millis(4_000),
        cutting: Duration::from_millis(8_000),
    };
    const SHORT: Self = Self {
        measurement: Duration::from_millis(20),
        writing: Duration::from_millis(200),
        cutting: Duration::from_millis(200),
    };
}

pub(crate) fn run(args: &TourArgs) -> anyhow::Result<Outcome> {
    let pace = if args.short { Pace::SHORT } else { Pace::FULL };
    let temporary = Temporary::new("collie-tour-", &std::env::temp_dir())?;
    let dir = temporary.path();
    let mut results = Results::new();
    let page = Page::new();
    let version = env!("CARGO_PKG_VERSION");
    page.plain(
        &mut results,
        &format!("Collie {version}: a transactional store built around its log."),
    )?;
    page.plain(
        &mut results,
        &format!("All files of this tour are in {} and go with it.", dir.display()),
    )?;
    races(&mut results, &page, dir, &pace)?;
    let survived = kill(&mut results, &page, &temporary, &pace)?;
    let recovered = cut_power(&mut results, &page, &pace)?;
    let outcome = if survived && recovered {
        Outcome::Good
    } else {
        Outcome::Bad
    };
    let serves = !args.no_serve && (args.serve || std::io::stdout().is_terminal());
    if outcome == Outcome::Good && serves {
        served(&mut results, &page, &temporary)?;
    } else {
        results.line("")?;
        page.plain(
            &mut results,
            "To serve a store of your own: cargo run --release --bin collie -- serve --dir DIR",
        )?;
    }
    temporary.close()?;
    Ok(outcome)
}

/// Shows what `text` says on a line that is renewed until `done`.
fn watch(done: impl Fn() -> bool, mut text: impl FnMut() -> String) {
    let line = figures::live();
    while !done() {
        line.set_message(text());
        std::thread::sleep(FRAME);
    }
    line.finish_and_clear();
}

/// Collie's log beside three that take locks.
fn races(results: &mut Results, page: &Page, dir: &Path, pace: &Pace) -> anyhow::Result<()> {
    page.part(
        results,
        "1 · The log.",
        "Threads append 100 bytes at a time; each waits until its own are on the device. All logs write the same frames \
         by the same calls, in groups; they differ in how a frame gets its place and in how those who wait are woken.",
    )?;
    let bench = LogBench {
        duration: pace.measurement,
        segment_bytes: 16 << 20,
        // What waits for the device does not care where the ring lies.
        ring: RingMode::Private,
        dir: dir.to_owned(),
        ..LogBench::default()
    };
    for (place, threads) in THREADS.into_iter().enumerate() {
        if place > 0 {
            results.line("")?;
        }
        race(results, page, &bench, threads)?;
    }
    Ok(())
}

/// All logs in turn, with one number of threads.
fn race(results: &mut Results, page: &Page, bench: &LogBench, threads: usize) -> anyhow::Result<()> {
    page.say(results, &format!("{threads} threads:"))?;
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); bench.logs.len()];
    let board = MultiProgress::with_draw_target(output::target());
    let lines: Vec<ProgressBar> = bench.logs.iter().map(|_| board.add(figures::live())).collect();
    let before = Processors::now();
    for _ in 0..REPEATS {
        for (which, &log) in bench.logs.iter().enumerate() {
            let rate = measure(bench, page, threads, log, lines.get(which), best(&rates))?;
            if let Some(of_log) = rates.get_mut(which) {
                of_log.push(rate);
            }
            for ((line, log), of_log) in lines.iter().zip(&bench.logs).zip(&rates) {
                line.set_message(bar(page, *log, median(of_log), best(&rates)));
            }
        }
    }
    let others = before.and_then(|before| Some(Processors::now()?.others_since(&before)));
    board.clear()?;
    for (log, of_log) in bench.logs.iter().zip(&rates) {
        results.line(bar(page, *log, median(of_log), best(&rates)))?;
    }
    let all: Vec<(LogKind, Vec<f64>)> = bench.logs.iter().copied().zip(rates).collect();
    page.say(results, &verdict(&all, others.unwrap_or(0.0)))?;
    Ok(())
}

/// What the rates say, of which the first are Collie's, if other programs used so much of the
/// processors meanwhile.
fn verdict(rates: &[(LogKind, Vec<f64>)], others: f64) -> String {
    if others >= BUSY {
        return format!(
            "Other programs had {:.0} % of the processors meanwhile: these figures compare nothing. On an idle machine \
             they do.",
            others * 100.0
        );
    }
    let Some(((_, collie), peers)) = rates.split_first() else {
        return String::new();
    };
    let peers = peers.iter().max_by(|a, b| median(&a.1).total_cmp(&median(&b.1)));
    let Some((log, peer)) = peers else {
        return String::new();
    };
    let ratio = median(collie) / median(peer);
    let apart = least(collie) > most(peer) || most(collie) < least(peer);
    format!(
        "Collie's makes {ratio:.2} × the appends of the best of the others ({}){}.",
        log.name(),
        if apart {
            ""
        } else {
            ", which is within what both vary by from run to run"
        }
    )
}

fn least(rates: &[f64]) -> f64 {
    rates.iter().copied().fold(f64::INFINITY, f64::min)
}

fn most(rates: &[f64]) -> f64 {
    rates.iter().copied().fold(0.0, f64::max)
}

/// One measurement, with its progress on the log's own line.
fn measure(
    bench: &LogBench,
    page: &Page,
    threads: usize,
    log: LogKind,
    line: Option<&ProgressBar>,
    longest: f64,
) -> anyhow::Result<f64> {
    let appended = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| bench.run_one(log, threads, &appended));
        let (mut before, mut at) = (0, RealClock.monotonic());
        while !running.is_finished() {
            std::thread::sleep(FRAME.min(bench.duration));
            // Relaxed: a figure to watch.
            let (now, done) = (RealClock.monotonic(), appended.load(Ordering::Relaxed));
            let rate = (done - before) as f64 * 1e9 / (now - at).max(1) as f64;
            (before, at) = (done, now);
            if let Some(line) = line {
                line.set_message(format!("{} ◂", bar(page, log, rate, longest.max(rate))));
            }
        }
        match running.join() {
            Ok(result) => Ok(result?.appends_per_sec),
            Err(_) => anyhow::bail!("a measuring thread panicked"),
        }
    })
}

fn median(rates: &[f64]) -> f64 {
    let mut rates = rates.to_vec();
    rates.sort_by(f64::total_cmp);
    rates
        .get(rates.len().saturating_sub(1) / 2)
        .copied()
        .unwrap_or(0.0)
}

fn best(rates: &[Vec<f64>]) -> f64 {
    rates.iter().map(|of_log| median(of_log)).fold(0.0, f64::max)
}

fn bar(page: &Page, log: LogKind, rate: f64, longest: f64) -> String {
    let head = format!("    {:<13} {:>8}/s  ", log.name(), count(rate));
    let room = BAR.min(page.room(head.chars().count() + MARK));
    let length = if longest > 0.0 {
        (rate / longest * room as f64).round() as usize
    } else {
        0
    };
    let style = if log == LogKind::Collie {
        Style::Ours
    } else {
        Style::Theirs
    };
    format!("{head}{}", page.styled(style, &"█".repeat(length.min(room))))
}

/// A process is killed while it writes.
fn kill(results: &mut Results, page: &Page, temporary: &Temporary, pace: &Pace) -> anyhow::Result<bool> {
    page.part(
        results,
        "2 · A crash.",
        "Another process commits to a store from five threads: two wait for the device, two for shared memory only, one \
         for nothing. It is killed in mid-write.",
    )?;
    let store = temporary.path().join("killed");
    let writer = Writer::start(&store, temporary.rings())?;
    writer.wait_for(Message::Open)?;
    let until = RealClock.monotonic() + u64::try_from(pace.writing.as_nanos()).unwrap_or(0);
    let pid = writer.pid();
    watch(
        || RealClock.monotonic() >= until,
        || {
            format!(
                "    process {pid} writes: {} acknowledged",
                grouped(writer.acknowledged())
            )
        },
    );
    let heard = writer.kill()?;
    page.say(
        results,
        &format!("SIGKILL to process {pid}. The store opens again:"),
    )?;
    let mut kills = Kills::new(&store, temporary.rings(), 0);
    kills.note(&heard);
    let opening = RealClock.monotonic();
    kills.check()?;
    let ms = (RealClock.monotonic() - opening) / 1_000_000;
    let report = &kills.report;
    page.say(
        results,
        &format!(
            "acknowledged {} · recovered {} · lost {}",
            grouped(report.verdict.acknowledged),
            grouped(report.verdict.recovered),
            grouped(report.verdict.lost),
        ),
    )?;
    page.say(
        results,
        &format!("(opened and checked in {ms} ms; what was not acknowledged yet may be there too)"),
    )?;
    report
        .verdict
        .findings
        .iter()
        .try_for_each(|line| results.line(format_args!("    {line}")))?;
    results.flush()?;
    Ok(report.verdict.holds())
}

/// A simulated device loses power under the log.
fn cut_power(results: &mut Results, page: &Page, pace: &Pace) -> anyhow::Result<bool> {
    page.part(
        results,
        "3 · A power cut.",
        "A simulated device keeps what was synced and any part of the rest: torn, reordered, turned to garbage. The log \
         recovers each such image; some of the recoveries are cut short and begin again.",
    )?;
    let until = RealClock.monotonic() + u64::try_from(pace.cutting.as_nanos()).unwrap_or(0);
    let line = figures::live();
    let mut seed_bytes = [0; 4];
    collie_io::Device::random(&collie_io::RealDevice::new(), &mut seed_bytes)?;
    let first_seed = u64::from(u32::from_le_bytes(seed_bytes));
    let (mut rounds, mut acknowledged, mut lost, mut failed) = (0, 0, 0, 0);
    for seed in first_seed.. {
        let config = ImagesConfig {
            images: IMAGES,
            seed,
            ..ImagesConfig::default()
        };
        let report = diagnostics::quietly(|| images::run(&config, |_| {}));
        rounds += report.rounds;
        acknowledged += report.verdict.acknowledged;
        lost += report.verdict.lost;
        failed += report.failed;
        line.set_message(format!("    {} crash images", grouped(rounds)));
        for failure in &report.failures {
            results.line(failure)?;
        }
        if failed > 0 || RealClock.monotonic() >= until {
            break;
        }
    }
    line.finish_and_clear();
    page.say(
        results,
        &format!(
            "{} images recovered · acknowledged {} · lost {} (seed {first_seed})",
            grouped(rounds),
            grouped(acknowledged),
            grouped(lost),
        ),
    )?;
    Ok(failed == 0)
}

fn served(results: &mut Results, page: &Page, temporary: &Temporary) -> anyhow::Result<()> {
    let free = TcpListener::bind(("127.0.0.1", PORT)).is_ok();
    let config = ServerConfig {
        listen: SocketAddr::from(([127, 0, 0, 1], if free { PORT } else { 0 })),
        ..ServerConfig::default()
    };
    page.part(
        results,
        "4 · The server, for Redis clients.",
        "A reply is sent once every commit that it reflects is durable.",
    )?;
    let options = Options {
        ring: temporary.ring(RingMode::default()),
        ..Options::default()
    };
    temporary::leave_signals_alone();
    serve(&temporary.path().join("served"), options, config, |addr| {
        let port = addr.port();
        let text = format!(
            "\n    In another terminal:\n\n        redis-cli -p {port} set greeting hello\n        redis-cli -p {port} get greeting\n\n    \
             Ctrl-C ends it here."
        );
        // Standard output may be closed; then this is not read.
        let _ = writeln!(std::io::stdout(), "{text}");
    })?;
    note("Ended in order: everything is on disk.");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_machine_gets_no_verdict_and_close_rates_no_winner() {
        let rates = |collie: [f64; 3]| {
            vec![
                (LogKind::Collie, collie.to_vec()),
                (LogKind::Mutex, vec![10.0, 11.0, 12.0]),
                (LogKind::LinkBuffer, vec![1.0, 1.0, 1.0]),
            ]
        };
        let ahead = verdict(&rates([21.0, 22.0, 30.0]), 0.0);
        assert!(
            ahead.contains("2.00 × the appends") && ahead.ends_with("(mutex)."),
            "{ahead}"
        );
        let close = verdict(&rates([9.0, 10.0, 12.5]), 0.0);
        assert!(close.contains("0.91 ×") && close.contains("vary by"), "{close}");
        let behind = verdict(&rates([5.0, 5.5, 6.0]), BUSY - 0.01);
        assert!(
            behind.contains("0.50 × the appends") && !behind.contains("vary by"),
            "{behind}"
        );
        for collie in [[5.0, 5.5, 6.0], [21.0, 22.0, 30.0]] {
            let busy = verdict(&rates(collie), 0.42);
            assert!(busy.contains("42 %") && !busy.contains('×'), "{busy}");
        }
    }
}
