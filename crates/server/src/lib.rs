//! A durable key-value server that Redis clients and tools use unmodified.
//!
//! * A reply is sent once every commit that it reflects is durable — replies to reads and to
//!   refused writes too — and a whole pipeline waits once.
//! * Strings, bitmaps, expiry, the keyspace and transactions, as in Redis 7.0.15, down to the texts
//!   of its errors.
//! * Sixteen databases, each a column family; emptying one, or all, is one commit.
//! * Alone, on its own store, or as a node of a [cluster].
//! * Named limits on everything that a client can make grow; a client past a limit gets an error,
//!   and its connection is closed.
//!
//! A [`Server`] owns its threads and blocks the one that runs it:
//!
//! ```no_run
//! use collie_server::{Server, ServerConfig, termination};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = collie_db::Options {
//!     max_commit_bytes: 0, // No request commits more than one frame of the log.
//!     ..Default::default()
//! };
//! let db = collie_db::Db::open("/var/lib/collie", options)?;
//! let server = Server::bind(ServerConfig::default(), db)?;
//! println!("redis-cli -p {}", server.local_addr().port());
//! server.run(termination())?; // Until SIGTERM, SIGINT or SHUTDOWN; closes the engine.
//! # Ok(())
//! # }
//! ```
//!
//! The program may use the store beside its clients. Commands take the store's row locks, so
//! transactions of the program and [`Db::lock_rows`](collie_db::Db::lock_rows) exclude commands
//! from rows, and commands exclude them. A command waits 30 seconds for a row that an open
//! transaction has locked, and then fails; other clients of its thread do not wait with it.
//!
//! # When a reply is sent
//!
//! [`Ack`] is the durability that a reply promises: `disk` (its commits survive a power cut),
//! `process` (they survive the death of the process) or `buffered` (nothing). It is set for the
//! server ([`ServerConfig::ack`], `CONFIG SET ack`) and, for one connection, by `CLIENT ACK
//! disk|process|buffered`; `CLIENT ACK` alone returns the level in force, and `RESET` restores the
//! server's. If a pipeline changes the level, the strictest level of the commands that are answered
//! together applies to all of them. `WAITAOF 1 0 timeout` waits until everything that the
//! connection has written or read is on disk, whatever the level.
//!
//! Internally, a command writes to the engine at its weakest level, which applies the write, and
//! notes the end of the commit; a read notes the largest end that it saw. When all requests in the
//! input buffer are executed, the connection waits for the largest of these ends, once. If the log
//! fails meanwhile, the replies that reflect commits which are not durable become `MISCONF` errors,
//! and the other replies of the pipeline are sent as they are.
//!
//! # In a cluster
//!
//! With [`ServerConfig::cluster`] the keys are in the partitions of a [cluster], and the store that the
//! server is opened with is the node's own: it must hold no keys of users. A command that names keys is
//! evaluated in the partition of their slot, and so is an `EXEC`, as a whole. What it changes is submitted
//! at once, and the next command runs; the reply is kept until [`cluster::Settling`] resolves, for all
//! commands of a pipeline at the same time. A command that was not executed answers `TRYAGAIN`.
//! If it is not known whether a command was executed, its reply is `UNKNOWN`, nothing is sent behind it,
//! and the connection is closed.
//!
//! [`Ack`] has no meaning there: `CLIENT ACK` is accepted and changes nothing. A reply is sent once a
//! majority of the replicas has on disk what it reflects. The repository's `docs/book/src/commands.md`
//! lists what else differs.
//!
//! The invariants that the tests check: a reply never reflects a commit that a crash of the
//! promised kind loses; an acknowledged increment survives, and counts once; a connection that
//! waits never delays another one.

mod auth;
pub mod cluster;
mod commands;
mod config;
mod cost;
mod data;
pub mod duplication;
mod error;
mod exec;
mod exec_batch;
mod failure;
mod glob;
mod health;
mod metrics;
mod net;
mod partitions;
mod process;
mod service;
mod session;
mod slow_log;
mod stats;
mod tls;

pub use auth::PASSWORD_LEN_MAX;
pub use collie_protocol::Limits;
pub use commands::{LiveSettings, SettingsRefused};
pub use config::{Ack, ServerConfig, UnknownAck, Verbosity, parse_bytes};
pub use error::ServerError;
pub use net::server::{Addresses, Server, ignore_hangup, termination};
pub use tls::{AuthClients, TlsConfig, TlsProblem, TlsSettings};
