//! The rules of the page map, each in the one order of events in which breaking it shows.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use collie_front::{Existing, FrontError, PageFile, Scope, Volume, VolumeOptions};
use collie_io::{Device, OpenMode, write_all_at};
use collie_sim::{Fault, FaultKind, Points, SimDevice, Snapshot};

use crate::small::{PAGE, cuts, device, mapped, open, open_with, options, sync_beside, version, write};

/// Whether a file is gone, or as it was before its removal.
fn assert_gone_or_whole(device: &SimDevice, name: &str, way: &str) {
    let volume = open(device);
    if volume.file(Path::new(name)).is_ok() {
        assert_eq!(version(&volume, name, 0), 2, "{way}");
        assert_eq!(version(&volume, name, 2), 1, "{way}");
    }
}

#[test]
fn a_slot_is_not_used_again_before_its_release_is_durable() {
    let open = |device: &SimDevice| open_with(device, 4, 1 << 15);
    let device = device();
    let volume = open(&device);
    let file = mapped(&volume, "a");
    // Slots are taken in turn. The last of the four is the last that was taken, and the first two
    // hold the first two pages: freed too early, the first slot would be the next to be taken.
    for version in [3, 4] {
        write(&volume, &file, 2, version);
        write(&volume, &file, 3, version);
        volume.sync(&file).unwrap();
    }
    assert_eq!(volume.free_slots(), 2, "the second time they came home");
    write(&volume, &file, 0, 5);
    let mut left = None;
    sync_beside(&device, &volume, &file, || {
        write(&volume, &file, 2, 6);
        write(&volume, &file, 3, 6);
        left = Some(cuts(&device));
    });
    for (way, device) in left.unwrap() {
        assert_eq!(version(&open(&device), "a", 0), 2, "{way}");
    }
}

#[test]
fn a_version_that_is_being_committed_is_not_written_to() {
    let device = device();
    let volume = open(&device);
    let file = mapped(&volume, "a");
    // The next version is at home, which is free.
    write(&volume, &file, 0, 3);
    sync_beside(&device, &volume, &file, || write(&volume, &file, 0, 4));
    for (way, device) in cuts(&device) {
        let volume = open(&device);
        let found = version(&volume, "a", 0);
        assert_eq!(
            found, 3,
            "{way}: what was written since the sync began was never committed"
        );
    }
    volume.sync(&file).unwrap();
    assert_eq!(version(&volume, "a", 0), 4);
}

#[test]
fn pages_that_a_commit_adds_are_not_written_to_meanwhile() {
    let device = device();
    let volume = open(&device);
    let file = mapped(&volume, "a");
    write(&volume, &file, 4, 3);
    sync_beside(&device, &volume, &file, || write(&volume, &file, 4, 4));
    for (way, device) in cuts(&device) {
        assert_eq!(version(&open(&device), "a", 4), 3, "{way}");
    }
}

#[test]
fn a_commit_leaves_alone_what_the_file_grows_by_meanwhile() {
    let device = device();
    let volume = open(&device);
    let file = mapped(&volume, "a");
    // The shadow file is synced first, for this one.
    write(&volume, &file, 2, 3);
    write(&volume, &file, 4, 3);
    sync_beside(&device, &volume, &file, || write(&volume, &file, 6, 4));
    assert_eq!(version(&volume, "a", 6), 4);
    volume.sync(&file).unwrap();
    for (way, device) in cuts(&device) {
        assert_eq!(version(&open(&device), "a", 6), 4, "{way}");
    }
}

#[test]
fn growth_that_was_not_committed_does_not_come_back() {
    let device = device();
    let volume = open(&device);
    let file = mapped(&volume, "a");
    write(&volume, &file, 5, 9);
    let device = device.snapshot().process_death().device();
    let volume = open(&device);
    assert_eq!(volume.recovered().cut, 1);
    let file = volume.file(Path::new("a")).unwrap();
    assert_eq!(file.len(), 4 * PAGE as u64);
    write(&volume, &file, 7, 3);
    assert_eq!(version(&volume, "a", 5), 0, "what was cut shows in a gap");
}

