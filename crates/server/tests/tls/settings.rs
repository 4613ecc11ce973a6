//! Settings of TLS that are changed while the server runs: together, and not to a state in which it
//! would not have started.

use std::net::{Ipv4Addr, SocketAddr};

use collie_server::{AuthClients, ServerConfig};
use rcgen::ExtendedKeyUsagePurpose;

use crate::certificates::{ended, put, write};
use crate::{says, serve};

const OPEN: &str = "would let in every client of other machines";

fn on_all_addresses(config: &mut ServerConfig) {
    if let Some(tls) = &mut config.tls {
        tls.listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    }
}

#[test]
fn a_running_server_is_not_opened_to_the_network_unasked() {
    let served = serve(AuthClients::No, |config| {
        on_all_addresses(config);
        config.password = Some("secret".into());
    });
    // On loopback, in clear.
    let mut client = served.running.client();
    assert_eq!(client.line("AUTH secret"), "+OK\r\n");
    let mut set = |words: &[&str]| client.call(&[&["CONFIG", "SET"], words].concat());
    says(&set(&["requirepass", ""]), &[OPEN, "'requirepass'"]);
    says(
        &set(&["requirepass", "", "tls-auth-clients", "optional"]),
        &[OPEN],
    );
    assert_eq!(set(&["requirepass", "", "tls-auth-clients", "yes"]), "+OK\r\n");
    for words in [["tls-auth-clients", "no"], ["tls-auth-clients", "optional"]] {
        says(&set(&words), &[OPEN, "'tls-auth-clients'"]);
    }
    assert_eq!(
        set(&["tls-auth-clients", "no", "requirepass", "another"]),
        "+OK\r\n"
    );
    says(&set(&["requirepass", ""]), &[OPEN]);
    assert_eq!(
        set(&["timeout", "100"]),
        "+OK\r\n",
        "what has nothing to do with it"
    );
}

#[test]
fn a_server_that_is_meant_to_be_open_may_be_opened() {
    for is_meant in [false, true] {
        let served = serve(AuthClients::Yes, |config| {
            config.open_to_network = is_meant;
            if is_meant {
                on_all_addresses(config);
            }
        });
        let mut client = served.running.client();
        assert_eq!(client.line("CONFIG SET tls-auth-clients no"), "+OK\r\n");
        assert_eq!(served.client().line("PING"), "+PONG\r\n");
    }
}

#[test]
fn changes_that_are_made_at_the_same_time_are_all_made() {
    let served = serve(AuthClients::No, |_| {});
    let files = ["a", "b"].map(|name| {
        let dir = served.dir.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        write(&dir, &served.ca.pem, &served.ca.server())
    });
    let (mut one, mut other, mut reader) = (
        served.running.client(),
        served.running.client(),
        served.running.client(),
    );
    for round in 0..100 {
        let asked = ["yes", "no"][round % 2];
        let files = &files[round / 2 % 2];
        let (certificate, key) = (files.certificate.display(), files.key.display());
        let who = format!("CONFIG SET tls-auth-clients {asked}");
        std::thread::scope(|scope| {
            let set = scope.spawn(|| one.line(&who));
            let line = format!("CONFIG SET tls-cert-file {certificate} tls-key-file {key}");
            assert_eq!(other.line(&line), "+OK\r\n");
            assert_eq!(set.join().unwrap(), "+OK\r\n");
        });
        let found = reader.line("CONFIG GET tls-*");
        says(&found, &[&certificate.to_string(), &format!("\r\n{asked}\r\n")]);
    }
}

#[test]
fn a_ca_that_has_ended_is_left_out_where_another_one_holds() {
    let served = serve(AuthClients::Yes, |_| {});
    let mut client = served.running.client();
    let old = served.ca.sign(ExtendedKeyUsagePurpose::ServerAuth, ended);
    let path = served.dir.path().join("both.pem");
    let set = format!("CONFIG SET tls-ca-cert-file {}", path.display());
    for both in [
        [&old.certificate, &served.ca.pem],
        [&served.ca.pem, &old.certificate],
    ] {
        put(&path, &both.map(String::as_str).concat());
        assert_eq!(client.line(&set), "+OK\r\n");
        let trust = served.trust().presenting(served.ca.client());
        let mut known = crate::client::Secure::connect(served.tls, &trust).unwrap();
        assert_eq!(known.line("PING"), "+PONG\r\n");
    }
    put(&path, &old.certificate);
    says(&client.line(&set), &["ended at 2021-01-01", "both.pem"]);
}

#[test]
fn a_path_with_control_characters_is_refused_and_not_logged() {
    let served = serve(AuthClients::No, |_| {});
    let mut client = served.running.client();
    for path in ["/nope\r\n2026 ERROR forged", "/nope\x1b[2J", &"x".repeat(5_000)] {
        let reply = client.call(&["CONFIG", "SET", "tls-cert-file", path]);
        says(
            &reply,
            &["a path of at most 4096 bytes without control characters"],
        );
    }
}
