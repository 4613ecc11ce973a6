//! The configuration of a server: what is fixed at start, and what may change while it runs.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use collie_db::{Durability, FamilyOptions};
use collie_io::{Clock, RealClock};
use collie_protocol::Limits;
use parking_lot::{Mutex, RwLock};

use crate::auth::{PASSWORD_LEN_MAX, Password};
use crate::cluster::Cluster;
use crate::error::ServerError;
use crate::tls::{AuthClients, TlsConfig};

/// The level of durability that a reply waits for.
///
/// The rule covers replies to reads and to refused writes as well: every commit that a reply
/// reflects has reached the level when the reply is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Ack {
    /// None. A crash of the process may undo what a reply reflects, unless `WAITAOF` was used.
    Buffered,
    /// Every commit survives the death of the process.
    Process,
    /// Every commit survives a power cut.
    #[default]
    Disk,
}

impl Ack {
    /// The engine's level of the same meaning.
    #[must_use]
    pub fn durability(self) -> Durability {
        match self {
            Ack::Buffered => Durability::Buffered,
            Ack::Process => Durability::Process,
            Ack::Disk => Durability::Disk,
        }
    }

    /// Its name in the configuration and in commands.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Ack::Buffered => "buffered",
            Ack::Process => "process",
            Ack::Disk => "disk",
        }
    }

    fn from_index(index: u8) -> Ack {
        match index {
            0 => Ack::Buffered,
            1 => Ack::Process,
            _ => Ack::Disk,
        }
    }
}

