//! `collie bench commit`.

use std::time::Duration;

use collie_bench::{CommitBench, CommitKind, CommitResult};

use crate::Outcome;
use crate::args::{CommitBenchArgs, CommitEnd};
use crate::output::{self, Results};
use crate::temporary::Temporary;

pub(super) fn run(args: &CommitBenchArgs) -> anyhow::Result<Outcome> {
    let temporary = Temporary::new("collie-bench-", &args.dir())?;
    let kind = |end: &CommitEnd| match end {
        CommitEnd::Sync => CommitKind::Sync,
        CommitEnd::EarlyRelease => CommitKind::EarlyRelease,
        CommitEnd::Async => CommitKind::Async,
        CommitEnd::OwnFlush => CommitKind::OwnFlush,
    };
    let bench = CommitBench {
        threads: args.threads,
        hot_keys: args.hot_keys,
        hot_share: args.hot_share,
        kinds: args.mode.iter().map(kind).collect(),
        in_flight: args.in_flight,
        sync_delay: Duration::from_micros(args.sync_delay_us),
        duration: args.duration()?,
        repeat: args.repeat,
        ring: temporary.ring(args.ring.mode()),
        dir: temporary.path().to_owned(),
    };
    let bar = output::progress("bench commit", bench.steps() as u64);
    let measured = bench.run(|kind| {
        bar.set_message(kind.name());
        bar.inc(1);
    });
    bar.finish_and_clear();
    let measured = measured?;
    let mut results = Results::new();
    if args.json {
        for result in &measured {
            results.json(result)?;
        }
    } else {
        results.line(describe(&bench))?;
        print(&mut results, &measured)?;
    }
    results.flush()?;
    Ok(Outcome::Good)
}

fn describe(bench: &CommitBench) -> String {
    format!(
        "{} threads; each transaction reads a row for update, adds one and commits; {} of 100 take one of {} shared rows; \
         each sync of the log takes {} µs more\n{} × {:?} each, interleaved; medians, [slowest – fastest]",
        bench.threads,
        bench.hot_share,
        bench.hot_keys,
        bench.sync_delay.as_micros(),
        bench.repeat,
        bench.duration,
    )
}

fn print(results: &mut Results, measured: &[CommitResult]) -> std::io::Result<()> {
    results.line(format_args!(
        "\n{:<14} {:>9} {:>10}  {:<19} {:>9} {:>9} {:>8} {:>9} {:>11} {:>8}",
        "", "in flight", "commits/s", "", "p50 µs", "p99 µs", "flushes", "in flush", "locked, µs", "cpu µs"
    ))?;
    for r in measured {
        let span = format!(
            "[{} – {}]",
            output::count(r.commits_per_sec_min),
            output::count(r.commits_per_sec_max)
        );
        results.line(format_args!(
            "{:<14} {:>9} {:>10}  {span:<19} {:>9} {:>9} {:>8} {:>8.0}% {:>11} {:>8.2}",
            r.mode,
            r.in_flight,
            output::count(r.commits_per_sec),
            output::micros(r.latency.p50_us),
            output::micros(r.latency.p99_us),
            output::count(r.flushes),
            r.flush_share * 100.0,
            output::micros(r.locks_held_us_mean),
            r.cpu_us_per_op,
        ))?;
    }
    let of = |mode: &str| {
        measured
            .iter()
            .find(|r| r.mode == mode)
            .map(|r| r.commits_per_sec)
    };
    for (one, other) in [
        ("early-release", "sync"),
        ("early-release", "async"),
        ("own-flush", "sync"),
    ] {
        if let (Some(rate), Some(base)) = (of(one), of(other)) {
            results.line(format_args!("{one}: {:.2} × {other}", rate / base))?;
        }
    }
    Ok(())
}
