//! CAs, and certificates of servers and clients, made for a test. Most hold from 2020 to 2099.

use std::path::Path;

use collie_io::{Device, OpenMode, RealDevice, write_all_at};
use collie_server::TlsSettings;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};

/// A CA.
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

fn hold(params: &mut CertificateParams) {
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2100, 1, 1));
}

impl Authority {
    pub(crate) fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        hold(&mut params);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// A certificate for a purpose and the names of this machine, with a change.
    pub(crate) fn sign(
        &self,
        purpose: ExtendedKeyUsagePurpose,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Signed {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = vec![purpose];
        hold(&mut params);
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        Signed {
            certificate: params.signed_by(&key, &self.issuer).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }

    pub(crate) fn server(&self) -> Signed {
        self.sign(ExtendedKeyUsagePurpose::ServerAuth, |_| {})
    }

    pub(crate) fn client(&self) -> Signed {
        self.sign(ExtendedKeyUsagePurpose::ClientAuth, |_| {})
    }
}

/// Makes a certificate one that ended with the year 2020.
pub(crate) fn ended(params: &mut CertificateParams) {
    params.not_after = date_time_ymd(2021, 1, 1);
}

/// Makes a certificate one that begins to hold in 2099.
pub(crate) fn not_yet(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(2099, 1, 1);
}

/// Writes a server's files, over those that are there.
pub(crate) fn write(dir: &Path, ca: &str, signed: &Signed) -> TlsSettings {
    let settings = TlsSettings {
        certificate: dir.join("server.pem"),
        key: dir.join("server.key"),
        ca: Some(dir.join("ca.pem")),
        ..TlsSettings::default()
    };
    put(&dir.join("ca.pem"), ca);
    put(&settings.certificate, &signed.certificate);
    put(&settings.key, &signed.key);
    RealDevice::new().set_mode(&settings.key, 0o600).unwrap();
    settings
}

pub(crate) fn put(path: &Path, text: &str) {
    let file = RealDevice::new().open(path, OpenMode::OpenOrCreate).unwrap();
    file.set_len(0).unwrap();
    write_all_at(&*file, text.as_bytes(), 0).unwrap();
}
