//! What a store with an external journal writes: its tables, and next to nothing else. Alone in its
//! process, whose write calls are counted.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![expect(clippy::disallowed_methods, reason = "the test reads what the kernel counts")]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use collie_db::{Batch, Db, ExternalJournal, FamilyOptions, Journal, Options};

/// Everything is durable.
#[derive(Debug, Default)]
struct Memory(AtomicU64);

impl ExternalJournal for Memory {
    fn durable(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    fn wait_durable(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes in write calls of this process so far.
fn written() -> u64 {
    let counted = std::fs::read_to_string("/proc/self/io").unwrap();
    let line = counted.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.unwrap().parse().unwrap()
}

#[test]
fn each_byte_is_written_once() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        journal: Journal::External(Arc::new(Memory::default())),
        default_family: FamilyOptions {
            write_buffer_bytes: 4 << 20,
            // No merge: it would write again.
            level0_compaction: 20,
            ..FamilyOptions::default()
        },
        ..Options::default()
    };
    let db = Db::open(dir.path(), options).unwrap();
    let before = written();
    let mut given = 0;
    for n in 0..16_u64 << 10 {
        let (key, value) = (n.to_be_bytes(), [n as u8; 1000]);
        given += (key.len() + value.len()) as u64;
        let mut batch = Batch::new();
        batch.put(&db.default_family(), key, value).unwrap();
        db.apply(&batch, (1 << 32) + (n << 16)).unwrap();
    }
    db.flush().unwrap();
    let written = written() - before;
    let tables: u64 = db.stats().families["default"].table_bytes;
    println!("{given} bytes were given, {tables} are in tables, {written} were written");
    assert!(
        tables >= given && tables * 100 <= given * 106,
        "{tables} of {given}"
    );
    assert!(
        written * 100 <= tables * 103,
        "{written} for {tables} bytes of tables"
    );
    let mut names: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["LOCK", "MANIFEST", "RESERVE", "families"]);
}
