//! Certificates and keys in PEM files: reading and validating them.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use collie_io::{Clock, Device, FileKind, OpenMode, read_exact_at};
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::time_provider::TimeProvider;
use tokio_rustls::rustls::{Error, RootCertStore};

use crate::dates::Validity;
use crate::error::TlsError;

/// Bytes of a file, at most.
const FILE_MAX: u64 = 1 << 20;

/// Who may have access to the file of a private key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyAccess {
    /// Its owner alone: mode 0600.
    Owner,
    /// Its owner, and its group: mode 0640 or less.
    Group,
}

impl KeyAccess {
    fn allowed(self) -> u32 {
        match self {
            Self::Owner => 0o600,
            Self::Group => 0o640,
        }
    }

    /// The permission bits that no key may have.
    fn forbidden(self) -> u32 {
        match self {
            Self::Owner => 0o077,
            Self::Group => 0o007,
        }
    }

    fn readers(self) -> &'static str {
        match self {
            Self::Owner => "its owner",
            Self::Group => "its owner and its group",
        }
    }
}

/// What the files of one side are for, in the words of errors, and who may read its key.
#[derive(Debug, Clone, Copy)]
pub struct Purpose {
    /// The CA's file, as in "the certificate of the cluster's CA".
    pub ca: &'static str,
    /// The certificate's.
    pub certificate: &'static str,
    /// The private key's.
    pub key: &'static str,
    /// What to do for a new one.
    pub make: &'static str,
    /// Who may have access to the key.
    pub access: KeyAccess,
}

/// The time by which rustls judges certificates.
#[derive(Debug)]
pub struct Time(pub Arc<dyn Clock>);

impl TimeProvider for Time {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_millis(
            self.0.wall_ms(),
        )))
    }
}

impl Validity {
    /// That of the first certificate in a PEM file; `None` where there is none.
    pub fn of_pem(pem: &[u8]) -> Option<Self> {
        let first = CertificateDer::from_pem_slice(pem).ok()?;
        Self::of(&first)
    }
}

impl Purpose {
    /// Reads the CA's file; blocks.
    ///
    /// # Errors
    /// There is no such file, or it cannot be read.
    pub fn read_ca(&self, device: &dyn Device, path: &Path) -> Result<Vec<u8>, TlsError> {
        self.read(device, path, self.ca).map(|(bytes, _)| bytes)
    }

    /// Reads the certificate's file; blocks.
    ///
    /// # Errors
    /// There is no such file, or it cannot be read.
    pub fn read_certificate(&self, device: &dyn Device, path: &Path) -> Result<Vec<u8>, TlsError> {
        self.read(device, path, self.certificate).map(|(bytes, _)| bytes)
    }

    /// Reads the key's file; blocks.
    ///
    /// # Errors
    /// There is no such file, it cannot be read, or others than [`access`](Self::access) allows can
    /// read it.
    pub fn read_key(&self, device: &dyn Device, path: &Path) -> Result<Vec<u8>, TlsError> {
        let (key, mode) = self.read(device, path, self.key)?;
        if mode & self.access.forbidden() != 0 {
            return Err(TlsError::OpenKey {
                path: path.to_owned(),
                readers: self.access.readers(),
                mode,
                allowed: self.access.allowed(),
            });
        }
        Ok(key)
    }

