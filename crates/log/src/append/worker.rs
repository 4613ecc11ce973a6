//! The append path, top to bottom.

use std::sync::Arc;

use collie_io::Nanos;

use crate::append::compress::{Compressor, Stored};
use crate::core::Core;
use crate::error::LogError;
use crate::flush::futures::RoomFor;
use crate::format::{FIRST_OWN_KIND, FrameHeader, FrameStart, KIND_CLOSE, KIND_SEAL, MAX_STREAM, frame_len};
use crate::lockfree::boundary::SlotId;
use crate::lockfree::limit::Room;
use crate::lockfree::sync::Ordering;
use crate::options::Compression;
use crate::stats::{SAMPLE, Share, since};
use crate::{Lsn, Span};
use zerocopy::IntoBytes;

/// Why a log stops whose worker left a hole.
const UNFINISHED: &str = "a worker failed between reserving a frame and completing it";

/// Sees an append from inside. An engine that keeps a second
/// [`CompletionBoundary`](crate::CompletionBoundary), over "applied", makes its slot pending in
/// both calls and complete once it has applied what it appended.
///
/// Refusals ([`LogError::StorageFull`], [`LogError::TooLarge`], a poisoned log) happen before
/// either call.
pub trait AppendHook {
    /// The reservation counter as it was just before the reservation.
    fn before_reserve(&mut self, next: Lsn);
    /// The frame's place.
    fn reserved(&mut self, span: Span);
}

/// No hook.
impl AppendHook for () {
    fn before_reserve(&mut self, _next: Lsn) {}
    fn reserved(&mut self, _span: Span) {}
}

/// Appends frames; one thread at a time, so a thread usually has its own.
#[derive(Debug)]
pub struct Worker {
    core: Arc<Core>,
    /// Always there until the worker is dropped.
    slot: Option<SlotId>,
    /// Counts down to the next timed append.
    sample: u32,
    /// Where payloads are compressed, if they are.
    compressor: Option<Box<Compressor>>,
}

