//! Awaiting durability, and room. Futures never lead a group: they register, and the background flusher
//! serves them; where writes go to the page cache, the background writer serves those at `Process`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::Lsn;
use crate::core::Core;
use crate::error::LogError;
use crate::format::frame_len;
use crate::options::Level;

/// Resolves when an LSN is safe at a level: [`Log::wait_async`](crate::Log::wait_async) makes it.
/// It needs no runtime of its own and never blocks; dropping it is harmless.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Durable {
    core: Arc<Core>,
    end: Lsn,
    level: Level,
    id: Option<u64>,
}

impl Durable {
    pub(crate) fn new(core: Arc<Core>, end: Lsn, level: Level) -> Self {
        Self {
            core,
            end,
            level,
            id: None,
        }
    }

    fn forget(&mut self) {
        // In a forked child the registry is its parent's, and may be locked for good.
        if let Some(id) = self.id.take()
            && self.core.check_process().is_ok()
        {
            self.core.waiting.forget(id, self.end);
        }
    }
}

impl Future for Durable {
    type Output = Result<(), LogError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Err(forked) = this.core.check_process() {
            return Poll::Ready(Err(forked));
        }
        if let Some(answer) = this.core.reached(this.end, this.level) {
            return Poll::Ready(answer);
        }
        if let Err(error) = this.core.check_appended(this.end) {
            return Poll::Ready(Err(error));
        }
        this.core
            .waiting
            .register(&mut this.id, this.end, this.level, cx.waker());
        // The registry's lock orders this: either the flusher saw the task, or we see its
        // watermark.
        if let Some(answer) = this.core.reached(this.end, this.level) {
            this.forget();
            return Poll::Ready(answer);
        }
        if this.level == Level::Process && !this.core.segments.direct() {
            this.core.writer.call();
        } else {
            this.core.flusher.call();
        }
        Poll::Pending
    }
}

impl Drop for Durable {
    fn drop(&mut self) {
        self.forget();
    }
}

/// Resolves when a frame has room: [`Log::room`](crate::Log::room) makes it. It never blocks, and
/// dropping it is harmless.
#[must_use = "a future does nothing unless it is awaited"]
pub struct RoomFor {
    core: Arc<Core>,
    /// Of the frame, in bytes; or why there never is one.
    len: Result<u64, LogError>,
    id: Option<u64>,
}

impl RoomFor {
    /// For a frame with so many bytes of payload.
    pub(crate) fn new(core: Arc<Core>, payload: usize) -> Self {
        let limit = core.options.max_payload();
        let len = match payload > limit {
            true => Err(LogError::TooLarge {
                len: payload as u64,
                limit: limit as u64,
            }),
            false => Ok(frame_len(payload)),
        };
        Self { core, len, id: None }
    }

    fn forget(&mut self) {
        // In a forked child the registry is its parent's, and may be locked for good.
        if let Some(id) = self.id.take()
            && self.core.check_process().is_ok()
        {
            self.core.waiting.forget_room(id);
        }
    }
}

impl Future for RoomFor {
    type Output = Result<(), LogError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let len = match &this.len {
            Ok(len) => *len,
            Err(error) => return Poll::Ready(Err(error.clone())),
        };
        if let Err(forked) = this.core.check_process() {
            return Poll::Ready(Err(forked));
        }
        if let Some(answer) = this.core.has_room(len) {
            this.forget();
            return Poll::Ready(answer);
        }
        this.core.waiting.want_room(&mut this.id, len, cx.waker());
        // The registry's lock orders this: either who makes room sees the task, or we see the room.
        if let Some(answer) = this.core.has_room(len) {
            this.forget();
            return Poll::Ready(answer);
        }
        // The one makes room in the ring, the other on the device.
        this.core.flusher.call();
        this.core.preparer.call();
        Poll::Pending
    }
}

impl Drop for RoomFor {
    fn drop(&mut self) {
        self.forget();
    }
}

impl fmt::Debug for RoomFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoomFor")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Durable")
            .field("end", &self.end)
            .field("level", &self.level)
            .finish_non_exhaustive()
    }
}
