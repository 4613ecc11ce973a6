//! What a file system's daemon asks of a device: the same tests on the real one and on the simulated
//! one.

#![expect(clippy::unwrap_used, reason = "a test ends where its assumptions do")]

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use collie_io::{Device, FileKind, OpenMode, RealDevice, write_all_at};
use collie_sim::{Fault, FaultKind, PowerCut, SimDevice};

const LOST: PowerCut = PowerCut::WAYS[0].1;
/// More than the kernel's clock of files counts in.
const MOMENT: Duration = Duration::from_millis(20);

/// Runs a test on both devices; the function passes a moment.
fn on_both(test: impl Fn(&dyn Device, &Path, &dyn Fn())) {
    let dir = tempfile::tempdir().unwrap();
    test(&RealDevice::new(), dir.path(), &|| std::thread::sleep(MOMENT));
    let sim = SimDevice::new(1);
    sim.create_dir_all(Path::new("/root")).unwrap();
    let clock = sim.sim_clock().clone();
    test(&sim, Path::new("/root"), &|| {
        clock.advance(u64::try_from(MOMENT.as_nanos()).unwrap());
    });
}

#[test]
fn links_of_both_kinds_lead_to_their_files() {
    on_both(|device, root, _| {
        let file = device.open(&root.join("a"), OpenMode::CreateNew).unwrap();
        write_all_at(&*file, b"content", 0).unwrap();
        device.hard_link(&root.join("a"), &root.join("b")).unwrap();
        assert_eq!(file.stat().unwrap().links, 2);
        device.symlink(Path::new("b"), &root.join("s")).unwrap();
        assert_eq!(device.read_link(&root.join("s")).unwrap(), Path::new("b"));
        let (link, through) = (
            device.lstat(&root.join("s")).unwrap(),
            device.stat(&root.join("s")).unwrap(),
        );
        assert_eq!((link.kind, link.len), (FileKind::Symlink, 1));
        assert_eq!((through.kind, through.len), (FileKind::File, 7));
        assert_eq!(through.ino, file.stat().unwrap().ino);
        device.remove_file(&root.join("b")).unwrap();
        assert_eq!(file.stat().unwrap().links, 1);
        let gone = device.open(&root.join("s"), OpenMode::Read).unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
        drop(device.open(&root.join("s"), OpenMode::OpenOrCreate).unwrap());
        assert_eq!(device.stat(&root.join("b")).unwrap().len, 0);
        let names = device.list(root).unwrap().into_iter();
        let names: Vec<_> = names.map(|entry| (entry.name, entry.kind)).collect();
        let expected = [
            ("a", FileKind::File),
            ("b", FileKind::File),
            ("s", FileKind::Symlink),
        ];
        assert_eq!(names, expected.map(|(name, kind)| (name.to_owned(), kind)));
    });
}

