//! Inodes: with their names, the part of a simulated world that a crash image copies.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::{FileKind, Stat};

use crate::content::{FileData, SECTOR};
use crate::names::NameEffect;
use crate::rng::Rng;

/// Where memory-only files live, as on Linux. A power cut empties it.
pub const VOLATILE_DIR: &str = "/dev/shm";

pub(crate) const ROOT: u64 = 1;
const DISK_DEV: u64 = 0x801;
const VOLATILE_DEV: u64 = 0x1A;
const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const LINK_MODE: u32 = 0o777;
/// Bits of a mode: files run as their owner, or as their group, which new files in such a directory
/// inherit.
const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const GROUP_RUNS: u32 = 0o010;

pub(crate) fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

/// A file, a directory or a symbolic link. All but its body is durable as soon as it is changed.
#[derive(Debug, Clone)]
pub(crate) struct Inode {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) times: Times,
    pub(crate) volatile: bool,
    /// Its names as programs see them, each with its directory.
    pub(crate) names: Vec<(u64, String)>,
    pub(crate) body: Body,
}

#[derive(Debug, Clone)]
pub(crate) enum Body {
    File(FileData),
    Dir(DirData),
    /// What a symbolic link leads to.
    Link(PathBuf),
}

/// Of an inode, in nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) access: i64,
    pub(crate) data: i64,
    pub(crate) status: i64,
}

impl Times {
    /// What it holds has changed.
    pub(crate) fn changed(&mut self, now: i64) {
        (self.data, self.status) = (now, now);
    }
}

/// What is to be made.
#[derive(Debug)]
pub(crate) struct New {
    pub(crate) what: What,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

#[derive(Debug)]
pub(crate) enum What {
    File,
    Dir,
    Link(PathBuf),
}

impl New {
    /// Something of the user of simulated devices, with the usual mode.
    pub(crate) fn private(what: What) -> Self {
        let mode = match what {
            What::File => FILE_MODE,
            What::Dir => DIR_MODE,
            What::Link(_) => LINK_MODE,
        };
        Self {
            what,
            mode,
            uid: UID,
            gid: GID,
        }
    }

    /// A link that leads to `target`.
    pub(crate) fn link(target: &Path) -> io::Result<What> {
        if target.as_os_str().is_empty() {
            return Err(errno(libc::ENOENT));
        }
        Ok(What::Link(target.to_owned()))
    }

