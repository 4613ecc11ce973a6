//! The limit on live log: who pins its oldest part is flushed when it grows too long, or its device is full.
//!
//! All families share the log, and a segment goes only when every family's commits in it are in tables. A
//! family that is seldom written would keep all of it; past the limit such families are flushed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use collie_log::Lsn;

use crate::core::{Core, FamilyState};
use crate::view::FlushCause;
use crate::{FamilyOptions, Options, flush};

/// Segments of live log, at most: recovery has all of them open, and a process has 1024 files by default.
const SEGMENTS_MOST: u64 = 256;
/// The default limit in segments, at least.
const SEGMENTS_LEAST: u64 = 4;
/// RocksDB's factor.
const TIMES_BUFFERS: u64 = 4;

/// What the families may have in memory.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Buffers {
    families: u64,
    /// One memtable of each.
    one_each: u64,
    /// All memtables of each.
    all: u64,
}

impl Buffers {
    fn of<'a>(families: impl IntoIterator<Item = &'a FamilyOptions>) -> Self {
        let mut sum = Self::default();
        for options in families {
            let all = options
                .write_buffer_bytes
                .saturating_mul(options.max_write_buffers as u64);
            sum.families += 1;
            sum.one_each = sum.one_each.saturating_add(options.write_buffer_bytes);
            sum.all = sum.all.saturating_add(all);
        }
        sum
    }

    fn of_store(core: &Core) -> Self {
        let families = core.families.read();
        Self::of(families.by_name.values().map(|family| &family.options))
    }

    /// What the options ask for.
    fn wanted(self, options: &Options) -> u64 {
        match options.max_total_wal_size {
            Some(limit) if limit > 0 => limit,
            _ => self
                .all
                .saturating_mul(TIMES_BUFFERS)
                .max(options.segment_bytes.saturating_mul(SEGMENTS_LEAST)),
        }
    }

    fn limit(self, options: &Options) -> u64 {
        self.wanted(options).min(most(options))
    }

    fn warnings(self, options: &Options) -> Vec<String> {
        let mut warnings = Vec::new();
        let limit = self.limit(options);
        if limit < self.one_each {
            warnings.push(format!(
                "the log is kept to {limit} bytes, and the write buffers of {} families come to {}: memtables are \
                 flushed before they are full; raise max_total_wal_size (or segment_bytes, of which there are \
                 {SEGMENTS_MOST} at most), or lower write_buffer_bytes",
                self.families, self.one_each
            ));
        }
        let explicit = options.max_total_wal_size.unwrap_or(0);
        if explicit > limit {
            warnings.push(format!(
                "max_total_wal_size is {explicit}, and the log is kept to {limit} bytes, {SEGMENTS_MOST} segments, \
                 since an opening has all of them open; raise segment_bytes"
            ));
        }
        warnings
    }
}

fn most(options: &Options) -> u64 {
    options.segment_bytes.saturating_mul(SEGMENTS_MOST)
}

/// The limit on live log in force, in bytes.
pub(crate) fn limit(core: &Core) -> u64 {
    Buffers::of_store(core).limit(&core.options)
}

/// What there is to say about it; nothing with the log off.
pub(crate) fn warnings(core: &Core) -> Vec<String> {
    if core.journal.oldest().is_none() {
        return Vec::new();
    }
    Buffers::of_store(core).warnings(&core.options)
}

/// Says so in the program's log where the limit has become too short for the families, once.
pub(crate) fn warn_of_a_short_limit(core: &Core) {
    let warnings = warnings(core);
    // Relaxed: only who finds it unset says anything.
    if !warnings.is_empty() && !core.warned.swap(true, Ordering::Relaxed) {
        for warning in warnings {
            tracing::warn!(path = %core.path.display(), "{warning}");
        }
    }
}

/// Sets the LSN at which a commit asks for the next look at the log's size.
pub(crate) fn arm(core: &Core) {
    if let Some(oldest) = core.journal.oldest() {
        let limit = oldest.saturating_add(limit(core));
        // If nothing was released, not before another quarter of a segment.
        let soonest = core.journal.reserved() + core.options.segment_bytes / 4;
        core.wal_check_at.store(limit.max(soonest), Ordering::Relaxed);
    }
}

/// A commit ended at `end`: has the log grown past its limit?
pub(crate) fn check(core: &Core, end: Lsn) {
    // Relaxed: a hint; whoever swaps the value queues the look, so it is queued once.
    if end >= core.wal_check_at.load(Ordering::Relaxed)
        && core.wal_check_at.swap(Lsn::MAX, Ordering::Relaxed) != Lsn::MAX
    {
        core.tasks.look_at_wal_size();
    }
}

