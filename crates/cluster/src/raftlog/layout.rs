//! All logs of a node: which log a replica is in.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::Device;
use collie_log::{LogError, LogSet, LogSetOptions, OnLostRing};
use parking_lot::Mutex;

use crate::ids::{EntryId, GroupId, ReplicaId};
use crate::layouts::{Layout, Layouts};
use crate::raftlog::error::StoreError;
use crate::raftlog::limit::Alarms;
use crate::raftlog::moving::{move_to, without_room};
use crate::raftlog::node_log::NodeLog;
use crate::raftlog::options::NodeLogOptions;
use crate::raftlog::recovery::Quarantined;
use crate::raftlog::replica_log::ReplicaLog;

/// Options of all logs of a node.
#[derive(Clone)]
pub struct NodeStoreOptions {
    /// A directory on each disk. The first one's log also holds the tombstones.
    pub disks: Vec<PathBuf>,
    /// Which log a new replica goes into, until the node gets another layout.
    pub layout: Layouts,
    /// How logs of many replicas are opened.
    pub shared: NodeLogOptions,
    /// How logs of one replica are opened: small ones that keep little in memory. Those of a disk share
    /// its limit, and the threads of a [`LogSet`], unless the options name one.
    pub private: NodeLogOptions,
    /// That of the first disk. Default: one is made.
    pub set: Option<LogSet>,
    /// How many logs are opened at a time. Default 8.
    pub open_at_a_time: usize,
    /// Stores which logs have lost entries that did not wait for the disk. Default: none.
    pub on_lost_ring: Option<NoteLostRing>,
}

impl std::fmt::Debug for NodeStoreOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeStoreOptions")
            .field("disks", &self.disks)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

impl Default for NodeStoreOptions {
    fn default() -> Self {
        Self {
            disks: Vec::new(),
            layout: Layouts::default(),
            shared: NodeLogOptions::default(),
            private: NodeLogOptions::default(),
            set: None,
            open_at_a_time: 8,
            on_lost_ring: None,
        }
    }
}

/// Called for each log that is opened: it has [`NodeLog::run`] run by a task.
pub type Opened = Box<dyn Fn(&NodeLog) + Send + Sync>;

/// The logs of a node.
///
/// What a replica's log holds is in one log, and which one is found by opening all.
pub struct NodeStore {
    pub(super) options: NodeStoreOptions,
    pub(super) opened: Opened,
    pub(super) logs: Mutex<BTreeMap<LogPlace, NodeLog>>,
    /// The threads of the small logs of each disk, once there is one.
    pub(super) sets: Mutex<BTreeMap<usize, LogSet>>,
    /// The disks whose logs take no room. Changed with `logs` locked, so that it holds for all of them.
    pub(super) withheld: Mutex<BTreeSet<usize>>,
    pub(super) layouts: Mutex<Layouts>,
    /// One replica moves at a time.
    pub(super) moving: tokio::sync::Mutex<()>,
    /// A log that no replica is in is removed when no replica is being made.
    pub(super) creating: tokio::sync::RwLock<()>,
    pub(super) alarms: Alarms,
    /// Private logs that have not been opened, since their disks were full, and why. No replica of theirs is anywhere
    /// else: what another log has of it is older, or a copy that is not complete.
    pub(super) unopened: Mutex<BTreeMap<LogPlace, StoreError>>,
}

/// A log: a disk, and the replica that has it for its own, if one has.
pub(crate) type LogAt = (u32, Option<ReplicaId>);

/// Stores for good that a log has lost the ring of the process before, or says why it cannot. It blocks.
pub type NoteLostRing = Arc<dyn Fn(LogAt) -> std::io::Result<()> + Send + Sync>;

/// A log's place: a disk's shared log, or a replica's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LogPlace {
    pub(super) disk: usize,
    pub(super) replica: Option<ReplicaId>,
}

impl LogPlace {
    /// Where tombstones are.
    pub(super) const FIRST: Self = Self {
        disk: 0,
        replica: None,
    };

    fn at(self) -> LogAt {
        (u32::try_from(self.disk).unwrap_or(u32::MAX), self.replica)
    }

    /// What stands in the first frame of a copy from there: never zeros.
    fn mark(self) -> [u8; 16] {
        let mut mark = [0; 16];
        mark[0] = 1;
        mark[4..8].copy_from_slice(&u32::try_from(self.disk).unwrap_or(u32::MAX).to_le_bytes());
        mark[8..].copy_from_slice(&self.replica.unwrap_or(0).to_le_bytes());
        mark
    }
}

