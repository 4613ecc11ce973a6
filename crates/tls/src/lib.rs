//! What the server and the nodes of a cluster share of TLS: PEM files that are read and judged,
//! and what is said of those that cannot be used.
//!
//! A file is refused where it is read, with its path, what was expected, what was found, and what
//! to do: better here than on each peer that meets the certificate. Who the peers are, and what is
//! said of theirs, is the matter of [`Purpose`]'s owner.

mod dates;
mod error;
mod fault;
mod files;
mod refusals;

pub use dates::{Date, Validity};
pub use error::TlsError;
pub use fault::Fault;
pub use files::{KeyAccess, Purpose, Time};
pub use refusals::Refusals;
