//! A durable key-value server that Redis clients and tools use unmodified.
//!
//! * Replies leave when what they tell is durable — replies to reads and to refused writes too — and a whole
//!   pipeline waits once: see [`Ack`].
//! * Strings, expiry and the keyspace, as in Redis 7.0.15, down to the texts of its errors.
//! * Sixteen databases, each a column family; emptying one, or all, is one commit.
//! * Named limits on everything that a client can make grow; past a limit an error and a closed connection.
//!
//! A [`Server`] owns its threads and blocks the one that runs it:
//!
//! ```no_run
//! use collie_server::{Server, ServerConfig, termination};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let db = collie_db::Db::open("/var/lib/collie", collie_db::Options::default())?;
//! let server = Server::bind(ServerConfig::default(), db)?;
//! println!("redis-cli -p {}", server.local_addr().port());
//! server.run(termination())?; // Until SIGTERM, SIGINT or SHUTDOWN; closes the engine.
//! # Ok(())
//! # }
//! ```

mod auth;
mod barrier;
mod clients;
mod commands;
mod config;
mod connection;
mod cursors;
mod error;
mod exec;
mod failure;
mod glob;
mod locks;
mod server;
mod session;
mod stats;
mod store;
mod sweep;
mod value;
mod worker;

pub use collie_protocol::Limits;
pub use config::{Ack, ServerConfig, UnknownAck};
pub use error::ServerError;
pub use server::{Server, termination};
