//! `collie-lab torture` through the real binary.

use std::path::Path;
use std::process::Child;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{fields, json_lines, lab, run, stderr};

const FIELDS: [&str; 8] = [
    "acknowledged",
    "lost",
    "partial",
    "recovered",
    "reordered",
    "rounds",
    "seed",
    "test",
];

#[test]
fn nothing_acknowledged_is_lost_when_the_writer_is_killed() {
    let rounds = std::env::var("COLLIE_KILLS").unwrap_or_else(|_| "8".to_owned());
    let output = run(["torture", "kill", "--rounds", &rounds, "--seed", "5", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let line = &json_lines(&output)[0];
    assert!(FIELDS.iter().all(|field| fields(line).contains(field)), "{line}");
    assert_eq!(
        (line["test"].as_str(), line["seed"].as_u64()),
        (Some("kill"), Some(5))
    );
    assert_eq!(line["rounds"].to_string(), rounds);
    let count = |field: &str| line[field].as_u64().unwrap();
    assert!(
        count("acknowledged") > 0 && count("recovered") >= count("acknowledged"),
        "{line}"
    );
    assert_eq!((count("lost"), count("partial"), count("reordered")), (0, 0, 0));
}

#[test]
fn crash_images_are_recovered() {
    let output = run(["torture", "images", "--rounds", "100", "--seed", "3", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let line = &json_lines(&output)[0];
    assert!(FIELDS.iter().all(|field| fields(line).contains(field)), "{line}");
    assert_eq!(line["test"], "images");
    assert!(line["rounds"].as_u64().unwrap() >= 100);
    assert_eq!(
        (line["lost"].as_u64(), line["failed"].as_u64()),
        (Some(0), Some(0))
    );
}

/// Whether a file system can be mounted; if not, the test is skipped.
fn can_mount() -> bool {
    let available = collie_sim::faultfs::available();
    if let Err(missing) = &available {
        assert!(std::env::var_os("COLLIE_REQUIRE_TOOLS").is_none(), "{missing}");
        println!("skipped: {missing}");
    }
    available.is_ok()
}

#[test]
fn no_acknowledged_commit_is_lost_when_the_power_goes() {
    if !can_mount() {
        return;
    }
    let rounds = std::env::var("COLLIE_POWER_ROUNDS").unwrap_or_else(|_| "10".to_owned());
    for (seed, names) in [("1", "posix"), ("2", "journal")] {
        let arguments = [
            "torture", "power", "--json", "--rounds", &rounds, "--seed", seed, "--names", names,
        ];
        let output = run(arguments);
        assert!(output.status.success(), "{}", stderr(&output));
        let line = &json_lines(&output)[0];
        assert!(FIELDS.iter().all(|field| fields(line).contains(field)), "{line}");
        assert_eq!(
            (line["test"].as_str(), line["names"].as_str()),
            (Some("power"), Some(names))
        );
        assert_eq!(line["rounds"].to_string(), rounds);
        let count = |field: &str| line[field].as_u64().unwrap();
        assert!(
            count("acknowledged") > 0 && count("reads") > 0 && count("changes_lost") > 0,
            "{line}"
        );
        assert_eq!((count("lost"), count("partial"), count("reordered")), (0, 0, 0));
    }
}

#[test]
fn every_aim_is_hit_and_survived() {
    if !can_mount() {
        return;
    }
    let aims = [
        ("flush", "flush"),
        ("compaction", "compaction"),
        ("table", "table"),
        ("version", "version of tables"),
        ("manifest", "manifest"),
        ("recycling", "segment recycled"),
        ("directory-sync", "directory sync"),
        ("recovery", "recovery"),
    ];
    for (aim, place) in aims {
        let output = run([
            "torture", "power", "--json", "--rounds", "4", "--seed", "3", "--aim", aim,
        ]);
        assert!(output.status.success(), "{aim}: {}", stderr(&output));
        let line = &json_lines(&output)[0];
        assert!(line["fell"][place].as_u64() > Some(0), "{aim}: {line}");
    }
}

/// The mounts below a directory.
fn mounts_below(dir: &Path) -> usize {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts
        .lines()
        .filter(|line| line.contains(dir.to_str().unwrap()))
        .count()
}

/// Processes whose command line names a directory.
fn processes_about(dir: &Path) -> Vec<Pid> {
    let names_it = |pid: &i32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains(dir.to_str().unwrap())
    };
    let pids = std::fs::read_dir("/proc").unwrap();
    let pids = pids.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    pids.filter(names_it).filter_map(Pid::from_raw).collect()
}

/// A power test with its temporary files in `dir`, once it runs.
fn running_power_test(dir: &Path) -> Child {
    let child = lab()
        .args(["torture", "power", "--rounds", "100000"])
        .env("TMPDIR", dir)
        .spawn()
        .unwrap();
    while mounts_below(dir) == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

#[test]
fn a_killed_power_test_is_cleaned_up_by_the_next_one() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut child = running_power_test(dir.path());
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    assert_eq!(mounts_below(dir.path()), 0);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);

    let mut child = running_power_test(dir.path());
    child.kill().unwrap();
    child.wait().unwrap();
    // A process that is killed this way cannot end the server that it has started.
    for server in processes_about(dir.path()) {
        kill_process(server, Signal::KILL).unwrap();
    }
    let output = run(["torture", "power", "--rounds", "1", "--seed", "1"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(mounts_below(dir.path()), 0);
}
