//! A server in a cluster, over real sockets. The cluster is a fake in memory, whose answers the tests
//! choose.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test ends where its assumptions do, and says what it skips"
)]

mod commands;
mod ending;
mod expiry;
mod fake;
mod keys;
mod merge;
mod once;
mod replies;
mod routing;
mod shape;
#[path = "../server/support/mod.rs"]
#[allow(dead_code, reason = "this binary uses a part of it")]
mod support;
mod tombstones;
mod transactions;

use std::sync::Arc;

use fake::Fake;
use support::{Client, Running, config, start};

/// A server and its cluster.
struct Node {
    server: Running,
    fake: Arc<Fake>,
    _dir: tempfile::TempDir,
}

/// Starts a server that leads all slots, in so many partitions.
fn node(partitions: u16) -> Node {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::new(partitions);
    let config = collie_server::ServerConfig {
        cluster: Some(fake.clone()),
        metrics: Some(([127, 0, 0, 1], 0).into()),
        ..config()
    };
    Node {
        server: start(dir.path(), config),
        fake,
        _dir: dir,
    }
}

impl Node {
    fn client(&self) -> Client {
        self.server.client()
    }
}

/// Requests as one pipeline: lines, split at blanks.
fn pipeline(lines: &[&str]) -> Vec<u8> {
    lines
        .iter()
        .flat_map(|line| support::command(&line.split(' ').collect::<Vec<_>>()))
        .collect()
}

/// The next reply as text.
fn reply(client: &mut Client) -> String {
    String::from_utf8(client.reply()).unwrap()
}
