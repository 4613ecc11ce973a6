//! `collie-lab bench locks`.

use collie_bench::{LocksBench, LocksResult};
use collie_cli::Outcome;
use collie_cli::output::{Results, grouped};

use crate::args::LocksBenchArgs;
use crate::figures;
use crate::temporary::Temporary;

pub(super) fn run(args: &LocksBenchArgs) -> anyhow::Result<Outcome> {
    let temporary = Temporary::new("collie-bench-", &args.repeated.dir())?;
    let bench = LocksBench {
        scanners: args.scanners.clone(),
        rows: args.rows,
        locked: args.locked,
        ranges: args.ranges,
        duration: args.duration,
        repeat: args.repeated.repeat,
        dir: temporary.path().to_owned(),
    };
    let bar = figures::progress("bench locks", bench.steps() as u64);
    let measured = bench.run(|what| {
        bar.set_message(what.to_owned());
        bar.inc(1);
    });
    bar.finish_and_clear();
    let measured = measured?;
    let mut results = Results::new();
    if args.repeated.json {
        results.json(&measured)?;
    } else {
        print_table(&mut results, &bench, &measured)?;
    }
    results.flush()?;
    Ok(Outcome::Good)
}

fn print_table(results: &mut Results, bench: &LocksBench, measured: &LocksResult) -> std::io::Result<()> {
    results.line(format_args!(
        "a writer of random rows beside serializable scanners of all {}; {} × {:?} each, interleaved; medians, of the longest \
         the longest",
        grouped(bench.rows),
        bench.repeat,
        bench.duration,
    ))?;
    results.line(format_args!(
        "\n{:>8} {:>10} {:>10} {:>10} {:>12} {:>10} {:>10} {:>14}",
        "scanners", "puts/s", "p50 ms", "p99 ms", "longest ms", "scans/s", "scan ms", "longest/scan"
    ))?;
    for beside in &measured.scanners {
        let [p50, p99, longest, scan] = [
            beside.put.p50_us,
            beside.put.p99_us,
            beside.put.max_us,
            beside.scan.p50_us,
        ]
        .map(|us| us / 1000.0);
        let in_scans = match scan > 0.0 {
            true => format!("{:.1}", longest / scan),
            false => "-".to_owned(),
        };
        results.line(format_args!(
            "{:>8} {:>10} {p50:>10.3} {p99:>10.3} {longest:>12.1} {:>10} {scan:>10.2} {in_scans:>14}",
            beside.scanners,
            figures::count(beside.puts_per_sec),
            figures::count(beside.scans_per_sec),
        ))?;
    }
    let [alone, many] = measured.range_us;
    results.line(format_args!(
        "\na transaction that reads a small range: {alone:.1} µs; beside {} rows locked elsewhere: {many:.1} µs ({:.2} ×)",
        grouped(measured.locked),
        many / alone
    ))?;
    results.line(format_args!(
        "the commit of an optimistic transaction that read {} small ranges: {:.1} ms",
        grouped(measured.ranges),
        measured.ranges_ms
    ))
}
