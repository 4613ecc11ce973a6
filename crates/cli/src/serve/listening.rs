//! `[server]`: where it listens, for whom, and how.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::ensure;
use collie_server::{ServerConfig, TlsConfig, TlsSettings};
use serde::{Deserialize, Serialize};

use super::config::seconds;
use super::values::{Address, Number, Secret};
use crate::args::values::Durability;
use crate::args::{AuthClients, ServeArgs, TlsArgs};

/// `[server]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Listening {
    pub(super) listen: Address,
    tls_port: Number<0, 65_535>,
    tls_listen: Option<Address>,
    tls_only: bool,
    tls_cert_file: Option<PathBuf>,
    tls_key_file: Option<PathBuf>,
    tls_ca_cert_file: Option<PathBuf>,
    tls_auth_clients: AuthClients,
    pub(super) threads: Number<0, 1024>,
    pub(super) ack: Durability,
    pub(super) open_to_network: bool,
    pub(super) metrics: Option<Address>,
    pub(super) password_file: Option<PathBuf>,
    #[serde(skip_serializing)]
    pub(super) requirepass: Option<Secret>,
    pub(super) shutdown_grace: Number<0, 3600>,
}

impl Default for Listening {
    fn default() -> Self {
        let config = ServerConfig::default();
        Self {
            listen: Address(config.listen),
            tls_port: Number(0),
            tls_listen: None,
            tls_only: !config.plain,
            tls_cert_file: None,
            tls_key_file: None,
            tls_ca_cert_file: None,
            tls_auth_clients: AuthClients::Yes,
            threads: Number(i64::try_from(config.threads).unwrap_or(0)),
            ack: Durability::Disk,
            open_to_network: config.open_to_network,
            metrics: None,
            password_file: None,
            requirepass: None,
            shutdown_grace: Number(seconds(config.shutdown_grace)),
        }
    }
}

impl Listening {
    /// Checks what involves several settings.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.password_file.is_none() || self.requirepass.is_none(),
            "both password-file and requirepass are set, one was expected; remove one"
        );
        ensure!(
            self.tls_port.0 == 0 || self.tls_listen.is_none(),
            "both tls-port and tls-listen are set, one was expected; remove one"
        );
        let files = [&self.tls_cert_file, &self.tls_key_file];
        ensure!(
            self.tls_addr().is_some() || files.iter().all(|file| file.is_none()),
            "tls-cert-file or tls-key-file is set, expected tls-port or tls-listen with it: nothing speaks TLS otherwise"
        );
        Ok(())
    }

    /// Puts what the command line says before what the file says.
    pub(super) fn override_by(&mut self, args: &ServeArgs) {
        if let Some(listen) = args.listen {
            self.listen = Address(listen);
        }
        if let Some(port) = args.tls_port {
            (self.tls_port, self.tls_listen) = (Number(port.into()), None);
        }
        if let Some(addr) = args.tls_listen {
            (self.tls_port, self.tls_listen) = (Number(0), Some(Address(addr)));
        }
        self.tls_only |= args.tls_only;
        let TlsArgs {
            tls_cert_file,
            tls_key_file,
            tls_ca_cert_file,
            tls_auth_clients,
        } = &args.tls;
        for (asked, file) in [
            (tls_cert_file, &mut self.tls_cert_file),
            (tls_key_file, &mut self.tls_key_file),
            (tls_ca_cert_file, &mut self.tls_ca_cert_file),
        ] {
            if asked.is_some() {
                file.clone_from(asked);
            }
        }
        if let Some(asked) = tls_auth_clients {
            self.tls_auth_clients = *asked;
        }
        if let Some(addr) = args.metrics {
            self.metrics = Some(Address(addr));
        }
        if let Some(ack) = args.ack {
            self.ack = ack;
        }
        if let Some(threads) = args.threads {
            self.threads = Number(threads.into());
        }
        if let Some(file) = &args.password_file {
            self.password_file = Some(file.clone());
            self.requirepass = None;
        }
        self.open_to_network |= args.open_to_network;
    }

    /// Whether it listens at `listen`.
    pub(super) fn is_plain(&self) -> bool {
        !self.tls_only
    }

    pub(super) fn tls(&self) -> Option<TlsConfig> {
        Some(TlsConfig {
            listen: self.tls_addr()?,
            settings: TlsSettings {
                certificate: self.tls_cert_file.clone().unwrap_or_default(),
                key: self.tls_key_file.clone().unwrap_or_default(),
                ca: self.tls_ca_cert_file.clone(),
                auth_clients: self.tls_auth_clients.into(),
            },
        })
    }

    /// Where it listens for TLS: a port alone is one of the same address as `listen`.
    fn tls_addr(&self) -> Option<SocketAddr> {
        match u16::try_from(self.tls_port.0) {
            Ok(0) | Err(_) => self.tls_listen.map(|addr| addr.0),
            Ok(port) => Some(SocketAddr::new(self.listen.0.ip(), port)),
        }
    }
}
