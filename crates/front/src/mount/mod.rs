//! A file system over a PostgreSQL data directory: the kernel's requests (FUSE), answered by the
//! page map for relations and by the files themselves for everything else.
//!
//! The mount covers the directory. What lies below it is reached through a descriptor that was
//! opened before.
//!
//! Rules of nodes, names and threads:
//!
//! 1. A node stays what it was opened as, whatever its new name.
//! 2. A file inheriting a known inode number gets another generation.
//! 3. A sync makes the name durable, too.
//! 4. A directory is removed after its files' removal is recorded.
//! 5. Calls that may wait for the device run on other threads.
//! 6. A dead daemon is not replaced under a live server.

mod adopt;
mod attributes;
mod background;
mod control;
mod files;
mod marker;
mod names;
mod owners;
mod pool;
mod reads;
mod session;
mod tasks;
mod tree;
mod turns;

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use collie_io::{Device, OpenMode, Policy, RealDevice, Scheduler};
use fuser::{BackgroundSession, Config, MountOption, SessionACL};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{UnmountFlags, unmount};

use crate::disk::map::is_page;
use crate::error::MountError;
use crate::volume::{Missing, OWN, Recovered, Volume, VolumeOptions};
use adopt::Cluster;
use background::Background;
use marker::Marker;
use reads::Reads;
use session::Session;
use tree::Tree;

pub use marker::{Afterwards, Left};

/// Debian's package fuse3 has it.
const HELPER: &str = "fusermount3";
/// How the mount is called in the kernel's list.
const SUBTYPE: &str = "collie";
/// PostgreSQL's usual page.
const PAGE_BYTES: u32 = 8192;
/// Pages that the shadow file has room for at least: with fewer, writers wait for a drain all the time.
const LEAST_SLOTS: u64 = 64;

/// Options of [`Mount::new`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MountOptions {
    /// Room for displaced pages, in bytes; taken from the file system when a directory is mounted
    /// for the first time. It may grow later, and never shrinks. Default 1 GiB.
    pub shadow_bytes: u64,
    /// Bytes of a page in a directory without a cluster yet; a cluster's own size is found in its
    /// `pg_control`. Default 8,192.
    pub page_bytes: Option<u32>,
    /// Whether all users see the mount, as far as the files' permissions go; root's mounts always
    /// are for all. Default: only the user of this process.
    pub allow_other: bool,
    /// Threads that read the kernel's requests. Default 16.
    pub threads: usize,
    /// What goes first: of the daemon's own I/O and its users', and of the reads of several scans.
    /// Default [`Policy::Classes`]: users before the daemon, and one query's scan before the next;
    /// with [`Policy::Fair`] scans share the device evenly; with [`Policy::None`] all is done as it
    /// comes.
    pub policy: Policy,
    /// How long the device waits for the next read of a query before that of another is done, with
    /// [`Policy::Classes`], unless the device is fast. Default 2 ms.
    pub idle_slice: Duration,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            shadow_bytes: 1 << 30,
            page_bytes: None,
            allow_other: false,
            threads: 16,
            policy: Policy::default(),
            idle_slice: Duration::from_millis(2),
        }
    }
}

/// A directory that is mounted over itself. Serves until it is unmounted, by [`Mount::unmount`] or
/// by another program.
pub struct Mount {
    dir: PathBuf,
    tree: Arc<Tree>,
    background: Background,
    ended: Mutex<Receiver<()>>,
    /// Never dropped: it would unmount what is mounted at the directory by then.
    session: ManuallyDrop<BackgroundSession>,
}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mount")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

