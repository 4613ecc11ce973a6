//! Following the log: durable frames as they become durable.
//!
//! A tail is a reader whose end moves. When it has all that was durable it registers, like a future
//! that waits for durability, and is woken when the durable mark is raised, and when the log is
//! poisoned or ends. Unlike such a future it does not cause a flush.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use crate::error::LogError;
use crate::lockfree::wait_word::{ALL, WaitWord};
use crate::read::reader::Reader;
use crate::{Frame, Lsn};

/// Durable frames in order, whole, each once: those that are there, then those to come.
/// [`Log::tail`] makes it.
///
/// As an iterator it blocks until there is a frame. It ends with an error: [`LogError::Closed`]
/// after the last frame of a log that was closed, [`LogError::Poisoned`] after the last that is
/// known to be durable of one that failed, [`LogError::Io`] or [`LogError::Corrupt`] where it
/// cannot read, [`LogError::Missing`] where what it was to read left the archive before
/// ([`Log::tail`]). [`Tail::next_frame`] is the same to be awaited; reading itself is file I/O on
/// the thread that polls.
///
/// A tail never flushes: what is appended and not waited for comes within about
/// [`LogOptions::flush_interval`](crate::LogOptions::flush_interval), or, without
/// [`LogOptions::threads`](crate::LogOptions::threads), when the log's user flushes.
///
/// [`Log::tail`]: crate::Log::tail
#[derive(Debug)]
pub struct Tail {
    reader: Reader,
    /// Its iterator has given an error.
    over: bool,
}

impl Tail {
    pub(crate) fn new(reader: Reader) -> Self {
        Self { reader, over: false }
    }

    /// Where the next frame starts: hand it to [`Log::tail`](crate::Log::tail) to go on from here.
    #[must_use]
    pub fn resume_at(&self) -> Lsn {
        self.reader.position()
    }

    /// The next frame, if it is durable by now.
    ///
    /// # Errors
    /// Those that end a tail, see [`Tail`]; asked again, it tries again.
    pub fn try_next(&mut self) -> Result<Option<Frame>, LogError> {
        loop {
            if let Some(frame) = self.reader.read()? {
                return Ok(Some(frame));
            }
            if self.reader.extend() {
                continue;
            }
            match self.reader.core().ended() {
                None => return Ok(None),
                // What became durable before the end is given before the error.
                Some(_) if self.reader.extend() => {}
                Some(error) => return Err(error),
            }
        }
    }

    /// The next frame, as soon as it is durable. Dropping the future loses nothing.
    pub fn next_frame(&mut self) -> NextFrame<'_> {
        NextFrame { tail: self, id: None }
    }

    fn wait_for_next(&mut self) -> Result<Frame, LogError> {
        let sleeper = Arc::new(Sleeper(WaitWord::new()));
        let waker = Waker::from(Arc::clone(&sleeper));
        let mut next = pin!(self.next_frame());
        loop {
            let seen = sleeper.0.read();
            match next.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(answer) => return answer,
                Poll::Pending => sleeper.0.wait(seen, None),
            }
        }
    }
}

impl Iterator for Tail {
    type Item = Result<Frame, LogError>;

    /// Blocks until there is a frame, or the error that ends the tail; after that there is none.
    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let next = self.wait_for_next();
        self.over = next.is_err();
        Some(next)
    }
}

/// Resolves to a tail's next frame, or to the error that ends it. Runs on any executor.
#[must_use = "a future does nothing unless it is awaited"]
pub struct NextFrame<'a> {
    tail: &'a mut Tail,
    /// Its number among those that wait.
    id: Option<u64>,
}

impl NextFrame<'_> {
    fn unfollow(&mut self) {
        let core = self.tail.reader.core();
        // In a forked child the registry is its parent's, and may be locked for good.
        if let Some(id) = self.id.take()
            && core.check_process().is_ok()
        {
            core.tasks.waiting.unfollow(id);
        }
    }
}

impl Future for NextFrame<'_> {
    type Output = Result<Frame, LogError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Some(answer) = this.tail.try_next().transpose() {
            return Poll::Ready(answer);
        }
        let reader = &this.tail.reader;
        let waiting = &reader.core().tasks.waiting;
        waiting.follow(&mut this.id, reader.end(), cx.waker());
        // The registry's lock orders this: either who raised the mark saw the tail, or the tail
        // sees the mark.
        match this.tail.try_next().transpose() {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        }
    }
}

impl Drop for NextFrame<'_> {
    fn drop(&mut self) {
        self.unfollow();
    }
}

impl fmt::Debug for NextFrame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NextFrame")
            .field("from", &self.tail.resume_at())
            .finish_non_exhaustive()
    }
}

/// A thread that waits for its tail.
struct Sleeper(WaitWord);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.0.bump();
        self.0.wake(ALL);
    }
}
