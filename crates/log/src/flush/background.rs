//! The background jobs of a log: one flushes what no thread waits for, one prepares and releases
//! segments, and where writes go to the page cache one writes while the first one syncs. Each has a
//! thread of the log's own, or the log's [set](crate::LogSet) has threads for them.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use collie_io::{Nanos, Stat};

use crate::append::worker::Worker;
use crate::core::Core;
use crate::error::{At, Fatal, HousekeepingError, LogError};
use crate::format::KIND_SEAL;
use crate::lockfree::limit::Room;
use crate::lockfree::sync::{Mutex, lock};
use crate::options::Level;
use crate::segments::archive::Archive;
use crate::set::Pools;
use crate::threads::{Cause, Job, JobHandle, Next};

/// Without its background threads a log would neither flush nor prepare: better to say so at once.
const PANICKED: &str = "a background thread of the log panicked";

/// How long after a failure what may pass is tried again.
const RETRY: Duration = Duration::from_millis(100);

/// What works for an open log in the background.
#[derive(Debug)]
pub(crate) struct Background {
    /// The log's own threads.
    own: Mutex<Option<Pools>>,
    running: bool,
}

impl Background {
    pub(crate) fn start(core: &Arc<Core>) -> Result<Self, LogError> {
        let background = Self {
            own: Mutex::new(None),
            running: core.options.threads,
        };
        if background.running
            && let Err(error) = background.add_jobs(core)
        {
            core.stop();
            background.join(core);
            return Err(error);
        }
        Ok(background)
    }

    /// Has the threads of the log's set run its jobs, or else its own.
    fn add_jobs(&self, core: &Arc<Core>) -> Result<(), LogError> {
        let flushing = Flushing::new(core)?;
        let has_writer = !core.segments.direct();
        let mut own = lock(&self.own);
        let pools = match &core.options.set {
            Some(set) => set.pools(),
            None => {
                let started = Pools::start(1, usize::from(has_writer), Duration::ZERO);
                own.insert(started.at("start a thread for", &core.dir)?)
            }
        };
        let jobs = &core.threads;
        pools.flush.add(&jobs.flusher, Box::new(flushing));
        if has_writer {
            let writing = Writing(Arc::clone(core));
            pools.write.add(&jobs.writer, Box::new(writing));
        }
        let preparing = Preparing::new(core);
        pools.prepare.add(&jobs.preparer, Box::new(preparing));
        Ok(())
    }

    /// Has released segments dealt with; without threads, here and now.
    pub(crate) fn release(&self, core: &Core) {
        if self.running {
            core.threads.preparer.call();
        } else if let Err(error) = core.release() {
            tracing::warn!(%error, "cannot release segments");
        }
    }

    /// Waits until no thread works for the log; it was stopped before. Where one of them closes the
    /// log, as the last handle went with a task's waker, that one ends when it comes back from there.
    pub(crate) fn join(&self, core: &Core) {
        core.threads.all().into_iter().for_each(JobHandle::cancel);
        let own = lock(&self.own).take();
        drop(own);
    }
}

/// How often a shared ring's file and the log's directory are looked at, in flush intervals: once a
/// second.
const LOOK_AT_FILES: u32 = 20;
/// After so many intervals without anything to do the flusher rests: it waits for the next append.
const IDLE: u32 = 40;

/// How often it gives up its time slice before it flushes for tasks. Where no core is idle the
/// threads whose tasks were served a moment ago do their work meanwhile, and what they append comes
/// along; where one is, this costs next to nothing. docs/results has the figures.
const YIELDS: u32 = if cfg!(shuttle) { 0 } else { 2 };

/// Flushes for futures, past half a ring, and at the latest after the flush interval; seals the log
/// when it falls idle.
struct Flushing {
    core: Arc<Core>,
    worker: Worker,
    /// The end of the last seal: if the log ends there, nothing is to be sealed.
    sealed: u64,
    /// How far the log was at the last tick.
    seen: u64,
    /// A tick is due.
    ticks: bool,
    /// Where the log was found sealed: as long as it ends there, it is.
    quiet_at: u64,
    /// Which directory the log's was when it was opened.
    directory: Identity,
    /// Intervals one after the other that brought nothing to do.
    idle: u32,
    /// Appends call: no interval is waited for.
    rests: bool,
    /// When the files were looked at.
    looked: Nanos,
}

/// Device and number of a file or directory.
type Identity = (u64, u64);

fn identity(stat: Stat) -> Identity {
    (stat.dev, stat.ino)
}

