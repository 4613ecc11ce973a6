//! What all files of a volume share: the device, the log, the shadow file.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use collie_io::{Device, Dir};
use collie_log::{Level, Log, LogError, Lsn, Room, Span, Worker};
use parking_lot::{Condvar, Mutex, RwLock};

use crate::FrontError;
use crate::disk::record::{ENTRY, FIXED, FileId, Record};
use crate::disk::shadow::Shadow;

/// The name of the log's holder that keeps records which the map lacks.
const HOLDER: &str = "map";

/// Threads that append at one instant; more take turns. The log has room for a few others.
const APPENDERS: usize = 200;

/// The log's workers: those that no thread appends with, and how many others there are.
#[derive(Debug, Default)]
struct Workers {
    idle: Vec<Worker>,
    busy: usize,
}

/// A directory that is open, so that a sync of its names needs no descriptor.
#[derive(Debug)]
pub(crate) struct Names {
    dir: Arc<dyn Dir>,
    path: PathBuf,
}

/// Shared by a volume and its files.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) device: Arc<dyn Device>,
    /// Where the files are.
    pub(crate) root: PathBuf,
    pub(crate) page_bytes: u32,
    /// `None` once the volume is closed, though files of it may be open.
    log: RwLock<Option<Log>>,
    /// The largest payload of a frame.
    pub(crate) max_payload: usize,
    pub(crate) shadow: Shadow,
    next_id: AtomicU64,
    workers: Mutex<Workers>,
    /// Notified when a worker is idle again.
    is_idle: Condvar,
    /// Directories of which no crash brings a name back that another file has by now.
    settled: Mutex<HashSet<PathBuf>>,
    /// Directories whose own names are durable, as far as files in them need it.
    lasting: Mutex<HashSet<PathBuf>>,
    poison: OnceLock<FrontError>,
}

