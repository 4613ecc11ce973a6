//! Inodes and names: the part of a simulated world that a crash image copies.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use collie_io::Stat;

use crate::content::FileData;
use crate::rng::Rng;

/// Where memory-only files live, as on Linux. A power cut empties it.
pub const VOLATILE_DIR: &str = "/dev/shm";

pub(crate) const ROOT: u64 = 1;
const DISK_DEV: u64 = 0x801;
const VOLATILE_DEV: u64 = 0x1A;
const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

pub(crate) fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

#[derive(Debug, Clone)]
pub(crate) struct Inode {
    pub(crate) mode: u32,
    pub(crate) volatile: bool,
    pub(crate) body: Body,
}

#[derive(Debug, Clone)]
pub(crate) enum Body {
    File(FileData),
    Dir(DirData),
}

/// A directory's names: as programs see them and as a power cut leaves them for certain.
#[derive(Debug, Clone, Default)]
pub(crate) struct DirData {
    pub(crate) cached: BTreeMap<String, u64>,
    pub(crate) durable: BTreeMap<String, u64>,
}

/// One name's change within a [`NameEffect`].
#[derive(Debug, Clone)]
pub(crate) struct NameChange {
    pub(crate) dir: u64,
    pub(crate) name: String,
    /// The inode that had the name before.
    old: Option<u64>,
    /// The inode that has it now.
    new: Option<u64>,
}

/// A creation, renaming or removal whose durability is open: it is kept or lost as a whole.
#[derive(Debug, Clone)]
pub(crate) struct NameEffect {
    pub(crate) changes: Vec<NameChange>,
    /// The directories that must be synced before it is durable for certain.
    unsynced: BTreeSet<u64>,
    /// A sync of its directory failed: no later one makes it durable for certain.
    stuck: bool,
}

impl NameEffect {
    /// Whether it is a renaming from one directory to another.
    pub(crate) fn is_between_directories(&self) -> bool {
        let mut dirs = self.changes.iter().map(|change| change.dir);
        let first = dirs.next();
        dirs.any(|dir| Some(dir) != first)
    }

