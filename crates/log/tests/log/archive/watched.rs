//! The real device, with an observer.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::{fmt, io};

use collie_io::{Clock, Device, Dir, Entry, File, OpenMode, RealDevice, Stat};

type Hook = Box<dyn FnMut(&str, &Path) + Send>;

/// The real device, and an observer that is called around each operation on names.
#[derive(Clone)]
pub(crate) struct Watched {
    device: Arc<RealDevice>,
    hook: Arc<Mutex<Option<Hook>>>,
    /// So many renames find no space.
    pub(crate) full: Arc<AtomicU32>,
}

impl Watched {
    pub(crate) fn new() -> Self {
        Self {
            device: Arc::new(RealDevice::new()),
            hook: Arc::default(),
            full: Arc::default(),
        }
    }

    pub(crate) fn call(&self, hook: impl FnMut(&str, &Path) + Send + 'static) {
        *self.hook.lock().unwrap() = Some(Box::new(hook));
    }

    pub(crate) fn leave(&self) {
        *self.hook.lock().unwrap() = None;
    }

    /// Operations of the hook itself are not watched.
    fn around<T>(&self, op: &str, path: &Path, run: impl FnOnce() -> T) -> T {
        let call = |moment: &str| {
            let taken = self.hook.lock().unwrap().take();
            if let Some(mut hook) = taken {
                hook(moment, path);
                *self.hook.lock().unwrap() = Some(hook);
            }
        };
        call(&format!("before {op}"));
        let done = run();
        call(&format!("after {op}"));
        done
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watched")
    }
}

/// A directory that stays open: its syncs are seen as those by its path.
#[derive(Debug)]
struct WatchedDir(Watched, PathBuf);

impl Dir for WatchedDir {
    fn sync(&self) -> io::Result<()> {
        self.0.sync_dir(&self.1)
    }
}

impl Device for Watched {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.around("open", path, || self.device.open(path, mode))
    }
    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.around("stat", path, || self.device.stat(path))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.around("list", dir, || self.device.list(dir))
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.device.create_dir_all(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let full = self.full.load(Ordering::Relaxed);
        if full > 0 {
            self.full.store(full - 1, Ordering::Relaxed);
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.around("rename", from, || self.device.rename(from, to))
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.around("remove", path, || self.device.remove_file(path))
    }
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.device.remove_dir_all(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.around("sync", dir, || self.device.sync_dir(dir))
    }
    fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn Dir>> {
        Ok(Arc::new(WatchedDir(self.clone(), dir.to_owned())))
    }
    fn boot_id(&self) -> io::Result<[u8; 16]> {
        self.device.boot_id()
    }
    fn random(&self, buf: &mut [u8]) -> io::Result<()> {
        self.device.random(buf)
    }
    fn uid(&self) -> u32 {
        self.device.uid()
    }
    fn clock(&self) -> &dyn Clock {
        self.device.clock()
    }
}
