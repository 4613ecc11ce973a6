//! The file system that forgets, checked against itself before anything is checked by it. It needs
//! `/dev/fuse` and the right to mount; where they are missing the tests say so and pass, unless
//! `COLLIE_REQUIRE_TOOLS` is set.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test ends where its assumptions do, says what it skips, and uses files as any program does"
)]

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use collie_io::{BLOCK, Device, OpenMode, RealDevice};
use collie_sim::faultfs::{self, FaultFs, Moment, Names, Trap};
use collie_sim::{Data, Effects, Fault, FaultKind, Keep, OpKind, PowerCut, SECTOR};

const LOST: PowerCut = PowerCut::WAYS[0].1;
/// Long enough for whatever is expected to happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// A mounted file system in a directory of its own.
struct Mounted {
    fs: FaultFs,
    /// Goes after the file system.
    _dir: tempfile::TempDir,
}

fn mount(names: Names) -> Option<Mounted> {
    if let Err(missing) = faultfs::available() {
        assert!(std::env::var_os("COLLIE_REQUIRE_TOOLS").is_none(), "{missing}");
        println!("skipped: {missing}");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let fs = FaultFs::mount(dir.path(), names, 1).unwrap();
    Some(Mounted { fs, _dir: dir })
}

impl Mounted {
    fn path(&self, name: &str) -> PathBuf {
        self.fs.path().join(name)
    }

    fn cut(&mut self, how: PowerCut) -> Effects {
        self.fs.power_cycle(how, 7).unwrap()
    }

    /// What is in a file, if it is there.
    fn read(&self, name: &str) -> Option<Vec<u8>> {
        match fs::read(self.path(name)) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotFound);
                None
            }
        }
    }

    fn sync_dir(&self, name: &str) {
        File::open(self.path(name)).unwrap().sync_all().unwrap();
    }

    /// A file with durable content under a durable name.
    fn settled(&self, name: &str, content: &[u8]) -> File {
        let file = create(&self.path(name));
        file.write_all_at(content, 0).unwrap();
        file.sync_all().unwrap();
        self.sync_dir("");
        file
    }
}

fn create(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .unwrap()
}

#[test]
fn unsynced_data_is_lost_and_synced_data_is_kept() {
    let Some(mut disk) = mount(Names::Posix) else {
        return;
    };
    for (round, (way, how)) in PowerCut::WAYS.into_iter().enumerate() {
        let (synced, unsynced) = (format!("synced {round}"), format!("unsynced {round}"));
        let script = format!(
            "mkdir d{round} && printf %s '{synced}' > d{round}/a && sync d{round}/a d{round} . && \
             printf %s '{unsynced}' > d{round}/b"
        );
        let done = Command::new("sh")
            .arg("-ec")
            .arg(script)
            .current_dir(disk.fs.path())
            .status();
        assert!(done.unwrap().success());
        assert_eq!(disk.read(&format!("d{round}/b")).unwrap(), unsynced.as_bytes());
        let effects = disk.cut(how);
        for earlier in 0..=round {
            let there = disk.read(&format!("d{earlier}/a"));
            assert_eq!(there.unwrap(), format!("synced {earlier}").as_bytes(), "{way}");
        }
        match how.names {
            Keep::Lost => assert_eq!(disk.read(&format!("d{round}/b")), None, "{way}"),
            Keep::Kept if how.data == Data::Lost => {
                let left = disk.read(&format!("d{round}/b")).unwrap();
                assert!(left.iter().all(|&b| b == 0), "{way}: {left:?}");
            }
            _ => {}
        }
        assert!(
            effects.kept + effects.lost > 0,
            "{way}: nothing was open: {effects:?}"
        );
    }
}

#[test]
fn a_sync_of_a_file_keeps_its_name_only_with_a_journal() {
    for names in [Names::Posix, Names::Journal] {
        let Some(mut disk) = mount(names) else { return };
        let file = create(&disk.path("a"));
        file.write_all_at(b"content", 0).unwrap();
        file.sync_all().unwrap();
        drop(file);
        disk.cut(LOST);
        let kept = (names == Names::Journal).then(|| b"content".to_vec());
        assert_eq!(disk.read("a"), kept, "{names:?}");
    }
}

