//! A device whose syncs take longer, to stand for a slower disk, or are left out.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use collie_io::{Clock, Device, Dir, Entry, File, FileKind, FsStat, Mapping, OpenMode, RealDevice, Stat};

/// The real device with other syncs of files.
#[derive(Debug)]
pub struct SyncDevice {
    real: RealDevice,
    syncs: Syncs,
}

/// What a sync is.
#[derive(Debug, Clone, Copy)]
enum Syncs {
    /// It takes so much longer, and so does each write that is durable by itself (past the page cache).
    Longer(Duration),
    /// Nothing: what is written is in the page cache, and outlives the process.
    None,
}

impl SyncDevice {
    /// One whose syncs take `delay` more than the disk's own.
    #[must_use]
    pub fn new(delay: Duration) -> Self {
        Self {
            real: RealDevice::new(),
            syncs: Syncs::Longer(delay),
        }
    }

    /// One that syncs nothing. Writes past the page cache are durable all the same.
    #[must_use]
    pub fn without_syncs() -> Self {
        Self {
            real: RealDevice::new(),
            syncs: Syncs::None,
        }
    }

    fn wrap(&self, file: Arc<dyn File>, mode: OpenMode) -> Arc<dyn File> {
        Arc::new(SyncFile {
            file,
            syncs: self.syncs,
            durable_writes: mode == OpenMode::DirectSync,
        })
    }
}

#[derive(Debug)]
struct SyncFile {
    file: Arc<dyn File>,
    syncs: Syncs,
    /// Whether its writes are syncs, too.
    durable_writes: bool,
}

impl SyncFile {
    fn sync(&self, sync: impl FnOnce(&dyn File) -> io::Result<()>) -> io::Result<()> {
        if let Syncs::Longer(delay) = self.syncs {
            sync(&*self.file)?;
            std::thread::sleep(delay);
        }
        Ok(())
    }
}

impl Device for SyncDevice {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        Ok(self.wrap(self.real.open(path, mode)?, mode))
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
    fn lstat(&self, path: &Path) -> io::Result<Stat> {
        self.real.lstat(path)
    }
    fn open_for_user(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        Ok(self.wrap(self.real.open_for_user(path, mode)?, mode))
    }
    fn read_dir(&self, dir: &Path, each: &mut dyn FnMut(&OsStr, FileKind, u64)) -> io::Result<()> {
        self.real.read_dir(dir, each)
    }
    fn create_node(&self, path: &Path, kind: FileKind, mode: u32) -> io::Result<()> {
        self.real.create_node(path, kind, mode)
    }
    fn create_dir(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.real.create_dir(path, mode)
    }
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.real.remove_dir(path)
    }
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.real.rename_new(from, to)
    }
    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        self.real.symlink(target, link)
    }
    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        self.real.read_link(path)
    }
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.real.hard_link(from, to)
    }
    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.real.set_mode(path, mode)
    }
    fn set_owner(&self, path: &Path, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        self.real.set_owner(path, uid, gid)
    }
    fn set_times(&self, path: &Path, atime: Option<i64>, mtime: Option<i64>) -> io::Result<()> {
        self.real.set_times(path, atime, mtime)
    }
    fn statfs(&self, path: &Path) -> io::Result<FsStat> {
        self.real.statfs(path)
    }
}

impl File for SyncFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let written = self.file.write_at(buf, offset)?;
        if let (true, Syncs::Longer(delay)) = (self.durable_writes, self.syncs) {
            std::thread::sleep(delay);
        }
        Ok(written)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.sync(|file| file.sync_data())
    }
    fn sync_all(&self) -> io::Result<()> {
        self.sync(|file| file.sync_all())
    }
    fn sync_range(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.sync_range(offset, len)
    }
    fn allocate_range(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.allocate_range(offset, len)
    }
    fn set_times(&self, atime: Option<i64>, mtime: Option<i64>) -> io::Result<()> {
        self.file.set_times(atime, mtime)
    }
    fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.file.set_mode(mode)
    }
    fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        self.file.set_owner(uid, gid)
    }
    fn write_out(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.write_out(offset, len)
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

#[cfg(test)]
mod tests {
    use collie_io::{BLOCK, write_all_at};

    use super::*;

    const DELAY: Duration = Duration::from_millis(30);

    /// Whether something takes the delay; a sleep is never shorter than it should be.
    fn is_slow(device: &SyncDevice, work: impl FnOnce()) -> bool {
        let began = device.clock().monotonic();
        work();
        u128::from(device.clock().monotonic() - began) >= DELAY.as_nanos()
    }

    #[test]
    fn a_sync_takes_longer_and_so_does_a_write_that_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let device = SyncDevice::new(DELAY);
        let path = dir.path().join("file");
        let file = device.open(&path, OpenMode::CreateNew).unwrap();
        file.allocate(BLOCK as u64).unwrap();
        assert!(is_slow(&device, || file.sync_data().unwrap()));
        // Not every file system has direct writes.
        let Ok(direct) = device.open(&path, OpenMode::DirectSync) else {
            return;
        };
        let buffer = vec![7; 2 * BLOCK];
        let start = buffer.as_ptr().align_offset(BLOCK);
        let block = &buffer[start..start + BLOCK];
        assert!(is_slow(&device, || write_all_at(&*direct, block, 0).unwrap()));
        assert_eq!(file.read_at(&mut [0; 8], 0).unwrap(), 8);
    }
}
