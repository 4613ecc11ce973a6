//! The ring of a new epoch, and the removal of those that are not needed.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use collie_io::{Device, OpenMode, read_exact_at, write_all_at};

use super::chain::Chain;
use super::old_ring::{self, OldRing};
use super::report::RingOutcome;
use crate::Lsn;
use crate::append::ring::{Ring, RingFile};
use crate::error::{At, LogError};
use crate::format::{BLOCK, RING_HOME, RING_WRITTEN, RingHeader, encode_ring_home};
use crate::options::{LogOptions, RingMode};

/// What a ring belongs to.
pub(crate) struct RingOwner<'a> {
    pub(crate) device: &'a dyn Device,
    pub(crate) dir: &'a Path,
    pub(crate) options: &'a LogOptions,
    pub(crate) log_id: [u8; 16],
    pub(crate) epoch: u32,
}

/// The ring of a new epoch. If the process dies before the epoch counts, the next open removes the
/// file: its header says whose it is.
pub(crate) struct NewRing {
    pub(crate) incarnation: [u8; 16],
    pub(crate) ring: Ring,
}

impl NewRing {
    pub(crate) fn make(
        home: &RingOwner<'_>,
        start: Lsn,
        warnings: &mut Vec<String>,
    ) -> Result<Self, LogError> {
        let capacity = home.options.ring_bytes;
        let mut incarnation = [0; 16];
        home.device
            .random(&mut incarnation)
            .at("get random bytes for", home.dir)?;
        if let RingMode::Shared { dir } = &home.options.ring {
            let path = dir.join(old_ring::file_name(home.log_id, incarnation));
            match Self::share(home, &path, incarnation, start) {
                Ok(ring) => return Ok(Self { incarnation, ring }),
                Err(error) => {
                    if error.kind() != io::ErrorKind::AlreadyExists {
                        // Whatever of it exists is ours and useless.
                        let _ = home.device.remove_file(&path);
                    }
                    warnings.push(format!(
                        "no shared ring in {} ({error}): running with a private one, which costs a write call per \
                         group at the process level",
                        dir.display()
                    ));
                }
            }
        }
        let ring = Ring::private(capacity).at("get memory for the ring of", home.dir)?;
        Ok(Self { incarnation, ring })
    }

    /// Takes the file away again: the epoch never came to count.
    pub(crate) fn remove(&self, device: &dyn Device) {
        if let Some(RingFile { path, .. }) = &self.ring.file {
            // Else the next open finds it abandoned.
            let _ = device.remove_file(path);
        }
    }

    fn share(home: &RingOwner<'_>, path: &Path, incarnation: [u8; 16], start: Lsn) -> io::Result<Ring> {
        let device = home.device;
        let len = BLOCK + home.options.ring_bytes;
        let dir = device.stat(home.dir)?;
        let file = device.open(path, OpenMode::CreateNew)?;
        if !file.try_lock()? {
            return Err(io::Error::other("another process locked the new ring"));
        }
        let mut header = RingHeader::blank();
        header.epoch = home.epoch.into();
        header.log_id = home.log_id;
        header.incarnation = incarnation;
        header.boot_id = device.boot_id()?;
        header.dir_dev = dir.dev.into();
        header.dir_ino = dir.ino.into();
        header.capacity = (home.options.ring_bytes as u64).into();
        header.start = start.into();
        // Only once it is locked: to other processes a header without a lock means a dead owner.
        if let Some(path) = std::path::absolute(home.dir)
            .ok()
            .and_then(|dir| encode_ring_home(dir.as_os_str().as_bytes()))
        {
            write_all_at(&*file, &path, RING_HOME as u64)?;
        }
        write_all_at(&*file, &header.encode(), 0)?;
        // All of it now: a full tmpfs is an error here and a SIGBUS later.
        file.allocate(len as u64)?;
        let ring = Ring::shared(
            file.map(len)?,
            RingFile {
                path: path.to_owned(),
                file,
            },
        );
        ring.publish_written(start);
        Ok(ring)
    }
}

