//! What all handles of one open log share: the counter, the watermarks, the ring, and a flight's course.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use collie_io::{Clock, Nanos, Opener};

use crate::durable::DurableBoundary;
use crate::error::{Failure, LogError};
use crate::flusher::{Flusher, Load, Reach};
use crate::futures::Waiting;
use crate::gate::{Gate, Pilot, Start, Takeoff};
use crate::herd::{Herd, Reservations};
use crate::options::{Level, LogOptions};
use crate::pad::FILLER_MAX;
use crate::recovery::{DirLock, RecoveryReport};
use crate::ring::Ring;
use crate::segments::Segments;
use crate::space::Space;
use crate::stake::{Fatal, HousekeepingError};
use crate::stats::{Recorder, since};
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, WaitWord, lock};
use crate::{Lsn, Span};

/// A watermark on cache lines of its own; see also [`DurableBoundary`].
#[derive(Debug)]
#[repr(align(128))]
struct Alone(AtomicU64);

/// One worker's share of the counts; only its owner adds to it.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Counted {
    pub(crate) frames: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Payload bytes that the compressor was given, and that were stored of them.
    pub(crate) unpacked: AtomicU64,
    pub(crate) packed: AtomicU64,
    pub(crate) compressed: AtomicU64,
}

/// Worker slots beyond those of the log's users: the background flusher's, and the one that closes the log.
const OWN_WORKERS: usize = 2;

const RUNNING: u32 = 0;
const CLOSED: u32 = 1;
const POISONED: u32 = 2;
/// Closed, and nothing is written any more: the directory may be another log's by now.
const ENDED: u32 = 3;

/// See the module.
pub(crate) struct Core {
    pub(crate) options: LogOptions,
    pub(crate) dir: PathBuf,
    /// The process that all of this belongs to: a child that it forks has only copies.
    opener: Opener,
    pub(crate) epoch: u32,
    pub(crate) salt: crate::format::Salt,
    pub(crate) next: Reservations,
    /// Raised by the flusher, read by every append.
    written: Alone,
    durable: DurableBoundary,
    /// Where `written` stood before it was raised last, and where it stood so when `durable` was: there a frame
    /// begins, and is durable.
    last_written: AtomicU64,
    last_durable: AtomicU64,
    pub(crate) herd: Herd,
    pub(crate) ring: Ring,
    /// Whether what is in the ring survives the process.
    pub(crate) ring_shared: AtomicBool,
    pub(crate) segments: Segments,
    pub(crate) space: Space,
    pub(crate) gate: Gate<Core>,
    pub(crate) waiting: Waiting,
    state: AtomicU32,
    failure: OnceLock<Failure>,
    pub(crate) holders: Mutex<Holders>,
    pub(crate) counted: Box<[Counted]>,
    pub(crate) recorder: Recorder,
    /// The background flusher sleeps here; 1 in `kicked` says that it was called and has not looked yet.
    pub(crate) kick: WaitWord,
    pub(crate) kicked: AtomicU32,
    /// Where flights pad: the filler that was placed last.
    pub(crate) last_filler: Mutex<Option<Span>>,
    /// The preparer sleeps here.
    pub(crate) prepare: WaitWord,
    pub(crate) report: RecoveryReport,
    /// Let go by a clean close, or with the last worker: as long as a frame of a poisoned log may be in the
    /// ring, nobody may open the directory and find the ring in use.
    pub(crate) lock: DirLock,
}

/// What tells one log from another: all of it, with its histograms and worker slots, would be pages of figures.
impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log")
            .field("dir", &self.dir)
            .field("epoch", &self.epoch)
            .field("durable", &self.durable())
            .field("poisoned", &self.failure.get())
            .finish_non_exhaustive()
    }
}

/// Who keeps the log from being released.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    /// Those that were named by the log's user. Without any, nothing is released at all.
    pub(crate) named: BTreeMap<String, Lsn>,
    /// Readers and tails under way, by their names. They hold, but it is not theirs to let go.
    pub(crate) readers: BTreeMap<u64, (String, Lsn)>,
}

impl Holders {
    /// What may be released, if anything may.
    fn lowest(&self) -> Option<Lsn> {
        let named = self.named.values().min()?;
        Some(
            self.readers
                .values()
                .map(|(_, reader)| reader)
                .min()
                .map_or(*named, |reader| *named.min(reader)),
        )
    }
}