    /// The names that it adds, without those that it takes away.
    pub(crate) fn additions(&self) -> Self {
        let mut additions = self.clone();
        additions.changes.retain(|change| change.new.is_some());
        additions
    }
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
        };
        world.inodes.insert(ROOT, Arc::new(new_dir(false)));
        world
    }

    /// A directory that is durable from the start.
    fn add_fixed_dir(&mut self, parent: u64, name: &str, volatile: bool) -> u64 {
        let ino = self.add(new_dir(volatile));
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

    fn inode_mut(&mut self, ino: u64) -> io::Result<&mut Inode> {
        let inode = self.inodes.get_mut(&ino).ok_or_else(|| errno(libc::ESTALE))?;
        Ok(Arc::make_mut(inode))
    }

    pub(crate) fn dir(&self, ino: u64) -> io::Result<&DirData> {
        match &self.inode(ino)?.body {
            Body::Dir(dir) => Ok(dir),
            Body::File(_) => Err(errno(libc::ENOTDIR)),
        }
    }

    pub(crate) fn dir_mut(&mut self, ino: u64) -> io::Result<&mut DirData> {
        match &mut self.inode_mut(ino)?.body {
            Body::Dir(dir) => Ok(dir),
            Body::File(_) => Err(errno(libc::ENOTDIR)),
        }
    }

    pub(crate) fn file(&self, ino: u64) -> io::Result<&FileData> {
        match &self.inode(ino)?.body {
            Body::File(file) => Ok(file),
            Body::Dir(_) => Err(errno(libc::EISDIR)),
        }
    }

    pub(crate) fn file_mut(&mut self, ino: u64) -> io::Result<&mut FileData> {
        match &mut self.inode_mut(ino)?.body {
            Body::File(file) => Ok(file),
            Body::Dir(_) => Err(errno(libc::EISDIR)),
        }
    }

    /// The inode at `path`.
    pub(crate) fn resolve(&self, path: &Path) -> io::Result<u64> {
        components(path)?.iter().try_fold(ROOT, |dir, name| {
            self.dir(dir)?
                .cached
                .get(name)
                .copied()
                .ok_or_else(|| errno(libc::ENOENT))
        })
    }

    /// The directory that holds `path`, and the last name.
    pub(crate) fn resolve_parent(&self, path: &Path) -> io::Result<(u64, String)> {
        let mut names = components(path)?;
        let last = names.pop().ok_or_else(|| errno(libc::EISDIR))?;
        let dir = self.resolve(&names.iter().collect::<PathBuf>())?;
        self.dir(dir)?;
        Ok((dir, last))
    }

    pub(crate) fn create(&mut self, dir: u64, name: String, is_dir: bool) -> io::Result<u64> {
        let volatile = self.inode(dir)?.volatile;
        let inode = if is_dir {
            new_dir(volatile)
        } else {
            new_file(volatile)
        };
        let ino = self.add(inode);
        self.change(vec![(dir, name, Some(ino))])?;
        Ok(ino)
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

    /// Gives an inode other permission bits. They are not among what a power cut takes.
    pub(crate) fn set_mode(&mut self, ino: u64, mode: u32) -> io::Result<()> {
        self.inode_mut(ino)?.mode = mode & 0o7777;
        Ok(())
    }

    /// A path of an inode, as programs see it; empty where it has none any more.
    pub(crate) fn path_of(&self, ino: u64) -> PathBuf {
        let mut names = Vec::new();
        let mut below = ino;
        while below != ROOT {
            let Some((dir, name)) = self.name_of(below) else {
                return PathBuf::new();
            };
            names.push(name);
            below = dir;
        }
        let root = PathBuf::from("/");
        names.iter().rev().fold(root, |path, name| path.join(name))
    }

    /// A name of an inode, and the directory that has it.
    fn name_of(&self, ino: u64) -> Option<(u64, String)> {
        self.inodes.iter().find_map(|(&dir, inode)| {
            let Body::Dir(names) = &inode.body else {
                return None;
            };
            let name = names.cached.iter().find(|&(_, &found)| found == ino);
            name.map(|(name, _)| (dir, name.clone()))
        })
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
                (Body::Dir(_), Body::File(_)) => return Err(errno(libc::ENOTDIR)),
                (Body::File(_), Body::Dir(_)) => return Err(errno(libc::EISDIR)),
                _ => {}
            }
        }
        self.change(vec![(from_dir, from_name, None), (to_dir, to_name, Some(ino))])
    }

    /// Changes names as programs see them and notes what is to become durable.
    fn change(&mut self, changes: Vec<(u64, String, Option<u64>)>) -> io::Result<()> {
        let mut effect = NameEffect {
            changes: Vec::with_capacity(changes.len()),
            unsynced: BTreeSet::new(),
            stuck: false,
        };
        for (dir, name, new) in changes {
            let volatile = self.inode(dir)?.volatile;
            let names = &mut self.dir_mut(dir)?.cached;
            let old = match new {
                Some(ino) => names.insert(name.clone(), ino),
                None => names.remove(&name),
            };
            if !volatile {
                effect.unsynced.insert(dir);
                effect.changes.push(NameChange { dir, name, old, new });
            }
        }
        if !effect.changes.is_empty() {
            self.effects.push(effect);
        }
        Ok(())
    }

    /// Makes the names in `dir` durable, save those that are stuck.
    pub(crate) fn sync_dir(&mut self, dir: u64) -> io::Result<()> {
        self.dir(dir)?;
        let mut open = Vec::new();
        for mut effect in std::mem::take(&mut self.effects) {
            effect.unsynced.remove(&dir);
            if effect.unsynced.is_empty() && !effect.stuck {
                self.make_durable(&effect);
                outdate(&mut open, &effect);
            } else {
                open.push(effect);
            }
        }
        self.effects = open;
        Ok(())
    }

    /// The last change, a renaming, is durable as a whole when `dir` is synced, and needs no other
    /// directory.
    pub(crate) fn durable_with(&mut self, dir: u64) {
        if let Some(effect) = self.effects.last_mut() {
            effect.unsynced.retain(|&unsynced| unsynced == dir);
        }
    }

    /// Makes every name durable, save those that are stuck: what a journal does that commits as a
    /// whole.
    pub(crate) fn commit_names(&mut self) {
        let (stuck, open): (Vec<_>, Vec<_>) = std::mem::take(&mut self.effects)
            .into_iter()
            .partition(|e| e.stuck);
        self.effects = stuck;
        for effect in open {
            self.make_durable(&effect);
            outdate(&mut self.effects, &effect);
        }
    }

    /// A directory sync that fails: each change in `dir` becomes durable or stays open for ever.
    pub(crate) fn fail_sync_dir(&mut self, dir: u64, mut kept: impl FnMut() -> bool) {
        let mut open = Vec::new();
        for mut effect in std::mem::take(&mut self.effects) {
            if !effect.unsynced.contains(&dir) {
                open.push(effect);
            } else if kept() {
                self.make_durable(&effect);
                outdate(&mut open, &effect);
            } else {
                effect.stuck = true;
                open.push(effect);
            }
        }
        self.effects = open;
    }

    /// Applies an effect to the durable names.
    pub(crate) fn make_durable(&mut self, effect: &NameEffect) {
        for change in &effect.changes {
            let Ok(dir) = self.dir_mut(change.dir) else {
                continue;
            };
            match change.new {
                Some(ino) => {
                    dir.durable.insert(change.name.clone(), ino);
                }
                // An effect that became durable late must not take a name that a later one gave
                // away.
                None if dir.durable.get(&change.name).copied() == change.old => {
                    dir.durable.remove(&change.name);
                }
                None => {}
            }
        }
    }

    /// Forgets the open changes of names that lead to `ino`.
    pub(crate) fn forget_effects_on(&mut self, ino: u64) {
        self.effects
            .retain(|effect| effect.changes.iter().all(|change| change.new != Some(ino)));
    }

    /// Number of names of an inode, as programs see them.
    pub(crate) fn links(&self, ino: u64) -> u64 {
        let dirs = self.inodes.values().filter_map(|inode| match &inode.body {
            Body::Dir(dir) => Some(dir),
            Body::File(_) => None,
        });
        dirs.flat_map(|dir| dir.cached.values())
            .filter(|&&i| i == ino)
            .count() as u64
    }

    pub(crate) fn stat(&self, ino: u64) -> io::Result<Stat> {
        let inode = self.inode(ino)?;
        let (len, is_dir) = match &inode.body {
            Body::File(file) => (file.cached.len(), false),
            Body::Dir(_) => (crate::content::SECTOR as u64, true),
        };
        Ok(Stat {
            dev: if inode.volatile { VOLATILE_DEV } else { DISK_DEV },
            ino,
            len,
            mode: inode.mode,
            uid: UID,
            links: self.links(ino),
            is_dir,
        })
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

/// Earlier changes that are still open can no longer touch the names that a later one has settled.
fn outdate(open: &mut Vec<NameEffect>, settled: &NameEffect) {
    let is_settled = |c: &NameChange| settled.changes.iter().any(|s| s.dir == c.dir && s.name == c.name);
    for effect in open.iter_mut() {
        effect.changes.retain(|change| !is_settled(change));
    }
    open.retain(|effect| !effect.changes.is_empty());
}

/// The user that all simulated files belong to.
pub(crate) const UID: u32 = 1_000;

fn new_dir(volatile: bool) -> Inode {
    Inode {
        mode: DIR_MODE,
        volatile,
        body: Body::Dir(DirData::default()),
    }
}

fn new_file(volatile: bool) -> Inode {
    let file = FileData {
        volatile,
        ..FileData::default()
    };
    Inode {
        mode: FILE_MODE,
        volatile,
        body: Body::File(file),
    }
}

/// The names along a path from the root. Relative paths start at the root, too.
fn components(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => match name.to_str() {
                Some(name) => names.push(name.to_owned()),
                None => return Err(errno(libc::EINVAL)),
            },
            Component::ParentDir => {
                names.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Ok(names)
}
