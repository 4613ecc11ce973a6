//! What the requests do: names and files below the root, pages through the volume.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::{Device, File, FileKind, FsStat, OpenMode, Scheduler, Stat, write_all_at};
use fuser::Errno;
use parking_lot::{Mutex, RwLock};

use super::control::Control;
use super::files::{Content, Handle, Handles, Listing, OpenedOtherwise, Writes};
use super::marker::{HIDDEN_MARKER, MARKER};
use super::names::{NodeId, Nodes, OWN, ROOT, is_page_file};
use super::pool::Pool;
use super::reads::Reads;
use super::tasks::{Class, Opener};
use crate::volume::{Existing, OWN as OWN_DIR, Volume};
use crate::{FrontError, Scope};

/// What answers a request that fails.
pub(super) type Answer<T> = Result<T, Errno>;

/// The mounted directory.
pub(super) struct Tree {
    pub(super) volume: Volume,
    pub(super) device: Arc<dyn Device>,
    /// The directory below the mount, by a path that does not go through it.
    pub(super) root: PathBuf,
    /// Where it is mounted.
    pub(super) shown: PathBuf,
    /// Whether what is created gets the owner of the process that asks: only root can give it.
    pub(super) gives_away: bool,
    pub(super) nodes: Mutex<Nodes>,
    /// Held shared while a path is used, and exclusively while names move: a path that was
    /// put together before would lead nowhere, or elsewhere.
    pub(super) moves: RwLock<()>,
    pub(super) handles: Handles,
    pub(super) pool: Pool,
    pub(super) reads: Reads,
    pub(super) scheduler: Arc<Scheduler>,
    pub(super) control: Control,
    /// The directory below the mount. Its number is in `root`: it is closed after everything that
    /// may use that path.
    pub(super) _below: OwnedFd,
}

/// What a file is created with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Created {
    /// Permission bits.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// A file, its number and generation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) id: NodeId,
    pub(super) generation: u64,
    pub(super) stat: Stat,
}

/// The system's number of an error. What is more than a refusal is logged, since the process that made
/// the request gets a number alone.
pub(super) fn errno(error: &FrontError) -> Errno {
    if error.is_full() {
        tracing::warn!("no room: {error}");
        return Errno::ENOSPC;
    }
    if let Some(system) = error.system() {
        let number = system.raw_os_error().map_or(Errno::EIO, Errno::from_i32);
        if number == Errno::EIO {
            tracing::error!("{error}");
        }
        return number;
    }
    match error {
        FrontError::Locked { .. } => Errno::EBUSY,
        FrontError::TooLong { .. } => Errno::EFBIG,
        FrontError::Mismatch { .. } => {
            tracing::warn!("{error}");
            Errno::EINVAL
        }
        _ => {
            tracing::error!("{error}");
            Errno::EIO
        }
    }
}

pub(super) fn front<T>(done: Result<T, FrontError>) -> Answer<T> {
    done.map_err(|error| errno(&error))
}

pub(super) fn system<T>(done: io::Result<T>) -> Answer<T> {
    done.map_err(Errno::from)
}

impl Tree {
    pub(super) fn new(
        volume: Volume,
        device: Arc<dyn Device>,
        (root, below): (PathBuf, OwnedFd),
        shown: PathBuf,
        stat: &Stat,
        (reads, scheduler): (Reads, Arc<Scheduler>),
    ) -> Tree {
        let gives_away = device.uid() == 0;
        Tree {
            volume,
            device,
            root,
            shown,
            gives_away,
            nodes: Mutex::new(Nodes::new(stat)),
            moves: RwLock::new(()),
            handles: Handles::default(),
            pool: Pool::default(),
            reads,
            scheduler,
            control: Control::default(),
            _below: below,
        }
    }

    /// Where a node is, from the root.
    pub(super) fn path(&self, id: NodeId) -> Answer<PathBuf> {
        self.nodes.lock().path(id).ok_or(Errno::ENOENT)
    }

    /// Where a name is, from the root.
    fn path_of(&self, parent: NodeId, name: &OsStr) -> Answer<PathBuf> {
        Ok(self.path(parent)?.join(name))
    }