impl fmt::Display for Ack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no [`Ack`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{found}' is no level of acknowledgement; expected disk, process or buffered")]
pub struct UnknownAck {
    found: String,
}

impl FromStr for Ack {
    type Err = UnknownAck;

    fn from_str(word: &str) -> Result<Ack, UnknownAck> {
        [Ack::Disk, Ack::Process, Ack::Buffered]
            .into_iter()
            .find(|ack| ack.name().eq_ignore_ascii_case(word))
            .ok_or_else(|| UnknownAck {
                found: word.to_owned(),
            })
    }
}

/// How a server is set up.
#[derive(Clone)]
pub struct ServerConfig {
    /// Where it listens; port 0 lets the system choose one.
    pub listen: SocketAddr,
    /// Threads that serve connections; 0 means one per core.
    pub threads: usize,
    /// The level of durability of replies, for connections that do not choose their own.
    pub ack: Ack,
    /// The password that clients give to `AUTH`; without one no client has to authenticate.
    pub password: Option<String>,
    /// Whether it listens at `listen`. Without it there is only [`tls`](ServerConfig::tls).
    pub plain: bool,
    /// TLS, at an address of its own.
    pub tls: Option<TlsConfig>,
    /// Allows plain connections off loopback, where passwords too go in clear; and TLS off loopback
    /// without a password or certificates of clients.
    pub open_to_network: bool,
    /// Where `/metrics` and `/healthz` are answered over HTTP; by default nowhere. These requests
    /// carry no password, so an address off loopback needs `open_to_network`.
    pub metrics: Option<SocketAddr>,
    /// The most connections at a time.
    pub clients_max: usize,
    /// A connection that sends nothing for this long is closed; zero means never.
    pub idle_timeout: Duration,
    /// A connection that has not given the password for this long is closed; zero means never.
    pub authentication_timeout: Duration,
    /// Seconds of silence after which the system probes whether the peer is still reachable; 0
    /// turns that off.
    pub tcp_keepalive_s: u32,
    /// Limits on one request. An argument is never longer than the longest value that fits into the
    /// log's ring, whatever is set here.
    pub limits: Limits,
    /// The size of the ring that the store was opened with
    /// ([`Options::ring_bytes`](collie_db::Options)): a value has to fit into half of it, with room
    /// for its key and for the key's entry in the expiry index.
    pub ring_bytes: usize,
    /// The longest value, in bytes, where something else than the ring bounds it, as in a cluster.
    pub longest_value: Option<usize>,
    /// Most bytes of unsent replies of one connection; 0 means that only the limit on all
    /// connections applies. Replies are sent in pieces as the client reads them, so that only a
    /// single huge reply comes near.
    pub output_bytes_max: usize,
    /// Most bytes that requests and replies of all connections take together. The connection that
    /// would exceed it is closed, unless it takes no more than 256 KiB itself: so the bound is this
    /// plus 256 KiB for each client.
    pub in_flight_bytes_max: usize,
    /// How long a shutdown waits for clients to read their last replies.
    pub shutdown_grace: Duration,
    /// A command that takes so many microseconds is added to the slow log
    /// (`slowlog-log-slower-than`); below 0 none is.
    pub slow_us: i64,
    /// Most entries of the slow log (`slowlog-max-len`).
    pub slow_log_len_max: usize,
    /// The file that the configuration was read from, for error texts.
    pub config_file: Option<PathBuf>,
    /// What `CONFIG SET loglevel` changes; without it the level is fixed.
    pub verbosity: Option<Arc<dyn Verbosity>>,
    /// The clock by which keys expire.
    pub clock: Arc<dyn Clock>,
    /// Options of column families that this server creates: for a database that is selected for the
    /// first time, or that `FLUSHDB` or `FLUSHALL` emptied. Existing families keep theirs.
    pub databases: FamilyOptions,
    /// Values of more than two pieces of so many bytes are stored in pieces, so that a part is changed
    /// without the rest, and the expiry without the value. A power of two from 16 to 1,048,576;
    /// values that are stored already keep their pieces. Without effect in a cluster.
    pub piece_bytes: usize,
    /// The cluster that the keys are in. With one, commands run in its [partitions](crate::cluster), and
    /// the store that the server is opened with holds no keys. [`ack`](ServerConfig::ack) and
    /// [`databases`](ServerConfig::databases) have no effect then.
    pub cluster: Option<Arc<dyn Cluster>>,
}

impl fmt::Debug for ServerConfig {
    /// Shows everything but the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerConfig")
            .field("listen", &self.listen)
            .field("plain", &self.plain)
            .field("tls", &self.tls)
            .field("threads", &self.threads)
            .field("ack", &self.ack)
            .field("has_password", &self.password.is_some())
            .field("open_to_network", &self.open_to_network)
            .field("metrics", &self.metrics)
            .field("clients_max", &self.clients_max)
            .field("idle_timeout", &self.idle_timeout)
            .field("authentication_timeout", &self.authentication_timeout)
            .field("tcp_keepalive_s", &self.tcp_keepalive_s)
            .field("limits", &self.limits)
            .field("ring_bytes", &self.ring_bytes)
            .field("longest_value", &self.longest_value)
            .field("output_bytes_max", &self.output_bytes_max)
            .field("in_flight_bytes_max", &self.in_flight_bytes_max)
            .field("shutdown_grace", &self.shutdown_grace)
            .field("slow_us", &self.slow_us)
            .field("slow_log_len_max", &self.slow_log_len_max)
            .field("config_file", &self.config_file)
            .field("databases", &self.databases)
            .field("piece_bytes", &self.piece_bytes)
            .field("is_in_cluster", &self.cluster.is_some())
            .finish_non_exhaustive()
    }
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 6380)),
            threads: 0,
            ack: Ack::Disk,
            password: None,
            plain: true,
            tls: None,
            open_to_network: false,
            metrics: None,
            clients_max: 10_000,
            idle_timeout: Duration::ZERO,
            authentication_timeout: Duration::from_secs(60),
            tcp_keepalive_s: 300,
            limits: Limits::default(),
            ring_bytes: collie_db::Options::default().ring_bytes,
            longest_value: None,
            output_bytes_max: 1024 * 1024 * 1024,
            in_flight_bytes_max: 2 * 1024 * 1024 * 1024,
            shutdown_grace: Duration::from_secs(10),
            slow_us: 10_000,
            slow_log_len_max: 128,
            config_file: None,
            verbosity: None,
            clock: Arc::new(RealClock),
            databases: FamilyOptions::default(),
            piece_bytes: 32 * 1024,
            cluster: None,
        }
    }
}

/// The level of the process's diagnostics, so that `CONFIG SET loglevel` can change it.
pub trait Verbosity: fmt::Debug + Send + Sync {
    /// The least severe level that is logged.
    fn level(&self) -> tracing::Level;

    /// Logs this level and the more severe ones from now on.
    ///
    /// # Errors
    /// Why the level cannot be set, as text.
    fn set_level(&self, level: tracing::Level) -> Result<(), String>;
}

