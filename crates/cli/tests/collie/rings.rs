//! `collie rings`, and the warning of a start about rings whose stores are gone.

use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{json_lines, run, stderr};
use crate::serve::Served;

/// The rings in a directory, as `--json` shows them.
fn rings(dir: &Path, more: &[&str]) -> Vec<Value> {
    let dir = dir.to_str().unwrap();
    let listed = run([&["rings", "--json", "--ring-dir", dir][..], more].concat());
    assert!(listed.status.success(), "{}", stderr(&listed));
    json_lines(&listed)
}

#[test]
fn the_ring_of_a_removed_store_is_named_listed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("rings")).unwrap();
    let config = at("collie.toml");
    let text = format!("[store]\nring-bytes = \"1mb\"\nring-dir = {:?}\n", at("rings"));
    std::fs::write(&config, text).unwrap();
    let flags = ["--config", config.to_str().unwrap()];
    let gone = Served::start(&at("gone"), &flags);
    let kept = Served::start(&at("kept"), &flags);
    let states = |rings: Vec<Value>| {
        let mut states: Vec<_> = rings
            .iter()
            .map(|ring| ring["state"].as_str().unwrap().to_owned())
            .collect();
        states.sort();
        states
    };
    assert_eq!(states(rings(&at("rings"), &[])), ["in use", "in use"]);
    let mut client = kept.connect();
    assert_eq!(client.text(&["SET", "a", "1"]), "+OK");
    gone.kill();
    kept.kill();
    assert_eq!(states(rings(&at("rings"), &[])), ["left", "left"]);
    std::fs::remove_dir_all(at("gone")).unwrap();
    assert_eq!(states(rings(&at("rings"), &[])), ["dead", "left"]);

    let served = Served::start(&at("other"), &flags);
    let named = served
        .said
        .iter()
        .find(|line| line.contains("rings of stores that are gone"));
    let named = named.unwrap_or_else(|| panic!("{:?}", served.said));
    assert!(
        named.contains("1,052,672 bytes") && named.contains("(1 of them)"),
        "{named}"
    );
    assert!(named.contains("--remove-dead"), "{named}");

    let removed = rings(&at("rings"), &["--remove-dead"]);
    assert_eq!(removed.len(), 1, "{removed:?}");
    assert_eq!(removed[0]["bytes"], 1_052_672);
    assert_eq!(removed[0]["removed"], true);
    assert!(Path::new(removed[0]["log"].as_str().unwrap()).starts_with(at("gone")));
    assert_eq!(states(rings(&at("rings"), &[])), ["in use", "left"]);
    served.end(Signal::TERM);
    let kept = Served::start(&at("kept"), &flags);
    assert!(
        kept.said.iter().all(|line| !line.contains("are gone")),
        "{:?}",
        kept.said
    );
    assert_eq!(kept.connect().text(&["GET", "a"]), "1");
    kept.end(Signal::TERM);
}
