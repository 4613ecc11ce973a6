//! The kernel's requests, and what is answered.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use collie_io::{FileKind, Stat};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::attributes::Attributes;
use super::control::{self, Command};
use super::names::{NodeId, ROOT};
use super::tree::{Answer, Created, Found, Tree};
use crate::volume::Existing;

/// The longest write that the kernel hands over at once.
const WRITE_MAX: u32 = 1 << 20;
/// Requests of the kernel's own, such as reading ahead, that it lets wait here.
const BACKGROUND: u16 = 64;
/// Everything changes through the kernel only, so it may cache replies.
const KEPT: Duration = Duration::from_secs(3600);
/// The files of `.collie` change by themselves.
const NOT_KEPT: Duration = Duration::ZERO;
const NAME_MAX: u32 = 255;

/// Answers the kernel. What may wait for the device is done on other threads.
pub(super) struct Session {
    pub(super) tree: Arc<Tree>,
    /// Sent to when the kernel sends nothing more.
    pub(super) ended: Sender<()>,
}

fn file_attr(id: NodeId, stat: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(id),
        size: stat.len,
        blocks: stat.blocks,
        atime: time(stat.atime),
        mtime: time(stat.mtime),
        ctime: time(stat.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(stat.kind),
        perm: u16::try_from(stat.mode).unwrap_or(0),
        nlink: u32::try_from(stat.links).unwrap_or(u32::MAX),
        uid: stat.uid,
        gid: stat.gid,
        rdev: 0,
        flags: 0,
        // What PostgreSQL and others take for the size of a good write.
        blksize: 8192,
    }
}

fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::File => FileType::RegularFile,
        FileKind::Pipe => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        // A device, which the mount does not serve.
        _ => FileType::CharDevice,
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

fn nanos(time: SystemTime) -> i64 {
    let nanos = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => nanos(after),
        Err(before) => -nanos(before.duration()),
    }
}

fn created(request: &Request, mode: u32, umask: u32) -> Created {
    Created {
        mode: mode & !umask & 0o7777,
        uid: request.uid(),
        gid: request.gid(),
    }
}

fn entry(reply: ReplyEntry, found: Answer<Found>) {
    match found {
        Ok(found) => reply.entry(
            &KEPT,
            &file_attr(found.id, &found.stat),
            Generation(found.generation),
        ),
        Err(error) => reply.error(error),
    }
}

