//! `collie-lab bench beside`.

use collie_bench::{BesideBench, BesideResult, LatencySummary};
use collie_cli::Outcome;
use collie_cli::output::Results;

use crate::args::BesideBenchArgs;
use crate::figures;
use crate::temporary::Temporary;

pub(super) fn run(args: &BesideBenchArgs) -> anyhow::Result<Outcome> {
    let temporary = Temporary::new("collie-bench-", &args.repeated.dir())?;
    let bench = BesideBench {
        policies: args.policies(),
        threads: args.threads,
        fill: args.fill(),
        keys: args.keys,
        write_buffer: args.write_buffer(),
        compact: args.compact,
        duration: args.duration,
        repeat: args.repeated.repeat,
        dir: temporary.path().to_owned(),
    };
    let bar = figures::progress("bench beside", bench.steps() as u64);
    let measured = bench.run(|policy| {
        bar.set_message(policy);
        bar.inc(1);
    });
    bar.finish_and_clear();
    let measured = measured?;
    let mut results = Results::new();
    if args.repeated.json {
        for result in &measured {
            results.json(result)?;
        }
    } else {
        print_table(&mut results, &bench, &measured)?;
    }
    results.flush()?;
    Ok(Outcome::Good)
}

fn print_table(results: &mut Results, bench: &BesideBench, measured: &[BesideResult]) -> std::io::Result<()> {
    results.line(format_args!(
        "durable puts of {} threads, ms, beside a family that is filled without the log; {} × {:?} each, interleaved; medians, \
         of the longest the longest",
        bench.threads, bench.repeat, bench.duration,
    ))?;
    results.line(format_args!(
        "\n{:<8} {:<7} {:>8} {:>8} {:>8} {:>9} {:>8} {:>10} {:>10} {:>12}",
        "policy", "", "p50", "p99", "p99.9", "longest", "puts/s", "fill MB/s", "stopped %", "compactions"
    ))?;
    for result in measured {
        line(results, result.policy, "alone", &result.alone, "")?;
        let rest = format!(
            "{:>8} {:>10.0} {:>10.1} {:>12}",
            figures::count(result.puts_per_sec),
            result.fill_per_sec / 1e6,
            result.stopped_percent,
            result.compactions
        );
        line(results, "", "beside", &result.beside, &rest)?;
    }
    Ok(())
}

fn line(
    results: &mut Results,
    policy: &str,
    phase: &str,
    latency: &LatencySummary,
    rest: &str,
) -> std::io::Result<()> {
    let [p50, p99, p999, max] =
        [latency.p50_us, latency.p99_us, latency.p999_us, latency.max_us].map(|us| us / 1000.0);
    results.line(format_args!(
        "{policy:<8} {phase:<7} {p50:>8.2} {p99:>8.2} {p999:>8.2} {max:>9.1} {rest}"
    ))
}
