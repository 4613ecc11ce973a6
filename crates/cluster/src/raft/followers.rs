//! What a leader learns from its followers' answers to appends, beside what raft makes of them: which
//! disks are full, and who has lost what it had acknowledged.
//!
//! The partitions that have replicas on a disk learn together that it is full: otherwise each would
//! take a write that cannot be committed to find out.
//!
//! The log of a follower goes back where an operator puts an older copy of its directory in its place.
//! Raft counts on that never happening, and sends such a follower nothing any more. What it has lost
//! can only be lost for good while it lacks it, so it gets everything anew at once. It is shown to the
//! operator, as what that replica had voted is forgotten, too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use crate::ids::{LeaderId, ReplicaId};
use crate::raft::types::Members;
use crate::transport::wire::NodeId;

/// A follower that has lost entries is shown for so long.
const SHOWN: Duration = Duration::from_secs(10 * 60);

/// Asks that raft sends a follower everything anew; answered when it will.
pub(super) type Anew = (ReplicaId, oneshot::Sender<()>);

/// A disk counts as full for so long after the last refusal. Raft tries entries that were refused again
/// within that time; where it has none left, a write finds out.
const FULL_FOR: Duration = Duration::from_secs(5);

/// The disks of other nodes whose logs take no entries, as the leaders on this node have learned.
#[derive(Debug, Default)]
pub struct FullDisks(Mutex<Without<(NodeId, u32)>>);

impl FullDisks {
    fn learned(&self, disk: (NodeId, u32), is_full: bool) {
        note(&self.0, disk, is_full);
    }

    /// How long so many of the voters have been on them, or without room for tables, or had logs that are too
    /// long, that nothing can be committed, if that is so.
    fn have_most(&self, members: &Members, [tables, logs]: [&Without<ReplicaId>; 2]) -> Option<Duration> {
        let mut full = self.0.lock();
        full.retain(|_, (_, last)| last.elapsed() < FULL_FOR);
        are_most(members, |voter| {
            let member = members.all.get(&voter);
            let disk = member.and_then(|member| full.get(&(member.node, member.disk)));
            longest([disk, tables.get(&voter), logs.get(&voter)])
        })
    }

    fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// How long so many voters have been full that nothing can be committed, if that is so.
fn are_most(members: &Members, full_for: impl Fn(ReplicaId) -> Option<Duration>) -> Option<Duration> {
    let mut full: Vec<_> = members
        .voters
        .iter()
        .filter_map(|voter| full_for(*voter))
        .collect();
    full.sort_unstable_by(|one, other| other.cmp(one));
    full.get(members.voters.len().div_ceil(2).checked_sub(1)?)
        .copied()
}

/// Those without room: since when that is so, and when it was last seen.
type Without<K> = BTreeMap<K, (Instant, Instant)>;

/// How long the one has been without room that has been for longer.
fn longest<const N: usize>(without: [Option<&(Instant, Instant)>; N]) -> Option<Duration> {
    without
        .into_iter()
        .flatten()
        .map(|(since, _)| since.elapsed())
        .max()
}

/// Refusals of what takes data away.
#[derive(Debug, Clone, Copy)]
struct FollowerRefusals {
    since: Instant,
    last: Instant,
    /// How often something was done about it.
    times: usize,
}

fn note<K: Ord>(without: &Mutex<Without<K>>, key: K, is_full: bool) {
    let mut without = without.lock();
    if is_full {
        let now = Instant::now();
        let (since, last) = without.entry(key).or_insert((now, now));
        if last.elapsed() >= FULL_FOR {
            *since = now;
        }
        *last = now;
    } else {
        without.remove(&key);
    }
}

/// The followers of a replica, whenever it leads.
#[derive(Debug)]
pub(super) struct Followers {
    known: Mutex<Known>,
    /// The log does not keep entries up to this index for followers.
    given_up: AtomicU64,
    full: Arc<FullDisks>,
    /// Those that lack entries which the log does not keep, and whose disks had no room for tables: when
    /// each last said so. Of this group alone: the log on such a disk may have room for entries.
    tables: Mutex<Without<ReplicaId>>,
    /// Those that have refused entries of this group for want of room, and none since.
    entries: Mutex<Without<ReplicaId>>,
    /// Those whose logs are so long that they took no entries, and none since.
    long_logs: Mutex<Without<ReplicaId>>,
    /// Since when removals are refused, and when that was last.
    removals: Mutex<Option<FollowerRefusals>>,
    /// Woken by each refusal of entries for want of room.
    refused: Notify,
    anew: mpsc::UnboundedSender<Anew>,
}

#[derive(Debug, Default)]
struct Known {
    /// As whose leadership it was learned.
    leader: Option<LeaderId>,
    /// The last entry that each has acknowledged.
    acknowledged: BTreeMap<ReplicaId, u64>,
    /// Those that had lost what they had acknowledged: when that was seen, and of which entry.
    reverted: BTreeMap<ReplicaId, (Instant, u64)>,
}

impl Followers {
    pub(super) fn new(full: Arc<FullDisks>, anew: mpsc::UnboundedSender<Anew>) -> Self {
        Self {
            known: Mutex::default(),
            given_up: AtomicU64::new(0),
            full,
            tables: Mutex::default(),
            entries: Mutex::default(),
            long_logs: Mutex::default(),
            removals: Mutex::default(),
            refused: Notify::new(),
            anew,
        }
    }

