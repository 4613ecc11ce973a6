//! Telling systemd when clients can connect, and when the server ends: a datagram to the socket that
//! `NOTIFY_SOCKET` names, as sd_notify(3) describes it. Without that variable nobody is told.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Whoever started the process and wants to know how it fares.
#[derive(Debug, Clone)]
pub(crate) struct Supervisor {
    socket: Option<OsString>,
}

impl Supervisor {
    /// The one that the environment names, if it names one.
    pub(crate) fn from_environment() -> Self {
        Self {
            socket: std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()),
        }
    }

    /// Clients can connect.
    pub(crate) fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={status}\n"));
    }

    /// The server ends.
    fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=finishing what was read\n");
    }

    /// Tells that the server ends when what it returns is dropped.
    pub(crate) fn tell_of_the_end(self) -> Ending {
        Ending(self)
    }

    fn tell(&self, message: &str) {
        let Some(name) = &self.socket else { return };
        // A supervisor that cannot be told waits in vain and then says so; that is no reason not to serve.
        if let Err(error) = send(name, message.as_bytes()) {
            tracing::warn!(socket = %name.display(), %error, "the supervisor cannot be told how the server fares");
        }
    }
}

fn send(name: &OsStr, message: &[u8]) -> io::Result<()> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message, &address).map(drop)
}

/// See [`Supervisor::tell_of_the_end`].
pub(crate) struct Ending(Supervisor);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.stopping();
    }
}
