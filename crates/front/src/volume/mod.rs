//! A directory of page files: which are open, what is written to them, their names.
//!
//! Rules, each needed by a test:
//!
//! 1. The new length is set before versions are frozen, writers locked out.
//! 2. A commit larger than a frame is several commits, one after another.
//! 3. A failed sync of a directory ends all writes.
//! 4. Only zeros stand behind an end that the log does not have.
//! 5. Pages behind the committed end keep their file mapped.
//! 6. A sync makes the file's name durable, once per opening.
//! 7. A file changes its name only while the log has nothing of it.
//! 8. A removed open file is written in place, once the removal is durable.
//! 9. The background thread commits only whole versions of pages.
//! 10. A page containing the committed end is committed with the next end.
//! 11. A renamed directory is durable before a record uses its path.
//! 12. No file is mapped when the marker is shown.

mod checkpoint;
mod claims;
mod descriptors;
mod names;
mod recovery;
mod status;
mod upkeep;

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use collie_io::{Device, File, RealDevice, Scheduler, Stat};
use collie_log::RingMode;
use parking_lot::Mutex;

use crate::FrontError;
use crate::disk::map::MappedFile;
use crate::disk::record::FileId;
use crate::file::{Committed, PageFile, Scope, Wrote};
use crate::shared::Shared;
use claims::Claims;

pub use names::Existing;
pub use recovery::Recovered;
pub use status::VolumeStatus;

/// Where a volume keeps what belongs to no file.
pub(crate) const OWN: &str = ".collie";
/// Displaced pages of one file that are drained in one commit.
const DRAINED_AT_ONCE: usize = 256;
/// Files that are committed or drained at one time.
const AT_ONCE: usize = 8;

/// What becomes of displaced pages whose file is missing, though its directory is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Missing {
    /// It was removed right before a crash, before that was recorded: its pages are given up. For use of
    /// the files.
    #[default]
    GiveUp,
    /// They are kept, and none of them is home before the file is brought back: for checks, perhaps of a
    /// copy that is not complete.
    Keep,
}

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
    /// Whether the volume and its log have threads; without them everything happens on callers'
    /// threads: for simulations.
    pub threads: bool,
    /// The path by which errors call the volume's directory, where it is reached by another one,
    /// such as `/proc/self/fd/7` of a directory that something is mounted over.
    pub shown_as: Option<PathBuf>,
    /// Whose pages these are, where that is known: a number of the caller's, such as a cluster's.
    /// It is kept in the map. One with displaced pages of another is refused.
    pub identity: Option<NonZeroU64>,
    /// What shows that no page is displaced, where something does: a map with displaced pages
    /// is refused before a file is touched.
    pub plain_by: Option<&'static str>,
    /// What becomes of pages of files that are missing.
    pub missing: Missing,
    /// Decides when background work may begin: what no user waits for. Shared by all that use the device.
    pub scheduler: Arc<Scheduler>,
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
            shown_as: None,
            identity: None,
            plain_by: None,
            missing: Missing::default(),
            scheduler: Arc::default(),
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
    /// Removed and still open, and not known to the log: until the removal is durable, after which
    /// they are written in place.
    orphans: Vec<Arc<PageFile>>,
}

