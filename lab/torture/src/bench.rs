//! `collie-lab bench`.

mod beside;
mod families;
mod front;
mod locks;
mod partitions;
mod set;
mod transactions;

use anyhow::bail;
use collie_bench::{
    LogBench, LogKind, LogResult, Progress, WorkloadBench, WorkloadResult, level_name, ring_name,
};
use collie_cli::Outcome;
use collie_cli::output::Results;
use collie_log::Level;

use crate::args::{BenchArgs, BenchCommand, LogBenchArgs, WorkloadArgs};
use crate::figures;
use crate::temporary::{Temporary, shared_in};

pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<Outcome> {
    match &args.log {
        Some(BenchCommand::Log(args)) => log(args),
        Some(BenchCommand::Commit(args)) => transactions::commit(args),
        Some(BenchCommand::Orders(args)) => transactions::orders(args),
        Some(BenchCommand::Beside(args)) => beside::run(args),
        Some(BenchCommand::Families(args)) => families::run(args),
        Some(BenchCommand::Locks(args)) => locks::run(args),
        Some(BenchCommand::Set(args)) => set::run(args),
        Some(BenchCommand::Partitions(args)) => partitions::run(args),
        Some(BenchCommand::Front(args)) => front::run(args),
        None => workloads(&args.workloads),
    }
}

/// `collie-lab bench WORKLOAD…`.
fn workloads(args: &WorkloadArgs) -> anyhow::Result<Outcome> {
    let temporary = match args.db {
        Some(_) => None,
        None => Some(Temporary::new("collie-bench-", &std::env::temp_dir())?),
    };
    let bench = WorkloadBench {
        workloads: args.workloads.clone(),
        num: args.num,
        key_size: args.key_size,
        value_size: args.value_size,
        threads: args.threads,
        durability: args.durability(),
        ring: shared_in(temporary.as_ref().and_then(Temporary::rings), args.ring.mode()),
        disable_wal: args.disable_wal,
        manual_wal_flush: args.manual_wal_flush,
        wal_compression: args.wal_compression.compression(),
        max_total_wal_size: args.max_total_wal_size,
        families: args.families,
        write_buffer_size: args.write_buffer_size,
        cache_size: args.cache_size,
        bloom_bits: args.bloom_bits,
        compression: args.compression.compression(),
        duration: args.duration,
        repeat: args.repeat,
        seed: args.seed,
        drain: args.drain,
        compacting: args.compacting,
        dir: args.db.clone(),
        temporary_in: temporary
            .as_ref()
            .map_or_else(std::env::temp_dir, |t| t.path().to_owned()),
    };
    let bar = figures::progress("bench", args.num);
    let measured = bench.run(|progress| match progress {
        Progress::Begin { workload, .. } => {
            bar.reset();
            bar.set_message(workload.name());
        }
        Progress::Done(done) => bar.set_position(done),
    });
    bar.finish_and_clear();
    let measured = measured?;
    let mut results = Results::new();
    if !args.json {
        results.line(describe_store(&bench))?;
    }
    for result in &measured {
        if args.json {
            results.json(result)?;
        } else {
            print_workload(&mut results, result)?;
        }
    }
    results.flush()?;
    Ok(Outcome::Good)
}

fn describe_store(bench: &WorkloadBench) -> String {
    let durability = if bench.disable_wal {
        "no log".to_owned()
    } else {
        format!(
            "each write waits for: {}; ring {}{}",
            level_name(bench.durability),
            ring_name(&bench.ring),
            if bench.manual_wal_flush {
                "; the log is flushed by hand"
            } else {
                ""
            }
        )
    };
    format!(
        "keys: {} bytes, values: {} bytes, entries: {}, threads: {}, families: {}; {durability}",
        bench.key_size, bench.value_size, bench.num, bench.threads, bench.families,
    )
}

