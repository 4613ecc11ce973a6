//! `collie mount` and the commands for a mounted directory. They need root or `fusermount3`, and
//! `/dev/fuse`; where these are missing the tests say so and pass, unless `COLLIE_REQUIRE_TOOLS` is
//! set.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::Duration;

use collie_front::{Scope, Volume, VolumeOptions};
use collie_sim::faultfs::{FaultFs, Names};
use collie_sim::{Fault, FaultKind};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::common::{collie, json_lines, run, stderr};

const PAGE: usize = 8192;
const RELATION: &str = "base/1/5";

/// How often it is looked whether something has come about, and for how long at most.
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);
const LOOKS: u32 = 6_000;

/// Returns what has come about.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..LOOKS {
        if let Some(seen) = look() {
            return seen;
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
    panic!("{what}");
}

/// A directory that looks like a cluster's, and the daemon of its mount.
struct Mounted {
    daemon: Child,
    said: BufReader<ChildStderr>,
    data: PathBuf,
    /// The disk below, where it can fail.
    disk: Option<FaultFs>,
    _home: TempDir,
}

/// Whether this process can mount.
fn can_mount() -> bool {
    let missing = collie_sim::faultfs::available().err();
    if let Some(missing) = &missing {
        assert!(std::env::var_os("COLLIE_REQUIRE_TOOLS").is_none(), "{missing}");
        println!("skipped: {missing}");
    }
    missing.is_none()
}

/// Makes a directory that looks like a cluster's.
fn make_cluster(data: &Path) {
    fs::create_dir_all(data.join("base/1")).unwrap();
    fs::write(data.join("PG_VERSION"), "15\n").unwrap();
}

impl Mounted {
    fn new() -> Option<Mounted> {
        can_mount().then(|| Mounted::over(tempfile::tempdir().unwrap(), None))
    }

    /// On a disk that can fail.
    fn on_disk() -> Option<Mounted> {
        can_mount().then(|| {
            let home = tempfile::tempdir().unwrap();
            let disk = FaultFs::mount(home.path(), Names::Posix, 1).unwrap();
            Mounted::over(home, Some(disk))
        })
    }

    fn over(home: TempDir, disk: Option<FaultFs>) -> Mounted {
        let data = home.path().join("data");
        make_cluster(&data);
        let (daemon, said) = mount(&data);
        Mounted {
            daemon,
            said,
            data,
            disk,
            _home: home,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.data.join(name)
    }

    fn command(&self, args: &[&str]) -> std::process::Output {
        let dir = self.data.as_os_str();
        run(args.iter().map(std::ffi::OsStr::new).chain([dir]))
    }

    /// Unmounts. A process that another test starts has all open files until it executes its program, so that the
    /// mount may be in use for a moment.
    fn unmount(&self, args: &[&str]) {
        let busy = |done: &std::process::Output| stderr(done).contains("busy");
        let mut tries = (0..200).map(|_| self.command(args));
        let done = tries.find(|done| done.status.success() || !busy(done)).unwrap();
        assert!(done.status.success(), "{}", stderr(&done));
    }

    /// A relation with a page that is not at home.
    fn displace(&self) -> File {
        let mut options = File::options();
        let file = options
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.path(RELATION))
            .unwrap();
        for version in 1..3 {
            file.write_all_at(&[version; PAGE], 0).unwrap();
            file.sync_all().unwrap();
        }
        file
    }

    /// Lets every sync of the disk below fail. A page is written that nothing makes durable any more.
    fn fail_syncs(&self) {
        let file = self.displace();
        let disk = self.disk.as_ref().unwrap();
        disk.inject(Fault::new(FaultKind::SyncFails)).unwrap();
        // The daemon may have committed the page by itself right before.
        until("a sync fails", || {
            let written = file.write_all_at(&[3; PAGE], 0);
            written.and_then(|()| file.sync_all()).err()
        });
    }

