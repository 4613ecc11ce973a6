//! `collie-lab torture cluster` through the real binary, on a cluster of Redis nodes that keep nothing
//! on disk: the apparatus finds that nothing is wrong where nothing is done to them, and that
//! acknowledged writes are lost where they are killed. And one power cut of all nodes of Collie, on
//! disks that forget.
//!
//! The former needs `redis-server` 7.0 (Debian's redis-server package). If it is missing the tests print so and
//! pass; with COLLIE_REQUIRE_TOOLS set they fail. So it is with the latter and /dev/fuse.

use std::process::Command;

use serde_json::Value;

use crate::common::{fields, json_lines, run, stderr};

const FIELDS: [&str; 22] = [
    "acknowledged",
    "clients",
    "compared",
    "fault",
    "faults",
    "nodes",
    "not_linearizable",
    "objects",
    "refused",
    "restarts",
    "rounds",
    "seconds",
    "seed",
    "strangers",
    "system",
    "test",
    "undecided",
    "unknown",
    "unsynced",
    "without_a_write",
    "writes_meanwhile",
    "wrong",
];

fn has_redis() -> bool {
    let version = Command::new("redis-server").arg("--version").output();
    let found = version
        .as_ref()
        .is_ok_and(|v| String::from_utf8_lossy(&v.stdout).contains("v=7.0."));
    if !found {
        assert!(
            std::env::var_os("COLLIE_REQUIRE_TOOLS").is_none(),
            "redis-server 7.0 is missing: {version:?}"
        );
        println!("skipped: redis-server 7.0 is missing (Debian: redis-server)");
    }
    found
}

fn has_fuse() -> bool {
    let missing = collie_sim::faultfs::available().err();
    if let Some(missing) = &missing {
        assert!(std::env::var_os("COLLIE_REQUIRE_TOOLS").is_none(), "{missing}");
        println!("skipped: {missing}");
    }
    missing.is_none()
}

fn count(line: &Value, field: &str) -> u64 {
    line[field].as_u64().unwrap()
}

#[test]
fn a_cluster_that_is_left_alone_is_linearizable() {
    if !has_redis() {
        return;
    }
    let output = run([
        "torture",
        "cluster",
        "--system",
        "redis",
        "--fault",
        "none",
        "--rounds",
        "1",
        "--operations",
        "1500",
        "--seed",
        "1",
        "--json",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let line = &json_lines(&output)[0];
    assert_eq!(fields(line), FIELDS);
    assert_eq!(
        (line["test"].as_str(), line["seed"].as_u64()),
        (Some("cluster"), Some(1))
    );
    assert!(
        count(line, "acknowledged") >= 1_500 && count(line, "objects") > 0,
        "{line}"
    );
    let bad = ["not_linearizable", "undecided", "wrong"].map(|field| count(line, field));
    assert_eq!(bad, [0; 3]);
}

#[test]
fn acknowledged_writes_that_nodes_without_a_disk_lose_are_found() {
    if !has_redis() {
        return;
    }
    let output = run([
        "torture",
        "cluster",
        "--system",
        "redis",
        "--fault",
        "kill",
        "--rounds",
        "3",
        "--operations",
        "1500",
        "--seed",
        "2",
        "--json",
    ]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let line = &json_lines(&output)[0];
    assert!(count(line, "not_linearizable") > 0, "{line}\n{}", stderr(&output));
    assert_eq!(count(line, "undecided"), 0);
    let said = stderr(&output);
    assert!(
        said.contains("none of these does") && said.contains("replay: collie-lab torture cluster"),
        "{said}"
    );
    // What was kept is of no use here.
    let kept = said
        .lines()
        .find_map(|line| line.strip_prefix("what the nodes had and said is kept in "));
    std::fs::remove_dir_all(kept.unwrap()).unwrap();
}

#[test]
fn all_nodes_lose_power_and_nothing_acknowledged() {
    if !has_fuse() {
        return;
    }
    let output = run([
        "torture",
        "cluster",
        "--fault",
        "power-all",
        "--rounds",
        "1",
        "--operations",
        "100",
        "--seed",
        "3",
        "--json",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let line = &json_lines(&output)[0];
    assert!(count(line, "acknowledged") > 0, "{line}");
    assert!(count(&line["faults"], "power all") > 0, "{line}");
    // The cuts were felt.
    assert!(count(&line["unsynced"], "lost") > 0, "{line}");
}

#[test]
fn nodes_that_keep_nothing_on_disks_are_not_put_on_disks() {
    for fault in ["power", "power-all", "slow-disk", "full"] {
        let output = run(["torture", "cluster", "--system", "redis", "--fault", fault]);
        assert!(!output.status.success());
        let said = stderr(&output);
        assert!(
            said.contains("keep nothing on disks") && said.contains("--system collie"),
            "{said}"
        );
    }
}
