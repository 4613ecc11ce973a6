//! `collie serve`.

use std::path::PathBuf;

use super::address::Address;
use super::tls::TlsArgs;
use super::values::{Durability, Ring};
use crate::serve::{Filter, LogFormat};

/// Settings given here override the configuration file, which overrides the defaults.
#[derive(Debug, Default, Clone, clap::Args)]
pub(crate) struct ServeArgs {
    /// The store's directory; created if it does not exist.
    #[arg(long, required_unless_present = "config")]
    pub(crate) dir: Option<PathBuf>,
    /// Where to listen; port 0 takes a free one. By default 127.0.0.1:6380. Here and below, ADDR is an
    /// IP address or the name of a host.
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Option<Address>,
    /// Listen at this port of 127.0.0.1, or of the address in the configuration file.
    #[arg(long, value_name = "PORT", conflicts_with = "listen")]
    pub(crate) port: Option<u16>,
    /// Listen for TLS at this port of the same address, too; default: 0, nowhere.
    #[arg(long, value_name = "PORT", conflicts_with = "tls_listen")]
    pub(crate) tls_port: Option<u16>,
    /// Listen for TLS at this address instead.
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) tls_listen: Option<Address>,
    /// Listen for TLS only, as Redis does with `port 0`.
    #[arg(long)]
    pub(crate) tls_only: bool,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    /// The durability that a reply waits for, of every commit that it reflects; default: disk.
    /// Connections can choose their own.
    #[arg(long, value_enum)]
    pub(crate) ack: Option<Durability>,
    /// Where the log's ring lies; default: shared memory.
    #[arg(long, value_enum)]
    pub(crate) ring: Option<Ring>,
    /// End every write of the log with a block of 4,096 bytes, so that no block with acknowledged
    /// commits is written again. It costs up to 4,096 bytes of log per write.
    #[arg(long)]
    pub(crate) pad_to_block: bool,
    /// Flush the databases that hold the oldest part of the log when it has more than so many bytes:
    /// what a start after a crash reads, at most. At least 8mb. Default: 0, twice what the memtables
    /// of the databases may take (512 MiB each), up to 2 GiB and a quarter of the disk.
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub(crate) max_total_wal_size: Option<i64>,
    /// Keep released segments of the log in the archive for so many seconds; default: 0, none.
    /// Without this and --wal-size-limit there is no archive, and an existing one is removed.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) wal_ttl: Option<u32>,
    /// Limit the archive to so many bytes; the oldest segments are removed first. Units as in 10gb.
    /// Default: 0, only --wal-ttl limits it.
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub(crate) wal_size_limit: Option<i64>,
    #[command(flatten)]
    pub(crate) serving: ServingArgs,
}

// What a server has in common with a node.
#[derive(Debug, Default, Clone, clap::Args)]
pub(crate) struct ServingArgs {
    /// Read settings from this file, in TOML; packaging/collie.toml describes them all, and for a node of a
    /// cluster packaging/collie-node.toml.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print the settings that would be in force, without passwords, and exit.
    #[arg(long)]
    pub(crate) check_config: bool,
    /// Threads that serve clients; default: 0, one per core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(..=1024))]
    pub(crate) threads: Option<u16>,
    /// Require the password on the first line of this file from clients; of all nodes of a cluster the
    /// same.
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// Allow plain connections of clients off loopback, where passwords too go in clear; and TLS off
    /// loopback without a password or certificates of clients.
    #[arg(long)]
    pub(crate) open_to_network: bool,
    /// Answer requests for /metrics (Prometheus) and /healthz here; default: nowhere.
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) metrics: Option<Address>,
    /// Log this level and the more severe ones: error, warn, info (the default), debug or trace;
    /// another level for some modules as in info,collie_log=debug.
    #[arg(long, value_name = "LEVEL")]
    pub(crate) log_level: Option<Filter>,
    /// Format of diagnostics: text lines (the default) or JSON objects.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
}

pub(super) fn size(text: &str) -> Result<i64, &'static str> {
    collie_server::parse_bytes(text).ok_or("expected bytes: a number, or one with a unit, as in 64mb or 10gb")
}