impl Mount {
    /// Recovers the directory `dir`, or makes it one of a page map, and mounts a file system over
    /// it. Blocks on the device.
    ///
    /// # Errors
    /// [`MountError::Refused`]: a server uses it, a tablespace leads out of it, its page size is
    /// another one; [`MountError::Front`]: as [`Volume::open`]; [`MountError::Io`]: `dir` is no
    /// directory, or the system refuses to mount.
    pub fn new(dir: &Path, options: &MountOptions) -> Result<Mount, MountError> {
        let dir = canonical(dir)?;
        let opened = rustix::fs::open(
            &dir,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let below = opened.map_err(|e| MountError::io("open", &dir)(e.into()))?;
        let root = PathBuf::from(format!(
            "/proc/self/fd/{}",
            rustix::fd::AsRawFd::as_raw_fd(&below)
        ));
        let device: Arc<dyn Device> = Arc::new(RealDevice::new());
        let cluster = Cluster {
            device: &*device,
            root: &root,
            shown: &dir,
        };
        check(&cluster, options)?;
        let scheduler = Arc::new(Scheduler::new(options.policy));
        let reads = Reads::start(options.policy, options.idle_slice)
            .map_err(MountError::io("start a thread for", &dir))?;
        let is_root = device.uid() == 0;
        if is_root {
            let given = owners::give_away(&below, &dir)?;
            if given > 0 {
                tracing::info!("{given} files that a daemon had not given away got their directories' owner");
            }
        }
        let stat = device
            .stat(&root.join(""))
            .map_err(MountError::io("stat", &dir))?;
        let (volume, before) = cluster.adopt(volume_options(&cluster, &device, options, &scheduler)?)?;
        let tree = Arc::new(Tree::new(
            volume,
            device,
            (root, below),
            dir.clone(),
            &stat,
            (reads, scheduler),
        ));
        let (sender, ended) = channel();
        let session = Session {
            tree: Arc::clone(&tree),
            ended: sender,
        };
        let background = Background::start(&tree).map_err(MountError::io("start a thread for", &dir));
        let served = background.and_then(|background| {
            let session = serve(session, &dir, options, is_root)?;
            Ok((background, session))
        });
        let (background, session) = match served {
            Ok(served) => served,
            Err(error) => {
                // Why it is not mounted is the error to return.
                let _ = finish(tree, &dir, before);
                return Err(error);
            }
        };
        Ok(Mount {
            dir,
            tree,
            background,
            ended: Mutex::new(ended),
            session: ManuallyDrop::new(session),
        })
    }

    /// The directory, without symbolic links.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What the opening of the page map found.
    #[must_use]
    pub fn recovered(&self) -> &Recovered {
        self.tree.volume.recovered()
    }

    /// The page map.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        &self.tree.volume
    }

    /// Makes everything durable and takes the mount away. Not while processes use it.
    ///
    /// # Errors
    /// [`MountError::Io`], with [`io::ErrorKind::ResourceBusy`] while a process has a file of it
    /// open or works in it.
    pub fn unmount(&self) -> Result<(), MountError> {
        // An earlier attempt to leave the mount may have failed, and its users have gone on.
        self.tree.control.set_afterwards(Afterwards::OfMount);
        self.tree.commit()?;
        unmount_dir(&self.dir)
    }

    /// Waits until the mount is gone.
    pub fn wait(&self) {
        // An error means that the session ended without sending.
        let _ = self.ended.lock().recv();
    }

    /// As [`Mount::unmount`], but brings every page home first, so that the directory is a plain one
    /// when the mount is closed.
    ///
    /// # Errors
    /// As [`Mount::unmount`] and [`Volume::drain`]; it stays mounted.
    pub fn unmount_plain(&self) -> Result<(), MountError> {
        self.tree
            .control
            .run(&self.tree.volume, control::Command::Leave)?;
        unmount_dir(&self.dir)
    }

    /// Ends after the mount is gone: commits and writes the map. Returns what the directory is now.
    ///
    /// # Errors
    /// [`MountError::Front`]: as [`Volume::close`]; what was synced is safe.
    pub fn close(self) -> Result<Left, MountError> {
        let Mount {
            dir,
            tree,
            background,
            session,
            ..
        } = self;
        drop(background);
        // Joined, so that it holds nothing of the tree; what remains of it is not dropped.
        while !session.guard.is_finished() {
            std::thread::yield_now();
        }
        let afterwards = tree.control.afterwards();
        finish(tree, &dir, afterwards)
    }
}

/// Closes the page map of a directory that is not mounted any more; see [`Mount::close`].
fn finish(tree: Arc<Tree>, dir: &Path, afterwards: Afterwards) -> Result<Left, MountError> {
    tree.pool.finish();
    tree.reads.finish();
    let Some(tree) = Arc::into_inner(tree) else {
        // A request is still being answered, in another mount namespace perhaps.
        return Ok(Left::Displaced);
    };
    let Tree {
        volume,
        device,
        root,
        _below: below,
        ..
    } = tree;
    let cluster = Cluster {
        device: &*device,
        root: &root,
        shown: dir,
    };
    leave(&cluster, &below, volume, afterwards)
}

/// Closes the page map of a directory that is not mounted. What root made in `.collie` is its owner's
/// from then on.
fn leave(
    cluster: &Cluster<'_>,
    below: impl AsFd,
    volume: Volume,
    afterwards: Afterwards,
) -> Result<Left, MountError> {
    let left = cluster.leave(volume, afterwards)?;
    if cluster.device.uid() == 0 {
        owners::give_own(below, cluster.shown)?;
    }
    Ok(left)
}

