//! `collie-lab bench commit` and `collie-lab bench orders`.

use std::time::Duration;

use collie_bench::{
    BenchError, CommitBench, CommitKind, OrdersBench, OrdersResult, TransactionResult, TransactionRun,
};
use collie_cli::Outcome;
use collie_cli::output::{self, Results};
use collie_db::{Concurrency, Isolation};
use serde::Serialize;

use crate::args::{
    CommitBenchArgs, CommitEnd, IsolationLevel, OrdersBenchArgs, TransactionKind, TransactionRunArgs,
};
use crate::figures;
use crate::temporary::Temporary;

pub(super) fn commit(args: &CommitBenchArgs) -> anyhow::Result<Outcome> {
    let temporary = Temporary::new("collie-bench-", &args.run.repeated.dir())?;
    let bench = CommitBench {
        hot_keys: args.hot_keys,
        hot_share: args.hot_share,
        run: how(&args.run, &temporary)?,
    };
    let measured = with_progress("bench commit", &bench.run, |begins| bench.run(begins))?;
    let load = format!(
        "each transaction reads a row for update, adds one and commits; {} of 100 take one of {} shared rows",
        bench.hot_share, bench.hot_keys
    );
    print(args.run.repeated.json, &measured, |results| {
        let figures: Vec<_> = measured.iter().map(|result| &result.figures).collect();
        print_table(results, &bench.run, &load, &figures)
    })
}

pub(super) fn orders(args: &OrdersBenchArgs) -> anyhow::Result<Outcome> {
    let temporary = Temporary::new("collie-bench-", &args.run.repeated.dir())?;
    let bench = OrdersBench {
        districts: args.districts,
        items: args.items,
        hot_items: args.hot_items,
        hot_share: args.hot_share,
        lines: args.lines,
        look_ups: args.look_ups,
        concurrency: match args.concurrency {
            TransactionKind::Pessimistic => Concurrency::Pessimistic,
            TransactionKind::Optimistic => Concurrency::Optimistic,
        },
        isolation: match args.isolation {
            IsolationLevel::Snapshot => Isolation::Snapshot,
            IsolationLevel::Serializable => Isolation::Serializable,
        },
        run: how(&args.run, &temporary)?,
    };
    let measured = with_progress("bench orders", &bench.run, |begins| bench.run(begins))?;
    print(args.run.repeated.json, &measured, |results| {
        let figures: Vec<_> = measured.iter().map(|result| &result.figures).collect();
        let load = measured.first().map_or_else(String::new, describe_orders);
        print_table(results, &bench.run, &load, &figures)?;
        let orders = output::grouped(figures.iter().map(|figures| figures.checked).sum());
        results.line(format_args!(
            "{orders} orders were read again after their runs: each with its lines, their numbers without a gap, stock and \
             customers as they make them"
        ))
    })
}

fn describe_orders(result: &OrdersResult) -> String {
    format!(
        "{} {} transactions: {} of 100 place an order of 1 to {} lines, {} look one up; districts: {}, items: {}, hot ones: {}, \
         in {} of 100 lines",
        result.concurrency,
        result.isolation,
        100 - result.look_ups,
        result.lines,
        result.look_ups,
        result.districts,
        output::grouped(result.items.into()),
        result.hot_items,
        result.hot_share,
    )
}

fn how(args: &TransactionRunArgs, temporary: &Temporary) -> anyhow::Result<TransactionRun> {
    let kind = |end: &CommitEnd| match end {
        CommitEnd::Sync => CommitKind::Sync,
        CommitEnd::EarlyRelease => CommitKind::EarlyRelease,
        CommitEnd::Async => CommitKind::Async,
        CommitEnd::OwnFlush => CommitKind::OwnFlush,
    };
    Ok(TransactionRun {
        threads: args.threads,
        kinds: args.mode.iter().map(kind).collect(),
        in_flight: args.in_flight,
        sync_delay: Duration::from_micros(args.sync_delay_us),
        duration: args.duration,
        repeat: args.repeated.repeat,
        ring: temporary.ring(args.ring.mode()),
        dir: temporary.path().to_owned(),
    })
}

