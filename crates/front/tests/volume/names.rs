//! Names of files that have displaced pages: removed, renamed, with the directories above them,
//! linked, and used again.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use collie_front::{Existing, FrontError, PageFile, Volume};
use collie_io::Device;
use collie_sim::{Points, PowerCut, SimDevice};

use crate::small::{PAGE, cuts, device, mapped, open, open_with, version, write};

fn make_dir(device: &SimDevice, name: &str) {
    device.create_dir_all(&Path::new("/volume").join(name)).unwrap();
}

fn rename(volume: &Volume, from: &str, to: &str) {
    volume
        .rename(Path::new(from), Path::new(to), Existing::Replace)
        .unwrap();
}

fn unlink(volume: &Volume, name: &str) {
    volume.unlink(Path::new(name)).unwrap();
}

#[test]
fn a_directory_is_renamed_with_all_that_lies_below_it() {
    let device = device();
    for dir in ["d/e", "x"] {
        make_dir(&device, dir);
    }
    let volume = open(&device);
    let file = mapped(&volume, "d/a");
    mapped(&volume, "d/e/b");
    mapped(&volume, "x/c");
    let free = volume.free_slots();
    rename(&volume, "d", "n");
    assert_eq!(
        volume.free_slots(),
        free + 4,
        "what is not below it stays displaced"
    );
    for (way, device) in cuts(&device) {
        let volume = open(&device);
        assert!(volume.recovered().gone.is_empty(), "{way}");
        for name in ["n/a", "n/e/b", "x/c"] {
            assert_eq!(version(&volume, name, 0), 2, "{way}: {name}");
        }
    }
    write(&volume, &file, 0, 3);
    volume.sync(&file).unwrap();
    for (way, device) in cuts(&device) {
        assert_eq!(version(&open(&device), "n/a", 0), 3, "{way}");
    }
}

/// Where a file is after a crash, if it is anywhere, and the versions of its first and third page.
fn found(device: &SimDevice, names: [&str; 2]) -> Option<(String, u8, u8)> {
    let volume = open(device);
    let name = names
        .into_iter()
        .find(|name| volume.file(Path::new(name)).is_ok())?;
    let versions = (version(&volume, name, 0), version(&volume, name, 2));
    assert!(
        volume.recovered().gone.is_empty(),
        "{:?}",
        volume.recovered().gone
    );
    Some((name.to_owned(), versions.0, versions.1))
}

#[test]
fn a_crash_in_a_directorys_renaming_leaves_whole_files() {
    let device = device();
    make_dir(&device, "d/e");
    make_dir(&device, "x");
    let volume = open(&device);
    let files = ["d/a", "d/e/b"].map(|name| mapped(&volume, name));
    let renamed = Arc::new(AtomicBool::new(false));
    let is_renamed = Arc::clone(&renamed);
    // Relaxed: the device asks under its own lock, on this thread.
    device.tag_snapshots(move || u64::from(is_renamed.load(Ordering::Relaxed)));
    device.record(Points::Changes, usize::MAX);
    // To another directory, where the file's own directory is not what has to be synced.
    rename(&volume, "d", "x/n");
    renamed.store(true, Ordering::Relaxed);
    for file in &files {
        write(&volume, file, 2, 3);
        volume.sync(file).unwrap();
    }
    let snapshots = device.take_snapshots();
    assert!(snapshots.len() > 20, "{}", snapshots.len());
    for (number, snapshot) in snapshots.into_iter().enumerate() {
        let mut images = vec![("process death", snapshot.process_death())];
        for (way, cut) in PowerCut::WAYS {
            let mut image = snapshot.power_cut(cut, number as u64);
            image.clear_volatile();
            images.push((way, image));
        }
        for (way, image) in images {
            for names in [["d/a", "x/n/a"], ["d/e/b", "x/n/e/b"]] {
                let found = found(&image.device(), names);
                let (name, first, third) = found.unwrap_or_else(|| panic!("{number}, {way}: no {names:?}"));
                assert!(
                    first == 2 && matches!(third, 1 | 3),
                    "{number}, {way}: {first}, {third}"
                );
                assert!(snapshot.tag() == 0 || name == names[1], "{number}, {way}: {name}");
            }
        }
    }
    for names in [["d/a", "x/n/a"], ["d/e/b", "x/n/e/b"]] {
        for (way, device) in cuts(&device) {
            let now = (names[1].to_owned(), 2, 3);
            assert_eq!(found(&device, names), Some(now), "{way}");
        }
    }
}

