//! Files and settings that a server cannot use: each is refused at the start, with what to do.

use std::net::SocketAddr;

use collie_db::Db;
use collie_io::{Device, RealDevice};
use collie_server::{AuthClients, Server, ServerConfig, ServerError, TlsConfig, TlsSettings};
use rcgen::ExtendedKeyUsagePurpose;

use crate::certificates::{Authority, ended, not_yet, put, write};
use crate::support::{config, options};
use crate::{LISTEN, says};

/// The error of a server that starts with files that are valid but for a change.
fn refusal(change: impl FnOnce(&mut TlsSettings, &Authority)) -> String {
    let dir = tempfile::tempdir().unwrap();
    let ca = Authority::new("ours");
    let mut settings = write(dir.path(), &ca.pem, &ca.server());
    change(&mut settings, &ca);
    let listen = LISTEN;
    let config = ServerConfig {
        tls: Some(TlsConfig { listen, settings }),
        ..config()
    };
    start(config).unwrap_err().to_string()
}

fn start(config: ServerConfig) -> Result<(), ServerError> {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    let started = Server::bind(config, db.clone()).map(drop);
    db.close().unwrap();
    started
}

#[test]
fn a_certificate_outside_its_dates_is_refused_with_them() {
    let text = refusal(|settings, ca| {
        let signed = ca.sign(ExtendedKeyUsagePurpose::ServerAuth, ended);
        write(settings.key.parent().unwrap(), &ca.pem, &signed);
    });
    says(
        &text,
        &[
            "server.pem: the certificate ended at 2021-01-01 00:00:00 UTC, and it is ",
            "have a new one made",
        ],
    );
    let text = refusal(|settings, ca| {
        let signed = ca.sign(ExtendedKeyUsagePurpose::ServerAuth, not_yet);
        write(settings.key.parent().unwrap(), &ca.pem, &signed);
    });
    says(
        &text,
        &["server.pem: the certificate holds from 2099-01-01 00:00:00 UTC on, and it is "],
    );
}

#[test]
fn a_key_that_does_not_fit_or_that_all_can_read_is_refused() {
    let text = refusal(|settings, ca| put(&settings.key, &ca.server().key));
    says(
        &text,
        &[
            "server.key: expected the private key of",
            "server.pem, found another one: name the key",
        ],
    );
    for mode in [0o644, 0o604, 0o602] {
        let text = refusal(|settings, _| RealDevice::new().set_mode(&settings.key, mode).unwrap());
        says(
            &text,
            &[
                "server.key: expected a private key that only its owner and its group can read",
                &format!("found mode {mode:04o}: chmod 640"),
            ],
        );
    }
}

#[test]
fn missing_and_wrong_files_are_named_with_what_was_expected() {
    let remove = |path: &std::path::Path| RealDevice::new().remove_file(path).unwrap();
    let text = refusal(|settings, _| remove(&settings.certificate));
    says(
        &text,
        &["server.pem: expected a PEM file with the server's certificate, found no file: correct the path"],
    );
    let text = refusal(|settings, _| remove(settings.ca.as_ref().unwrap()));
    says(
        &text,
        &["ca.pem: expected a PEM file with the certificate of the CA that signs for clients, found no file"],
    );
    let text = refusal(|settings, ca| put(&settings.certificate, &ca.server().key));
    says(
        &text,
        &["server.pem: expected a PEM file with the server's certificate, found no certificate"],
    );
    let text = refusal(|settings, ca| put(&settings.key, &ca.pem));
    says(
        &text,
        &[
            "server.key: expected a PEM file with the private key of the server's certificate, found no private key",
        ],
    );
    let text = refusal(|settings, _| put(settings.ca.as_ref().unwrap(), "no PEM at all\n"));
    says(
        &text,
        &["ca.pem: expected a PEM file with", "found no certificate"],
    );
}

#[test]
fn settings_that_are_missing_are_named() {
    let text = refusal(|settings, _| settings.certificate = "".into());
    says(
        &text,
        &["tls-cert-file is not set, expected the path of a PEM file with the server's certificate"],
    );
    let text = refusal(|settings, _| settings.key = "".into());
    says(
        &text,
        &["tls-key-file is not set", "set tls-cert-file and tls-key-file"],
    );
    for auth_clients in [AuthClients::Yes, AuthClients::Optional] {
        let text = refusal(|settings, _| {
            settings.ca = None;
            settings.auth_clients = auth_clients;
        });
        says(
            &text,
            &["tls-ca-cert-file is not set", "set it, or tls-auth-clients to no"],
        );
    }
    let nowhere = ServerConfig {
        plain: false,
        ..config()
    };
    says(
        &start(nowhere).unwrap_err().to_string(),
        &["tls-only is set and TLS is not, expected tls-port"],
    );
}

/// Off loopback nothing is served in clear unless asked, and a client has to present something.
#[test]
fn off_loopback_plain_and_open_tls_have_to_be_requested() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Authority::new("ours");
    let files = write(dir.path(), &ca.pem, &ca.server());
    let far = SocketAddr::from(([0, 0, 0, 0], 0));
    let tls = |auth_clients| {
        Some(TlsConfig {
            listen: far,
            settings: TlsSettings {
                auth_clients,
                ..files.clone()
            },
        })
    };
    let password = Some("sesame".to_owned());
    let plain = ServerConfig {
        listen: far,
        password: password.clone(),
        ..config()
    };
    says(
        &start(plain.clone()).unwrap_err().to_string(),
        &["is not encrypted, passwords too: expected TLS", "open-to-network"],
    );
    for good in [
        ServerConfig {
            open_to_network: true,
            ..plain.clone()
        },
        ServerConfig {
            plain: false,
            tls: tls(AuthClients::No),
            ..plain.clone()
        },
        // Plain on loopback, beside.
        ServerConfig {
            tls: tls(AuthClients::Yes),
            ..config()
        },
        ServerConfig {
            tls: tls(AuthClients::Optional),
            password,
            ..config()
        },
        ServerConfig {
            tls: tls(AuthClients::No),
            open_to_network: true,
            ..config()
        },
    ] {
        start(good).unwrap();
    }
    for auth_clients in [AuthClients::No, AuthClients::Optional] {
        let open = ServerConfig {
            tls: tls(auth_clients),
            ..config()
        };
        says(
            &start(open).unwrap_err().to_string(),
            &["lets every client in: expected a password, tls-auth-clients yes"],
        );
    }
}
