//! What is said of a certificate or of a handshake that fails, in an operator's words.

use std::io;

use collie_tls::{Date, Fault};
use tokio_rustls::rustls::{AlertDescription, Error};

use crate::transport::tls::TLS_NAME;

/// What to do for a new certificate.
pub(super) const MAKE: &str = "make one with `collie cluster ca node`";

/// Puts an error of a handshake, or of what is read after it, in words. In TLS 1.3 the side that
/// connects learns what the other thinks of its certificate when it first reads.
pub(super) fn in_words(error: io::Error) -> io::Error {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match tls {
        Some(tls) => io::Error::new(error.kind(), of_tls(tls)),
        None => error,
    }
}

/// The same before the handshake is done, where the end of the connection means something, too.
pub(super) fn of_handshake(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            let text = "the other side closed the connection during the TLS handshake: it may be a node without \
                        certificates, or have too many connections; its log says more";
            io::Error::new(error.kind(), text)
        }
        _ => in_words(error),
    }
}

fn of_tls(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(error) => of_peers_certificate(Fault::of(error)),
        Error::NoCertificatesPresented => {
            "the peer presents no certificate: give it one of the cluster's CA (`collie cluster ca node`)".to_owned()
        }
        Error::AlertReceived(alert) => of_alert(*alert),
        Error::InvalidMessage(_) | Error::InappropriateMessage { .. } => {
            "the peer does not speak TLS, and this node does: give every node of the cluster a certificate, or none"
                .to_owned()
        }
        Error::PeerIncompatible(_) => format!("the peer cannot speak TLS as this node does, TLS 1.3 only: {error}"),
        other => format!("TLS: {other}"),
    }
}

fn of_peers_certificate(fault: Fault) -> String {
    match fault {
        Fault::Ended { until, now } => format!(
            "the peer's certificate ended at {}, and it is {} here: give it a new one, or set the clock that is wrong",
            Date(until),
            Date(now)
        ),
        Fault::NotYet { from, now } => format!(
            "the peer's certificate holds from {} on, and it is {} here: set the clock that is wrong",
            Date(from),
            Date(now)
        ),
        Fault::OtherCa => "the peer's certificate is signed by another CA than this node's: give all nodes \
                           certificates of one CA"
            .to_owned(),
        Fault::WrongUse(problem) => format!(
            "the peer's certificate is not that of a node, which is for the name {TLS_NAME} and for both sides of a \
             connection ({problem}): {MAKE}"
        ),
        Fault::Other(problem) => format!("the peer's certificate is not accepted ({problem}): {MAKE}"),
    }
}

fn of_alert(alert: AlertDescription) -> String {
    let problem = match alert {
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it is signed by another CA than the peer's: give all nodes certificates of one CA"
        }
        AlertDescription::CertificateExpired => {
            "by the peer's clock it has ended, or does not hold yet: give this node a new one, or set the clock that \
             is wrong"
        }
        AlertDescription::BadCertificate | AlertDescription::UnsupportedCertificate => {
            "it is not that of a node: make one with `collie cluster ca node`"
        }
        AlertDescription::CertificateRequired => "there is none",
        other => return format!("the peer ended the TLS handshake: {other:?}; its log says more"),
    };
    format!("the peer does not accept this node's certificate: {problem}")
}
