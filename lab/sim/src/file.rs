//! Open files of a simulated device.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::{BLOCK, Dir, File, Mapping, OpenMode, Stat};

use crate::content::{Route, SECTOR, sectors_in, to_usize};
use crate::device::{Shared, aligned};
use crate::fault::{FaultKind, Strike};
use crate::memory::SharedMemory;
use crate::state::{Call, State};
use crate::trace::OpKind;
use crate::world::errno;

pub(crate) struct SimFile {
    shared: Arc<Shared>,
    ino: u64,
    /// Distinguishes this opening from others of the same file, for the lock.
    handle: u64,
    access: Access,
    path: PathBuf,
}

/// What an opening allows, and what its writes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access {
    /// Not only for reading.
    pub(crate) write: bool,
    /// Offsets and lengths are whole blocks (`O_DIRECT`).
    pub(crate) direct: bool,
    /// Writes are durable when they return (`O_DSYNC`).
    pub(crate) durable: bool,
    /// The program's buffer has been looked at, and is not the one that is handed over.
    pub(crate) any_buffer: bool,
}

impl From<OpenMode> for Access {
    fn from(mode: OpenMode) -> Self {
        Self {
            write: mode != OpenMode::Read,
            direct: mode == OpenMode::DirectSync,
            durable: mode == OpenMode::DirectSync,
            any_buffer: false,
        }
    }
}

impl SimFile {
    pub(crate) fn new(shared: Arc<Shared>, ino: u64, handle: u64, access: Access, path: &Path) -> Self {
        Self {
            shared,
            ino,
            handle,
            access,
            path: path.to_path_buf(),
        }
    }

    fn call(&self, kind: OpKind, offset: u64, len: usize) -> Call<'_> {
        Call {
            kind,
            path: &self.path,
            offset,
            len: len as u64,
        }
    }

    fn is_direct(&self) -> bool {
        self.access.direct
    }

    /// Whether the file's opening allows these bounds.
    fn is_aligned(&self, buf: &[u8], offset: u64) -> bool {
        let whole = buf.len().is_multiple_of(BLOCK) && offset.is_multiple_of(BLOCK as u64);
        !self.is_direct() || (whole && (self.access.any_buffer || aligned(buf, offset)))
    }

    /// How much of `len` bytes a short read or write moves: at least one byte, and whole blocks
    /// where the file is direct.
    fn shortened(&self, state: &mut State, len: usize) -> usize {
        let unit = if self.is_direct() { BLOCK } else { 1 };
        let units = (len / unit).max(1);
        let some = 1 + state.rng.index(units.saturating_sub(1));
        (some * unit).min(len)
    }

    /// Writes `buf` into the cache and onto its way to the device.
    fn put(
        &self,
        state: &mut State,
        buf: &[u8],
        offset: u64,
        route: impl FnMut(usize) -> Route,
    ) -> io::Result<()> {
        let op = state.op;
        state.world.touch(self.ino)?;
        let file = state.world.file_mut(self.ino)?;
        file.write(op, buf, offset, route);
        if let Some(memory) = state.memories.get(&self.ino) {
            let file = state.world.file(self.ino)?;
            let touched = to_usize(offset) / SECTOR..sectors_in(offset + buf.len() as u64);
            for index in touched {
                memory.write(index, &file.cached.bytes(index));
            }
        }
        Ok(())
    }

    /// Writes as much of `buf` as there is room for, and returns how much that was.
    fn put_in_room(
        &self,
        state: &mut State,
        buf: &[u8],
        offset: u64,
        mut route: impl FnMut(usize) -> Route,
    ) -> io::Result<usize> {
        let left = state.room_left(self.ino)?;
        let before = left.and_then(|_| state.world.inodes.get(&self.ino).cloned());
        self.put(state, buf, offset, &mut route)?;
        let (Some(left), Some(before)) = (left, before) else {
            return Ok(buf.len());
        };
        if state.room_left(self.ino)?.is_some_and(|left| left >= 0) {
            return Ok(buf.len());
        }
        state.faults.count(FaultKind::NoSpace);
        state.world.inodes.insert(self.ino, before);
        let unit = if self.is_direct() { BLOCK } else { SECTOR };
        let fits = to_usize(left.max(0).unsigned_abs()) / unit * unit;
        if fits == 0 || fits >= buf.len() {
            return Err(errno(libc::ENOSPC));
        }
        self.put(state, buf.get(..fits).unwrap_or_default(), offset, route)?;
        Ok(fits)
    }

    fn write(&self, state: &mut State, strike: Option<Strike>, buf: &[u8], offset: u64) -> io::Result<usize> {
        if !self.access.write {
            return Err(errno(libc::EBADF));
        }
        if !self.is_aligned(buf, offset) {
            return Err(errno(libc::EINVAL));
        }
        if buf.is_empty() {
            return Ok(0);
        }
        state.absorb(self.ino);
        let straight = |_: usize| Route::Straight;
        let first = to_usize(offset) / SECTOR;
        let last = sectors_in(offset + buf.len() as u64).max(first + 1);
        let Some(strike) = strike else {
            let n = self.put_in_room(state, buf, offset, straight)?;
            return self.finish(state, n);
        };
        match strike.kind {
            FaultKind::ShortWrite => {
                let n = self.shortened(state, buf.len());
                let n = self.put_in_room(state, buf.get(..n).unwrap_or_default(), offset, straight)?;
                self.finish(state, n)
            }
            FaultKind::StaleSector | FaultKind::MisdirectedSector => {
                let struck = first + state.rng.index(last - first);
                let end = sectors_in(state.world.file(self.ino)?.cached.len()).max(last);
                let wrong = match strike.kind {
                    FaultKind::MisdirectedSector => Route::To(state.rng.index(end)),
                    _ => Route::Nowhere,
                };
                let route = |index| if index == struck { wrong } else { Route::Straight };
                let n = self.put_in_room(state, buf, offset, route)?;
                self.finish(state, n)
            }
            FaultKind::Interrupted | FaultKind::NoSpace => Err(errno(strike.code)),
            _ => {
                // How much of a write that failed has happened is unknown.
                let n = state.rng.index(buf.len() / SECTOR + 1) * SECTOR;
                self.put(state, buf.get(..n).unwrap_or_default(), offset, straight)?;
                self.finish(state, n)?;
                Err(errno(strike.code))
            }
        }
    }

    /// A direct write is on the device when it returns, and may be there in part before.
    fn finish(&self, state: &mut State, n: usize) -> io::Result<usize> {
        if self.access.durable {
            self.shared.record_within(state);
            self.shared.clock.advance(state.direct_write);
            let op = state.op;
            state.world.file_mut(self.ino)?.sync_own(op);
        }
        Ok(n)
    }

    fn grow(&self, state: &mut State, offset: u64, len: u64) -> io::Result<()> {
        if !self.access.write {
            return Err(errno(libc::EBADF));
        }
        if len == 0 {
            return Err(errno(libc::EINVAL));
        }
        let before = state.world.inodes.get(&self.ino).cloned();
        let end = offset.checked_add(len).ok_or_else(|| errno(libc::EFBIG))?;
        let op = state.op;
        state.world.touch(self.ino)?;
        let file = state.world.file_mut(self.ino)?;
        file.promised.add(offset, len);
        if end > file.cached.len() {
            file.set_len(op, end);
        }
        if state.room_left(self.ino)?.is_some_and(|left| left < 0) {
            state.faults.count(FaultKind::NoSpace);
            if let Some(before) = before {
                state.world.inodes.insert(self.ino, before);
            }
            return Err(errno(libc::ENOSPC));
        }
        Ok(())
    }
}

