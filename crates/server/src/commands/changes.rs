//! Changes of parameters while the server runs, all or none: by `CONFIG SET`, and by the program that
//! runs the server.

use std::fmt;
use std::sync::Arc;

use parking_lot::MutexGuard;

use super::parameters::{Change, PARAMETERS, Parameter, REQUIREPASS};
use super::tls_parameters::{TLS_PARAMETERS, TlsParameter};
use crate::session::Shared;
use crate::tls::{AuthClients, Tls, TlsSettings};

/// A parameter of either table.
#[derive(Clone, Copy)]
pub(super) enum AnyParameter {
    Other(&'static Parameter),
    Tls(&'static TlsParameter),
}

impl AnyParameter {
    pub(super) fn all() -> impl Iterator<Item = AnyParameter> {
        let others = PARAMETERS.iter().map(AnyParameter::Other);
        others.chain(TLS_PARAMETERS.iter().map(AnyParameter::Tls))
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            AnyParameter::Other(parameter) => parameter.name,
            AnyParameter::Tls(parameter) => parameter.name,
        }
    }

    fn find(name: &[u8]) -> Option<AnyParameter> {
        AnyParameter::all().find(|known| known.name().as_bytes().eq_ignore_ascii_case(name))
    }
}

/// Why parameters are not changed.
pub(crate) enum Refusal {
    /// There is no parameter of that name.
    Unknown(Vec<u8>),
    /// A parameter does not take the value.
    Value { name: &'static str, why: String },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Unknown(name) => write!(f, "there is no parameter {}", name.escape_ascii()),
            Refusal::Value { name, why } => write!(f, "{name}: {why}"),
        }
    }
}

fn refused(name: &'static str, why: impl fmt::Display) -> Refusal {
    let why = why.to_string();
    Refusal::Value { name, why }
}

/// Validated changes. While they exist nothing else changes parameters: what was validated is what is
/// set.
pub(crate) struct ParameterChanges<'a> {
    shared: &'a Shared,
    _one: MutexGuard<'a, ()>,
    names: Vec<&'static str>,
    changes: Vec<Change>,
    /// TLS whose files are to be read by these settings.
    secured: Option<(&'a Tls, TlsSettings)>,
}

impl<'a> ParameterChanges<'a> {
    /// Validates values, of names in any case. `one` is the lock on the settings.
    pub(crate) fn validate<'v>(
        shared: &'a Shared,
        one: MutexGuard<'a, ()>,
        pairs: impl Iterator<Item = (&'v [u8], &'v [u8])>,
    ) -> Result<ParameterChanges<'a>, Refusal> {
        let mut validated = ParameterChanges {
            shared,
            _one: one,
            names: Vec::new(),
            changes: Vec::new(),
            secured: None,
        };
        let mut has_password = shared.settings.password().is_some();
        for (name, value) in pairs {
            let parameter = AnyParameter::find(name).ok_or_else(|| Refusal::Unknown(name.to_vec()))?;
            let name = parameter.name();
            let is_seen = validated.names.contains(&name);
            validated.names.push(name);
            match parameter {
                AnyParameter::Other(Parameter { set: None, .. }) => {
                    return Err(refused(name, "can't set immutable config"));
                }
                _ if is_seen => return Err(refused(name, "duplicate parameter")),
                AnyParameter::Other(Parameter { set: Some(set), .. }) => {
                    if name == REQUIREPASS {
                        has_password = !value.is_empty();
                    }
                    let change = set(shared, value).map_err(|why| refused(name, why))?;
                    validated.changes.push(change);
                }
                AnyParameter::Tls(parameter) => {
                    let why = "this server does not listen for TLS: start it with tls-port";
                    let settings = validated.tls_settings().ok_or_else(|| refused(name, why))?;
                    (parameter.set)(settings, value).map_err(|why| refused(name, why))?;
                }
            }
        }
        if let (Some(name), Some(tls)) = (validated.access_parameter(), &shared.tls) {
            let auth_clients = match &validated.secured {
                Some((_, settings)) => settings.auth_clients,
                None => tls.settings().auth_clients,
            };
            if !has_password && auth_clients != AuthClients::Yes && !tls.may_be_open {
                return Err(refused(name, OPEN_TO_NETWORK));
            }
        }
        Ok(validated)
    }

    /// The settings of TLS that will be in force, if the server speaks TLS. Its files are read then.
    fn tls_settings(&mut self) -> Option<&mut TlsSettings> {
        let tls = self.shared.tls.as_ref()?;
        let (_, settings) = self.secured.get_or_insert_with(|| (tls, tls.settings()));
        Some(settings)
    }

    /// Reads the files of TLS anew with the changes, if the server speaks TLS, whatever is changed.
    pub(crate) fn read_files_anew(&mut self) {
        let _ = self.tls_settings();
    }

    /// Whether applying the changes reads files, which blocks.
    pub(crate) fn reads_files(&self) -> bool {
        self.secured.is_some()
    }

    /// One of the parameters by which clients are let in, if there is one.
    fn access_parameter(&self) -> Option<&'static str> {
        let access_parameter = |name: &&str| name.starts_with("tls-") || *name == REQUIREPASS;
        self.names.iter().copied().find(access_parameter)
    }

    /// Applies the changes for `whom`, and returns the names of the parameters.
    pub(crate) fn apply(self, whom: &dyn fmt::Display) -> Result<Vec<&'static str>, Refusal> {
        let access_parameter = self.access_parameter();
        if let Some((tls, settings)) = self.secured {
            let prepared = tls.prepare(settings).map_err(|problem| {
                tracing::warn!(%problem, "new connections go on with the TLS settings that were in force");
                refused(access_parameter.unwrap_or("tls-cert-file"), problem)
            })?;
            tls.install(prepared);
            tracing::info!("new connections use the files of TLS as they were read now");
        }
        for change in self.changes {
            change(self.shared);
        }
        if access_parameter.is_some() {
            let parameters = &self.names;
            tracing::warn!(by = %whom, ?parameters, "who is let in may have changed");
        }
        Ok(self.names)
    }
}

const OPEN_TO_NETWORK: &str = "this would let in every client of other machines: keep a password, or \
                               tls-auth-clients yes, or start the server with open-to-network";

/// Why the settings of a running server stay as they were.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("nothing was changed: {0}")]
pub struct SettingsRefused(String);

/// Changes the settings of a [server](crate::Server), as `CONFIG SET` does.
#[derive(Debug, Clone)]
pub struct LiveSettings {
    shared: Arc<Shared>,
}

impl LiveSettings {
    pub(crate) fn new(shared: Arc<Shared>) -> LiveSettings {
        LiveSettings { shared }
    }

    /// Sets parameters of `CONFIG SET`, given as names and values, all or none, and reads the files of
    /// TLS anew, if the server speaks it, whatever is set. `whom` is who asks, for the diagnostics.
    /// Blocks.
    ///
    /// # Errors
    /// There is no such parameter, it does not take the value, or a file cannot be used; nothing is
    /// changed.
    pub fn reload(&self, parameters: &[(&str, String)], whom: &str) -> Result<(), SettingsRefused> {
        let one = self.shared.settings.changing.lock();
        let pairs = parameters
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        ParameterChanges::validate(&self.shared, one, pairs)
            .and_then(|mut changes| {
                changes.read_files_anew();
                changes.apply(&whom)
            })
            .map(drop)
            .map_err(|refusal| SettingsRefused(refusal.to_string()))
    }
}
