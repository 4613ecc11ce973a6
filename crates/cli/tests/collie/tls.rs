//! TLS of `collie serve`: what its flags and its file say. The certificates are those of nodes, which
//! `collie cluster ca` makes; for a client they are as good as any.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use rustix::process::Signal;

use crate::client::Client;
use crate::common::{run, stderr};
use crate::serve::Served;

/// Makes a CA and the certificates of two nodes: ca.pem, n1.pem, n1.key, n2.pem, n2.key.
fn certificates(dir: &Path) {
    let dir = dir.to_str().unwrap();
    for args in [
        &["new", "--dir", dir][..],
        &["node", "--dir", dir, "--name", "n1"],
        &["node", "--dir", dir, "--name", "n2"],
    ] {
        let made = run([&["cluster", "ca"], args].concat());
        assert!(made.status.success(), "{}", stderr(&made));
    }
}

/// The error of a server that is started with this `[server]` section.
fn refusal(dir: &Path, server: &str, flags: &[&str]) -> String {
    let file = dir.join("collie.toml");
    std::fs::write(&file, format!("[server]\n{server}")).unwrap();
    let store = dir.join("store");
    let start = ["serve", "--dir", store.to_str().unwrap(), "--config"];
    let refused = run([&start[..], &[file.to_str().unwrap()], flags].concat());
    assert_eq!(refused.status.code(), Some(1), "{server}: {}", stderr(&refused));
    assert!(!store.exists(), "the store was made");
    stderr(&refused)
}

#[test]
fn a_wrong_tls_file_is_refused_before_there_is_a_store() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    let at = |name: &str| dir.path().join(name).display().to_string();
    let files = |key: &str| {
        format!(
            "tls-cert-file = \"{}\"\ntls-key-file = \"{}\"\n",
            at("n1.pem"),
            at(key)
        )
    };
    for (server, part) in [
        (
            format!("tls-port = 1\ntls-listen = \"127.0.0.1:1\"\n{}", files("n1.key")),
            "both tls-port and tls-listen are set",
        ),
        (files("n1.key"), "expected tls-port or tls-listen with it"),
        (
            "tls-only = true\n".to_owned(),
            "tls-only is set and TLS is not, expected tls-port",
        ),
        (
            "tls-port = 65536\n".to_owned(),
            "line 2, server.tls-port: invalid value: integer `65536`",
        ),
        (
            "tls-auth-clients = \"maybe\"\n".to_owned(),
            "line 2, server.tls-auth-clients",
        ),
        (
            format!("tls-listen = \"127.0.0.1:0\"\n{}", files("n1.key")),
            "tls-ca-cert-file is not set",
        ),
        (
            format!(
                "tls-listen = \"127.0.0.1:0\"\ntls-auth-clients = \"no\"\n{}",
                files("n2.key")
            ),
            "n1.pem, found another one",
        ),
        (
            format!(
                "listen = \"0.0.0.0:0\"\ntls-port = 1\ntls-only = true\ntls-auth-clients = \"no\"\n{}",
                files("n1.key")
            ),
            "lets every client in: expected a password",
        ),
    ] {
        let said = refusal(dir.path(), &server, &[]);
        assert!(said.contains(part), "{part:?} is not in {said:?}");
    }

    // What is checked is what would start.
    let file = dir.path().join("collie.toml");
    let good = format!(
        "[server]\ntls-port = 6381\ntls-auth-clients = \"optional\"\ntls-ca-cert-file = \"{}\"\n{}",
        at("ca.pem"),
        files("n1.key")
    );
    std::fs::write(&file, good).unwrap();
    let check = ["serve", "--dir", "/x", "--check-config", "--config"];
    let check = |flags: &[&str]| run([&check[..], &[file.to_str().unwrap()], flags].concat());
    let shown = String::from_utf8(check(&["--tls-only"]).stdout).unwrap();
    for part in [
        "tls-port = 6381",
        "tls-only = true",
        "tls-auth-clients = \"optional\"",
    ] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    let wrong = check(&["--tls-key-file", &at("n2.key")]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(stderr(&wrong).contains("found another one"), "{}", stderr(&wrong));
}

#[test]
fn tls_listens_beside_the_plain_port_and_reloads_its_files() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    let at = |name: &str| dir.path().join(name).display().to_string();
    let flags = [
        "--tls-listen",
        "127.0.0.1:0",
        "--tls-cert-file",
        &at("n1.pem"),
        "--tls-key-file",
        &at("n1.key"),
        "--tls-ca-cert-file",
        &at("ca.pem"),
    ];
    let served = Served::start(&dir.path().join("store"), &flags);
    let said = served.said.iter().find_map(|line| line.strip_prefix("TLS at "));
    let tls: SocketAddr = said.unwrap().trim().parse().unwrap();
    let mut client = served.connect();
    let shown = client.line("CONFIG GET tls-port");
    assert!(shown.contains(&format!("\r\n{}\r\n", tls.port())), "{shown}");
    let mut stranger = Client::connect(tls);
    stranger.send(b"PING\r\n");
    assert!(
        stranger.rest().starts_with("-ERR This port speaks TLS only"),
        "it does"
    );
    let wrong = client.line(&format!("CONFIG SET tls-key-file {}", at("n2.key")));
    assert!(wrong.contains("found another one"), "{wrong}");
    let (pem, key) = (at("n2.pem"), at("n2.key"));
    let both = client.line(&format!("CONFIG SET tls-cert-file {pem} tls-key-file {key}"));
    assert_eq!(both, "+OK\r\n");
    assert!(TcpStream::connect(tls).is_ok());
    let (status, last) = served.end(Signal::TERM);
    assert!(status.success(), "{last}");
    assert!(
        last.contains("new connections go on with the TLS settings"),
        "{last}"
    );
}
