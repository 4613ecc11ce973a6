//! Clients that are refused: for their certificates, for how they speak, or for how slow they are.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use collie_server::AuthClients;
use rcgen::ExtendedKeyUsagePurpose;

use crate::certificates::{Authority, ended};
use crate::client::{Secure, Trust};
use crate::support::{PATIENCE, field, wait_for};
use crate::{log, says, serve};

/// What a client and the server say of a connection that is refused.
fn refused(addr: SocketAddr, trust: &Trust) -> (String, String) {
    match Secure::connect(addr, trust) {
        Err(error) => (error.to_string(), String::new()),
        // In TLS 1.3 the client learns of it when it first reads.
        Ok(mut client) => {
            let own = client.stream.sock.local_addr().unwrap();
            let error = client.try_line("PING").unwrap_err();
            (error.to_string(), log::about(own))
        }
    }
}

#[test]
fn certificates_of_clients_are_demanded_and_judged() {
    let served = serve(AuthClients::Yes, |_| {});
    let (ca, trust) = (&served.ca, served.trust());
    let mut good = Secure::connect(served.tls, &trust.clone().presenting(ca.client())).unwrap();
    assert_eq!(good.line("PING"), "+PONG\r\n");

    let (client, log) = refused(served.tls, &trust);
    says(&client, &["CertificateRequired"]);
    says(
        &log,
        &[
            "the client presents no certificate, and tls-auth-clients is yes",
            "set tls-auth-clients to optional or no",
        ],
    );
    for name in ["ours", "another"] {
        let other = Authority::new(name).client();
        let (_, log) = refused(served.tls, &trust.clone().presenting(other));
        says(
            &log,
            &[
                "the client's certificate is of no CA in tls-ca-cert-file",
                "add the certificate of its CA",
            ],
        );
    }
    let old = ca.sign(ExtendedKeyUsagePurpose::ClientAuth, ended);
    let (client, log) = refused(served.tls, &trust.clone().presenting(old));
    says(&client, &["CertificateExpired"]);
    says(
        &log,
        &[
            "the client's certificate ended at 2021-01-01 00:00:00 UTC",
            "give it a new one",
        ],
    );
    let (_, log) = refused(served.tls, &trust.clone().presenting(ca.server()));
    says(&log, &["the client's certificate is not one for clients"]);
    assert_eq!(good.line("PING"), "+PONG\r\n", "the good one goes on");
    let failed = field(&mut served.running.client(), "stats", "tls_handshakes_failed");
    assert_eq!(failed, "5");
}

#[test]
fn certificates_of_clients_are_optional_but_validated() {
    let served = serve(AuthClients::Optional, |_| {});
    let trust = served.trust();
    for good in [trust.clone(), trust.clone().presenting(served.ca.client())] {
        let mut client = Secure::connect(served.tls, &good).unwrap();
        assert_eq!(client.line("PING"), "+PONG\r\n");
    }
    let other = Authority::new("another").client();
    let (_, log) = refused(served.tls, &trust.clone().presenting(other.clone()));
    says(&log, &["the client's certificate is of no CA"]);

    let served = serve(AuthClients::No, |_| {});
    let trust = served.trust().presenting(other);
    let mut client = Secure::connect(served.tls, &trust).unwrap();
    assert_eq!(client.line("PING"), "+PONG\r\n");
}

#[test]
fn a_client_that_does_not_trust_the_server_is_logged() {
    let served = serve(AuthClients::No, |_| {});
    let other = Authority::new("another");
    let (client, _) = refused(served.tls, &Trust::new(&[&other.pem]));
    says(&client, &["UnknownIssuer"]);
    let mut plain = served.running.client();
    wait_for("the failed handshake is counted", || {
        field(&mut plain, "stats", "tls_handshakes_failed") == "1"
    });
}

#[test]
fn a_plain_client_on_the_tls_port_is_answered_in_plain_text() {
    let served = serve(AuthClients::Yes, |_| {});
    for request in ["PING\r\n", "*1\r\n$4\r\nPING\r\n", "GET / HTTP/1.1\r\n\r\n"] {
        let mut stream = TcpStream::connect(served.tls).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let own = stream.local_addr().unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(
            answer,
            "-ERR This port speaks TLS only: connect with TLS, as redis-cli --tls does\r\n"
        );
        says(
            &log::about(own),
            &[
                "the client does not speak TLS, and this port does",
                "it has to use TLS",
            ],
        );
    }
}

