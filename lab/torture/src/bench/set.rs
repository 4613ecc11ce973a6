//! `collie-lab bench set`.

use collie_bench::{SetBench, SetResult};
use collie_cli::Outcome;
use collie_cli::output::{Results, grouped};

use crate::args::SetBenchArgs;
use crate::figures;
use crate::limits::allow_files;
use crate::temporary::Temporary;

/// Descriptors that a log has at most: its directory, lock and ring, and its segment, which may be
/// open a second time while it is zeroed and a third time for direct writes.
const FILES_PER_LOG: u64 = 6;
/// All others of this process.
const FILES: u64 = 100;

pub(super) fn run(args: &SetBenchArgs) -> anyhow::Result<Outcome> {
    allow_files(args.logs as u64 * FILES_PER_LOG + FILES)?;
    let temporary = Temporary::new("collie-bench-", &args.dir())?;
    let bench = SetBench {
        logs: args.logs,
        in_set: !args.own_threads,
        ring_bytes: args.ring_bytes,
        segment_bytes: args.segment_bytes,
        threads: args.threads,
        duration: args.duration,
        idle: args.idle,
        dir: temporary.path().to_owned(),
    };
    let bar = figures::progress("bench set", SetBench::STEPS);
    let measured = bench.run(|what| {
        bar.set_message(what);
        bar.inc(1);
    });
    bar.finish_and_clear();
    let measured = measured?;
    let mut results = Results::new();
    if args.json {
        results.json(&measured)?;
    } else {
        print(&mut results, &bench, &measured)?;
    }
    results.flush()?;
    Ok(Outcome::Good)
}

fn print(results: &mut Results, bench: &SetBench, result: &SetResult) -> std::io::Result<()> {
    results.line(format_args!(
        "{} logs with {}; rings of {} KiB, segments of {} KiB",
        grouped(result.logs as u64),
        if result.in_set {
            "the threads of one set"
        } else {
            "threads of their own"
        },
        bench.ring_bytes >> 10,
        bench.segment_bytes >> 10,
    ))?;
    results.line(format_args!(
        "\nopen all        {:>10.2} s\nclose all       {:>10.2} s\nopen all again  {:>10.2} s\nan append to each, until all are \
         durable {:.2} s",
        result.open_s, result.close_s, result.reopen_s, result.all_durable_s
    ))?;
    results.line(format_args!(
        "durable commits of {} threads to logs at random: {}/s; p50 {} µs, p99 {} µs, longest {} \
         µs",
        bench.threads,
        figures::count(result.commits_per_sec),
        figures::micros(result.commit.p50_us),
        figures::micros(result.commit.p99_us),
        figures::micros(result.commit.max_us),
    ))?;
    results.line(format_args!(
        "idle: {} threads, {:.1} MB of memory, {} descriptors, {:.1} MB of disk, {:.2} % of a core",
        grouped(result.threads as u64),
        result.resident_bytes as f64 / 1e6,
        grouped(result.descriptors as u64),
        result.disk_bytes as f64 / 1e6,
        result.idle_percent,
    ))
}
