//! The seam to the network. TCP stands behind it, TLS over TCP, and the sockets of a simulation; time
//! and tasks are tokio's on either side.
//!
//! Every `select!` of the connections is `biased`: the unbiased one draws from a generator that no
//! test can seed. Nothing is drawn at random but pauses, from the seed of the options.

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

/// Makes connections.
pub trait Network: Send + Sync + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// What takes connections.
    type Listener: Send + Sync + 'static;
    /// A connection that was taken, on which nothing has been said yet.
    type Accepted: Send + 'static;

    /// Whether nodes may speak to each other at an address without harm.
    ///
    /// # Errors
    /// What to do instead.
    fn check(&self, address: SocketAddr) -> Result<(), String>;

    /// Takes connections at an address; port 0 is any that is free.
    fn bind(&self, address: SocketAddr) -> impl Future<Output = io::Result<Self::Listener>> + Send;

    /// Where a listener takes connections.
    ///
    /// # Errors
    /// The system's.
    fn local_address(&self, listener: &Self::Listener) -> io::Result<SocketAddr>;

    /// The next connection. It waits for nothing that the other side sends: one that sends nothing
    /// would keep all others out.
    fn accept(
        &self,
        listener: &Self::Listener,
    ) -> impl Future<Output = io::Result<(Self::Accepted, SocketAddr)>> + Send;

    /// Secures what was taken, in a task of the connection, which has the time of the greeting.
    fn secure(&self, accepted: Self::Accepted) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// A connection to an address, secured.
    fn connect(&self, address: SocketAddr) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// TCP without encryption: any program that reaches the port could pass for a node, so only
/// loopback addresses are taken.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlainTcp;

impl Network for PlainTcp {
    type Stream = TcpStream;
    type Listener = TcpListener;
    type Accepted = TcpStream;

    fn check(&self, address: SocketAddr) -> Result<(), String> {
        match address.ip().is_loopback() {
            true => Ok(()),
            false => Err(format!(
                "expected a loopback address, found {address}: without certificates any machine that reaches it could \
                 pass for a node; give every node a certificate (`collie cluster ca`), or run all nodes of the cluster \
                 on this machine, at 127.0.0.1 or [::1]"
            )),
        }
    }

    async fn bind(&self, address: SocketAddr) -> io::Result<TcpListener> {
        TcpListener::bind(address).await
    }

    fn local_address(&self, listener: &TcpListener) -> io::Result<SocketAddr> {
        listener.local_addr()
    }

    async fn accept(&self, listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, from) = listener.accept().await?;
        stream.set_nodelay(true)?;
        Ok((stream, from))
    }

    async fn secure(&self, accepted: TcpStream) -> io::Result<TcpStream> {
        Ok(accepted)
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(address).await?;
        // What belongs together is in one write already.
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}
