//! What a log takes before it is proposed: nothing more where it is too long, and no entry that is too large.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::raftlog::error::StoreError;
use crate::raftlog::frames::{ENTRIES_HEAD, ENTRY_HEAD};
use crate::raftlog::limit::writes_below;
use crate::raftlog::node_log::NodeLog;
use crate::raftlog::replica_log::ReplicaLog;
use crate::raftlog::room::Reserved;
use crate::raftlog::shared::NodeLogInner;
use crate::raftlog::state::Holding;

/// A log that is full is waited for so long before commands are refused: it is being made shorter.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

impl NodeLogInner {
    /// Says who holds the log if it has so many bytes.
    fn full_at(&self, bytes: u64) -> Option<StoreError> {
        let (used, since) = self.limit.full_since(&self.log, bytes)?;
        let (holder, held, why) = self.holder();
        Some(StoreError::Full {
            used,
            limit: self.limit.bytes(),
            holder,
            held,
            why,
            lasts: since.elapsed() >= PATIENCE,
        })
    }

    /// Who holds the log's oldest part, how much of the log that is, and why.
    fn holder(&self) -> (String, u64, Option<Holding>) {
        let Some((name, from)) = self.log.holders().into_iter().next() else {
            return ("its last segment".to_owned(), self.used(), None);
        };
        let replicas = self.replicas();
        let replica = replicas.iter().find(|replica| replica.holder() == name);
        let why = replica.map(|replica| replica.holding());
        (name, self.log.appended().saturating_sub(from), why)
    }

    /// Where the log is full, why: as [`NodeLogInner::admit`] would say.
    pub(super) fn full(&self) -> Option<StoreError> {
        self.full_at(writes_below(self.limit.bytes()))
    }

    /// Why it takes no writes, where that lasts: its disk is full, or it has been too long for seconds.
    pub(super) fn takes_no_writes(&self) -> Option<StoreError> {
        let full = || self.full().filter(StoreError::lasts);
        self.shortage().or_else(full)
    }

    /// Refuses a write where the log is full or its disk is.
    pub(super) fn admit(&self) -> Result<(), StoreError> {
        self.limit.press(&self.log);
        let full = self.shortage();
        self.refuse(full.or_else(|| self.full()))
    }

    /// Refuses what takes data away where the log is full for that, too: it has reached its limit, and has
    /// taken removals since for the part that is kept for them. Entries of other leaders may have taken that
    /// part, and more, before a removal came that lets them go.
    pub(super) fn admit_removal(&self) -> Result<(), StoreError> {
        self.limit.press(&self.log);
        let full = self.full_at(self.limit.bytes());
        let is_left = self.limit.takes_removals();
        self.refuse(full.filter(|_| !is_left))
    }

    /// Has a command in parts count until that is dropped: all in this log together have no more than `limit`
    /// bytes, or there is one. Otherwise it is refused for now.
    pub(super) fn reserve_parts(self: &Arc<Self>, bytes: u64, limit: u64) -> Result<Reserved, StoreError> {
        let with = |before: u64| (before == 0 || before + bytes <= limit).then_some(before + bytes);
        // Relaxed: it counts, and nothing else hangs on it.
        let counted = self
            .in_parts
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, with);
        let refused = |held| {
            self.note_refusal();
            StoreError::Full {
                used: self.used(),
                limit: self.limit.bytes(),
                holder: "large commands under way".to_owned(),
                held,
                why: None,
                lasts: false,
            }
        };
        counted.map_err(refused)?;
        Ok(Reserved::new(self, bytes, |shared| &shared.in_parts))
    }

    fn refuse(&self, full: Option<StoreError>) -> Result<(), StoreError> {
        let Some(full) = full else { return Ok(()) };
        self.note_refusal();
        Err(full)
    }

    fn note_refusal(&self) {
        // Relaxed: a number and a flag by themselves.
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        self.limit.note_refusal();
    }
}

impl NodeLog {
    /// Where the log is full, why.
    pub(crate) fn full(&self) -> Option<StoreError> {
        self.shared.full()
    }

    /// Why it takes no writes, where that lasts: its disk is full, or it has been too long for seconds.
    pub(crate) fn takes_no_writes(&self) -> Option<StoreError> {
        self.shared.takes_no_writes()
    }
}