/// How far a flight goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    Written,
    Durable,
}

/// What recovery hands over.
pub(crate) struct Opened {
    pub(crate) options: LogOptions,
    pub(crate) dir: PathBuf,
    pub(crate) epoch: u32,
    pub(crate) salt: crate::format::Salt,
    /// Where the first append goes; everything below is durable.
    pub(crate) end: Lsn,
    /// The bytes of the last block below `end`.
    pub(crate) partial: Vec<u8>,
    pub(crate) ring: Ring,
    pub(crate) segments: Segments,
    pub(crate) report: RecoveryReport,
    pub(crate) lock: DirLock,
}

impl Core {
    pub(crate) fn new(opened: Opened) -> Self {
        let Opened {
            options,
            dir,
            epoch,
            salt,
            end,
            partial,
            ring,
            segments,
            report,
            lock,
        } = opened;
        let total = segments.builder().total();
        let workers = options.max_workers + OWN_WORKERS;
        let slots = workers + usize::from(options.pad_to_block);
        let herd = Herd::new(slots, end);
        let (filler_slot, filler_max) = match options.pad_to_block {
            true => (herd.register(), FILLER_MAX),
            false => (None, 0),
        };
        let in_flight = report.writes_in_flight;
        let counted = || Counted {
            frames: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            unpacked: AtomicU64::new(0),
            packed: AtomicU64::new(0),
            compressed: AtomicU64::new(0),
        };
        Self {
            herd,
            space: Space::new(workers, options.segment_bytes, filler_max, total),
            counted: (0..slots).map(|_| counted()).collect(),
            ring_shared: AtomicBool::new(ring.file.is_some()),
            next: Reservations::new(end),
            written: Alone(AtomicU64::new(end)),
            durable: DurableBoundary::new(end),
            last_written: AtomicU64::new(segments.epoch_start()),
            last_durable: AtomicU64::new(segments.epoch_start()),
            gate: Gate::new(Flusher::new(end, &partial, filler_slot, in_flight), in_flight),
            waiting: Waiting::default(),
            state: AtomicU32::new(RUNNING),
            failure: OnceLock::new(),
            holders: Mutex::new(Holders::default()),
            recorder: Recorder::new(),
            kick: WaitWord::new(),
            kicked: AtomicU32::new(0),
            last_filler: Mutex::new(None),
            prepare: WaitWord::new(),
            options,
            dir,
            opener: Opener::here(),
            epoch,
            salt,
            ring,
            segments,
            report,
            lock,
        }
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        self.options.device.clock()
    }

    pub(crate) fn now(&self) -> Nanos {
        self.clock().monotonic()
    }

    pub(crate) fn appended(&self) -> Lsn {
        self.next.cutoff()
    }

    pub(crate) fn boundary(&self) -> Lsn {
        self.herd.herd(|| self.appended())
    }

    /// Acquire pairs with the Release in `raise_written`.
    pub(crate) fn written(&self) -> Lsn {
        self.written.0.load(Ordering::Acquire)
    }

    pub(crate) fn durable(&self) -> Lsn {
        self.durable.get()
    }

    /// Fails in a child of the process that opened the log.
    pub(crate) fn check_process(&self) -> Result<(), LogError> {
        if self.opener.is_here() {
            return Ok(());
        }
        Err(LogError::Forked {
            path: self.dir.clone(),
            opener: self.opener.pid(),
        })
    }

    /// Whether appends and waits go on.
    pub(crate) fn check(&self) -> Result<(), LogError> {
        self.check_process()?;
        // Acquire pairs with the Release in `poison` and `close`.
        match self.state.load(Ordering::Acquire) {
            RUNNING => Ok(()),
            CLOSED | ENDED => Err(LogError::Closed),
            _ => Err(self.poisoned().unwrap_or(LogError::Poisoned {
                cause: "unknown".into(),
            })),
        }
    }

    pub(crate) fn poisoned(&self) -> Option<LogError> {
        self.failure.get().map(|failure| LogError::Poisoned {
            cause: failure.cause.to_string(),
        })
    }

