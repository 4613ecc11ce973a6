//! The log has lost its end, below what the tables of one family hold. Tables are made of what was
//! durable, so that is damage, although nothing in the log proves it: an opening that went on would
//! have the half of each commit that is in those tables, and not the other family's.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests break files behind the store's back"
)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use collie_db::{Batch, Db, Durability, Error, FamilyOptions, Options, WalRecoveryMode};
use collie_io::{Device, RealDevice};
use collie_log::{FIRST_LSN, LogError, Lsn, inspect};

use crate::common;

/// Where the frames of a segment begin.
const DATA: u64 = 8_192;
const MODES: [WalRecoveryMode; 3] = [
    WalRecoveryMode::TolerateCorruptedTailRecords,
    WalRecoveryMode::AbsoluteConsistency,
    WalRecoveryMode::PointInTimeRecovery,
];
/// Commits before one family is flushed, and in all.
const FLUSHED: usize = 20;
const ALL: usize = 26;

fn options(mode: WalRecoveryMode) -> Options {
    Options {
        durability: Durability::Disk,
        wal_recovery_mode: mode,
        ..common::small()
    }
}

/// What a dead process left: commits that each put one key into two families, of which the first was
/// flushed.
struct Left {
    dir: tempfile::TempDir,
    /// Where each commit begins.
    starts: Vec<Lsn>,
}

/// What the process did last before, or in, the flush.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Nothing,
    /// A write that was kept out of the log.
    Unlogged,
    /// It died before the manifest recorded the flush.
    Unrecorded,
}

fn left(last: Last) -> Left {
    let (dir, image) = (common::fast_dir(), common::fast_dir());
    let db = Db::open(dir.path(), options(WalRecoveryMode::default())).unwrap();
    let second = db.create_family("second", FamilyOptions::default()).unwrap();
    let mut starts = Vec::new();
    for n in 0..ALL {
        if n == FLUSHED {
            if last == Last::Unlogged {
                let without = collie_db::WriteOptions::without_wal();
                db.default_family().put_with("~", "", &without).unwrap();
            }
            let manifest = dir.path().join("MANIFEST");
            let before = std::fs::read(&manifest).unwrap();
            db.default_family().flush().unwrap();
            if last == Last::Unrecorded {
                std::fs::write(image.path().join("MANIFEST"), before).unwrap();
            }
        }
        starts.push(db.visible());
        let mut batch = Batch::new();
        for family in [&db.default_family(), &second] {
            batch.put(family, format!("{n:02}"), [b'v'; 100]).unwrap();
        }
        db.write(batch, &collie_db::WriteOptions::disk()).unwrap();
    }
    // A killed process's log, and the tables of one that does not merge meanwhile.
    let parts = |part: &str| (dir.path().join(part), image.path().join(part));
    let (log, log_image) = parts("log");
    common::copy_dir(&log, &log_image);
    let (manifest, manifest_image) = parts("MANIFEST");
    if last != Last::Unrecorded {
        std::fs::copy(manifest, manifest_image).unwrap();
    }
    drop((second, db));
    let (tables, tables_image) = parts("families");
    common::copy_dir(&tables, &tables_image);
    Left { dir: image, starts }
}

/// Each commit that is there, by the families that have it.
fn commits(db: &Db) -> Vec<usize> {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for name in db.families() {
        for entry in db.family(&name).unwrap().iter().unwrap() {
            let key = String::from_utf8(entry.unwrap().0.to_vec()).unwrap();
            *found.entry(key).or_default() += 1;
        }
    }
    found.into_values().collect()
}

impl Left {
    fn segment(&self) -> PathBuf {
        self.dir.path().join("log/0000000000000001.seg")
    }

    fn log(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let entries = std::fs::read_dir(self.dir.path().join("log")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = paths.filter(|path| !path.ends_with("LOCK")).collect();
        files.sort();
        files
            .into_iter()
            .map(|path| (path.clone(), std::fs::read(path).unwrap()))
            .collect()
    }

    /// The byte of the log's file at which a commit begins.
    fn byte(&self, commit: usize) -> u64 {
        DATA + self.starts[commit] - FIRST_LSN
    }

    fn zero_from(&self, byte: u64) {
        let mut bytes = std::fs::read(self.segment()).unwrap();
        bytes[byte as usize..].fill(0);
        std::fs::write(self.segment(), bytes).unwrap();
    }

    fn cut_at(&self, byte: u64) {
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(self.segment())
            .unwrap();
        file.set_len(byte).unwrap();
    }

    /// Damages a commit, with which the log is proven to have been durable, and has it repaired.
    fn repair_at(&self, byte: u64) {
        let mut bytes = std::fs::read(self.segment()).unwrap();
        bytes[byte as usize + 40] ^= 1;
        std::fs::write(self.segment(), bytes).unwrap();
        let device: Arc<dyn Device> = Arc::new(RealDevice::new());
        inspect::repair(&device, &self.dir.path().join("log")).unwrap();
    }

    /// Every opening is refused at this commit, and changes nothing.
    fn is_refused_at(&self, commit: usize, how: &str) {
        let before = self.log();
        for mode in MODES.into_iter().chain(MODES) {
            let refused = Db::open(self.dir.path(), options(mode));
            let Err(Error::Log(LogError::Corrupt {
                path, offset, lsn, ..
            })) = refused
            else {
                let found = refused.map(|db| commits(&db));
                panic!("{how} at commit {commit}, {mode:?}: {found:?}");
            };
            let place = (self.segment(), self.byte(commit), self.starts[commit]);
            assert_eq!((path, offset, lsn), place, "{how}, {mode:?}");
            assert!(self.log() == before, "{how}, {mode:?}: the log was changed");
        }
    }
}

#[test]
fn an_end_lost_below_a_flushed_family_is_refused_in_all_modes() {
    for commit in [1, FLUSHED / 2, FLUSHED - 1] {
        let it = left(Last::Nothing);
        it.zero_from(it.byte(commit));
        it.is_refused_at(commit, "zeroed");
        let it = left(Last::Nothing);
        it.cut_at(it.byte(commit));
        it.is_refused_at(commit, "cut");
        let it = left(Last::Nothing);
        it.repair_at(it.byte(commit));
        it.is_refused_at(commit, "repaired");
    }
}

/// The same where the flushed tables end with a write that is in no log.
#[test]
fn an_end_lost_below_an_unlogged_write_is_refused() {
    let it = left(Last::Unlogged);
    it.zero_from(it.byte(FLUSHED - 1));
    it.is_refused_at(FLUSHED - 1, "zeroed");
}

/// The manifest does not say how far the tables go, and they do.
#[test]
fn an_end_lost_below_tables_that_are_not_recorded_is_refused() {
    let it = left(Last::Unrecorded);
    it.zero_from(it.byte(FLUSHED / 2));
    it.is_refused_at(FLUSHED / 2, "zeroed");
    let it = left(Last::Unrecorded);
    let db = Db::open(it.dir.path(), options(WalRecoveryMode::default())).unwrap();
    assert_eq!(commits(&db), vec![2; ALL]);
}

/// Behind all flushes an end that is lost cannot be told from a crash, and is one for all families.
#[test]
fn an_end_lost_behind_all_flushes_is_the_same_for_all_families() {
    for commit in [FLUSHED, FLUSHED + 1, ALL - 1] {
        let it = left(Last::Nothing);
        it.zero_from(it.byte(commit));
        let db = Db::open(it.dir.path(), options(WalRecoveryMode::default())).unwrap();
        assert_eq!(commits(&db), vec![2; commit]);
    }
}
