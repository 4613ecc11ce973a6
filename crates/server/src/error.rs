//! Why a server cannot start or did not end well.

use std::net::SocketAddr;

use thiserror::Error;

use crate::data::keyspace::OpenError;
use crate::tls::TlsProblem;

/// Why a server cannot start or did not end well.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The server cannot listen on the address.
    #[error("cannot listen on {addr}; is another server there, or is the address not this machine's?")]
    Listen {
        /// The configured address.
        addr: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// The address can be reached from other machines, and nothing is encrypted there.
    #[error(
        "{addr} can be reached from other machines, and what clients send there is not encrypted, passwords too: \
         expected TLS (tls-port and tls-only), a loopback address, or open-to-network (--open-to-network) if it is \
         meant"
    )]
    OpenToNetwork {
        /// The configured address.
        addr: SocketAddr,
    },
    /// The address can be reached from other machines, and clients have to present nothing.
    #[error(
        "{addr} speaks TLS to other machines and lets every client in: expected a password, tls-auth-clients yes, a \
         loopback address, or open-to-network (--open-to-network) if it is meant"
    )]
    TlsOpenToNetwork {
        /// The configured address.
        addr: SocketAddr,
    },
    /// It would listen nowhere.
    #[error(
        "tls-only is set and TLS is not, expected tls-port or tls-listen: set one, or take tls-only away"
    )]
    NoAddress,
    /// TLS cannot be used with its settings.
    #[error("TLS: {0}")]
    Tls(#[from] TlsProblem),
    /// The metrics can be read from other machines, since requests for them need no password.
    #[error(
        "the metrics at {addr} could be read from other machines without a password: expected a loopback \
         address, or open-to-network (--open-to-network) if it is meant"
    )]
    MetricsOpenToNetwork {
        /// The configured address.
        addr: SocketAddr,
    },
    /// A limit of the configuration is zero or contradicts another one.
    #[error("{name} is {found}, expected {expected}")]
    Config {
        /// The field of the configuration.
        name: &'static str,
        /// Its value.
        found: u64,
        /// The allowed values.
        expected: &'static str,
    },
    /// The store holds keys of users, which no client of a cluster would see.
    #[error(
        "the store of a node in a cluster holds keys of users, in database {database}: open it without the cluster, \
         or start the node with an empty store"
    )]
    HoldsKeys {
        /// The first database with keys.
        database: u8,
    },
    /// The databases cannot be opened, or could not be closed cleanly.
    #[error("the engine: {0}")]
    Engine(#[from] collie_db::Error),
    /// A thread or its event loop could not be started, or a thread panicked.
    #[error("{what} failed")]
    Thread {
        /// Which thread.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
}

impl From<OpenError> for ServerError {
    fn from(error: OpenError) -> ServerError {
        match error {
            OpenError::Engine(error) => ServerError::Engine(error),
            OpenError::Thread(source) => ServerError::Thread {
                what: "the thread that counts keys",
                source,
            },
        }
    }
}
