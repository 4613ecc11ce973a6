//! The network over TLS, and a secured connection.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use collie_io::{Clock, Device};
use collie_tls::{TlsError, Validity};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::transport::network::Network;
use crate::transport::tls::files::{Ready, TlsFiles, in_words, of_handshake};

/// How long the other side has to take the reason for which a handshake has failed.
const LINGER: Duration = Duration::from_millis(500);

/// TCP with TLS 1.3. Both sides present a certificate, and both verify it; connections between any
/// addresses are secured so. A clone is the same network: what one reloads, all use.
#[derive(Debug, Clone)]
pub struct TlsTcp(Arc<TlsInner>);

#[derive(Debug)]
struct TlsInner {
    files: TlsFiles,
    device: Arc<dyn Device>,
    clock: Arc<dyn Clock>,
    ready: Mutex<Arc<Ready>>,
}

impl TlsTcp {
    /// Reads a node's certificate, its key and the CA's certificate; reads block. The clock is the
    /// one by which certificates hold.
    ///
    /// # Errors
    /// Which file is not as it should be, and what to do.
    pub fn new(files: TlsFiles, device: Arc<dyn Device>, clock: Arc<dyn Clock>) -> Result<Self, TlsError> {
        let ready = Mutex::new(Arc::new(files.load(&*device, Arc::clone(&clock))?));
        Ok(Self(Arc::new(TlsInner {
            files,
            device,
            clock,
            ready,
        })))
    }

    /// Reads the files anew; reads block. New connections use what they have; those that stand go
    /// on with what they were made with.
    ///
    /// # Errors
    /// Those of [`new`](Self::new). New connections use what they used before.
    pub fn reload(&self) -> Result<(), TlsError> {
        let inner = &self.0;
        let ready = inner.files.load(&*inner.device, Arc::clone(&inner.clock))?;
        *inner.ready.lock() = Arc::new(ready);
        Ok(())
    }

    /// From when until when the node's certificate holds that new connections use. Afterwards no
    /// connection can be made; those that stand go on.
    pub fn validity(&self) -> Validity {
        self.ready().validity
    }

    fn ready(&self) -> Arc<Ready> {
        Arc::clone(&self.0.ready.lock())
    }
}

impl Network for TlsTcp {
    type Stream = TlsStream;
    type Listener = TcpListener;
    type Accepted = TcpStream;

    fn check(&self, _: SocketAddr) -> Result<(), String> {
        Ok(())
    }

    async fn bind(&self, address: SocketAddr) -> io::Result<TcpListener> {
        TcpListener::bind(address).await
    }

    fn local_address(&self, listener: &TcpListener) -> io::Result<SocketAddr> {
        listener.local_addr()
    }

    async fn accept(&self, listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
        listener.accept().await
    }

    async fn secure(&self, accepted: TcpStream) -> io::Result<TlsStream> {
        accepted.set_nodelay(true)?;
        let acceptor = TlsAcceptor::from(Arc::clone(&self.ready().accept));
        match acceptor.accept(accepted).into_fallible().await {
            Ok(stream) => Ok(TlsStream::new(stream)),
            Err(failed) => Err(give_up(failed).await),
        }
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TlsStream> {
        let stream = TcpStream::connect(address).await?;
        // What belongs together is in one write already.
        stream.set_nodelay(true)?;
        let ready = self.ready();
        let connector = TlsConnector::from(Arc::clone(&ready.connect));
        match connector
            .connect(ready.name.clone(), stream)
            .into_fallible()
            .await
        {
            Ok(stream) => Ok(TlsStream::new(stream)),
            Err(failed) => Err(give_up(failed).await),
        }
    }
}

/// Ends a connection whose handshake has failed. The other side has been sent the reason. A socket
/// that is closed with unread bytes resets its connection, and the reason would be lost: so what
/// still comes is read.
async fn give_up((error, mut stream): (io::Error, TcpStream)) -> io::Error {
    let end = async {
        stream.shutdown().await?;
        let mut bytes = [0; 1024];
        while stream.read(&mut bytes).await? > 0 {}
        io::Result::Ok(())
    };
    // Whether it takes the reason or not, the connection ends.
    let _taken = timeout(LINGER, end).await;
    of_handshake(error)
}

/// A connection over TLS. What goes wrong on it is said in an operator's words.
#[derive(Debug)]
pub struct TlsStream(Box<tokio_rustls::TlsStream<TcpStream>>);

impl TlsStream {
    pub(super) fn new(stream: impl Into<tokio_rustls::TlsStream<TcpStream>>) -> Self {
        Self(Box::new(stream.into()))
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.0).poll_read(cx, bytes) {
            // The other process died without a farewell. Frames say their lengths, so this end
            // passes for no other than it is.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            read => read.map_err(in_words),
        }
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes).map_err(in_words)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx).map_err(in_words)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx).map_err(in_words)
    }
}
