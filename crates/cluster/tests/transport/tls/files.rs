//! What is said of files that a node cannot use.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use collie_cluster::{Network, TlsError, TlsFiles, TlsTcp};
use collie_io::{Device, RealDevice};
use rcgen::{ExtendedKeyUsagePurpose, date_time_ymd};

use super::{EARLIER, Held, LATER, NOW, clock, says};
use crate::certificates::{Authority, put, write};

/// What a node says that starts at a time on files that are good but for a change.
fn refusal(now: u64, change: impl FnOnce(&TlsFiles, &Authority)) -> (TlsError, String) {
    let dir = tempfile::tempdir().unwrap();
    let ca = Authority::new("ours");
    let files = write(dir.path(), &ca.pem, &ca.node());
    change(&files, &ca);
    let error = TlsTcp::new(files, Arc::new(RealDevice::new()), clock(now)).unwrap_err();
    let text = error.to_string();
    (error, text)
}

#[test]
fn a_good_certificate_is_taken_for_any_address() {
    let held = Held::of(&Authority::new("ours"));
    assert_eq!(
        held.network.validity().to_string(),
        "from 2026-01-01 00:00:00 UTC until 2027-01-01 00:00:00 UTC"
    );
    for address in [
        "10.1.2.3:7000",
        "127.0.0.1:7000",
        "[2001:db8::1]:7000",
        "0.0.0.0:0",
    ] {
        held.network
            .check(address.parse::<SocketAddr>().unwrap())
            .unwrap();
    }
}

#[test]
fn a_missing_file_is_named_with_what_was_to_be_in_it() {
    let remove = |path: &Path| RealDevice::new().remove_file(path).unwrap();
    let (_, text) = refusal(NOW, |files, _| remove(&files.ca));
    says(
        &text,
        &["ca.pem: expected a PEM file with the certificate of the cluster's CA, found no file"],
    );
    let (_, text) = refusal(NOW, |files, _| remove(&files.certificate));
    says(
        &text,
        &["node.pem: expected a PEM file with the node's certificate, found no file"],
    );
    let (error, text) = refusal(NOW, |files, _| remove(&files.key));
    says(
        &text,
        &[
            "node.key: expected a PEM file with the private key",
            "found no file",
            "collie cluster ca",
        ],
    );
    assert!(matches!(error, TlsError::Missing { .. }));
}

#[test]
fn a_file_of_other_content_says_what_was_found() {
    let (error, text) = refusal(NOW, |files, _| put(&files.ca, "no PEM at all\n"));
    says(&text, &["ca.pem: expected", "found no certificate"]);
    assert!(matches!(error, TlsError::Content { .. }));
    let (_, text) = refusal(NOW, |files, ca| put(&files.certificate, &ca.node().key));
    says(
        &text,
        &["node.pem: expected a PEM file with the node's certificate, found no certificate"],
    );
    let (_, text) = refusal(NOW, |files, ca| put(&files.key, &ca.pem));
    says(
        &text,
        &[
            "node.key: expected a PEM file with the private key",
            "found no private key",
        ],
    );
    let (_, text) = refusal(NOW, |files, ca| {
        let half = ca.pem.replace("-----END CERTIFICATE-----", "");
        put(&files.certificate, &half);
    });
    says(
        &text,
        &["node.pem: expected", "found a section without its END line"],
    );
    let (_, text) = refusal(NOW, |files, _| {
        put(
            &files.certificate,
            "-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n",
        );
    });
    says(
        &text,
        &["node.pem: expected", "found a section that is not base64"],
    );
    let (error, text) = refusal(NOW, |files, _| {
        let nonsense = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        put(&files.certificate, nonsense);
    });
    says(&text, &["node.pem: what its first section has is no certificate"]);
    assert!(matches!(error, TlsError::Unusable { .. }));
    let (error, text) = refusal(NOW, |files, _| {
        RealDevice::new().remove_file(&files.key).unwrap();
        RealDevice::new().create_dir_all(&files.key).unwrap();
    });
    says(
        &text,
        &["node.key: cannot be read: expected a file", "found Directory"],
    );
    assert!(matches!(error, TlsError::Read { .. }));
}

