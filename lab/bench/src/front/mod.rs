//! PostgreSQL, as it is, on several storages: what full pages in the WAL cost, and what Collie's
//! mount costs instead.
//!
//! Each mode begins with `initdb` and ends with nothing left: [`bed`] is a server on a disk,
//! [`measure`] runs a [`load`] on it and [`figures`] reads the logs. A limit stands for a slower disk. [`scan`] and [`adopt`] measure what else a mount changes.

#![expect(
    clippy::disallowed_methods,
    reason = "a server's files, control groups and /proc are used from outside, as any program does"
)]

mod adopt;
mod bed;
mod figures;
mod load;
mod measure;
mod mode;
mod plots;
mod processes;
mod scan;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use collie_check::postgres;
use serde::Serialize;

use crate::dirs::{Fresh, fresh};
use crate::disks::{Disk, FileSystem, Group, Image, Interrupt, Verified, is_there, open_to_all, verify};
use crate::error::{At, BenchError};
use bed::{Bed, Tools};
use measure::{Limited, measure};

pub use adopt::AdoptResult;
pub use bed::MountFigures;
pub use figures::{CheckpointSpan, FrontSecond, TransactionFigures};
pub use load::FrontLoad;
pub use measure::FrontResult;
pub use mode::FrontMode;
pub use plots::draw_plots;
pub use scan::ScanResult;

/// A comparison of PostgreSQL on several storages.
#[derive(Debug, Clone)]
pub struct FrontBench {
    /// What is compared, in this order.
    pub modes: Vec<FrontMode>,
    /// What clients do.
    pub load: FrontLoad,
    /// How much data the load has.
    pub scale: u32,
    /// Clients at once.
    pub clients: usize,
    /// How long is measured.
    pub duration: Duration,
    /// How long clients work before.
    pub warm_up: Duration,
    /// How often all of it is done; the modes take turns.
    pub rounds: usize,
    /// Bytes per second that the disk takes at most.
    pub limit: Option<u64>,
    /// The server's settings in all modes, as `name=value`.
    pub settings: Vec<String>,
    /// Whether all modes are on a file system in an image, as the limit and btrfs need it.
    pub on_images: bool,
    /// Bytes of the image.
    pub image_bytes: u64,
    /// Bytes of the mount's shadow file.
    pub shadow_bytes: u64,
    /// Where all files go.
    pub dir: PathBuf,
    /// The program `collie`.
    pub collie: PathBuf,
    /// Stops it.
    pub interrupt: Interrupt,
}

/// What a run of any kind needs.
struct Place {
    /// The device that file systems are made on.
    image: Option<Image>,
    group: Option<Group>,
    // Last: what is in it goes first.
    dir: Fresh,
}

impl FrontBench {
    /// Measures the load in all modes. `stage` is told what is done next, `done` each result.
    ///
    /// # Errors
    /// Something that it needs is missing, a program fails, or it is interrupted; what was started
    /// and mounted is gone by then.
    pub fn run(
        &self,
        mut stage: impl FnMut(&str),
        mut done: impl FnMut(FrontResult),
    ) -> Result<(), BenchError> {
        self.check()?;
        let mut place = self.place(&mut stage)?;
        for round in 1..=self.rounds {
            for &mode in &self.modes {
                let of = |what: &str| format!("{} of round {round}: {what}", mode.name());
                stage(&of("makes the cluster"));
                let disk = self.disk(&place, mode)?;
                let verified = self.verify(&mut place, &disk)?;
                let mut bed = Bed::new(self.tools(), place.home(), disk, mode)?;
                bed.start(&self.settings(mode))?;
                stage(&of("fills it"));
                self.load.fill(&bed, self.scale)?;
                bed.restart(&self.settings(mode))?;
                stage(&of("measures"));
                let limited = place.group.as_mut().zip(self.limit).zip(verified);
                let limited = limited.map(|((group, bytes_per_sec), verified)| Limited {
                    group,
                    bytes_per_sec,
                    verified,
                });
                let measured = measure(self, mode, round, &bed, limited);
                // Whatever came of it, the server ends without the limit.
                if let Some(group) = &mut place.group {
                    group.lift()?;
                }
                let result = measured?;
                stage(&of("ends"));
                bed.close()?;
                done(result);
            }
        }
        place.close()
    }

