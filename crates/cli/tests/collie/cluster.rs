//! `collie node` and `collie cluster status`: a cluster of three processes as operators, probes and
//! clients see it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::addresses::addresses;
use crate::client::{Client, PATIENCE, command, wait_for};
use crate::common::{collie, json_lines, run, stderr};

/// Nodes of one cluster, each in a process of its own; killed when dropped.
pub(crate) struct Nodes {
    dir: tempfile::TempDir,
    /// What each is started with.
    flags: Vec<String>,
    pub(crate) nodes: Vec<Node>,
}

pub(crate) struct Node {
    pub(crate) client: SocketAddr,
    peer: SocketAddr,
    metrics: SocketAddr,
    process: Option<Child>,
}

impl Nodes {
    pub(crate) fn start(dir: tempfile::TempDir, flags: &[String]) -> Self {
        let all = addresses(9);
        let nodes = all.chunks(3).map(|own| Node {
            client: own[0],
            peer: own[1],
            metrics: own[2],
            process: None,
        });
        let mut nodes = Self {
            nodes: nodes.collect(),
            dir,
            flags: flags.to_vec(),
        };
        for at in 0..3 {
            nodes.run(at);
        }
        nodes
    }

    /// Starts the process of a node.
    fn run(&mut self, at: usize) {
        let first = self.nodes[0].peer.to_string();
        let join = match at {
            0 if self.dir.path().join("node-0/node").exists() => vec![],
            0 => vec!["--bootstrap", "--partitions", "8"],
            _ => vec!["--join", &first],
        };
        let node = &self.nodes[at];
        let process = collie()
            .args(["node", "--dir"])
            .arg(self.dir.path().join(format!("node-{at}")))
            .args(["--listen", &node.client.to_string()])
            .args(["--peer", &node.peer.to_string()])
            .args(["--metrics", &node.metrics.to_string()])
            .args(join)
            .args(&self.flags)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.nodes[at].process = Some(process);
    }

    pub(crate) fn signal(&self, at: usize, signal: Signal) {
        let process = self.nodes[at].process.as_ref().unwrap();
        kill_process(Pid::from_child(process), signal).unwrap();
    }

    /// Ends the process of a node, and waits for that: how it ended.
    pub(crate) fn end(&mut self, at: usize, signal: Signal) -> Option<i32> {
        self.signal(at, signal);
        self.nodes[at].process.take().unwrap().wait().unwrap().code()
    }

    /// The exit code of `status`, the nodes as it shows them, and the cluster.
    fn status(&self, asked: &[usize], flags: &[&str]) -> (i32, Vec<Value>, Value) {
        let addresses: Vec<_> = asked
            .iter()
            .map(|at| self.nodes[*at].client.to_string())
            .collect();
        let node = addresses.join(",");
        let output = run([&["cluster", "status", "--json", "--node", &node], flags].concat());
        let mut lines = json_lines(&output);
        let code = output.status.code().unwrap();
        match lines.pop() {
            Some(cluster) => (code, lines, cluster),
            None => (code, Vec::new(), Value::String(stderr(&output))),
        }
    }

    /// Waits until `status` exits with this code.
    pub(crate) fn until(&self, what: &str, code: i32, flags: &[&str]) -> (Vec<Value>, Value) {
        let mut last = (0, Vec::new(), Value::Null);
        wait_for(what, || {
            last = self.status(&[0, 1, 2], flags);
            println!("{what}: {last:?}");
            last.0 == code
        });
        (last.1, last.2)
    }

    /// What a node answers to a request for a page.
    fn get(&self, at: usize, path: &str) -> String {
        let mut stream = TcpStream::connect(self.nodes[at].metrics).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page
    }

    fn is_healthy(&self, at: usize) -> bool {
        self.get(at, "/healthz").starts_with("HTTP/1.1 200 ")
    }

    /// The elections that the other nodes have won because a leader handed over.
    fn handed_over(&self, at: usize) -> u64 {
        let others = (0..3).filter(|other| *other != at);
        let pages = others.map(|other| self.get(other, "/metrics"));
        let won = |page: String| -> u64 {
            let lines = page.lines().filter(|line| {
                line.starts_with("collie_cluster_partition_elections_total{") && line.contains("transfer")
            });
            lines
                .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
                .sum()
        };
        pages.map(won).sum()
    }

