//! Figures by name, for programs that choose them at run time: the names of the fields, and those that
//! RocksDB has for the same.

use crate::stats::{FamilyStats, Stats};
use crate::write::stall::Stall;

/// RocksDB's name and ours; of RocksDB's `GetIntProperty`.
const ROCKSDB: [(&str, &str); 13] = [
    ("cur-size-active-mem-table", "active_bytes"),
    ("cur-size-all-mem-tables", "mem_bytes"),
    ("size-all-mem-tables", "mem_bytes"),
    ("num-immutable-mem-table", "sealed"),
    ("mem-table-flush-pending", "flush_pending"),
    ("background-errors", "background_failures"),
    ("estimate-num-keys", "approximate_len"),
    ("estimate-live-data-size", "live_bytes"),
    ("live-sst-files-size", "table_bytes"),
    ("total-sst-files-size", "table_bytes"),
    ("is-write-stopped", "is_stopped"),
    ("num-files-at-level0", "level0_runs"),
    ("num-snapshots", "snapshots"),
];

impl Stats {
    /// A figure by its name:
    ///
    /// * a field of [`Stats`] that is a number, such as `commits`;
    /// * `log.` and a field of [`LogStats`](crate::LogStats), such as `log.syncs`, and `transactions.` and a
    ///   field of [`TransactionStats`](crate::TransactionStats);
    /// * `families.NAME.` and a field of [`FamilyStats`], such as `families.default.tables`;
    /// * `rocksdb.` and RocksDB's name of a property of the default family, such as
    ///   `rocksdb.estimate-num-keys`, where there is something like it.
    ///
    /// `None` where there is no such figure.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<u64> {
        if let Some(alias) = name.strip_prefix("rocksdb.") {
            let (_, own) = ROCKSDB.iter().find(|(theirs, _)| *theirs == alias)?;
            let family = self.families.get(crate::DEFAULT_FAMILY)?;
            return find(family.figures(), own).or_else(|| self.property(own));
        }
        if let Some(of_family) = name.strip_prefix("families.") {
            // A family's name may have a dot.
            let (family, figure) = of_family.rsplit_once('.')?;
            return find(self.families.get(family)?.figures(), figure);
        }
        find(self.figures(), name)
    }

    /// Those of the store, with their names.
    fn figures(&self) -> Vec<(&'static str, u64)> {
        let mut figures = vec![
            ("visible", self.visible),
            ("durable", self.durable.unwrap_or(0)),
            ("commits", self.commits),
            ("commit_bytes", self.commit_bytes),
            ("apply_wait_ns", self.apply_wait_ns),
            ("background_pieces", self.background_pieces),
            ("memtable_bytes", self.memtable_bytes),
            ("max_memtable_bytes", self.max_memtable_bytes),
            ("snapshots", self.snapshots as u64),
            ("wal_size_flushes", self.wal_size_flushes),
            ("replayed_commits", self.replayed_commits),
            ("replayed_bytes", self.replayed_bytes),
            ("replay_ns", self.replay_ns),
            ("wal_bytes", self.wal_bytes),
            ("max_total_wal_size", self.max_total_wal_size),
            ("reserve_bytes", self.reserve_bytes),
            ("reserve_complete", u64::from(self.reserve_complete)),
            ("lost_events", self.lost_events),
            ("transactions.open", self.transactions.open as u64),
            ("transactions.begun", self.transactions.begun),
            ("transactions.committed", self.transactions.committed),
            ("transactions.conflicts", self.transactions.conflicts),
            ("transactions.deadlocks", self.transactions.deadlocks),
            ("transactions.lock_timeouts", self.transactions.lock_timeouts),
            ("transactions.lock_waits", self.transactions.lock_waits),
            ("transactions.lock_wait_ns", self.transactions.lock_wait_ns),
            ("transactions.lock_holders", self.transactions.lock_holders),
            ("transactions.locks_held_ns", self.transactions.locks_held_ns),
            ("transactions.locks", self.transactions.locks as u64),
        ];
        if let Some(log) = &self.log {
            figures.extend([
                ("log.durable", log.durable),
                ("log.written", log.written),
                ("log.boundary", log.boundary),
                ("log.appended", log.appended),
                ("log.oldest", log.oldest),
                ("log.frames", log.frames),
                ("log.frame_bytes", log.frame_bytes),
                ("log.filler_bytes", log.filler_bytes),
                ("log.bytes_written", log.bytes_written),
                ("log.syncs", log.syncs),
                ("log.refused", log.refused),
                ("log.segments", log.segments as u64),
                ("log.spare_segments", log.spare_segments as u64),
                ("log.segment_bytes", log.segment_bytes),
                ("log.archived_segments", log.archived_segments as u64),
                ("log.archived_bytes", log.archived_bytes),
                ("log.workers", log.workers as u64),
                ("log.ring_shared", u64::from(log.ring_shared)),
            ]);
        }
        figures
    }
}

