//! `/metrics` in Prometheus' text format, and `/healthz`, over HTTP/1.1 on a thread of their own.
//!
//! A request is read to the end of its head and answered, and the connection is closed; only the
//! first line of a request matters. A request never waits for the engine longer than [`PATIENCE`]:
//! the statistics of log and families wait for writers that are stalled, so they are taken on
//! another thread, and if that is late the previous ones are shown, with their age.

mod figures;
mod text;

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use collie_db::Stats;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::session::Shared;

/// Requests that are answered at a time; others wait to be accepted.
const CONNECTIONS_MAX: usize = 16;
/// The longest head of a request, in bytes.
const HEAD_MAX: usize = 8 * 1024;
/// How long a client may take to send its request, and again to read the answer.
const SLOWEST: Duration = Duration::from_secs(10);
/// How long the engine may take for its statistics before the previous ones are shown.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long no request is accepted after the system refused to create a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

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
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut ending = shared.ending.subscribe();
    loop {
        let accepted = async {
            let permit = Arc::clone(&room).acquire_owned().await;
            (listener.accept().await, permit)
        };
        tokio::select! {
            // The sender lives in `shared`.
            _ = ending.wait_for(|ending| *ending) => return Ok(()),
            (accepted, permit) = accepted => match (accepted, permit) {
                (Ok((stream, addr)), Ok(permit)) => {
                    tokio::spawn(converse(stream, addr, Arc::clone(shared), Arc::clone(&latest), permit));
                }
                (Err(error), _) => {
                    tracing::warn!(%error, "a request for metrics could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
                // The semaphore is never closed.
                (_, Err(_)) => return Ok(()),
            },
        }
    }
}

async fn converse(
    mut stream: TcpStream,
    addr: SocketAddr,
    shared: Arc<Shared>,
    latest: Arc<Latest>,
    _permit: OwnedSemaphorePermit,
) {
    let spoken = async {
        let response = match tokio::time::timeout(SLOWEST, read_head(&mut stream)).await {
            Ok(Ok(Some(head))) => answer(&head, &shared, &latest).await,
            Ok(Ok(None)) => Response::error("431 Request Header Fields Too Large", "the head is too long"),
            Ok(Err(error)) => return Err(error),
            Err(_) => Response::error("408 Request Timeout", "the request took too long"),
        };
        let sent = async {
            stream.write_all(response.head().as_bytes()).await?;
            if response.has_body {
                stream.write_all(response.body.as_bytes()).await?;
            }
            stream.shutdown().await
        };
        tokio::time::timeout(SLOWEST, sent).await?
    };
    if let Err(error) = spoken.await {
        tracing::debug!(%addr, %error, "a request for metrics was not answered");
    }
}

/// Reads to the empty line after a request's head; `None` if the head is too long.
async fn read_head(stream: &mut TcpStream) -> io::Result<Option<String>> {
    let mut head = Vec::with_capacity(1024);
    loop {
        if head.windows(4).any(|end| end == b"\r\n\r\n") || head.windows(2).any(|end| end == b"\n\n") {
            return Ok(Some(String::from_utf8_lossy(&head).into_owned()));
        }
        if head.len() >= HEAD_MAX {
            return Ok(None);
        }
        if stream.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

struct Response {
    status: &'static str,
    body: String,
    has_body: bool,
    content_type: &'static str,
}

impl Response {
    fn plain(status: &'static str, body: impl Into<String>) -> Response {
        Response {
            status,
            body: body.into(),
            has_body: true,
            content_type: "text/plain; charset=utf-8",
        }
    }

    fn error(status: &'static str, why: &str) -> Response {
        Response::plain(status, format!("{why}\n"))
    }

    fn head(&self) -> String {
        let allow = if self.status.starts_with("405") {
            "Allow: GET, HEAD\r\n"
        } else {
            ""
        };
        format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}Cache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
            self.status,
            self.content_type,
            self.body.len()
        )
    }
}

async fn answer(head: &str, shared: &Arc<Shared>, latest: &Arc<Latest>) -> Response {
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version)) = (words.next(), words.next(), words.next()) else {
        return Response::error("400 Bad Request", "expected a line as in GET /metrics HTTP/1.1");
    };
    if !version.starts_with("HTTP/1.") {
        return Response::error("505 HTTP Version Not Supported", "expected HTTP/1.1");
    }
    if !["GET", "HEAD"].contains(&method) {
        return Response::error("405 Method Not Allowed", "expected GET or HEAD");
    }
    let path = target.split('?').next().unwrap_or_default();
    let response = match path {
        "/metrics" => {
            let figures = figures_of(shared, latest).await;
            Response {
                content_type: "text/plain; version=0.0.4; charset=utf-8",
                ..Response::plain("200 OK", figures::page(shared, figures.as_ref()))
            }
        }
        "/healthz" => {
            let figures = figures_of(shared, latest).await;
            health(
                shared
                    .store
                    .health
                    .refusal(figures.as_ref().map(|(stats, _)| stats)),
            )
        }
        _ => Response::error("404 Not Found", "there are /metrics and /healthz"),
    };
    Response {
        has_body: method == "GET",
        ..response
    }
}

/// Whether writes are accepted. An engine that stalls writes is healthy; one that refuses them is
/// not.
fn health(refusal: Option<String>) -> Response {
    match refusal {
        Some(reason) => Response::error(
            "503 Service Unavailable",
            &format!("writes are refused: {reason}"),
        ),
        None => Response::plain("200 OK", "ok\n"),
    }
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
