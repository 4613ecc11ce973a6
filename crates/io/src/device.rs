//! The seam: what a device can do, in the terms that durability is argued in.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Clock, Entry, FileKind, FsStat, Mapping, Stat};

/// How [`Device::open`] opens a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenMode {
    /// An existing file, for reading only.
    Read,
    /// An existing file, for reading and writing.
    ReadWrite,
    /// A new file (mode 0600, no symbolic link followed), for reading and writing. Fails with
    /// [`io::ErrorKind::AlreadyExists`] where the name is taken.
    CreateNew,
    /// A file for reading and writing, created (mode 0600) where it does not exist.
    OpenOrCreate,
    /// An existing file whose writes bypass the page cache and are durable when they return
    /// (`O_DIRECT | O_DSYNC`). Buffer, offset and length are multiples of [`BLOCK`](crate::BLOCK).
    /// Fails with [`io::ErrorKind::InvalidInput`] where the file system cannot do that.
    DirectSync,
}

/// Names files and directories. All methods may be called from any thread.
///
/// A name that was created, renamed or removed is durable only after [`Device::sync_dir`] of its
/// directory; that holds for directories, hard links and symbolic links as for files. Of a renaming
/// from one directory to another, both are synced.
///
/// What a log or an engine does not use, and a file system's daemon does, has a default that fails
/// with [`io::ErrorKind::Unsupported`].
pub trait Device: fmt::Debug + Send + Sync {
    /// Opens `path`.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>>;
    /// What `path` refers to, following symbolic links.
    fn stat(&self, path: &Path) -> io::Result<Stat>;
    /// The names in `dir`, sorted, without `.` and `..`.
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>>;
    /// Creates `dir` and the parents that it lacks. Each new name is made durable; where it fails,
    /// what it made is removed again: see [`create_dirs`](crate::create_dirs()).
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;
    /// Gives `from` the name `to`, atomically replacing a file, a symbolic link or an empty directory
    /// that has it. A symbolic link is renamed itself.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a name of a file or of a symbolic link.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory and all below it.
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()>;
    /// Makes the names in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Opens `dir` to sync its names, for callers that must not need another descriptor for that
    /// later.
    fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn Dir>>;
    /// Identifies this boot of the machine: what only lived in memory is gone when it changes.
    fn boot_id(&self) -> io::Result<[u8; 16]>;
    /// Fills `buf` with unpredictable bytes (a simulated device: reproducible ones).
    fn random(&self, buf: &mut [u8]) -> io::Result<()>;
    /// The user id that new files belong to.
    fn uid(&self) -> u32;
    /// The clock of this device's world.
    fn clock(&self) -> &dyn Clock;