#[test]
fn what_a_truncation_leaves_in_a_slot_does_not_come_back() {
    let device = device();
    let volume = open(&device);
    let file = mapped(&volume, "a");
    let len = PAGE as u64 + 100;
    for to in [3 * PAGE as u64, len + 10] {
        write(&volume, &file, 1, 7);
        volume.sync(&file).unwrap();
        volume.set_len(&file, len).unwrap();
        volume.set_len(&file, to).unwrap();
        let mut found = vec![9; (to - len) as usize];
        assert_eq!(volume.read_at(&file, &mut found, len).unwrap(), found.len());
        assert!(found.iter().all(|byte| *byte == 0), "grown to {to}");
    }
    // The same by a write behind the end.
    volume.set_len(&file, len).unwrap();
    write(&volume, &file, 2, 8);
    let mut found = vec![9; PAGE - 100];
    volume.read_at(&file, &mut found, len).unwrap();
    assert!(found.iter().all(|byte| *byte == 0), "grown by a write");
}

#[test]
fn a_file_whose_removal_is_recorded_is_gone() {
    let device = device();
    let volume = open(&device);
    let file = mapped(&volume, "a");
    drop(file);
    let free = volume.free_slots();
    volume.unlink(Path::new("a")).unwrap();
    assert_eq!(
        volume.free_slots(),
        free,
        "its pages are needed if its name comes back"
    );
    volume.forget_removed().unwrap();
    assert_eq!(volume.free_slots(), free + 2);
    for (way, device) in cuts(&device) {
        assert!(
            open(&device).file(Path::new("a")).is_err(),
            "{way}: it is there again"
        );
    }
}

#[test]
fn a_file_whose_removal_is_not_durable_stays_in_the_map() {
    let device = device();
    let volume = open(&device);
    mapped(&volume, "a");
    volume.unlink(Path::new("a")).unwrap();
    volume.checkpoint().unwrap();
    cuts(&device).for_each(|(way, device)| assert_gone_or_whole(&device, "a", way));
}

#[test]
fn a_file_that_recovery_finds_gone_stays_gone() {
    let device = device();
    // Not in a directory that an opening syncs for another reason.
    device.create_dir_all(Path::new("/volume/base")).unwrap();
    let volume = open(&device);
    mapped(&volume, "base/a");
    volume.unlink(Path::new("base/a")).unwrap();
    // The process dies; the removal is in the kernel's memory only.
    let device = device.snapshot().process_death().device();
    let volume = open(&device);
    assert_eq!(volume.recovered().gone, [Path::new("base/a")]);
    cuts(&device).for_each(|(way, device)| assert_gone_or_whole(&device, "base/a", way));
}

#[test]
fn a_file_that_was_there_before_is_synced_with_its_first_record() {
    let device = device();
    device.sync_dir(Path::new("/volume")).unwrap();
    let home = device.open(Path::new("/volume/a"), OpenMode::CreateNew).unwrap();
    write_all_at(&*home, &[1; 4 * PAGE], 0).unwrap();
    let volume = open(&device);
    let file = volume.file(Path::new("a")).unwrap();
    write(&volume, &file, 0, 2);
    volume.commit_all(Scope::Steady).unwrap();
    for (way, device) in cuts(&device) {
        let volume = open(&device);
        assert_eq!(
            (version(&volume, "a", 0), version(&volume, "a", 3)),
            (2, 1),
            "{way}"
        );
    }
}

#[test]
fn a_file_that_was_drained_is_not_cut_where_it_ended_then() {
    let device = device();
    let volume = open(&device);
    let file = mapped(&volume, "a");
    volume.drain().unwrap();
    // By zeros, of which there is no record.
    write(&volume, &file, 6, 0);
    volume.sync(&file).unwrap();
    for (way, device) in cuts(&device) {
        let volume = open(&device);
        assert_eq!(
            (version(&volume, "a", 0), version(&volume, "a", 6)),
            (2, 0),
            "{way}"
        );
    }
}

#[test]
fn half_of_a_page_is_not_committed_before_the_other_half() {
    let device = device();
    let volume = open(&device);
    let file = mapped(&volume, "a");
    volume.write_at(&file, &[3; PAGE / 2], 0).unwrap();
    volume.commit_all(Scope::Steady).unwrap();
    for (way, device) in cuts(&device) {
        assert_eq!(version(&open(&device), "a", 0), 2, "{way}");
    }
    volume.write_at(&file, &[3; PAGE / 2], PAGE as u64 / 2).unwrap();
    volume.commit_all(Scope::Steady).unwrap();
    for (way, device) in cuts(&device) {
        assert_eq!(version(&open(&device), "a", 0), 3, "{way}");
    }
}

