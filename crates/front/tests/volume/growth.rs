//! Pages behind the committed end: after a crash each is whole, zeros, or not there, whatever became
//! of the file since it was synced.

use std::path::Path;
use std::sync::Arc;

use collie_front::{Existing, PageFile, Scope, Volume};
use collie_io::{Device, OpenMode};
use collie_sim::SimDevice;

use crate::small::{PAGE, cuts, device, mapped, open, version, write};

/// A plain file of four pages with version 1, synced.
fn plain(volume: &Volume, name: &str) -> Arc<PageFile> {
    let file = volume.create(Path::new(name)).unwrap();
    for page in 0..4 {
        write(volume, &file, page, 1);
    }
    volume.sync(&file).unwrap();
    volume.drain().unwrap();
    file
}

/// Writes pages twice, so that a crash may leave half of each version.
fn grow(volume: &Volume, file: &PageFile, pages: std::ops::Range<usize>) {
    for version in [7, 8] {
        for page in pages.clone() {
            write(volume, file, page, version);
        }
    }
}

/// Whatever a crash leaves of a file, none of its pages is a mix. Returns how many there are.
fn assert_whole(device: &SimDevice, name: &str, way: &str) -> usize {
    let volume = open(device);
    let Ok(file) = volume.file(Path::new(name)) else {
        return 0;
    };
    let mut found = vec![0; file.len() as usize];
    assert_eq!(volume.read_at(&file, &mut found, 0).unwrap(), found.len());
    for (number, page) in found.chunks(PAGE).enumerate() {
        let is_one = page.iter().all(|byte| *byte == page[0]);
        assert!(
            is_one,
            "{way}: page {number} of {name} is of more than one version"
        );
    }
    found.len().div_ceil(PAGE)
}

fn assert_all_whole(device: &SimDevice, name: &str) {
    cuts(device).for_each(|(way, device)| {
        assert_whole(&device, name, way);
    });
}

fn log_bytes(volume: &Volume) -> u64 {
    volume.status().log_bytes
}

#[test]
fn a_plain_file_that_was_cut_and_has_grown_again_is_whole() {
    for to in [0, 1, 3] {
        let device = device();
        let volume = open(&device);
        let file = plain(&volume, "a");
        volume.set_len(&file, (to * PAGE) as u64).unwrap();
        grow(&volume, &file, to..6);
        assert_all_whole(&device, "a");
    }
}

#[test]
fn a_plain_file_that_grows_is_whole() {
    let device = device();
    let volume = open(&device);
    let file = plain(&volume, "a");
    grow(&volume, &file, 4..8);
    for (way, device) in cuts(&device) {
        assert_eq!(assert_whole(&device, "a", way), 4, "{way}");
    }
}

#[test]
fn a_new_file_of_any_name_is_whole() {
    let device = device();
    let volume = open(&device);
    grow(&volume, &volume.create(Path::new("new")).unwrap(), 0..4);
    // Names that others had, by whatever they come.
    for name in ["made", "moved", "linked"] {
        let old = plain(&volume, name);
        drop(volume.create(Path::new("other")).unwrap());
        let (other, name) = (Path::new("other"), Path::new(name));
        drop(old);
        if name != Path::new("moved") {
            volume.unlink(name).unwrap();
        }
        match name.to_str().unwrap() {
            "made" => drop(volume.create(name).unwrap()),
            "moved" => volume.rename(other, name, Existing::Replace).unwrap(),
            _ => volume.link(other, name).unwrap(),
        }
        grow(&volume, &volume.file(name).unwrap(), 0..4);
        if name != Path::new("moved") {
            volume.unlink(other).unwrap();
        }
    }
    for name in ["new", "made", "moved", "linked"] {
        assert_all_whole(&device, name);
    }
}

#[test]
fn a_file_with_two_names_is_whole_by_either() {
    for is_linked_first in [true, false] {
        let device = device();
        let volume = open(&device);
        let file = volume.create(Path::new("a")).unwrap();
        let link = || volume.link(Path::new("a"), Path::new("b")).unwrap();
        if is_linked_first {
            link();
        }
        grow(&volume, &file, 0..4);
        if !is_linked_first {
            link();
        }
        assert_all_whole(&device, "a");
        assert_all_whole(&device, "b");
    }
}

