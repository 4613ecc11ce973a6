//! One life of the disk: what is asked of it, and where it stops.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use collie_io::{Device, OpenMode, RealDevice};

use super::Names;
use super::files::Handles;
use crate::device::SimDevice;
use crate::trace::OpKind;
use crate::world::errno;

/// What a program asks for.
#[derive(Debug, Clone)]
pub struct Asked {
    /// What it does.
    pub kind: OpKind,
    /// The file or directory; for a renaming or a hard link the old name. Empty where it has no
    /// name any more.
    pub path: PathBuf,
    /// For a renaming or a hard link, the new name.
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
    /// The operation that it stops at is under way.
    Last,
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

/// A disk from power on to power off.
pub(super) struct Disk {
    pub(super) device: SimDevice,
    pub(super) names: Names,
    traffic: Mutex<Traffic>,
    /// Notified when the phase changes, or the last operation that was under way has ended.
    changed: Condvar,
    pub(super) handles: Mutex<Handles>,
    /// Disks that stop when this one does.
    others: Mutex<Vec<Weak<Disk>>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lost() -> io::Error {
    errno(libc::EIO)
}

impl Disk {
    /// A disk whose files have the machine's times.
    pub(super) fn new(device: SimDevice, names: Names) -> Self {
        device.shared.lock().real_time = true;
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
            others: Mutex::default(),
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

    pub(super) fn set_trap(&self, trap: Trap) {
        lock(&self.traffic).trap = Some(trap);
    }

    /// Whether the disk goes on, with no trap. An operation that it stops at is waited for.
    pub(super) fn clear_trap(&self, patience: Duration) -> io::Result<bool> {
        lock(&self.traffic).trap = None;
        match self.wait(patience, |traffic| traffic.phase != Phase::Last).phase {
            Phase::On => Ok(true),
            Phase::Stopped | Phase::Off => Ok(false),
            Phase::Last => Err(io::Error::other(format!(
                "the operation that the disk stops at has not ended within {patience:?}"
            ))),
        }
    }

    pub(super) fn stop(&self) {
        lock(&self.traffic).stop(None);
        self.halt();
    }

    /// A sync that is under way when the power goes makes nothing durable any more. Without the lock of
    /// the traffic.
    fn halt(&self) {
        self.device.kill();
        self.changed.notify_all();
    }

    /// Has another disk stop when a trap stops this one.
    pub(super) fn takes_along(&self, other: &Arc<Self>) {
        lock(&self.others).push(Arc::downgrade(other));
    }

    /// Without the lock of the traffic: two disks may take each other along.
    fn stop_others(&self) {
        for other in lock(&self.others).iter().filter_map(Weak::upgrade) {
            other.stop();
        }
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
        self.halt();
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
                match self.leave() {
                    Phase::On | Phase::Last => answer(reply, done),
                    // It may have failed since the disk has stopped, which its caller must not see
                    // as long as it is alive.
                    Phase::Stopped | Phase::Off => self.park(Box::new(move || answer(reply, Err(lost())))),
                }
            }
            Passage::Last(asked) => {
                // Its caller does not learn what came of it.
                let _ = act(self);
                lock(&self.traffic).stop(Some((asked, Moment::After)));
                self.halt();
                self.stop_others();
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
            Phase::On | Phase::Last => {}
            Phase::Stopped => return Passage::Park,
            Phase::Off => return Passage::Fail,
        }
        *traffic.counts.entry(asked.kind).or_default() += 1;
        if asked.kind.mutates() {
            traffic.changes += 1;
            asked.thread = traffic.thread(by);
            if let Some(moment) = traffic.springs(&asked) {
                if moment == Moment::After {
                    traffic.trap = None;
                    traffic.phase = Phase::Last;
                    traffic.busy += 1;
                    return Passage::Last(asked);
                }
                traffic.stop(Some((asked, moment)));
                drop(traffic);
                self.halt();
                self.stop_others();
                return Passage::Park;
            }
        }
        traffic.busy += 1;
        Passage::Go
    }

    /// Ends an operation that was under way, and returns what the disk has come to.
    fn leave(&self) -> Phase {
        let mut traffic = lock(&self.traffic);
        traffic.busy -= 1;
        let phase = traffic.phase;
        drop(traffic);
        self.changed.notify_all();
        phase
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
        if matches!(self.phase, Phase::On | Phase::Last) {
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::{clock::SimClock, world::World};

    const PATIENCE: Duration = Duration::from_secs(30);

    fn disk() -> Disk {
        let device = SimDevice::from_world(World::plain(1), 0, SimClock::new());
        Disk::new(device, Names::Posix)
    }

    fn sync() -> Asked {
        Asked::new(OpKind::SyncData, PathBuf::new())
    }

    /// Does what `meanwhile` does while an operation of the disk is under way, and returns what was
    /// answered to the operation before the power went, if anything, and after it.
    fn during_an_operation(
        disk: &Disk,
        meanwhile: impl FnOnce(&dyn Fn()),
    ) -> (Option<io::Result<()>>, Option<io::Result<()>>) {
        let (entered, has_entered) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let (answer, answered) = mpsc::channel();
        std::thread::scope(|scope| {
            let operation = scope.spawn(move || {
                let act = |_: &Disk| {
                    entered.send(()).map_err(io::Error::other)?;
                    released.recv().map_err(io::Error::other)
                };
                disk.serve(sync, 0, (), act, move |(), done| drop(answer.send(done)));
            });
            has_entered.recv_timeout(PATIENCE).unwrap();
            meanwhile(&|| release.send(()).unwrap());
            operation.join().unwrap();
            let before = answered.try_recv().ok();
            disk.power_off(PATIENCE).unwrap();
            (before, answered.try_recv().ok())
        })
    }

    #[test]
    fn a_sprung_trap_stays_until_its_operation_ends() {
        let disk = disk();
        disk.set_trap(Trap::new(1, Moment::After, |_| true));
        let (before, after) = during_an_operation(&disk, |release| {
            std::thread::scope(|scope| {
                let (cleared, goes_on) = mpsc::channel();
                let disk = &disk;
                scope.spawn(move || cleared.send(disk.clear_trap(PATIENCE)));
                let early = goes_on.recv_timeout(Duration::from_millis(50));
                release();
                assert!(early.is_err(), "{early:?} before the operation has ended");
                assert!(!goes_on.recv_timeout(PATIENCE).unwrap().unwrap());
            });
        });
        assert!(before.is_none() && after.is_some_and(|done| done.is_err()));
        assert!(disk.fell(Duration::ZERO).is_some_and(|fell| fell.at.is_some()));
    }

    #[test]
    fn a_stopped_disk_answers_nothing_until_the_power_is_off() {
        let disk = disk();
        let (before, after) = during_an_operation(&disk, |release| {
            disk.stop();
            release();
        });
        assert!(before.is_none(), "a stopped disk answered {before:?}");
        assert!(after.is_some_and(|done| done.is_err()));
    }
}
