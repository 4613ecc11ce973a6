//! A directory of page files: which are open, what is written to them, their names.

mod checkpoint;
mod recovery;

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use collie_io::{Device, File, OpenMode, RealDevice, Stat};
use collie_log::RingMode;
use parking_lot::{Mutex, MutexGuard};

use crate::FrontError;
use crate::file::{Committer, Mapping, PageFile, Scope};
use crate::shared::Shared;

pub use recovery::Recovered;

/// Where a volume keeps what belongs to no file.
pub(crate) const OWN: &str = ".collie";
/// Displaced pages of one file that are drained in one commit.
const DRAINED_AT_ONCE: usize = 256;

/// Options of [`Volume::open`].
#[derive(Debug, Clone)]
pub struct VolumeOptions {
    /// Where files live; the machine's file systems by default.
    pub device: Arc<dyn Device>,
    /// Bytes of a page, a multiple of 512 up to 65,536; fixed when the volume is made. Default
    /// 8,192.
    pub page_bytes: u32,
    /// Pages of the shadow file; its room is taken when the volume is made. Default 131,072: 1 GiB
    /// of pages of 8 KiB.
    pub slots: u32,
    /// Where the log's ring lives.
    pub ring: RingMode,
    /// Size of the log's ring in bytes. Default 32 MiB.
    pub ring_bytes: usize,
    /// Size of the log's segments in bytes. Default 16 MiB.
    pub segment_bytes: u64,
    /// Whether the log has background threads; without them everything happens on callers'
    /// threads: for simulations.
    pub threads: bool,
}

impl Default for VolumeOptions {
    fn default() -> Self {
        Self {
            device: Arc::new(RealDevice::new()),
            page_bytes: 8192,
            slots: 131_072,
            ring: RingMode::default(),
            ring_bytes: 32 << 20,
            segment_bytes: 16 << 20,
            threads: true,
        }
    }
}

/// A file's number on its device.
type FileNumber = (u64, u64);

#[derive(Debug, Default)]
struct Files {
    /// Those that are open or mapped.
    open: HashMap<FileNumber, Arc<PageFile>>,
    /// Mapped ones whose last name was removed, by that name, until that is recorded.
    removed: HashMap<PathBuf, Arc<PageFile>>,
}

/// A directory of files whose pages are written atomically. All threads may use it. Paths are
/// relative to its root.
///
/// Only [`Volume::sync`], [`Volume::commit_all`] and [`Volume::drain`] promise that something
/// survives a power cut, and whatever is named as durable below. Nobody else may write to the
/// directory while a volume is open, or as long as it has displaced pages.
#[derive(Debug)]
pub struct Volume {
    shared: Arc<Shared>,
    files: Mutex<Files>,
    /// Held while the map is written.
    checkpoint: Mutex<()>,
    /// Held while a name is created, removed or changed.
    names: Mutex<()>,
    recovered: Recovered,
    /// Locked while the volume is open.
    _lock: Arc<dyn File>,
}

impl Volume {
    /// What the opening found.
    #[must_use]
    pub fn recovered(&self) -> &Recovered {
        &self.recovered
    }

    /// How many slots of the shadow file are free.
    #[must_use]
    pub fn free_slots(&self) -> u32 {
        self.shared.shadow.free()
    }

    fn path(&self, path: &Path) -> PathBuf {
        self.shared.root.join(path)
    }

    /// Refuses what is not the one spelling of a path below the root, and what is not a file of the
    /// user: records hold paths.
    fn check_path(&self, path: &Path) -> Result<(), FrontError> {
        let mut parts = path.components().peekable();
        let is_own = parts.peek() == Some(&Component::Normal(OWN.as_ref()));
        if !is_own && parts.all(|part| matches!(part, Component::Normal(_))) {
            return Ok(());
        }
        Err(FrontError::Mismatch {
            path: self.path(path),
            problem: format!("the path of a file has no `.` or `..`, begins below the root and not in {OWN}"),
        })
    }

    fn stat(&self, path: &Path) -> Result<Stat, FrontError> {
        let path = self.path(path);
        self.shared
            .device
            .stat(&path)
            .map_err(FrontError::io("stat", &path))
    }

