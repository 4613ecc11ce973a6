//! The append path, top to bottom.

use std::sync::Arc;

use collie_io::Nanos;

use crate::append::compress::{Compressor, Stored};
use crate::append::sequence::Pending;
use crate::core::Core;
use crate::error::{AppendError, LogError};
use crate::flush::futures::RoomFor;
use crate::format::{FIRST_OWN_KIND, FrameHeader, FrameStart, KIND_CLOSE, KIND_SEAL, MAX_STREAM, frame_len};
use crate::lockfree::boundary::SlotId;
use crate::lockfree::limit::Room;
use crate::lockfree::sync::{Ordering, fence};
use crate::options::Compression;
use crate::stats::{SAMPLE, Share, since};
use crate::{Lsn, Span};
use zerocopy::IntoBytes;

/// Why a log stops whose worker left a hole.
const UNFINISHED: &str = "a worker failed between reserving a frame and completing it";

/// Sees an append from inside. What is refused is refused before either call.
trait Hook {
    /// Whether the frame is to be applied, so that it holds the applied boundary.
    const APPLIES: bool;
    /// Just before the reservation; `next` is the counter's value, or an older one.
    fn before_reserve(&mut self, worker: &Worker, next: Lsn);
    /// The frame has its place, and is not copied yet.
    fn reserved(&mut self, worker: &Worker, span: Span);
}

/// No hook.
impl Hook for () {
    const APPLIES: bool = false;

    fn before_reserve(&mut self, _worker: &Worker, _next: Lsn) {}
    fn reserved(&mut self, _worker: &Worker, _span: Span) {}
}

/// Makes the worker's slot for the applied boundary pending, as the log does its own around the
/// reservation.
struct ToApply {
    is_pending: bool,
}

impl Hook for ToApply {
    const APPLIES: bool = true;

    fn before_reserve(&mut self, worker: &Worker, next: Lsn) {
        if let Some(slots) = &worker.slots {
            self.is_pending = true;
            worker.core.order.applied.set_pending(&slots.applied, next);
        }
    }

    fn reserved(&mut self, worker: &Worker, span: Span) {
        if let Some(slots) = &worker.slots {
            worker.core.order.applied.set_pending(&slots.applied, span.start);
        }
    }
}

/// Appends frames; one thread at a time, so a thread usually has its own.
#[derive(Debug)]
pub struct Worker {
    core: Arc<Core>,
    /// Always there until the worker is dropped.
    slots: Option<Slots>,
    /// A frame that it appended is not applied and will not be.
    is_stuck: bool,
    /// Counts down to the next timed append.
    sample: u32,
    /// Where payloads are compressed, if they are.
    compressor: Option<Box<Compressor>>,
}

/// A worker's slots.
#[derive(Debug)]
struct Slots {
    copied: SlotId,
    applied: SlotId,
}

impl Worker {
    /// A worker of the log's user.
    pub(crate) fn new(core: Arc<Core>) -> Result<Self, LogError> {
        let order = &core.order;
        let both = order.completion.register().zip(order.applied.register());
        let (copied, applied) = both.ok_or(LogError::TooManyWorkers {
            limit: core.options.max_workers,
        })?;
        let compressor = match core.options.compression {
            Compression::None => None,
            Compression::Lz4 => Some(Box::default()),
        };
        Ok(Self {
            core,
            slots: Some(Slots { copied, applied }),
            is_stuck: false,
            sample: SAMPLE,
            compressor,
        })
    }

