//! What users see of a file beside its bytes: times, length, room; of a volume its status, and the
//! path that it is shown by.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_front::{FrontError, Scope, Volume, VolumeOptions};
use collie_io::Device;
use collie_sim::{Fault, FaultKind, SimDevice};

use crate::small::{PAGE, cuts, device, mapped, open, version, write};

const SECOND: i64 = 1_000_000_000;

fn mtime_at_home(device: &SimDevice, name: &str) -> i64 {
    device.stat(&Path::new("/volume").join(name)).unwrap().mtime
}

#[test]
fn the_time_of_a_displaced_write_becomes_that_of_the_home() {
    let device = device();
    let volume = open(&device);
    let file = mapped(&volume, "a");
    let pass = || device.sim_clock().advance(SECOND.unsigned_abs());
    let mtime = || volume.stat(&file).unwrap().mtime;
    let before = mtime();
    pass();
    write(&volume, &file, 2, 3);
    let written = mtime();
    assert!(written >= before + SECOND);
    assert_eq!(volume.stat(&file).unwrap().ctime, written);
    assert!(mtime_at_home(&device, "a") < written, "the page is in a slot");
    pass();
    volume.sync(&file).unwrap();
    assert_eq!(
        mtime_at_home(&device, "a"),
        written,
        "so that a copy of it notices"
    );
    pass();
    volume.drain().unwrap();
    assert_eq!(mtime(), written, "a drain changes nothing that a user sees");
    pass();
    write(&volume, &file, 0, 4);
    write(&volume, &file, 6, 4);
    let written = mtime();
    pass();
    volume.drain().unwrap();
    assert_eq!(mtime(), written);
    // What a user sets holds until the next write.
    write(&volume, &file, 2, 5);
    volume.set_times(&file, Some(7), Some(8)).unwrap();
    volume.sync(&file).unwrap();
    let stat = volume.stat(&file).unwrap();
    assert_eq!((stat.atime, stat.mtime, stat.len), (7, 8, 7 * PAGE as u64));
    volume.set_times(&file, Some(9), None).unwrap();
    assert_eq!(mtime(), 8);
    pass();
    write(&volume, &file, 3, 5);
    assert!(mtime() > written);
}

#[test]
fn a_time_that_cannot_be_set_is_no_failure_of_a_commit() {
    let device = device();
    let volume = open(&device);
    let file = mapped(&volume, "a");
    write(&volume, &file, 2, 3);
    // What is done with the file itself: its times alone, for its pages are in the shadow file.
    device.inject(Fault::new(FaultKind::AnyFails).on("/volume/a"));
    volume.sync(&file).unwrap();
    assert!(device.fired(FaultKind::AnyFails) > 0);
    device.heal();
    assert_eq!(version(&volume, "a", 2), 3);
}

#[test]
fn room_is_taken_without_a_change_of_bytes_or_places() {
    let device = device();
    let volume = open(&device);
    let file = mapped(&volume, "a");
    volume.allocate(&file, 0, 4 * PAGE as u64).unwrap();
    assert_eq!((file.len(), volume.free_slots()), (4 * PAGE as u64, 14));
    // The end is in the middle of a displaced page, behind which its slot holds something.
    let end = PAGE as u64 + 100;
    volume.set_len(&file, end).unwrap();
    volume.allocate(&file, end + 10, 5 * PAGE as u64).unwrap();
    let len = end + 10 + 5 * PAGE as u64;
    let check = |volume: &Volume| {
        let file = volume.file(Path::new("a")).unwrap();
        assert_eq!(file.len(), len);
        let mut found = vec![9; len as usize];
        assert_eq!(volume.read_at(&file, &mut found, 0).unwrap(), found.len());
        let (written, grown) = found.split_at(end as usize);
        assert!(written.iter().all(|byte| *byte == 2) && grown.iter().all(|byte| *byte == 0));
    };
    check(&volume);
    let crashed = device.snapshot().process_death().device();
    let recovered = open(&crashed).file(Path::new("a")).unwrap();
    assert_eq!(recovered.len(), end, "it was not synced");
    volume.sync(&file).unwrap();
    cuts(&device).for_each(|(_, device)| check(&open(&device)));
    assert!(volume.allocate(&file, u64::MAX - 5, 10).is_err());
    assert!(volume.set_len(&file, u64::MAX - 5).is_err());
    assert_eq!(file.len(), len);
}

