//! Connections to the nodes of a cluster: with a password, and over TLS.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use collie_cli::output;
use collie_cli::resp::{self, Client, Tls};
use collie_io::{Clock, RealClock, RealDevice};
use collie_tls::{KeyAccess, Purpose};
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::sign::SingleCertAndKey;
use tokio_rustls::rustls::{ClientConfig, DEFAULT_VERSIONS};

use crate::args::AccessArgs;
use crate::serve::read_password;

/// The variable of the environment that has the password where no option has it.
const PASSWORD: &str = "COLLIE_PASSWORD";

const PURPOSE: Purpose = Purpose {
    ca: "the certificate of the CA that signs for the nodes",
    certificate: "the certificate of this client",
    key: "the private key of this client",
    make: "name the files that other clients of the cluster use",
    access: KeyAccess::Group,
};

/// The password and the settings of TLS for connections to nodes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Access {
    password: Option<String>,
    tls: Option<Secured>,
}

#[derive(Debug, Clone)]
struct Secured {
    config: Arc<ClientConfig>,
    /// In place of the node's address.
    name: Option<ServerName<'static>>,
}

impl Access {
    /// Reads the files that the command line names.
    pub(crate) fn of(args: &AccessArgs) -> anyhow::Result<Self> {
        let mut warnings = Vec::new();
        let password = match (&args.password_file, &args.password) {
            (Some(path), _) => Some(read_password(path, &mut warnings)?),
            (None, Some(password)) => Some(password.clone()),
            (None, None) => std::env::var(PASSWORD)
                .ok()
                .filter(|password| !password.is_empty()),
        };
        for warning in warnings {
            output::note(warning);
        }
        let tls = secured(args)?;
        Ok(Self { password, tls })
    }

    /// A connection on which commands are answered; so long for the connection, and for each reply.
    pub(crate) fn connect(&self, address: SocketAddr, patience: Duration) -> io::Result<Client> {
        let stream = resp::connect(address, patience)?;
        let mut client = match &self.tls {
            None => Client::plain(stream),
            Some(Secured { config, name }) => {
                let name = name.clone().unwrap_or_else(|| ServerName::from(address.ip()));
                let tls = Tls {
                    config: Arc::clone(config),
                    name,
                };
                Client::secured(stream, tls)?
            }
        };
        if let Some(password) = &self.password {
            client.call(&[b"AUTH", password.as_bytes()])?.good()?;
        }
        Ok(client)
    }
}

fn secured(args: &AccessArgs) -> anyhow::Result<Option<Secured>> {
    let Some(ca) = &args.tls_ca_cert_file else {
        return Ok(None);
    };
    let device = RealDevice::new();
    let now = RealClock.wall_ms() / 1000;
    let roots = PURPOSE.roots(ca, &PURPOSE.read_ca(&device, ca)?, now)?;
    let provider = Arc::new(ring::default_provider());
    let of_server = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .build()
        .with_context(|| format!("{} cannot be used", ca.display()))?;
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(DEFAULT_VERSIONS)?
        .with_webpki_verifier(of_server);
    let config = match (&args.tls_cert_file, &args.tls_key_file) {
        (Some(certificate), Some(key)) => {
            let pem = PURPOSE.read_certificate(&device, certificate)?;
            let (chain, validity) = PURPOSE.chain(certificate, &pem)?;
            PURPOSE.check_dates(certificate, validity, now)?;
            let secret = PURPOSE.read_key(&device, key)?;
            let own = PURPOSE.certified(certificate, chain, key, &secret, &provider)?;
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own)))
        }
        _ => builder.with_no_client_auth(),
    };
    let name = args.tls_name.clone();
    let name = name.map(|name| {
        ServerName::try_from(name.clone()).with_context(|| format!("--tls-name {name} is no host name"))
    });
    Ok(Some(Secured {
        config: Arc::new(config),
        name: name.transpose()?,
    }))
}
