//! `[limits]` and `[diagnostics]`: what clients may take, and what is logged.

use collie_server::ServerConfig;
use serde::{Deserialize, Serialize};

use super::logging::{Filter, LogFormat};
use super::values::{Bytes, Number, seconds, signed};
use crate::args::ServingArgs;

const MIB: i64 = 1 << 20;

/// `[limits]`, by the names of `CONFIG SET`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Limits {
    pub(super) maxclients: Number<1, { u32::MAX as i64 }>,
    pub(super) timeout: Number<0, { i32::MAX as i64 }>,
    pub(super) authentication_timeout: Number<0, { i32::MAX as i64 }>,
    pub(super) tcp_keepalive: Number<0, { i32::MAX as i64 }>,
    pub(super) proto_max_bulk_len: Option<Bytes<1024, { i64::MAX }>>,
    pub(super) client_query_buffer_limit: Bytes<MIB, { i64::MAX }>,
    pub(super) client_output_buffer_limit: Bytes<0, { i64::MAX }>,
    pub(super) maxmemory_clients: Bytes<MIB, { i64::MAX }>,
}

/// `[diagnostics]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Diagnostics {
    pub(crate) log_level: Filter,
    pub(crate) log_format: LogFormat,
    pub(super) slowlog_log_slower_than: Number<-1, { i64::MAX }>,
    pub(super) slowlog_max_len: Number<0, 100_000>,
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

impl Diagnostics {
    /// Overrides the file's settings by those of the command line.
    pub(crate) fn override_by(&mut self, args: &ServingArgs) {
        if let Some(filter) = &args.log_level {
            self.log_level = filter.clone();
        }
        if let Some(format) = args.log_format {
            self.log_format = format;
        }
    }
}
