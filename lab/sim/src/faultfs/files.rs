//! The files of a disk: what can be asked for by inode, and what is open.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use collie_io::{Entry, File, FsStat, Stat};

use super::Names;
use super::disk::{Disk, lock};
use crate::fault::Strike;
use crate::file::{Access, SimFile};
use crate::state::{Call, State};
use crate::trace::OpKind;
use crate::world::{New, errno};

/// An open file.
pub(super) struct OpenFile {
    pub(super) file: SimFile,
    pub(super) path: PathBuf,
    access: Access,
    /// Syncs that the kernel asks for by itself behind durable writes, which are durable already.
    owed: Mutex<u64>,
}

/// The names in a directory when it was opened.
pub(super) type Listing = Arc<Vec<(Entry, u64)>>;

/// What is open.
#[derive(Default)]
pub(super) struct Handles {
    next: u64,
    files: BTreeMap<u64, Arc<OpenFile>>,
    lists: BTreeMap<u64, Listing>,
}

/// What is to be set of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Attributes {
    pub(super) mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) access: Option<When>,
    pub(super) data: Option<When>,
}

/// A time that is to be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Now,
    /// Nanoseconds since the Unix epoch.
    At(i64),
}

impl Attributes {
    pub(super) fn are_none(&self) -> bool {
        let times = [self.access, self.data];
        self.mode.is_none() && self.uid.is_none() && self.gid.is_none() && times == [None, None]
    }
}

/// What can be asked for, by inode.
impl Disk {
    fn with<T>(&self, read: impl FnOnce(&State) -> io::Result<T>) -> io::Result<T> {
        read(&self.device.shared.lock())
    }

    /// One operation, with the fault that strikes it; `create` and its like fail where one does.
    fn operate<T>(
        &self,
        kind: OpKind,
        path: &Path,
        act: impl FnOnce(&mut State) -> io::Result<T>,
    ) -> io::Result<T> {
        let act = |state: &mut State, strike: Option<Strike>| match strike {
            Some(strike) => Err(errno(strike.code)),
            None => act(state),
        };
        self.device.shared.operate(Call::new(kind, path), act)
    }

    /// The path of an inode; empty where it has none any more.
    pub(super) fn path(&self, ino: u64) -> PathBuf {
        self.device.shared.lock().world.path_of(ino)
    }

    /// The path of a name in a directory.
    pub(super) fn path_in(&self, dir: u64, name: &str) -> PathBuf {
        self.path(dir).join(name)
    }

    /// What an inode is.
    pub(super) fn stat(&self, ino: u64) -> io::Result<Stat> {
        self.with(|state| state.world.stat(ino))
    }

    /// The room there is.
    pub(super) fn room(&self) -> io::Result<FsStat> {
        self.with(|state| Ok(state.fs_stat(false)))
    }

    pub(super) fn lookup(&self, dir: u64, name: &str) -> io::Result<u64> {
        self.with(|state| {
            let found = state.world.dir(dir)?.cached.get(name).copied();
            found.ok_or_else(|| errno(libc::ENOENT))
        })
    }

    /// Makes something, which must not be there.
    pub(super) fn create(&self, kind: OpKind, dir: u64, name: &str, new: New) -> io::Result<u64> {
        self.operate(kind, &self.path_in(dir, name), |state| {
            state.free_name(dir, name)?;
            state.world.create(dir, name.to_owned(), new)
        })
    }

    /// Gives a file one more name, which must not be there.
    pub(super) fn link(&self, ino: u64, dir: u64, name: &str) -> io::Result<()> {
        self.operate(OpKind::HardLink, &self.path(ino), |state| {
            state.free_name(dir, name)?;
            state.world.link(ino, dir, name.to_owned())
        })
    }

    /// What a symbolic link leads to.
    pub(super) fn link_target(&self, ino: u64) -> io::Result<PathBuf> {
        self.with(|state| state.world.link_target(ino))
    }

    pub(super) fn unlink(&self, dir: u64, name: &str) -> io::Result<()> {
        self.operate(OpKind::RemoveFile, &self.path_in(dir, name), |state| {
            state.world.unlink(dir, name.to_owned())?;
            state.collect();
            Ok(())
        })
    }

    pub(super) fn remove_dir(&self, dir: u64, name: &str) -> io::Result<()> {
        self.operate(OpKind::RemoveDir, &self.path_in(dir, name), |state| {
            state.world.remove_dir(dir, name.to_owned())?;
            state.collect();
            Ok(())
        })
    }

    /// Renames, over what has the new name if that may be `replace`d.
    pub(super) fn rename(&self, from: (u64, &str), to: (u64, &str), replace: bool) -> io::Result<()> {
        self.operate(OpKind::Rename, &self.path_in(from.0, from.1), |state| {
            if !replace {
                state.free_name(to.0, to.1)?;
            }
            state
                .world
                .rename_entry((from.0, from.1.to_owned()), (to.0, to.1.to_owned()))?;
            // Simulated devices ask for both directories. Products that are used with journals ask
            // for one.
            state.world.durable_with(to.0);
            state.collect();
            Ok(())
        })
    }

