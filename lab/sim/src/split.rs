//! Two devices under one: what lies below one path, and all else.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::{Clock, Device, Dir, Entry, File, FsStat, OpenMode, Stat};

/// Hands each call to the device that its path is on. What has no path is asked of `elsewhere`.
#[derive(Debug, Clone)]
pub struct SplitDevice {
    below: PathBuf,
    there: Arc<dyn Device>,
    elsewhere: Arc<dyn Device>,
}

impl SplitDevice {
    /// `there` has what lies below the path `below`, `elsewhere` the rest.
    #[must_use]
    pub fn new(below: impl Into<PathBuf>, there: Arc<dyn Device>, elsewhere: Arc<dyn Device>) -> Self {
        Self {
            below: below.into(),
            there,
            elsewhere,
        }
    }

    fn side(&self, path: &Path) -> &dyn Device {
        if path.starts_with(&self.below) {
            &*self.there
        } else {
            &*self.elsewhere
        }
    }
}

impl Device for SplitDevice {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.side(path).open(path, mode)
    }
    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.side(path).stat(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.side(dir).list(dir)
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.side(dir).create_dir_all(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.side(from).rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.side(path).remove_file(path)
    }
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.side(dir).remove_dir_all(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.side(dir).sync_dir(dir)
    }
    fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn Dir>> {
        self.side(dir).open_dir(dir)
    }
    fn boot_id(&self) -> io::Result<[u8; 16]> {
        self.elsewhere.boot_id()
    }
    fn random(&self, buf: &mut [u8]) -> io::Result<()> {
        self.elsewhere.random(buf)
    }
    fn uid(&self) -> u32 {
        self.elsewhere.uid()
    }
    fn clock(&self) -> &dyn Clock {
        self.elsewhere.clock()
    }
    fn lstat(&self, path: &Path) -> io::Result<Stat> {
        self.side(path).lstat(path)
    }
    fn create_dir(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.side(path).create_dir(path, mode)
    }
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.side(path).remove_dir(path)
    }
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.side(from).rename_new(from, to)
    }
    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        self.side(link).symlink(target, link)
    }
    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        self.side(path).read_link(path)
    }
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.side(from).hard_link(from, to)
    }
    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.side(path).set_mode(path, mode)
    }
    fn set_owner(&self, path: &Path, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        self.side(path).set_owner(path, uid, gid)
    }
    fn set_times(&self, path: &Path, atime: Option<i64>, mtime: Option<i64>) -> io::Result<()> {
        self.side(path).set_times(path, atime, mtime)
    }
    fn statfs(&self, path: &Path) -> io::Result<FsStat> {
        self.side(path).statfs(path)
    }
}
