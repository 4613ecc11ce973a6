//! The settings of a running server, for the program that runs it.

use std::sync::Arc;

use crate::commands::Changes;
use crate::session::Shared;

/// Why the settings of a running server stay as they were.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("nothing was changed: {0}")]
pub struct SettingsRefused(String);

/// Changes the settings of a [server](crate::Server), as `CONFIG SET` does.
#[derive(Debug, Clone)]
pub struct LiveSettings {
    pub(super) shared: Arc<Shared>,
}

impl LiveSettings {
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
        Changes::judge(&self.shared, one, pairs)
            .and_then(|mut changes| {
                changes.read_files_anew();
                changes.make(&whom)
            })
            .map(drop)
            .map_err(|refusal| SettingsRefused(refusal.to_string()))
    }
}
