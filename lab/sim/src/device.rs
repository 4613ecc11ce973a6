//! The simulated device: `collie-io`'s seam over a [`World`].

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use collie_io::{
    BLOCK, Clock, Device, Dir, DirSteps, Entry, File, FileKind, FsStat, Nanos, OpenMode, Stat, create_dirs,
};

use crate::clock::SimClock;
use crate::fault::{Fault, FaultCounts, FaultKind, Strike};
use crate::file::{SimDir, SimFile};
use crate::image::{Points, Snapshot};
use crate::state::{Call, State, dead};
use crate::trace::{Op, OpKind};
use crate::world::{Body, New, UID, What, World, errno};

/// A machine's file systems in memory: a disk at `/` and a memory-only one at
/// [`VOLATILE_DIR`](crate::VOLATILE_DIR).
///
/// Clones are the same device. All that happens by chance follows from the seed; with several
/// threads, from the seed and from the order in which they call.
///
/// A process "dies" by going on with [`Snapshot::process_death`]'s new device; [`SimDevice::kill`]
/// then makes every call on the old one fail, so that what is left of the process cannot do
/// anything.
#[derive(Clone)]
pub struct SimDevice {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    state: Mutex<State>,
    /// Notified whenever a gate closes, opens or gets a visitor. Waits on `state`.
    gate: Condvar,
    pub(crate) clock: SimClock,
}

/// What a [`Gate`] holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    Syncs,
    Writes,
    Reads,
}

/// Holds every sync, every write or every read, of a device until it is released or dropped.
#[derive(Debug)]
pub struct Gate {
    device: SimDevice,
}

