//! A node's certificate, its key and the CA's certificate: read, judged, and made ready.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::{Clock, Device, FileKind, OpenMode, read_exact_at};
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::client::{Resumption, WebPkiServerVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::time_provider::TimeProvider;
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, Error, RootCertStore, ServerConfig};

use super::TLS_NAME;
use super::dates::{Date, Validity};
use super::verify::NodesOnly;
use super::words::Fault;

/// Bytes of a file, at most.
const FILE_MAX: u64 = 1 << 20;
/// Permission bits that others than the owner have.
const OTHERS: u32 = 0o077;

/// Where a node's certificate is. All three files are PEM, as `collie cluster ca` writes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The CA's certificate. While a CA is replaced by another, both certificates stand in it.
    pub ca: PathBuf,
    /// The node's certificate, followed by those between it and the CA, if there are any.
    pub certificate: PathBuf,
    /// The private key of the node's certificate. Only its owner may have access to the file.
    pub key: PathBuf,
}

/// What stands in [`TlsFiles`].
#[derive(Clone, Copy)]
pub struct TlsContents<'a> {
    /// The CA's certificate.
    pub ca: &'a [u8],
    /// The node's certificate.
    pub certificate: &'a [u8],
    /// Its private key.
    pub key: &'a [u8],
}

impl Validity {
    /// That of the first certificate in a PEM file; `None` where there is none.
    pub fn of_pem(pem: &[u8]) -> Option<Self> {
        let first = CertificateDer::from_pem_slice(pem).ok()?;
        Self::of(&first)
    }
}

/// Why a node's files cannot be used. Each says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// There is no such file.
    #[error(
        "{path}: expected a PEM file with {expected}, found no file: correct the path, or make one with `collie cluster ca`"
    )]
    Missing {
        /// The file.
        path: PathBuf,
        /// What was to be in it.
        expected: &'static str,
    },
    /// The file cannot be read.
    #[error("{path}: cannot be read: {problem}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's words, or what it is instead of a file.
        problem: String,
    },
    /// The file has not what it should have.
    #[error(
        "{path}: expected a PEM file with {expected}, found {found}: correct the path, or make one with `collie cluster ca`"
    )]
    Content {
        /// The file.
        path: PathBuf,
        /// What was to be in it.
        expected: &'static str,
        /// What is in it.
        found: String,
    },
    /// Others than the owner have access to the key.
    #[error(
        "{path}: expected a private key that only its owner can read, found mode {mode:04o}: chmod 600 {path}, and \
         make a new key and certificate if others may have read it"
    )]
    OpenKey {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The key is another certificate's.
    #[error(
        "{key}: expected the private key of {certificate}, found another one: name the key that was made with the certificate"
    )]
    OtherKey {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        certificate: PathBuf,
    },
    /// The certificate is of another CA.
    #[error(
        "{certificate}: expected a certificate that the CA in {ca} has signed, found one of another CA: name the files \
         of one CA, or make a certificate with `collie cluster ca node`"
    )]
    OtherCa {
        /// The certificate's file.
        certificate: PathBuf,
        /// The CA's file.
        ca: PathBuf,
    },
    /// The certificate does not hold any more.
    #[error("{path}: the certificate ended at {}, and it is {}: make a new one with `collie cluster ca`, or set the clock", Date(*.until), Date(*.now))]
    Ended {
        /// The file.
        path: PathBuf,
        /// Its last second, since 1970.
        until: u64,
        /// The clock.
        now: u64,
    },
    /// The certificate does not hold yet.
    #[error("{path}: the certificate holds from {} on, and it is {}: set the clock, or wait", Date(*.from), Date(*.now))]
    NotYet {
        /// The file.
        path: PathBuf,
        /// Its first second, since 1970.
        from: u64,
        /// The clock.
        now: u64,
    },
    /// The certificate is not that of a node.
    #[error(
        "{path}: expected the certificate of a node, for the name {TLS_NAME} and for both sides of a connection \
         ({problem}): make one with `collie cluster ca node`"
    )]
    NotOfNode {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        problem: String,
    },
    /// Anything else that is wrong with what is in a file.
    #[error("{path}: {problem}: make a new one with `collie cluster ca`")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

