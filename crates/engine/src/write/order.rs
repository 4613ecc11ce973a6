//! The order of commits: the log, a counter with the log off, or an external journal.
//!
//! # The order of an external journal
//!
//! The caller that applies its commits brings it. A commit at sequence number `s` takes the
//! positions from `s` to `s + 1`. A rotation takes none: its LSN is the end of the last commit that
//! was applied, so a memtable that ends at `R` is in the journal up to exactly `R - 1`, and the
//! next commit, which may start at `R`, belongs to the next memtable.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use collie_log::{AppendHook, Failure, Level, Log, LogStats, Lsn, RecoveryReport, Span, Worker};
use parking_lot::{Mutex, MutexGuard};

use crate::external_journal::ExternalJournal;
use crate::write::encoding::VIRTUAL_FRAME;
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

/// Sequence numbers are less than this: the visible boundary marks pending slots with the top bit,
/// and the tables use the top bit too.
const SEQ_END: Lsn = 1 << 62;

/// The order of commits that come from an external journal.
pub(crate) struct External {
    journal: Arc<dyn ExternalJournal>,
    /// The end of the last commit: the least sequence number of the next.
    next: AtomicU64,
    /// Below this everything is known to be durable, or in tables.
    durable: AtomicU64,
    /// Up to where the owner knows that all is flushed, as an end.
    reported: AtomicU64,
    /// Why the journal cannot become durable any more.
    failed: OnceLock<Arc<str>>,
    /// Held while a commit is applied, or all tables are replaced.
    turn: Mutex<()>,
}

/// The right to change the store's content. Only one thread has it.
pub(crate) struct Turn<'a> {
    of: &'a External,
    _turn: MutexGuard<'a, ()>,
}

impl External {
    /// The order from `next` on. Everything below is in tables.
    pub(crate) fn new(journal: Arc<dyn ExternalJournal>, next: Lsn) -> Self {
        Self {
            journal,
            next: AtomicU64::new(next),
            durable: AtomicU64::new(next),
            reported: AtomicU64::new(next),
            failed: OnceLock::new(),
            turn: Mutex::new(()),
        }
    }

    /// Waits for the right to change the content.
    pub(crate) fn turn(&self) -> Turn<'_> {
        Turn {
            of: self,
            _turn: self.turn.lock(),
        }
    }

    /// Takes the position at `seq`, for who has the turn.
    pub(super) fn place(&self, seq: Lsn, hook: &mut impl AppendHook) -> Result<Span> {
        self.check()?;
        hook.before_reserve(self.next());
        // Release pairs with the Acquire in `next`, the boundary's cutoff. A rotation's is part of
        // the same sequence of read-modify-writes, as `FamilyState::with_mem` needs it.
        self.next.fetch_max(seq + 1, Ordering::Release);
        let span = Span {
            start: seq,
            end: seq + 1,
        };
        hook.reserved(span);
        Ok(span)
    }

    /// The position of a rotation: between the last commit and the next.
    pub(super) fn mark(&self, hook: &mut impl AppendHook) -> Span {
        hook.before_reserve(self.next());
        // A read-modify-write although nothing changes: a commit that is placed later reads from
        // it, and sees that a rotation has begun.
        let at = self.next.fetch_add(0, Ordering::Release);
        let span = Span { start: at, end: at };
        hook.reserved(span);
        span
    }

    /// The end of the last commit.
    pub(super) fn next(&self) -> Lsn {
        self.next.load(Ordering::Acquire)
    }

    /// The tables hold everything below `lsn`: commits go on there.
    pub(crate) fn go_on_at(&self, lsn: Lsn) {
        self.durable.fetch_max(lsn, Ordering::Relaxed);
        self.next.fetch_max(lsn, Ordering::Release);
    }

    /// The durable boundary.
    pub(super) fn durable(&self) -> Lsn {
        let shown = self.journal.durable().saturating_add(1);
        // Relaxed: who finds tables below it in a view has loaded that since they were registered.
        shown.max(self.durable.load(Ordering::Relaxed)).min(self.next())
    }

    /// Waits until the journal is durable up to `end`. The first failure is final.
    pub(super) fn wait(&self, end: Lsn) -> Result<()> {
        self.check()?;
        if end <= self.durable.load(Ordering::Relaxed) {
            return Ok(());
        }
        match self.journal.wait_durable(end - 1) {
            Ok(()) => {
                self.durable.fetch_max(end, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => {
                let cause = format!("the external journal is not durable up to {}: {error}", end - 1);
                self.failed.get_or_init(|| cause.into());
                self.check()
            }
        }
    }

    /// Fails where it is not durable up to `end`.
    pub(super) fn check_durable(&self, end: Lsn) -> Result<()> {
        self.check()?;
        match end <= self.durable() {
            true => Ok(()),
            false => Err(Error::ExternalJournal {
                refused: "a wait without a thread (wait for the log itself)",
            }),
        }
    }

    /// Fails once the journal has.
    pub(super) fn check(&self) -> Result<()> {
        match self.failed.get() {
            Some(cause) => Err(Error::Poisoned {
                cause: cause.to_string(),
            }),
            None => Ok(()),
        }
    }

    /// Reports to the owner that what starts below `end` is in registered tables, unless it knows.
    pub(crate) fn tell_flushed(&self, end: Lsn) {
        // AcqRel pairs with itself: a later report has seen the earlier ones.
        if self.reported.fetch_max(end, Ordering::AcqRel) < end {
            self.journal.flushed(end - 1);
        }
    }
}

impl Turn<'_> {
    /// Fails where tables that hold everything below `end` lack something that was applied.
    pub(crate) fn check_end(&self, end: Lsn) -> Result<()> {
        let next = self.of.next();
        match (next..=SEQ_END).contains(&end) {
            true => Ok(()),
            false => Err(Error::SeqOutOfOrder {
                seq: end.saturating_sub(1),
                next: next - 1,
            }),
        }
    }

    /// Fails where a commit at `seq` would not be the last.
    pub(crate) fn check(&self, seq: Lsn) -> Result<()> {
        let next = self.of.next();
        match (next..SEQ_END).contains(&seq) {
            true => Ok(()),
            false => Err(Error::SeqOutOfOrder { seq, next }),
        }
    }
}
