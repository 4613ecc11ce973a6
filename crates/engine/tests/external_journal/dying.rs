//! A device of a process that dies in the middle: from some operation on, nothing that it is asked
//! for happens.
//!
//! The table library opens its own files. What it writes after the death is as if the process had
//! died a little later, before it reached the device the next time.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use collie_io::{Clock, Device, Dir, Entry, File, Mapping, OpenMode, RealDevice, Stat};

/// Never.
const NEVER: u64 = u64::MAX / 2;

#[derive(Debug, Clone)]
pub(crate) struct Dying {
    real: RealDevice,
    /// Operations that change something until it dies; from 0 on it is dead.
    left: Arc<AtomicU64>,
}

impl Dying {
    pub(crate) fn new() -> Self {
        Self {
            real: RealDevice::new(),
            left: Arc::new(AtomicU64::new(NEVER)),
        }
    }

    /// Dies after so many more operations.
    pub(crate) fn die_after(&self, operations: u64) {
        self.left.store(operations, Ordering::SeqCst);
    }

    pub(crate) fn kill(&self) {
        self.die_after(0);
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }

    fn change(&self) -> io::Result<()> {
        let left = self
            .left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        left.map(drop).map_err(|_| dead())
    }

    fn look(&self) -> io::Result<()> {
        match self.is_dead() {
            true => Err(dead()),
            false => Ok(()),
        }
    }
}

fn dead() -> io::Error {
    io::Error::other("the process is dead")
}

impl Device for Dying {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        match mode {
            OpenMode::Read => self.look()?,
            _ => self.change()?,
        }
        Ok(Arc::new(DyingFile {
            file: self.real.open(path, mode)?,
            device: self.clone(),
        }))
    }
    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.look()?;
        self.real.stat(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.look()?;
        self.real.list(dir)
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.change()?;
        self.real.create_dir_all(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change()?;
        self.real.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.change()?;
        self.real.remove_file(path)
    }
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.change()?;
        self.real.remove_dir_all(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.change()?;
        self.real.sync_dir(dir)
    }
    fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn Dir>> {
        self.look()?;
        self.real.open_dir(dir)
    }
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change()?;
        self.real.hard_link(from, to)
    }
    fn boot_id(&self) -> io::Result<[u8; 16]> {
        self.real.boot_id()
    }
    fn random(&self, out: &mut [u8]) -> io::Result<()> {
        self.real.random(out)
    }
    fn uid(&self) -> u32 {
        self.real.uid()
    }
    fn clock(&self) -> &dyn Clock {
        self.real.clock()
    }
}

#[derive(Debug)]
struct DyingFile {
    file: Arc<dyn File>,
    device: Dying,
}

impl File for DyingFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.device.look()?;
        self.file.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.device.change()?;
        self.file.write_at(buf, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.device.change()?;
        self.file.sync_data()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.device.change()?;
        self.file.set_len(len)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.device.change()?;
        self.file.allocate(len)
    }
    fn stat(&self) -> io::Result<Stat> {
        self.device.look()?;
        self.file.stat()
    }
    fn try_lock(&self) -> io::Result<bool> {
        self.file.try_lock()
    }
    fn map(&self, len: usize) -> io::Result<Mapping> {
        self.device.look()?;
        self.file.map(len)
    }
}
