//! Active expiry of a server by itself: a thread that removes expired keys which are not accessed. In a
//! cluster `partitions::sweep` does it.
//!
//! Ten times a second it reads each database's expiry index from its start up to now. An entry is
//! only a hint: the key is read again under its lock. An entry whose key is gone, or has another
//! expiry, is dropped.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use collie_db::Error as DbError;
use collie_protocol::ReplyBuffer;
use parking_lot::{Condvar, Mutex};

use crate::data::keyspace::Keyspace;
use crate::data::locks::LOCKED_WRITE;
use crate::data::value;
use crate::exec::Exec;
use crate::failure::Failure;
use crate::health::Effect;
use crate::session::{Session, Shared};

/// Between two sweeps, here and in partitions.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);
/// Keys that one sweep removes from one database; the next sweep follows at once if there are more.
const BATCH: usize = 1_000;

/// Stops the sweeper.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    pub(crate) fn set(&self) {
        *self.is_set.lock() = true;
        self.changed.notify_all();
    }

    /// Sleeps for a while; `true` when the sweeper is to stop.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let mut is_set = self.is_set.lock();
        if !*is_set && !time.is_zero() {
            self.changed.wait_for(&mut is_set, time);
        }
        *is_set
    }
}

/// Sweeps until stopped.
pub(crate) fn run(shared: &Shared, mut session: Session, stop: &Stop) {
    let mut pause = INTERVAL;
    while !stop.wait(pause) {
        pause = INTERVAL;
        if shared.client_pause.is_on() {
            continue;
        }
        // Read before the databases, so that a database which is exchanged from here on is fetched
        // again under the lock.
        let generation = shared.store.generation();
        for (db, keyspace) in shared.store.keyspaces() {
            session.select(db, keyspace);
            session.generation = generation;
            match sweep(shared, &mut session) {
                Ok(true) => pause = Duration::ZERO,
                Ok(false) => {}
                // The database was emptied, or the engine refuses writes: writers get that error,
                // and the sweeper only tries again.
                Err(error) => tracing::debug!(%error, "expired keys stay for now"),
            }
        }
    }
}

/// One sweep of one database; `true` if more keys are due already.
fn sweep(shared: &Shared, session: &mut Session) -> Result<bool, Failure> {
    let keyspace = Arc::clone(&session.keyspace);
    let now_ms = shared.now_ms();
    // Relaxed: only the sweeper raises the hint.
    if keyspace.sweep_from.load(Ordering::Relaxed) >= now_ms {
        return Ok(false);
    }
    // The hint is raised before the index is read, so that an entry that is written meanwhile
    // lowers it again. It is raised by a swap, and not stored: an entry that has lowered it since
    // the load above, to any time after a step back of the clock, would be lost. Acquire pairs with
    // the Release in `Keyspace::expiry_added`.
    let from = keyspace.sweep_from.swap(now_ms, Ordering::Acquire);
    let swept = remove_due(shared, session, &keyspace, from, now_ms);
    match swept {
        Ok(None) => Ok(false),
        Ok(Some(next)) => {
            keyspace.expiry_added(next);
            Ok(true)
        }
        Err(error) => {
            keyspace.expiry_added(from);
            Err(error)
        }
    }
}

/// Removes the first due keys; returns the expiry of the next one if there are more.
fn remove_due(
    shared: &Shared,
    session: &mut Session,
    keyspace: &Arc<Keyspace>,
    from: u64,
    now_ms: u64,
) -> Result<Option<u64>, Failure> {
    let (mut start, mut end) = (Vec::new(), Vec::new());
    value::expiry_key(&mut start, from, b"");
    // At its exact expiry a key still exists.
    value::expiry_key(&mut end, now_ms, b"");
    let due = keyspace
        .family
        .range((Bound::Included(start), Bound::Excluded(end)))?;
    let mut reply = ReplyBuffer::new();
    for (i, entry) in due.enumerate() {
        let (entry, _) = entry?;
        let Some((expiry_ms, key)) = value::read_expiry_key(&entry) else {
            continue;
        };
        if i == BATCH {
            return Ok(Some(expiry_ms));
        }
        let mut exec = Exec::new(shared, session, &mut reply, now_ms);
        exec.may_block = true;
        if !exec.expire(key)? {
            drop_stale(&mut exec, &entry, expiry_ms, key)?;
        }
        exec.throttle();
    }
    Ok(None)
}

/// Drops an index entry that does not match its key any more.
fn drop_stale(exec: &mut Exec<'_>, entry: &[u8], expiry_ms: u64, key: &[u8]) -> Result<(), Failure> {
    let _lock = exec.lock(key)?;
    let prior = exec.prior(key)?;
    if prior.live_expiry() == Some(expiry_ms) {
        return Ok(());
    }
    exec.session.unthrottled += entry.len();
    let keyspace = &exec.session.keyspace;
    let written = keyspace.family.delete_with(entry, &LOCKED_WRITE);
    match exec.shared.store.health.note(Effect::Removes, written) {
        Ok(_) | Err(DbError::FamilyDropped { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
