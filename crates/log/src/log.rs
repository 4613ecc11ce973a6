//! The handle: opening, waiting, reading, holding, closing.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::file_system_bytes;

use crate::append::worker::Worker;
use crate::core::Core;
use crate::error::{Failure, LogError};
use crate::flush::background::Background;
use crate::flush::futures::{Durable, DurableChanges, RoomFor};
use crate::lockfree::applied::Stuck;
use crate::lockfree::sync::{Mutex, Ordering, lock};
use crate::options::{Level, LogOptions};
use crate::read::reader::{Holder, Reader, get};
use crate::read::tail::Tail;
use crate::recovery::{self, RecoveryReport, Visit};
use crate::segments::archive::Archive;
use crate::set::LogSet;
use crate::stats::{Compressed, LogStats, SAMPLE, Stages, since};
use crate::{Frame, FrameRef, Lsn};

/// An open log. Clones are handles to the same log; all methods may be called from any thread.
#[derive(Clone)]
pub struct Log {
    shared: Arc<OpenLog>,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.core.fmt(f)
    }
}

/// Closes the log when the last handle goes.
struct OpenLog {
    core: Arc<Core>,
    background: Background,
    /// Has a slot of its own, so that a log can always be closed.
    closer: Mutex<Option<Worker>>,
}

impl Log {
    /// Opens the log in `dir`, which is created where it does not exist, recovers what an earlier
    /// process left there, and begins a new epoch. Takes the directory's lock until the log is
    /// closed.
    ///
    /// # Errors
    /// [`LogError::Options`], [`LogError::Locked`], [`LogError::WrongDirectory`],
    /// [`LogError::Version`] and [`LogError::Corrupt`] leave the directory as it was; so do
    /// [`LogError::Missing`] and [`LogError::LogIdMismatch`], and in a forked child, whose set has no
    /// threads, [`LogError::Forked`]. [`LogError::Io`] may come at any
    /// point; opening again starts over and comes to the same end.
    pub fn open(dir: impl AsRef<Path>, options: LogOptions) -> Result<Self, LogError> {
        Self::open_seeing(dir.as_ref(), options, &mut |_| Ok(()))
    }

    /// As [`Log::open`], and hands every recovered frame of the log's users to `visitor`, in the
    /// order of their LSNs, from the oldest live segment (or [`LogOptions::resume_at`]) to the end
    /// of the log: what a [`Log::read`] of all gives right after opening. Recovery verifies each
    /// frame anyway, so the log is read once; payloads are not copied, but for those that are
    /// decompressed or that only the ring of a dead process has.
    ///
    /// The frames come before the log is opened: all of them, and then nothing is changed yet in the
    /// directory, but by [`RecoveryMode::PointInTimeRecovery`](crate::RecoveryMode). Those that
    /// recovery copies forward keep their LSNs. Where the opening fails, what `visitor` saw counts
    /// for nothing.
    ///
    /// Blocks, as [`Log::open`], and for as long as `visitor` does. It runs on the calling thread.
    ///
    /// # Errors
    /// The first error of `visitor`, which ends the opening: the directory is unlocked and left as
    /// it was found. Those of [`Log::open`], as `E`; and [`LogError::Corrupt`] for a frame whose
    /// payload cannot be decompressed.
    ///
    /// ```
    /// use collie_log::{Level, Log, LogError, LogOptions, Lsn};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("log");
    /// let log = Log::open(&path, LogOptions::default())?;
    /// let span = log.worker()?.append(7, 1, b"hello")?;
    /// log.wait(span.end, Level::Disk)?;
    /// log.close()?;
    ///
    /// // Where the last frame of stream 7 is.
    /// let mut last: Option<Lsn> = None;
    /// let log = Log::open_with(&path, LogOptions::default(), |frame| {
    ///     if frame.stream == 7 {
    ///         last = Some(frame.start);
    ///     }
    ///     Ok::<(), LogError>(())
    /// })?;
    /// assert_eq!(last, Some(span.start));
    /// assert_eq!(log.get(span.start)?.payload, b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_with<E: From<LogError>>(
        dir: impl AsRef<Path>,
        options: LogOptions,
        mut visitor: impl FnMut(FrameRef<'_>) -> Result<(), E>,
    ) -> Result<Self, E> {
        let dir = dir.as_ref();
        let mut refused = None;
        let mut next = options.resume_at.unwrap_or(0);
        let opened = Self::open_seeing(dir, options, &mut |seen| {
            // Where recovery starts over, and where it mends what lies before, it comes to frames that
            // were handed out or are not wanted.
            if seen.header.lsn.get() < next || seen.is_own() {
                return Ok(());
            }
            next = seen.header.end();
            let payload = seen.appended(dir)?;
            visitor(seen.given(&payload)).map_err(|error| {
                refused = Some(error);
                LogError::Closed
            })
        });
        match refused {
            Some(error) => Err(error),
            None => opened.map_err(E::from),
        }
    }

