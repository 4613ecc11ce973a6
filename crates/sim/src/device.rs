//! The simulated device: `collie-io`'s seam over a [`World`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use collie_io::{BLOCK, Clock, Device, Entry, File, OpenMode, Stat};

use crate::clock::SimClock;
use crate::content::Route;
use crate::fault::{Fault, FaultCounts, FaultKind, Faults, Strike};
use crate::file::SimFile;
use crate::image::{Points, Snapshot};
use crate::memory::SharedMemory;
use crate::rng::Rng;
use crate::trace::{Op, OpKind};
use crate::world::{Body, UID, World, errno};

/// A machine's file systems in memory: a disk at `/` and a memory-only one at
/// [`VOLATILE_DIR`](crate::VOLATILE_DIR).
///
/// Clones are the same device. All that happens by chance follows from the seed; with several threads,
/// from the seed and from the order in which they call.
///
/// A process "dies" by going on with [`Snapshot::process_death`]'s new device; [`SimDevice::kill`] then
/// makes every call on the old one fail, so that what is left of the process cannot do anything.
#[derive(Clone)]
pub struct SimDevice {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    state: Mutex<State>,
    /// Told whenever the sync gate closes, opens or gets a visitor. Waits on `state`.
    gate: Condvar,
    clock: SimClock,
}

/// Everything that changes, under one lock: operations take effect one after the other.
pub(crate) struct State {
    pub(crate) world: World,
    pub(crate) memories: BTreeMap<u64, Arc<SharedMemory>>,
    pub(crate) rng: Rng,
    pub(crate) op: u64,
    pub(crate) faults: Faults,
    trace: Vec<Op>,
    recorder: Recorder,
    opens: BTreeMap<u64, u64>,
    locks: BTreeMap<u64, u64>,
    next_handle: u64,
    killed: bool,
    direct: bool,
    room: Option<u64>,
    volatile_room: Option<u64>,
    sync_delay: Duration,
    gate_closed: bool,
    at_gate: usize,
}

/// Where an observer's moment comes from: see [`SimDevice::tag_snapshots`].
type TagSource = Box<dyn Fn() -> u64 + Send>;

/// Takes snapshots as a program runs.
struct Recorder {
    points: Points,
    limit: usize,
    seen: u64,
    tag: Option<TagSource>,
    taken: Vec<Snapshot>,
}

/// The trace forgets its older half when it is this long.
const TRACE_MAX: usize = 1 << 16;

/// Holds every sync of a device until it is released or dropped.
#[derive(Debug)]
pub struct SyncGate {
    device: SimDevice,
}