    /// Appends a frame and returns its place. When this returns the frame is complete in the ring;
    /// hand its end to [`Log::wait`](crate::Log::wait) or
    /// [`Log::wait_async`](crate::Log::wait_async) for durability.
    ///
    /// `stream` is below 2²⁴ and `kind` below 240; the log gives them back and knows nothing else
    /// of them. Wait-free while the ring has room; a full ring is waited for, and flushed by the
    /// waiter itself.
    ///
    /// # Errors
    /// [`LogError::Options`] (`stream` or `kind`), [`LogError::TooLarge`],
    /// [`LogError::StorageFull`] (try again later), [`LogError::Unprepared`] (likewise),
    /// [`LogError::Poisoned`], [`LogError::Closed`]: nothing was appended. If the log is poisoned
    /// while the append waits for room, the frame is lost with it.
    pub fn append(&mut self, stream: u32, kind: u8, payload: &[u8]) -> Result<Span, LogError> {
        self.append_in(Room::Commit, stream, kind, payload)
    }

    /// As [`Worker::append`], in a [`Room`] that may be there when others are full.
    ///
    /// # Errors
    /// As [`Worker::append`].
    pub fn append_in(&mut self, room: Room, stream: u32, kind: u8, payload: &[u8]) -> Result<Span, LogError> {
        self.append_hooked(room, stream, kind, payload, &mut ())
    }

