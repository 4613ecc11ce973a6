//! The tables that a node sends to others: so many transfers at a time, so many bytes a second, and how far each is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

use crate::ids::{GroupId, ReplicaId};
use crate::transport::wire::NodeId;

/// So many replicas of other nodes get tables at a time.
const AT_A_TIME: usize = 4;

/// So much of the time that was not used may be used later.
const LATE_MOST: Duration = Duration::from_millis(200);

/// What a node sends of tables.
#[derive(Debug)]
pub struct Transfers {
    turns: Arc<Semaphore>,
    /// Bytes a second; 0: as many as there are.
    rate: u64,
    now: Mutex<Sends>,
}

#[derive(Debug)]
struct Sends {
    /// The next piece may be sent from then on.
    next: Instant,
    /// By the replica that gets it.
    sending: BTreeMap<ReplicaId, Sending>,
    sent: u64,
}

/// A transfer that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sending {
    /// The group.
    pub group: GroupId,
    /// The node that gets it.
    pub node: NodeId,
    /// The bytes that are there, those of an earlier attempt included.
    pub sent: u64,
    /// Of so many.
    pub bytes: u64,
}

impl Transfers {
    /// Transfers of at most `rate` bytes a second together; 0: as many as there are.
    #[must_use]
    pub fn new(rate: u64) -> Self {
        Self {
            turns: Arc::new(Semaphore::new(AT_A_TIME)),
            rate,
            now: Mutex::new(Sends {
                next: Instant::now(),
                sending: BTreeMap::new(),
                sent: 0,
            }),
        }
    }

    /// Those that are under way, by the replica that gets them.
    #[must_use]
    pub fn sending(&self) -> BTreeMap<ReplicaId, Sending> {
        self.now.lock().sending.clone()
    }

    /// The bytes that were sent, of all.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.now.lock().sent
    }

    /// Waits for its turn. It is over when what is returned is dropped.
    pub(super) async fn turn(self: &Arc<Self>, to: ReplicaId) -> TransferTurn {
        let turns = Arc::clone(&self.turns);
        TransferTurn {
            // An error: never closed.
            _turn: turns.acquire_owned().await.ok(),
            transfers: Arc::clone(self),
            to,
        }
    }

    /// When the next so many bytes may be sent.
    fn slot(&self, bytes: usize) -> Instant {
        let mut now = self.now.lock();
        // A piece that was late is made up for.
        let late = Instant::now().checked_sub(LATE_MOST);
        let at = now.next.max(late.unwrap_or(now.next));
        let nanos = (bytes as u64)
            .saturating_mul(1_000_000_000)
            .checked_div(self.rate);
        now.next = at + Duration::from_nanos(nanos.unwrap_or(0));
        at
    }
}

/// A transfer to one replica.
pub(super) struct TransferTurn {
    _turn: Option<OwnedSemaphorePermit>,
    transfers: Arc<Transfers>,
    to: ReplicaId,
}

impl TransferTurn {
    /// It is that far.
    pub(super) fn is_at(&self, sending: Sending) {
        self.transfers.now.lock().sending.insert(self.to, sending);
    }

    /// Waits until so many more bytes may be sent.
    pub(super) async fn wait_to_send(&self, bytes: usize) {
        sleep_until(self.transfers.slot(bytes)).await;
    }

    /// So many more bytes are there.
    pub(super) fn sent(&self, bytes: usize) {
        let mut now = self.transfers.now.lock();
        now.sent += bytes as u64;
        if let Some(sending) = now.sending.get_mut(&self.to) {
            sending.sent += bytes as u64;
        }
    }
}

impl Drop for TransferTurn {
    fn drop(&mut self) {
        self.transfers.now.lock().sending.remove(&self.to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn all_transfers_of_a_node_share_its_rate() {
        let transfers = Arc::new(Transfers::new(1000));
        let began = Instant::now();
        let send = async |to: ReplicaId| {
            let turn = transfers.turn(to).await;
            turn.is_at(Sending {
                group: to,
                node: 3,
                sent: 100,
                bytes: 1100,
            });
            for _ in 0..10 {
                turn.wait_to_send(100).await;
                turn.sent(100);
            }
            transfers.sending()[&to].sent
        };
        let (one, two) = tokio::join!(send(7), send(8));
        assert_eq!((one, two), (1100, 1100));
        // The first piece waits for nothing.
        assert_eq!(began.elapsed().as_millis(), 1900);
        assert_eq!((transfers.sent(), transfers.sending().len()), (2000, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_rate_nothing_waits() {
        let (transfers, began) = (Arc::new(Transfers::new(0)), Instant::now());
        let turn = transfers.turn(7).await;
        for _ in 0..1000 {
            turn.wait_to_send(usize::MAX).await;
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
