//! A sequential scan of a table that was updated all over.

use std::path::Path;

use collie_io::{Clock, RealClock};
use serde::Serialize;

use super::bed::Bed;
use super::load::fill_accounts;
use super::mode::FrontMode;
use super::{FrontBench, write};
use crate::disks::Running;
use crate::error::BenchError;
use crate::latency::median;

const UPDATE: &str = "\\set aid random(1, 100000 * :scale)\n\
                      UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;\n";
const SCAN: &str = "SET max_parallel_workers_per_gather = 0; SET synchronize_seqscans = off; \
                    SELECT sum(abalance) FROM pgbench_accounts";
/// How often it is scanned.
const SCANS: usize = 3;

/// Scans of a mode's table, with nothing of it in memory.
#[derive(Debug, Clone, Serialize)]
pub struct ScanResult {
    /// The mode.
    pub mode: FrontMode,
    /// Which of the rounds, from 1.
    pub round: usize,
    /// The load's size.
    pub scale: u32,
    /// Seconds of random updates before.
    pub updated_s: f64,
    /// Whether every page had been brought home in between.
    pub drained: bool,
    /// How long that took, in seconds.
    pub drain_s: Option<f64>,
    /// Pages that were not at home before the first scan and after the last.
    pub displaced_pages: Option<(u64, u64)>,
    /// Bytes of the table.
    pub table_bytes: u64,
    /// Seconds of each scan, in turn. The mount brings pages home meanwhile.
    pub scans_s: Vec<f64>,
    /// Bytes per second of the first.
    pub first_bytes_per_sec: f64,
    /// Bytes per second, the median.
    pub bytes_per_sec: f64,
}

impl FrontBench {
    /// Measures a scan after random updates, in all modes, and on the mount again after a drain.
    ///
    /// # Errors
    /// As [`FrontBench::run`].
    pub fn scan(
        &self,
        mut stage: impl FnMut(&str),
        mut done: impl FnMut(ScanResult),
    ) -> Result<(), BenchError> {
        self.check()?;
        let place = self.place(&mut stage)?;
        for round in 1..=self.rounds {
            for &mode in &self.modes {
                let of = |what: &str| format!("{} of round {round}: {what}", mode.name());
                stage(&of("makes the cluster"));
                let mut bed = Bed::new(self.tools(), place.home(), self.disk(&place, mode)?, mode)?;
                let settings = self.settings(mode);
                bed.start(&settings)?;
                stage(&of("fills it"));
                fill_accounts(&bed, self.scale)?;
                stage(&of("updates"));
                self.update(&bed)?;
                let mut measured = |bed: &mut Bed<'_>, drain_s| -> Result<(), BenchError> {
                    let result = self.scan_cold(bed, mode, round, drain_s, &settings)?;
                    done(result);
                    Ok(())
                };
                stage(&of("scans"));
                measured(&mut bed, None)?;
                if mode == FrontMode::Collie {
                    stage(&of("drains"));
                    let drain_s = bed.drain()?;
                    stage(&of("scans again"));
                    measured(&mut bed, Some(drain_s))?;
                }
                bed.close()?;
            }
        }
        place.close()
    }

    fn update(&self, bed: &Bed<'_>) -> Result<(), BenchError> {
        let script = bed
            .cluster()
            .write_aside("update.sql", UPDATE)
            .map_err(|source| BenchError::Io {
                op: "write",
                path: "update.sql".into(),
                source,
            })?;
        let mut pgbench = bed.cluster().program("pgbench");
        pgbench.args(["-n", "-f"]).arg(script);
        pgbench
            .arg(format!("--client={}", self.clients))
            .arg(format!("--define=scale={}", self.scale));
        pgbench.arg(format!("--time={}", self.duration.as_secs().max(1)));
        Running::start(&mut pgbench)?.end(&self.interrupt)?;
        // The first scan after updates writes: hint bits, and pages that it prunes.
        bed.sql(SCAN)?;
        bed.sql("CHECKPOINT").map(|_| ())
    }

    fn scan_cold(
        &self,
        bed: &mut Bed<'_>,
        mode: FrontMode,
        round: usize,
        drain_s: Option<f64>,
        settings: &[String],
    ) -> Result<ScanResult, BenchError> {
        // Its buffers hold some of the table, and a vacuum would write it.
        bed.stop()?;
        let quiet = [settings, &["autovacuum=off".to_owned()]].concat();
        bed.start(&quiet)?;
        let size = bed.sql("SELECT pg_relation_size('pgbench_accounts')")?;
        let table_bytes: u64 = size.parse().map_err(|_| BenchError::Output {
            place: "pg_relation_size".into(),
            expected: "a number",
            found: size,
        })?;
        let displaced = |bed: &Bed<'_>| -> Result<Option<u64>, BenchError> {
            Ok(bed.mount_figures()?.map(|figures| figures.displaced_pages))
        };
        let before = displaced(bed)?;
        let mut seconds = Vec::new();
        for _ in 0..SCANS {
            write(Path::new("/proc/sys/vm/drop_caches"), "3")?;
            // Catalogs come back to memory before the time is taken.
            bed.sql("SELECT count(*) FROM pgbench_branches")?;
            let began = RealClock.monotonic();
            bed.sql(SCAN)?;
            seconds.push((RealClock.monotonic() - began) as f64 / 1e9);
        }
        let after = displaced(bed)?;
        let rate = |seconds: f64| table_bytes as f64 / seconds;
        Ok(ScanResult {
            mode,
            round,
            scale: self.scale,
            updated_s: self.duration.as_secs_f64(),
            drained: drain_s.is_some(),
            drain_s,
            displaced_pages: before.zip(after),
            table_bytes,
            first_bytes_per_sec: rate(seconds.first().copied().unwrap_or(f64::INFINITY)),
            bytes_per_sec: rate(median(seconds.iter().copied())),
            scans_s: seconds,
        })
    }
}
