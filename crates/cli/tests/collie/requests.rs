//! What `collie cluster` asks of which nodes, and which of their answers counts. The nodes are played by the test.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Output;
use std::sync::{Arc, Mutex};
use std::thread;

use crate::common::{json_lines, run, stderr};

/// A node that gives these answers, one after the other, and the last one again.
struct Played {
    address: SocketAddr,
    /// What it was asked.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Played {
    fn with(answers: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let (all, answers) = (
            Arc::clone(&asked),
            answers.iter().map(ToString::to_string).collect::<Vec<_>>(),
        );
        thread::spawn(move || {
            for stream in listener.incoming() {
                answer(&stream.unwrap(), &answers, &all);
            }
        });
        Self { address, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// Answers what comes over a connection until it ends.
fn answer(stream: &TcpStream, answers: &[String], asked: &Mutex<Vec<String>>) {
    let mut lines = BufReader::new(stream).lines();
    while let Some(Ok(head)) = lines.next() {
        let count: usize = head.strip_prefix('*').unwrap().parse().unwrap();
        let words: Vec<_> = (0..count)
            .map(|_| lines.by_ref().nth(1).unwrap().unwrap())
            .collect();
        let at = {
            let mut asked = asked.lock().unwrap();
            asked.push(words.join(" "));
            asked.len() - 1
        };
        let answer = answers.get(at).or(answers.last()).unwrap();
        let mut stream = stream;
        write!(stream, "{answer}\r\n").unwrap();
    }
}

/// An address where nothing answers.
fn nowhere() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn cluster(words: &[&str], nodes: &[SocketAddr]) -> Output {
    let nodes: Vec<_> = nodes.iter().map(ToString::to_string).collect();
    run([&["cluster"], words, &["--node", &nodes.join(",")]].concat())
}

const CHANGES: [&[&str]; 7] = [
    &["finalize"],
    &["layout", "1", "shared"],
    &["split", "12000"],
    &["drain", "1"],
    &["serve", "1"],
    &["remove", "1"],
    &["replace", "1", "2"],
];

#[test]
fn what_one_node_refuses_is_not_asked_of_another() {
    let refusal = "ERR feature level 3 is not used before all nodes speak it: node 2: it does not. Ask later";
    for change in CHANGES {
        let (new, old) = (Played::with(&[&format!("-{refusal}")]), Played::with(&["+OK"]));
        let output = cluster(change, &[new.address, old.address]);
        assert_eq!(output.status.code(), Some(1), "{change:?}: {output:?}");
        assert_eq!(stderr(&output).matches(refusal).count(), 1, "{output:?}");
        assert_eq!(output.stdout, b"", "{change:?}");
        assert_eq!((new.asked().len(), old.asked().len()), (1, 0), "{change:?}");
    }
}

#[test]
fn a_node_that_cannot_say_for_now_is_asked_again() {
    for again in [
        "-ERR this node has no map yet: ask again",
        "-ERR no leader of the map is known at this node: ask again, or another node",
    ] {
        let (first, other) = (Played::with(&[again]), Played::with(&["+OK"]));
        let output = cluster(&["drain", "1"], &[first.address, nowhere(), other.address]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(other.asked(), ["COLLIE.NODE DRAIN 1"]);
        let late = Played::with(&[again, again, "+OK"]);
        let output = cluster(&["split", "12000"], &[nowhere(), late.address]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(late.asked().len(), 3);
    }
    // It is none of these, though it looks like one.
    let moves = "-ERR replicas of the partition of group 4 move: ask again when they have";
    let refuses = Played::with(&[moves]);
    let output = cluster(&["split", "12000"], &[refuses.address]);
    assert_eq!((output.status.code(), refuses.asked().len()), (Some(1), 1));
}

#[test]
fn where_no_node_answers_each_is_named() {
    let nodes = [nowhere(), nowhere()];
    let output = cluster(&["finalize"], &nodes);
    assert_eq!(output.status.code(), Some(1));
    for node in nodes {
        assert!(stderr(&output).contains(&node.to_string()), "{output:?}");
    }
}

#[test]
fn partitions_are_listed_by_a_node_that_sees_all_served() {
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let list = |served: &str, leader: &str| {
        let fields = [
            ("partition", ":7\r\n".to_owned()),
            ("first", ":0\r\n".to_owned()),
            ("last", ":511\r\n".to_owned()),
            ("leader", format!("{leader}\r\n")),
            ("split_at", ":300\r\n".to_owned()),
            ("served", bulk(served)),
            ("nodes", "*2\r\n:1\r\n:2\r\n".to_owned()),
            ("joining", "*1\r\n:3\r\n".to_owned()),
            ("leaving", "*0\r\n".to_owned()),
        ];
        let fields: String = fields.iter().map(|(name, value)| bulk(name) + value).collect();
        // The test adds the last line break.
        format!("*1\r\n*18\r\n{fields}").trim_end().to_owned()
    };
    let (cut_off, sees) = (
        Played::with(&[&list("no", "$-1")]),
        Played::with(&[&list("yes", ":2")]),
    );
    let nodes = [cut_off.address, sees.address];
    let output = cluster(&["partitions"], &nodes);
    let table = String::from_utf8(output.stdout).unwrap();
    let line = "        7 0-511            2 1,2         served, moves to 3, is split at 300";
    assert_eq!(table.lines().nth(1), Some(line), "{table}");
    let output = cluster(&["partitions", "--json"], &nodes);
    let expected = serde_json::json!({
        "partition": 7, "first": 0, "last": 511, "leader": 2, "served": true,
        "nodes": [1, 2], "joining": [3], "leaving": [], "split_at": 300,
    });
    assert_eq!(json_lines(&output), [expected]);
    let output = cluster(&["partitions"], &nodes[..1]);
    assert!(String::from_utf8_lossy(&output.stdout).contains(" - 1,2         not served, moves"));
}
