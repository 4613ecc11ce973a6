//! The limit on live log: when the log grows too long, the families are flushed for which its oldest
//! part is retained.
//!
//! All families share the log, and a segment is released only when every family's commits in it are
//! in tables. One family that is seldom written would retain all of it.

use std::sync::Arc;

use collie_log::Lsn;

use crate::background::flush::{self, record_with_idle};
use crate::events::FlushCause;
use crate::store::Store;
use crate::store::family::FamilyState;
use crate::{FamilyOptions, Options};

/// Segments of live log, at most: recovery has all of them open, and a process has 1024 files by
/// default.
const SEGMENTS_MOST: u64 = 256;
/// The default limit in segments, at least.
const SEGMENTS_LEAST: u64 = 4;
/// The default limit in what all memtables together may take: with less, memtables would be flushed
/// before they are full; with more, an opening would read more, for families that are seldom written.
const TIMES_MEMORY: u64 = 2;
/// The default limit, as a part of the log's file system.
const OF_DISK: u64 = 4;

/// How much there may be in memory and on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Capacities {
    families: u64,
    /// One memtable of each.
    one_each: u64,
    /// All memtables of each.
    all: u64,
    /// All memtables together.
    memory: u64,
    /// The log's file system.
    disk: u64,
}

impl Capacities {
    fn of<'a>(families: impl IntoIterator<Item = &'a FamilyOptions>, memory: u64, disk: u64) -> Self {
        let mut sum = Self {
            families: 0,
            one_each: 0,
            all: 0,
            memory,
            disk,
        };
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

    fn of_store(store: &Store) -> Self {
        let families = store.families();
        let options: Vec<_> = families.iter().map(|family| family.options()).collect();
        Self::of(
            options.iter().map(|options| &***options),
            store.throttle.budget.most(),
            store.log_disk_bytes(),
        )
    }

    /// The limit that the options ask for.
    fn wanted(self, options: &Options) -> u64 {
        match options.max_total_wal_size {
            Some(limit) if limit > 0 => limit,
            _ => self
                .all
                .min(self.memory)
                .saturating_mul(TIMES_MEMORY)
                .min(self.disk / OF_DISK)
                .max(options.segment_bytes.saturating_mul(SEGMENTS_LEAST)),
        }
    }

    fn limit(self, options: &Options) -> u64 {
        self.wanted(options).min(most(options))
    }

    fn warnings(self, options: &Options) -> Vec<String> {
        let mut warnings = Vec::new();
        let limit = self.limit(options);
        // More than all memtables together may take they do not have.
        if limit < self.one_each.min(self.memory) {
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
pub(crate) fn limit(store: &Store) -> u64 {
    Capacities::of_store(store).limit(store.options())
}

/// Warnings about it; none with the log off.
pub(crate) fn warnings(store: &Store) -> Vec<String> {
    if store.sequencer().oldest().is_none() {
        return Vec::new();
    }
    Capacities::of_store(store).warnings(store.options())
}

/// Logs a warning, once, where the limit has become too short for the families.
pub(crate) fn warn_of_short_limit(store: &Store) {
    let warnings = warnings(store);
    if !warnings.is_empty() && store.is_first_to_warn() {
        for warning in warnings {
            tracing::warn!(path = %store.path().display(), "{warning}");
        }
    }
}

/// Sets the LSN at which a commit queues the next check of the log's size.
pub(crate) fn schedule_check(store: &Store) {
    if let Some(oldest) = store.sequencer().oldest() {
        let limit = oldest.saturating_add(limit(store));
        // If nothing was released, not before another quarter of a segment.
        let soonest = store.sequencer().appended() + store.options().segment_bytes / 4;
        store.check_wal_size_at(limit.max(soonest));
    }
}

/// Where the log has grown past its limit, flushes the families that pin the oldest segment, and what
/// else lies past the limit.
pub(crate) fn flush_for_wal_size(store: &Store) {
    if let (Some(oldest), Some(end)) = (store.sequencer().oldest(), store.sequencer().oldest_end()) {
        let (reserved, limit) = (store.sequencer().appended(), limit(store));
        if reserved - oldest > limit {
            store.count_wal_size_flush();
            // All that lies past the limit, which may be more than the oldest segment.
            flush_pinning(store, end.max(reserved.saturating_sub(limit)));
        }
    }
    schedule_check(store);
}

/// Flushes every family for which the log below `end` is retained. Those with empty memtables are
/// recorded with the last of the others, or here.
pub(super) fn flush_pinning(store: &Store, end: Lsn) {
    let mut pinning = store.families();
    // Those of a large commit retain its parts, too.
    let of_parts = store.families_of_parts_below(end);
    pinning.retain(|family| family.flushed().get() < end || of_parts.contains(&family.id()));
    pinning.retain(|family| family.view().mems().any(|mem| !mem.is_empty()));
    for family in &pinning {
        if seal(store, family) {
            flush::flush_or_retry_later(store, family);
        }
    }
    if let Err(error) = record_with_idle(store, &mut [], Some(end)) {
        tracing::warn!(%error, "families with nothing to flush still pin the oldest part of the log");
    }
}

/// Seals the family's memtable unless a sealed one waits already. Returns whether it is to be
/// flushed now.
fn seal(store: &Store, family: &Arc<FamilyState>) -> bool {
    match store.rotate(family, FlushCause::WalSize, |view| view.sealed.is_empty()) {
        // A flush that failed a moment ago is queued for later.
        Ok(_) => !family.flushes().is_queued(),
        Err(error) => {
            tracing::warn!(family = %family.name(), %error, "the family still pins the oldest part of the log");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn families(count: usize, buffers: usize) -> Capacities {
        let family = FamilyOptions {
            write_buffer_bytes: 64 * MIB,
            max_write_buffers: buffers,
            ..FamilyOptions::default()
        };
        Capacities::of(std::iter::repeat_n(&family, count), 1024 * MIB, u64::MAX)
    }

    #[test]
    fn the_default_limit_is_twice_what_memtables_may_take() {
        let options = Options::default();
        assert_eq!(families(1, 4).limit(&options), 512 * MIB);
        assert_eq!(families(2, 4).limit(&options), 1024 * MIB);
        // However many families there are.
        assert_eq!(families(16, 4).limit(&options), 2048 * MIB);
        let zero = Options {
            max_total_wal_size: Some(0),
            ..Options::default()
        };
        assert_eq!(families(16, 4).limit(&zero), 2048 * MIB);
        assert!(families(1000, 4).warnings(&zero).is_empty());
    }

    #[test]
    fn by_default_the_log_takes_a_quarter_of_its_disk_at_most() {
        let on = |disk| Capacities {
            disk,
            ..families(1, 4)
        };
        let options = Options {
            segment_bytes: 4 * MIB,
            ..Options::default()
        };
        assert_eq!(on(4096 * MIB).limit(&options), 512 * MIB);
        assert_eq!(on(1024 * MIB).limit(&options), 256 * MIB);
        assert_eq!(on(40 * MIB).limit(&options), 16 * MIB, "four segments at least");
        let explicit = Options {
            max_total_wal_size: Some(300 * MIB),
            ..options
        };
        assert_eq!(on(1024 * MIB).limit(&explicit), 300 * MIB);
    }

    #[test]
    fn the_limit_never_exceeds_what_recovery_can_have_open() {
        let options = Options {
            max_total_wal_size: Some(1 << 40),
            ..Options::default()
        };
        let one = families(1, 4);
        assert_eq!(one.limit(&options), SEGMENTS_MOST * options.segment_bytes);
        let [warning] = &one.warnings(&options)[..] else {
            panic!("{:?}", one.warnings(&options));
        };
        assert!(
            warning.contains("max_total_wal_size is 1099511627776"),
            "{warning}"
        );
    }

    #[test]
    fn a_limit_below_the_write_buffers_is_warned_about() {
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
