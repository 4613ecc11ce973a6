//! A replica's log moves to another log of its node, while it is written.
//!
//! The new log gets a copy under the next generation, whose first state says that it is not complete. Entries are
//! copied while others are appended. For the last ones appends wait; then a state frame says that the copy is
//! complete, and the old log's directory leaves the replica out. Appends go on, in the new log, when both are on the
//! device.
//!
//! So a replica is whole in one log at each moment. A stop finds a copy that is not complete, which is let go, or one
//! that is: then the old log has the same, and is let go.

use std::sync::Arc;

use collie_log::LogError;

use crate::ids::{EntryId, ReplicaId};
use crate::raftlog::error::StoreError;
use crate::raftlog::frames::StreamFrame;
use crate::raftlog::node_log::NodeLog;
use crate::raftlog::replica_log::ReplicaLog;
use crate::raftlog::shared::Residence;
use crate::raftlog::state::Presence;

/// Entries are copied in steps of about so many bytes.
const STEP: u64 = 1 << 20;
/// When no more are left than this, appends wait for them.
const LAST_STEP: u64 = 256 << 10;

/// Moves a replica, as long as it is to go on. Where this fails, the replica is where it was, and `target` may have a
/// copy that is not complete.
pub(super) async fn move_to(
    replica: &ReplicaLog,
    target: &NodeLog,
    from_log: [u8; 16],
    goes_on: &(dyn Fn() -> bool + Sync),
) -> Result<(), StoreError> {
    let from = replica.residence();
    let unknown = || StoreError::Unknown {
        replica: replica.replica(),
    };
    let mut first = from.replica.live.lock().state.as_frame().ok_or_else(unknown)?;
    first.generation += 1;
    first.from_log = from_log;
    first.last = first.purged;
    let copy = target.begin_copy(first, &from.replica).await?;
    let to = copy.residence();
    loop {
        while copy_step(replica, &copy).await? > LAST_STEP && goes_on() {
            refuse_full(target)?;
        }
        if !goes_on() {
            return Err(LogError::Closed.into());
        }
        let mut payload = Vec::new();
        match finish(replica, &copy, target, first.generation, &mut payload).await {
            // Appends do not wait for that.
            Err(StoreError::Log(LogError::WouldBlock)) => to.log.log.room(payload.len()).await?,
            done => return done,
        }
    }
}

fn refuse_full(target: &NodeLog) -> Result<(), StoreError> {
    match target.takes_no_writes() {
        Some(full) => Err(full),
        None => Ok(()),
    }
}

/// Copies some entries, and says about how many bytes that were: all that were there if they are less than a step.
async fn copy_step(replica: &ReplicaLog, copy: &ReplicaLog) -> Result<u64, StoreError> {
    let bounds = replica.bounds();
    let (mut same, copied) = (copy.bounds().last, copy.bounds().purged);
    let is_gone = |id: &EntryId| {
        let purged = bounds.purged.is_some_and(|purged| id.index < purged.index);
        // What it has purged was committed: it is the same.
        purged || copied.is_some_and(|copied| id.index <= copied.index)
    };
    // What was cut off meanwhile goes, too. Where the ids are the same all before are.
    while let Some(id) = same.filter(|id| !is_gone(id) && replica.id(id.index) != Some(*id)) {
        same = id.index.checked_sub(1).and_then(|index| copy.id(index));
    }
    copy.truncate(same).await?;
    if let Some(purged) = bounds.purged {
        copy.purge(purged).await?;
    }
    let next = copy.bounds().last.map_or(0, |last| last.index + 1);
    let entries = replica.read_up_to(next..u64::MAX, STEP)?;
    let follows = |index| next == 0 || index == next;
    if entries.first().is_none_or(|first| !follows(first.id.index)) {
        // None is left; or more was purged meanwhile, which is looked at again.
        return Ok(if entries.is_empty() { 0 } else { STEP });
    }
    let bytes = entries.iter().map(|entry| entry.payload.len() as u64 + 64).sum();
    copy.append(entries, |_| {}).await?;
    // No faster than the device takes them.
    let to = copy.residence();
    to.wait_async(to.log.log.appended()).await?;
    Ok(bytes)
}