#[test]
fn a_journal_keeps_the_first_names_and_loses_the_last() {
    let Some(mut disk) = mount(Names::Journal) else {
        return;
    };
    let all = (0..16).map(|n| n.to_string()).collect::<Vec<_>>();
    let (mut fewest, mut most) = (all.len(), 0);
    for round in 0..12 {
        all.iter().for_each(|name| drop(create(&disk.path(name))));
        let how = PowerCut {
            data: Data::Lost,
            lengths: Keep::Lost,
            names: Keep::Any,
        };
        disk.fs.power_cycle(how, round).unwrap();
        let there = all.iter().take_while(|name| disk.path(name).exists()).count();
        assert_eq!(
            fs::read_dir(disk.fs.path()).unwrap().count(),
            there,
            "a later one without an earlier"
        );
        (fewest, most) = (fewest.min(there), most.max(there));
        all.iter()
            .take(there)
            .for_each(|name| fs::remove_file(disk.path(name)).unwrap());
        disk.sync_dir("");
    }
    assert!(fewest < 8 && most > 8, "between {fewest} and {most} of 16");
}

#[test]
fn a_renaming_is_there_or_not_and_never_in_part() {
    let Some(mut disk) = mount(Names::Posix) else {
        return;
    };
    let (mut old, mut new) = (0, 0);
    for round in 0..12 {
        disk.settled("new", b"new");
        fs::rename(disk.path("new"), disk.path("current")).unwrap();
        disk.sync_dir("");
        disk.settled("newer", b"newer");
        fs::rename(disk.path("newer"), disk.path("current")).unwrap();
        let how = PowerCut {
            data: Data::Lost,
            lengths: Keep::Lost,
            names: Keep::Any,
        };
        disk.fs.power_cycle(how, round).unwrap();
        match (disk.read("current").unwrap().as_slice(), disk.read("newer")) {
            (b"new", Some(content)) if content == b"newer" => old += 1,
            (b"newer", None) => new += 1,
            other => panic!("round {round}: {other:?}"),
        }
        let _ = fs::remove_file(disk.path("newer"));
    }
    assert!(old > 0 && new > 0, "old {old} times, new {new} times");
}

#[test]
fn a_renaming_into_another_directory_is_durable_with_that() {
    let Some(mut disk) = mount(Names::Posix) else {
        return;
    };
    for name in ["from", "to"] {
        fs::create_dir(disk.path(name)).unwrap();
    }
    disk.sync_dir("");
    for (synced, there) in [("from", "from/a"), ("to", "to/a")] {
        drop(disk.settled("from/a", b"content"));
        disk.sync_dir("from");
        fs::rename(disk.path("from/a"), disk.path("to/a")).unwrap();
        disk.sync_dir(synced);
        disk.cut(LOST);
        let names = ["from/a", "to/a"]
            .into_iter()
            .filter(|name| disk.path(name).exists());
        assert_eq!(names.collect::<Vec<_>>(), [there], "{synced} was synced");
        let _ = fs::remove_file(disk.path("from/a"));
    }
}

#[test]
fn an_unsynced_removal_can_be_undone() {
    let Some(mut disk) = mount(Names::Posix) else {
        return;
    };
    let mut file = disk.settled("a", b"content");
    fs::remove_file(disk.path("a")).unwrap();
    assert_eq!(disk.read("a"), None);
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "content");
    drop(file);
    disk.cut(LOST);
    assert_eq!(disk.read("a").unwrap(), b"content");
    fs::remove_file(disk.path("a")).unwrap();
    disk.sync_dir("");
    disk.cut(LOST);
    assert_eq!(disk.read("a"), None);
}

#[test]
fn a_durable_write_is_durable_and_makes_nothing_else_so() {
    let Some(mut disk) = mount(Names::Posix) else {
        return;
    };
    let device = RealDevice::new();
    let path = disk.path("log");
    let buffered = disk.settled("log", &[0; 4 * BLOCK]);
    buffered.write_all_at(&[1; BLOCK], 0).unwrap();
    let direct = device.open(&path, OpenMode::DirectSync).unwrap();
    let mut memory = vec![2; 3 * BLOCK];
    let at = memory.as_ptr().align_offset(BLOCK);
    let block = &mut memory[at..at + BLOCK];
    assert_eq!(direct.write_at(block, 2 * BLOCK as u64).unwrap(), BLOCK);
    let refused = direct.write_at(&block[..SECTOR], 0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    drop((buffered, direct));
    disk.cut(LOST);
    let left = disk.read("log").unwrap();
    let first = |n: usize| left[n * BLOCK];
    assert_eq!([first(0), first(1), first(2), first(3)], [0, 0, 2, 0]);

    // A sync that a program asks for after such writes is one.
    let buffered = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_DSYNC)
        .open(&path)
        .unwrap();
    let other = OpenOptions::new().write(true).open(&path).unwrap();
    other.write_all_at(&[3; BLOCK], 0).unwrap();
    buffered.write_all_at(&[4; BLOCK], BLOCK as u64).unwrap();
    buffered.sync_data().unwrap();
    drop((buffered, other));
    disk.cut(LOST);
    let left = disk.read("log").unwrap();
    assert_eq!([left[0], left[BLOCK]], [3, 4]);
}