    /// Whether something is mounted over the directory, be its daemon dead or alive.
    fn is_mounted(&self) -> bool {
        let data = self.data.to_str().unwrap();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        mounts.lines().any(|line| line.split(' ').nth(4) == Some(data))
    }

    fn signal(&self) {
        kill_process(Pid::from_child(&self.daemon), Signal::TERM).unwrap();
    }

    /// The next line of the daemon's messages, once it is mounted.
    fn says(&mut self) -> String {
        let mut lines = self.said.by_ref().lines().map(Result::unwrap);
        lines.find(|line| !line.starts_with("taking room ")).unwrap()
    }

    /// The exit status of the daemon, and its other messages.
    fn ends(&mut self) -> (ExitStatus, String) {
        let daemon = &mut self.daemon;
        let status = until("the daemon ends", || daemon.try_wait().unwrap());
        let mut said = String::new();
        self.said.read_to_string(&mut said).unwrap();
        (status, said)
    }

    fn kill(&mut self) {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
    }
}

fn mount_command(dir: &Path) -> Command {
    let mut command = collie();
    command
        .args(["mount", "--shadow", "4mb"])
        .arg(dir)
        .stderr(Stdio::piped());
    command
}

/// Mounts a directory; returns when it is.
fn mount(dir: &Path) -> (Child, BufReader<ChildStderr>) {
    let mut daemon = mount_command(dir).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    // It says nothing else before its end.
    BufReader::new(daemon.stdout.as_mut().unwrap())
        .read_line(&mut said)
        .unwrap();
    assert!(said.starts_with("mounted "), "{said}");
    let beside = BufReader::new(daemon.stderr.take().unwrap());
    (daemon, beside)
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let _ = self.command(&["umount", "--dead"]);
    }
}

#[test]
fn a_signal_unmounts_what_cannot_be_made_durable_and_says_so() {
    let Some(mut mounted) = Mounted::on_disk() else {
        return;
    };
    mounted.fail_syncs();
    mounted.signal();
    let (status, said) = mounted.ends();
    assert!(!status.success());
    assert!(said.contains("cannot be made durable"), "{said}");
    assert!(said.contains("what was synced is safe"), "{said}");
    assert!(!mounted.is_mounted());
}

#[test]
fn a_signal_unmounts_as_soon_as_no_process_uses_the_mount() {
    let Some(mut mounted) = Mounted::new() else { return };
    let file = mounted.displace();
    mounted.signal();
    let said = mounted.says();
    let user = format!("in use by process {} (", std::process::id());
    assert!(said.contains(&user) && said.contains("tried again"), "{said}");
    drop(file);
    let (status, said) = mounted.ends();
    assert!(status.success() && said.is_empty(), "{said}");
    assert!(!mounted.is_mounted());
}

#[test]
fn a_second_signal_detaches_and_ends_the_daemon() {
    let Some(mut mounted) = Mounted::new() else { return };
    let file = mounted.displace();
    mounted.signal();
    let said = mounted.says();
    assert!(said.contains("another signal detaches"), "{said}");
    mounted.signal();
    let (status, said) = mounted.ends();
    assert_eq!(status.code(), Some(1));
    assert!(said.contains("detached while in use"), "{said}");
    assert!(!mounted.is_mounted());
    file.sync_all().unwrap_err();
}

#[test]
fn umount_takes_away_what_cannot_be_made_durable_and_says_so() {
    let Some(mut mounted) = Mounted::on_disk() else {
        return;
    };
    mounted.fail_syncs();
    let said = mounted.command(&["umount", "--drain"]);
    assert_eq!(said.status.code(), Some(1));
    let said = stderr(&said);
    assert!(
        said.contains("Input/output error") && said.contains("`collie umount "),
        "{said}"
    );
    assert!(mounted.is_mounted());
    let said = mounted.command(&["umount"]);
    assert_eq!(said.status.code(), Some(1));
    let said = stderr(&said);
    assert!(
        said.contains("Input/output error") && said.contains("unmounted all the same"),
        "{said}"
    );
    assert!(!mounted.is_mounted());
    assert!(!mounted.ends().0.success());
    mounted.disk.as_ref().unwrap().heal().unwrap();
    (mounted.daemon, mounted.said) = mount(&mounted.data);
    assert!(mounted.command(&["umount", "--drain"]).status.success());
    let page = fs::read(mounted.path(RELATION)).unwrap();
    assert!(
        page == [2; PAGE] || page == [3; PAGE],
        "what was synced, or a later version"
    );
}

