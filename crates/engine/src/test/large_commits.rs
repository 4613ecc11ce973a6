//! Large commits and crashes: at every operation of the device the process dies or the power is cut,
//! and the next opening finds all of such a commit or nothing, and all of it once it was
//! acknowledged. The tables are in a real directory; where images are taken nothing is flushed.

#![expect(
    clippy::disallowed_methods,
    reason = "tests put the table directory back between images"
)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use collie_io::RealDevice;
use collie_sim::{FaultKind, Image, Points, PowerCut, SimDevice, SplitDevice};
use parking_lot::Mutex;

use crate::background::flush;
use crate::background::flush::{Flush, record};
use crate::test::{Rng, hold};
use crate::write::large::Prepared;
use crate::{Batch, Db, Error, Family, FamilyOptions, Options, ReadOptions, RingMode, WriteOptions};

const RING: usize = 16 << 10;
/// Keys of a large commit in each of its two families.
const KEYS: u64 = 60;

fn options(path: &Path, device: &SimDevice) -> Options {
    Options {
        device: Arc::new(SplitDevice::new(
            path.join("families"),
            Arc::new(RealDevice::new()),
            Arc::new(device.clone()),
        )),
        ring: RingMode::Private,
        ring_bytes: RING,
        segment_bytes: 64 << 10,
        reserve_bytes: Some(0),
        ..Options::default()
    }
}

/// A store with a second family, whose flushes are all on the test's own threads.
fn quiet_store(path: &Path, device: &SimDevice) -> (Db, [Family; 2]) {
    quiet_store_with(path, options(path, device))
}

fn quiet_store_with(path: &Path, options: Options) -> (Db, [Family; 2]) {
    let db = Db::open(path, options).unwrap();
    db.store().queue().stop();
    while Arc::strong_count(db.store()) > 1 {
        std::thread::yield_now();
    }
    let second = db.create_family("second", FamilyOptions::default()).unwrap();
    let families = [db.default_family(), second];
    (db, families)
}

/// Commit `n` of one of two writers.
fn batch(families: &[Family; 2], writer: u64, n: u64) -> Batch {
    let mut batch = Batch::new();
    for family in families {
        for key in 0..KEYS {
            // Not zeros: the simulated device takes a synced sector of them for one that was never written.
            let value = [&n.to_le_bytes()[..], &[writer as u8 + 1; 700]].concat();
            batch.put(family, format!("{writer}/{key:03}"), value).unwrap();
        }
    }
    assert!(batch.size_bytes() > 4 * RING);
    batch
}