    /// Why the log stopped for good, and what of it is certain.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.failure.get()
    }

    /// Stops the log for good; the first cause is the one that everybody is told. What is not durable by now is
    /// in doubt from here on, whatever flights that are in the air come to.
    pub(crate) fn poison(&self, fatal: &Fatal) {
        let cause = fatal.cause();
        let failure = Failure {
            cause: cause.into(),
            durable: self.durable.fix(),
        };
        let first = self.failure.set(failure).is_ok();
        // Release pairs with the Acquire in `check`.
        self.state.store(POISONED, Ordering::Release);
        self.wake_everybody();
        if first {
            tracing::error!(dir = %self.dir.display(), cause, "the log is poisoned");
        }
    }

    /// Poisons the log with this cause unless it is disarmed: for work that a panic must not leave half done.
    pub(crate) fn armed(&self, cause: &'static str) -> Armed<'_> {
        Armed { core: self, cause }
    }

    /// No append is admitted from here on; `false` where it was stopped already.
    pub(crate) fn stop(&self) -> bool {
        let stopped = self
            .state
            .compare_exchange(RUNNING, CLOSED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        self.wake_everybody();
        stopped
    }

    /// Ends the work on files. When this returns no flight is in the air, no segment is being prepared or
    /// released, and none will be, whoever has a handle or a worker still.
    pub(crate) fn end(&self) {
        self.segments.close();
        self.gate.alone(|| {
            // Poison stays what it is. Release pairs with the Acquire in `check` and `has_ended`.
            let _ = self
                .state
                .compare_exchange(CLOSED, ENDED, Ordering::Release, Ordering::Relaxed);
        });
        self.wake_everybody();
    }

    fn has_ended(&self) -> bool {
        // Acquire pairs with the Release in `end`; leaders are ordered with it by the lead.
        self.state.load(Ordering::Acquire) == ENDED
    }

    /// Why nothing further becomes durable, once that is so. What was under way when the log was closed still does.
    pub(crate) fn ended(&self) -> Option<LogError> {
        self.poisoned()
            .or_else(|| self.has_ended().then_some(LogError::Closed))
            .or_else(|| self.check_process().err())
    }

    fn wake_everybody(&self) {
        self.gate.wake_all();
        self.kick();
        self.prepare.bump();
        self.prepare.wake(1);
        self.wake_tasks();
    }

    /// Whether `end` is safe at `level`, or never will be; `None` while it is worth waiting.
    pub(crate) fn reached(&self, end: Lsn, level: Level) -> Option<Result<(), LogError>> {
        let safe = match (level, self.failure.get()) {
            (Level::Buffered, _) => true,
            // After a failure the page cache need not have what was written to it.
            (Level::Disk, _) | (Level::Process, Some(_)) => self.durable() >= end,
            // Whoever knows the end of a frame knows that it is copied. Relaxed: the flag changes once, when
            // somebody removed the ring's file, and nothing is ordered by it.
            (Level::Process, None) if self.ring_shared.load(Ordering::Relaxed) => {
                return Some(self.check_ring(end));
            }
            (Level::Process, None) => self.written() >= end,
        };
        if safe {
            Some(Ok(()))
        } else {
            self.check().err().map(Err)
        }
    }

    /// A copy in the shared ring counts as long as the ring does: after a close only what was flushed.
    fn check_ring(&self, end: Lsn) -> Result<(), LogError> {
        if self.written() >= end {
            Ok(())
        } else {
            self.check()
        }
    }

    /// Blocks until `end` is safe at `level`.
    pub(crate) fn wait(&self, end: Lsn, level: Level) -> Result<(), LogError> {
        if let Some(answer) = self.reached(end, level) {
            return answer;
        }
        self.check_appended(end)?;
        let until = if level == Level::Disk {
            Until::Durable
        } else {
            Until::Written
        };
        self.gate.wait(self, end, until, || self.reached(end, level))
    }

    /// Nobody may wait for what was never appended: it would flush for ever.
    pub(crate) fn check_appended(&self, end: Lsn) -> Result<(), LogError> {
        let appended = self.appended();
        if end <= appended {
            return Ok(());
        }
        Err(LogError::Options {
            option: "end",
            problem: format!("LSN {end} is waited for, but the log ends at {appended}"),
        })
    }

    /// Waits until the ring has room up to `end`.
    pub(crate) fn wait_for_room(&self, end: Lsn) -> Result<(), LogError> {
        let start = self.now();
        let needed = end - self.ring.capacity();
        let answer = self.gate.wait_for_room(self, needed, Until::Written, || {
            if self.written() >= needed {
                Some(Ok(()))
            } else if self.has_ended() {
                Some(Err(LogError::Closed))
            } else {
                self.poisoned().map(Err)
            }
        });
        self.recorder.room_ns.add(since(start, self.now()));
        answer
    }

    /// Plans a flight, or does the whole of it where it needs a sync: no two syncs of a file may be under way
    /// at once, because the kernel tells only one of them of an error.
    fn plan(
        &self,
        flusher: &mut Flusher,
        end: Lsn,
        until: Until,
        takeoff: &mut Takeoff<'_>,
    ) -> Result<Start<Load>, Fatal> {
        let reach = self.reach(flusher, end);
        let target = reach.to;
        if !self.space.is_ahead(target, self.ahead()) {
            self.call_preparer();
        }
        let started = flusher.started();
        if !self.segments.direct() {
            if target == started && (until == Until::Written || self.durable() == self.written()) {
                return Ok(Start::Idle);
            }
            // Who waits for a frame of which the last block holds a part sleeps until then, and looks again.
            takeoff.announce(target);
            self.write_and_sync(flusher, reach, until)?;
            return Ok(Start::Over);
        }
        let load = flusher.take(&self.ring, &self.segments, reach, end)?;
        Ok(match load {
            Some(load) => {
                takeoff.announce(load.whole);
                Start::Off(load)
            }
            // Somebody is in mid-copy below `end`, or in the block that should be filled, and runs as we stand by.
            None if target == started && !flusher.has_on_board(end) => Start::Idle,
            None => Start::Wait,
        })
    }

    /// A flight to the page cache, and its sync.
    fn write_and_sync(&self, flusher: &mut Flusher, reach: Reach, until: Until) -> Result<(), Fatal> {
        while flusher.started() < reach.to {
            let Some(load) = flusher.take(&self.ring, &self.segments, reach, Lsn::MAX)? else {
                break;
            };
            self.write(&load)?;
            self.raise_written(load.whole);
            flusher.landed(load);
            self.gate.made_room();
        }
        self.recorder
            .bytes_written
            .store(flusher.device_bytes, Ordering::Relaxed);
        let written = self.written();
        if until == Until::Durable && self.durable() < written {
            let start = self.now();
            flusher.sync()?;
            self.recorder.sync_ns.add(since(start, self.now()));
            self.raise_durable(written);
        }
        Ok(())
    }

    fn write(&self, load: &Load) -> Result<(), Fatal> {
        let start = self.now();
        load.write()?;
        self.recorder.write_ns.add(since(start, self.now()));
        Ok(())
    }

    fn raise_written(&self, whole: Lsn) {
        // The mark first: whoever writes into the room that `written` makes does so after the mark tells
        // that nothing there is needed any more. Both stand at the end of a frame, so that after a death
        // in mid-flight the segments are good up to the mark and the ring goes on from there.
        self.ring.publish_written(whole);
        // Relaxed: one thread at a time raises both.
        let before = self.written.0.load(Ordering::Relaxed);
        if before < whole {
            self.last_written.store(before, Ordering::Relaxed);
        }
        // Release pairs with the Acquire in `written`: workers may overwrite what was read out.
        self.written.0.store(whole, Ordering::Release);
    }

    fn raise_durable(&self, durable: Lsn) {
        if !self.durable.raise(durable) {
            return;
        }
        // Relaxed: one thread at a time comes here, and it tells of nothing that is not durable by now.
        let frame = self.last_written.load(Ordering::Relaxed);
        self.last_durable.store(frame, Ordering::Relaxed);
        self.recorder.syncs.fetch_add(1, Ordering::Relaxed);
        self.recorder.count_group(self.frames());
    }

    /// Wakes the tasks that have their answer.
    pub(crate) fn wake_tasks(&self) {
        let ready = self.waiting.take(
            |end, level| self.reached(end, level).is_some(),
            |end| self.durable() > end || self.ended().is_some(),
        );
        let mut panicked = None;
        for waker in ready {
            // Somebody else's code: one that panics must not take the wake-ups of the others along.
            let woken = catch_unwind(AssertUnwindSafe(|| waker.wake()));
            panicked = panicked.or(woken.err());
        }
        // A second panic in one thread would end the process.
        if let Some(panicked) = panicked
            && !std::thread::panicking()
        {
            resume_unwind(panicked);
        }
    }

    /// Calls the background flusher.
    pub(crate) fn kick(&self) {
        // AcqRel: whoever finds 0 wakes it, and it sees what was registered before.
        if self.kicked.swap(1, Ordering::AcqRel) == 0 {
            self.kick.bump();
            self.kick.wake(1);
        }
    }

    /// Calls the preparer, which releases what nobody holds any more.
    pub(crate) fn call_preparer(&self) {
        self.prepare.bump();
        self.prepare.wake(1);
    }

    /// Frames appended by all workers so far.
    pub(crate) fn frames(&self) -> u64 {
        self.counted(|c| &c.frames)
    }

    /// The sum of what all workers counted so far.
    pub(crate) fn counted(&self, count: impl Fn(&Counted) -> &AtomicU64) -> u64 {
        let used = self.herd.slots_in_use();
        let counted = self.counted.iter().take(used);
        counted.map(|c| count(c).load(Ordering::Relaxed)).sum()
    }

    /// How many bytes are kept prepared: what can come while a chunk is zeroed and synced.
    fn ahead(&self) -> u64 {
        self.options.segment_bytes.min(self.ring.capacity() / 2)
    }

    /// Prepares segments until [`Core::ahead`] bytes are ready beyond what is reserved.
    pub(crate) fn prepare_ahead(&self) -> Result<(), LogError> {
        while !self.space.is_ahead(self.appended(), self.ahead()) && self.check().is_ok() {
            let enough = || self.space.is_ahead(self.appended(), self.ahead());
            self.weigh(self.space.extend_unless(&self.segments, enough))?;
        }
        Ok(())
    }

    /// Stops the log where frames are at stake. All else is the caller's to tell, or to try again.
    pub(crate) fn weigh<T>(&self, prepared: Result<T, HousekeepingError>) -> Result<T, LogError> {
        prepared.map_err(|failure| match failure {
            HousekeepingError::Setback(error) => error,
            HousekeepingError::Fatal(fatal) => {
                self.poison(&fatal);
                let cause = fatal.cause().to_owned();
                self.poisoned().unwrap_or(LogError::Poisoned { cause })
            }
        })
    }

    /// Releases the segments that nobody holds and that are durable, up to one in which a frame begins that is
    /// durable. Recovery begins at the first frame that begins there, and must not find a later one: of what is not
    /// durable the power may leave any block, and take the one before.
    pub(crate) fn release(&self) -> Result<(), LogError> {
        // A log that has stopped leaves everything as it is.
        self.check()?;
        self.weigh(self.segments.release(|| {
            let holders = lock(&self.holders);
            let held = holders.lowest()?;
            let lowest = if held < self.durable() {
                // A frame begins there.
                held
            } else {
                // Relaxed: see `raise_durable`. By now it may be above what is held.
                held.min(self.last_durable.load(Ordering::Relaxed))
            };
            Some((holders, lowest))
        }))?;
        self.segments.purge_archive()
    }
}

/// How the log flushes; an error poisons it.
impl Pilot for Core {
    type Desk = Flusher;
    type Load = Load;
    type Until = Until;

    fn start(&self, flusher: &mut Flusher, end: Lsn, until: Until, takeoff: &mut Takeoff<'_>) -> Start<Load> {
        if self.failure.get().is_some() || self.has_ended() {
            return Start::Idle;
        }
        // Who leads next must not sync again what this leader may have failed to sync.
        let armed = self.armed("a thread failed in the middle of a flush");
        let planned = self.plan(flusher, end, until, takeoff);
        armed.disarm();
        planned.unwrap_or_else(|fatal| {
            self.poison(&fatal);
            Start::Idle
        })
    }

    fn fly(&self, load: &mut Load) -> bool {
        let armed = self.armed("a thread failed in the middle of a flush");
        let written = self.write(load);
        armed.disarm();
        written.map_err(|fatal| self.poison(&fatal)).is_ok()
    }

    fn land(&self, flusher: &mut Flusher, load: Load) {
        self.raise_written(load.whole);
        self.raise_durable(load.whole);
        flusher.landed(load);
        self.recorder
            .bytes_written
            .store(flusher.device_bytes, Ordering::Relaxed);
    }

    fn must_wait(&self, flusher: &Flusher) -> bool {
        flusher.must_wait()
    }

    fn landed(&self) {
        self.wake_tasks();
    }
}

/// See [`Core::armed`].
pub(crate) struct Armed<'a> {
    core: &'a Core,
    cause: &'static str,
}

impl Armed<'_> {
    pub(crate) fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        self.core.poison(&Fatal::unfinished(self.cause));
    }
}
