//! One version of a family's tables, as views and iterators read it: see the rules of
//! [`tables`](super).
//!
//! # Scans
//!
//! The table library's own scan hides tombstones, however many it passes over in one step. So the
//! parts that it is made of are put together here, without the last one.

use std::ops::{Bound, Deref, RangeBounds, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::Opener;
use collie_log::Lsn;
use lsm_tree::merge::Merger;
use lsm_tree::mvcc_stream::MvccStream;
use lsm_tree::table::filter::standard_bloom::Builder as Bloom;
use lsm_tree::{AbstractTree, BoxedIterator, InternalValue, Slice, Table, Tree};

use crate::error::table::is_damage;
use crate::key::Bounds;
use crate::recovery::store_lock::StoreLock;
use crate::tables::home::{TableResult, TreeDir};
use crate::{Error, Key, MAX_KEY_BYTES, Result};

/// An error, and the table file that it is of.
type TableFailure = (lsm_tree::Error, PathBuf);
type PointFn = dyn Fn(&[u8], Lsn) -> std::result::Result<Option<InternalValue>, TableFailure> + Send + Sync;
type RangeFn = dyn Fn(Bound<Slice>, Bound<Slice>, Lsn) -> TableIter + Send + Sync;
type SinceFn =
    dyn Fn(&(Bound<Slice>, Bound<Slice>), Lsn, Look) -> std::result::Result<bool, TableFailure> + Send + Sync;
type SizeFn = dyn Fn(&(Bound<Slice>, Bound<Slice>)) -> u64 + Send + Sync;
type DamagedFn = dyn Fn((Bound<Slice>, Bound<Slice>)) -> Option<PathBuf> + Send + Sync;

/// The newest entry of each key in the tables, tombstones included, in order, from either end.
pub(crate) type TableIter = Box<dyn DoubleEndedIterator<Item = TableResult<InternalValue>> + Send + 'static>;

/// How closely tables are looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Where a table as a whole may have it, that will do.
    AtTables,
    AtEntries,
}

impl Pinned {
    /// The newest version of the tree, whose directory that is.
    pub(super) fn of(tree: &Tree, dir: Arc<TreeDir>, lock: Option<StoreLock>) -> Self {
        let version = tree.current_version();
        let (whole, tables, version_of_damaged) = (version.clone(), version.clone(), version.clone());
        let version_of_sizes = version.clone();
        let since = move |bounds: &(Bound<Slice>, Bound<Slice>), since: Lsn, look: Look| {
            for run in tables.iter_levels().flat_map(|level| level.iter()) {
                let overlapping = run.range_overlap_indexes::<Slice, _>(bounds);
                let overlapping = overlapping.and_then(|(low, high)| run.get(low..=high));
                let newer = overlapping.into_iter().flatten();
                for table in newer.filter(|table| table.get_highest_seqno() >= since) {
                    if look == Look::AtTables {
                        return Ok(true);
                    }
                    for item in table.range(bounds.clone()) {
                        if item.map_err(|e| (e, table.path.to_path_buf()))?.key.seqno >= since {
                            return Ok(true);
                        }
                    }
                }
            }
            Ok(false)
        };
        let point = move |key: &[u8], below: Lsn| {
            let hash = Bloom::get_hash(key);
            for level in version.iter_levels() {
                for run in level.iter() {
                    let Some(table) = run.get_for_key(key) else {
                        continue;
                    };
                    let found = table.get(key, below, hash);
                    if let Some(item) = found.map_err(|e| (e, table.path.to_path_buf()))? {
                        return Ok(Some(item));
                    }
                }
            }
            Ok(None)
        };
        let range = move |low, high, below| {
            let bounds: (Bound<Slice>, Bound<Slice>) = (low, high);
            let runs = whole.iter_levels().flat_map(|level| level.iter());
            merged(runs.filter_map(|run| {
                let (first, last) = run.range_overlap_indexes::<Slice, _>(&bounds)?;
                Some(of_run(Arc::clone(run), first..=last, &bounds, below))
            }))
        };
        let sized = version_of_sizes;
        let size = move |bounds: &(Bound<Slice>, Bound<Slice>)| {
            let runs = sized.iter_levels().flat_map(|level| level.iter());
            let of_run = runs.map(|run| {
                let overlapping = run.range_overlap_indexes::<Slice, _>(bounds);
                let overlapping = overlapping.and_then(|(low, high)| run.get(low..=high));
                let tables = overlapping.into_iter().flatten();
                tables
                    .map(|table| {
                        let keys = &table.metadata.key_range;
                        let is_inside = bounds.contains(keys.min()) && bounds.contains(keys.max());
                        table.metadata.file_size / if is_inside { 1 } else { 2 }
                    })
                    .sum::<u64>()
            });
            of_run.sum()
        };
        let all = version_of_damaged;
        let damaged = move |bounds: (Bound<Slice>, Bound<Slice>)| {
            for run in all.iter_levels().flat_map(|level| level.iter()) {
                let overlapping = run.range_overlap_indexes::<Slice, _>(&bounds);
                let overlapping = overlapping.and_then(|(low, high)| run.get(low..=high));
                let mut tables = overlapping.into_iter().flatten();
                let damaged = tables.find(|table| table.range(bounds.clone()).any(|item| item.is_err()));
                if let Some(table) = damaged {
                    return Some(table.path.to_path_buf());
                }
            }
            None
        };
        Pinned {
            point: Box::new(point),
            range: Box::new(range),
            since: Box::new(since),
            damaged: Box::new(damaged),
            size: Box::new(size),
            dir: Some(dir),
            opener: Opener::here(),
            lock,
        }
    }
}