/// Whether `work` ends before `release`, which is called in any case. If it waits for that it would
/// do so for ever: the time only bounds how long a failure takes.
fn ends_before(release: impl FnOnce(), work: impl FnOnce() + Send) -> bool {
    std::thread::scope(|scope| {
        let (done, is_done) = mpsc::channel();
        scope.spawn(move || {
            work();
            let _ = done.send(());
        });
        let ended = is_done.recv_timeout(Duration::from_secs(60)).is_ok();
        release();
        ended
    })
}

#[test]
fn a_renaming_ends_though_pages_are_written_all_the_time() {
    let device = device();
    make_dir(&device, "d");
    let volume = open(&device);
    let file = mapped(&volume, "d/a");
    let write_all = || (0..4).for_each(|page| write(&volume, &file, page, 7));
    let renames: [&(dyn Fn() + Sync); 2] = [&|| rename(&volume, "d", "n"), &|| {
        // One of two names is removed.
        volume.link(Path::new("n/a"), Path::new("b")).unwrap();
        unlink(&volume, "b");
    }];
    for renaming in renames {
        // The first two pages are displaced, the others are not: so not all come home at once.
        volume.sync(&file).unwrap();
        volume.drain().unwrap();
        write(&volume, &file, 0, 7);
        write(&volume, &file, 1, 7);
        volume.sync(&file).unwrap();
        write_all();
        let gate = device.hold_syncs();
        let mut rounds = 0;
        std::thread::scope(|scope| {
            let renaming = scope.spawn(renaming);
            while !renaming.is_finished() {
                if gate.at_once() == 0 {
                    std::thread::yield_now();
                    continue;
                }
                rounds += 1;
                if rounds < 40 {
                    // Writers may be waiting until it has ended: then it is of no use to wait for them.
                    let written = scope.spawn(write_all);
                    (0..400).take_while(|_| !written.is_finished()).for_each(|_| {
                        std::thread::sleep(Duration::from_micros(500));
                    });
                }
                gate.let_through();
            }
        });
        assert!(rounds < 40, "it waits for a pause of the writers");
    }
}

#[test]
fn a_renaming_beside_writers_and_syncs_is_followed_by_records() {
    let device = device();
    make_dir(&device, "d");
    const PAGES: usize = 8;
    let open = |device: &SimDevice| open_with(device, 9 * PAGES as u32, 1 << 15);
    let volume = open(&device);
    let files = ["d/a", "d/b", "c"].map(|name| {
        let file = mapped(&volume, name);
        (4..PAGES).for_each(|page| write(&volume, &file, page, 1));
        volume.sync(&file).unwrap();
        file
    });
    device.record(Points::Syncs, 40);
    let is_over = AtomicBool::new(false);
    // Relaxed: it only ends loops.
    let goes_on = || !is_over.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| {
                for n in (0..).take_while(|_| goes_on()) {
                    write(&volume, file, n % PAGES, n as u8);
                }
            });
            scope.spawn(|| {
                while goes_on() {
                    volume.sync(file).unwrap();
                }
            });
        }
        for (from, to) in [("d", "n"), ("n", "d")].into_iter().cycle().take(8) {
            rename(&volume, from, to);
            rename(&volume, "c", "c2");
            rename(&volume, "c2", "c");
            // One of two names is removed.
            volume.link(Path::new("c"), Path::new("c2")).unwrap();
            unlink(&volume, "c2");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    for (number, snapshot) in device.take_snapshots().into_iter().enumerate() {
        let volume = open(&snapshot.process_death().device());
        let gone = &volume.recovered().gone;
        assert!(gone.is_empty(), "{number}: records say where {gone:?} was");
    }
    for (name, file) in ["d/a", "d/b", "c"].into_iter().zip(&files) {
        (0..PAGES).for_each(|page| write(&volume, file, page, 200));
        volume.sync(file).unwrap();
        let volume = open(&device.snapshot().process_death().device());
        assert!(volume.recovered().gone.is_empty());
        (0..PAGES).for_each(|page| assert_eq!(version(&volume, name, page), 200));
    }
}

#[test]
fn a_name_that_is_taken_is_kept_where_that_is_asked() {
    let device = device();
    let volume = open(&device);
    mapped(&volume, "a");
    mapped(&volume, "b");
    let keep = |to: &str| volume.rename(Path::new("a"), Path::new(to), Existing::Keep);
    let error = keep("b").unwrap_err();
    assert!(
        matches!(&error, FrontError::Io { source, .. } if source.kind() == ErrorKind::AlreadyExists),
        "{error}"
    );
    assert_eq!(volume.free_slots(), 12, "nothing was drained for it");
    keep("c").unwrap();
    assert_eq!((version(&volume, "b", 0), version(&volume, "c", 0)), (2, 2));
    // Its own name is no other one.
    rename(&volume, "c", "c");
    assert_eq!(version(&volume, "c", 0), 2);
}