/// What new connections use.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) accept: Arc<ServerConfig>,
    pub(super) connect: Arc<ClientConfig>,
    /// What the certificate of the node that is connected to must be for.
    pub(super) name: ServerName<'static>,
    pub(super) validity: Validity,
}

/// The time by which certificates are judged.
#[derive(Debug)]
struct Time(Arc<dyn Clock>);

impl TimeProvider for Time {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_millis(
            self.0.wall_ms(),
        )))
    }
}

impl TlsFiles {
    /// Judges what is, or is to be, in the files as a node does that starts with them: whether a
    /// node can present the certificate, and whether others of the CA will accept it. The key's
    /// permissions are not looked at. Returns how long the certificate holds.
    ///
    /// # Errors
    /// All but [`TlsError::Missing`], [`TlsError::Read`] and [`TlsError::OpenKey`].
    pub fn check(&self, contents: TlsContents<'_>, clock: Arc<dyn Clock>) -> Result<Validity, TlsError> {
        self.judge(contents, clock).map(|ready| ready.validity)
    }

    /// Reads the files.
    pub(super) fn load(&self, device: &dyn Device, clock: Arc<dyn Clock>) -> Result<Ready, TlsError> {
        let (ca, _) = read(device, &self.ca, "the certificate of the cluster's CA")?;
        let (certificate, _) = read(device, &self.certificate, "the node's certificate")?;
        let (key, mode) = read(device, &self.key, "the private key of the node's certificate")?;
        if mode & OTHERS != 0 {
            let path = self.key.clone();
            return Err(TlsError::OpenKey { path, mode });
        }
        let contents = TlsContents {
            ca: &ca,
            certificate: &certificate,
            key: &key,
        };
        self.judge(contents, clock)
    }

