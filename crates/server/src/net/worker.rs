//! What the connections of one thread share: a barrier for each level of durability, and spare
//! buffers; and how work gets to threads that may block.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use collie_db::Durability;

use crate::failure::Failure;
use crate::net::barrier::Barrier;
use crate::session::Shared;

/// Size of a spare buffer, in bytes, which is the most that one read takes from an ordinary client.
const BUFFER: usize = 64 * 1024;
/// Spare buffers that a thread keeps.
const SPARE_MAX: usize = 32;

/// What the connections of one thread share.
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) process: Barrier,
    pub(crate) disk: Barrier,
    /// How long a client of a closing connection may take to read its last replies.
    pub(crate) grace: Duration,
    spare: RefCell<Vec<Vec<u8>>>,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, grace: Duration) -> Worker {
        Worker {
            shared,
            process: Barrier::new(Durability::Process),
            disk: Barrier::new(Durability::Disk),
            grace,
            spare: RefCell::default(),
        }
    }

    /// An empty buffer. A connection has one only while it has unread or incomplete requests.
    pub(crate) fn take_buffer(&self) -> Vec<u8> {
        self.spare
            .borrow_mut()
            .pop()
            .unwrap_or_else(|| Vec::with_capacity(BUFFER))
    }

    /// Returns a buffer.
    pub(crate) fn give_buffer(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut spare = self.spare.borrow_mut();
        if buffer.capacity() == BUFFER && spare.len() < SPARE_MAX {
            spare.push(buffer);
        }
    }
}

/// Runs what blocks on a thread for that.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| format!("ERR internal error: {error}").into())
}
