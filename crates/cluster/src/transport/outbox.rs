//! What is queued for a connection, and how it is written: one write takes what many groups have
//! queued.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::transport::budget::Permit;
use crate::transport::error::End;

/// Pings and their answers that may wait: one that the peer does not take is enough.
const URGENT_MAX: usize = 64;

/// The frames on their way to one connection.
#[derive(Debug)]
pub(super) struct Outbox {
    queue: Mutex<Queue>,
    ready: Notify,
    bytes_max: usize,
    /// Why the connection is to end, though its reader and writer see no reason.
    kick: Mutex<Option<End>>,
    kicked: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    /// Pings and pongs: behind the others they would measure the queue.
    urgent: VecDeque<Vec<u8>>,
    frames: VecDeque<Queued>,
    bytes: usize,
    /// No frame is taken any more; what is there is still written.
    finished: bool,
}

#[derive(Debug)]
struct Queued {
    bytes: Vec<u8>,
    /// The room that the frame takes. Kept until it is written, also if nothing waits for an
    /// answer any more.
    permit: Option<Arc<Permit>>,
}

/// What one write takes.
#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    frames: u64,
    permits: Vec<Arc<Permit>>,
}

/// How much was written.
#[derive(Debug, Default)]
pub(super) struct Written {
    frames: AtomicU64,
    bytes: AtomicU64,
    writes: AtomicU64,
}

/// The connection takes no frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unqueued;

impl Outbox {
    pub(super) fn new(bytes_max: usize) -> Self {
        let (ready, kicked) = (Notify::new(), Notify::new());
        Self {
            queue: Mutex::default(),
            ready,
            bytes_max,
            kick: Mutex::default(),
            kicked,
        }
    }

    /// Queues a frame behind the others.
    pub(super) fn push(&self, bytes: Vec<u8>, permit: Option<Arc<Permit>>) -> Result<(), Unqueued> {
        let mut queue = self.queue.lock();
        // A frame alone always has room, as one may be as large as the limit.
        if queue.finished || (queue.bytes > 0 && queue.bytes + bytes.len() > self.bytes_max) {
            return Err(Unqueued);
        }
        queue.bytes += bytes.len();
        queue.frames.push_back(Queued { bytes, permit });
        drop(queue);
        self.ready.notify_one();
        Ok(())
    }

    /// Queues a ping or its answer, before all other frames.
    pub(super) fn push_urgent(&self, bytes: Vec<u8>) -> Result<(), Unqueued> {
        let mut queue = self.queue.lock();
        if queue.finished || queue.urgent.len() == URGENT_MAX {
            return Err(Unqueued);
        }
        queue.urgent.push_back(bytes);
        drop(queue);
        self.ready.notify_one();
        Ok(())
    }

    /// Takes no more frames. Those that are queued are still written, and then the connection's
    /// sending half is closed.
    pub(super) fn finish(&self) {
        self.queue.lock().finished = true;
        self.ready.notify_one();
    }

    /// Takes no more frames, and forgets those that are queued: the connection has ended.
    pub(super) fn abandon(&self) {
        let mut queue = self.queue.lock();
        *queue = Queue {
            finished: true,
            ..Queue::default()
        };
        drop(queue);
        self.ready.notify_one();
    }

    /// Queues an answer. The connection of a peer that does not take its answers ends.
    pub(super) fn push_answer(&self, bytes: Vec<u8>) {
        if self.push(bytes, None).is_err() {
            let queued = self.queue.lock().bytes;
            self.kick(End::Unread { bytes: queued });
        }
    }

    /// The connection is to end.
    pub(super) fn kick(&self, why: End) {
        self.kick.lock().get_or_insert(why);
        self.kicked.notify_one();
    }

    /// Waits until the connection is to end. One task at a time waits.
    pub(super) async fn kicked(&self) -> End {
        loop {
            if let Some(end) = &*self.kick.lock() {
                return end.clone();
            }
            self.kicked.notified().await;
        }
    }

    /// Waits for frames and gathers those of the next write; `false` if there will be none.
    async fn gather(&self, batch: &mut Batch, most: usize) -> bool {
        loop {
            let ready = self.ready.notified();
            {
                let mut queue = self.queue.lock();
                queue.gather(batch, most);
                if batch.frames > 0 {
                    return true;
                }
                if queue.finished {
                    return false;
                }
            }
            ready.await;
        }
    }
}

impl Queue {
    fn gather(&mut self, batch: &mut Batch, most: usize) {
        while let Some(bytes) = self.urgent.pop_front() {
            batch.put(bytes, None);
        }
        while let Some(next) = self.frames.front()
            && (batch.frames == 0 || batch.bytes.len() + next.bytes.len() <= most)
            && let Some(Queued { bytes, permit }) = self.frames.pop_front()
        {
            self.bytes -= bytes.len();
            batch.put(bytes, permit);
        }
    }
}

impl Batch {
    fn put(&mut self, bytes: Vec<u8>, permit: Option<Arc<Permit>>) {
        // A large frame comes alone, and is not copied.
        match self.bytes.is_empty() && bytes.len() > self.bytes.capacity() {
            true => self.bytes = bytes,
            false => self.bytes.extend_from_slice(&bytes),
        }
        self.permits.extend(permit);
        self.frames += 1;
    }
}

impl Written {
    /// Frames, their bytes, and the writes that took them.
    pub(super) fn read(&self) -> (u64, u64, u64) {
        // Counters that nothing is concluded from.
        (
            self.frames.load(Ordering::Relaxed),
            self.bytes.load(Ordering::Relaxed),
            self.writes.load(Ordering::Relaxed),
        )
    }
}

/// Writes what is queued until no more will be, and closes the sending half then.
pub(super) async fn write_frames<W: AsyncWrite + Unpin>(
    mut to: W,
    outbox: &Outbox,
    batch_bytes: usize,
    stall: Duration,
    written: &Written,
) -> Result<(), End> {
    let mut batch = Batch {
        bytes: Vec::with_capacity(4096),
        ..Batch::default()
    };
    while outbox.gather(&mut batch, batch_bytes).await {
        let write = async {
            to.write_all(&batch.bytes).await?;
            to.flush().await
        };
        timeout(stall, write).await.map_err(|_| End::Stalled(stall))??;
        written.frames.fetch_add(batch.frames, Ordering::Relaxed);
        written
            .bytes
            .fetch_add(batch.bytes.len() as u64, Ordering::Relaxed);
        written.writes.fetch_add(1, Ordering::Relaxed);
        batch.frames = 0;
        batch.permits.clear();
        batch.bytes.clear();
        // The memory of a large frame goes; that of an ordinary batch stays.
        batch.bytes.shrink_to(batch_bytes);
    }
    timeout(stall, to.shutdown())
        .await
        .map_err(|_| End::Stalled(stall))??;
    Ok(())
}