    /// A file that exists.
    ///
    /// # Errors
    /// [`FrontError::Io`] where it does not exist or cannot be opened.
    pub fn file(&self, path: &Path) -> Result<Arc<PageFile>, FrontError> {
        self.check_path(path)?;
        let _names = self.names.lock();
        let stat = self.stat(path)?;
        let mut files = self.files.lock();
        if let Some(file) = files.open.get(&(stat.dev, stat.ino)) {
            let file = Arc::clone(file);
            drop(files);
            if file.is_path_gone() {
                file.rename(&mut file.committer(), path);
            }
            return Ok(file);
        }
        let full = self.path(path);
        let home = self
            .shared
            .device
            .open(&full, OpenMode::ReadWrite)
            .map_err(FrontError::io("open", &full))?;
        let file = self.opened(path, home, &stat);
        files.open.insert((stat.dev, stat.ino), Arc::clone(&file));
        Ok(file)
    }

    fn opened(&self, path: &Path, home: Arc<dyn File>, stat: &Stat) -> Arc<PageFile> {
        let committer = Committer {
            mapping: Mapping::Plain,
            path: path.to_owned(),
            // Who made it before may not have synced its directory.
            is_name_new: true,
            is_unlinked: false,
        };
        let shared = Arc::clone(&self.shared);
        Arc::new(PageFile::open(shared, home, committer, stat.len, []))
    }

    /// A new file without bytes. Its name is durable after its first [`Volume::sync`]. Waits, where
    /// a file of that name was removed, until that is durable.
    ///
    /// # Errors
    /// [`FrontError::Io`] where the name is taken or the file cannot be made.
    pub fn create(&self, path: &Path) -> Result<Arc<PageFile>, FrontError> {
        self.check_path(path)?;
        let _names = self.names.lock();
        // After a failure it is unknown what the log says of a file that had this name.
        self.shared.check()?;
        self.forget(path)?;
        let full = self.path(path);
        let home = self
            .shared
            .device
            .open(&full, OpenMode::CreateNew)
            .map_err(FrontError::io("create", &full))?;
        let stat = home.stat().map_err(FrontError::io("stat", &full))?;
        let file = self.opened(path, home, &stat);
        let mut files = self.files.lock();
        files.open.insert((stat.dev, stat.ino), Arc::clone(&file));
        Ok(file)
    }

    /// Removes a name. Not durable before the directory is synced; the pages of a file whose last
    /// name it was are given back by [`Volume::forget_removed`], or when the name is used again.
    ///
    /// # Errors
    /// [`FrontError::Io`] where it does not exist or cannot be removed.
    pub fn unlink(&self, path: &Path) -> Result<(), FrontError> {
        self.check_path(path)?;
        let _names = self.names.lock();
        let stat = self.stat(path)?;
        let full = self.path(path);
        let number = (stat.dev, stat.ino);
        let remove = || {
            let removed = self.shared.device.remove_file(&full);
            removed.map_err(FrontError::io("remove", &full))
        };
        let open = self.files.lock().open.get(&number).map(Arc::clone);
        let Some(file) = open else {
            return remove();
        };
        let mut committer = file.committer();
        if stat.links > 1 {
            // The record's path may be this one.
            self.unmap(&file, &mut committer)?;
            remove()?;
            file.lost_name(&committer, path);
            return Ok(());
        }
        remove()?;
        committer.is_unlinked = true;
        committer.path = path.to_owned();
        let is_mapped = committer.mapping != Mapping::Plain;
        let mut files = self.files.lock();
        files.open.remove(&number);
        if is_mapped {
            files.removed.insert(path.to_owned(), Arc::clone(&file));
        }
        Ok(())
    }

    /// Gives a file another name, in place of a file that has it. Both are drained before: records
    /// hold paths.
    ///
    /// # Errors
    /// [`FrontError::Io`] where `from` does not exist or cannot be renamed; [`FrontError::Mismatch`]
    /// where one of them is a directory.
    pub fn rename(&self, from: &Path, to: &Path) -> Result<(), FrontError> {
        self.check_path(from)?;
        self.check_path(to)?;
        let _names = self.names.lock();
        self.shared.check()?;
        self.forget(to)?;
        let file = self.open_at(from)?;
        let replaced = self.open_at(to)?;
        let is_same = match (&file, &replaced) {
            (Some((_, file)), Some((_, replaced))) => Arc::ptr_eq(file, replaced),
            _ => false,
        };
        let replaced = replaced.filter(|_| !is_same);
        // Only here two of them are locked, and `names` is held.
        let mut from_committer = match &file {
            Some((_, file)) => Some(self.unmapped(file)?),
            None => None,
        };
        let mut to_committer = match &replaced {
            Some((_, file)) => Some(self.unmapped(file)?),
            None => None,
        };
        let (old, new) = (self.path(from), self.path(to));
        let renamed = self.shared.device.rename(&old, &new);
        renamed.map_err(FrontError::io("rename", &old))?;
        if is_same {
            return Ok(());
        }
        if let (Some((_, file)), Some(committer)) = (&file, &mut from_committer) {
            file.rename(committer, to);
        }
        if let (Some((stat, file)), Some(committer)) = (&replaced, &mut to_committer) {
            if stat.links > 1 {
                file.lost_name(committer, to);
            } else {
                committer.is_unlinked = true;
                self.files.lock().open.remove(&(stat.dev, stat.ino));
            }
        }
        Ok(())
    }

