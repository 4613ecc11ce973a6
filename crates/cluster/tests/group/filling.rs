//! A real device that is full below one directory, whenever a test says so: nothing is made there.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use collie_io::{Clock, Device, Dir, Entry, File, OpenMode, RealDevice, Stat};

/// Clones are the same device.
#[derive(Debug, Clone)]
pub(crate) struct Filling {
    real: Arc<RealDevice>,
    full: Arc<Mutex<Option<PathBuf>>>,
}

impl Filling {
    pub(crate) fn new() -> Self {
        Self {
            real: Arc::new(RealDevice::new()),
            full: Arc::default(),
        }
    }

    /// Below this directory nothing has room from now on; below none with `None`.
    pub(crate) fn fill(&self, dir: Option<PathBuf>) {
        *self.full.lock().unwrap() = dir;
    }

    fn check(&self, path: &Path) -> io::Result<()> {
        let full = self.full.lock().unwrap();
        match full.as_ref().is_some_and(|full| path.starts_with(full)) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }
}

impl Device for Filling {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let makes = matches!(mode, OpenMode::CreateNew | OpenMode::OpenOrCreate);
        if makes && self.real.stat(path).is_err() {
            self.check(path)?;
        }
        self.real.open(path, mode)
    }
    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.real.stat(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.real.list(dir)
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.check(dir)?;
        self.real.create_dir_all(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.real.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.real.remove_file(path)
    }
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.real.remove_dir_all(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.real.sync_dir(dir)
    }
    fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn Dir>> {
        self.real.open_dir(dir)
    }
    fn boot_id(&self) -> io::Result<[u8; 16]> {
        self.real.boot_id()
    }
    fn random(&self, buf: &mut [u8]) -> io::Result<()> {
        self.real.random(buf)
    }
    fn uid(&self) -> u32 {
        self.real.uid()
    }
    fn clock(&self) -> &dyn Clock {
        self.real.clock()
    }
    fn create_dir(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.check(path)?;
        self.real.create_dir(path, mode)
    }
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check(to)?;
        self.real.hard_link(from, to)
    }
}
