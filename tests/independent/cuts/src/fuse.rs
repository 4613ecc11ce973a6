//! The file system that a store's processes see: it fails once where the plan says so, and
//! stops at the cut.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};

use crate::disk::{Dir, Disk, File, Node, ROOT};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Write,
    /// `fdatasync`.
    SyncData,
    /// `fsync`.
    Sync,
    SyncDir,
    Create,
    MakeDir,
    Rename,
    Remove,
    Allocate,
    Truncate,
    Open,
    Read,
    List,
    Look,
}

pub const KINDS: [Kind; 14] = [
    Kind::Write,
    Kind::SyncData,
    Kind::Sync,
    Kind::SyncDir,
    Kind::Create,
    Kind::MakeDir,
    Kind::Rename,
    Kind::Remove,
    Kind::Allocate,
    Kind::Truncate,
    Kind::Open,
    Kind::Read,
    Kind::List,
    Kind::Look,
];

impl Kind {
    /// Whether it changes something or makes it durable.
    fn changes(self) -> bool {
        !matches!(self, Self::Open | Self::Read | Self::List | Self::Look)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    Log,
    Archive,
    Tables,
    Store,
}

pub const CLASSES: [Class; 4] = [Class::Log, Class::Archive, Class::Tables, Class::Store];

fn class(path: &str) -> Class {
    if path.contains("/log/archive") {
        Class::Archive
    } else if path.contains("/log") {
        Class::Log
    } else if path.contains("/families") {
        Class::Tables
    } else {
        Class::Store
    }
}

/// The one failure of a round.
#[derive(Clone, Debug)]
pub struct Fault {
    pub kind: Kind,
    /// On any file where it is not named.
    pub class: Option<Class>,
    /// The how-many-eth such operation fails, from 1 on.
    pub nth: u64,
    pub errno: i32,
}

/// A failure that has happened.
#[derive(Clone, Debug)]
pub struct Fired {
    pub kind: Kind,
    pub class: Class,
    pub path: String,
    pub errno: i32,
    /// The number of the changing operation.
    pub at: u64,
}

pub struct World {
    pub disk: Disk,
    pub fault: Option<Fault>,
    pub fired: Option<Fired>,
    /// The power goes at this changing operation.
    pub cut_at: Option<u64>,
    /// The power goes so many changing operations after the failure.
    pub cut_after: Option<u64>,
    pub cut_seed: u64,
    /// What the cut left.
    pub left: Option<Disk>,
    released: bool,
    pub operations: u64,
    pub counts: BTreeMap<(Kind, Class), u64>,
    matched: u64,
    /// Whether files can be opened past the page cache.
    pub direct: bool,
    /// Syncs of the log's files say that they are done and do nothing: to see that the checks notice.
    pub lies: bool,
    /// The last operations.
    pub trace: Vec<String>,
}

#[derive(Clone)]
pub struct Shared(Arc<(Mutex<World>, Condvar)>);

impl Shared {
    pub fn new(disk: Disk) -> Self {
        let world = World {
            disk,
            fault: None,
            fired: None,
            cut_at: None,
            cut_after: None,
            cut_seed: 0,
            left: None,
            released: false,
            operations: 0,
            counts: BTreeMap::new(),
            matched: 0,
            direct: true,
            lies: false,
            trace: Vec::new(),
        };
        Self(Arc::new((Mutex::new(world), Condvar::new())))
    }

    pub fn world(&self) -> MutexGuard<'_, World> {
        self.0.0.lock().expect("no thread panics with it")
    }

    /// The power goes now, where it has not before.
    pub fn cut(&self) {
        self.world().cut();
    }

    /// Lets what waits since the cut end with an error: no process is left to get it.
    pub fn release(&self) {
        self.world().released = true;
        self.0.1.notify_all();
    }

    /// From here on this failure is to come, and none has come.
    pub fn arm(&self, fault: Option<Fault>) {
        let mut world = self.world();
        world.fault = fault;
        world.fired = None;
        world.matched = 0;
    }

    fn enter(&self, kind: Kind, ino: u64, name: &str) -> Result<MutexGuard<'_, World>, Errno> {
        let mut world = self.world();
        let result = world.enter(kind, ino, name);
        while world.left.is_some() && !world.released {
            world = self.0.1.wait(world).expect("no thread panics with it");
        }
        if world.left.is_some() {
            return Err(Errno::EIO);
        }
        result.map(|()| world)
    }

    pub fn mount(&self, at: &Path) -> std::io::Result<BackgroundSession> {
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("collie-cuts".into())];
        fuser::spawn_mount(Fs(self.clone()), at, &config)
    }
}