/// Which commit of a writer is there: all of it.
fn found(families: &[Family; 2], writer: u64, context: &str) -> u64 {
    let mut all = Vec::new();
    for family in families {
        let entries = family.prefix(format!("{writer}/")).unwrap().map(|e| e.unwrap().1);
        let numbers: Vec<u64> = entries
            .map(|value| u64::from_le_bytes(value[..8].try_into().unwrap()))
            .collect();
        assert!(
            numbers.len() as u64 == KEYS || numbers.is_empty(),
            "{context}: {} keys of writer {writer}",
            numbers.len()
        );
        all.push(numbers.first().copied().unwrap_or(0));
        assert!(
            numbers.windows(2).all(|two| two[0] == two[1]),
            "{context}: two commits of writer {writer} are mixed"
        );
    }
    assert_eq!(all[0], all[1], "{context}: a part of a commit of writer {writer}");
    all[0]
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// Opens an image with these tables.
fn open(path: &Path, tables: &Path, image: &Image, context: &str) -> (Db, [Family; 2]) {
    if path.exists() {
        std::fs::remove_dir_all(path).unwrap();
    }
    copy(tables, &path.join("families"));
    let db = Db::open(path, options(path, &image.device())).unwrap_or_else(|e| panic!("{context}: {e}"));
    let second = db
        .family("second")
        .unwrap_or_else(|| panic!("{context}: a family is gone"));
    let families = [db.default_family(), second];
    (db, families)
}

/// Two threads make three large commits each, and small ones in between.
#[test]
fn every_crash_leaves_large_commits_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let device = SimDevice::new(5);
    let (db, families) = quiet_store(&path, &device);
    let tables = dir.path().join("tables");
    copy(&path.join("families"), &tables);
    let acknowledged = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let tag = Arc::clone(&acknowledged);
    // SeqCst, as all of these: what is noted here was acknowledged before the image.
    device.tag_snapshots(move || tag[0].load(Ordering::SeqCst) << 32 | tag[1].load(Ordering::SeqCst));
    // A choice of the some hundreds that there are; COLLIE_RUNS=1000 takes all.
    let most = std::env::var("COLLIE_RUNS")
        .ok()
        .and_then(|runs| runs.parse().ok());
    device.record(Points::Changes, most.unwrap_or(40));
    // Whole, and not acknowledged yet.
    let between = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (db, families, acknowledged) = (&db, &families, &acknowledged);
            let (device, between) = (&device, &between);
            scope.spawn(move || {
                for n in 1..=3 {
                    // Not `Db::write`, which may wait for flushes, and nothing is flushed here.
                    let batch = batch(families, writer, n);
                    let large = Prepared::new(db.store(), &batch, false).unwrap();
                    let appender = db.store().appender(true).unwrap().unwrap();
                    let at = large.finish(appender).unwrap();
                    db.wait(at.end, crate::Durability::Disk).unwrap();
                    between.lock().push(device.snapshot());
                    acknowledged[writer as usize].store(n, Ordering::SeqCst);
                    db.put(format!("small/{writer}"), n.to_le_bytes()).unwrap();
                }
            });
        }
    });
    let mut snapshots = device.take_snapshots();
    snapshots.append(&mut between.into_inner());
    device.kill();
    drop((families, db));
    let mut rng = Rng::new(5);
    let (mut whole, mut none) = (0, 0);
    for snapshot in &snapshots {
        let least = [snapshot.tag() >> 32, snapshot.tag() & 0xffff_ffff];
        let (name, cut) = PowerCut::WAYS[rng.below(PowerCut::WAYS.len() as u64) as usize];
        let images = [
            ("process death", snapshot.process_death()),
            (name, snapshot.power_cut(cut, rng.next())),
        ];
        for (name, image) in images {
            let context = format!("operation {}, {name}", snapshot.op());
            let (db, families) = open(&path, &tables, &image, &context);
            for writer in 0..2 {
                let there = found(&families, writer, &context);
                assert!(
                    (least[writer as usize]..=least[writer as usize] + 1).contains(&there),
                    "{context}: commit {there} of writer {writer}, {least:?} were acknowledged"
                );
                match there == least[writer as usize] {
                    true => none += 1,
                    false => whole += 1,
                }
            }
            drop(families);
            db.close().unwrap();
        }
    }
    assert!(
        snapshots.len() > 30 && whole >= 12 && none > 50,
        "{} images, {whole}, {none}",
        snapshots.len()
    );
}