fn empty(reply: ReplyEmpty, done: Answer<()>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn data(reply: ReplyData, read: Answer<impl AsRef<[u8]>>) {
    match read {
        Ok(bytes) => reply.data(bytes.as_ref()),
        Err(error) => reply.error(error),
    }
}

impl Session {
    /// Does on another thread what may wait for the device.
    fn later(&self, work: impl FnOnce(&Tree) + Send + 'static) {
        let tree = Arc::clone(&self.tree);
        self.tree.pool.run(move || work(&tree));
    }

    fn now(&self) -> i64 {
        let now = self.tree.device.clock().wall_us().saturating_mul(1000);
        i64::try_from(now).unwrap_or(i64::MAX)
    }

    fn root(&self) -> Answer<Stat> {
        self.tree.attributes(ROOT)
    }

    /// Answers with the attributes of a file that commands are given by.
    fn control_attr(&self, id: NodeId, reply: ReplyAttr) {
        match self.root() {
            Ok(root) => reply.attr(&NOT_KEPT, &file_attr(id, &control::attributes(id, &root))),
            Err(error) => reply.error(error),
        }
    }
}

impl Filesystem for Session {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Each refused where the kernel's own limit is lower, which is then in force.
        let _ = config.set_max_write(WRITE_MAX);
        let _ = config.set_max_background(BACKGROUND);
        let _ = config.add_capabilities(fuser::InitFlags::FUSE_PARALLEL_DIROPS);
        Ok(())
    }

    fn destroy(&mut self) {
        // Fails where nothing waits for it any more.
        let _ = self.ended.send(());
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if let Some(id) = control::find(parent.0, name) {
            return match self.root() {
                Ok(root) => {
                    let attr = file_attr(id, &control::attributes(id, &root));
                    reply.entry(&NOT_KEPT, &attr, Generation(0));
                }
                Err(error) => reply.error(error),
            };
        }
        match self.tree.lookup(parent.0, name) {
            // The number 0 means that there is nothing, which may be cached.
            Err(Errno::ENOENT) => match self.root() {
                Ok(root) => reply.entry(&KEPT, &file_attr(0, &root), Generation(0)),
                Err(error) => reply.error(error),
            },
            found => entry(reply, found),
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, lookups: u64) {
        self.tree.nodes.lock().forget(ino.0, lookups);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        if control::is_control(ino.0) {
            return self.control_attr(ino.0, reply);
        }
        match self.tree.attributes(ino.0) {
            Ok(stat) => reply.attr(&KEPT, &file_attr(ino.0, &stat)),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        _: &Request,
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
        if control::is_control(ino.0) {
            // A shell truncates a file before it writes a command to it.
            return self.control_attr(ino.0, reply);
        }
        let when = |time: TimeOrNow| match time {
            TimeOrNow::Now => self.now(),
            TimeOrNow::SpecificTime(time) => nanos(time),
        };
        let wanted = Attributes {
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            atime: atime.map(when),
            mtime: mtime.map(when),
        };
        let is_size_alone = size.is_some() && mode.is_none() && uid.is_none() && gid.is_none();
        self.later(move |tree| {
            let set = || {
                if let Some(size) = size {
                    tree.set_len(ino.0, fh.map(u64::from), size)?;
                }
                // With a length come the times that the change itself sets.
                if !is_size_alone {
                    tree.set_attributes(ino.0, &wanted)?;
                }
                tree.attributes(ino.0)
            };
            match set() {
                Ok(stat) => reply.attr(&KEPT, &file_attr(ino.0, &stat)),
                Err(error) => reply.error(error),
            }
        });
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        let target = self.tree.read_link(ino.0);
        data(reply, target.map(|target| target.as_os_str().as_bytes().to_vec()));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        let new = created(request, mode, umask);
        let kind = match mode & libc::S_IFMT {
            libc::S_IFIFO => FileKind::Pipe,
            libc::S_IFSOCK => FileKind::Socket,
            libc::S_IFREG | 0 => {
                let made = self
                    .tree
                    .create(parent.0, name, new, libc::O_RDONLY, request.pid());
                let made = made.map(|(found, handle)| {
                    self.tree.close(handle);
                    found
                });
                return entry(reply, made);
            }
            _ => return reply.error(Errno::EPERM),
        };
        let made = self.tree.make(parent.0, name, new, |device, _, full| {
            device.create_node(full, kind, 0o600).map_err(Errno::from)
        });
        entry(reply, made);
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
        let new = created(request, mode, umask);
        let made = self.tree.make(parent.0, name, new, |device, _, full| {
            device.create_dir(full, 0o700).map_err(Errno::from)
        });
        entry(reply, made);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let new = created(request, 0o777, 0);
        let made = self.tree.make(parent.0, link_name, new, |device, path, full| {
            let root = (&*self.tree.root, &*self.tree.shown);
            super::adopt::check_link(device, root, path, target).map_err(|error| {
                tracing::warn!("{error}");
                Errno::EPERM
            })?;
            device.symlink(target, full).map_err(Errno::from)
        });
        entry(reply, made);
    }

    fn link(&self, _: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let newname = newname.to_owned();
        self.later(move |tree| entry(reply, tree.link(ino.0, newparent.0, &newname)));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.later(move |tree| empty(reply, tree.unlink(parent.0, &name)));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        // It waits until the removal of its files is recorded.
        self.later(move |tree| empty(reply, tree.remove_dir(parent.0, &name)));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let existing = if flags.is_empty() {
            Existing::Replace
        } else if flags == RenameFlags::RENAME_NOREPLACE {
            Existing::Keep
        } else {
            return reply.error(Errno::EINVAL);
        };
        let (name, newname) = (name.to_owned(), newname.to_owned());
        self.later(move |tree| {
            let renamed = tree.rename((parent.0, &name), (newparent.0, &newname), existing);
            empty(reply, renamed);
        });
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
        let new = created(request, mode, umask);
        let (name, pid) = (name.to_owned(), request.pid());
        // It waits where the name is one of a file whose removal is not durable yet.
        self.later(move |tree| match tree.create(parent.0, &name, new, flags, pid) {
            Ok((found, handle)) => reply.created(
                &KEPT,
                &file_attr(found.id, &found.stat),
                Generation(found.generation),
                FileHandle(handle),
                FopenFlags::FOPEN_KEEP_CACHE,
            ),
            Err(error) => reply.error(error),
        });
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if control::is_control(ino.0) {
            return reply.opened(FileHandle(ino.0), FopenFlags::FOPEN_DIRECT_IO);
        }
        match self.tree.open(ino.0, flags.0, request.pid()) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::FOPEN_KEEP_CACHE),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if control::is_control(ino.0) {
            let text = self.tree.control.text(&self.tree.volume, ino.0);
            let from = usize::try_from(offset).unwrap_or(usize::MAX);
            let rest = text.as_bytes().get(from..).unwrap_or_default();
            return reply.data(rest.get(..size as usize).unwrap_or(rest));
        }
        let size = size as usize;
        let handle = match self.tree.handle(fh.0) {
            Ok(handle) => handle,
            Err(error) => return reply.error(error),
        };
        let opener = handle.opener;
        if self.tree.reads.takes_turns(opener, size) {
            let tree = Arc::clone(&self.tree);
            let read = move || data(reply, tree.read(&handle, offset, size));
            self.tree.reads.run(opener, size, read);
        } else {
            data(reply, self.tree.read(&handle, offset, size));
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        bytes: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // No longer than what the kernel may hand over.
        let len = bytes.len() as u32;
        if control::is_control(ino.0) {
            let Some(command) = Command::parse(bytes).filter(|_| control::is_command(ino.0)) else {
                return reply.error(Errno::EINVAL);
            };
            return self.later(move |tree| match tree.control.run(&tree.volume, command) {
                Ok(()) => reply.written(len),
                Err(error) => reply.error(super::tree::errno(&error)),
            });
        }
        let written = self.tree.handle(fh.0);
        match written.and_then(|handle| self.tree.write(&handle, offset, bytes)) {
            Ok(()) => reply.written(len),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // The kernel does not ask again: nothing is to be done when a descriptor is closed.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if !control::is_control(ino.0) {
            self.tree.close(fh.0);
        }
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        if control::is_control(ino.0) {
            return reply.ok();
        }
        // A sync belongs to the file, whichever handle it comes by.
        let asked = self.tree.device.clock().monotonic();
        self.later(move |tree| {
            let done = tree.handle(fh.0).and_then(|handle| tree.sync(&handle));
            tree.control.synced(Duration::from_nanos(
                tree.device.clock().monotonic().saturating_sub(asked),
            ));
            empty(reply, done);
        });
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(self.tree.handles.open_listing()), FopenFlags::empty());
    }

    fn readdir(&self, _: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        if control::is_control(ino.0) {
            let from = usize::try_from(offset).unwrap_or(usize::MAX);
            for (at, (name, id)) in control::names().enumerate().skip(from) {
                if reply.add(INodeNo(id), at as u64 + 1, FileType::RegularFile, name) {
                    break;
                }
            }
            return reply.ok();
        }
        // From the start: the names as they are now.
        let listing = match (offset, self.tree.handles.listing(fh.0)) {
            (1.., Some(listing)) => Ok(listing),
            _ => self.tree.list(ino.0),
        };
        let listing = match listing {
            Ok(listing) => listing,
            Err(error) => return reply.error(error),
        };
        self.tree.handles.set_listing(fh.0, &listing);
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, (name, kind, id)) in listing.iter().enumerate().skip(from) {
            if reply.add(INodeNo(*id), at as u64 + 1, file_type(*kind), name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.tree.handles.close_listing(fh.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.later(move |tree| empty(reply, tree.sync_dir(ino.0)));
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.tree.room() {
            Ok(room) => {
                let unit = u32::try_from(room.block_size).unwrap_or(4096);
                reply.statfs(
                    room.blocks,
                    room.free,
                    room.available,
                    room.files,
                    room.free_files,
                    unit,
                    NAME_MAX,
                    unit,
                );
            }
            Err(error) => reply.error(error),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if mode != 0 {
            // Holes, and room beyond the end.
            return reply.error(Errno::EOPNOTSUPP);
        }
        self.later(move |tree| {
            let handle = tree.handle(fh.0);
            empty(
                reply,
                handle.and_then(|handle| tree.allocate(&handle, offset, length)),
            );
        });
    }
}
