//! Collie beside its peers: the same work, the same durability, interleaved in one run, medians and
//! ratios.
//!
//! `cargo run --release -- log --threads 1,4,16,64` appends 100-byte records to a log, each durable
//! before the next of its thread. `cargo run --release -- puts --threads 1,64` puts durable keys
//! into a store. `cargo run --release -- fill --threads 1,2` fills a store without waiting for the
//! device; each peer's level is printed, since they differ. `cargo run --release -- readers` has
//! clients read and write in turn, over sockets, on a slow device.
//!
//! `collie-peers serve` is no comparison by itself: it puts fjall behind a socket, for
//! `collie-lab torture power`.

mod logs;
mod readers;
mod scans;
mod serve;
mod stores;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(about = "Collie beside its peers, in one run")]
struct Args {
    #[command(subcommand)]
    bench: Bench,
    /// Runs of each; the median is reported.
    #[arg(long, default_value_t = 5, global = true)]
    repeat: usize,
    /// Seconds per run (log and puts).
    #[arg(long, default_value_t = 3.0, global = true)]
    duration: f64,
    /// Operations per run (fill), or keys (scans).
    #[arg(long, default_value_t = 2_000_000, global = true)]
    num: u64,
    /// Threads, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64", global = true)]
    threads: Vec<usize>,
    /// Only these peers.
    #[arg(long, value_delimiter = ',', global = true)]
    only: Vec<String>,
    /// Where the files go; each run's are removed.
    #[arg(long, default_value = "data", global = true)]
    dir: PathBuf,
    /// One JSON object per line on standard output.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand, Clone, Copy)]
enum Bench {
    /// Durable appends of 100 bytes: collie, okaywal, raft-engine.
    Log,
    /// Durable single puts, 16-byte keys, 100-byte values: collie, fjall.
    Puts,
    /// Opening an empty store, fresh and again: collie, fjall.
    Open,
    /// fillseq and fillrandom without waiting for the device: collie, fjall.
    Fill,
    /// Point reads, scans of ten keys in both directions, and the first and last key, from memtables
    /// and tables: collie, fjall.
    Scans,
    /// Reads among writes while each sync takes a millisecond longer: collie's server, Redis
    /// (redis-server, redis-cli and a C compiler are needed).
    Readers,
    /// Serves fjall in `--dir` to `collie-lab torture power --system fjall`.
    Serve {
        /// On loopback.
        #[arg(long)]
        port: u16,
    },
}

/// What one thread does, over and over; it is given a number that no other call gets.
pub type Op = Box<dyn FnMut(u64) -> Result<()>>;
/// Makes each thread's operation, on that thread.
pub type Maker = Arc<dyn Fn() -> Result<Op> + Send + Sync>;

/// Opens a peer in an empty directory.
pub struct Peer {
    pub name: &'static str,
    /// What an operation that returned survives.
    pub level: &'static str,
    pub open: fn(&Path) -> Result<Maker>,
}

struct Run {
    per_second: f64,
    /// Microseconds, sorted.
    latencies: Vec<u64>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    match args.bench {
        Bench::Log => compare(&args, "log", &logs::PEERS, timed),
        Bench::Puts => compare(&args, "puts", &stores::DURABLE, timed),
        Bench::Open => open_empty(&args),
        Bench::Serve { port } => serve::run(port, &args.dir),
        Bench::Scans => scans::run(args.repeat, args.num, &args.dir),
        Bench::Readers => readers::run(args.repeat, &args.dir),
        Bench::Fill => {
            compare(&args, "fillseq", &stores::FILL, |args, make, threads| {
                counted(args, make, threads, false)
            })?;
            compare(&args, "fillrandom", &stores::FILL, |args, make, threads| {
                counted(args, make, threads, true)
            })
        }
    }
}

/// How long an empty store takes to open, created and found.
fn open_empty(args: &Args) -> Result<()> {
    for peer in &stores::DURABLE {
        let (mut fresh, mut again) = (Vec::new(), Vec::new());
        for _ in 0..args.repeat {
            let dir = args.dir.join(peer.name);
            let _ = std::fs::remove_dir_all(&dir);
            std::fs::create_dir_all(&dir)?;
            for times in [&mut fresh, &mut again] {
                let start = Instant::now();
                let maker = (peer.open)(&dir)?;
                times.push(start.elapsed().as_secs_f64() * 1e3);
                drop(maker);
            }
            let _ = std::fs::remove_dir_all(&dir);
        }
        let median = |times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        println!(
            "open       {:<16} fresh {:.1} ms, again {:.1} ms",
            peer.name,
            median(&mut fresh),
            median(&mut again)
        );
    }
    Ok(())
}

/// All peers in turn, again and again, then the medians.
fn compare(
    args: &Args,
    bench: &str,
    peers: &[Peer],
    run: impl Fn(&Args, Maker, usize) -> Result<Run>,
) -> Result<()> {
    let peers: Vec<_> = peers
        .iter()
        .filter(|p| args.only.is_empty() || args.only.iter().any(|o| o == p.name))
        .collect();
    for &threads in &args.threads {
        let mut runs: BTreeMap<&str, Vec<Run>> = BTreeMap::new();
        for round in 0..args.repeat {
            for peer in &peers {
                eprint!(
                    "\r{bench}, {threads} threads, round {} of {}, {:<14}",
                    round + 1,
                    args.repeat,
                    peer.name
                );
                let dir = args.dir.join(peer.name);
                let _ = std::fs::remove_dir_all(&dir);
                std::fs::create_dir_all(&dir)?;
                let maker = (peer.open)(&dir)?;
                // Background work of opening should not be counted.
                std::thread::sleep(Duration::from_millis(300));
                runs.entry(peer.name)
                    .or_default()
                    .push(run(args, maker, threads)?);
                let _ = std::fs::remove_dir_all(&dir);
            }
        }
        eprint!("\r{:60}\r", "");
        report(args, bench, threads, &peers, &runs);
    }
    Ok(())
}

fn report(args: &Args, bench: &str, threads: usize, peers: &[&Peer], runs: &BTreeMap<&str, Vec<Run>>) {
    let median = |name: &str| {
        let mut all: Vec<f64> = runs
            .get(name)
            .into_iter()
            .flatten()
            .map(|r| r.per_second)
            .collect();
        all.sort_by(f64::total_cmp);
        (all[all.len() / 2], all[0], all[all.len() - 1])
    };
    let best = peers
        .iter()
        .filter(|p| !p.name.starts_with("collie"))
        .map(|p| median(p.name).0)
        .fold(0.0, f64::max);
    for peer in peers {
        let (mid, low, high) = median(peer.name);
        let mut all: Vec<u64> = runs
            .get(peer.name)
            .into_iter()
            .flatten()
            .flat_map(|r| r.latencies.iter().copied())
            .collect();
        all.sort_unstable();
        let at = |share: f64| {
            all.get((all.len() as f64 * share) as usize)
                .or(all.last())
                .copied()
                .unwrap_or(0)
        };
        let (p50, p99, max) = (at(0.5), at(0.99), all.last().copied().unwrap_or(0));
        let ratio = if best > 0.0 { mid / best } else { f64::NAN };
        if args.json {
            let line = serde_json::json!({
                "bench": bench, "engine": peer.name, "threads": threads, "durability": peer.level,
                "ops_per_sec": mid, "min": low, "max": high, "ratio_to_best_peer": ratio,
                "p50_us": p50, "p99_us": p99, "max_us": max,
            });
            println!("{line}");
        } else {
            println!(
                "{bench:<10} {threads:>3} threads  {:<16} {mid:>10.0}/s ({low:.0} to {high:.0})  {ratio:>5.2} x best peer  p50 {p50} p99 {p99} max {max} us  [{}]",
                peer.name, peer.level
            );
        }
    }
}

/// As many operations as fit the time.
fn timed(args: &Args, maker: Maker, threads: usize) -> Result<Run> {
    let span = Duration::from_secs_f64(args.duration);
    in_threads(threads, move |thread, start| {
        let mut op = maker()?;
        let mut latencies = Vec::with_capacity(1 << 16);
        while start.elapsed() < span {
            let before = Instant::now();
            op(((thread as u64) << 40) + latencies.len() as u64)?;
            latencies.push(before.elapsed().as_micros() as u64);
        }
        Ok(latencies)
    })
}

/// A number of operations, shared among the threads.
fn counted(args: &Args, maker: Maker, threads: usize, random: bool) -> Result<Run> {
    let num = args.num;
    in_threads(threads, move |thread, _| {
        let mut op = maker()?;
        let mut latencies = Vec::with_capacity(num as usize / threads + 1);
        for n in (thread as u64..num).step_by(threads) {
            let before = Instant::now();
            op(if random { mix(n) } else { n })?;
            latencies.push(before.elapsed().as_micros() as u64);
        }
        Ok(latencies)
    })
}

fn in_threads(
    threads: usize,
    work: impl Fn(usize, Instant) -> Result<Vec<u64>> + Send + Sync + 'static,
) -> Result<Run> {
    let work = Arc::new(work);
    let start = Instant::now();
    let running: Vec<_> = (0..threads)
        .map(|thread| {
            let work = Arc::clone(&work);
            std::thread::spawn(move || work(thread, start))
        })
        .collect();
    let mut latencies = Vec::new();
    for thread in running {
        latencies.extend(
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread panicked"))??,
        );
    }
    let per_second = latencies.len() as f64 / start.elapsed().as_secs_f64();
    latencies.sort_unstable();
    Ok(Run {
        per_second,
        latencies,
    })
}

/// A key that sorts as its number.
fn key(n: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[8..].copy_from_slice(&n.to_be_bytes());
    key
}

/// A bijection that scatters (the finaliser of SplitMix64).
fn mix(n: u64) -> u64 {
    let z = n.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