/// One family is flushed past the commit, the log is as short as may be, and the process dies: the
/// other family has all of the commit, however often the store is opened.
#[test]
fn the_log_keeps_the_parts_until_every_family_is_flushed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let device = SimDevice::new(6);
    let (db, families) = quiet_store(&path, &device);
    let write = |db: &Db, families: &[Family; 2], n| {
        let before = db.store().sequencer().appended();
        // The parts lie in segments of their own.
        let padding = vec![0; 7 << 10];
        let pad = |end: u64| while db.put("padding", &padding).unwrap() < end {};
        pad(before + (128 << 10));
        let mut large = batch(families, 0, n);
        large.put(&families[0], "huge", vec![0; 200 << 10]).unwrap();
        db.write(large, &WriteOptions::disk()).unwrap();
    };
    write(&db, &families, 1);
    let store = db.store();
    let second = families[1].state();
    flush::flush_sealed(store, families[0].state()).unwrap();
    // The second family is flushed up to the commit, and not the commit itself: nobody else retains
    // the parts, and recovery reads from behind them.
    let mut flush = Flush::of(store, second);
    let sealed = second.view().sealed[0].clone();
    let written = flush.write(&[sealed]).unwrap();
    flush.register(written).unwrap();
    record(store, std::slice::from_mut(&mut flush)).unwrap();
    drop(flush);
    db.flush_wal(crate::Durability::Disk).unwrap();
    let pinned = db.stats().log.unwrap().holders;
    assert!(
        pinned.iter().any(|(name, _)| name == "large-commit/0"),
        "{pinned:?}"
    );
    let tables = dir.path().join("tables");
    copy(&path.join("families"), &tables);
    let image = device.snapshot().process_death();
    assert!(second.view().large_bytes() > 0);
    device.kill();
    drop((families, db));
    let (db, families) = open(&path, &tables, &image, "first opening");
    assert_eq!(found(&families, 0, "first opening"), 1);
    assert!(
        db.stats().replayed_bytes > 200 << 10,
        "{:?}",
        db.stats().replayed_bytes
    );
    db.flush().unwrap();
    let pinned = db.stats().log.unwrap().holders;
    assert!(
        !pinned.iter().any(|(name, _)| name.starts_with("large-commit")),
        "{pinned:?}"
    );
    write(&db, &families, 2);
    assert_eq!(found(&families, 0, "second commit"), 2);
}

/// The last frame says that there are more parts than the log has.
#[test]
fn a_part_that_is_missing_is_damage_with_its_place() {
    for (parts, bytes) in [(1, 0), (0, 1)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let device = SimDevice::new(7);
        let (db, families) = quiet_store(&path, &device);
        db.put("before", "v").unwrap();
        let batch = batch(&families, 0, 1);
        let mut large = Prepared::new(db.store(), &batch, false).unwrap();
        large.claim_more(parts, bytes);
        let at = large.finish(db.store().appender(true).unwrap().unwrap()).unwrap();
        db.flush_wal(crate::Durability::Disk).unwrap();
        let tables = dir.path().join("tables");
        copy(&path.join("families"), &tables);
        let image = device.snapshot().process_death();
        device.kill();
        drop((families, db));
        std::fs::remove_dir_all(&path).unwrap();
        copy(&tables, &path.join("families"));
        let refused = Db::open(&path, options(&path, &image.device())).unwrap_err();
        let Error::Corrupt {
            offset,
            expected,
            found,
            ..
        } = &refused
        else {
            panic!("{refused}");
        };
        assert_eq!(*offset, at.start);
        assert!(
            expected.contains("parts of") && found.contains("parts of"),
            "{refused}"
        );
    }
}

/// A part is refused: nothing of the commit is there, and the log is released.
#[test]
fn a_commit_that_finds_no_room_for_a_part_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let device = SimDevice::new(8);
    let (db, families) = quiet_store(&path, &device);
    device.limit_space(Some(0));
    let mut large = batch(&families, 0, 1);
    large.put(&families[0], "huge", vec![0; 400 << 10]).unwrap();
    let refused = db.write(large, &WriteOptions::disk()).unwrap_err();
    assert!(matches!(refused, Error::StorageFull { .. }), "{refused}");
    assert!(device.fired(FaultKind::NoSpace) > 0);
    device.limit_space(None);
    assert_eq!(found(&families, 0, "after the refusal"), 0);
    let pinned = db.stats().log.unwrap().holders;
    assert!(
        !pinned.iter().any(|(name, _)| name.starts_with("large-commit")),
        "{pinned:?}"
    );
    let image = device.snapshot().process_death();
    let tables = dir.path().join("tables");
    copy(&path.join("families"), &tables);
    drop((families, db));
    let (db, families) = open(&path, &tables, &image, "opening");
    assert_eq!(found(&families, 0, "opening"), 0);
    db.write(batch(&families, 0, 2), &WriteOptions::disk()).unwrap();
    assert_eq!(found(&families, 0, "later commit"), 2);
}

