//! One life of the disk: what is asked of it, and where it stops.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use collie_io::{Device, Entry, File, OpenMode, RealDevice, Stat};

use super::Names;
use crate::device::SimDevice;
use crate::fault::Strike;
use crate::file::{Access, SimFile};
use crate::state::{Call, State};
use crate::trace::OpKind;
use crate::world::{Body, errno};

/// What a program asks for.
#[derive(Debug, Clone)]
pub struct Asked {
    /// What it does.
    pub kind: OpKind,
    /// The file or directory; for a renaming the old name. Empty where it has no name any more.
    pub path: PathBuf,
    /// For a renaming, the new name.
    pub to: Option<PathBuf>,
    /// First byte read or written.
    pub offset: u64,
    /// The name of the thread that asks; empty where it does not change anything.
    pub thread: Arc<str>,
}

/// When a disk stops, of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Nothing of it has happened.
    Before,
    /// It has happened, and its caller does not learn of it.
    After,
}

/// The operation at which a disk stops: the `nth` of those that `at` is true of, counted from 1.
pub struct Trap {
    at: Box<dyn Fn(&Asked) -> bool + Send>,
    nth: u64,
    moment: Moment,
}

impl Trap {
    /// A trap for the `nth` operation, counted from 1, of those that can change anything and that
    /// `at` is true of.
    #[must_use]
    pub fn new(nth: u64, moment: Moment, at: impl Fn(&Asked) -> bool + Send + 'static) -> Self {
        Self {
            at: Box::new(at),
            nth,
            moment,
        }
    }
}

impl fmt::Debug for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trap({:?} {})", self.moment, self.nth)
    }
}

/// Where a disk stopped.
#[derive(Debug, Clone)]
pub struct Fell {
    /// The operation, and the moment; `None` where it was stopped from outside.
    pub at: Option<(Asked, Moment)>,
}

/// What waits for an answer that never comes.
type Parked = Box<dyn FnOnce() + Send>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    On,
    /// Nothing is answered.
    Stopped,
    /// Everything fails.
    Off,
}

/// What becomes of an operation.
enum Passage {
    Go,
    /// It happens, and then the disk stops.
    Last(Asked),
    Park,
    Fail,
}

struct Traffic {
    phase: Phase,
    trap: Option<Trap>,
    fell: Option<Fell>,
    parked: Vec<Parked>,
    /// Operations that are under way.
    busy: usize,
    counts: BTreeMap<OpKind, u64>,
    changes: u64,
    /// Threads by number.
    threads: BTreeMap<u32, Arc<str>>,
}

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

#[derive(Default)]
struct Handles {
    next: u64,
    files: BTreeMap<u64, Arc<OpenFile>>,
    lists: BTreeMap<u64, Listing>,
}

/// A disk from power on to power off.
pub(super) struct Disk {
    device: SimDevice,
    names: Names,
    traffic: Mutex<Traffic>,
    /// Notified when the phase changes, or the last operation that was under way has ended.
    changed: Condvar,
    handles: Mutex<Handles>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lost() -> io::Error {
    errno(libc::EIO)
}

impl Disk {
    pub(super) fn new(device: SimDevice, names: Names) -> Self {
        Self {
            device,
            names,
            traffic: Mutex::new(Traffic {
                phase: Phase::On,
                trap: None,
                fell: None,
                parked: Vec::new(),
                busy: 0,
                counts: BTreeMap::new(),
                changes: 0,
                threads: BTreeMap::new(),
            }),
            changed: Condvar::new(),
            handles: Mutex::default(),
        }
    }

    pub(super) fn device(&self) -> &SimDevice {
        &self.device
    }

    pub(super) fn counts(&self) -> BTreeMap<OpKind, u64> {
        lock(&self.traffic).counts.clone()
    }

    pub(super) fn changes(&self) -> u64 {
        lock(&self.traffic).changes
    }

    pub(super) fn set_trap(&self, trap: Option<Trap>) {
        lock(&self.traffic).trap = trap;
    }

    pub(super) fn stop(&self) {
        lock(&self.traffic).stop(None);
        self.changed.notify_all();
    }

    /// Where the disk stopped, waited for.
    pub(super) fn fell(&self, patience: Duration) -> Option<Fell> {
        self.wait(patience, |traffic| traffic.fell.is_some()).fell.clone()
    }

    /// Stops the disk, lets what waits for an answer fail, and waits for what is under way.
    pub(super) fn power_off(&self, patience: Duration) -> io::Result<()> {
        let mut traffic = lock(&self.traffic);
        traffic.stop(None);
        traffic.phase = Phase::Off;
        let parked = std::mem::take(&mut traffic.parked);
        drop(traffic);
        self.changed.notify_all();
        parked.into_iter().for_each(|answer| answer());
        match self.wait(patience, |traffic| traffic.busy == 0).busy {
            0 => Ok(()),
            busy => Err(io::Error::other(format!(
                "{busy} operations have not ended {patience:?} after the power went"
            ))),
        }
    }

    /// The traffic when it is `done`, or after `patience`.
    fn wait(&self, patience: Duration, done: impl Fn(&Traffic) -> bool) -> MutexGuard<'_, Traffic> {
        let traffic = lock(&self.traffic);
        let waited = self
            .changed
            .wait_timeout_while(traffic, patience, |traffic| !done(traffic));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Does what is asked for and answers with what came of it; or, where the disk stops at it or
    /// has stopped, answers when the power is off.
    pub(super) fn serve<T, R: Send + 'static>(
        &self,
        asked: impl FnOnce() -> Asked,
        by: u32,
        reply: R,
        act: impl FnOnce(&Self) -> io::Result<T>,
        answer: impl FnOnce(R, io::Result<T>) + Send + 'static,
    ) {
        match self.enter(asked(), by) {
            Passage::Go => {
                let done = act(self);
                self.leave();
                answer(reply, done);
            }
            Passage::Last(asked) => {
                // Its caller does not learn what came of it.
                let _ = act(self);
                lock(&self.traffic).stop(Some((asked, Moment::After)));
                self.leave();
                self.park(Box::new(move || answer(reply, Err(lost()))));
            }
            Passage::Park => self.park(Box::new(move || answer(reply, Err(lost())))),
            Passage::Fail => answer(reply, Err(lost())),
        }
    }