/// A commit was refused because the log's device is full: lets go of the oldest part, so that writes go on.
pub(crate) fn make_room_in_log(core: &Core) {
    // AcqRel pairs with `flush_for_wal_size`. Whoever sets the flag queues the task, so it is queued once.
    if !core.log_full.swap(true, Ordering::AcqRel) {
        core.tasks.look_at_wal_size();
    }
}

/// Where the log has grown past its limit, or its device is full, flushes the families that pin the oldest
/// segment, and what else lies past the limit.
pub(crate) fn flush_for_wal_size(core: &Core) {
    // AcqRel pairs with `make_room_in_log`: a commit that is refused from here on asks again.
    let full = core.log_full.swap(false, Ordering::AcqRel);
    if let (Some(oldest), Some(end)) = (core.journal.oldest(), core.journal.oldest_end()) {
        let (reserved, limit) = (core.journal.reserved(), limit(core));
        // While the log ends in its oldest segment no flush lets that go.
        let too_long = reserved - oldest > limit;
        if too_long || (full && reserved >= end) {
            core.counters.wal_size_flushes.fetch_add(1, Ordering::Relaxed);
            // All that lies past the limit: more of it may have come than the oldest segment holds.
            flush_what_pins(core, end.max(reserved.saturating_sub(limit)));
        }
    }
    arm(core);
}

/// Flushes every family that has commits below `end` in memory alone. Idle ones need no table, only to say
/// that they need the log no more: together, so that a thousand of them do not cost as many syncs.
fn flush_what_pins(core: &Core, end: Lsn) {
    let mut pinning = core.families.read().all();
    pinning.retain(|family| family.flushed.get() < end);
    let (mut idle, busy): (Vec<_>, Vec<_>) = pinning
        .into_iter()
        .partition(|family| family.view.load().mems().all(|mem| mem.is_empty()));
    idle.retain(|family| seal(core, family));
    flush::flush_together(core, &idle);
    for family in busy {
        if seal(core, &family) {
            flush::flush_or_queue_again(core, &family);
        }
    }
}

/// Seals the family's memtable where nothing sealed waits already; whether it is to be flushed now.
fn seal(core: &Core, family: &Arc<FamilyState>) -> bool {
    match core.rotate(family, FlushCause::WalSize, |view| view.sealed.is_empty()) {
        // A flush that failed a moment ago waits for its time.
        Ok(_) => !family.flush_queued.load(Ordering::Acquire),
        Err(error) => {
            tracing::warn!(family = %family.name, %error, "the family still pins the oldest part of the log");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn families(count: usize, buffers: usize) -> Buffers {
        let family = FamilyOptions {
            write_buffer_bytes: 64 * MIB,
            max_write_buffers: buffers,
            ..FamilyOptions::default()
        };
        Buffers::of(std::iter::repeat_n(&family, count))
    }

    #[test]
    fn the_default_limit_is_four_times_all_write_buffers() {
        let options = Options::default();
        assert_eq!(families(10, 2).limit(&options), 10 * 64 * MIB * 2 * 4);
        assert_eq!(families(15, 2).limit(&options), 15 * 64 * MIB * 2 * 4);
        let zero = Options {
            max_total_wal_size: Some(0),
            ..Options::default()
        };
        assert_eq!(families(15, 2).limit(&zero), 15 * 64 * MIB * 2 * 4);
        assert!(families(15, 2).warnings(&zero).is_empty());
    }

    #[test]
    fn whatever_is_asked_for_the_segments_can_be_open_all_at_once() {
        let options = Options::default();
        let thousand = families(1000, 4);
        assert_eq!(thousand.limit(&options), SEGMENTS_MOST * options.segment_bytes);
        let [warning] = &thousand.warnings(&options)[..] else {
            panic!("{:?}", thousand.warnings(&options));
        };
        assert!(warning.contains("1000 families"), "{warning}");
        let explicit = Options {
            max_total_wal_size: Some(1 << 40),
            ..Options::default()
        };
        assert_eq!(thousand.limit(&explicit), SEGMENTS_MOST * options.segment_bytes);
        assert_eq!(thousand.warnings(&explicit).len(), 2);
    }

    #[test]
    fn a_limit_below_the_write_buffers_is_warned_about_with_both_sizes() {
        let options = Options {
            max_total_wal_size: Some(500 * MIB),
            ..Options::default()
        };
        assert!(families(7, 2).warnings(&options).is_empty());
        let [warning] = &families(8, 2).warnings(&options)[..] else {
            panic!("{:?}", families(8, 2).warnings(&options));
        };
        let (limit, buffers) = (format!("{}", 500 * MIB), format!("{}", 512 * MIB));
        assert!(
            warning.contains(&limit) && warning.contains(&buffers),
            "{warning}"
        );
    }
}
