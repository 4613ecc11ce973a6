//! A node, from its start to its end.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use collie_io::Device;
use collie_log::LogError;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::beat::Beat;
use crate::blocking::{blocking, blocking_while};
use crate::ids::{GroupId, ReplicaId};
use crate::layouts::Layouts;
use crate::node::error::NodeError;
use crate::node::gossip::{hear_what_is_led, say_what_is_led};
use crate::node::layouts::{Homes, LogMoves, move_logs};
use crate::node::losses::LossStore;
use crate::node::opening::Opening;
use crate::node::options::NodeOptions;
use crate::node::room::{MACHINES, reserves, watch_room};
use crate::node::router::{Emptied, Router};
use crate::raft::{Claims, Losses, Member, Replica, Transfers, count};
use crate::raftlog::{NodeLog, NodeStore, Quarantined, ReplicaLog, StoreError};
use crate::transport::wire::NodeId;
use crate::transport::{Network, Peers};

/// So many replicas are opened at a time.
const OPEN_AT_A_TIME: usize = 64;
/// From one look at the length of the logs to the next.
const MAINTENANCE: Duration = Duration::from_secs(1);

/// A node that runs. Dropped, it ends without closing its stores properly; see [`Node::close`].
pub struct Node {
    opening: Arc<Opening>,
    _emptied: Emptied,
    failed: watch::Receiver<Option<StoreError>>,
    maintenance: Mutex<JoinSet<()>>,
    moves: Arc<LogMoves>,
    /// Ended by [`LogMoves::end`]: a move is not to be given up in the middle.
    mover: Mutex<JoinSet<()>>,
}

impl Node {
    /// Opens the logs, takes connections, and opens the replicas, which elect leaders on their own.
    /// To be called on a tokio runtime.
    ///
    /// # Errors
    /// The logs', and those of [`Peers::start`]. A replica that cannot be opened is no error: it says
    /// so by itself.
    pub async fn start<N: Network>(network: N, options: NodeOptions) -> Result<Self, NodeError> {
        let (failure, failed) = watch::channel(None);
        let (handle, mut store_options) = (Handle::current(), options.store.clone());
        let log_opened = options.log_opened.clone();
        let opened = move |log: &NodeLog| {
            let (run, failure) = (log.run(), failure.clone());
            if let Some(log_opened) = &log_opened {
                let _runtime = handle.enter();
                log_opened(log);
            }
            handle.spawn(async move {
                let error = run.await;
                if !matches!(error, StoreError::Log(LogError::Closed)) {
                    failure.send_replace(Some(error));
                }
            });
        };
        let stored = LossStore::new(options.losses.clone());
        store_options.on_lost_ring = stored.on_lost_ring();
        let (store, losses) = blocking(move || {
            let entries = store_options.shared.entries;
            let store = NodeStore::open(store_options, Box::new(opened))?;
            let losses = stored.opened(entries, &store)?;
            Ok::<_, NodeError>((store, losses))
        })
        .await?;
        let replicas = store.replicas();
        for lost in store.quarantined() {
            let Quarantined {
                group, replica, lost, ..
            } = lost;
            tracing::error!(
                replica,
                group,
                lost,
                "a replica is quarantined: damage to the log took frames of it; what is left is kept, and the others of its \
                 group go on"
            );
        }
        let (disks, device) = (
            options.store.disks.clone(),
            Arc::clone(&options.machine.db.device),
        );
        let store = blocking(move || {
            remove_tables_of_removed(&*device, &disks, &store);
            store
        })
        .await;
        let router = Router::new(store, options.peers.admission.clone());
        // Before replicas are opened, which may need it.
        let (of, disks, db) = (
            Arc::clone(&router),
            options.store.disks.clone(),
            options.machine.db.clone(),
        );
        let reserves = blocking(move || reserves(&of, &disks, &db)).await;
        let peers = Peers::start(network, options.peers.clone(), Arc::clone(&router) as _).await?;
        let transfers = Transfers::new(options.transfer_rate);
        let node = Self {
            _emptied: Emptied(Arc::clone(&router)),
            opening: Arc::new(Opening {
                options,
                router,
                peers: Arc::new(peers),
                changes: watch::Sender::new(0),
                full: Arc::default(),
                reserves,
                transfers: Arc::new(transfers),
                merging: Arc::new(Semaphore::new(1)),
                claims: Claims::default(),
                losses,
                made: Notify::new(),
            }),
            failed,
            maintenance: Mutex::default(),
            moves: Arc::default(),
            mover: Mutex::default(),
        };
        {
            // For all logs, those that are made later included.
            let mut tasks = node.maintenance.lock();
            let beat = node.opening.peers.beat();
            tasks.spawn(maintain(Arc::clone(&node.opening.router), beat));
            let disks = node.opening.options.store.disks.iter().cloned();
            let disks = disks.zip(node.opening.reserves.iter().cloned()).collect();
            tasks.spawn(watch_room(
                Arc::clone(&node.opening.router),
                disks,
                node.opening.changes.clone(),
                beat,
            ));
            tasks.spawn(open_late(Arc::clone(&node.opening)));
            let (router, peers) = (Arc::clone(&node.opening.router), Arc::clone(&node.opening.peers));
            tasks.spawn(say_what_is_led(router, peers, node.changes()));
            let (router, peers) = (Arc::clone(&node.opening.router), Arc::clone(&node.opening.peers));
            tasks.spawn(hear_what_is_led(router, peers, node.opening.changes.clone()));
        }
        for part in replicas.chunks(OPEN_AT_A_TIME) {
            let part: Vec<_> = part
                .iter()
                .map(|log| node.opening.open(log.clone(), None))
                .collect();
            for replica in part {
                if let Err(error) = replica.opened().await {
                    tracing::error!(%error, "a replica does not run");
                }
            }
        }
        let (router, peers) = (Arc::clone(&node.opening.router), Arc::clone(&node.opening.peers));
        let mover = move_logs(router, peers, Arc::clone(&node.moves), node.homes());
        node.mover.lock().spawn(mover);
        Ok(node)
    }

