//! Groups that have nothing to do, and what wakes them.

use std::sync::Arc;
use std::time::Duration;

use collie_cluster::testing::proposals::Answer;
use collie_cluster::testing::wire::{
    Append, LogEntry, Park, Payload, Refusal, Request, Response, VoteRequest,
};
use collie_cluster::testing::{EntryId, LeaderId, NodeOptions, Vote};
use futures_util::future::join_all;

use crate::alone::Alone;
use crate::cluster::{
    CAP, Cluster, GROUP, Place, Simulated, Tally, get, incr, replica_on, row, runtime, times,
};

fn cluster() -> Arc<Cluster> {
    Arc::new(Cluster::adjusted(Simulated::Nothing, |options| {
        options.times.park = Duration::from_millis(200);
    }))
}

fn is_parked(place: &Place) -> bool {
    place.replica().is_some_and(|replica| replica.is_parked())
}

/// Waits until all three are parked; the one that leads, and its term.
fn parked(cluster: &Cluster) -> (&Place, u64) {
    cluster.until("three parked replicas", || {
        let leader = cluster
            .places
            .iter()
            .find(|place| place.state().is_some_and(|state| state.leads))?;
        let term = leader.state()?.vote.term;
        cluster.places.iter().all(is_parked).then_some((leader, term))
    })
}

#[test]
fn commands_wake_a_parked_group_and_none_is_refused() {
    let cluster = cluster();
    let (leader, term) = parked(&cluster);
    for _ in 0..3 {
        parked(&cluster);
        // Raft takes no proposals of a leader that has heard no majority for so long.
        std::thread::sleep(times().election_max);
        let replica = leader.replica().unwrap();
        cluster.runtime.block_on(async {
            let reads = (0..4).map(|_| replica.execute(get(row(7))));
            let counts = (0..4).map(|_| replica.execute(incr(row(7))));
            let (reads, counts) = tokio::join!(join_all(reads), join_all(counts));
            for answer in reads.into_iter().chain(counts) {
                assert!(matches!(answer, Ok(Answer::Reply(_))), "{answer:?}");
            }
        });
    }
    let tally = Tally::new(1);
    cluster.count(&tally, 2, 5, || {});
    cluster.check(&tally);
    let (again, now) = parked(&cluster);
    assert_eq!(
        (again.id, now),
        (leader.id, term),
        "no replica stood for election"
    );
}

#[test]
fn a_parked_group_whose_leader_dies_elects_another() {
    let cluster = cluster();
    for _ in 0..2 {
        let (leader, term) = parked(&cluster);
        leader.kill();
        let new = cluster.leader(|place| place.id != leader.id);
        assert!(new.state().unwrap().vote.term > term);
        cluster.open(leader);
    }
}

#[test]
fn a_leader_that_is_silent_on_a_node_that_answers_is_replaced() {
    let cluster = cluster();
    let (leader, _) = parked(&cluster);
    let replica = leader.replica().unwrap();
    leader.with(|_, runtime| runtime.block_on(replica.close()));
    cluster.leader(|place| place.id != leader.id);
}

#[test]
fn a_follower_that_was_started_again_hears_the_same_leader() {
    let cluster = cluster();
    for _ in 0..3 {
        let (leader, term) = parked(&cluster);
        let follower = cluster.places.iter().find(|place| place.id != leader.id).unwrap();
        follower.kill();
        cluster.open(follower);
        let (again, now) = parked(&cluster);
        assert_eq!(
            (again.id, now),
            (leader.id, term),
            "no replica stood for election"
        );
    }
}

#[test]
fn a_parked_leader_that_is_cut_off_is_replaced_and_follows() {
    let cluster = cluster();
    let (old, _) = parked(&cluster);
    cluster.cut_off(old);
    cluster.leader(|place| place.id != old.id);
    cluster.heal(old);
    let (new, _) = parked(&cluster);
    assert_ne!(new.id, old.id);
}

pub(crate) const LEADER: LeaderId = LeaderId {
    term: 9,
    replica: 102,
};

fn vote() -> Vote {
    Vote {
        leader: LEADER,
        committed: true,
    }
}

pub(crate) fn entry(index: u64) -> EntryId {
    EntryId {
        leader: LEADER,
        index,
    }
}

/// What an entry holds that makes the replicas on nodes 1 and 2 the members.
fn two_members() -> Payload {
    let mut payload = vec![2, 1, 2];
    let [one, other] = [1, 2].map(|node| replica_on(node) as u8);
    payload.extend([one, other, 2]);
    for (replica, node) in [(one, 1), (other, 2)] {
        payload.extend([replica, node, 0, 0]);
    }
    Payload(payload)
}

/// One that follows the test, which has appended up to this index.
async fn follower() -> (Alone, u64) {
    follower_with(|_| {}).await
}