impl ReplicaLog {
    /// As [`NodeLog::admit`], of the log that this replica is in.
    ///
    /// # Errors
    /// [`StoreError::Full`], [`StoreError::NoRoom`].
    pub fn admit(&self) -> Result<(), StoreError> {
        self.shared().admit()
    }

    /// The same of a proposal that takes data away: a part of the log's limit is kept for these. On a full
    /// disk it has what is prepared, see [`ReplicaLog::reserve`].
    ///
    /// # Errors
    /// [`StoreError::Full`].
    pub(crate) fn admit_removal(&self) -> Result<(), StoreError> {
        self.shared().admit_removal()
    }

    /// Whether its log takes entries of a leader elsewhere, for which room is reserved: not where it is far
    /// beyond its limit by such, and is being made shorter.
    pub(crate) fn takes_of_leader(&self, reserved: &Reserved) -> bool {
        let shared = self.shared();
        shared.limit.press(&shared.log);
        // Relaxed: it counts, and nothing else hangs on it. What is appended is counted until it is durable.
        let all = shared.reserved.load(Ordering::Relaxed);
        let appended = shared.log.appended().saturating_sub(shared.log.durable());
        let coming = all.saturating_sub(reserved.bytes().saturating_add(appended));
        shared.limit.takes_of_leaders(&shared.log, coming)
    }

    /// A command is refused since followers take none: what waits for room waits for them, too.
    pub(crate) fn note_refusal(&self) {
        self.shared().limit.note_refusal();
    }

    /// Has a command in parts count. See [`NodeLogInner::reserve_parts`].
    ///
    /// # Errors
    /// [`StoreError::Full`], for now.
    pub(crate) fn reserve_parts(&self, bytes: u64, limit: u64) -> Result<Reserved, StoreError> {
        self.shared().reserve_parts(bytes, limit)
    }

    /// Where its log is full, why.
    pub(crate) fn full(&self) -> Option<StoreError> {
        self.shared().full()
    }

    /// The limit of its log, in bytes.
    pub(crate) fn limit(&self) -> u64 {
        self.shared().limit.bytes()
    }

    /// The largest entry that a frame of the log takes, in bytes.
    pub(crate) fn largest_entry(&self) -> usize {
        let most = self.shared().options.log.max_payload();
        most.saturating_sub(ENTRIES_HEAD + ENTRY_HEAD)
    }