    /// As [`Log::open`]; `visit` sees what recovery takes.
    fn open_seeing(dir: &Path, options: LogOptions, visit: &mut Visit<'_>) -> Result<Self, LogError> {
        options.check()?;
        options.check_reserve(file_system_bytes(&*options.device, dir))?;
        if let Some(opener) = options.set.as_ref().and_then(LogSet::elsewhere) {
            let path = dir.to_owned();
            return Err(LogError::Forked { path, opener });
        }
        let device = Arc::clone(&options.device);
        let lock = recovery::DirLock::take(&*device, dir)?;
        let reserve = recovery::reserve(dir, &options);
        let opened = match recovery::recover(dir, options.clone(), lock.clone(), visit) {
            // It starts over, and comes to the same end.
            Err(error) if error.is_full() && reserve.give_up(&*device).unwrap_or(false) => {
                recovery::recover(dir, options, lock, visit)?
            }
            opened => opened?,
        };
        // Before anybody prepares further segments, so that what an opening takes it gives back.
        match reserve.fill(&*device) {
            Ok(true) => {}
            Ok(false) => opened.segments.owe(reserve),
            Err(error) => {
                tracing::warn!(path = %reserve.path().display(), %error, "no room is kept back for the next opening");
            }
        }
        let core = Arc::new(Core::new(opened));
        let closer = Mutex::new(Some(Worker::new(Arc::clone(&core))?));
        let background = Background::start(&core)?;
        Ok(Self {
            shared: Arc::new(OpenLog {
                core,
                background,
                closer,
            }),
        })
    }

