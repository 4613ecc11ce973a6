//! The path of a write, on one page: admit, append, apply, wait.
//!
//! 1. *Admit*: its size, its families, whether the store takes writes, its room, and write stalls.
//! 2. *Append*: an appender reserves the commit's LSN and copies the record into the log's ring.
//! 3. *Apply*: the same appender inserts the writes into the families' memtables.
//! 4. *Wait*: until the commit is as durable as its options ask, and every earlier one is applied.
//!
//! A commit that is larger than a frame is prepared between the first two steps: its parts are
//! appended, and its memtables filled ([`crate::write::large`]). Its steps 2 and 3 are then as
//! short as those of others.
//!
//! Once a transaction has begun in the store, other writes lock their rows before they append, and
//! release them as soon as the commit is visible.

pub(crate) mod appenders;
pub(crate) mod encoding;
pub(crate) mod large;
pub(crate) mod order;
pub(crate) mod pipeline;
pub(crate) mod stall;
pub(crate) mod throttle;

use std::sync::Arc;

use collie_log::{Lsn, RingMode, Room};

use crate::background::flush;
use crate::batch::Commit;
use crate::memtable::At;
use crate::store::family::FamilyState;
use crate::write::appenders::Record;
use crate::write::encoding::{KIND_COMMIT, KIND_UNLOGGED};
use crate::write::large::Prepared;
use crate::{Batch, Db, Durability, Error, Result, ThrottleMode, WriteOptions};

impl Db {
    /// The whole path. Returns the commit's end.
    pub(crate) fn commit(&self, commit: Commit<'_>, options: &WriteOptions) -> Result<Lsn> {
        self.admit(commit, options.throttle)?;
        let mut large = self.prepare(commit, options.disable_wal)?;
        let has_locks = options.skip_row_locks;
        let Some(at) = self.append_and_apply(commit, &mut large, options.disable_wal, has_locks)? else {
            return self.commit_with_locks(commit, large, options);
        };
        self.store().check_wal_size(at.end);
        // Durability first, for it takes longest: commits that were in flight before this one are
        // applied by then.
        self.wait_durable(at.end, options)?;
        self.store().wait_visible(at.end)?;
        Ok(at.end)
    }

    /// As [`Db::commit`], with row locks until the commit is visible: the next owner of a row reads
    /// this commit, and is durable only together with it.
    fn commit_with_locks(
        &self,
        commit: Commit<'_>,
        large: Option<Prepared<'_>>,
        options: &WriteOptions,
    ) -> Result<Lsn> {
        let locks = self.lock_for_write(commit.rows())?;
        let at = self.append_locked(commit, large, options.disable_wal)?;
        drop(locks);
        self.wait_durable(at.end, options)?;
        Ok(at.end)
    }

    /// Appends and applies a commit whose rows are locked. On return it is visible, so that the
    /// locks may be released.
    pub(crate) fn append_locked(
        &self,
        commit: Commit<'_>,
        mut large: Option<Prepared<'_>>,
        disable_wal: bool,
    ) -> Result<At> {
        // `None` would ask for locks, which the caller has.
        let at = self.append_and_apply(commit, &mut large, disable_wal, true)?;
        let at = at.ok_or(Error::Closed)?;
        self.store().check_wal_size(at.end);
        self.store().wait_visible(at.end)?;
        Ok(at)
    }

    /// Admits a write, or delays it while background work lags behind, as its mode says.
    pub(crate) fn admit(&self, commit: Commit<'_>, mode: ThrottleMode) -> Result<()> {
        let store = self.store();
        let bytes = commit.check()?;
        if bytes as u64 > store.max_commit_bytes() {
            return Err(Error::BatchTooLarge {
                size: bytes as u64,
                limit: store.max_commit_bytes(),
            });
        }
        for family in commit.families() {
            store.check_family(family)?;
            store.admit(commit.room())?;
        }
        store.throttle(commit.families(), bytes, mode)
    }

    /// Does what takes long of a large commit that was admitted; `None` for any other. No locks are
    /// needed for it.
    pub(crate) fn prepare(&self, commit: Commit<'_>, disable_wal: bool) -> Result<Option<Prepared<'_>>> {
        let store = self.store();
        if !store.is_large(commit.bytes()) {
            return Ok(None);
        }
        match commit {
            Commit::One(family, op) => {
                let mut batch = Batch::with_capacity(commit.bytes());
                batch.push(family, op.key, op.write)?;
                Prepared::new(store, &batch, disable_wal)
            }
            Commit::Batch(batch) => Prepared::new(store, batch, disable_wal),
        }
        .map(Some)
    }

    /// Makes a commit that was admitted, and if it is large, takes what was prepared of it. `None`
    /// where row locks must be taken first, unless the caller has them.
    fn append_and_apply(
        &self,
        commit: Commit<'_>,
        large: &mut Option<Prepared<'_>>,
        disable_wal: bool,
        has_locks: bool,
    ) -> Result<Option<At>> {
        if large.is_some() {
            let Some(appender) = self.store().appender(has_locks)? else {
                return Ok(None);
            };
            return large.take().map(|large| large.finish(appender)).transpose();
        }
        let unlogged = disable_wal || self.store().options().disable_wal;
        let (kind, record) = if disable_wal {
            (KIND_UNLOGGED, Record::Empty)
        } else {
            (KIND_COMMIT, commit.record())
        };
        let (mut full, room) = (false, commit.room());
        let mut append = || {
            let Some(appender) = self.store().appender(has_locks)? else {
                return Ok(None);
            };
            let at = appender.commit(kind, record, room, |at| full = commit.apply(at, unlogged))?;
            Ok(Some(at))
        };
        let placed = match room {
            Room::Relief => self.store().relieve_commit(append),
            Room::Commit | Room::Mark => append(),
        };
        let Some(at) = placed? else { return Ok(None) };
        if full {
            for family in commit.families() {
                self.rotate_full_memtable(family);
            }
        }
        self.store().check_memory();
        Ok(Some(at))
    }

    /// Seals the family's memtable if it is full, or stalls writes where there is no room for
    /// another. The write that filled it has succeeded in any case.
    pub(crate) fn rotate_full_memtable(&self, family: &Arc<FamilyState>) {
        if !family.is_memtable_full() {
            return;
        }
        let store = self.store();
        let started = store.now();
        if let Err(error) = flush::rotate_if_full(store, family) {
            tracing::debug!(family = %family.name(), %error, "a full memtable is not sealed yet");
        }
        store.update_stall(family);
        family.counters().seal_ns.add(store.ns_since(started));
    }

    /// Waits until everything below `end`, the end of a commit, is as durable as its options ask.
    pub(crate) fn wait_durable(&self, end: Lsn, options: &WriteOptions) -> Result<()> {
        if !options.disable_wal && !self.is_left_to_flush_wal(options.durability) {
            self.store().sequencer().wait(end, options.durability)?;
        }
        Ok(())
    }

    /// Whether a write at `level` waits for nothing: the log is flushed at other times.
    pub(crate) fn is_left_to_flush_wal(&self, level: Durability) -> bool {
        let options = self.store().options();
        match level {
            Durability::Buffered => true,
            // By the option and not by the actual ring: where a shared one was configured and is
            // not available, the level is still guaranteed, at the price of write calls.
            Durability::Process => options.manual_wal_flush && options.ring == RingMode::Private,
            Durability::Disk => false,
        }
    }
}