    /// Where that is on the device. The root's ends in a slash: its path may be a symbolic link.
    pub(super) fn full(&self, path: &Path) -> PathBuf {
        self.root.join(path)
    }

    fn lstat(&self, path: &Path) -> Answer<Stat> {
        let stat = system(self.device.lstat(&self.full(path)))?;
        // The length of a file that is not written in place is that of its pages.
        match self.volume.open_file(&stat) {
            Some(file) => front(self.volume.stat(&file)),
            None => Ok(stat),
        }
    }

    pub(super) fn lookup(&self, parent: NodeId, name: &OsStr) -> Answer<Found> {
        let name = below(parent, name)?;
        let _moves = self.moves.read();
        let stat = self.lstat(&self.path_of(parent, name)?)?;
        Ok(self.found(parent, name, stat))
    }

    /// A file to be returned to the kernel.
    fn found(&self, parent: NodeId, name: &OsStr, stat: Stat) -> Found {
        let (id, generation) = self.nodes.lock().looked_up(parent, name, &stat);
        Found { id, generation, stat }
    }

    /// A file that was just made, to be returned to the kernel.
    fn found_new(&self, parent: NodeId, name: &OsStr, stat: Stat) -> Found {
        let (id, generation) = self.nodes.lock().created(parent, name, &stat);
        Found { id, generation, stat }
    }

    /// The node that a file is, if it is known. Asked for before its name is removed.
    fn known(&self, stat: &Stat) -> (NodeId, Option<u64>) {
        let mut nodes = self.nodes.lock();
        let id = nodes.id(stat);
        (id, nodes.generation(id))
    }

    pub(super) fn attributes(&self, id: NodeId) -> Answer<Stat> {
        match self.handles.of_node(id) {
            Some(Content::Pages(file)) => front(self.volume.stat(&file)),
            Some(Content::Plain(file)) => system(file.stat()),
            None => {
                let _moves = self.moves.read();
                self.lstat(&self.path(id)?)
            }
        }
    }

    /// Sets the length of a file: through a handle, or by its name.
    pub(super) fn set_len(&self, id: NodeId, handle: Option<u64>, len: u64) -> Answer<()> {
        let content = match handle.and_then(|number| self.handles.get(number)) {
            Some(handle) => handle.content.clone(),
            None => {
                let _moves = self.moves.read();
                self.content(id, true)?
            }
        };
        match content {
            Content::Plain(file) => system(file.set_len(len)),
            Content::Pages(file) => {
                let done = front(self.volume.set_len(&file, len));
                self.volume.release(file);
                done
            }
        }
    }

    /// Opens a node as it is open already, or else by its name.
    fn content(&self, id: NodeId, writes: bool) -> Answer<Content> {
        // One look: another thread may open it the next moment.
        let known = self.handles.of_node(id);
        if let Some(Content::Pages(_)) = &known {
            return known.ok_or(Errno::ENOENT);
        }
        let path = self.path(id)?;
        if known.is_none() {
            let stat = system(self.device.lstat(&self.full(&path)))?;
            if is_page_file(&path) || self.volume.open_file(&stat).is_some() {
                return front(self.volume.file(&path)).map(Content::Pages);
            }
        }
        self.plain(&path, writes).map(Content::Plain)
    }

    /// The process that opens a file. Not to be called with a lock held: it reads from `/proc`.
    fn opener(&self, pid: u32) -> Opener {
        Opener::of(&*self.device, pid)
    }

    fn plain(&self, path: &Path, writes: bool) -> Answer<Arc<dyn File>> {
        let full = self.full(path);
        match self.volume.open_plain(&*self.device, &full, OpenMode::ReadWrite) {
            Err(e) if !writes && is_read_only(&e) => {
                system(self.volume.open_plain(&*self.device, &full, OpenMode::Read))
            }
            opened => system(opened),
        }
    }

    pub(super) fn open(&self, id: NodeId, flags: i32, pid: u32) -> Answer<u64> {
        let opener = self.opener(pid);
        let _moves = self.moves.read();
        loop {
            let content = self.content(id, flags & libc::O_ACCMODE != libc::O_RDONLY)?;
            let opened = self.handles.open(Handle {
                node: id,
                content,
                writes: durability(flags),
                opener,
            });
            // Otherwise another thread has opened it meanwhile, as what it was then.
            if let Ok(number) = opened {
                return Ok(number);
            }
        }
    }