    /// Sets those attributes that are asked for.
    pub(super) fn set_attributes(&self, ino: u64, wanted: &Attributes) -> io::Result<()> {
        self.operate(OpKind::SetAttributes, &self.path(ino), |state| {
            let world = &mut state.world;
            if wanted.uid.is_some() || wanted.gid.is_some() {
                world.set_owner(ino, wanted.uid, wanted.gid)?;
            }
            if let Some(mode) = wanted.mode {
                world.set_mode(ino, mode)?;
            }
            if wanted.access.is_some() || wanted.data.is_some() {
                let now = world.now;
                let nanos = |time: When| match time {
                    When::Now => now,
                    When::At(nanos) => nanos,
                };
                world.set_times(ino, wanted.access.map(nanos), wanted.data.map(nanos))?;
            }
            Ok(())
        })
    }

    /// Opens a file with the flags of `open`.
    pub(super) fn open(&self, ino: u64, flags: i32) -> io::Result<u64> {
        let file = Arc::new(self.opened(ino, flags)?);
        let mut handles = lock(&self.handles);
        handles.next += 1;
        let handle = handles.next;
        handles.files.insert(handle, file);
        Ok(handle)
    }

    fn opened(&self, ino: u64, flags: i32) -> io::Result<OpenFile> {
        let access = Access {
            write: flags & libc::O_ACCMODE != libc::O_RDONLY,
            direct: flags & libc::O_DIRECT != 0,
            durable: flags & libc::O_DSYNC != 0,
            any_buffer: true,
        };
        let path = self.path(ino);
        let handle = {
            let mut state = self.device.shared.lock();
            state.world.file(ino)?;
            *state.opens.entry(ino).or_default() += 1;
            state.next_handle()
        };
        let shared = Arc::clone(&self.device.shared);
        Ok(OpenFile {
            file: SimFile::new(shared, ino, handle, access, &path),
            path,
            access,
            owed: Mutex::new(0),
        })
    }

    pub(super) fn file(&self, handle: u64) -> io::Result<Arc<OpenFile>> {
        let file = lock(&self.handles).files.get(&handle).cloned();
        file.ok_or_else(|| errno(libc::EBADF))
    }

    /// An open file of an inode, for what is asked for by name.
    pub(super) fn file_or_open(&self, handle: Option<u64>, ino: u64) -> io::Result<Arc<OpenFile>> {
        match handle {
            Some(handle) => self.file(handle),
            None => Ok(Arc::new(self.opened(ino, libc::O_RDWR)?)),
        }
    }

    pub(super) fn close(&self, handle: u64) {
        // Dropped without the lock, which its end does not need.
        let closed = lock(&self.handles).files.remove(&handle);
        drop(closed);
    }

    pub(super) fn sync(&self, file: &OpenFile) -> io::Result<()> {
        file.file.sync_data()?;
        self.commit_journal();
        Ok(())
    }

    pub(super) fn sync_dir(&self, ino: u64) -> io::Result<()> {
        self.device.shared.sync_dir(&self.path(ino), |_| Ok(ino))?;
        self.commit_journal();
        Ok(())
    }

    fn commit_journal(&self) {
        if self.names == Names::Journal {
            self.device.shared.lock().world.commit_names();
        }
    }

    /// Takes down the names in a directory, and returns the list's handle.
    pub(super) fn open_list(&self, ino: u64) -> io::Result<u64> {
        let list = self.with(|state| {
            let names = &state.world.dir(ino)?.cached;
            let entry = |(name, &ino): (&String, &u64)| {
                let (name, kind) = (name.clone(), state.world.kind(ino));
                (Entry { name, kind }, ino)
            };
            Ok(names.iter().map(entry).collect())
        })?;
        let mut handles = lock(&self.handles);
        handles.next += 1;
        let handle = handles.next;
        handles.lists.insert(handle, Arc::new(list));
        Ok(handle)
    }

    pub(super) fn list(&self, handle: u64) -> io::Result<Listing> {
        let list = lock(&self.handles).lists.get(&handle).cloned();
        list.ok_or_else(|| errno(libc::EBADF))
    }

    pub(super) fn close_list(&self, handle: u64) {
        lock(&self.handles).lists.remove(&handle);
    }
}

impl OpenFile {
    pub(super) fn write(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        let written = self.file.write_at(data, offset)?;
        if self.access.durable && written > 0 {
            *lock(&self.owed) += 1;
        }
        Ok(written)
    }

    /// Whether a sync is the one that the kernel adds to a durable write. Such a write is durable
    /// as it is, and makes nothing else durable.
    pub(super) fn is_owed(&self) -> bool {
        let mut owed = lock(&self.owed);
        let is_owed = *owed > 0;
        *owed -= u64::from(is_owed);
        is_owed
    }

    /// What a write to it is.
    pub(super) fn write_kind(&self) -> OpKind {
        if self.access.durable {
            OpKind::DirectWrite
        } else {
            OpKind::Write
        }
    }
}