/// One version of the tables. The files that it names stay until it is dropped.
///
/// A table that a compaction has replaced removes its own file, by name, when the last version that
/// names it is dropped. Another owner of the directory would use the name again, so as long as a
/// version is pinned the store's lock is held.
pub(crate) struct Pinned {
    point: Box<PointFn>,
    range: Box<RangeFn>,
    since: Box<SinceFn>,
    damaged: Box<DamagedFn>,
    size: Box<SizeFn>,
    dir: Option<Arc<TreeDir>>,
    opener: Opener,
    /// Dropped last.
    lock: Option<StoreLock>,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if !self.opener.is_here() {
            // Dropping a child's copy of the last version that names a table must not remove the
            // parent's file.
            let nothing = Self::nothing();
            std::mem::forget(std::mem::replace(self, nothing));
        }
    }
}

impl Pinned {
    /// No tables: what a closed store's views show.
    pub(crate) fn nothing() -> Self {
        Self {
            point: Box::new(|_, _| Ok(None)),
            range: Box::new(|_, _, _| Box::new(std::iter::empty())),
            since: Box::new(|_, _, _| Ok(false)),
            damaged: Box::new(|_| None),
            size: Box::new(|_| 0),
            dir: None,
            opener: Opener::here(),
            lock: None,
        }
    }

    /// Fails in a child of the process that pinned it: it may be forked while a thread of its parent
    /// has a lock that reads take.
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.opener.is_here() {
            return Ok(());
        }
        Err(Error::Forked {
            path: self.lock.as_ref().map_or(Path::new(""), StoreLock::dir).into(),
            opener: self.opener.pid(),
        })
    }

    /// The key's entry, a tombstone included.
    pub(crate) fn get(&self, key: &[u8], below: Lsn) -> Result<Option<InternalValue>> {
        (self.point)(key, below).map_err(|(error, path)| Error::table("read", path, error))
    }

    /// The newest entry of each key between the bounds, which may be longer than any key.
    pub(crate) fn range(&self, low: Bound<Slice>, high: Bound<Slice>, below: Lsn) -> TableIter {
        (self.range)(cut(low, Bound::Excluded), cut(high, Bound::Included), below)
    }

    /// Whether there is an entry between the bounds that is not older than `since`, tombstones
    /// included, as far as they were not dropped. Tables without such new entries are skipped.
    pub(crate) fn has_newer(&self, low: Bound<Slice>, high: Bound<Slice>, since: Lsn) -> Result<bool> {
        let bounds = (cut(low, Bound::Excluded), cut(high, Bound::Included));
        let since = (self.since)(&bounds, since, Look::AtEntries);
        since.map_err(|(error, path)| Error::table("read", path, error))
    }

    /// The bytes of the tables between the bounds; a table of which only a part lies there counts half.
    pub(crate) fn size(&self, (low, high): &Bounds) -> u64 {
        let slice = |bound: &Bound<Key>| bound.as_ref().map(|key| key.0.clone());
        let bounds = (
            cut(slice(low), Bound::Excluded),
            cut(slice(high), Bound::Included),
        );
        (self.size)(&bounds)
    }

    /// As [`has_newer`](Self::has_newer), without a look into tables: whether there may be one.
    pub(crate) fn may_have_newer(&self, (low, high): &Bounds, since: Lsn) -> bool {
        let slice = |bound: &Bound<Key>| bound.as_ref().map(|key| key.0.clone());
        let bounds = (
            cut(slice(low), Bound::Excluded),
            cut(slice(high), Bound::Included),
        );
        // Nothing is read that could fail.
        (self.since)(&bounds, since, Look::AtTables).unwrap_or(true)
    }

    /// What [`range`](Self::range) with these bounds failed with, and of which file: those that it
    /// reads are read again, up to the damage.
    pub(crate) fn range_failed(
        &self,
        low: Bound<Slice>,
        high: Bound<Slice>,
        error: lsm_tree::Error,
    ) -> Error {
        let damaged = is_damage(&error)
            .then(|| (self.damaged)((cut(low, Bound::Excluded), cut(high, Bound::Included))));
        let dir = || self.dir.as_ref().map_or(PathBuf::new(), |dir| dir.path.clone());
        Error::table("read", damaged.flatten().unwrap_or_else(dir), error)
    }
}

/// The table library refuses bounds that cannot be keys. All keys are on the same side of a longer
/// bound as of its first bytes; those themselves, if they are a key, are before it.
fn cut(bound: Bound<Slice>, as_bound: fn(Slice) -> Bound<Slice>) -> Bound<Slice> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) if key.len() > MAX_KEY_BYTES => {
            as_bound(Slice::from(&key[..MAX_KEY_BYTES]))
        }
        bound => bound,
    }
}

/// The newest entry of each key in runs, from the newest run to the oldest, tombstones included.
pub(super) fn merged(runs: impl Iterator<Item = BoxedIterator<'static>>) -> TableIter {
    Box::new(MvccStream::new(Merger::new(runs.collect())))
}

/// The entries of some of a run's tables, between the bounds and older than `below`. A table is
/// opened when the scan comes to it.
pub(super) fn of_run<R>(
    run: R,
    tables: RangeInclusive<usize>,
    bounds: &(Bound<Slice>, Bound<Slice>),
    below: Lsn,
) -> BoxedIterator<'static>
where
    R: Deref<Target: Deref<Target = [Table]>> + Send + 'static,
{
    let bounds = bounds.clone();
    let tables = tables.filter_map(move |n| Some(run.get(n)?.range(bounds.clone())));
    let entries = tables.flatten();
    Box::new(entries.filter(move |item| item.as_ref().map_or(true, |item| item.key.seqno < below)))
}
