//! The configuration of `collie serve`: defaults, overridden by the file, overridden by the command
//! line.
//!
//! The file is TOML. Every setting has the name of its command-line flag or of its `CONFIG SET`
//! parameter; unknown names are refused, so that a misspelt limit is not silently ignored.
//! `packaging/collie.toml` describes all of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use collie_db::Options;
use collie_io::{Device, OpenMode, RealDevice};
use collie_server::ServerConfig;
use serde::{Deserialize, Serialize};

use super::listening::{Endpoints, Listening};
use super::logging::{Filter, LogFormat};
use super::store::{RingBytes, Store};
use super::values::{Bytes, Number, seconds};
use crate::args::{Address, ServeArgs};

/// The longest configuration file that is read, in bytes.
const CONFIG_FILE_MAX: usize = 1 << 20;
/// The longest password file that is read, in bytes.
const PASSWORD_FILE_MAX: usize = 4096;
/// The permission bit that lets every user read.
const WORLD_READABLE: u32 = 0o004;
const MIB: i64 = 1 << 20;

/// All settings.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) store: Store,
    pub(crate) server: Listening,
    pub(crate) limits: Limits,
    pub(crate) diagnostics: Diagnostics,
}

/// `[limits]`, by the names of `CONFIG SET`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Limits {
    maxclients: Number<1, { u32::MAX as i64 }>,
    timeout: Number<0, { i32::MAX as i64 }>,
    authentication_timeout: Number<0, { i32::MAX as i64 }>,
    tcp_keepalive: Number<0, { i32::MAX as i64 }>,
    proto_max_bulk_len: Option<Bytes<1024, { i64::MAX }>>,
    client_query_buffer_limit: Bytes<MIB, { i64::MAX }>,
    client_output_buffer_limit: Bytes<0, { i64::MAX }>,
    maxmemory_clients: Bytes<MIB, { i64::MAX }>,
}

/// `[diagnostics]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Diagnostics {
    pub(crate) log_level: Filter,
    pub(crate) log_format: LogFormat,
    slowlog_log_slower_than: Number<-1, { i64::MAX }>,
    slowlog_max_len: Number<0, 100_000>,
}

impl Default for Limits {
    fn default() -> Self {
        let config = ServerConfig::default();
        Self {
            maxclients: Number(signed(config.clients_max)),
            timeout: Number(seconds(config.idle_timeout)),
            authentication_timeout: Number(seconds(config.authentication_timeout)),
            tcp_keepalive: Number(config.tcp_keepalive_s.into()),
            proto_max_bulk_len: None,
            client_query_buffer_limit: Bytes(signed(config.limits.request_len_max)),
            client_output_buffer_limit: Bytes(signed(config.output_bytes_max)),
            maxmemory_clients: Bytes(signed(config.in_flight_bytes_max)),
        }
    }
}

impl Default for Diagnostics {
    fn default() -> Self {
        let config = ServerConfig::default();
        Self {
            log_level: Filter::default(),
            log_format: LogFormat::Text,
            slowlog_log_slower_than: Number(config.slow_us),
            slowlog_max_len: Number(signed(config.slow_log_len_max)),
        }
    }
}

