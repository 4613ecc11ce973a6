//! `collie cluster status --watch`.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::addresses::addresses;
use crate::client::PATIENCE;
use crate::cluster::Nodes;
use crate::common::collie;

/// A node that does not answer is waited for for 3 s: no end waits for that.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// After a status, with an interval of 1 s: while nodes are asked again, if one did not answer before.
const A_MOMENT: Duration = Duration::from_millis(300);

/// The program, which watches; killed when dropped.
struct Watch {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watch {
    fn start(flags: &[&str]) -> Self {
        let mut process = collie()
            .args(["cluster", "status", "--watch"])
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    /// Reads on to the first line of which this is true.
    fn until(&mut self, what: &str, mut is_it: impl FnMut(&str) -> bool) {
        let began = Instant::now();
        loop {
            let line = self.lines.next().unwrap_or_else(|| panic!("{what}: it ended"));
            let line = line.unwrap();
            println!("{what}: {line}");
            if is_it(&line) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{what}");
        }
    }

    /// Reads on to the state of a cluster that is this.
    fn until_state(&mut self, state: &str) {
        self.until(state, |line| {
            let object: Value = serde_json::from_str(line).unwrap();
            object["state"] == state
        });
    }

    /// Its exit code, after a moment.
    fn end(mut self, signal: Signal) -> Option<i32> {
        std::thread::sleep(A_MOMENT);
        let began = Instant::now();
        kill_process(Pid::from_child(&self.process), signal).unwrap();
        let status = self.process.wait().unwrap();
        assert!(
            began.elapsed() < ENDS_WITHIN,
            "it ended after {:?}",
            began.elapsed()
        );
        status.code()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn watch_shows_changes_and_ends_with_the_last_state() {
    let mut nodes = Nodes::start(tempfile::tempdir().unwrap(), &[]);
    nodes.until("all is well", 0, &[]);
    let first = nodes.nodes[0].client.to_string();
    let mut objects = Watch::start(&["1", "--json", "--node", &first]);
    objects.until_state("well");

    // It goes on beside a node that does not answer.
    nodes.signal(2, Signal::STOP);
    for _ in 0..3 {
        objects.until_state("degraded");
    }
    let mut text = Watch::start(&["--node", &first]);
    text.until("degraded", |line| line.ends_with(" UTC  degraded"));
    text.until("why", |line| line.contains("no answer within"));
    assert_eq!(text.end(Signal::INT), Some(1));

    // The node that was named is gone: those are asked that it has named.
    nodes.end(0, Signal::KILL);
    objects.until_state("down");
    nodes.end(1, Signal::KILL);
    nodes.end(2, Signal::KILL);
    objects.until("unknown", |line| {
        let object: Value = serde_json::from_str(line).unwrap();
        let problem = object["problem"].as_str().unwrap_or_default();
        object["state"] == "unknown" && problem.contains("no node can be asked")
    });
    assert_eq!(objects.end(Signal::TERM), Some(4));
}

#[test]
fn a_terminal_shows_each_status_in_the_place_of_the_last() {
    let nowhere = addresses(1)[0];
    // A shell that stays would end by the signal too.
    let watch = format!(
        "exec {} cluster status --watch 1 --node {nowhere}",
        env!("CARGO_BIN_EXE_collie")
    );
    // It is of Debian's essential packages, and gives the program a terminal of its own.
    let mut terminal = Command::new("script")
        .args(["-qec", &watch, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut shown, mut buffer) = (Vec::new(), [0; 4096]);
    let mut out = terminal.stdout.take().unwrap();
    while String::from_utf8_lossy(&shown)
        .matches("no node can be asked")
        .count()
        < 2
    {
        let read = out.read(&mut buffer).unwrap();
        assert_ne!(read, 0, "it ended: {}", String::from_utf8_lossy(&shown));
        shown.extend(&buffer[..read]);
    }
    // Control-C.
    terminal.stdin.take().unwrap().write_all(b"\x03").unwrap();
    assert_eq!(terminal.wait().unwrap().code(), Some(4));
    let shown = String::from_utf8(shown).unwrap();
    let frames: Vec<_> = shown.split("\x1b[H\x1b[J").skip(1).collect();
    assert!(frames.len() >= 2, "{shown:?}");
    assert!(
        frames.iter().all(|frame| frame.contains(" UTC  unknown\r\n")),
        "{shown:?}"
    );
}