    pub(super) fn create(
        &self,
        parent: NodeId,
        name: &OsStr,
        new: Created,
        flags: i32,
        pid: u32,
    ) -> Answer<(Found, u64)> {
        let opener = self.opener(pid);
        let name = below(parent, name)?;
        let _moves = self.moves.read();
        let path = self.path_of(parent, name)?;
        let content = if is_page_file(&path) {
            Content::Pages(front(self.volume.create(&path))?)
        } else {
            front(self.volume.free_name(&path))?;
            let full = self.full(&path);
            let made = self.volume.open_plain(&*self.device, &full, OpenMode::CreateNew);
            Content::Plain(system(made)?)
        };
        let made = self.finish(&path, new, 0o600);
        let found = made.and_then(|()| self.lstat(&path));
        let stat = found.inspect_err(|_| {
            // It was not returned to the kernel yet.
            let _ = self.volume.unlink(&path);
        })?;
        let found = self.found_new(parent, name, stat);
        let opened = self.handles.open(Handle {
            node: found.id,
            content,
            writes: durability(flags),
            opener,
        });
        // It is new: nothing else is open by its number.
        let handle = opened.map_err(|OpenedOtherwise| Errno::EIO)?;
        Ok((found, handle))
    }

    /// Gives what was just created its owner and its mode, which is `mode` so far.
    fn finish(&self, path: &Path, new: Created, mode: u32) -> Answer<()> {
        let full = self.full(path);
        let mut wanted = new.mode;
        let dir = system(self.device.lstat(&self.full(parent_of(path))))?;
        let is_groups = dir.mode & libc::S_ISGID != 0;
        if self.gives_away {
            let gid = if is_groups { dir.gid } else { new.gid };
            system(self.device.set_owner(&full, Some(new.uid), Some(gid)))?;
        }
        let stat = system(self.device.lstat(&full))?;
        if stat.kind == FileKind::Symlink {
            // It has no mode of its own: setting one would set its target's.
            return Ok(());
        }
        if is_groups && stat.is_dir() {
            wanted |= libc::S_ISGID;
        }
        if wanted != mode {
            system(self.device.set_mode(&full, wanted))?;
        }
        Ok(())
    }

    /// A directory, a symbolic link, a pipe or a socket, by what makes it.
    pub(super) fn make(
        &self,
        parent: NodeId,
        name: &OsStr,
        new: Created,
        make: impl FnOnce(&dyn Device, &Path, &Path) -> Answer<()>,
    ) -> Answer<Found> {
        let name = below(parent, name)?;
        let _moves = self.moves.read();
        let path = self.path_of(parent, name)?;
        front(self.volume.free_name(&path))?;
        let full = self.full(&path);
        make(&*self.device, &path, &full)?;
        let finish = || {
            // Whatever it was made with, its mode is set.
            self.finish(&path, new, u32::MAX)?;
            // PostgreSQL syncs files, and takes that for the names of the directories above too.
            system(self.device.sync_dir(&self.full(parent_of(&path))))?;
            self.lstat(&path)
        };
        let stat = finish().inspect_err(|_| {
            // It was not returned to the kernel yet. If it cannot be removed, that is as after a crash here.
            let _ = match self.device.lstat(&full) {
                Ok(made) if made.is_dir() => self.device.remove_dir(&full),
                _ => self.device.remove_file(&full),
            };
        })?;
        Ok(self.found_new(parent, name, stat))
    }

    pub(super) fn read_link(&self, id: NodeId) -> Answer<PathBuf> {
        let _moves = self.moves.read();
        system(self.device.read_link(&self.full(&self.path(id)?)))
    }

    pub(super) fn unlink(&self, parent: NodeId, name: &OsStr) -> Answer<()> {
        let name = below(parent, name)?;
        let _moves = self.moves.read();
        let path = self.path_of(parent, name)?;
        let stat = system(self.device.lstat(&self.full(&path)))?;
        let node = self.known(&stat);
        front(self.volume.unlink(&path))?;
        self.nodes.lock().removed(node, parent, name, stat.links <= 1);
        Ok(())
    }

