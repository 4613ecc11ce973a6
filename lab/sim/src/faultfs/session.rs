//! The kernel's side: FUSE requests, and what is answered to them.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use collie_io::{BLOCK, File, FileKind, FsStat};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::disk::{Asked, Disk};
use super::files::{Attributes, Listing, When};
use crate::content::to_usize;
use crate::trace::OpKind;
use crate::world::{New, What, errno};

/// The longest write that the kernel hands over at once; longer ones come in pieces.
const WRITE_MAX: u32 = 1 << 20;
/// Names change through the kernel only.
const NAMES_KEPT: Duration = Duration::from_secs(3600);
/// A write that fails or is short may have changed a file all the same.
const ATTRIBUTES_KEPT: Duration = Duration::ZERO;
const NAME_MAX: u32 = 255;

/// Hands the kernel's requests to a disk.
pub(super) struct Frontend(pub(super) Arc<Disk>);

fn name_of(name: &OsStr) -> io::Result<&str> {
    name.to_str().ok_or_else(|| errno(libc::EINVAL))
}

fn attributes(disk: &Disk, ino: u64) -> io::Result<FileAttr> {
    let stat = disk.stat(ino)?;
    Ok(FileAttr {
        ino: INodeNo(ino),
        size: stat.len,
        blocks: stat.blocks,
        atime: time(stat.atime),
        mtime: time(stat.mtime),
        ctime: time(stat.ctime),
        crtime: UNIX_EPOCH,
        kind: kind(stat.kind),
        perm: u16::try_from(stat.mode).unwrap_or(0o700),
        nlink: u32::try_from(stat.links).unwrap_or(u32::MAX),
        uid: stat.uid,
        gid: stat.gid,
        rdev: 0,
        flags: 0,
        blksize: BLOCK as u32,
    })
}

fn kind(kind: FileKind) -> FileType {
    match kind {
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        _ => FileType::RegularFile,
    }
}

/// The time so many nanoseconds after the Unix epoch, or before it.
fn time(nanos: i64) -> SystemTime {
    let span = Duration::from_nanos(nanos.unsigned_abs());
    let time = match nanos {
        0.. => UNIX_EPOCH.checked_add(span),
        _ => UNIX_EPOCH.checked_sub(span),
    };
    time.unwrap_or(UNIX_EPOCH)
}

fn when(time: TimeOrNow) -> When {
    let nanos = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
    match time {
        TimeOrNow::Now => When::Now,
        TimeOrNow::SpecificTime(time) => When::At(match time.duration_since(UNIX_EPOCH) {
            Ok(after) => nanos(after),
            Err(before) => -nanos(before.duration()),
        }),
    }
}

/// How long the kernel may keep attributes. A directory's change through it alone.
fn kept(attr: &FileAttr) -> &'static Duration {
    match attr.kind {
        FileType::Directory => &NAMES_KEPT,
        _ => &ATTRIBUTES_KEPT,
    }
}

/// Something new of the user who asks for it.
fn made(request: &Request, what: What, mode: u32) -> New {
    New {
        what,
        mode,
        uid: request.uid(),
        gid: request.gid(),
    }
}

fn empty(reply: ReplyEmpty, done: io::Result<()>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error.into()),
    }
}

fn entry(reply: ReplyEntry, found: io::Result<FileAttr>) {
    match found {
        Ok(attr) => reply.entry_with_ttls(kept(&attr), &NAMES_KEPT, &attr, Generation(0)),
        Err(error) => reply.error(error.into()),
    }
}

fn attr(reply: ReplyAttr, found: io::Result<FileAttr>) {
    match found {
        Ok(attr) => reply.attr(kept(&attr), &attr),
        Err(error) => reply.error(error.into()),
    }
}

fn opened(reply: ReplyOpen, handle: io::Result<u64>) {
    match handle {
        Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::FOPEN_KEEP_CACHE),
        Err(error) => reply.error(error.into()),
    }
}

impl Frontend {
    /// Something that a directory's names are asked or changed by.
    fn in_dir(&self, kind: OpKind, dir: INodeNo, name: &OsStr) -> Asked {
        Asked::new(kind, self.0.path(dir.0).join(name))
    }

    /// Something that is done through an open file.
    fn on_file(&self, kind: OpKind, handle: FileHandle) -> Asked {
        let path = self
            .0
            .file(handle.0)
            .map_or_else(|_| PathBuf::new(), |f| f.path.clone());
        Asked::new(kind, path)
    }
}

