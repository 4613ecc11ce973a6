//! The background threads: one flushes what no thread waits for, one prepares and releases
//! segments, and where writes go to the page cache one writes while the first one syncs.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use collie_io::{IoClass, Stat};

use crate::append::worker::Worker;
use crate::error::{At, LogError};
use crate::format::KIND_SEAL;
use crate::options::Level;
use crate::segments::archive::Archive;
use crate::shared::Core;
use crate::stake::Fatal;
use crate::sync::{Builder, JoinHandle, Mutex, current, lock};

/// How often a shared ring's file and the log's directory are looked at, in flush intervals: once a
/// second.
const LOOK_AT_FILES: u32 = 20;

/// How long after a failure segments are prepared and released again.
const RETRY: Duration = Duration::from_millis(100);

/// How often it gives up its time slice before it flushes for tasks. Where no core is idle the
/// threads whose tasks were served a moment ago do their work meanwhile, and what they append comes
/// along; where one is, this costs next to nothing. docs/experiments.md has the figures.
const YIELDS: u32 = if cfg!(shuttle) { 0 } else { 2 };

/// What a background thread does.
type Work = Box<dyn FnOnce() + Send>;

/// The threads of an open log, or none.
#[derive(Debug)]
pub(crate) struct Background {
    threads: Mutex<Vec<JoinHandle<()>>>,
    running: bool,
}

impl Background {
    pub(crate) fn start(core: &Arc<Core>) -> Result<Self, LogError> {
        let mut threads = Vec::new();
        if core.options.threads {
            let worker = Worker::new(Arc::clone(core))?;
            let flusher = Flushing {
                core: Arc::clone(core),
                worker,
                sealed: core.appended(),
                seen: 0,
                directory: identity(core.options.device.stat(&core.dir).at("look at", &core.dir)?),
            };
            let (preparing, writing) = (Arc::clone(core), Arc::clone(core));
            let mut work: Vec<(&str, Work)> = vec![
                ("collie-flush", Box::new(|| flusher.run())),
                ("collie-prepare", Box::new(move || prepare(&preparing))),
            ];
            if !core.segments.direct() {
                work.push(("collie-write", Box::new(move || write(&writing))));
            }
            for (name, run) in work {
                match spawn(core, name, run) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        core.stop();
                        threads.into_iter().for_each(|t| drop(t.join()));
                        return Err(error);
                    }
                }
            }
        }
        let running = !threads.is_empty();
        Ok(Self {
            threads: Mutex::new(threads),
            running,
        })
    }

    /// Has released segments dealt with; without threads, here and now.
    pub(crate) fn release(&self, core: &Core) {
        if self.running {
            core.preparer.call();
        } else if let Err(error) = core.release() {
            tracing::warn!(%error, "cannot release segments");
        }
    }

    /// In a child of the process that started them: the threads are not there.
    pub(crate) fn forget(&self) {
        std::mem::forget(std::mem::take(&mut *lock(&self.threads)));
    }

    /// Waits for the threads' end; the log was stopped before. Where one of them closes the log,
    /// as the last handle went with a task's waker, that one ends when it comes back from there.
    pub(crate) fn join(&self) {
        let threads = std::mem::take(&mut *lock(&self.threads));
        let own = current().id();
        for thread in threads {
            if thread.thread().id() != own && thread.join().is_err() {
                tracing::error!("a background thread of the log panicked");
            }
        }
    }
}

