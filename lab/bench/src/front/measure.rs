//! One measured run.

use std::fs;
use std::path::Path;

use collie_io::{Clock, RealClock};
use serde::Serialize;

use super::FrontBench;
use super::bed::{Bed, MountFigures};
use super::figures::{
    CheckpointSpan, Done, FrontSecond, TransactionFigures, checkpoints, figures, transactions,
};
use super::load::{FrontLoad, NEW_ORDER};
use super::mode::FrontMode;
use crate::disks::Running;
use crate::disks::{Group, Verified};
use crate::error::{At, BenchError};

/// How long pgbench runs past the end of what is measured, so that the end falls into it.
const TAIL_SECONDS: u64 = 2;

/// What a mode's run came to.
#[derive(Debug, Clone, Serialize)]
pub struct FrontResult {
    /// The mode.
    pub mode: FrontMode,
    /// The load.
    pub load: FrontLoad,
    /// Which of the rounds, from 1.
    pub round: usize,
    /// The load's size.
    pub scale: u32,
    /// Clients.
    pub clients: usize,
    /// What the cluster lay on.
    pub disk: String,
    /// Bytes per second that the disk took at most.
    pub limit: Option<u64>,
    /// How the limit was set.
    pub limited_by: Option<&'static str>,
    /// What the check of the limit measured.
    pub limit_check: Option<Verified>,
    /// The server's settings.
    pub settings: Vec<String>,
    /// Seconds that were measured, after `warm_up_s`.
    pub seconds: f64,
    /// Seconds before.
    pub warm_up_s: f64,
    /// How transactions fared.
    #[serde(flatten)]
    pub transactions: TransactionFigures,
    /// New orders per minute, of the load that has such.
    pub new_orders_per_min: Option<f64>,
    /// Bytes of WAL.
    pub wal_bytes: u64,
    /// The same, per transaction.
    pub wal_bytes_per_transaction: f64,
    /// Full-page images in the WAL.
    pub full_page_images: u64,
    /// Processor time of the server's processes per transaction, in microseconds.
    pub server_cpu_us: f64,
    /// That of the mount's daemon.
    pub daemon_cpu_us: Option<f64>,
    /// Checkpoints that started.
    pub checkpoints: usize,
    /// What the mount's daemon told at the end; its FSYNC figures count from before the warm-up.
    pub mount: Option<MountFigures>,
    /// When the checkpoints were.
    pub checkpoint_spans: Vec<CheckpointSpan>,
    /// Second by second.
    pub series: Vec<FrontSecond>,
}

/// Counters at one moment.
struct Snapshot {
    at_us: u64,
    wal_bytes: u64,
    full_page_images: u64,
    server_cpu_us: u64,
    daemon_cpu_us: Option<u64>,
}

impl Snapshot {
    fn take(bed: &Bed<'_>) -> Result<Self, BenchError> {
        let query = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint, wal_fpi FROM pg_stat_wal";
        let answer = bed.sql(query)?;
        let counters = answer
            .split_once('|')
            .and_then(|(wal, images)| Some((wal.parse().ok()?, images.parse().ok()?)));
        let (wal_bytes, full_page_images) = counters.ok_or_else(|| BenchError::Output {
            place: query.to_owned(),
            expected: "two numbers",
            found: answer.clone(),
        })?;
        Ok(Self {
            at_us: RealClock.wall_us(),
            wal_bytes,
            full_page_images,
            server_cpu_us: bed.server_cpu_us(),
            daemon_cpu_us: bed.daemon_cpu_us(),
        })
    }
}

/// What is limited, and how.
pub(super) struct Limited<'a> {
    pub(super) group: &'a mut Group,
    pub(super) bytes_per_sec: u64,
    pub(super) verified: Verified,
}

