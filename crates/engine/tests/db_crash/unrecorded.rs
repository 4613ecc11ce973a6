//! A table that is registered, and that the manifest does not record: a crash came in between. The
//! next opening records it before anything else, so what its tombstones hide stays hidden, whatever
//! is merged then and however often the process dies.

#![expect(clippy::unwrap_used, reason = "a test's helpers end the test")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_db::{Batch, Db, Durability, Error, FamilyOptions, Options, RingMode, WriteOptions};
use collie_io::RealDevice;
use collie_sim::{Fault, FaultKind, Image, SimDevice, SplitDevice};

use crate::common;

/// Tables on the real device, all else on the simulated one.
fn options(path: &Path, sim: &SimDevice) -> Options {
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
        reserve_bytes: Some(0),
        ..Options::default()
    }
}

/// A store in whose first family the last flush was not recorded.
struct Left {
    path: PathBuf,
    tables: PathBuf,
    image: Image,
    _dir: tempfile::TempDir,
}

/// How the row was deleted before that flush.
#[derive(Debug, Clone, Copy)]
enum Delete {
    Logged,
    Unlogged,
}

fn left(delete: Delete) -> Left {
    let dir = common::fast_dir();
    let path = dir.path().join("db");
    let sim = SimDevice::new(3);
    let db = Db::open(&path, options(&path, &sim)).unwrap();
    let (first, second) = (
        db.default_family(),
        db.create_family("second", FamilyOptions::default()).unwrap(),
    );
    first.put("old", "v").unwrap();
    db.flush().unwrap();
    let mut both = Batch::new();
    both.put(&first, "both", "v").unwrap();
    both.put(&second, "both", "v").unwrap();
    db.write(both, &WriteOptions::disk()).unwrap();
    // Above all that a merge leaves of the tables.
    first.put("row", "v").unwrap();
    let delete = match delete {
        Delete::Logged => WriteOptions::disk(),
        Delete::Unlogged => WriteOptions::without_wal(),
    };
    first.delete_with("row", &delete).unwrap();
    sim.inject(Fault::new(FaultKind::NoSpace).on("MANIFEST"));
    let full = first.flush();
    assert!(matches!(full, Err(Error::StorageFull { .. })), "{full:?}");
    let image = sim.snapshot().process_death();
    sim.kill();
    drop((first, second, db));
    let tables = dir.path().join("tables");
    common::copy_dir(&path.join("families"), &tables);
    Left {
        path,
        tables,
        image,
        _dir: dir,
    }
}

impl Left {
    /// The tables as the first process left them.
    fn restore_tables(&self) {
        let families = self.path.join("families");
        std::fs::remove_dir_all(&families).unwrap();
        common::copy_dir(&self.tables, &families);
    }

    fn open(&self, sim: &SimDevice) -> Result<Db, Error> {
        Db::open(&self.path, options(&self.path, sim))
    }
}

/// What is there is what was: the row is deleted, and the commit in both families is whole.
fn check(db: &Db, when: &str) {
    let keys = |name: &str| -> Vec<String> {
        let family = db.family(name).unwrap();
        let entries = family.iter().unwrap().map(|entry| entry.unwrap().0);
        entries
            .map(|key| String::from_utf8(key.to_vec()).unwrap())
            .collect()
    };
    let found = (keys("default"), keys("second"));
    let expected = (vec!["both".to_owned(), "old".to_owned()], vec!["both".to_owned()]);
    assert_eq!(found, expected, "{when}");
}

/// The next process dies at each of its operations, while it opens the store and merges its tables;
/// the ones after it find the same content, and merge as well.
#[test]
fn a_deleted_row_stays_deleted_whenever_processes_die() {
    for delete in [Delete::Logged, Delete::Unlogged] {
        let left = left(delete);
        for n in 0.. {
            left.restore_tables();
            let sim = left.image.device();
            sim.inject(Fault::new(FaultKind::AnyFails).after(n));
            let opened = left.open(&sim);
            if let Ok(db) = &opened {
                // A failure is reported or comes again.
                drop(db.compact());
            }
            let died = sim.fired(FaultKind::AnyFails) > 0;
            let mut image = sim.snapshot().process_death();
            sim.kill();
            drop(opened);
            for again in 0..2 {
                let sim = image.device();
                let db = left.open(&sim).unwrap();
                let when = format!("{delete:?}, died at operation {n}, opened again: {again}");
                check(&db, &when);
                db.compact().unwrap();
                check(&db, &format!("{when}, and merged"));
                image = sim.snapshot().process_death();
                sim.kill();
                drop(db);
            }
            if !died {
                assert!(n > 20, "{n} operations");
                break;
            }
        }
    }
}