    /// Opens many logs, up to so many at a time, each as [`Log::open`]; the answers are in the order
    /// of what was given. Most of an opening is waiting for the device: a few at a time take a
    /// fraction of what one after the other does. The calling thread does a share.
    pub fn open_all(logs: Vec<(PathBuf, LogOptions)>, at_a_time: usize) -> Vec<Result<Self, LogError>> {
        let threads = at_a_time.clamp(1, logs.len().max(1));
        let mut opened: Vec<_> = logs.iter().map(|_| None).collect();
        let left = std::sync::Mutex::new(logs.into_iter().zip(&mut opened));
        let work = || {
            while let Some(((dir, options), answer)) = next(&left) {
                *answer = Some(Self::open(dir, options));
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // Where no further thread can be started, those that are there open all.
                let _ = std::thread::Builder::new()
                    .name("collie-open".to_owned())
                    .spawn_scoped(scope, work);
            }
            work();
        });
        drop(left);
        opened
            .into_iter()
            .map(|answer| answer.unwrap_or(Err(LogError::Closed)))
            .collect()
    }

    pub(crate) fn core(&self) -> &Core {
        &self.shared.core
    }

    /// What recovery found and did.
    #[must_use]
    pub fn recovery(&self) -> &RecoveryReport {
        &self.core().opening.report
    }

    /// A worker to append with. It owns one of [`LogOptions::max_workers`] slots until it is
    /// dropped.
    ///
    /// # Errors
    /// [`LogError::TooManyWorkers`].
    pub fn worker(&self) -> Result<Worker, LogError> {
        self.core().check_process()?;
        Worker::new(Arc::clone(&self.shared.core))
    }

    /// Blocks until everything below `end` is safe at `level`; `end` is that of an appended frame.
    /// The caller may lead the flush of its whole group.
    ///
    /// Once the log has failed, [`Level::Process`] asks for as much as [`Level::Disk`]: the page
    /// cache need not keep what could not be brought to the device.
    ///
    /// # Errors
    /// [`LogError::Poisoned`] or [`LogError::Closed`] where it never will be; [`LogError::Options`]
    /// where nothing was appended up to `end`.
    pub fn wait(&self, end: Lsn, level: Level) -> Result<(), LogError> {
        let core = self.core();
        // Ends are multiples of 8: these bits choose one wait in SAMPLE, evenly enough.
        if !(end >> 5).is_multiple_of(u64::from(SAMPLE)) {
            return core.wait(end, level);
        }
        let start = core.now();
        let answer = core.wait(end, level);
        core.stats.recorder.durable_ns.add(since(start, core.now()));
        answer
    }

    /// As [`Log::wait`], to be awaited on any executor. Never flushes by itself: the background
    /// flusher does. It resolves to the errors of [`Log::wait`].
    ///
    /// Its waker runs on a thread of the log, or on one that blocks in [`Log::wait`]. It may use
    /// the log, and may drop or close it (but not another log, a waker of which may close this one at
    /// the same time: each would wait for the other's end); a panic of it is reported to `tracing`. It must not wait
    /// for what only another future of this log brings: the thread that it runs on may be the one
    /// that wakes that.
    pub fn wait_async(&self, end: Lsn, level: Level) -> Durable {
        Durable::new(Arc::clone(&self.shared.core), end, level)
    }

    /// Resolves when a frame of so many bytes of payload has room, or with the reason why it has none
    /// for a while: for [`Worker::try_append`]. Others may be faster to take it. It needs the log's
    /// own threads ([`LogOptions::threads`]); its waker is treated as that of [`Log::wait_async`].
    /// [`Worker::append_async`] does both.
    ///
    /// It resolves to [`LogError::StorageFull`] or [`LogError::Unprepared`] where no more could be
    /// prepared when that was last tried (it is tried ten times a second), to
    /// [`LogError::Poisoned`], and to [`LogError::Closed`]; at once to [`LogError::TooLarge`] where
    /// the payload is larger than [`LogOptions::max_payload`].
    pub fn room(&self, payload: usize) -> RoomFor {
        RoomFor::new(Arc::clone(&self.shared.core), payload)
    }

    /// Why no more room could be prepared when that was last tried: [`LogError::StorageFull`] or
    /// [`LogError::Unprepared`]; `None` where it could. It is tried ten times a second for as long as
    /// it fails, by the log's own threads ([`LogOptions::threads`]). Appends still have the room that
    /// was prepared before, usually half a ring: see [`Log::has_prepared`]. Nothing is at stake, and
    /// nothing blocks.
    #[must_use]
    pub fn setback(&self) -> Option<LogError> {
        if let Err(forked) = self.core().check_process() {
            return Some(forked);
        }
        let setback = lock(&self.core().space.setback).clone();
        setback.map(|error| self.core().refusal(error, self.core().ahead()))
    }

    /// Whether frames of so many bytes, headers included, have room on the device that is prepared
    /// already. Others may take it. Does not block.
    #[must_use]
    pub fn has_prepared(&self, bytes: u64) -> bool {
        let core = self.core();
        core.space.admits_exactly(core.appended(), bytes)
    }

    /// Brings everything that was appended before the call to `level`; returns its end.
    ///
    /// # Errors
    /// [`LogError::Poisoned`] or [`LogError::Closed`] where it never will be.
    pub fn flush(&self, level: Level) -> Result<Lsn, LogError> {
        let end = self.appended();
        let level = if level == Level::Buffered {
            return Ok(end);
        } else {
            level
        };
        self.core().wait(end, level).map(|()| end)
    }

    /// The reservation counter: everything up to here is reserved. Acquire: it can serve as a
    /// scan's cutoff.
    #[must_use]
    pub fn appended(&self) -> Lsn {
        self.core().appended()
    }

    /// Scans the workers: everything below the answer is complete in the ring or beyond.
    #[must_use]
    pub fn boundary(&self) -> Lsn {
        self.core().boundary()
    }

    /// Everything below is applied that [`Worker::append_then`] appended. It moves with those appends
    /// and with [`Log::wait_applied`] alone.
    #[must_use]
    pub fn applied(&self) -> Lsn {
        self.core().order.applied.boundary()
    }

    /// Waits until everything below `end` is applied that [`Worker::append_then`] appended; `end` is
    /// that of an appended frame. Neither a failure of the log nor its closing ends the wait: what is
    /// under way is applied all the same.
    ///
    /// # Errors
    /// [`LogError::Unapplied`] where something below `end` never will be; [`LogError::Options`] where
    /// nothing was appended up to `end`; [`LogError::Forked`].
    pub fn wait_applied(&self, end: Lsn) -> Result<(), LogError> {
        let core = self.core();
        core.check_process()?;
        core.check_appended(end)?;
        let order = &core.order;
        let reached = order.applied.wait(end, &order.next);
        reached.map_err(|Stuck| LogError::Unapplied)
    }

    /// In the segment files up to here.
    #[must_use]
    pub fn written(&self) -> Lsn {
        self.core().written()
    }

    /// On the device up to here. It does not move any more once the log has failed.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        self.core().durable()
    }

    /// The first LSN that a segment still holds; a frame may begin before it. 0 in a forked child.
    #[must_use]
    pub fn oldest(&self) -> Lsn {
        if self.core().check_process().is_err() {
            return 0;
        }
        self.core().segments.oldest()
    }

    /// The end of the oldest segment, beyond which all holders must be for it to be released. 0 in a
    /// forked child.
    #[must_use]
    pub fn oldest_end(&self) -> Lsn {
        if self.core().check_process().is_err() {
            return 0;
        }
        self.core().segments.oldest_end()
    }

    /// The durable frames from `from` on, up to what is durable now. `from` is the start of a
    /// frame, or [`RecoveryReport::first_frame`], or any frame's end. It may lie in the archive
    /// ([`LogOptions::archive_ttl`], [`LogOptions::archive_bytes`]): that is read first, and then
    /// the live log, without a gap.
    ///
    /// What is live is held until it is read; what is archived is not, nor is the live log held for
    /// a reader that is still in the archive. So a segment may leave the archive before it is read.
    ///
    /// # Errors
    /// [`LogError::Missing`] where that part is not durable yet, or was released and is not in the
    /// archive either; it says from which LSN on the log is there, archive included.
    /// [`LogError::Corrupt`] where the header of an archived segment is damaged,
    /// [`LogError::LogIdMismatch`] where it is another log's, and [`LogError::Io`]. The reader
    /// itself gives the same.
    pub fn read(&self, from: Lsn) -> Result<Reader, LogError> {
        Reader::start(&self.shared.core, Holder::Reader, from)
    }

    /// The frame that begins at `lsn`, which is durable: one that an append, a reader or
    /// [`Log::open_with`] gave as a [`Span`](crate::Span)'s or a frame's start. It may lie in the
    /// archive, as for [`Log::read`].
    ///
    /// It reads the frame and no more, at its place, and verifies its checksum: one read of 4 KiB, or
    /// two where the frame is larger, and the file is opened for it unless it is among the newest. In
    /// the archive, the headers of the segments behind it are read first. Nothing keeps the segment
    /// from being released: who needs the frame retains it ([`Log::retain`]). Any number of threads
    /// may call it at once. It blocks on file I/O, and on nothing else: a thread of an async runtime
    /// hands it to one that may block.
    ///
    /// # Errors
    /// [`LogError::Missing`] where `lsn` is not durable (yet), or was released and is not in the
    /// archive either. [`LogError::Corrupt`] where no frame of the log's users begins there, with
    /// what stands there: also where `lsn` lies within a frame or a
    /// [damaged part](crate::RecoveryMode::SkipDamaged). [`LogError::Io`];
    /// [`LogError::LogIdMismatch`] in the archive; [`LogError::Closed`] once the log has been closed.
    /// A poisoned log still gives what is durable.
    ///
    /// ```
    /// use collie_log::{Level, Log, LogError, LogOptions};
    /// # let dir = tempfile::tempdir()?;
    /// let log = Log::open(dir.path().join("log"), LogOptions::default())?;
    /// let span = log.worker()?.append(7, 1, b"hello")?;
    /// log.wait(span.end, Level::Disk)?;
    /// let frame = log.get(span.start)?;
    /// assert_eq!((frame.stream, frame.payload), (7, b"hello".to_vec()));
    /// assert!(matches!(log.get(span.start + 8), Err(LogError::Corrupt { .. })));
    /// assert!(matches!(log.get(1 << 50), Err(LogError::Missing { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get(&self, lsn: Lsn) -> Result<Frame, LogError> {
        get(self.core(), lsn)
    }

    /// The durable boundary each time that it has moved, for one task that completes what many wait
    /// for. As long as it is there, everything that is appended is brought to the device, as if a
    /// [`Log::wait_async`] waited for it. See [`DurableChanges`].
    ///
    /// Needs the log's own threads ([`LogOptions::threads`]), or threads that wait or flush. Does not
    /// block.
    pub fn durable_changes(&self) -> DurableChanges {
        DurableChanges::new(&self.shared.core)
    }

    /// The durable frames from `from` on, as [`Log::read`], and then those that become durable, as
    /// they do. [`Log::durable`] begins with what comes from now on.
    ///
    /// The tail keeps what it has yet to give from being released, under the name `tail/NAME`; a
    /// slow one is thereby seen to pin the log. (One that began in the archive does so from where
    /// it comes upon the live log.) What it holds goes with it. To go on later where it stopped,
    /// hold its [`Tail::resume_at`] with [`Log::retain`] before it is dropped. After the log was
    /// closed or its process died, take the tail up at that place right after opening, before the
    /// first call of [`Log::retain`]: an opened log releases nothing until then.
    ///
    /// # Errors
    /// As [`Log::read`].
    pub fn tail(&self, name: &str, from: Lsn) -> Result<Tail, LogError> {
        Reader::start(&self.shared.core, Holder::Tail(name.to_owned()), from).map(Tail::new)
    }

    /// Keeps the log from `lsn` on, where a frame starts or ends, from being released, under a name
    /// that says what needs it; a holder that exists is moved. Whole segments below all holders are
    /// released in the background, the last of them when something durable stands behind it. As
    /// long as there is no holder nothing is released; so after an open the first call, under any
    /// name, lets go of what others have yet to retain.
    pub fn retain(&self, name: &str, lsn: Lsn) {
        let core = self.core();
        if core.check_process().is_err() {
            return;
        }
        lock(&core.segments.holders).retain(name, lsn);
        self.shared.background.release(core);
    }

    /// Forgets a holder.
    pub fn release(&self, name: &str) {
        if self.core().check_process().is_err() {
            return;
        }
        lock(&self.core().segments.holders).release(name);
        self.shared.background.release(self.core());
    }

    /// All holders and what they hold, lowest first: the first one pins the log. None in a forked
    /// child.
    #[must_use]
    pub fn holders(&self) -> Vec<(String, Lsn)> {
        if self.core().check_process().is_err() {
            return Vec::new();
        }
        lock(&self.core().segments.holders).list()
    }

    /// Removes the spare segments, and what is archived, for another user of the disk that needs
    /// the room; `false` where there is nothing of the kind. A log that is full does this by
    /// itself.
    #[must_use]
    pub fn give_up_spares(&self) -> bool {
        self.core().check().is_ok() && self.core().segments.give_up_spares()
    }

    /// While room is withheld, the log takes none of the device for appends that add data, not even
    /// ahead of need: what there is, is for relief and marks, and for others. Appends have the room
    /// that was prepared before.
    pub fn withhold_room(&self, withheld: bool) {
        self.core().segments.withhold(withheld);
        if !withheld {
            self.core().threads.preparer.call();
        }
    }

    /// Why the log stopped, if it did.
    #[must_use]
    pub fn poisoned(&self) -> Option<LogError> {
        self.core().poisoned()
    }

    /// Why the log stopped for good, if it did, and up to where it is certain.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.core().failure()
    }

    /// Where the log stands, and what it did so far. In a forked child all figures are 0, and
    /// [`LogStats::poisoned`] says why.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        let core = self.core();
        if let Err(forked) = core.check_process() {
            return LogStats {
                poisoned: Some(forked.to_string()),
                ..LogStats::default()
            };
        }
        let (durable, written) = (core.durable(), core.written());
        let boundary = core.boundary().max(written);
        let (segments, spare_segments, segment_bytes) = core.segments.size();
        let (archived_segments, archived_bytes) = core.segments.archive().map_or((0, 0), Archive::size);
        let (r, totals) = (&core.stats.recorder, core.totals());
        LogStats {
            durable,
            written,
            boundary,
            appended: core.appended(),
            oldest: core.segments.oldest(),
            frames: core.frames(),
            frame_bytes: totals.bytes,
            filler_bytes: r.filler_bytes.load(Ordering::Relaxed),
            compression: Compressed {
                frames: totals.compressed,
                bytes_before: totals.before,
                bytes_after: totals.after,
            },
            bytes_written: r.bytes_written.load(Ordering::Relaxed),
            syncs: r.syncs.load(Ordering::Relaxed),
            refused: r.refused.load(Ordering::Relaxed),
            group_frames: r.group.summary(),
            stages: Stages {
                reserve_ns: r.reserve_ns.summary(),
                copy_ns: r.copy_ns.summary(),
                room_ns: r.room_ns.summary(),
                prepare_ns: r.prepare_ns.summary(),
                durable_ns: r.durable_ns.summary(),
                write_ns: r.write_ns.summary(),
                sync_ns: r.sync_ns.summary(),
            },
            segments,
            spare_segments,
            archived_segments,
            archived_bytes,
            segment_bytes,
            workers: core.order.completion.slots_in_use(),
            ring_shared: core.ring_survives(),
            holders: self.holders(),
            poisoned: core.poisoned().map(|e| e.to_string()),
        }
    }

    /// Stops appends, flushes, syncs, and marks the log as cleanly closed. Other handles and
    /// workers get [`LogError::Closed`] from then on. An append on another thread that had passed
    /// that check may still return a place, which a wait answers with [`LogError::Closed`]: its
    /// frame is lost. A poisoned log keeps its directory locked until its last worker and its last
    /// future are gone, too.
    ///
    /// # Errors
    /// [`LogError::Poisoned`] with the first cause, where the log stopped earlier or in the last
    /// flush; what was acknowledged before is safe all the same.
    pub fn close(self) -> Result<(), LogError> {
        self.shared.close()
    }
}