#[test]
fn growth_by_zeros_waits_for_no_record_and_content_does() {
    let device = device();
    let volume = open(&device);
    let before = log_bytes(&volume);
    let file = volume.create(Path::new("a")).unwrap();
    write(&volume, &file, 0, 0);
    volume.set_len(&file, 3 * PAGE as u64).unwrap();
    volume.allocate(&file, 0, 4 * PAGE as u64).unwrap();
    assert_eq!(log_bytes(&volume), before);
    write(&volume, &file, 1, 5);
    let known = log_bytes(&volume);
    assert!(known > before);
    grow(&volume, &file, 0..8);
    assert_eq!(log_bytes(&volume), known, "once is enough");
    assert_all_whole(&device, "a");
}

#[test]
fn zeros_do_not_mix_with_what_a_crash_may_leave_uncut() {
    let device = device();
    let volume = open(&device);
    let file = plain(&volume, "a");
    volume.set_len(&file, PAGE as u64).unwrap();
    for page in 1..4 {
        write(&volume, &file, page, 0);
    }
    assert_all_whole(&device, "a");
}

#[test]
fn zeros_behind_a_found_file_do_not_mix_with_older_bytes() {
    let device = device();
    let volume = open(&device);
    let file = plain(&volume, "a");
    volume.set_len(&file, PAGE as u64).unwrap();
    // The next daemon has no record that the file was longer.
    let device = device.snapshot().process_death().device();
    let volume = open(&device);
    let file = volume.file(Path::new("a")).unwrap();
    assert_eq!(file.len(), PAGE as u64);
    for page in 1..4 {
        write(&volume, &file, page, 0);
    }
    assert_all_whole(&device, "a");
}

#[test]
fn the_log_knows_the_end_as_long_as_pages_are_behind_it() {
    let device = device();
    let volume = open(&device);
    let file = plain(&volume, "a");
    volume.set_len(&file, PAGE as u64).unwrap();
    grow(&volume, &file, 1..4);
    volume.drain().unwrap();
    volume.commit_all(Scope::Steady).unwrap();
    volume.checkpoint().unwrap();
    assert_all_whole(&device, "a");
    // The same of a recovered one.
    let device = device.snapshot().process_death().device();
    let volume = open(&device);
    let file = volume.file(Path::new("a")).unwrap();
    assert_eq!(file.len(), PAGE as u64);
    grow(&volume, &file, 1..4);
    volume.drain().unwrap();
    assert_all_whole(&device, "a");
}

#[test]
fn a_writer_behind_the_end_waits_while_the_mapping_ends() {
    let device = device();
    let volume = open(&device);
    let file = plain(&volume, "a");
    volume.set_len(&file, PAGE as u64).unwrap();
    grow(&volume, &file, 1..2);
    volume.set_len(&file, PAGE as u64).unwrap();
    let gate = device.hold_syncs();
    std::thread::scope(|scope| {
        let draining = scope.spawn(|| volume.drain());
        // Where nothing is to be synced it ends.
        while gate.at_once() == 0 && !draining.is_finished() {
            std::thread::yield_now();
        }
        let writing = scope.spawn(|| grow(&volume, &file, 1..4));
        gate.release();
        draining.join().unwrap().unwrap();
        writing.join().unwrap();
    });
    assert_all_whole(&device, "a");
}

#[test]
fn a_new_file_or_directory_that_a_crash_takes_is_no_loss() {
    let device = device();
    let volume = open(&device);
    device.create_dir_all(Path::new("/volume/dir")).unwrap();
    // The first one syncs the directory, for the sake of names that other files had.
    for name in ["dir/first", "dir/a"] {
        grow(&volume, &volume.create(Path::new(name)).unwrap(), 0..2);
    }
    let mut missing = 0;
    for (way, device) in cuts(&device) {
        missing += usize::from(device.lstat(Path::new("/volume/dir/a")).is_err());
        let volume = open(&device);
        assert_eq!(volume.recovered().gone, [] as [&Path; 0], "{way}");
        assert_eq!(
            (volume.status().missing, volume.recovered().mapped),
            (0, 0),
            "{way}"
        );
    }
    assert!(missing > 0, "no cut takes the name");
}