/// Measures a load that has been filled, on a server that runs.
pub(super) fn measure(
    bench: &FrontBench,
    mode: FrontMode,
    round: usize,
    bed: &Bed<'_>,
    mut limited: Option<Limited<'_>>,
) -> Result<FrontResult, BenchError> {
    bed.sql("CHECKPOINT")?;
    if let (Some(limited), Some(device)) = (&mut limited, bed.disk().device()) {
        limited.group.limit(device, limited.bytes_per_sec)?;
    }
    let warm_up_us = bench.warm_up.as_micros() as u64;
    let measured_us = bench.duration.as_micros() as u64;
    let whole_s = (warm_up_us + measured_us).div_ceil(1_000_000) + TAIL_SECONDS;
    let mut command = bench.load.command(bed, bench.scale, bench.clients, whole_s)?;
    // The logs go to the directory of the sockets, which is the clients' own.
    let logs = command.get_current_dir().map(Path::to_owned).unwrap_or_default();
    let mut running = Running::start(&mut command)?;
    let from_us = RealClock.wall_us() + warm_up_us;
    let to_us = from_us + measured_us;
    running.watch_until(from_us, &bench.interrupt)?;
    let begin = Snapshot::take(bed)?;
    running.watch_until(to_us, &bench.interrupt)?;
    let end = Snapshot::take(bed)?;
    running.end(&bench.interrupt)?;
    let mount = bed.mount_figures()?;
    if let Some(limited) = &mut limited {
        limited.group.lift()?;
    }
    let done = read_logs(&logs)?;
    let transactions = figures(&done, from_us, to_us);
    if transactions.transactions == 0 {
        return Err(BenchError::Output {
            place: format!("pgbench's logs of the mode {}", mode.name()),
            expected: "transactions",
            found: format!(
                "none in {} s after the warm-up; {} failed",
                bench.duration.as_secs_f64(),
                transactions.failed
            ),
        });
    }
    // Between the snapshots, which are taken a little later than they should be.
    let between = figures(&done, begin.at_us, end.at_us.max(begin.at_us + 1))
        .transactions
        .max(1) as f64;
    let wal_bytes = end.wal_bytes - begin.wal_bytes;
    let orders = done.iter().filter(|one| {
        one.script == NEW_ORDER && one.took_us.is_some() && (from_us..to_us).contains(&one.at_us)
    });
    let new_orders_per_min =
        (bench.load == FrontLoad::Tpcc).then(|| orders.count() as f64 * 60.0 / bench.duration.as_secs_f64());
    let spans = checkpoints(&bed.cluster().said(), from_us, to_us);
    let daemon_cpu = end.daemon_cpu_us.zip(begin.daemon_cpu_us);
    Ok(FrontResult {
        mode,
        load: bench.load,
        round,
        scale: bench.scale,
        clients: bench.clients,
        disk: bed.disk().describe(),
        limit: limited.as_ref().map(|limited| limited.bytes_per_sec),
        limited_by: limited.as_ref().map(|limited| limited.group.describe()),
        limit_check: limited.as_ref().map(|limited| limited.verified),
        settings: bench.settings(mode),
        seconds: bench.duration.as_secs_f64(),
        warm_up_s: bench.warm_up.as_secs_f64(),
        new_orders_per_min,
        wal_bytes,
        wal_bytes_per_transaction: wal_bytes as f64 / between,
        full_page_images: end.full_page_images.saturating_sub(begin.full_page_images),
        server_cpu_us: end.server_cpu_us.saturating_sub(begin.server_cpu_us) as f64 / between,
        daemon_cpu_us: daemon_cpu.map(|(end, begin)| end.saturating_sub(begin) as f64 / between),
        checkpoints: spans.len(),
        mount,
        checkpoint_spans: spans,
        series: transactions.seconds.clone(),
        transactions,
    })
}

/// All transactions in pgbench's logs in a directory.
fn read_logs(dir: &Path) -> Result<Vec<Done>, BenchError> {
    let mut done = Vec::new();
    for entry in fs::read_dir(dir).at("list", dir)? {
        let path = entry.at("list", dir)?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name.starts_with("done.") {
            let log = fs::read_to_string(&path).at("read", &path)?;
            done.extend(transactions(&name, &log)?);
        }
    }
    Ok(done)
}
