//! Contents: pages and their versions, whatever way they are written.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use collie_front::{Left, Mount};
use collie_io::Policy;

use crate::{PAGE, mount, options, pages, write_page};

#[test]
fn a_page_that_is_overwritten_is_displaced_and_comes_home() {
    let Some(mut mounted) = mount() else { return };
    let path = mounted.path("base/1/16384");
    let file = mounted.relation("base/1/16384", &[1, 2, 3]);
    write_page(&file, 1, 9);
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(pages(&path), [1, 9, 3]);
    assert_eq!(mounted.daemon().volume().status().displaced, 1);
    assert_eq!(mounted.unmount(), Left::Displaced);
    assert_eq!(pages(&path), [1, 2, 3], "below the mount: the page before");
    mounted.mount_again();
    assert_eq!(pages(&path), [1, 9, 3]);
    mounted.daemon().volume().drain().unwrap();
    assert_eq!(mounted.unmount(), Left::AtHome);
    assert_eq!(pages(&path), [1, 9, 3]);
    assert!(!mounted.path("PG_VERSION").exists());
    mounted.mount_again();
    // It fails while it is used, and counts no more then.
    let file = fs::File::open(&path).unwrap();
    mounted.daemon().unmount_plain().unwrap_err();
    drop(file);
    assert_eq!(mounted.unmount(), Left::AtHome);
    mounted.mount_again();
    assert_eq!(mounted.unmount_plain(), Left::Plain);
    assert!(mounted.path("PG_VERSION").exists());
}

/// Scans, which the kernel reads ahead, take turns; their pages are the same by every policy.
#[test]
fn scans_that_take_turns_read_what_was_written() {
    for policy in [Policy::None, Policy::Fair, Policy::Classes] {
        let Some(mut mounted) = mount() else { return };
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(1024).collect();
        let paths = ["base/1/5", "base/1/6", "base/1/7", "base/1/8"].map(|name| {
            drop(mounted.relation(name, &bytes));
            mounted.path(name)
        });
        mounted.unmount();
        // What the kernel has of it is gone with the mount.
        mounted.mount_with(|options| {
            options.policy = policy;
            options.idle_slice = Duration::from_millis(2);
        });
        std::thread::scope(|scope| {
            for path in &paths {
                scope.spawn(|| assert!(pages(path) == bytes, "{policy:?}"));
            }
        });
        mounted.unmount();
    }
}

#[test]
fn other_files_are_written_in_place() {
    let Some(mut mounted) = mount() else { return };
    fs::create_dir(mounted.path("global")).unwrap();
    let path = mounted.path("global/pg_control");
    fs::write(&path, [1; 2 * PAGE]).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.sync_all().unwrap();
    write_page(&file, 0, 2);
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(mounted.daemon().volume().status().mapped, 0);
    mounted.unmount();
    assert_eq!(pages(&path), [2, 1]);
}

/// The sync that counts comes by a handle that wrote nothing.
#[test]
fn a_sync_is_of_the_file_and_not_of_the_handle() {
    let Some(mounted) = mount() else { return };
    let written = mounted.relation("base/1/5", &[1]);
    write_page(&written, 0, 2);
    let other = File::open(mounted.path("base/1/5")).unwrap();
    other.sync_all().unwrap();
    let status = mounted.daemon().volume().status();
    assert_eq!((status.dirty, status.displaced), (0, 1));
}

/// The kernel asks for a sync after such a write; some do not where it goes past the page cache.
#[test]
fn a_write_with_o_dsync_is_committed_when_it_returns() {
    #[repr(align(4096))]
    struct Aligned([u8; PAGE]);
    let Some(mounted) = mount() else { return };
    drop(mounted.relation("base/1/5", &[1, 1]));
    for (page, flags) in [(0, libc::O_DSYNC), (1, libc::O_DSYNC | libc::O_DIRECT)] {
        let mut options = OpenOptions::new();
        let options = options.write(true).custom_flags(flags);
        let file = options.open(mounted.path("base/1/5")).unwrap();
        file.write_all_at(&Aligned([2; PAGE]).0, page * PAGE as u64)
            .unwrap();
        let status = mounted.daemon().volume().status();
        assert_eq!((status.dirty, status.displaced as u64), (0, page + 1));
    }
}

