//! What is refused, and what is done all the same: damaged and missing files, files of other
//! volumes, a log that is full.

use std::path::Path;

use collie_front::{Existing, FrontError, PageFile, Scope, Volume};
use collie_io::{Device, OpenMode, read_exact_at, write_all_at};
use collie_sim::{Fault, FaultKind, SimDevice};

use crate::small::{PAGE, cuts, device, mapped, open, open_with, options, version, write};

fn refused(device: &SimDevice) -> FrontError {
    Volume::open(Path::new("/volume"), options(device, 16, 1 << 15)).unwrap_err()
}

/// Behind a file's durable end pages are written in place. What is left of a write that failed there
/// is not found by a process that starts after this one was killed.
#[test]
fn half_a_page_behind_the_end_is_cut_off_when_its_write_fails() {
    let device = device();
    let volume = open(&device);
    let file = volume.create(Path::new("a")).unwrap();
    volume.write_at(&file, &[1; PAGE], 0).unwrap();
    volume.sync(&file).unwrap();
    let home = device.open(Path::new("/volume/a"), OpenMode::Read).unwrap();
    // There is room for half of it.
    device.limit_space(Some(PAGE as u64 / 2));
    let refused = volume.write_at(&file, &[2; PAGE], PAGE as u64).unwrap_err();
    assert!(refused.is_full(), "{refused}");
    assert_eq!(home.stat().unwrap().len, PAGE as u64);
    assert_eq!(file.len(), PAGE as u64);
    device.limit_space(None);
    volume.write_at(&file, &[3; PAGE], PAGE as u64).unwrap();
    volume.sync(&file).unwrap();
    assert_eq!(home.stat().unwrap().len, 2 * PAGE as u64);
}

#[test]
fn pages_without_a_map_are_refused_before_there_is_another_one() {
    for lost in [&["MAP"][..], &["MAP", "shadow"]] {
        let device = device();
        let volume = open(&device);
        mapped(&volume, "a");
        volume.close().unwrap();
        let own = |name: &str| Path::new("/volume/.collie").join(name);
        let kept = device.open(&own("MAP"), OpenMode::Read).unwrap();
        let mut map = vec![0; kept.stat().unwrap().len as usize];
        read_exact_at(&*kept, &mut map, 0).unwrap();
        for name in lost {
            device.remove_file(&own(name)).unwrap();
        }
        let before = device.list(&own("")).unwrap();
        for _ in 0..2 {
            let error = refused(&device);
            assert!(error.to_string().contains("has a log and no MAP"), "{error}");
        }
        assert_eq!(device.list(&own("")).unwrap(), before, "nothing was made");
        if lost == ["MAP"] {
            // It is brought back.
            let file = device.open(&own("MAP"), OpenMode::CreateNew).unwrap();
            write_all_at(&*file, &map, 0).unwrap();
            assert_eq!(version(&open(&device), "a", 0), 2);
        } else {
            device.remove_dir_all(&own("log")).unwrap();
            assert_eq!(
                version(&open(&device), "a", 0),
                1,
                "a new volume over plain files"
            );
        }
    }
}

#[test]
fn a_directory_in_place_of_a_mapped_file_is_refused() {
    let device = device();
    let volume = open(&device);
    mapped(&volume, "a");
    drop(volume);
    let device = device.snapshot().process_death().device();
    device
        .rename(Path::new("/volume/a"), Path::new("/volume/b"))
        .unwrap();
    device.create_dir_all(Path::new("/volume/a")).unwrap();
    let error = refused(&device);
    assert!(error.to_string().starts_with("open /volume/a: "), "{error}");
    device.remove_dir(Path::new("/volume/a")).unwrap();
    device
        .rename(Path::new("/volume/b"), Path::new("/volume/a"))
        .unwrap();
    assert_eq!(version(&open(&device), "a", 0), 2);
}

#[test]
fn a_file_of_another_volume_is_refused() {
    let devices = [device(), device()];
    let volumes = [open_with(&devices[0], 1, 1 << 15), open(&devices[1])];
    let file = volumes[0].create(Path::new("a")).unwrap();
    write(&volumes[0], &file, 0, 1);
    let other = &volumes[1];
    let problems = [
        other.write_at(&file, &[1], 0),
        other.read_at(&file, &mut [1], 0).map(drop),
        other.sync(&file),
        other.set_len(&file, 0),
        other.allocate(&file, 0, 1),
        other.stat(&file).map(drop),
        other.set_times(&file, None, Some(1)),
    ];
    for problem in problems {
        let error = problem.unwrap_err().to_string();
        assert!(error.contains("belongs to another volume"), "{error}");
    }
    assert_eq!(version(&volumes[0], "a", 0), 1);
}

#[test]
fn the_largest_pages_are_whole_after_a_crash() {
    const LARGE: usize = 65_536;
    let device = device();
    let open = |device: &SimDevice| {
        let options = crate::support::options(device, LARGE, 4, 1 << 15);
        Volume::open(Path::new("/volume"), options).unwrap()
    };
    let volume = open(&device);
    let file = volume.create(Path::new("a")).unwrap();
    for version in 1..4 {
        volume.write_at(&file, &[version; 2 * LARGE], 0).unwrap();
        volume.sync(&file).unwrap();
    }
    // In two calls.
    volume
        .write_at(&file, &[7; LARGE / 2], LARGE as u64 * 3 / 2)
        .unwrap();
    volume.write_at(&file, &[7; LARGE / 2], LARGE as u64).unwrap();
    volume.commit_all(Scope::Steady).unwrap();
    for (way, device) in cuts(&device) {
        let volume = open(&device);
        let file = volume.file(Path::new("a")).unwrap();
        let mut found = vec![0; 2 * LARGE];
        assert_eq!(volume.read_at(&file, &mut found, 0).unwrap(), found.len());
        assert_eq!(found, [[3; LARGE], [7; LARGE]].concat(), "{way}");
    }
}

