//! Certificates and private keys in PEM files, for programs that speak TLS by rustls: they are read and
//! validated before they are used. An error names the file, what was expected, what was found and what
//! to do ([`TlsError`]), so that a wrong file is reported at the start of a server, and not by each
//! client that is presented its certificate.
//!
//! * [`Purpose`] reads the three files of one side (its CAs, its certificate, its key) and makes
//!   rustls' types of them. It refuses a key that others can read, a key of another certificate, and a
//!   certificate that is not valid now. It has the names that the errors use for these files.
//! * [`Fault`] is what a verifier has found wrong with the certificate of a peer.
//! * [`Validity`] and [`Date`] are a certificate's first and last second, and how they are printed.
//! * [`Time`] is a [`collie_io::Clock`] as rustls' clock.
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