    pub(super) fn remove_dir(&self, parent: NodeId, name: &OsStr) -> Answer<()> {
        let name = below(parent, name)?;
        let _moves = self.moves.read();
        let path = self.path_of(parent, name)?;
        let stat = system(self.device.lstat(&self.full(&path)))?;
        let node = self.known(&stat);
        front(self.volume.remove_dir(&path))?;
        self.nodes.lock().removed(node, parent, name, true);
        Ok(())
    }

    pub(super) fn rename(
        &self,
        from: (NodeId, &OsStr),
        to: (NodeId, &OsStr),
        existing: Existing,
    ) -> Answer<()> {
        let (old, new) = (below(from.0, from.1)?, below(to.0, to.1)?);
        let _moves = self.moves.write();
        let (old_path, new_path) = (self.path_of(from.0, old)?, self.path_of(to.0, new)?);
        let moved = system(self.device.lstat(&self.full(&old_path)))?;
        let replaced = self.device.lstat(&self.full(&new_path)).ok();
        if let Some(replaced) = &replaced {
            match (moved.is_dir(), replaced.is_dir()) {
                (false, true) => return Err(Errno::EISDIR),
                (true, false) => return Err(Errno::ENOTDIR),
                _ => {}
            }
        }
        let gone = replaced.map(|stat| (self.known(&stat), stat));
        front(self.volume.rename(&old_path, &new_path, existing))?;
        let mut nodes = self.nodes.lock();
        let id = nodes.id(&moved);
        if let Some((other, replaced)) = gone {
            if other.0 == id {
                // Two names of one file: nothing was done.
                return Ok(());
            }
            nodes.removed(other, to.0, new, replaced.is_dir() || replaced.links <= 1);
        }
        nodes.renamed(id, (from.0, old), (to.0, new));
        Ok(())
    }

    pub(super) fn link(&self, id: NodeId, parent: NodeId, name: &OsStr) -> Answer<Found> {
        let name = below(parent, name)?;
        let _moves = self.moves.read();
        let (from, to) = (self.path(id)?, self.path_of(parent, name)?);
        front(self.volume.link(&from, &to))?;
        let stat = self.lstat(&to)?;
        Ok(self.found(parent, name, stat))
    }

    pub(super) fn handle(&self, number: u64) -> Answer<Arc<Handle>> {
        self.handles.get(number).ok_or(Errno::EBADF)
    }

