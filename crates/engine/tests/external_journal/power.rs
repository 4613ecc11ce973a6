//! Power cuts while links are made and adopted, on a file system that forgets what was not synced,
//! the table library's files included. It needs `/dev/fuse` and the right to mount; where they are
//! missing the test says so and passes, unless `COLLIE_REQUIRE_TOOLS` is set.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::Path;
use std::sync::Arc;

use collie_db::Db;
use collie_sim::faultfs::{self, FaultFs, Names};
use collie_sim::{Fault, FaultKind, PowerCut};

use crate::journal::{FIRST, Map, TestJournal, content, open, put};

/// Every operation by default up to here, and then every so many.
const EACH: u64 = 30;
const STEP: u64 = 5;

fn fill(db: &Db, journal: &TestJournal, from: u64, name: &str) {
    for n in 0..60 {
        let writes = put(&format!("{name}/{:02}", n % 40), &name.repeat(300));
        journal.apply(db, from + n, writes).unwrap();
        if n % 25 == 24 {
            db.flush().unwrap();
        }
    }
}

fn read_all(path: &Path, journal: &Arc<TestJournal>, what: &str) -> (u64, Map) {
    let db = crate::journal::try_open(path, journal).unwrap_or_else(|e| panic!("{what}: {e}"));
    (db.flushed(), content(&db))
}

/// All operations fail from the `after`th of `adopt` on, and then the power is cut. Returns whether
/// one failed.
fn strike(after: u64) -> bool {
    let mount = tempfile::tempdir().unwrap();
    let mut fs = FaultFs::mount(mount.path(), Names::Posix, after).unwrap();
    let dir = fs.path().to_owned();
    let (new, old) = (Arc::new(TestJournal::default()), Arc::new(TestJournal::default()));
    let (source, staged, path) = (dir.join("source"), dir.join("staged"), dir.join("store"));
    let db = open(&source, &new);
    fill(&db, &new, FIRST + 1000, "new");
    let flushed = db.links(&staged).unwrap();
    db.close().unwrap();
    let after_adoption = (flushed, new.map_at(flushed));
    let db = open(&path, &old);
    fill(&db, &old, FIRST, "old");
    db.flush().unwrap();
    let before = (old.last(), old.map_at(old.last()));
    fs.inject(Fault::new(FaultKind::AnyFails).on("/store/").after(after))
        .unwrap();
    let adopted = db.adopt(&staged);
    let struck = fs.fault_counts().values().sum::<u64>() > 0;
    drop(db);
    fs.heal().unwrap();
    let (_, way) = PowerCut::WAYS[after as usize % PowerCut::WAYS.len()];
    fs.power_cycle(way, after).unwrap();
    let what = format!("operation {after}, power cut");
    let found = read_all(&path, &old, &what);
    match adopted {
        Ok(_) => assert!(found == after_adoption, "{what}: it was adopted"),
        Err(_) => assert!(found == before || found == after_adoption, "{what}: a mix"),
    }
    // Its files are those that were linked from it.
    assert!(read_all(&staged, &new, &what) == after_adoption, "{what}: staged");
    struck
}

#[test]
fn a_power_cut_leaves_the_old_content_or_the_new() {
    if let Err(missing) = faultfs::available() {
        assert!(std::env::var_os("COLLIE_REQUIRE_TOOLS").is_none(), "{missing}");
        println!("skipped: {missing}");
        return;
    }
    let (mut after, mut struck) = (0, 0);
    while strike(after) {
        struck += 1;
        after += if after < EACH { 1 } else { STEP };
    }
    assert!(struck > 10, "{struck} operations failed");
}
