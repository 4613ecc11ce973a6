//! The order of commits: that of the log, or, where nothing is written, that of a sequence, in which an
//! external journal may place them.
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

use collie_log::{Failure, Level, Log, LogStats, Lsn, RecoveryReport, Sequence, SequenceWorker, Worker};
use parking_lot::{Mutex, MutexGuard};

use crate::external_journal::ExternalJournal;
use crate::write::encoding::VIRTUAL_FRAME;
use crate::{Error, Result};

/// Where commits get their position in the order, and how far they are in their memtables: the
/// visible boundary, which is the applied boundary of a log or of a sequence.
pub(crate) enum Sequencer {
    /// In the log.
    Log(Log),
    /// In a sequence; nothing is written. Positions are taken as commits come, or, with an external
    /// journal, as its owner brings them.
    Unlogged {
        sequence: Sequence,
        journal: Option<External>,
    },
}

/// The right to append, for one thread at a time.
pub(crate) enum SequencerWorker {
    Log(Worker),
    /// Nothing is written. A commit takes so many positions; 0 where an external journal gives it one.
    Unlogged {
        worker: SequenceWorker,
        step: Lsn,
    },
}

impl Sequencer {
    /// The order with the log off, whose first commit gets `next`.
    pub(crate) fn unlogged(max_workers: usize, next: Lsn) -> Self {
        let sequence = Sequence::new(max_workers, next);
        Self::Unlogged {
            sequence,
            journal: None,
        }
    }

    /// The order of an external journal. Everything below `next` is in tables.
    pub(crate) fn of_journal(journal: Arc<dyn ExternalJournal>, max_workers: usize, next: Lsn) -> Self {
        let sequence = Sequence::new(max_workers, next);
        Self::Unlogged {
            sequence: sequence.clone(),
            journal: Some(External::new(journal, sequence)),
        }
    }

    pub(crate) fn worker(&self) -> Result<SequencerWorker> {
        Ok(match self {
            Self::Log(log) => SequencerWorker::Log(log.worker()?),
            Self::Unlogged { sequence, journal } => SequencerWorker::Unlogged {
                worker: sequence.worker()?,
                step: if journal.is_some() { 0 } else { VIRTUAL_FRAME },
            },
        })
    }

    /// Everything below is in its memtables, as the last commit left it.
    pub(crate) fn visible(&self) -> Lsn {
        match self {
            Self::Log(log) => log.applied(),
            Self::Unlogged { sequence, .. } => sequence.applied(),
        }
    }

    /// Waits until everything below `end` is in its memtables; fails where something there never
    /// will be.
    pub(crate) fn wait_visible(&self, end: Lsn) -> Result<()> {
        let reached = match self {
            Self::Log(log) => log.wait_applied(end),
            Self::Unlogged { sequence, .. } => sequence.wait_applied(end),
        };
        Ok(reached?)
    }

    /// The external journal's order.
    pub(crate) fn external(&self) -> Option<&External> {
        match self {
            Self::Unlogged { journal, .. } => journal.as_ref(),
            Self::Log(_) => None,
        }
    }

    /// Fails where all commits come from an external journal.
    pub(crate) fn check_own(&self, refused: &'static str) -> Result<()> {
        match self.external() {
            Some(_) => Err(Error::ExternalJournal { refused }),
            None => Ok(()),
        }
    }

    /// The next position: everything below is reserved.
    pub(crate) fn appended(&self) -> Lsn {
        match self {
            Self::Log(log) => log.appended(),
            Self::Unlogged { sequence, .. } => sequence.next(),
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
            Self::Unlogged { .. } => highest + 1,
        })
    }

    /// The durable boundary; `None` with the log off, where nothing waits for it.
    pub(crate) fn durable(&self) -> Option<Lsn> {
        match self {
            Self::Log(log) => Some(log.durable()),
            Self::Unlogged { journal, .. } => journal.as_ref().map(External::durable),
        }
    }

    pub(crate) fn wait(&self, end: Lsn, level: Level) -> Result<()> {
        match self {
            Self::Log(log) => Ok(log.wait(end, level)?),
            Self::Unlogged { journal, .. } => match (journal, level) {
                (Some(journal), Level::Disk) => journal.wait(end),
                (None, _) | (_, Level::Process | Level::Buffered) => Ok(()),
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
            Self::Unlogged { journal, .. } => match (journal, level) {
                (Some(journal), Level::Disk) => (None, journal.check_durable(end)),
                (None, _) | (_, Level::Process | Level::Buffered) => (None, Ok(())),
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
            Self::Unlogged { .. } => {
                let end = self.appended();
                self.wait(end, level).map(|()| end)
            }
        }
    }

    /// Why the log takes no more writes, if so.
    pub(crate) fn poisoned(&self) -> Option<crate::Error> {
        match self {
            Self::Log(log) => log.poisoned().map(Into::into),
            Self::Unlogged { journal, .. } => journal.as_ref()?.check().err(),
        }
    }

    /// Why the log stopped for good, if it did, and what of it is certain. What an external
    /// journal's owner applied is certain whether its own log fails or not.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Log(log) => log.failure(),
            Self::Unlogged { .. } => None,
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
            Self::Unlogged { .. } => None,
        }
    }

    /// Where the oldest part that can be released ends.
    pub(crate) fn oldest_end(&self) -> Option<Lsn> {
        match self {
            Self::Log(log) => Some(log.oldest_end()),
            Self::Unlogged { .. } => None,
        }
    }

    /// Removes the log's spare segments; `false` where there are none.
    pub(crate) fn give_up_spares(&self) -> bool {
        match self {
            Self::Log(log) => log.give_up_spares(),
            Self::Unlogged { .. } => false,
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
            Self::Unlogged { .. } => None,
        }
    }

    /// What opening the log found; `None` with the log off.
    pub(crate) fn recovery(&self) -> Option<&RecoveryReport> {
        match self {
            Self::Log(log) => Some(log.recovery()),
            Self::Unlogged { .. } => None,
        }
    }

    pub(crate) fn stats(&self) -> Option<LogStats> {
        match self {
            Self::Log(log) => Some(log.stats()),
            Self::Unlogged { .. } => None,
        }
    }

    pub(crate) fn close(&self) -> Result<()> {
        match self {
            Self::Log(log) => Ok(log.clone().close()?),
            Self::Unlogged { .. } => Ok(()),
        }
    }
}

/// The engine's stream in the log.
pub(super) const STREAM: u32 = 0;

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
    /// Its next position is the end of the last commit: the least sequence number of the next.
    sequence: Sequence,
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
    fn new(journal: Arc<dyn ExternalJournal>, sequence: Sequence) -> Self {
        let next = sequence.next();
        Self {
            journal,
            sequence,
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

    /// The tables hold everything below `lsn`: commits go on there.
    pub(crate) fn go_on_at(&self, lsn: Lsn) {
        self.durable.fetch_max(lsn, Ordering::Relaxed);
        self.sequence.advance_to(lsn);
    }

    /// The durable boundary.
    pub(super) fn durable(&self) -> Lsn {
        let shown = self.journal.durable().saturating_add(1);
        // Relaxed: who finds tables below it in a view has loaded that since they were registered.
        shown
            .max(self.durable.load(Ordering::Relaxed))
            .min(self.sequence.next())
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
    pub(crate) fn check(&self) -> Result<()> {
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
        let next = self.of.sequence.next();
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
        let next = self.of.sequence.next();
        match (next..SEQ_END).contains(&seq) {
            true => Ok(()),
            false => Err(Error::SeqOutOfOrder { seq, next }),
        }
    }
}
