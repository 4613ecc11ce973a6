//! TLS over real sockets: the server's files, its clients, and what both may do wrong.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test ends where its assumptions do, and says what it skips"
)]

mod certificates;
mod client;
mod connections;
mod files;
mod log;
mod refusals;
mod reload;
mod settings;
#[path = "../server/support/mod.rs"]
#[allow(dead_code, reason = "this binary uses a part of it")]
mod support;

use std::net::SocketAddr;

use collie_db::Db;
use collie_server::{AuthClients, Server, ServerConfig, TlsConfig, TlsSettings};
use tempfile::TempDir;

use certificates::{Authority, write};
use client::{Secure, Trust};
use support::{Running, config, options, run};

/// A server with TLS, its CA, and where its files are.
struct Served {
    running: Running,
    tls: SocketAddr,
    ca: Authority,
    settings: TlsSettings,
    dir: TempDir,
}

/// Where a server of tests listens for TLS: any port.
const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// Starts a server whose files are good, with a change of its configuration.
fn serve(auth_clients: AuthClients, change: impl FnOnce(&mut ServerConfig)) -> Served {
    log::start();
    let dir = tempfile::tempdir().unwrap();
    let ca = Authority::new("ours");
    let mut settings = write(dir.path(), &ca.pem, &ca.server());
    settings.auth_clients = auth_clients;
    let mut config = ServerConfig {
        tls: Some(TlsConfig {
            listen: LISTEN,
            settings: settings.clone(),
        }),
        ..config()
    };
    change(&mut config);
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let server = Server::bind(config, db.clone()).unwrap();
    let tls = server.tls_addr().unwrap();
    Served {
        running: run(server, db),
        tls,
        ca,
        settings,
        dir,
    }
}

impl Served {
    /// What its clients trust.
    fn trust(&self) -> Trust {
        Trust::new(&[&self.ca.pem])
    }

    fn client(&self) -> Secure {
        Secure::connect(self.tls, &self.trust()).unwrap()
    }
}

fn says(problem: &str, parts: &[&str]) {
    for part in parts {
        assert!(problem.contains(part), "expected {part:?} in {problem:?}");
    }
}