fn with_progress<R>(
    what: &'static str,
    run: &TransactionRun,
    measure: impl FnOnce(&mut dyn FnMut(CommitKind)) -> Result<Vec<R>, BenchError>,
) -> Result<Vec<R>, BenchError> {
    let bar = figures::progress(what, run.steps() as u64);
    let measured = measure(&mut |kind| {
        bar.set_message(kind.name());
        bar.inc(1);
    });
    bar.finish_and_clear();
    measured
}

/// Prints objects, or what `for_people` prints.
fn print<R: Serialize>(
    json: bool,
    measured: &[R],
    for_people: impl FnOnce(&mut Results) -> std::io::Result<()>,
) -> anyhow::Result<Outcome> {
    let mut results = Results::new();
    if json {
        for result in measured {
            results.json(result)?;
        }
    } else {
        for_people(&mut results)?;
    }
    results.flush()?;
    Ok(Outcome::Good)
}

fn print_table(
    results: &mut Results,
    run: &TransactionRun,
    load: &str,
    measured: &[&TransactionResult],
) -> std::io::Result<()> {
    results.line(format_args!(
        "{load}\n{} threads; each sync of the log takes {} µs more; {} × {:?} each, interleaved; medians, [slowest – fastest]",
        run.threads,
        run.sync_delay.as_micros(),
        run.repeat,
        run.duration,
    ))?;
    results.line(format_args!(
        "\n{:<18} {:>9}  {:<17} {:>8} {:>8}  {:>8}  {:>8} {:>8}  {:>9}  {:>10} {:>6} {:>8}",
        "",
        "commits/s",
        "",
        "p50 µs",
        "p99 µs",
        "in locks",
        "in flush",
        "flushes",
        "flush, µs",
        "locked, µs",
        "cpu %",
        "cpu, µs"
    ))?;
    for r in measured {
        let mode = match r.in_flight {
            1 => r.mode.to_owned(),
            several => format!("{} × {several}", r.mode),
        };
        let span = format!(
            "[{} – {}]",
            figures::count(r.commits_per_sec_min),
            figures::count(r.commits_per_sec_max)
        );
        results.line(format_args!(
            "{mode:<18} {:>9}  {span:<17} {:>8} {:>8}  {:>7.0}%  {:>7.0}% {:>8}  {:>9}  {:>10} {:>6.0} {:>8}",
            figures::count(r.commits_per_sec),
            figures::micros(r.latency.p50_us),
            figures::micros(r.latency.p99_us),
            r.lock_wait_share * 100.0,
            r.flush_share * 100.0,
            figures::count(r.flushes),
            figures::micros(r.flush_us_mean),
            figures::micros(r.locks_held_us_mean),
            r.cpu_percent,
            figures::micros(r.cpu_us_per_op),
        ))?;
    }
    if run.in_flight > 1 {
        results.line("×: commits that a thread has under way before it waits for the oldest")?;
    }
    results.line(
        "in locks, in flush: share of the threads' time; locked: how long a transaction has its locks; cpu: 100 % is one core, \
         and time per commit",
    )?;
    if measured.iter().any(|r| r.retries_per_commit > 0.0) {
        let each = measured
            .iter()
            .map(|r| format!("{} {:.1}", r.mode, r.retries_per_commit * 100.0));
        let each = each.collect::<Vec<_>>().join(", ");
        results.line(format_args!(
            "run again for conflicts and deadlocks, per 100 commits: {each}"
        ))?;
    }
    print_ratios(results, measured)
}

fn print_ratios(results: &mut Results, measured: &[&TransactionResult]) -> std::io::Result<()> {
    let of = |mode: &str| {
        let result = measured.iter().find(|r| r.mode == mode);
        result.map(|r| r.commits_per_sec)
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