/// Removes what a log has of replicas whose tombstones are in the first log, where the one here was lost with the
/// process.
pub(super) fn forget_removed(log: &NodeLog, first: &NodeLog) -> Result<(), StoreError> {
    let whole = log.replicas();
    let whole = whole.iter().map(|replica| (replica.group(), replica.replica()));
    let lost = log.quarantined();
    let lost = lost.iter().map(|lost| (lost.group, lost.replica));
    for (group, replica) in whole
        .chain(lost)
        .filter(|(_, replica)| first.is_removed(*replica))
    {
        log.forget(group, replica)?;
    }
    Ok(())
}

/// The directory of the logs, on each disk.
const LOGS: &str = "raft";
const SHARED: &str = "shared";
const PRIVATE: &str = "replica-";
/// A private log on its way out has this before its name.
const GONE: &str = "gone-";

impl std::fmt::Debug for NodeStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.logs.lock().iter()).finish()
    }
}

impl NodeStore {
    /// Opens all logs that are on the disks. A private log without a replica is removed. Blocks.
    ///
    /// # Errors
    /// Those of [`NodeLog::open`]; [`StoreError::Options`] without a disk, and
    /// [`StoreError::TwoLogs`] where a replica is in two logs.
    pub fn open(options: NodeStoreOptions, opened: Opened) -> Result<Self, StoreError> {
        if options.disks.is_empty() {
            return Err(StoreError::Options {
                option: "disks",
                problem: "there is none".to_owned(),
            });
        }
        let this = Self {
            opened,
            logs: Mutex::new(BTreeMap::new()),
            sets: Mutex::new(options.set.iter().map(|set| (0, set.clone())).collect()),
            withheld: Mutex::default(),
            layouts: Mutex::new(options.layout.clone()),
            moving: tokio::sync::Mutex::default(),
            creating: tokio::sync::RwLock::default(),
            alarms: Alarms::default(),
            unopened: Mutex::default(),
            options,
        };
        // It says who was removed: what is left of their logs is not opened.
        let first = this.open_log(LogPlace::FIRST)?;
        let mut places = Vec::new();
        for place in this.places()? {
            if place.replica.is_some_and(|replica| first.is_removed(replica)) {
                this.remove_dir(place)?;
            } else if place != LogPlace::FIRST {
                places.push(place);
            }
        }
        for (place, log) in this.open_all(&places)? {
            let log = match log {
                Ok(log) => log,
                Err(full) => {
                    this.unopened.lock().insert(place, full);
                    continue;
                }
            };
            forget_removed(&log, &first)?;
            this.logs.lock().insert(place, log);
        }
        this.logs.lock().insert(LogPlace::FIRST, first.clone());
        this.settle(&first, |replica| !this.is_unopened(replica))?;
        for place in this.unused() {
            this.remove_log(place)?;
        }
        this.share_limits();
        for log in this.logs.lock().values() {
            (this.opened)(log);
        }
        Ok(this)
    }

    /// The logs that are there, and those that there should be. What is left of removed ones goes.
    fn places(&self) -> Result<Vec<LogPlace>, StoreError> {
        let mut places = Vec::new();
        for disk in 0..self.options.disks.len() {
            let dir = self.logs_dir(disk);
            let shared = LogPlace { disk, replica: None };
            if disk > 0 && self.options.layout.has_log_of_disk(disk) {
                places.push(shared);
            }
            let names = match self.device().list(&dir) {
                Ok(names) => names,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(io("list", &dir, error)),
            };
            for name in names.into_iter().filter(collie_io::Entry::is_dir) {
                let replica = name.name.strip_prefix(PRIVATE).and_then(|id| id.parse().ok());
                if replica.is_some() {
                    places.push(LogPlace { disk, replica });
                } else if name.name == SHARED {
                    places.push(shared);
                } else if name.name.starts_with(GONE) {
                    let path = dir.join(&name.name);
                    let removed = self.device().remove_dir_all(&path);
                    removed.map_err(|error| io("remove", &path, error))?;
                }
            }
        }
        places.sort_unstable();
        places.dedup();
        Ok(places)
    }

