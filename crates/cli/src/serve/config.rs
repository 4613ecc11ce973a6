//! The configuration of a server: defaults, overridden by the file, overridden by the command line.
//!
//! The file is TOML. Every setting has the name of its command-line flag or of its `CONFIG SET`
//! parameter; unknown names are refused, so that a misspelt limit is not silently ignored.
//! `packaging/collie.toml` describes all of that of `collie serve`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use collie_db::Options;
use collie_server::ServerConfig;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::file::{read_password, read_settings};
use super::limits::{Diagnostics, Limits};
use super::listening::{Endpoints, Listening};
use super::store::{RingBytes, Store};
use super::values::{Bytes, Number, signed};
use crate::args::{Address, ServeArgs, ServingArgs};

/// The settings of a command that serves clients, as its file has them.
pub(crate) trait Settings:
    Clone + Default + fmt::Debug + Serialize + DeserializeOwned + Send + 'static
{
    /// Its command line.
    type Args: Clone + fmt::Debug + Send + 'static;

    /// What of the command line all such commands have.
    fn serving(args: &Self::Args) -> &ServingArgs;

    /// The section `[server]`.
    fn server(&self) -> &Listening;

    /// Overrides the file's settings by those of the command line.
    fn override_by(&mut self, args: &Self::Args);

    /// What its server is configured by. An error names `file`, if there is one.
    fn config(&self, file: Option<&Path>) -> anyhow::Result<Config>;

    /// These settings, with those values in which `completed` goes beyond them.
    fn completed(&self, completed: Config) -> Self;
}

/// All settings of `collie serve`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) store: Store,
    pub(crate) server: Listening,
    pub(crate) limits: Limits,
    pub(crate) diagnostics: Diagnostics,
}

/// The configuration in force, with warnings about its sources.
#[derive(Debug)]
pub(crate) struct Effective<S> {
    /// As the file and the command line have it.
    pub(crate) settings: S,
    /// What the server is configured by.
    pub(crate) config: Config,
    pub(crate) dir: PathBuf,
    endpoints: Endpoints,
    ring_bytes: usize,
    pub(super) password: Option<String>,
    /// The file that it was read from.
    file: Option<PathBuf>,
    pub(crate) warnings: Vec<String>,
}

impl<S: Settings> Effective<S> {
    /// Reads the file, if there is one, overrides it by the command line, and reads the password.
    pub(crate) fn read(args: &S::Args) -> anyhow::Result<Self> {
        Self::read_for(args, None)
    }

    /// As [`read`](Self::read), for a server that runs with this configuration: it has its ring, and
    /// listens.
    pub(super) fn read_anew(&self, args: &S::Args) -> anyhow::Result<Self> {
        Self::read_for(args, Some(self))
    }

    fn read_for(args: &S::Args, running: Option<&Self>) -> anyhow::Result<Self> {
        let mut warnings = Vec::new();
        let file = S::serving(args).config.as_deref();
        let has_password = |settings: &S| settings.server().requirepass.is_some();
        let mut settings = match file {
            Some(path) => read_settings(path, has_password, &mut warnings)?,
            None => S::default(),
        };
        settings.override_by(args);
        let config = settings.config(file)?;
        let server = &config.server;
        server.check()?;
        let password = match (&server.password_file, &server.requirepass) {
            (Some(path), _) => Some(read_password(path, &mut warnings)?),
            (None, secret) => secret.as_ref().map(|secret| secret.0.clone()),
        };
        let dir = config.store.dir.clone().ok_or_else(|| match file {
            Some(path) => anyhow!(
                "{} names no store: give `dir` in its section [store], or --dir",
                path.display()
            ),
            None => anyhow!("no store was named: give --dir"),
        })?;
        let (endpoints, ring_bytes) = match running {
            Some(running) => (running.endpoints, running.ring_bytes),
            None => (
                server.endpoints(Address::resolve)?,
                config.store.ring_size(&mut warnings),
            ),
        };
        config.store.warn(&mut warnings);
        let effective = Self {
            settings,
            config,
            dir,
            endpoints,
            ring_bytes,
            password,
            file: file.map(Path::to_path_buf),
            warnings,
        };
        effective.check()?;
        Ok(effective)
    }

    /// Checks what involves several settings.
    fn check(&self) -> anyhow::Result<()> {
        self.config.store.check(self.ring_bytes)?;
        let server = self.server();
        let most = server.value_len_max();
        if let Some(asked) = self.config.limits.proto_max_bulk_len {
            ensure!(
                asked.size() <= most,
                "proto-max-bulk-len is {}, expected at most {most}: a value has to fit into half of the log's \
                 ring with room for its key; raise ring-bytes, which is {}",
                asked.size(),
                self.ring_bytes
            );
        }
        server.check()?;
        Ok(())
    }