impl SyncGate {
    /// Waits until at least `n` syncs stand at the gate.
    pub fn wait_for(&self, n: usize) {
        let shared = &self.device.shared;
        let mut state = shared.lock();
        while state.at_gate < n {
            state = shared.gate.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets every sync go on.
    pub fn release(self) {
        drop(self);
    }
}

impl Drop for SyncGate {
    fn drop(&mut self) {
        self.device.shared.lock().gate_closed = false;
        self.device.shared.gate.notify_all();
    }
}

impl SimDevice {
    /// An empty disk.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::from_world(World::new(seed), SimClock::new())
    }

    pub(crate) fn from_world(mut world: World, clock: SimClock) -> Self {
        let rng = world.rng.fork();
        let state = State {
            world,
            memories: BTreeMap::new(),
            rng,
            op: 0,
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
            gate_closed: false,
            at_gate: 0,
        };
        let shared = Shared {
            state: Mutex::new(state),
            gate: Condvar::new(),
            clock,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Adds a rule by which the device misbehaves from now on.
    pub fn inject(&self, fault: Fault) {
        self.shared.lock().faults.add(fault);
    }

    /// Heals the device: removes all rules. The counters stay.
    pub fn heal(&self) {
        self.shared.lock().faults.clear();
    }

    /// How often each kind of fault fired.
    #[must_use]
    pub fn fault_counts(&self) -> FaultCounts {
        self.shared.lock().faults.counts.clone()
    }

    /// How often faults of this kind fired.
    #[must_use]
    pub fn fired(&self, kind: FaultKind) -> u64 {
        self.fault_counts().get(&kind).copied().unwrap_or(0)
    }

    /// Number of operations so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.shared.lock().op
    }

    /// The operations so far, oldest first; of a very long run the latest only.
    #[must_use]
    pub fn trace(&self) -> Vec<Op> {
        self.shared.lock().trace.clone()
    }

    /// The world as it is now, to make crash images of.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut state = self.shared.lock();
        let tag = state.recorder.tag.as_ref().map_or(0, |tag| tag());
        state.capture(tag, None, &self.shared.clock)
    }

    /// From now on takes a snapshot at each of `points`. Of more than `limit` a random choice is kept.
    pub fn record(&self, points: Points, limit: usize) {
        let recorder = &mut self.shared.lock().recorder;
        (recorder.points, recorder.limit) = (points, limit);
    }

    /// Gives every snapshot a tag, which `source` tells before the world is looked at: what an observer
    /// noted up to then happened before the crash. `source` is called with the device locked and must
    /// not use it.
    pub fn tag_snapshots(&self, source: impl Fn() -> u64 + Send + 'static) {
        self.shared.lock().recorder.tag = Some(Box::new(source));
    }

    /// The snapshots recorded so far, in their order, and an empty recorder.
    #[must_use]
    pub fn take_snapshots(&self) -> Vec<Snapshot> {
        let recorder = &mut self.shared.lock().recorder;
        recorder.seen = 0;
        let mut taken = std::mem::take(&mut recorder.taken);
        taken.sort_by_key(Snapshot::op);
        taken
    }

    /// Makes every later call fail, and every sync that stands at the gate: the process that used this
    /// device is dead.
    pub fn kill(&self) {
        let mut state = self.shared.lock();
        state.killed = true;
        state.gate_closed = false;
        drop(state);
        self.shared.gate.notify_all();
    }

    /// Whether files can be opened with [`OpenMode::DirectSync`] (at first they can).
    pub fn support_direct(&self, yes: bool) {
        self.shared.lock().direct = yes;
    }

    /// Leaves room for `bytes` more on the disk; `None` for no limit.
    pub fn limit_space(&self, bytes: Option<u64>) {
        let mut state = self.shared.lock();
        state.room = bytes.map(|n| n + state.used(false));
    }

    /// Leaves room for `bytes` more in the memory-only file system; `None` for no limit.
    pub fn limit_volatile_space(&self, bytes: Option<u64>) {
        let mut state = self.shared.lock();
        state.volatile_room = bytes.map(|n| n + state.used(true));
    }

    /// Every sync takes this much longer, in real time.
    pub fn delay_syncs(&self, delay: Duration) {
        self.shared.lock().sync_delay = delay;
    }

    /// Holds every sync from now on until the gate is released.
    #[must_use]
    pub fn hold_syncs(&self) -> SyncGate {
        self.shared.lock().gate_closed = true;
        SyncGate { device: self.clone() }
    }

    /// The clock, which a test may move.
    #[must_use]
    pub fn sim_clock(&self) -> &SimClock {
        &self.shared.clock
    }
}

impl fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        f.debug_struct("SimDevice")
            .field("operations", &state.op)
            .field("killed", &state.killed)
            .finish_non_exhaustive()
    }
}

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

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One operation: on the trace, with the fault that strikes it, if any, and with the snapshots wanted.
    pub(crate) fn operate<T>(
        &self,
        call: Call<'_>,
        act: impl FnOnce(&mut State, Option<Strike>) -> io::Result<T>,
    ) -> io::Result<T> {
        let kind = call.kind;
        let mut state = self.lock();
        let strike = state.begin(&call)?;
        if state.recorder.points == Points::Syncs && kind.syncs() {
            state.record(&self.clock);
        }
        let result = match strike {
            // Writes and syncs fail in their own ways; of all others nothing happens.
            Some(strike) if strike.kind == FaultKind::AnyFails && !fails_in_part(kind) => {
                Err(errno(strike.code))
            }
            strike => act(&mut state, strike),
        };
        if result.is_err()
            && let Some(op) = state.trace.last_mut()
        {
            op.failed = true;
        }
        state.record_after(kind, &self.clock);
        result
    }

    /// A sync's way through gate and delay: returns with the lock taken again, and with the number of the
    /// operation, which tells apart what came before it and what after.
    pub(crate) fn begin_sync(
        &self,
        call: &Call<'_>,
    ) -> io::Result<(MutexGuard<'_, State>, Option<Strike>, u64)> {
        let mut state = self.lock();
        let strike = state.begin(call)?;
        let op = state.op;
        if state.recorder.points == Points::Syncs {
            state.record(&self.clock);
        }
        let delay = state.sync_delay;
        if state.gate_closed || !delay.is_zero() {
            state.faults.count(FaultKind::SlowSync);
            state.at_gate += 1;
            self.gate.notify_all();
            while state.gate_closed {
                state = self.gate.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if !delay.is_zero() {
                drop(state);
                std::thread::sleep(delay);
                state = self.lock();
            }
            state.at_gate -= 1;
            if state.killed {
                return Err(dead());
            }
        }
        Ok((state, strike, op))
    }

    pub(crate) fn end_sync(&self, mut state: MutexGuard<'_, State>, op: u64, failed: bool, kind: OpKind) {
        if failed && let Some(entry) = state.trace.iter_mut().rev().find(|o| o.number == op) {
            entry.failed = true;
        }
        state.record_after(kind, &self.clock);
    }

    /// A snapshot in the middle of an operation, where one is wanted.
    pub(crate) fn record_within(&self, state: &mut State) {
        if state.recorder.points != Points::Never {
            state.record(&self.clock);
        }
    }
}