    /// Its connections.
    #[must_use]
    pub fn peers(&self) -> &Peers {
        &self.opening.peers
    }

    /// A replica on this node.
    #[must_use]
    pub fn replica(&self, id: ReplicaId) -> Option<Arc<Replica>> {
        self.opening.router.replica(id)
    }

    /// The replicas on this node that are not quarantined by their log, in the order of their ids.
    #[must_use]
    pub fn replicas(&self) -> Vec<Arc<Replica>> {
        self.opening.router.replicas()
    }

    /// The replicas that damage to the logs took frames of.
    #[must_use]
    pub fn quarantined(&self) -> Vec<Quarantined> {
        self.opening.router.store.quarantined()
    }

    /// The replicas whose logs have had no room to be opened, and why.
    pub(super) fn unopened(&self) -> Vec<(ReplicaId, StoreError)> {
        self.opening.router.store.unopened()
    }

    /// The logs.
    #[must_use]
    pub fn logs(&self) -> Vec<NodeLog> {
        self.opening.router.store.logs()
    }

    /// Moves whenever another replica leads one of the groups, as far as is known here, and whenever
    /// a command that could not begin may be able to.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.opening.changes.subscribe()
    }

    /// Moves [`changes`](Self::changes): where a group is led may have changed for another reason.
    pub fn changed(&self) {
        self.opening.changes.send_modify(|count| *count += 1);
    }

    /// Whether it is remembered that this replica was removed from this node.
    #[must_use]
    pub fn remembers_removal_of(&self, id: ReplicaId) -> bool {
        matches!(
            self.opening.router.store.replica(id),
            Err(StoreError::Removed { .. })
        )
    }

    /// Whether a log has failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.borrow().is_some()
    }

    /// Waits until a log has failed: the node can write no more, and its process is to exit.
    pub async fn failed(&self) -> StoreError {
        let mut failed = self.failed.clone();
        match failed.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(error)) => error.clone(),
            _ => StoreError::Log(LogError::Closed),
        }
    }

    /// Adds a replica without entries and without a vote, which waits to hear of its group.
    ///
    /// # Errors
    /// Those of [`NodeStore::create_behind`].
    pub async fn create(
        &self,
        group: GroupId,
        id: ReplicaId,
        disk: usize,
    ) -> Result<Arc<Replica>, NodeError> {
        let Some(_claim) = self.opening.claim(id) else {
            return Err(match self.opening.router.store.replica(id) {
                Err(error) if !matches!(error, StoreError::Unknown { .. }) => error,
                _ => StoreError::Exists { group, replica: id },
            }
            .into());
        };
        // A stop may have left tables of it, without the log: a split had begun to make it.
        let (device, dir) = (self.opening.device(), self.opening.machine_dir(id, Some(disk)));
        blocking(move || remove_tables(&*device, id, &dir)).await?;
        Ok(self.opening.begin((group, id), disk, None).await?)
    }

    /// Waits until a replica was put here. One at a time waits.
    pub(super) async fn made(&self) {
        self.opening.made.notified().await;
    }

    /// Removes tables without a log of replicas that are not to be `made`, which a split that was not completed may
    /// have left.
    ///
    /// # Errors
    /// [`NodeError::Files`].
    pub(super) async fn remove_strays(
        &self,
        made: impl Fn(ReplicaId) -> bool + Send + 'static,
    ) -> Result<(), NodeError> {
        let opening = Arc::clone(&self.opening);
        blocking(move || {
            let device = opening.device();
            let all = tables(&*device, &opening.options.store.disks);
            for (id, dir) in all.into_iter().filter(|(id, _)| !made(*id)) {
                if let Some(_claim) = opening.claim(id) {
                    remove_tables(&*device, id, &dir)?;
                    tracing::info!(replica = id, "tables that a split has left are removed");
                }
            }
            Ok(())
        })
        .await
    }

    /// What it sends of tables.
    #[must_use]
    pub fn transfers(&self) -> &Transfers {
        &self.opening.transfers
    }

    /// Removes a replica for good: it is remembered that it was here. Where that fails, the replica is closed, and
    /// the same call goes on.
    ///
    /// # Errors
    /// [`NodeError::Unknown`], the log's, and [`NodeError::Files`].
    pub async fn remove(&self, id: ReplicaId) -> Result<(), NodeError> {
        let replica = self
            .opening
            .router
            .replica(id)
            .ok_or(NodeError::Unknown { replica: id })?;
        replica.close().await;
        self.opening.router.store.remove(replica.group(), id).await?;
        let (device, dir) = (self.opening.device(), self.opening.machine_dir(id, None));
        blocking(move || remove_tables(&*device, id, &dir)).await?;
        self.opening.router.forget(id);
        self.opening.losses.end(id).await;
        Ok(())
    }

    /// The replicas that may have lost entries.
    pub(super) fn losses(&self) -> &Arc<Losses> {
        &self.opening.losses
    }

    /// The replicas that have tables or logs on each disk.
    pub(super) async fn found_on_disks(&self) -> Vec<BTreeSet<ReplicaId>> {
        let opening = Arc::clone(&self.opening);
        let look = move || {
            let (device, disks) = (opening.device(), &opening.options.store.disks);
            let mut found = vec![BTreeSet::new(); disks.len()];
            for (disk, found) in disks.iter().zip(&mut found) {
                let tables = tables(&*device, std::slice::from_ref(disk));
                found.extend(tables.into_iter().map(|(id, _)| id));
                let logs = opening.router.store.logs().into_iter();
                for log in logs.filter(|log| log.dir().starts_with(disk)) {
                    found.extend(log.replicas().iter().map(ReplicaLog::replica));
                    found.extend(log.quarantined().iter().map(|lost| lost.replica));
                }
            }
            found
        };
        blocking(look).await
    }

    /// Its disks.
    pub(super) fn homes(&self) -> Homes {
        self.opening.homes()
    }

    /// Which logs its replicas are to be in.
    #[must_use]
    pub fn layouts(&self) -> Layouts {
        self.opening.router.store.layouts()
    }

    /// Says which logs its replicas are to be in. Those that are elsewhere move, one after the other, while they serve,
    /// if the cluster has the feature level for it.
    pub fn set_layouts(&self, layouts: Layouts) {
        self.opening.router.store.set_layouts(layouts);
        self.moves.layout_changed();
    }

    /// How far the logs are that move.
    pub(super) fn log_moves(&self) -> &LogMoves {
        &self.moves
    }

    /// Says where a peer is.
    ///
    /// # Errors
    /// Those of [`Peers::set_peer`].
    pub fn set_peer(&self, node: NodeId, address: SocketAddr) -> Result<(), NodeError> {
        Ok(self.opening.peers.set_peer(node, address)?)
    }

    /// Ends all replicas, the connections, and the logs.
    ///
    /// # Errors
    /// The logs'.
    pub async fn close(self) -> Result<(), NodeError> {
        let mut maintenance = std::mem::take(&mut *self.maintenance.lock());
        maintenance.shutdown().await;
        // Before replicas, whose appends may wait for a move.
        self.moves.end();
        let mut mover = std::mem::take(&mut *self.mover.lock());
        while let Some(ended) = mover.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "what moves logs has ended before");
            }
        }
        for replica in self.opening.router.take_all().into_values() {
            replica.close().await;
        }
        // Its tasks have ended.
        let router = Arc::clone(&self.opening.router);
        if let Some(Opening { peers, .. }) = Arc::into_inner(self.opening)
            && let Some(peers) = Arc::into_inner(peers)
        {
            peers.close().await;
        }
        let closing = move || {
            let mut logs = router.store.logs().into_iter();
            logs.try_for_each(NodeLog::close)
        };
        Ok(blocking(closing).await?)
    }
}