impl ServerConfig {
    /// The longest value that there may be, in bytes: what `proto-max-bulk-len` can be at most.
    #[must_use]
    pub fn value_len_max(&self) -> usize {
        self.longest_value
            .unwrap_or_else(|| value_len_max(self.ring_bytes))
    }

    /// Checks for settings that contradict each other, or open the server to the network unasked.
    /// Opens nothing.
    ///
    /// # Errors
    /// [`ServerError::OpenToNetwork`], [`ServerError::TlsOpenToNetwork`], [`ServerError::NoAddress`],
    /// [`ServerError::Tls`] and [`ServerError::Config`], which name what is wrong.
    pub fn check(&self) -> Result<(), ServerError> {
        if self.plain && !self.listen.ip().is_loopback() && !self.open_to_network {
            return Err(ServerError::OpenToNetwork { addr: self.listen });
        }
        if !self.plain && self.tls.is_none() {
            return Err(ServerError::NoAddress);
        }
        if let Some(tls) = &self.tls {
            let asks = self.password.is_some() || tls.settings.auth_clients == AuthClients::Yes;
            if !tls.listen.ip().is_loopback() && !asks && !self.open_to_network {
                return Err(ServerError::TlsOpenToNetwork { addr: tls.listen });
            }
            tls.settings.check()?;
        }
        if let Some(addr) = self.metrics
            && !addr.ip().is_loopback()
            && !self.open_to_network
        {
            return Err(ServerError::MetricsOpenToNetwork { addr });
        }
        let positive = "at least 1";
        for (name, value, expected) in [
            ("clients_max", self.clients_max, positive),
            ("limits.args_max", self.limits.args_max, positive),
            ("limits.line_len_max", self.limits.line_len_max, positive),
            ("limits.bulk_len_max", self.limits.bulk_len_max, positive),
            ("limits.request_len_max", self.limits.request_len_max, positive),
            ("in_flight_bytes_max", self.in_flight_bytes_max, positive),
        ] {
            if value == 0 {
                return Err(ServerError::Config {
                    name,
                    found: value as u64,
                    expected,
                });
            }
        }
        if !self.piece_bytes.is_power_of_two() || !(16..=1 << 20).contains(&self.piece_bytes) {
            return Err(ServerError::Config {
                name: "piece_bytes",
                found: self.piece_bytes as u64,
                expected: "a power of two from 16 to 1048576",
            });
        }
        if let Some(password) = &self.password
            && (password.is_empty() || password.len() > PASSWORD_LEN_MAX)
        {
            let found = password.len() as u64;
            return Err(ServerError::Config {
                name: "password (its length)",
                found,
                expected: "1 to 512",
            });
        }
        Ok(())
    }
}

/// Room in a commit for what is written with a value: its key, and the entries of the expiry index
/// that are added and removed with it, each of which contains the key again.
const BESIDE_VALUE: usize = 256 * 1024;

/// The longest value that always fits into a commit, whatever its key and its expiry.
fn value_len_max(ring_bytes: usize) -> usize {
    let half = ring_bytes / 2;
    half - BESIDE_VALUE.min(half / 2)
}

/// The settings that `CONFIG SET` may change. Every field is read on its own and no order between
/// them is promised, so all accesses are Relaxed.
#[derive(Debug)]
pub(crate) struct Settings {
    ack: AtomicU8,
    clients_max: AtomicUsize,
    idle_timeout_s: AtomicU64,
    authentication_timeout_s: AtomicU64,
    tcp_keepalive_s: AtomicU64,
    bulk_len_max: AtomicUsize,
    request_len_max: AtomicUsize,
    output_bytes_max: AtomicUsize,
    in_flight_bytes_max: AtomicUsize,
    slow_us: AtomicI64,
    slow_log_len_max: AtomicUsize,
    /// The largest allowed `bulk_len_max`.
    value_len_max: usize,
    /// The size of a piece of a large value, as an exponent of two.
    piece_log2: u8,
    fixed: Limits,
    /// Held by a command that changes settings.
    pub(crate) changing: Mutex<()>,
    password: RwLock<Option<Arc<Password>>>,
}