    /// The options that the engine is opened with.
    pub(crate) fn options(&self) -> Options {
        self.config.store.apply_to(Options {
            ring_bytes: self.ring_bytes,
            // Clients cannot lock more rows than their current requests name, and requests have
            // limits.
            max_row_locks: 1 << 26,
            // A request is one frame of the log: clients are not to take more memory than the limits
            // on requests say.
            max_commit_bytes: 0,
            ..Options::default()
        })
    }

    /// The server's configuration.
    pub(crate) fn server(&self) -> ServerConfig {
        let Config {
            server,
            limits,
            diagnostics,
            ..
        } = &self.config;
        let mut config = ServerConfig {
            listen: self.endpoints.listen,
            plain: server.is_plain(),
            tls: self.endpoints.tls.map(|at| server.tls(at)),
            threads: server.threads.count(),
            ack: server.ack.ack(),
            password: self.password.clone(),
            open_to_network: server.open_to_network,
            metrics: self.endpoints.metrics,
            clients_max: limits.maxclients.count(),
            idle_timeout: Duration::from_secs(limits.timeout.0.unsigned_abs()),
            authentication_timeout: Duration::from_secs(limits.authentication_timeout.0.unsigned_abs()),
            tcp_keepalive_s: u32::try_from(limits.tcp_keepalive.0).unwrap_or(0),
            ring_bytes: self.ring_bytes,
            longest_value: self.config.store.longest_value,
            output_bytes_max: limits.client_output_buffer_limit.size(),
            in_flight_bytes_max: limits.maxmemory_clients.size(),
            shutdown_grace: Duration::from_secs(server.shutdown_grace.0.unsigned_abs()),
            slow_us: diagnostics.slowlog_log_slower_than.0,
            slow_log_len_max: diagnostics.slowlog_max_len.count(),
            config_file: self.file.clone(),
            ..ServerConfig::default()
        };
        config.limits.request_len_max = limits.client_query_buffer_limit.size();
        config.limits.bulk_len_max = match limits.proto_max_bulk_len {
            Some(asked) => asked.size(),
            None => config.value_len_max(),
        };
        config
    }

    /// What `CONFIG SET` can change: names and values. What is missing here counts as fixed at the start.
    pub(super) fn parameters(&self) -> Vec<(&'static str, String)> {
        let Config {
            server,
            limits,
            diagnostics,
            ..
        } = &self.config;
        let bulk_len = self.server().limits.bulk_len_max;
        let output_limit = limits.client_output_buffer_limit.0;
        let mut parameters = vec![
            ("ack", server.ack.ack().to_string()),
            ("maxclients", limits.maxclients.0.to_string()),
            ("timeout", limits.timeout.0.to_string()),
            (
                "authentication-timeout",
                limits.authentication_timeout.0.to_string(),
            ),
            ("tcp-keepalive", limits.tcp_keepalive.0.to_string()),
            ("proto-max-bulk-len", bulk_len.to_string()),
            (
                "client-query-buffer-limit",
                limits.client_query_buffer_limit.0.to_string(),
            ),
            ("client-output-buffer-limit", format!("normal {output_limit} 0 0")),
            ("maxmemory-clients", limits.maxmemory_clients.0.to_string()),
            (
                "slowlog-log-slower-than",
                diagnostics.slowlog_log_slower_than.0.to_string(),
            ),
            ("slowlog-max-len", diagnostics.slowlog_max_len.0.to_string()),
            ("requirepass", self.password.clone().unwrap_or_default()),
        ];
        if self.endpoints.tls.is_some() {
            parameters.extend(server.tls_parameters());
        }
        parameters
    }

    /// Settings that are fixed at the start: their places in the file, and values.
    pub(super) fn fixed(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let mut changeable = vec!["log-level", "password-file"];
        changeable.extend(self.parameters().into_iter().map(|(name, _)| name));
        let sections = toml::Table::try_from(&self.settings).context("the configuration cannot be shown")?;
        let mut fixed = BTreeMap::new();
        for (section, settings) in &sections {
            for (name, value) in settings.as_table().into_iter().flatten() {
                if !changeable.contains(&name.as_str()) {
                    fixed.insert(format!("{section}.{name}"), value.to_string());
                }
            }
        }
        Ok(fixed)
    }