impl Shared {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        root: PathBuf,
        page_bytes: u32,
        log: Log,
        max_payload: usize,
        shadow: Shadow,
        next_id: FileId,
    ) -> Shared {
        Shared {
            device,
            root,
            page_bytes,
            log: RwLock::new(Some(log)),
            max_payload,
            shadow,
            next_id: AtomicU64::new(next_id),
            workers: Mutex::default(),
            is_idle: Condvar::new(),
            settled: Mutex::default(),
            lasting: Mutex::default(),
            poison: OnceLock::new(),
        }
    }

    /// An id that no other file has had.
    pub(crate) fn new_id(&self) -> FileId {
        // Relaxed: only that it is another one each time matters.
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn next_id(&self) -> FileId {
        self.next_id.load(Ordering::Relaxed)
    }

    /// The number of pages that `len` bytes begin.
    pub(crate) fn pages(&self, len: u64) -> u64 {
        len.div_ceil(u64::from(self.page_bytes))
    }

    /// Where a page begins in its file.
    pub(crate) fn offset(&self, page: u32) -> u64 {
        u64::from(page) * u64::from(self.page_bytes)
    }

    /// Fails where a write or sync failed that all files depend on.
    pub(crate) fn check(&self) -> Result<(), FrontError> {
        match self.poison.get() {
            None => Ok(()),
            Some(cause) => Err(FrontError::Poisoned {
                path: self.root.clone(),
                cause: Box::new(cause.clone()),
            }),
        }
    }

    /// Ends all writes. Returns the failure.
    pub(crate) fn poison(&self, cause: FrontError) -> FrontError {
        let _ = self.poison.set(cause.clone());
        cause
    }

    /// A worker that no other thread appends with.
    fn worker(&self, log: &Log) -> Result<Worker, FrontError> {
        let mut workers = self.workers.lock();
        while workers.idle.is_empty() && workers.busy >= APPENDERS {
            self.is_idle.wait(&mut workers);
        }
        workers.busy += 1;
        if let Some(worker) = workers.idle.pop() {
            return Ok(worker);
        }
        drop(workers);
        log.worker().map_err(|error| {
            self.put_back(None);
            error.into()
        })
    }

    /// Ends an append; the worker, if there was one, is idle.
    fn put_back(&self, worker: Option<Worker>) {
        let mut workers = self.workers.lock();
        workers.busy -= 1;
        workers.idle.extend(worker);
        self.is_idle.notify_one();
    }

    /// Appends a record and waits until it is durable. Where [`Shared::check`] does not fail
    /// afterwards, the record is not in the log.
    pub(crate) fn record(&self, record: &Record) -> Result<Span, FrontError> {
        let payload = record.encode();
        if payload.len() > self.max_payload {
            return Err(FrontError::Mismatch {
                path: self.root.clone(),
                problem: format!(
                    "a record of {} bytes, with the path of its file, is too large for the log's ring, which takes {}",
                    payload.len(),
                    self.max_payload
                ),
            });
        }
        let log = self.log.read();
        let log = log.as_ref().ok_or(LogError::Closed)?;
        let mut worker = self.worker(log)?;
        let kind = record.kind();
        let room = match record {
            Record::Mark => Room::Mark,
            Record::Cut { .. } | Record::Drop { .. } => Room::Relief,
            Record::File { .. } | Record::Commit { .. } => Room::Commit,
        };
        let appended = worker.append_in(room, 0, kind, &payload);
        self.put_back(Some(worker));
        let span = match appended {
            Ok(span) => span,
            Err(error @ (LogError::StorageFull { .. } | LogError::Unprepared { .. })) => {
                return Err(error.into());
            }
            Err(error) => return Err(self.poison(error.into())),
        };
        match log.wait(span.end, Level::Disk) {
            Ok(()) => Ok(span),
            Err(error) => Err(self.poison(error.into())),
        }
    }

    /// Releases the log before `lsn`.
    pub(crate) fn retain(&self, lsn: Lsn) {
        if let Some(log) = &*self.log.read() {
            log.retain(HOLDER, lsn);
        }
    }

    /// Closes the log: from here on nothing can be committed.
    pub(crate) fn close(&self) -> Result<(), FrontError> {
        // Waits for those that append, whose workers are idle then.
        let log = self.log.write().take();
        self.workers.lock().idle.clear();
        match log {
            Some(log) => Ok(log.close()?),
            None => Ok(()),
        }
    }

    /// Opens a directory, so that its names can be synced. Where that fails nothing is at risk: it may
    /// be tried again.
    pub(crate) fn open_names(&self, dir: &Path) -> Result<Names, FrontError> {
        let opened = self.device.open_dir(dir);
        Ok(Names {
            dir: opened.map_err(FrontError::io("open", dir))?,
            path: dir.to_owned(),
        })
    }

    /// Makes the names in an open directory durable. Where that fails it ends all writes: names of
    /// any file in it may be lost, and the next sync would not fail for that.
    pub(crate) fn sync_opened(&self, names: &Names) -> Result<(), FrontError> {
        let synced = names.dir.sync();
        synced.map_err(|e| self.poison(FrontError::io("sync", &names.path)(e)))
    }

    /// Opens a directory and makes its names durable.
    pub(crate) fn sync_names(&self, dir: &Path) -> Result<(), FrontError> {
        self.sync_opened(&self.open_names(dir)?)
    }

    /// Makes the names of a directory and of those above it durable, once: the process that made one may
    /// have died before it did. A call that makes or renames one from here on does it itself.
    pub(crate) fn sync_above(&self, dir: &Path) -> Result<(), FrontError> {
        let mut lasting = self.lasting.lock();
        for dir in dir.ancestors().take_while(|dir| dir.starts_with(&self.root)) {
            if dir == self.root || lasting.contains(dir) {
                break;
            }
            self.sync_names(dir.parent().unwrap_or(&self.root))?;
            lasting.insert(dir.to_owned());
        }
        Ok(())
    }

    /// Called before a record of a file that ends at nothing, though its name may not be durable: a file
    /// that had the name, and still has bytes by another, must have lost it for good. Syncs a
    /// directory once; a process that died may have renamed in it.
    pub(crate) fn settle_names(&self, dir: &Path) -> Result<(), FrontError> {
        // Held: what is renamed meanwhile is not taken for synced.
        let mut settled = self.settled.lock();
        if !settled.contains(dir) {
            self.sync_names(dir)?;
            settled.insert(dir.to_owned());
        }
        Ok(())
    }

    /// A file in this directory, or the directory itself, has another name from here on, which a crash
    /// may take back.
    pub(crate) fn unsettle_names(&self, dir: &Path) {
        self.settled.lock().retain(|settled| !settled.starts_with(dir));
    }

    /// The time, in nanoseconds since the Unix epoch.
    pub(crate) fn now(&self) -> i64 {
        let micros = self.device.clock().wall_us();
        i64::try_from(micros.saturating_mul(1_000)).unwrap_or(i64::MAX)
    }

    /// The end of the log, once the volume is closed as if it were empty.
    pub(crate) fn log_end(&self) -> Lsn {
        self.log.read().as_ref().map_or(0, Log::appended)
    }

    /// Why all writes have ended, if they have.
    pub(crate) fn failure(&self) -> Option<&FrontError> {
        self.poison.get()
    }

    /// Makes the removal of a name durable, and that of the directories above it that were removed
    /// too.
    pub(crate) fn sync_removal(&self, path: &Path) -> Result<(), FrontError> {
        let path = self.root.join(path);
        let dirs = path.ancestors().skip(1);
        for dir in dirs.take_while(|dir| dir.starts_with(&self.root)) {
            match self.open_names(dir) {
                Err(FrontError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                opened => return self.sync_opened(&opened?),
            }
        }
        Ok(())
    }

    /// How many entries a record has room for, beside a path.
    pub(crate) fn entries(&self, path: &Path) -> usize {
        let rest = self.max_payload.saturating_sub(FIXED + path.as_os_str().len());
        (rest / ENTRY).max(1)
    }
}