#[test]
fn umount_takes_away_a_mount_whose_disk_is_full() {
    let Some(mounted) = Mounted::on_disk() else { return };
    let file = mounted.displace();
    file.write_all_at(&[3; PAGE], 0).unwrap();
    drop(file);
    let disk = mounted.disk.as_ref().unwrap();
    disk.inject(Fault::new(FaultKind::NoSpace)).unwrap();
    let said = mounted.command(&["umount"]);
    assert_eq!(said.status.code(), Some(1));
    assert!(stderr(&said).contains("No space left"), "{}", stderr(&said));
    assert!(!mounted.is_mounted());
}

#[test]
fn a_daemon_that_died_has_drained_nothing() {
    let Some(mut mounted) = Mounted::new() else { return };
    drop(mounted.displace());
    mounted.kill();
    let said = mounted.command(&["umount", "--drain"]);
    assert!(!said.status.success(), "{}", stderr(&said));
    assert!(stderr(&said).contains("`collie drain "), "{}", stderr(&said));
    assert!(mounted.command(&["drain"]).status.success());
    assert_eq!(fs::read(mounted.path(RELATION)).unwrap(), [2; PAGE]);
    assert!(mounted.path("PG_VERSION").exists(), "a plain directory");
}

#[test]
fn a_dead_mount_is_taken_away_by_any_of_its_names() {
    let Some(mut mounted) = Mounted::new() else { return };
    let link = mounted.data.with_file_name("link");
    symlink(&mounted.data, &link).unwrap();
    for (end, also) in [("", None), ("/", None), ("", Some("--dead"))] {
        mounted.kill();
        let name = format!("{}{end}", link.display());
        let said = run(["umount"].into_iter().chain(also).chain([name.as_str()]));
        assert!(said.status.success(), "{name}: {}", stderr(&said));
        assert!(!mounted.is_mounted(), "{name}");
        (mounted.daemon, mounted.said) = mount(&mounted.data);
    }
}

/// So many files may be open in the test of many files, and so many have displaced pages.
const OPEN_FILES: usize = 64;
const MANY_FILES: usize = 2 * OPEN_FILES;

#[test]
fn check_and_drain_open_more_files_than_an_ordinary_process_may() {
    let dir = tempfile::tempdir().unwrap();
    // Without a mount, so that no page is brought home before the check.
    let options = VolumeOptions {
        slots: 4 * MANY_FILES as u32,
        ..VolumeOptions::default()
    };
    let volume = Volume::open(dir.path(), options).unwrap();
    let create = |number: usize| volume.create(Path::new(&number.to_string())).unwrap();
    let files: Vec<_> = (0..MANY_FILES).map(create).collect();
    for version in 1..3 {
        for file in &files {
            volume.write_at(file, &[version; PAGE], 0).unwrap();
        }
        volume.commit_all(Scope::All).unwrap();
    }
    assert_eq!(volume.status().mapped, MANY_FILES);
    volume.close().unwrap();
    for command in [["front", "check"].as_slice(), &["drain"]] {
        let mut limited = Command::new("sh");
        let script = format!("ulimit -Sn {OPEN_FILES} && exec \"$0\" \"$@\"");
        limited.args(["-c", &script]).arg(collie().get_program());
        let said = limited.args(command).arg(dir.path()).output().unwrap();
        assert!(said.status.success(), "{command:?}: {}", stderr(&said));
    }
}