    /// Whether a node leads any slots.
    fn leads(&self, at: usize) -> bool {
        let info = Client::connect(self.nodes[at].client).line("CLUSTER INFO");
        let led = info
            .lines()
            .find_map(|line| line.strip_prefix("collie_slots_led:"));
        !led.unwrap().is_empty()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            if let Some(process) = &mut node.process {
                // One that is stopped dies as well.
                let _ = process.kill();
                let _ = process.wait();
            }
        }
    }
}

fn states(nodes: &[Value]) -> Vec<(bool, bool)> {
    let field = |node: &Value, name: &str| node[name].as_bool().unwrap();
    nodes
        .iter()
        .map(|node| (field(node, "alive"), field(node, "answers")))
        .collect()
}

fn cluster_state(addr: SocketAddr) -> String {
    let info = Client::connect(addr).line("CLUSTER INFO");
    let state = info.lines().find_map(|line| line.strip_prefix("cluster_state:"));
    state.unwrap().to_owned()
}

#[test]
fn status_says_what_a_client_would_meet() {
    let mut nodes = Nodes::start(tempfile::tempdir().unwrap(), &[]);
    let (shown, cluster) = nodes.until("all is well", 0, &[]);
    assert_eq!(states(&shown), [(true, true); 3]);
    assert_eq!(
        (cluster["state"].as_str(), cluster["served"].as_u64()),
        (Some("well"), Some(16_384))
    );
    wait_for("healthy nodes", || (0..3).all(|at| nodes.is_healthy(at)));

    nodes.end(2, Signal::KILL);
    let (_, cluster) = nodes.until("one is dead", 1, &[]);
    assert_eq!(cluster["state"], "degraded");
    // One seed that answers is enough.
    assert_eq!(nodes.status(&[2, 1], &[]).0, 1);
    assert!(nodes.is_healthy(0) && nodes.is_healthy(1));

    // A total outage: one is dead, one is stopped.
    nodes.signal(1, Signal::STOP);
    let (shown, cluster) = nodes.until("nothing is served", 3, &[]);
    assert_eq!(cluster["state"], "down");
    let alone = shown.iter().filter(|node| node["answers"] == true);
    assert_eq!(alone.count(), 1);
    wait_for("nothing is led", || nodes.status(&[0], &[]).2["served"] == 0);
    assert_eq!(cluster_state(nodes.nodes[0].client), "fail");
    let health = nodes.get(0, "/healthz");
    assert!(health.starts_with("HTTP/1.1 503 "), "{health}");
    assert!(health.contains("no keys are served: "), "{health}");
    assert!(
        nodes.get(0, "/livez").starts_with("HTTP/1.1 200 "),
        "a restart would not help"
    );

    nodes.signal(1, Signal::CONT);
    nodes.until("one goes on", 1, &[]);
    wait_for("a healthy node", || nodes.is_healthy(0));
    nodes.end(0, Signal::KILL);
    nodes.end(1, Signal::KILL);
    let (code, _, why) = nodes.status(&[0, 1, 2], &[]);
    assert_eq!(code, 4, "{why}");
    assert!(why.as_str().unwrap().contains("no node can be asked"), "{why}");
}

#[test]
fn a_layout_that_a_stopped_node_was_asked_for_may_come_later() {
    let nodes = Nodes::start(tempfile::tempdir().unwrap(), &[]);
    nodes.until("all is well", 0, &[]);
    let (first, stopped) = (
        nodes.nodes[0].client.to_string(),
        nodes.nodes[1].client.to_string(),
    );
    let listed = json_lines(&run(["cluster", "nodes", "--json", "--node", &first]));
    let listed = listed.iter().find(|node| node["address"] == stopped);
    let number = listed.unwrap()["number"].to_string();
    nodes.signal(1, Signal::STOP);
    let asked = run(["cluster", "layout", &number, "private", "--node", &first]);
    nodes.signal(1, Signal::CONT);
    let expected = format!("node {number} does not answer, and its logs may move all the same");
    assert!(stderr(&asked).contains(&expected), "{asked:?}");
    assert_eq!(asked.status.code(), Some(1));
}

