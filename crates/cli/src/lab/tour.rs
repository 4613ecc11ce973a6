//! `collie` without a command: what Collie is for, shown in about forty seconds in a temporary
//! directory.

use std::io::{IsTerminal, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use collie_bench::{LogBench, LogKind};
use collie_check::images::{self, ImagesConfig};
use collie_db::{Options, RingMode};
use collie_io::{Clock, RealClock};
use collie_server::ServerConfig;
use indicatif::{MultiProgress, ProgressBar};

use crate::lab::args::TourArgs;
use crate::lab::figures::{self, count};
use crate::lab::temporary::{self, Temporary};
use crate::lab::torture::child::Writer;
use crate::lab::torture::kill::Kills;
use crate::lab::torture::messages::Message;
use crate::output::{self, Results, grouped};
use crate::{Outcome, serve};

/// Threads that append, in one race and in the next.
const THREADS: [usize; 2] = [16, 64];
/// How often each log is measured.
const REPEATS: usize = 3;
/// The longest bar.
const BAR: usize = 36;
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
    say(
        &mut results,
        &format!(
            "Collie {}: a transactional store built around its log.\nAll files of this tour are in {} and go with it.",
            env!("CARGO_PKG_VERSION"),
            dir.display()
        ),
    )?;
    races(&mut results, dir, &pace)?;
    let survived = kill(&mut results, &temporary, &pace)?;
    let recovered = cut_power(&mut results, &pace)?;
    let outcome = if survived && recovered {
        Outcome::Good
    } else {
        Outcome::Bad
    };
    let serves = !args.no_serve && (args.serve || std::io::stdout().is_terminal());
    if outcome == Outcome::Good && serves {
        served(&mut results, &temporary)?;
    } else {
        say(
            &mut results,
            "\nTo serve a store of your own: collie serve --dir DIR",
        )?;
    }
    temporary.close()?;
    Ok(outcome)
}

fn say(results: &mut Results, text: &str) -> std::io::Result<()> {
    results.line(text)?;
    results.flush()
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
fn races(results: &mut Results, dir: &Path, pace: &Pace) -> anyhow::Result<()> {
    say(
        results,
        "\n1 · The log. Threads append 100 bytes at a time; each waits until its own are on the\n    \
         device. All logs write the same frames by the same calls, in groups; they differ\n    \
         in how a frame gets its place and in how those who wait are woken.",
    )?;
    let bench = LogBench {
        duration: pace.measurement,
        segment_bytes: 16 << 20,
        // What waits for the device does not care where the ring lies.
        ring: RingMode::Private,
        dir: dir.to_owned(),
        ..LogBench::default()
    };
    THREADS
        .into_iter()
        .try_for_each(|threads| race(results, &bench, threads))
}

/// All logs in turn, with one number of threads.
fn race(results: &mut Results, bench: &LogBench, threads: usize) -> anyhow::Result<()> {
    say(results, &format!("\n    {threads} threads:"))?;
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); bench.logs.len()];
    let board = MultiProgress::with_draw_target(output::target());
    let lines: Vec<ProgressBar> = bench.logs.iter().map(|_| board.add(figures::live())).collect();
    for _ in 0..REPEATS {
        for (which, &log) in bench.logs.iter().enumerate() {
            let rate = measure(bench, threads, log, lines.get(which), best(&rates))?;
            if let Some(of_log) = rates.get_mut(which) {
                of_log.push(rate);
            }
            for ((line, log), of_log) in lines.iter().zip(&bench.logs).zip(&rates) {
                line.set_message(bar(log.name(), median(of_log), best(&rates)));
            }
        }
    }
    board.clear()?;
    let rates: Vec<f64> = rates.iter().map(|of_log| median(of_log)).collect();
    let longest = rates.iter().copied().fold(0.0, f64::max);
    for (log, &rate) in bench.logs.iter().zip(&rates) {
        results.line(bar(log.name(), rate, longest))?;
    }
    let others = rates.iter().zip(&bench.logs).skip(1);
    if let (Some(collie), Some((other, log))) = (rates.first(), others.max_by(|a, b| a.0.total_cmp(b.0))) {
        results.line(format_args!(
            "    Collie's makes {:.2} × the appends of the best of the others ({}).",
            collie / other,
            log.name()
        ))?;
    }
    results.flush()?;
    Ok(())
}

