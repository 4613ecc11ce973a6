//! `collie torture` through the real binary, and a served store that is killed under its clients.

use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{collie, fields, json_lines, run, stderr};
use crate::serve::{Client, Served};

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

/// How often something is killed: more in the long form of the tests.
fn kills(default: u64) -> u64 {
    let given = std::env::var("COLLIE_KILLS").ok();
    given.map_or(default, |n| n.parse().unwrap())
}

#[test]
fn nothing_acknowledged_is_lost_when_the_writer_is_killed() {
    let rounds = kills(8).to_string();
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

/// Whether a file system can be mounted; where not, the test says so.
fn can_mount() -> bool {
    let available = collie_sim::faultfs::available();
    if let Err(missing) = &available {
        assert!(std::env::var_os("COLLIE_REQUIRE_TOOLS").is_none(), "{missing}");
        println!("skipped: {missing}");
    }
    available.is_ok()
}

#[test]
fn nothing_that_clients_were_told_is_lost_when_the_power_goes() {
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
    let child = collie()
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
fn a_power_test_that_is_ended_or_killed_leaves_nothing_that_the_next_one_does_not_take_away() {
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
    // Whoever is killed so cannot end the server that it had started.
    for server in processes_about(dir.path()) {
        kill_process(server, Signal::KILL).unwrap();
    }
    let output = run(["torture", "power", "--rounds", "1", "--seed", "1"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(mounts_below(dir.path()), 0);
}

#[test]
fn fifty_clients_count_exactly_across_kills() {
    const CLIENTS: u64 = 50;
    const EACH: u64 = 100;
    // The served process is killed while all count; each client then finds the new one, and asks for its own
    // last acknowledged value: what it counts must be that or, where the kill swallowed a reply, one more.
    let dir = tempfile::tempdir().unwrap();
    let kills = kills(3);
    let (port, counted) = (AtomicU16::new(0), AtomicU64::new(0));
    let served = Served::start(dir.path(), &[]);
    port.store(served.port, Ordering::SeqCst);
    let served = std::thread::scope(|scope| {
        let mut served = served;
        let counting: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (port, counted) = (&port, &counted);
                scope.spawn(move || count_to(client, EACH * (kills + 1), port, counted))
            })
            .collect();
        for kill in 0..kills {
            // In the middle of a share of the counting, so that much of it is still to come.
            while counted.load(Ordering::SeqCst) < CLIENTS * (EACH * kill + EACH / 2)
                && counting.iter().all(|client| !client.is_finished())
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            // Somebody else may get the port meanwhile.
            port.store(0, Ordering::SeqCst);
            served = served.restart(dir.path());
            port.store(served.port, Ordering::SeqCst);
        }
        counting.into_iter().for_each(|thread| thread.join().unwrap());
        served
    });
    let mut client = served.connect();
    let total: u64 = (0..CLIENTS)
        .map(|n| {
            client
                .call(&["GET", &format!("counter {n}")])
                .unwrap()
                .parse::<u64>()
                .unwrap()
        })
        .sum();
    assert_eq!(total, CLIENTS * EACH * (kills + 1));
    let (status, last) = served.end(Signal::TERM);
    assert!(status.success(), "{last}");
}

/// Increments a counter of its own until it is `target`, over as many connections as it takes, and checks each
/// reply. No port is 0, to which nobody can connect.
fn count_to(client: u64, target: u64, port: &AtomicU16, counted: &AtomicU64) {
    let key = format!("counter {client}");
    let mut acknowledged = 0;
    while acknowledged < target {
        let Ok(mut connection) = Client::connect(port.load(Ordering::SeqCst)) else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        let Ok(there) = connection.call(&["GET", &key]) else {
            continue;
        };
        let there: u64 = if there == "$-1" { 0 } else { there.parse().unwrap() };
        assert!(
            there == acknowledged || there == acknowledged + 1,
            "{key}: {acknowledged} was acknowledged, {there} is there"
        );
        acknowledged = there;
        while acknowledged < target {
            let Ok(reply) = connection.call(&["INCR", &key]) else {
                break;
            };
            assert_eq!(reply, format!(":{}", acknowledged + 1));
            acknowledged += 1;
            counted.fetch_add(1, Ordering::SeqCst);
        }
    }
}
