//! `collie cluster duplicate`: two clusters of processes, as their operator and their clients see them.

use std::collections::BTreeMap;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::client::{Client, wait_for};
use crate::cluster::Nodes;
use crate::common::{json_lines, run, stderr};

const KEYS: usize = 40;

/// Runs a command at the node that has its key, and returns the line of the reply.
fn execute(nodes: &Nodes, password: Option<&str>, line: &str) -> String {
    let mut last = String::new();
    wait_for(line, || {
        nodes.nodes.iter().any(|node| {
            let Ok(stream) = std::net::TcpStream::connect(node.client) else {
                return false;
            };
            drop(stream);
            let mut client = Client::connect(node.client);
            if let Some(password) = password {
                assert_eq!(client.line(&format!("AUTH {password}")), "+OK\r\n");
            }
            last = client.line(line).trim_end().to_owned();
            !["-MOVED", "-CLUSTERDOWN", "-TRYAGAIN"]
                .iter()
                .any(|elsewhere| last.starts_with(elsewhere))
        })
    });
    last
}

/// What a cluster has of all keys.
fn all(nodes: &Nodes, password: Option<&str>) -> BTreeMap<usize, String> {
    let value = |key: usize| (key, execute(nodes, password, &format!("GET key:{key}")));
    (0..KEYS).map(value).collect()
}

fn duplicate(nodes: &Nodes, words: &[&str], flags: &[&str]) -> std::process::Output {
    let at: Vec<_> = nodes.nodes.iter().map(|node| node.client.to_string()).collect();
    let at = at.join(",");
    run([&["cluster", "duplicate"], words, &["--node", &at], flags].concat())
}

fn listed(nodes: &Nodes, flags: &[&str]) -> Vec<Value> {
    json_lines(&duplicate(nodes, &["list", "--json"], flags))
}

/// Waits until the only target lacks nothing.
fn until_it_has_everything(nodes: &Nodes, flags: &[&str]) {
    wait_for("that the target has everything", || {
        let targets = listed(nodes, flags);
        println!("{targets:?}");
        targets.len() == 1
            && targets[0]["following"] == targets[0]["partitions"]
            && targets[0]["lag_entries"] == 0
    });
}

/// Nothing goes to the target while it is paused, which is no problem; then what it lacks does.
fn pauses_and_resumes(second: &Nodes, secret: &[&str], first: impl Fn() -> BTreeMap<usize, String>) {
    let password = Some("sesame");
    let paused = duplicate(second, &["pause", "first"], secret);
    assert_eq!(paused.status.code(), Some(0), "{paused:?}");
    let again = duplicate(second, &["pause", "first"], secret);
    assert!(stderr(&again).contains("is paused already"), "{again:?}");
    wait_for("that all nodes know", || {
        listed(second, secret)[0]["paused"] == true
    });
    let (_, cluster) = second.until("all is well", 0, secret);
    assert_eq!(cluster["paused"], json!(["first"]));
    let before = first();
    execute(second, password, "SET key:1 paused");
    execute(second, password, "DEL key:2");
    wait_for("what it lacks", || listed(second, secret)[0]["lag_entries"] != 0);
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(first(), before);
    let text = String::from_utf8(duplicate(second, &["list"], secret).stdout).unwrap();
    assert!(text.contains("first: paused by command, lacks"), "{text}");
    let unknown = duplicate(second, &["resume", "third"], secret);
    assert!(stderr(&unknown).contains("to third, but to first"), "{unknown:?}");
    let resumed = duplicate(second, &["resume", "first"], secret);
    assert_eq!(resumed.status.code(), Some(0), "{resumed:?}");
    wait_for("what was missed", || {
        let now = first();
        now[&1].contains("paused") && now[&2] == "$-1"
    });
    let again = duplicate(second, &["resume", "first"], secret);
    assert!(stderr(&again).contains("is not paused"), "{again:?}");
}

#[test]
fn two_clusters_with_passwords_come_to_the_same_both_ways() {
    let dir = tempfile::tempdir().unwrap();
    let files = ["own", "theirs"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    let [own, theirs] = &files;
    std::fs::write(own, "sesame\n").unwrap();
    std::fs::write(theirs, "semolina\n").unwrap();
    let flag = |name: &str, file: &str| [name.to_owned(), file.to_owned()];
    let first_flags = flag("--duplicate-password-file", theirs);
    let mut first = Nodes::start(tempfile::tempdir().unwrap(), &first_flags);
    let second = Nodes::start(tempfile::tempdir().unwrap(), &flag("--password-file", own));
    let secret = ["--password-file", own.as_str()];
    let password = Some("sesame");
    first.until("all is well", 0, &[]);
    second.until("all is well", 0, &secret);
    for key in 0..KEYS / 2 {
        let line = format!("SET key:{key} before");
        assert_eq!(execute(&first, None, &line), "+OK");
    }

    // The password is read at each connection.
    let place = second.nodes[1].client.to_string();
    let refused = duplicate(&first, &["add", "second", &place], &[]);
    assert!(stderr(&refused).contains("WRONGPASS"), "{refused:?}");
    assert_eq!(listed(&first, &[]), [] as [Value; 0]);
    std::fs::write(theirs, "sesame\n").unwrap();
    let added = duplicate(&first, &["add", "second", &place], &[]);
    assert_eq!(added.status.code(), Some(0), "{added:?}");
    until_it_has_everything(&first, &[]);
    assert_eq!(all(&second, password), all(&first, None));

    // Both ways, while both are written, and a node of one dies.
    let place = first.nodes[2].client.to_string();
    let added = duplicate(&second, &["add", "first", &place], &secret);
    assert_eq!(added.status.code(), Some(0), "{added:?}");
    for key in 0..KEYS {
        execute(&first, None, &format!("SET key:{key} first"));
        execute(&second, password, &format!("APPEND key:{key} second"));
        match key % 4 {
            0 => _ = execute(&second, password, &format!("DEL key:{key}")),
            1 => _ = execute(&first, None, &format!("EXPIRE key:{key} 1000")),
            _ => {}
        }
        if key == KEYS / 2 {
            first.end(0, Signal::KILL);
        }
    }
    wait_for("that both have the same", || {
        let (one, other) = (all(&first, None), all(&second, password));
        println!("{one:?}\n{other:?}");
        one == other && (0..KEYS).step_by(4).all(|key| one[&key] == "$-1")
    });

    pauses_and_resumes(&second, &secret, || all(&first, None));

    let ended = duplicate(&second, &["end", "first"], &secret);
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    wait_for("the end", || listed(&second, &secret).is_empty());
    let again = duplicate(&second, &["end", "first"], &secret);
    assert!(stderr(&again).contains("to no other one"), "{again:?}");
}
