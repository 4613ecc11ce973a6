//! A device whose syncs take longer, to stand for a slower disk.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use collie_io::{Clock, Device, Entry, File, Mapping, OpenMode, RealDevice, Stat};

/// The real device; each sync of a file takes `delay` more. Writes that would be durable by themselves are refused, so
/// that whoever writes syncs.
#[derive(Debug)]
pub(crate) struct SlowSync {
    real: RealDevice,
    delay: Duration,
}

impl SlowSync {
    pub(crate) fn new(delay: Duration) -> Self {
        Self {
            real: RealDevice::new(),
            delay,
        }
    }
}

#[derive(Debug)]
struct SlowFile {
    file: Arc<dyn File>,
    delay: Duration,
}

impl Device for SlowSync {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        if mode == OpenMode::DirectSync {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Arc::new(SlowFile {
            file: self.real.open(path, mode)?,
            delay: self.delay,
        }))
    }
    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.real.stat(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.real.list(dir)
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
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
}

impl File for SlowFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.file.write_at(buf, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        std::thread::sleep(self.delay);
        self.file.sync_data()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.file.allocate(len)
    }
    fn stat(&self) -> io::Result<Stat> {
        self.file.stat()
    }
    fn try_lock(&self) -> io::Result<bool> {
        self.file.try_lock()
    }
    fn map(&self, len: usize) -> io::Result<Mapping> {
        self.file.map(len)
    }
}
