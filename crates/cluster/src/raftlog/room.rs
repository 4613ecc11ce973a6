//! A log whose disk is full. Want of room puts nothing at risk, so it is waited for: proposals are
//! refused before they are submitted, followers take no entries, and what has to be appended all the
//! same waits.
//!
//! A log prepares room on its disk ahead of need. From the moment that it cannot, proposals are
//! refused, and what is prepared is left to what was submitted before, to votes, and to purges, by
//! which the log lets go of its oldest part. Only where that is used up as well an append waits.
//!
//! The same goes while the reserve of the disk is missing: tables are to have what room there is, since
//! what is removed is gone from the disk, and from the logs, only when it is in tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use collie_log::LogError;

use crate::raftlog::error::StoreError;
use crate::raftlog::node_log::NodeLog;
use crate::raftlog::patience::Patience;
use crate::raftlog::replica_log::ReplicaLog;
use crate::raftlog::shared::NodeLogInner;

/// Of what is prepared, entries of a leader leave so many bytes to votes and purges; in a log with a
/// small ring, a part of that.
const KEPT: u64 = 256 << 10;
const KEPT_OF_RING: u64 = 8;
/// And so many more to entries that only remove, by which room is made.
const FOR_REMOVALS: u64 = 1 << 20;
const FOR_REMOVALS_OF_RING: u64 = 4;
/// A vote is granted where so many bytes are prepared.
const VOTE: u64 = 4 << 10;

impl NodeLogInner {
    /// Why no more room could be prepared on the disk when that was last tried, if it is full, or why
    /// none is.
    pub(super) fn shortage(&self) -> Option<StoreError> {
        match self.log.setback() {
            Some(LogError::StorageFull { path, .. }) => Some(StoreError::NoRoom { path }),
            // Relaxed: what is decided by it is only done earlier or later.
            _ if self.withheld.load(Ordering::Relaxed) => Some(StoreError::NoRoom {
                path: self.dir.clone(),
            }),
            _ => None,
        }
    }

    /// What of the prepared room is not for entries that do this.
    fn kept_from(&self, purpose: Purpose) -> u64 {
        let ring = self.options.log.ring_bytes as u64;
        let kept = KEPT.min(ring / KEPT_OF_RING);
        match purpose {
            Purpose::Remove => kept,
            Purpose::Write => kept + FOR_REMOVALS.min(ring / FOR_REMOVALS_OF_RING),
        }
    }

    /// Refuses so many bytes of entries where the disk is full and they are not prepared for.
    pub(super) fn reserve(self: &Arc<Self>, bytes: u64, purpose: Purpose) -> Result<Reserved, StoreError> {
        // Relaxed, also below: it counts, and nothing else hangs on it.
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
        let reserved = Reserved::new(self, bytes, |shared| &shared.reserved);
        if bytes > 0 {
            self.check_prepared(self.needed(purpose))?;
        }
        if purpose == Purpose::Remove {
            self.limit.count_removals(bytes);
        }
        Ok(reserved)
    }

    /// What is to be prepared for all that is reserved, and for what is kept from the last entries.
    fn needed(&self, last: Purpose) -> u64 {
        let reserved = self.reserved.load(Ordering::Relaxed);
        reserved.saturating_add(self.kept_from(last))
    }

    fn check_prepared(&self, bytes: u64) -> Result<(), StoreError> {
        match self.shortage() {
            Some(full) if !self.log.has_prepared(bytes) => Err(full),
            _ => Ok(()),
        }
    }
}

/// What entries are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// They bring values into tables.
    Write,
    /// They only remove.
    Remove,
}

/// Room for entries that are not appended yet: prepared on the disk, or of the log's limit.
pub(crate) struct Reserved {
    shared: Arc<NodeLogInner>,
    bytes: u64,
    /// Where it is counted.
    of: fn(&NodeLogInner) -> &AtomicU64,
}

