//! A node's certificate, its key and the CA's certificate: read, judged, and made ready.

use std::path::PathBuf;
use std::sync::Arc;

use collie_io::{Clock, Device};
use collie_tls::{Fault, KeyAccess, Purpose, Time, TlsError, Validity};
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::client::{Resumption, WebPkiServerVerifier};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{ServerName, UnixTime};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::sign::SingleCertAndKey;
use tokio_rustls::rustls::time_provider::TimeProvider;
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, Error, ServerConfig};

use crate::transport::tls::TLS_NAME;
use crate::transport::tls::verify::NodesOnly;

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