pub(crate) async fn follower_with(adjust: impl FnOnce(&mut NodeOptions)) -> (Alone, u64) {
    let alone = Alone::adjusted(false, adjust).await;
    let append = |previous, entries| {
        Request::Append(Append {
            vote: vote(),
            previous,
            committed: Some(entry(1)),
            entries,
        })
    };
    let entries = vec![
        LogEntry {
            id: entry(0),
            payload: two_members(),
        },
        LogEntry {
            id: entry(1),
            payload: Payload(vec![0]),
        },
    ];
    let appended = alone.call(GROUP, replica_on(1), append(None, entries)).await;
    assert!(matches!(appended, Response::Appended(_)), "{appended:?}");
    let has_applied = tokio::time::timeout(CAP, async {
        while alone.replica.state().unwrap().applied != Some(entry(1)) {
            alone
                .call(GROUP, replica_on(1), append(Some(entry(1)), Vec::new()))
                .await;
        }
    });
    has_applied.await.unwrap();
    (alone, 1)
}

async fn asks_to_park(alone: &Alone, term: u64, last: u64) -> Response {
    let leader = LeaderId { term, ..LEADER };
    let park = Park {
        vote: Vote {
            leader,
            committed: true,
        },
        last: entry(last),
    };
    alone.call(GROUP, replica_on(1), Request::Park(park)).await
}

fn is_refused(answer: &Response) -> bool {
    matches!(answer, Response::Refusal(Refusal::Failed(_)))
}

#[test]
fn a_follower_parks_on_the_word_of_its_leaders_node_alone() {
    runtime().block_on(async {
        let (mut alone, last) = follower().await;
        // The node has not said that it leads.
        let answer = asks_to_park(&alone, LEADER.term, last).await;
        assert!(is_refused(&answer), "{answer:?}");
        alone.peer.set_led(vec![(GROUP, LEADER.term)]);
        let parks = tokio::time::timeout(CAP, async {
            while asks_to_park(&alone, LEADER.term, last).await != Response::Parked {}
        });
        parks.await.unwrap();
        assert!(alone.replica.is_parked());
        // Another leader, and one whose entries it lacks.
        for (term, last) in [(LEADER.term - 1, last), (LEADER.term, last + 1)] {
            let answer = asks_to_park(&alone, term, last).await;
            assert!(is_refused(&answer), "{answer:?}");
        }
        // As one that hears its leader, it votes for no other, and asks for no vote.
        let pre_vote = Request::PreVote(VoteRequest {
            vote: Vote {
                leader: LeaderId {
                    term: LEADER.term + 1,
                    ..LEADER
                },
                committed: false,
            },
            last: Some(entry(last)),
            leadership_transfer: false,
        });
        tokio::time::sleep(3 * times().election_max).await;
        assert!(alone.requests.is_empty(), "it stands for election");
        let answer = alone.call(GROUP, replica_on(1), pre_vote).await;
        assert!(is_refused(&answer), "{answer:?}");
        assert!(alone.replica.is_parked());
        let (asked, _) = alone.request().await;
        assert_eq!(
            asked.request,
            Request::Wake,
            "one that hears no leader is to hear it"
        );
        // Its leader's node does not say so any more.
        alone.peer.set_led(Vec::new());
        stands(&mut alone).await;
        assert!(!alone.replica.is_parked());
    });
}

/// One that is parked, and follows the test.
async fn parked_follower() -> Alone {
    let (alone, last) = follower().await;
    alone.peer.set_led(vec![(GROUP, LEADER.term)]);
    let parks = tokio::time::timeout(CAP, async {
        while asks_to_park(&alone, LEADER.term, last).await != Response::Parked {}
    });
    parks.await.unwrap();
    alone
}

/// Waits until it asks for a vote. Before that it says that it does not hear its leader.
async fn stands(alone: &mut Alone) {
    loop {
        let (asked, _) = alone.request().await;
        match asked.request {
            Request::PreVote(_) => return,
            Request::Wake => {}
            other => panic!("it sends {}", other.kind()),
        }
    }
}

fn nowhere() -> std::net::SocketAddr {
    ([127, 0, 0, 1], 1).into()
}

#[test]
fn a_parked_follower_stands_when_its_leaders_node_is_silent() {
    runtime().block_on(async {
        let mut alone = parked_follower().await;
        alone.node.set_peer(2, nowhere()).unwrap();
        let wakes = tokio::time::timeout(CAP, async {
            while alone.replica.is_parked() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        wakes.await.unwrap();
        let peer = alone.peer.address();
        alone.node.set_peer(2, peer).unwrap();
        stands(&mut alone).await;
    });
}

/// It answers, and has no way to say that it leads no longer.
#[test]
fn a_parked_follower_stands_when_its_leader_cannot_reach_it() {
    runtime().block_on(async {
        let mut alone = parked_follower().await;
        alone.peer.set_peer(1, nowhere()).unwrap();
        stands(&mut alone).await;
        assert!(!alone.replica.is_parked());
    });
}
