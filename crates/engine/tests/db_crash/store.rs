//! What is there after a crash, on a simulated device: power cuts of every kind and dead processes
//! at random moments, and a failure of every single operation in turn.
//!
//! The manifest and the log are on the simulated device. The tables are in a real directory that no
//! crash touches; in the tests that cut the power nothing is flushed, so they are empty.
//!
//! `COLLIE_RUNS=200 COLLIE_STRIDE=1 cargo test -p collie-db --test db_crash store::` is the long form;
//! `COLLIE_SEED=N` replays one run.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests put the table directory back between images"
)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::Rng;
use collie_db::{Batch, Db, Durability, Family, FamilyOptions, Options, RingMode, WriteOptions};
use collie_sim::{Fault, FaultKind, Image, PowerCut, SimDevice};

fn options(device: &SimDevice) -> Options {
    Options {
        device: Arc::new(device.clone()),
        ring: RingMode::default(),
        ring_bytes: 64 << 10,
        segment_bytes: 64 << 10,
        default_family: FamilyOptions::default(),
        ..crate::common::small()
    }
}

/// Puts the directory of the tables, all of them empty, back in its first state.
fn restore(pristine: &Path, path: &Path) {
    if path.exists() {
        std::fs::remove_dir_all(path).unwrap();
    }
    copy(pristine, path);
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn number(family: &Family, key: &str) -> u64 {
    read_number(family, key).unwrap()
}

fn read_number(family: &Family, key: &str) -> collie_db::Result<u64> {
    let value = family.get(key)?;
    Ok(value.map_or(0, |v| u64::from_le_bytes(v[..8].try_into().unwrap())))
}

/// A writer's batches: its n-th sets its counter in both families and adds a key to each.
fn batch(first: &Family, second: &Family, writer: u64, n: u64, seen: u64) -> Batch {
    let mut batch = Batch::new();
    for family in [first, second] {
        batch
            .put(family, format!("count/{writer}"), n.to_le_bytes())
            .unwrap();
        batch
            .put(
                family,
                format!("key/{writer}/{n:06}"),
                vec![n as u8; 1 + n as usize % 300],
            )
            .unwrap();
    }
    // What the other writer had written before: if this is there, that is.
    batch
        .put(first, format!("seen/{writer}"), seen.to_le_bytes())
        .unwrap();
    batch
        .delete(second, format!("key/{writer}/{:06}", n.saturating_sub(5)))
        .unwrap();
    batch
}

/// What two writers were promised.
#[derive(Default)]
struct Promised {
    process: [AtomicU64; 2],
    disk: [AtomicU64; 2],
}

fn load(counters: &[AtomicU64; 2]) -> [u64; 2] {
    [
        counters[0].load(Ordering::SeqCst),
        counters[1].load(Ordering::SeqCst),
    ]
}

fn write(first: &Family, second: &Family, writer: u64, promised: &Promised, seed: u64) {
    let mut rng = Rng::new(seed * 2 + writer);
    for n in 1..=60 {
        // The device dies under the last writes, and what they wrote is in doubt then.
        let Ok(seen) = read_number(first, &format!("count/{}", 1 - writer)) else {
            return;
        };
        let batch = batch(first, second, writer, n, seen);
        let (level, counter) = match rng.below(4) {
            0 => (Durability::Disk, Some(&promised.disk)),
            1 => (Durability::Process, Some(&promised.process)),
            _ => (Durability::Buffered, None),
        };
        let options = WriteOptions {
            durability: level,
            ..WriteOptions::default()
        };
        if first.db().write(batch, &options).is_err() {
            return;
        }
        if let Some(counter) = counter {
            counter[writer as usize].fetch_max(n, Ordering::SeqCst);
            promised.process[writer as usize].fetch_max(n, Ordering::SeqCst);
        }
    }
}

/// Opens the image and checks the three sentences: what was promised is there, nothing is there
/// without what it could have seen, nothing is there in part.
fn check(path: &Path, pristine: &Path, image: &Image, promised: [u64; 2], context: &str) {
    restore(pristine, path);
    let device = image.device();
    let db = Db::open(path, options(&device)).unwrap_or_else(|e| panic!("{context}: {e}"));
    let first = db.default_family();
    let second = db
        .family("second")
        .unwrap_or_else(|| panic!("{context}: a family is gone"));
    let counts = [number(&first, "count/0"), number(&first, "count/1")];
    for writer in 0..2 {
        let (count, promised) = (counts[writer], promised[writer]);
        assert!(
            count >= promised,
            "{context}: writer {writer}: {count} of {promised}"
        );
        let other = number(&second, &format!("count/{writer}"));
        assert_eq!(other, count, "{context}: a part of a batch of writer {writer}");
        let keys = |family: &Family| family.prefix(format!("key/{writer}/")).unwrap().count() as u64;
        assert_eq!(keys(&first), count, "{context}: keys of writer {writer}");
        assert_eq!(keys(&second), count.min(5), "{context}: removed keys of {writer}");
        let seen = number(&first, &format!("seen/{writer}"));
        assert!(
            counts[1 - writer] >= seen,
            "{context}: {writer} saw {seen} of {counts:?}"
        );
    }
    // It goes on where it is.
    let next = batch(&first, &second, 0, counts[0] + 1, counts[1]);
    db.write(next, &WriteOptions::disk()).unwrap();
    db.close().unwrap();
    restore(pristine, path);
    let db = Db::open(path, options(&device)).unwrap();
    assert_eq!(
        number(&db.default_family(), "count/0"),
        counts[0] + 1,
        "{context}"
    );
}

#[test]
fn every_crash_leaves_a_prefix_with_all_that_was_promised() {
    for seed in crate::common::seeds(6) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let device = SimDevice::new(seed);
        let db = crate::common::open(&path, &options(&device));
        let first = db.default_family();
        let second = db.create_family("second", FamilyOptions::default()).unwrap();
        let pristine = dir.path().join("pristine");
        copy(&path, &pristine);
        let promised = Promised::default();
        let mut images = Vec::new();
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2)
                .map(|writer| {
                    let (first, second, promised) = (&first, &second, &promised);
                    scope.spawn(move || write(first, second, writer, promised, seed))
                })
                .collect();
            let mut rng = Rng::new(seed);
            let mut last = false;
            while !last {
                last = writers.iter().all(|writer| writer.is_finished());
                // Read before the image is taken: what is promised by then is in it.
                let (process, disk) = (load(&promised.process), load(&promised.disk));
                images.push((device.snapshot(), process, disk));
                for _ in 0..rng.below(30) {
                    std::thread::yield_now();
                }
            }
        });
        device.kill();
        drop((first, second, db));
        let mut rng = Rng::new(seed);
        let last = images.len() - 1;
        for n in [rng.below(last as u64) as usize, last / 2, last] {
            let (snapshot, process, disk) = &images[n];
            let context = format!("seed {seed}, image {n} of {last}");
            check(
                &path,
                &pristine,
                &snapshot.process_death(),
                *process,
                &format!("{context}, process death"),
            );
            for (name, cut) in PowerCut::WAYS {
                let image = snapshot.power_cut(cut, rng.next());
                check(
                    &path,
                    &pristine,
                    &image,
                    *disk,
                    &format!("{context}, power cut ({name})"),
                );
            }
        }
    }
}