#[test]
#[expect(unsafe_code, reason = "writes through a mapping")]
fn a_mapping_is_written_back_to_the_page_map() {
    let Some(mounted) = mount() else { return };
    let file = mounted.relation("base/1/5", &[1, 2]);
    {
        use collie_io::{Device, OpenMode, RealDevice};
        let opened = RealDevice::new().open(&mounted.path("base/1/5"), OpenMode::ReadWrite);
        let mapping = opened.unwrap().map(2 * PAGE).unwrap();
        // SAFETY: the second of two pages that are mapped; nothing else uses the mapping.
        unsafe { mapping.as_ptr().add(PAGE).write_bytes(7, PAGE) };
        // Before the mapping goes: the kernel would write back what is dirty then, while it keeps
        // others from changing the memory of this process, in which the daemon is.
        file.sync_all().unwrap();
    }
    assert_eq!(pages(&mounted.path("base/1/5")), [1, 7]);
    assert_eq!(mounted.daemon().volume().status().displaced, 1);
}

#[test]
fn lengths_follow_writes_truncations_and_allocations() {
    let Some(mut mounted) = mount() else { return };
    let path = mounted.path("base/1/5");
    let mut file = mounted.relation("base/1/5", &[1, 2, 3]);
    write_page(&file, 2, 4);
    file.sync_all().unwrap();
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 3 * PAGE as u64);
    file.set_len(PAGE as u64 + 100).unwrap();
    assert_eq!(file.metadata().unwrap().len(), PAGE as u64 + 100);
    file.set_len(3 * PAGE as u64).unwrap();
    let mut rest = Vec::new();
    file.seek(SeekFrom::Start(PAGE as u64 + 100)).unwrap();
    file.read_to_end(&mut rest).unwrap();
    assert!(
        rest.iter().all(|byte| *byte == 0),
        "what was cut off does not come back"
    );
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 5 * PAGE as u64).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 5 * PAGE as u64);
    let holes = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    let refused = rustix::fs::fallocate(&file, holes, 0, PAGE as u64);
    assert_eq!(refused, Err(rustix::io::Errno::OPNOTSUPP));
    file.sync_all().unwrap();
    drop(file);
    mounted.unmount();
    mounted.mount_again();
    assert_eq!(fs::metadata(&path).unwrap().len(), 5 * PAGE as u64);
    assert_eq!(fs::read(&path).unwrap()[..PAGE], [1; PAGE]);
}

#[test]
fn a_removed_file_lives_on_in_its_handle_and_its_name_is_free() {
    let Some(mounted) = mount() else { return };
    let path = mounted.path("base/1/5");
    let file = mounted.relation("base/1/5", &[1]);
    write_page(&file, 0, 2);
    file.sync_all().unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let other = mounted.relation("base/1/5", &[8, 9]);
    write_page(&file, 0, 3);
    file.sync_all().unwrap();
    let mut page = [0; PAGE];
    file.read_exact_at(&mut page, 0).unwrap();
    assert_eq!(page, [3; PAGE]);
    assert_eq!(pages(&path), [8, 9]);
    drop((file, other));
}

#[test]
fn a_read_only_file_is_read_and_not_written() {
    let Some(mounted) = mount() else { return };
    let path = mounted.path("base/1/5");
    drop(mounted.relation("base/1/5", &[1]));
    let mut permissions = fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&path, permissions).unwrap();
    assert_eq!(pages(&path), [1]);
}

#[test]
fn times_are_those_of_the_last_write_of_a_displaced_page() {
    let Some(mounted) = mount() else { return };
    let path = mounted.path("base/1/5");
    let file = mounted.relation("base/1/5", &[1, 1]);
    let past = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1000);
    file.set_modified(past).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), past);
    write_page(&file, 0, 2);
    file.sync_all().unwrap();
    assert!(fs::metadata(&path).unwrap().modified().unwrap() > past);

    // Nor is it while nothing is committed, whether a process has the file open or not.
    file.set_modified(past).unwrap();
    write_page(&file, 1, 3);
    drop(file);
    // The kernel reports the closing to the daemon some time later.
    for _ in 0..500 {
        let force = rustix::fs::AtFlags::STATX_FORCE_SYNC;
        let found = rustix::fs::statx(rustix::fs::CWD, &path, force, rustix::fs::StatxFlags::MTIME);
        assert!(found.unwrap().stx_mtime.tv_sec > 1000);
    }
}

#[test]
fn a_large_write_from_any_offset_is_whole() {
    let Some(mounted) = mount() else { return };
    let mut file = mounted.relation("base/1/5", &[]);
    let bytes: Vec<u8> = (0..3 << 20).map(|at: u32| (at % 251) as u8).collect();
    file.write_all(&bytes).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(&bytes[7..], 5).unwrap();
    file.sync_all().unwrap();
    let mut expected = bytes.clone();
    expected[5..5 + bytes.len() - 7].copy_from_slice(&bytes[7..]);
    assert!(fs::read(mounted.path("base/1/5")).unwrap() == expected);
    assert!(file.as_raw_fd() > 0);
}