#[test]
fn the_last_write_is_torn_at_sectors_and_at_blocks() {
    let Some(mut disk) = mount(Names::Posix) else {
        return;
    };
    for (data, unit) in [(Data::TornSectors, SECTOR), (Data::TornBlocks, BLOCK)] {
        let mut lengths = std::collections::BTreeSet::new();
        for round in 0..10 {
            let file = disk.settled("a", &[0; 8 * BLOCK]);
            file.write_all_at(&[1; 8 * BLOCK], 0).unwrap();
            drop(file);
            let how = PowerCut {
                data,
                lengths: Keep::Kept,
                names: Keep::Kept,
            };
            disk.fs.power_cycle(how, round).unwrap();
            let left = disk.read("a").unwrap();
            let whole = left.iter().take_while(|&&b| b == 1).count();
            assert!(left.iter().skip(whole).all(|&b| b == 0));
            assert_eq!(whole % unit, 0, "{data:?} cut off at {whole}");
            lengths.insert(whole);
            fs::remove_file(disk.path("a")).unwrap();
            disk.sync_dir("");
        }
        assert!(lengths.len() > 2, "{data:?}: {lengths:?}");
    }
}

/// Where the child of the test below finds its file.
const MAPPED: &str = "COLLIE_FAULTFS_MAPPED";

#[test]
fn mapped_writes_are_durable_once_synced() {
    // The process that serves a file system must not map its files, so that another one does.
    if let Some(path) = std::env::var_os(MAPPED) {
        return write_through_a_mapping(Path::new(&path));
    }
    let Some(mut disk) = mount(Names::Posix) else {
        return;
    };
    drop(disk.settled("a", &[0; 2 * BLOCK]));
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "mapped_writes_are_durable_once_synced"])
        .env(MAPPED, disk.path("a"))
        .status();
    assert!(child.unwrap().success());
    disk.cut(LOST);
    let left = disk.read("a").unwrap();
    assert_eq!([left[0], left[BLOCK]], [1, 0]);
}

fn write_through_a_mapping(path: &Path) {
    let file = RealDevice::new().open(path, OpenMode::ReadWrite).unwrap();
    let mapping = file.map(2 * BLOCK).unwrap();
    let write = |at: usize, byte: u8| {
        #[expect(unsafe_code, reason = "the point of the test")]
        // SAFETY: inside the mapping, and no other thread runs.
        unsafe {
            mapping.as_ptr().add(at).write(byte);
        }
    };
    write(0, 1);
    file.sync_data().unwrap();
    write(BLOCK, 2);
}

#[test]
fn after_a_failed_sync_the_pages_are_clean_and_the_data_is_gone() {
    let Some(mut disk) = mount(Names::Posix) else {
        return;
    };
    let file = disk.settled("a", &[0; 64 * SECTOR]);
    disk.fs.inject(Fault::new(FaultKind::SyncFails).once()).unwrap();
    file.write_all_at(&[1; 64 * SECTOR], 0).unwrap();
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
    file.sync_all().unwrap();
    assert_eq!(
        disk.read("a").unwrap(),
        [1; 64 * SECTOR],
        "programs go on to read it"
    );
    drop(file);
    disk.cut(LOST);
    let there = disk.read("a").unwrap().iter().filter(|&&b| b == 1).count() / SECTOR;
    assert!((1..64).contains(&there), "{there} of 64 sectors are there");
    assert_eq!(disk.fs.fault_counts()[&FaultKind::SyncFails], 1);
}

