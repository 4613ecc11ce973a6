//! The disks of nodes: file systems that forget what was not synced, and become slow or full.
//!
//! This process serves them, so it must not use their files itself: killed while it waits for its own
//! answer it would never end.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use collie_io::{Device, RealDevice};
use collie_sim::faultfs::{Asked, FaultFs, Moment, Names, Trap};
use collie_sim::{Effects, FaultKind, OpKind, PowerCut, Rng};

use crate::torture::mountable::ensure_mountable;

/// Disks of a node, of which the first has its directory too: a log for each of them.
pub(crate) const DISKS: usize = 2;
/// At which operation of its kind a disk stops, at the latest.
const SYNCS_MAX: u64 = 30;
const NAMES_MAX: u64 = 4;
const CHANGES_MAX: u64 = 300;

/// The disks of all nodes. Dropped, they are unmounted.
pub(crate) struct Disks {
    nodes: Vec<Vec<FaultFs>>,
}

impl Disks {
    /// Mounts empty ones in `dir`.
    pub(crate) fn mount(dir: &Path, nodes: usize, rng: &mut Rng) -> anyhow::Result<Self> {
        ensure_mountable()?;
        let device = RealDevice::new();
        let mut mount = |node: usize, disk: usize| {
            let at = dir.join(format!("node{node}-disk{disk}"));
            device.create_dir_all(&at)?;
            FaultFs::mount(&at, Names::Posix, rng.next_u64())
                .with_context(|| format!("cannot mount a file system at {}", at.display()))
        };
        let nodes = (0..nodes).map(|node| (0..DISKS).map(|disk| mount(node, disk)).collect());
        Ok(Self {
            nodes: nodes.collect::<anyhow::Result<_>>()?,
        })
    }

    fn of(&self, node: usize) -> impl Iterator<Item = &FaultFs> {
        self.nodes.get(node).into_iter().flatten()
    }

    fn one(&self, node: usize, disk: usize) -> anyhow::Result<&FaultFs> {
        self.of(node).nth(disk).context("there is no such disk")
    }

    /// Where the disks of a node are.
    pub(crate) fn paths(&self, node: usize) -> Vec<PathBuf> {
        self.of(node).map(|fs| fs.path().to_owned()).collect()
    }

    /// Stops a disk of the first of these nodes at an operation that is drawn, if it comes, and all other
    /// disks of these nodes with it.
    pub(crate) fn set_trap(&self, nodes: &[usize], rng: &mut Rng) -> anyhow::Result<()> {
        let (kinds, most): (&'static [OpKind], u64) = match rng.below(4) {
            0 => (&[OpKind::SyncData, OpKind::DirectWrite], SYNCS_MAX),
            1 => (
                &[
                    OpKind::SyncDir,
                    OpKind::Rename,
                    OpKind::Create,
                    OpKind::RemoveFile,
                ],
                NAMES_MAX,
            ),
            2 => (&[OpKind::Write], CHANGES_MAX),
            _ => (&[], CHANGES_MAX),
        };
        let moment = if rng.coin() { Moment::Before } else { Moment::After };
        let is_one = move |asked: &Asked| kinds.is_empty() || kinds.contains(&asked.kind);
        let trap = Trap::new(1 + rng.below(most), moment, is_one);
        let first = *nodes.first().context("there is no node to be stopped")?;
        let struck = self.one(first, rng.index(DISKS))?;
        let all = nodes.iter().flat_map(|&node| self.of(node));
        struck.stops_with(all.filter(|fs| fs.path() != struck.path()))?;
        Ok(struck.set_trap(trap)?)
    }

    /// Waits at most so long until a disk of a node has stopped; whether one has.
    pub(crate) fn wait_for_stop(&self, node: usize, patience: Duration) -> anyhow::Result<bool> {
        let step = Duration::from_millis(2);
        let mut waited = Duration::ZERO;
        loop {
            for fs in self.of(node) {
                if fs.wait_for_stop(step)?.is_some() {
                    return Ok(true);
                }
                waited += step;
            }
            if waited >= patience {
                return Ok(false);
            }
        }
    }

    /// Whether a disk of a node has stopped.
    pub(crate) fn has_stopped(&self, node: usize) -> anyhow::Result<bool> {
        self.wait_for_stop(node, Duration::ZERO)
    }

    /// Stops the disks of a node: none of its calls is answered any more.
    pub(crate) fn stop(&self, node: usize) -> anyhow::Result<()> {
        Ok(self.of(node).try_for_each(FaultFs::stop)?)
    }

    /// Has the calls of a node fail, which a killed process needs for its end.
    pub(crate) fn fail_calls(&self, node: usize) -> anyhow::Result<()> {
        Ok(self.of(node).try_for_each(FaultFs::fail_calls)?)
    }

    /// Decides what the disks of a node keep, whose process is dead, each by itself.
    pub(crate) fn power_cycle(&mut self, node: usize, rng: &mut Rng) -> anyhow::Result<Effects> {
        let mut all = Effects::default();
        for fs in self.nodes.get_mut(node).into_iter().flatten() {
            // What is not synced is lost as a whole more often than the other ways come.
            let way = if rng.one_in(3) {
                0
            } else {
                rng.index(PowerCut::WAYS.len())
            };
            let (_, cut) = PowerCut::WAYS
                .get(way)
                .context("there is no way to cut the power")?;
            let effects = fs
                .power_cycle(*cut, rng.next_u64())
                .context("cannot cut the power")?;
            add(&mut all, effects);
        }
        Ok(all)
    }

    /// Every sync of a node's disks takes this much longer.
    pub(crate) fn delay_syncs(&self, node: usize, delay: Duration) -> anyhow::Result<()> {
        Ok(self.of(node).try_for_each(|fs| fs.delay_syncs(delay))?)
    }

    /// Leaves so much room on a disk of a node; `None` for no limit.
    pub(crate) fn limit(&self, node: usize, disk: usize, bytes: Option<u64>) -> anyhow::Result<()> {
        Ok(self.one(node, disk)?.limit_space(bytes)?)
    }

    /// How often the disks of a node have refused something, as they were full.
    pub(crate) fn refusals(&self, node: usize) -> u64 {
        let counts = self.of(node).map(|fs| {
            let counts = fs.fault_counts();
            counts.get(&FaultKind::NoSpace).copied().unwrap_or(0)
        });
        counts.sum()
    }

    /// Copies what is on all disks to directories in `dir`. No process uses them any more.
    pub(crate) fn keep(&self, dir: &Path) -> anyhow::Result<()> {
        for fs in self.nodes.iter().flatten() {
            // One that has stopped answers nothing.
            if !fs.clear_trap()? {
                fs.fail_calls()?;
                continue;
            }
            let name = fs.path().file_name().unwrap_or_default().to_string_lossy();
            let to = dir.join(format!("{name}-kept"));
            // By a process of its own.
            let copied = Command::new("cp").arg("-r").arg(fs.path()).arg(&to).status();
            let status = copied.context("cannot run cp")?;
            ensure!(status.success(), "cp of a disk to {}: {status}", to.display());
        }
        Ok(())
    }
}

/// Adds up what cuts did.
pub(crate) fn add(all: &mut Effects, some: Effects) {
    all.kept += some.kept;
    all.lost += some.lost;
    all.garbage += some.garbage;
    all.names_lost += some.names_lost;
    all.lengths_lost += some.lengths_lost;
}