#[test]
fn a_new_file_of_the_name_of_a_removed_one_has_no_pages_of_it() {
    let device = device();
    let volume = open(&device);
    mapped(&volume, "a");
    volume.unlink(Path::new("a")).unwrap();
    let file = volume.create(Path::new("a")).unwrap();
    volume.set_len(&file, PAGE as u64).unwrap();
    let device = device.snapshot().process_death().device();
    assert_eq!(version(&open(&device), "a", 0), 0);
}

#[test]
fn slots_that_hold_pages_are_not_free_after_recovery() {
    let device = device();
    mapped(&open(&device), "a");
    let device = device.snapshot().process_death().device();
    let volume = open(&device);
    assert_eq!((volume.free_slots(), volume.recovered().displaced), (14, 2));
    let file = volume.file(Path::new("a")).unwrap();
    write(&volume, &file, 2, 3);
    write(&volume, &file, 3, 3);
    volume.sync(&file).unwrap();
    for page in 0..4 {
        assert_eq!(version(&volume, "a", page), [2, 2, 3, 3][page]);
    }
}

#[test]
fn a_handle_that_outlives_its_name_does_not_write_to_the_next() {
    let device = device();
    let volume = open(&device);
    let old = mapped(&volume, "a");
    volume.unlink(Path::new("a")).unwrap();
    write(&volume, &old, 0, 7);
    volume.sync(&old).unwrap();
    let new = volume.create(Path::new("a")).unwrap();
    write(&volume, &new, 0, 8);
    volume.sync(&new).unwrap();
    volume.set_len(&old, PAGE as u64 / 2).unwrap();
    write(&volume, &old, 0, 9);
    volume.sync(&old).unwrap();
    drop(old);
    for (way, device) in cuts(&device) {
        let volume = open(&device);
        let file = volume.file(Path::new("a")).unwrap();
        assert_eq!((file.len(), version(&volume, "a", 0)), (PAGE as u64, 8), "{way}");
    }
}

#[test]
fn page_sizes_second_openings_and_missing_logs_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let options = || VolumeOptions {
        page_bytes: 1024,
        slots: 16,
        ..VolumeOptions::default()
    };
    let volume = Volume::open(dir.path(), options()).unwrap();
    let error = Volume::open(dir.path(), options()).unwrap_err();
    assert!(error.to_string().contains("in use by another process"), "{error}");
    volume.close().unwrap();
    let other = VolumeOptions {
        page_bytes: 8192,
        ..options()
    };
    let error = Volume::open(dir.path(), other).unwrap_err();
    assert!(
        error.to_string().contains("its pages have 1024 bytes, not 8192"),
        "{error}"
    );
    let odd = VolumeOptions {
        page_bytes: 1000,
        ..options()
    };
    assert!(Volume::open(dir.path(), odd).is_err());
    std::fs::remove_dir_all(dir.path().join(".collie/log")).unwrap();
    let error = Volume::open(dir.path(), options()).unwrap_err();
    assert!(error.to_string().contains("log"), "{error}");
}

#[test]
fn a_truncation_outlives_the_drain_after_it() {
    let device = device();
    let volume = open(&device);
    let file = mapped(&volume, "a");
    volume.set_len(&file, 0).unwrap();
    volume.drain().unwrap();
    for (way, device) in cuts(&device) {
        let volume = open(&device);
        assert_eq!(volume.file(Path::new("a")).unwrap().len(), 0, "{way}");
    }
}

#[test]
fn a_write_of_nothing_or_too_far_away_changes_nothing() {
    let device = device();
    let volume = open(&device);
    let file = volume.create(Path::new("a")).unwrap();
    for version in 1..3 {
        volume.write_at(&file, &[version; 100], 0).unwrap();
        volume.sync(&file).unwrap();
    }
    volume.write_at(&file, &[], 300).unwrap();
    for far in [u64::MAX, (PAGE as u64) << 32] {
        assert!(volume.write_at(&file, &[3; 40], far).is_err());
        assert_eq!(volume.read_at(&file, &mut [0; 4], far).unwrap(), 0);
    }
    assert_eq!(file.len(), 100);
}

