//! The network: the listening server, its threads, and the connections that they serve.

pub(crate) mod barrier;
pub(crate) mod clients;
pub(crate) mod connection;
pub(crate) mod handshake;
pub(crate) mod pause;
pub(crate) mod pressure;
pub(crate) mod server;
pub(crate) mod stream;
pub(crate) mod threads;
pub(crate) mod worker;
