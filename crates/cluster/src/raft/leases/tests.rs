use std::sync::atomic::{AtomicU64, Ordering};

use collie_io::RealClock;
use openraft::async_runtime::watch::{Watch, WatchSender};
use openraft::type_config::alias::WatchSenderOf;
use openraft::{AsyncRuntime, Membership, ServerState, StoredMembership};

use super::*;
use crate::raft::types::{Member, RaftVote, Runtime, to_leader, to_log_id};

const OWN: ReplicaId = 1;
const LEADER: LeaderId = LeaderId {
    term: 5,
    replica: OWN,
};
/// Of the default times.
const LENGTH: Nanos = 900_000_000;
const START: Nanos = 50_000_000_000;
const MS: Nanos = 1_000_000;

impl Leases {
    /// Of tests that have none.
    pub(in crate::raft) fn never() -> Arc<Self> {
        let times = GroupTimes::default();
        Arc::new(Self::new(
            OWN,
            || false,
            &times,
            Arc::new(RealClock),
            Arc::default(),
        ))
    }
}

/// A machine that is suspended: the monotonic clock stands.
#[derive(Debug)]
struct Suspended(AtomicU64);

impl Clock for Suspended {
    fn monotonic(&self) -> Nanos {
        START
    }

    fn boot(&self) -> Nanos {
        self.0.load(Ordering::SeqCst)
    }

    fn wall_ms(&self) -> u64 {
        0
    }
}

struct World {
    leases: Leases,
    clock: Arc<Suspended>,
    raft: WatchSenderOf<Groups, RaftServerMetrics<Groups>>,
}

fn membership(config: &[&[ReplicaId]]) -> Membership<ReplicaId, Member> {
    let voters: Vec<BTreeSet<_>> = config
        .iter()
        .map(|voters| voters.iter().copied().collect())
        .collect();
    let all = voters.iter().flatten();
    let nodes: BTreeMap<_, _> = all.map(|id| (*id, Member::default())).collect();
    Membership::new(voters, nodes).unwrap()
}

fn metrics(index: u64, config: &[&[ReplicaId]]) -> RaftServerMetrics<Groups> {
    let id = to_log_id(EntryId {
        leader: LEADER,
        index,
    });
    let membership = Arc::new(StoredMembership::new(Some(id), membership(config)));
    RaftServerMetrics {
        id: OWN,
        vote: RaftVote {
            leader_id: to_leader(LEADER),
            committed: true,
        },
        state: ServerState::Leader,
        current_leader: Some(OWN),
        membership_config: Arc::clone(&membership),
        committed_membership_config: membership,
    }
}

impl World {
    /// A leader of these, whose members are in entry 1.
    fn of(config: &[&[ReplicaId]]) -> Self {
        let clock = Arc::new(Suspended(AtomicU64::new(START)));
        let times = GroupTimes::default();
        let leases = Leases::new(OWN, || true, &times, Arc::clone(&clock) as _, Arc::default());
        let (raft, receiver) = <Runtime as AsyncRuntime>::Watch::channel(metrics(1, config));
        leases.follow(receiver);
        Self { leases, clock, raft }
    }

    fn followed(&self, by: &[ReplicaId], sent: Nanos) {
        by.iter().for_each(|id| self.leases.followed(LEADER, *id, sent));
    }

    /// When the lease ends.
    fn end(&self) -> Option<Nanos> {
        let end = self.leases.now.lock().end;
        self.clock.0.store(end.saturating_sub(1), Ordering::SeqCst);
        let holds = self.leases.holds(LEADER);
        self.clock.0.store(end, Ordering::SeqCst);
        assert!(!self.leases.holds(LEADER), "it ends");
        self.clock.0.store(START, Ordering::SeqCst);
        holds.then_some(end)
    }

    fn sends_members(&self, index: u64, config: &[&[ReplicaId]]) {
        let body = EntryPayload::Membership(membership(config));
        self.leases.sends(LEADER, [(index, &body)].into_iter());
    }
}

#[test]
fn a_lease_counts_from_what_a_majority_took_when_it_was_sent() {
    let world = World::of(&[&[1, 2, 3, 4, 5]]);
    assert_eq!(world.end(), None);
    world.followed(&[2], START - 100 * MS);
    assert_eq!(world.end(), None, "two of five are no majority");
    world.followed(&[4], START - 300 * MS);
    assert_eq!(
        world.end(),
        Some(START - 300 * MS + LENGTH),
        "the older of the two"
    );
    world.followed(&[3], START - 200 * MS);
    assert_eq!(world.end(), Some(START - 200 * MS + LENGTH));
    // Answers that come late, and those of replicas that do not vote.
    world.followed(&[2, 3], START - 800 * MS);
    world.followed(&[8, 9], START);
    assert_eq!(world.end(), Some(START - 200 * MS + LENGTH));
}