#[test]
fn chosen_operations_fail_are_short_or_slow_and_are_counted() {
    let Some(disk) = mount(Names::Posix) else { return };
    let file = create(&disk.path("data"));
    let other = create(&disk.path("other"));
    disk.fs
        .inject(Fault::new(FaultKind::WriteFails).on("data").after(1).once())
        .unwrap();
    file.write_all_at(&[1; SECTOR], 0).unwrap();
    other.write_all_at(&[1; SECTOR], 0).unwrap();
    assert_eq!(
        file.write_all_at(&[2; SECTOR], 0).unwrap_err().raw_os_error(),
        Some(libc::EIO)
    );
    file.write_all_at(&[3; SECTOR], 0).unwrap();

    disk.fs.inject(Fault::new(FaultKind::ShortWrite).once()).unwrap();
    let written = file.write_at(&[4; 8 * SECTOR], 0).unwrap();
    assert!((1..8 * SECTOR).contains(&written), "{written} bytes");

    disk.fs.limit_space(Some(BLOCK as u64)).unwrap();
    let full = other.write_all_at(&[5; 3 * BLOCK], 0).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    disk.fs.limit_space(None).unwrap();

    disk.fs
        .inject(Fault::new(FaultKind::AnyFails).on("new").once())
        .unwrap();
    assert!(File::create(disk.path("new")).is_err());
    disk.fs.delay_syncs(Duration::from_millis(1)).unwrap();
    file.sync_all().unwrap();
    disk.sync_dir("");

    let struck = disk.fs.fault_counts();
    for kind in [FaultKind::WriteFails, FaultKind::ShortWrite, FaultKind::AnyFails] {
        assert_eq!(struck[&kind], 1, "{struck:?}");
    }
    // The kernel asks again for what did not fit.
    assert!(struck[&FaultKind::NoSpace] >= 1, "{struck:?}");
    assert_eq!(struck[&FaultKind::SlowSync], 2);
    let asked = disk.fs.operations();
    assert_eq!(
        (asked[&OpKind::SyncData], asked[&OpKind::SyncDir]),
        (1, 1),
        "{asked:?}"
    );
    assert_eq!(asked[&OpKind::Create], 3, "{asked:?}");
}

#[test]
fn the_disk_stops_at_the_operation_that_a_trap_names() {
    let Some(mut disk) = mount(Names::Posix) else {
        return;
    };
    for (moment, left) in [(Moment::Before, b"1".as_slice()), (Moment::After, b"2")] {
        drop(disk.settled("a", b"0"));
        let third = Trap::new(2, moment, |asked| {
            asked.kind == OpKind::SyncData && asked.path.ends_with("a")
        });
        disk.fs.set_trap(third).unwrap();
        // A program that is killed, since it never comes back from its last sync.
        let script = "printf 1 > a; sync a; printf 2 > a; sync a; printf 3 > a; sync a; sleep 99";
        let mut program = Command::new("sh")
            .args(["-c", script])
            .current_dir(disk.fs.path())
            .spawn()
            .unwrap();
        let fell = disk.fs.wait_for_stop(PATIENCE).unwrap().unwrap();
        let (asked, when) = fell.at.clone().unwrap();
        assert_eq!(
            (asked.kind, when, &*asked.thread),
            (OpKind::SyncData, moment, "sync"),
            "{fell}"
        );
        program.kill().unwrap();
        disk.cut(LOST);
        program.wait().unwrap();
        assert_eq!(disk.read("a").unwrap(), left, "{moment:?}");
        fs::remove_file(disk.path("a")).unwrap();
        disk.sync_dir("");
    }
}

#[test]
fn a_sync_cut_by_the_power_makes_nothing_durable() {
    let Some(mut disk) = mount(Names::Posix) else {
        return;
    };
    let file = disk.settled("a", b"0");
    file.write_all_at(b"1", 0).unwrap();
    disk.fs.delay_syncs(Duration::from_millis(300)).unwrap();
    let before = disk.fs.fault_counts().get(&FaultKind::SlowSync).copied();
    let program = std::thread::spawn(move || file.sync_data());
    while disk.fs.fault_counts().get(&FaultKind::SlowSync).copied() == before {
        std::thread::yield_now();
    }
    disk.fs.stop().unwrap();
    disk.cut(LOST);
    assert!(program.join().unwrap().is_err());
    assert_eq!(disk.read("a").unwrap(), b"0");
}

#[test]
fn disks_of_one_power_supply_stop_together() {
    let (Some(mut one), Some(mut other)) = (mount(Names::Posix), mount(Names::Posix)) else {
        return;
    };
    for moment in [Moment::Before, Moment::After] {
        one.fs.stops_with([&other.fs]).unwrap();
        other.fs.stops_with([&one.fs]).unwrap();
        let sync = Trap::new(1, moment, |asked| asked.kind == OpKind::SyncDir);
        other.fs.set_trap(sync).unwrap();
        let mut program = Command::new("sync").arg(other.fs.path()).spawn().unwrap();
        let fell = [&other, &one].map(|disk| disk.fs.wait_for_stop(PATIENCE).unwrap());
        program.kill().unwrap();
        let at_an_operation = fell.map(|fell| fell.map(|fell| fell.at.is_some()));
        assert_eq!(at_an_operation, [Some(true), Some(false)], "{moment:?}");
        one.cut(LOST);
        other.cut(LOST);
        program.wait().unwrap();
    }
    // It ends with a power cycle.
    other.fs.set_trap(Trap::new(1, Moment::Before, |_| true)).unwrap();
    let mut program = Command::new("sync").arg(other.fs.path()).spawn().unwrap();
    assert!(other.fs.wait_for_stop(PATIENCE).unwrap().is_some());
    assert!(one.fs.wait_for_stop(Duration::ZERO).unwrap().is_none());
    program.kill().unwrap();
    other.cut(LOST);
    program.wait().unwrap();
}