    /// Private logs may have no room to be opened.
    fn open_all(
        &self,
        places: &[LogPlace],
    ) -> Result<BTreeMap<LogPlace, Result<NodeLog, StoreError>>, StoreError> {
        let open = |place: &LogPlace| match self.open_log(*place) {
            Err(full) if full.is_full_disk() && place.replica.is_some() => Ok((*place, Err(full))),
            opened => opened.map(|log| (*place, Ok(log))),
        };
        // Without threads of their own the logs are opened one after the other, as simulations want it.
        let threads = match self.options.shared.log.threads {
            true => self.options.open_at_a_time.clamp(1, places.len().max(1)),
            false => 1,
        };
        let parts = places.chunks(places.len().div_ceil(threads).max(1));
        let opened = std::thread::scope(|scope| {
            let threads: Vec<_> = parts
                .map(|part| {
                    let all = move || part.iter().map(open).collect::<Result<Vec<_>, _>>();
                    // A thread that cannot be started is done without.
                    let thread = std::thread::Builder::new().name("collie-open".to_owned());
                    match self.options.shared.log.threads {
                        true => thread.spawn_scoped(scope, all).map_err(|_| all),
                        false => Err(all),
                    }
                })
                .collect();
            let join = threads.into_iter().map(|thread| match thread {
                Ok(thread) => thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(all) => all(),
            });
            join.collect::<Result<Vec<_>, _>>()
        })?;
        Ok(opened.into_iter().flatten().collect())
    }

    /// Each of these replicas is in one log, also where one of several has lost frames of it to damage: in the one of the highest
    /// generation. What the others have is let go, and so are copies that are not complete.
    pub(super) fn settle(&self, first: &NodeLog, of: impl Fn(ReplicaId) -> bool) -> Result<(), StoreError> {
        let logs = self.logs.lock();
        let mut homes = BTreeMap::<ReplicaId, (u32, LogPlace, u32)>::new();
        let (mut left, mut changed) = (Vec::new(), BTreeSet::new());
        for (&place, log) in &*logs {
            let all = log.shared.node.lock().generations().into_iter();
            for (replica, generation, stream) in all.filter(|(replica, ..)| of(*replica)) {
                let Some((other, at, other_stream)) = homes.get(&replica).copied() else {
                    homes.insert(replica, (generation, place, stream));
                    continue;
                };
                if generation == other {
                    let paths = [self.dir(at), self.dir(place)];
                    return Err(StoreError::TwoLogs { replica, paths });
                }
                if generation < other {
                    left.push((place, stream));
                } else {
                    left.push((at, other_stream));
                    homes.insert(replica, (generation, place, stream));
                }
            }
        }
        for (&place, log) in &*logs {
            let coming = log.shared.node.lock().coming().into_iter();
            for (_, replica, stream) in coming.filter(|(_, replica, _)| of(*replica)) {
                if homes.contains_key(&replica) || first.is_removed(replica) {
                    left.push((place, stream));
                } else {
                    log.quarantine_copy(stream);
                    changed.insert(place);
                }
            }
        }
        for (place, stream) in left {
            if let Some(log) = logs.get(&place) {
                log.let_go(stream);
                changed.insert(place);
            }
        }
        for log in changed.iter().filter_map(|place| logs.get(place)) {
            // On a full disk the next opening does all this again.
            without_room(log.shared.append_directory(true))?;
        }
        Ok(())
    }

    /// The replicas in these logs, and those whose logs are not open.
    pub(crate) fn replicas_in(&self, at: &BTreeSet<LogAt>) -> BTreeSet<ReplicaId> {
        let logs = self.logs.lock();
        let of = logs.iter().filter(|(place, _)| at.contains(&place.at()));
        let of = of.flat_map(|(_, log)| log.replicas());
        let unopened = self.unopened.lock();
        let unopened = unopened.keys().filter_map(|place| place.replica);
        of.map(|log| log.replica()).chain(unopened).collect()
    }

    /// The logs that no replica is in, and that none is to be in.
    pub(super) fn unused(&self) -> Vec<LogPlace> {
        let layouts = self.layouts();
        let logs = self.logs.lock();
        let unused = logs.iter().filter(|(place, log)| {
            let is_of_disk = place.replica.is_none() && layouts.has_log_of_disk(place.disk);
            let is_wanted = **place == LogPlace::FIRST || is_of_disk;
            !is_wanted && log.is_empty() && log.log().recovery().damaged.is_empty()
        });
        unused.map(|(place, _)| *place).collect()
    }

