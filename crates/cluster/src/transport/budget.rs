//! How much of a group, and of all groups, may be on its way to one peer.
//!
//! Each of the two connections has half of either limit, so that files never take the room of
//! raft's messages.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Mutex as FairMutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use crate::ids::GroupId;
use crate::transport::options::Limits;

/// Groups that are kept before those that nothing is on its way of are looked for.
const GROUPS_KEPT: usize = 1024;

/// The room on one connection to a peer.
#[derive(Debug)]
pub(super) struct Budget {
    peer: Arc<Semaphore>,
    groups: Mutex<HashMap<GroupId, Arc<Group>>>,
    limits: LaneLimits,
}

/// The limits of one connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct LaneLimits {
    pub(super) peer_bytes: u32,
    pub(super) group_bytes: u32,
    pub(super) group_appends: u32,
    pub(super) requests: usize,
}

#[derive(Debug)]
struct Group {
    /// Held from the wait for room until the frame is queued: tokio's mutex is fair, so frames are
    /// queued in the order in which they were to be sent, though they wait for three semaphores.
    turn: Arc<FairMutex<()>>,
    appends: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

/// The room that one request takes, from before it is queued until it is both written and answered
/// or given up.
#[derive(Debug)]
pub(super) struct Permit {
    _append: Option<OwnedSemaphorePermit>,
    _group: OwnedSemaphorePermit,
    _peer: OwnedSemaphorePermit,
}

/// The right to queue the next frame of a group.
#[derive(Debug)]
pub(super) struct Turn(#[expect(dead_code, reason = "held, and dropped")] OwnedMutexGuard<()>);

impl LaneLimits {
    pub(super) fn of(limits: &Limits) -> Self {
        Self {
            peer_bytes: limits.peer_bytes / 2,
            group_bytes: limits.group_bytes / 2,
            group_appends: limits.group_appends,
            requests: limits.requests,
        }
    }
}

impl Budget {
    pub(super) fn new(limits: LaneLimits) -> Self {
        Self {
            peer: Arc::new(Semaphore::new(limits.peer_bytes as usize)),
            groups: Mutex::default(),
            limits,
        }
    }

    /// Waits for room. The caller queues its frame before it lets the turn go.
    pub(super) async fn take(&self, group: GroupId, bytes: usize, append: bool) -> (Turn, Arc<Permit>) {
        let group = self.group(group);
        let turn = Arc::clone(&group.turn).lock_owned().await;
        let append = match append {
            true => Some(acquire(&group.appends, 1).await),
            false => None,
        };
        // What is larger than a limit goes alone.
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let of_group = acquire(&group.bytes, bytes.min(self.limits.group_bytes)).await;
        let of_peer = acquire(&self.peer, bytes.min(self.limits.peer_bytes)).await;
        (
            Turn(turn),
            Arc::new(Permit {
                _append: append,
                _group: of_group,
                _peer: of_peer,
            }),
        )
    }

    fn group(&self, group: GroupId) -> Arc<Group> {
        let mut groups = self.groups.lock();
        if groups.len() >= GROUPS_KEPT && !groups.contains_key(&group) {
            groups.retain(|_, group| Arc::strong_count(group) > 1 || !group.is_idle(self.limits));
        }
        let made = || {
            Arc::new(Group {
                turn: Arc::default(),
                appends: Arc::new(Semaphore::new(self.limits.group_appends as usize)),
                bytes: Arc::new(Semaphore::new(self.limits.group_bytes as usize)),
            })
        };
        Arc::clone(groups.entry(group).or_insert_with(made))
    }
}

impl Group {
    fn is_idle(&self, limits: LaneLimits) -> bool {
        self.bytes.available_permits() == limits.group_bytes as usize
    }
}

async fn acquire(from: &Arc<Semaphore>, count: u32) -> OwnedSemaphorePermit {
    match Arc::clone(from).acquire_many_owned(count).await {
        Ok(permit) => permit,
        // No code closes it; were it closed, nothing could be sent.
        Err(_) => std::future::pending().await,
    }
}