    /// Refuses an entry of so many bytes where no frame takes it: raft would take a refusal of the append
    /// for the end of the replica.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`].
    pub(crate) fn check_size(&self, bytes: usize) -> Result<(), StoreError> {
        let limit = self.largest_entry();
        match bytes <= limit {
            true => Ok(()),
            false => Err(StoreError::TooLarge { bytes, limit }),
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl NodeLog {
    /// Whether more may be proposed: ask before an entry is handed to raft, which takes a refusal of
    /// [`ReplicaLog::append`] for the end of the replica.
    ///
    /// # Errors
    /// [`StoreError::Full`] where the log has reached its limit but for what is kept for removals,
    /// [`StoreError::NoRoom`] where its disk is full.
    pub fn admit(&self) -> Result<(), StoreError> {
        self.shared.admit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{EntryId, LeaderId};
    use crate::raftlog::limit::FOR_REMOVALS;
    use crate::raftlog::{Entry, NodeLogOptions, Purpose};
    use collie_sim::SimDevice;

    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    }

    fn open(log_limit: Option<u64>) -> NodeLog {
        let mut options = NodeLogOptions {
            log_limit,
            ..NodeLogOptions::default()
        };
        options.log.device = Arc::new(SimDevice::new(1));
        options.log.ring = collie_log::RingMode::Private;
        options.log.ring_bytes = 64 << 10;
        NodeLog::open("/log", options).unwrap()
    }

    /// Each alone has less than the limit. Which partitions they are of does not matter.
    #[test]
    fn commands_in_parts_share_a_part_of_the_limit_and_one_goes_on() {
        let runtime = runtime();
        runtime.block_on(async {
            let log = open(None);
            let (one, other) = (log.create(1, 10).await.unwrap(), log.create(2, 20).await.unwrap());
            let first = one.reserve_parts(60, 100).unwrap();
            let error = other.reserve_parts(41, 100).unwrap_err();
            assert!(
                matches!(
                    error,
                    StoreError::Full {
                        held: 60,
                        lasts: false,
                        ..
                    }
                ),
                "{error}"
            );
            let second = other.reserve_parts(40, 100).unwrap();
            drop(first);
            assert!(other.reserve_parts(61, 100).is_err());
            drop(second);
            drop(other.reserve_parts(101, 100).unwrap());
        });
    }

    /// A follower's log takes what its leader sends, beyond its limit too. What its own leaders remove
    /// would be refused for good, and nothing would let go of the log.
    #[test]
    fn removals_have_their_part_in_a_log_that_is_beyond_its_limit() {
        let runtime = runtime();
        runtime.block_on(async {
            const LIMIT: u64 = 4 << 20;
            let log = open(Some(LIMIT));
            tokio::spawn(log.run());
            let replica = log.create(1, 10).await.unwrap();
            let leader = LeaderId { term: 1, replica: 10 };
            let id = |index| EntryId { leader, index };
            let mut index = 0;
            let mut fill = async || {
                while log.shared.used() < LIMIT * 5 / 4 {
                    let entry = Entry {
                        id: id(index),
                        payload: vec![7; 10_000].into(),
                    };
                    replica.append(vec![entry], |_| {}).await.unwrap();
                    index += 1;
                }
            };
            let removals = || {
                let mut taken = 0;
                while replica.admit_removal().is_ok() {
                    drop(replica.reserve(4 << 10, Purpose::Remove).unwrap());
                    taken += 4 << 10;
                }
                taken
            };
            fill().await;
            assert!(replica.admit().is_err());
            assert_eq!((removals(), removals()), (LIMIT / FOR_REMOVALS, 0));
            // They have let go of it, and it is full again.
            replica
                .purge_durably(replica.bounds().last.unwrap())
                .await
                .unwrap();
            let let_go = async {
                while replica.admit().is_err() {
                    log.maintain(&|_| {}).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let let_go = tokio::time::timeout(Duration::from_secs(30), let_go).await;
            let_go.expect("the log is as long as before");
            fill().await;
            assert!(replica.admit().is_err());
            assert_eq!(removals(), LIMIT / FOR_REMOVALS);
        });
    }

    /// What fills it may be what none can commit while none takes more.
    #[test]
    fn far_beyond_its_limit_a_log_takes_more_only_where_it_stays_so() {
        let runtime = runtime();
        runtime.block_on(async {
            const LIMIT: u64 = 4 << 20;
            let log = open(Some(LIMIT));
            tokio::spawn(log.run());
            let replica = log.create(1, 10).await.unwrap();
            let leader = LeaderId { term: 1, replica: 10 };
            let mut index = 0;
            let mut fill_to = async |bytes: u64| {
                while log.shared.used() < bytes {
                    let id = EntryId { leader, index };
                    let payload = vec![7; 10_000].into();
                    replica.append(vec![Entry { id, payload }], |_| {}).await.unwrap();
                    index += 1;
                }
            };
            let takes = || {
                let reserved = replica.reserve(10_000, Purpose::Write).unwrap();
                replica.takes_of_leader(&reserved)
            };
            fill_to(LIMIT * 5 / 4).await;
            assert!(takes(), "its own leaders alone are refused at its limit");
            // What others are about to append counts, and not what is asked for.
            let coming = replica.reserve(LIMIT / 8, Purpose::Write).unwrap();
            assert!(!takes() && replica.takes_of_leader(&coming));
            drop(coming);
            fill_to(LIMIT * 4 / 3).await;
            assert!(!takes() && !takes());
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(!takes());
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(takes(), "it does not become shorter");
            tokio::time::resume();
            fill_to(LIMIT * 3 / 2).await;
            assert!(!takes(), "it takes a part more, not all");
            let last = replica.bounds().last.unwrap();
            replica.purge_durably(last).await.unwrap();
            let shorter = async {
                while !takes() {
                    log.maintain(&|_| {}).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let shorter = tokio::time::timeout(Duration::from_secs(30), shorter).await;
            shorter.expect("the log is as long as before");
            assert!(log.shared.used() < LIMIT * 4 / 3);
        });
    }
}
