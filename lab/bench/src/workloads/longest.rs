//! The longest write of a run, and where it was spent.
//!
//! The store adds up how long writes wait, by stage. What was added since the last long write is
//! this one's, but for what other threads waited meanwhile and for waits too short to count here.

use collie_db::Db;
use collie_io::Nanos;
use serde::Serialize;

/// Writes that take at least this long are looked into.
const LONG_NS: Nanos = 10_000_000;

/// What is reported where no stage has half of a long write: of one that waits for the device,
/// and of others.
const DEVICE: &str = "the wait for the device";
const NO_STAGE: &str = "nothing that the store counts";

/// The stages that a write can wait in, by their names, and how long each held writes up so far.
type Stages = [(&'static str, Nanos); 6];

/// A write that took long.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LongWrite {
    /// How long, in milliseconds.
    pub ms: f64,
    /// The stage that most of it was spent in. Where it was none that the store counts, memory was
    /// touched for the first time, or the processor was given to another thread.
    pub stage: &'static str,
    /// How much of it, in milliseconds.
    pub stage_ms: f64,
}

/// Looks for one thread's longest write.
pub(crate) struct Longest<'a> {
    db: &'a Db,
    otherwise: &'static str,
    before: Stages,
    longest: Option<LongWrite>,
}

impl<'a> Longest<'a> {
    /// Of writes that wait for the device, or do not.
    pub(crate) fn of(db: &'a Db, durable: bool) -> Self {
        Self {
            db,
            otherwise: if durable { DEVICE } else { NO_STAGE },
            before: stages(db),
            longest: None,
        }
    }

    /// A write took this long.
    pub(crate) fn see(&mut self, took: Nanos) {
        if took < LONG_NS {
            return;
        }
        let now = stages(self.db);
        let write = look_into(took, &self.before, &now, self.otherwise);
        self.before = now;
        self.longest = longer(self.longest, Some(write));
    }

    pub(crate) fn found(self) -> Option<LongWrite> {
        self.longest
    }
}

/// Where a write that took this long spent most of it.
fn look_into(took: Nanos, before: &Stages, now: &Stages, otherwise: &'static str) -> LongWrite {
    let spent = now
        .iter()
        .zip(before)
        .map(|((stage, after), (_, before))| (*stage, after.saturating_sub(*before).min(took)));
    let (stage, spent) = spent
        .max_by_key(|(_, spent)| *spent)
        .filter(|(_, spent)| *spent >= took / 2)
        .unwrap_or((otherwise, took));
    LongWrite {
        ms: took as f64 / 1e6,
        stage,
        stage_ms: spent as f64 / 1e6,
    }
}

/// The longer of two.
pub(crate) fn longer(one: Option<LongWrite>, other: Option<LongWrite>) -> Option<LongWrite> {
    [one, other]
        .into_iter()
        .flatten()
        .max_by(|a, b| a.ms.total_cmp(&b.ms))
}

fn stages(db: &Db) -> Stages {
    let stats = db.stats();
    let log = stats.log.as_ref().map(|log| log.stages).unwrap_or_default();
    let families = || stats.families.values();
    [
        ("room in the ring", log.room_ns.sum),
        ("space for the log", log.prepare_ns.sum),
        (
            "sealing a memtable",
            families().map(|family| family.seal_ns).sum(),
        ),
        (
            "delay, flushes or compaction lag",
            families().map(|family| family.delay_ns).sum(),
        ),
        (
            "stop, flushes or compaction lag",
            families().map(|family| family.stop_ns).sum(),
        ),
        ("earlier commits being applied", stats.apply_wait_ns),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_write_counts_and_short_ones_are_not_looked_into() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), collie_db::Options::default()).unwrap();
        let mut longest = Longest::of(&db, false);
        for took in [1, LONG_NS - 1, 3 * LONG_NS, 2 * LONG_NS] {
            longest.see(took);
        }
        let found = longest.found().unwrap();
        assert_eq!((found.ms, found.stage), (30.0, NO_STAGE));
        assert!(Longest::of(&db, false).found().is_none());
    }

    #[test]
    fn the_stage_that_has_half_of_a_write_is_named_with_its_part() {
        let before: Stages = ["a", "b", "c", "d", "e", "f"].map(|stage| (stage, 1_000_000));
        let mut now = before;
        now[1].1 += 3_000_000;
        now[3].1 += 9_000_000;
        let long = look_into(12_000_000, &before, &now, NO_STAGE);
        assert_eq!((long.ms, long.stage, long.stage_ms), (12.0, "d", 9.0));
        assert_eq!(look_into(19_000_000, &before, &now, DEVICE).stage, DEVICE);
        // Other threads waited there, too.
        now[3].1 += 90_000_000;
        assert_eq!(look_into(12_000_000, &before, &now, NO_STAGE).stage_ms, 12.0);
    }
}
