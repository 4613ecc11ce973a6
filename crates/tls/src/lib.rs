//! Certificates and private keys in PEM files, for programs that speak TLS by rustls: read, judged
//! before they are used, and, where they cannot be used, described. An error names the file, what was
//! expected, what was found and what to do ([`TlsError`]), so that an operator learns of a wrong file
//! at the start of a server, and not from each client that meets its certificate.
//!
//! * [`Purpose`] reads the three files of one side (its CAs, its certificate, its key) and gives rustls
//!   what it asks for. It refuses a key that others can read, a key of another certificate, and a
//!   certificate that does not hold now. It has the words that the errors use for these files.
//! * [`Fault`] says what a verifier has found wrong with the certificate of a peer.
//! * [`Validity`] and [`Date`] are a certificate's first and last second, and how they are printed.
//! * [`Time`] lets rustls judge by a [`collie_io::Clock`].
//! * [`Refusals`] limits how many refused connections are logged.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use collie_io::{Clock, RealClock, RealDevice};
//! use collie_tls::{KeyAccess, Purpose, TlsError};
//! use tokio_rustls::rustls::crypto::ring::default_provider;
//! use tokio_rustls::rustls::sign::CertifiedKey;
//!
//! const SERVER: Purpose = Purpose {
//!     ca: "the certificates of the CAs of clients",
//!     certificate: "the certificate of the server",
//!     key: "the private key of the server",
//!     make: "have a CA sign a new one",
//!     access: KeyAccess::Group,
//! };
//!
//! fn load(certificate: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
//!     let device = RealDevice::new();
//!     let pem = SERVER.read_certificate(&device, certificate)?;
//!     let (chain, validity) = SERVER.chain(certificate, &pem)?;
//!     SERVER.check_dates(certificate, validity, RealClock.wall_ms() / 1_000)?;
//!     let pem = SERVER.read_key(&device, key)?;
//!     SERVER.certified(certificate, chain, key, &pem, &default_provider())
//! }
//! ```
//!
//! The servers of Collie use it for clients, and its nodes for each other.

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