/// A directory of files whose pages are written atomically. All threads may use it. Paths are
/// relative to its root and go through no symbolic links.
///
/// Lock order: `closing`, `moves`, a claim of `names`, `checkpoint`, a file, `files`.
///
/// Only [`Volume::sync`], [`Volume::commit_all`] and [`Volume::drain`] promise that something
/// survives a power cut, and whatever is named as durable below. Nothing else may write to the
/// directory while a volume is open, or as long as it has displaced pages.
#[derive(Debug)]
pub struct Volume {
    shared: Arc<Shared>,
    files: Mutex<Files>,
    /// Held while files are closed for the sake of others.
    closing: Mutex<()>,
    /// Held while the map is written.
    checkpoint: Mutex<()>,
    /// Where the log was when the map was last written.
    checkpointed: AtomicU64,
    /// Held while something is renamed: only then is more than one file locked.
    moves: Mutex<()>,
    /// Names that are opened, created, removed or changed.
    names: Claims,
    recovered: Recovered,
    /// Mapped files that are missing, which the next map has as well; [`VolumeStatus::missing`] counts
    /// those with displaced pages.
    kept: BTreeMap<FileId, MappedFile>,
    /// Whose pages these are, for the next map.
    identity: Mutex<Option<NonZeroU64>>,
    /// Whether work on several files is done by several threads.
    has_threads: bool,
    scheduler: Arc<Scheduler>,
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
        self.check_own(file)?;
        file.read_at(buf, offset)
    }

    /// Writes bytes at `offset`. After a crash each page that lies below the committed end is the
    /// one before or the one after, if it was written with one call; where a call writes a part of
    /// a page, the page with that part. A page behind that end is not there, or it is zeros.
    ///
    /// Does not wait for the device, but where the shadow file is full: then this call drains; and
    /// where a file begins to grow by more than zeros: for a record of the log.
    ///
    /// # Errors
    /// [`FrontError::Io`], [`FrontError::Log`], [`FrontError::Poisoned`],
    /// [`FrontError::ShadowFull`]. What stands before the page that failed is written.
    pub fn write_at(&self, file: &PageFile, bytes: &[u8], offset: u64) -> Result<(), FrontError> {
        self.check_own(file)?;
        let (mut rest, mut offset) = (bytes, offset);
        loop {
            let (done, error) = match file.write_at(rest, offset) {
                Ok(Wrote::Done) => return Ok(()),
                Ok(Wrote::EndUnknown) => {
                    self.until_named(file, PageFile::map)?;
                    continue;
                }
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
        if is_made() {
            return Ok(());
        }
        // Their writers wait for it.
        let _urgent = self.scheduler.urgent();
        let committed = self.commit_all(Scope::Steady);
        let drained = self.each(&self.open_files(), |file| {
            if is_made() {
                return Ok(());
            }
            self.with_log(|| file.drain(0, DRAINED_AT_ONCE)).map(drop)
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
        self.check_own(file)?;
        loop {
            match self.with_log(|| file.set_len(len)) {
                Err(error @ FrontError::ShadowFull { .. }) => self.make_room(error)?,
                done => return done,
            }
        }
    }

    /// Takes room on the device for `len` bytes from `offset` on, so that writes there do not run out
    /// of it as long as their pages are at home. The file grows with zeros where they reach beyond
    /// its end; nothing else of it changes. Not durable before a sync.
    ///
    /// # Errors
    /// [`FrontError::Io`], of the kind `Unsupported` where the file system cannot do that;
    /// [`FrontError::Poisoned`], [`FrontError::ShadowFull`].
    pub fn allocate(&self, file: &PageFile, offset: u64, len: u64) -> Result<(), FrontError> {
        self.check_own(file)?;
        loop {
            match file.allocate(offset, len) {
                Err(error @ FrontError::ShadowFull { .. }) => self.make_room(error)?,
                done => return done,
            }
        }
    }

    /// The attributes of a file, with the length that was written, and the time. A power cut
    /// may take the time of writes that it does not take.
    ///
    /// # Errors
    /// [`FrontError::Io`].
    pub fn stat(&self, file: &PageFile) -> Result<Stat, FrontError> {
        self.check_own(file)?;
        file.stat()
    }

    /// Sets the times of the last access and of the last change, or one of them, in nanoseconds
    /// since the Unix epoch.
    ///
    /// # Errors
    /// [`FrontError::Io`].
    pub fn set_times(
        &self,
        file: &PageFile,
        atime: Option<i64>,
        mtime: Option<i64>,
    ) -> Result<(), FrontError> {
        self.check_own(file)?;
        file.set_times(atime, mtime)
    }

    /// Sets the permission bits, whatever names the file has left.
    ///
    /// # Errors
    /// [`FrontError::Io`].
    pub fn set_mode(&self, file: &PageFile, mode: u32) -> Result<(), FrontError> {
        self.check_own(file)?;
        file.set_mode(mode)
    }

    /// Sets the owner, the group, or both, whatever names the file has left.
    ///
    /// # Errors
    /// [`FrontError::Io`].
    pub fn set_owner(&self, file: &PageFile, uid: Option<u32>, gid: Option<u32>) -> Result<(), FrontError> {
        self.check_own(file)?;
        file.set_owner(uid, gid)
    }

    /// A file of another volume would fill its shadow file, and be waited for here.
    fn check_own(&self, file: &PageFile) -> Result<(), FrontError> {
        if Arc::ptr_eq(&self.shared, file.shared()) {
            return Ok(());
        }
        Err(FrontError::Mismatch {
            path: self.shared.root.join(file.name().path()),
            problem: format!(
                "the file belongs to another volume, {}; use it with that one",
                file.shared().root.display()
            ),
        })
    }

    /// Makes everything that was written to a file durable, its length and its name.
    ///
    /// # Errors
    /// A failed sync is final: [`FrontError::Poisoned`] from then on. A full log is not: the call
    /// may be repeated.
    pub fn sync(&self, file: &PageFile) -> Result<(), FrontError> {
        self.check_own(file)?;
        let _waited_for = self.scheduler.foreground();
        self.commit(file, Scope::All)
    }

    fn commit(&self, file: &PageFile, scope: Scope) -> Result<(), FrontError> {
        self.until_named(file, |file| file.commit(scope))
    }

    /// Does what a name of a file is needed for: by another one, if that of its record is lost.
    fn until_named(
        &self,
        file: &PageFile,
        work: impl Fn(&PageFile) -> Result<Committed, FrontError>,
    ) -> Result<(), FrontError> {
        while self.with_log(|| work(file))? == Committed::Nameless {
            self.find_name(file)?;
        }
        Ok(())
    }

    /// Commits all files. With [`Scope::Steady`] it takes turns with what users wait for.
    ///
    /// # Errors
    /// As [`Volume::sync`], of the first file that fails; the others are committed all the same.
    pub fn commit_all(&self, scope: Scope) -> Result<(), FrontError> {
        let mut files = self.open_files();
        let commit = |file: &PageFile| self.commit(file, scope);
        if scope == Scope::All {
            return self.each(&files, commit);
        }
        files.retain(|file| self.if_open(file).is_some_and(|file| file.is_dirty()));
        let mut done = Ok(());
        for some in files.chunks(AT_ONCE) {
            let _turn = self.scheduler.background();
            done = done.and(self.each(some, commit));
        }
        done
    }

    /// Brings all displaced pages home that are at rest. Files without any are plain files then.
    ///
    /// # Errors
    /// As [`Volume::sync`], of the first file that fails; the others are drained all the same.
    pub fn drain(&self) -> Result<(), FrontError> {
        self.each(&self.open_files(), |file| self.drain_file(file))
    }

    fn drain_file(&self, file: &PageFile) -> Result<(), FrontError> {
        let mut from = Some(0);
        while let Some(page) = from {
            from = self.with_log(|| file.drain(page, DRAINED_AT_ONCE))?;
        }
        Ok(())
    }

    /// Ends the mapping of a file that has no displaced pages.
    fn end_mapping(&self, file: &PageFile) -> Result<(), FrontError> {
        match file.counts() {
            (0, _) => self.drain_file(file),
            _ => Ok(()),
        }
    }

    /// Weak, so that what works with all files keeps few of them open. For [`Volume::if_open`].
    fn open_files(&self) -> Vec<Weak<PageFile>> {
        self.files.lock().open.values().map(Arc::downgrade).collect()
    }

    /// A file, unless it was closed: then there is nothing to be done with it.
    fn if_open(&self, file: &Weak<PageFile>) -> Option<Arc<PageFile>> {
        // Who closes a file counts those that have it with `files` locked.
        let _files = self.files.lock();
        file.upgrade()
    }

    /// Does what appends to the log; where that is full, makes room in it and does it once more.
    fn with_log<T>(&self, mut work: impl FnMut() -> Result<T, FrontError>) -> Result<T, FrontError> {
        match work() {
            Err(FrontError::Log(collie_log::LogError::StorageFull { .. })) => {
                self.checkpoint()?;
                work()
            }
            done => done,
        }
    }

    /// Commits everything, writes the map, in which are files with displaced pages alone, and closes
    /// the log. What has open files keeps them, and may no longer use them.
    ///
    /// # Errors
    /// As [`Volume::sync`]; the volume is closed in any case, and a later opening recovers.
    pub fn close(self) -> Result<(), FrontError> {
        let committed = self.forget_removed().and(self.commit_all(Scope::All));
        // The next one to open it cuts none of them where it ends now: it may grow without a volume.
        let ended = committed.and_then(|()| self.each(&self.open_files(), |file| self.end_mapping(file)));
        let written = ended.and_then(|()| self.checkpoint());
        written.and(self.shared.close())
    }

    /// Does `work` with every file, also after one with which it failed: returns a failure. Several
    /// files at once, whose syncs are shared then.
    fn each(
        &self,
        files: &[Weak<PageFile>],
        work: impl Fn(&PageFile) -> Result<(), FrontError> + Sync,
    ) -> Result<(), FrontError> {
        let threads = if self.has_threads {
            files.len().min(AT_ONCE)
        } else {
            1
        };
        let next = AtomicUsize::new(0);
        let run = || {
            let mut done = Ok(());
            // Relaxed: only that each file is taken once matters.
            while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Some(file) = self.if_open(file) {
                    let worked = work(&file);
                    done = done.and(worked);
                }
            }
            done
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads)
                .filter_map(|_| std::thread::Builder::new().spawn_scoped(scope, run).ok())
                .collect();
            let mut done = run();
            for other in others {
                match other.join() {
                    Ok(worked) => done = done.and(worked),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            done
        })
    }
}

#[cfg(test)]
mod versions;
