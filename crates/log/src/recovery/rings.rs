//! The rings of all logs in a directory of shared memory: whose they are, and the removal of those
//! whose logs are gone.
//!
//! A ring outlives its process, so that the next opening finds what was not yet written. If the log's
//! directory was removed there is no next opening, and the ring takes its memory until the machine
//! restarts. A ring is dead if both hold:
//!
//! * No process has it. A process locks its ring before the file has a header, and keeps the lock
//!   while it has the ring: one whose log is just being made is no more dead than one that works. So
//!   the lock is taken before a ring is judged dead, and held until its file is removed.
//! * Its log's directory is gone for certain: nothing, or another directory, or another log has its
//!   path, and the file system that it was on is the one that is there now. A directory that lies
//!   beside under another name, or a file system that is not mounted, keep its ring.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::{Device, File, OpenMode, read_exact_at};

use super::chain::oldest_in;
use super::old_ring;
use crate::error::{At, LogError};
use crate::format::{BLOCK, BadHeader, RingHeader, decode_ring_home};

/// A ring's file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingView {
    /// The file.
    pub path: PathBuf,
    /// Its length, in bytes.
    pub bytes: u64,
    /// The directory of the log that it was made for. Earlier versions did not note it.
    pub log_dir: Option<PathBuf>,
    /// What it is good for.
    pub state: RingState,
}

/// What a ring is good for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingState {
    /// A process has it.
    InUse,
    /// No process has it, and the next opening of its log reads it.
    Left,
    /// No process has it, and its log is gone.
    Dead,
    /// Neither is known, for this reason. It is left alone.
    Unknown(String),
}

/// The rings in `dir`, sorted by their names. A ring that no process has is locked for a moment.
///
/// # Errors
/// The directory cannot be listed.
pub fn list(device: &dyn Device, dir: &Path) -> Result<Vec<RingView>, LogError> {
    let views = paths(device, dir)?.into_iter();
    Ok(views
        .filter_map(|path| Judged::of(device, path))
        .map(|judged| judged.view)
        .collect())
}

/// Those of the rings in `dir` that are dead. Of the others none is locked.
///
/// # Errors
/// The directory cannot be listed.
pub fn dead(device: &dyn Device, dir: &Path) -> Result<Vec<RingView>, LogError> {
    Ok(judged_dead(device, dir)?
        .into_iter()
        .map(|judged| judged.view)
        .collect())
}

/// Removes the dead rings in `dir`, and returns each with what came of it.
///
/// # Errors
/// The directory cannot be listed.
pub fn remove_dead(device: &dyn Device, dir: &Path) -> Result<Vec<(RingView, io::Result<()>)>, LogError> {
    let dead = judged_dead(device, dir)?.into_iter();
    Ok(dead
        .map(|judged| {
            let removed = device.remove_file(&judged.view.path);
            (judged.view, removed)
        })
        .collect())
}

fn paths(device: &dyn Device, dir: &Path) -> Result<Vec<PathBuf>, LogError> {
    let entries = device.list(dir).at("list", dir)?.into_iter();
    let rings = entries.filter(|entry| !entry.is_dir() && old_ring::is_ring(&entry.name));
    Ok(rings.map(|entry| dir.join(entry.name)).collect())
}

fn judged_dead(device: &dyn Device, dir: &Path) -> Result<Vec<Judged>, LogError> {
    let all = paths(device, dir)?.into_iter();
    let gone = all.filter(|path| {
        OpenedRing::of(device, path).is_ok_and(|opened| matches!(opened.home(device), Home::Gone))
    });
    let judged = gone.filter_map(|path| Judged::of(device, path));
    Ok(judged
        .filter(|judged| judged.view.state == RingState::Dead)
        .collect())
}

/// A ring, with its lock if no process had it.
struct Judged {
    view: RingView,
    _locked: Option<Arc<dyn File>>,
}

