//! The end of a connection whose client has been sent its last reply.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;

use crate::net::worker::Worker;

/// After a closing connection has sent its last reply, further bytes of the client are read and
/// dropped, so that the system does not reset the connection before the client has read the reply:
/// until it has been silent for this long, or has sent this much, or this much time has passed. So
/// a client whose value is somewhat too long can finish sending it.
const LINGER_SILENCE: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 64 * 1024 * 1024;
const LINGER: Duration = Duration::from_secs(10);

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
