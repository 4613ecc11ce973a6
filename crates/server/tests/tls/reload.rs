//! Certificates that are replaced without a restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use collie_server::AuthClients;
use rcgen::ExtendedKeyUsagePurpose;

use crate::certificates::{Authority, ended, put, write};
use crate::client::{Secure, Trust};
use crate::support::wait_for;
use crate::{says, serve};

const REFUSED: &str = "-ERR CONFIG SET failed (possibly related to argument 'tls-";

#[test]
fn a_set_of_the_same_path_reads_the_files_anew() {
    let served = serve(AuthClients::No, |_| {});
    let mut old = served.client();
    let before = old.presented();
    let signed = served.ca.server();
    let other = Authority::new("another");
    write(served.dir.path(), &other.pem, &signed);
    let path = served.settings.certificate.display().to_string();
    assert_eq!(served.client().presented(), before, "files alone change nothing");
    assert_eq!(old.line(&format!("CONFIG SET tls-cert-file {path}")), "+OK\r\n");
    assert_ne!(served.client().presented(), before);
    assert_eq!(old.line("PING"), "+PONG\r\n", "what stands goes on");

    // The CA is read anew as well, and whether a certificate is requested changes at once.
    assert_eq!(old.line("CONFIG SET tls-auth-clients yes"), "+OK\r\n");
    let mut refused = Secure::connect(served.tls, &served.trust().presenting(served.ca.client()));
    assert!(
        refused
            .as_mut()
            .map_or(true, |client| client.try_line("PING").is_err())
    );
    let mut taken = Secure::connect(served.tls, &served.trust().presenting(other.client())).unwrap();
    assert_eq!(taken.line("PING"), "+PONG\r\n");
    assert_eq!(
        old.line("CONFIG GET tls-auth-clients"),
        "*2\r\n$16\r\ntls-auth-clients\r\n$3\r\nyes\r\n"
    );
}

#[test]
fn certificate_and_key_change_together_also_in_a_transaction() {
    let served = serve(AuthClients::No, |_| {});
    let mut client = served.client();
    let signed = served.ca.server();
    let (pem, key) = (
        served.dir.path().join("new.pem"),
        served.dir.path().join("new.key"),
    );
    put(&pem, &signed.certificate);
    put(&key, &signed.key);
    let (pem, key) = (pem.display(), key.display());
    let before = client.presented();
    let alone = client.line(&format!("CONFIG SET tls-cert-file {pem}"));
    says(
        &alone,
        &[REFUSED, "expected the private key of", "found another one"],
    );
    assert_eq!(served.client().presented(), before);
    // In a MULTI, and with a setting of another kind.
    assert_eq!(client.line("MULTI"), "+OK\r\n");
    let both = format!("CONFIG SET tls-cert-file {pem} timeout 1000 tls-key-file {key}");
    assert_eq!(client.line(&both), "+QUEUED\r\n");
    assert_eq!(client.line("EXEC"), "*1\r\n+OK\r\n");
    assert_ne!(served.client().presented(), before);
    assert_eq!(
        client.line("CONFIG GET timeout"),
        "*2\r\n$7\r\ntimeout\r\n$4\r\n1000\r\n"
    );
}

#[test]
fn a_reload_that_fails_changes_nothing_and_says_why() {
    let served = serve(AuthClients::No, |_| {});
    let mut client = served.client();
    let before = client.presented();
    let path = served.settings.certificate.display().to_string();
    let reload = format!("CONFIG SET timeout 7 tls-cert-file {path}");
    let ca = &served.ca;
    let old = ca.sign(ExtendedKeyUsagePurpose::ServerAuth, ended);
    for (certificate, key, parts) in [
        (
            &old.certificate,
            &old.key,
            ["ended at 2021-01-01", "have a new one made"],
        ),
        (
            &ca.server().certificate,
            &ca.server().key,
            ["expected the private key of", "found another one"],
        ),
        (
            &"no PEM".to_owned(),
            &ca.server().key,
            [
                "expected a PEM file with the server's certificate",
                "found no certificate",
            ],
        ),
    ] {
        put(&served.settings.certificate, certificate);
        put(&served.settings.key, key);
        let reply = client.line(&reload);
        says(&reply, &[REFUSED, "server."]);
        says(&reply, &parts);
        assert_eq!(served.client().presented(), before, "new connections use the old");
    }
    write(served.dir.path(), &ca.pem, &ca.server());
    let missing = client.line("CONFIG SET tls-key-file /nowhere/server.key");
    says(
        &missing,
        &[
            REFUSED,
            "/nowhere/server.key: expected a PEM file",
            "found no file",
        ],
    );
    let wrong = client.line("CONFIG SET tls-auth-clients maybe");
    says(&wrong, &["must be one of the following: no, yes, optional"]);
    let none = client.line("CONFIG SET tls-auth-clients yes tls-ca-cert-file ");
    says(
        &none,
        &["tls-ca-cert-file is not set", "or tls-auth-clients to no"],
    );
    let twice = client.line("CONFIG SET tls-key-file a tls-key-file b");
    says(&twice, &["duplicate parameter"]);
    // All or none: also what has nothing to do with TLS.
    assert_eq!(
        client.line("CONFIG GET timeout"),
        "*2\r\n$7\r\ntimeout\r\n$1\r\n0\r\n"
    );
    let shown = client.line("CONFIG GET tls-key-file");
    says(&shown, &[&served.settings.key.display().to_string()]);
}

/// Clients with connections that stand, and clients that connect anew for each command, while the
/// certificate is replaced by that of another CA and back.
#[test]
fn a_reload_under_load_loses_no_connection_and_no_command() {
    const RELOADS: usize = 20;
    let served = serve(AuthClients::No, |_| {});
    let other = Authority::new("another");
    let trust = Trust::new(&[&served.ca.pem, &other.pem]);
    let (is_over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let load: Vec<_> = (0..4)
        .map(|i| {
            let (trust, addr) = (trust.clone(), served.tls);
            let (is_over, done) = (Arc::clone(&is_over), Arc::clone(&done));
            std::thread::spawn(move || {
                let mut standing = Secure::connect(addr, &trust).unwrap();
                let mut n = 0;
                while !is_over.load(Ordering::Relaxed) {
                    n += 1;
                    let expected = format!(":{n}\r\n");
                    let line = format!("INCR k{i}");
                    if i % 2 == 0 {
                        assert_eq!(standing.line(&line), expected);
                    } else {
                        let mut fresh = Secure::connect(addr, &trust).unwrap();
                        assert_eq!(fresh.line(&line), expected);
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
                n
            })
        })
        .collect();
    let mut admin = served.running.client();
    let pairs = [other.server(), served.ca.server()];
    let path = served.settings.certificate.display().to_string();
    for i in 0..RELOADS {
        write(served.dir.path(), &served.ca.pem, &pairs[i % 2]);
        assert_eq!(admin.line(&format!("CONFIG SET tls-cert-file {path}")), "+OK\r\n");
        let before = done.load(Ordering::Relaxed);
        wait_for("commands run after the reload", || {
            done.load(Ordering::Relaxed) > before + 40 || load.iter().any(|thread| thread.is_finished())
        });
    }
    is_over.store(true, Ordering::Relaxed);
    for (i, thread) in load.into_iter().enumerate() {
        let n: u64 = thread.join().unwrap();
        let stored = admin.line(&format!("GET k{i}"));
        assert!(
            stored.ends_with(&format!("\r\n{n}\r\n")),
            "k{i} is {stored:?}, not {n}"
        );
    }
}
