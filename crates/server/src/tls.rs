//! TLS of a server: its certificate, whether clients need one, and the settings of new connections.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use collie_io::{Clock, Device, RealDevice};
use collie_tls::{KeyAccess, Purpose, Time, TlsError};
use parking_lot::Mutex;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::sign::SingleCertAndKey;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{Error, ServerConfig};

use crate::net::clients::Client;

/// A server's files.
const PURPOSE: Purpose = Purpose {
    ca: "the certificate of the CA that signs for clients",
    certificate: "the server's certificate",
    key: "the private key of the server's certificate",
    make: "have a new one made",
    access: KeyAccess::Group,
};

/// Clients that begin a handshake and do not end it cannot keep others out: above half of the places
/// that other clients leave, the oldest of them is closed. So many may always be under way, since a
/// client is done a moment before the server is, and may not be closed for the next one.
const HANDSHAKES_MIN: usize = 16;
/// Where no place is left at all, a handshake is closed that is older than this, in milliseconds.
const OLD_MS: u64 = 1_000;

/// Whether clients have to present a certificate (`tls-auth-clients`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AuthClients {
    /// They have to.
    #[default]
    Yes,
    /// No certificate is requested.
    No,
    /// They may; one that is presented must be valid.
    Optional,
}

impl AuthClients {
    /// All of them.
    pub const ALL: [AuthClients; 3] = [AuthClients::Yes, AuthClients::No, AuthClients::Optional];

    /// Its name in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            AuthClients::Yes => "yes",
            AuthClients::No => "no",
            AuthClients::Optional => "optional",
        }
    }
}

/// The files of a server's certificate, and whether clients need one. All files are PEM.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TlsSettings {
    /// The server's certificate, followed by those between it and its CA, if there are any
    /// (`tls-cert-file`).
    pub certificate: PathBuf,
    /// The private key of the certificate (`tls-key-file`). Only the owner of the file and its group
    /// may have access to it.
    pub key: PathBuf,
    /// The CAs that sign certificates of clients (`tls-ca-cert-file`). Needed unless no
    /// certificate is requested of clients.
    pub ca: Option<PathBuf>,
    /// Whether clients have to present a certificate.
    pub auth_clients: AuthClients,
}

/// How a server speaks TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// Where it listens; port 0 lets the system choose one.
    pub listen: SocketAddr,
    /// Its files.
    pub settings: TlsSettings,
}

/// Why TLS cannot be used with its settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsProblem {
    /// A file was not named.
    #[error("{name} is not set, expected the path of a PEM file with {expected}: {what}")]
    Unnamed {
        /// The setting.
        name: &'static str,
        /// What should be in the file.
        expected: &'static str,
        /// What to do.
        what: &'static str,
    },
    /// A file cannot be used.
    #[error(transparent)]
    File(#[from] TlsError),
}

impl TlsSettings {
    /// Whether each file is named that is needed. Opens none of them.
    ///
    /// # Errors
    /// [`TlsProblem::Unnamed`].
    pub fn check(&self) -> Result<(), TlsProblem> {
        let both = "set tls-cert-file and tls-key-file";
        let asked = "set it, or tls-auth-clients to no";
        let has_ca = self.auth_clients == AuthClients::No || self.ca.is_some();
        for (is_named, name, expected, what) in [
            (
                !self.certificate.as_os_str().is_empty(),
                "tls-cert-file",
                PURPOSE.certificate,
                both,
            ),
            (
                !self.key.as_os_str().is_empty(),
                "tls-key-file",
                PURPOSE.key,
                both,
            ),
            (has_ca, "tls-ca-cert-file", PURPOSE.ca, asked),
        ] {
            if !is_named {
                return Err(TlsProblem::Unnamed { name, expected, what });
            }
        }
        Ok(())
    }

    /// Reads the files and validates them, as a server does at its start. Blocks.
    ///
    /// # Errors
    /// A file is not named, cannot be read or used, or does not fit the others.
    pub fn verify(&self, clock: &Arc<dyn Clock>) -> Result<(), TlsProblem> {
        self.load(&RealDevice::new(), clock).map(drop)
    }

