//! The background flusher's duty, and the background writer's: what no thread of the users leads.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use collie_io::{Nanos, Stat};

use super::duty::{Duty, Next};
use crate::append::worker::Worker;
use crate::core::Core;
use crate::error::{At, Fatal, LogError};
use crate::format::KIND_SEAL;
use crate::options::Level;

/// How often a shared ring's file and the log's directory are looked at, in flush intervals: once a
/// second.
const LOOK_AT_FILES: u32 = 20;

/// How often it gives up its time slice before it flushes for tasks. Where no core is idle the
/// threads whose tasks were served a moment ago do their work meanwhile, and what they append comes
/// along; where one is, this costs next to nothing. docs/experiments.md has the figures.
const YIELDS: u32 = if cfg!(shuttle) { 0 } else { 2 };

/// Flushes for futures, past half a ring, and at the latest after the flush interval; seals the log
/// when it falls idle.
pub(super) struct Flushing {
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
    /// Intervals since the files were looked at, when that was, and how far the log was.
    intervals: u32,
    looked: Nanos,
    looked_at: u64,
}

/// Device and number of a file or directory.
type Identity = (u64, u64);

fn identity(stat: Stat) -> Identity {
    (stat.dev, stat.ino)
}

impl Duty for Flushing {
    fn turn(&mut self, called: bool) -> Next {
        if self.core.check().is_err() {
            return Next::Stop;
        }
        self.look_at_files();
        if called {
            // A leader that must run no waker called.
            self.core.wake_tasks();
        }
        if let Some((end, level)) = self.awaited() {
            let _ = (0..YIELDS).all(|_| self.core.give_way());
            // Poison and close are seen at the next turn.
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
        Next::Sleep(Some(self.core.options.flush_interval))
    }

    /// In a set the files are looked at only where something was appended since: else there was
    /// nothing to be acknowledged.
    fn interval_passed(&mut self) -> bool {
        self.intervals = self.intervals.saturating_add(1);
        // Of the many quiet logs of a set no more is read than where they end.
        let end = self.core.appended();
        self.ticks = end != self.quiet_at && !self.is_sealed(end);
        if !self.ticks {
            self.quiet_at = end;
        }
        self.ticks || (self.intervals >= LOOK_AT_FILES && end != self.looked_at)
    }

    fn abandon(&self) {
        self.core.poison(&Fatal::unfinished(super::background::PANICKED));
    }
}

impl Flushing {
    pub(super) fn new(core: &Arc<Core>) -> Result<Self, LogError> {
        let stat = core.options.device.stat(&core.dir).at("look at", &core.dir)?;
        Ok(Self {
            worker: Worker::new(Arc::clone(core))?,
            sealed: core.appended(),
            seen: 0,
            ticks: false,
            quiet_at: 0,
            directory: identity(stat),
            intervals: 0,
            looked: core.now(),
            looked_at: core.appended(),
            core: Arc::clone(core),
        })
    }

    /// How far, and how safe, the log must get for all that wait for it to be served.
    fn awaited(&self) -> Option<(u64, Level)> {
        let core = &self.core;
        let end = core.appended();
        if core.watchers.any() && core.durable() < end {
            return Some((end, Level::Disk));
        }
        core.waiting.farthest()
    }

    /// Whether the log, which ends there, is durable up to a seal, so that an interval brings nothing
    /// to do.
    fn is_sealed(&self, end: u64) -> bool {
        self.core.durable() >= end && self.core.last_filler.behind(self.sealed) >= end
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
            if !self.core.options.manual_flush || self.core.watchers.any() {
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

    /// Once a second; by the clock where there is so much to do that no interval ever passes.
    fn look_at_files(&mut self) {
        let between = nanos(self.core.options.flush_interval).saturating_mul(LOOK_AT_FILES.into());
        if self.intervals >= LOOK_AT_FILES || self.core.now().saturating_sub(self.looked) > between {
            (self.intervals, self.looked) = (0, self.core.now());
            self.looked_at = self.core.appended();
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
pub(super) struct Writing(pub(super) Arc<Core>);

impl Duty for Writing {
    fn turn(&mut self, _called: bool) -> Next {
        let core = &self.0;
        if core.check().is_err() {
            return Next::Stop;
        }
        let Some(end) = core.waiting.farthest_written() else {
            // Those that wait for room.
            core.wake_tasks();
            return Next::Sleep(None);
        };
        // Poison and close are seen at the next turn.
        let _ = core.wait(end, Level::Process);
        core.wake_tasks();
        Next::Again
    }

    fn interval_passed(&mut self) -> bool {
        false
    }

    fn abandon(&self) {
        self.0.poison(&Fatal::unfinished(super::background::PANICKED));
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