impl File for SimFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let call = self.call(OpKind::Read, offset, buf.len());
        self.shared.operate(call, |state, strike| {
            if !self.is_aligned(buf, offset) {
                return Err(errno(libc::EINVAL));
            }
            let wanted = match strike {
                Some(strike) if strike.kind == FaultKind::ShortRead => self.shortened(state, buf.len()),
                Some(strike) => return Err(errno(strike.code)),
                None => buf.len(),
            };
            state.absorb(self.ino);
            let file = state.world.file(self.ino)?;
            Ok(file
                .cached
                .read(buf.get_mut(..wanted).unwrap_or_default(), offset))
        })
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let kind = if self.access.durable {
            OpKind::DirectWrite
        } else {
            OpKind::Write
        };
        let call = self.call(kind, offset, buf.len());
        self.shared
            .operate(call, |state, strike| self.write(state, strike, buf, offset))
    }

    fn sync_data(&self) -> io::Result<()> {
        let call = self.call(OpKind::SyncData, 0, 0);
        let (mut state, strike, op) = self.shared.begin_sync(&call)?;
        state.absorb(self.ino);
        let mut rng = state.rng.fork();
        let result = state.world.file_mut(self.ino).and_then(|file| match strike {
            Some(strike) => {
                file.fail_sync(|| rng.coin());
                Err(errno(strike.code))
            }
            None => {
                file.sync(op);
                Ok(())
            }
        });
        self.shared.end_sync(state, op, result.is_err(), call.kind);
        result
    }

    /// Nothing is durable by it. A failure is that of a sync, and no later sync reports it.
    fn write_out(&self, _: u64, _: u64) -> io::Result<()> {
        let call = self.call(OpKind::SyncData, 0, 0);
        let (mut state, strike, op) = self.shared.begin_sync(&call)?;
        let Some(strike) = strike else {
            self.shared.end_sync(state, op, false, call.kind);
            return Ok(());
        };
        state.absorb(self.ino);
        let mut rng = state.rng.fork();
        let file = state.world.file_mut(self.ino);
        let failed = file.map(|file| file.fail_sync(|| rng.coin()));
        self.shared.end_sync(state, op, true, call.kind);
        failed.and_then(|()| Err(errno(strike.code)))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let call = self.call(OpKind::SetLen, len, 0);
        self.shared.operate(call, |state, _| {
            if !self.access.write {
                return Err(errno(libc::EINVAL));
            }
            state.absorb(self.ino);
            let op = state.op;
            let file = state.world.file_mut(self.ino)?;
            file.promised.cut(len);
            file.set_len(op, len);
            state.world.touch(self.ino)
        })
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let call = self.call(OpKind::Allocate, len, 0);
        self.shared.operate(call, |state, strike| match strike {
            Some(strike) => Err(errno(strike.code)),
            None => self.grow(state, 0, len),
        })
    }

    fn allocate_range(&self, offset: u64, len: u64) -> io::Result<()> {
        let call = self.call(OpKind::Allocate, offset, to_usize(len));
        self.shared.operate(call, |state, strike| match strike {
            Some(strike) => Err(errno(strike.code)),
            None => self.grow(state, offset, len),
        })
    }

    fn sync_all(&self) -> io::Result<()> {
        // All that is not data and length is durable already.
        self.sync_data()
    }

    fn sync_range(&self, offset: u64, len: u64) -> io::Result<()> {
        // What is not synced may reach the disk at any time as it is.
        let call = self.call(OpKind::SyncRange, offset, to_usize(len));
        self.shared.operate(call, |_, _| Ok(()))
    }

    fn set_times(&self, atime: Option<i64>, mtime: Option<i64>) -> io::Result<()> {
        let call = self.call(OpKind::SetAttributes, 0, 0);
        self.shared.operate(call, |state, strike| match strike {
            Some(strike) => Err(errno(strike.code)),
            None => state.world.set_times(self.ino, atime, mtime),
        })
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        let call = self.call(OpKind::SetAttributes, 0, 0);
        self.shared.operate(call, |state, strike| match strike {
            Some(strike) => Err(errno(strike.code)),
            None => state.world.set_mode(self.ino, mode),
        })
    }

    fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        let call = self.call(OpKind::SetAttributes, 0, 0);
        self.shared.operate(call, |state, strike| match strike {
            Some(strike) => Err(errno(strike.code)),
            None => state.world.set_owner(self.ino, uid, gid),
        })
    }

    fn stat(&self) -> io::Result<Stat> {
        let call = self.call(OpKind::FileStat, 0, 0);
        self.shared.operate(call, |state, _| state.world.stat(self.ino))
    }

    fn try_lock(&self) -> io::Result<bool> {
        let call = self.call(OpKind::Lock, 0, 0);
        self.shared
            .operate(call, |state, _| Ok(state.try_lock(self.ino, self.handle)))
    }

    fn map(&self, len: usize) -> io::Result<Mapping> {
        let call = self.call(OpKind::Map, 0, len);
        self.shared.operate(call, |state, _| {
            let file = state.world.file(self.ino)?;
            let file_len = file.cached.len();
            if len == 0 || file_len < len as u64 {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("a mapping of {len} bytes does not fit its file of {file_len}"),
                ));
            }
            if !self.access.write {
                return Err(errno(libc::EACCES));
            }
            if let Some(memory) = state.memories.get(&self.ino) {
                return memory.map(len);
            }
            let memory = SharedMemory::new(to_usize(file_len));
            for index in file.cached.filled() {
                memory.write(index, &file.cached.bytes(index));
            }
            let mapping = memory.map(len)?;
            state.memories.insert(self.ino, memory);
            Ok(mapping)
        })
    }
}

/// A directory that is open to be synced.
pub(crate) struct SimDir {
    shared: Arc<Shared>,
    ino: u64,
    handle: u64,
    path: PathBuf,
}

impl SimDir {
    pub(crate) fn new(shared: Arc<Shared>, ino: u64, handle: u64, path: &Path) -> Self {
        Self {
            shared,
            ino,
            handle,
            path: path.to_path_buf(),
        }
    }
}

impl Dir for SimDir {
    fn sync(&self) -> io::Result<()> {
        self.shared
            .sync_dir(&self.path, |world| world.dir(self.ino).map(|_| self.ino))
    }
}

impl Drop for SimDir {
    fn drop(&mut self) {
        self.shared.lock().close(self.ino, self.handle);
    }
}

impl fmt::Debug for SimDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDir")
            .field("path", &self.path)
            .field("ino", &self.ino)
            .finish_non_exhaustive()
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.shared.lock().close(self.ino, self.handle);
    }
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimFile")
            .field("path", &self.path)
            .field("ino", &self.ino)
            .finish_non_exhaustive()
    }
}
