//! The units for systemd in `packaging`.

use std::collections::BTreeMap;
use std::process::Command;

use crate::common::stderr;

const SERVER: &str = include_str!("../../../../packaging/collie.service");
const NODE: &str = include_str!("../../../../packaging/collie-node.service");

/// The settings of a unit, by section and name.
fn settings(unit: &str) -> BTreeMap<(&str, &str), &str> {
    let mut section = "";
    let mut settings = BTreeMap::new();
    for line in unit.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[') {
            section = name.strip_suffix(']').unwrap();
        } else if !line.is_empty() && !line.starts_with('#') {
            let (name, value) = line.split_once('=').unwrap_or_else(|| panic!("{line}"));
            let before = settings.insert((section, name), value);
            assert!(before.is_none(), "{name} is there twice");
        }
    }
    settings
}

/// Where systemd is there it has the last word; the binary's path is put to one that exists.
fn verify(unit: &str, name: &str) {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join(name);
    let start = settings(unit)[&("Service", "ExecStart")];
    let here = start.replacen("/usr/bin/collie", env!("CARGO_BIN_EXE_collie"), 1);
    std::fs::write(&copy, unit.replace(start, &here)).unwrap();
    match Command::new("systemd-analyze").arg("verify").arg(&copy).output() {
        Ok(output) => {
            let said = stderr(&output);
            assert!(
                output.status.success() && !said.contains(&format!("{name}:")),
                "{said}"
            );
        }
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
    }
}

#[test]
fn the_unit_is_one_that_systemd_takes_and_keeps_the_ring_alive() {
    let settings = settings(SERVER);
    let value = |name| settings.get(&("Service", name)).copied();
    assert_eq!(value("Type"), Some("notify"));
    assert_eq!(value("Restart"), Some("on-failure"));
    // What would take the ring away that the next start reads.
    for sweeper in ["DynamicUser", "RemoveIPC"] {
        assert!(matches!(value(sweeper), None | Some("no")), "{sweeper}");
    }
    assert!(value("ReadWritePaths").is_some_and(|paths| paths.contains("/dev/shm")));
    let files: u64 = value("LimitNOFILE").unwrap().parse().unwrap();
    assert!(
        files > 100_000,
        "{files} open files are too few for 100,000 connections"
    );
    let start = value("ExecStart").unwrap();
    assert_eq!(start, "/usr/bin/collie serve --config /etc/collie/collie.toml");
    verify(SERVER, "collie.service");
}

#[test]
fn the_unit_of_a_node_is_as_hard_and_waits_for_its_end() {
    let (server, node) = (settings(SERVER), settings(NODE));
    // A node has no ring outside of its process.
    let of_the_ring = ["RemoveIPC", "ReadWritePaths"];
    let differ = ["ExecStart", "TimeoutStopSec", "StateDirectory"];
    for ((section, name), value) in server {
        if section == "Service" && !differ.contains(&name) {
            let expected = (!of_the_ring.contains(&name)).then_some(value);
            assert_eq!(node.get(&(section, name)).copied(), expected, "{name}");
        }
    }
    let value = |name| node[&("Service", name)];
    // Others take over, clients go, what nodes have asked is answered, and all is written.
    let stop: u64 = value("TimeoutStopSec").parse().unwrap();
    assert!(stop >= 10 + 10 + 15 + 60, "{stop} s");
    assert_eq!(value("StateDirectory"), "collie-node");
    assert_eq!(
        value("ExecStart"),
        "/usr/bin/collie node --config /etc/collie/collie-node.toml"
    );
    verify(NODE, "collie-node.service");
}
