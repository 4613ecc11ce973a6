//! SIGHUP: the configuration, the password and the files of TLS are read anew.
//!
//! What has changed since they were read last is put in force, all or none, as far as `CONFIG SET` can
//! change it; what a client has set meanwhile stays where the files have not changed. The files of
//! TLS are read anew in any case, by the names in force.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Context;
use collie_server::LiveSettings;
use tokio::signal::unix::{SignalKind, signal};

use super::config::{Effective, Settings};
use super::logging::{LogFormat, LogOutput};

/// Who changes settings, as the diagnostics name it.
const WHOM: &str = "SIGHUP";

/// What a server is configured by.
#[derive(Debug)]
pub(crate) struct Reload<S: Settings> {
    pub(super) args: S::Args,
    /// As it was read last.
    pub(crate) effective: Effective<S>,
    pub(super) diagnostics: Arc<LogOutput>,
}

impl<S: Settings> Reload<S> {
    /// The format of diagnostics.
    pub(crate) fn format(&self) -> LogFormat {
        self.effective.config.diagnostics.log_format
    }

    /// Reloads at each SIGHUP, for good.
    pub(crate) async fn at_hangups(self, settings: LiveSettings) {
        let mut hangups = match signal(SignalKind::hangup()) {
            Ok(hangups) => hangups,
            Err(error) => {
                tracing::error!(%error, "SIGHUP cannot be caught: changed files need a restart");
                return std::future::pending().await;
            }
        };
        let mut reload = self;
        while hangups.recv().await.is_some() {
            let settings = settings.clone();
            // Files are read, and hosts looked up.
            let reloading = tokio::task::spawn_blocking(move || {
                if let Err(error) = reload.reload(&settings) {
                    tracing::error!("SIGHUP: the settings stay as they were: {error:#}");
                }
                reload
            });
            match reloading.await {
                Ok(back) => reload = back,
                Err(error) => {
                    tracing::error!(%error, "SIGHUP: reading the configuration has failed, and is not tried again");
                    break;
                }
            }
        }
        std::future::pending().await
    }

    fn reload(&mut self, settings: &LiveSettings) -> anyhow::Result<()> {
        let new = self.effective.read_anew(&self.args)?;
        let before = self.effective.parameters();
        let changed: Vec<_> = new
            .parameters()
            .into_iter()
            .filter(|parameter| !before.contains(parameter))
            .collect();
        let (fixed, now_fixed) = (self.effective.fixed()?, new.fixed()?);
        let needs_restart: BTreeSet<&String> = fixed
            .keys()
            .chain(now_fixed.keys())
            .filter(|name| fixed.get(*name) != now_fixed.get(*name))
            .collect();
        settings.reload(&changed, WHOM)?;
        let mut names: Vec<_> = changed.iter().map(|(name, _)| *name).collect();
        let level = &new.config.diagnostics.log_level;
        if *level != self.effective.config.diagnostics.log_level {
            self.diagnostics
                .set_filter(level.clone())
                .map_err(anyhow::Error::msg)
                .context("log-level")?;
            names.push("log-level");
        }
        new.warnings
            .iter()
            .for_each(|warning| tracing::warn!("{warning}"));
        tracing::info!(changed = ?names, "SIGHUP: password, certificates and configuration were read anew");
        if !needs_restart.is_empty() {
            tracing::warn!(settings = ?needs_restart, "SIGHUP: changed, and in force after a restart");
        }
        self.effective = new;
        Ok(())
    }
}