    /// As [`Device::open`], for a user of this process, who may open many: refused as if too many
    /// were open (see [`is_out_of_descriptors`](crate::is_out_of_descriptors)) while some descriptors
    /// are left, which are for the process's own work. Nothing is created then. A device without such
    /// a limit opens it.
    fn open_for_user(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.open(path, mode)
    }
    /// As [`Device::stat`], but of a symbolic link itself.
    fn lstat(&self, path: &Path) -> io::Result<Stat> {
        Err(unsupported(path))
    }
    /// Creates one directory, whose parent is there, with these permission bits less those that
    /// the process masks. Its name is durable only after a sync of the parent.
    fn create_dir(&self, path: &Path, mode: u32) -> io::Result<()> {
        let _ = mode;
        Err(unsupported(path))
    }
    /// Removes a directory, which must be empty.
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        Err(unsupported(path))
    }
    /// Calls `each` with every name in `dir`, but `.` and `..`, its kind and the file's number, in any
    /// order; names as they are stored.
    fn read_dir(&self, dir: &Path, each: &mut dyn FnMut(&OsStr, FileKind, u64)) -> io::Result<()> {
        let _ = each;
        Err(unsupported(dir))
    }
    /// Creates a pipe or a socket that nothing listens at, with these permission bits less those
    /// that the process masks.
    fn create_node(&self, path: &Path, kind: FileKind, mode: u32) -> io::Result<()> {
        let _ = (kind, mode);
        Err(unsupported(path))
    }
    /// As [`Device::rename`], but fails with [`io::ErrorKind::AlreadyExists`] where anything has the
    /// name `to`.
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        let _ = to;
        Err(unsupported(from))
    }
    /// Makes `link` a symbolic link to `target`, which need not exist. What it leads to is durable
    /// as soon as its name is.
    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        let _ = target;
        Err(unsupported(link))
    }
    /// What a symbolic link leads to, as it was given.
    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        Err(unsupported(path))
    }
    /// Gives the file `from` the name `to` besides. A symbolic link is not followed, a directory is
    /// refused. The new name is durable only after a sync of its directory; the file's data has to
    /// be synced for itself.
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let _ = to;
        Err(unsupported(from))
    }
    /// Sets the permission bits (the lowest twelve of `st_mode`). Refused for a symbolic link
    /// (`EOPNOTSUPP`), which has none of its own.
    ///
    /// What this, [`Device::set_owner`] and [`Device::set_times`] change is durable for certain
    /// after [`File::sync_all`] of the file, or [`Device::sync_dir`] of the directory, and may be so
    /// earlier.
    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        let _ = mode;
        Err(unsupported(path))
    }
    /// Sets the owner, the group, or both; of a symbolic link itself. What becomes of a file's
    /// set-user-id and set-group-id bits is up to the system.
    fn set_owner(&self, path: &Path, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        let _ = (uid, gid);
        Err(unsupported(path))
    }
    /// Sets the times of the last access and of the last change of the data, or one of them, in
    /// nanoseconds since the Unix epoch; of a symbolic link itself.
    fn set_times(&self, path: &Path, atime: Option<i64>, mtime: Option<i64>) -> io::Result<()> {
        let _ = (atime, mtime);
        Err(unsupported(path))
    }
    /// The room on the file system that `path` is on. What others write changes it at any time.
    fn statfs(&self, path: &Path) -> io::Result<FsStat> {
        Err(unsupported(path))
    }
}

fn unsupported(path: &Path) -> io::Error {
    let text = format!("this device cannot do that with {}", path.display());
    io::Error::new(io::ErrorKind::Unsupported, text)
}

/// Whether too many files are open, here or in the system: what is refused for it may succeed when
/// others are closed.
#[must_use]
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// An open directory. All methods may be called from any thread.
pub trait Dir: fmt::Debug + Send + Sync {
    /// Makes the names in it durable, as [`Device::sync_dir`] does.
    fn sync(&self) -> io::Result<()>;
}