#[test]
fn idle_nodes_park_all_replicas_and_leave_huge_pages_alone() {
    let nodes = Nodes::start(tempfile::tempdir().unwrap(), &[]);
    nodes.until("all is well", 0, &[]);
    // Eight partitions, and the map.
    let all_park = |at| {
        let metrics = nodes.get(at, "/metrics");
        metrics
            .lines()
            .any(|line| line == "collie_cluster_replicas_parked 9")
    };
    wait_for("parked replicas", || (0..3).all(all_park));
    assert_eq!(nodes.status(&[0, 1, 2], &[]).0, 0);
    let pid = nodes.nodes[0].process.as_ref().unwrap().id();
    let process = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(!process.contains("THP_enabled:\t1"), "{process}");
}

#[test]
fn status_asks_with_the_password_and_says_where_it_lacks_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    std::fs::write(&file, "open sesame\n").unwrap();
    let file = file.to_str().unwrap().to_owned();
    let nodes = Nodes::start(dir, &["--password-file".to_owned(), file.clone()]);
    nodes.until("all is well", 0, &["--password-file", &file]);
    nodes.until("all is well", 0, &["--password", "open sesame"]);
    let node = nodes.nodes[0].client.to_string();
    let environment = |password: &str| {
        let mut status = collie();
        let status = status.args(["cluster", "status", "--node", &node]);
        status.env("COLLIE_PASSWORD", password).output().unwrap()
    };
    assert_eq!(environment("open sesame").status.code(), Some(0));
    let wrong = environment("open says me");
    assert_eq!(wrong.status.code(), Some(4));
    assert!(stderr(&wrong).contains("WRONGPASS"), "{}", stderr(&wrong));
    let (code, _, why) = nodes.status(&[0, 1, 2], &[]);
    assert_eq!(code, 4);
    assert!(why.as_str().unwrap().contains("--password-file"), "{why}");
}

#[test]
fn status_speaks_tls_where_the_nodes_do() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (ca, certificate, key) = (at("ca.pem"), at("n1.pem"), at("n1.key"));
    let flags = [
        "--tls-cert-file",
        &certificate,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &ca,
    ];
    let nodes = Nodes::start(dir, &flags.map(str::to_owned));
    // These certificates are for the nodes' common name.
    let name = ["--tls-name", "node.collie.internal"];
    nodes.until("all is well", 0, &[&flags[..], &name].concat());
    let (code, _, why) = nodes.status(&[0], &[]);
    assert_eq!(code, 4);
    assert!(why.as_str().unwrap().contains("--tls-ca-cert-file"), "{why}");
    let stranger = [&["--tls-ca-cert-file", &ca][..], &name].concat();
    assert_eq!(nodes.status(&[0], &stranger).0, 4, "it has no certificate");
    let other_name = nodes.status(&[0], &flags);
    assert_eq!(other_name.0, 4, "{other_name:?}");
}

/// Makes a CA and the certificate of one node.
fn certificates(dir: &Path) {
    let dir = dir.to_str().unwrap();
    for args in [
        &["new", "--dir", dir][..],
        &["node", "--dir", dir, "--name", "n1"],
    ] {
        let made = run([&["cluster", "ca"], args].concat());
        assert!(made.status.success(), "{}", stderr(&made));
    }
}

/// It listens on all addresses, as in a container.
#[test]
fn clients_are_sent_to_the_address_that_a_node_advertises() {
    let dir = tempfile::tempdir().unwrap();
    let [client, peer, metrics] = addresses(3)[..] else {
        unreachable!("three addresses")
    };
    let advertised = format!("127.0.0.1:{}", client.port());
    let process = collie()
        .args([
            "node",
            "--bootstrap",
            "--replicas",
            "1",
            "--partitions",
            "4",
            "--dir",
        ])
        .arg(dir.path().join("node"))
        .args([
            "--listen",
            &format!("0.0.0.0:{}", client.port()),
            "--open-to-network",
        ])
        .args(["--advertise-client", &advertised, "--peer", &peer.to_string()])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    let node = Node {
        client,
        peer,
        metrics,
        process: Some(process.unwrap()),
    };
    // Ended when dropped.
    let nodes = Nodes {
        dir,
        flags: Vec::new(),
        nodes: vec![node],
    };
    let client = nodes.nodes[0].client;
    wait_for("all slots", || {
        let info = Client::try_connect(client).map(|mut client| client.line("CLUSTER INFO"));
        info.is_ok_and(|info| info.contains("cluster_slots_ok:16384"))
    });
    let shown = Client::connect(client).line("CLUSTER NODES");
    assert!(shown.contains(&advertised), "{shown}");
}