impl FamilyStats {
    fn figures(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("id", u64::from(self.id)),
            ("active_bytes", self.active_bytes),
            ("sealed", self.sealed as u64),
            ("sealed_bytes", self.sealed_bytes),
            ("flushed", self.flushed),
            ("pinned_wal_bytes", self.pinned_wal_bytes),
            ("flushed_bytes", self.flushed_bytes),
            ("flush_ns", self.flush_ns),
            ("flush_failures", self.flush_failures),
            ("compactions", self.compactions),
            ("compaction_ns", self.compaction_ns),
            ("compaction_failures", self.compaction_failures),
            ("whole_merges", self.whole_merges),
            ("delays", self.delays),
            ("delay_ns", self.delay_ns),
            ("stops", self.stops),
            ("stop_ns", self.stop_ns),
            ("seal_ns", self.seal_ns),
            ("level0_runs", self.level0_runs as u64),
            ("approximate_len", self.approximate_len),
            ("tables", self.tables as u64),
            ("table_bytes", self.table_bytes),
            ("hidden_bytes", self.hidden_bytes),
            ("tombstones", self.tombstones),
            ("mem_bytes", self.active_bytes + self.sealed_bytes),
            ("flush_pending", u64::from(self.sealed > 0)),
            (
                "background_failures",
                self.flush_failures + self.compaction_failures,
            ),
            (
                "live_bytes",
                self.table_bytes - self.hidden_bytes.min(self.table_bytes),
            ),
            ("is_stopped", u64::from(self.stall == Stall::Stopped)),
        ]
    }
}

fn find(figures: Vec<(&'static str, u64)>, name: &str) -> Option<u64> {
    figures
        .into_iter()
        .find(|(of, _)| *of == name)
        .map(|(_, figure)| figure)
}

#[cfg(test)]
#[cfg(feature = "serde")]
mod tests {
    use super::*;
    use serde_json::Value;

    /// Every number that a serialized field has can be had by its name.
    #[test]
    fn no_figure_lacks_a_name() {
        let dir = tempfile::tempdir().unwrap();
        let db = crate::Db::open(dir.path(), crate::Options::default()).unwrap();
        db.create_family("with.dot", crate::FamilyOptions::default())
            .unwrap();
        db.put("k", "v").unwrap();
        let stats = db.stats();
        let mut names = Vec::new();
        let all = serde_json::to_value(&stats).unwrap();
        for (name, value) in all.as_object().unwrap() {
            match (name.as_str(), value) {
                ("families", Value::Object(families)) => {
                    for (family, figures) in families {
                        let figures = figures.as_object().unwrap().iter();
                        let numbers = figures.filter(|(_, value)| value.is_number());
                        names.extend(numbers.map(|(name, _)| format!("families.{family}.{name}")));
                    }
                }
                ("log" | "transactions", Value::Object(figures)) => {
                    let numbers = figures
                        .iter()
                        .filter(|(_, value)| value.is_number() || value.is_boolean());
                    names.extend(numbers.map(|(figure, _)| format!("{name}.{figure}")));
                }
                (_, value) if value.is_number() || value.is_boolean() => names.push(name.clone()),
                _ => {}
            }
        }
        assert!(names.len() > 80, "{names:?}");
        for name in names {
            assert!(stats.property(&name).is_some(), "{name}");
        }
        for (theirs, _) in ROCKSDB {
            assert!(stats.property(&format!("rocksdb.{theirs}")).is_some(), "{theirs}");
        }
        assert_eq!(
            stats.property("families.default.active_bytes"),
            Some(stats.families["default"].active_bytes)
        );
        assert_eq!(stats.property("rocksdb.estimate-num-keys"), Some(1));
        for unknown in [
            "",
            "commit",
            "families.default",
            "families.nowhere.tables",
            "rocksdb.",
            "log.",
        ] {
            assert_eq!(stats.property(unknown), None, "{unknown}");
        }
    }
}