#[test]
fn directories_are_made_and_removed_one_by_one() {
    on_both(|device, root, _| {
        let (above, below) = (root.join("d"), root.join("d/e"));
        let missing = device.create_dir(&below, 0o700).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        device.create_dir(&above, 0o711).unwrap();
        device.create_dir(&below, 0o700).unwrap();
        assert_eq!(device.stat(&above).unwrap().mode, 0o711);
        let twice = device.create_dir(&above, 0o700).unwrap_err();
        assert_eq!(twice.kind(), ErrorKind::AlreadyExists);
        let full = device.remove_dir(&above).unwrap_err();
        assert_eq!(full.kind(), ErrorKind::DirectoryNotEmpty);
        let within = device.rename(&above, &below.join("d")).unwrap_err();
        assert_eq!(within.raw_os_error(), Some(libc::EINVAL));
        device.remove_dir(&below).unwrap();
        device.remove_dir(&above).unwrap();
        assert_eq!(device.remove_dir(&above).unwrap_err().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn a_new_name_replaces_nothing() {
    on_both(|device, root, _| {
        let [a, b, c] = ["a", "b", "c"].map(|name| root.join(name));
        for path in [&a, &b] {
            device.open(path, OpenMode::CreateNew).unwrap();
        }
        let taken = device.rename_new(&a, &b).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AlreadyExists);
        device.rename_new(&a, &c).unwrap();
        assert_eq!(device.rename_new(&a, &c).unwrap_err().kind(), ErrorKind::NotFound);
        device.rename(&c, &b).unwrap();
        assert_eq!(device.list(root).unwrap().len(), 1);
    });
}

#[test]
fn times_follow_what_happens_to_a_file() {
    on_both(|device, root, pass| {
        let path = root.join("a");
        let file = device.open(&path, OpenMode::CreateNew).unwrap();
        let made = file.stat().unwrap();
        assert!(made.mtime > 1_600_000_000_000_000_000, "{made:?}");
        let names = || device.stat(root).unwrap().mtime;
        let before = names();
        pass();
        write_all_at(&*file, b"x", 0).unwrap();
        let written = file.stat().unwrap();
        assert!(
            written.mtime > made.mtime && written.ctime > made.ctime,
            "{written:?}"
        );
        assert_eq!(names(), before, "a directory's names have not changed");
        pass();
        device.set_mode(&path, 0o640).unwrap();
        let changed = file.stat().unwrap();
        assert_eq!((changed.mtime, changed.mode), (written.mtime, 0o640));
        assert!(changed.ctime > written.ctime);
        device.set_times(&path, Some(-7), None).unwrap();
        let set = file.stat().unwrap();
        assert_eq!((set.atime, set.mtime), (-7, written.mtime));
        device.set_times(&path, None, Some(1_000_000_007)).unwrap();
        let set = file.stat().unwrap();
        assert_eq!((set.atime, set.mtime), (-7, 1_000_000_007));
        file.set_times(Some(-1), None).unwrap();
        file.set_times(None, Some(8)).unwrap();
        let set = file.stat().unwrap();
        assert_eq!((set.atime, set.mtime), (-1, 8));
        device.symlink(Path::new("a"), &root.join("link")).unwrap();
        let refused = device.set_mode(&root.join("link"), 0o777).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EOPNOTSUPP));
        file.set_mode(0o604).unwrap();
        assert_eq!(device.stat(&path).unwrap().mode, 0o604);
        pass();
        device.rename(&path, &root.join("b")).unwrap();
        assert!(names() > before);
        let owner = file.stat().unwrap();
        device
            .set_owner(&root.join("b"), Some(owner.uid), Some(owner.gid))
            .unwrap();
        assert_eq!(file.stat().unwrap().uid, device.uid());
        device.remove_file(&root.join("b")).unwrap();
        file.set_mode(0o600).unwrap();
        file.set_owner(None, Some(owner.gid)).unwrap();
        let left = file.stat().unwrap();
        assert_eq!((left.mode, left.uid, left.gid), (0o600, owner.uid, owner.gid));
    });
}

#[test]
fn room_is_taken_anywhere_in_a_file_and_told() {
    on_both(|device, root, _| {
        let file = device.open(&root.join("a"), OpenMode::CreateNew).unwrap();
        write_all_at(&*file, b"begin", 0).unwrap();
        if let Err(e) = file.allocate_range(1 << 20, 1 << 16) {
            // Some file systems cannot do that.
            assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
            return;
        }
        let stat = file.stat().unwrap();
        assert_eq!(stat.len, (1 << 20) + (1 << 16));
        assert!((1 << 7..1 << 11).contains(&stat.blocks), "{} blocks", stat.blocks);
        file.allocate_range(0, 1 << 12).unwrap();
        assert_eq!(file.stat().unwrap().len, stat.len);
        let mut begin = [0; 5];
        file.read_at(&mut begin, 0).unwrap();
        assert_eq!(&begin, b"begin");
        file.sync_range(0, 1 << 20).unwrap();
        file.sync_all().unwrap();
        let room = device.statfs(root).unwrap();
        assert!(room.block_size >= 512 && room.blocks > 0, "{room:?}");
        assert!(
            room.available <= room.free && room.free <= room.blocks,
            "{room:?}"
        );
        assert!(room.free_files <= room.files, "{room:?}");
    });
}

#[test]
fn a_power_cut_takes_links_without_a_directory_sync() {
    let device = SimDevice::new(1);
    let root = Path::new("/");
    let file = device.open(&root.join("a"), OpenMode::CreateNew).unwrap();
    write_all_at(&*file, b"content", 0).unwrap();
    file.sync_all().unwrap();
    device.hard_link(&root.join("a"), &root.join("kept")).unwrap();
    device.symlink(Path::new("kept"), &root.join("link")).unwrap();
    device.sync_dir(root).unwrap();
    device.hard_link(&root.join("a"), &root.join("lost")).unwrap();
    device
        .symlink(Path::new("kept"), &root.join("lost link"))
        .unwrap();
    device.set_mode(&root.join("a"), 0o644).unwrap();
    device.remove_file(&root.join("a")).unwrap();
    let after = device.snapshot().power_cut(LOST, 7).device();
    let names = after.list(root).unwrap().into_iter().map(|entry| entry.name);
    assert_eq!(names.collect::<Vec<_>>(), ["a", "dev", "kept", "link"]);
    let stat = after.stat(&root.join("link")).unwrap();
    assert_eq!((stat.len, stat.links, stat.mode), (7, 2, 0o644));
    let both = device.snapshot().power_cut(PowerCut::WAYS[1].1, 7).device();
    let names = both.list(root).unwrap().into_iter().map(|entry| entry.name);
    let expected = ["dev", "kept", "link", "lost", "lost link"];
    assert_eq!(names.collect::<Vec<_>>(), expected);
    assert_eq!(both.stat(&root.join("lost")).unwrap().links, 2);
}

#[test]
fn faults_strike_what_is_done_to_names_and_attributes() {
    let device = SimDevice::new(1);
    let path = Path::new("/a");
    let file = device.open(path, OpenMode::CreateNew).unwrap();
    device.inject(Fault::new(FaultKind::AnyFails));
    let refused = [
        device.set_mode(path, 0o640),
        device.set_times(path, None, Some(1)),
        file.set_times(None, Some(1)),
        file.set_mode(0o640),
        file.set_owner(None, Some(1)),
        device.hard_link(path, Path::new("/b")),
        device.symlink(path, Path::new("/c")),
        device.rename_new(path, Path::new("/d")),
        device.create_dir(Path::new("/e"), 0o700),
    ];
    for result in refused {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EIO));
    }
    device.heal();
    assert_eq!(device.list(Path::new("/")).unwrap().len(), 2, "/a and /dev");
    assert_eq!(device.stat(path).unwrap().mode, 0o600);
}
