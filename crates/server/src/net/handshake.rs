//! The handshake of a connection over TLS, and the report of one that fails.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use collie_tls::{Date, Fault};
use tokio::net::TcpStream;
use tokio_rustls::rustls::{AlertDescription, Error};

use crate::net::clients::Client;
use crate::net::stream::{Failed, Stream, TLS_RECORD, drain, handshake};
use crate::net::worker::Worker;
use crate::session::Shared;
use crate::tls::Tls;

/// From the first byte of a connection to the end of its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The reply to a client that does not speak TLS on the TLS port.
const SPEAK_TLS: &[u8] = b"-ERR This port speaks TLS only: connect with TLS, as redis-cli --tls does\r\n";

/// Why a connection to the TLS port ends before it serves.
enum End {
    Failed(Failed),
    /// It took too long.
    Late,
    /// There were too many of them.
    Crowded,
    /// By the server, as any other connection.
    Closed,
}

/// Waits for the handshake of a client, which is in the list of clients already. Where it fails, the
/// client is sent the reason and has some time to take it.
pub(crate) async fn secure(
    worker: &Worker,
    tls: &Tls,
    client: &Arc<Client>,
    socket: TcpStream,
) -> Option<Stream> {
    let shared = &*worker.shared;
    let begun = tls.begin(client, shared.clients.len(), shared.settings.clients_max());
    let (end, socket) = tokio::select! {
        biased;
        () = client.closed() => {
            let end = if begun.is_crowded_out() { End::Crowded } else { End::Closed };
            (end, None)
        }
        shaken = tokio::time::timeout(HANDSHAKE, handshake(socket, tls.config())) => match shaken {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err((failed, socket))) => (End::Failed(failed), Some(socket)),
            Err(_) => (End::Late, None),
        },
    };
    shared.counters.handshakes_failed.add(1);
    report(shared, client.addr, &end);
    if let Some(socket) = socket {
        if matches!(end, End::Failed(Failed::NotTls)) {
            // A client whose socket does not take it in one piece only sees the connection end.
            let _ = socket.try_write(SPEAK_TLS);
        }
        tokio::select! {
            () = drain(&socket, worker) => {}
            () = client.closed() => {}
        }
    }
    None
}

/// Whether what a client has sent on a plain connection begins a handshake of TLS. No command
/// begins so.
pub(crate) fn is_begun_by(input: &[u8]) -> bool {
    // Then comes the version of the record: all versions of TLS have this byte.
    input.starts_with(&[TLS_RECORD, 0x03])
}

/// Logs that a client has spoken TLS on the plain port.
pub(crate) fn report_on_plain(shared: &Shared, addr: SocketAddr) {
    let hint = match &shared.tls {
        Some(tls) => format!("it has to connect to port {}, which does", tls.addr.port()),
        None => "it has to connect without TLS, or the server to be started with tls-port".to_owned(),
    };
    log(
        shared,
        addr,
        &format_args!("the client speaks TLS, and this port does not: {hint}"),
    );
}

fn report(shared: &Shared, addr: SocketAddr, end: &End) {
    match end {
        // As the checks of load balancers do.
        End::Failed(Failed::Gone | Failed::Socket(_)) | End::Closed => {
            tracing::debug!(%addr, "a connection ends during its TLS handshake: {end}");
        }
        end => log(shared, addr, end),
    }
}

/// Logs why a connection is closed, unless the limit on such messages is reached.
fn log(shared: &Shared, addr: SocketAddr, why: &dyn fmt::Display) {
    match shared
        .refusals
        .next(Duration::from_nanos(shared.clock.monotonic()))
    {
        Some(0) => tracing::warn!(%addr, "a connection is closed: {why}"),
        Some(left_out) => tracing::warn!(
            %addr, left_out,
            "a connection is closed, as others were that are not logged: {why}"
        ),
        None => tracing::debug!(%addr, "a connection is closed: {why}"),
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Late => write!(
                f,
                "the client did not end the TLS handshake within {} s",
                HANDSHAKE.as_secs()
            ),
            End::Closed => f.write_str("it is closed as others are"),
            End::Crowded => f.write_str(
                "too many TLS handshakes were under way, and this was the oldest; if they are of good clients, raise \
                 maxclients",
            ),
            End::Failed(Failed::NotTls) => f.write_str(
                "the client does not speak TLS, and this port does: it has to use TLS, or the plain port if there is one",
            ),
            End::Failed(Failed::Gone) => f.write_str("the client went away"),
            End::Failed(Failed::Socket(error)) => error.fmt(f),
            End::Failed(Failed::Tls(error)) => in_words(f, error),
        }
    }
}

fn in_words(f: &mut fmt::Formatter<'_>, error: &Error) -> fmt::Result {
    match error {
        Error::InvalidCertificate(error) => of_certificate(f, &Fault::of(error)),
        Error::NoCertificatesPresented => f.write_str(
            "the client presents no certificate, and tls-auth-clients is yes: give the client one of a CA in \
             tls-ca-cert-file, or set tls-auth-clients to optional or no",
        ),
        Error::AlertReceived(
            alert @ (AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::DecryptError),
        ) => write!(
            f,
            "the client does not accept this server's certificate ({alert:?}): give the client the certificate of its \
             CA, or the server one that is for its name and holds now"
        ),
        Error::AlertReceived(alert) => write!(
            f,
            "the client ended the TLS handshake: {alert:?}; its errors say more"
        ),
        Error::PeerIncompatible(problem) => write!(
            f,
            "the client cannot speak TLS as this server does, versions 1.2 and 1.3: {problem:?}"
        ),
        Error::InvalidMessage(_) | Error::InappropriateMessage { .. } => {
            write!(
                f,
                "what the client sends is not TLS ({error}): it has to use TLS 1.2 or 1.3"
            )
        }
        other => write!(f, "TLS: {other}"),
    }
}

fn of_certificate(f: &mut fmt::Formatter<'_>, fault: &Fault) -> fmt::Result {
    match fault {
        Fault::Ended { until, now } => write!(
            f,
            "the client's certificate ended at {}, and it is {} here: give it a new one, or set the clock that is wrong",
            Date(*until),
            Date(*now)
        ),
        Fault::NotYet { from, now } => write!(
            f,
            "the client's certificate holds from {} on, and it is {} here: set the clock that is wrong",
            Date(*from),
            Date(*now)
        ),
        Fault::OtherCa => f.write_str(
            "the client's certificate is of no CA in tls-ca-cert-file: give it one of such a CA, or add the \
             certificate of its CA to the file",
        ),
        Fault::WrongUse(problem) => write!(
            f,
            "the client's certificate is not one for clients ({problem}): give it one that is for the authentication \
             of clients"
        ),
        Fault::Other(problem) => write!(
            f,
            "the client's certificate is not accepted ({problem}): give it another one"
        ),
    }
}
