//! Turmoil's sockets as the network between nodes.

use std::io;
use std::net::SocketAddr;

use collie_cluster::Network;
use turmoil::net::{TcpListener, TcpStream};

/// The simulation's sockets.
pub(crate) struct Simulated;

impl Network for Simulated {
    type Stream = TcpStream;
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

    async fn secure(&self, accepted: TcpStream) -> io::Result<TcpStream> {
        Ok(accepted)
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(address).await
    }
}
