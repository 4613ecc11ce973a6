//! Frames as they come in.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, timeout_at};

use crate::transport::error::End;
use crate::transport::wire::{FRAME_MAX, Frame, GREETING_MAX, decode, frame_len};

/// What the buffer has room for at first, and at least for each read.
const ROOM: usize = 16 << 10;
/// A buffer that grew beyond this for one frame is given back after it.
const KEPT: usize = 1 << 20;

/// What a record of TLS begins with, of an alert and of a handshake, and the first byte of its
/// version.
const TLS_ALERT: u8 = 21;
const TLS_HANDSHAKE: u8 = 22;
const TLS_MAJOR: u8 = 3;

/// Whether the other side greets in TLS. Read as a frame's length, a version of TLS 1.0 or above
/// makes it longer than a greeting may be, so no greeting begins so.
fn is_tls(bytes: &[u8]) -> bool {
    matches!(bytes, &[TLS_ALERT | TLS_HANDSHAKE, TLS_MAJOR, minor, _, ..] if minor > 0)
}

const _: () = assert!(GREETING_MAX < 1 << 16);

/// Reads a connection. The buffer grows by what has come, and never by what a frame's length says.
#[derive(Debug)]
pub(super) struct FrameReader<R> {
    from: R,
    bytes: Vec<u8>,
    /// Where the next frame begins.
    start: usize,
    most: usize,
    silence: Duration,
    frame: Duration,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// A reader of the greeting, whose frame is short and takes `within` at most.
    pub(super) fn new(from: R, within: Duration) -> Self {
        Self {
            from,
            bytes: Vec::new(),
            start: 0,
            most: GREETING_MAX,
            silence: within,
            frame: within,
        }
    }

    /// Takes frames of any allowed length from now on, after `silence` at most, and within `frame`.
    pub(super) fn greeted(&mut self, silence: Duration, frame: Duration) {
        (self.most, self.silence, self.frame) = (FRAME_MAX, silence, frame);
    }

    /// The next frame and its length. Nothing is lost if the future is dropped, but for the time
    /// since when it waits.
    pub(super) async fn next(&mut self) -> Result<(Frame, usize), End> {
        let mut begun = None;
        loop {
            let rest = &self.bytes[self.start..];
            if self.most == GREETING_MAX && is_tls(rest) {
                return Err(End::Tls);
            }
            if let Some(len) = frame_len(rest, self.most)?
                && let Some(bytes) = rest.get(..len)
            {
                let frame = decode(bytes)?;
                self.start += len;
                return Ok((frame, len));
            }
            self.make_room();
            let now = Instant::now();
            let deadline = match self.bytes.is_empty() {
                true => now + self.silence,
                false => *begun.get_or_insert(now) + self.frame,
            };
            let read = timeout_at(deadline, self.from.read_buf(&mut self.bytes)).await;
            let found = self.bytes.len();
            match read {
                Ok(Ok(0)) if found == 0 => return Err(End::Eof),
                Ok(Ok(0)) => return Err(End::HalfFrame { found }),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(error.into()),
                Err(_) if found == 0 => return Err(End::Silent(self.silence)),
                Err(_) => {
                    return Err(End::Slow {
                        found,
                        within: self.frame,
                    });
                }
            }
        }
    }

    /// Reads on without looking, until the peer has closed its side too, at most for so long. A
    /// socket that is closed while bytes come in resets its connection, and the peer's kernel then
    /// drops what the peer has not read yet: what was sent last would be lost.
    pub(super) async fn drain(&mut self, within: Duration) {
        let end = async {
            loop {
                self.bytes.clear();
                self.start = 0;
                match self.from.read_buf(&mut self.bytes).await {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                }
            }
        };
        // A peer that does not close in time loses what it has not read.
        let _late = tokio::time::timeout(within, end).await;
    }

    /// Moves what is there of the next frame to the front, and makes room behind it: as much as
    /// is there, at most.
    fn make_room(&mut self) {
        self.bytes.drain(..self.start);
        self.start = 0;
        if self.bytes.is_empty() && self.bytes.capacity() > KEPT {
            self.bytes = Vec::new();
        }
        if self.bytes.capacity() - self.bytes.len() < ROOM / 4 {
            self.bytes.reserve_exact(self.bytes.len().max(ROOM));
        }
    }
}