    /// Closes and removes a log. Blocks.
    pub(super) fn remove_log(&self, place: LogPlace) -> Result<(), StoreError> {
        let Some(log) = self.logs.lock().remove(&place) else {
            return Ok(());
        };
        self.share_limits();
        log.close()?;
        self.remove_dir(place)
    }

    pub(super) fn open_log(&self, place: LogPlace) -> Result<NodeLog, StoreError> {
        let dir = self.dir(place);
        let mut options = match place.replica {
            Some(_) => self.options.private.clone(),
            None => self.options.shared.clone(),
        };
        let limit = options.limit_in(&dir);
        // Where replicas have logs of their own, the shared one has little to do.
        let is_small = place.replica.is_some() || self.layouts.lock().node() == Layout::Private;
        if is_small && options.log.threads && options.log.set.is_none() {
            options.log.set = Some(self.set(place.disk)?);
        }
        let note = self.options.on_lost_ring.clone();
        options.log.on_lost_ring = note.map(|note| OnLostRing(Arc::new(move |_| note(place.at()))));
        NodeLog::open_with(dir, options, limit, self.alarms.clone())
    }

    fn set(&self, disk: usize) -> Result<LogSet, StoreError> {
        let mut sets = self.sets.lock();
        if let Some(set) = sets.get(&disk) {
            return Ok(set.clone());
        }
        let set = LogSet::new(LogSetOptions::default())?;
        sets.insert(disk, set.clone());
        Ok(set)
    }

    pub(super) fn device(&self) -> &Arc<dyn Device> {
        &self.options.shared.log.device
    }

    pub(super) fn logs_dir(&self, disk: usize) -> PathBuf {
        let disk = self.options.disks.get(disk);
        disk.map(|disk| disk.join(LOGS)).unwrap_or_default()
    }

    pub(super) fn dir(&self, place: LogPlace) -> PathBuf {
        let dir = self.logs_dir(place.disk);
        match place.replica {
            Some(replica) => dir.join(format!("{PRIVATE}{replica}")),
            None => dir.join(SHARED),
        }
    }

    /// Removes a private log. A part of one would be taken for a damaged log, so its directory gets
    /// another name first.
    fn remove_dir(&self, place: LogPlace) -> Result<(), StoreError> {
        let device = self.device();
        let (dir, logs) = (self.dir(place), self.logs_dir(place.disk));
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        let gone = logs.join(format!("{GONE}{name}"));
        let renamed = device.rename(&dir, &gone).and_then(|()| device.sync_dir(&logs));
        renamed.map_err(|error| io("rename", &dir, error))?;
        let removed = device.remove_dir_all(&gone).and_then(|()| device.sync_dir(&logs));
        removed.map_err(|error| io("remove", &gone, error))
    }

    /// All logs.
    #[must_use]
    pub fn logs(&self) -> Vec<NodeLog> {
        self.logs.lock().values().cloned().collect()
    }

    /// All replicas, in the order of their ids.
    #[must_use]
    pub fn replicas(&self) -> Vec<ReplicaLog> {
        let logs = self.logs();
        let mut all: Vec<_> = logs.iter().flat_map(NodeLog::replicas).collect();
        all.retain(|replica| !self.is_unopened(replica.replica()));
        all.sort_by_key(ReplicaLog::replica);
        all
    }

    /// The replicas that damage took frames of.
    #[must_use]
    pub fn quarantined(&self) -> Vec<Quarantined> {
        self.logs().iter().flat_map(NodeLog::quarantined).collect()
    }

    /// The log of a replica.
    ///
    /// # Errors
    /// As [`NodeLog::replica`].
    pub fn replica(&self, id: ReplicaId) -> Result<ReplicaLog, StoreError> {
        if let Some(full) = self.unopened_log(id) {
            return Err(full);
        }
        let mut answer = Err(StoreError::Unknown { replica: id });
        for log in self.logs() {
            match log.replica(id) {
                Err(StoreError::Unknown { .. }) => {}
                // It is so for good, whatever another log still has.
                Err(removed @ StoreError::Removed { .. }) => return Err(removed),
                found => answer = found,
            }
            if answer.is_ok() {
                break;
            }
        }
        answer
    }