    /// As [`Worker::append_in`], and applies with `apply` what was appended, such as to a table in
    /// memory that is recovered from the log. [`Log::applied`](crate::Log::applied) does not pass the
    /// frame before `apply` has returned, so a thread that reads below it sees every commit there
    /// wholly, and a prefix of the order. Others append and apply meanwhile. What happened before an append at a
    /// lower LSN was reserved happens before `apply`.
    ///
    /// `apply` runs on the calling thread. It may take locks, but must not wait for
    /// [`Log::wait_applied`](crate::Log::wait_applied).
    ///
    /// # Errors
    /// [`AppendError::Rejected`] with an error of [`Worker::append`], or [`LogError::Unapplied`] as below:
    /// nothing was appended.
    /// [`AppendError::Unapplied`]: the frame has its place, and the log failed before `apply` could
    /// run; the applied boundary stays below it for good, as it does where `apply` panics. This worker
    /// then applies nothing any more ([`LogError::Unapplied`]), and keeps its slot when it is dropped.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use collie_log::{Log, LogOptions, Room};
    /// # let dir = tempfile::tempdir()?;
    /// let log = Log::open(dir.path().join("log"), LogOptions::default())?;
    /// let total = AtomicU64::new(0);
    /// let mut worker = log.worker()?;
    /// let apply = |_span| total.fetch_add(7, Ordering::Relaxed) + 7;
    /// let (span, sum) = worker.append_then(Room::Commit, 0, 1, b"add 7", apply)?;
    /// log.wait_applied(span.end)?; // And whatever was appended before it.
    /// assert_eq!((sum, log.applied()), (7, span.end));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn append_then<T>(
        &mut self,
        room: Room,
        stream: u32,
        kind: u8,
        payload: &[u8],
        apply: impl FnOnce(Span) -> T,
    ) -> Result<(Span, T), AppendError> {
        if self.is_stuck {
            return Err(AppendError::Rejected(LogError::Unapplied));
        }
        // Cleared at the end; a panic before that leaves it set.
        self.is_stuck = true;
        let mut hook = ToApply { is_pending: false };
        let span = match self.append_hooked(room, stream, kind, payload, &mut hook) {
            Ok(span) => span,
            Err(error) if hook.is_pending => return Err(AppendError::Unapplied(error)),
            Err(error) => {
                self.is_stuck = false;
                return Err(AppendError::Rejected(error));
            }
        };
        let order = &self.core.order;
        let pending = Pending(&order.applied);
        // Pairs with the Release of every reservation: what came before one at a lower LSN is seen.
        fence(Ordering::Acquire);
        let done = apply(span);
        std::mem::forget(pending);
        if let Some(slots) = &self.slots {
            order.applied.complete(&slots.applied, span.end, &order.next);
        }
        self.is_stuck = false;
        Ok((span, done))
    }

    /// As [`Worker::append`], and calls `before` just before the reservation and `reserved` between
    /// that and the copy: for tests.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn append_paused(
        &mut self,
        stream: u32,
        kind: u8,
        payload: &[u8],
        [before, reserved]: [&mut dyn FnMut(Lsn); 2],
    ) -> Result<Span, LogError> {
        let mut paused = Paused { before, reserved };
        self.append_hooked(Room::Commit, stream, kind, payload, &mut paused)
    }

    /// Appends what may be appended, and counts it.
    fn append_hooked<H: Hook>(
        &mut self,
        room: Room,
        stream: u32,
        kind: u8,
        payload: &[u8],
        hook: &mut H,
    ) -> Result<Span, LogError> {
        self.check(stream, kind, payload)?;
        let mut compressor = self.compressor.take();
        let stored = store(&mut compressor, payload);
        let placed = self.place(stream, kind, stored, hook, room);
        let counted = self.count(payload, stored, placed);
        self.compressor = compressor;
        counted
    }

    /// Whether the frame may be appended at all.
    fn check(&self, stream: u32, kind: u8, payload: &[u8]) -> Result<(), LogError> {
        if stream > MAX_STREAM || kind >= FIRST_OWN_KIND {
            let (option, value) = match stream > MAX_STREAM {
                true => ("stream", stream.to_string()),
                false => ("kind", kind.to_string()),
            };
            return Err(LogError::Options {
                option,
                value,
                reason: format!("streams are below 2^24, and kinds below {FIRST_OWN_KIND}"),
            });
        }
        self.core.check()?;
        let limit = self.core.options.max_payload();
        if payload.len() > limit {
            return Err(LogError::TooLarge {
                len: payload.len() as u64,
                limit: limit as u64,
            });
        }
        Ok(())
    }

    /// Counts a frame that was placed.
    fn count(
        &self,
        payload: &[u8],
        stored: Stored<'_>,
        placed: Result<Span, LogError>,
    ) -> Result<Span, LogError> {
        if let (Ok(span), Some(share)) = (&placed, self.share()) {
            share.add(span);
            if self.core.options.compression != Compression::None {
                share.add_compression(payload.len(), stored);
            }
        }
        placed
    }

    /// This worker's share of the counts.
    fn share(&self) -> Option<&Share> {
        let slots = self.slots.as_ref()?;
        self.core.stats.counts.of(slots.copied.index())
    }

    /// A frame of the log's own.
    pub(crate) fn append_own(&mut self, kind: u8) -> Result<Span, LogError> {
        debug_assert!(kind >= KIND_SEAL);
        self.core.check()?;
        self.place(0, kind, Stored::plain(&[]), &mut (), Room::Commit)
    }

    /// The last frame of a log that takes no more from its users.
    pub(crate) fn append_close(&mut self) -> Result<Span, LogError> {
        self.place(0, KIND_CLOSE, Stored::plain(&[]), &mut (), Room::Commit)
    }

    fn place<H: Hook>(
        &mut self,
        stream: u32,
        kind: u8,
        stored: Stored<'_>,
        hook: &mut H,
        room: Room,
    ) -> Result<Span, LogError> {
        let payload = stored.bytes;
        let started = self.sampled();
        let core = &*self.core;
        let Some(Slots { copied, .. }) = &self.slots else {
            return Err(LogError::Closed);
        };

        // Everything that can be refused is refused before the reservation.
        let len = frame_len(payload.len());
        let turn = self.admit(len, room)?;
        let frame = start_of(core, stream, kind, stored);

        let order = &core.order;
        let before = |next| hook.before_reserve(self, next);
        let start = order.completion.reserve(copied, &order.next, len, before);
        // A panic before the copy is complete leaves a hole that no frame may be acknowledged
        // behind.
        let armed = core.armed(UNFINISHED);
        // Dropped by a failure too: what is not copied is not applied.
        let pending = H::APPLIES.then(|| Pending(&order.applied));
        let span = Span {
            start,
            end: start + len,
        };
        hook.reserved(self, span);
        drop(turn);
        let reserved = started.map(|at| (at, core.now()));

        if span.end > core.written() + core.ring.capacity() {
            // On failure the slot stays pending: there is a hole, and nothing may ever pass it.
            // `armed` poisons what is poisoned already.
            match core.wait_for_room(span.end) {
                // Nothing is written any more, whether a hole is there or not.
                Err(LogError::Closed) => {
                    armed.disarm();
                    return Err(LogError::Closed);
                }
                room => room?,
            }
        }
        #[expect(unsafe_code, reason = "the copy into the ring")]
        // SAFETY: the span is this worker's reservation, and there is room for it.
        unsafe {
            copy(core, frame, span, payload);
        }
        core.order.completion.set_complete(copied, span.end);
        armed.disarm();
        std::mem::forget(pending);

        if let Some((at, reserved)) = reserved {
            core.stats.recorder.reserve_ns.add(since(at, reserved));
            core.stats.recorder.copy_ns.add(since(reserved, core.now()));
        }
        self.call_flusher(span.end);
        Ok(span)
    }

    /// As [`Worker::append`], without waiting for anything: for threads that must not sleep, such as
    /// those of an async runtime. It neither writes nor prepares room; the log's threads do. Without
    /// those ([`LogOptions::threads`](crate::LogOptions::threads)) it fails once the ring or the
    /// prepared room is full, until a thread that waits or flushes has written the ring, or one that
    /// appends ([`Worker::append`]) has prepared more.
    ///
    /// # Errors
    /// [`LogError::WouldBlock`] where the append would have to wait: nothing was appended, and
    /// [`Log::room`](crate::Log::room) says when to try again. Else as [`Worker::append`].
    pub fn try_append(&mut self, stream: u32, kind: u8, payload: &[u8]) -> Result<Span, LogError> {
        self.check(stream, kind, payload)?;
        let mut compressor = self.compressor.take();
        let stored = store(&mut compressor, payload);
        let placed = self.try_place(stream, kind, stored);
        let counted = self.count(payload, stored, placed);
        self.compressor = compressor;
        counted
    }

    /// Appends when there is room, as [`Worker::append`], and awaits that instead of waiting for it:
    /// a loop of [`Worker::try_append`] and [`Log::room`](crate::Log::room). Dropped before it is
    /// done, it has appended nothing.
    ///
    /// # Errors
    /// As [`Worker::append`].
    pub async fn append_async(&mut self, stream: u32, kind: u8, payload: &[u8]) -> Result<Span, LogError> {
        loop {
            match self.try_append(stream, kind, payload) {
                Err(LogError::WouldBlock) => {
                    RoomFor::new(Arc::clone(&self.core), payload.len()).await?;
                }
                done => return done,
            }
        }
    }

    /// As [`Worker::place`], where nothing has to be waited for.
    fn try_place(&self, stream: u32, kind: u8, stored: Stored<'_>) -> Result<Span, LogError> {
        let core = &*self.core;
        let Some(Slots { copied, .. }) = &self.slots else {
            return Err(LogError::Closed);
        };
        let len = frame_len(stored.bytes.len());
        let frame = start_of(core, stream, kind, stored);
        // Lock-free: where the counter has moved, another worker has reserved.
        let span = loop {
            let start = core.order.next.glance();
            let end = start + len;
            if !core.has_room_at(start, len) {
                self.call_flusher(start);
                return Err(LogError::WouldBlock);
            }
            if core
                .order
                .completion
                .try_reserve_at(copied, &core.order.next, start, len)
            {
                break Span { start, end };
            }
        };
        let armed = core.armed(UNFINISHED);
        #[expect(unsafe_code, reason = "the copy into the ring")]
        // SAFETY: the span is this worker's reservation, and there was room for it at exactly this
        // place.
        unsafe {
            copy(core, frame, span, stored.bytes);
        }
        core.order.completion.set_complete(copied, span.end);
        armed.disarm();
        self.call_flusher(span.end);
        Ok(span)
    }

    fn admit(&self, len: u64, room: Room) -> Result<Option<crate::append::space::LargeTurn<'_>>, LogError> {
        let core = &*self.core;
        if let Some(turn) = core.space.admit_at_once(&core.order.next, len, room) {
            return Ok(turn);
        }
        let start = core.now();
        let turn = core.space.admit(&core.segments, &core.order.next, len, room);
        core.stats.recorder.prepare_ns.add(since(start, core.now()));
        core.weigh(turn).map_err(|error| {
            core.stats.recorder.refused.fetch_add(1, Ordering::Relaxed);
            core.refusal(error, len)
        })
    }

    /// Past half a ring the background flusher is called, so that appends need not wait for room;
    /// and for each frame where a task waits for all of them, or the flusher rests.
    fn call_flusher(&self, end: Lsn) {
        let core = &*self.core;
        let is_crowded = end > core.written() + core.ring.capacity() / 2;
        // Whether it is called already is a hint only, and the frame might be missed.
        if is_crowded && !core.threads.flusher.is_called() || core.tasks.watchers.want_calls() {
            core.threads.flusher.call();
        }
    }

    fn sampled(&mut self) -> Option<Nanos> {
        self.sample -= 1;
        if self.sample > 0 {
            return None;
        }
        self.sample = SAMPLE;
        Some(self.core.now())
    }
}

