//! Errors for locks that were denied.

use crate::locks::deadlock::WaitEdge;
use crate::locks::table::Denied;
use crate::store::Store;
use crate::{DeadlockLink, Error, Key};

/// The error for a lock that was denied, for a request in the family of that name.
pub(crate) fn error(store: &Store, family: &str, key: Option<&[u8]>, denied: Denied) -> Error {
    match denied {
        Denied::Timeout { waited } => Error::LockTimeout {
            family: family.to_owned(),
            key: key.map(Key::from),
            waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
        },
        Denied::TooMany { limit } => Error::TooManyLocks { limit },
        Denied::Deadlock(ring) => Error::Deadlock {
            cycle: ring.into_iter().map(|link| deadlock_link(store, link)).collect(),
        },
    }
}

fn deadlock_link(store: &Store, link: WaitEdge) -> DeadlockLink {
    DeadlockLink {
        transaction: link.owner.id,
        name: link.owner.name.to_string(),
        family: store.family_name(link.family),
        key: link.key(),
    }
}
