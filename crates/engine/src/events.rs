//! Events of a store for its program: one thread calls the program's function, behind a bounded queue, so
//! that no work of the store waits for it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use crate::write::stall::Stall;
use crate::{Error, Result};

/// Events that wait for the program's function, at most; further ones are lost, and counted.
const QUEUE: usize = 1024;

/// Why a memtable was sealed.
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FlushCause {
    /// It was full.
    Full,
    /// The oldest part of a log that had grown past `max_total_wal_size` was retained for it.
    WalSize,
    /// The caller asked.
    Manual,
    /// The store was closed, or changed to run without a log, and the memtable had writes that are
    /// in no log.
    Close,
    /// It was filled by recovery.
    Recovery,
    /// It is a large commit, or what the family had in memory before that.
    LargeCommit,
    /// All families together had much in memory, and this one most.
    Memory,
    /// The device was full, and data had been removed.
    Room,
}

impl FlushCause {
    /// One word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::WalSize => "wal-size",
            Self::Manual => "manual",
            Self::Close => "close",
            Self::Recovery => "recovery",
            Self::LargeCommit => "large-commit",
            Self::Memory => "memory",
            Self::Room => "room",
        }
    }
}

/// Something that happened in a store, for [`Options::listener`](crate::Options::listener).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// Memtables became tables.
    Flushed {
        /// The family's name.
        family: Arc<str>,
        /// Why the oldest of them was sealed.
        cause: FlushCause,
        /// Their bytes in memory.
        bytes: u64,
        /// How long that took.
        took: Duration,
    },
    /// A flush failed. Unless the store has failed, it is tried again.
    FlushFailed {
        /// The family's name.
        family: Arc<str>,
        /// Why.
        error: Error,
    },
    /// A compaction changed the tables.
    Compacted {
        /// The family's name.
        family: Arc<str>,
        /// How long it took.
        took: Duration,
    },
    /// A compaction failed. It is tried again.
    CompactionFailed {
        /// The family's name.
        family: Arc<str>,
        /// Why.
        error: Error,
    },
    /// A family began to delay or stop writes, or to let them pass.
    StallChanged {
        /// The family's name.
        family: Arc<str>,
        /// What it does from now on.
        now: Stall,
    },
    /// A family was created.
    FamilyCreated {
        /// Its name.
        family: Arc<str>,
    },
    /// A family was dropped.
    FamilyDropped {
        /// Its name.
        family: Arc<str>,
    },
    /// A family was [cleared](crate::Family::clear).
    FamilyCleared {
        /// Its name.
        family: Arc<str>,
    },
    /// Writes are refused until the store is opened again.
    WritesRefused {
        /// Why.
        error: Error,
    },
}

/// The function that a store's events are given to.
#[derive(Clone)]
pub struct Listener(Arc<dyn Fn(&Event) + Send + Sync>);

impl Listener {
    /// One that calls `function`, on a thread of the store, for one event after the other. It may take
    /// its time: where 1,024 events wait for it, further ones are lost, which
    /// [`Stats::lost_events`](crate::Stats::lost_events) counts. A panic is logged, and the next event is
    /// given to it all the same. [`Db::close`](crate::Db::close) waits until it has had all; so it must not
    /// call that, nor keep a [`Db`](crate::Db), which would keep the store open.
    pub fn new(function: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        Self(Arc::new(function))
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

/// The events of an open store.
#[derive(Default)]
pub(crate) struct Events {
    /// Until the store is closed, where there is a listener.
    to: Mutex<Option<(SyncSender<Event>, JoinHandle<()>)>>,
    /// Whether there is one. Set once, before the store is used.
    listens: bool,
    /// An event has said that writes are refused.
    refused: AtomicBool,
    lost: AtomicU64,
}

impl Events {
    pub(crate) fn start(listener: Option<&Listener>) -> Result<Self> {
        let Some(listener) = listener.cloned() else {
            return Ok(Self::default());
        };
        let (to, events) = sync_channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("collie-events".into())
            .spawn(move || tell(&listener, &events))
            .map_err(|e| Error::io("start a thread for", "the listener", e))?;
        Ok(Self {
            to: Mutex::new(Some((to, thread))),
            listens: true,
            ..Self::default()
        })
    }

    /// Queues an event. Waits for nothing.
    pub(crate) fn tell(&self, event: impl FnOnce() -> Event) {
        if self.listens
            && let Some((to, _)) = &*self.to.lock()
            && to.try_send(event()).is_err()
        {
            // Relaxed: a number on its own.
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes are refused from now on: queues an event with the first cause.
    pub(crate) fn refuse(&self, error: &Error) {
        // Relaxed: one of those that find a cause queues the event.
        if !self.refused.swap(true, Ordering::Relaxed) {
            let error = error.clone();
            self.tell(|| Event::WritesRefused { error });
        }
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// The listener gets what is queued, and no more. Waits for it, unless the caller is the listener.
    pub(crate) fn close(&self) {
        let Some((to, thread)) = self.to.lock().take() else {
            return;
        };
        drop(to);
        if thread.thread().id() != std::thread::current().id() {
            // Its panics were caught.
            drop(thread.join());
        }
    }
}

fn tell(listener: &Listener, events: &Receiver<Event>) {
    for event in events {
        if catch_unwind(AssertUnwindSafe(|| listener.0(&event))).is_err() {
            tracing::error!(?event, "the listener panicked");
        }
    }
}