#[test]
fn a_lease_is_over_when_the_machine_was_suspended_for_so_long() {
    let world = World::of(&[&[1, 2, 3]]);
    world.followed(&[2], START);
    assert!(world.leases.holds(LEADER));
    world.clock.0.fetch_add(LENGTH, Ordering::SeqCst);
    assert!(!world.leases.holds(LEADER));
}

#[test]
fn a_lease_is_of_one_leadership_and_over_when_that_is_given_up() {
    let later = LeaderId { term: 7, ..LEADER };
    let world = World::of(&[&[1, 2, 3]]);
    world.followed(&[2], START);
    assert!(!world.leases.holds(later));
    world.leases.end(LeaderId { term: 4, replica: 9 });
    assert!(world.leases.holds(LEADER), "another one was voted for before");
    world.leases.end(LEADER);
    world.followed(&[2, 3], START + 1);
    assert!(!world.leases.holds(LEADER), "for as long as it leads");
    world.leases.followed(later, 3, START);
    assert!(world.leases.holds(later));
    // Of the leadership before.
    world.followed(&[2, 3], START + MS);
    assert!(world.leases.holds(later) && !world.leases.holds(LEADER));
    world.leases.end(LeaderId { term: 8, replica: 2 });
    assert!(!world.leases.holds(later), "another one was voted for");
}

#[test]
fn a_change_of_members_ends_a_lease_and_both_halves_count() {
    let world = World::of(&[&[1, 2, 3]]);
    world.followed(&[2], START);
    let joint: &[&[_]] = &[&[1, 2, 3], &[1, 4, 5]];
    world.sends_members(1, &[&[1, 2, 3]]);
    world.sends_members(7, joint);
    assert_eq!(world.end(), None);
    world.followed(&[2, 3], START + MS);
    assert_eq!(world.end(), None, "raft has not said that the new members count");
    world.raft.send(metrics(7, joint)).unwrap();
    world.followed(&[2, 3], START + 2 * MS);
    assert_eq!(world.end(), None, "no majority of the new half");
    world.followed(&[4], START + MS);
    assert_eq!(world.end(), Some(START + MS + LENGTH), "the older of the halves");
    world.sends_members(7, joint);
    assert!(world.leases.holds(LEADER), "sent again, they are no change");
    // It is no member any more: its own word does not count.
    world.sends_members(8, &[&[4, 5, 6]]);
    world.raft.send(metrics(8, &[&[4, 5, 6]])).unwrap();
    world.followed(&[4], START + 3 * MS);
    assert_eq!(world.end(), None);
    world.followed(&[6], START + 3 * MS);
    assert_eq!(world.end(), Some(START + 3 * MS + LENGTH));
}

#[test]
fn where_one_replica_is_a_majority_there_is_no_lease() {
    for config in [&[&[1][..]][..], &[&[2]], &[&[1, 2, 3], &[2]]] {
        let world = World::of(config);
        world.followed(&[2, 3], START);
        assert_eq!(world.end(), None, "{config:?}");
    }
}

#[test]
fn a_lease_is_shorter_than_what_followers_keep() {
    let times = GroupTimes::default();
    assert!(counted(&times) <= promised(&times) * 9 / 10);
    // Raft's own lease, and the time for an election after an opening.
    assert!(promised(&times) <= times.election_max && promised(&times) <= times.election_min);
}

fn vote(committed: bool) -> Option<Vote> {
    let leader = LeaderId { term: 3, replica: 2 };
    Some(Vote { leader, committed })
}

#[tokio::test(start_paused = true)]
async fn an_opened_replica_gives_no_vote_for_one_lease() {
    let times = GroupTimes::default();
    let promises = Promises::new(vote(true), &times);
    let begun = Instant::now();
    assert!(promises.is_silent());
    promises.are_over().await;
    assert_eq!(begun.elapsed(), times.election_min);
    assert!(!promises.is_silent());
    // It has voted, and followed no leader since.
    assert!(!Promises::new(vote(false), &times).is_silent());
    assert!(!Promises::new(None, &times).is_silent());
}

#[test]
fn a_transfer_is_that_of_the_leader_that_was_followed() {
    let id = |term, replica| LeaderId { term, replica };
    let last = |leader| Some(EntryId { leader, index: 9 });
    let promises = Promises::new(None, &GroupTimes::default());
    assert!(promises.allow(last(id(1, 1)), None), "it follows no leader");
    promises.followed(id(4, 2));
    promises.followed(id(3, 3));
    assert!(promises.allow(last(id(4, 2)), None));
    for other in [id(4, 1), id(4, 3), id(3, 3), id(5, 2)] {
        assert!(!promises.allow(last(other), None), "{other}");
    }
    assert!(!promises.allow(None, None));
    assert!(!promises.allow(None, Some(id(4, 1))));
    assert!(promises.allow(None, Some(id(5, 1))), "it leads itself");
}