#[test]
fn a_key_of_another_certificate_is_refused() {
    let (error, text) = refusal(NOW, |files, ca| put(&files.key, &ca.node().key));
    says(
        &text,
        &[
            "node.key: expected the private key of",
            "node.pem, found another one",
        ],
    );
    assert!(matches!(error, TlsError::OtherKey { .. }));
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    for mode in [0o640, 0o604, 0o660] {
        let (error, text) = refusal(NOW, |files, _| {
            RealDevice::new().set_mode(&files.key, mode).unwrap();
        });
        says(
            &text,
            &[
                "node.key: expected a private key that only its owner can read",
                "chmod 600",
            ],
        );
        says(&text, &[&format!("found mode {mode:04o}")]);
        assert!(matches!(error, TlsError::OpenKey { .. }));
    }
}

#[test]
fn a_certificate_of_another_ca_of_the_same_name_is_refused() {
    for name in ["another", "ours"] {
        let (error, text) = refusal(NOW, |files, _| put(&files.ca, &Authority::new(name).pem));
        says(
            &text,
            &[
                "node.pem: expected a certificate that the CA in",
                "ca.pem has signed",
                "another CA",
            ],
        );
        assert!(matches!(error, TlsError::OtherCa { .. }), "{error:?}");
    }
}

#[test]
fn a_certificate_out_of_its_time_is_refused_with_its_dates() {
    let (error, text) = refusal(LATER, |_, _| {});
    says(
        &text,
        &["node.pem: the certificate ended at 2027-01-01 00:00:00 UTC, and it is 2027-06-01 00:00:00 UTC"],
    );
    assert!(matches!(error, TlsError::Ended { .. }));
    let (error, text) = refusal(EARLIER, |_, _| {});
    says(
        &text,
        &[
            "node.pem: the certificate holds from 2026-01-01 00:00:00 UTC on, and it is 2025-06-01 00:00:00 UTC",
        ],
    );
    assert!(matches!(error, TlsError::NotYet { .. }));
}

/// Those who verify a certificate do not look at the dates of the CA's.
#[test]
fn a_ca_out_of_its_time_is_refused() {
    let long = |files: &TlsFiles, ca: &Authority| {
        let signed = ca.sign(|params| {
            (params.not_before, params.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(2190, 1, 1));
        });
        write(files.ca.parent().unwrap(), &ca.pem, &signed);
    };
    let (error, text) = refusal(NOW + 100 * 365 * 86_400, long);
    says(
        &text,
        &["ca.pem: the certificate ended at 2100-01-01 00:00:00 UTC"],
    );
    assert!(matches!(error, TlsError::Ended { .. }));
    let (_, text) = refusal(NOW - 10 * 365 * 86_400, long);
    says(
        &text,
        &["ca.pem: the certificate holds from 2020-01-01 00:00:00 UTC on"],
    );
}

#[test]
fn a_certificate_of_something_else_is_refused() {
    let cases: [fn(&mut rcgen::CertificateParams); 3] = [
        |params| {
            let other = rcgen::CertificateParams::new(["www.example.org".to_owned()]).unwrap();
            params.subject_alt_names = other.subject_alt_names;
        },
        |params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth],
        |params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth],
    ];
    for change in cases {
        let (error, text) = refusal(NOW, |files, ca| {
            write(files.ca.parent().unwrap(), &ca.pem, &ca.sign(change));
        });
        says(
            &text,
            &["node.pem: expected the certificate of a node, for the name node.collie.internal"],
        );
        assert!(matches!(error, TlsError::WrongUse { .. }), "{error:?}");
    }
}