    fn inode(self, volatile: bool, now: i64) -> Inode {
        let body = match self.what {
            What::File => Body::File(FileData {
                volatile,
                ..FileData::default()
            }),
            What::Dir => Body::Dir(DirData::default()),
            What::Link(target) => Body::Link(target),
        };
        Inode {
            mode: self.mode & 0o7777,
            uid: self.uid,
            gid: self.gid,
            times: Times {
                access: now,
                data: now,
                status: now,
            },
            volatile,
            names: Vec::new(),
            body,
        }
    }
}

/// A directory's names: as programs see them and as a power cut leaves them for certain.
#[derive(Debug, Clone, Default)]
pub(crate) struct DirData {
    pub(crate) cached: BTreeMap<String, u64>,
    pub(crate) durable: BTreeMap<String, u64>,
}

/// All files and directories.
#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) boot_id: [u8; 16],
    pub(crate) inodes: BTreeMap<u64, Arc<Inode>>,
    /// Changes of names that are not durable, oldest first.
    pub(crate) effects: Vec<NameEffect>,
    pub(crate) next_ino: u64,
    pub(crate) rng: Rng,
    /// The time of the operation under way, in nanoseconds since the Unix epoch.
    pub(crate) now: i64,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut world = Self::plain(seed);
        let dev = world.add_fixed_dir(ROOT, "dev", false);
        world.add_fixed_dir(dev, "shm", true);
        world
    }

    /// A disk with nothing on it, and no memory-only files beside it.
    pub(crate) fn plain(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut boot_id = [0; 16];
        rng.fill(&mut boot_id);
        let mut world = Self {
            boot_id,
            inodes: BTreeMap::new(),
            effects: Vec::new(),
            next_ino: ROOT + 1,
            rng,
            now: 0,
        };
        let root = New::private(What::Dir).inode(false, 0);
        world.inodes.insert(ROOT, Arc::new(root));
        world
    }

    /// A directory that is durable from the start.
    fn add_fixed_dir(&mut self, parent: u64, name: &str, volatile: bool) -> u64 {
        let mut inode = New::private(What::Dir).inode(volatile, self.now);
        inode.names.push((parent, name.to_owned()));
        let ino = self.add(inode);
        if let Ok(dir) = self.dir_mut(parent) {
            dir.cached.insert(name.to_owned(), ino);
            dir.durable.insert(name.to_owned(), ino);
        }
        ino
    }

    fn add(&mut self, inode: Inode) -> u64 {
        let ino = self.next_ino;
        self.next_ino += 1;
        self.inodes.insert(ino, Arc::new(inode));
        ino
    }

    pub(crate) fn inode(&self, ino: u64) -> io::Result<&Inode> {
        self.inodes
            .get(&ino)
            .map(|i| &**i)
            .ok_or_else(|| errno(libc::ESTALE))
    }

    pub(crate) fn inode_mut(&mut self, ino: u64) -> io::Result<&mut Inode> {
        let inode = self.inodes.get_mut(&ino).ok_or_else(|| errno(libc::ESTALE))?;
        Ok(Arc::make_mut(inode))
    }

    pub(crate) fn dir(&self, ino: u64) -> io::Result<&DirData> {
        match &self.inode(ino)?.body {
            Body::Dir(dir) => Ok(dir),
            Body::File(_) | Body::Link(_) => Err(errno(libc::ENOTDIR)),
        }
    }

    pub(crate) fn dir_mut(&mut self, ino: u64) -> io::Result<&mut DirData> {
        match &mut self.inode_mut(ino)?.body {
            Body::Dir(dir) => Ok(dir),
            Body::File(_) | Body::Link(_) => Err(errno(libc::ENOTDIR)),
        }
    }

    pub(crate) fn file(&self, ino: u64) -> io::Result<&FileData> {
        match &self.inode(ino)?.body {
            Body::File(file) => Ok(file),
            Body::Dir(_) => Err(errno(libc::EISDIR)),
            Body::Link(_) => Err(errno(libc::ELOOP)),
        }
    }

    pub(crate) fn file_mut(&mut self, ino: u64) -> io::Result<&mut FileData> {
        match &mut self.inode_mut(ino)?.body {
            Body::File(file) => Ok(file),
            Body::Dir(_) => Err(errno(libc::EISDIR)),
            Body::Link(_) => Err(errno(libc::ELOOP)),
        }
    }

    /// Makes something under a name that nothing has.
    pub(crate) fn create(&mut self, dir: u64, name: String, mut new: New) -> io::Result<u64> {
        let parent = self.inode(dir)?;
        let volatile = parent.volatile;
        if parent.mode & SET_GID != 0 {
            new.gid = parent.gid;
            if matches!(new.what, What::Dir) {
                new.mode |= SET_GID;
            }
        }
        let ino = self.add(new.inode(volatile, self.now));
        self.change(vec![(dir, name, Some(ino))])?;
        Ok(ino)
    }

    /// Gives a file one more name, which nothing has.
    pub(crate) fn link(&mut self, ino: u64, dir: u64, name: String) -> io::Result<()> {
        let inode = self.inode(ino)?;
        if inode.volatile != self.inode(dir)?.volatile {
            return Err(errno(libc::EXDEV));
        }
        if matches!(inode.body, Body::Dir(_)) {
            return Err(errno(libc::EPERM));
        }
        self.change(vec![(dir, name, Some(ino))])
    }

    /// What a symbolic link leads to.
    pub(crate) fn link_target(&self, ino: u64) -> io::Result<PathBuf> {
        match &self.inode(ino)?.body {
            Body::Link(target) => Ok(target.clone()),
            Body::File(_) | Body::Dir(_) => Err(errno(libc::EINVAL)),
        }
    }

    /// Removes an empty directory.
    pub(crate) fn remove_dir(&mut self, dir: u64, name: String) -> io::Result<()> {
        let there = self.dir(dir)?.cached.get(&name).copied();
        let ino = there.ok_or_else(|| errno(libc::ENOENT))?;
        if !self.dir(ino)?.cached.is_empty() {
            return Err(errno(libc::ENOTEMPTY));
        }
        self.change(vec![(dir, name, None)])
    }

    /// Gives an inode other permission bits. They, owners and times are not among what a power cut
    /// takes.
    pub(crate) fn set_mode(&mut self, ino: u64, mode: u32) -> io::Result<()> {
        let now = self.now;
        let inode = self.inode_mut(ino)?;
        (inode.mode, inode.times.status) = (mode & 0o7777, now);
        Ok(())
    }

    /// Gives an inode another owner, another group or both; a file does not run as the new ones.
    pub(crate) fn set_owner(&mut self, ino: u64, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        let now = self.now;
        let inode = self.inode_mut(ino)?;
        let as_it_is = u32::MAX;
        inode.uid = uid.filter(|&id| id != as_it_is).unwrap_or(inode.uid);
        inode.gid = gid.filter(|&id| id != as_it_is).unwrap_or(inode.gid);
        inode.times.status = now;
        if matches!(inode.body, Body::File(_)) {
            inode.mode &= !SET_UID;
            if inode.mode & GROUP_RUNS != 0 {
                inode.mode &= !SET_GID;
            }
        }
        Ok(())
    }

    /// Sets the times of the last access and of the last change of the data, or one of them.
    pub(crate) fn set_times(&mut self, ino: u64, access: Option<i64>, data: Option<i64>) -> io::Result<()> {
        let now = self.now;
        let times = &mut self.inode_mut(ino)?.times;
        times.access = access.unwrap_or(times.access);
        times.data = data.unwrap_or(times.data);
        times.status = now;
        Ok(())
    }

    /// What an inode holds has changed.
    pub(crate) fn touch(&mut self, ino: u64) -> io::Result<()> {
        let now = self.now;
        self.inode_mut(ino)?.times.changed(now);
        Ok(())
    }

    /// Removes a name and returns the inode that had it.
    pub(crate) fn unlink(&mut self, dir: u64, name: String) -> io::Result<u64> {
        let ino = *self
            .dir(dir)?
            .cached
            .get(&name)
            .ok_or_else(|| errno(libc::ENOENT))?;
        self.change(vec![(dir, name, None)])?;
        Ok(ino)
    }

    pub(crate) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (from_dir, from_name) = self.resolve_parent(from)?;
        let (to_dir, to_name) = self.resolve_parent(to)?;
        self.rename_entry((from_dir, from_name), (to_dir, to_name))
    }

    /// Whether a directory is `above` or somewhere below it.
    fn is_within(&self, mut dir: u64, above: u64) -> bool {
        while dir != above {
            let named = self.inodes.get(&dir).and_then(|inode| inode.names.first());
            let Some((parent, _)) = named else { return false };
            dir = *parent;
        }
        true
    }

    /// Renames what has a name in one directory to a name in another.
    pub(crate) fn rename_entry(
        &mut self,
        (from_dir, from_name): (u64, String),
        (to_dir, to_name): (u64, String),
    ) -> io::Result<()> {
        let entry = |dir: u64, name: &str| Ok::<_, io::Error>(self.dir(dir)?.cached.get(name).copied());
        let ino = entry(from_dir, &from_name)?.ok_or_else(|| errno(libc::ENOENT))?;
        let replaced = entry(to_dir, &to_name)?;
        if self.inode(from_dir)?.volatile != self.inode(to_dir)?.volatile {
            return Err(errno(libc::EXDEV));
        }
        if let Some(replaced) = replaced {
            if replaced == ino {
                return Ok(());
            }
            match (&self.inode(ino)?.body, &self.inode(replaced)?.body) {
                (Body::Dir(_), Body::Dir(d)) if !d.cached.is_empty() => return Err(errno(libc::ENOTEMPTY)),
                (Body::Dir(_), Body::File(_) | Body::Link(_)) => return Err(errno(libc::ENOTDIR)),
                (Body::File(_) | Body::Link(_), Body::Dir(_)) => return Err(errno(libc::EISDIR)),
                _ => {}
            }
        }
        if self.is_within(to_dir, ino) {
            return Err(errno(libc::EINVAL));
        }
        self.change(vec![(from_dir, from_name, None), (to_dir, to_name, Some(ino))])
    }

    pub(crate) fn stat(&self, ino: u64) -> io::Result<Stat> {
        let inode = self.inode(ino)?;
        let (kind, len, space) = match &inode.body {
            Body::File(file) => (FileKind::File, file.cached.len(), file.space()),
            Body::Dir(_) => (FileKind::Directory, SECTOR as u64, 0),
            Body::Link(target) => (FileKind::Symlink, target.as_os_str().as_bytes().len() as u64, 0),
        };
        Ok(Stat {
            dev: if inode.volatile { VOLATILE_DEV } else { DISK_DEV },
            ino,
            kind,
            len,
            blocks: space / SECTOR as u64,
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            links: inode.names.len() as u64 + u64::from(ino == ROOT),
            atime: inode.times.access,
            mtime: inode.times.data,
            ctime: inode.times.status,
        })
    }

    /// What kind of thing an inode is.
    pub(crate) fn kind(&self, ino: u64) -> FileKind {
        match self.inodes.get(&ino).map(|inode| &inode.body) {
            Some(Body::File(_)) => FileKind::File,
            Some(Body::Dir(_)) => FileKind::Directory,
            Some(Body::Link(_)) => FileKind::Symlink,
            None => FileKind::Other,
        }
    }

    /// Forgets inodes that neither a name, a possible name nor an open file refers to.
    pub(crate) fn collect(&mut self, is_open: impl Fn(u64) -> bool) {
        let mut live: BTreeSet<u64> = [ROOT].into();
        let possible = self.effects.iter().flat_map(|e| &e.changes);
        live.extend(possible.flat_map(|c| [c.old, c.new]).flatten());
        live.extend(self.inodes.keys().copied().filter(|&ino| is_open(ino)));
        let mut todo: Vec<u64> = live.iter().copied().collect();
        while let Some(ino) = todo.pop() {
            if let Ok(dir) = self.dir(ino) {
                let children = dir.cached.values().chain(dir.durable.values());
                todo.extend(children.filter(|&&child| live.insert(child)));
            }
        }
        self.inodes.retain(|ino, _| live.contains(ino));
    }
}

/// The user and the group that the files of simulated devices belong to at first.
pub(crate) const UID: u32 = 1_000;
pub(crate) const GID: u32 = 1_000;