/// One measurement, with its progress on the log's own line.
fn measure(
    bench: &LogBench,
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
                line.set_message(format!("{} ◂", bar(log.name(), rate, longest.max(rate))));
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

fn bar(name: &str, rate: f64, longest: f64) -> String {
    let length = if longest > 0.0 {
        (rate / longest * BAR as f64).round() as usize
    } else {
        0
    };
    format!(
        "    {name:<13} {:>8}/s  {}",
        count(rate),
        "█".repeat(length.min(BAR))
    )
}

/// A process is killed while it writes.
fn kill(results: &mut Results, temporary: &Temporary, pace: &Pace) -> anyhow::Result<bool> {
    say(
        results,
        "\n2 · A crash. Another process commits to a store from five threads: two wait for the\n    \
         device, two for shared memory only, one for nothing. It is killed in mid-write.\n",
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
    results.line(format_args!(
        "    SIGKILL to process {pid}. The store opens again:"
    ))?;
    let mut kills = Kills::new(&store, temporary.rings(), 0);
    kills.note(&heard);
    let opening = RealClock.monotonic();
    kills.check()?;
    let ms = (RealClock.monotonic() - opening) / 1_000_000;
    let report = &kills.report;
    results.line(format_args!(
        "    acknowledged {} · recovered {} · lost {}\n    (opened and checked in {ms} ms; what was not acknowledged yet may be there too)",
        grouped(report.verdict.acknowledged),
        grouped(report.verdict.recovered),
        report.verdict.lost,
    ))?;
    report
        .verdict
        .findings
        .iter()
        .try_for_each(|line| results.line(format_args!("    {line}")))?;
    results.flush()?;
    Ok(report.verdict.holds())
}

/// A simulated device loses power under the log.
fn cut_power(results: &mut Results, pace: &Pace) -> anyhow::Result<bool> {
    say(
        results,
        "\n3 · A power cut. A simulated device keeps what was synced and any part of the rest:\n    \
         torn, reordered, turned to garbage. The log recovers each such image; some of the\n    \
         recoveries are cut short and begin again.\n",
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
        let report = output::quietly(|| images::run(&config, |_| {}));
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
    results.line(format_args!(
        "    {} images recovered · acknowledged {} · lost {lost}   (seed {first_seed})",
        grouped(rounds),
        grouped(acknowledged),
    ))?;
    results.flush()?;
    Ok(failed == 0)
}

fn served(results: &mut Results, temporary: &Temporary) -> anyhow::Result<()> {
    let free = TcpListener::bind(("127.0.0.1", PORT)).is_ok();
    let config = ServerConfig {
        listen: SocketAddr::from(([127, 0, 0, 1], if free { PORT } else { 0 })),
        ..ServerConfig::default()
    };
    say(
        results,
        "\n4 · The server, for Redis clients. A reply is sent once every commit that it reflects is durable.\n",
    )?;
    let options = Options {
        ring: temporary.ring(RingMode::default()),
        ..Options::default()
    };
    temporary::leave_signals_alone();
    serve::serve(
        &temporary.path().join("served"),
        options,
        config,
        serve::LogFormat::Text,
        None,
        |addr| {
            let port = addr.port();
            let text = format!(
                "\n    In another terminal:\n\n        redis-cli -p {port} set greeting hello\n        redis-cli -p {port} get greeting\n\n    \
             Ctrl-C ends it here."
            );
            // Standard output may be closed; then this is not read.
            let _ = writeln!(std::io::stdout(), "{text}");
        },
    )?;
    Ok(())
}