#[test]
fn a_file_that_failed_stands_in_nobodys_way() {
    let device = device();
    let volume = open(&device);
    let bad = mapped(&volume, "bad");
    write(&volume, &bad, 4, 3);
    device.inject(Fault::new(FaultKind::SyncFails).on("/volume/bad").once());
    assert!(volume.sync(&bad).is_err());
    for number in 0..8 {
        let file = mapped(&volume, &format!("{number}"));
        for page in 0..4 {
            write(&volume, &file, page, 3);
        }
    }
    assert!(volume.drain().is_err(), "it says that a file failed");
    assert!(volume.free_slots() >= 8);
    assert!(volume.close().is_err());
    // `bad` is still held: the log is closed all the same.
    assert_eq!(version(&open(&device), "bad", 0), 2);
}

#[test]
fn writers_that_take_each_others_room_go_on() {
    let device = device();
    let volume = open_with(&device, 1, 1 << 15);
    let files: Vec<_> = ["a", "b", "c", "d"]
        .iter()
        .map(|name| {
            let file = volume.create(Path::new(name)).unwrap();
            (0..4).for_each(|page| write(&volume, &file, page, 0));
            volume.sync(&file).unwrap();
            file
        })
        .collect();
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| (0..400).for_each(|n| write(&volume, file, n % 4, n as u8)));
        }
    });
    volume.commit_all(Scope::All).unwrap();
    volume.drain().unwrap();
    assert_eq!(volume.free_slots(), 1);
}

/// No space left on the device.
const ENOSPC: i32 = 28;

/// Lets the log take no more segments, and syncs until it is full.
fn fill_log(device: &SimDevice, volume: &Volume, file: &PageFile) {
    for kind in [
        FaultKind::AllocateFails,
        FaultKind::OpenFails,
        FaultKind::RenameFails,
    ] {
        device.inject(Fault::new(kind).code(ENOSPC).on("/log"));
    }
    let is_full = (0..5_000).any(|_| {
        write(volume, file, 0, 1);
        volume.sync(file).is_err_and(|error| error.is_full())
    });
    assert!(is_full);
}

#[test]
fn what_a_commit_in_parts_left_behind_the_end_is_void() {
    let device = device();
    let volume = open_with(&device, 1_500, 1 << 13);
    let file = volume.create(Path::new("a")).unwrap();
    (0..400).for_each(|page| write(&volume, &file, page, 0));
    volume.sync(&file).unwrap();
    // The log has it from here on, or it could not grow while the log is full.
    write(&volume, &file, 0, 1);
    volume.sync(&file).unwrap();
    fill_log(&device, &volume, &file);
    (400..800).for_each(|page| write(&volume, &file, page, 2));
    let gate = device.hold_syncs();
    std::thread::scope(|scope| {
        let syncing = scope.spawn(|| volume.sync(&file));
        gate.wait_for(1);
        // A sync is under way: these go to slots, behind the end when it has failed.
        (400..800).for_each(|page| write(&volume, &file, page, 3));
        gate.release();
        assert!(syncing.join().unwrap().is_err());
    });
    device.heal();
    device.record(Points::Syncs, 60);
    volume.sync(&file).unwrap();
    let between = |snapshot: Snapshot| {
        let volume = open_with(&snapshot.process_death().device(), 1_500, 1 << 13);
        let file = volume.file(Path::new("a")).unwrap();
        let is_between = file.len() == 400 * PAGE as u64 && volume.recovered().cut == 1;
        if is_between {
            volume.set_len(&file, 800 * PAGE as u64).unwrap();
            (400..800).for_each(|page| assert_eq!(version(&volume, "a", page), 0));
        }
        is_between
    };
    let between = device.take_snapshots().into_iter().map(between);
    assert!(between.filter(|is_between| *is_between).count() > 2);
}

#[test]
fn a_commit_that_fails_beside_a_writer_loses_no_slot() {
    for _ in 0..40 {
        let device = device();
        let volume = open_with(&device, 64, 1 << 13);
        let file = mapped(&volume, "a");
        fill_log(&device, &volume, &file);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Relaxed: it only ends the loop.
                for n in (0..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    write(&volume, &file, n % 4, n as u8);
                }
            });
            for _ in 0..200 {
                let _ = volume.sync(&file);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        device.heal();
        volume.sync(&file).unwrap();
        volume.drain().unwrap();
        assert_eq!(volume.free_slots(), 64);
    }
}

