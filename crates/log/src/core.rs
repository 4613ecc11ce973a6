//! What all handles of one open log share: the counter, the watermarks, the ring, and whether the
//! log goes on.

use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;

use collie_io::{Clock, Foreground, Nanos, Opener, Yielding};

use crate::Lsn;
use crate::append::ring::Ring;
use crate::append::space::Space;
use crate::error::{Failure, Fatal, LogError};
use crate::flush::waiters::Tasks;
use crate::flush::writer::{LastFiller, SegmentWriter, Unsynced};
use crate::format::Salt;
use crate::lockfree::applied::Applied;
use crate::lockfree::boundary::{CompletionBoundary, Reservations};
use crate::lockfree::group::GroupCommit;
use crate::lockfree::sync::{AtomicU32, AtomicU64, Ordering};
use crate::options::{LogOptions, OnPoisoned};
use crate::recovery::{DirLock, Opened, RecoveryReport};
use crate::segments::pool::Segments;
use crate::set::Jobs;
use crate::stats::{Figures, Totals};
use crate::threads::JobHandle;

/// A watermark on cache lines of its own; see also [`DurableBoundary`].
#[derive(Debug)]
#[repr(align(128))]
struct Alone(AtomicU64);

/// Says that the boundary is fixed. LSNs of frames are multiples of 8.
const FIXED: u64 = 1;

/// The durable boundary, which a failure of the log fixes for good. Alone on its cache lines.
///
/// A write or a sync may be in flight when the log fails, and may succeed. What it wrote is durable
/// then, but is not reported: where a commit is in doubt for one caller it is in doubt for all, and
/// a reader that refuses what lies beyond the boundary need not check whether it has moved since.
#[derive(Debug)]
#[repr(align(128))]
struct DurableBoundary(AtomicU64);

impl DurableBoundary {
    fn new(at: Lsn) -> Self {
        debug_assert_eq!(at & FIXED, 0);
        Self(AtomicU64::new(at))
    }

    /// Acquire pairs with the Release in `raise`.
    fn get(&self) -> Lsn {
        self.0.load(Ordering::Acquire) & !FIXED
    }

    /// Raises it, unless it is fixed: then it stays, and `false` says so. One thread at a time
    /// raises it.
    fn raise(&self, to: Lsn) -> bool {
        debug_assert_eq!(to & FIXED, 0);
        // Relaxed: another thread can only have fixed it, and then the exchange fails.
        let from = self.0.load(Ordering::Relaxed);
        // Release pairs with the Acquire in `get` and in `fix`.
        from & FIXED == 0
            && self
                .0
                .compare_exchange(from, to, Ordering::Release, Ordering::Relaxed)
                .is_ok()
    }

    /// Fixes it where it stands, and returns that; every call returns the same.
    fn fix(&self) -> Lsn {
        // Acquire pairs with the Release in `raise`.
        self.0.fetch_or(FIXED, Ordering::AcqRel) & !FIXED
    }
}

const RUNNING: u32 = 0;
const CLOSED: u32 = 1;
const POISONED: u32 = 2;
/// Closed, and nothing is written any more: the directory may be another log's by now.
const ENDED: u32 = 3;

/// An open log: what all of its handles, workers and threads share. Its own state is private: the
/// watermarks, and how the log ended. What the crate sees are parts, each a type that keeps its own
/// state true.
pub(crate) struct Core {
    pub(crate) options: LogOptions,
    pub(crate) dir: PathBuf,
    pub(crate) opening: Opening,
    health: Health,
    pub(crate) order: Order,
    marks: Watermarks,
    pub(crate) ring: Ring,
    pub(crate) segments: Segments,
    pub(crate) space: Space,
    pub(crate) flush: Flush,
    pub(crate) tasks: Tasks,
    pub(crate) threads: Jobs,
    pub(crate) stats: Figures,
}

/// The order of frames, and how far it is copied and applied.
pub(crate) struct Order {
    pub(crate) next: Reservations,
    pub(crate) completion: CompletionBoundary,
    pub(crate) applied: Applied,
}

/// What recovery made of this opening.
pub(crate) struct Opening {
    pub(crate) epoch: u32,
    pub(crate) salt: Salt,
    pub(crate) report: RecoveryReport,
    /// Let go by a clean close, or with the last worker: as long as a frame of a poisoned log may
    /// be in the ring, no other process may open the directory and find the ring in use.
    pub(crate) lock: DirLock,
}

/// Whether the log goes on, here.
struct Health {
    /// The process that all of this belongs to: a child that it forks has only copies.
    opener: Opener,
    state: AtomicU32,
    failure: OnceLock<Failure>,
}

/// How far the log is on its way to the device.
struct Watermarks {
    /// Raised by the write group's leader, read by every append.
    written: Alone,
    durable: DurableBoundary,
}

