//! What a flush writes while the device is full.

use super::flush_crashes::{death, quiet_store};
use super::interleavings::put;
use crate::background::flush;
use crate::events::FlushCause;
use crate::{Db, Options, RingMode, WriteOptions};

fn options() -> Options {
    Options {
        ring: RingMode::Private,
        ring_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        reserve_bytes: Some(0),
        ..Options::default()
    }
}

/// A sealed memtable that does not fit as a table held the log for good, although all of its rows were
/// deleted since.
#[test]
fn rows_that_a_later_memtable_deletes_are_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let (db, family) = quiet_store(dir.path(), options());
    let (store, state) = (db.store(), family.state());
    let seal = || store.rotate(state, FlushCause::Manual, |_| true).unwrap();
    for n in 0..100 {
        put(&family, &format!("{n:03}"), &"v".repeat(8 << 10));
    }
    seal();
    for n in 0..99 {
        family
            .delete_with(format!("{n:03}"), &WriteOptions::buffered())
            .unwrap();
    }
    seal();
    put(&family, "099", "new");
    put(&family, "000", "again");
    seal();
    store.request_room();
    flush::flush_sealed(store, state).unwrap();
    let bytes = state.tables().content().bytes;
    assert!(bytes < 100 << 10, "{bytes} bytes of tables");
    assert!(state.view().sealed.is_empty());
    let image = death(&db);
    let reopened = Db::open(image.path(), options()).unwrap();
    for (db, what) in [(&db, "now"), (&reopened, "after a death")] {
        let family = db.family("orders").unwrap();
        let rows: Vec<_> = family.iter().unwrap().map(Result::unwrap).collect();
        let rows: Vec<_> = rows.iter().map(|(key, value)| (&key[..], &value[..])).collect();
        let expected: [(&[u8], &[u8]); 2] = [(b"000", b"again"), (b"099", b"new")];
        assert_eq!(rows, expected, "{what}");
    }
    reopened.close().unwrap();
}

/// One after the other they need no more room than the log lets go.
#[test]
fn memtables_without_deleted_rows_are_flushed_one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let (db, family) = quiet_store(dir.path(), options());
    let (store, state) = (db.store(), family.state());
    for n in 0..3 {
        put(&family, &n.to_string(), "v");
        store.rotate(state, FlushCause::Manual, |_| true).unwrap();
    }
    store.request_room();
    flush::flush_sealed(store, state).unwrap();
    assert_eq!(state.tables().table_count(), 3);
}