impl Reserved {
    /// Of bytes that were counted there.
    pub(super) fn new(log: &Arc<NodeLogInner>, bytes: u64, of: fn(&NodeLogInner) -> &AtomicU64) -> Self {
        let shared = Arc::clone(log);
        Self { shared, bytes, of }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl std::fmt::Debug for Reserved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Reserved").field(&self.bytes).finish()
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        (self.of)(&self.shared).fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl NodeLog {
    /// [`StoreError::NoRoom`] while the disk of the log is full: no more is to be proposed. What is
    /// prepared is left to what was submitted before.
    #[must_use]
    pub fn shortage(&self) -> Option<StoreError> {
        self.shared.shortage()
    }

    /// Whether the log is to leave all room on its disk to what makes room: its disk counts as full, and
    /// appends have what is prepared.
    pub(super) fn withhold_room(&self, withheld: bool) {
        // Relaxed: see `shortage`.
        self.shared.withheld.store(withheld, Ordering::Relaxed);
        self.log().withhold_room(withheld);
    }

    /// Says whether a replica in this log may take over leadership: not if it takes no writes, or took none
    /// lately.
    pub(crate) fn set_may_take_over(&self, may: bool) {
        // Relaxed: nothing else hangs on it.
        self.shared.may_take_over.store(may, Ordering::Relaxed);
    }
}

impl ReplicaLog {
    /// The same log, whose appends wait for room on a full disk.
    pub(crate) fn waiting(mut self, patience: Patience) -> Self {
        self.patience = Some(patience);
        self
    }

    /// Whether an append waits for room.
    pub(crate) fn is_waiting(&self) -> bool {
        self.patience.as_ref().is_some_and(Patience::is_waiting)
    }

    /// As [`NodeLog::shortage`].
    pub(crate) fn shortage(&self) -> Option<StoreError> {
        self.shared().shortage()
    }

    /// Reserves room for so many bytes of a leader's entries, until they are appended; refuses them
    /// where they would have to wait, with those that others have reserved for.
    pub(crate) fn reserve(&self, bytes: u64, purpose: Purpose) -> Result<Reserved, StoreError> {
        self.shared().reserve(bytes, purpose)
    }

    /// As [`ReplicaLog::reserve`], and waits until the log has prepared so much, or can not: ahead of need
    /// it prepares for small entries only. An append that waits for room in the middle of raft holds up
    /// all that the replica does, and with it what would make room. `purpose` is asked where that makes a
    /// difference.
    ///
    /// # Errors
    /// The log's; [`StoreError::is_no_room`] where there is none.
    pub(crate) async fn reserve_prepared(
        &self,
        bytes: u64,
        purpose: impl Fn() -> Purpose,
    ) -> Result<Reserved, StoreError> {
        let shared = self.shared();
        let (reserved, of) = match shared.reserve(bytes, Purpose::Write) {
            Err(full) if full.is_no_room() && purpose() == Purpose::Remove => {
                (shared.reserve(bytes, Purpose::Remove)?, Purpose::Remove)
            }
            reserved => (reserved?, Purpose::Write),
        };
        let needed = shared.needed(of);
        // One without threads prepares room when it appends.
        if bytes == 0 || !shared.threads || shared.log.has_prepared(needed) {
            return Ok(reserved);
        }
        let most = shared.options.log.max_payload();
        let frame = usize::try_from(needed).map_or(most, |needed| needed.min(most));
        match shared.log.room(frame).await {
            Err(LogError::StorageFull { .. })
                if shared.log.has_prepared(shared.needed(Purpose::Remove))
                    && purpose() == Purpose::Remove => {}
            room => room?,
        }
        Ok(reserved)
    }

    /// Refuses what begins a term where it would have to wait.
    pub(crate) fn check_first_entry(&self) -> Result<(), StoreError> {
        let shared = self.shared();
        shared.check_prepared(shared.needed(Purpose::Remove).saturating_add(VOTE))
    }

    /// Refuses a vote where it would have to wait.
    pub(crate) fn check_vote(&self) -> Result<(), StoreError> {
        self.shared().check_prepared(VOTE)
    }

    /// Whether this replica may take over leadership, as far as its log goes.
    pub(crate) fn may_take_over(&self) -> bool {
        // Relaxed: see `set_may_take_over`.
        let may = self.shared().may_take_over.load(Ordering::Relaxed);
        may && self.shared().takes_no_writes().is_none()
    }

    /// Waits a moment before an append is tried again that found no room on the disk. Said once, where
    /// `is_said` is false.
    ///
    /// # Errors
    /// The one that is waited for, where it is not to be.
    pub(super) async fn wait_for_room(&self, error: LogError, is_said: &mut bool) -> Result<(), StoreError> {
        let Some(patience) = &self.patience else {
            return Err(error.into());
        };
        if !std::mem::replace(is_said, true) {
            let replica = self.replica();
            tracing::error!(replica, %error, "a replica waits until there is room for its log");
        }
        match patience.pause().await {
            true => Ok(()),
            false => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::ids::{EntryId, LeaderId, Vote};
    use crate::raftlog::{Entry, NodeLogOptions};
    use collie_log::{LogOptions, RingMode, WritePath};
    use collie_sim::SimDevice;
    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::watch;
    use tokio::task::JoinHandle;

    const LEADER: LeaderId = LeaderId { term: 1, replica: 10 };
    const ENTRIES: u64 = 100;

    fn open(device: &SimDevice) -> NodeLog {
        let log = LogOptions {
            device: Arc::new(device.clone()),
            ring: RingMode::Private,
            ring_bytes: 64 << 10,
            segment_bytes: 64 << 10,
            max_workers: 4,
            write_path: WritePath::FdataSync,
            ..LogOptions::default()
        };
        let options = NodeLogOptions {
            log,
            ..NodeLogOptions::default()
        };
        NodeLog::open("/data/log", options).unwrap()
    }

    /// One thread: what blocks it stops all.
    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    async fn append_all(replica: ReplicaLog) -> Result<usize, StoreError> {
        let done = Arc::new(AtomicUsize::new(0));
        for index in 0..ENTRIES {
            let id = EntryId {
                leader: LEADER,
                index,
            };
            let payload = vec![index as u8; 3_000].into();
            let done = Arc::clone(&done);
            let note = move |answer: Result<(), StoreError>| {
                answer.unwrap();
                done.fetch_add(1, Ordering::SeqCst);
            };
            replica.append(vec![Entry { id, payload }], note).await?;
        }
        let vote = Vote {
            leader: LEADER,
            committed: true,
        };
        replica.save_vote(vote).await?;
        while (done.load(Ordering::SeqCst) as u64) < ENTRIES {
            tokio::task::yield_now().await;
        }
        Ok(done.load(Ordering::SeqCst))
    }

    /// A replica whose append waits, its log, and what ends the wait.
    async fn waiting(
        device: &SimDevice,
    ) -> (
        NodeLog,
        ReplicaLog,
        watch::Sender<bool>,
        JoinHandle<Result<usize, StoreError>>,
    ) {
        let log = open(device);
        tokio::spawn(log.run());
        let stop = watch::Sender::new(false);
        let replica = log.create(1, 10).await.unwrap();
        let replica = replica.waiting(Patience::until(stop.subscribe()));
        device.limit_space(Some(0));
        let appending = tokio::spawn(append_all(replica.clone()));
        while !replica.is_waiting() {
            assert!(!appending.is_finished(), "there is room");
            tokio::task::yield_now().await;
        }
        (log, replica, stop, appending)
    }

    #[test]
    fn an_append_on_a_full_disk_waits_and_other_logs_go_on() {
        runtime().block_on(async {
            let (device, other) = (SimDevice::new(1), open(&SimDevice::new(2)));
            let (log, replica, _stop, appending) = waiting(&device).await;
            let full = log.admit().unwrap_err();
            assert!(
                full.to_string().starts_with("BUSY no space left for the log"),
                "{full}"
            );
            assert!(replica.reserve(3_000, Purpose::Write).is_err() && !replica.may_take_over());
            tokio::spawn(other.run());
            let of_other = other.create(1, 10).await.unwrap();
            assert_eq!(append_all(of_other).await.unwrap() as u64, ENTRIES);
            assert!(other.admit().is_ok());
            assert!(!appending.is_finished(), "nothing has room");
            device.limit_space(None);
            assert_eq!(appending.await.unwrap().unwrap() as u64, ENTRIES);
            let entries = replica.read(0..ENTRIES).unwrap();
            let found = entries.iter().map(|entry| (entry.id.index, entry.payload[0]));
            assert!(found.eq((0..ENTRIES).map(|index| (index, index as u8))));
            assert_eq!(replica.vote().map(|vote| vote.committed), Some(true));
            assert!(!replica.is_waiting() && log.log().poisoned().is_none());
            while log.admit().is_err() {
                tokio::task::yield_now().await;
            }
        });
    }

    #[test]
    fn a_wait_for_room_ends_with_the_replica() {
        runtime().block_on(async {
            let device = SimDevice::new(3);
            let (log, replica, stop, appending) = waiting(&device).await;
            stop.send_replace(true);
            let error = appending.await.unwrap().unwrap_err();
            assert!(error.is_no_room(), "{error}");
            assert!(log.log().poisoned().is_none());
            let before = replica.bounds();
            assert!(before.last.is_some());
            drop(replica);
            log.close().unwrap();
            // The disk is full as before.
            let log = open(&device);
            let replica = log.replica(10).unwrap();
            assert_eq!(replica.bounds(), before);
            while log.admit().is_ok() {
                tokio::task::yield_now().await;
            }
        });
    }

    /// So entries that come at once do not take together what is kept for votes.
    #[test]
    fn what_is_reserved_is_not_there_for_others() {
        runtime().block_on(async {
            let device = SimDevice::new(4);
            let log = open(&device);
            tokio::spawn(log.run());
            let replica = log.create(1, 10).await.unwrap();
            device.limit_space(Some(0));
            // As far as that room must be prepared, which fails; not so far that none is left.
            let mut index = 0;
            while log.admit().is_ok() {
                if log.log().has_prepared(28 << 10) {
                    let id = EntryId {
                        leader: LEADER,
                        index,
                    };
                    let payload = vec![7; 500].into();
                    replica.append(vec![Entry { id, payload }], |_| {}).await.unwrap();
                    index += 1;
                }
                tokio::task::yield_now().await;
            }
            let all = |purpose| {
                let rooms = std::iter::from_fn(|| replica.reserve(1_000, purpose).ok());
                let rooms: Vec<_> = rooms.take(1_000).collect();
                assert!((1..1_000).contains(&rooms.len()), "{}", rooms.len());
                rooms
            };
            let (written, shared) = (all(Purpose::Write), replica.shared());
            let kept = shared.kept_from(Purpose::Write);
            assert!(shared.log.has_prepared(kept), "what removes has no room");
            let many = written.len();
            let removed = all(Purpose::Remove);
            let for_removals = kept - shared.kept_from(Purpose::Remove);
            assert!(removed.len() as u64 * 1_000 > for_removals - 1_000);
            drop((written, removed));
            assert_eq!(all(Purpose::Write).len(), many);
            assert!(
                replica.reserve(0, Purpose::Write).is_ok(),
                "a heartbeat needs no room"
            );
        });
    }
}
