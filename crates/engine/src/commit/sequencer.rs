//! The order of commits: the log, or a counter with the log off.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use collie_log::{AppendHook, Failure, Level, Log, LogStats, Lsn, RecoveryReport, Span, Worker};

use crate::Result;
use crate::commit::codec::VIRTUAL_FRAME;

/// Where commits get their position in the order.
pub(crate) enum Sequencer {
    /// In the log.
    Log(Log),
    /// From a counter of LSNs; nothing is written.
    Virtual(AtomicU64),
}

/// Which room of the log a commit may use. For the last two some is kept back when it is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// It brings data.
    Commit,
    /// It removes data, or is part of work that does.
    Relief,
    /// A rotation's position: the log is released up to there after the flush.
    Mark,
}

/// The right to append, for one thread at a time.
pub(crate) enum SequencerWorker {
    Log(Worker),
    Virtual,
}

impl Sequencer {
    /// The log-off sequencer, whose first commit gets `next`.
    pub(crate) fn virtual_from(next: Lsn) -> Self {
        Self::Virtual(AtomicU64::new(next))
    }

    pub(crate) fn worker(&self) -> Result<SequencerWorker> {
        Ok(match self {
            Self::Log(log) => SequencerWorker::Log(log.worker()?),
            Self::Virtual(_) => SequencerWorker::Virtual,
        })
    }

    /// Reserves a position and, with a log, copies the payload there; a rotation has none. `hook`
    /// is called as by the log.
    pub(crate) fn append(
        &self,
        worker: &mut SequencerWorker,
        kind: u8,
        payload: &[u8],
        room: Room,
        hook: &mut impl AppendHook,
    ) -> Result<Span> {
        match (self, worker) {
            (Self::Log(_), SequencerWorker::Log(worker)) => Ok(match room {
                Room::Commit => worker.append_with(STREAM, kind, payload, hook)?,
                Room::Relief => worker.append_relief(STREAM, kind, payload, hook)?,
                Room::Mark => worker.append_mark(STREAM, kind, hook)?,
            }),
            (Self::Log(log), SequencerWorker::Virtual) => {
                Ok(log.worker()?.append_with(STREAM, kind, payload, hook)?)
            }
            (Self::Virtual(next), _) => {
                hook.before_reserve(next.load(Ordering::Relaxed));
                // Release pairs with the Acquire in `reserved` (the boundary's cutoff), as in the
                // log.
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

    /// The reservation counter: the cutoff of the visible boundary.
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

    pub(crate) fn wait_async(
        &self,
        end: Lsn,
        level: Level,
    ) -> impl Future<Output = Result<()>> + Send + 'static {
        let waiting = match self {
            Self::Log(log) => Some(log.wait_async(end, level)),
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

    /// Retains the log from `lsn` on for the family.
    pub(crate) fn retain(&self, family: &str, lsn: Lsn) {
        if let Self::Log(log) = self {
            log.retain(&holder(family), lsn);
        }
    }

    pub(crate) fn release(&self, family: &str) {
        if let Self::Log(log) = self {
            log.release(&holder(family));
        }
    }

    /// Retains the log from `lsn` on for the parts of a large commit.
    pub(crate) fn retain_parts(&self, commit: u64, lsn: Lsn) {
        if let Self::Log(log) = self {
            log.retain(&parts_holder(commit), lsn);
        }
    }

    pub(crate) fn release_parts(&self, commit: u64) {
        if let Self::Log(log) = self {
            log.release(&parts_holder(commit));
        }
    }

    /// Where the oldest part of the log begins.
    pub(crate) fn oldest(&self) -> Option<Lsn> {
        match self {
            Self::Log(log) => Some(log.oldest()),
            Self::Virtual(_) => None,
        }
    }

    /// Where the oldest part that can be released ends.
    pub(crate) fn oldest_end(&self) -> Option<Lsn> {
        match self {
            Self::Log(log) => Some(log.oldest_end()),
            Self::Virtual(_) => None,
        }
    }

    /// Removes the log's spare segments; `false` where there are none.
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

fn parts_holder(commit: u64) -> String {
    format!("large-commit/{commit}")
}

fn holder(family: &str) -> String {
    format!("family/{family}")
}
