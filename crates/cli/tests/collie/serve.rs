//! `collie serve` through the real binary and a socket.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::client::{Client, command};
use crate::common::{collie, run, stderr};
use crate::shared::rings_of;

/// A server in a process of its own; killed when dropped.
pub(crate) struct Served {
    child: Child,
    pub(crate) addr: SocketAddr,
    /// The lines that it printed up to the one with its address.
    pub(crate) said: Vec<String>,
    rest: BufReader<ChildStderr>,
}

impl Served {
    pub(crate) fn start(dir: &Path, flags: &[&str]) -> Self {
        Self::start_by(collie(), dir, flags)
    }

    /// Starts by a command that runs the binary with the arguments that follow.
    pub(crate) fn start_by(command: Command, dir: &Path, flags: &[&str]) -> Self {
        Self::start_at(command, dir, &[&["--listen", "127.0.0.1:0"], flags].concat())
    }

    /// Likewise, where the flags say.
    fn start_at(mut command: Command, dir: &Path, flags: &[&str]) -> Self {
        command.args(["serve", "--dir"]).arg(dir).args(flags);
        Self::run(command)
    }

    /// Runs a command that serves clients, and says where.
    pub(crate) fn run(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let rest = BufReader::new(child.stderr.take().unwrap());
        let mut served = Self {
            child,
            addr: SocketAddr::from(([127, 0, 0, 1], 0)),
            said: Vec::new(),
            rest,
        };
        while served.addr.port() == 0 {
            let mut line = String::new();
            let read = served.rest.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "it ended: {:?}", served.said);
            if let Some(addr) = line.strip_prefix("listening on ") {
                served.addr = addr.trim().parse().unwrap();
            }
            served.said.push(line);
        }
        served
    }

    /// The next line that it prints with `part` in it.
    pub(crate) fn line_with(&mut self, part: &str) -> String {
        loop {
            let mut line = String::new();
            let read = self.rest.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "it ended and did not say {part:?}");
            if line.contains(part) {
                return line;
            }
        }
    }

    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.addr)
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Kills it. The ring stays, for the next start on the same store.
    pub(crate) fn kill(self) {
        let (status, _) = self.end(Signal::KILL);
        assert_eq!(status.code(), None, "it ended by itself");
    }

    /// Sends a signal and waits for the end; also returns its last output.
    pub(crate) fn end(mut self, signal: Signal) -> (ExitStatus, String) {
        kill_process(self.pid(), signal).unwrap();
        let status = self.child.wait().unwrap();
        let mut text = String::new();
        self.rest.read_to_string(&mut text).unwrap();
        (status, text)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Its store is not opened again, so that its ring in shared memory would stay.
        let rings = match self.child.try_wait() {
            Ok(None) => rings_of(&self.child),
            _ => Vec::new(),
        };
        let _ = self.child.kill();
        let _ = self.child.wait();
        for ring in rings {
            let _ = std::fs::remove_file(ring);
        }
    }
}

#[test]
fn a_store_is_served_ends_in_order_and_is_recovered() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    for (round, signal) in [Signal::TERM, Signal::INT, Signal::KILL, Signal::TERM]
        .into_iter()
        .enumerate()
    {
        let served = Served::start(&store, &[]);
        let first = &served.said[0];
        if round == 0 {
            assert!(first.contains("a new store"), "{first}");
        } else {
            assert!(first.contains(&format!("epoch {}", round + 1)), "{first}");
        }
        let mut client = served.connect();
        for before in 0..round {
            let value = client.text(&["GET", &format!("round {before}")]);
            assert_eq!(value, format!("value {before}"));
        }
        let (key, value) = (format!("round {round}"), format!("value {round}"));
        assert_eq!(client.text(&["SET", &key, &value]), "+OK");
        let (status, last) = served.end(signal);
        if signal == Signal::KILL {
            assert!(!status.success());
        } else {
            assert!(status.success(), "{status}: {last}");
            assert!(last.contains("ended in order"), "{last}");
        }
    }
}

#[test]
fn a_second_server_reports_which_process_has_the_store_open() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(dir.path(), &["--ack", "process"]);
    let second = run([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--dir",
        dir.path().to_str().unwrap(),
    ]);
    assert_eq!(second.status.code(), Some(1));
    let pid = served.pid().as_raw_nonzero();
    assert!(
        stderr(&second).contains(&format!("process {pid}")),
        "{}",
        stderr(&second)
    );
    let (status, last) = served.end(Signal::TERM);
    assert!(status.success(), "{last}");
}

