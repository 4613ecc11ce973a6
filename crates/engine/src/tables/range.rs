//! Scans of one version of the tables.
//!
//! The table library's own scan hides tombstones, however many it passes over in one step. So the
//! parts that it is made of are put together here, without the last one.

use std::ops::{Bound, Deref, RangeInclusive};

use collie_log::Lsn;
use lsm_tree::merge::Merger;
use lsm_tree::mvcc_stream::MvccStream;
use lsm_tree::{BoxedIterator, Slice, Table};

use crate::tables::TableIter;

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