fn fails_in_part(kind: OpKind) -> bool {
    matches!(kind, OpKind::Write | OpKind::DirectWrite)
}

fn dead() -> io::Error {
    io::Error::other("the process that used this simulated device was killed")
}

impl State {
    fn begin(&mut self, call: &Call<'_>) -> io::Result<Option<Strike>> {
        if self.killed {
            return Err(dead());
        }
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

    fn record_after(&mut self, kind: OpKind, clock: &SimClock) {
        let wanted = match self.recorder.points {
            Points::Never => false,
            Points::Changes => kind.mutates(),
            Points::Syncs => kind.syncs(),
        };
        if wanted {
            self.record(clock);
        }
    }

    fn record(&mut self, clock: &SimClock) {
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
        match self.recorder.taken.get_mut(crate::content::to_usize(place)) {
            Some(slot) => *slot = snapshot,
            None => self.recorder.taken.push(snapshot),
        }
    }

    fn capture(&mut self, tag: u64, at: Option<Op>, clock: &SimClock) -> Snapshot {
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

    /// Takes what programs wrote through a mapping of `ino` into the file.
    pub(crate) fn absorb(&mut self, ino: u64) {
        let Some(memory) = self.memories.get(&ino) else {
            return;
        };
        let Ok(file) = self.world.file(ino) else {
            return;
        };
        let end = crate::content::sectors_in(file.cached.len().min(memory.len() as u64));
        let mut changed = Vec::new();
        for index in 0..end {
            let bytes = memory.read(index);
            let same = match file.cached.get(index) {
                Some(sector) => **sector == bytes,
                None => bytes.iter().all(|&b| b == 0),
            };
            if !same {
                changed.push((index, bytes));
            }
        }
        if changed.is_empty() {
            return;
        }
        let op = self.op;
        if let Ok(file) = self.world.file_mut(ino) {
            for (index, bytes) in changed {
                file.store(op, index, Some(crate::content::sector(bytes)), Route::Straight);
            }
        }
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
                self.collect();
            }
        }
    }

    pub(crate) fn try_lock(&mut self, ino: u64, handle: u64) -> bool {
        *self.locks.entry(ino).or_insert(handle) == handle
    }

    fn collect(&mut self) {
        let opens = &self.opens;
        self.world.collect(|ino| opens.contains_key(&ino));
        let inodes = &self.world.inodes;
        // A mapping keeps its memory by itself.
        self.memories.retain(|ino, _| inodes.contains_key(ino));
    }

    /// Bytes that the file system of `ino` has left; below zero where the last change took too many.
    pub(crate) fn room_left(&self, ino: u64) -> io::Result<Option<i64>> {
        let volatile = self.world.inode(ino)?.volatile;
        let room = if volatile { self.volatile_room } else { self.room };
        Ok(room.map(|room| {
            let signed = |n| i64::try_from(n).unwrap_or(i64::MAX);
            signed(room) - signed(self.used(volatile))
        }))
    }

    /// Space in use: what has a name or is open. What only a crash could bring back is free.
    fn used(&self, volatile: bool) -> u64 {
        let mut live: BTreeSet<u64> = self.opens.keys().copied().collect();
        for inode in self.world.inodes.values() {
            if let Body::Dir(dir) = &inode.body {
                live.extend(dir.cached.values());
            }
        }
        let files = self
            .world
            .inodes
            .iter()
            .filter_map(|(ino, inode)| match &inode.body {
                Body::File(file) if inode.volatile == volatile && live.contains(ino) => Some(file.space()),
                _ => None,
            });
        files.sum()
    }

    fn open_file(&mut self, path: &Path, mode: OpenMode) -> io::Result<u64> {
        let (dir, name) = self.world.resolve_parent(path)?;
        let found = self.world.dir(dir)?.cached.get(&name).copied();
        let ino = match (found, mode) {
            (Some(_), OpenMode::CreateNew) => return Err(errno(libc::EEXIST)),
            (Some(ino), _) => ino,
            (None, OpenMode::CreateNew | OpenMode::OpenOrCreate) => self.world.create(dir, name, false)?,
            (None, _) => return Err(errno(libc::ENOENT)),
        };
        self.world.file(ino)?;
        if mode == OpenMode::DirectSync && (!self.direct || self.world.inode(ino)?.volatile) {
            return Err(errno(libc::EINVAL));
        }
        *self.opens.entry(ino).or_default() += 1;
        Ok(ino)
    }