/// Whether a directory can be mounted: changes nothing. Returns how many bytes [`Mount::new`] will
/// take for displaced pages, none where they are taken already.
///
/// # Errors
/// As [`Mount::new`], but for what opening the page map may find.
pub fn check_mount(dir: &Path, options: &MountOptions) -> Result<u64, MountError> {
    let dir = canonical(dir)?;
    let cluster = Cluster {
        device: &RealDevice::new(),
        root: &dir,
        shown: &dir,
    };
    check(&cluster, options)?;
    cluster.check_access()?;
    cluster.room_for(page_bytes(&cluster, options)?, options.shadow_bytes)
}

/// The checks that are possible before anything in the directory is changed.
fn check(cluster: &Cluster<'_>, options: &MountOptions) -> Result<(), MountError> {
    check_fuse(cluster.device)?;
    cluster.check_unmounted()?;
    let inside = cluster.device.stat(&cluster.root.join("."));
    inside.map_err(MountError::io("look into", cluster.shown))?;
    cluster.check_unused()?;
    cluster.check_dirs()?;
    cluster.check_tablespaces()?;
    cluster.check_sync_method()?;
    cluster.check_level(cluster.check_map()? != Marker::Missing)?;
    let least = LEAST_SLOTS * u64::from(page_bytes(cluster, options)?);
    if options.shadow_bytes < least {
        return Err(cluster.refuse(format!(
            "{} bytes are too little room for displaced pages; give at least {least}, for {LEAST_SLOTS} pages",
            options.shadow_bytes
        )));
    }
    Ok(())
}

/// Whether PostgreSQL starts in a directory that is not mounted only on the mount.
///
/// # Errors
/// [`MountError::Refused`]: it is in no state that a mount leaves; [`MountError::Io`].
pub fn is_of_mount(dir: &Path) -> Result<bool, MountError> {
    let cluster = Cluster {
        device: &RealDevice::new(),
        root: dir,
        shown: dir,
    };
    Ok(cluster.check_map()? == Marker::Hidden)
}

/// Opens the page map of a directory that is not mounted, as a mount would; but the shadow file keeps
/// the size that it has, and pages of missing files are kept.
///
/// # Errors
/// As [`Mount::new`]; [`MountError::Refused`] where there is none.
pub fn open_unmounted(dir: &Path, options: &MountOptions) -> Result<Volume, MountError> {
    let dir = canonical(dir)?;
    let device: Arc<dyn Device> = Arc::new(RealDevice::new());
    let cluster = Cluster {
        device: &*device,
        root: &dir,
        shown: &dir,
    };
    cluster.check_unmounted()?;
    cluster.check_unused()?;
    cluster.check_map()?;
    if !cluster.has_map()? {
        return Err(cluster.refuse(format!("it was never mounted by collie: there is no {OWN}/MAP")));
    }
    let options = MountOptions {
        shadow_bytes: 0,
        ..options.clone()
    };
    cluster.open(VolumeOptions {
        missing: Missing::Keep,
        ..volume_options(&cluster, &device, &options, &Arc::default())?
    })
}

/// Closes a page map that [`open_unmounted`] opened. Returns what the directory is now: a plain one,
/// where it is to be that and no page is displaced any more.
///
/// # Errors
/// [`MountError::Front`], [`MountError::Io`].
pub fn close_unmounted(dir: &Path, volume: Volume, afterwards: Afterwards) -> Result<Left, MountError> {
    let dir = canonical(dir)?;
    let cluster = Cluster {
        device: &RealDevice::new(),
        root: &dir,
        shown: &dir,
    };
    let below = rustix::fs::open(
        &dir,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let below = below.map_err(|e| MountError::io("open", &dir)(e.into()))?;
    leave(&cluster, below, volume, afterwards)
}

/// Whether this process may mount, before anything in the directory is touched.
fn check_fuse(device: &dyn Device) -> Result<(), MountError> {
    let fuse = Path::new("/dev/fuse");
    if let Err(error) = device.open(fuse, OpenMode::ReadWrite) {
        let todo = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "only its owner may use it, as where no udev sets its mode: as root, \
                 `chmod 666 /dev/fuse` after each start of the machine (with systemd, the line \
                 `z /dev/fuse 0666` in a file of /etc/tmpfiles.d), or mount as root"
            }
            io::ErrorKind::NotFound => {
                "the kernel has no FUSE here: as root, `modprobe fuse`; give a container the device"
            }
            _ => return Err(MountError::io("open", fuse)(error)),
        };
        return Err(MountError::Refused {
            path: fuse.to_owned(),
            problem: format!("it cannot be opened ({error}): {todo}"),
        });
    }
    let helper = || {
        Command::new(HELPER)
            .arg("-V")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
    };
    if device.uid() != 0 && !helper().is_ok_and(|status| status.success()) {
        return Err(MountError::Refused {
            path: PathBuf::from(HELPER),
            problem: "only root mounts without this program; install it (Debian: fuse3)".to_owned(),
        });
    }
    Ok(())
}

