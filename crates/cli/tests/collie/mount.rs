//! `collie mount` and the commands for a mounted directory. They need root or `fusermount3`, and
//! `/dev/fuse`; where these are missing the tests say so and pass, unless `COLLIE_REQUIRE_TOOLS` is
//! set.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use tempfile::TempDir;

use crate::common::{collie, json_lines, run, stderr};

const PAGE: usize = 8192;
const RELATION: &str = "base/1/5";

/// A directory that looks like a cluster's, and the daemon of its mount.
struct Mounted {
    dir: TempDir,
    daemon: Child,
}

impl Mounted {
    fn new() -> Option<Mounted> {
        if let Err(missing) = collie_sim::faultfs::available() {
            assert!(std::env::var_os("COLLIE_REQUIRE_TOOLS").is_none(), "{missing}");
            println!("skipped: {missing}");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("PG_VERSION"), "15\n").unwrap();
        fs::create_dir_all(dir.path().join("base/1")).unwrap();
        let daemon = mount(dir.path());
        Some(Mounted { dir, daemon })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, args: &[&str]) -> std::process::Output {
        let dir = self.dir.path().as_os_str();
        run(args.iter().map(std::ffi::OsStr::new).chain([dir]))
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

    fn kill(&mut self) {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
    }
}

/// Mounts a directory; returns when it is.
fn mount(dir: &Path) -> Child {
    let mut command = collie();
    command
        .args(["mount", "--shadow", "4mb"])
        .arg(dir)
        .stdout(Stdio::piped());
    let mut daemon = command.stderr(Stdio::null()).spawn().unwrap();
    let mut said = String::new();
    // It says nothing else before its end.
    BufReader::new(daemon.stdout.as_mut().unwrap())
        .read_line(&mut said)
        .unwrap();
    assert!(said.starts_with("mounted "), "{said}");
    daemon
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let _ = self.command(&["umount", "--dead"]);
    }
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
fn a_file_that_is_missing_is_told() {
    for json in [false, true] {
        let Some(mut mounted) = Mounted::new() else { return };
        drop(mounted.displace());
        mounted.kill();
        assert!(mounted.command(&["umount"]).status.success());
        fs::remove_file(mounted.path(RELATION)).unwrap();
        if json {
            let said = mounted.command(&["front", "check", "--json"]);
            assert_eq!(json_lines(&said)[0]["missing"][0], RELATION);
        } else {
            let said = mounted.command(&["front", "check"]);
            let said = String::from_utf8(said.stdout).unwrap();
            assert!(said.contains("missing, ") && said.contains(RELATION), "{said}");
        }
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
