//! `faultfs`: a file system in memory that any program can be run on, and that forgets on command
//! what was not synced, data and names alike.
//!
//! It is the simulated device's world behind the kernel's FUSE interface, so that files which do
//! not go through `collie-io` (those of the table library, or another product's) meet the same
//! power cuts: what was written and not synced is lost, kept in any subset or torn at 512 B or 4
//! KiB, lengths and names apart, and operations fail, are short or slow as [`Fault`]s say.
//!
//! A cut has two halves. First the disk stops, at once or at an operation that a [`Trap`] names:
//! from then on no call is answered, which is what a program sees of a machine that loses its
//! power. The caller kills the program; then [`FaultFs::power_cycle`] decides what was on the disk
//! and mounts it anew, so that nothing is left of the kernel's caches either.
//!
//! Files have owners, modes, times, hard and symbolic links as programs are used to, and where root
//! mounts it, every user may use it; the kernel checks permissions. A link, of either kind, is a
//! name: a sync of its directory makes it durable, and what a symbolic link leads to is durable with
//! it. Modes, owners and times are durable as soon as they are set, with the inode: a power cut
//! takes none of them. The time of the last access does not move by itself.
//!
//! What it does not model: extended attributes, device files and pipes, holes punched into files,
//! names exchanged in one step, parts of seconds before 1970. Locks and mappings are the kernel's
//! own; what was written through a mapping reaches the file system when the program syncs it. The
//! process that serves the file system must not map its files: the kernel holds the process's memory
//! while it waits for what was written through a mapping.

mod disk;
mod files;
mod mounts;
mod session;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use collie_io::{Device, RealDevice};
use fuser::{BackgroundSession, MountOption, Session, SessionACL};

use crate::device::SimDevice;
use crate::fault::{Fault, FaultCounts};
use crate::image::{Effects, Image, Keep, PowerCut};
use crate::trace::{Op, OpKind};
use crate::world::{ROOT, World};
use crate::{clock::SimClock, rng::Rng};

use disk::Disk;
pub use disk::{Asked, Fell, Moment, Trap};
pub use mounts::{available, unmount_abandoned, unmount_below};

/// What makes a name durable: a creation, a renaming or a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Names {
    /// A sync of the directory and nothing else, as POSIX has it; any of those that were not synced
    /// may survive a power cut without the others. A renaming is kept or lost as a whole, and
    /// durable when the directory is synced that has the new name.
    #[default]
    Posix,
    /// Any sync of any file or directory makes durable all that were changed before it, and a power
    /// cut takes the latest ones: a journal that commits as a whole, as ext4's does.
    Journal,
}

/// Threads that answer the kernel. A sync that is slow on purpose occupies one.
const THREADS: usize = 6;
/// How long operations that are under way are waited for, a slow sync perhaps.
const PATIENCE: Duration = Duration::from_secs(60);

/// A mounted file system; unmounted when it is dropped. Where the process is killed instead, what
/// is left of it is found by [`unmount_abandoned`].
pub struct FaultFs {
    at: PathBuf,
    names: Names,
    mounted: Option<Mounted>,
    /// The disk as the last power cut left it.
    left: Option<Image>,
    faults: FaultCounts,
    operations: BTreeMap<OpKind, u64>,
}

/// One life of the disk, from power on to power off.
struct Mounted {
    disk: Arc<Disk>,
    session: BackgroundSession,
}

impl FaultFs {
    /// Mounts an empty disk at `at`, an empty directory. What happens by chance in faults follows
    /// from `seed`.
    ///
    /// # Errors
    /// `/dev/fuse` is missing, or this process may not mount: [`available`] says which.
    pub fn mount(at: &Path, names: Names, seed: u64) -> io::Result<Self> {
        let mut fs = Self {
            at: at.to_owned(),
            names,
            mounted: None,
            left: None,
            faults: FaultCounts::new(),
            operations: BTreeMap::new(),
        };
        let mut world = World::plain(seed);
        let (uid, gid) = (RealDevice::new().uid(), rustix::process::getegid().as_raw());
        world.set_owner(ROOT, Some(uid), Some(gid))?;
        fs.power_on(SimDevice::from_world(world, 0, SimClock::new()))?;
        Ok(fs)
    }

    fn power_on(&mut self, device: SimDevice) -> io::Result<()> {
        let disk = Arc::new(Disk::new(device, self.names));
        let mut config = fuser::Config::default();
        config.mount_options = vec![
            MountOption::FSName(mounts::source()),
            MountOption::NoAtime,
            MountOption::DefaultPermissions,
        ];
        // Others' mounts are not for all, unless the machine's configuration says so.
        config.acl = match RealDevice::new().uid() {
            0 => SessionACL::All,
            _ => SessionACL::Owner,
        };
        config.n_threads = Some(THREADS);
        let session = Session::new(session::Frontend(Arc::clone(&disk)), &self.at, &config)?.spawn()?;
        self.mounted = Some(Mounted { disk, session });
        Ok(())
    }

    fn disk(&self) -> io::Result<&Disk> {
        self.mounted.as_ref().map(|m| &*m.disk).ok_or_else(gone)
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.at
    }

    /// Stops the disk at the operation that `trap` names, in place of an earlier one's.
    ///
    /// # Errors
    /// It is not mounted.
    pub fn set_trap(&self, trap: Trap) -> io::Result<()> {
        self.disk()?.set_trap(trap);
        Ok(())
    }

