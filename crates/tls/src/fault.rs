//! What is wrong with a certificate.

use tokio_rustls::rustls::CertificateError;

/// What is wrong with a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It has expired.
    Ended {
        /// Its last second, since 1970.
        until: u64,
        /// The clock.
        now: u64,
    },
    /// It is not valid yet.
    NotYet {
        /// Its first second, since 1970.
        from: u64,
        /// The clock.
        now: u64,
    },
    /// No CA that is known here has signed it.
    OtherCa,
    /// It lacks the name or the purposes that it is presented for; with the verifier's message.
    WrongUse(String),
    /// Anything else, with the verifier's message.
    Other(String),
}

impl Fault {
    /// The fault that a verifier has found.
    pub fn of(error: &CertificateError) -> Self {
        match error {
            CertificateError::ExpiredContext { time, not_after } => Self::Ended {
                until: not_after.as_secs(),
                now: time.as_secs(),
            },
            CertificateError::NotValidYetContext { time, not_before } => Self::NotYet {
                from: not_before.as_secs(),
                now: time.as_secs(),
            },
            // The second where two CAs have one name.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::OtherCa,
            CertificateError::NotValidForName
            | CertificateError::NotValidForNameContext { .. }
            | CertificateError::InvalidPurpose
            | CertificateError::InvalidPurposeContext { .. } => Self::WrongUse(error.to_string()),
            other => Self::Other(other.to_string()),
        }
    }
}
