//! The append path, top to bottom.

use std::sync::Arc;

use collie_io::Nanos;

use crate::core::{Core, Counted};
use crate::error::LogError;
use crate::format::{FIRST_OWN_KIND, FrameHeader, FrameStart, KIND_CLOSE, KIND_SEAL, MAX_STREAM, frame_len};
use crate::herd::SlotId;
use crate::limit::Room;
use crate::stats::{SAMPLE, since};
use crate::sync::Ordering;
use crate::{Lsn, Span};
use zerocopy::IntoBytes;

/// Sees an append from inside. An engine that keeps a second [`Herd`](crate::Herd), over "applied", turns
/// its slot BLACK in both calls and WHITE once it has applied what it appended.
///
/// Refusals ([`LogError::StorageFull`], [`LogError::TooLarge`], a poisoned log) happen before either call.
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
}

impl Worker {
    /// A worker of the log's user.
    pub(crate) fn new(core: Arc<Core>) -> Result<Self, LogError> {
        let slot = core.herd.register().ok_or(LogError::TooManyWorkers {
            limit: core.options.max_workers,
        })?;
        Ok(Self {
            core,
            slot: Some(slot),
            sample: SAMPLE,
        })
    }

    /// Appends a frame and returns its place. When this returns the frame is complete in the ring; hand its
    /// end to [`Log::wait`](crate::Log::wait) or [`Log::when`](crate::Log::when) for durability.
    ///
    /// `stream` is below 2²⁴ and `kind` below 240; the log gives them back and knows nothing else of them.
    /// Wait-free while the ring has room; a full ring is waited for, and flushed by the waiter itself.
    ///
    /// # Errors
    /// [`LogError::Options`] (`stream` or `kind`), [`LogError::TooLarge`], [`LogError::StorageFull`] (try again
    /// later), [`LogError::Poisoned`], [`LogError::Closed`]: nothing was appended. [`LogError::Io`]: likewise,
    /// and the failure, in securing space for the frame, has poisoned the log. If the log is poisoned while
    /// the append waits for room, the frame is lost with it.
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

    /// As [`Worker::append_with`], for a frame without payload that may help to make room, such as the mark up to
    /// which something is about to be saved elsewhere. It has room where other appends are refused: a part of
    /// the prepared space is kept for marks, some thousands of them by default.
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

    fn append_users<H: AppendHook>(
        &mut self,
        stream: u32,
        kind: u8,
        payload: &[u8],
        hook: &mut H,
        room: Room,
    ) -> Result<Span, LogError> {
        if stream > MAX_STREAM || kind >= FIRST_OWN_KIND {
            return Err(LogError::Options {
                option: if stream > MAX_STREAM { "stream" } else { "kind" },
                problem: format!("stream {stream} and kind {kind} must be below 2^24 and {FIRST_OWN_KIND}"),
            });
        }
        self.core.check()?;
        let span = self.place(stream, kind, payload, hook, room)?;
        if let Some(Counted { frames, bytes }) =
            self.slot.as_ref().and_then(|s| self.core.counted.get(s.index()))
        {
            // Relaxed, and no read-modify-write: only this worker writes these.
            frames.store(frames.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            bytes.store(
                bytes.load(Ordering::Relaxed) + span.end - span.start,
                Ordering::Relaxed,
            );
        }
        Ok(span)
    }

    /// A frame of the log's own.
    pub(crate) fn append_own(&mut self, kind: u8) -> Result<Span, LogError> {
        debug_assert!(kind >= KIND_SEAL);
        self.core.check()?;
        self.place(0, kind, &[], &mut (), Room::Commit)
    }

    /// The last frame of a log that takes no more from its users.
    pub(crate) fn append_close(&mut self) -> Result<Span, LogError> {
        self.place(0, KIND_CLOSE, &[], &mut (), Room::Commit)
    }

    fn place<H: AppendHook>(
        &mut self,
        stream: u32,
        kind: u8,
        payload: &[u8],
        hook: &mut H,
        room: Room,
    ) -> Result<Span, LogError> {
        let started = self.sampled();
        let core = &*self.core;
        let Some(slot) = &self.slot else {
            return Err(LogError::Closed);
        };

        // Everything that can be refused is refused before the reservation.
        let limit = core.options.max_payload();
        if payload.len() > limit {
            return Err(LogError::TooLarge {
                len: payload.len() as u64,
                limit: limit as u64,
            });
        }
        let len = frame_len(payload.len());
        let turn = self.admit(len, room)?;
        let frame = FrameStart {
            payload_crc: core.salt.crc(payload),
            len: payload.len() as u32,
            stream,
            kind,
        };

        let start = core
            .herd
            .reserve(slot, &core.next, len, |next| hook.before_reserve(next));
        // A panic before the copy is complete leaves a hole that no frame may be acknowledged behind.
        let armed = core.armed("a worker failed between reserving a frame and completing it");
        let span = Span {
            start,
            end: start + len,
        };
        hook.reserved(span);
        drop(turn);
        let reserved = started.map(|at| (at, core.now()));

        if span.end > core.written() + core.ring.capacity() {
            // On failure the slot stays BLACK: there is a hole, and nothing may ever pass it. `armed`
            // poisons what is poisoned already.
            core.wait_for_room(span.end)?;
        }
        let header = FrameHeader::finish(frame, start, core.durable(), core.epoch);
        let body = start + header.as_bytes().len() as u64;
        let padding = (span.end - body) as usize - payload.len();
        #[expect(unsafe_code, reason = "the copy into the ring")]
        // SAFETY: the three ranges make up [start, end), this worker's reservation, and there is room for it.
        unsafe {
            core.ring.copy_in(start, header.as_bytes());
            core.ring.copy_in(body, payload);
            core.ring
                .copy_in(body + payload.len() as u64, [0; 8].split_at(padding).0);
        }
        core.herd.white(slot, span.end);
        armed.disarm();

        if let Some((at, reserved)) = reserved {
            core.recorder.reserve_ns.add(since(at, reserved));
            core.recorder.copy_ns.add(since(reserved, core.now()));
        }
        self.call_flusher(span.end);
        Ok(span)
    }

    fn admit(&self, len: u64, room: Room) -> Result<Option<crate::space::LargeTurn<'_>>, LogError> {
        let core = &*self.core;
        core.space
            .admit(&core.segments, &core.next, len, room)
            .map_err(|error| {
                core.recorder.refused.fetch_add(1, Ordering::Relaxed);
                if error.is_full() {
                    return LogError::StorageFull {
                        path: core.dir.clone(),
                        needed: len,
                    };
                }
                if !matches!(error, LogError::Closed) {
                    core.poison(&error.to_string());
                }
                error
            })
    }

    /// Past half a ring the background flusher is called, so that appends need not wait for room.
    fn call_flusher(&self, end: Lsn) {
        let core = &*self.core;
        if end > core.written() + core.ring.capacity() / 2 && core.kicked.load(Ordering::Relaxed) == 0 {
            core.kick();
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

impl Drop for Worker {
    fn drop(&mut self) {
        // A slot that is BLACK after a failure stays BLACK, and is never handed out again.
        if let Some(slot) = self.slot.take()
            && self.core.poisoned().is_none()
        {
            self.core.herd.unregister(slot);
        }
    }
}