#[test]
fn a_file_is_known_by_a_name_that_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let options = VolumeOptions {
            page_bytes: PAGE as u32,
            slots: 16,
            ..VolumeOptions::default()
        };
        Volume::open(dir.path(), options).unwrap()
    };
    let volume = open();
    let is_renamed = |volume: &Volume| {
        drop(volume.create(Path::new("x")).unwrap());
        volume
            .rename(Path::new("x"), Path::new("b"), Existing::Replace)
            .unwrap();
    };
    let file = mapped(&volume, "a");
    for (name, old) in [("b", "a"), ("c", "b")] {
        std::fs::hard_link(dir.path().join(old), dir.path().join(name)).unwrap();
        match old {
            "a" => volume.unlink(Path::new(old)).unwrap(),
            _ => is_renamed(&volume),
        }
        write(&volume, &file, 0, 5);
        write(&volume, &file, 1, 5);
        volume.sync(&file).unwrap();
        assert!(Arc::ptr_eq(&file, &volume.file(Path::new(name)).unwrap()));
    }
    drop(file);
    drop(volume);
    let volume = open();
    assert!(volume.recovered().gone.is_empty());
    assert_eq!(version(&volume, "c", 0), 5);
}

#[test]
fn paths_have_one_spelling() {
    let device = device();
    device.create_dir_all(Path::new("/volume/d")).unwrap();
    let volume = open(&device);
    mapped(&volume, "d/a");
    for path in ["../a", "./a", "d/../a", "/volume/a", ".collie/MAP"] {
        assert!(volume.create(Path::new(path)).is_err(), "{path}");
        assert!(volume.file(Path::new(path)).is_err(), "{path}");
    }
    volume.close().unwrap();
}

#[test]
fn a_lost_shadow_file_is_found_by_the_opening() {
    let device = device();
    let volume = open(&device);
    mapped(&volume, "a");
    volume.close().unwrap();
    device.remove_file(Path::new("/volume/.collie/shadow")).unwrap();
    let error = Volume::open(Path::new("/volume"), options(&device, 16, 1 << 15)).unwrap_err();
    assert!(matches!(error, FrontError::Corrupt { .. }), "{error}");
}

#[test]
fn a_record_that_no_frame_takes_ends_nothing() {
    let device = device();
    let volume = open_with(&device, 16, 1 << 13);
    let long = volume.create(Path::new(&"a".repeat(4_060))).unwrap();
    assert!(volume.write_at(&long, &[1; PAGE], 0).is_err());
    write(&volume, &long, 0, 0);
    volume.sync(&long).unwrap();
    write(&volume, &long, 0, 2);
    assert!(volume.sync(&long).is_err());
    let other = mapped(&volume, "b");
    volume.sync(&other).unwrap();
}

#[test]
fn a_read_whose_slot_is_another_pages_by_now_looks_again() {
    let device = device();
    let volume = open(&device);
    // The whole page, whose checksum is known, and a part of it.
    for (name, len) in [("a", PAGE), ("b", 100)] {
        let file = mapped(&volume, name);
        let gate = device.hold_reads();
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let mut found = vec![0; len];
                volume.read_at(&file, &mut found, 0).map(|_| found)
            });
            gate.wait_for(1);
            // The page is committed at home, and its slot becomes that of another page.
            write(&volume, &file, 0, 3);
            volume.sync(&file).unwrap();
            write(&volume, &file, 2, 99);
            gate.release();
            assert_eq!(reading.join().unwrap().unwrap(), vec![3; len]);
        });
    }
}

#[test]
fn more_threads_than_the_log_has_workers_take_turns() {
    let device = device();
    let volume = open(&device);
    let files: Vec<_> = (0..300)
        .map(|name| volume.create(format!("{name}").as_ref()).unwrap())
        .collect();
    for file in &files {
        write(&volume, file, 0, 1);
        volume.sync(file).unwrap();
    }
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| {
                write(&volume, file, 0, 2);
                volume.sync(file).unwrap();
            });
        }
    });
    volume.drain().unwrap();
    assert_eq!(volume.free_slots(), 16);
}