    /// What is known under a leadership; none of one that is over.
    fn under(&self, leader: LeaderId) -> Option<MappedMutexGuard<'_, Known>> {
        MutexGuard::try_map(self.known.lock(), |known| {
            if known.leader < Some(leader) {
                known.leader = Some(leader);
                known.acknowledged.clear();
            }
            (known.leader == Some(leader)).then_some(known)
        })
        .ok()
    }

    /// A follower has all entries up to `last`.
    pub(super) fn has(&self, leader: LeaderId, follower: ReplicaId, last: u64) {
        if let Some(mut known) = self.under(leader) {
            let acknowledged = known.acknowledged.entry(follower).or_default();
            *acknowledged = last.max(*acknowledged);
        }
    }

    /// The log is to be purged up to this index. Raft waits with that until no append is under way to a
    /// follower that lacks some of these entries, and a follower that is slow always has one: so the next
    /// answer of such a one ends what was sent to it.
    pub(super) fn give_up_below(&self, index: u64) {
        // Relaxed, also below: each answer looks again.
        self.given_up.fetch_max(index, Ordering::Relaxed);
    }

    /// Whether a follower whose last entry this is gets tables.
    pub(super) fn is_given_up(&self, last: u64) -> bool {
        last < self.given_up.load(Ordering::Relaxed)
    }

    /// The log of a follower, on a disk of another node, has taken entries, or has no room for them.
    pub(super) fn entries(&self, follower: ReplicaId, disk: (NodeId, u32), is_full: bool) {
        self.full.learned(disk, is_full);
        note(&self.entries, follower, is_full);
        if is_full {
            self.refused.notify_one();
        }
    }

    /// The log of a follower takes entries, or none for now, as it is being made shorter. It gets no tables for that,
    /// and nothing is withdrawn.
    pub(super) fn takes_entries(&self, follower: ReplicaId, takes: bool) {
        note(&self.long_logs, follower, !takes);
    }

    /// The log of a follower has taken entries that only remove. It may have no room for others.
    pub(super) fn took_removals(&self, follower: ReplicaId) {
        note(&self.entries, follower, false);
    }

    /// Whether any disk is known to take no entries.
    pub(super) fn know_full_disks(&self) -> bool {
        !self.full.is_empty()
    }

    /// Waits until a follower has refused entries for want of room.
    pub(super) async fn refused(&self) {
        self.refused.notified().await;
    }