    fn create_dir(&mut self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.world.resolve_parent(path)?;
        if self.world.dir(dir)?.cached.contains_key(&name) {
            return Err(errno(libc::EEXIST));
        }
        self.world.create(dir, name, true)?;
        Ok(())
    }

    fn remove_file(&mut self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.world.resolve_parent(path)?;
        if let Some(&ino) = self.world.dir(dir)?.cached.get(&name) {
            self.world.file(ino)?;
        }
        self.world.unlink(dir, name)?;
        self.collect();
        Ok(())
    }

    fn remove_tree(&mut self, dir: u64, name: &str) -> io::Result<()> {
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

impl SimDevice {
    fn operate<T>(
        &self,
        kind: OpKind,
        path: &Path,
        act: impl FnOnce(&mut State, Option<Strike>) -> io::Result<T>,
    ) -> io::Result<T> {
        self.shared.operate(Call::new(kind, path), act)
    }
}

impl Device for SimDevice {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let exists = self.shared.lock().world.resolve(path).is_ok();
        let creates = matches!(mode, OpenMode::CreateNew | OpenMode::OpenOrCreate) && !exists;
        let kind = if creates { OpKind::Create } else { OpKind::Open };
        self.operate(kind, path, |state, strike| {
            if let Some(strike) = strike {
                return Err(errno(strike.code));
            }
            let ino = state.open_file(path, mode)?;
            let handle = state.next_handle();
            let file = SimFile::new(Arc::clone(&self.shared), ino, handle, mode, path);
            Ok(Arc::new(file) as Arc<dyn File>)
        })
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.operate(OpKind::Stat, path, |state, _| {
            state.world.stat(state.world.resolve(path)?)
        })
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.operate(OpKind::List, dir, |state, _| {
            let names = &state.world.dir(state.world.resolve(dir)?)?.cached;
            let entries = names.iter().map(|(name, &ino)| Entry {
                name: name.clone(),
                is_dir: state.world.dir(ino).is_ok(),
            });
            Ok(entries.collect())
        })
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let made = self.operate(OpKind::CreateDir, dir, |state, strike| match strike {
            Some(strike) => Err(errno(strike.code)),
            None if dir.parent().is_none() => Err(errno(libc::EEXIST)),
            None => state.create_dir(dir),
        });
        let parent = dir.parent().unwrap_or_else(|| Path::new("/"));
        match made {
            Ok(()) => self.sync_dir(parent),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && self.stat(dir)?.is_dir => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.create_dir_all(parent)?;
                self.create_dir_all(dir)
            }
            Err(e) => Err(e),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.operate(OpKind::Rename, from, |state, _| {
            state.world.rename(from, to)?;
            state.collect();
            Ok(())
        })
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.operate(OpKind::RemoveFile, path, |state, _| state.remove_file(path))
    }

    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.operate(OpKind::RemoveDir, dir, |state, _| {
            let (parent, name) = state.world.resolve_parent(dir)?;
            state.world.dir(state.world.resolve(dir)?)?;
            state.remove_tree(parent, &name)?;
            state.collect();
            Ok(())
        })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let call = Call::new(OpKind::SyncDir, dir);
        let (mut state, strike, op) = self.shared.begin_sync(&call)?;
        let result = state.world.resolve(dir).and_then(|ino| match strike {
            Some(strike) => {
                let mut rng = state.rng.fork();
                state.world.fail_sync_dir(ino, || rng.coin());
                Err(errno(strike.code))
            }
            None => state.world.sync_dir(ino),
        });
        state.collect();
        self.shared.end_sync(state, op, result.is_err(), call.kind);
        result
    }

    fn boot_id(&self) -> io::Result<[u8; 16]> {
        self.operate(OpKind::BootId, &PathBuf::new(), |state, _| {
            Ok(state.world.boot_id)
        })
    }

    fn random(&self, buf: &mut [u8]) -> io::Result<()> {
        self.operate(OpKind::Random, &PathBuf::new(), |state, _| {
            state.rng.fill(buf);
            Ok(())
        })
    }

    fn uid(&self) -> u32 {
        UID
    }

    fn clock(&self) -> &dyn Clock {
        &self.shared.clock
    }
}

/// Whether direct I/O may use these bounds.
pub(crate) fn aligned(buf: &[u8], offset: u64) -> bool {
    (buf.as_ptr() as usize).is_multiple_of(BLOCK)
        && buf.len().is_multiple_of(BLOCK)
        && offset.is_multiple_of(BLOCK as u64)
}
