//! `[server]`: where it listens, for whom, and how.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{anyhow, ensure};
use collie_server::{ServerConfig, TlsConfig, TlsSettings};
use serde::{Deserialize, Serialize};

use super::values::{Number, Secret, seconds};
use crate::args::values::Durability;
use crate::args::{Address, AuthClients, ServeArgs, ServingArgs, TlsArgs};

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
            listen: Address::At(config.listen),
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

    /// Overrides the file's settings by those of the command line.
    pub(super) fn override_by(&mut self, args: &ServeArgs) {
        if let Some(listen) = &args.listen {
            self.listen = listen.clone();
        }
        if let Some(port) = args.port {
            self.listen = self.listen.with_port(port);
        }
        if let Some(port) = args.tls_port {
            (self.tls_port, self.tls_listen) = (Number(port.into()), None);
        }
        if let Some(addr) = &args.tls_listen {
            (self.tls_port, self.tls_listen) = (Number(0), Some(addr.clone()));
        }
        self.tls_only |= args.tls_only;
        if let Some(ack) = args.ack {
            self.ack = ack;
        }
        self.override_for_clients(&args.tls, &args.serving);
    }

    /// Overrides what a node of a cluster has, too.
    pub(crate) fn override_for_clients(&mut self, tls: &TlsArgs, args: &ServingArgs) {
        let TlsArgs {
            tls_cert_file,
            tls_key_file,
            tls_ca_cert_file,
            tls_auth_clients,
        } = tls;
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
        if let Some(addr) = &args.metrics {
            self.metrics = Some(addr.clone());
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

    /// That of a node of a cluster: it listens at one address, by TLS where a certificate or a key is named. Other
    /// nodes send clients there, so that there is one kind of connection.
    pub(crate) fn at_one(&self, listen: &Address) -> Self {
        let is_tls = self.tls_cert_file.is_some() || self.tls_key_file.is_some();
        Self {
            listen: listen.clone(),
            tls_listen: is_tls.then(|| listen.clone()),
            tls_only: is_tls,
            ..self.clone()
        }
    }

    /// Whether it listens at `listen`.
    pub(super) fn is_plain(&self) -> bool {
        !self.tls_only
    }

    /// Looks up the hosts that are named, by `resolve`.
    pub(super) fn endpoints(
        &self,
        resolve: impl Fn(&Address) -> Result<SocketAddr, String>,
    ) -> anyhow::Result<Endpoints> {
        let resolve = |name, address: &Address| resolve(address).map_err(|why| anyhow!("{name}: {why}"));
        let tls = self.tls_addr();
        Ok(Endpoints {
            listen: resolve("listen", &self.listen)?,
            tls: tls.map(|at| resolve("tls-listen", &at)).transpose()?,
            metrics: self
                .metrics
                .as_ref()
                .map(|at| resolve("metrics", at))
                .transpose()?,
        })
    }

    /// TLS at this address.
    pub(super) fn tls(&self, listen: SocketAddr) -> TlsConfig {
        TlsConfig {
            listen,
            settings: TlsSettings {
                certificate: self.tls_cert_file.clone().unwrap_or_default(),
                key: self.tls_key_file.clone().unwrap_or_default(),
                ca: self.tls_ca_cert_file.clone(),
                auth_clients: self.tls_auth_clients.into(),
            },
        }
    }

    /// What of TLS `CONFIG SET` can change: names and values.
    pub(super) fn tls_parameters(&self) -> [(&'static str, String); 4] {
        let path = |path: &Option<PathBuf>| {
            path.as_ref()
                .map_or_else(String::new, |path| path.display().to_string())
        };
        let auth_clients = collie_server::AuthClients::from(self.tls_auth_clients);
        [
            ("tls-cert-file", path(&self.tls_cert_file)),
            ("tls-key-file", path(&self.tls_key_file)),
            ("tls-ca-cert-file", path(&self.tls_ca_cert_file)),
            ("tls-auth-clients", auth_clients.name().to_owned()),
        ]
    }

    /// Where it listens for TLS: a port alone is one of the same address as `listen`.
    fn tls_addr(&self) -> Option<Address> {
        match u16::try_from(self.tls_port.0) {
            Ok(0) | Err(_) => self.tls_listen.clone(),
            Ok(port) => Some(self.listen.with_port(port)),
        }
    }
}

/// Where it listens, by the addresses that the names stand for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Endpoints {
    pub(super) listen: SocketAddr,
    pub(super) tls: Option<SocketAddr>,
    pub(super) metrics: Option<SocketAddr>,
}