impl World {
    pub fn cut(&mut self) {
        if self.left.is_none() {
            self.left = Some(self.disk.cut(self.cut_seed));
            self.note("--- the power goes".into());
        }
    }

    fn note(&mut self, line: String) {
        if self.trace.len() >= 3000 {
            self.trace.drain(..1000);
        }
        self.trace.push(line);
    }

    fn enter(&mut self, kind: Kind, ino: u64, name: &str) -> Result<(), Errno> {
        if self.left.is_some() {
            return Ok(());
        }
        let mut path = self.disk.path(ino).to_owned();
        if !name.is_empty() {
            path = format!("{path}/{name}");
        }
        if kind.changes() {
            self.operations += 1;
            self.disk.breathe();
            let after = self.fired.as_ref().zip(self.cut_after);
            if self.cut_at.is_some_and(|at| self.operations >= at)
                || after.is_some_and(|(fired, after)| self.operations > fired.at + after)
            {
                self.note(format!("{} before {kind:?} {path}", self.operations));
                self.cut();
                return Ok(());
            }
        }
        let class = class(&path);
        *self.counts.entry((kind, class)).or_default() += 1;
        let armed = self
            .fault
            .as_ref()
            .filter(|_| self.fired.is_none())
            .filter(|fault| fault.kind == kind && fault.class.is_none_or(|wanted| wanted == class));
        if let Some(fault) = armed {
            self.matched += 1;
            if self.matched == fault.nth {
                let errno = fault.errno;
                self.note(format!("{} FAILS {kind:?} {path} errno {errno}", self.operations));
                let at = self.operations;
                self.fired = Some(Fired {
                    kind,
                    class,
                    path,
                    errno,
                    at,
                });
                return Err(Errno::from_i32(errno));
            }
        }
        if kind.changes() {
            self.note(format!("{} {kind:?} {path}", self.operations));
        }
        Ok(())
    }