/// Removes the tables of a replica, if there are any.
fn remove_tables(device: &dyn Device, id: ReplicaId, dir: &Path) -> Result<(), NodeError> {
    match device.remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(NodeError::Files {
            what: format!("removing the tables of replica {id}"),
            problem: error.to_string(),
        }),
        _ => Ok(()),
    }
}

/// Removes the tables of replicas that were removed, where a stop came before that.
fn remove_tables_of_removed(device: &dyn Device, disks: &[PathBuf], store: &NodeStore) {
    let is_removed = |id| matches!(store.replica(id), Err(StoreError::Removed { .. }));
    for (_, dir) in tables(device, disks)
        .into_iter()
        .filter(|(id, _)| is_removed(*id))
    {
        if let Err(error) = device.remove_dir_all(&dir) {
            tracing::warn!(%error, dir = %dir.display(), "tables of a removed replica are left");
        }
    }
}

/// The replicas that have tables on the disks, each with their directory.
fn tables(device: &dyn Device, disks: &[PathBuf]) -> Vec<(ReplicaId, PathBuf)> {
    let of_disk = |disk: &PathBuf| {
        let machines = disk.join(MACHINES);
        // An error: there are none yet, or what opens them says what is wrong.
        let names = device.list(&machines).unwrap_or_default().into_iter();
        let names = names.filter(collie_io::Entry::is_dir);
        let found = names.filter_map(|name| Some((name.name.parse().ok()?, machines.join(&name.name))));
        found.collect::<Vec<_>>()
    };
    disks.iter().flat_map(of_disk).collect()
}