    /// Adds a replica which has its home on this disk, counted from 0: without entries and without a vote, or one whose
    /// tables have everything up to an entry, which is purged: it has no other, and its vote is that of the entry's term.
    /// It is durable when this returns. One call at a time for an id. In layout [`Private`](Layout::Private) this opens
    /// a log, and blocks on that.
    ///
    /// # Errors
    /// [`StoreError::Removed`], [`StoreError::Exists`], [`StoreError::Quarantined`],
    /// [`StoreError::Streams`], and the log's; [`StoreError::Options`] where there is no such disk.
    pub async fn create_behind(
        &self,
        (group, id): (GroupId, ReplicaId),
        disk: usize,
        purged: Option<EntryId>,
    ) -> Result<ReplicaLog, StoreError> {
        if disk >= self.options.disks.len() {
            return Err(StoreError::Options {
                option: "disk",
                problem: format!("there are {} disks, and no disk {disk}", self.options.disks.len()),
            });
        }
        match self.replica(id) {
            Err(StoreError::Unknown { .. }) => {}
            Err(error) => return Err(error),
            Ok(_) => return Err(StoreError::Exists { group, replica: id }),
        }
        let _creating = self.creating.read().await;
        let log = self.log_at(self.wanted(id, disk))?;
        log.create_behind(group, id, purged).await
    }

    /// Where the layout has the log of a replica.
    fn wanted(&self, id: ReplicaId, disk: usize) -> LogPlace {
        match self.layouts.lock().of(id, disk) {
            Layout::Shared => LogPlace::FIRST,
            Layout::PerDisk => LogPlace { disk, replica: None },
            Layout::Private => LogPlace {
                disk,
                replica: Some(id),
            },
        }
    }

    /// Which log a new replica goes into. Those that are there stay where they are until they are
    /// [moved](NodeStore::move_replica).
    #[must_use]
    pub fn layouts(&self) -> Layouts {
        self.layouts.lock().clone()
    }

    /// Sets which log a new replica goes into.
    pub fn set_layouts(&self, layouts: Layouts) {
        *self.layouts.lock() = layouts;
    }

    /// Whether the log of a replica, which has its home on this disk, is where the layout has it.
    #[must_use]
    pub fn is_placed(&self, replica: &ReplicaLog, disk: usize) -> bool {
        self.place_of(replica) == Some(self.wanted(replica.replica(), disk))
    }

    fn place_of(&self, replica: &ReplicaLog) -> Option<LogPlace> {
        let shared = replica.shared();
        let logs = self.logs.lock();
        let mut places = logs.iter();
        let (place, _) = places.find(|(_, log)| Arc::ptr_eq(&log.shared, &shared))?;
        Some(*place)
    }