/// An open file. All methods may be called from any thread; none moves a shared position.
pub trait File: fmt::Debug + Send + Sync {
    /// Reads up to `buf.len()` bytes at `offset`; 0 at the end of the file. May be short.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes up to `buf.len()` bytes at `offset`. May be short.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize>;
    /// Makes all completed writes, and the length, durable (`fdatasync`). Never call it again after
    /// it failed: see the crate's front page.
    fn sync_data(&self) -> io::Result<()>;
    /// Sets the length; new bytes read as zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Reserves space for `len` bytes from the start, extending the file, so that later writes or
    /// accesses through a mapping cannot run out of it. Fails with [`io::ErrorKind::Unsupported`]
    /// where the file system cannot do that: see [`allocate_or_zero`].
    fn allocate(&self, len: u64) -> io::Result<()>;
    /// The same for `len` bytes from `offset` on: extends the file where they reach beyond its end,
    /// and changes no byte that is there. Neither the length nor the room is durable before a sync.
    fn allocate_range(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Makes all completed writes durable, and all else of the file (`fsync`): its length, mode,
    /// owner and times. Not its name, nor what other files hold. As final as
    /// [`File::sync_data`] when it fails.
    fn sync_all(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Begins to read `len` bytes from `offset` on into the cache, and does not wait for them: a read
    /// of them is to follow. A hint, which may do nothing.
    fn will_need(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }
    /// Lets go of what is in the cache of `len` bytes from `offset` on and need not be written out:
    /// it is not to be read here soon. A hint, which may do nothing.
    fn wont_need(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }
    /// Starts to write out what is in the cache of `len` bytes from `offset` on, so that a later
    /// sync has less to do. Nothing is durable by it. A failure of the device may show here, and is
    /// reported by the next sync as well.
    fn sync_range(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Sets the times of the last access and of the last change of the data, or one of them, in
    /// nanoseconds since the Unix epoch. Durable as what [`Device::set_times`] changes.
    fn set_times(&self, atime: Option<i64>, mtime: Option<i64>) -> io::Result<()> {
        let _ = (atime, mtime);
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Sets the permission bits, as [`Device::set_mode`] does, whatever names the file has left.
    fn set_mode(&self, mode: u32) -> io::Result<()> {
        let _ = mode;
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Sets the owner, the group, or both, as [`Device::set_owner`] does.
    fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        let _ = (uid, gid);
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Writes out what is in the cache of `len` bytes from `offset` on, and waits for it. Nothing is
    /// durable by it: the device may have a cache of its own. A failure is reported here and not by
    /// the next sync, so it is as final as one of [`File::sync_data`].
    fn write_out(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Err(io::ErrorKind::Unsupported.into())
    }
    /// What the open file is.
    fn stat(&self) -> io::Result<Stat>;
    /// Takes the file's exclusive advisory lock, held until the file is closed or the process dies;
    /// `false` where another open file holds it, in this process or in another one, and goes on to
    /// for some moments (a child process that is being started has its parent's open files until it
    /// executes).
    fn try_lock(&self) -> io::Result<bool>;
    /// Maps the first `len` bytes, shared with all mappings of the same file. The file must be at
    /// least that long and stay so.
    fn map(&self, len: usize) -> io::Result<Mapping>;
}

/// Fills `buf` from `offset`, however short the reads are.
///
/// # Errors
/// The file's error, or [`io::ErrorKind::UnexpectedEof`] with the offset where the file ends.
pub fn read_exact_at(file: &dyn File, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buf.is_empty() {
        match file.read_at(buf, offset) {
            Ok(0) => {
                let wanted = buf.len();
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    format!("the file ends at {offset}, {wanted} more bytes were expected"),
                ));
            }
            Ok(n) => {
                buf = buf.get_mut(n..).unwrap_or_default();
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes all of `buf` at `offset`, however short the writes are.
///
/// # Errors
/// The file's error, or [`io::ErrorKind::WriteZero`] where a write makes no progress. How much was
/// written before an error is unknown.
pub fn write_all_at(file: &dyn File, mut buf: &[u8], mut offset: u64) -> io::Result<()> {
    while !buf.is_empty() {
        match file.write_at(buf, offset) {
            Ok(0) => {
                return Err(io::Error::new(
                    io::ErrorKind::WriteZero,
                    format!("no progress writing {} bytes at {offset}", buf.len()),
                ));
            }
            Ok(n) => {
                buf = buf.get(n..).unwrap_or_default();
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Takes room for `len` bytes from the start of a file whose bytes from `from` on are not used yet:
/// by [`File::allocate`] or, where the file system has none, by writing zeros there.
///
/// # Errors
/// The file's error.
pub fn allocate_or_zero(file: &dyn File, from: u64, len: u64) -> io::Result<()> {
    match file.allocate(len) {
        Err(e) if e.kind() == io::ErrorKind::Unsupported => {}
        allocated => return allocated,
    }
    const PIECE: u64 = 1 << 16;
    let zeros = vec![0; PIECE as usize];
    let mut at = from;
    while at < len {
        let n = PIECE.min(len - at);
        let (piece, _) = zeros.split_at(n as usize);
        write_all_at(file, piece, at)?;
        at += n;
    }
    Ok(())
}
