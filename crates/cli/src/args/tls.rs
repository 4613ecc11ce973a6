//! TLS of `collie serve` and of `collie node`, for clients.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

// The files of TLS for clients, and whether these need a certificate; by the names of Redis.
#[derive(Debug, Default, Clone, clap::Args)]
pub(crate) struct TlsArgs {
    /// The certificate that clients are shown, PEM, followed by those between it and its CA. To a node of
    /// a cluster clients connect by TLS then, and nothing else is at --listen: the same on all nodes.
    /// CONFIG SET reads the files anew.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert_file: Option<PathBuf>,
    /// The private key of the certificate, PEM; only its owner and its group may read it.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key_file: Option<PathBuf>,
    /// The CAs that sign for clients, PEM; needed unless --tls-auth-clients is no.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca_cert_file: Option<PathBuf>,
    /// Whether clients have to present a certificate; default: yes.
    #[arg(long, value_enum, value_name = "WHETHER")]
    pub(crate) tls_auth_clients: Option<AuthClients>,
}

/// Whether clients have to present a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AuthClients {
    /// They have to.
    #[default]
    Yes,
    /// They are not asked for one.
    No,
    /// They may; one that is presented must be good.
    Optional,
}

impl From<AuthClients> for collie_server::AuthClients {
    fn from(asked: AuthClients) -> Self {
        match asked {
            AuthClients::Yes => Self::Yes,
            AuthClients::No => Self::No,
            AuthClients::Optional => Self::Optional,
        }
    }
}
