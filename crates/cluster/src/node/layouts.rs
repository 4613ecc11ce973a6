//! The logs of replicas are where the layout has them: one that is elsewhere moves, while it serves.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use collie_io::Device;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::blocking::{blocking, blocking_while};
use crate::ids::ReplicaId;
use crate::node::room::MACHINES;
use crate::node::router::Router;
use crate::raftlog::{ReplicaLog, StoreError};
use crate::transport::Peers;

/// From this feature level on the logs of replicas move: a version that does not speak it takes a copy that is not
/// complete for the replica.
pub const LEVEL_OF_LAYOUTS: u32 = 3;
/// What could not be moved is tried again after this time, twice it, and so on.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MOST: Duration = Duration::from_secs(60);
/// From one look to the next, where nothing changes.
const LOOK: Duration = Duration::from_secs(30);

/// How far the logs of a node are, and what is to be done about it.
#[derive(Debug, Default)]
pub(super) struct LogMoves {
    /// Replicas whose logs are elsewhere than the layout has them.
    to_move: AtomicUsize,
    /// Those that have moved since the process began.
    moved: AtomicU64,
    /// Why one does not move.
    problem: Mutex<Option<String>>,
    changed: Notify,
    ends: AtomicBool,
}

impl LogMoves {
    // Relaxed, here and below: numbers and a flag by themselves.
    pub(super) fn to_move(&self) -> usize {
        self.to_move.load(Ordering::Relaxed)
    }

    pub(super) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Why the log of a replica does not move, if one was tried and does not.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }

    /// Which logs replicas are to be in is another one.
    pub(super) fn layout_changed(&self) {
        // How many are is known once it was looked.
        self.to_move.fetch_max(1, Ordering::Relaxed);
        self.changed.notify_one();
    }

    /// No other move begins, and the one under way goes back, or ends.
    pub(super) fn end(&self) {
        self.ends.store(true, Ordering::Relaxed);
        self.changed.notify_one();
    }

    fn goes_on(&self) -> bool {
        !self.ends.load(Ordering::Relaxed)
    }
}

/// The disks of a node, and the tables on them.
#[derive(Clone)]
pub(super) struct Homes {
    pub(super) device: Arc<dyn Device>,
    pub(super) disks: Vec<PathBuf>,
}

impl Homes {
    /// The disk that the tables of a replica are on. Blocks.
    pub(super) fn disk_of(&self, id: ReplicaId) -> Option<usize> {
        let dir = |disk: &PathBuf| disk.join(MACHINES).join(id.to_string());
        self.disks
            .iter()
            .position(|disk| self.device.list(&dir(disk)).is_ok())
    }
}

/// Moves the logs of replicas, one after the other, whenever the layout has another place for them.
pub(super) async fn move_logs(router: Arc<Router>, peers: Arc<Peers>, moves: Arc<LogMoves>, homes: Homes) {
    let mut pause = PAUSE;
    while moves.goes_on() {
        let left = elsewhere(&router, &homes).await;
        moves.to_move.store(left.len(), Ordering::Relaxed);
        if left.is_empty() {
            *moves.problem.lock() = None;
            // A replica may have been made while the layout changed.
            _ = timeout(LOOK, moves.changed.notified()).await;
            continue;
        }
        while peers.level() < LEVEL_OF_LAYOUTS && moves.goes_on() {
            sleep(PAUSE).await;
        }
        let (mut has_moved, mut has_failed, mut problem) = (false, false, None);
        for (replica, disk) in left {
            if !moves.goes_on() {
                return;
            }
            let id = replica.replica();
            match move_one(&router, &moves, id, disk).await {
                Ok(moved) => {
                    has_moved = true;
                    moves.moved.fetch_add(u64::from(moved), Ordering::Relaxed);
                    moves.to_move.fetch_sub(1, Ordering::Relaxed);
                }
                // Its removal ends by itself, or at the next start.
                Err(StoreError::Removed { .. } | StoreError::Unknown { .. }) => has_failed = true,
                Err(error) => {
                    has_failed = true;
                    let group = replica.group();
                    let text = format!(
                        "the log of replica {id}, of partition {group}, does not move for now: {error}"
                    );
                    tracing::warn!("{text}");
                    problem.get_or_insert(text);
                }
            }
        }
        *moves.problem.lock() = problem;
        if has_moved || !has_failed {
            pause = PAUSE;
        }
        if has_failed {
            _ = timeout(pause, moves.changed.notified()).await;
            pause = PAUSE_MOST.min(2 * pause);
        }
    }
}

/// Moves one, on a thread that may block; on a runtime of one thread that is this one.
async fn move_one(
    router: &Arc<Router>,
    moves: &Arc<LogMoves>,
    id: ReplicaId,
    disk: usize,
) -> Result<bool, StoreError> {
    let (router, moves) = (Arc::clone(router), Arc::clone(moves));
    let moved = async move {
        let goes_on = || moves.goes_on();
        router.store.move_replica(id, disk, &goes_on).await
    };
    blocking_while(moved).await
}

/// The replicas whose logs are elsewhere than the layout has them, and the disks of their tables.
async fn elsewhere(router: &Arc<Router>, homes: &Homes) -> Vec<(ReplicaLog, usize)> {
    let (router, homes) = (Arc::clone(router), homes.clone());
    let look = move || {
        let replicas = router.store.replicas().into_iter();
        let homes = replicas.filter_map(|replica| {
            // Without tables it is just being made, or removed.
            let disk = homes.disk_of(replica.replica())?;
            Some((replica, disk))
        });
        homes
            .filter(|(replica, disk)| !router.store.is_placed(replica, *disk))
            .collect()
    };
    blocking(look).await
}