    /// All settings of a mode's server.
    fn settings(&self, mode: FrontMode) -> Vec<String> {
        let fixed = ["log_checkpoints=on", "log_line_prefix=%n "];
        let fixed = fixed
            .iter()
            .chain(mode.settings())
            .map(|setting| (*setting).to_owned());
        // Each client beside what looks at the server.
        let connections = format!("max_connections={}", self.clients + 10);
        fixed
            .chain([connections])
            .chain(self.settings.iter().cloned())
            .collect()
    }

    fn tools(&self) -> Tools<'_> {
        Tools {
            collie: &self.collie,
            interrupt: &self.interrupt,
            shadow_bytes: self.shadow_bytes,
        }
    }

    fn needs_image(&self, mode: FrontMode) -> bool {
        self.on_images || self.limit.is_some() || mode == FrontMode::Btrfs
    }

    /// What is missing, before anything is done.
    fn check(&self) -> Result<(), BenchError> {
        let missing = |what: String| Err(BenchError::Missing { what });
        if self.modes.is_empty() || self.clients == 0 || self.rounds == 0 {
            return missing("there is nothing to measure: give modes, clients and rounds".into());
        }
        if let Some(what) = postgres::missing() {
            return missing(format!(
                "{what} (PostgreSQL 15 is Debian's package postgresql-15; run this as root)"
            ));
        }
        let mut tools = Vec::new();
        if self.modes.iter().any(|mode| self.needs_image(*mode)) {
            tools.extend([("losetup", "mount"), ("mount", "mount"), ("dd", "coreutils")]);
        }
        if self.modes.contains(&FrontMode::Btrfs) {
            tools.push(("mkfs.btrfs", "btrfs-progs"));
        }
        if self
            .modes
            .iter()
            .any(|mode| *mode != FrontMode::Btrfs && self.needs_image(*mode))
        {
            tools.push(("mkfs.ext4", "e2fsprogs"));
        }
        for (tool, package) in tools {
            if !is_there(tool) {
                return missing(format!(
                    "{tool} is not there: install Debian's package {package}, or leave out what needs it"
                ));
            }
        }
        Ok(())
    }

    fn place(&self, stage: &mut impl FnMut(&str)) -> Result<Place, BenchError> {
        let dir = fresh(&self.dir)?;
        open_to_all(dir.path())?;
        let mut place = Place {
            image: None,
            group: None,
            dir,
        };
        if self.limit.is_some() {
            place.group = Some(Group::enter()?);
        }
        if self.modes.iter().any(|mode| self.needs_image(*mode)) {
            stage("writes the image that stands for a disk");
            let image = Image::new(place.dir.path().join("image"), self.image_bytes, &self.interrupt)?;
            place.image = Some(image);
        }
        Ok(place)
    }

    fn disk(&self, place: &Place, mode: FrontMode) -> Result<Disk, BenchError> {
        let at = place.dir.path().join("disk");
        let what = match mode {
            FrontMode::Btrfs => FileSystem::Btrfs,
            _ => FileSystem::Ext4,
        };
        match (&place.image, self.needs_image(mode)) {
            (Some(image), true) => Disk::image(at, image, what, &self.interrupt),
            _ => Disk::directory(at),
        }
    }

    /// Whether the limit holds on a disk, where there is one.
    fn verify(&self, place: &mut Place, disk: &Disk) -> Result<Option<Verified>, BenchError> {
        let (Some(rate), Some(group), Some(device)) = (self.limit, &mut place.group, disk.device()) else {
            return Ok(None);
        };
        group.limit(device, rate)?;
        let verified = verify(disk.at(), rate, &self.interrupt);
        group.lift()?;
        verified.map(Some)
    }
}

impl Place {
    /// Where a bed's files go that are not measured.
    fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// Removes all of it, and reports what fails.
    fn close(self) -> Result<(), BenchError> {
        let Self { image, group, dir } = self;
        drop((group, image));
        dir.remove()
    }
}

/// Writes `results.json` to a directory: an object per result, on a line of its own.
///
/// # Errors
/// It cannot be written.
pub fn save_results<R: Serialize>(dir: &Path, results: &[R]) -> Result<(), BenchError> {
    let path = dir.join("results.json");
    let lines: Result<Vec<String>, _> = results.iter().map(serde_json::to_string).collect();
    let lines = lines.map_err(std::io::Error::other).at("write", &path)?;
    write(&path, &(lines.join("\n") + "\n"))
}

/// Writes a file whole.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    fs::write(path, text).at("write", path)
}