#[test]
fn nothing_of_a_removed_file_is_applied_to_the_next_at_its_path() {
    let device = device();
    for dir in ["d", "n"] {
        make_dir(&device, dir);
    }
    let volume = open(&device);
    for old in ["n/x", "d/y", "z"] {
        mapped(&volume, old);
        unlink(&volume, old);
    }
    assert_eq!(volume.status().removed, 3);
    device.remove_dir(Path::new("/volume/n")).unwrap();
    let other = volume.create(Path::new("d/x")).unwrap();
    (0..4).for_each(|page| write(&volume, &other, page, 8));
    volume.sync(&other).unwrap();
    rename(&volume, "d", "n");
    assert_eq!(volume.status().removed, 1);
    volume.link(Path::new("n/x"), Path::new("z")).unwrap();
    let device = device.snapshot().process_death().device();
    let volume = open(&device);
    for name in ["n/x", "z"] {
        assert_eq!(version(&volume, name, 0), 8);
    }
}

#[test]
fn a_directory_in_place_of_a_removed_file_is_none_of_its_pages() {
    let device = device();
    make_dir(&device, "d");
    let volume = open(&device);
    for name in ["a", "d/b"] {
        mapped(&volume, name);
        unlink(&volume, name);
    }
    device.remove_dir(Path::new("/volume/d")).unwrap();
    let full = |name: &str| Path::new("/volume").join(name);
    volume.free_name(Path::new("a")).unwrap();
    device.create_dir(&full("a"), 0o700).unwrap();
    let other = mapped(&volume, "b");
    // Through it a path of a removed file leads to another one.
    volume.free_name(Path::new("d")).unwrap();
    device.symlink(Path::new("."), &full("d")).unwrap();
    assert_eq!(volume.status().removed, 0);
    (0..4).for_each(|page| write(&volume, &other, page, 9));
    volume.sync(&other).unwrap();
    let volume = open(&device.snapshot().process_death().device());
    assert_eq!((version(&volume, "b", 0), version(&volume, "b", 3)), (9, 9));
}

#[test]
fn a_file_has_its_pages_by_both_of_its_names() {
    let device = device();
    let volume = open(&device);
    let file = mapped(&volume, "a");
    volume.link(Path::new("a"), Path::new("b")).unwrap();
    assert_eq!(version(&volume, "b", 0), 2);
    unlink(&volume, "a");
    write(&volume, &file, 0, 3);
    assert!(volume.file(Path::new("b")).is_ok());
    volume.sync(&file).unwrap();
    for (way, device) in cuts(&device) {
        assert_eq!(version(&open(&device), "b", 0), 3, "{way}");
    }
    unlink(&volume, "b");
    assert_eq!(volume.status().removed, 1);
}

#[test]
fn the_removal_of_a_symbolic_link_leaves_what_it_leads_to() {
    let device = device();
    let volume = open(&device);
    let file = mapped(&volume, "a");
    for link in ["l", "m"] {
        device
            .symlink(Path::new("a"), &Path::new("/volume").join(link))
            .unwrap();
    }
    let error = volume.file(Path::new("l")).unwrap_err();
    assert!(error.to_string().contains("symbolic link"), "{error}");
    rename(&volume, "l", "k");
    rename(&volume, "k", "m");
    unlink(&volume, "m");
    assert_eq!((volume.free_slots(), volume.status().removed), (14, 0));
    write(&volume, &file, 0, 3);
    volume.sync(&file).unwrap();
    let volume = open(&device.snapshot().process_death().device());
    assert_eq!(version(&volume, "a", 0), 3);
}

#[test]
fn a_name_waits_for_no_other_one() {
    let device = device();
    let volume = open(&device);
    drop(volume.create(Path::new("a")).unwrap());
    mapped(&volume, "b");
    unlink(&volume, "b");
    let gate = device.hold_syncs();
    std::thread::scope(|scope| {
        let forgetting = scope.spawn(|| volume.forget_removed());
        gate.wait_for(1);
        let again = scope.spawn(|| volume.create(Path::new("b")).map(drop));
        let others = ends_before(
            || gate.release(),
            || {
                volume.file(Path::new("a")).unwrap();
                volume.create(Path::new("c")).unwrap();
                rename(&volume, "c", "d");
                volume.link(Path::new("d"), Path::new("e")).unwrap();
                unlink(&volume, "e");
            },
        );
        again.join().unwrap().unwrap();
        forgetting.join().unwrap().unwrap();
        assert!(others, "it waits for the removal of another file");
    });
    assert_eq!(volume.free_slots(), 16);
}

