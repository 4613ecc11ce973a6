//! `collie-lab bench partitions`.

use anyhow::Context;
use collie_bench::{
    Interrupt, LatencyColumns, PartitionsBench, PartitionsResult, draw_partitions, median_of_partitions,
    save_results,
};
use collie_cli::Outcome;
use collie_cli::output::Results;
use collie_io::{Device, RealDevice};

use crate::args::PartitionsBenchArgs;
use crate::bench::front::interrupt_on_signals;
use crate::figures::{self, count, micros};

pub(super) fn run(args: &PartitionsBenchArgs) -> anyhow::Result<Outcome> {
    let bench = PartitionsBench {
        places: args.layouts(),
        mixes: args.mixes(),
        nodes: args.nodes,
        partitions: args.partitions,
        keys: args.keys,
        value_bytes: args.value_size,
        disks: args.disks,
        limit: args.limit(),
        image_bytes: args.image_bytes(),
        sync: !args.no_sync,
        duration: args.duration,
        rounds: args.repeat,
        dir: args.dir(),
        interrupt: Interrupt::default(),
    };
    if let Some(out) = &args.out {
        RealDevice::new()
            .create_dir_all(out)
            .with_context(|| format!("cannot make {}", out.display()))?;
    }
    interrupt_on_signals(bench.interrupt.clone())?;
    let bar = figures::progress("partitions", bench.steps() as u64);
    let mut measured = Vec::new();
    let ended = bench.run(
        |stage| bar.set_message(stage.to_owned()),
        |result| {
            measured.push(result);
            bar.inc(1);
        },
    );
    bar.finish_and_clear();
    let medians = median_of_partitions(&measured);
    if let (Some(out), false) = (&args.out, measured.is_empty()) {
        save_results(out, &measured)?;
        draw_partitions(out, &medians)?;
    }
    let mut results = Results::new();
    match args.json {
        true => measured.iter().try_for_each(|result| results.json(result))?,
        false => print(&mut results, &bench, &medians)?,
    }
    results.flush()?;
    ended?;
    Ok(Outcome::Good)
}

fn print(
    results: &mut Results,
    bench: &PartitionsBench,
    medians: &[PartitionsResult],
) -> std::io::Result<()> {
    let limit = bench.limit.map_or(String::new(), |limit| {
        format!(" of {}B/s each", count(limit as f64))
    });
    results.line(format_args!(
        "{} partitions on {} node{} with {} disk{}{limit}; {} keys of {} bytes; {}; medians of {}",
        bench.partitions,
        bench.nodes,
        if bench.nodes == 1 { "" } else { "s" },
        bench.disks,
        if bench.disks == 1 { "" } else { "s" },
        count(bench.keys as f64),
        bench.value_bytes,
        if bench.sync {
            "writes are synced"
        } else {
            "nothing is synced"
        },
        bench.rounds
    ))?;
    for mix in &bench.mixes {
        let mix = mix.to_string();
        results.line(format_args!(
            "\n{mix:<10} {:>8} {:>5}  {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}  {:>6} {:>8} {:>6}",
            "ops/s", "×", "avg µs", "min", "max", "p95", "p99", "p99.9", "p99.99", "syncs", "bytes", "cpu µs"
        ))?;
        let of_mix = || medians.iter().filter(|result| result.mix == mix);
        let first = of_mix().next().map_or(0.0, |first| first.per_sec);
        for result in of_mix() {
            let head = format!(
                "{:<10} {:>8} {:>5.2}",
                result.place.name(),
                count(result.per_sec),
                result.per_sec / first
            );
            let per = |figure: Option<f64>, digits: usize| {
                figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.digits$}"))
            };
            let tail = format!(
                "{:>6} {:>8} {:>6}",
                per(result.syncs_per_write, 2),
                per(result.bytes_per_write, 0),
                micros(result.processor_us)
            );
            let rows = [("r", result.reads), ("w", result.writes)];
            for (at, (kind, columns)) in rows
                .iter()
                .filter_map(|(kind, columns)| Some((kind, (*columns)?)))
                .enumerate()
            {
                let head = if at == 0 { head.as_str() } else { "" };
                let tail = if at == 0 { tail.as_str() } else { "" };
                results.line(format_args!("{head:<25}{kind} {} {tail}", row(&columns)))?;
            }
        }
    }
    results.line(format_args!(
        "\nr: reads, w: writes. ×: to the first layout. syncs: of logs, bytes: of this process, both per write."
    ))
}

fn row(columns: &LatencyColumns) -> String {
    let LatencyColumns {
        avg_us,
        min_us,
        max_us,
        p95_us,
        p99_us,
        p999_us,
        p9999_us,
    } = *columns;
    let all = [avg_us, min_us, max_us, p95_us, p99_us, p999_us, p9999_us];
    let all = all.map(|us| format!("{:>8}", micros(us)));
    all.join(" ") + " "
}