/// The payload as it is to be stored: before the reservation, so that no thread waits behind it.
fn store<'a>(compressor: &'a mut Option<Box<Compressor>>, payload: &'a [u8]) -> Stored<'a> {
    match compressor {
        Some(compressor) => compressor.store(payload),
        None => Stored::plain(payload),
    }
}

/// What is known of a frame before it has its place.
fn start_of(core: &Core, stream: u32, kind: u8, stored: Stored<'_>) -> FrameStart {
    FrameStart {
        payload_crc: core.opening.salt.crc(stored.bytes),
        len: stored.bytes.len() as u32,
        compressed: stored.compressed,
        stream,
        kind,
    }
}

/// Copies a frame into the ring.
///
/// # Safety
/// The span is as long as the frame, reserved by the caller, and there is room for it.
#[expect(unsafe_code, reason = "the copy into the ring")]
unsafe fn copy(core: &Core, frame: FrameStart, span: Span, payload: &[u8]) {
    let header = FrameHeader::finish(frame, span.start, core.durable(), core.opening.epoch);
    let body = span.start + header.as_bytes().len() as u64;
    let padding = (span.end - body) as usize - payload.len();
    // SAFETY: the three ranges make up the span.
    unsafe {
        core.ring.copy_in(span.start, header.as_bytes());
        core.ring.copy_in(body, payload);
        core.ring
            .copy_in(body + payload.len() as u64, [0; 8].split_at(padding).0);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A slot that is pending after a failure, or when the log has ended, stays so, and is never
        // handed out again.
        if let Some(Slots { copied, applied }) = self.slots.take()
            && self.core.check_process().is_ok()
            && self.core.poisoned().is_none()
            && !self.core.has_ended()
        {
            self.core.order.completion.unregister(copied);
            if !self.is_stuck {
                self.core.order.applied.unregister(applied);
            }
        }
    }
}

