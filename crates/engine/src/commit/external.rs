//! The order of commits that come from an external journal: the caller that applies them brings it.
//!
//! A commit at sequence number `s` takes the positions from `s` to `s + 1`. A rotation takes none:
//! its LSN is the end of the last commit that was applied, so a memtable that ends at `R` is in the
//! journal up to exactly `R - 1`, and the next commit, which may start at `R`, belongs to the next
//! memtable.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use collie_log::{AppendHook, Lsn, Span};
use parking_lot::{Mutex, MutexGuard};

use crate::journal::ExternalJournal;
use crate::{Error, Result};

/// Sequence numbers are less than this: the visible boundary marks pending slots with the top bit,
/// and the tables use the top bit too.
const SEQ_END: Lsn = 1 << 62;

/// See the file's page.
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
