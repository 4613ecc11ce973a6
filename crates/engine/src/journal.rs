//! The order of commits: the log, or with the log off a counter that stands in for it.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use collie_log::{AppendHook, Failure, Level, Log, LogStats, Lsn, RecoveryReport, Span, Worker};

use crate::Result;
use crate::codec::VIRTUAL_FRAME;
use crate::workers::Room;

/// Where commits get their place in the order.
pub(crate) enum Journal {
    /// In the log.
    Log(Log),
    /// From a counter of LSNs; nothing is written.
    Virtual(AtomicU64),
}

/// The right to append, for one thread at a time.
pub(crate) enum JournalWorker {
    Log(Worker),
    Virtual,
}

impl Journal {
    /// The log-off journal, whose first commit gets `next`.
    pub(crate) fn virtual_from(next: Lsn) -> Self {
        Self::Virtual(AtomicU64::new(next))
    }

    pub(crate) fn worker(&self) -> Result<JournalWorker> {
        Ok(match self {
            Self::Log(log) => JournalWorker::Log(log.worker()?),
            Self::Virtual(_) => JournalWorker::Virtual,
        })
    }

    /// Reserves a place and, with a log, copies the payload there; a rotation's has none. `hook` is told as by the log.
    pub(crate) fn append(
        &self,
        worker: &mut JournalWorker,
        kind: u8,
        payload: &[u8],
        room: Room,
        hook: &mut impl AppendHook,
    ) -> Result<Span> {
        match (self, worker) {
            (Self::Log(_), JournalWorker::Log(worker)) => Ok(match room {
                Room::Commit => worker.append_with(STREAM, kind, payload, hook)?,
                Room::Relief => worker.append_relief(STREAM, kind, payload, hook)?,
                Room::Mark => worker.append_mark(STREAM, kind, hook)?,
            }),
            (Self::Log(log), JournalWorker::Virtual) => {
                Ok(log.worker()?.append_with(STREAM, kind, payload, hook)?)
            }
            (Self::Virtual(next), _) => {
                hook.before_reserve(next.load(Ordering::Relaxed));
                // Release pairs with the Acquire in `reserved` (the herd's cutoff), as in the log.
                let start = next.fetch_add(VIRTUAL_FRAME, Ordering::Release);
                let span = Span {
                    start,
                    end: start + VIRTUAL_FRAME,
                };
                hook.reserved(span);
                Ok(span)
            }
        }
    }

    /// The reservation counter: the visible herd's cutoff.
    pub(crate) fn reserved(&self) -> Lsn {
        match self {
            Self::Log(log) => log.appended(),
            Self::Virtual(next) => next.load(Ordering::Acquire),
        }
    }

    /// The durable boundary; `None` with the log off, where nothing waits for it.
    pub(crate) fn durable(&self) -> Option<Lsn> {
        match self {
            Self::Log(log) => Some(log.durable()),
            Self::Virtual(_) => None,
        }
    }

    pub(crate) fn wait(&self, end: Lsn, level: Level) -> Result<()> {
        match self {
            Self::Log(log) => Ok(log.wait(end, level)?),
            Self::Virtual(_) => Ok(()),
        }
    }

    pub(crate) fn when(&self, end: Lsn, level: Level) -> impl Future<Output = Result<()>> + Send + 'static {
        let waiting = match self {
            Self::Log(log) => Some(log.when(end, level)),
            Self::Virtual(_) => None,
        };
        async move {
            match waiting {
                Some(waiting) => Ok(waiting.await?),
                None => Ok(()),
            }
        }
    }

    /// Makes everything appended before the call survive what `level` says.
    pub(crate) fn flush(&self, level: Level) -> Result<Lsn> {
        match self {
            Self::Log(log) => Ok(log.flush(level)?),
            Self::Virtual(_) => Ok(self.reserved()),
        }
    }

    /// Why the log takes no more writes, if so.
    pub(crate) fn poisoned(&self) -> Option<crate::Error> {
        match self {
            Self::Log(log) => log.poisoned().map(Into::into),
            Self::Virtual(_) => None,
        }
    }

    /// Why the log stopped for good, if it did, and what of it is certain.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Log(log) => log.failure(),
            Self::Virtual(_) => None,
        }
    }

    /// Keeps the log from `lsn` on for the family.
    pub(crate) fn hold(&self, family: &str, lsn: Lsn) {
        if let Self::Log(log) = self {
            log.hold(&holder(family), lsn);
        }
    }

    pub(crate) fn unhold(&self, family: &str) {
        if let Self::Log(log) = self {
            log.unhold(&holder(family));
        }
    }

    /// From where on the log is still there.
    pub(crate) fn oldest(&self) -> Option<Lsn> {
        match self {
            Self::Log(log) => Some(log.oldest()),
            Self::Virtual(_) => None,
        }
    }

    /// Where the oldest part that can be let go of ends.
    pub(crate) fn oldest_end(&self) -> Option<Lsn> {
        match self {
            Self::Log(log) => Some(log.oldest_end()),
            Self::Virtual(_) => None,
        }
    }

    /// Removes what the log keeps for later and does not need; `false` where there is nothing of the kind.
    pub(crate) fn give_up_spares(&self) -> bool {
        match self {
            Self::Log(log) => log.give_up_spares(),
            Self::Virtual(_) => false,
        }
    }

    /// What opening the log found; `None` with the log off.
    pub(crate) fn recovery(&self) -> Option<&RecoveryReport> {
        match self {
            Self::Log(log) => Some(log.recovery()),
            Self::Virtual(_) => None,
        }
    }

    pub(crate) fn stats(&self) -> Option<LogStats> {
        match self {
            Self::Log(log) => Some(log.stats()),
            Self::Virtual(_) => None,
        }
    }

    pub(crate) fn close(&self) -> Result<()> {
        match self {
            Self::Log(log) => Ok(log.clone().close()?),
            Self::Virtual(_) => Ok(()),
        }
    }
}

/// The engine's stream in the log.
const STREAM: u32 = 0;

fn holder(family: &str) -> String {
    format!("family/{family}")
}
