//! What tasks await: durability, room, and the durable boundary each time that it has moved.
//!
//! Futures never lead a group: they register, and the background flusher serves them; where writes go
//! to the page cache, the background writer serves those at `Process`.
//!
//! A tail waits for the boundary likewise, but nothing is flushed for its sake. As long as a
//! [`DurableChanges`] is there, all that is appended counts as waited for: each append calls the
//! background flusher, as a future for that append would, and frames that come in the meantime go
//! with the next group.

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
            self.core.tasks.waiting.forget(id, self.end);
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
            .tasks
            .waiting
            .register(&mut this.id, this.end, this.level, cx.waker());
        // The registry's lock orders this: either the flusher saw the task, or we see its
        // watermark.
        if let Some(answer) = this.core.reached(this.end, this.level) {
            this.forget();
            return Poll::Ready(answer);
        }
        if this.level == Level::Process && !this.core.segments.direct() {
            this.core.threads.writer.call();
        } else {
            this.core.threads.flusher.call();
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
            self.core.tasks.waiting.forget_room(id);
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
        this.core.tasks.waiting.want_room(&mut this.id, len, cx.waker());
        // The registry's lock orders this: either who makes room sees the task, or we see the room.
        if let Some(answer) = this.core.has_room(len) {
            this.forget();
            return Poll::Ready(answer);
        }
        // The one makes room in the ring, the other on the device.
        this.core.threads.flusher.call();
        this.core.threads.preparer.call();
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

/// The durable boundary, each time that it has moved: [`Log::durable_changes`] makes it.
///
/// For a task that completes what others wait for: it awaits [`DurableChanges::next`], and completes
/// everything that ends at the answer or below it. As long as it is there, frames are brought to the
/// device although no thread waits for them, as if a future waited for each at
/// [`Level::Disk`]: also with
/// [`LogOptions::manual_flush`](crate::LogOptions::manual_flush).
///
/// Dropping it ends that; what was appended before goes to the device as without it. As a worker does,
/// it keeps the directory of a poisoned log locked.
///
/// ```
/// use collie_log::{Log, LogError, LogOptions};
/// # use std::{future::Future, pin::pin, sync::Arc, task::{Context, Poll, Wake}, thread};
/// # struct Unpark(thread::Thread);
/// # impl Wake for Unpark {
/// #     fn wake(self: Arc<Self>) { self.0.unpark() }
/// # }
/// # fn block_on<F: Future>(future: F) -> F::Output {
/// #     let (waker, mut future) = (Arc::new(Unpark(thread::current())).into(), pin!(future));
/// #     loop {
/// #         match future.as_mut().poll(&mut Context::from_waker(&waker)) {
/// #             Poll::Ready(answer) => return answer,
/// #             Poll::Pending => thread::park(),
/// #         }
/// #     }
/// # }
/// # let dir = tempfile::tempdir()?;
/// let log = Log::open(dir.path().join("log"), LogOptions::default())?;
/// # block_on(async {
/// let mut changes = log.durable_changes();
/// let span = log.worker()?.append_async(7, 1, b"hello").await?;
/// while changes.next().await? < span.end {}
/// assert!(log.durable() >= span.end);
/// # Ok::<(), LogError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`Log::durable_changes`]: crate::Log::durable_changes
pub struct DurableChanges {
    core: Arc<Core>,
    /// What was answered last.
    last: Lsn,
}

impl DurableChanges {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        core.tasks.watchers.add();
        Self {
            core: Arc::clone(core),
            last: 0,
        }
    }

    /// The durable boundary, as soon as it lies beyond the last answer; the first call answers at
    /// once. Boundaries in between are left out: the answer is the newest. The log's own frames,
    /// such as its seals, move it, too.
    ///
    /// It never flushes, syncs or blocks on the thread that polls, and needs no runtime: the log's
    /// background threads work, or any thread that blocks in [`Log::wait`](crate::Log::wait). Its
    /// waker is treated as that of [`Log::wait_async`](crate::Log::wait_async). Dropping the future
    /// loses nothing: the next one answers with what this one would have, or more.
    ///
    /// # Errors
    /// [`LogError::Poisoned`], [`LogError::Closed`], and in a forked child [`LogError::Forked`]: the
    /// boundary does not move any more, and what was durable before was answered before the error.
    /// Every later call gives the error again.
    #[expect(
        clippy::should_implement_trait,
        reason = "it is awaited; no iterator does that"
    )]
    pub fn next(&mut self) -> NextDurable<'_> {
        NextDurable {
            changes: self,
            id: None,
        }
    }

    /// What the last call of [`DurableChanges::next`] answered; 0 before the first.
    #[must_use]
    pub fn last(&self) -> Lsn {
        self.last
    }

    fn look(&self) -> Option<Result<Lsn, LogError>> {
        let durable = self.core.durable();
        if durable > self.last {
            return Some(Ok(durable));
        }
        let ended = self.core.ended()?;
        // What became durable before the end is answered before the error.
        let durable = self.core.durable();
        Some(if durable > self.last {
            Ok(durable)
        } else {
            Err(ended)
        })
    }
}

impl Drop for DurableChanges {
    fn drop(&mut self) {
        self.core.tasks.watchers.remove();
    }
}

impl fmt::Debug for DurableChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DurableChanges")
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

/// Resolves to the durable boundary when it has moved, or to why it moves no more:
/// [`DurableChanges::next`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct NextDurable<'a> {
    changes: &'a mut DurableChanges,
    /// Its number among those that wait.
    id: Option<u64>,
}

impl Future for NextDurable<'_> {
    type Output = Result<Lsn, LogError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut answer = this.changes.look();
        if answer.is_none() {
            let core = &this.changes.core;
            core.tasks
                .waiting
                .follow(&mut this.id, this.changes.last, cx.waker());
            // The registry's lock orders this: either who raised the boundary saw the task, or the
            // task sees the boundary.
            answer = this.changes.look();
            if answer.is_none() && core.durable() < core.appended() {
                // Appended before there was anybody to call the flusher for.
                core.threads.flusher.call();
            }
        }
        let Some(answer) = answer else {
            return Poll::Pending;
        };
        if let Ok(durable) = answer {
            this.changes.last = durable;
        }
        Poll::Ready(answer)
    }
}

impl Drop for NextDurable<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id.take()
            && self.changes.core.check_process().is_ok()
        {
            self.changes.core.tasks.waiting.unfollow(id);
        }
    }
}

impl fmt::Debug for NextDurable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NextDurable")
            .field("last", &self.changes.last)
            .finish_non_exhaustive()
    }
}