/// The last part, for which appends wait.
async fn finish(
    replica: &ReplicaLog,
    copy: &ReplicaLog,
    target: &NodeLog,
    generation: u32,
    payload: &mut Vec<u8>,
) -> Result<(), StoreError> {
    let (from, to) = (replica.residence(), copy.residence());
    let mut pause = Pause::begin(&from)?;
    while copy_step(replica, copy).await? > 0 {}
    // Who waits for it hears of it before the old log goes.
    from.wait_async(from.log.log.appended()).await?;
    {
        // Held so that no directory behind the last frame leaves the replica out.
        let mut node = target.shared.node.lock();
        if !node.is_coming(&to.replica) {
            let replica = replica.replica();
            return Err(StoreError::Removed { replica });
        }
        append_last(&from, &to, generation, payload)?;
        // From here on the copy may be found complete after a stop. If it is not known to be, nothing may be appended
        // to either log any more: the new one has failed, and with it the node.
        pause.is_decided = true;
        node.has_come(&to.replica, replica.home());
    }
    // On a full disk it comes later; until then more damage is taken for the replica's.
    without_room(target.shared.append_directory_async().await)?;
    to.wait_async(to.log.log.appended()).await?;
    // What is read is read there from now on; the old log goes.
    let last_frame = {
        let mut old = from.replica.live.lock();
        let mut new = to.replica.live.lock();
        new.cache = std::mem::take(&mut old.cache);
        new.state.commit(old.state.committed_index());
        new.presence = Presence::Waiting;
        replica.home().set(Arc::clone(&to));
        // Behind it: who finds it so finds the new log.
        old.presence = Presence::Gone;
        old.state.last_frame
    };
    from.replica.resumed.notify_waiters();
    from.log.node.lock().retire(Arc::clone(&from.replica), last_frame);
    without_room(from.log.append_directory_async().await)?;
    from.wait_async(from.log.log.appended()).await?;
    to.replica.live.lock().presence = Presence::Here;
    to.replica.resumed.notify_waiters();
    Ok(())
}

/// Says that the copy is complete: it has all entries, and what else there is stands in this frame.
fn append_last(
    from: &Residence,
    to: &Residence,
    generation: u32,
    payload: &mut Vec<u8>,
) -> Result<(), StoreError> {
    let old = from.replica.live.lock();
    let mut new = to.replica.live.lock();
    let replica = from.replica.identity.replica;
    if old.state.removed || new.state.removed {
        return Err(StoreError::Removed { replica });
    }
    let mut last = old.state.as_frame().ok_or(StoreError::Unknown { replica })?;
    last.generation = generation;
    if new.state.last != last.last {
        let problem = format!(
            "its copy ends with {:?}, and not with {:?}",
            new.state.last, last.last
        );
        return Err(StoreError::Order { replica, problem });
    }
    let frame = StreamFrame::State(last);
    let prev = new.state.last_frame;
    frame.encode(prev, payload);
    let span = to.log.append(to.replica.stream, &frame, payload)?;
    new.state.apply(prev, &frame, span);
    debug_assert_eq!(new.state.contradiction, None);
    new.committed_said = new.state.committed_index();
    Ok(())
}

pub(super) fn without_room(appended: Result<(), StoreError>) -> Result<(), StoreError> {
    match appended {
        Err(error) if error.is_no_room() => Ok(()),
        done => done,
    }
}

/// Appends wait. Dropped, they go on where they were, unless that is decided otherwise.
struct Pause<'a> {
    from: &'a Residence,
    is_decided: bool,
}