    /// Has other disks stop at the same moment when a trap stops this one, as disks of one power supply
    /// do, until the next power cycle of either.
    ///
    /// # Errors
    /// One of them is not mounted.
    pub fn stops_with<'a>(&self, others: impl IntoIterator<Item = &'a Self>) -> io::Result<()> {
        let disk = self.disk()?;
        for other in others {
            disk.takes_along(&other.mounted.as_ref().ok_or_else(gone)?.disk);
        }
        Ok(())
    }

    /// Takes a trap away that nothing has fallen into. `false` where the disk has stopped, or stops
    /// at an operation that is under way: its end is waited for.
    ///
    /// # Errors
    /// It is not mounted, or that operation does not end.
    pub fn clear_trap(&self) -> io::Result<bool> {
        self.disk()?.clear_trap(PATIENCE)
    }

    /// Stops the disk now, unless it has stopped already.
    ///
    /// # Errors
    /// It is not mounted.
    pub fn stop(&self) -> io::Result<()> {
        self.disk()?.stop();
        Ok(())
    }

    /// Stops the disk, and lets every call on it fail that waits for an answer or comes from now
    /// on: what is left of a program that was killed needs that for its end. Programs that are
    /// alive would go on with the errors.
    ///
    /// # Errors
    /// It is not mounted, or operations that were under way do not end.
    pub fn fail_calls(&self) -> io::Result<()> {
        self.disk()?.power_off(PATIENCE)
    }

    /// Waits until the disk has stopped, for at most `patience`, and returns where that was.
    ///
    /// # Errors
    /// It is not mounted.
    pub fn wait_for_stop(&self, patience: Duration) -> io::Result<Option<Fell>> {
        Ok(self.disk()?.fell(patience))
    }

    /// How many operations there were in this life of the disk that could change what it holds.
    ///
    /// # Errors
    /// It is not mounted.
    pub fn changes(&self) -> io::Result<u64> {
        Ok(self.disk()?.changes())
    }

    /// Stops the disk if it has not stopped, decides by `cut` and `seed` what was on it, and mounts
    /// that. The programs that used it have to be dead; the calls of those that are not fail with
    /// `EIO`.
    ///
    /// Faults, delays and limits end with it. With [`Names::Journal`], names that `cut` keeps in
    /// any subset are kept up to a random one.
    ///
    /// # Errors
    /// It cannot be unmounted or mounted; it is not mounted then.
    pub fn power_cycle(&mut self, cut: PowerCut, seed: u64) -> io::Result<Effects> {
        let names = match (self.names, cut.names) {
            (Names::Journal, Keep::Any) => Keep::Prefix,
            (_, names) => names,
        };
        let device = self.power_off()?;
        let image = device
            .snapshot()
            .power_cut(PowerCut { names, ..cut }, Rng::new(seed).next_u64());
        let effects = image.effects();
        let device = image.device();
        self.left = Some(image);
        self.power_on(device)?;
        Ok(effects)
    }

    /// Unmounts it; the device holds what was written, synced or not.
    fn power_off(&mut self) -> io::Result<SimDevice> {
        let Mounted { disk, session } = self.mounted.take().ok_or_else(gone)?;
        disk.power_off(PATIENCE)?;
        for (kind, count) in disk.counts() {
            *self.operations.entry(kind).or_default() += count;
        }
        for (kind, count) in disk.device().fault_counts() {
            *self.faults.entry(kind).or_default() += count;
        }
        if session.umount_and_join().is_err() {
            // A process is still in it, a shell perhaps: it keeps the old disk, on which nothing
            // works.
            unmount_below(&self.at)?;
        }
        Ok(disk.device().clone())
    }

    /// The disk as the last power cut left it, before anything used it.
    #[must_use]
    pub fn left(&self) -> Option<&Image> {
        self.left.as_ref()
    }

    /// The latest operations of this life of the disk, oldest first.
    ///
    /// # Errors
    /// It is not mounted.
    pub fn trace(&self) -> io::Result<Vec<Op>> {
        Ok(self.disk()?.device().trace())
    }

    /// Adds a rule by which operations fail, are short or hit the wrong place, until the next power
    /// cycle.
    ///
    /// # Errors
    /// It is not mounted.
    pub fn inject(&self, fault: Fault) -> io::Result<()> {
        self.disk()?.device().inject(fault);
        Ok(())
    }

    /// Removes all rules.
    ///
    /// # Errors
    /// It is not mounted.
    pub fn heal(&self) -> io::Result<()> {
        self.disk()?.device().heal();
        Ok(())
    }

    /// Every sync takes this much longer.
    ///
    /// # Errors
    /// It is not mounted.
    pub fn delay_syncs(&self, delay: Duration) -> io::Result<()> {
        self.disk()?.device().delay_syncs(delay);
        Ok(())
    }

    /// Leaves room for `bytes` more; `None` for no limit.
    ///
    /// # Errors
    /// It is not mounted.
    pub fn limit_space(&self, bytes: Option<u64>) -> io::Result<()> {
        self.disk()?.device().limit_space(bytes);
        Ok(())
    }

    /// How often each kind of fault struck, in all lives of the disk.
    #[must_use]
    pub fn fault_counts(&self) -> FaultCounts {
        let mut counts = self.faults.clone();
        for (kind, count) in self.disk().iter().flat_map(|d| d.device().fault_counts()) {
            *counts.entry(kind).or_default() += count;
        }
        counts
    }

    /// How often each kind of operation was asked for, in all lives of the disk.
    #[must_use]
    pub fn operations(&self) -> BTreeMap<OpKind, u64> {
        let mut counts = self.operations.clone();
        for (kind, count) in self.disk().iter().flat_map(|d| d.counts()) {
            *counts.entry(kind).or_default() += count;
        }
        counts
    }
}

fn gone() -> io::Error {
    io::Error::other("the file system is not mounted: an earlier power cycle failed")
}

impl Drop for FaultFs {
    fn drop(&mut self) {
        // A mount that cannot be taken away is found by the next run.
        let _ = self.power_off();
    }
}
