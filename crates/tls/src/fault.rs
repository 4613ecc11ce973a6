//! What is wrong with a certificate.

use tokio_rustls::rustls::CertificateError;

/// What is wrong with a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It does not hold any more.
    Ended {
        /// Its last second, since 1970.
        until: u64,
        /// The clock.
        now: u64,
    },
    /// It does not hold yet.
    NotYet {
        /// Its first second, since 1970.
        from: u64,
        /// The clock.
        now: u64,
    },
    /// No CA that is known here has signed it.
    OtherCa,
    /// It has not the name or the purposes that it is presented for; with the verifier's words.
    WrongUse(String),
    /// Anything else, in the verifier's words.
    Other(String),
}

impl Fault {
    /// What a verifier has found.
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
