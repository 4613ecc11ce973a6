//! What an external journal's store holds after a death of the process in the middle of a flush.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use collie_io::RealDevice;
use collie_sim::{Fault, FaultKind, SimDevice, SplitDevice};

use crate::background::compaction;
use crate::test::hold;
use crate::{Batch, Db, Error, ExternalJournal, Journal, Options};

const FIRST: u64 = 1 << 32;

/// All of it is durable.
#[derive(Debug, Default)]
struct Durable(AtomicU64);

impl ExternalJournal for Durable {
    fn durable(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    fn wait_durable(&self, seq: u64) -> std::io::Result<()> {
        self.0.fetch_max(seq, Ordering::Relaxed);
        Ok(())
    }
}

fn options() -> Options {
    Options {
        journal: Journal::External(Arc::new(Durable::default())),
        reserve_bytes: Some(0),
        ..Options::default()
    }
}

/// A store all of whose flushes and compactions are on the test's threads.
fn quiet(path: &std::path::Path, options: Options) -> Db {
    let db = Db::open(path, options).unwrap();
    db.store().queue().stop();
    while Arc::strong_count(db.store()) > 1 {
        std::thread::yield_now();
    }
    db
}

fn apply(db: &Db, seq: u64, key: &str, value: Option<&str>) {
    let mut batch = Batch::new();
    let family = db.default_family();
    match value {
        Some(value) => batch.put(&family, key, value).unwrap(),
        None => batch.delete(&family, key).unwrap(),
    }
    db.apply(&batch, seq).unwrap();
}

/// The last commit is a delete. A compaction that took its table before the manifest recorded it
/// would leave nothing of it, and the next opening would ask for it again.
#[test]
fn no_compaction_takes_tables_that_are_not_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let sim = SimDevice::new(1);
    let on = |sim: &SimDevice| Options {
        device: Arc::new(SplitDevice::new(
            path.join("families"),
            Arc::new(RealDevice::new()),
            Arc::new(sim.clone()),
        )),
        ..options()
    };
    let db = quiet(&path, on(&sim));
    let state = Arc::clone(db.default_family().state());
    apply(&db, FIRST, "a", Some("1"));
    apply(&db, FIRST + 1, "b", Some("1"));
    db.flush().unwrap();
    apply(&db, FIRST + 9, "b", None);
    sim.inject(Fault::new(FaultKind::NoSpace).on("MANIFEST"));
    assert!(matches!(db.flush(), Err(Error::StorageFull { .. })));
    assert!(state.tables().has_unrecorded());
    let version = state.tables().version();
    let merged = compaction::compact_all(db.store(), &state);
    assert!(matches!(merged, Err(Error::StorageFull { .. })), "{merged:?}");
    assert_eq!(state.tables().version(), version, "unrecorded tables are merged");
    let left = sim.snapshot().process_death().device();
    sim.kill();
    drop((db, state));
    let db = Db::open(&path, on(&left)).unwrap();
    assert_eq!(db.flushed(), FIRST + 9);
    assert_eq!(db.get("a").unwrap().unwrap(), "1");
    assert_eq!(db.get("b").unwrap(), None);
}

/// A compaction waits for the flush that is about to record what it has registered.
#[test]
fn a_compaction_waits_until_tables_are_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let db = quiet(dir.path(), options());
    let state = Arc::clone(db.default_family().state());
    for n in 0..3 {
        apply(&db, FIRST + n, "a", Some("1"));
        if n < 2 {
            db.flush().unwrap();
        }
    }
    let flushing = {
        let db = db.clone();
        // Its tables are registered, and not recorded.
        hold("level 0 is counted", move || db.flush()).at_point()
    };
    let merging = {
        let (store, state) = (Arc::clone(db.store()), Arc::clone(&state));
        std::thread::spawn(move || compaction::compact_all(&store, &state))
    };
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!merging.is_finished());
    assert_eq!(state.tables().table_count(), 3);
    flushing.finish().unwrap();
    merging.join().unwrap().unwrap();
    assert_eq!((state.tables().table_count(), db.flushed()), (1, FIRST + 2));
}

/// A store to adopt, with one key.
fn staged(dir: &std::path::Path, seq: u64) -> std::path::PathBuf {
    let db = quiet(&dir.join("other"), options());
    apply(&db, seq, "adopted", Some("1"));
    let staged = dir.join("staged");
    db.links(&staged).unwrap();
    db.close().unwrap();
    staged
}

#[test]
fn links_beside_an_adoption_are_of_the_old_content_or_the_new() {
    let dir = tempfile::tempdir().unwrap();
    let staged = staged(dir.path(), FIRST + 5);
    let db = quiet(&dir.path().join("store"), options());
    apply(&db, FIRST, "own", Some("1"));
    let linked = dir.path().join("linked");
    let linking = {
        let (db, linked) = (db.clone(), linked.clone());
        hold("what is to be linked is flushed", move || db.links(linked)).at_point()
    };
    assert_eq!(db.adopt(&staged).unwrap(), FIRST + 5);
    assert_eq!(linking.finish().unwrap(), FIRST + 5);
    let copy = Db::open(&linked, options()).unwrap();
    assert_eq!((copy.get("own").unwrap(), copy.flushed()), (None, FIRST + 5));
    assert_eq!(copy.get("adopted").unwrap().unwrap(), "1");
}

/// As where a family was dropped: its memory and tables, and with them the lock, were kept.
#[test]
fn handles_from_before_an_adoption_keep_no_closed_store_locked() {
    let dir = tempfile::tempdir().unwrap();
    let staged = staged(dir.path(), FIRST + 5);
    let path = dir.path().join("store");
    let db = quiet(&path, options());
    let family = db.default_family();
    let mut batch = Batch::new();
    batch.put(&family, "own", "1").unwrap();
    db.apply(&batch, FIRST).unwrap();
    db.adopt(&staged).unwrap();
    db.close().unwrap();
    let again = Db::open(&path, options()).unwrap();
    assert!(matches!(
        family.get("own"),
        Err(Error::Closed | Error::FamilyDropped { .. })
    ));
    drop((family, batch));
    assert_eq!(again.get("adopted").unwrap().unwrap(), "1");
}