/// The way from the ring to the device.
pub(crate) struct Flush {
    /// The first stage of a commit: from the ring to the segments.
    pub(crate) writes: GroupCommit<SegmentWriter>,
    /// The second stage, where writes go to the page cache. A thread that has both leads took this
    /// one first.
    pub(crate) syncs: GroupCommit<()>,
    pub(crate) unsynced: Unsynced,
    /// Where groups are padded.
    pub(crate) last_filler: LastFiller,
    yielding: Yielding,
}

/// What identifies a log: all of it, with its histograms and worker slots, would be pages
/// of figures.
impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log")
            .field("dir", &self.dir)
            .field("epoch", &self.opening.epoch)
            .field("durable", &self.durable())
            .field("poisoned", &self.health.failure.get())
            .finish_non_exhaustive()
    }
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
        let slots = options.all_workers() + usize::from(options.pad_to_block);
        let completion = CompletionBoundary::new(slots, end);
        let filler_slot = options.pad_to_block.then(|| completion.register()).flatten();
        Self {
            order: Order {
                next: Reservations::new(end),
                completion,
                applied: Applied::new(options.all_workers(), end),
            },
            space: Space::of(&options, total, segments.owes()),
            stats: Figures::new(slots),
            marks: Watermarks {
                written: Alone(AtomicU64::new(end)),
                durable: DurableBoundary::new(end),
            },
            flush: Flush {
                writes: GroupCommit::new(SegmentWriter::new(end, &partial, filler_slot)),
                syncs: GroupCommit::new(()),
                unsynced: Unsynced::default(),
                last_filler: LastFiller::default(),
                yielding: Yielding::new(),
            },
            tasks: Tasks::new(),
            threads: Jobs::default(),
            health: Health {
                opener: Opener::here(),
                state: AtomicU32::new(RUNNING),
                failure: OnceLock::new(),
            },
            opening: Opening {
                epoch,
                salt,
                report,
                lock,
            },
            options,
            dir,
            ring,
            segments,
        }
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        self.options.device.clock()
    }

    /// Until it is dropped, what users wait for is on its way to the device.
    pub(crate) fn foreground(&self) -> Option<Foreground<'_>> {
        let scheduler = self.options.scheduler.as_ref();
        scheduler.map(|scheduler| scheduler.foreground())
    }

    /// Gives up the processor, or returns `false` where a thread that waits had better sleep.
    pub(crate) fn give_way(&self) -> bool {
        if cfg!(shuttle) {
            crate::lockfree::sync::yield_now();
            return true;
        }
        self.flush.yielding.give_way(self.clock())
    }

    pub(crate) fn now(&self) -> Nanos {
        self.clock().monotonic()
    }

    pub(crate) fn appended(&self) -> Lsn {
        self.order.next.cutoff()
    }

    pub(crate) fn boundary(&self) -> Lsn {
        self.order.completion.scan(|| self.appended())
    }

    /// Acquire pairs with the Release in `raise_written`.
    pub(crate) fn written(&self) -> Lsn {
        self.marks.written.0.load(Ordering::Acquire)
    }

    pub(crate) fn durable(&self) -> Lsn {
        self.marks.durable.get()
    }

    /// Fails in a child of the process that opened the log.
    pub(crate) fn check_process(&self) -> Result<(), LogError> {
        if self.health.opener.is_here() {
            return Ok(());
        }
        Err(LogError::Forked {
            path: self.dir.clone(),
            opener: self.health.opener.pid(),
        })
    }

    /// Whether appends and waits go on.
    pub(crate) fn check(&self) -> Result<(), LogError> {
        self.check_process()?;
        // Acquire pairs with the Release in `poison` and `close`.
        match self.health.state.load(Ordering::Acquire) {
            RUNNING => Ok(()),
            CLOSED | ENDED => Err(LogError::Closed),
            _ => Err(self.why_poisoned()),
        }
    }

    #[cold]
    fn why_poisoned(&self) -> LogError {
        self.poisoned().unwrap_or(LogError::Poisoned {
            cause: "unknown".into(),
        })
    }

    pub(crate) fn poisoned(&self) -> Option<LogError> {
        self.health.failure.get().map(|failure| LogError::Poisoned {
            cause: failure.cause.to_string(),
        })
    }

    /// Why the log stopped for good, and what of it is certain.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.health.failure.get()
    }

    /// Stops the log for good; the first cause is the one that every caller gets. What is not
    /// durable by now is in doubt from here on, whatever becomes of the groups in flight.
    pub(crate) fn poison(&self, fatal: &Fatal) {
        let cause = fatal.cause();
        let failure = Failure {
            cause: cause.into(),
            durable: self.marks.durable.fix(),
        };
        let first = self.health.failure.set(failure).is_ok();
        // Release pairs with the Acquire in `check`.
        self.health.state.store(POISONED, Ordering::Release);
        self.wake_every_waiter();
        if first {
            tracing::error!(dir = %self.dir.display(), cause, "the log is poisoned");
            if let (Some(OnPoisoned(tell)), Some(error)) = (&self.options.on_poisoned, self.poisoned()) {
                tell(&error);
            }
        }
    }

    /// Does a stage's work, unless the log has failed or ended. An error poisons the log, and so
    /// does a panic: the next leader must not sync again what this one may have failed to sync.
    pub(crate) fn work(&self, work: impl FnOnce() -> Result<(), Fatal>) {
        if self.failure().is_some() || self.has_ended() {
            return;
        }
        let armed = self.armed("a thread failed in the middle of a flush");
        let done = work();
        armed.disarm();
        if let Err(fatal) = done {
            self.poison(&fatal);
        }
    }

    /// Poisons the log with this cause unless it is disarmed: for work that a panic must not leave
    /// half done.
    pub(crate) fn armed(&self, cause: &'static str) -> Armed<'_> {
        Armed { core: self, cause }
    }

    /// No append is admitted from here on; `false` where it was stopped already.
    pub(crate) fn stop(&self) -> bool {
        let stopped = self
            .health
            .state
            .compare_exchange(RUNNING, CLOSED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        self.wake_every_waiter();
        stopped
    }

    /// Ends the work on files. When this returns no group is in flight, no segment is being
    /// prepared or released, and none will be, although handles and workers may be left.
    pub(crate) fn end(&self) {
        self.segments.close();
        self.flush.syncs.alone(|| {
            self.flush.writes.alone(|| {
                // Poison stays what it is. Release pairs with the Acquire in `check` and
                // `has_ended`.
                let _ =
                    self.health
                        .state
                        .compare_exchange(CLOSED, ENDED, Ordering::Release, Ordering::Relaxed);
            });
        });
        self.wake_every_waiter();
    }

    pub(crate) fn has_ended(&self) -> bool {
        // Acquire pairs with the Release in `end`; leaders are ordered with it by the lead.
        self.health.state.load(Ordering::Acquire) == ENDED
    }

    /// Why nothing further becomes durable, once that is so. What was under way when the log was
    /// closed still does.
    pub(crate) fn ended(&self) -> Option<LogError> {
        self.poisoned()
            .or_else(|| self.has_ended().then_some(LogError::Closed))
            .or_else(|| self.check_process().err())
    }

    fn wake_every_waiter(&self) {
        self.flush.writes.wake_all();
        self.flush.syncs.wake_all();
        self.threads.all().into_iter().for_each(JobHandle::call);
        self.wake_tasks();
    }

    /// Whether what is in the ring survives the process, so that a copy there is enough for
    /// [`Level::Process`](crate::Level::Process). Relaxed: it changes once, and nothing is ordered
    /// by it.
    pub(crate) fn ring_survives(&self) -> bool {
        self.ring.survives.load(Ordering::Relaxed)
    }

    /// The ring's file was removed. What is in the ring must be flushed after this.
    pub(crate) fn ring_was_removed(&self) {
        // Relaxed: see `ring_survives`.
        self.ring.survives.store(false, Ordering::Relaxed);
    }

    pub(crate) fn raise_written(&self, whole: Lsn) {
        // The mark first: a worker writes into the room that `written` makes only after the mark
        // says that nothing there is needed any more. Both stand at the end of a frame, so that
        // after a death in the middle of a write the segments are good up to the mark and the ring
        // goes on from there. A private ring has no later process, and its mark's page is not touched.
        if self.ring.file.is_some() {
            self.ring.publish_written(whole);
        }
        // Release pairs with the Acquire in `written`: workers may overwrite what was read out.
        self.marks.written.0.store(whole, Ordering::Release);
    }

    pub(crate) fn raise_durable(&self, durable: Lsn) {
        if !self.marks.durable.raise(durable) {
            return;
        }
        self.stats.recorder.syncs.fetch_add(1, Ordering::Relaxed);
        self.stats.recorder.count_group(self.frames());
    }

    /// Frames appended by all workers so far.
    pub(crate) fn frames(&self) -> u64 {
        self.stats.counts.frames(self.order.completion.slots_in_use())
    }

    /// What all workers counted beside frames.
    pub(crate) fn totals(&self) -> Totals {
        self.stats.counts.totals(self.order.completion.slots_in_use())
    }
}

/// Poisons the log when it is dropped, unless it was disarmed before: [`Core::armed`].
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

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_boundary_stays_where_it_is() {
        let boundary = DurableBoundary::new(8);
        assert!(boundary.raise(64));
        assert_eq!(boundary.fix(), 64);
        assert!(!boundary.raise(72));
        assert_eq!((boundary.get(), boundary.fix()), (64, 64));
    }
}
