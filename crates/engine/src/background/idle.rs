//! Families with nothing in memory: what they hold of the log is nothing.
//!
//! All families share the log, and one that nobody writes would hold all of it. So when a flush is
//! recorded and such families alone hold the oldest part, the same change of the manifest calls them
//! flushed. It does not grow for less than a segment of log, however many families there are.
//!
//! # Why no commit is lost
//!
//! They are called flushed up to a boundary that is read first: below it every commit is in its
//! memtable, and durable. A memtable leaves the view when its tables are registered. So a family whose
//! memtables are empty when they are looked at, which is afterwards, has all of its commits below the
//! boundary in registered tables. One that is being committed starts at the boundary or above, and
//! recovery reads it again.

use std::sync::Arc;

use collie_log::Lsn;

use crate::background::registered::Flush;
use crate::store::Store;
use crate::store::family::FamilyState;

/// Where idle families alone hold the log below `end`, or will when `flushes` are recorded: has
/// them recorded as well. Those of `families` that are not among `flushes` are returned.
pub(super) fn join<'a>(
    store: &'a Store,
    families: &'a [Arc<FamilyState>],
    flushes: &mut [Flush<'_>],
    end: Lsn,
) -> Vec<Flush<'a>> {
    let settled = store.settled();
    reach!("what is settled is known");
    // While the log is replayed, what is settled is in no memtable yet.
    if settled < end || store.is_replaying() || !store.families_of_parts_below(end).is_empty() {
        return Vec::new();
    }
    let mut idle = Vec::new();
    let mut is_held = false;
    for family in families.iter().filter(|family| family.flushed().get() < settled) {
        let own = flushes.iter().find(|flush| flush.family().id() == family.id());
        let (mark, is_idle) = match own {
            Some(own) => (own.mark(), own.is_idle()),
            // One that another thread flushes has something in memory.
            None => match Flush::try_of(store, family).filter(Flush::is_idle) {
                Some(flush) => {
                    idle.push(flush);
                    (family.flushed().get(), true)
                }
                None => (family.flushed().get(), false),
            },
        };
        is_held |= mark < end;
        if mark < end && !is_idle {
            return Vec::new();
        }
    }
    if !is_held {
        return Vec::new();
    }
    let own = flushes.iter_mut().filter(|flush| flush.is_idle());
    own.for_each(|flush| flush.keep_idle(settled));
    idle.iter_mut().for_each(|flush| flush.keep_idle(settled));
    idle
}