impl<'a> Pause<'a> {
    fn begin(from: &'a Residence) -> Result<Self, StoreError> {
        let mut live = from.replica.live.lock();
        if live.state.removed {
            let replica = from.replica.identity.replica;
            return Err(StoreError::Removed { replica });
        }
        live.presence = Presence::Waiting;
        drop(live);
        Ok(Self {
            from,
            is_decided: false,
        })
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        if !self.is_decided {
            self.from.replica.live.lock().presence = Presence::Here;
            self.from.replica.resumed.notify_waiters();
        }
    }
}

impl NodeLog {
    /// Lets go of copies of a replica that are not complete.
    pub(super) fn let_go_of_copies(&self, replica: ReplicaId) {
        let coming = self.shared.node.lock().coming();
        let copies = coming.iter().filter(|(_, id, _)| *id == replica);
        copies.for_each(|(_, _, stream)| self.let_go(*stream));
    }

    /// Lets go of a stream whose replica is in another one.
    pub(super) fn let_go(&self, stream: u32) {
        let mut node = self.shared.node.lock();
        if let Some(stream) = node.stream(stream) {
            let last_frame = stream.live.lock().state.last_frame;
            node.retire(stream, last_frame);
        }
        if let Some(holder) = node.let_go_of_quarantined(|lost| lost.stream == stream) {
            self.log().release(&holder);
        }
    }

    /// Nothing is appended any more of what is here.
    pub(super) fn mark_removed(&self) {
        for replica in self.shared.replicas() {
            replica.live.lock().state.removed = true;
            replica.resumed.notify_waiters();
        }
    }