    /// Moves the log of a replica, which has its home on this disk, to where the layout has it, and says whether it
    /// was elsewhere. Its appends wait for a moment only. The log that it leaves is removed if it was the last there
    /// and the layout has none in it. Blocks on reads of entries that are not in memory, and where a log is opened or
    /// removed.
    ///
    /// # Errors
    /// Those of [`NodeStore::replica`] and [`ReplicaLog::read`], the logs', and why the other log takes no writes;
    /// [`LogError::Closed`] where it is not to go on. The replica is where it was then, unless a log has failed.
    ///
    /// # Cancel safety
    /// Dropped, it may leave the replica without appends for good: let `goes_on` say no instead.
    pub async fn move_replica(
        &self,
        id: ReplicaId,
        disk: usize,
        goes_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<bool, StoreError> {
        let _one = self.moving.lock().await;
        let replica = self.replica(id)?;
        let (wanted, unknown) = (self.wanted(id, disk), StoreError::Unknown { replica: id });
        let from = self.place_of(&replica).ok_or(unknown)?;
        if from == wanted {
            return Ok(false);
        }
        self.check_room_for(wanted)?;
        let target = {
            let _creating = self.creating.read().await;
            self.log_at(wanted)?
        };
        let moved = match target.takes_no_writes() {
            Some(full) => Err(full),
            None => move_to(&replica, &target, from.mark(), goes_on).await,
        };
        if moved.is_err() {
            target.let_go_of_copies(id);
        }
        let _none_is_made = self.creating.write().await;
        // Whatever was damaged in a log of its own is not needed any more.
        let left = from.replica.filter(|_| moved.is_ok()).map(|_| from);
        for place in self.unused().into_iter().chain(left) {
            if let Err(error) = self.remove_log(place) {
                let dir = self.dir(place);
                tracing::warn!(%error, dir = %dir.display(), "an empty log is not removed before the next start");
            }
        }
        moved.map(|()| true)
    }

    fn log_at(&self, place: LogPlace) -> Result<NodeLog, StoreError> {
        let mut logs = self.logs.lock();
        if let Some(log) = logs.get(&place) {
            return Ok(log.clone());
        }
        let log = self.open_log(place)?;
        if self.withheld.lock().contains(&place.disk) {
            log.withhold_room(true);
        }
        (self.opened)(&log);
        logs.insert(place, log.clone());
        drop(logs);
        self.share_limits();
        Ok(log)
    }

    /// Removes a replica for good, also one that was never here: it leaves a tombstone, which is
    /// durable when this returns. A log of its own is closed and removed, and this blocks on that.
    ///
    /// # Errors
    /// The log's.
    pub async fn remove(&self, group: GroupId, replica: ReplicaId) -> Result<(), StoreError> {
        // First the one that lasts: without it, a replica whose log is gone would be unknown.
        let first = self.log_at(LogPlace::FIRST)?;
        first.remove(group, replica).await?;
        let others: Vec<_> = {
            let logs = self.logs.lock();
            let others = logs.iter().filter(|(place, _)| **place != LogPlace::FIRST);
            others.map(|(place, log)| (*place, log.clone())).collect()
        };
        for (place, log) in others {
            if place.replica == Some(replica) {
                // Where it moves, it does not come.
                log.mark_removed();
                self.remove_log(place)?;
            } else if place.replica.is_none() && log.knows(replica) {
                log.remove(group, replica).await?;
            }
        }
        Ok(())
    }
}

fn io(op: &'static str, path: &Path, error: std::io::Error) -> StoreError {
    StoreError::Log(LogError::Io {
        op,
        path: path.to_owned(),
        source: Arc::new(error),
    })
}

#[cfg(any(test, feature = "testing"))]
impl NodeStore {
    /// Adds a replica without entries and without a vote.
    ///
    /// # Errors
    /// As [`NodeStore::create_behind`].
    pub async fn create(&self, group: GroupId, id: ReplicaId, disk: usize) -> Result<ReplicaLog, StoreError> {
        self.create_behind((group, id), disk, None).await
    }
}

#[cfg(feature = "testing")]
impl NodeStore {
    /// Closes all logs. Blocks.
    ///
    /// # Errors
    /// The first error of a log; the others are closed all the same.
    pub fn close(self) -> Result<(), StoreError> {
        let logs = self.logs.into_inner();
        let answers: Vec<_> = logs.into_values().map(NodeLog::close).collect();
        answers.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use collie_log::{LogOptions, RingMode};

    #[tokio::test]
    async fn private_logs_of_a_disk_share_its_limit_and_threads() {
        const LIMIT: u64 = 256 << 20;
        let dir = tempfile::tempdir().unwrap();
        let small = NodeLogOptions {
            log: LogOptions {
                ring: RingMode::Private,
                ring_bytes: 64 << 10,
                segment_bytes: 64 << 10,
                reserve_bytes: Some(0),
                ..LogOptions::default()
            },
            log_limit: Some(LIMIT),
            ..NodeLogOptions::default()
        };
        let options = NodeStoreOptions {
            disks: vec![dir.path().to_owned()],
            layout: Layout::Private.into(),
            shared: small.clone(),
            private: small,
            ..NodeStoreOptions::default()
        };
        let handle = tokio::runtime::Handle::current();
        let run = move |log: &NodeLog| drop(handle.spawn(log.run()));
        let store = NodeStore::open(options, Box::new(run)).unwrap();
        for replica in 1..=4 {
            store.create(replica, replica, 0).await.unwrap();
        }
        let limits = || {
            let logs = store.logs().into_iter().skip(1);
            logs.map(|log| log.stats().limit).collect::<Vec<_>>()
        };
        assert_eq!(limits(), [LIMIT / 4; 4]);
        let logs = store.logs();
        let private = logs.iter().skip(1);
        assert!(private.clone().all(|log| log.shared.options.log.set.is_some()));
        store.remove(1, 1).await.unwrap();
        store.remove(2, 2).await.unwrap();
        assert_eq!(limits(), [LIMIT / 2; 2]);
    }
}
