//! `collie cluster up` where a node cannot run.

use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{run, stderr};

/// A port from which on three are free, and those of the nodes for each other; below the ports that the
/// system gives out, and another one for each test.
fn free_ports() -> u16 {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let fits = |port: &u16| (*port..port + 3).all(|port| is_free(port) && is_free(port + 10_000));
    let mut next = || {
        let taken = TAKEN.fetch_add(1, Ordering::Relaxed);
        10_100
            + u16::try_from((std::process::id().wrapping_mul(31).wrapping_add(taken * 4)) % 12_000).unwrap()
    };
    std::iter::repeat_with(&mut next).find(fits).unwrap()
}

fn up(dir: &Path, port: u16) -> std::process::Output {
    run([
        "cluster",
        "up",
        "--dir",
        dir.to_str().unwrap(),
        "--port",
        &port.to_string(),
    ])
}

/// The processes of this machine that name the directory.
fn nodes_in(dir: &Path) -> Vec<Pid> {
    let name = dir.to_str().unwrap();
    let named = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let path = entry.unwrap().path();
        let command = std::fs::read(path.join("cmdline")).ok()?;
        let is_node = String::from_utf8_lossy(&command).contains(name);
        let pid = path.file_name()?.to_str()?.parse().ok()?;
        is_node.then(|| Pid::from_raw(pid))?
    });
    named.collect()
}

/// Kills what a failed test leaves running.
struct Killed<'a>(&'a Path);

impl Drop for Killed<'_> {
    fn drop(&mut self) {
        for node in nodes_in(self.0) {
            let _ = kill_process(node, Signal::KILL);
        }
    }
}

#[test]
fn a_port_that_is_taken_is_named_before_any_node_runs() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = dir.path().join("cluster");
    let _killed = Killed(&cluster);
    let port = free_ports();
    // Of the first node, for clients; of the last one, for the others.
    for taken in [port, port + 2 + 10_000] {
        let holder = TcpListener::bind(("127.0.0.1", taken)).unwrap();
        let refused = up(&cluster, port);
        assert_eq!(refused.status.code(), Some(1));
        let said = stderr(&refused);
        assert!(
            said.contains(&format!("127.0.0.1:{taken}")) && said.contains("another --port"),
            "{said}"
        );
        assert_eq!(nodes_in(&cluster), [], "{said}");
        assert!(!cluster.exists(), "a cluster was made, whose ports would stay");
        drop(holder);
    }
}

#[test]
fn where_a_node_ends_those_that_were_started_end_too() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = dir.path().join("cluster");
    let _killed = Killed(&cluster);
    std::fs::create_dir(&cluster).unwrap();
    let port = free_ports();
    std::fs::write(
        cluster.join("cluster.toml"),
        format!("nodes = 3\nport = {port}\n"),
    )
    .unwrap();
    // The second node finds a file in the place of its directory.
    std::fs::write(cluster.join("node-2"), "").unwrap();
    let failed = up(&cluster, port);
    assert_eq!(failed.status.code(), Some(1));
    let said = stderr(&failed);
    assert!(said.contains("node 2 ended by itself"), "{said}");
    assert!(
        said.contains("the others that were started have been ended too"),
        "{said}"
    );
    assert_eq!(nodes_in(&cluster), [], "{said}");
}