impl Job for Flushing {
    fn run(&mut self, Cause { called, timer }: Cause) -> Next {
        if self.core.check().is_err() {
            return Next::Stop;
        }
        if timer {
            self.interval_passed();
        }
        if self.rests && (called || self.core.appended() != self.quiet_at) {
            self.end_rest();
        }
        self.look_at_files();
        if called {
            // A leader that must run no waker called.
            self.core.wake_tasks();
        }
        if let Some((end, level)) = self.awaited() {
            let _ = (0..YIELDS).all(|_| self.core.give_way());
            // Poison and close are seen by the next run.
            let _ = self.core.wait(end, level);
            self.core.wake_tasks();
            return Next::Again;
        }
        if called && self.past_half() {
            self.drain();
            return Next::Again;
        }
        if std::mem::take(&mut self.ticks) {
            self.tick();
        }
        self.sleep()
    }

    fn panicked(&self) {
        self.core.poison(&Fatal::unfinished(PANICKED));
    }
}

impl Flushing {
    fn new(core: &Arc<Core>) -> Result<Self, LogError> {
        let stat = core.options.device.stat(&core.dir).at("look at", &core.dir)?;
        Ok(Self {
            worker: Worker::new(Arc::clone(core))?,
            sealed: core.appended(),
            seen: 0,
            ticks: false,
            quiet_at: 0,
            idle: 0,
            rests: false,
            directory: identity(stat),
            looked: core.now(),
            core: Arc::clone(core),
        })
    }

    fn interval_passed(&mut self) {
        let end = self.core.appended();
        self.ticks = end != self.quiet_at && !self.is_sealed(end);
        if self.ticks {
            self.idle = 0;
        } else {
            self.quiet_at = end;
            self.idle = self.idle.saturating_add(1);
        }
    }

    /// Until the next interval has passed; after a while without anything to do until the next append.
    fn sleep(&mut self) -> Next {
        let interval = self.core.options.flush_interval;
        if self.idle < IDLE {
            return Next::Sleep(Some(interval));
        }
        if !self.rests {
            self.core.tasks.watchers.rest();
            self.rests = true;
            if self.core.order.next.cutoff_in_order() != self.quiet_at {
                // It may not have seen that the flusher rests.
                self.end_rest();
                return Next::Sleep(Some(interval));
            }
        }
        // A log of its own looks at its files.
        let is_alone = self.core.options.set.is_none();
        Next::Sleep(is_alone.then(|| interval.saturating_mul(LOOK_AT_FILES)))
    }

    fn end_rest(&mut self) {
        self.core.tasks.watchers.end_rest();
        (self.rests, self.idle) = (false, 0);
    }

    /// How far, and how safe, the log must get for all that wait for it to be served.
    fn awaited(&self) -> Option<(u64, Level)> {
        let core = &self.core;
        let end = core.appended();
        if core.tasks.watchers.any() && core.durable() < end {
            return Some((end, Level::Disk));
        }
        core.tasks.waiting.farthest()
    }

    /// Whether the log, which ends there, is durable up to a seal, so that an interval brings nothing
    /// to do.
    fn is_sealed(&self, end: u64) -> bool {
        self.core.durable() >= end && self.core.flush.last_filler.behind(self.sealed) >= end
    }

    fn past_half(&self) -> bool {
        self.core.appended() > self.core.written() + self.core.ring.capacity() / 2
    }

    fn flush(&self) {
        // Poison and close are seen by the next run.
        let _ = self.core.wait(self.core.appended(), Level::Disk);
    }

    /// Makes room in the ring. A user that flushes by hand, and would lose the ring with the
    /// process, decides about syncs alone.
    fn drain(&self) {
        let written_only = self.core.options.manual_flush && !self.core.ring_survives();
        if written_only {
            // Poison and close are seen by the next run.
            let _ = self.core.wait(self.core.appended(), Level::Process);
        } else {
            self.flush();
        }
    }

    /// An interval has passed.
    fn tick(&mut self) {
        let end = self.core.appended();
        if self.core.durable() < end {
            if !self.core.options.manual_flush || self.core.tasks.watchers.any() {
                self.flush();
            }
        } else if self.core.flush.last_filler.behind(self.sealed) < end && self.seen == end {
            // Nothing came for a whole interval: raise the durable mark, so that damage below it
            // can be distinguished from a torn tail. A full device may refuse; the next append gets
            // that error.
            if let Ok(span) = self.worker.append_own(KIND_SEAL) {
                self.sealed = span.end;
                self.flush();
                // What could not be released before something durable stood behind it.
                self.core.threads.preparer.call();
            }
        }
        self.seen = self.core.appended();
    }