#[test]
fn room_that_is_not_there_changes_nothing() {
    let device = device();
    let volume = open(&device);
    let file = mapped(&volume, "a");
    device.limit_space(Some(0));
    let error = volume.allocate(&file, 0, 64 * PAGE as u64).unwrap_err();
    assert!(error.is_full(), "{error}");
    device.limit_space(None);
    assert_eq!(file.len(), 4 * PAGE as u64);
    write(&volume, &file, 6, 3);
    assert_eq!((version(&volume, "a", 0), version(&volume, "a", 5)), (2, 0));
}

#[test]
fn a_volume_says_what_it_is_doing() {
    let device = device();
    let volume = open(&device);
    assert_eq!(volume.page_bytes(), PAGE as u32);
    let file = mapped(&volume, "a");
    mapped(&volume, "b");
    write(&volume, &file, 3, 3);
    volume.unlink(Path::new("b")).unwrap();
    let status = volume.status();
    assert_eq!((status.slots, status.free_slots), (16, 11));
    assert_eq!((status.mapped, status.displaced, status.dirty), (1, 2, 1));
    assert_eq!((status.removed, status.poisoned), (1, None));
    assert!(status.log_bytes > 0);
    volume.checkpoint().unwrap();
    let after = volume.status().log_bytes;
    assert!(
        after > 0 && after < status.log_bytes,
        "the mark is read by a recovery"
    );
    write(&volume, &file, 5, 3);
    device.inject(Fault::new(FaultKind::SyncFails).on("/volume/a").once());
    assert!(volume.sync(&file).is_err());
    let poisoned = volume.status().poisoned.unwrap();
    assert!(poisoned.contains("sync /volume/a"), "{poisoned}");
}

#[test]
fn a_file_is_found_by_its_number_while_it_is_open() {
    let device = device();
    let volume = open(&device);
    let file = volume.create(Path::new("a")).unwrap();
    device
        .hard_link(Path::new("/volume/a"), Path::new("/volume/b"))
        .unwrap();
    let stat = device.stat(Path::new("/volume/b")).unwrap();
    assert!(Arc::ptr_eq(&file, &volume.open_file(&stat).unwrap()));
    volume.release(file);
    assert!(volume.open_file(&stat).is_none());
}

#[test]
fn a_volume_behind_a_descriptor_is_shown_by_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let root = std::fs::File::open(dir.path()).unwrap();
    let reached = PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd()));
    let shown = Path::new("/srv/shown");
    let options = |shown_as| VolumeOptions {
        page_bytes: PAGE as u32,
        slots: 16,
        shown_as,
        ..VolumeOptions::default()
    };
    for shown_as in [None, Some(shown.to_owned())] {
        let name = if shown_as.is_none() { "a" } else { "b" };
        let volume = Volume::open(&reached, options(shown_as)).unwrap();
        let file = mapped(&volume, name);
        write(&volume, &file, 3, 9);
        volume.commit_all(Scope::All).unwrap();
        volume
            .rename(Path::new(name), Path::new("c"), collie_front::Existing::Replace)
            .unwrap();
        volume.close().unwrap();
    }
    let open = || Volume::open(&reached, options(Some(shown.to_owned())));
    let volume = open().unwrap();
    assert_eq!(version(&volume, "c", 3), 9);
    let error = volume.file(Path::new("missing")).unwrap_err();
    assert!(error.to_string().contains("/srv/shown/missing: "), "{error}");
    assert!(matches!(open().unwrap_err(), FrontError::Locked { path } if path == shown));
    volume.close().unwrap();
    // Also what the log says.
    std::fs::remove_dir_all(dir.path().join(".collie/log")).unwrap();
    let error = open().unwrap_err().to_string();
    assert!(
        error.contains("/srv/shown/.collie/log") && !error.contains("/proc"),
        "{error}"
    );
}
