//! `collie-lab bench front`.

use anyhow::Context;
use collie_bench::{
    AdoptResult, BenchError, FrontBench, FrontMode, FrontResult, Interrupt, ScanResult, draw_plots,
    save_results,
};
use collie_cli::Outcome;
use collie_cli::output::{Results, grouped, note};
use collie_io::{Device, RealDevice};
use indicatif::ProgressBar;
use serde::Serialize;

use crate::args::FrontBenchArgs;
use crate::figures::{self, count};
use crate::programs;

pub(super) fn run(args: &FrontBenchArgs) -> anyhow::Result<Outcome> {
    let bench = FrontBench {
        modes: args.modes(),
        load: args.load(),
        scale: args.scale,
        clients: args.clients,
        duration: args.seconds,
        warm_up: args.warm_up,
        rounds: args.repeat,
        limit: args.limit(),
        settings: args.settings(),
        on_images: args.on_images,
        image_bytes: args.image_bytes(),
        shadow_bytes: args.shadow_bytes(),
        dir: args.dir(),
        collie: programs::collie()?,
        interrupt: Interrupt::default(),
    };
    if let Some(out) = &args.out {
        RealDevice::new()
            .create_dir_all(out)
            .with_context(|| format!("cannot make {}", out.display()))?;
    }
    interrupt_on_signals(bench.interrupt.clone())?;
    if !args.adopt.is_empty() {
        let (measured, ended) = watched(args, |stage, done| bench.adopt(&args.adopt, stage, done));
        print(args, &measured, |results| print_adopted(results, &measured))?;
        ended?;
    } else if args.scan {
        let (measured, ended) = watched(args, |stage, done| bench.scan(stage, done));
        print(args, &measured, |results| print_scans(results, &measured))?;
        ended?;
    } else {
        let (measured, ended) = watched(args, |stage, done| bench.run(stage, done));
        let typical = typical(&bench.modes, &measured);
        if let (Some(out), false) = (&args.out, typical.is_empty()) {
            draw_plots(out, &typical)?;
        }
        print(args, &measured, |results| {
            print_table(results, &bench, &measured, &typical)
        })?;
        ended?;
    }
    Ok(Outcome::Good)
}

/// A measurement ends when a signal asks for it, and takes away what it made.
pub(super) fn interrupt_on_signals(interrupt: Interrupt) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("signals cannot be caught")?;
    let watch = move || {
        runtime.block_on(collie_server::termination());
        note("stops the server, and removes what was made");
        interrupt.request();
        // The next ones are caught as well, so that they do not cut that short.
        loop {
            runtime.block_on(collie_server::termination());
        }
    };
    std::thread::Builder::new()
        .name("collie-signals".to_owned())
        .spawn(watch)
        .context("signals cannot be watched")?;
    Ok(())
}

/// Measures, with what is done next and each result as it comes on standard error. What was
/// measured before a failure counts.
fn watched<R: Headline>(
    args: &FrontBenchArgs,
    measure: impl FnOnce(&mut dyn FnMut(&str), &mut dyn FnMut(R)) -> Result<(), BenchError>,
) -> (Vec<R>, Result<(), BenchError>) {
    let line: ProgressBar = figures::live();
    let mut measured: Vec<R> = Vec::new();
    let mut stage = |text: &str| line.set_message(text.to_owned());
    let mut done = |result: R| {
        if !args.json {
            line.suspend(|| note(result.headline()));
        }
        measured.push(result);
    };
    let ended = measure(&mut stage, &mut done);
    line.finish_and_clear();
    (measured, ended)
}

/// A result as it comes, in a line.
trait Headline: Serialize {
    fn headline(&self) -> String;
}

impl Headline for FrontResult {
    fn headline(&self) -> String {
        format!(
            "round {}, {}: {:.0} transactions/s, longest {:.0} ms",
            self.round,
            self.mode.name(),
            self.transactions.tps,
            self.transactions.max_ms
        )
    }
}

impl Headline for ScanResult {
    fn headline(&self) -> String {
        format!(
            "round {}, {}: {}",
            self.round,
            title(self),
            rate(self.bytes_per_sec)
        )
    }
}