/// db_bench's line, and what it leaves out.
fn print_workload(results: &mut Results, r: &WorkloadResult) -> std::io::Result<()> {
    if let Some(log) = r.log_mb_per_sec {
        return results.line(format_args!(
            "{:<12} : {:.0} commits/sec {:.3} seconds {} commits; {log:>6.1} MB/s of log",
            r.bench, r.ops_per_sec, r.seconds, r.ops
        ));
    }
    let found = if r.bench == "readrandom" {
        format!(" ({} of {} found)", r.found, r.ops)
    } else {
        String::new()
    };
    results.line(format_args!(
        "{:<12} : {:>11.3} micros/op {:.0} ops/sec {:.3} seconds {} operations; {:>6.1} MB/s{found}",
        r.bench, r.micros_per_op, r.ops_per_sec, r.seconds, r.ops, r.mb_per_sec
    ))?;
    let l = &r.latency;
    results.line(format_args!(
        "{:<12}   p50 {} µs, p99 {} µs, p99.9 {} µs, max {} µs ({} timed); {:.2} µs of processor per operation",
        "",
        figures::micros(l.p50_us),
        figures::micros(l.p99_us),
        figures::micros(l.p999_us),
        figures::micros(l.max_us),
        if r.timed_one_in == 1 { "all".to_owned() } else { format!("one in {}", r.timed_one_in) },
        r.cpu_us_per_op,
    ))?;
    let mut more = Vec::new();
    if let Some(long) = &r.longest {
        more.push(format!(
            "the longest write, {:.1} ms, was delayed {:.1} ms by: {}",
            long.ms, long.stage_ms, long.stage
        ));
    }
    if let Some(merges) = r.merges {
        more.push(format!("all tables were merged {merges} times meanwhile"));
    }
    if r.repeats > 1 {
        more.push(format!(
            "median of {}, [{} – {}] ops/sec",
            r.repeats,
            figures::count(r.ops_per_sec_min),
            figures::count(r.ops_per_sec_max)
        ));
    }
    if let (Some(syncs), Some(writes)) = (r.syncs, r.writes_per_sync) {
        more.push(format!("{syncs} syncs, {writes:.1} writes each"));
    }
    if let Some(waf) = r.waf {
        more.push(format!("{waf:.2} bytes written to the device per byte of data"));
    }
    if let Some(saf) = r.saf {
        more.push(format!("{saf:.2} bytes on disk per live byte"));
    }
    if r.flushes > 0 {
        let causes: Vec<_> = r
            .flushes_by_cause
            .iter()
            .map(|(cause, count)| format!("{cause}: {count}"))
            .collect();
        more.push(format!("{} memtables flushed ({})", r.flushes, causes.join(", ")));
    }
    if let Some(drain) = r.drain_seconds {
        more.push(format!("{drain:.3} s more for flush and compaction"));
    }
    if !more.is_empty() {
        results.line(format_args!("{:<12}   {}", "", more.join("; ")))?;
    }
    Ok(())
}

/// `collie-lab bench log`.
fn log(args: &LogBenchArgs) -> anyhow::Result<Outcome> {
    let temporary = Temporary::new("collie-bench-", &args.repeated.dir())?;
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
        duration: args.duration,
        repeat: args.repeated.repeat,
        ring: temporary.ring(args.ring.mode()),
        dir: temporary.path().to_owned(),
        ..LogBench::default()
    };
    if bench.durability == Level::Buffered && bench.in_flight > 1 {
        bail!("--in-flight: nothing is waited for at --durability buffered");
    }
    let mut results = Results::new();
    if !args.repeated.json {
        results.line(describe(&bench))?;
        results.flush()?;
    }
    let bar = figures::progress("bench log", bench.steps() as u64);
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
            printed = if args.repeated.json {
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
        "appends of {} bytes, each waits for: {}{}; ring {}, drains to files in {}\n\
         groups are written past the page cache where the file system can, by the first waiter for all, one at a time\n\
         {} × {:?} each, interleaved; medians, [slowest – fastest]",
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
            figures::count(log.appends_per_sec_min),
            figures::count(log.appends_per_sec_max)
        );
        let l = &log.latency;
        results.line(format_args!(
            "  {:<13} {:>12}  {span:<19} {:>9} {:>9} {:>9} {:>9}",
            log.log,
            figures::count(log.appends_per_sec),
            figures::micros(l.p50_us),
            figures::micros(l.p99_us),
            figures::micros(l.p999_us),
            figures::micros(l.max_us),
        ))?;
    }
    if let Some(one_in) = logs.first().map(|log| log.timed_one_in).filter(|n| *n > 1) {
        results.line(format_args!("  (latencies of one append in {one_in})"))?;
    }
    results.flush()
}