    /// Once a second, and with the first run behind a longer rest: nothing may be acknowledged long after
    /// they went.
    fn look_at_files(&mut self) {
        let between = nanos(self.core.options.flush_interval).saturating_mul(LOOK_AT_FILES.into());
        let now = self.core.now();
        if now.saturating_sub(self.looked) >= between {
            self.looked = now;
            self.look_at_ring();
            self.look_at_directory();
        }
    }

    /// Something that sweeps tmpfs may have removed the ring's file. Its memory stays, but no later
    /// process will find it: from now on `Process` means written.
    fn look_at_ring(&self) {
        if let Some(ring) = &self.core.ring.file
            && self.core.ring_survives()
            && ring.file.stat().is_ok_and(|s| s.links == 0)
        {
            self.core.ring_was_removed();
            self.flush();
            tracing::warn!(path = %ring.path.display(), "the ring's file was removed; acknowledging at the Process level after write calls from now on");
        }
    }

    /// The log's directory may have been removed, or its file system taken away. What is open
    /// can be written to and synced as before, but no later process will find it: nothing is
    /// acknowledged any more.
    fn look_at_directory(&self) {
        let dir = &self.core.dir;
        let found = match self.core.options.device.stat(dir) {
            Ok(stat) if identity(stat) == self.directory => return,
            Ok(_) => "another directory is in its place",
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                "it is gone"
            }
            // A device that fails here fails a write, too.
            Err(_) => return,
        };
        let dir = dir.display();
        self.core.poison(&Fatal::not_to_be_found(format!(
            "{dir} is no longer the directory that the log was opened in: {found}; what was written since cannot be found \
             there"
        )));
    }
}

/// Writes for the tasks that wait at [`Level::Process`] over a private ring, and wakes those that
/// wait for room: the background flusher may be in a sync, which they need not wait for.
struct Writing(Arc<Core>);

impl Job for Writing {
    fn run(&mut self, _cause: Cause) -> Next {
        let core = &self.0;
        if core.check().is_err() {
            return Next::Stop;
        }
        let Some(end) = core.tasks.waiting.farthest_written() else {
            // Those that wait for room.
            core.wake_tasks();
            return Next::Sleep(None);
        };
        // Poison and close are seen by the next run.
        let _ = core.wait(end, Level::Process);
        core.wake_tasks();
        Next::Again
    }

