//! A durable key-value server that Redis clients and tools use unmodified.
//!
//! * Replies leave when what they tell is durable — replies to reads and to refused writes too — and a whole
//!   pipeline waits once.
//! * Strings, bitmaps, expiry, the keyspace and transactions, as in Redis 7.0.15, down to the texts of its errors.
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
//!
//! The program may use the store beside its clients. Commands take the store's row locks, so its transactions and
//! [`Db::lock_rows`](collie_db::Db::lock_rows) keep them from rows, and the other way round: a command waits 30 seconds for
//! a row of a transaction that was left open, and then fails; its thread's other clients do not wait with it.
//!
//! # When a reply leaves
//!
//! [`Ack`] says what a reply promises: `disk` (it survives a power cut), `process` (it survives the death of the
//! process) or `buffered` (nothing). It is set for the server ([`ServerConfig::ack`], `CONFIG SET ack`) and, for
//! one connection, by `CLIENT ACK disk|process|buffered`; `CLIENT ACK` alone tells which one is in force, and
//! `RESET` goes back to the server's. In a pipeline that changes it midway the strictest level of the commands
//! that are answered together holds for all of them. `WAITAOF 1 0 timeout` waits until everything that the
//! connection wrote or read so far is on disk, whatever the level.
//!
//! Inside, a command writes to the engine at its weakest level, which applies the write, and notes the end of
//! the commit; a read notes the largest end that it saw. When all that was read from the socket is executed, the
//! connection waits for the largest of these ends, once. If the log fails meanwhile, the replies that tell of
//! what is not durable become `MISCONF` errors, and the rest of the pipeline's replies leave as they are.
//!
//! The invariants that the tests check: a reply never tells what a crash of the promised kind takes back; an
//! increment that was acknowledged is there, and counts once; no waiting connection holds up another one.

mod auth;
mod barrier;
mod clients;
mod commands;
mod config;
mod connection;
mod cost;
mod cursors;
mod error;
mod exec;
mod failure;
mod gate;
mod glob;
mod health;
mod keyspace;
mod locks;
mod metrics;
mod pressure;
mod process;
mod server;
mod session;
mod stats;
mod store;
mod sweep;
mod transaction;
mod value;
mod watch;
mod worker;

pub use auth::PASSWORD_LEN_MAX;
pub use collie_protocol::Limits;
pub use config::{Ack, ServerConfig, UnknownAck, Verbosity, parse_bytes};
pub use error::ServerError;
pub use server::{Addresses, Server, ignore_hangup, termination};