#[test]
fn a_tls_client_on_the_plain_port_is_closed_with_one_warning() {
    let served = serve(AuthClients::No, |_| {});
    let hello = |addr| {
        let mut stream = TcpStream::connect(addr).unwrap();
        let own = stream.local_addr().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // A record of a handshake: its header, and some of a hello, with ends of lines in it.
        stream
            .write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03PING\r\nPING\r\n")
            .unwrap();
        let mut answer = Vec::new();
        // The connection may end by a reset, since bytes were not read.
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer, b"", "no reply that TLS would not understand");
        own
    };
    let addr = served.running.addr;
    let own = hello(addr);
    says(
        &log::about(own),
        &[
            "the client speaks TLS, and this port does not",
            &format!("connect to port {}, which does", served.tls.port()),
        ],
    );
    let others: Vec<_> = (0..50).map(|_| hello(addr)).collect();
    let logged = others.iter().filter(|own| !log::of(**own).is_empty()).count();
    assert!(logged < 10, "{logged} of 50 are logged");
    let mut plain = served.running.client();
    assert_eq!(plain.line("PING"), "+PONG\r\n");

    // A server without TLS says what it lacks.
    let dir = tempfile::tempdir().unwrap();
    let alone = crate::support::start(dir.path(), crate::support::config());
    says(&log::about(hello(alone.addr)), &["to be started with tls-port"]);
    let (client, _) = refused(alone.addr, &served.trust());
    assert!(!client.is_empty());
}

#[test]
fn nonsense_behind_the_first_byte_is_refused() {
    let served = serve(AuthClients::No, |_| {});
    let mut stream = TcpStream::connect(served.tls).unwrap();
    let own = stream.local_addr().unwrap();
    stream.write_all(b"\x16PING\r\n").unwrap();
    says(&log::about(own), &["what the client sends is not TLS"]);
}

/// Each of them is a client until its ten seconds are over, or until there are too many.
#[test]
fn a_thousand_half_open_handshakes_keep_no_good_client_out() {
    let served = serve(AuthClients::No, |config| config.clients_max = 400);
    let mut plain = served.running.client();
    let mut half = Vec::new();
    for i in 0..1_000 {
        let mut stream = TcpStream::connect(served.tls).unwrap();
        if i % 2 == 0 {
            stream.write_all(b"\x16\x03\x01").unwrap();
        }
        half.push(stream);
        if i % 10 == 9 {
            let mut number = |name| -> usize { field(&mut plain, "stats", name).parse().unwrap() };
            wait_for("they are accepted, or refused", || {
                number("total_connections_received") + number("rejected_connections") > i
            });
        }
    }
    assert_eq!(field(&mut plain, "stats", "rejected_connections"), "0");
    let mut good = served.client();
    assert_eq!(good.line("SET k 1"), "+OK\r\n");
    let failed = |plain: &mut _| -> usize { field(plain, "stats", "tls_handshakes_failed").parse().unwrap() };
    wait_for("the oldest are closed", || failed(&mut plain) >= 800);
    // The others have their time, which ends although they stay.
    wait_for("all are closed", || failed(&mut plain) == 1_000);
    assert_eq!(field(&mut plain, "clients", "connected_clients"), "2");
    assert_eq!(good.line("GET k"), "$1\r\n1\r\n");
    drop(half);
}

#[test]
fn old_half_open_handshakes_make_room_on_a_full_server() {
    let served = serve(AuthClients::No, |config| config.clients_max = 4);
    let mut plain = served.running.client();
    let half: Vec<_> = (0..3).map(|_| TcpStream::connect(served.tls).unwrap()).collect();
    wait_for("it is full", || {
        field(&mut plain, "clients", "connected_clients") == "4"
    });
    wait_for("a good client is let in", || {
        let client = Secure::connect(served.tls, &served.trust());
        client.is_ok_and(|mut client| client.try_line("PING").is_ok())
    });
    // Not since their ten seconds were over.
    let oldest = log::about(half[0].local_addr().unwrap());
    says(
        &oldest,
        &["too many TLS handshakes were under way", "raise maxclients"],
    );
}