fn canonical(dir: &Path) -> Result<PathBuf, MountError> {
    dir.canonicalize().map_err(|e| match e.kind() {
        io::ErrorKind::NotConnected => MountError::Refused {
            path: dir.to_owned(),
            problem: adopt::DEAD.to_owned(),
        },
        _ => MountError::io("find", dir)(e),
    })
}

/// The cluster's own, or else what is wanted.
fn page_bytes(cluster: &Cluster<'_>, options: &MountOptions) -> Result<u32, MountError> {
    let found = cluster.page_bytes()?;
    match (found, options.page_bytes) {
        (Some(found), Some(wanted)) if found != wanted => {
            Err(cluster.refuse(format!("the cluster's pages have {found} bytes, not {wanted}")))
        }
        (_, Some(wanted)) if !is_page(wanted) => Err(cluster.refuse(format!(
            "a page cannot have {wanted} bytes: a multiple of 512, from 512 to 65,536"
        ))),
        (found, wanted) => Ok(found.or(wanted).unwrap_or(PAGE_BYTES)),
    }
}

fn volume_options(
    cluster: &Cluster<'_>,
    device: &Arc<dyn Device>,
    options: &MountOptions,
    scheduler: &Arc<Scheduler>,
) -> Result<VolumeOptions, MountError> {
    let page_bytes = page_bytes(cluster, options)?;
    let slots = (options.shadow_bytes / u64::from(page_bytes)).max(1);
    Ok(VolumeOptions {
        device: Arc::clone(device),
        page_bytes,
        slots: u32::try_from(slots).unwrap_or(u32::MAX),
        scheduler: Arc::clone(scheduler),
        ..VolumeOptions::default()
    })
}

fn serve(
    session: Session,
    dir: &Path,
    options: &MountOptions,
    is_root: bool,
) -> Result<BackgroundSession, MountError> {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(dir.display().to_string()),
        MountOption::Subtype(SUBTYPE.to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoAtime,
        MountOption::NoDev,
        MountOption::NoSuid,
    ];
    config.acl = if is_root || options.allow_other {
        SessionACL::All
    } else {
        SessionACL::Owner
    };
    config.n_threads = Some(options.threads.max(1));
    let session = fuser::Session::new(session, dir, &config);
    let session = session.and_then(fuser::Session::spawn);
    session.map_err(MountError::io("mount over", dir))
}

/// Takes away a mount that no process uses.
///
/// # Errors
/// [`MountError::Io`].
pub fn unmount_dir(dir: &Path) -> Result<(), MountError> {
    take_away(dir, UnmountFlags::NOFOLLOW, &["-u", "--"])
}

/// Takes away a mount whose daemon has died, though processes may use it: they get errors.
///
/// # Errors
/// [`MountError::Io`].
pub fn detach_dir(dir: &Path) -> Result<(), MountError> {
    take_away(
        dir,
        UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
        &["-u", "-z", "--"],
    )
}

fn take_away(dir: &Path, flags: UnmountFlags, helper: &[&str]) -> Result<(), MountError> {
    let done = match unmount(dir, flags) {
        Err(rustix::io::Errno::PERM) => {
            let run = Command::new(HELPER)
                .args(helper)
                .arg(dir)
                .stdin(Stdio::null())
                .output();
            run.and_then(|output| {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                match (output.status.success(), said.contains("busy")) {
                    (true, _) => Ok(()),
                    (false, true) => Err(io::Error::new(io::ErrorKind::ResourceBusy, said)),
                    (false, false) => Err(io::Error::other(said)),
                }
            })
        }
        done => done.map_err(io::Error::from),
    };
    done.map_err(MountError::io("unmount", dir))
}

#[cfg(test)]
mod tests {
    use collie_sim::{Fault, FaultKind, SimDevice};

    use super::*;

    #[test]
    fn a_device_that_cannot_be_opened_comes_with_what_to_do() {
        let device = SimDevice::new(1);
        let said = |device: &SimDevice| check_fuse(device).unwrap_err().to_string();
        assert!(said(&device).contains("modprobe fuse"), "{}", said(&device));
        let refused = Fault::new(FaultKind::OpenFails).code(rustix::io::Errno::ACCESS.raw_os_error());
        device.inject(refused.on("/dev/fuse"));
        assert!(said(&device).contains("chmod 666 /dev/fuse"), "{}", said(&device));
    }
}