    fn judge(&self, contents: TlsContents<'_>, clock: Arc<dyn Clock>) -> Result<Ready, TlsError> {
        let now = clock.wall_ms() / 1000;
        let roots = Arc::new(self.roots(contents.ca, now)?);
        let chain = certificates(&self.certificate, contents.certificate, "the node's certificate")?;
        let provider = Arc::new(ring::default_provider());
        let validity = validity(&self.certificate, &chain)?;
        let own = self.certified(chain, contents.key, &provider)?;
        let unusable = |error: &dyn std::fmt::Display| unusable(&self.ca, error);
        let name = ServerName::try_from(TLS_NAME).map_err(|error| unusable(&error))?;
        let of_client =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(|error| unusable(&error))?;
        let of_client: Arc<dyn ClientCertVerifier> = Arc::new(NodesOnly {
            signed: of_client,
            name: name.clone(),
        });
        let of_server = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .build()
            .map_err(|error| unusable(&error))?;
        // As the others will: better here, where it says the file, than on all other nodes.
        let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(now));
        if let Some((first, between)) = own.cert.split_first() {
            of_server
                .verify_server_cert(first, between, &name, &[], at)
                .map_err(|error| self.refused(error))?;
            of_client
                .verify_client_cert(first, between, at)
                .map_err(|error| self.refused(error))?;
        }
        let own = Arc::new(SingleCertAndKey::from(own));
        let time: Arc<dyn TimeProvider> = Arc::new(Time(clock));
        let mut accept = ServerConfig::builder_with_details(Arc::clone(&provider), Arc::clone(&time))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| unusable(&error))?
            .with_client_cert_verifier(of_client)
            .with_cert_resolver(Arc::clone(&own) as _);
        let mut connect = ClientConfig::builder_with_details(provider, time)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| unusable(&error))?
            .with_webpki_verifier(of_server)
            .with_client_cert_resolver(own);
        // A session that is resumed verifies no certificate, so a peer whose own has ended meanwhile
        // would be let in.
        accept.session_storage = Arc::new(NoServerSessionStorage {});
        accept.send_tls13_tickets = 0;
        connect.resumption = Resumption::disabled();
        Ok(Ready {
            accept: Arc::new(accept),
            connect: Arc::new(connect),
            name,
            validity,
        })
    }

    /// The CAs whose certificates are accepted. They must hold now: a certificate is not judged by
    /// the dates of its CA's.
    fn roots(&self, pem: &[u8], now: u64) -> Result<RootCertStore, TlsError> {
        let path = &self.ca;
        let mut roots = RootCertStore::empty();
        for ca in certificates(path, pem, "the certificate of the cluster's CA")? {
            let Validity { from, until } = validity(path, std::slice::from_ref(&ca))?;
            let path = path.clone();
            if now > until {
                return Err(TlsError::Ended { path, until, now });
            }
            if now < from {
                return Err(TlsError::NotYet { path, from, now });
            }
            roots.add(ca).map_err(|error| unusable(&path, &error))?;
        }
        Ok(roots)
    }

    fn certified(
        &self,
        chain: Vec<CertificateDer<'static>>,
        key: &[u8],
        provider: &CryptoProvider,
    ) -> Result<CertifiedKey, TlsError> {
        const EXPECTED: &str = "the private key of the node's certificate";
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| content(&self.key, EXPECTED, pem_in_words(&error, "no private key")))?;
        CertifiedKey::from_der(chain, key, provider).map_err(|error| match error {
            Error::InconsistentKeys(_) => TlsError::OtherKey {
                key: self.key.clone(),
                certificate: self.certificate.clone(),
            },
            Error::InvalidCertificate(error) => unusable(&self.certificate, &error),
            error => content(
                &self.key,
                EXPECTED,
                format!("a key that cannot be used ({error})"),
            ),
        })
    }

    /// Why other nodes would not accept the certificate.
    fn refused(&self, error: Error) -> TlsError {
        let path = self.certificate.clone();
        let Error::InvalidCertificate(error) = error else {
            return unusable(&path, &error);
        };
        match Fault::of(&error) {
            Fault::Ended { until, now } => TlsError::Ended { path, until, now },
            Fault::NotYet { from, now } => TlsError::NotYet { path, from, now },
            Fault::OtherCa => TlsError::OtherCa {
                certificate: path,
                ca: self.ca.clone(),
            },
            Fault::NotOfNode(problem) => TlsError::NotOfNode { path, problem },
            Fault::Other(problem) => TlsError::Unusable { path, problem },
        }
    }
}

/// A file's bytes and its permission bits.
fn read(device: &dyn Device, path: &Path, expected: &'static str) -> Result<(Vec<u8>, u32), TlsError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => TlsError::Missing {
            path: path.to_owned(),
            expected,
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
    path: &Path,
    pem: &[u8],
    expected: &'static str,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(content(path, expected, "no certificate".to_owned())),
        Err(error) => Err(content(path, expected, pem_in_words(&error, "no certificate"))),
    }
}

/// How long the first of them holds.
fn validity(path: &Path, chain: &[CertificateDer<'_>]) -> Result<Validity, TlsError> {
    let first = chain.first().and_then(|first| Validity::of(first));
    first.ok_or_else(|| unusable(path, &"what its first section has is no certificate"))
}

fn content(path: &Path, expected: &'static str, found: String) -> TlsError {
    TlsError::Content {
        path: path.to_owned(),
        expected,
        found,
    }
}

fn unusable(path: &Path, problem: &dyn std::fmt::Display) -> TlsError {
    TlsError::Unusable {
        path: path.to_owned(),
        problem: problem.to_string(),
    }
}

fn pem_in_words(error: &pem::Error, none: &str) -> String {
    match error {
        pem::Error::NoItemsFound => none.to_owned(),
        pem::Error::MissingSectionEnd { .. } => "a section without its END line".to_owned(),
        pem::Error::IllegalSectionStart { .. } => "a BEGIN line that is not well formed".to_owned(),
        pem::Error::Base64Decode(_) => "a section that is not base64".to_owned(),
        other => other.to_string(),
    }
}