impl OpenLog {
    fn close(&self) -> Result<(), LogError> {
        let core = &self.core;
        core.check_process()?;
        // Each waiter gets its answer before the log stops.
        let _ = core.wait(core.appended(), Level::Disk);
        let first = core.stop();
        self.background.join(core);
        let Some(mut closer) = lock(&self.closer).take().filter(|_| first) else {
            return core.poisoned().map_or(Ok(()), Err);
        };
        // A worker may have passed its check before the stop and be in mid-copy: its frame is taken
        // along, or it learns from its wait that the log is closed.
        core.finish()?;
        // Where there is no room for the mark, the ring stays instead and says to the next open
        // that it holds nothing more.
        let marked = closer.append_close().is_ok();
        core.finish()?;
        // An append that passed its check before the stop may still be under way: it must not touch
        // the files of the next process that opens the log.
        core.end();
        if marked {
            self.drop_ring();
        } else {
            self.leave_spent_ring();
        }
        core.opening.lock.release();
        Ok(())
    }

    /// The ring's content is in the segments, and they say so.
    fn drop_ring(&self) {
        if let Some(ring) = &self.core.ring.file
            && let Err(error) = self.core.options.device.remove_file(&ring.path)
        {
            // It is recognised as spent and removed by the next open.
            tracing::warn!(path = %ring.path.display(), %error, "cannot remove the ring");
        }
    }

    /// The ring's content is in the segments, and they cannot say so. The file itself stays locked
    /// as long as an old handle or worker has it, so another one says it.
    fn leave_spent_ring(&self) {
        if let Some(ring) = &self.core.ring.file
            && let Err(error) = recovery::leave_spent(&*self.core.options.device, ring, self.core.written())
        {
            tracing::warn!(path = %ring.path.display(), %error, "the ring is in use until the last handle and worker of this log are gone");
        }
    }
}

impl Drop for OpenLog {
    fn drop(&mut self) {
        if self.core.check_process().is_err() {
            // The threads to be joined, the files and the lock are the parent's.
            return;
        }
        if let Err(error) = self.close() {
            tracing::error!(dir = %self.core.dir.display(), %error, "the log did not close cleanly");
        }
    }
}

impl Frame {
    /// Length of the frame in the log, header and padding included.
    #[must_use]
    pub fn len_in_log(&self) -> u64 {
        self.end - self.start
    }
}

/// The next one, of what several threads take from.
fn next<T>(left: &std::sync::Mutex<impl Iterator<Item = T>>) -> Option<T> {
    left.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .next()
}