impl Filesystem for Frontend {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Refused where the kernel's own limit is lower, which is then in force.
        let _ = config.set_max_write(WRITE_MAX);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let look = |disk: &Disk| attributes(disk, disk.lookup(parent.0, name_of(name)?)?);
        let asked = || Asked::new(OpKind::Stat, PathBuf::new());
        self.0.serve(asked, request.pid(), reply, look, entry);
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let asked = || Asked::new(OpKind::Stat, PathBuf::new());
        let look = |disk: &Disk| attributes(disk, ino.0);
        self.0.serve(asked, request.pid(), reply, look, attr);
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let kind = if size.is_some() {
            OpKind::SetLen
        } else {
            OpKind::SetAttributes
        };
        let wanted = Attributes {
            mode,
            uid,
            gid,
            access: atime.map(when),
            data: mtime.map(when),
        };
        let asked = || {
            let mut asked = Asked::new(kind, self.0.path(ino.0));
            asked.offset = size.unwrap_or(0);
            asked
        };
        let set = |disk: &Disk| {
            if let Some(size) = size {
                disk.file_or_open(fh.map(u64::from), ino.0)?.file.set_len(size)?;
            }
            if !wanted.are_none() {
                disk.set_attributes(ino.0, &wanted)?;
            }
            attributes(disk, ino.0)
        };
        self.0.serve(asked, request.pid(), reply, set, attr);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let make = |disk: &Disk| {
            let new = made(request, What::Dir, mode & !umask);
            let ino = disk.create(OpKind::CreateDir, parent.0, name_of(name)?, new)?;
            attributes(disk, ino)
        };
        let asked = || self.in_dir(OpKind::CreateDir, parent, name);
        self.0.serve(asked, request.pid(), reply, make, entry);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let make = |disk: &Disk| {
            let new = made(request, New::link(target)?, 0o777);
            let ino = disk.create(OpKind::Symlink, parent.0, name_of(link_name)?, new)?;
            attributes(disk, ino)
        };
        let asked = || self.in_dir(OpKind::Symlink, parent, link_name);
        self.0.serve(asked, request.pid(), reply, make, entry);
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        let asked = || Asked::new(OpKind::Stat, PathBuf::new());
        let read = |disk: &Disk| disk.link_target(ino.0);
        let answer = |reply: ReplyData, target: io::Result<PathBuf>| match target {
            Ok(target) => reply.data(target.as_os_str().as_bytes()),
            Err(error) => reply.error(error.into()),
        };
        self.0.serve(asked, request.pid(), reply, read, answer);
    }

    fn link(&self, request: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let asked = || Asked {
            to: Some(self.0.path(newparent.0).join(newname)),
            ..Asked::new(OpKind::HardLink, self.0.path(ino.0))
        };
        let link = |disk: &Disk| {
            disk.link(ino.0, newparent.0, name_of(newname)?)?;
            attributes(disk, ino.0)
        };
        self.0.serve(asked, request.pid(), reply, link, entry);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let asked = || self.in_dir(OpKind::RemoveFile, parent, name);
        let remove = |disk: &Disk| disk.unlink(parent.0, name_of(name)?);
        self.0.serve(asked, request.pid(), reply, remove, empty);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let asked = || self.in_dir(OpKind::RemoveDir, parent, name);
        let remove = |disk: &Disk| disk.remove_dir(parent.0, name_of(name)?);
        self.0.serve(asked, request.pid(), reply, remove, empty);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let asked = || Asked {
            to: Some(self.0.path(newparent.0).join(newname)),
            ..self.in_dir(OpKind::Rename, parent, name)
        };
        let rename = |disk: &Disk| {
            if !RenameFlags::RENAME_NOREPLACE.contains(flags) {
                return Err(errno(libc::EINVAL));
            }
            let (from, to) = ((parent.0, name_of(name)?), (newparent.0, name_of(newname)?));
            disk.rename(from, to, flags.is_empty())
        };
        self.0.serve(asked, request.pid(), reply, rename, empty);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let make = |disk: &Disk| {
            let new = made(request, What::File, mode & !umask);
            let ino = disk.create(OpKind::Create, parent.0, name_of(name)?, new)?;
            Ok((attributes(disk, ino)?, disk.open(ino, flags)?))
        };
        let asked = || self.in_dir(OpKind::Create, parent, name);
        let answer = |reply: ReplyCreate, made: io::Result<(FileAttr, u64)>| match made {
            Ok((attr, handle)) => {
                let flags = FopenFlags::FOPEN_KEEP_CACHE;
                reply.created(&ATTRIBUTES_KEPT, &attr, Generation(0), FileHandle(handle), flags);
            }
            Err(error) => reply.error(error.into()),
        };
        self.0.serve(asked, request.pid(), reply, make, answer);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let asked = || Asked::new(OpKind::Open, PathBuf::new());
        let open = |disk: &Disk| disk.open(ino.0, flags.0);
        self.0.serve(asked, request.pid(), reply, open, opened);
    }

    fn read(
        &self,
        request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = |disk: &Disk| {
            let mut buf = vec![0; size as usize];
            let len = disk.file(fh.0)?.file.read_at(&mut buf, offset)?;
            buf.truncate(len);
            Ok(buf)
        };
        let asked = || Asked::new(OpKind::Read, PathBuf::new());
        let answer = |reply: ReplyData, read: io::Result<Vec<u8>>| match read {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error.into()),
        };
        self.0.serve(asked, request.pid(), reply, read, answer);
    }

    fn write(
        &self,
        request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let asked = || {
            let kind = self.0.file(fh.0).map_or(OpKind::Write, |file| file.write_kind());
            let mut asked = self.on_file(kind, fh);
            asked.offset = offset;
            asked
        };
        let write = |disk: &Disk| disk.file(fh.0)?.write(data, offset);
        let answer = |reply: ReplyWrite, written: io::Result<usize>| match written {
            // No longer than what was handed over.
            Ok(len) => reply.written(len as u32),
            Err(error) => reply.error(error.into()),
        };
        self.0.serve(asked, request.pid(), reply, write, answer);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // The kernel does not ask again.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.0.close(fh.0);
        reply.ok();
    }

    fn fsync(&self, request: &Request, _: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        if self.0.file(fh.0).is_ok_and(|file| file.is_owed()) {
            return reply.ok();
        }
        let asked = || self.on_file(OpKind::SyncData, fh);
        let sync = |disk: &Disk| disk.sync(&*disk.file(fh.0)?);
        self.0.serve(asked, request.pid(), reply, sync, empty);
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let asked = || Asked::new(OpKind::List, PathBuf::new());
        let open = |disk: &Disk| disk.open_list(ino.0);
        self.0.serve(asked, request.pid(), reply, open, opened);
    }

    fn readdir(&self, request: &Request, _: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectory) {
        let asked = || Asked::new(OpKind::List, PathBuf::new());
        let read = |disk: &Disk| disk.list(fh.0);
        let answer = move |mut reply: ReplyDirectory, list: io::Result<Listing>| {
            let list = match list {
                Ok(list) => list,
                Err(error) => return reply.error(error.into()),
            };
            for (at, (entry, ino)) in list.iter().enumerate().skip(to_usize(offset)) {
                if reply.add(INodeNo(*ino), at as u64 + 1, kind(entry.kind), &entry.name) {
                    break;
                }
            }
            reply.ok();
        };
        self.0.serve(asked, request.pid(), reply, read, answer);
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.0.close_list(fh.0);
        reply.ok();
    }

    fn fsyncdir(&self, request: &Request, ino: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let asked = || Asked::new(OpKind::SyncDir, self.0.path(ino.0));
        let sync = |disk: &Disk| disk.sync_dir(ino.0);
        self.0.serve(asked, request.pid(), reply, sync, empty);
    }

    fn fallocate(
        &self,
        request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let asked = || self.on_file(OpKind::Allocate, fh);
        let grow = |disk: &Disk| match mode {
            0 => disk.file(fh.0)?.file.allocate_range(offset, length),
            // Holes, and space beyond the end.
            _ => Err(errno(libc::EOPNOTSUPP)),
        };
        self.0.serve(asked, request.pid(), reply, grow, empty);
    }

    fn statfs(&self, request: &Request, _: INodeNo, reply: ReplyStatfs) {
        let asked = || Asked::new(OpKind::Stat, PathBuf::new());
        let answer = |reply: ReplyStatfs, room: io::Result<FsStat>| match room {
            Ok(room) => {
                let unit = BLOCK as u32;
                let (blocks, files) = (
                    (room.blocks, room.free, room.available),
                    (room.files, room.free_files),
                );
                reply.statfs(
                    blocks.0, blocks.1, blocks.2, files.0, files.1, unit, NAME_MAX, unit,
                );
            }
            Err(error) => reply.error(error.into()),
        };
        self.0.serve(asked, request.pid(), reply, Disk::room, answer);
    }
}