    /// The configuration in force, as a file that `--config` would accept. Passwords are left out.
    pub(crate) fn shown(&self) -> anyhow::Result<String> {
        let mut config = self.config.clone();
        config.store.ring_bytes = Some(RingBytes(Bytes(signed(self.ring_bytes))));
        config.limits.proto_max_bulk_len = Some(Bytes(signed(self.server().limits.bulk_len_max)));
        let shown = self.settings.completed(config);
        let text = toml::to_string(&shown).context("the configuration cannot be shown")?;
        let masked = if shown.server().requirepass.is_some() {
            "# requirepass is set, and not shown.\n\n"
        } else {
            ""
        };
        Ok(format!("{masked}{text}"))
    }
}

impl Settings for Config {
    type Args = ServeArgs;

    fn serving(args: &ServeArgs) -> &ServingArgs {
        &args.serving
    }

    fn server(&self) -> &Listening {
        &self.server
    }

    fn override_by(&mut self, args: &ServeArgs) {
        let Self {
            store,
            server,
            diagnostics,
            ..
        } = self;
        if let Some(dir) = &args.dir {
            store.dir = Some(dir.clone());
        }
        if let Some(ring) = args.ring {
            store.ring = ring;
        }
        store.pad_to_block |= args.pad_to_block;
        if let Some(limit) = args.max_total_wal_size {
            store.max_total_wal_size = Bytes(limit);
        }
        if let Some(ttl) = args.wal_ttl {
            store.wal_ttl = Number(ttl.into());
        }
        if let Some(limit) = args.wal_size_limit {
            store.wal_size_limit = Bytes(limit);
        }
        server.override_by(args);
        diagnostics.override_by(&args.serving);
    }

    fn config(&self, _file: Option<&Path>) -> anyhow::Result<Config> {
        Ok(self.clone())
    }

