//! Everything about a simulated device that changes, and what operations do with it.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use collie_io::{BLOCK, Clock, FsStat, Nanos, OpenMode, RealClock};

use crate::clock::SimClock;
use crate::content::{Route, SECTOR, sector, sectors_in, to_usize};
use crate::device::Held;
use crate::fault::{Faults, Strike};
use crate::image::{Points, Snapshot};
use crate::memory::SharedMemory;
use crate::rng::Rng;
use crate::trace::{Op, OpKind};
use crate::world::{Body, New, What, World, errno};

/// Everything that changes, under one lock: operations take effect one after the other.
pub(crate) struct State {
    pub(crate) world: World,
    pub(crate) memories: BTreeMap<u64, Arc<SharedMemory>>,
    pub(crate) rng: Rng,
    pub(crate) op: u64,
    pub(crate) faults: Faults,
    pub(crate) trace: Vec<Op>,
    pub(crate) recorder: Recorder,
    pub(crate) opens: BTreeMap<u64, u64>,
    pub(crate) locks: BTreeMap<u64, u64>,
    pub(crate) next_handle: u64,
    pub(crate) killed: bool,
    pub(crate) direct: bool,
    pub(crate) room: Option<u64>,
    pub(crate) volatile_room: Option<u64>,
    pub(crate) sync_delay: Duration,
    /// What a direct write takes, by the device's clock.
    pub(crate) direct_write: Nanos,
    pub(crate) held: Option<Held>,
    pub(crate) at_gate: usize,
    /// How many of those that stand at the gate may go on.
    pub(crate) let_through: usize,
    /// Files have the machine's times, and not those of the device's clock.
    pub(crate) real_time: bool,
    /// How often something may have lost its last name or opening since all were looked at.
    unlooked: usize,
}

/// Where an observer's moment comes from: see [`SimDevice::tag_snapshots`].
pub(crate) type TagSource = Box<dyn Fn() -> u64 + Send>;

/// Takes snapshots as a program runs.
pub(crate) struct Recorder {
    pub(crate) points: Points,
    pub(crate) limit: usize,
    pub(crate) seen: u64,
    pub(crate) tag: Option<TagSource>,
    pub(crate) taken: Vec<Snapshot>,
}

/// What is reported as the room on a disk without a limit, in bytes.
const ROOM: u64 = 1 << 36;
/// How many files and directories are said to fit.
const FILES: u64 = 1 << 32;
/// The trace forgets its older half when it is this long.
const TRACE_MAX: usize = 1 << 16;

/// What is about to be done.
pub(crate) struct Call<'a> {
    pub(crate) kind: OpKind,
    pub(crate) path: &'a Path,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl<'a> Call<'a> {
    pub(crate) fn new(kind: OpKind, path: &'a Path) -> Self {
        Self {
            kind,
            path,
            offset: 0,
            len: 0,
        }
    }
}

pub(crate) fn dead() -> io::Error {
    io::Error::other("the process that used this simulated device was killed")
}

impl State {
    pub(crate) fn new(mut world: World, op: u64) -> Self {
        let rng = world.rng.fork();
        Self {
            world,
            memories: BTreeMap::new(),
            rng,
            op,
            faults: Faults::default(),
            trace: Vec::new(),
            recorder: Recorder {
                points: Points::Never,
                limit: 0,
                seen: 0,
                tag: None,
                taken: Vec::new(),
            },
            opens: BTreeMap::new(),
            locks: BTreeMap::new(),
            next_handle: 1,
            killed: false,
            direct: true,
            room: None,
            volatile_room: None,
            sync_delay: Duration::ZERO,
            direct_write: 0,
            held: None,
            at_gate: 0,
            let_through: 0,
            real_time: false,
            unlooked: 0,
        }
    }

    /// Begins an operation, at this time of the clock.
    pub(crate) fn begin(&mut self, call: &Call<'_>, clock: &SimClock) -> io::Result<Option<Strike>> {
        if self.killed {
            return Err(dead());
        }
        let clock: &dyn Clock = if self.real_time { &RealClock } else { clock };
        self.world.now = i64::try_from(clock.wall_us().saturating_mul(1_000)).unwrap_or(i64::MAX);
        self.op += 1;
        if self.trace.len() >= TRACE_MAX {
            self.trace.drain(..TRACE_MAX / 2);
        }
        self.trace.push(Op {
            number: self.op,
            kind: call.kind,
            path: Arc::new(call.path.to_path_buf()),
            offset: call.offset,
            len: call.len,
            failed: false,
        });
        Ok(self.faults.strike(call.kind, call.path, &mut self.rng))
    }

