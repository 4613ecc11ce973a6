//! The health of a node that serves nothing, and what a node does before it ends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::fake::Role;
use crate::support::{Client, PATIENCE, wait_for};
use crate::{Node, node};

/// The status of a page, and its text.
fn get(addr: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let (head, text) = page.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), text.to_owned())
}

fn health(node: &Node) -> (u16, String) {
    get(node.server.metrics.unwrap(), "/healthz")
}

#[test]
fn a_node_that_serves_nothing_is_not_healthy() {
    let node = node(2);
    let mut client = node.client();
    let mut state = || {
        let info = client.line("CLUSTER INFO");
        let state = info.lines().find_map(|line| line.strip_prefix("cluster_state:"));
        (state.unwrap().to_owned(), health(&node))
    };
    assert_eq!(state(), ("ok".to_owned(), (200, "ok\n".to_owned())));
    node.fake.partitions[0].set_role(Role::Leaderless);
    // Some keys are served here.
    assert_eq!(state(), ("fail".to_owned(), (200, "ok\n".to_owned())));
    node.fake.partitions[1].set_role(Role::Leaderless);
    let (info, (status, text)) = state();
    assert_eq!((&*info, status), ("fail", 503), "{text}");
    assert!(text.starts_with("no keys are served: "), "{text}");
    // A restart would not help.
    let alive = get(node.server.metrics.unwrap(), "/livez");
    assert_eq!(alive, (200, "ok\n".to_owned()));
}

#[test]
fn a_node_serves_until_others_lead_what_it_led_and_then_ends() {
    for by_command in [true, false] {
        let node = node(2);
        let mut client = node.client();
        assert_eq!(client.line("SET a 1"), "+OK\r\n");
        node.fake.keeps.send_replace(true);
        let Node { server, fake, _dir } = node;
        let (addr, metrics) = (server.addr, server.metrics.unwrap());
        if by_command {
            assert!(Client::connect(addr).try_text(&["SHUTDOWN"]).is_err());
        }
        let ended = std::thread::spawn(move || if by_command { server.join() } else { server.stop() });
        wait_for("what probes are told", || {
            get(metrics, "/healthz") == (503, "the server is about to end\n".to_owned())
        });
        assert_eq!(client.line("INCR a"), ":2\r\n");
        assert_eq!(Client::connect(addr).line("GET a"), "$1\r\n2\r\n");
        // It leads nothing any more.
        fake.keeps.send_replace(false);
        ended.join().unwrap().unwrap();
    }
}

#[test]
fn shutdown_now_waits_for_no_other_node() {
    let node = node(2);
    node.fake.keeps.send_replace(true);
    assert!(node.client().try_text(&["SHUTDOWN"]).is_err());
    // Also where the other one has begun.
    assert!(node.client().try_text(&["SHUTDOWN", "NOW"]).is_err());
    node.server.join().unwrap();
}
