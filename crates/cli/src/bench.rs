//! `collie bench`.

use anyhow::bail;
use collie_bench::{LogBench, LogKind, LogResult, level_name, ring_name};
use collie_log::Level;

use crate::Outcome;
use crate::args::LogBenchArgs;
use crate::output::{self, Results};

/// `collie bench log`.
pub(crate) fn log(args: &LogBenchArgs) -> anyhow::Result<Outcome> {
    let bench = LogBench {
        threads: args.threads.clone(),
        size: args.size,
        durability: args.durability.level(),
        in_flight: args.in_flight,
        logs: if args.baselines {
            LogKind::ALL.to_vec()
        } else {
            vec![LogKind::Collie]
        },
        duration: args.duration()?,
        repeat: args.common.repeat,
        ring: args.common.ring.mode(),
        dir: args.common.dir(),
        ..LogBench::default()
    };
    if bench.durability == Level::Buffered && bench.in_flight > 1 {
        bail!("--in-flight: nothing is waited for at --durability buffered");
    }
    let mut results = Results::new();
    if !args.common.json {
        results.line(describe(&bench))?;
        results.flush()?;
    }
    let bar = output::progress("bench log", bench.steps() as u64);
    let mut of_threads: Vec<LogResult> = Vec::new();
    let mut printed = Ok(());
    bench.run(
        |kind, threads| {
            bar.set_message(format!("{} × {threads}", kind.name()));
            bar.inc(1);
        },
        |result| {
            if printed.is_err() {
                return;
            }
            printed = if args.common.json {
                results.json(&result).and_then(|()| results.flush())
            } else {
                of_threads.push(result);
                if of_threads.len() < bench.logs.len() {
                    return;
                }
                bar.suspend(|| print_group(&mut results, &std::mem::take(&mut of_threads)))
            };
        },
    )?;
    bar.finish_and_clear();
    printed?;
    Ok(Outcome::Good)
}

fn describe(bench: &LogBench) -> String {
    format!(
        "appends of {} bytes, each waits for: {}{}; ring {}, drains to files in {}; groups are written past the \
         page cache where the file system can, by whoever waits first, for everybody; {} repeats of {:?}, \
         interleaved; medians, [slowest – fastest]",
        bench.size,
        level_name(bench.durability),
        if bench.in_flight > 1 {
            format!(", {} under way per thread", bench.in_flight)
        } else {
            String::new()
        },
        ring_name(&bench.ring),
        bench.dir.display(),
        bench.repeat,
        bench.duration,
    )
}

/// All logs at one number of threads, the ratio first.
fn print_group(results: &mut Results, logs: &[LogResult]) -> std::io::Result<()> {
    let best = logs
        .iter()
        .skip(1)
        .max_by(|a, b| a.appends_per_sec.total_cmp(&b.appends_per_sec));
    if let Some(first) = logs.first() {
        let verdict = best.map_or_else(String::new, |best| {
            format!(
                ": {} {:.2} × the best lock-based one ({})",
                first.log,
                first.appends_per_sec / best.appends_per_sec,
                best.log
            )
        });
        let s = if first.threads == 1 { "" } else { "s" };
        results.line(format_args!("\n{} thread{s}{verdict}", first.threads))?;
        results.line(format_args!(
            "  {:<13} {:>12}  {:<19} {:>9} {:>9} {:>9} {:>9}",
            "", "appends/s", "", "p50 µs", "p99 µs", "p99.9 µs", "max µs"
        ))?;
    }
    for log in logs {
        let span = format!(
            "[{} – {}]",
            output::count(log.appends_per_sec_min),
            output::count(log.appends_per_sec_max)
        );
        let l = &log.latency;
        results.line(format_args!(
            "  {:<13} {:>12}  {span:<19} {:>9} {:>9} {:>9} {:>9}",
            log.log,
            output::count(log.appends_per_sec),
            output::micros(l.p50_us),
            output::micros(l.p99_us),
            output::micros(l.p999_us),
            output::micros(l.max_us),
        ))?;
    }
    if let Some(one_in) = logs.first().map(|log| log.timed_one_in).filter(|n| *n > 1) {
        results.line(format_args!("  (latencies of one append in {one_in})"))?;
    }
    results.flush()
}