#[cfg(feature = "testing")]
struct Paused<'a> {
    before: &'a mut dyn FnMut(Lsn),
    reserved: &'a mut dyn FnMut(Lsn),
}

#[cfg(feature = "testing")]
impl Hook for Paused<'_> {
    const APPLIES: bool = false;

    fn before_reserve(&mut self, _worker: &Worker, next: Lsn) {
        (self.before)(next);
    }

    fn reserved(&mut self, _worker: &Worker, span: Span) {
        (self.reserved)(span.start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Log;
    use crate::append::compress;
    use crate::error::HousekeepingError;
    use crate::format::SEGMENT_HEAD;
    use crate::options::{FIRST_LSN, Level, LogOptions, RingMode};
    use crate::recovery::inspect::{inspect, repair};

    /// Of what an opening prepares, a part is kept for others than commits: the first appends must
    /// fit what is left, or they wait until megabytes are zeroed.
    #[test]
    fn the_first_appends_find_their_room_prepared() {
        let dir = tempfile::tempdir().unwrap();
        let options = LogOptions {
            ring: RingMode::Private,
            threads: false,
            ..LogOptions::default()
        };
        let log = Log::open(dir.path(), options).unwrap();
        let mut worker = log.worker().unwrap();
        for _ in 0..100 {
            worker.append(0, 0, &[7; 900]).unwrap();
            worker.append(0, 0, &[7; 1_100]).unwrap();
        }
        assert_eq!(log.stats().stages.prepare_ns.count, 0);
        for _ in 0..200 {
            worker.append(0, 0, &[7; 900]).unwrap();
        }
        assert!(
            log.stats().stages.prepare_ns.count > 0,
            "what is prepared has no end"
        );
    }

    /// What only a faulty writer can leave: the checksum is right, and there is no block behind it.
    #[test]
    fn a_damaged_block_under_a_right_checksum_is_corruption() {
        let dir = tempfile::tempdir().unwrap();
        let options = LogOptions {
            ring: RingMode::Private,
            threads: false,
            ..LogOptions::default()
        };
        let log = Log::open(dir.path(), options.clone()).unwrap();
        let mut worker = log.worker().unwrap();
        let first = worker.append(0, 1, b"before").unwrap();
        let damaged = Stored {
            bytes: b"\xff\xff\xff\x7f and no block",
            compressed: true,
        };
        let bad = worker.place(0, 1, damaged, &mut (), Room::Commit).unwrap();
        worker.append(0, 1, b"after").unwrap();
        log.flush(Level::Disk).unwrap();

        let is_reported = |error: LogError| match error {
            LogError::Corrupt {
                path,
                offset,
                lsn,
                expected,
                ..
            } => {
                assert!(path.ends_with("0000000000000001.seg"), "{path:?}");
                assert_eq!(
                    (offset, lsn),
                    (SEGMENT_HEAD as u64 + bad.start - FIRST_LSN, bad.start)
                );
                assert_eq!(expected, compress::EXPECTED);
            }
            other => panic!("{other}"),
        };
        let mut frames = log.read(FIRST_LSN).unwrap();
        assert_eq!(frames.next().unwrap().unwrap().payload, b"before");
        is_reported(frames.next().unwrap().unwrap_err());
        assert!(frames.next().is_none());
        drop((frames, worker));
        log.close().unwrap();

        is_reported(inspect(&options.device, dir.path(), |_| {}).unwrap_err());
        let repaired = repair(&options.device, dir.path()).unwrap();
        assert_eq!(repaired.end, first.end);
        let log = Log::open(dir.path(), options).unwrap();
        assert_eq!(log.read(FIRST_LSN).unwrap().count(), 1);
    }

    /// An append that has found the log open may be on its way to make room when it closes. By then
    /// the directory can be another log's.
    #[test]
    fn an_append_during_close_makes_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let options = LogOptions {
            ring: RingMode::Private,
            threads: false,
            ..LogOptions::default()
        };
        let log = Log::open(dir.path(), options.clone()).unwrap();
        let worker = log.worker().unwrap();
        let core = Arc::clone(&worker.core);
        drop(worker);
        log.close().unwrap();
        let files = || options.device.list(dir.path()).unwrap();
        let before = files();
        let builder = &mut core.segments.builder();
        for _ in 0..100 {
            let made = core.segments.extend(builder);
            assert!(
                matches!(made, Err(HousekeepingError::Setback(LogError::Closed))),
                "{made:?}"
            );
        }
        assert_eq!(files(), before);
    }
}
