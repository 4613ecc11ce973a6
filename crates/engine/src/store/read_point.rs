//! Which commits a read shows, and what it refuses.
//!
//! While the store has not failed, a read shows every commit below a boundary: a key's newest
//! version there, and no later one.
//!
//! Once the log has failed, what it holds beyond its durable boundary may be found by the next
//! open, or not: in its segments, or in a ring that outlived the process. A read that fell back to
//! what is durable would show values, and absent keys, that a restart may revoke. So a key that a
//! commit from there on wrote is *in doubt*, and reading it fails with [`Error::InDoubt`]; every
//! other key has its last value for good, and is read as before.
//!
//! # Why no answer is revoked
//!
//! *The boundary is fixed.* The log says with its failure up to where it is durable
//! (`collie_log::Failure`). What is certain ends there, or where the visible boundary stands,
//! whichever comes first: a commit beyond that may be durable although its writer got an error.
//!
//! *Every write that has ended is met.* A write is in its memtable before it returns, also with an
//! error. So a search for a key's newest version covers all versions, visible or not. The one
//! exception is a thread that panicked in the middle of a commit: the memtables may lack some of
//! its writes, and all reads are refused.
//!
//! *Tables hold only what is certain*: a memtable is flushed only when both boundaries are past it.
//!
//! *A read that begins before the failure* takes its boundary first and checks for a failure then.
//! Where there is none it shows what could be read before; so do snapshots and iterators of that
//! time, and [`Read::seen`](crate::Read::seen) says up to where that must be durable to last.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use collie_log::Lsn;

use crate::memtable::{At, Found};
use crate::store::Store;
use crate::store::family::FamilyState;
use crate::store::health::{HALF_APPLIED, Health};
use crate::store::view::{View, Views};
use crate::{Error, Key, Result};

/// Which commits a read shows, and which keys it refuses.
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
    /// A point in a store that has not failed: everything below it is shown.
    pub(crate) fn at(below: Lsn) -> Self {
        Self { below, doubt: None }
    }

    /// A point in a store whose log has failed: everything below it is certain.
    pub(crate) fn certain_below(below: Lsn, cause: &Arc<str>) -> Self {
        Self {
            below,
            doubt: Some(Doubt::Beyond(Arc::clone(cause))),
        }
    }

    /// A point in a store of which nothing is certain.
    pub(crate) fn nothing_certain(below: Lsn, cause: &str) -> Self {
        Self {
            below,
            doubt: Some(Doubt::Everything(cause.into())),
        }
    }

    /// Commits that start below are shown.
    pub(crate) fn below(&self) -> Lsn {
        self.below
    }

    /// Whether nothing that it does not show is in doubt.
    pub(crate) fn is_certain(&self) -> bool {
        self.doubt.is_none()
    }

    /// Up to where memtables are searched. A version in doubt must be found, so that it is refused.
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

    /// The key's newest version in the memtables; fails where that is in doubt.
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

impl Store {
    /// The point of a read that begins now.
    pub(crate) fn read_point(&self, durable: bool) -> ReadPoint {
        // First: as long as no failure is seen below, what is visible here was so before any.
        let visible = self.visible_boundary();
        reach!("read has its boundary");
        if self.health.cause(Health::HalfApplied).is_some() {
            return ReadPoint::nothing_certain(visible, HALF_APPLIED);
        }
        if let Some(failure) = self.sequencer().failure() {
            return ReadPoint::certain_below(visible.min(failure.durable), &failure.cause);
        }
        match self.sequencer().durable() {
            Some(durable_boundary) if durable => ReadPoint::at(visible.min(durable_boundary)),
            _ => ReadPoint::at(visible),
        }
    }

    /// A view and a read point that fit together; `view.rs` has the argument. The view is borrowed
    /// from the family, so that readers share no reference count.
    pub(crate) fn read_at(
        &self,
        family: &FamilyState,
        durable: bool,
    ) -> (arc_swap::Guard<Arc<View>>, ReadPoint) {
        let mut view = family.view();
        reach!("read has its view");
        loop {
            let point = self.read_point(durable);
            let again = family.view();
            if Arc::ptr_eq(&view, &again) {
                reach!("read has its point");
                return (view, point);
            }
            view = again;
        }
    }

    /// A point, and the views of all families that fit it, for a snapshot; as [`Store::read_at`].
    /// Counts a snapshot until [`Store::end_snapshot`].
    pub(crate) fn begin_snapshot(&self) -> (ReadPoint, Arc<Views>) {
        self.families.snapshots.fetch_add(1, Ordering::Relaxed);
        let mut views = self.families.views.load();
        loop {
            reach!("snapshot has its views");
            let point = self.read_point(false);
            // As for a single read (`view.rs`): no view may have been replaced before the boundary
            // was read.
            let again = self.families.views.load();
            if Arc::ptr_eq(&views, &again) {
                return (point, views);
            }
            views = again;
        }
    }

    /// A snapshot that [`Store::begin_snapshot`] counted is gone.
    pub(crate) fn end_snapshot(&self) {
        self.families.snapshots.fetch_sub(1, Ordering::Relaxed);
    }
}

fn in_doubt(family: &str, key: Option<&[u8]>, cause: &str) -> Error {
    Error::InDoubt {
        family: family.to_owned(),
        key: key.map(Key::from),
        cause: cause.to_owned(),
    }
}