    /// What is in files was recorded after the operation before; memory may have changed since.
    pub(crate) fn record_before(&mut self, kind: OpKind, clock: &SimClock) {
        let wanted = match self.recorder.points {
            Points::Never => false,
            Points::Changes => kind.mutates() && !self.memories.is_empty(),
            Points::Syncs => kind.syncs(),
        };
        if wanted {
            self.record(clock);
        }
    }

    pub(crate) fn record_after(&mut self, kind: OpKind, clock: &SimClock) {
        let wanted = match self.recorder.points {
            Points::Never => false,
            Points::Changes => kind.mutates(),
            Points::Syncs => kind.syncs(),
        };
        if wanted {
            self.record(clock);
        }
    }

    pub(crate) fn record(&mut self, clock: &SimClock) {
        self.recorder.seen += 1;
        let full = self.recorder.taken.len() >= self.recorder.limit;
        let place = if full {
            // Every snapshot has the same chance to be among those kept.
            self.rng.below(self.recorder.seen)
        } else {
            self.recorder.taken.len() as u64
        };
        if place >= self.recorder.limit as u64 {
            return;
        }
        let tag = self.recorder.tag.as_ref().map_or(0, |tag| tag());
        let snapshot = self.capture(tag, self.trace.last().cloned(), clock);
        match self.recorder.taken.get_mut(to_usize(place)) {
            Some(slot) => *slot = snapshot,
            None => self.recorder.taken.push(snapshot),
        }
    }

    pub(crate) fn capture(&mut self, tag: u64, at: Option<Op>, clock: &SimClock) -> Snapshot {
        self.absorb_all();
        let mut world = self.world.clone();
        world.rng = self.rng.fork();
        Snapshot::new(world, self.op, tag, at, clock.monotonic())
    }

    /// Takes what programs wrote through mappings into the files.
    fn absorb_all(&mut self) {
        for ino in self.memories.keys().copied().collect::<Vec<_>>() {
            self.absorb(ino);
        }
    }

    /// Takes what programs wrote through a mapping of `ino` into the file: what was there at one
    /// moment. Threads go on writing, so the memory is looked at until nothing has changed since
    /// the last look; a later frame would otherwise be taken without an earlier one. They cannot go
    /// on for ever, for the device is locked.
    pub(crate) fn absorb(&mut self, ino: u64) {
        while self.absorb_once(ino) {}
    }

    /// Whether anything had changed.
    fn absorb_once(&mut self, ino: u64) -> bool {
        let Some(memory) = self.memories.get(&ino) else {
            return false;
        };
        let Ok(file) = self.world.file(ino) else {
            return false;
        };
        let end = sectors_in(file.cached.len().min(memory.len() as u64));
        let mut changed = Vec::new();
        for index in 0..end {
            let bytes = memory.read(index);
            let same = match file.cached.get(index) {
                Some(sector) => **sector == bytes,
                None => bytes == [0; SECTOR],
            };
            if !same {
                changed.push((index, bytes));
            }
        }
        let any = !changed.is_empty();
        let op = self.op;
        if let Ok(file) = self.world.file_mut(ino) {
            for (index, bytes) in changed {
                file.store(op, index, Some(sector(bytes)), Route::Straight);
            }
        }
        any
    }

    pub(crate) fn next_handle(&mut self) -> u64 {
        self.next_handle += 1;
        self.next_handle
    }

