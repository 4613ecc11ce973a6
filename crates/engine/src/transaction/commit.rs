//! A transaction's commit, and the release of its locks.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use collie_log::Lsn;

use crate::batch::Commit;
use crate::key::key_to_key;
use crate::locks::entry::{Mode, RowRef};
use crate::locks::held::Held;
use crate::store::family::FamilyState;
use crate::transaction::reads::{is_key_changed, is_range_changed};
use crate::transaction::{CommitMode, Concurrency, Isolation, Transaction, TransactionState};
use crate::{Batch, Db, Durability, Family, Key, Result, ThrottleMode, WriteOptions};

impl Transaction {
    /// Commits: on return everything that was written is visible, as a whole, and as durable as the
    /// options ask, but for [`CommitMode::Async`]. A read-only transaction waits until what it saw
    /// is as durable. Returns the commit's end, or that of the newest commit that was seen.
    ///
    /// # Errors
    /// [`Conflict`](crate::Error::Conflict), [`Deadlock`](crate::Error::Deadlock),
    /// [`LockTimeout`](crate::Error::LockTimeout) and
    /// [`TooManyLocks`](crate::Error::TooManyLocks) (of optimistic transactions),
    /// [`TransactionAborted`](crate::Error::TransactionAborted),
    /// [`FamilyDropped`](crate::Error::FamilyDropped),
    /// [`BatchTooLarge`](crate::Error::BatchTooLarge), [`StorageFull`](crate::Error::StorageFull),
    /// [`Closed`](crate::Error::Closed): nothing was written. [`Poisoned`](crate::Error::Poisoned),
    /// [`Background`](crate::Error::Background), [`Log`](crate::Error::Log): the commit may or may
    /// not survive a restart.
    pub fn commit(self) -> Result<Lsn> {
        let waits = self.options.commit_mode != CommitMode::Async;
        let (ticket, owes) = self.finish()?;
        let (db, mut end) = (ticket.db.clone(), ticket.end);
        if waits {
            end = ticket.wait()?;
        }
        if let Some(owes) = owes {
            db.store().throttle_after(owes.families(), owes.size_bytes());
        }
        Ok(end)
    }

    /// Commits without waiting for the device: on return everything is visible, and the ticket waits
    /// until it is durable. Its locks are released; with [`CommitMode::Sync`] the ticket keeps them
    /// until then, or until it is dropped. As any write the call is delayed while background work
    /// lags behind, after it has released its locks, or with [`CommitMode::Sync`] before it writes.
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    pub fn commit_ticket(self) -> Result<Ticket> {
        let (ticket, owes) = self.finish()?;
        if let Some(owes) = owes {
            let store = ticket.db.store();
            store.throttle_after(owes.families(), owes.size_bytes());
        }
        Ok(ticket)
    }

    /// Commits, and ends the transaction: its locks are released, unless the ticket keeps them.
    /// Returns also what it has written without a delay.
    fn finish(mut self) -> Result<(Ticket, Option<Batch>)> {
        let store = self.db.store();
        let level = self.options.durability.unwrap_or(store.options().durability);
        let is_sync = self.options.commit_mode == CommitMode::Sync;
        let decided = self.decide(is_sync)?;
        store
            .transactions()
            .counters
            .committed
            .fetch_add(1, Ordering::Relaxed);
        // Locks that the ticket does not take are released with the transaction, now.
        let locks = is_sync.then(|| self.inner.get_mut().held.take());
        let ticket = Ticket {
            end: decided.end,
            level,
            _locks: locks,
            db: self.db.clone(),
        };
        Ok((ticket, decided.owes))
    }

    /// Appends and applies the commit, or fails.
    fn decide(&self, is_sync: bool) -> Result<Decided> {
        let (db, store) = (&self.db, self.db.store());
        store.check_open()?;
        let inner = self.inner.borrow();
        inner.check_active()?;
        if inner.writes.is_empty() {
            let ranges = inner.read_ranges.iter().map(|(_, read)| read.seen());
            return Ok(Decided {
                end: ranges.fold(inner.seen, Lsn::max),
                owes: None,
            });
        }
        let batch = inner.writes.to_batch()?;
        // With `Sync` the locks outlive this call, and so it waits here.
        let mode = match inner.held.len() > 0 && !is_sync {
            true => ThrottleMode::HardLimitsOnly,
            false => ThrottleMode::Full,
        };
        db.admit(Commit::Batch(&batch), mode)?;
        drop(inner);
        let large = db.prepare(Commit::Batch(&batch), false)?;
        if self.options.concurrency == Concurrency::Optimistic {
            self.lock_and_validate()?;
        }
        // Visible before any lock is released: its next owner reads what is visible.
        let end = db.append_locked(Commit::Batch(&batch), large, false)?.end;
        Ok(Decided {
            end,
            owes: (mode == ThrottleMode::HardLimitsOnly).then_some(batch),
        })
    }

