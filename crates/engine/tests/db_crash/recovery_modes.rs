//! The modes of recovery, seen from a store: what a point in time means for several families.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_db::{Db, Durability, Error, FamilyOptions, Options, RingMode, WalRecoveryMode};
use collie_io::RealDevice;
use collie_log::{FIRST_LSN, LogError, Lsn};
use collie_sim::{Image, SimDevice, SplitDevice};

/// Where the frames of a segment begin.
const DATA: u64 = 8_192;

fn options(path: &Path, sim: &SimDevice, mode: WalRecoveryMode) -> Options {
    let tables = path.join("families");
    let device = SplitDevice::new(tables, Arc::new(RealDevice::new()), Arc::new(sim.clone()));
    Options {
        device: Arc::new(device),
        ring: RingMode::Private,
        ring_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        max_workers: 4,
        cache_bytes: 1 << 20,
        durability: Durability::Disk,
        wal_recovery_mode: mode,
        ..Options::default()
    }
}

/// Ten puts into each of two families, alternating; from where on each commit stands; what the dead
/// process left.
struct Left {
    _dir: tempfile::TempDir,
    path: PathBuf,
    starts: Vec<Lsn>,
    image: Image,
}

/// `before_the_end` is done to the store after the puts.
fn left(before_the_end: impl FnOnce(&Db)) -> Left {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let sim = SimDevice::new(3);
    let db = Db::open(&path, options(&path, &sim, WalRecoveryMode::default())).unwrap();
    let families = [
        db.default_family(),
        db.create_family("second", FamilyOptions::default()).unwrap(),
    ];
    let mut starts = vec![db.flush_wal(Durability::Disk).unwrap()];
    for n in 0..20 {
        starts.push(families[n % 2].put(format!("{n:02}"), [b'v'; 100]).unwrap());
    }
    before_the_end(&db);
    let image = sim.snapshot().process_death();
    sim.kill();
    drop((families, db));
    Left {
        _dir: dir,
        path,
        starts,
        image,
    }
}

impl Left {
    fn rot(&mut self, commit: usize) {
        let segment = self.path.join("log/0000000000000001.seg");
        // In the frame's payload, which follows 32 bytes of header.
        let byte = DATA + self.starts[commit] - FIRST_LSN + 34;
        assert!(self.image.flip_bit(&segment, byte * 8));
    }

    fn open(&self, mode: WalRecoveryMode) -> Result<Db, Error> {
        Db::open(&self.path, options(&self.path, &self.image.device(), mode))
    }
}

/// The keys of all families.
fn keys(db: &Db) -> Vec<String> {
    let mut keys = Vec::new();
    for name in db.families() {
        for entry in db.family(&name).unwrap().iter().unwrap() {
            keys.push(String::from_utf8(entry.unwrap().0.to_vec()).unwrap());
        }
    }
    keys.sort();
    keys
}

fn expected(commits: usize) -> Vec<String> {
    (0..commits).map(|n| format!("{n:02}")).collect()
}

#[test]
fn a_point_in_time_is_the_same_for_all_families() {
    let mut left = left(|_| ());
    left.rot(13);
    let refused = left.open(WalRecoveryMode::default()).unwrap_err();
    assert!(
        matches!(refused, Error::Log(LogError::Corrupt { .. })),
        "{refused:?}"
    );
    let db = left.open(WalRecoveryMode::PointInTimeRecovery).unwrap();
    assert_eq!(keys(&db), expected(13));
    let cut = db.recovery().unwrap().truncated.as_ref().unwrap();
    assert_eq!(cut.lsn, left.starts[13]);
    db.put("more", "v").unwrap();
}

/// One family was flushed after the damage: its tables hold commits of a later time than the point
/// that the other one could go back to.
#[test]
fn there_is_no_point_in_time_before_a_flush() {
    let mut left = left(|db| db.default_family().flush().unwrap());
    left.rot(13);
    let refused = left.open(WalRecoveryMode::PointInTimeRecovery).unwrap_err();
    assert!(refused.to_string().contains("tables"), "{refused}");
}

#[test]
fn damage_behind_all_flushes_loses_what_followed_it_alone() {
    let mut ends = Vec::new();
    let mut left = left(|db| {
        db.flush().unwrap();
        ends.push(db.visible());
        for n in 20..25 {
            ends.push(db.put(format!("{n:02}"), "v").unwrap());
        }
    });
    left.starts = ends;
    left.rot(2);
    let db = left.open(WalRecoveryMode::PointInTimeRecovery).unwrap();
    assert_eq!(keys(&db), expected(22));
}

#[test]
fn an_unclean_end_is_refused_with_absolute_consistency_alone() {
    let mut left = left(|_| ());
    left.rot(19);
    let refused = left.open(WalRecoveryMode::AbsoluteConsistency).unwrap_err();
    assert!(
        matches!(refused, Error::Log(LogError::Corrupt { .. })),
        "{refused:?}"
    );
    let db = left.open(WalRecoveryMode::default()).unwrap();
    assert_eq!(keys(&db), expected(19));
}