#[test]
fn a_quiet_file_that_has_grown_is_committed_and_plain() {
    let device = device();
    let volume = open(&device);
    let file = volume.create(Path::new("a")).unwrap();
    grow(&volume, &file, 0..4);
    // It was written to since the last look; and it is open.
    volume.settle_grown(true).unwrap();
    volume.settle_grown(false).unwrap();
    let left = device.snapshot().process_death().device();
    assert_eq!(assert_whole(&left, "a", "process death"), 0);
    drop(file);
    volume.settle_grown(false).unwrap();
    volume.settle_grown(false).unwrap();
    for (way, device) in cuts(&device) {
        assert_eq!(assert_whole(&device, "a", way), 4, "{way}");
    }
}

#[test]
fn a_map_that_is_closed_has_only_files_with_displaced_pages() {
    let device = device();
    let volume = open(&device);
    mapped(&volume, "a");
    grow(&volume, &volume.create(Path::new("b")).unwrap(), 0..4);
    volume.close().unwrap();
    // What is written without a volume is not cut.
    let home = device.open(Path::new("/volume/b"), OpenMode::ReadWrite).unwrap();
    collie_io::write_all_at(&*home, &[3; PAGE], 6 * PAGE as u64).unwrap();
    let volume = open(&device);
    assert_eq!((volume.recovered().mapped, volume.recovered().cut), (1, 0));
    assert_eq!((version(&volume, "b", 6), version(&volume, "a", 0)), (3, 2));
}

/// Its name is given to a new file, which the log knows to end at nothing before any sync of the directory. A
/// recovery that finds the old one by that name would cut it.
#[test]
fn a_renamed_file_is_not_cut_for_the_next_one_of_its_name() {
    for way_of_naming in ["renamed", "replaced", "linked", "killed"] {
        let device = device();
        let mut volume = open(&device);
        drop(plain(&volume, "a"));
        drop(volume.create(Path::new("empty")).unwrap());
        let (a, b, empty) = (Path::new("a"), Path::new("b"), Path::new("empty"));
        match way_of_naming {
            "linked" => {
                volume.link(a, b).unwrap();
                volume.unlink(a).unwrap();
            }
            _ => volume.rename(a, b, Existing::Replace).unwrap(),
        }
        if way_of_naming == "killed" {
            drop(volume);
            volume = open(&device);
        }
        match way_of_naming {
            "replaced" => volume.rename(empty, a, Existing::Replace).unwrap(),
            _ => drop(volume.create(a).unwrap()),
        }
        write(&volume, &volume.file(a).unwrap(), 0, 9);
        for (way, device) in cuts(&device) {
            let volume = open(&device);
            let is_there = [a, b].iter().any(|name| {
                let file = volume.file(name);
                file.is_ok_and(|file| {
                    file.len() == 4 * PAGE as u64 && {
                        let mut page = [0; PAGE];
                        volume.read_at(&file, &mut page, 0).unwrap();
                        page == [1; PAGE]
                    }
                })
            });
            assert!(is_there, "{way_of_naming}, {way}: what was synced is nowhere");
        }
    }
}

/// A page with the committed end in it is not committed with an end in the middle of what was written.
#[test]
fn the_last_page_of_a_file_that_ends_in_it_is_old_or_new() {
    let device = device();
    let volume = open(&device);
    let file = volume.create(Path::new("a")).unwrap();
    let short = [1; PAGE + 100];
    volume.write_at(&file, &short, 0).unwrap();
    volume.sync(&file).unwrap();
    write(&volume, &file, 1, 2);
    write(&volume, &file, 0, 2);
    volume.commit_all(Scope::Steady).unwrap();
    for (way, device) in cuts(&device) {
        let volume = open(&device);
        assert_eq!(version(&volume, "a", 0), 2, "{way}");
        let file = volume.file(Path::new("a")).unwrap();
        let mut found = vec![0; file.len() as usize];
        volume.read_at(&file, &mut found, 0).unwrap();
        assert_eq!(found[PAGE..], short[PAGE..], "{way}");
    }
    volume.sync(&file).unwrap();
    assert_eq!(version(&volume, "a", 1), 2);
}

/// Who made it may have died before it was durable.
#[test]
fn a_sync_makes_the_names_of_the_directories_above_durable() {
    let device = device();
    let volume = open(&device);
    for dir in ["/volume/base", "/volume/base/5"] {
        device.create_dir(Path::new(dir), 0o700).unwrap();
    }
    let file = volume.create(Path::new("base/5/a")).unwrap();
    write(&volume, &file, 0, 1);
    volume.sync(&file).unwrap();
    for (way, device) in cuts(&device) {
        assert_eq!(version(&open(&device), "base/5/a", 0), 1, "{way}");
    }
}