    pub(crate) fn close(&mut self, ino: u64, handle: u64) {
        if self.locks.get(&ino) == Some(&handle) {
            self.locks.remove(&ino);
        }
        if let Some(count) = self.opens.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                self.opens.remove(&ino);
                if self.world.inode(ino).is_ok_and(|inode| inode.names.is_empty()) {
                    self.collect();
                }
            }
        }
    }

    pub(crate) fn try_lock(&mut self, ino: u64, handle: u64) -> bool {
        *self.locks.entry(ino).or_insert(handle) == handle
    }

    /// Forgets what nothing can reach any more; where no memory is mapped, once in a while.
    pub(crate) fn collect(&mut self) {
        self.unlooked += 1;
        if self.memories.is_empty() && self.unlooked < self.world.inodes.len() / 4 {
            return;
        }
        self.unlooked = 0;
        let opens = &self.opens;
        self.world.collect(|ino| opens.contains_key(&ino));
        let inodes = &self.world.inodes;
        // A mapping keeps its memory by itself.
        self.memories.retain(|ino, _| inodes.contains_key(ino));
    }

    /// Bytes that the file system of `ino` has left; below zero where the last change took too
    /// many.
    pub(crate) fn room_left(&self, ino: u64) -> io::Result<Option<i64>> {
        let volatile = self.world.inode(ino)?.volatile;
        let room = if volatile { self.volatile_room } else { self.room };
        Ok(room.map(|room| {
            let signed = |n| i64::try_from(n).unwrap_or(i64::MAX);
            signed(room) - signed(self.used(volatile))
        }))
    }

    /// Space in use: what has a name or is open. What only a crash could bring back is free.
    pub(crate) fn used(&self, volatile: bool) -> u64 {
        let is_live = |ino, names: &[_]| !names.is_empty() || self.opens.contains_key(ino);
        let files = self
            .world
            .inodes
            .iter()
            .filter_map(|(ino, inode)| match &inode.body {
                Body::File(file) if inode.volatile == volatile && is_live(ino, &inode.names) => {
                    Some(file.space())
                }
                _ => None,
            });
        files.sum()
    }

    /// The room on one of the two file systems.
    pub(crate) fn fs_stat(&self, volatile: bool) -> FsStat {
        let (room, used) = (
            if volatile { self.volatile_room } else { self.room },
            self.used(volatile),
        );
        let all = room.unwrap_or(ROOM);
        let free = all.saturating_sub(used) / BLOCK as u64;
        FsStat {
            block_size: BLOCK as u64,
            blocks: all / BLOCK as u64,
            free,
            available: free,
            files: FILES,
            free_files: FILES.saturating_sub(self.world.inodes.len() as u64),
        }
    }

    pub(crate) fn open_file(&mut self, path: &Path, mode: OpenMode) -> io::Result<u64> {
        // A link is gone through to what is there, and to where something is made; a new file's own
        // name must be free.
        let place = self.world.walk(path, mode != OpenMode::CreateNew)?;
        let ino = match (place.ino, mode) {
            (Some(_), OpenMode::CreateNew) => return Err(errno(libc::EEXIST)),
            (Some(ino), _) => ino,
            (None, OpenMode::CreateNew | OpenMode::OpenOrCreate) => {
                let (dir, name) = place.named()?;
                self.world.create(dir, name, New::private(What::File))?
            }
            (None, _) => return Err(errno(libc::ENOENT)),
        };
        self.world.file(ino)?;
        if mode == OpenMode::DirectSync && (!self.direct || self.world.inode(ino)?.volatile) {
            return Err(errno(libc::EINVAL));
        }
        *self.opens.entry(ino).or_default() += 1;
        Ok(ino)
    }

    /// Fails where something has a name.
    pub(crate) fn free_name(&self, dir: u64, name: &str) -> io::Result<()> {
        match self.world.dir(dir)?.cached.contains_key(name) {
            true => Err(errno(libc::EEXIST)),
            false => Ok(()),
        }
    }

    /// Makes something at a path that nothing has.
    pub(crate) fn create(&mut self, path: &Path, new: New) -> io::Result<()> {
        let (dir, name) = self.world.walk(path, false)?.free()?;
        self.world.create(dir, name, new)?;
        Ok(())
    }

    pub(crate) fn remove_file(&mut self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.world.resolve_parent(path)?;
        if let Some(&ino) = self.world.dir(dir)?.cached.get(&name)
            && self.world.dir(ino).is_ok()
        {
            return Err(errno(libc::EISDIR));
        }
        self.world.unlink(dir, name)?;
        self.collect();
        Ok(())
    }

    pub(crate) fn remove_tree(&mut self, dir: u64, name: &str) -> io::Result<()> {
        let ino = *self
            .world
            .dir(dir)?
            .cached
            .get(name)
            .ok_or_else(|| errno(libc::ENOENT))?;
        if let Ok(below) = self.world.dir(ino) {
            for child in below.cached.keys().cloned().collect::<Vec<_>>() {
                self.remove_tree(ino, &child)?;
            }
        }
        self.world.unlink(dir, name.to_owned())?;
        Ok(())
    }
}