#[test]
fn a_stopped_disk_hangs_and_one_without_power_fails() {
    let Some(mut disk) = mount(Names::Posix) else {
        return;
    };
    let file = disk.settled("a", b"0");
    disk.fs.stop().unwrap();
    let path = disk.path("a");
    let (sender, receiver) = std::sync::mpsc::channel();
    let program = std::thread::spawn(move || {
        let written = file.write_all_at(b"1", 0);
        sender.send(()).unwrap();
        (written, File::open(path).map(drop))
    });
    assert!(
        receiver.recv_timeout(Duration::from_millis(100)).is_err(),
        "a stopped disk answered"
    );
    assert!(disk.fs.wait_for_stop(PATIENCE).unwrap().unwrap().at.is_none());
    // The file is still open at this moment: the mount is taken away all the same.
    disk.cut(LOST);
    let (written, _) = program.join().unwrap();
    assert_eq!(written.unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(disk.read("a").unwrap(), b"0");
}

#[test]
fn programs_find_what_they_are_used_to() {
    let Some(mut disk) = mount(Names::Posix) else {
        return;
    };
    let device = RealDevice::new();
    fs::create_dir_all(disk.path("x/y")).unwrap();
    let file = device.open(&disk.path("x/y/f"), OpenMode::CreateNew).unwrap();
    assert!(file.try_lock().unwrap());
    assert!(
        !device
            .open(&disk.path("x/y/f"), OpenMode::ReadWrite)
            .unwrap()
            .try_lock()
            .unwrap()
    );
    file.allocate(3 * BLOCK as u64).unwrap();
    file.set_len(BLOCK as u64 + 1).unwrap();
    assert_eq!(file.stat().unwrap().len, BLOCK as u64 + 1);
    drop(file);
    assert_eq!(
        fs::remove_dir(disk.path("x")).unwrap_err().kind(),
        ErrorKind::DirectoryNotEmpty
    );
    assert_eq!(
        fs::copy(disk.path("x/y/f"), disk.path("g")).unwrap(),
        BLOCK as u64 + 1
    );
    let mut appended = OpenOptions::new().append(true).open(disk.path("g")).unwrap();
    appended.write_all(b"end").unwrap();
    assert!(disk.read("g").unwrap().ends_with(b"\0end"));
    OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(disk.path("g"))
        .unwrap();
    assert_eq!(disk.read("g").unwrap(), b"");
    for n in 0..500 {
        fs::write(disk.path(&format!("x/y/{n}")), n.to_string()).unwrap();
    }
    assert_eq!(fs::read_dir(disk.path("x/y")).unwrap().count(), 501);
    fs::rename(disk.path("x"), disk.path("z")).unwrap();
    assert_eq!(disk.read("z/y/77").unwrap(), b"77");
    fs::remove_dir_all(disk.path("z")).unwrap();
    fs::remove_file(disk.path("g")).unwrap();
    disk.sync_dir("");
    disk.cut(LOST);
    assert_eq!(fs::read_dir(disk.fs.path()).unwrap().count(), 0);
}

#[test]
fn a_mount_goes_with_its_owner_and_is_found_by_its_place() {
    let Some(disk) = mount(Names::Posix) else { return };
    fs::write(disk.path("a"), "content").unwrap();
    assert_eq!(
        faultfs::unmount_abandoned().unwrap(),
        Vec::<PathBuf>::new(),
        "this process is alive"
    );
    let at = disk.fs.path().to_owned();
    assert_eq!(faultfs::unmount_below(&at).unwrap(), [at.as_path()]);
    assert!(!at.join("a").exists());
    let Mounted { fs, _dir } = disk;
    drop(fs);
    let again = FaultFs::mount(&at, Names::Posix, 2).unwrap();
    fs::write(at.join("b"), "content").unwrap();
    drop(again);
    assert!(!at.join("b").exists());
}
