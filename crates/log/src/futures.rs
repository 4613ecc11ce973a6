//! Awaiting durability. Futures never lead a flush: they register here, and the background flusher serves
//! them.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::Lsn;
use crate::core::Core;
use crate::error::LogError;
use crate::options::Level;
use crate::sync::{Mutex, lock};

/// Tasks that wait, by what they wait for.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Mutex<Registered>);

#[derive(Debug, Default)]
struct Registered {
    next_id: u64,
    tasks: BTreeMap<(Lsn, u64), (Level, Waker)>,
    /// Tails, by number: they wait for more to be durable than this, and ask nobody to flush.
    tails: BTreeMap<u64, (Lsn, Waker)>,
}

impl Waiting {
    /// Adds a task, or gives a known one a new waker. The caller must look once more at what it waits for
    /// afterwards: `take` may have run just before.
    fn register(&self, id: &mut Option<u64>, end: Lsn, level: Level, waker: &Waker) {
        let mut registered = lock(&self.0);
        let id = *id.get_or_insert_with(|| {
            registered.next_id += 1;
            registered.next_id
        });
        registered.tasks.insert((end, id), (level, waker.clone()));
    }

    fn forget(&self, id: u64, end: Lsn) {
        lock(&self.0).tasks.remove(&(end, id));
    }

    /// Adds a tail that has all that was durable up to `end`, or gives a known one a new waker. As with tasks, the
    /// caller must look once more afterwards.
    pub(crate) fn follow(&self, id: &mut Option<u64>, end: Lsn, waker: &Waker) {
        let mut registered = lock(&self.0);
        let id = *id.get_or_insert_with(|| {
            registered.next_id += 1;
            registered.next_id
        });
        registered.tails.insert(id, (end, waker.clone()));
    }

    pub(crate) fn unfollow(&self, id: u64) {
        lock(&self.0).tails.remove(&id);
    }

    /// How far, and how safe, the log must get for all tasks to be served; `None` without any.
    pub(crate) fn farthest(&self) -> Option<(Lsn, Level)> {
        let registered = lock(&self.0);
        let ((end, _), _) = registered.tasks.last_key_value()?;
        let level = registered.tasks.values().map(|(level, _)| *level).max()?;
        Some((*end, level))
    }

    /// The wakers of all tasks, and of all tails, that have what they wait for. The watermarks were raised before
    /// the call.
    pub(crate) fn take(
        &self,
        mut reached: impl FnMut(Lsn, Level) -> bool,
        mut more: impl FnMut(Lsn) -> bool,
    ) -> Vec<Waker> {
        let mut registered = lock(&self.0);
        let mut ready = Vec::new();
        registered.tasks.retain(|(end, _), (level, waker)| {
            let done = reached(*end, *level);
            if done {
                ready.push(waker.clone());
            }
            !done
        });
        registered.tails.retain(|_, (end, waker)| {
            let done = more(*end);
            if done {
                ready.push(waker.clone());
            }
            !done
        });
        ready
    }
}

/// Resolves when an LSN is safe at a level: [`Log::when`](crate::Log::when) makes it. It needs no runtime
/// of its own and never blocks; dropping it is harmless.
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
        if let Some(id) = self.id.take() {
            self.core.waiting.forget(id, self.end);
        }
    }
}

impl Future for Durable {
    type Output = Result<(), LogError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Some(answer) = this.core.reached(this.end, this.level) {
            return Poll::Ready(answer);
        }
        if let Err(error) = this.core.check_appended(this.end) {
            return Poll::Ready(Err(error));
        }
        this.core
            .waiting
            .register(&mut this.id, this.end, this.level, cx.waker());
        // The registry's lock orders this: either the flusher saw the task, or we see its watermark.
        if let Some(answer) = this.core.reached(this.end, this.level) {
            this.forget();
            return Poll::Ready(answer);
        }
        this.core.kick();
        Poll::Pending
    }
}

impl Drop for Durable {
    fn drop(&mut self) {
        self.forget();
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
