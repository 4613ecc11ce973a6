//! Links, owners, modes and times on the file system that forgets. As `faultfs.rs`, it passes where
//! no file system can be mounted.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test ends where its assumptions do, says what it skips, and uses files as any program does"
)]

use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use collie_io::{Device, OpenMode, RealDevice};
use collie_sim::PowerCut;
use collie_sim::faultfs::{self, FaultFs, Names};

const LOST: PowerCut = PowerCut::WAYS[0].1;
const KEPT: PowerCut = PowerCut::WAYS[1].1;
/// Some user who is not root.
const USER: u32 = 65_534;

/// A mounted file system in a directory of its own.
struct Mounted {
    fs: FaultFs,
    /// Goes after the file system.
    dir: tempfile::TempDir,
}

fn mount(names: Names) -> Option<Mounted> {
    if let Err(missing) = faultfs::available() {
        assert!(std::env::var_os("COLLIE_REQUIRE_TOOLS").is_none(), "{missing}");
        println!("skipped: {missing}");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let fs = FaultFs::mount(dir.path(), names, 1).unwrap();
    Some(Mounted { fs, dir })
}

impl Mounted {
    fn path(&self, name: &str) -> PathBuf {
        self.fs.path().join(name)
    }

    fn sync(&self, name: &str) {
        File::open(self.path(name)).unwrap().sync_all().unwrap();
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.fs.path()).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn synced_links_survive_and_others_do_as_names_do() {
    let Some(mut disk) = mount(Names::Posix) else {
        return;
    };
    for (how, expected) in [
        (LOST, ["a", "hard", "soft"].as_slice()),
        (KEPT, &["a", "hard", "hard unsynced", "soft", "soft unsynced"]),
    ] {
        fs::write(disk.path("a"), "content").unwrap();
        disk.sync("a");
        fs::hard_link(disk.path("a"), disk.path("hard")).unwrap();
        symlink("hard", disk.path("soft")).unwrap();
        disk.sync("");
        fs::hard_link(disk.path("a"), disk.path("hard unsynced")).unwrap();
        symlink("hard", disk.path("soft unsynced")).unwrap();
        assert_eq!(fs::metadata(disk.path("a")).unwrap().nlink(), 3);
        let effects = disk.fs.power_cycle(how, 7).unwrap();
        assert_eq!(disk.names(), expected, "{effects:?}");
        assert_eq!(fs::read(disk.path("soft")).unwrap(), b"content");
        assert_eq!(fs::read_link(disk.path("soft")).unwrap(), Path::new("hard"));
        let links = expected.iter().filter(|name| !name.starts_with("soft")).count();
        assert_eq!(fs::metadata(disk.path("soft")).unwrap().nlink(), links as u64);
        for name in disk.names() {
            fs::remove_file(disk.path(&name)).unwrap();
        }
        disk.sync("");
    }
}

#[test]
fn a_link_with_a_journal_is_durable_with_any_sync() {
    let Some(mut disk) = mount(Names::Journal) else {
        return;
    };
    let other = File::create(disk.path("other")).unwrap();
    symlink("nowhere", disk.path("soft")).unwrap();
    fs::hard_link(disk.path("other"), disk.path("hard")).unwrap();
    other.sync_all().unwrap();
    symlink("nowhere", disk.path("later")).unwrap();
    drop(other);
    disk.fs.power_cycle(LOST, 7).unwrap();
    assert_eq!(disk.names(), ["hard", "other", "soft"]);
}

#[test]
fn modes_owners_and_times_survive_a_power_cut() {
    let Some(mut disk) = mount(Names::Posix) else {
        return;
    };
    let before = SystemTime::now();
    let file = File::create(disk.path("a")).unwrap();
    let made = file.metadata().unwrap();
    let modified = made.modified().unwrap();
    assert!((before..=SystemTime::now()).contains(&modified), "{modified:?}");
    assert_eq!(
        (made.uid(), made.mode() & 0o7777),
        (RealDevice::new().uid(), 0o644)
    );
    std::thread::sleep(Duration::from_millis(2));
    (&file).write_all(b"x").unwrap();
    let written = file.metadata().unwrap();
    assert!(written.modified().unwrap() > made.modified().unwrap());
    file.set_permissions(Permissions::from_mode(0o4751)).unwrap();
    let time = UNIX_EPOCH + Duration::new(1_000_000_000, 7);
    file.set_modified(time).unwrap();
    let is_root = RealDevice::new().uid() == 0;
    if is_root {
        chown(disk.path("a"), Some(USER), Some(USER - 1)).unwrap();
    }
    file.sync_all().unwrap();
    disk.sync("");
    drop(file);
    disk.fs.power_cycle(LOST, 7).unwrap();
    let left = fs::metadata(disk.path("a")).unwrap();
    assert_eq!(left.modified().unwrap(), time);
    if is_root {
        assert_eq!((left.uid(), left.gid()), (USER, USER - 1));
        assert_eq!(left.mode() & 0o7777, 0o751, "a file does not run as a new owner");
    }
    assert!(left.ctime() > 1_000_000_007 && left.mtime() == 1_000_000_000);
    assert!(SystemTime::now() >= left.modified().unwrap());
}

#[test]
fn other_users_may_use_it_as_far_as_permissions_go() {
    let Some(disk) = mount(Names::Posix) else { return };
    if RealDevice::new().uid() != 0 {
        println!("skipped: only root can mount it for others");
        return;
    }
    let pass = || Permissions::from_mode(0o755);
    fs::set_permissions(disk.dir.path(), pass()).unwrap();
    fs::create_dir(disk.path("theirs")).unwrap();
    chown(disk.path("theirs"), Some(USER), Some(USER)).unwrap();
    fs::create_dir(disk.path("shared")).unwrap();
    chown(disk.path("shared"), None, Some(USER - 1)).unwrap();
    fs::set_permissions(disk.path("shared"), Permissions::from_mode(0o2777)).unwrap();
    fs::write(disk.path("mine"), "content").unwrap();
    fs::set_permissions(disk.path("mine"), Permissions::from_mode(0o600)).unwrap();
    let script = "echo x > theirs/a && ln theirs/a theirs/b && ln -s b theirs/c && cat theirs/c && chmod 600 theirs/a \
                  && mkdir shared/d && ! cat mine && ! touch d";
    let mut sh = Command::new("sh");
    sh.args(["-ec", script]).uid(USER).gid(USER);
    let done = sh.current_dir(disk.fs.path()).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    assert_eq!(done.stdout, b"x\n");
    let theirs = fs::metadata(disk.path("theirs/b")).unwrap();
    assert_eq!(
        (theirs.uid(), theirs.gid(), theirs.mode() & 0o7777),
        (USER, USER, 0o600)
    );
    assert_eq!(fs::symlink_metadata(disk.path("theirs/c")).unwrap().uid(), USER);
    let below = fs::metadata(disk.path("shared/d")).unwrap();
    assert_eq!(
        (below.gid(), below.mode() & 0o7000),
        (USER - 1, 0o2000),
        "inherited"
    );
}

#[test]
fn renaming_over_an_open_file_and_room_in_the_middle_of_one() {
    let Some(disk) = mount(Names::Posix) else { return };
    fs::write(disk.path("a"), "old").unwrap();
    fs::write(disk.path("b"), "new").unwrap();
    let open = File::open(disk.path("a")).unwrap();
    fs::rename(disk.path("b"), disk.path("a")).unwrap();
    let mut bytes = [0; 3];
    open.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!((&bytes, open.metadata().unwrap().nlink()), (b"old", 0));
    assert_eq!(fs::read(disk.path("a")).unwrap(), b"new");

    let device = RealDevice::new();
    let file = device.open(&disk.path("a"), OpenMode::ReadWrite).unwrap();
    file.allocate_range(1 << 20, 1 << 16).unwrap();
    let stat = file.stat().unwrap();
    assert_eq!((stat.len, stat.blocks), ((1 << 20) + (1 << 16), 129));
    let before = device.statfs(disk.fs.path()).unwrap();
    assert!(before.free < before.blocks && before.free > 0, "{before:?}");
    disk.fs.limit_space(Some(1 << 20)).unwrap();
    let limited = device.statfs(disk.fs.path()).unwrap();
    assert_eq!(limited.available * limited.block_size, 1 << 20);
    let full = file.allocate_range(4 << 20, 2 << 20).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    let taken = device.rename_new(&disk.path("a"), &disk.path("a")).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::AlreadyExists);
}
