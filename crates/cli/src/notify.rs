//! Notifies systemd when a daemon serves, and when it ends: a datagram to the socket in
//! `NOTIFY_SOCKET`, as sd_notify(3) describes it. Without that variable nothing is sent.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The supervisor that started the process and follows its state.
#[derive(Debug, Clone)]
pub(crate) struct Supervisor {
    socket: Option<OsString>,
}

impl Supervisor {
    /// The supervisor in the environment, if there is one.
    pub(crate) fn from_environment() -> Self {
        Self {
            socket: std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()),
        }
    }

    /// Sends that the daemon serves.
    pub(crate) fn ready(&self, status: &str) {
        self.notify(&format!("READY=1\nSTATUS={status}\n"));
    }

    /// Sends that the daemon ends.
    fn stopping(&self) {
        self.notify("STOPPING=1\nSTATUS=finishing what was read\n");
    }

    /// Sends that the daemon ends when the returned value is dropped.
    pub(crate) fn stopping_on_drop(self) -> Ending {
        Ending(self)
    }

    fn notify(&self, message: &str) {
        let Some(name) = &self.socket else { return };
        // A supervisor that misses the message waits in vain and then reports that; the daemon
        // serves nevertheless.
        if let Err(error) = send(name, message.as_bytes()) {
            tracing::warn!(socket = %name.display(), %error, "the supervisor could not be notified");
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

/// See [`Supervisor::stopping_on_drop`].
pub(crate) struct Ending(Supervisor);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.stopping();
    }
}