/// A client that goes where it is sent, and sends again what was not executed, as those of Redis Cluster
/// do.
struct Wanderer<'a> {
    nodes: &'a [SocketAddr],
    at: SocketAddr,
    connections: std::collections::BTreeMap<SocketAddr, Client>,
}

impl Wanderer<'_> {
    /// The reply of a node that executes the command. What has no reply is sent again, too.
    fn call(&mut self, words: &[&str]) -> String {
        let mut others = self.nodes.iter().cycle();
        loop {
            let reply = self.ask(words);
            match reply {
                Ok(reply) if reply.starts_with("-MOVED ") => {
                    self.at = reply.trim().rsplit(' ').next().unwrap().parse().unwrap();
                }
                Ok(reply) if reply.starts_with("-TRYAGAIN ") => {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                Ok(reply) => return reply,
                Err(_) => {
                    self.connections.remove(&self.at);
                    self.at = *others.next().unwrap();
                }
            }
        }
    }

    fn ask(&mut self, words: &[&str]) -> std::io::Result<String> {
        if !self.connections.contains_key(&self.at) {
            self.connections.insert(self.at, Client::try_connect(self.at)?);
        }
        let client = self.connections.get_mut(&self.at).unwrap();
        client.try_send(&command(words))?;
        Ok(String::from_utf8(client.try_reply()?).unwrap())
    }
}

#[test]
fn a_rolling_restart_hands_over_and_shows_clients_no_error() {
    let mut nodes = Nodes::start(tempfile::tempdir().unwrap(), &[]);
    nodes.until("all is well", 0, &[]);
    let clients: Vec<_> = nodes.nodes.iter().map(|node| node.client).collect();
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for number in 0..4_usize {
            let (clients, stop, done) = (&clients, &stop, &done);
            scope.spawn(move || {
                let mut wanderer = Wanderer {
                    nodes: clients,
                    at: clients[number % 3],
                    connections: Default::default(),
                };
                for count in 0.. {
                    let key = format!("key {number} {}", count % 50);
                    let reply = wanderer.call(&["SET", &key, &count.to_string()]);
                    assert_eq!(reply, "+OK\r\n");
                    let read = wanderer.call(&["GET", &key]);
                    assert!(read.ends_with(&format!("\r\n{count}\r\n")), "{read}");
                    done.fetch_add(1, Ordering::SeqCst);
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                }
            });
        }
        let ends = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for at in 0..3 {
                let (leads, before) = (nodes.leads(at), nodes.handed_over(at));
                assert_eq!(nodes.end(at, Signal::TERM), Some(0), "it ends in order");
                assert!(
                    !leads || nodes.handed_over(at) > before,
                    "node {at} hands over nothing"
                );
                let more = done.load(Ordering::SeqCst) + 100;
                wait_for("clients that go on", || done.load(Ordering::SeqCst) >= more);
                nodes.run(at);
                nodes.until("it is back", 0, &[]);
            }
        }));
        stop.store(true, Ordering::SeqCst);
        if let Err(panic) = ends {
            std::panic::resume_unwind(panic);
        }
    });
}

#[test]
fn cluster_down_waits_for_no_hand_over() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("cluster");
    let place = place.to_str().unwrap();
    // One port behind the other; the nodes speak to each other 10,000 ports above, where no other test
    // of this process has any.
    let port = std::iter::repeat_with(|| addresses(3))
        .find(|three| three[0].port() >= 22_000 && three[2].port() == three[0].port() + 2)
        .map(|three| three[0].port().to_string())
        .unwrap();
    let up = run(["cluster", "up", "--dir", place, "--port", &port]);
    assert!(up.status.success(), "{}", stderr(&up));
    assert_eq!(status_of(place), Some(0));
    let down = run(["cluster", "down", "--dir", place]);
    assert!(down.status.success(), "{}", stderr(&down));
    for node in 1..=3 {
        let said = || std::fs::read_to_string(format!("{place}/node-{node}.log")).unwrap();
        // The last word comes behind the end of the directory's lock.
        wait_for("its end in order", || said().contains("ended in order"));
        let log = said();
        assert!(
            !log.contains("leads on in some groups"),
            "it waited in vain: {log}"
        );
    }
    assert_eq!(status_of(place), Some(4));
}

fn status_of(place: &str) -> Option<i32> {
    let mut status: Command = collie();
    let output = status
        .args(["cluster", "status", "--dir", place])
        .output()
        .unwrap();
    output.status.code()
}