/// Writers of the families go on while a large commit is linked, and none of their commits lands in
/// the wrong memtable.
#[test]
fn a_commit_that_comes_behind_the_last_frame_waits_for_links() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let device = SimDevice::new(9);
    let (db, families) = quiet_store(&path, &device);
    let linking = {
        let (db, families) = (db.clone(), families.clone());
        hold("appended", move || {
            let batch = batch(&families, 0, 1);
            let large = Prepared::new(db.store(), &batch, true).unwrap();
            let appender = db.store().appender(true).unwrap().unwrap();
            large.finish(appender).unwrap()
        })
        .at_point()
    };
    let snapshot = db.snapshot();
    let behind = {
        let family = families[1].clone();
        hold("waits for a rotation", move || {
            family
                .put_with("0/000", 9_u64.to_le_bytes(), &WriteOptions::buffered())
                .unwrap()
        })
        .at_point()
    };
    assert_eq!(found(&families, 0, "not linked yet"), 0);
    let at = linking.finish();
    let end = behind.finish();
    assert!(end > at.end);
    assert_eq!(&*families[1].get("0/000").unwrap().unwrap(), &9_u64.to_le_bytes());
    assert_eq!(snapshot.iter(&families[0]).unwrap().count(), 0);
    assert_eq!(families[0].iter().unwrap().count() as u64, KEYS);
}

/// A read at the durable boundary has the newest views, and does not show what lies beyond it.
#[test]
fn a_large_commit_that_is_not_durable_is_not_read_as_durable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let device = SimDevice::new(10);
    let options = Options {
        manual_wal_flush: true,
        ..options(&path, &device)
    };
    let (db, families) = quiet_store_with(&path, options);
    let batch = batch(&families, 0, 1);
    let large = Prepared::new(db.store(), &batch, false).unwrap();
    let at = large.finish(db.store().appender(true).unwrap().unwrap()).unwrap();
    let there = |durable| {
        let read = families[1].get_with("0/000", &ReadOptions { durable }).unwrap();
        read.value.is_some()
    };
    assert!(db.durable() <= at.start);
    assert_eq!((there(false), there(true)), (true, false));
    db.flush_wal(crate::Durability::Disk).unwrap();
    assert!(there(true));
}

/// Writes commit `n` on a thread of its own. Returns when that is done, or waits.
fn write_until_it_waits(
    db: &Db,
    families: &[Family; 2],
    n: u64,
) -> std::thread::JoinHandle<crate::Result<u64>> {
    let stops = |families: &[Family; 2]| -> u64 {
        let of = |family: &Family| family.state().counters().stops.get();
        families.iter().map(of).sum()
    };
    let before = stops(families);
    let (writing, batch) = (db.clone(), batch(families, 0, n));
    let writer = std::thread::spawn(move || writing.write(batch, &WriteOptions::disk()));
    while !writer.is_finished() && stops(families) == before {
        std::thread::yield_now();
    }
    writer
}

fn has_returned(writer: std::thread::JoinHandle<crate::Result<u64>>) -> bool {
    let has_returned = writer.is_finished();
    if has_returned {
        writer.join().unwrap().unwrap();
    }
    has_returned
}

/// The flush of a family, which is on the caller's thread here.
fn flush(db: &Db, family: &Family) {
    flush::flush_sealed(db.store(), family.state()).unwrap();
}