    /// Those that have refused all entries for so long, for want of room. It counts anew from then on.
    pub(super) fn without_room_for(&self, time: Duration) -> Vec<ReplicaId> {
        let mut entries = self.entries.lock();
        entries.retain(|_, (_, last)| last.elapsed() < FULL_FOR);
        let late = entries
            .iter_mut()
            .filter(|(_, (since, _))| since.elapsed() >= time);
        late.map(|(follower, (since, _))| {
            *since = Instant::now();
            *follower
        })
        .collect()
    }

    /// A follower takes tables, or has no room for them.
    pub(super) fn tables(&self, follower: ReplicaId, is_full: bool) {
        note(&self.tables, follower, is_full);
    }

    /// A follower says that it has another entry at `index`, or none. If it had acknowledged that one, this
    /// returns when raft has been asked to send it everything anew; what raft hears before would be a
    /// fault of its own to it.
    pub(super) async fn conflicts(&self, leader: LeaderId, follower: ReplicaId, index: u64) {
        let lost = self.under(leader).and_then(|mut known| {
            let last = *known.acknowledged.get(&follower)?;
            if last < index {
                return None;
            }
            known.acknowledged.remove(&follower);
            known.reverted.insert(follower, (Instant::now(), index));
            Some(last)
        });
        let Some(acknowledged) = lost else { return };
        tracing::error!(
            follower,
            acknowledged,
            index,
            "a replica has lost entries that it had acknowledged, and gets all that it lacks: was an older copy put in the \
             place of its directory?"
        );
        let (asked, done) = oneshot::channel();
        // An error: the replica is ending.
        if self.anew.send((follower, asked)).is_ok() {
            drop(done.await);
        }
    }

    /// A follower has taken tables over.
    pub(super) fn installed(&self, follower: ReplicaId) {
        note(&self.tables, follower, false);
        note(&self.entries, follower, false);
        note(&self.long_logs, follower, false);
    }

    /// How long so many of the voters have had no room for entries that none can be committed, if that is so.
    pub(super) fn most_are_full(&self, members: impl FnOnce() -> Members) -> Option<Duration> {
        let (mut tables, mut logs) = (self.tables.lock(), self.long_logs.lock());
        for without in [&mut *tables, &mut *logs] {
            without.retain(|_, (_, last)| last.elapsed() < FULL_FOR);
        }
        let is_any = !tables.is_empty() || !logs.is_empty() || !self.full.is_empty();
        is_any
            .then(|| self.full.have_most(&members(), [&tables, &logs]))
            .flatten()
    }

    /// The same for what takes data away. It is small, and a log has room for it that has none for larger
    /// entries: so here only those count that have refused entries of this group, before which nothing
    /// else is taken.
    pub(super) fn most_refuse_removals(&self, members: impl FnOnce() -> Members) -> Option<Duration> {
        let (mut tables, mut entries) = (self.tables.lock(), self.entries.lock());
        let mut is_none = true;
        for without in [&mut *tables, &mut *entries] {
            without.retain(|_, (_, last)| last.elapsed() < FULL_FOR);
            is_none &= without.is_empty();
        }
        let full_for = |voter| longest([tables.get(&voter), entries.get(&voter)]);
        let refuse = (!is_none).then(|| are_most(&members(), full_for)).flatten();
        let mut removals = self.removals.lock();
        if refuse.is_some() {
            let now = Instant::now();
            let before = removals.filter(|before| before.last.elapsed() < FULL_FOR);
            let begun = FollowerRefusals {
                since: now,
                last: now,
                times: 0,
            };
            *removals = Some(FollowerRefusals {
                last: now,
                ..before.unwrap_or(begun)
            });
        } else {
            *removals = None;
        }
        refuse
    }

    /// Whether removals are refused for so long by now: how often that was so before. It counts anew from
    /// then on.
    pub(super) fn removals_are_refused_for(&self, time: Duration) -> Option<usize> {
        let mut removals = self.removals.lock();
        let refused = removals.as_mut()?;
        if refused.last.elapsed() >= FULL_FOR || refused.since.elapsed() < time {
            return None;
        }
        refused.since = Instant::now();
        refused.times += 1;
        Some(refused.times - 1)
    }