#[test]
fn a_daemon_serves_though_nothing_reads_what_it_prints() {
    let full = || File::options().write(true).open("/dev/full").unwrap().into();
    let closed = || {
        let (theirs, _) = UnixStream::pair().unwrap();
        OwnedFd::from(theirs)
    };
    for stdout in [full(), closed()] {
        let Some(mut mounted) = Mounted::new() else { return };
        mounted.unmount(&["umount"]);
        assert!(mounted.ends().0.success());
        let mut command = mount_command(&mounted.data);
        mounted.daemon = command.stdout(stdout).spawn().unwrap();
        mounted.said = BufReader::new(mounted.daemon.stderr.take().unwrap());
        let said = mounted.says();
        assert!(
            said.starts_with("mounted ") && said.contains("standard output"),
            "{said}"
        );
        drop(mounted.displace());
        mounted.unmount(&["umount", "--drain"]);
        let (status, said) = mounted.ends();
        assert!(status.success() && said.starts_with("unmounted "), "{said}");
    }
}

#[test]
fn a_mount_of_another_user_is_told_as_one() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        println!("skipped: only root mounts in the name of another user");
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    make_cluster(&data);
    // Nothing serves it: the kernel refuses other users by itself.
    let fuse = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let options = format!(
        "fd={},rootmode=40000,user_id=65534,group_id=65534",
        fuse.as_raw_fd()
    );
    let options = CString::new(options).unwrap();
    rustix::mount::mount(&data, &data, "fuse.collie", MountFlags::empty(), &*options).unwrap();
    let told = ["mount", "umount"].map(|command| stderr(&run([command.as_ref(), data.as_os_str()])));
    rustix::mount::unmount(&data, UnmountFlags::DETACH).unwrap();
    for said in told {
        assert!(
            said.contains("mounted") && said.contains("for the user nobody alone"),
            "{said}"
        );
    }
}

#[test]
fn a_file_that_is_missing_is_told_and_keeps_its_pages() {
    for json in [false, true] {
        let Some(mut mounted) = Mounted::new() else { return };
        drop(mounted.displace());
        mounted.kill();
        assert!(mounted.command(&["umount"]).status.success());
        let away = mounted.data.with_file_name("away");
        fs::rename(mounted.path(RELATION), &away).unwrap();
        for _ in 0..2 {
            if json {
                let said = mounted.command(&["front", "check", "--json"]);
                assert_eq!(said.status.code(), Some(1));
                assert_eq!(json_lines(&said)[0]["missing"][0], RELATION);
            } else {
                let said = mounted.command(&["front", "check"]);
                assert_eq!(said.status.code(), Some(1));
                let said = String::from_utf8(said.stdout).unwrap();
                assert!(said.contains("missing, ") && said.contains(RELATION), "{said}");
            }
            let said = mounted.command(&["drain"]);
            assert_eq!(said.status.code(), Some(1), "{}", stderr(&said));
            assert!(
                stderr(&said).contains("their pages are kept"),
                "{}",
                stderr(&said)
            );
            assert!(!mounted.path("PG_VERSION").exists());
        }
        fs::rename(&away, mounted.path(RELATION)).unwrap();
        assert!(mounted.command(&["drain"]).status.success());
        assert_eq!(fs::read(mounted.path(RELATION)).unwrap(), [2; PAGE]);
        assert!(mounted.path("PG_VERSION").exists());
    }
}

#[test]
fn a_refused_mount_takes_no_room_and_a_busy_one_names_its_users() {
    let Some(mounted) = Mounted::new() else { return };
    let file = mounted.displace();
    let said = mounted.command(&["umount"]);
    let user = format!("process {} (", std::process::id());
    assert!(
        !said.status.success() && stderr(&said).contains(&user),
        "{}",
        stderr(&said)
    );
    drop(file);
    let said = mounted.command(&["mount"]);
    assert!(!said.status.success());
    let said = stderr(&said);
    assert!(
        said.contains("mounted already") && !said.contains("taking room"),
        "{said}"
    );
    assert!(mounted.command(&["umount", "--drain"]).status.success());
    let said = stderr(&mounted.command(&["mount", "--shadow", "256kb"]));
    assert!(said.contains("at least 524288"), "{said}");
}
