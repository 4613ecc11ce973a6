//! Tables go to the device in pieces, as the store's options say.

#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]

use collie_db::{Batch, Db, FamilyOptions, IoPolicy, Options, WriteOptions};

const MEGABYTES: u64 = 4;

/// Writes that many megabytes of other keys each time, and flushes them.
fn fill(db: &Db, round: u64) {
    for n in 0..MEGABYTES * 1000 {
        let key = (n * 100 + round).to_be_bytes();
        let mut batch = Batch::new();
        batch.put(&db.default_family(), key, [n as u8; 1000]).unwrap();
        db.write(batch, &WriteOptions::buffered()).unwrap();
    }
    db.flush().unwrap();
}

fn open(dir: &tempfile::TempDir, background_io: IoPolicy, default_family: FamilyOptions) -> Db {
    let options = Options {
        background_io,
        default_family,
        ..Options::default()
    };
    Db::open(dir.path(), options).unwrap()
}

#[test]
fn flushes_and_merges_write_in_pieces_that_take_turns() {
    for policy in [IoPolicy::Classes, IoPolicy::Fair] {
        let dir = tempfile::tempdir().unwrap();
        let db = open(&dir, policy, FamilyOptions::default());
        db.put("durable", "a sync, beside which pieces wait").unwrap();
        assert_eq!(db.stats().background_pieces, 0);
        for round in 0..2 {
            let before = db.stats().background_pieces;
            fill(&db, round);
            let pieces = db.stats().background_pieces - before;
            assert!(
                (MEGABYTES..=MEGABYTES * 4).contains(&pieces),
                "{policy:?}: {pieces}"
            );
        }
        let before = db.stats().background_pieces;
        db.compact().unwrap();
        let pieces = db.stats().background_pieces - before;
        let merged = 2 * MEGABYTES;
        assert!((merged..=merged * 4).contains(&pieces), "{policy:?}: {pieces}");
        assert_eq!(db.iter().unwrap().count() as u64, merged * 1000 + 1);
    }
}

#[test]
fn without_a_policy_a_table_is_written_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir, IoPolicy::None, FamilyOptions::default());
    fill(&db, 0);
    db.compact().unwrap();
    assert_eq!(db.stats().background_pieces, 0);
}

#[test]
fn no_piece_waits_where_writes_would() {
    let dir = tempfile::tempdir().unwrap();
    // Two memtables: where one waits to be flushed, the next full one stops all writes.
    let two = FamilyOptions {
        max_write_buffers: 2,
        ..FamilyOptions::default()
    };
    let db = open(&dir, IoPolicy::Classes, two);
    fill(&db, 0);
    assert_eq!(db.stats().background_pieces, 0);
}