    pub(super) fn read(&self, handle: &Handle, offset: u64, size: usize) -> Answer<Vec<u8>> {
        let is_waited_for = handle.opener.class == Class::Foreground;
        let _waited_for = is_waited_for.then(|| self.scheduler.foreground());
        let mut buf = vec![0; size];
        let len = match &handle.content {
            Content::Pages(file) => front(self.volume.read_at(file, &mut buf, offset))?,
            Content::Plain(file) => {
                let mut done = 0;
                while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
                    match file.read_at(rest, offset + done as u64) {
                        Ok(0) => break,
                        Ok(n) => done += n,
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                        Err(e) => return Err(e.into()),
                    }
                }
                done
            }
        };
        buf.truncate(len);
        Ok(buf)
    }

    pub(super) fn write(&self, handle: &Handle, offset: u64, bytes: &[u8]) -> Answer<()> {
        match &handle.content {
            Content::Pages(file) => front(self.volume.write_at(file, bytes, offset))?,
            Content::Plain(file) => system(write_all_at(&**file, bytes, offset))?,
        }
        match handle.writes {
            Writes::Cached => Ok(()),
            Writes::Durable => self.sync(handle),
        }
    }

    pub(super) fn allocate(&self, handle: &Handle, offset: u64, len: u64) -> Answer<()> {
        match &handle.content {
            Content::Pages(file) => front(self.volume.allocate(file, offset, len)),
            Content::Plain(file) => system(file.allocate_range(offset, len)),
        }
    }

    /// Makes a file durable, and its name: PostgreSQL takes the one for the other.
    pub(super) fn sync(&self, handle: &Handle) -> Answer<()> {
        match &handle.content {
            Content::Pages(file) => front(self.volume.sync(file)),
            Content::Plain(file) => {
                system(file.sync_all())?;
                let is_new = self.nodes.lock().is_name_new(handle.node);
                if is_new {
                    let _moves = self.moves.read();
                    // A file that was removed under its handle has no name to be synced.
                    if let Ok(path) = self.path(handle.node) {
                        system(self.device.sync_dir(&self.full(parent_of(&path))))?;
                        self.nodes.lock().name_synced(handle.node);
                    }
                }
                Ok(())
            }
        }
    }

    pub(super) fn close(&self, number: u64) {
        let Some(handle) = self.handles.close(number) else {
            return;
        };
        if let Some(Content::Pages(file)) = Arc::into_inner(handle).map(|handle| handle.content) {
            self.volume.release(file);
        }
    }

    /// The names in a directory, as the kernel is to see them.
    pub(super) fn list(&self, id: NodeId) -> Answer<Listing> {
        let _moves = self.moves.read();
        let path = self.path(id)?;
        let mut listing = vec![
            (OsString::from("."), FileKind::Directory, id),
            (OsString::from(".."), FileKind::Directory, ROOT),
        ];
        let mut add = |name: &OsStr, kind: FileKind, ino: u64| {
            if id == ROOT && name == OWN_DIR {
                return;
            }
            let shown = if id == ROOT && name == HIDDEN_MARKER {
                OsStr::new(MARKER)
            } else {
                name
            };
            // The kernel asks for the number that counts when it looks a name up.
            listing.push((shown.to_owned(), kind, ino.max(ROOT + 1)));
        };
        system(self.device.read_dir(&self.full(&path), &mut add))?;
        Ok(Arc::new(listing))
    }

    pub(super) fn sync_dir(&self, id: NodeId) -> Answer<()> {
        let _moves = self.moves.read();
        system(self.device.sync_dir(&self.full(&self.path(id)?)))
    }

    pub(super) fn room(&self) -> Answer<FsStat> {
        system(self.device.statfs(&self.full(Path::new(""))))
    }

    /// Commits everything that was written.
    pub(super) fn commit(&self) -> Result<(), FrontError> {
        self.volume.forget_removed()?;
        self.volume.commit_all(Scope::All)
    }
}

fn parent_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// The name below the mount of a name that the kernel asks for.
fn below(parent: NodeId, name: &OsStr) -> Answer<&OsStr> {
    if parent >= OWN {
        // Nothing else is there, and nothing can be made.
        return Err(Errno::ENOENT);
    }
    if parent != ROOT {
        return Ok(name);
    }
    match name.to_str() {
        Some(MARKER) => Ok(OsStr::new(HIDDEN_MARKER)),
        // These are not shown, and cannot be made.
        Some(HIDDEN_MARKER | OWN_DIR) => Err(Errno::ENOENT),
        _ => Ok(name),
    }
}

fn durability(flags: i32) -> Writes {
    // O_SYNC has the bits of O_DSYNC and one more.
    match flags & libc::O_DSYNC {
        0 => Writes::Cached,
        _ => Writes::Durable,
    }
}

fn is_read_only(error: &io::Error) -> bool {
    let kinds = [
        io::ErrorKind::PermissionDenied,
        io::ErrorKind::ReadOnlyFilesystem,
        io::ErrorKind::ExecutableFileBusy,
    ];
    kinds.contains(&error.kind())
}

#[cfg(test)]
mod tests {
    use collie_log::LogError;

    use super::*;

    #[test]
    fn what_the_log_could_not_open_has_the_number_of_why() {
        for number in [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM] {
            let cause = LogError::Io {
                op: "open",
                path: PathBuf::from("log"),
                source: Arc::new(io::Error::from_raw_os_error(number.code())),
            };
            let error = FrontError::Log(LogError::Unprepared {
                path: PathBuf::from("log"),
                needed: 1,
                cause: Box::new(cause.clone()),
            });
            assert_eq!(errno(&error), number);
            assert_eq!(
                errno(&FrontError::Log(cause)),
                Errno::EIO,
                "frames may be at stake"
            );
        }
    }
}
