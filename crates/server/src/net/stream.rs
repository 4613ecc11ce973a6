//! The stream of a connection: plain, or over TLS.
//!
//! Both are used like a non-blocking socket: the caller waits until it is readable or writable, and
//! then tries. Over TLS a read may find bytes though the socket has none, as they were decrypted with
//! those before them; and bytes that a write has taken may still be in rustls' buffer, so that a
//! reply is sent only once [`is_sent`](Stream::is_sent) returns true.

use std::io::{self, BufRead, IoSlice, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio_rustls::rustls::{Error, ServerConfig, ServerConnection};

use crate::net::worker::Worker;

/// The most that a connection keeps encrypted and unsent, in bytes. rustls also keeps at most one
/// record that arrives and its plain text, 18 KiB and 16 KiB; 64 KiB during a handshake.
const UNSENT_MAX: usize = 64 * 1024;
/// The most that one read decrypts, in bytes: a fraction of a millisecond.
const READ_SLICE: usize = 256 * 1024;

/// How long a client may take to receive the close_notify alert of TLS.
const CLOSE_NOTIFY_MAX: Duration = Duration::from_secs(1);

/// After a closing connection has sent its last reply, further bytes of the client are read and
/// dropped, so that the system does not reset the connection before the client has read the reply:
/// until it has been silent for this long, or has sent this much, or this much time has passed. So
/// a client whose value is somewhat too long can finish sending it.
const LINGER_SILENCE: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 64 * 1024 * 1024;
const LINGER: Duration = Duration::from_secs(10);

/// The stream of a connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<Secured>),
}

/// A stream over TLS.
#[derive(Debug)]
pub(crate) struct Secured {
    socket: TcpStream,
    tls: ServerConnection,
}

impl Stream {
    /// The socket below.
    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(secured) => &secured.socket,
        }
    }

    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Stream::Plain(_))
    }

    /// Waits until a read may find bytes, or the end. May be dropped and called again.
    pub(crate) async fn readable(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.readable().await,
            Stream::Tls(secured) => secured.readable().await,
        }
    }

    /// Waits until a write may be taken. May be dropped and called again.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        self.socket().writable().await
    }

    /// Reads what there is into the free space of a buffer; 0 is the end.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing yet.
    pub(crate) fn try_read_buf(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.try_read_buf(buffer),
            Stream::Tls(secured) => secured.try_read_buf(buffer),
        }
    }

    /// Takes what can be taken, and sends what can be sent; without bytes it only sends. Returns how
    /// many bytes were taken.
    ///
    /// # Errors
    /// `WouldBlock` if the socket takes nothing now.
    pub(crate) fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => match socket.try_write(bytes) {
                Ok(0) => Err(io::ErrorKind::WriteZero.into()),
                taken => taken,
            },
            Stream::Tls(secured) => secured.try_write(bytes),
        }
    }

    /// Whether the socket has all that was taken.
    pub(crate) fn is_sent(&self) -> bool {
        match self {
            Stream::Plain(_) => true,
            Stream::Tls(secured) => !secured.tls.wants_write(),
        }
    }

    /// Sends TLS' close_notify alert; a plain stream ends with its socket.
    pub(crate) async fn send_close_notify(&mut self) {
        if let Stream::Tls(secured) = self {
            let Secured { socket, tls } = &mut **secured;
            tls.send_close_notify();
            // A client that does not take it sees the connection end without it.
            let _ = tokio::time::timeout(CLOSE_NOTIFY_MAX, send_all(socket, tls)).await;
        }
    }
}