    /// Whether a follower has lately refused entries, for want of room, and taken none since.
    pub(super) fn refuses(&self, follower: ReplicaId) -> bool {
        let entries = self.entries.lock();
        let last = entries.get(&follower).map(|(_, last)| last.elapsed());
        last.is_some_and(|last| last < FULL_FOR)
    }

    /// Those that have lately refused entries, if so many of the voters lack these that they can elect another
    /// leader without those that have them. Those that get tables lack them, too.
    pub(super) fn most_that_refuse(&self, members: &Members) -> BTreeSet<ReplicaId> {
        let (mut tables, mut entries) = (self.tables.lock(), self.entries.lock());
        for without in [&mut *tables, &mut *entries] {
            without.retain(|_, (_, last)| last.elapsed() < FULL_FOR);
        }
        let voters = members.voters.iter().copied();
        let lack = voters.filter(|id| entries.contains_key(id) || tables.contains_key(id));
        let are_enough = 2 * lack.count() > members.voters.len() && !members.is_joint;
        let refuse = entries.keys().copied().filter(|id| members.voters.contains(id));
        refuse.filter(|_| are_enough).collect()
    }

    /// Those that were seen lately to have lost an entry that they had acknowledged, and which.
    pub(super) fn reverted(&self) -> Vec<(ReplicaId, u64)> {
        let mut known = self.known.lock();
        known.reverted.retain(|_, (at, _)| at.elapsed() < SHOWN);
        known
            .reverted
            .iter()
            .map(|(id, (_, index))| (*id, *index))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::types::Member;

    fn leader(term: u64) -> LeaderId {
        LeaderId { term, replica: 1 }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_committed_while_most_voters_are_on_full_disks() {
        let followers = Followers::new(Arc::default(), mpsc::unbounded_channel().0);
        let member = |node: u64| Member {
            node,
            disk: (node % 2) as u32,
            address: String::new(),
        };
        let members = || Members {
            voters: BTreeSet::from([11, 12, 13]),
            all: (1..=4).map(|node| (node + 10, member(node))).collect(),
            is_joint: false,
            is_applied: true,
            last: 9,
            matched: BTreeMap::new(),
        };
        let most = || followers.most_are_full(members).is_some();
        assert!(!most());
        followers.entries(12, (2, 0), true);
        followers.entries(14, (4, 0), true);
        followers.entries(13, (3, 0), true);
        assert!(
            !most(),
            "two of three have room: 4 has no vote, and 3 is on another disk"
        );
        followers.entries(13, (3, 1), true);
        assert!(most());
        // Kept room is for what removes: that it is taken does not say that a write would be.
        followers.took_removals(12);
        assert!(most() && followers.know_full_disks() && !followers.refuses(12));
        followers.entries(12, (2, 0), false);
        assert!(!most());
        followers.entries(12, (2, 0), true);
        assert!(most());
        // A log that is too long is one of this group alone, and no reason for tables.
        followers.entries(12, (2, 0), false);
        followers.takes_entries(12, false);
        assert!(most() && !followers.refuses(12));
        assert!(
            followers
                .without_room_for(Duration::ZERO)
                .iter()
                .all(|id| *id != 12)
        );
        followers.takes_entries(12, true);
        assert!(!most());
        followers.entries(12, (2, 0), true);
        assert!(most());
        // Raft may have nothing left to try: so a write is let through.
        tokio::time::advance(FULL_FOR).await;
        assert!(!most());
        // One that is to get tables, and has no room for them, takes no entries.
        followers.entries(12, (2, 0), true);
        followers.tables(14, true);
        assert!(!most(), "14 has no vote");
        followers.tables(13, true);
        assert!(most());
        followers.tables(13, false);
        assert!(!most());
        followers.tables(13, true);
        tokio::time::advance(FULL_FOR).await;
        assert!(!most());
    }

    #[tokio::test(start_paused = true)]
    async fn removals_are_refused_where_most_voters_refuse_entries() {
        let followers = Followers::new(Arc::default(), mpsc::unbounded_channel().0);
        let member = |node: u64| Member {
            node,
            disk: 0,
            address: String::new(),
        };
        let members = || Members {
            voters: BTreeSet::from([11, 12, 13]),
            all: (1..=3).map(|node| (node + 10, member(node))).collect(),
            is_joint: false,
            is_applied: true,
            last: 9,
            matched: BTreeMap::new(),
        };
        let refused = || followers.most_refuse_removals(members).is_some();
        // Replicas of another group are on the same disks.
        followers.full.learned((2, 0), true);
        followers.full.learned((3, 0), true);
        assert!(followers.most_are_full(members).is_some() && !refused());
        followers.entries(12, (2, 0), true);
        let refuse = || followers.most_that_refuse(&members());
        let times = |seconds| followers.removals_are_refused_for(Duration::from_secs(seconds));
        let since = |seconds| times(seconds).is_some();
        assert!(!refused() && !since(0) && refuse().is_empty());
        assert!(followers.refuses(12) && !followers.refuses(13));
        followers.entries(13, (3, 0), true);
        assert_eq!(refuse(), BTreeSet::from([12, 13]));
        followers.entries(13, (3, 0), false);
        followers.tables(13, true);
        assert_eq!(refuse(), BTreeSet::from([12]), "13 lacks them, and can vote");
        followers.tables(13, false);
        followers.entries(13, (3, 0), true);
        let two = Members {
            voters: BTreeSet::from([11, 12]),
            ..members()
        };
        assert!(
            followers.most_that_refuse(&two).is_empty(),
            "12 would need the vote of 11"
        );
        for _ in 0..3 {
            assert!(refused() && !since(3));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!([times(3), times(3), times(0)], [Some(0), None, Some(1)]);
        followers.entries(13, (3, 0), false);
        assert!(!refused() && !since(0));
        // One that gets tables takes no entries either. What was refused before counts no more.
        followers.tables(13, true);
        assert!(refused() && since(0) && !since(1));
        tokio::time::advance(FULL_FOR).await;
        assert!(!since(0) && !refused());
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_that_refuses_all_entries_is_named_once() {
        let followers = Followers::new(Arc::default(), mpsc::unbounded_channel().0);
        let named = || followers.without_room_for(Duration::from_secs(10));
        for second in 0..25 {
            followers.entries(12, (2, 0), true);
            followers.refused().await;
            followers.entries(13, (3, 0), second % 8 != 7);
            let expected = if second % 10 == 0 && second > 0 {
                vec![12]
            } else {
                vec![]
            };
            assert_eq!(named(), expected, "after {second} s");
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        // What was refused long before the last time counts no more.
        tokio::time::advance(FULL_FOR).await;
        followers.entries(12, (2, 0), true);
        assert!(named().is_empty());
    }

    #[tokio::test]
    async fn a_follower_that_lost_acknowledged_entries_gets_all_anew() {
        let (sender, mut asked) = mpsc::unbounded_channel();
        let followers = Followers::new(Arc::default(), sender);
        followers.has(leader(5), 2, 9);
        followers.conflicts(leader(5), 2, 10).await;
        followers.conflicts(leader(5), 3, 9).await;
        followers.conflicts(leader(4), 2, 9).await;
        assert_eq!(followers.reverted(), []);
        let allow = async {
            let (follower, allowed) = asked.recv().await.unwrap();
            allowed.send(()).unwrap();
            follower
        };
        let (follower, ()) = tokio::join!(allow, followers.conflicts(leader(5), 2, 9));
        assert_eq!((follower, followers.reverted()), (2, vec![(2, 9)]));
        // It is found out once.
        followers.conflicts(leader(5), 2, 8).await;
        assert!(asked.try_recv().is_err());
    }
}
