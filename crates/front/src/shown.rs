//! A directory that is reached by one path and shown by another.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::{Clock, Device, Dir, Entry, File, FileKind, FsStat, OpenMode, Stat};

/// Takes paths below `shown` for what lies below `reached`, so that errors of all layers show
/// where a file is for its users. All other paths are left as they are.
#[derive(Debug)]
pub(crate) struct ShownAs {
    pub(crate) shown: PathBuf,
    pub(crate) reached: PathBuf,
    pub(crate) device: Arc<dyn Device>,
}

impl ShownAs {
    fn at(&self, path: &Path) -> PathBuf {
        match path.strip_prefix(&self.shown) {
            // Not with a slash at the end where nothing follows: of a symbolic link itself.
            Ok(rest) if rest.as_os_str().is_empty() => self.reached.clone(),
            Ok(rest) => self.reached.join(rest),
            Err(_) => path.to_owned(),
        }
    }
}

impl Device for ShownAs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.device.open(&self.at(path), mode)
    }
    fn open_for_user(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.device.open_for_user(&self.at(path), mode)
    }
    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.device.stat(&self.at(path))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.device.list(&self.at(dir))
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.device.create_dir_all(&self.at(dir))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.device.rename(&self.at(from), &self.at(to))
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.device.remove_file(&self.at(path))
    }
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.device.remove_dir_all(&self.at(dir))
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.device.sync_dir(&self.at(dir))
    }
    fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn Dir>> {
        self.device.open_dir(&self.at(dir))
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
    fn lstat(&self, path: &Path) -> io::Result<Stat> {
        self.device.lstat(&self.at(path))
    }
    fn create_dir(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.device.create_dir(&self.at(path), mode)
    }
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.device.remove_dir(&self.at(path))
    }
    fn read_dir(&self, dir: &Path, each: &mut dyn FnMut(&OsStr, FileKind, u64)) -> io::Result<()> {
        self.device.read_dir(&self.at(dir), each)
    }
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.device.rename_new(&self.at(from), &self.at(to))
    }
    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        self.device.symlink(target, &self.at(link))
    }
    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        self.device.read_link(&self.at(path))
    }
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.device.hard_link(&self.at(from), &self.at(to))
    }
    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.device.set_mode(&self.at(path), mode)
    }
    fn set_owner(&self, path: &Path, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        self.device.set_owner(&self.at(path), uid, gid)
    }
    fn set_times(&self, path: &Path, atime: Option<i64>, mtime: Option<i64>) -> io::Result<()> {
        self.device.set_times(&self.at(path), atime, mtime)
    }
    fn statfs(&self, path: &Path) -> io::Result<FsStat> {
        self.device.statfs(&self.at(path))
    }
}