fn spawn(core: &Core, name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, LogError> {
    Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .at("start a thread for", &core.dir)
}

/// The background flusher: flushes for futures, past half a ring, and at the latest after the flush
/// interval; seals the log when it falls idle.
struct Flushing {
    core: Arc<Core>,
    worker: Worker,
    /// The end of the last seal: if the log ends there, nothing is to be sealed.
    sealed: u64,
    /// How far the log was at the last look.
    seen: u64,
    /// Which directory the log's was when it was opened.
    directory: Identity,
}

/// Device and number of a file or directory.
type Identity = (u64, u64);

fn identity(stat: Stat) -> Identity {
    (stat.dev, stat.ino)
}

impl Flushing {
    fn run(mut self) {
        let _poison = PoisonOnPanic(Arc::clone(&self.core));
        let interval = self.core.options.flush_interval;
        let between_looks = nanos(interval).saturating_mul(LOOK_AT_FILES.into());
        let mut intervals = 0_u32;
        let mut looked = self.core.now();
        loop {
            let turn = self.core.flusher.begin();
            if self.core.check().is_err() {
                return;
            }
            // By the clock, where there is so much to do that no interval ever passes.
            if intervals == LOOK_AT_FILES || self.core.now().saturating_sub(looked) > between_looks {
                (intervals, looked) = (0, self.core.now());
                self.look_at_ring();
                self.look_at_directory();
            }
            if turn.called {
                // A leader that must run no waker called.
                self.core.wake_tasks();
            }
            if let Some((end, level)) = self.core.waiting.farthest() {
                (0..YIELDS).for_each(|_| crate::sync::yield_now());
                // Poison and close are seen at the next turn.
                let _ = self.core.wait(end, level);
                self.core.wake_tasks();
                continue;
            }
            if turn.called && self.past_half() {
                self.drain();
                continue;
            }
            let before = self.core.now();
            self.core.flusher.wait(turn, Some(interval));
            if self.core.flusher.is_called() && self.core.now() - before < nanos(interval) {
                continue;
            }
            self.tick();
            intervals += 1;
        }
    }

    fn past_half(&self) -> bool {
        self.core.appended() > self.core.written() + self.core.ring.capacity() / 2
    }

    fn flush(&self) {
        // Poison and close are seen at the next turn.
        let _ = self.core.wait(self.core.appended(), Level::Disk);
    }

    /// Makes room in the ring. A user that flushes by hand, and would lose the ring with the
    /// process, decides about syncs alone.
    fn drain(&self) {
        let written_only = self.core.options.manual_flush && !self.core.ring_survives();
        if written_only {
            // Poison and close are seen at the next turn.
            let _ = self.core.wait(self.core.appended(), Level::Process);
        } else {
            self.flush();
        }
    }

    /// An interval has passed.
    fn tick(&mut self) {
        let end = self.core.appended();
        if self.core.durable() < end {
            if !self.core.options.manual_flush {
                self.flush();
            }
        } else if self.core.last_filler.behind(self.sealed) < end && self.seen == end {
            // Nothing came for a whole interval: raise the durable mark, so that damage below it
            // can be distinguished from a torn tail. A full device may refuse; the next append gets
            // that error.
            if let Ok(span) = self.worker.append_own(KIND_SEAL) {
                self.sealed = span.end;
                self.flush();
                // What could not be released before something durable stood behind it.
                self.core.preparer.call();
            }
        }
        self.seen = self.core.appended();
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
fn write(core: &Arc<Core>) {
    let _poison = PoisonOnPanic(Arc::clone(core));
    loop {
        let turn = core.writer.begin();
        if core.check().is_err() {
            return;
        }
        let Some(end) = core.waiting.farthest_written() else {
            // Those that wait for room.
            core.wake_tasks();
            core.writer.wait(turn, None);
            continue;
        };
        // Poison and close are seen at the next turn.
        let _ = core.wait(end, Level::Process);
        core.wake_tasks();
    }
}

/// Keeps one segment's worth of room prepared, and releases what no holder retains. It stays in the
/// foreground I/O class: a commit that runs out of room waits for it.
fn prepare(core: &Arc<Core>) {
    let _poison = PoisonOnPanic(Arc::clone(core));
    if let Err(error) = collie_io::set_io_class(IoClass::Foreground) {
        tracing::debug!(%error, "no I/O classes here");
    }
    let mut warned = None;
    loop {
        let turn = core.preparer.begin();
        if core.check().is_err() {
            return;
        }
        match core.release().and_then(|()| core.prepare_ahead()) {
            Ok(()) => {
                warned = None;
                core.note_prepared(&Ok(()));
                let interval = core.segments.archive().map(Archive::interval);
                core.preparer.wait(turn, interval);
            }
            Err(error) => {
                // Also where nothing can be released room is prepared.
                let prepared = core.prepare_ahead();
                core.note_prepared(&prepared);
                warn_once(core, &mut warned, &prepared.err().unwrap_or(error));
                // The cause may go without telling us.
                core.preparer.wait(turn, Some(RETRY));
            }
        }
    }
}

/// Says what cannot be done in the program's log, once as long as it stays the same.
fn warn_once(core: &Core, warned: &mut Option<String>, error: &LogError) {
    let text = error.to_string();
    if warned.as_ref() != Some(&text) && core.check().is_ok() {
        tracing::warn!(dir = %core.dir.display(), error = text, "segments cannot be prepared or released; it is tried again");
        *warned = Some(text);
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Without its background threads a log would neither flush nor prepare: better to say so at once.
struct PoisonOnPanic(Arc<Core>);

impl Drop for PoisonOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let fatal = Fatal::unfinished("a background thread of the log panicked");
            self.0.poison(&fatal);
        }
    }
}
