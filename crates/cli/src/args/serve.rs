//! `collie serve`.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::values::{Durability, Ring};
use crate::serve::{Filter, LogFormat};

/// What stands here goes before what a configuration file says, and that before the defaults.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// The store's directory; created where it does not exist.
    #[arg(long, required_unless_present = "config")]
    pub(crate) dir: Option<PathBuf>,
    /// Read settings from this file, in TOML; packaging/collie.toml describes them all.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print the settings that would be in force, without passwords, and end.
    #[arg(long)]
    pub(crate) check_config: bool,
    /// Where to listen; port 0 takes a free one. By default 127.0.0.1:6380.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub(crate) listen: Option<SocketAddr>,
    /// What a reply waits for, of all that it tells; by default the disk. Connections can choose for themselves.
    #[arg(long, value_enum)]
    pub(crate) ack: Option<Durability>,
    /// Where the log's ring lies; by default in shared memory.
    #[arg(long, value_enum)]
    pub(crate) ring: Option<Ring>,
    /// End every write of the log with a block of 4,096 bytes, so that no block with acknowledged commits is written
    /// again; docs/durability.md tells what that costs.
    #[arg(long)]
    pub(crate) pad_to_block: bool,
    /// Keep segments of the log that are needed no more for so many seconds, in the archive; 0, the default, for
    /// none. Without this and --wal-size-limit there is no archive, and one that is there is removed.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) wal_ttl: Option<u32>,
    /// Keep such segments until all of them take more than so many bytes, the oldest go first; units as in 10gb. 0,
    /// the default: as many as --wal-ttl keeps.
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub(crate) wal_size_limit: Option<i64>,
    /// Threads that serve connections; 0, the default: one per core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(..=1024))]
    pub(crate) threads: Option<u16>,
    /// Let in only clients that say the password on the first line of this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// Listen off loopback even without a password.
    #[arg(long)]
    pub(crate) open_to_network: bool,
    /// Answer requests for /metrics (Prometheus) and /healthz here; nowhere by default.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub(crate) metrics: Option<SocketAddr>,
    /// Say what is at least so important: error, warn, info (the default), debug or trace; some modules from
    /// another level on, as in info,collie_log=debug.
    #[arg(long, value_name = "LEVEL")]
    pub(crate) log_level: Option<Filter>,
    /// Whether diagnostics are lines for people, as by default, or JSON objects.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
    /// Keep memtables, tables and segments so small that they come and go all the time: for `torture power`.
    #[arg(long, hide = true)]
    pub(crate) small: bool,
    /// Keep them so small that a minute sees many: for `torture soak` and `torture hostile`.
    #[arg(long, hide = true)]
    pub(crate) moderate: bool,
}

fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse()
        .map_err(|_| "expected an IP address and a port, as in 127.0.0.1:6380 or [::1]:6380")
}

fn size(text: &str) -> Result<i64, &'static str> {
    collie_server::parse_bytes(text).ok_or("expected bytes: a number, or one with a unit, as in 64mb or 10gb")
}
