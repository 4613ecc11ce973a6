//! Commits from an external journal.

use collie_log::{Lsn, Room};

use crate::store::Store;
use crate::write::appenders::Record;
use crate::write::encoding::KIND_COMMIT;
use crate::{Batch, Db, Error, Result, ThrottleMode};

impl Db {
    /// Applies the commit that an external journal ([`Journal::External`](crate::Journal)) has at
    /// `seq`. On return it is visible, all of it at once, to every read that begins later; nothing
    /// about durability is promised, for that is the journal's.
    ///
    /// `seq` becomes the sequence number of its writes. It is above those of all commits that were
    /// applied before and above [`Db::flushed`]; after an opening everything above `flushed` is to be
    /// applied again. One caller at a time applies: others wait for it. An empty batch takes its
    /// sequence number, and nothing else: `flushed` may stay below it until something follows.
    ///
    /// It does not wait for any device, unless background work lags behind: then it waits as other
    /// writes do ([`Stall`](crate::Stall)), at most until memtables are flushed, for which the
    /// journal has to become durable up to there.
    ///
    /// # Errors
    /// [`Error::OwnJournal`], [`Error::SeqOutOfOrder`], [`Error::BatchTooLarge`],
    /// [`Error::ForeignFamily`], [`Error::FamilyDropped`] (after [`Db::adopt`], of a batch that was
    /// filled before), [`Error::Closed`], [`Error::Forked`]: nothing was applied.
    /// [`Error::Poisoned`] after a failure of the journal, [`Error::Background`], and where flushes
    /// fail that it has to wait for, their error, such as [`Error::StorageFull`]: nothing was
    /// applied either, and after the last kind it may be tried again.
    pub fn apply(&self, batch: &Batch, seq: Lsn) -> Result<()> {
        self.apply_where(batch, seq, |store| {
            store.throttle(batch.families(), batch.size_bytes(), ThrottleMode::Full)
        })
    }

    /// As [`apply`](Self::apply), for a thread that must not wait: where `apply` would, nothing is
    /// applied. Another thread that applies is waited for, as there.
    ///
    /// # Errors
    /// [`Error::Stalled`]: [`apply`](Self::apply) would wait. Those of `apply`, but for the errors of
    /// flushes.
    pub fn try_apply(&self, batch: &Batch, seq: Lsn) -> Result<()> {
        self.apply_where(batch, seq, |store| match store.would_throttle(batch.families()) {
            true => Err(Error::Stalled),
            false => Ok(()),
        })
    }

    /// Applies a commit, unless `throttle` refuses.
    fn apply_where(
        &self,
        batch: &Batch,
        seq: Lsn,
        throttle: impl FnOnce(&Store) -> Result<()>,
    ) -> Result<()> {
        let store = self.store();
        let external = store
            .sequencer()
            .external()
            .ok_or(Error::OwnJournal { refused: "apply" })?;
        store.check_open()?;
        let turn = external.turn();
        turn.check(seq)?;
        if let Some(failure) = store.failure() {
            return Err(failure);
        }
        let bytes = batch.size_bytes();
        if bytes as u64 > store.max_commit_bytes() {
            return Err(Error::BatchTooLarge {
                size: bytes as u64,
                limit: store.max_commit_bytes(),
            });
        }
        for family in batch.families() {
            store.check_family(family)?;
        }
        throttle(store)?;
        // The throttle may have waited for the journal.
        external.check()?;
        let mut full = false;
        let placed = Record::Placed { seq, bytes };
        let at = store.applier()?.commit(KIND_COMMIT, placed, Room::Commit, |at| {
            full = batch.apply(at, false);
        })?;
        store.wait_visible(at.end)?;
        drop(turn);
        if batch.has_deletes() {
            store.note_removal();
        }
        if full {
            for family in batch.families() {
                self.rotate_full_memtable(family);
            }
        }
        store.check_memory();
        Ok(())
    }

    /// Everything at or below this sequence number is in tables, durably. With an external journal,
    /// an opening finds exactly that, and entries above are to be applied again; it says so itself
    /// when this rises ([`ExternalJournal::flushed`](crate::ExternalJournal::flushed)). Of a store
    /// with several families it is the lowest of theirs.
    ///
    /// Of a new store it is 2³² − 1. 0 in a forked child.
    #[must_use]
    pub fn flushed(&self) -> Lsn {
        if self.store().check_process().is_err() {
            return 0;
        }
        let families = self.store().families();
        let ends = families.iter().map(|family| family.flushed().get());
        ends.min().unwrap_or(collie_log::FIRST_LSN) - 1
    }
}