    fn panicked(&self) {
        self.0.poison(&Fatal::unfinished(PANICKED));
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Keeps one segment's worth of room prepared, and releases what no holder retains.
struct Preparing {
    core: Arc<Core>,
    /// What was said in the program's log: once as long as it stays the same.
    warned: Option<String>,
}

impl Job for Preparing {
    fn run(&mut self, _cause: Cause) -> Next {
        let core = &self.core;
        if core.check().is_err() {
            return Next::Stop;
        }
        match core.release().and_then(|()| core.prepare_ahead()) {
            Ok(()) => {
                self.warned = None;
                core.note_prepared(&Ok(()));
                Next::Sleep(core.segments.archive().map(Archive::interval))
            }
            Err(error) => {
                // Also where nothing can be released room is prepared.
                let prepared = core.prepare_ahead();
                core.note_prepared(&prepared);
                self.warn_once(&prepared.err().unwrap_or(error));
                // The cause may go without telling us.
                Next::Sleep(Some(RETRY))
            }
        }
    }

    fn panicked(&self) {
        self.core.poison(&Fatal::unfinished(PANICKED));
    }
}

impl Preparing {
    fn new(core: &Arc<Core>) -> Self {
        Self {
            core: Arc::clone(core),
            warned: None,
        }
    }

    fn warn_once(&mut self, error: &LogError) {
        let text = error.to_string();
        if self.warned.as_ref() != Some(&text) && self.core.check().is_ok() {
            let dir = self.core.dir.display();
            tracing::warn!(%dir, error = text, "segments cannot be prepared or released; it is tried again");
            self.warned = Some(text);
        }
    }
}

/// Segments are prepared ahead of need, and released when no holder retains them.
impl Core {
    /// How many bytes are kept prepared: what can come while a chunk is zeroed and synced.
    pub(crate) fn ahead(&self) -> u64 {
        self.options.segment_bytes.min(self.ring.capacity() / 2)
    }

    /// Prepares segments until [`Core::ahead`] bytes are ready beyond what is reserved, or as many
    /// as a task waits for.
    pub(crate) fn prepare_ahead(&self) -> Result<(), LogError> {
        let awaited = self.tasks.waiting.longest_without_room().unwrap_or(0);
        let enough = || self.space.is_ahead(self.appended(), self.ahead().max(awaited));
        while !enough() && self.check().is_ok() {
            self.weigh(self.space.extend_unless(&self.segments, Room::Commit, enough))?;
        }
        Ok(())
    }

    /// For tasks that wait for room: whether there is some now, or will not be for a while.
    pub(crate) fn note_prepared(&self, prepared: &Result<(), LogError>) {
        *lock(&self.space.setback) = prepared.as_ref().err().cloned();
        if self.tasks.waiting.longest_without_room().is_some() {
            self.threads.flusher.call();
        }
    }

    /// The error of an append for whose `len` bytes no room could be prepared.
    pub(crate) fn refusal(&self, error: LogError, len: u64) -> LogError {
        let path = self.dir.clone();
        match error {
            full if full.is_full() => LogError::StorageFull { path, needed: len },
            error @ (LogError::Closed | LogError::Poisoned { .. } | LogError::Forked { .. }) => error,
            error => LogError::Unprepared {
                path,
                needed: len,
                cause: Box::new(error),
            },
        }
    }

    /// Stops the log where frames are at stake. All else the caller reports, or tries again.
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

    /// Releases the segments that are durable and below what every holder retains. The one that is
    /// the oldest then records where its first frame begins, durably, before the others go: what
    /// follows there need not be durable, for recovery begins at that LSN and searches for nothing.
    pub(crate) fn release(&self) -> Result<(), LogError> {
        // A log that has stopped leaves everything as it is.
        self.check()?;
        self.weigh(self.segments.release(|| {
            let holders = lock(&self.segments.holders);
            let retained = holders.lowest()?;
            Some((holders, retained.min(self.durable())))
        }))?;
        self.segments.purge_archive()
    }
}

#[cfg(all(test, not(shuttle)))]
#[expect(clippy::unwrap_used, reason = "a test's helpers end the test")]
#[expect(
    clippy::disallowed_methods,
    reason = "removes a directory behind the log's back"
)]
mod tests {
    use super::*;
    use crate::{Log, LogOptions, LogSet, LogSetOptions, RingMode};

    /// Milliseconds. Longer than any machine takes; only a hang reaches it.
    const PATIENCE: u32 = 60_000;

    fn until(what: &str, mut done: impl FnMut() -> bool) {
        for _ in 0..PATIENCE {
            if done() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("not {what}");
    }

    fn open(dir: &std::path::Path, set: Option<LogSet>) -> Log {
        let options = LogOptions {
            ring: RingMode::Private,
            ring_bytes: 8 << 10,
            segment_bytes: 32 << 10,
            reserve_bytes: Some(0),
            flush_interval: Duration::from_millis(1),
            set,
            ..LogOptions::default()
        };
        Log::open(dir, options).unwrap()
    }

    fn rests(log: &Log) -> bool {
        log.core().tasks.watchers.want_calls()
    }

    /// After a while without appends no interval is waited for; the next append ends that, though
    /// no thread waits for it.
    #[test]
    fn an_append_wakes_a_flusher_that_rests() {
        let dir = tempfile::tempdir().unwrap();
        let set = LogSet::new(LogSetOptions {
            flushers: 2,
            period: Duration::from_millis(1),
        });
        let set = set.unwrap();
        let logs = [
            open(&dir.path().join("own"), None),
            open(&dir.path().join("a"), Some(set.clone())),
            open(&dir.path().join("b"), Some(set.clone())),
        ];
        for turn in 0..3 {
            until("resting", || logs.iter().all(rests));
            until("untimed", || {
                let pools = set.pools();
                [&pools.flush, &pools.write, &pools.prepare]
                    .iter()
                    .all(|pool| pool.is_untimed())
            });
            for log in &logs {
                let end = log.worker().unwrap().append(0, 1, &[turn; 100]).unwrap().end;
                until("durable", || log.durable() >= end);
            }
        }
    }

    /// A set's logs do not look at their files while they rest, and do at once when they are used again.
    #[test]
    fn a_directory_that_went_during_a_rest_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = open(&path, Some(LogSet::new(LogSetOptions::default()).unwrap()));
        until("resting", || rests(&log));
        std::fs::rename(&path, dir.path().join("elsewhere")).unwrap();
        log.worker().unwrap().append(0, 1, b"lost").unwrap();
        until("noticed", || {
            log.worker().is_err() || log.flush(Level::Disk).is_err()
        });
    }
}
