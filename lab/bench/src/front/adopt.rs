//! How long it takes to put a cluster that is there already on the mount.

use collie_io::{Clock, RealClock};
use serde::Serialize;

use super::FrontBench;
use super::bed::Bed;
use super::load::fill_accounts;
use super::mode::FrontMode;
use crate::error::BenchError;
use crate::usage::disk_bytes;

/// A cluster that was adopted.
#[derive(Debug, Clone, Serialize)]
pub struct AdoptResult {
    /// Its size: 100,000 accounts each.
    pub scale: u32,
    /// Which of the rounds, from 1.
    pub round: usize,
    /// Bytes of its files, without WAL.
    pub cluster_bytes: u64,
    /// Seconds until it was mounted for the first time, which takes room for displaced pages.
    pub mount_s: f64,
    /// Bytes of that room.
    pub shadow_bytes: u64,
    /// Seconds until the server had started on it and answered.
    pub start_s: f64,
    /// Seconds until it was unmounted, the server having stopped.
    pub unmount_s: f64,
    /// Seconds until it was mounted again.
    pub mount_again_s: f64,
}

impl FrontBench {
    /// Measures the mount of clusters of several sizes.
    ///
    /// # Errors
    /// As [`FrontBench::run`].
    pub fn adopt(
        &self,
        scales: &[u32],
        mut stage: impl FnMut(&str),
        mut done: impl FnMut(AdoptResult),
    ) -> Result<(), BenchError> {
        let bench = Self {
            modes: vec![FrontMode::Default],
            ..self.clone()
        };
        bench.check()?;
        let place = bench.place(&mut stage)?;
        for round in 1..=bench.rounds {
            for &scale in scales {
                let of = |what: &str| format!("scale {scale} of round {round}: {what}");
                stage(&of("makes the cluster"));
                let disk = bench.disk(&place, FrontMode::Default)?;
                let mut bed = Bed::new(bench.tools(), place.home(), disk, FrontMode::Default)?;
                bed.start(&bench.settings(FrontMode::Default))?;
                stage(&of("fills it"));
                fill_accounts(&bed, scale)?;
                bed.stop()?;
                stage(&of("mounts it"));
                let result = bench.adopted(&mut bed, scale, round)?;
                bed.close()?;
                done(result);
            }
        }
        place.close()
    }

    fn adopted(&self, bed: &mut Bed<'_>, scale: u32, round: usize) -> Result<AdoptResult, BenchError> {
        let cluster_bytes = disk_bytes(bed.cluster().data())?;
        let since = |began: u64| (RealClock.monotonic() - began) as f64 / 1e9;
        let mount_s = bed.mount()?;
        let began = RealClock.monotonic();
        bed.start(&self.settings(FrontMode::Collie))?;
        bed.sql("SELECT count(*) FROM pgbench_branches")?;
        let start_s = since(began);
        bed.stop()?;
        let began = RealClock.monotonic();
        bed.unmount()?;
        let unmount_s = since(began);
        let mount_again_s = bed.mount()?;
        Ok(AdoptResult {
            scale,
            round,
            cluster_bytes,
            mount_s,
            shadow_bytes: self.shadow_bytes,
            start_s,
            unmount_s,
            mount_again_s,
        })
    }
}