    /// The CAs whose certificates are accepted: those that hold `now`, in seconds since 1970, since
    /// a certificate is not judged by the dates of its CA's. Others are left out, with a warning: a
    /// file has the old CA and the new one while they change.
    ///
    /// # Errors
    /// The file has no certificate, one that cannot be used, or none that holds now.
    pub fn roots(&self, path: &Path, pem: &[u8], now: u64) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        let mut left_out = Vec::new();
        for ca in self.certificates(path, pem, self.ca)? {
            let validity = self.validity(path, std::slice::from_ref(&ca))?;
            match self.check_dates(path, validity, now) {
                Ok(()) => roots.add(ca).map_err(|error| self.unusable(path, &error))?,
                Err(problem) => left_out.push(problem),
            }
        }
        if roots.is_empty()
            && let Some(problem) = left_out.pop()
        {
            return Err(problem);
        }
        for problem in left_out {
            tracing::warn!(%problem, "a CA's certificate is left out, the others of the file hold");
        }
        Ok(roots)
    }

    /// The certificate, followed by those between it and its CA if there are any; and how long the
    /// first of them holds.
    ///
    /// # Errors
    /// The file has no certificate.
    pub fn chain(
        &self,
        path: &Path,
        pem: &[u8],
    ) -> Result<(Vec<CertificateDer<'static>>, Validity), TlsError> {
        let chain = self.certificates(path, pem, self.certificate)?;
        let validity = self.validity(path, &chain)?;
        Ok((chain, validity))
    }

    /// Whether a certificate holds `now`, in seconds since 1970.
    ///
    /// # Errors
    /// It does not: [`TlsError::Ended`] or [`TlsError::NotYet`].
    pub fn check_dates(&self, path: &Path, validity: Validity, now: u64) -> Result<(), TlsError> {
        let Validity { from, until } = validity;
        let path = path.to_owned();
        if now > until {
            let make = self.make;
            return Err(TlsError::Ended {
                path,
                until,
                now,
                make,
            });
        }
        if now < from {
            return Err(TlsError::NotYet { path, from, now });
        }
        Ok(())
    }

    /// The certificate, which is in the file `certificate`, with its key, the PEM text of the file
    /// `path`.
    ///
    /// # Errors
    /// The file has no key, one of another certificate, or one that cannot be used.
    pub fn certified(
        &self,
        certificate: &Path,
        chain: Vec<CertificateDer<'static>>,
        path: &Path,
        pem: &[u8],
        provider: &CryptoProvider,
    ) -> Result<CertifiedKey, TlsError> {
        let key = PrivateKeyDer::from_pem_slice(pem)
            .map_err(|error| self.content(path, self.key, in_words(&error, "no private key")))?;
        CertifiedKey::from_der(chain, key, provider).map_err(|error| match error {
            Error::InconsistentKeys(_) => TlsError::OtherKey {
                key: path.to_owned(),
                certificate: certificate.to_owned(),
            },
            Error::InvalidCertificate(error) => self.unusable(certificate, &error),
            error => self.content(path, self.key, format!("a key that cannot be used ({error})")),
        })
    }

    /// What is in a file cannot be used.
    pub fn unusable(&self, path: &Path, problem: &dyn std::fmt::Display) -> TlsError {
        TlsError::Unusable {
            path: path.to_owned(),
            problem: problem.to_string(),
            make: self.make,
        }
    }

    /// A file's bytes and its permission bits.
    fn read(
        &self,
        device: &dyn Device,
        path: &Path,
        expected: &'static str,
    ) -> Result<(Vec<u8>, u32), TlsError> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => TlsError::Missing {
                path: path.to_owned(),
                expected,
                make: self.make,
            },
            _ => TlsError::Read {
                path: path.to_owned(),
                problem: error.to_string(),
            },
        };
        // A pipe would be waited for when it is opened.
        let found = device.stat(path).map_err(failed)?;
        if found.kind != FileKind::File || found.len > FILE_MAX {
            let path = path.to_owned();
            let problem = format!(
                "expected a file of at most {FILE_MAX} bytes, found {:?} of {} bytes",
                found.kind, found.len
            );
            return Err(TlsError::Read { path, problem });
        }
        let file = device.open(path, OpenMode::Read).map_err(failed)?;
        let stat = file.stat().map_err(failed)?;
        let mut bytes = vec![0; stat.len.min(FILE_MAX) as usize];
        read_exact_at(&*file, &mut bytes, 0).map_err(failed)?;
        Ok((bytes, stat.mode))
    }

    /// The certificates in a file: one at least.
    fn certificates(
        &self,
        path: &Path,
        pem: &[u8],
        expected: &'static str,
    ) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
        match found {
            Ok(found) if !found.is_empty() => Ok(found),
            Ok(_) => Err(self.content(path, expected, "no certificate".to_owned())),
            Err(error) => Err(self.content(path, expected, in_words(&error, "no certificate"))),
        }
    }

    /// How long the first of them holds.
    fn validity(&self, path: &Path, chain: &[CertificateDer<'_>]) -> Result<Validity, TlsError> {
        let first = chain.first().and_then(|first| Validity::of(first));
        first.ok_or_else(|| self.unusable(path, &"what its first section has is no certificate"))
    }

    fn content(&self, path: &Path, expected: &'static str, found: String) -> TlsError {
        TlsError::Content {
            path: path.to_owned(),
            expected,
            found,
            make: self.make,
        }
    }
}

fn in_words(error: &pem::Error, none: &str) -> String {
    match error {
        pem::Error::NoItemsFound => none.to_owned(),
        pem::Error::MissingSectionEnd { .. } => "a section without its END line".to_owned(),
        pem::Error::IllegalSectionStart { .. } => "a BEGIN line that is not well formed".to_owned(),
        pem::Error::Base64Decode(_) => "a section that is not base64".to_owned(),
        other => other.to_string(),
    }
}