impl Judged {
    /// `None`: it is not there any more.
    fn of(device: &dyn Device, path: PathBuf) -> Option<Self> {
        let bytes = device.stat(&path).map_or(0, |stat| stat.len);
        let of = |log_dir, state, locked| Self {
            view: RingView {
                path: path.clone(),
                bytes,
                log_dir,
                state,
            },
            _locked: locked,
        };
        let unknown = |why: String| of(None, RingState::Unknown(why), None);
        let opened = match OpenedRing::of(device, &path) {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => return Some(unknown(error.to_string())),
        };
        let log_dir = opened.log_dir.clone();
        match opened.file.try_lock() {
            Err(error) => return Some(of(log_dir, RingState::Unknown(error.to_string()), None)),
            Ok(false) => return Some(of(log_dir, RingState::InUse, None)),
            Ok(true) => {}
        }
        // While it was not locked, its owner may have put another file in its place.
        let (named, locked) = (device.stat(&path), opened.file.stat());
        if !named
            .is_ok_and(|named| locked.is_ok_and(|locked| (locked.dev, locked.ino) == (named.dev, named.ino)))
        {
            return Some(of(log_dir, RingState::InUse, None));
        }
        let (log_dir, state) = match opened.home(device) {
            Home::There => (log_dir, RingState::Left),
            Home::Moved(to) => (Some(to), RingState::Left),
            Home::Gone => (log_dir, RingState::Dead),
            Home::Unknown(why) => (log_dir, RingState::Unknown(why)),
        };
        Some(of(log_dir, state, Some(opened.file)))
    }
}

/// A ring's file and header.
struct OpenedRing {
    file: Arc<dyn File>,
    header: RingHeader,
    log_dir: Option<PathBuf>,
}

/// The directory of a ring's log.
enum Home {
    There,
    /// Beside its place, under this name.
    Moved(PathBuf),
    Gone,
    /// Whether it is there cannot be said.
    Unknown(String),
}

impl OpenedRing {
    fn of(device: &dyn Device, path: &Path) -> io::Result<Self> {
        let file = device.open(path, OpenMode::Read)?;
        let mut head = [0; BLOCK];
        read_exact_at(&*file, &mut head, 0)?;
        let why = |bad: BadHeader| {
            io::Error::other(match bad {
                BadHeader::Blank => "it has no header: it is being made, or was given up then".to_owned(),
                BadHeader::Damaged => "its header is damaged".to_owned(),
                BadHeader::Version(found) => format!("its format is version {found}, of a later program"),
            })
        };
        Ok(Self {
            file,
            header: RingHeader::decode(&head).map_err(why)?,
            log_dir: decode_ring_home(&head).map(|path| PathBuf::from(OsStr::from_bytes(path))),
        })
    }

    fn home(&self, device: &dyn Device) -> Home {
        let Some(dir) = &self.log_dir else {
            return Home::Unknown("an earlier version made it, which did not note its directory".to_owned());
        };
        // A directory may have the number of one that was removed: the log in it is another then.
        let is_home = |path: &Path| {
            let found = device.stat(path);
            found.is_ok_and(|found| self.header.dir_dev == found.dev && self.header.dir_ino == found.ino)
                && !oldest_in(device, path)
                    .is_ok_and(|oldest| oldest.is_some_and(|oldest| oldest.log_id != self.header.log_id))
        };
        match device.stat(dir) {
            Ok(_) if is_home(dir) => return Home::There,
            Err(error) if !is_absent(&error) => {
                return Home::Unknown(format!("cannot look at {}: {error}", dir.display()));
            }
            _ => {}
        }
        // As `mv` leaves it: the directory, or the store's that it is in, has another name beside.
        let moved = dir.ancestors().take(2).find_map(|place| {
            let below = dir.strip_prefix(place).ok()?;
            let above = place.parent()?;
            let names = device.list(above).unwrap_or_default().into_iter();
            names
                .map(|entry| above.join(entry.name).join(below))
                .find(|path| is_home(path))
        });
        if let Some(moved) = moved {
            return Home::Moved(moved);
        }
        let closest = dir
            .ancestors()
            .skip(1)
            .find_map(|above| Some((above, device.stat(above).ok()?)));
        match closest {
            Some((_, found)) if self.header.dir_dev == found.dev => Home::Gone,
            Some((above, _)) => Home::Unknown(format!(
                "{} is not there, and its file system is not mounted at {}",
                dir.display(),
                above.display()
            )),
            None => Home::Unknown(format!("nothing of {} is there", dir.display())),
        }
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}
