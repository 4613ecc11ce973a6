//! The real device: system calls, nothing more.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{
    self, AtFlags, CWD, FallocateFlags, FlockOperation, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps,
    UTIME_OMIT, Uid,
};
use rustix::io::{DupFlags, Errno};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

use crate::{
    Clock, Device, Dir, DirSteps, Entry, File, FileKind, FsStat, Mapping, OpenMode, RealClock, Stat,
    create_dirs,
};

/// The file systems of this machine.
#[derive(Debug, Default, Clone, Copy)]
pub struct RealDevice {
    clock: RealClock,
}

impl RealDevice {
    /// The file systems of this machine.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

const PRIVATE: Mode = Mode::from_raw_mode(0o600);

/// Descriptors that [`Device::open_for_user`] leaves: the highest numbers, of which no user ever has
/// one. As many as a process with some dozens of threads uses for moments, and no more than a quarter.
const KEPT_BACK: u64 = 96;

fn open_file(path: &Path, mode: OpenMode) -> io::Result<OwnedFd> {
    let flags = match mode {
        OpenMode::Read => OFlags::RDONLY,
        OpenMode::ReadWrite => OFlags::RDWR,
        OpenMode::CreateNew => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW,
        OpenMode::OpenOrCreate => OFlags::RDWR | OFlags::CREATE,
        OpenMode::DirectSync => OFlags::RDWR | OFlags::DIRECT | OFlags::DSYNC,
    };
    Ok(fs::open(path, flags | OFlags::CLOEXEC, PRIVATE)?)
}

impl Device for RealDevice {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let fd = open_file(path, mode)?;
        Ok(Arc::new(RealFile { fd }))
    }