    fn attr(&mut self, ino: u64) -> Option<FileAttr> {
        let inode = self.disk.inodes.get(&ino)?;
        let (kind, size, perm) = match &inode.node {
            Node::File(file) => (FileType::RegularFile, file.live.len() as u64, 0o600),
            Node::Dir(_) => (FileType::Directory, 4096, 0o700),
        };
        Some(FileAttr {
            ino: INodeNo(ino),
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: inode.names,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

struct Fs(Shared);

const SHORT: Duration = Duration::ZERO;

/// Answers with the error of what is tried.
macro_rules! or_error {
    ($reply:ident, $tried:expr) => {
        match $tried {
            Ok(done) => done,
            Err(error) => return $reply.error(error),
        }
    };
}

fn text(name: &OsStr) -> Result<&str, Errno> {
    name.to_str().ok_or(Errno::EINVAL)
}

impl Filesystem for Fs {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = or_error!(reply, text(name));
        let mut world = or_error!(reply, self.0.enter(Kind::Look, parent.0, name));
        let found = world.disk.child(parent.0, name);
        match found.and_then(|ino| world.attr(ino)) {
            Some(attr) => reply.entry(&SHORT, &attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let mut world = or_error!(reply, self.0.enter(Kind::Look, ino.0, ""));
        match world.attr(ino.0) {
            Some(attr) => reply.attr(&SHORT, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let kind = if size.is_some() {
            Kind::Truncate
        } else {
            Kind::Look
        };
        let mut world = or_error!(reply, self.0.enter(kind, ino.0, ""));
        if let (Some(size), Some(file)) = (size, world.disk.file(ino.0)) {
            file.set_len(size as usize);
        }
        match world.attr(ino.0) {
            Some(attr) => reply.attr(&SHORT, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        let name = or_error!(reply, text(name));
        let mut world = or_error!(reply, self.0.enter(Kind::MakeDir, parent.0, name));
        if world.disk.child(parent.0, name).is_some() {
            return reply.error(Errno::EEXIST);
        }
        let ino = world.disk.create(parent.0, name, Node::Dir(Dir::default()));
        match world.attr(ino) {
            Some(attr) => reply.entry(&SHORT, &attr, Generation(0)),
            None => reply.error(Errno::EIO),
        }
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = or_error!(reply, text(name));
        let mut world = or_error!(reply, self.0.enter(Kind::Remove, parent.0, name));
        world.disk.remove(parent.0, name);
        reply.ok();
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = or_error!(reply, text(name));
        let mut world = or_error!(reply, self.0.enter(Kind::Remove, parent.0, name));
        let ino = world.disk.child(parent.0, name).unwrap_or_default();
        match world.disk.dir(ino) {
            Some(dir) if dir.live.is_empty() => {}
            Some(_) => return reply.error(Errno::ENOTEMPTY),
            None => return reply.error(Errno::ENOENT),
        }
        world.disk.remove(parent.0, name);
        reply.ok();
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
        let (name, newname) = (or_error!(reply, text(name)), or_error!(reply, text(newname)));
        let mut world = or_error!(reply, self.0.enter(Kind::Rename, newparent.0, newname));
        match flags {
            RenameFlags::RENAME_NOREPLACE if world.disk.child(newparent.0, newname).is_some() => {
                return reply.error(Errno::EEXIST);
            }
            flags if flags.is_empty() || flags == RenameFlags::RENAME_NOREPLACE => {}
            _ => return reply.error(Errno::EINVAL),
        }
        world.disk.rename((parent.0, name), (newparent.0, newname));
        reply.ok();
    }

    fn create(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        let name = or_error!(reply, text(name));
        let mut world = or_error!(reply, self.0.enter(Kind::Create, parent.0, name));
        let ino = match world.disk.child(parent.0, name) {
            Some(ino) => ino,
            None => world.disk.create(parent.0, name, Node::File(File::default())),
        };
        match world.attr(ino) {
            Some(attr) => reply.created(&SHORT, &attr, Generation(0), FileHandle(ino), FopenFlags::empty()),
            None => reply.error(Errno::EIO),
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let world = or_error!(reply, self.0.enter(Kind::Open, ino.0, ""));
        if flags.0 & libc::O_DIRECT != 0 && !world.direct {
            return reply.error(Errno::EINVAL);
        }
        reply.opened(FileHandle(ino.0), FopenFlags::empty());
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let _world = or_error!(reply, self.0.enter(Kind::Open, ino.0, ""));
        reply.opened(FileHandle(ino.0), FopenFlags::empty());
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut world = or_error!(reply, self.0.enter(Kind::Read, ino.0, ""));
        let Some(file) = world.disk.file(ino.0) else {
            return reply.error(Errno::EISDIR);
        };
        let len = file.live.len();
        let from = (offset as usize).min(len);
        reply.data(&file.live[from..(from + size as usize).min(len)]);
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut world = match self.0.enter(Kind::Write, ino.0, "") {
            Ok(world) => world,
            Err(error) => {
                // Some of it may be there all the same.
                let mut world = self.0.world();
                let part = world.operations as usize * 512 % (data.len() + 1);
                if world.left.is_none()
                    && let Some(file) = world.disk.file(ino.0)
                {
                    file.write(offset as usize, &data[..part]);
                }
                return reply.error(error);
            }
        };
        let Some(file) = world.disk.file(ino.0) else {
            return reply.error(Errno::EISDIR);
        };
        file.write(offset as usize, data);
        reply.written(data.len() as u32);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, datasync: bool, reply: ReplyEmpty) {
        let kind = if datasync { Kind::SyncData } else { Kind::Sync };
        let mut world = match self.0.enter(kind, ino.0, "") {
            Ok(world) => world,
            Err(error) => {
                self.0.world().disk.fail_sync_file(ino.0);
                return reply.error(error);
            }
        };
        if !(world.lies && class(world.disk.path(ino.0)) == Class::Log) {
            world.disk.sync_file(ino.0);
        }
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let mut world = match self.0.enter(Kind::SyncDir, ino.0, "") {
            Ok(world) => world,
            Err(error) => {
                self.0.world().disk.fail_sync_dir(ino.0);
                return reply.error(error);
            }
        };
        world.disk.sync_dir(ino.0);
        reply.ok();
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let mut world = or_error!(reply, self.0.enter(Kind::List, ino.0, ""));
        // Offsets stay true while names are removed: an entry's is its inode's number.
        let mut all: Vec<(u64, String)> = match world.disk.dir(ino.0) {
            Some(dir) => dir.live.iter().map(|(name, ino)| (*ino, name.clone())).collect(),
            None => return reply.error(Errno::ENOTDIR),
        };
        all.sort();
        for (child, name) in all {
            let kind = match world.disk.file(child) {
                Some(_) => FileType::RegularFile,
                None => FileType::Directory,
            };
            if child > offset && reply.add(INodeNo(child), child, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(1 << 22, 1 << 21, 1 << 21, 1 << 20, 1 << 20, 4096, 255, 4096);
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mut world = or_error!(reply, self.0.enter(Kind::Allocate, ino.0, ""));
        if mode & !libc::FALLOC_FL_KEEP_SIZE != 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        if mode == 0
            && let Some(file) = world.disk.file(ino.0)
            && (file.live.len() as u64) < offset + length
        {
            file.set_len((offset + length) as usize);
        }
        reply.ok();
    }
}

/// The root's number, which FUSE wants to be 1.
const _: () = assert!(ROOT == INodeNo::ROOT.0);