    /// What connections use that are made with these settings.
    fn load(&self, device: &dyn Device, clock: &Arc<dyn Clock>) -> Result<Arc<ServerConfig>, TlsProblem> {
        self.check()?;
        let now = clock.wall_ms() / 1000;
        let certificate = PURPOSE.read_certificate(device, &self.certificate)?;
        let (chain, validity) = PURPOSE.chain(&self.certificate, &certificate)?;
        PURPOSE.check_dates(&self.certificate, validity, now)?;
        let key = PURPOSE.read_key(device, &self.key)?;
        let provider = Arc::new(ring::default_provider());
        let own = PURPOSE.certified(&self.certificate, chain, &self.key, &key, &provider)?;
        let builder =
            ServerConfig::builder_with_details(Arc::clone(&provider), Arc::new(Time(Arc::clone(clock))))
                .with_protocol_versions(&[&TLS13, &TLS12])
                .map_err(|error: Error| PURPOSE.unusable(&self.certificate, &error))?;
        let builder = match (&self.ca, self.auth_clients) {
            (None, _) | (_, AuthClients::No) => builder.with_no_client_auth(),
            (Some(path), asked) => {
                let pem = PURPOSE.read_ca(device, path)?;
                let roots = Arc::new(PURPOSE.roots(path, &pem, now)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                let verifier = match asked {
                    AuthClients::Optional => verifier.allow_unauthenticated(),
                    AuthClients::Yes | AuthClients::No => verifier,
                };
                let verifier = verifier.build().map_err(|error| PURPOSE.unusable(path, &error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
        // A session that is resumed verifies no certificate: a client whose own has ended, or whose
        // CA is not accepted any more, would be let in.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

/// What new connections over TLS use, and those whose handshake is under way.
pub(crate) struct Tls {
    /// Where the server listens for them.
    pub(crate) addr: SocketAddr,
    /// Whether it may let in clients that present nothing: they are of this machine, or the network
    /// is meant.
    pub(crate) may_be_open: bool,
    device: RealDevice,
    clock: Arc<dyn Clock>,
    used: Mutex<Used>,
    /// By their numbers, which rise.
    shaking: Mutex<BTreeMap<u64, Arc<Client>>>,
}

/// Settings, and what was made of their files.
#[derive(Clone)]
pub(crate) struct Used {
    settings: TlsSettings,
    config: Arc<ServerConfig>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("addr", &self.addr)
            .field("settings", &self.settings())
            .finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the files; blocks.
    pub(crate) fn new(
        config: TlsConfig,
        open_to_network: bool,
        clock: Arc<dyn Clock>,
    ) -> Result<Tls, TlsProblem> {
        let TlsConfig { listen, settings } = config;
        let device = RealDevice::new();
        let config = settings.load(&device, &clock)?;
        Ok(Tls {
            addr: listen,
            may_be_open: open_to_network || listen.ip().is_loopback(),
            device,
            clock,
            used: Mutex::new(Used { settings, config }),
            shaking: Mutex::default(),
        })
    }

    /// The settings in force.
    pub(crate) fn settings(&self) -> TlsSettings {
        self.used.lock().settings.clone()
    }

    /// What new connections use.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.used.lock().config)
    }

    /// Reads the files that these settings name; changes nothing yet. Blocks.
    pub(crate) fn prepare(&self, settings: TlsSettings) -> Result<Used, TlsProblem> {
        let config = settings.load(&self.device, &self.clock)?;
        Ok(Used { settings, config })
    }

    /// New connections use what was prepared. Established ones keep what they were made with.
    pub(crate) fn install(&self, used: Used) {
        *self.used.lock() = used;
    }

    /// Notes that the handshake of a client begins, until what is returned is dropped. Of `clients`
    /// there are as many, of at most `clients_max`, with those whose handshake is under way. If these
    /// are too many, the oldest is closed.
    pub(crate) fn begin(&self, client: &Arc<Client>, clients: usize, clients_max: usize) -> Handshake<'_> {
        let mut shaking = self.shaking.lock();
        shaking.insert(client.id, Arc::clone(client));
        let others = clients.saturating_sub(shaking.len());
        let most = (clients_max.saturating_sub(others) / 2).max(HANDSHAKES_MIN);
        while shaking.len() > most {
            if let Some((_, oldest)) = shaking.pop_first() {
                oldest.close();
            }
        }
        Handshake {
            tls: self,
            id: client.id,
        }
    }

    /// Makes room for the next client, where there is none: closes the oldest handshake if it is old.
    pub(crate) fn make_room(&self, now_ms: u64) {
        let mut shaking = self.shaking.lock();
        if let Some(oldest) = shaking.first_entry()
            && now_ms.saturating_sub(oldest.get().since_ms) > OLD_MS
        {
            oldest.remove().close();
        }
    }
}

/// A handshake that is under way.
pub(crate) struct Handshake<'a> {
    tls: &'a Tls,
    id: u64,
}

impl Handshake<'_> {
    /// Whether it was closed since there were too many.
    pub(crate) fn is_crowded_out(&self) -> bool {
        !self.tls.shaking.lock().contains_key(&self.id)
    }
}

impl Drop for Handshake<'_> {
    fn drop(&mut self) {
        self.tls.shaking.lock().remove(&self.id);
    }
}