/// Each operation of the device fails once, in opening, writing, creating and dropping a family,
/// flushing and closing. Whatever is refused, what was acknowledged is there when the store is
/// opened again.
#[test]
fn what_was_acknowledged_survives_the_failure_of_any_operation() {
    let mut failed = 0;
    let mut n = 0;
    loop {
        let dir = tempfile::tempdir().unwrap();
        let device = SimDevice::new(n);
        device.inject(Fault::new(FaultKind::AnyFails).after(n).once());
        let mut acknowledged = Vec::new();
        let complete = live(dir.path(), &device, &mut acknowledged);
        let fired = device.fired(FaultKind::AnyFails) > 0;
        device.heal();
        let db = Db::open(dir.path(), options(&device)).unwrap_or_else(|e| panic!("operation {n}: {e}"));
        for key in &acknowledged {
            let value = db.get(key).unwrap();
            assert!(
                value.is_some(),
                "operation {n}: {key} was acknowledged and is gone"
            );
        }
        db.put("more", "v").unwrap();
        assert!(fired || complete, "operation {n}: refused without a fault");
        if !fired {
            break;
        }
        failed += 1;
        // The first ones one by one, the others by samples; all of them in the long form.
        let stride = crate::common::number("COLLIE_STRIDE").unwrap_or(9);
        n += if n < 40 { 1 } else { stride };
    }
    assert!(failed > 50, "only {failed} failures");
}

/// A short life; returns whether nothing was refused.
fn live(path: &Path, device: &SimDevice, acknowledged: &mut Vec<String>) -> bool {
    let mut complete = true;
    let mut note = |ok: bool| complete &= ok;
    for life in 0..2 {
        let Ok(db) = Db::open(path, options(device)) else {
            note(false);
            continue;
        };
        for n in 0..6 {
            let key = format!("{life}/{n}");
            match db.put(&key, [n; 100]) {
                Ok(_) => acknowledged.push(key),
                Err(_) => note(false),
            }
        }
        let name = format!("f{life}");
        match db.create_family(&name, crate::common::small_family()) {
            Ok(family) => {
                note(family.put("k", "v").is_ok());
                note(db.drop_family(&family).is_ok());
            }
            Err(_) => note(false),
        }
        note(db.flush().is_ok());
        match db.put(format!("{life}/last"), "v") {
            Ok(_) => acknowledged.push(format!("{life}/last")),
            Err(_) => note(false),
        }
        note(db.close().is_ok());
    }
    complete
}
