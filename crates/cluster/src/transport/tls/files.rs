//! A node's certificate, its key and the CA's certificate: read, judged, and made ready. Which certificates are
//! accepted of a peer, and what is said of one, or of a handshake that fails, in an operator's words.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use collie_io::{Clock, Device};
use collie_tls::{Date, Fault, KeyAccess, Purpose, Time, TlsError, Validity};
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerifier};
use tokio_rustls::rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use tokio_rustls::rustls::sign::SingleCertAndKey;
use tokio_rustls::rustls::time_provider::TimeProvider;
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    AlertDescription, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};

use crate::transport::tls::TLS_NAME;

/// A node's files.
const PURPOSE: Purpose = Purpose {
    ca: "the certificate of the cluster's CA",
    certificate: "the node's certificate",
    key: "the private key of the node's certificate",
    make: "make one with `collie cluster ca`",
    // It passes for a node.
    access: KeyAccess::Owner,
};

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

/// What new connections use.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) accept: Arc<ServerConfig>,
    pub(super) connect: Arc<ClientConfig>,
    /// What the certificate of the node that is connected to must be for.
    pub(super) name: ServerName<'static>,
    pub(super) validity: Validity,
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
        let ca = PURPOSE.read_ca(device, &self.ca)?;
        let certificate = PURPOSE.read_certificate(device, &self.certificate)?;
        let key = PURPOSE.read_key(device, &self.key)?;
        let contents = TlsContents {
            ca: &ca,
            certificate: &certificate,
            key: &key,
        };
        self.judge(contents, clock)
    }

    fn judge(&self, contents: TlsContents<'_>, clock: Arc<dyn Clock>) -> Result<Ready, TlsError> {
        let now = clock.wall_ms() / 1000;
        let roots = Arc::new(PURPOSE.roots(&self.ca, contents.ca, now)?);
        let (chain, validity) = PURPOSE.chain(&self.certificate, contents.certificate)?;
        let provider = Arc::new(ring::default_provider());
        let own = PURPOSE.certified(&self.certificate, chain, &self.key, contents.key, &provider)?;
        let unusable = |error: &dyn std::fmt::Display| PURPOSE.unusable(&self.ca, error);
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

    /// Why other nodes would not accept the certificate.
    fn refused(&self, error: Error) -> TlsError {
        let path = self.certificate.clone();
        let Error::InvalidCertificate(error) = error else {
            return PURPOSE.unusable(&path, &error);
        };
        let make = PURPOSE.make;
        match Fault::of(&error) {
            Fault::Ended { until, now } => TlsError::Ended {
                path,
                until,
                now,
                make,
            },
            Fault::NotYet { from, now } => TlsError::NotYet { path, from, now },
            Fault::OtherCa => TlsError::OtherCa {
                certificate: path,
                ca: self.ca.clone(),
                make,
            },
            Fault::WrongUse(problem) => TlsError::WrongUse {
                path,
                expected: format!(
                    "the certificate of a node, for the name {TLS_NAME} and for both sides of a connection"
                ),
                problem,
                make,
            },
            Fault::Other(problem) => PURPOSE.unusable(&path, &problem),
        }
    }
}

/// Accepts the certificates of the side that connects: those of nodes. The verifier of rustls asks
/// only who has signed one. A CA that signs for others than nodes would let all of them in.
#[derive(Debug)]
pub(super) struct NodesOnly {
    pub(super) signed: Arc<dyn ClientCertVerifier>,
    /// The name that every node's certificate is for.
    pub(super) name: ServerName<'static>,
}

impl ClientCertVerifier for NodesOnly {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.signed.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.signed.verify_client_cert(end_entity, intermediates, now)?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, &self.name)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}

/// What to do for a new certificate.
pub(super) const MAKE: &str = "make one with `collie cluster ca node`";

/// Puts an error of a handshake, or of what is read after it, in words. In TLS 1.3 the side that
/// connects learns what the other thinks of its certificate when it first reads.
pub(super) fn in_words(error: io::Error) -> io::Error {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match tls {
        Some(tls) => io::Error::new(error.kind(), of_tls(tls)),
        None => error,
    }
}

/// The same before the handshake is done, where the end of the connection means something, too.
pub(super) fn of_handshake(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            let text = "the other side closed the connection during the TLS handshake: it may be a node without \
                        certificates, or have too many connections; its log says more";
            io::Error::new(error.kind(), text)
        }
        _ => in_words(error),
    }
}

fn of_tls(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(error) => of_peers_certificate(Fault::of(error)),
        Error::NoCertificatesPresented => {
            "the peer presents no certificate: give it one of the cluster's CA (`collie cluster ca node`)".to_owned()
        }
        Error::AlertReceived(alert) => of_alert(*alert),
        Error::InvalidMessage(_) | Error::InappropriateMessage { .. } => {
            "the peer does not speak TLS, and this node does: give every node of the cluster a certificate, or none"
                .to_owned()
        }
        Error::PeerIncompatible(_) => format!("the peer cannot speak TLS as this node does, TLS 1.3 only: {error}"),
        other => format!("TLS: {other}"),
    }
}

fn of_peers_certificate(fault: Fault) -> String {
    match fault {
        Fault::Ended { until, now } => format!(
            "the peer's certificate ended at {}, and it is {} here: give it a new one, or set the clock that is wrong",
            Date(until),
            Date(now)
        ),
        Fault::NotYet { from, now } => format!(
            "the peer's certificate holds from {} on, and it is {} here: set the clock that is wrong",
            Date(from),
            Date(now)
        ),
        Fault::OtherCa => "the peer's certificate is signed by another CA than this node's: give all nodes \
                           certificates of one CA"
            .to_owned(),
        Fault::WrongUse(problem) => format!(
            "the peer's certificate is not that of a node, which is for the name {TLS_NAME} and for both sides of a \
             connection ({problem}): {MAKE}"
        ),
        Fault::Other(problem) => format!("the peer's certificate is not accepted ({problem}): {MAKE}"),
    }
}

fn of_alert(alert: AlertDescription) -> String {
    let problem = match alert {
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it is signed by another CA than the peer's: give all nodes certificates of one CA"
        }
        AlertDescription::CertificateExpired => {
            "by the peer's clock it has ended, or does not hold yet: give this node a new one, or set the clock that \
             is wrong"
        }
        AlertDescription::BadCertificate | AlertDescription::UnsupportedCertificate => {
            "it is not that of a node: make one with `collie cluster ca node`"
        }
        AlertDescription::CertificateRequired => "there is none",
        other => return format!("the peer ended the TLS handshake: {other:?}; its log says more"),
    };
    format!("the peer does not accept this node's certificate: {problem}")
}