fn signed(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// The configuration in force, with warnings about its sources.
#[derive(Debug)]
pub(crate) struct Effective {
    pub(crate) config: Config,
    pub(crate) dir: PathBuf,
    endpoints: Endpoints,
    ring_bytes: usize,
    pub(super) password: Option<String>,
    /// The file that it was read from.
    file: Option<PathBuf>,
    pub(crate) warnings: Vec<String>,
}

impl Effective {
    /// Reads the file, if there is one, overrides it by the command line, and reads the password.
    pub(crate) fn read(args: &ServeArgs) -> anyhow::Result<Self> {
        Self::read_for(args, None)
    }

    /// As [`read`](Self::read), for a server that runs with this configuration: it has its ring, and
    /// listens.
    pub(super) fn read_anew(&self, args: &ServeArgs) -> anyhow::Result<Self> {
        Self::read_for(args, Some(self))
    }

    fn read_for(args: &ServeArgs, running: Option<&Self>) -> anyhow::Result<Self> {
        let mut warnings = Vec::new();
        let mut config = match &args.config {
            Some(path) => read_file(path, &mut warnings)?,
            None => Config::default(),
        };
        config.override_by(args);
        let server = &config.server;
        server.check()?;
        let password = match (&server.password_file, &server.requirepass) {
            (Some(path), _) => Some(read_password(path, &mut warnings)?),
            (None, secret) => secret.as_ref().map(|secret| secret.0.clone()),
        };
        let dir = config.store.dir.clone().ok_or_else(|| match &args.config {
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
            config,
            dir,
            endpoints,
            ring_bytes,
            password,
            file: args.config.clone(),
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
        let sections = toml::Table::try_from(&self.config).context("the configuration cannot be shown")?;
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
        let text = toml::to_string(&config).context("the configuration cannot be shown")?;
        let masked = if config.server.requirepass.is_some() {
            "# requirepass is set, and not shown.\n\n"
        } else {
            ""
        };
        Ok(format!("{masked}{text}"))
    }
}

impl Config {
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
        if let Some(filter) = &args.serving.log_level {
            diagnostics.log_level = filter.clone();
        }
        if let Some(format) = args.serving.log_format {
            diagnostics.log_format = format;
        }
    }
}

fn read_file(path: &Path, warnings: &mut Vec<String>) -> anyhow::Result<Config> {
    let (text, mode) = read_text(path, CONFIG_FILE_MAX)
        .with_context(|| format!("cannot read the configuration from {}", path.display()))?;
    let config = parse(&text).map_err(|problem| anyhow!("{}, {problem}", path.display()))?;
    if config.server.requirepass.is_some() && mode & WORLD_READABLE != 0 {
        warnings.push(format!(
            "{} contains a password and every user can read it (mode {mode:04o}): chmod 0640 or stricter, or use \
             password-file",
            path.display()
        ));
    }
    Ok(config)
}

/// Parses a configuration. The error names line, section and key, and shows only the wrong value.
fn parse(text: &str) -> Result<Config, String> {
    toml::from_str(text).map_err(|error| {
        let message = error.message().trim_end();
        let Some(span) = error.span() else {
            return message.to_owned();
        };
        let before = text.get(..span.start).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let key = |text: &str| -> String {
            let is_key = |c: &char| c.is_ascii_alphanumeric() || "-_".contains(*c);
            text.trim_start().chars().take_while(is_key).collect()
        };
        let section = before
            .lines()
            .rev()
            .find_map(|line| line.trim_start().strip_prefix('['))
            .map(key)
            .unwrap_or_default();
        let key = key(text.lines().nth(line - 1).unwrap_or_default());
        match (section.as_str(), key.as_str()) {
            ("", "") => format!("line {line}: {message}"),
            ("", name) | (name, "") => format!("line {line}, {name}: {message}"),
            (section, key) => format!("line {line}, {section}.{key}: {message}"),
        }
    })
}

/// The first line of a file that only its owner should be able to read.
pub(crate) fn read_password(path: &Path, warnings: &mut Vec<String>) -> anyhow::Result<String> {
    let (text, mode) = read_text(path, PASSWORD_FILE_MAX)
        .with_context(|| format!("cannot read the password from {}", path.display()))?;
    if mode & WORLD_READABLE != 0 {
        warnings.push(format!(
            "every user can read the password in {} (mode {mode:04o}): chmod 0600 or 0640",
            path.display()
        ));
    }
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => bail!(
            "{} begins with an empty line, not with a password",
            path.display()
        ),
    }
}

/// A file's text and its permission bits.
fn read_text(path: &Path, len_max: usize) -> anyhow::Result<(String, u32)> {
    let file = RealDevice::new().open(path, OpenMode::Read)?;
    let mut buffer = vec![0; len_max + 1];
    let mut len = 0;
    loop {
        match file.read_at(buffer.get_mut(len..).unwrap_or_default(), len as u64)? {
            0 => break,
            n => len += n,
        }
    }
    ensure!(len <= len_max, "it is longer than {len_max} bytes");
    buffer.truncate(len);
    let text = String::from_utf8(buffer).context("it is not UTF-8")?;
    Ok((text, file.stat()?.mode))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    const EXAMPLE: &str = include_str!("../../../../packaging/collie.toml");

    /// The example, with its commented-out defaults enabled.
    fn uncommented() -> String {
        let shows_a_default = |line: &str| line.starts_with(|c: char| c.is_ascii_lowercase());
        EXAMPLE
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(rest) if shows_a_default(rest) => format!("{rest}\n"),
                _ => format!("{line}\n"),
            })
            .collect()
    }

    #[test]
    fn the_example_shows_every_setting_with_its_default() {
        let mut expected = Config::default();
        expected.store.dir = Some(PathBuf::from("/var/lib/collie"));
        assert_eq!(parse(EXAMPLE).unwrap(), expected);
        assert_eq!(parse(&uncommented()).unwrap(), expected);

        let shown: toml::Table = toml::from_str(&uncommented()).unwrap();
        let known = toml::Table::try_from(&expected).unwrap();
        for (section, settings) in &known {
            let shown = shown[section].as_table().unwrap();
            for name in settings.as_table().unwrap().keys() {
                assert!(shown.contains_key(name), "{section}.{name} is missing");
            }
        }
        // Settings without a default cannot be compared, but the example must contain them.
        for name in [
            "ring-bytes",
            "metrics",
            "tls-listen",
            "tls-cert-file",
            "tls-key-file",
            "tls-ca-cert-file",
            "password-file",
            "requirepass",
            "proto-max-bulk-len",
        ] {
            assert!(EXAMPLE.contains(&format!("\n# {name} = ")), "{name} is missing");
        }
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
    fn effective(config: Config) -> Effective {
        let resolve = |address: &Address| match address {
            Address::At(addr) => Ok(*addr),
            Address::Named { port, .. } => Ok(SocketAddr::from(([192, 0, 2, 1], *port))),
        };
        Effective {
            endpoints: config.server.endpoints(resolve).unwrap(),
            ring_bytes: config.store.ring_bytes.map_or(1 << 20, |asked| asked.0.size()),
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
        corpus.push(uncommented().into_bytes());
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