    /// The open file at a path, if it is one. Refuses a directory: records hold the paths of what is
    /// in it.
    fn open_at(&self, path: &Path) -> Result<Option<(Stat, Arc<PageFile>)>, FrontError> {
        let full = self.path(path);
        let stat = match self.shared.device.stat(&full) {
            Ok(stat) => stat,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(FrontError::io("stat", &full)(e)),
        };
        if stat.is_dir() {
            return Err(FrontError::Mismatch {
                path: full,
                problem: "a directory cannot be renamed: the log knows its files by their paths".to_owned(),
            });
        }
        let files = self.files.lock();
        let open = files.open.get(&(stat.dev, stat.ino));
        Ok(open.map(|file| (stat, Arc::clone(file))))
    }

    /// Locks a file that is not mapped then.
    fn unmapped<'f>(&self, file: &'f PageFile) -> Result<MutexGuard<'f, Committer>, FrontError> {
        let mut committer = file.committer();
        self.unmap(file, &mut committer)?;
        Ok(committer)
    }

    /// Brings all pages of a file home, writers beside it or not.
    fn unmap(&self, file: &PageFile, committer: &mut Committer) -> Result<(), FrontError> {
        while committer.mapping != Mapping::Plain {
            if file.drain_as(committer, DRAINED_AT_ONCE)? == 0 && committer.mapping != Mapping::Plain {
                // A displaced page is being written: its new version becomes the committed one.
                file.commit_as(committer, Scope::All)?;
            }
        }
        Ok(())
    }

    /// Records that the file which had this name is gone.
    fn forget(&self, path: &Path) -> Result<(), FrontError> {
        let file = self.files.lock().removed.get(path).map(Arc::clone);
        let Some(file) = file else {
            return Ok(());
        };
        file.forget(&mut file.committer())?;
        self.files.lock().removed.remove(path);
        Ok(())
    }

    /// Makes the removal of names durable and gives back the slots of their pages, of those that
    /// are not open any more. Called in the background; blocks on the device.
    ///
    /// # Errors
    /// What a sync or the log fails with: [`FrontError::Io`], [`FrontError::Log`].
    pub fn forget_removed(&self) -> Result<(), FrontError> {
        loop {
            let _names = self.names.lock();
            let next = self.files.lock().removed.keys().next().cloned();
            match next {
                Some(path) => self.forget(&path)?,
                None => return Ok(()),
            }
        }
    }

    /// Closes a file that no other handle has open, if all of it is at home and synced; otherwise it is
    /// kept.
    pub fn release(&self, file: Arc<PageFile>) {
        let mut files = self.files.lock();
        let is_idle = file
            .committer_if_free()
            .is_some_and(|committer| file.is_idle(&committer));
        if is_idle && Arc::strong_count(&file) == 2 {
            files.open.retain(|_, open| !Arc::ptr_eq(open, &file));
        }
    }

    /// Reads up to `buf.len()` bytes at `offset`; fewer only at the end of the file. Waits for no
    /// sync.
    ///
    /// # Errors
    /// [`FrontError::Io`], and [`FrontError::Corrupt`] where a displaced page is not what was
    /// written.
    pub fn read_at(&self, file: &PageFile, buf: &mut [u8], offset: u64) -> Result<usize, FrontError> {
        file.read_at(buf, offset)
    }

    /// Writes bytes at `offset`. After a crash each page that lies below the committed end is the
    /// one before or the one after, if it was written with one call; where a call writes a part of
    /// a page, the page with that part.
    ///
    /// Does not wait for the device, but where the shadow file is full: then this call drains.
    ///
    /// # Errors
    /// [`FrontError::Io`], [`FrontError::Poisoned`], [`FrontError::ShadowFull`]. What stands before
    /// the page that failed is written.
    pub fn write_at(&self, file: &PageFile, bytes: &[u8], offset: u64) -> Result<(), FrontError> {
        let (mut rest, mut offset) = (bytes, offset);
        loop {
            let (done, error) = match file.write_at(rest, offset) {
                Ok(()) => return Ok(()),
                Err(failed) => failed,
            };
            if !matches!(error, FrontError::ShadowFull { .. }) {
                return Err(error);
            }
            rest = rest.get(done..).unwrap_or_default();
            offset += done as u64;
            self.make_room(error)?;
        }
    }

    /// Brings pages home until a slot was given back. Other writers may have taken it already.
    fn make_room(&self, error: FrontError) -> Result<(), FrontError> {
        let before = self.shared.shadow.given_back();
        let is_made = || self.free_slots() > 0 || self.shared.shadow.given_back() != before;
        self.forget_removed()?;
        let committed = self.commit_all(Scope::Steady);
        let drained = each(&self.open_files(), |file| {
            if is_made() {
                return Ok(());
            }
            self.with_log(|| file.drain(DRAINED_AT_ONCE).map(drop))
        });
        if is_made() {
            return Ok(());
        }
        committed.and(drained).and(Err(error))
    }

    /// Sets a file's length. One below the committed end is durable when this returns, for a file
    /// with displaced pages.
    ///
    /// # Errors
    /// [`FrontError::Io`], [`FrontError::Log`], [`FrontError::Poisoned`].
    pub fn set_len(&self, file: &PageFile, len: u64) -> Result<(), FrontError> {
        loop {
            match self.with_log(|| file.set_len(len)) {
                Err(error @ FrontError::ShadowFull { .. }) => self.make_room(error)?,
                done => return done,
            }
        }
    }

    /// Makes everything that was written to a file durable, its length and its name.
    ///
    /// # Errors
    /// A failed sync is final: [`FrontError::Poisoned`] from then on. A full log is not: the call
    /// may be repeated.
    pub fn sync(&self, file: &PageFile) -> Result<(), FrontError> {
        self.with_log(|| file.commit(Scope::All))
    }

    /// Commits all files.
    ///
    /// # Errors
    /// As [`Volume::sync`], of the first file that fails; the others are committed all the same.
    pub fn commit_all(&self, scope: Scope) -> Result<(), FrontError> {
        each(&self.open_files(), |file| {
            if scope == Scope::Steady && !file.is_dirty() {
                return Ok(());
            }
            self.with_log(|| file.commit(scope))
        })
    }

    /// Brings all displaced pages home that are at rest. Files without any are plain files then.
    ///
    /// # Errors
    /// As [`Volume::sync`], of the first file that fails; the others are drained all the same.
    pub fn drain(&self) -> Result<(), FrontError> {
        each(&self.open_files(), |file| {
            let mut drained = DRAINED_AT_ONCE;
            while drained == DRAINED_AT_ONCE {
                self.with_log(|| {
                    drained = file.drain(DRAINED_AT_ONCE)?;
                    Ok(())
                })?;
            }
            Ok(())
        })
    }

    fn open_files(&self) -> Vec<Arc<PageFile>> {
        self.files.lock().open.values().map(Arc::clone).collect()
    }

    /// Does what appends to the log; where that is full, makes room in it and does it once more.
    fn with_log(&self, mut work: impl FnMut() -> Result<(), FrontError>) -> Result<(), FrontError> {
        match work() {
            Err(FrontError::Log(collie_log::LogError::StorageFull { .. })) => {
                self.checkpoint()?;
                work()
            }
            done => done,
        }
    }

    /// Commits everything, writes the map and closes the log. What has open files keeps them, and
    /// may no longer use them.
    ///
    /// # Errors
    /// As [`Volume::sync`]; the volume is closed in any case, and a later opening recovers.
    pub fn close(self) -> Result<(), FrontError> {
        let committed = self.forget_removed().and(self.commit_all(Scope::All));
        let written = committed.and_then(|()| self.checkpoint());
        written.and(self.shared.close())
    }
}

/// Does `work` with every file, also after one with which it failed: returns the first failure.
fn each(
    files: &[Arc<PageFile>],
    mut work: impl FnMut(&PageFile) -> Result<(), FrontError>,
) -> Result<(), FrontError> {
    let mut done = Ok(());
    for file in files {
        let worked = work(file);
        done = done.and(worked);
    }
    done
}
