//! `collie-lab bench families`.

use collie_bench::{FamiliesBench, FamiliesResult};
use collie_cli::Outcome;
use collie_cli::output::{Results, grouped};

use crate::args::FamiliesBenchArgs;
use crate::figures;
use crate::temporary::Temporary;

pub(super) fn run(args: &FamiliesBenchArgs) -> anyhow::Result<Outcome> {
    let temporary = Temporary::new("collie-bench-", &args.repeated.dir())?;
    let bench = FamiliesBench {
        families: args.families.clone(),
        batch: args.batch,
        duration: args.duration,
        repeat: args.repeated.repeat,
        dir: temporary.path().to_owned(),
    };
    let bar = figures::progress("bench families", bench.steps() as u64);
    let measured = bench.run(|families| {
        bar.set_message(format!("{families} families"));
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

fn print_table(
    results: &mut Results,
    bench: &FamiliesBench,
    measured: &[FamiliesResult],
) -> std::io::Result<()> {
    results.line(format_args!(
        "snapshots, small transactions, batches of {} puts over all families, puts of another thread beside them; {} × {:?} each, \
         interleaved; medians, of the longest the longest",
        grouped(bench.batch as u64),
        bench.repeat,
        bench.duration,
    ))?;
    results.line(format_args!(
        "\n{:>8} {:>12} {:>15} {:>10} {:>10} {:>14}",
        "families", "snapshot µs", "transaction µs", "batch ms", "put p99 ms", "put longest ms"
    ))?;
    for result in measured {
        let [p99, longest] = [result.put.p99_us, result.put.max_us].map(|us| us / 1e3);
        results.line(format_args!(
            "{:>8} {:>12.2} {:>15.2} {:>10.2} {p99:>10.2} {longest:>14.1}",
            grouped(result.families as u64),
            result.snapshot_us,
            result.transaction_us,
            result.batch_ms,
        ))?;
    }
    Ok(())
}
