//! Active expiry: a thread that removes what is past its expiry and nobody asks for.
//!
//! Ten times a second it reads each database's expiry index from its start up to now. An entry is only a hint:
//! the key is looked at again with its lock held. An entry whose key is gone, or expires at another time, is
//! dropped.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use collie_db::Error as DbError;
use collie_protocol::ReplyBuffer;
use parking_lot::{Condvar, Mutex};

use crate::exec::Exec;
use crate::failure::Failure;
use crate::health::Effect;
use crate::keyspace::Keyspace;
use crate::locks::LOCKED_WRITE;
use crate::session::{Session, Shared};
use crate::value;

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(100);
/// Keys that one look removes from one database; what is left comes with the next, which follows at once.
const BATCH: usize = 1_000;

/// Tells the sweeper to end.
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

    /// Sleeps for a while; `true` when it is time to end.
    fn wait(&self, time: Duration) -> bool {
        let mut is_set = self.is_set.lock();
        if !*is_set && !time.is_zero() {
            self.changed.wait_for(&mut is_set, time);
        }
        *is_set
    }
}

/// Sweeps until told to stop.
pub(crate) fn run(shared: &Shared, mut session: Session, stop: &Stop) {
    let mut pause = INTERVAL;
    while !stop.wait(pause) {
        pause = INTERVAL;
        // Read before the databases, so that one that is exchanged from here on is fetched again under the lock.
        let generation = shared.store.generation();
        for (db, keyspace) in shared.store.keyspaces() {
            session.select(db, keyspace);
            session.generation = generation;
            match sweep(shared, &mut session) {
                Ok(true) => pause = Duration::ZERO,
                Ok(false) => {}
                // The database was emptied, or the engine refuses writes: whoever writes is told, and here
                // there is nothing to do but to come again.
                Err(error) => tracing::debug!(%error, "expired keys stay for now"),
            }
        }
    }
}

/// One look at one database; `true` where more is due already.
fn sweep(shared: &Shared, session: &mut Session) -> Result<bool, Failure> {
    let keyspace = Arc::clone(&session.keyspace);
    let now_ms = shared.now_ms();
    // Relaxed: only the sweeper raises the hint.
    if keyspace.sweep_from.load(Ordering::Relaxed) >= now_ms {
        return Ok(false);
    }
    // It is raised before the look, so that an entry that is written during the look lowers it again, and taken as it
    // is raised: an entry that has lowered it since it was read above would be forgotten, and after a step back of
    // the clock that can be any. Acquire pairs with the Release in `Keyspace::expiry_added`.
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

/// Removes the first due keys; gives the expiry of the next one where there are more.
fn remove_due(
    shared: &Shared,
    session: &mut Session,
    keyspace: &Arc<Keyspace>,
    from: u64,
    now_ms: u64,
) -> Result<Option<u64>, Failure> {
    let (mut start, mut end) = (Vec::new(), Vec::new());
    value::expiry_key(&mut start, from, b"");
    // At its very expiry a key is still there.
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
    }
    Ok(None)
}

/// Drops an index entry that does not belong to its key any more.
fn drop_stale(exec: &mut Exec<'_>, entry: &[u8], expiry_ms: u64, key: &[u8]) -> Result<(), Failure> {
    let _lock = exec.lock(key)?;
    let prior = exec.prior(key)?;
    if prior.live_expiry() == Some(expiry_ms) {
        return Ok(());
    }
    let keyspace = &exec.session.keyspace;
    let written = keyspace.family.delete_with(entry, &LOCKED_WRITE);
    match exec.shared.health.note(Effect::Removes, written) {
        Ok(_) | Err(DbError::FamilyDropped { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
