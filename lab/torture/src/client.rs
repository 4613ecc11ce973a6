//! Clients of servers on loopback.

use std::io;
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use collie_cli::resp::{self, Client};

/// How long a server may take for a reply while its disk works.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client of the server at this port.
pub(crate) fn connect(port: u16) -> io::Result<Client> {
    connect_for(port, PATIENCE)
}

/// With another patience for replies.
pub(crate) fn connect_for(port: u16, patience: Duration) -> io::Result<Client> {
    Ok(Client::plain(stream(port, patience)?))
}

/// A connection to the server at this port.
pub(crate) fn stream(port: u16, patience: Duration) -> io::Result<TcpStream> {
    resp::connect((Ipv4Addr::LOCALHOST, port).into(), patience)
}