    /// Keeps the copy of a replica that is in no other log, and does not run it.
    pub(super) fn quarantine_copy(&self, stream: u32) {
        let mut node = self.shared.node.lock();
        if let Some((copy, lost)) = node.quarantine_copy(stream) {
            self.log().retain(&lost.holder(), lost.oldest);
            copy.unpin(self.log());
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::future::Future;
    use std::time::Duration;

    use collie_log::{Level, RingMode};
    use collie_sim::SimDevice;

    use super::*;
    use crate::ids::LeaderId;
    use crate::layouts::Layout;
    use crate::raftlog::{Entry, NodeLogOptions, NodeStore, NodeStoreOptions};

    fn open(device: &SimDevice) -> NodeStore {
        let mut shared = NodeLogOptions {
            log_limit: Some(1 << 20),
            ..NodeLogOptions::default()
        };
        shared.log.device = Arc::new(device.clone());
        shared.log.ring = RingMode::Private;
        shared.log.ring_bytes = 64 << 10;
        shared.log.segment_bytes = 64 << 10;
        let options = NodeStoreOptions {
            disks: vec!["/disk0".into(), "/disk1".into()],
            layout: Layout::PerDisk.into(),
            private: shared.clone(),
            shared,
            ..NodeStoreOptions::default()
        };
        NodeStore::open(options, Box::new(|log| drop(tokio::spawn(log.run())))).unwrap()
    }

    async fn append(replica: &ReplicaLog, bytes: usize) {
        let index = replica.bounds().last.map_or(0, |last| last.index + 1);
        let leader = LeaderId { term: 1, replica: 1 };
        let entry = Entry {
            id: EntryId { leader, index },
            payload: vec![7; bytes].into(),
        };
        replica.append(vec![entry], |_| {}).await.unwrap();
    }

    async fn move_to_disk(store: &NodeStore, id: ReplicaId, disk: usize) {
        assert!(store.move_replica(id, disk, &|| true).await.unwrap());
    }

    pub(in crate::raftlog) fn run(test: impl Future<Output = ()>) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().unwrap();
        let test = async { tokio::time::timeout(Duration::from_secs(60), test).await };
        runtime.block_on(test).expect("it never ends");
    }

    /// Its log wants it to purge, whichever that is by now.
    #[test]
    fn who_purges_is_woken_by_the_log_that_a_replica_has_moved_to() {
        run(async {
            let store = open(&SimDevice::new(1));
            let moved = store.create(1, 10, 0).await.unwrap();
            let other = store.create(2, 20, 1).await.unwrap();
            append(&moved, 10_000).await;
            let mut wanted = std::pin::pin!(moved.purge_wanted());
            assert!(futures_util::poll!(&mut wanted).is_pending());
            move_to_disk(&store, 10, 1).await;
            for _ in 0..12 {
                append(&other, 10_000).await;
            }
            for log in store.logs() {
                log.maintain(&|_| {}).await.unwrap();
            }
            wanted.await;
        });
    }

    /// After an opening, streams are numbered from the first free one on: that which the replica had.
    #[test]
    fn a_replica_comes_back_to_a_log_under_its_number_there() {
        let device = SimDevice::new(2);
        run(async {
            let store = open(&device);
            let moved = store.create(1, 10, 0).await.unwrap();
            store.create(2, 20, 0).await.unwrap();
            append(&moved, 100).await;
            let logs = store.logs();
            logs.iter().for_each(|log| drop(log.log().flush(Level::Disk)));
            logs.into_iter().try_for_each(NodeLog::close).unwrap();
        });
        run(async {
            let store = open(&device);
            let (moved, other) = (store.replica(10).unwrap(), store.replica(20).unwrap());
            let stream = moved.residence().replica.stream;
            move_to_disk(&store, 10, 1).await;
            let first = store.logs().remove(0);
            let end = first.log().appended();
            while first.log().oldest() < end {
                append(&other, 10_000).await;
                let last = other.bounds().last.unwrap();
                other.purge_durably(last).await.unwrap();
                first.maintain(&|_| {}).await.unwrap();
            }
            move_to_disk(&store, 10, 0).await;
            assert_eq!(moved.residence().replica.stream, stream);
            append(&moved, 100).await;
            assert_eq!(store.replica(10).unwrap().read(0..10).unwrap().len(), 2);
        });
    }

    /// Who waits for room would not be woken otherwise: the log that refused it is gone.
    #[test]
    fn a_refusal_outlasts_the_log_that_a_replica_has_left() {
        run(async {
            let store = open(&SimDevice::new(3));
            store.set_layouts(Layout::Private.into());
            let moved = store.create(1, 10, 0).await.unwrap();
            while moved.admit().is_ok() {
                append(&moved, 10_000).await;
            }
            let logs = store.logs().len();
            store.set_layouts(Layout::PerDisk.into());
            move_to_disk(&store, 10, 0).await;
            assert_eq!(store.logs().len(), logs - 1, "its own log is gone");
            assert!(store.has_refused());
            assert!(!store.has_refused());
        });
    }

    /// Else the logs that are there could not grow to what they may have, and refuse writes.
    #[test]
    fn a_log_of_its_own_is_made_where_the_disk_has_room_for_all() {
        run(async {
            let device = SimDevice::new(4);
            let store = open(&device);
            let ids = [10, 20, 30];
            for id in ids {
                let replica = store.create(id, id, 0).await.unwrap();
                append(&replica, 100).await;
            }
            store.set_layouts(Layout::Private.into());
            let move_one = async |id| store.move_replica(id, 0, &|| true).await;
            // Each may take 1 MiB; and one more is to be left.
            device.limit_space(Some((7 << 20) / 2));
            let moved = [move_one(10).await, move_one(20).await, move_one(30).await];
            assert!(matches!(moved[0], Ok(true)), "{moved:?}");
            let refused = moved[2].as_ref().unwrap_err();
            assert!(matches!(refused, StoreError::NoRoomForLog { .. }), "{refused}");
            assert!(
                refused
                    .to_string()
                    .contains("MB left, and a log more there needs"),
                "{refused}"
            );
            device.limit_space(None);
            assert!(move_one(30).await.unwrap());
        });
    }
}