impl Headline for AdoptResult {
    fn headline(&self) -> String {
        format!(
            "round {}, scale {}: mounted in {:.2} s",
            self.round, self.scale, self.mount_s
        )
    }
}

/// Writes results.json where it is asked for, and prints objects or what `for_people` prints.
fn print<R: Serialize>(
    args: &FrontBenchArgs,
    measured: &[R],
    for_people: impl FnOnce(&mut Results) -> std::io::Result<()>,
) -> anyhow::Result<()> {
    if measured.is_empty() {
        return Ok(());
    }
    if let Some(out) = &args.out {
        save_results(out, measured)?;
    }
    let mut results = Results::new();
    if args.json {
        for result in measured {
            results.json(result)?;
        }
    } else {
        for_people(&mut results)?;
    }
    results.flush()?;
    Ok(())
}

/// Of each mode the run whose throughput is the median.
fn typical<'a>(modes: &[FrontMode], measured: &'a [FrontResult]) -> Vec<&'a FrontResult> {
    let of = |mode: &FrontMode| {
        let mut runs: Vec<&FrontResult> = measured.iter().filter(|run| run.mode == *mode).collect();
        runs.sort_by(|a, b| a.transactions.tps.total_cmp(&b.transactions.tps));
        runs.get(runs.len().saturating_sub(1) / 2).copied()
    };
    modes.iter().filter_map(of).collect()
}

fn print_table(
    results: &mut Results,
    bench: &FrontBench,
    measured: &[FrontResult],
    typical: &[&FrontResult],
) -> std::io::Result<()> {
    results.line(format_args!(
        "PostgreSQL 15, {} at scale {}, {} clients; {} × {:?} after a checkpoint and {:?} of warm-up",
        bench.load.name(),
        bench.scale,
        bench.clients,
        bench.rounds,
        bench.duration,
        bench.warm_up,
    ))?;
    results.line(format_args!("settings: {}", bench.settings.join(", ")))?;
    let limited = |first: &&FrontResult| Some((first.limit?, first.limited_by?, first.limit_check?));
    if let Some((limit, how, check)) = typical.first().and_then(limited) {
        results.line(format_args!(
            "limit: {} of writes ({how}); checked: {} past the page cache, {} through it",
            rate(limit as f64),
            rate(check.direct_bytes_per_sec),
            rate(check.writeback_bytes_per_sec)
        ))?;
    }
    results.line(format_args!(
        "\n{:<11} {:>7} {:>6}  {:>7} {:>8} {:>8} {:>8}  {:>9} {:>8} {:>9}  {:>7} {:>7} {:>5}  {:>8} {:>8}",
        "",
        "TPS",
        "×",
        "p50 ms",
        "p99 ms",
        "max ms",
        "stall ms",
        "WAL MB",
        "WAL B/tx",
        "images",
        "cpu µs",
        "daemon",
        "ckpts",
        "FSYNC 99",
        "max ms",
    ))?;
    let base = typical.first().map_or(1.0, |first| first.transactions.tps);
    for run in typical {
        let t = &run.transactions;
        let fsync =
            |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |us| format!("{:.1}", us / 1e3));
        let mount = run.mount.as_ref();
        results.line(format_args!(
            "{:<11} {:>7.0} {:>6.2}  {:>7.2} {:>8.2} {:>8.1} {:>8.0}  {:>9.1} {:>8.0} {:>9}  {:>7.0} {:>7} {:>5}  {:>8} {:>8}",
            run.mode.name(),
            t.tps,
            t.tps / base,
            t.p50_ms,
            t.p99_ms,
            t.max_ms,
            t.stall_ms,
            run.wal_bytes as f64 / 1e6,
            run.wal_bytes_per_transaction,
            grouped(run.full_page_images),
            run.server_cpu_us,
            run.daemon_cpu_us.map_or_else(|| "-".to_owned(), |us| format!("{us:.0}")),
            run.checkpoints,
            fsync(mount.and_then(|mount| mount.fsync_p99_us)),
            fsync(mount.and_then(|mount| mount.fsync_max_us)),
        ))?;
    }
    results.line(
        "×: of the first; stall: the longest time in which no transaction ended; images: full pages in the WAL; cpu, daemon: \
         processor\ntime per transaction of the server and of the mount's daemon, without the kernel's threads; FSYNC: of the \
         mount, with the warm-up",
    )?;
    for run in typical {
        results.line(format_args!(
            "{}: {}{}",
            run.mode.name(),
            run.disk,
            more(run, measured)
        ))?;
    }
    Ok(())
}