/// Puts the smallest ring in the place of `ring`'s file. It says to the next open what that one
/// said, that the segments hold everything below `written`; and an append that is still under way
/// copies into the old file, which no log reads.
pub(crate) fn leave_spent(device: &dyn Device, ring: &RingFile, written: Lsn) -> io::Result<()> {
    let mut head = [0; BLOCK];
    read_exact_at(&*ring.file, &mut head, 0)?;
    let damaged = |bad| io::Error::other(format!("the ring's header is no header: {bad:?}"));
    let mut header = RingHeader::decode(&head).map_err(damaged)?;
    header.capacity = (BLOCK as u64).into();
    // If the process dies before the renaming, the next open finds it abandoned.
    let path = ring.path.with_extension("spent.ring");
    let file = device.open(&path, OpenMode::CreateNew)?;
    head.get_mut(..size_of::<RingHeader>())
        .into_iter()
        .for_each(|place| place.copy_from_slice(&header.encode()));
    let replaced = write_all_at(&*file, head.get(..RING_WRITTEN).unwrap_or_default(), 0)
        .and_then(|()| write_all_at(&*file, &written.to_le_bytes(), RING_WRITTEN as u64))
        .and_then(|()| file.allocate(2 * BLOCK as u64))
        .and_then(|()| device.rename(&path, &ring.path));
    if replaced.is_err() {
        // Likewise.
        let _ = device.remove_file(&path);
    }
    replaced
}

/// What a ring that was not used is renamed to: its name, and this.
pub(crate) const KEPT_SUFFIX: &str = ".kept";

/// Ends the old ring, and removes those that no epoch names. A ring whose content is in the
/// segments goes; one that was found wanting is kept aside. What cannot be removed takes room in
/// memory, no more.
pub(crate) fn remove_rings(
    home: &RingOwner<'_>,
    chain: &Chain,
    old: &OldRing,
    outcome: &RingOutcome,
    new: &NewRing,
    warnings: &mut Vec<String>,
) {
    let mut spent = abandoned_rings(home, chain, new);
    if let Some(path) = old.path() {
        if let RingOutcome::Refused { .. } = outcome {
            match keep_aside(home.device, path) {
                Ok(kept) => warnings.push(format!("that ring is kept as {}", kept.display())),
                Err(error) => warnings.push(format!("cannot rename {}: {error}", path.display())),
            }
        } else {
            spent.push(path.to_owned());
        }
    }
    for path in spent {
        if let Err(error) = home.device.remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            warnings.push(format!("cannot remove {}: {error}", path.display()));
        }
    }
}

/// Renames a ring so that no open finds it again.
pub(crate) fn keep_aside(device: &dyn Device, path: &Path) -> io::Result<PathBuf> {
    let mut kept = path.as_os_str().to_owned();
    kept.push(KEPT_SUFFIX);
    device.rename(path, Path::new(&kept))?;
    Ok(kept.into())
}

/// Rings of this very directory that no epoch names: their recovery was interrupted.
fn abandoned_rings(home: &RingOwner<'_>, chain: &Chain, new: &NewRing) -> Vec<PathBuf> {
    let current = new.ring.file.as_ref().map(|file| file.path.as_path());
    let header = chain
        .last()
        .and_then(|run| run.segments.first())
        .map(|s| s.header);
    // The newest epoch's ring is not abandoned, whatever was found wrong with it.
    let named = header.map(|h| old_ring::file_name(home.log_id, h.ring));
    let before = header
        .filter(|h| h.ring != [0; 16])
        .map(|h| old_ring::ring_dir(&h));
    let mut dirs: Vec<PathBuf> = current
        .and_then(Path::parent)
        .map(Path::to_owned)
        .into_iter()
        .collect();
    dirs.extend(before.filter(|dir| !dirs.contains(dir)));
    let prefix = old_ring::name_prefix(home.log_id);
    let mut abandoned = Vec::new();
    for dir in dirs {
        // A directory that cannot be listed has no rings that can be removed.
        let entries = home.device.list(&dir).unwrap_or_default();
        let ours = entries
            .into_iter()
            .map(|e| e.name)
            .filter(|n| n.starts_with(&prefix) && n.ends_with(".ring") && Some(n) != named.as_ref());
        let paths = ours
            .map(|name| dir.join(name))
            .filter(|path| Some(path.as_path()) != current);
        abandoned.extend(paths.filter(|path| is_ours(home, path).unwrap_or(false)));
    }
    abandoned
}

/// Whether a ring was made for this directory, and no process has it locked.
fn is_ours(home: &RingOwner<'_>, path: &Path) -> io::Result<bool> {
    let dir = home.device.stat(home.dir)?;
    let file = home.device.open(path, OpenMode::ReadWrite)?;
    let mut head = [0; BLOCK];
    read_exact_at(&*file, &mut head, 0)?;
    let of_dir = RingHeader::decode(&head).is_ok_and(|h| h.dir_dev == dir.dev && h.dir_ino == dir.ino);
    Ok(of_dir && file.try_lock()?)
}
