//! Why the files of a certificate, its key or a CA cannot be used.

use std::path::PathBuf;

use crate::dates::Date;

/// Why the files of a certificate, its key or a CA cannot be used. Each message says what to do; `make`
/// is how a new file is made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// There is no such file.
    #[error("{path}: expected a PEM file with {expected}, found no file: correct the path, or {make}")]
    Missing {
        /// The file.
        path: PathBuf,
        /// What was to be in it.
        expected: &'static str,
        /// How it is made.
        make: &'static str,
    },
    /// The file cannot be read.
    #[error("{path}: cannot be read: {problem}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error, or what it is instead of a file.
        problem: String,
    },
    /// The file does not contain what it should.
    #[error("{path}: expected a PEM file with {expected}, found {found}: correct the path, or {make}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What was to be in it.
        expected: &'static str,
        /// What is in it.
        found: String,
        /// How it is made.
        make: &'static str,
    },
    /// Others than are allowed have access to the key.
    #[error(
        "{path}: expected a private key that only {readers} can read, found mode {mode:04o}: chmod {allowed:o} {path}, \
         and make a new key and certificate if others may have read it"
    )]
    OpenKey {
        /// The file.
        path: PathBuf,
        /// Who may read it.
        readers: &'static str,
        /// Its permission bits.
        mode: u32,
        /// The permission bits that it may have.
        allowed: u32,
    },
    /// The key is another certificate's.
    #[error(
        "{key}: expected the private key of {certificate}, found another one: name the key that was made with the certificate"
    )]
    OtherKey {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        certificate: PathBuf,
    },
    /// The certificate is of another CA.
    #[error(
        "{certificate}: expected a certificate that the CA in {ca} has signed, found one of another CA: name the files \
         of one CA, or {make}"
    )]
    OtherCa {
        /// The certificate's file.
        certificate: PathBuf,
        /// The CA's file.
        ca: PathBuf,
        /// How a certificate is made.
        make: &'static str,
    },
    /// The certificate has expired.
    #[error("{path}: the certificate ended at {}, and it is {}: {make}, or set the clock", Date(*.until), Date(*.now))]
    Ended {
        /// The file.
        path: PathBuf,
        /// Its last second, since 1970.
        until: u64,
        /// The clock.
        now: u64,
        /// How a new one is made.
        make: &'static str,
    },
    /// The certificate is not valid yet.
    #[error("{path}: the certificate holds from {} on, and it is {}: set the clock, or wait", Date(*.from), Date(*.now))]
    NotYet {
        /// The file.
        path: PathBuf,
        /// Its first second, since 1970.
        from: u64,
        /// The clock.
        now: u64,
    },
    /// The certificate lacks the name or the purposes that it needs.
    #[error("{path}: expected {expected} ({problem}): {make}")]
    WrongUse {
        /// The file.
        path: PathBuf,
        /// What it should be.
        expected: String,
        /// What it is instead.
        problem: String,
        /// How one is made.
        make: &'static str,
    },
    /// Anything else that is wrong with what is in a file.
    #[error("{path}: {problem}: {make}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
        /// How a new one is made.
        make: &'static str,
    },
}