impl Gate {
    /// Waits until at least `n` calls stand at the gate.
    pub fn wait_for(&self, n: usize) {
        let shared = &self.device.shared;
        let mut state = shared.lock();
        while state.at_gate < n {
            state = shared.gate.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// How many calls stand at the gate.
    #[must_use]
    pub fn at_once(&self) -> usize {
        self.device.shared.lock().at_gate
    }

    /// Lets those go on that stand at the gate, and holds the next ones. Waits until they have left
    /// it.
    pub fn let_through(&self) {
        let shared = &self.device.shared;
        let mut state = shared.lock();
        state.let_through = state.at_gate;
        shared.gate.notify_all();
        while state.let_through > 0 {
            state = shared.gate.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets every call go on.
    pub fn release(self) {
        drop(self);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.device.shared.lock().held = None;
        self.device.shared.gate.notify_all();
    }
}

impl SimDevice {
    /// An empty disk.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::from_world(World::new(seed), 0, SimClock::new())
    }

    pub(crate) fn from_world(world: World, op: u64, clock: SimClock) -> Self {
        let shared = Shared {
            state: Mutex::new(State::new(world, op)),
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

    /// Number of operations so far, those on the device that this one is an image of included.
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

    /// From now on takes a snapshot at each of `points`. Of more than `limit` a random choice is
    /// kept.
    pub fn record(&self, points: Points, limit: usize) {
        let recorder = &mut self.shared.lock().recorder;
        (recorder.points, recorder.limit) = (points, limit);
    }

    /// Gives every snapshot a tag, which `source` gives before the world is looked at: what an
    /// observer noted up to then happened before the crash. `source` is called with the device
    /// locked and must not use it.
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

    /// Makes every later call fail, and every call that stands at a gate: the process
    /// that used this device is dead.
    pub fn kill(&self) {
        let mut state = self.shared.lock();
        state.killed = true;
        state.held = None;
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

    /// Space that is in use on the disk, in bytes.
    #[must_use]
    pub fn used_space(&self) -> u64 {
        self.shared.lock().used(false)
    }

    /// How many files and directories are open.
    #[must_use]
    pub fn open_files(&self) -> u64 {
        self.shared.lock().opens.values().sum()
    }

    /// Every sync takes this much longer, in real time.
    pub fn delay_syncs(&self, delay: Duration) {
        self.shared.lock().sync_delay = delay;
    }

    /// Every write past the page cache takes so long by the device's own clock, in nanoseconds; at
    /// first it takes no time, as all else.
    pub fn slow_direct_writes(&self, takes: Nanos) {
        self.shared.lock().direct_write = takes;
    }

    /// Holds every sync from now on until the gate is released.
    #[must_use]
    pub fn hold_syncs(&self) -> Gate {
        self.hold(Held::Syncs)
    }

    /// Holds every write to a file from now on until the gate is released. One gate at a time.
    #[must_use]
    pub fn hold_writes(&self) -> Gate {
        self.hold(Held::Writes)
    }

    /// Holds every read of a file from now on until the gate is released. One gate at a time.
    #[must_use]
    pub fn hold_reads(&self) -> Gate {
        self.hold(Held::Reads)
    }

    fn hold(&self, held: Held) -> Gate {
        let mut state = self.shared.lock();
        (state.held, state.let_through) = (Some(held), 0);
        drop(state);
        Gate { device: self.clone() }
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

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One operation: on the trace, with the fault that strikes it, if any, and with the snapshots
    /// wanted.
    pub(crate) fn operate<T>(
        &self,
        call: Call<'_>,
        act: impl FnOnce(&mut State, Option<Strike>) -> io::Result<T>,
    ) -> io::Result<T> {
        let kind = call.kind;
        let mut state = self.lock();
        if fails_in_part(kind) {
            state = self.pass_gate(state, Held::Writes);
        }
        if kind == OpKind::Read {
            state = self.pass_gate(state, Held::Reads);
        }
        let strike = state.begin(&call, &self.clock)?;
        state.record_before(kind, &self.clock);
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

    /// A sync's way through gate and delay: returns with the lock taken again, and with the number
    /// of the operation, which separates what came before it and what after.
    pub(crate) fn begin_sync(
        &self,
        call: &Call<'_>,
    ) -> io::Result<(MutexGuard<'_, State>, Option<Strike>, u64)> {
        let mut state = self.lock();
        let strike = state.begin(call, &self.clock)?;
        let op = state.op;
        state.record_before(call.kind, &self.clock);
        let delay = state.sync_delay;
        if state.held == Some(Held::Syncs) || !delay.is_zero() {
            state.faults.count(FaultKind::SlowSync);
            state = self.pass_gate(state, Held::Syncs);
            if !delay.is_zero() {
                drop(state);
                std::thread::sleep(delay);
                state = self.lock();
            }
            if state.killed {
                return Err(dead());
            }
        }
        Ok((state, strike, op))
    }

    /// Stands at the gate while it holds such calls.
    fn pass_gate<'a>(&'a self, mut state: MutexGuard<'a, State>, kind: Held) -> MutexGuard<'a, State> {
        if state.held != Some(kind) {
            return state;
        }
        state.at_gate += 1;
        self.gate.notify_all();
        while state.held == Some(kind) && state.let_through == 0 {
            state = self.gate.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.let_through = state.let_through.saturating_sub(1);
        state.at_gate -= 1;
        self.gate.notify_all();
        state
    }

    /// Syncs the directory that `find` finds; `dir` is how it is called.
    pub(crate) fn sync_dir(
        &self,
        dir: &Path,
        find: impl FnOnce(&World) -> io::Result<u64>,
    ) -> io::Result<()> {
        let call = Call::new(OpKind::SyncDir, dir);
        let (mut state, strike, op) = self.begin_sync(&call)?;
        let result = find(&state.world).and_then(|ino| match strike {
            Some(strike) => {
                let mut rng = state.rng.fork();
                state.world.fail_sync_dir(ino, || rng.coin());
                Err(errno(strike.code))
            }
            None => state.world.sync_dir(ino),
        });
        state.collect();
        self.end_sync(state, op, result.is_err(), call.kind);
        result
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

impl SimDevice {
    fn operate<T>(
        &self,
        kind: OpKind,
        path: &Path,
        act: impl FnOnce(&mut State, Option<Strike>) -> io::Result<T>,
    ) -> io::Result<T> {
        self.shared.operate(Call::new(kind, path), act)
    }

    /// An operation on names or attributes, of which a fault lets nothing happen.
    fn change(
        &self,
        kind: OpKind,
        path: &Path,
        act: impl FnOnce(&mut State) -> io::Result<()>,
    ) -> io::Result<()> {
        self.operate(kind, path, |state, strike| {
            if let Some(strike) = strike {
                return Err(errno(strike.code));
            }
            act(state)?;
            state.collect();
            Ok(())
        })
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
            let file = SimFile::new(Arc::clone(&self.shared), ino, handle, mode.into(), path);
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
                kind: state.world.kind(ino),
            });
            Ok(entries.collect())
        })
    }

    fn read_dir(&self, dir: &Path, each: &mut dyn FnMut(&OsStr, FileKind, u64)) -> io::Result<()> {
        // A name that `each` is told of may be gone by then, as on any device.
        let found = self.operate(OpKind::List, dir, |state, _| {
            let names = &state.world.dir(state.world.resolve(dir)?)?.cached;
            let found = names
                .iter()
                .map(|(name, &ino)| (name.clone(), state.world.kind(ino), ino));
            Ok(found.collect::<Vec<_>>())
        })?;
        for (name, kind, ino) in found {
            each(OsStr::new(&name), kind, ino);
        }
        Ok(())
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        create_dirs(self, dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change(OpKind::Rename, from, |state| state.world.rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.operate(OpKind::RemoveFile, path, |state, strike| match strike {
            // What is not there is said not to be there first.
            Some(strike) if state.world.resolve(path).is_ok() => Err(errno(strike.code)),
            _ => state.remove_file(path),
        })
    }

    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.operate(OpKind::RemoveDir, dir, |state, _| {
            let (parent, name) = state.world.resolve_parent(dir)?;
            let found = state.world.walk(dir, false)?.taken()?;
            if matches!(state.world.inode(found)?.body, Body::File(_)) {
                return Err(errno(libc::ENOTDIR));
            }
            state.remove_tree(parent, &name)?;
            state.collect();
            Ok(())
        })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.shared.sync_dir(dir, |world| world.resolve(dir))
    }

    fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn Dir>> {
        self.operate(OpKind::Open, dir, |state, strike| {
            if let Some(strike) = strike {
                return Err(errno(strike.code));
            }
            let ino = state.world.resolve(dir)?;
            state.world.dir(ino)?;
            *state.opens.entry(ino).or_default() += 1;
            let handle = state.next_handle();
            let open = SimDir::new(Arc::clone(&self.shared), ino, handle, dir);
            Ok(Arc::new(open) as Arc<dyn Dir>)
        })
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

    fn lstat(&self, path: &Path) -> io::Result<Stat> {
        self.operate(OpKind::Stat, path, |state, _| {
            state.world.stat(state.world.walk(path, false)?.taken()?)
        })
    }

    fn create_dir(&self, path: &Path, mode: u32) -> io::Result<()> {
        let new = New {
            mode,
            ..New::private(What::Dir)
        };
        self.change(OpKind::CreateDir, path, |state| state.create(path, new))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.remove_empty_dir(path)
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change(OpKind::Rename, from, |state| {
            state.world.walk(from, false)?.taken()?;
            state.world.walk(to, false)?.free()?;
            state.world.rename(from, to)
        })
    }

    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        self.change(OpKind::Symlink, link, |state| {
            state.create(link, New::private(New::link(target)?))
        })
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        self.operate(OpKind::Stat, path, |state, _| {
            state.world.link_target(state.world.walk(path, false)?.taken()?)
        })
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change(OpKind::HardLink, from, |state| {
            let ino = state.world.walk(from, false)?.taken()?;
            let (dir, name) = state.world.walk(to, false)?.free()?;
            state.world.link(ino, dir, name)
        })
    }

    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.change(OpKind::SetAttributes, path, |state| {
            let ino = state.world.walk(path, false)?.taken()?;
            if state.world.link_target(ino).is_ok() {
                return Err(errno(libc::EOPNOTSUPP));
            }
            state.world.set_mode(ino, mode)
        })
    }

    fn set_owner(&self, path: &Path, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        self.change(OpKind::SetAttributes, path, |state| {
            let ino = state.world.walk(path, false)?.taken()?;
            state.world.set_owner(ino, uid, gid)
        })
    }

    fn set_times(&self, path: &Path, atime: Option<i64>, mtime: Option<i64>) -> io::Result<()> {
        self.change(OpKind::SetAttributes, path, |state| {
            let ino = state.world.walk(path, false)?.taken()?;
            state.world.set_times(ino, atime, mtime)
        })
    }

    fn statfs(&self, path: &Path) -> io::Result<FsStat> {
        self.operate(OpKind::Stat, path, |state, _| {
            let ino = state.world.resolve(path)?;
            Ok(state.fs_stat(state.world.inode(ino)?.volatile))
        })
    }
}

impl DirSteps for SimDevice {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        let new = New::private(What::Dir);
        self.change(OpKind::CreateDir, dir, |state| state.create(dir, new))
    }

    fn is_dir(&self, path: &Path) -> io::Result<bool> {
        Ok(self.stat(path)?.is_dir())
    }

    fn sync_names(&self, dir: &Path) -> io::Result<()> {
        self.sync_dir(dir)
    }

    fn remove_empty_dir(&self, dir: &Path) -> io::Result<()> {
        self.operate(OpKind::RemoveDir, dir, |state, _| {
            let (parent, name) = state.world.resolve_parent(dir)?;
            state.world.remove_dir(parent, name)?;
            state.collect();
            Ok(())
        })
    }
}

/// Whether direct I/O may use these bounds.
pub(crate) fn aligned(buf: &[u8], offset: u64) -> bool {
    (buf.as_ptr() as usize).is_multiple_of(BLOCK)
        && buf.len().is_multiple_of(BLOCK)
        && offset.is_multiple_of(BLOCK as u64)
}