impl Settings {
    pub(crate) fn new(config: &ServerConfig) -> Settings {
        let value_len_max = config.value_len_max();
        let seconds = |span: Duration| span.as_secs() + u64::from(span.subsec_nanos() > 0);
        Settings {
            ack: AtomicU8::new(config.ack as u8),
            clients_max: AtomicUsize::new(config.clients_max),
            idle_timeout_s: AtomicU64::new(seconds(config.idle_timeout)),
            authentication_timeout_s: AtomicU64::new(seconds(config.authentication_timeout)),
            tcp_keepalive_s: AtomicU64::new(config.tcp_keepalive_s.into()),
            bulk_len_max: AtomicUsize::new(config.limits.bulk_len_max.min(value_len_max)),
            request_len_max: AtomicUsize::new(config.limits.request_len_max),
            output_bytes_max: AtomicUsize::new(config.output_bytes_max),
            in_flight_bytes_max: AtomicUsize::new(config.in_flight_bytes_max),
            slow_us: AtomicI64::new(config.slow_us),
            slow_log_len_max: AtomicUsize::new(config.slow_log_len_max),
            value_len_max,
            // At most 20, see `ServerConfig::check`.
            piece_log2: u8::try_from(config.piece_bytes.trailing_zeros()).unwrap_or(0),
            fixed: config.limits,
            changing: Mutex::default(),
            password: RwLock::new(
                config
                    .password
                    .as_deref()
                    .map(|text| Arc::new(Password::new(text.as_bytes()))),
            ),
        }
    }

    pub(crate) fn ack(&self) -> Ack {
        Ack::from_index(self.ack.load(Ordering::Relaxed))
    }

    pub(crate) fn set_ack(&self, ack: Ack) {
        self.ack.store(ack as u8, Ordering::Relaxed);
    }

    pub(crate) fn password(&self) -> Option<Arc<Password>> {
        self.password.read().clone()
    }

    pub(crate) fn set_password(&self, password: Option<Password>) {
        *self.password.write() = password.map(Arc::new);
    }

    /// The size of a piece of a large value, as an exponent of two.
    pub(crate) fn piece_log2(&self) -> u8 {
        self.piece_log2
    }

    /// The length up to which a value stands in its key's row.
    pub(crate) fn inline_max(&self) -> usize {
        2 << self.piece_log2
    }

    /// The longest value that fits into a commit.
    pub(crate) fn value_len_max(&self) -> usize {
        self.value_len_max
    }

    /// How long a reply may grow before its connection is closed.
    pub(crate) fn reply_bytes_max(&self) -> usize {
        match self.output_bytes_max() {
            0 => self.in_flight_bytes_max(),
            limit => limit.min(self.in_flight_bytes_max()),
        }
    }

    /// From how many nanoseconds on a command is slow; `None` where the slow log is off.
    pub(crate) fn slow_ns(&self) -> Option<u64> {
        u64::try_from(self.slow_us())
            .ok()
            .map(|us| us.saturating_mul(1000))
    }

    /// The limits on one request that are in force now.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            bulk_len_max: self.bulk_len_max(),
            request_len_max: self.request_len_max(),
            ..self.fixed
        }
    }
}

/// A getter and a setter for each plain number.
macro_rules! numbers {
    ($($get:ident, $set:ident: $type:ty;)*) => {
        impl Settings {
            $(pub(crate) fn $get(&self) -> $type {
                self.$get.load(Ordering::Relaxed)
            }

            pub(crate) fn $set(&self, value: $type) {
                self.$get.store(value, Ordering::Relaxed);
            })*
        }
    };
}

numbers! {
    clients_max, set_clients_max: usize;
    idle_timeout_s, set_idle_timeout_s: u64;
    authentication_timeout_s, set_authentication_timeout_s: u64;
    tcp_keepalive_s, set_tcp_keepalive_s: u64;
    bulk_len_max, set_bulk_len_max: usize;
    request_len_max, set_request_len_max: usize;
    output_bytes_max, set_output_bytes_max: usize;
    in_flight_bytes_max, set_in_flight_bytes_max: usize;
    slow_us, set_slow_us: i64;
    slow_log_len_max, set_slow_log_len_max: usize;
}
/// A number of bytes with one of Redis' units: `k` is a thousand, `kb` is 1024, and so on; `None`
/// where it is none, or too large.
#[must_use]
pub fn parse_bytes(text: &str) -> Option<i64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let factor: i64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" => 1_000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    number.parse::<i64>().ok()?.checked_mul(factor)
}