/// Every handle of a relation goes through the page map, also where others open and close it. What
/// one that did not would append, the others would not see.
#[test]
fn a_relation_that_many_open_at_once_is_one_file() {
    const THREADS: usize = 8;
    const ROUNDS: usize = 400;
    let Some(mounted) = mount() else { return };
    let path = mounted.path("base/1/5");
    drop(mounted.relation("base/1/5", &[1]));
    let (appends, together) = (Mutex::new(()), Barrier::new(THREADS));
    let unseen = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    // Nobody has it open, and all open it.
                    together.wait();
                    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
                    let append = appends.lock().unwrap();
                    let len = file.metadata().unwrap().len();
                    file.write_all_at(&[7; PAGE], len).unwrap();
                    let is_seen = file.metadata().unwrap().len() == len + PAGE as u64;
                    unseen.fetch_add(u32::from(!is_seen), Ordering::Relaxed);
                    drop((append, file));
                    together.wait();
                }
            });
        }
    });
    assert_eq!(unseen.into_inner(), 0, "pages that were appended and not seen");
    let len = fs::metadata(&path).unwrap().len();
    assert_eq!(len, ((1 + THREADS * ROUNDS) * PAGE) as u64);
}

/// A server removes files that others have open; what is asked of an open file needs no name.
#[test]
fn attributes_of_an_open_file_are_set_without_a_name() {
    let Some(mounted) = mount() else { return };
    for name in ["base/1/5", "base/1/plain"] {
        let (file, path) = (mounted.relation(name, &[1, 2]), mounted.path(name));
        write_page(&file, 0, 3);
        file.sync_all().unwrap();
        let gid = file.metadata().unwrap().gid();
        for round in 0..2 {
            let mode = 0o640 >> round;
            file.set_permissions(fs::Permissions::from_mode(mode)).unwrap();
            let time = UNIX_EPOCH + Duration::from_secs(1000 + round);
            file.set_modified(time).unwrap();
            std::os::unix::fs::fchown(&file, None, Some(gid)).unwrap();
            let found = file.metadata().unwrap();
            let links = 1 - round;
            assert_eq!(
                (found.mode() & 0o777, found.modified().unwrap(), found.nlink()),
                (mode, time, links),
                "{name}"
            );
            if round == 0 {
                fs::remove_file(&path).unwrap();
            }
        }
        let mut page = [0; PAGE];
        file.read_exact_at(&mut page, 0).unwrap();
        assert_eq!(page, [3; PAGE], "{name}");
    }
}

#[test]
fn a_relation_beyond_the_last_page_is_too_large() {
    let Some(mounted) = mount() else { return };
    let file = mounted.relation("base/1/5", &[1]);
    let end = (PAGE as u64) << 32;
    for refused in [file.write_all_at(&[1; PAGE], end), file.set_len(end + 1)] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::FileTooLarge);
    }
    write_page(&file, 0, 2);
    file.sync_all().unwrap();
    assert_eq!(pages(&mounted.path("base/1/5")), [2]);
}

/// How many of a file's pages the system's cache has.
fn cached(path: &Path, pages: usize) -> usize {
    let file = File::open(path).unwrap();
    let mut page = [0; PAGE];
    let is_there = |number: &usize| {
        let bufs = &mut [std::io::IoSliceMut::new(&mut page)];
        let flags = rustix::io::ReadWriteFlags::NOWAIT;
        rustix::io::preadv2(&file, bufs, (number * PAGE) as u64, flags) == Ok(PAGE)
    };
    (0..pages).filter(is_there).count()
}

#[test]
fn what_is_read_through_the_mount_is_not_cached_below_it() {
    let Some(mut mounted) = mount() else { return };
    const PAGES: usize = 1024;
    drop(mounted.relation("base/1/20001", &[7; PAGES]));
    mounted.unmount();
    let home = mounted.path("base/1/20001");
    let mut all = Vec::new();
    File::open(&home).unwrap().read_to_end(&mut all).unwrap();
    // What is yet to be written stays cached, and on a busy disk that takes long.
    File::open(&home).unwrap().sync_all().unwrap();
    if cached(&home, PAGES) < PAGES {
        println!("skipped: the file system does not say what is cached");
        return;
    }
    // Of the new mount's own cache nothing is there.
    mounted.mount = Some(Mount::new(mounted.dir.path(), &options()).unwrap());
    let mut read = Vec::new();
    File::open(&home).unwrap().read_to_end(&mut read).unwrap();
    assert!(read == all);
    mounted.unmount();
    let left = cached(&home, PAGES);
    assert!(left < PAGES / 8, "{left} of {PAGES} pages are cached at home");
}