impl Secured {
    /// Whether a read would find plain text or the end without the socket.
    fn has_read(&mut self) -> bool {
        let mut reader = self.tls.reader();
        !matches!(reader.fill_buf(), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    async fn readable(&mut self) -> io::Result<()> {
        loop {
            if self.has_read() {
                return Ok(());
            }
            // An answer of TLS itself, as to an update of keys, may not have been sent yet.
            if !self.tls.wants_write() {
                return self.socket.readable().await;
            }
            let ready = self.socket.ready(Interest::READABLE | Interest::WRITABLE).await?;
            if ready.is_readable() || ready.is_read_closed() {
                return Ok(());
            }
            match self.send() {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
    }

    fn try_read_buf(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let room = (buffer.capacity() - buffer.len()).clamp(1, READ_SLICE);
        let mut read = 0;
        while read < room {
            let mut reader = self.tls.reader();
            match reader.fill_buf() {
                // The client has sent close_notify.
                Ok([]) => break,
                Ok(found) => {
                    let taken = found.len().min(room - read);
                    buffer.extend_from_slice(found.get(..taken).unwrap_or_default());
                    reader.consume(taken);
                    read += taken;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // It has ended without close_notify. Requests contain their lengths, so a truncated one
                // is not taken for a complete one.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error),
            }
            match self.receive() {
                Ok(()) => {}
                // The next read finds the same.
                Err(_) if read > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    /// Reads from the socket, decrypts, and sends what TLS itself answers.
    fn receive(&mut self) -> io::Result<()> {
        // What an earlier call has found to be wrong, although the socket may have nothing now.
        self.tls.writer().flush()?;
        self.tls.read_tls(&mut Socket(&self.socket))?;
        let processed = self.tls.process_new_packets();
        match self.send() {
            Err(error) if processed.is_ok() && error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => processed
                .map(|_| ())
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send()?;
        let taken = self.tls.writer().write(bytes)?;
        match self.send() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    /// Sends what is encrypted.
    fn send(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            if self.tls.write_tls(&mut Socket(&self.socket))? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }
}

/// Why a handshake has failed.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The first byte is not TLS'.
    NotTls,
    /// The client has ended the connection.
    Gone,
    /// With the error of rustls. The client was sent the reason.
    Tls(Error),
    Socket(io::Error),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        Failed::Socket(error)
    }
}

/// The first byte of what a client sends that speaks TLS: a record of the handshake.
pub(crate) const TLS_RECORD: u8 = 0x16;

/// Waits for the handshake of a client; the socket comes back where it fails.
pub(crate) async fn handshake(
    socket: TcpStream,
    config: Arc<ServerConfig>,
) -> Result<Stream, (Failed, TcpStream)> {
    match shake(&socket, config).await {
        Ok(tls) => Ok(Stream::Tls(Box::new(Secured { socket, tls }))),
        Err(failed) => Err((failed, socket)),
    }
}

async fn shake(socket: &TcpStream, config: Arc<ServerConfig>) -> Result<ServerConnection, Failed> {
    let mut first = [0];
    match socket.peek(&mut first).await? {
        0 => return Err(Failed::Gone),
        _ if first != [TLS_RECORD] => return Err(Failed::NotTls),
        _ => {}
    }
    let mut tls = ServerConnection::new(config).map_err(Failed::Tls)?;
    tls.set_buffer_limit(Some(UNSENT_MAX));
    loop {
        send_all(socket, &mut tls).await?;
        if !tls.is_handshaking() {
            return Ok(tls);
        }
        socket.readable().await?;
        match tls.read_tls(&mut Socket(socket)) {
            Ok(0) => return Err(Failed::Gone),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error.into()),
        }
        if let Err(error) = tls.process_new_packets() {
            // The reason. A client that does not take it sees the connection end without it.
            let _ = send_all(socket, &mut tls).await;
            return Err(Failed::Tls(error));
        }
    }
}

async fn send_all(socket: &TcpStream, tls: &mut ServerConnection) -> io::Result<()> {
    while tls.wants_write() {
        match tls.write_tls(&mut Socket(socket)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => socket.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A socket as rustls uses one: it does not wait.
struct Socket<'a>(&'a TcpStream);

impl Read for Socket<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(bytes)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Closes the sending side, then reads and drops what still arrives for a while.
pub(crate) async fn drain(socket: &TcpStream, worker: &Worker) {
    if socket2::SockRef::from(socket)
        .shutdown(std::net::Shutdown::Write)
        .is_err()
    {
        return;
    }
    let drained = async {
        let mut dropped = 0;
        while dropped < LINGER_BYTES
            && matches!(
                tokio::time::timeout(LINGER_SILENCE, socket.readable()).await,
                Ok(Ok(()))
            )
        {
            let mut scratch = worker.take_buffer();
            let read = socket.try_read_buf(&mut scratch);
            worker.give_buffer(scratch);
            match read {
                Ok(0) => break,
                Ok(n) => dropped += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
    };
    // The connection ends here in either case.
    let _ = tokio::time::timeout(LINGER, drained).await;
}