#[test]
fn a_part_of_a_damaged_page_is_not_returned() {
    let device = device();
    let volume = open(&device);
    let file = mapped(&volume, "a");
    let shadow = Path::new("/volume/.collie/shadow");
    let shadow = device.open(shadow, OpenMode::ReadWrite).unwrap();
    // Behind the header: the last byte of the first slot, which is the first page's.
    write_all_at(&*shadow, &[0xff], 4096 + PAGE as u64 - 1).unwrap();
    for len in [PAGE, 100] {
        let error = volume.read_at(&file, &mut vec![0; len], 0).unwrap_err();
        assert!(
            error.to_string().contains("page 0 of /volume/a in slot 0"),
            "{error}"
        );
    }
    assert_eq!(version(&volume, "a", 1), 2);
}

/// Lets the log be full at the next moment at which it takes a segment, once.
fn fill_once(device: &SimDevice) {
    for kind in [
        FaultKind::AllocateFails,
        FaultKind::OpenFails,
        FaultKind::RenameFails,
    ] {
        device.inject(Fault::new(kind).code(28).on("/log").once());
    }
}

/// Does `work` with a log that is full at some of its moments, each time after `before`.
fn with_a_full_log(volume: &Volume, device: &SimDevice, before: impl Fn(), work: impl Fn()) {
    let struck = |device: &SimDevice| device.fault_counts().values().sum::<u64>();
    for _ in 0..2_000 {
        before();
        fill_once(device);
        work();
        device.heal();
        if struck(device) >= 6 {
            return;
        }
    }
    panic!(
        "the log was never full: {:?} {:?}",
        volume.status(),
        device.fault_counts()
    );
}

fn displace(volume: &Volume, file: &PageFile) {
    write(volume, file, 0, 3);
    write(volume, file, 1, 3);
    volume.sync(file).unwrap();
}

#[test]
fn a_full_log_stops_no_renaming_and_no_removal() {
    let device = device();
    let volume = open_with(&device, 16, 1 << 13);
    let file = mapped(&volume, "a");
    with_a_full_log(
        &volume,
        &device,
        || displace(&volume, &file),
        || {
            for (from, to) in [("a", "b"), ("b", "a")] {
                let (from, to) = (Path::new(from), Path::new(to));
                volume.rename(from, to, Existing::Replace).unwrap();
            }
        },
    );
}

#[test]
fn a_full_log_stops_no_removal_of_a_name() {
    let device = device();
    let volume = open_with(&device, 16, 1 << 13);
    let (a, b) = (Path::new("a"), Path::new("b"));
    let file = mapped(&volume, "a");
    let before = || {
        volume.link(a, b).unwrap();
        displace(&volume, &file);
    };
    with_a_full_log(&volume, &device, before, || volume.unlink(b).unwrap());
    let removed = || {
        let file = mapped(&volume, "c");
        volume.unlink(Path::new("c")).unwrap();
        drop(file);
    };
    with_a_full_log(&volume, &device, removed, || volume.forget_removed().unwrap());
    assert_eq!(volume.status().removed, 0);
}

#[test]
fn a_drain_that_finds_the_log_full_leaves_nothing_out() {
    const PAGES: usize = 100;
    let device = device();
    let volume = open_with(&device, 128, 1 << 13);
    let file = volume.create(Path::new("a")).unwrap();
    let write_all = |version| {
        (0..PAGES).for_each(|page| write(&volume, &file, page, version));
        volume.sync(&file).unwrap();
    };
    write_all(1);
    let before = || {
        write_all(2);
        assert_eq!(volume.free_slots(), 128 - PAGES as u32);
    };
    with_a_full_log(&volume, &device, before, || {
        volume.drain().unwrap();
        assert_eq!(volume.free_slots(), 128);
    });
}

/// The room for displaced pages is not there; fewer pages are asked for then.
#[test]
fn a_shadow_file_that_did_not_fit_is_made_smaller() {
    let device = device();
    device.limit_space(Some(1 << 20));
    let opened = |slots| {
        Volume::open(
            Path::new("/volume"),
            crate::small::options(&device, slots, 1 << 15),
        )
    };
    for is_written in [false, true] {
        if is_written {
            // Without the call for room, which takes all of it or none here, zeros take what there is.
            device.inject(Fault::new(FaultKind::AllocateFails).on("/shadow"));
        }
        let refused = opened(4096).unwrap_err();
        assert!(
            refused.is_full() && refused.to_string().contains("shadow"),
            "{refused}"
        );
        let shadow = device.stat(Path::new("/volume/.collie/shadow")).unwrap();
        assert_eq!(shadow.len, 0, "what was taken is given back");
    }
    assert_eq!(device.fired(FaultKind::AllocateFails), 1);
    device.heal();
    let volume = opened(16).unwrap();
    assert_eq!(volume.free_slots(), 16);
    mapped(&volume, "a");
    volume.close().unwrap();
    device.limit_space(None);
    assert_eq!(
        opened(8).unwrap().free_slots(),
        14,
        "it does not shrink with pages in it"
    );
}
