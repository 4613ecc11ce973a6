//! The order of commits: the log, a counter with the log off, or an external journal.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use collie_log::{AppendHook, Failure, Level, Log, LogStats, Lsn, RecoveryReport, Span, Worker};

use crate::commit::codec::VIRTUAL_FRAME;
use crate::commit::external::External;
use crate::{Error, Result};

/// Where commits get their position in the order.
pub(crate) enum Sequencer {
    /// In the log.
    Log(Log),
    /// From a counter of LSNs; nothing is written.
    Virtual(AtomicU64),
    /// As the external journal's owner brings it; nothing is written.
    External(External),
}

/// Which room of the log a commit may use. For the last two some is kept back when it is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogRoom {
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
    /// Nothing is written.
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
            Self::Virtual(_) | Self::External(_) => SequencerWorker::Virtual,
        })
    }

    /// The external journal's order.
    pub(crate) fn external(&self) -> Option<&External> {
        match self {
            Self::External(external) => Some(external),
            Self::Log(_) | Self::Virtual(_) => None,
        }
    }

    /// Fails where all commits come from an external journal.
    pub(crate) fn check_own(&self, refused: &'static str) -> Result<()> {
        match self {
            Self::External(_) => Err(Error::ExternalJournal { refused }),
            Self::Log(_) | Self::Virtual(_) => Ok(()),
        }
    }

    /// Takes the position that an external journal gives a commit.
    pub(crate) fn place(&self, seq: Lsn, hook: &mut impl AppendHook) -> Result<Span> {
        self.external()
            .ok_or(Error::OwnJournal { refused: "apply" })?
            .place(seq, hook)
    }

    /// Reserves a position and, with a log, copies the payload there; a rotation has none. `hook`
    /// is called as by the log.
    pub(crate) fn append(
        &self,
        worker: &mut SequencerWorker,
        kind: u8,
        payload: &[u8],
        room: LogRoom,
        hook: &mut impl AppendHook,
    ) -> Result<Span> {
        match (self, worker) {
            (Self::Log(_), SequencerWorker::Log(worker)) => Ok(match room {
                LogRoom::Commit => worker.append_with(STREAM, kind, payload, hook)?,
                LogRoom::Relief => worker.append_relief(STREAM, kind, payload, hook)?,
                LogRoom::Mark => worker.append_mark(STREAM, kind, hook)?,
            }),
            (Self::Log(log), SequencerWorker::Virtual) => {
                Ok(log.worker()?.append_with(STREAM, kind, payload, hook)?)
            }
            (Self::Virtual(next), _) => {
                hook.before_reserve(next.load(Ordering::Relaxed));
                // Release pairs with the Acquire in `appended` (the boundary's cutoff), as in the
                // log.
                let start = next.fetch_add(VIRTUAL_FRAME, Ordering::Release);
                let span = Span {
                    start,
                    end: start + VIRTUAL_FRAME,
                };
                hook.reserved(span);
                Ok(span)
            }
            (Self::External(external), _) => match room {
                // A commit has its position from the journal.
                LogRoom::Commit => self.check_own("a commit").map(|()| external.mark(hook)),
                LogRoom::Relief | LogRoom::Mark => Ok(external.mark(hook)),
            },
        }
    }

    /// The reservation counter: the cutoff of the visible boundary.
    pub(crate) fn appended(&self) -> Lsn {
        match self {
            Self::Log(log) => log.appended(),
            Self::Virtual(next) => next.load(Ordering::Acquire),
            Self::External(external) => external.next(),
        }
    }

    /// From where on a family needs commits of which the manifest calls those below `flushed`
    /// flushed, and whose tables hold writes up to `highest`: behind both. A flush registers the
    /// tables of whole memtables, in their order, each with the newest writes of its last commit.
    /// (Compactions may drop these, but take no tables that the manifest does not record.) In a log
    /// that is the end of this commit's frame, where the next one begins.
    pub(crate) fn resume_at(&self, flushed: Lsn, highest: Lsn) -> Result<Lsn> {
        Ok(match self {
            _ if highest < flushed => flushed,
            Self::Log(log) => log.get(highest)?.end,
            Self::Virtual(_) | Self::External(_) => highest + 1,
        })
    }

    /// The durable boundary; `None` with the log off, where nothing waits for it.
    pub(crate) fn durable(&self) -> Option<Lsn> {
        match self {
            Self::Log(log) => Some(log.durable()),
            Self::Virtual(_) => None,
            Self::External(external) => Some(external.durable()),
        }
    }

    pub(crate) fn wait(&self, end: Lsn, level: Level) -> Result<()> {
        match self {
            Self::Log(log) => Ok(log.wait(end, level)?),
            Self::Virtual(_) => Ok(()),
            Self::External(external) => match level {
                Level::Disk => external.wait(end),
                Level::Process | Level::Buffered => Ok(()),
            },
        }
    }

    pub(crate) fn wait_async(
        &self,
        end: Lsn,
        level: Level,
    ) -> impl Future<Output = Result<()>> + Send + 'static {
        let (waiting, known) = match self {
            Self::Log(log) => (Some(log.wait_async(end, level)), Ok(())),
            Self::Virtual(_) => (None, Ok(())),
            Self::External(external) => match level {
                Level::Disk => (None, external.check_durable(end)),
                Level::Process | Level::Buffered => (None, Ok(())),
            },
        };
        async move {
            match waiting {
                Some(waiting) => Ok(waiting.await?),
                None => known,
            }
        }
    }

    /// Makes everything appended before the call survive what `level` says.
    pub(crate) fn flush(&self, level: Level) -> Result<Lsn> {
        match self {
            Self::Log(log) => Ok(log.flush(level)?),
            Self::Virtual(_) => Ok(self.appended()),
            Self::External(_) => {
                let end = self.appended();
                self.wait(end, level).map(|()| end)
            }
        }
    }

    /// Why the log takes no more writes, if so.
    pub(crate) fn poisoned(&self) -> Option<crate::Error> {
        match self {
            Self::Log(log) => log.poisoned().map(Into::into),
            Self::Virtual(_) => None,
            Self::External(external) => external.check().err(),
        }
    }

    /// Why the log stopped for good, if it did, and what of it is certain. What an external
    /// journal's owner applied is certain whether its own log fails or not.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Log(log) => log.failure(),
            Self::Virtual(_) | Self::External(_) => None,
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
            Self::Virtual(_) | Self::External(_) => None,
        }
    }

    /// Where the oldest part that can be released ends.
    pub(crate) fn oldest_end(&self) -> Option<Lsn> {
        match self {
            Self::Log(log) => Some(log.oldest_end()),
            Self::Virtual(_) | Self::External(_) => None,
        }
    }

    /// Removes the log's spare segments; `false` where there are none.
    pub(crate) fn give_up_spares(&self) -> bool {
        match self {
            Self::Log(log) => log.give_up_spares(),
            Self::Virtual(_) | Self::External(_) => false,
        }
    }

    /// Whether the log takes no room for commits: see [`Log::withhold_room`].
    pub(crate) fn withhold_room(&self, withheld: bool) {
        if let Self::Log(log) = self {
            log.withhold_room(withheld);
        }
    }

    /// Why the log could prepare no more room when it last tried.
    pub(crate) fn setback(&self) -> Option<crate::Error> {
        match self {
            Self::Log(log) => log.setback().map(Into::into),
            Self::Virtual(_) | Self::External(_) => None,
        }
    }

    /// What opening the log found; `None` with the log off.
    pub(crate) fn recovery(&self) -> Option<&RecoveryReport> {
        match self {
            Self::Log(log) => Some(log.recovery()),
            Self::Virtual(_) | Self::External(_) => None,
        }
    }

    pub(crate) fn stats(&self) -> Option<LogStats> {
        match self {
            Self::Log(log) => Some(log.stats()),
            Self::Virtual(_) | Self::External(_) => None,
        }
    }

    pub(crate) fn close(&self) -> Result<()> {
        match self {
            Self::Log(log) => Ok(log.clone().close()?),
            Self::Virtual(_) | Self::External(_) => Ok(()),
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