#[test]
fn what_cannot_be_served_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("letter"), "dear reader").unwrap();
    let wrong = run(["serve", "--dir", dir.path().to_str().unwrap()]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(stderr(&wrong).contains("letter"), "{}", stderr(&wrong));
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        1,
        "it is left untouched"
    );

    let store = dir.path().join("store");
    let store = store.to_str().unwrap();
    let open = run(["serve", "--dir", store, "--listen", "0.0.0.0:0"]);
    assert_eq!(open.status.code(), Some(1));
    for part in ["password", "--open-to-network"] {
        assert!(stderr(&open).contains(part), "{}", stderr(&open));
    }
    for address in ["nobody.invalid:1", "here", "127.0.0.1:99999"] {
        let wrong = run(["serve", "--dir", store, "--listen", address]);
        assert!(
            !wrong.status.success() && stderr(&wrong).contains("expected"),
            "{}",
            stderr(&wrong)
        );
    }
}

#[test]
fn hosts_have_names_and_a_port_alone_is_one_of_loopback() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let named = ["--metrics", "localhost:0"];
    let check = [
        "serve",
        "--check-config",
        "--dir",
        "/x",
        "--listen",
        "localhost:6390",
    ];
    let shown = run(check);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("listen = \"localhost:6390\""), "{shown}");
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let port = free.port().to_string();
    for flags in [["--listen", &format!("localhost:{port}")[..]], ["--port", &port]] {
        let served = Served::start_at(collie(), &store, &[flags, named].concat());
        assert_eq!(served.addr, free);
        let metrics = served
            .said
            .iter()
            .any(|line| line.starts_with("metrics at http://127.0.0.1:"));
        assert!(metrics, "{:?}", served.said);
        served.end(Signal::TERM);
    }
}

/// No flag of a test is offered to users, nor suggested.
#[test]
fn an_unknown_flag_is_answered_without_flags_of_tests() {
    for flag in ["--small", "--moderate", "--prot"] {
        let refused = run(["serve", "--dir", "/x", flag]);
        assert_eq!(refused.status.code(), Some(2));
        let said = stderr(&refused);
        assert!(!said.contains("--small'") || flag == "--small", "{said}");
        assert!(!said.contains("--moderate'") || flag == "--moderate", "{said}");
    }
}

#[test]
fn a_password_file_keeps_strangers_out() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    std::fs::write(&file, "sesame\n").unwrap();
    let store = dir.path().join("store");
    let served = Served::start(&store, &["--password-file", file.to_str().unwrap()]);
    let mut client = served.connect();
    assert!(client.text(&["GET", "x"]).starts_with("-NOAUTH"));
    assert_eq!(client.text(&["AUTH", "sesame"]), "+OK");
    assert_eq!(client.text(&["SET", "x", "1"]), "+OK");
    let (status, last) = served.end(Signal::TERM);
    assert!(status.success(), "{last}");
}

#[test]
fn an_address_that_is_taken_is_reported_before_there_is_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    for flags in [
        vec!["--listen", &addr],
        vec!["--listen", "127.0.0.1:0", "--metrics", &addr],
        vec!["--listen", "0.0.0.0:0"],
    ] {
        let refused = collie()
            .args(["serve", "--dir"])
            .arg(&store)
            .args(&flags)
            .output()
            .unwrap();
        assert_eq!(refused.status.code(), Some(1), "{flags:?}");
        assert!(!store.exists(), "{flags:?} left a store: {}", stderr(&refused));
    }
    drop(taken);
    let served = Served::start(&store, &[]);
    assert!(served.said[0].contains("a new store"), "{:?}", served.said);
}

#[test]
fn a_terminal_that_closes_takes_no_server_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut served = Served::start(dir.path(), &[]);
    let mut client = served.connect();
    assert_eq!(client.text(&["SET", "a", "1"]), "+OK");
    for _ in 0..3 {
        kill_process(served.pid(), Signal::HUP).unwrap();
    }
    // The pipe of its standard error is closed, and it has something to write there.
    served.rest = BufReader::new({
        let (ours, _) = std::io::pipe().unwrap();
        ChildStderr::from(std::os::fd::OwnedFd::from(ours))
    });
    let mut browser = served.connect();
    browser.send(&command(&["POST", "/"]));
    assert!(browser.try_reply().is_err(), "it is closed");
    kill_process(served.pid(), Signal::HUP).unwrap();
    assert_eq!(client.text(&["INCR", "a"]), ":2");
    let (status, _) = served.end(Signal::TERM);
    assert!(status.success(), "{status}");
}