    /// Takes all locks of an optimistic transaction, in one order for all transactions, and checks
    /// that what it read is unchanged.
    fn lock_and_validate(&self) -> Result<()> {
        let inner = &mut *self.inner.borrow_mut();
        let snapshot = inner.snapshot(&self.db).clone();
        let mut rows: Vec<(Family, Key, Mode)> = Vec::new();
        let family_of = |state: &Arc<FamilyState>| Family::new(self.db.clone(), Arc::clone(state));
        for (state, key) in inner.writes.keys() {
            rows.push((family_of(state), key.clone(), Mode::Exclusive));
        }
        let reads = inner.read_keys.iter();
        rows.extend(reads.map(|((_, key), family)| (family.clone(), key.clone(), Mode::Shared)));
        // Of a key that is read and written the write comes first, so that no lock is taken twice.
        rows.sort_by(|a, b| (a.0.id(), &a.1, b.2).cmp(&(b.0.id(), &b.1, a.2)));
        rows.dedup_by(|a, b| a.0.id() == b.0.id() && a.1 == b.1);
        for of_family in rows.chunk_by(|a, b| a.0.id() == b.0.id()) {
            self.lock_rows_of_family(inner, of_family)?;
        }
        let timeout = self.options.lock_timeout;
        let mut ranges = Vec::new();
        if self.options.isolation == Isolation::Serializable {
            for (family, read) in &inner.read_ranges {
                ranges.extend(read.parts().into_iter().map(|part| (family.clone(), part)));
            }
        }
        for (family, part) in &ranges {
            let locked = inner.held.lock_range(family.id(), part.clone(), timeout);
            self.locked(inner, family, None, locked)?;
        }
        for (family, key, _) in &rows {
            if is_key_changed(&snapshot, family, key)? {
                return Err(self.conflict(inner, family, Some(key)));
            }
        }
        for (family, part) in &ranges {
            if is_range_changed(&snapshot, family, part)? {
                return Err(self.conflict(inner, family, None));
            }
        }
        Ok(())
    }

    /// Locks rows of one family, in the order of their keys. Very many that are written are locked as
    /// one range, in the place of the first of them.
    fn lock_rows_of_family(&self, inner: &mut TransactionState, rows: &[(Family, Key, Mode)]) -> Result<()> {
        let timeout = self.options.lock_timeout;
        let mut written = rows.iter().filter(|(_, _, mode)| *mode == Mode::Exclusive);
        let as_range = written.clone().count() > self.db.store().locks().most_rows();
        let mut range = match (as_range, written.next(), written.next_back()) {
            (true, Some((_, first, _)), Some((_, last, _))) => Some(key_to_key(first, last)),
            _ => None,
        };
        for (family, key, mode) in rows {
            if as_range && *mode == Mode::Exclusive {
                if let Some(range) = range.take() {
                    let locked = inner.held.lock_all_between(family.id(), range, timeout);
                    self.locked(inner, family, None, locked)?;
                }
                continue;
            }
            let row = RowRef {
                family: family.id(),
                key,
            };
            let locked = inner.held.lock(row, *mode, timeout);
            self.locked(inner, family, Some(key), locked)?;
        }
        Ok(())
    }
}

/// A commit that is in the log and visible.
struct Decided {
    /// The end of the newest commit that the transaction depends on, its own included.
    end: Lsn,
    /// What it has written without a delay, because it held locks.
    owes: Option<Batch>,
}

/// A commit that is in the log and visible. Dropping the ticket does not undo it.
#[derive(Debug)]
#[must_use = "the commit may not be durable yet"]
pub struct Ticket {
    end: Lsn,
    level: Durability,
    /// Locks that are kept until the commit is durable.
    _locks: Option<Held>,
    db: Db,
}

impl Ticket {
    /// The commit's end, for [`Db::wait`] and [`Db::wait_async`].
    #[must_use]
    pub fn end(&self) -> Lsn {
        self.end
    }

    /// Blocks until the commit is as durable as its options ask. Returns its end.
    ///
    /// # Errors
    /// [`Error::Poisoned`](crate::Error::Poisoned) and [`Error::Log`](crate::Error::Log): it may or
    /// may not survive a restart.
    pub fn wait(self) -> Result<Lsn> {
        let options = WriteOptions {
            durability: self.level,
            ..WriteOptions::default()
        };
        self.db.wait_durable(self.end, &options)?;
        Ok(self.end)
    }
}

/// On any executor.
impl IntoFuture for Ticket {
    type Output = Result<Lsn>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Lsn>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            if !self.db.is_left_to_flush_wal(self.level) {
                self.db.wait_async(self.end, self.level).await?;
            }
            Ok(self.end)
        })
    }
}