    fn completed(&self, completed: Config) -> Self {
        completed
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::serve::file::{self, examples};

    const EXAMPLE: &str = include_str!("../../../../packaging/collie.toml");

    fn parse(text: &str) -> Result<Config, String> {
        file::parse(text)
    }

    #[test]
    fn the_example_shows_every_setting_with_its_default() {
        let mut expected = Config::default();
        expected.store.dir = Some(PathBuf::from("/var/lib/collie"));
        examples::check(EXAMPLE, &expected, &[]);
    }

    #[test]
    fn an_error_names_line_and_key_and_what_was_expected_and_found() {
        for (text, parts) in [
            (
                "[server]\nlisten = \"here\"",
                &["line 2, server.listen", "\"here\"", "expected an address"][..],
            ),
            (
                "\n[limits]\n\nmaxclients = 0",
                &["line 4, limits.maxclients", "`0`", "from 1 to 4294967295"],
            ),
            (
                "[limits]\nmaxclients = \"many\"",
                &["line 2, limits.maxclients", "\"many\"", "a whole number"],
            ),
            (
                "[limits]\nmaxmemory-clients = \"2 loads\"",
                &["line 2, limits.maxmemory-clients", "2 loads", "64mb"],
            ),
            (
                "[store]\nring-bytes = \"33mb\"",
                &["line 2, store.ring-bytes", "34603008", "a power of two"],
            ),
            (
                "[store]\nwal-ttl = \"1h\"",
                &["line 2, store.wal-ttl", "\"1h\"", "a whole number"],
            ),
            (
                "[store]\nwal-ttl = -1",
                &["line 2, store.wal-ttl", "`-1`", "from 0 to 4294967295"],
            ),
            (
                "[store]\nwal-size-limit = \"much\"",
                &["line 2, store.wal-size-limit", "\"much\"", "64mb"],
            ),
            (
                "[store]\npad-to-block = 1",
                &["line 2, store.pad-to-block", "`1`", "a boolean"],
            ),
            (
                "[store]\nring = \"round\"",
                &["line 2, store.ring", "`round`", "`shared`"],
            ),
            (
                "[server]\nack = \"soon\"",
                &["line 2, server.ack", "`soon`", "`process`"],
            ),
            (
                "[diagnostics]\nlog-level = \"loud\"",
                &["line 2, diagnostics.log-level", "\"loud\"", "error, warn"],
            ),
            (
                "[server]\nlisten-on = 1",
                &[
                    "line 2, server.listen-on",
                    "unknown field `listen-on`",
                    "expected one of",
                ],
            ),
            ("[sever]\n", &["line 1", "unknown field `sever`", "`server`"]),
            (
                "[server]\nthreads = 1\nthreads = 2",
                &["line 3, server.threads", "duplicate key"],
            ),
            ("[server]\nthreads 1", &["line 2, server.threads", "expected"]),
        ] {
            let error = parse(text).unwrap_err();
            for part in parts {
                assert!(error.contains(part), "{text}: {part} is not in: {error}");
            }
        }
    }

    #[test]
    fn no_error_and_no_print_out_shows_a_password() {
        for text in [
            "[server]\nrequirepass = [\"sesame\"]",
            "[server]\nrequirepass = \"sesame",
            "[server]\nrequirepass \"sesame\"",
            "[server]\nrequirepass = \"sesame\" \"sesame\"",
            "requirepass = \"sesame\"",
        ] {
            let error = parse(text).unwrap_err();
            assert!(!error.contains("sesame"), "{error}");
        }
        let config = parse("[server]\nrequirepass = \"sesame\"").unwrap();
        assert!(!format!("{config:?}").contains("sesame"));
        let effective = Effective {
            password: Some("sesame".to_owned()),
            ..effective(config)
        };
        assert!(!effective.shown().unwrap().contains("sesame"));
    }

    #[test]
    fn what_is_printed_reads_back_as_itself() {
        let text = "[store]\ndir = \"/x\"\nring-bytes = \"1mb\"\ncache-bytes = 12345\npad-to-block = true\n\
                    wal-ttl = 90\nwal-size-limit = \"3gb\"\n[server]\nack = \"process\"\n\
                    metrics = \"localhost:9380\"\n\
                    [limits]\nmaxclients = 7\n[diagnostics]\nlog-level = \"warn,collie_log=trace\"";
        let effective = |text: &str| effective(parse(text).unwrap());
        let shown = effective(text).shown().unwrap();
        for line in [
            "ring-bytes = \"1mb\"",
            "cache-bytes = 12345",
            "pad-to-block = true",
            "wal-ttl = 90",
            "wal-size-limit = \"3gb\"",
            "proto-max-bulk-len = \"256kb\"",
            "metrics = \"localhost:9380\"",
            "maxclients = 7",
        ] {
            assert!(shown.contains(line), "{line} is not in {shown}");
        }
        assert_eq!(effective(&shown).shown().unwrap(), shown);
    }

    /// With hosts that are all of another machine.
    fn effective(config: Config) -> Effective<Config> {
        let resolve = |address: &Address| match address {
            Address::At(addr) => Ok(*addr),
            Address::Named { port, .. } => Ok(SocketAddr::from(([192, 0, 2, 1], *port))),
        };
        Effective {
            endpoints: config.server.endpoints(resolve).unwrap(),
            ring_bytes: config.store.ring_bytes.map_or(1 << 20, |asked| asked.0.size()),
            settings: config.clone(),
            config,
            dir: PathBuf::new(),
            password: None,
            file: None,
            warnings: Vec::new(),
        }
    }

    /// It begins with the line, and with the key if the error is about one; it does not show what
    /// is set as `requirepass`.
    fn check_refusal(problem: &str, text: &str) {
        let position = problem.strip_prefix("line ").and_then(|rest| {
            let (position, what) = rest.split_once(": ")?;
            let line = position.split_once(", ").map_or(position, |(line, _)| line);
            (!what.is_empty()).then(|| line.parse::<usize>().ok())?
        });
        let lines = text.matches('\n').count() + 1;
        assert!(
            position.is_some_and(|line| (1..=lines).contains(&line)),
            "{problem:?}"
        );
        let names_it = problem
            .split(':')
            .next()
            .is_some_and(|position| position.ends_with("requirepass"));
        assert!(!names_it || !problem.contains("sesame"), "{problem:?}");
    }

    #[test]
    fn a_mutated_configuration_is_taken_as_shown_or_refused() {
        let mut corpus = collie_sim::fuzz::corpus("configurations");
        corpus.push(examples::uncommented(EXAMPLE).into_bytes());
        collie_sim::fuzz::mutations("configurations", &corpus, 4_000, |_, bytes| {
            let Ok(text) = std::str::from_utf8(bytes) else {
                return;
            };
            let mut config = match parse(text) {
                Ok(config) => config,
                Err(problem) => return check_refusal(&problem, text),
            };
            // The password is not shown.
            config.server.requirepass = None;
            let shown = toml::to_string(&config).unwrap();
            assert_eq!(parse(&shown).as_ref(), Ok(&config), "{shown}");
            let effective = effective(config);
            if let Err(refusal) = effective.check() {
                let says = refusal.to_string();
                let what = ["expected", "open-to-network"];
                assert!(what.iter().any(|what| says.contains(what)), "{says}");
                return;
            }
            // The configuration in force, including derived values, is accepted again.
            let shown = effective.shown().unwrap();
            let again = self::effective(parse(&shown).unwrap());
            assert_eq!(again.shown().unwrap(), shown);
        });
    }
}
