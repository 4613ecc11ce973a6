//! The wait of replies for durability, and the write that sends them.

use std::future::Future;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use collie_db::Durability;
use collie_protocol::ReplyBuffer;

use super::{Connection, Next, Outgoing, READ_MIN};
use crate::config::Ack;
use crate::failure::not_durable;
use crate::net::barrier::{Barrier, Cause};

/// Bytes that are written to a socket before the thread's other connections run.
const WRITE_SLICE: usize = 8 * 1024 * 1024;

impl Connection {
    /// Waits until the commits that the replies reflect are durable, or hold in the cluster, and sends
    /// the replies. Returns whether the connection is to close then.
    ///
    /// # Errors
    /// Where the client does not take them; after that nothing is sent to it any more.
    pub(super) async fn deliver(&mut self) -> io::Result<Next> {
        if self.outgoing == Outgoing::Cut {
            return Err(io::Error::other("a reply was sent in part, none can follow it"));
        }
        let next = if self.session.unsettled.has_earlier() {
            self.settle().await
        } else {
            Next::Read
        };
        if !self.reply.is_empty() {
            self.wait_until_durable().await;
            self.outgoing = Outgoing::Cut;
            self.write().await?;
            self.outgoing = Outgoing::Whole;
            let kept = READ_MIN;
            self.reply.clear(kept);
        }
        self.marks.clear();
        self.pending = 0;
        self.level = Ack::Buffered;
        Ok(next)
    }

    /// Waits once for the largest end that the replies reflect. If the log has failed, the replies
    /// that reflect commits which are not durable become errors; the others stay as they are.
    async fn wait_until_durable(&mut self) {
        let worker = Rc::clone(&self.worker);
        let barrier: &Barrier = match self.level.durability() {
            Durability::Buffered => return,
            Durability::Process => &worker.process,
            Durability::Disk => &worker.disk,
        };
        let db = &worker.shared.store.db;
        if self.pending == 0 || db.durable() >= self.pending {
            return;
        }
        // Frames in a shared ring already survive the process: most waits at that level end here.
        let asked = std::pin::pin!(db.wait_async(self.pending, self.level.durability()));
        let mut context = Context::from_waker(Waker::noop());
        if self.level == Ack::Process && matches!(asked.poll(&mut context), Poll::Ready(Ok(()))) {
            return;
        }
        worker.shared.counters.waits.add(1);
        if let Err(cause) = barrier.reach(self.pending).await {
            self.replace_by_errors(&cause);
        }
    }

    fn replace_by_errors(&mut self, cause: &Cause) {
        let durable = self.shared().store.db.durable();
        let error = not_durable(cause);
        let mut kept = ReplyBuffer::new();
        for (i, mark) in self.marks.iter().enumerate() {
            if mark.end > durable {
                kept.error(&error);
            } else {
                let end = self.marks.get(i + 1).map_or(self.reply.len(), |next| next.start);
                kept.raw(self.reply.as_slice().get(mark.start..end).unwrap_or_default());
            }
        }
        kept.set_version(self.reply.version());
        self.reply = kept;
    }

    /// Writes all replies. The client of a closing connection has a last period of time to read
    /// them.
    async fn write(&mut self) -> io::Result<()> {
        let mut rest = self.reply.as_slice();
        let client = &self.session.client;
        let mut last_call: Option<tokio::time::Instant> = None;
        let mut written = 0;
        // What TLS has taken is sent when its socket has it.
        while !rest.is_empty() || !self.stream.is_sent() {
            match self.stream.try_write(rest) {
                Ok(n) => {
                    rest = rest.get(n..).unwrap_or_default();
                    written += n;
                    if written >= WRITE_SLICE && !rest.is_empty() {
                        written = 0;
                        tokio::task::yield_now().await;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match last_call {
                    None => tokio::select! {
                        ready = self.stream.writable() => ready?,
                        () = client.closed() => {
                            last_call = Some(tokio::time::Instant::now() + self.worker.grace);
                        }
                    },
                    Some(until) => tokio::time::timeout_at(until, self.stream.writable()).await??,
                },
                Err(error) => return Err(error),
            }
        }
        self.worker.shared.counters.bytes_out.add(self.reply.len() as u64);
        Ok(())
    }
}
