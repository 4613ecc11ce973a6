//! The connections that peers have made to this node: one of each lane for each of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::transport::error::{End, GreetingError};
use crate::transport::outbox::Outbox;
use crate::transport::wire::{Hello, Lane, NodeId};

#[derive(Debug)]
pub(super) struct Slots {
    taken: Mutex<HashMap<(NodeId, Lane), Slot>>,
    most: usize,
}

#[derive(Debug)]
struct Slot {
    boot: [u8; 16],
    heard: Instant,
    outbox: Arc<Outbox>,
}

/// The place of one connection, until it ends.
#[derive(Debug)]
pub(super) struct Taken {
    slots: Arc<Slots>,
    pub(super) node: NodeId,
    pub(super) lane: Lane,
    /// The peer's process.
    pub(super) boot: [u8; 16],
    outbox: Arc<Outbox>,
}

impl Slots {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            taken: Mutex::default(),
            most,
        })
    }

    /// Takes the place of a peer's connection. An older one of the same process ends: the peer has
    /// given it up, though this node has not noticed. One of another process that was heard within
    /// `recent` is alive, so there are two processes with one number.
    pub(super) fn take(
        self: &Arc<Self>,
        hello: &Hello,
        outbox: &Arc<Outbox>,
        recent: Duration,
    ) -> Result<Taken, GreetingError> {
        let mut taken = self.taken.lock();
        let node = hello.node;
        for lane in [Lane::Raft, Lane::Bulk] {
            if let Some(slot) = taken.get(&(node, lane))
                && slot.boot != hello.boot
                && slot.heard.elapsed() < recent
            {
                return Err(GreetingError::SecondBoot { node });
            }
        }
        let place = (node, hello.lane);
        if taken.len() >= self.most && !taken.contains_key(&place) {
            return Err(GreetingError::Connections { limit: self.most });
        }
        let slot = Slot {
            boot: hello.boot,
            heard: Instant::now(),
            outbox: Arc::clone(outbox),
        };
        if let Some(older) = taken.insert(place, slot) {
            older.outbox.kick(End::Replaced);
        }
        Ok(Taken {
            slots: Arc::clone(self),
            node,
            lane: hello.lane,
            boot: hello.boot,
            outbox: Arc::clone(outbox),
        })
    }
}

impl Taken {
    /// A frame came on the connection.
    pub(super) fn heard(&self) {
        if let Some(slot) = self.slots.taken.lock().get_mut(&(self.node, self.lane))
            && Arc::ptr_eq(&slot.outbox, &self.outbox)
        {
            slot.heard = Instant::now();
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut taken = self.slots.taken.lock();
        let place = (self.node, self.lane);
        if taken
            .get(&place)
            .is_some_and(|slot| Arc::ptr_eq(&slot.outbox, &self.outbox))
        {
            taken.remove(&place);
        }
    }
}
