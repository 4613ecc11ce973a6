//! Changes of parameters while the server runs, all or none: by `CONFIG SET`, and by the program that
//! runs the server.

use std::fmt;
use std::sync::Arc;

use parking_lot::MutexGuard;

use super::parameters::{Change, PARAMETERS, Parameter, REQUIREPASS};
use super::tls_parameters::{TLS_PARAMETERS, TlsParameter};
use crate::session::Shared;
use crate::tls::{AuthClients, Tls, TlsSettings};

/// A parameter that is known.
#[derive(Clone, Copy)]
pub(super) enum Known {
    Other(&'static Parameter),
    Tls(&'static TlsParameter),
}

impl Known {
    pub(super) fn all() -> impl Iterator<Item = Known> {
        let others = PARAMETERS.iter().map(Known::Other);
        others.chain(TLS_PARAMETERS.iter().map(Known::Tls))
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Known::Other(parameter) => parameter.name,
            Known::Tls(parameter) => parameter.name,
        }
    }

    fn find(name: &[u8]) -> Option<Known> {
        Known::all().find(|known| known.name().as_bytes().eq_ignore_ascii_case(name))
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

/// Changes that were judged. While they exist nothing else changes parameters: what was judged is what
/// is set.
pub(crate) struct ParameterChanges<'a> {
    shared: &'a Shared,
    _one: MutexGuard<'a, ()>,
    names: Vec<&'static str>,
    changes: Vec<Change>,
    /// TLS whose files are to be read by these settings.
    secured: Option<(&'a Tls, TlsSettings)>,
}

impl<'a> ParameterChanges<'a> {
    /// Judges values, of names in any case. `one` is the lock on the settings.
    pub(crate) fn judge<'v>(
        shared: &'a Shared,
        one: MutexGuard<'a, ()>,
        pairs: impl Iterator<Item = (&'v [u8], &'v [u8])>,
    ) -> Result<ParameterChanges<'a>, Refusal> {
        let mut judged = ParameterChanges {
            shared,
            _one: one,
            names: Vec::new(),
            changes: Vec::new(),
            secured: None,
        };
        let mut has_password = shared.settings.password().is_some();
        for (name, value) in pairs {
            let parameter = Known::find(name).ok_or_else(|| Refusal::Unknown(name.to_vec()))?;
            let name = parameter.name();
            let is_seen = judged.names.contains(&name);
            judged.names.push(name);
            match parameter {
                Known::Other(Parameter { set: None, .. }) => {
                    return Err(refused(name, "can't set immutable config"));
                }
                _ if is_seen => return Err(refused(name, "duplicate parameter")),
                Known::Other(Parameter { set: Some(set), .. }) => {
                    if name == REQUIREPASS {
                        has_password = !value.is_empty();
                    }
                    let change = set(shared, value).map_err(|why| refused(name, why))?;
                    judged.changes.push(change);
                }
                Known::Tls(parameter) => {
                    let why = "this server does not listen for TLS: start it with tls-port";
                    let settings = judged.tls_settings().ok_or_else(|| refused(name, why))?;
                    (parameter.set)(settings, value).map_err(|why| refused(name, why))?;
                }
            }
        }
        if let (Some(name), Some(tls)) = (judged.says_who(), &shared.tls) {
            let auth_clients = match &judged.secured {
                Some((_, settings)) => settings.auth_clients,
                None => tls.settings().auth_clients,
            };
            if !has_password && auth_clients != AuthClients::Yes && !tls.may_be_open {
                return Err(refused(name, OPEN_TO_NETWORK));
            }
        }
        Ok(judged)
    }

    /// The settings of TLS that will be in force, if the server speaks TLS. Its files are read then.
    fn tls_settings(&mut self) -> Option<&mut TlsSettings> {
        let tls = self.shared.tls.as_ref()?;
        let (_, settings) = self.secured.get_or_insert_with(|| (tls, tls.settings()));
        Some(settings)
    }

    /// Has the files of TLS read anew, if the server speaks TLS, whatever is changed.
    pub(crate) fn read_files_anew(&mut self) {
        let _ = self.tls_settings();
    }

    /// Whether making the changes reads files, which blocks.
    pub(crate) fn reads_files(&self) -> bool {
        self.secured.is_some()
    }

    /// One of the parameters by which clients are let in, if there is one.
    fn says_who(&self) -> Option<&'static str> {
        let says_who = |name: &&str| name.starts_with("tls-") || *name == REQUIREPASS;
        self.names.iter().copied().find(says_who)
    }

    /// Makes the changes for `whom`, and returns the names of the parameters.
    pub(crate) fn make(self, whom: &dyn fmt::Display) -> Result<Vec<&'static str>, Refusal> {
        let says_who = self.says_who();
        if let Some((tls, settings)) = self.secured {
            let prepared = tls.prepare(settings).map_err(|problem| {
                tracing::warn!(%problem, "new connections go on with the TLS settings that were in force");
                refused(says_who.unwrap_or("tls-cert-file"), problem)
            })?;
            tls.install(prepared);
            tracing::info!("new connections use the files of TLS as they were read now");
        }
        for change in self.changes {
            change(self.shared);
        }
        if says_who.is_some() {
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
        ParameterChanges::judge(&self.shared, one, pairs)
            .and_then(|mut changes| {
                changes.read_files_anew();
                changes.make(&whom)
            })
            .map(drop)
            .map_err(|refusal| SettingsRefused(refusal.to_string()))
    }
}