/// What else is to be said of a mode's run.
fn more(run: &FrontResult, measured: &[FrontResult]) -> String {
    let mut more = String::new();
    let all = measured.iter().filter(|one| one.mode == run.mode);
    let tps: Vec<f64> = all.map(|one| one.transactions.tps).collect();
    if tps.len() > 1 {
        let (low, high) = (
            tps.iter().copied().fold(f64::INFINITY, f64::min),
            tps.iter().copied().fold(0.0, f64::max),
        );
        more += &format!(
            "; {} runs: {} – {} transactions/s",
            tps.len(),
            count(low),
            count(high)
        );
    }
    if let Some(orders) = run.new_orders_per_min {
        more += &format!("; {orders:.0} new orders per minute");
    }
    if run.transactions.failed > 0 {
        more += &format!("; {} transactions failed", run.transactions.failed);
    }
    if let Some(mount) = &run.mount {
        more += &format!("; {} pages displaced at the end", grouped(mount.displaced_pages));
    }
    more
}

fn rate(bytes_per_sec: f64) -> String {
    format!("{:.1} MB/s", bytes_per_sec / 1e6)
}

fn title(scan: &ScanResult) -> String {
    match scan.drained {
        true => format!("{}, drained", scan.mode.name()),
        false => scan.mode.name().to_owned(),
    }
}

fn print_scans(results: &mut Results, measured: &[ScanResult]) -> std::io::Result<()> {
    if let Some(first) = measured.first() {
        results.line(format_args!(
            "sequential scans of pgbench_accounts, {} bytes, after {} s of random updates, nothing of it in memory\n",
            grouped(first.table_bytes),
            first.updated_s
        ))?;
    }
    results.line(format_args!(
        "{:<17} {:>5} {:>14} {:>6} {:>14} {:>6}  {:>24} {:>8}",
        "", "round", "first", "×", "median of 3", "×", "displaced, before–after", "drain s"
    ))?;
    for result in measured {
        let base = measured
            .iter()
            .find(|one| one.round == result.round)
            .unwrap_or(result);
        let displaced = result.displaced_pages.map_or_else(
            || "-".to_owned(),
            |(before, after)| format!("{}–{}", grouped(before), grouped(after)),
        );
        results.line(format_args!(
            "{:<17} {:>5} {:>14} {:>6.2} {:>14} {:>6.2}  {displaced:>24} {:>8}",
            title(result),
            result.round,
            rate(result.first_bytes_per_sec),
            result.first_bytes_per_sec / base.first_bytes_per_sec,
            rate(result.bytes_per_sec),
            result.bytes_per_sec / base.bytes_per_sec,
            result
                .drain_s
                .map_or_else(|| "-".to_owned(), |s| format!("{s:.2}")),
        ))?;
    }
    results.line("×: of the first mode in the round")
}

fn print_adopted(results: &mut Results, measured: &[AdoptResult]) -> std::io::Result<()> {
    results.line(format_args!(
        "{:<7} {:>5} {:>10}  {:>8} {:>12} {:>10} {:>12}",
        "scale", "round", "MB", "mount s", "with server", "unmount s", "mount again"
    ))?;
    for result in measured {
        results.line(format_args!(
            "{:<7} {:>5} {:>10.0}  {:>8.2} {:>12.2} {:>10.2} {:>12.2}",
            result.scale,
            result.round,
            result.cluster_bytes as f64 / 1e6,
            result.mount_s,
            result.mount_s + result.start_s,
            result.unmount_s,
            result.mount_again_s,
        ))?;
    }
    if let Some(first) = measured.first() {
        results.line(format_args!(
            "the first mount takes room for displaced pages: {} bytes",
            grouped(first.shadow_bytes)
        ))?;
    }
    Ok(())
}