/// Each waited for as many flushes as it had families, although it took little in each.
#[test]
fn large_commits_that_take_little_wait_for_too_many_families() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let device = SimDevice::new(11);
    let (db, families) = quiet_store(&path, &device);
    let most = FamilyOptions::default().max_write_buffers as u64;
    for n in 1..=most {
        db.put("small", n.to_le_bytes()).unwrap();
        assert!(
            has_returned(write_until_it_waits(&db, &families, n)),
            "commit {n}"
        );
    }
    assert_eq!(found(&families, 0, "not flushed"), most);
    let state = families[0].state();
    // Those that were sealed early, with one small entry each, are no reason to stall.
    assert!(state.view().buffers(&state.options()) <= 2);
    assert_eq!(state.view().mems().count() as u64, 1 + 2 * most);
    assert_eq!(state.stall(), crate::Stall::None);
    let waiting = write_until_it_waits(&db, &families, most + 1);
    assert!(!waiting.is_finished(), "reads look through all of them");
    assert_eq!(found(&families, 0, "waiting"), most);
    flush(&db, &families[0]);
    assert!(!waiting.is_finished(), "the other family has as many");
    flush(&db, &families[1]);
    waiting.join().unwrap().unwrap();
    assert_eq!(found(&families, 0, "flushed"), most + 1);
}

#[test]
fn a_large_commit_waits_while_earlier_ones_take_the_memory() {
    // 43 KiB in each family.
    for (of_family, of_all, at_once) in [
        (80 << 10, 1 << 30, 2),
        (64 << 20, 150 << 10, 2),
        (4 << 10, 1 << 30, 1),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let device = SimDevice::new(12);
        let options = Options {
            max_memtable_bytes: Some(of_all),
            default_family: FamilyOptions {
                write_buffer_bytes: of_family,
                ..FamilyOptions::default()
            },
            ..options(&path, &device)
        };
        let (db, families) = quiet_store_with(&path, options);
        for n in 1..=at_once {
            assert!(
                has_returned(write_until_it_waits(&db, &families, n)),
                "commit {n}"
            );
        }
        let waiting = write_until_it_waits(&db, &families, at_once + 1);
        assert!(!waiting.is_finished(), "{of_family} of {of_all}");
        // Small ones go on.
        db.put("small", "v").unwrap();
        families.iter().for_each(|family| flush(&db, family));
        waiting.join().unwrap().unwrap();
        assert_eq!(found(&families, 0, "flushed"), at_once + 1);
    }
}

/// More of them than may be in memory at once, none of which is flushed when the process dies.
#[test]
fn replay_of_more_large_commits_than_memory_is_for_flushes_some() {
    const COMMITS: u64 = 11;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let device = SimDevice::new(13);
    let (db, families) = quiet_store(&path, &device);
    let tables = dir.path().join("tables");
    copy(&path.join("families"), &tables);
    for n in 1..=COMMITS {
        let large = Prepared::new(db.store(), &batch(&families, 0, n), false).unwrap();
        large.finish(db.store().appender(true).unwrap().unwrap()).unwrap();
    }
    db.flush_wal(crate::Durability::Disk).unwrap();
    let image = device.snapshot().process_death();
    device.kill();
    drop((families, db));
    let (db, families) = open(&path, &tables, &image, "opening");
    assert_eq!(found(&families, 0, "opening"), COMMITS);
    assert_eq!(db.stats().replayed_commits, COMMITS);
    db.flush().unwrap();
    assert_eq!(found(&families, 0, "flushed"), COMMITS);
}

/// A large commit over thousands of families waited for all that each of them had.
#[test]
fn families_are_flushed_in_turn_one_large_commit_each() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let device = SimDevice::new(14);
    let (db, families) = quiet_store(&path, &device);
    for n in 1..=3 {
        db.write(batch(&families, 0, n), &WriteOptions::disk()).unwrap();
    }
    let state = families[0].state();
    for left in [2, 1, 0] {
        drop(state.flushes().dequeue());
        flush::flush_in_turn(db.store(), state);
        assert_eq!(state.view().sealed.len(), 2 * left, "an empty one before each");
        assert_eq!(state.flushes().is_queued(), left > 0);
        assert_eq!(found(&families, 0, "in turn"), 3);
    }
}