impl Worker {
    /// A worker of the log's user.
    pub(crate) fn new(core: Arc<Core>) -> Result<Self, LogError> {
        let slot = core.completion.register().ok_or(LogError::TooManyWorkers {
            limit: core.options.max_workers,
        })?;
        let compressor = match core.options.compression {
            Compression::None => None,
            Compression::Lz4 => Some(Box::default()),
        };
        Ok(Self {
            core,
            slot: Some(slot),
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
        self.append_with(stream, kind, payload, &mut ())
    }

    /// As [`Worker::append`], seen from inside by `hook`.
    ///
    /// # Errors
    /// As [`Worker::append`].
    pub fn append_with<H: AppendHook>(
        &mut self,
        stream: u32,
        kind: u8,
        payload: &[u8],
        hook: &mut H,
    ) -> Result<Span, LogError> {
        self.append_users(stream, kind, payload, hook, Room::Commit)
    }

    /// As [`Worker::append_with`], for a frame without payload that may help to make room, such as
    /// the mark up to which something is about to be saved elsewhere. It has room where other
    /// appends are refused: a part of the prepared space is kept for marks, some thousands of them
    /// by default.
    ///
    /// # Errors
    /// As [`Worker::append`].
    pub fn append_mark<H: AppendHook>(
        &mut self,
        stream: u32,
        kind: u8,
        hook: &mut H,
    ) -> Result<Span, LogError> {
        self.append_users(stream, kind, &[], hook, Room::Mark)
    }

    /// As [`Worker::append_with`], for a frame that takes data away rather than bringing some, so
    /// that it helps to make room in the end. Where other appends are refused because the device is
    /// full, a part of the prepared space is kept for these: a sixteenth of a segment, 512 KiB at
    /// most, and as much for one large frame.
    ///
    /// # Errors
    /// As [`Worker::append`].
    pub fn append_relief<H: AppendHook>(
        &mut self,
        stream: u32,
        kind: u8,
        payload: &[u8],
        hook: &mut H,
    ) -> Result<Span, LogError> {
        self.append_users(stream, kind, payload, hook, Room::Relief)
    }

    fn append_users<H: AppendHook>(
        &mut self,
        stream: u32,
        kind: u8,
        payload: &[u8],
        hook: &mut H,
        room: Room,
    ) -> Result<Span, LogError> {
        self.append_checked(stream, kind, payload, |worker, stored| {
            worker.place(stream, kind, stored, hook, room)
        })
    }

    /// Appends by `place` what may be appended, and counts it.
    fn append_checked(
        &mut self,
        stream: u32,
        kind: u8,
        payload: &[u8],
        place: impl FnOnce(&mut Self, Stored<'_>) -> Result<Span, LogError>,
    ) -> Result<Span, LogError> {
        if stream > MAX_STREAM || kind >= FIRST_OWN_KIND {
            return Err(LogError::Options {
                option: if stream > MAX_STREAM { "stream" } else { "kind" },
                problem: format!("stream {stream} and kind {kind} must be below 2^24 and {FIRST_OWN_KIND}"),
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
        // Before the reservation, so that no thread waits behind it.
        let mut compressor = self.compressor.take();
        let stored = match &mut compressor {
            Some(compressor) => compressor.store(payload),
            None => Stored::plain(payload),
        };
        let placed = place(self, stored);
        if let (Ok(span), Some(share)) = (&placed, self.share()) {
            share.add(span);
            if self.core.options.compression != Compression::None {
                share.add_compression(payload.len(), stored);
            }
        }
        self.compressor = compressor;
        placed
    }

    /// This worker's share of the counts.
    fn share(&self) -> Option<&Share> {
        self.slot
            .as_ref()
            .and_then(|s| self.core.stats.counts.of(s.index()))
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

    fn place<H: AppendHook>(
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
        let Some(slot) = &self.slot else {
            return Err(LogError::Closed);
        };

        // Everything that can be refused is refused before the reservation.
        let len = frame_len(payload.len());
        let turn = self.admit(len, room)?;
        let frame = start_of(core, stream, kind, stored);

        let start = core
            .completion
            .reserve(slot, &core.next, len, |next| hook.before_reserve(next));
        // A panic before the copy is complete leaves a hole that no frame may be acknowledged
        // behind.
        let armed = core.armed(UNFINISHED);
        let span = Span {
            start,
            end: start + len,
        };
        hook.reserved(span);
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
        core.completion.set_complete(slot, span.end);
        armed.disarm();

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
        self.append_checked(stream, kind, payload, |worker, stored| {
            worker.try_place(stream, kind, stored)
        })
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
        let Some(slot) = &self.slot else {
            return Err(LogError::Closed);
        };
        let len = frame_len(stored.bytes.len());
        let frame = start_of(core, stream, kind, stored);
        // Lock-free: where the counter has moved, another worker has reserved.
        let span = loop {
            let start = core.next.glance();
            let end = start + len;
            if !core.has_room_at(start, len) {
                self.call_flusher(start);
                return Err(LogError::WouldBlock);
            }
            if core.completion.try_reserve_at(slot, &core.next, start, len) {
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
        core.completion.set_complete(slot, span.end);
        armed.disarm();
        self.call_flusher(span.end);
        Ok(span)
    }

    fn admit(&self, len: u64, room: Room) -> Result<Option<crate::append::space::LargeTurn<'_>>, LogError> {
        let core = &*self.core;
        if let Some(turn) = core.space.admit_at_once(&core.next, len, room) {
            return Ok(turn);
        }
        let start = core.now();
        let turn = core.space.admit(&core.segments, &core.next, len, room);
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
        if let Some(slot) = self.slot.take()
            && self.core.check_process().is_ok()
            && self.core.poisoned().is_none()
            && !self.core.has_ended()
        {
            self.core.completion.unregister(slot);
        }
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
    fn an_append_that_is_under_way_when_the_log_closes_makes_no_file() {
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
