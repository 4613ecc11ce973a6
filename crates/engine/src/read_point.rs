//! Which commits a read shows, and what it refuses.
//!
//! As long as all is well a read shows every commit below a boundary: a key's newest version there, and no later one.
//!
//! Once the log has failed, what it holds beyond its durable boundary may be found by the next open, or not: in its
//! segments, or in a ring that outlived the process. A read that went back to what is durable would tell of values, and
//! of absent keys, that a restart may take back. So a key that a commit from there on wrote is *in doubt*, and reading
//! it fails with [`Error::InDoubt`]; every other key has its last value for good, and is read as before.
//!
//! # Why no answer is taken back
//!
//! *The boundary is fixed.* The log says with its failure up to where it is durable (`collie_log::Failure`). What is
//! certain ends there, or where the visible boundary stands, whichever comes first: a commit beyond that is durable, but
//! its writer may have been told that it failed.
//!
//! *Every write that has ended is met.* A write is in its memtable before it returns, also with an error. So whoever
//! looks for a key's newest version looks at all that are there, visible or not. The one exception is a thread that
//! panicked in mid-commit: nobody knows what it left behind, and nothing is read any more.
//!
//! *Tables hold only what is certain*, for a memtable is flushed when both boundaries are past it.
//!
//! *A read that begins before the failure* takes its boundary first and looks for a failure then. Where it finds none it
//! shows what could be read before; so do snapshots and iterators of that time, and [`Read::seen`](crate::Read::seen)
//! tells whether what they show will last.

use std::sync::Arc;

use collie_log::Lsn;

use crate::memtable::{At, Found};
use crate::view::View;
use crate::{Error, Key, Result};

/// See the module's page.
#[derive(Debug, Clone)]
pub(crate) struct ReadPoint {
    below: Lsn,
    doubt: Option<Doubt>,
}

/// What is in doubt since the store failed, and why.
#[derive(Debug, Clone)]
enum Doubt {
    /// Keys that a commit wrote from the read's boundary on.
    Beyond(Arc<str>),
    /// All keys.
    Everything(Arc<str>),
}

impl ReadPoint {
    /// Of a store that has not failed: all below is shown.
    pub(crate) fn at(below: Lsn) -> Self {
        Self { below, doubt: None }
    }

    /// Of a log that has failed: all below is certain.
    pub(crate) fn certain_below(below: Lsn, cause: &Arc<str>) -> Self {
        Self {
            below,
            doubt: Some(Doubt::Beyond(Arc::clone(cause))),
        }
    }

    /// Of a store of which nothing is certain.
    pub(crate) fn nothing_certain(below: Lsn, cause: &Arc<str>) -> Self {
        Self {
            below,
            doubt: Some(Doubt::Everything(Arc::clone(cause))),
        }
    }

    /// Commits that start below are shown.
    pub(crate) fn below(&self) -> Lsn {
        self.below
    }

    /// Up to where memtables are searched: what is in doubt must be met, to be refused.
    pub(crate) fn searched_below(&self) -> Lsn {
        match self.doubt {
            None => self.below,
            Some(_) => Lsn::MAX,
        }
    }

    /// Fails where no key of the family may be read.
    pub(crate) fn check_any(&self, family: &str) -> Result<()> {
        match &self.doubt {
            Some(Doubt::Everything(cause)) => Err(in_doubt(family, None, cause)),
            _ => Ok(()),
        }
    }

    /// Fails where a key of the family is in doubt.
    pub(crate) fn check_all(&self, family: &str, view: &View) -> Result<()> {
        self.check_any(family)?;
        match &self.doubt {
            Some(Doubt::Beyond(cause)) if view.mems().any(|mem| mem.last_start() >= self.below) => {
                Err(in_doubt(family, None, cause))
            }
            _ => Ok(()),
        }
    }

    /// Fails where a key is in doubt whose newest version, of those that are searched, is this one.
    pub(crate) fn check(&self, family: &str, key: &[u8], newest: At) -> Result<()> {
        match &self.doubt {
            Some(Doubt::Beyond(cause)) if newest.start >= self.below => {
                Err(in_doubt(family, Some(key), cause))
            }
            _ => Ok(()),
        }
    }

    /// What the memtables have of a key.
    pub(crate) fn newest(&self, view: &View, family: &str, key: &[u8]) -> Result<Option<Found>> {
        self.check_any(family)?;
        let searched = self.searched_below();
        let newest = view.mems().find_map(|mem| mem.get(key, searched));
        if let Some(found) = &newest {
            self.check(family, key, found.at)?;
        }
        Ok(newest)
    }
}

fn in_doubt(family: &str, key: Option<&[u8]>, cause: &str) -> Error {
    Error::InDoubt {
        family: family.to_owned(),
        key: key.map(Key::from),
        cause: cause.to_owned(),
    }
}