/// From one look for room for logs that had none to be opened to the next.
const OPEN_LATE: Duration = Duration::from_secs(2);

/// Opens the logs that had no room when the node began, and their replicas, as soon as they have.
async fn open_late(opening: Arc<Opening>) {
    let store = |opening: &Opening| opening.router.store.unopened();
    for (replica, error) in store(&opening) {
        tracing::error!(replica, %error, "the log of a replica is not opened before its disk has room");
    }
    while !store(&opening).is_empty() {
        sleep(OPEN_LATE).await;
        let router = Arc::clone(&opening.router);
        let open = async move { router.store.open_late().await };
        for log in blocking_while(open).await {
            tracing::info!(
                replica = log.replica(),
                "the log of a replica has room, and is opened"
            );
            opening.open(log, None);
            count(&opening.changes);
        }
    }
}

/// Keeps the logs short.
async fn maintain(router: Arc<Router>, beat: Beat) {
    let mut ticks = beat.every(MAINTENANCE);
    // One at a time of each: on a full disk a flush may wait.
    let flushing = Arc::new(Mutex::new(BTreeSet::new()));
    let flush = |id: ReplicaId| {
        let Some(replica) = router.replica(id) else { return };
        if !flushing.lock().insert(id) {
            return;
        }
        let flushing = Arc::clone(&flushing);
        tokio::spawn(async move {
            if let Err(error) = replica.flush().await {
                tracing::warn!(%error, "a replica that holds the log is not flushed");
            }
            flushing.lock().remove(&id);
        });
    };
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = router.store.pressed() => {}
        }
        for log in router.store.logs() {
            if let Err(error) = log.maintain(&flush).await {
                tracing::warn!(%error, ?log, "the log is not kept short");
            }
        }
    }
}

#[cfg(feature = "testing")]
impl Node {
    /// How many logs have moved since it was started.
    #[must_use]
    pub fn log_moves_made(&self) -> u64 {
        self.moves.moved()
    }

    /// Where it takes connections.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.opening.peers.address()
    }

    /// Begins a group with these members, of which one is on this node. To be called on the node of
    /// each, with the same members; the one with the lowest id begins.
    ///
    /// # Errors
    /// [`NodeError::Members`]; [`StoreError::Exists`] and [`StoreError::Removed`] where the replica is
    /// or was here; raft's.
    pub async fn bootstrap(
        &self,
        group: GroupId,
        members: BTreeMap<ReplicaId, Member>,
    ) -> Result<Arc<Replica>, NodeError> {
        let node = self.opening.options.peers.identity.node;
        let mut here = members.iter().filter(|(_, member)| member.node == node);
        let (Some((&id, member)), None) = (here.next(), here.next()) else {
            let found = members.values().filter(|member| member.node == node).count();
            return Err(NodeError::Members { group, node, found });
        };
        let replica = self.create(group, id, member.disk as usize).await?;
        if members.keys().next() == Some(&id) {
            replica.opened().await?;
            replica.initialize(members).await?;
        }
        Ok(replica)
    }
}
