//! `/metrics` in Prometheus' text format, `/healthz` and `/livez`, over HTTP/1.1 on a thread of their
//! own.
//!
//! A connection is for one request. One that has not sent its request makes room for others: beyond
//! [`CONNECTIONS_MAX`] the oldest of those is closed, so that whatever waits keeps no probe from its
//! answer. A request never waits for the engine longer than [`PATIENCE`]: the statistics of log and
//! families wait for writers that are stalled, so they are taken on another thread, and if that is
//! late the previous ones are shown, with their age.

mod connection_limit;
mod figures;
mod text;

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use collie_db::Stats;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};

use crate::service::Service;
use crate::session::{Ending, Shared};
use connection_limit::{Admitted, ConnectionLimit};

/// Connections at a time.
const CONNECTIONS_MAX: usize = 64;
/// The longest head of a request, in bytes.
const HEAD_MAX: usize = 8 * 1024;
/// How long a client may take to send the head of its request.
const HEAD_SLOWEST: Duration = Duration::from_secs(5);
/// How long a connection lasts at most.
const SLOWEST: Duration = Duration::from_secs(10);
/// How long the engine may take for its statistics before the previous ones are shown.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long no request is accepted after the system refused to create a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

const TEXT: &str = "text/plain; charset=utf-8";
const FIGURES: &str = "text/plain; version=0.0.4; charset=utf-8";

type Answer = Response<Full<Bytes>>;

/// The engine's latest statistics.
#[derive(Debug, Default)]
struct Latest {
    /// The statistics, and the monotonic time at which they were complete.
    figures: Mutex<Option<(Stats, u64)>>,
    is_taking: AtomicBool,
}

/// Statistics are being taken, until this is dropped.
struct Taking(Arc<Latest>);

impl Drop for Taking {
    fn drop(&mut self) {
        // Relaxed: see `figures_of`.
        self.0.is_taking.store(false, Ordering::Relaxed);
    }
}

/// Answers until the server ends. Blocks the calling thread.
pub(crate) fn run(listener: StdListener, shared: &Arc<Shared>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()?;
    let served = runtime.block_on(serve(listener, shared));
    // Statistics that the engine still has to deliver are not needed any more.
    runtime.shutdown_background();
    served
}

async fn serve(listener: StdListener, shared: &Arc<Shared>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let latest = Arc::new(Latest::default());
    let limit = Arc::new(ConnectionLimit::new(CONNECTIONS_MAX));
    let mut ending = shared.ending.subscribe();
    loop {
        tokio::select! {
            // The sender lives in `shared`.
            _ = ending.wait_for(|ending| *ending == Ending::Now) => return Ok(()),
            accepted = listener.accept() => match accepted {
                Ok((stream, addr)) => {
                    let admitted = limit.admit().await;
                    let (shared, latest) = (Arc::clone(shared), Arc::clone(&latest));
                    tokio::spawn(converse(stream, addr, shared, latest, admitted));
                }
                Err(error) => {
                    tracing::warn!(%error, "a request for metrics could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

/// Answers one request.
async fn converse(
    stream: TcpStream,
    addr: SocketAddr,
    shared: Arc<Shared>,
    latest: Arc<Latest>,
    mut admitted: Admitted,
) {
    let evicted = admitted.evicted();
    let service = service_fn(|request: Request<Incoming>| {
        admitted.request_received();
        let (shared, latest) = (&shared, &latest);
        async move { Ok::<_, Infallible>(answer(&request, shared, latest).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_SLOWEST)
        .keep_alive(false)
        .max_buf_size(HEAD_MAX)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        _ = evicted => tracing::debug!(%addr, "a connection without a request made room for another"),
        ended = tokio::time::timeout(SLOWEST, connection) => match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%addr, %error, "a request for metrics was not answered"),
            Err(_) => tracing::debug!(%addr, "a request for metrics took too long"),
        },
    }
}

fn reply(status: StatusCode, content_type: &'static str, body: impl Into<String>) -> Answer {
    let mut reply = Response::new(Full::new(Bytes::from(body.into())));
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    reply
}

async fn answer<B>(request: &Request<B>, shared: &Arc<Shared>, latest: &Arc<Latest>) -> Answer {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refused = reply(StatusCode::METHOD_NOT_ALLOWED, TEXT, "expected GET or HEAD\n");
        refused
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match request.uri().path() {
        "/metrics" => {
            let figures = figures_of(shared, latest).await;
            reply(StatusCode::OK, FIGURES, figures::page(shared, figures.as_ref()))
        }
        "/healthz" => {
            let figures = figures_of(shared, latest).await;
            let stats = figures.as_ref().map(|(stats, _)| stats);
            match unserved(shared, stats) {
                Some(reason) => reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, reason + "\n"),
                None => reply(StatusCode::OK, TEXT, "ok\n"),
            }
        }
        // The process answers. What else is wrong with it, a restart does not mend.
        "/livez" => reply(StatusCode::OK, TEXT, "ok\n"),
        _ => reply(
            StatusCode::NOT_FOUND,
            TEXT,
            "there are /metrics, /healthz and /livez\n",
        ),
    }
}

/// Why clients are to be sent elsewhere: writes are refused, or, in a cluster, this node serves
/// nothing or is about to end. An engine that stalls writes is healthy; one that refuses them is not.
fn unserved(shared: &Shared, engine: Option<&Stats>) -> Option<String> {
    if shared.is_ending() {
        return Some("the server is about to end".to_owned());
    }
    if let Some(reason) = shared.store.health.refusal(engine) {
        return Some(format!("writes are refused: {reason}"));
    }
    let partitions = shared.partitions.as_ref()?;
    let reason = Service::of(&partitions.cluster.topology()).refusal?;
    Some(format!("no keys are served: {reason}"))
}

/// The engine's statistics and their age in nanoseconds; `None` before the first ones.
async fn figures_of(shared: &Arc<Shared>, latest: &Arc<Latest>) -> Option<(Stats, u64)> {
    // Relaxed: the statistics themselves are passed on under their lock.
    if !latest.is_taking.swap(true, Ordering::Relaxed) {
        let (shared, taking) = (Arc::clone(shared), Taking(Arc::clone(latest)));
        let taken = tokio::task::spawn_blocking(move || {
            let stats = shared.store.db.stats();
            *taking.0.figures.lock() = Some((stats, shared.clock.monotonic()));
        });
        // If it takes longer, or panicked, the previous statistics are shown.
        let _ = tokio::time::timeout(PATIENCE, taken).await;
    }
    let now = shared.clock.monotonic();
    let figures = latest.figures.lock().clone();
    figures.map(|(stats, at)| (stats, now.saturating_sub(at)))
}
