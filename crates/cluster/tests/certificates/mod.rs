//! CAs, and certificates of nodes, made for a test.

use std::path::Path;

use collie_cluster::{TLS_NAME, TlsFiles};
use collie_io::{Device, OpenMode, RealDevice, write_all_at};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};

/// A CA whose certificate holds for the years 2020 to 2099.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate, PEM.
    pub(crate) pem: String,
}

/// A certificate and its private key, PEM.
#[derive(Clone)]
pub(crate) struct Signed {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2100, 1, 1));
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        Self { issuer, pem }
    }

    /// A node's certificate, which holds for the year 2026, with a change.
    pub(crate) fn sign(&self, change: impl FnOnce(&mut CertificateParams)) -> Signed {
        let mut params = CertificateParams::new([TLS_NAME.to_owned()]).unwrap();
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), date_time_ymd(2027, 1, 1));
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        Signed {
            certificate: params.signed_by(&key, &self.issuer).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }
}

/// Writes a node's files, over those that are there.
pub(crate) fn write(dir: &Path, ca: &str, signed: &Signed) -> TlsFiles {
    let files = TlsFiles {
        ca: dir.join("ca.pem"),
        certificate: dir.join("node.pem"),
        key: dir.join("node.key"),
    };
    put(&files.ca, ca);
    put(&files.certificate, &signed.certificate);
    put(&files.key, &signed.key);
    files
}

pub(crate) fn put(path: &Path, text: &str) {
    let file = RealDevice::new().open(path, OpenMode::OpenOrCreate).unwrap();
    file.set_len(0).unwrap();
    write_all_at(&*file, text.as_bytes(), 0).unwrap();
}