    fn open_for_user(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        // The lowest free number, taken before anything is created.
        let mut fd = fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let users = limit - KEPT_BACK.min(limit / 4);
        if u64::try_from(fd.as_raw_fd()).unwrap_or(0) >= users {
            return Err(Errno::MFILE.into());
        }
        let opened = open_file(path, mode)?;
        rustix::io::dup3(&opened, &mut fd, DupFlags::CLOEXEC)?;
        Ok(Arc::new(RealFile { fd }))
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        Ok(to_stat(&fs::statat(CWD, path, AtFlags::empty())?))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        self.read_dir(dir, &mut |name, kind, _| {
            let name = name.to_string_lossy().into_owned();
            entries.push(Entry { name, kind });
        })?;
        entries.sort();
        Ok(entries)
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        create_dirs(self, dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Ok(fs::rename(from, to)?)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        Ok(fs::unlink(path)?)
    }

    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        std::fs::remove_dir_all(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        Ok(fs::fsync(open_dir(dir)?)?)
    }

    fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn Dir>> {
        Ok(Arc::new(RealDir { fd: open_dir(dir)? }))
    }

    fn boot_id(&self) -> io::Result<[u8; 16]> {
        let file = self.open(Path::new("/proc/sys/kernel/random/boot_id"), OpenMode::Read)?;
        let mut text = [0; 64];
        let len = file.read_at(&mut text, 0)?;
        let mut id = [0; 16];
        let mut digits = text.iter().take(len).filter_map(|&c| char::from(c).to_digit(16));
        for byte in &mut id {
            let (Some(high), Some(low)) = (digits.next(), digits.next()) else {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the kernel's boot id is not a UUID",
                ));
            };
            *byte = u8::try_from(high << 4 | low).unwrap_or_default();
        }
        Ok(id)
    }

    fn random(&self, mut buf: &mut [u8]) -> io::Result<()> {
        while !buf.is_empty() {
            match rustix::rand::getrandom(&mut *buf, rustix::rand::GetRandomFlags::empty()) {
                Ok(n) => buf = buf.get_mut(n..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn uid(&self) -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn lstat(&self, path: &Path) -> io::Result<Stat> {
        Ok(to_stat(&fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    fn create_dir(&self, path: &Path, mode: u32) -> io::Result<()> {
        Ok(fs::mkdir(path, Mode::from_raw_mode(mode & 0o7777))?)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        Ok(fs::rmdir(path)?)
    }

    fn read_dir(&self, dir: &Path, each: &mut dyn FnMut(&OsStr, FileKind, u64)) -> io::Result<()> {
        let fd = open_dir(dir)?;
        for entry in fs::Dir::read_from(&fd)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let kind = match entry.file_type() {
                // Some file systems do not return the type with the name.
                fs::FileType::Unknown => {
                    fs::FileType::from_raw_mode(fs::statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode)
                }
                known => known,
            };
            each(OsStr::from_bytes(name.to_bytes()), to_kind(kind), entry.ino());
        }
        Ok(())
    }

    fn create_node(&self, path: &Path, kind: FileKind, mode: u32) -> io::Result<()> {
        let kind = match kind {
            FileKind::Pipe => fs::FileType::Fifo,
            FileKind::Socket => fs::FileType::Socket,
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        Ok(fs::mknodat(
            CWD,
            path,
            kind,
            Mode::from_raw_mode(mode & 0o7777),
            0,
        )?)
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        Ok(fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
    }

    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        Ok(fs::symlink(target, link)?)
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        let target = fs::readlink(path, Vec::new())?.into_bytes();
        Ok(std::ffi::OsString::from_vec(target).into())
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        Ok(fs::linkat(CWD, from, CWD, to, AtFlags::empty())?)
    }

    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        // By what was looked at, not by its path: another process may put a link in its place.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = fs::open(path, flags, Mode::empty())?;
        if fs::FileType::from_raw_mode(fs::fstat(&found)?.st_mode) == fs::FileType::Symlink {
            return Err(Errno::OPNOTSUPP.into());
        }
        let found = format!("/proc/self/fd/{}", found.as_raw_fd());
        Ok(fs::chmod(found, Mode::from_raw_mode(mode & 0o7777))?)
    }

    fn set_owner(&self, path: &Path, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        let (uid, gid) = to_owner(uid, gid);
        Ok(fs::chownat(CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn set_times(&self, path: &Path, atime: Option<i64>, mtime: Option<i64>) -> io::Result<()> {
        let times = to_timestamps(atime, mtime);
        Ok(fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn statfs(&self, path: &Path) -> io::Result<FsStat> {
        let found = fs::statvfs(path)?;
        Ok(FsStat {
            block_size: found.f_frsize,
            blocks: found.f_blocks,
            free: found.f_bfree,
            available: found.f_bavail,
            files: found.f_files,
            free_files: found.f_ffree,
        })
    }
}

impl DirSteps for RealDevice {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        Ok(fs::mkdir(dir, Mode::from_raw_mode(0o700))?)
    }

    fn is_dir(&self, path: &Path) -> io::Result<bool> {
        Ok(self.stat(path)?.is_dir())
    }

    fn sync_names(&self, dir: &Path) -> io::Result<()> {
        self.sync_dir(dir)
    }

    fn remove_empty_dir(&self, dir: &Path) -> io::Result<()> {
        Ok(fs::rmdir(dir)?)
    }
}

fn open_dir(dir: &Path) -> io::Result<OwnedFd> {
    Ok(fs::open(
        dir,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

fn to_stat(stat: &fs::Stat) -> Stat {
    Stat {
        dev: stat.st_dev,
        ino: stat.st_ino,
        len: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        links: stat.st_nlink,
        kind: to_kind(fs::FileType::from_raw_mode(stat.st_mode)),
        blocks: u64::try_from(stat.st_blocks).unwrap_or(0),
        atime: to_nanos(stat.st_atime, stat.st_atime_nsec),
        mtime: to_nanos(stat.st_mtime, stat.st_mtime_nsec),
        ctime: to_nanos(stat.st_ctime, stat.st_ctime_nsec),
    }
}

fn to_kind(found: fs::FileType) -> FileKind {
    match found {
        fs::FileType::RegularFile => FileKind::File,
        fs::FileType::Directory => FileKind::Directory,
        fs::FileType::Symlink => FileKind::Symlink,
        fs::FileType::Fifo => FileKind::Pipe,
        fs::FileType::Socket => FileKind::Socket,
        _ => FileKind::Other,
    }
}

const SECOND: i64 = 1_000_000_000;

/// Times outside of what 64 bits hold in nanoseconds (1677 to 2262) are taken for the nearest.
fn to_nanos(seconds: i64, nanos: u64) -> i64 {
    let nanos = i64::try_from(nanos).unwrap_or(0);
    seconds.saturating_mul(SECOND).saturating_add(nanos)
}

fn to_timestamps(atime: Option<i64>, mtime: Option<i64>) -> Timestamps {
    Timestamps {
        last_access: to_timespec(atime),
        last_modification: to_timespec(mtime),
    }
}

fn to_timespec(time: Option<i64>) -> Timespec {
    Timespec {
        tv_sec: time.map_or(0, |nanos| nanos.div_euclid(SECOND)),
        tv_nsec: time.map_or(UTIME_OMIT, |nanos| nanos.rem_euclid(SECOND)),
    }
}

/// How often a lock is tried for, and how long apart. A child process that is being started has all
/// of its parent's open files until it executes its program, so a lock can outlive by that moment
/// the file that took it.
const LOCK_TRIES: u32 = 20;
const BETWEEN_LOCK_TRIES: Duration = Duration::from_millis(5);

#[derive(Debug)]
struct RealDir {
    fd: OwnedFd,
}

fn to_owner(uid: Option<u32>, gid: Option<u32>) -> (Option<Uid>, Option<Gid>) {
    // The greatest number is none: the system takes it for "as it is".
    let id = |id: Option<u32>| id.filter(|&id| id != u32::MAX);
    (id(uid).map(Uid::from_raw), id(gid).map(Gid::from_raw))
}

impl Dir for RealDir {
    fn sync(&self) -> io::Result<()> {
        Ok(fs::fsync(&self.fd)?)
    }
}

fn sync_file_range(fd: &OwnedFd, offset: u64, len: u64, flags: u32) -> io::Result<()> {
    let signed = |n: u64| i64::try_from(n).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    let (offset, len) = (signed(offset)?, signed(len)?);
    #[expect(unsafe_code, reason = "system call")]
    // SAFETY: an open descriptor and three numbers.
    match unsafe { libc::sync_file_range(fd.as_raw_fd(), offset, len, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[derive(Debug)]
struct RealFile {
    fd: OwnedFd,
}

impl RealFile {
    fn advise(&self, offset: u64, len: u64, advice: fs::Advice) {
        // None would be all of it.
        if let Some(len) = std::num::NonZeroU64::new(len) {
            let _ = fs::fadvise(&self.fd, offset, Some(len), advice);
        }
    }
}

impl File for RealFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pread(&self.fd, buf, offset)?)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pwrite(&self.fd, buf, offset)?)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(fs::fdatasync(&self.fd)?)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Ok(fs::ftruncate(&self.fd, len)?)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.allocate_range(0, len)
    }

    fn allocate_range(&self, offset: u64, len: u64) -> io::Result<()> {
        Ok(fs::fallocate(&self.fd, FallocateFlags::empty(), offset, len)?)
    }

    fn set_times(&self, atime: Option<i64>, mtime: Option<i64>) -> io::Result<()> {
        Ok(fs::futimens(&self.fd, &to_timestamps(atime, mtime))?)
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(fs::fchmod(&self.fd, Mode::from_raw_mode(mode & 0o7777))?)
    }

    fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        let (uid, gid) = to_owner(uid, gid);
        Ok(fs::fchown(&self.fd, uid, gid)?)
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(fs::fsync(&self.fd)?)
    }

    fn sync_range(&self, offset: u64, len: u64) -> io::Result<()> {
        sync_file_range(&self.fd, offset, len, libc::SYNC_FILE_RANGE_WRITE)
    }

    fn will_need(&self, offset: u64, len: u64) {
        // A file system that does not take the hint reads when it is asked to.
        self.advise(offset, len, fs::Advice::WillNeed);
    }

    fn wont_need(&self, offset: u64, len: u64) {
        // One that does not take it keeps what it has until memory is short.
        self.advise(offset, len, fs::Advice::DontNeed);
    }

    fn write_out(&self, offset: u64, len: u64) -> io::Result<()> {
        let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
            | libc::SYNC_FILE_RANGE_WRITE
            | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        sync_file_range(&self.fd, offset, len, flags)
    }

    fn stat(&self) -> io::Result<Stat> {
        Ok(to_stat(&fs::fstat(&self.fd)?))
    }

    fn try_lock(&self) -> io::Result<bool> {
        for _ in 0..LOCK_TRIES {
            match fs::flock(&self.fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(true),
                Err(Errno::WOULDBLOCK) => std::thread::sleep(BETWEEN_LOCK_TRIES),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(false)
    }

    fn map(&self, len: usize) -> io::Result<Mapping> {
        if self.stat()?.len < len as u64 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a mapping of {len} bytes is longer than its file"),
            ));
        }
        let rw = ProtFlags::READ | ProtFlags::WRITE;
        #[expect(unsafe_code, reason = "system call")]
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing of ours.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, rw, MapFlags::SHARED, &self.fd, 0) }?;
        #[expect(unsafe_code, reason = "hands the fresh mapping to its owner")]
        // SAFETY: mmap gave `len` readable and writable bytes, page-aligned, and nothing else refers
        // to them.
        unsafe {
            Mapping::own(start, len)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{read_exact_at, write_all_at};

    #[test]
    fn what_is_written_is_read_and_listed() {
        let dir = tempfile::tempdir().unwrap();
        let device = RealDevice::new();
        let sub = dir.path().join("a/b");
        device.create_dir_all(&sub).unwrap();
        device.create_dir_all(&sub).unwrap();
        let path = sub.join("f");
        let file = device.open(&path, OpenMode::CreateNew).unwrap();
        assert_eq!(
            device.open(&path, OpenMode::CreateNew).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        write_all_at(&*file, b"0123456789", 5).unwrap();
        file.sync_data().unwrap();
        device.sync_dir(&sub).unwrap();
        let mut buf = [9; 15];
        read_exact_at(&*file, &mut buf, 0).unwrap();
        assert_eq!(&buf, b"\0\0\0\0\x000123456789");
        let past = read_exact_at(&*file, &mut buf, 1).unwrap_err();
        assert_eq!(past.kind(), io::ErrorKind::UnexpectedEof);
        assert!(past.to_string().contains("ends at 15"), "{past}");
        let stat = device.stat(&path).unwrap();
        assert_eq!((stat.len, stat.mode, stat.kind), (15, 0o600, FileKind::File));
        device.rename(&path, &sub.join("g")).unwrap();
        assert_eq!(
            device.list(&sub).unwrap(),
            [Entry {
                name: "g".into(),
                kind: FileKind::File
            }]
        );
        device.remove_file(&sub.join("g")).unwrap();
        assert_eq!(file.stat().unwrap().links, 0);
    }

    #[test]
    fn pipes_and_sockets_are_made_and_any_name_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let device = RealDevice::new();
        let odd = OsStr::from_bytes(b"\xff");
        device
            .create_node(&dir.path().join("p"), FileKind::Pipe, 0o640)
            .unwrap();
        device
            .create_node(&dir.path().join(odd), FileKind::Socket, 0o600)
            .unwrap();
        let refused = device.create_node(&dir.path().join("d"), FileKind::Directory, 0o600);
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let mut found = Vec::new();
        let mut each = |name: &OsStr, kind, ino| found.push((name.to_owned(), kind, ino));
        device.read_dir(dir.path(), &mut each).unwrap();
        found.sort_by_key(|(name, ..)| name.clone());
        let ino = |name: &OsStr| device.lstat(&dir.path().join(name)).unwrap().ino;
        let expected = [
            (OsStr::new("p").to_owned(), FileKind::Pipe, ino(OsStr::new("p"))),
            (odd.to_owned(), FileKind::Socket, ino(odd)),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_lock_excludes_other_open_files_and_goes_with_its_holder() {
        let dir = tempfile::tempdir().unwrap();
        let device = RealDevice::new();
        let path = dir.path().join("LOCK");
        let first = device.open(&path, OpenMode::OpenOrCreate).unwrap();
        let second = device.open(&path, OpenMode::OpenOrCreate).unwrap();
        assert!(first.try_lock().unwrap());
        assert!(!second.try_lock().unwrap());
        drop(first);
        assert!(second.try_lock().unwrap());
    }

    #[test]
    fn a_lock_that_a_starting_child_has_for_a_moment_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let device = RealDevice::new();
        let path = dir.path().join("LOCK");
        // As in a child: the same open file under a second descriptor, closed a moment later.
        let first = RealFile {
            fd: fs::open(&path, OFlags::RDWR | OFlags::CREATE, PRIVATE).unwrap(),
        };
        assert!(first.try_lock().unwrap());
        let inherited = rustix::io::dup(&first.fd).unwrap();
        drop(first);
        let child = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(10));
            drop(inherited);
        });
        let second = device.open(&path, OpenMode::OpenOrCreate).unwrap();
        assert!(second.try_lock().unwrap());
        child.join().unwrap();
    }

    #[test]
    fn mappings_of_one_file_share_their_bytes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let device = RealDevice::new();
        let file = device
            .open(&dir.path().join("ring"), OpenMode::CreateNew)
            .unwrap();
        assert_eq!(file.map(8192).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        file.allocate(8192).unwrap();
        let (a, b) = (file.map(8192).unwrap(), file.map(8192).unwrap());
        #[expect(unsafe_code, reason = "the point of the test")]
        // SAFETY: inside the mapping, and no other thread runs.
        unsafe {
            a.as_ptr().add(4099).write(7);
        }
        #[expect(unsafe_code, reason = "the point of the test")]
        // SAFETY: as above.
        let seen = unsafe { b.as_ptr().add(4099).read() };
        assert_eq!(seen, 7);
        let mut byte = [0];
        read_exact_at(&*file, &mut byte, 4099).unwrap();
        assert_eq!(byte, [7]);
    }

    #[test]
    fn the_boot_id_is_stable_and_random_bytes_differ() {
        let device = RealDevice::new();
        assert_eq!(device.boot_id().unwrap(), device.boot_id().unwrap());
        let (mut a, mut b) = ([0; 16], [0; 16]);
        device.random(&mut a).unwrap();
        device.random(&mut b).unwrap();
        assert_ne!(a, b);
    }
}
