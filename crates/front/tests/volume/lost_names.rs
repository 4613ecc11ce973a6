//! Files with several names, of which the one that is known here is removed.

use std::path::Path;
use std::sync::Arc;

use collie_front::{Existing, PageFile, Scope, Volume};
use collie_io::{Device, OpenMode, read_exact_at};
use collie_sim::{Fault, FaultKind, SimDevice};

use crate::small::{PAGE, cuts, device, mapped, open, version, write};

/// Names of a file beside `a`, by any of which it is found.
const OTHERS: [&str; 3] = ["b", "d/b", "d/e/f/b"];

fn with_dirs() -> SimDevice {
    let device = device();
    for dir in ["d/e/f", "z"] {
        device.create_dir_all(&Path::new("/volume").join(dir)).unwrap();
    }
    // What is in a directory of another name is not in this one.
    device.create_dir_all(Path::new("/elsewhere")).unwrap();
    device
        .symlink(Path::new("/elsewhere"), Path::new("/volume/0"))
        .unwrap();
    device
}

/// Removes the name `a`, or gives it to a new file.
fn lose(volume: &Volume, is_removed: bool) {
    if is_removed {
        volume.unlink(Path::new("a")).unwrap();
    } else {
        drop(volume.create(Path::new("new")).unwrap());
        volume
            .rename(Path::new("new"), Path::new("a"), Existing::Replace)
            .unwrap();
    }
}

/// A file that has lost the name `a`, by a removal or a renaming, and has `other`; with pages of
/// version 3 that are not committed.
fn lost(volume: &Volume, other: &str, is_removed: bool) -> Arc<PageFile> {
    let file = mapped(volume, "a");
    volume.link(Path::new("a"), Path::new(other)).unwrap();
    lose(volume, is_removed);
    (1..3).for_each(|page| write(volume, &file, page, 3));
    file
}

fn each(check: impl Fn(&SimDevice, &Volume, &str, Arc<PageFile>)) {
    for other in OTHERS {
        for is_removed in [true, false] {
            let device = with_dirs();
            let volume = open(&device);
            let file = lost(&volume, other, is_removed);
            check(&device, &volume, other, file);
        }
    }
}

#[test]
fn a_file_that_lost_its_name_is_synced_by_another_one() {
    each(|device, volume, other, file| {
        volume.sync(&file).unwrap();
        assert!(volume.status().displaced > 0, "as atomic as before");
        for (way, device) in cuts(device) {
            let volume = open(&device);
            let found = [0, 1, 2, 3].map(|page| version(&volume, other, page));
            assert_eq!(found, [2, 3, 3, 1], "{way}: {other}");
        }
    });
}

#[test]
fn a_file_that_lost_its_name_stops_no_commit_drain_or_end() {
    each(|device, volume, other, file| {
        volume.commit_all(Scope::Steady).unwrap();
        assert_eq!(volume.status().dirty, 0);
        for (way, device) in cuts(device) {
            assert_eq!(version(&open(&device), other, 1), 3, "{way}: {other}");
        }
        volume.drain().unwrap();
        drop(file);
        assert_eq!(volume.free_slots(), 16);
    });
    let device = with_dirs();
    let volume = open(&device);
    drop(lost(&volume, "d/b", true));
    volume.close().unwrap();
    assert_eq!(version(&open(&device), "d/b", 1), 3);
}

/// Its data are at home, and not its name.
#[test]
fn the_other_name_is_durable_with_a_sync() {
    let device = with_dirs();
    let volume = open(&device);
    let file = volume.create(Path::new("a")).unwrap();
    (0..4).for_each(|page| write(&volume, &file, page, 1));
    volume.link(Path::new("a"), Path::new("d/b")).unwrap();
    volume.unlink(Path::new("a")).unwrap();
    volume.sync(&file).unwrap();
    for (way, device) in cuts(&device) {
        assert_eq!(version(&open(&device), "d/b", 3), 1, "{way}");
    }
}

/// Names outside of the volume are none, nor is one that a symbolic link leads to. What is synced is
/// durable all the same.
#[test]
fn a_file_whose_names_are_all_elsewhere_is_written_in_place() {
    for is_removed in [true, false] {
        let device = with_dirs();
        let volume = open(&device);
        let file = mapped(&volume, "a");
        let elsewhere = Path::new("/elsewhere/x");
        device.hard_link(Path::new("/volume/a"), elsewhere).unwrap();
        device.sync_dir(Path::new("/elsewhere")).unwrap();
        lose(&volume, is_removed);
        for round in 3..6 {
            (1..4).for_each(|page| write(&volume, &file, page, round));
            volume.commit_all(Scope::Steady).unwrap();
            volume.sync(&file).unwrap();
            assert_eq!(volume.free_slots(), 16);
            for (way, device) in cuts(&device) {
                let mut found = [0; PAGE];
                let home = device.open(elsewhere, OpenMode::Read).unwrap();
                read_exact_at(&*home, &mut found, 3 * PAGE as u64).unwrap();
                assert_eq!(found, [round; PAGE], "{way}");
            }
        }
        drop(file);
        volume.drain().unwrap();
        volume.close().unwrap();
    }
}

/// The walk comes to directories that cannot be listed: that is an error of this call, and no end.
#[test]
fn what_fails_while_a_name_is_looked_for_is_tried_again() {
    let device = with_dirs();
    let volume = open(&device);
    let file = lost(&volume, "d/e/f/b", true);
    for part in ["/volume/d", "/volume/d/e/f"] {
        device.inject(Fault::new(FaultKind::AnyFails).on(part));
        let error = volume.sync(&file).unwrap_err();
        assert!(error.to_string().contains("list /volume"), "{error}");
        assert_eq!(volume.status().poisoned, None);
        device.heal();
    }
    volume.sync(&file).unwrap();
    for (way, device) in cuts(&device) {
        assert_eq!(version(&open(&device), "d/e/f/b", 1), 3, "{way}");
    }
}