    fn enter(&self, mut asked: Asked, by: u32) -> Passage {
        let mut traffic = lock(&self.traffic);
        match traffic.phase {
            Phase::On => {}
            Phase::Stopped => return Passage::Park,
            Phase::Off => return Passage::Fail,
        }
        *traffic.counts.entry(asked.kind).or_default() += 1;
        if asked.kind.mutates() {
            traffic.changes += 1;
            asked.thread = traffic.thread(by);
            if let Some(moment) = traffic.springs(&asked) {
                if moment == Moment::After {
                    traffic.busy += 1;
                    return Passage::Last(asked);
                }
                traffic.stop(Some((asked, moment)));
                self.changed.notify_all();
                return Passage::Park;
            }
        }
        traffic.busy += 1;
        Passage::Go
    }

    fn leave(&self) {
        lock(&self.traffic).busy -= 1;
        self.changed.notify_all();
    }

    fn park(&self, answer: Parked) {
        let mut traffic = lock(&self.traffic);
        if traffic.phase == Phase::Off {
            drop(traffic);
            answer();
        } else {
            traffic.parked.push(answer);
        }
    }
}

impl Traffic {
    fn stop(&mut self, at: Option<(Asked, Moment)>) {
        self.trap = None;
        if self.phase == Phase::On {
            self.phase = Phase::Stopped;
            self.fell = Some(Fell { at });
        }
    }

    /// Whether the trap springs at an operation, and when of it.
    fn springs(&mut self, asked: &Asked) -> Option<Moment> {
        let trap = self.trap.as_mut().filter(|trap| (trap.at)(asked))?;
        trap.nth = trap.nth.saturating_sub(1);
        (trap.nth == 0).then_some(trap.moment)
    }

    /// The name of a thread.
    fn thread(&mut self, number: u32) -> Arc<str> {
        let name = || thread_name(number).unwrap_or_default().into();
        Arc::clone(self.threads.entry(number).or_insert_with(name))
    }
}

/// What the kernel calls a thread: the first fifteen bytes of its name.
fn thread_name(number: u32) -> io::Result<String> {
    let path = format!("/proc/{number}/comm");
    let file = RealDevice::new().open(Path::new(&path), OpenMode::Read)?;
    let mut name = [0; 32];
    let len = file.read_at(&mut name, 0)?;
    let name = name.get(..len).unwrap_or_default().trim_ascii_end();
    Ok(String::from_utf8_lossy(name).into_owned())
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

    /// What an inode is, and the bytes that it takes.
    pub(super) fn stat(&self, ino: u64) -> io::Result<(Stat, u64)> {
        self.with(|state| {
            let space = match &state.world.inode(ino)?.body {
                Body::File(file) => file.space(),
                Body::Dir(_) => 0,
            };
            Ok((state.world.stat(ino)?, space))
        })
    }

    /// Bytes that are left, where there is a limit.
    pub(super) fn room(&self) -> io::Result<Option<u64>> {
        let left = self.with(|state| state.room_left(crate::world::ROOT))?;
        Ok(left.map(|left| left.max(0).unsigned_abs()))
    }

    pub(super) fn lookup(&self, dir: u64, name: &str) -> io::Result<u64> {
        self.with(|state| {
            let found = state.world.dir(dir)?.cached.get(name).copied();
            found.ok_or_else(|| errno(libc::ENOENT))
        })
    }

    /// Makes a file or a directory, which must not be there.
    pub(super) fn create(&self, dir: u64, name: &str, mode: u32, is_dir: bool) -> io::Result<u64> {
        let kind = if is_dir { OpKind::CreateDir } else { OpKind::Create };
        self.operate(kind, &self.path_in(dir, name), |state| {
            if state.world.dir(dir)?.cached.contains_key(name) {
                return Err(errno(libc::EEXIST));
            }
            let ino = state.world.create(dir, name.to_owned(), is_dir)?;
            state.world.set_mode(ino, mode)?;
            Ok(ino)
        })
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
            if !replace && state.world.dir(to.0)?.cached.contains_key(to.1) {
                return Err(errno(libc::EEXIST));
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

    pub(super) fn set_mode(&self, ino: u64, mode: u32) -> io::Result<()> {
        self.device.shared.lock().world.set_mode(ino, mode)
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
                let is_dir = state.world.dir(ino).is_ok();
                let name = name.clone();
                (Entry { name, is_dir }, ino)
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

impl Asked {
    /// Something that is done to one file or directory.
    pub(super) fn new(kind: OpKind, path: PathBuf) -> Self {
        Self {
            kind,
            path,
            to: None,
            offset: 0,
            thread: Arc::from(""),
        }
    }
}

impl fmt::Display for Fell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((asked, moment)) = &self.at else {
            return f.write_str("at no operation");
        };
        let when = match moment {
            Moment::Before => "before",
            Moment::After => "after",
        };
        write!(f, "{when} {:?} {}", asked.kind, asked.path.display())?;
        if let Some(to) = &asked.to {
            write!(f, " to {}", to.display())?;
        }
        write!(f, " at {} by {}", asked.offset, asked.thread)
    }
}
