//! The diagnostics of the server: their level and their format. All of them go to standard error.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Context;
use collie_cli::output::note;
use collie_server::Verbosity;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt as lines};

/// The format of diagnostics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LogFormat {
    /// Lines for people.
    Text,
    /// A JSON object per line.
    Json,
}

/// Which diagnostics are logged: a level, and other levels for some modules, as in
/// `info,collie_log=debug`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Filter {
    level: Level,
    modules: Vec<(String, Level)>,
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            level: Level::INFO,
            modules: Vec::new(),
        }
    }
}

impl Filter {
    /// Logs errors alone of a module, unless a level is set for it.
    pub(crate) fn quieten(&mut self, module: &str) {
        if !self.modules.iter().any(|(named, _)| named == module) {
            self.modules.push((module.to_owned(), Level::ERROR));
        }
    }

    fn targets(&self) -> Targets {
        Targets::new()
            .with_default(self.level)
            .with_targets(self.modules.iter().cloned())
    }
}

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let level = |word: &str| {
            let words = ["error", "warn", "info", "debug", "trace"];
            let known = words.iter().any(|known| word.eq_ignore_ascii_case(known));
            known.then(|| word.parse().ok()).flatten().ok_or_else(|| {
                format!(
                    "invalid value: \"{text}\", expected error, warn, info, debug or trace, and behind commas \
                     module=level, as in \"info,collie_log=debug\""
                )
            })
        };
        let mut filter = Self::default();
        for part in text.split(',').map(str::trim) {
            match part.split_once('=') {
                Some((module, word)) => filter
                    .modules
                    .push((module.trim().to_owned(), level(word.trim())?)),
                None => filter.level = level(part)?,
            }
        }
        Ok(filter)
    }
}

impl TryFrom<String> for Filter {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Filter> for String {
    fn from(filter: Filter) -> String {
        filter.to_string()
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.level.as_str().to_ascii_lowercase())?;
        self.modules
            .iter()
            .try_for_each(|(module, level)| write!(f, ",{module}={}", level.as_str().to_ascii_lowercase()))
    }
}

/// The filter in force, which can be changed while the server runs.
#[derive(Debug)]
pub(crate) struct LogOutput {
    filter: Mutex<Filter>,
    handle: reload::Handle<Targets, Registry>,
}

impl LogOutput {
    /// Logs what this filter passes from now on.
    pub(super) fn set_filter(&self, wanted: Filter) -> Result<(), String> {
        let mut filter = self.filter.lock();
        self.handle
            .reload(wanted.targets())
            .map_err(|error| error.to_string())?;
        *filter = wanted;
        Ok(())
    }
}

impl Verbosity for LogOutput {
    fn level(&self) -> Level {
        self.filter.lock().level
    }

    fn set_level(&self, level: Level) -> Result<(), String> {
        let modules = self.filter.lock().modules.clone();
        self.set_filter(Filter { level, modules })
    }
}

/// Starts logging; what is returned changes the filter.
pub(crate) fn start(filter: &Filter, format: LogFormat) -> anyhow::Result<Arc<LogOutput>> {
    let (layer, handle) = reload::Layer::new(filter.targets());
    let registry = tracing_subscriber::registry().with(layer);
    // Standard error may be a terminal that was closed. That cannot be reported anywhere, and the
    // default would panic.
    let lines = lines::layer()
        .with_writer(io::stderr)
        .with_ansi(false)
        .log_internal_errors(false);
    match format {
        LogFormat::Text => registry.with(lines).try_init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
    }
    .context("diagnostics cannot be set up")?;
    Ok(Arc::new(LogOutput {
        filter: Mutex::new(filter.clone()),
        handle,
    }))
}

/// Prints what an operator who starts the server needs. It is printed at every level and, as text,
/// without a timestamp, so that it is readable in a terminal.
pub(crate) fn announce(format: LogFormat, text: impl fmt::Display) {
    match format {
        LogFormat::Text => note(text),
        LogFormat::Json => tracing::info!("{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_reads_back_and_strange_words_are_no_levels() {
        for text in [
            "info",
            "error",
            "trace,collie_log=debug",
            "warn,a::b=info,c=error",
        ] {
            assert_eq!(text.parse::<Filter>().unwrap().to_string(), text);
        }
        assert_eq!("collie_log=debug".parse::<Filter>().unwrap().level, Level::INFO);
        for text in ["", "loud", "info,loud", "collie_log=", "collie_log=9", "1"] {
            let error = text.parse::<Filter>().unwrap_err();
            assert!(error.contains("expected error, warn"), "{error}");
        }
    }
}