/// The version of a page by a handle, whose file may have no name.
fn read(volume: &Volume, file: &PageFile, page: usize) -> u8 {
    let mut found = [0; PAGE];
    let len = volume.read_at(file, &mut found, (page * PAGE) as u64).unwrap();
    assert_eq!(len, PAGE);
    assert!(found.iter().all(|byte| *byte == found[0]));
    found[0]
}

#[test]
fn a_removed_file_that_is_open_leaves_the_slots_to_others() {
    let device = device();
    let volume = open(&device);
    // Removed while it is mapped, removed while it is plain, and replaced.
    let files = ["a", "b", "c"].map(|name| mapped(&volume, name));
    volume.drain().unwrap();
    write(&volume, &files[0], 0, 3);
    volume.sync(&files[0]).unwrap();
    drop(volume.create(Path::new("new")).unwrap());
    unlink(&volume, "a");
    unlink(&volume, "b");
    rename(&volume, "new", "c");
    for file in &files {
        write(&volume, file, 1, 4);
        write(&volume, file, 3, 4);
        // A part of a page, and one behind the end.
        volume.write_at(file, &[4; 10], 2 * PAGE as u64).unwrap();
        write(&volume, file, 5, 4);
    }
    assert!(volume.free_slots() < 8);
    volume.forget_removed().unwrap();
    assert_eq!((volume.free_slots(), volume.status().removed), (16, 0));
    for (file, first) in files.iter().zip([3, 2, 2]) {
        write(&volume, file, 4, 5);
        let found = [0, 1, 3, 4, 5].map(|page| read(&volume, file, page));
        assert_eq!(found, [first, 4, 4, 5, 4]);
        let mut part = [0; 20];
        volume.read_at(file, &mut part, 2 * PAGE as u64).unwrap();
        assert_eq!(part, [[4; 10], [1; 10]].concat()[..]);
        (0..6).for_each(|page| write(&volume, file, page, 6));
        volume.sync(file).unwrap();
        volume.set_len(file, PAGE as u64).unwrap();
        assert_eq!((read(&volume, file, 0), file.len()), (6, PAGE as u64));
    }
    assert_eq!(volume.free_slots(), 16);
    for (way, device) in cuts(&device) {
        let volume = open(&device);
        for name in ["a", "b"] {
            assert!(
                volume.file(Path::new(name)).is_err(),
                "{way}: {name} is there again"
            );
        }
        assert!(volume.file(Path::new("c")).unwrap().is_empty(), "{way}");
    }
}

#[test]
fn a_removed_file_needs_no_more_slots_than_there_are() {
    let device = device();
    let volume = open(&device);
    let file = volume.create(Path::new("a")).unwrap();
    (0..40).for_each(|page| write(&volume, &file, page, 1));
    volume.sync(&file).unwrap();
    unlink(&volume, "a");
    for round in 2..5 {
        (0..40).for_each(|page| write(&volume, &file, page, round));
        (0..40).for_each(|page| assert_eq!(read(&volume, &file, page), round));
    }
    assert_eq!(volume.free_slots(), 16);
}

#[test]
fn a_removed_file_is_not_written_in_place_too_early() {
    let device = device();
    let volume = open(&device);
    let file = mapped(&volume, "a");
    volume.drain().unwrap();
    unlink(&volume, "a");
    let gate = device.hold_syncs();
    std::thread::scope(|scope| {
        let forgetting = scope.spawn(|| volume.forget_removed());
        while gate.at_once() == 0 && !forgetting.is_finished() {
            std::thread::yield_now();
        }
        (0..4).for_each(|page| write(&volume, &file, page, 7));
        for (way, device) in cuts(&device) {
            let volume = open(&device);
            if volume.file(Path::new("a")).is_ok() {
                let found = [0, 1, 2, 3].map(|page| version(&volume, "a", page));
                assert_eq!(found, [2, 2, 1, 1], "{way}");
            }
        }
        gate.release();
        forgetting.join().unwrap().unwrap();
    });
    assert_eq!(volume.free_slots(), 16);
}
