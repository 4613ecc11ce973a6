//! Leaders that count on leases, and what followers keep for them. The peers of most are played by the test.

use std::sync::Arc;
use std::time::Duration;

use collie_cluster::testing::proposals::Answer;
use collie_cluster::testing::transport::{Incoming, Reply};
use collie_cluster::testing::wire::{Appended, Refusal, Request, Response, VoteAnswer, VoteRequest};
use collie_cluster::testing::{
    EntryId, GroupTimes, LeaderId, NewGroup, NodeOptions, Replica, ReplicaState, Vote,
};
use collie_server::cluster::{Leadership, Reads, Settled};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::alone::Alone;
use crate::cluster::{
    CAP, Cluster, GROUP, Place, Simulated, Tally, get, incr, members, replica_on, row, runtime, times,
};
use crate::parking::{LEADER, entry, follower_with};
use crate::seam::{LAST_SLOT, read_applied};

/// Long enough for a test that is stopped now and then.
fn patient() -> GroupTimes {
    GroupTimes {
        election_min: Duration::from_secs(1),
        election_max: Duration::from_millis(1500),
        ..times()
    }
}

fn leased(options: &mut NodeOptions) {
    options.times = patient();
    options.reads = Reads::Lease;
}

/// A leader's lease, and a bit.
const LEASE: Duration = Duration::from_millis(950);
/// A lease answers sooner, and a majority that is silent does not.
const SOON: Duration = Duration::from_millis(200);

/// How the other members answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Members {
    Answer,
    /// From the next append that has entries on, they are silent.
    AnswerToHeartbeats,
    /// From the next transfer on, they are silent.
    AnswerUntilAskedToLead,
    AreSilent,
}

/// A replica that leads, with a majority that the test plays.
struct Led {
    alone: Alone,
    members: Arc<watch::Sender<Members>>,
    /// What was not answered.
    held: mpsc::UnboundedReceiver<(Incoming, Reply)>,
}

fn is_last(members: Members, request: &Request) -> bool {
    match (members, request) {
        (Members::AnswerToHeartbeats, Request::Append(append)) => !append.entries.is_empty(),
        (Members::AnswerUntilAskedToLead, Request::Transfer(_)) => true,
        _ => false,
    }
}

fn answer(request: Request) -> Response {
    let granted = |vote| VoteAnswer {
        vote,
        granted: true,
        last: None,
    };
    match request {
        Request::PreVote(request) => Response::PreVoted(granted(request.vote)),
        Request::Vote(request) => Response::Voted(granted(request.vote)),
        Request::Append(_) => Response::Appended(Appended::Success),
        Request::MayLead => Response::Ready,
        Request::Transfer(_) => Response::Transferred,
        other => Response::Refusal(Refusal::failed(other.kind().to_string())),
    }
}

impl Led {
    async fn new() -> Self {
        let mut alone = Alone::adjusted(false, leased).await;
        let (sender, held) = mpsc::unbounded_channel();
        let (_, nothing) = mpsc::unbounded_channel();
        let mut requests = std::mem::replace(&mut alone.requests, nothing);
        let members = Arc::new(watch::Sender::new(Members::Answer));
        let playing = Arc::clone(&members);
        tokio::spawn(async move {
            while let Some((incoming, reply)) = requests.recv().await {
                let now = *playing.borrow();
                if is_last(now, &incoming.request) {
                    playing.send_replace(Members::AreSilent);
                }
                if *playing.borrow() == Members::AreSilent {
                    // The test may be over.
                    let _over = sender.send((incoming, reply));
                } else {
                    reply.send(answer(incoming.request));
                }
            }
        });
        let nowhere = ([127, 0, 0, 1], 1).into();
        let all = [(1, alone.node.address()), (2, alone.peer.address()), (3, nowhere)];
        alone.replica.begin(crate::cluster::members(&all)).await.unwrap();
        let led = Self { alone, members, held };
        led.until_leased().await;
        led
    }

    fn replica(&self) -> &Arc<Replica> {
        &self.alone.replica
    }

    fn set(&self, members: Members) {
        self.members.send_replace(members);
    }

    /// As a server notes it before it reads.
    fn leadership(&self) -> Option<Leadership> {
        self.replica().partition(0..=LAST_SLOT).leadership()
    }

    /// Whether a read is answered at once that was made under this leadership.
    async fn confirms(&self, since: Leadership) -> bool {
        let partition = self.replica().partition(0..=LAST_SLOT);
        let settled = timeout(SOON, partition.confirm(since, 0..=0, None)).await;
        settled == Ok(Settled::Holds)
    }

    /// Waits until a lease answers reads, and a majority answers nothing.
    async fn until_leased_and_silent(&self) {
        let leased = timeout(CAP, async {
            loop {
                self.set(Members::Answer);
                self.until_leased().await;
                self.set(Members::AreSilent);
                let since = self.leadership();
                if let Some(since) = since
                    && self.confirms(since).await
                {
                    return;
                }
            }
        });
        leased
            .await
            .unwrap_or_else(|_| panic!("no read is answered by a lease"));
    }

    /// Waits until reads are answered.
    async fn until_leased(&self) {
        let leads = timeout(CAP, async {
            loop {
                if let Some(since) = self.leadership()
                    && self.confirms(since).await
                {
                    return;
                }
                sleep(Duration::from_millis(5)).await;
            }
        });
        leads.await.unwrap_or_else(|_| panic!("it does not lead"));
    }

    /// The next request that was not answered, and that is meant.
    async fn held(&mut self, is_meant: impl Fn(&Request) -> bool) -> (Incoming, Reply) {
        let next = timeout(CAP, async {
            loop {
                let next = self.held.recv().await.unwrap();
                if is_meant(&next.0.request) {
                    return next;
                }
            }
        });
        next.await.unwrap_or_else(|_| panic!("it does not ask for that"))
    }
}

#[test]
fn a_lease_answers_reads_until_it_runs_out() {
    runtime().block_on(async {
        let led = Led::new().await;
        led.until_leased_and_silent().await;
        sleep(LEASE).await;
        let since = led.leadership().unwrap();
        assert!(!led.confirms(since).await, "no follower has answered for a lease");
        led.set(Members::Answer);
        led.until_leased_and_silent().await;
    });
}

#[test]
fn a_lease_that_ran_out_behind_a_read_confirms_nothing() {
    runtime().block_on(async {
        let led = Led::new().await;
        led.until_leased_and_silent().await;
        let since = led.leadership().unwrap();
        // The process is stopped behind the read.
        sleep(LEASE).await;
        assert!(!led.confirms(since).await);
    });
}

#[test]
fn a_lease_counts_from_the_sending_of_what_is_answered() {
    runtime().block_on(async {
        let mut led = Led::new().await;
        led.set(Members::AnswerToHeartbeats);
        let sent = Instant::now();
        let replica = Arc::clone(led.replica());
        let _counting = tokio::spawn(async move { replica.execute(incr(row(0))).await });
        let has_entries =
            |request: &Request| matches!(request, Request::Append(append) if !append.entries.is_empty());
        let (appended, reply) = led.held(has_entries).await;
        sleep(LEASE * 2 / 3).await;
        reply.send(answer(appended.request));
        sleep(SOON).await;
        tokio::time::sleep_until(sent + LEASE + SOON).await;
        let since = led.leadership().unwrap();
        assert!(!led.confirms(since).await, "a lease has passed since it was sent");
    });
}

#[test]
fn a_leader_that_hands_over_has_no_lease_any_more() {
    runtime().block_on(async {
        let mut led = Led::new().await;
        led.set(Members::AnswerUntilAskedToLead);
        let replica = Arc::clone(led.replica());
        let handing = tokio::spawn(async move { replica.transfer_to(replica_on(2)).await });
        led.held(|request| matches!(request, Request::Transfer(_))).await;
        let since = led.leadership().unwrap();
        assert!(!led.confirms(since).await, "another one may lead by now");
        handing.await.unwrap().unwrap();
    });
}

#[test]
fn while_a_split_may_be_committed_a_lease_answers_nothing() {
    runtime().block_on(async {
        let mut led = Led::new().await;
        led.set(Members::AnswerToHeartbeats);
        let new = |node| replica_on(node) + 100;
        let all = members(&[(1, led.alone.node.address()), (2, led.alone.peer.address())]);
        let split = NewGroup {
            group: GROUP + 1,
            first: 50,
            members: all
                .into_values()
                .map(|member| (new(member.node), member))
                .collect(),
            pairs: (1..=2).map(|node| (replica_on(node), new(node))).collect(),
        };
        let replica = Arc::clone(led.replica());
        let _splitting = tokio::spawn(async move { replica.split(&split).await });
        led.held(|request| matches!(request, Request::Append(append) if !append.entries.is_empty()))
            .await;
        let since = led.leadership().unwrap();
        assert!(!led.confirms(since).await, "the new group may serve by now");
    });
}

fn candidate(last: EntryId, leadership_transfer: bool) -> VoteRequest {
    let leader = LeaderId {
        term: LEADER.term + 1,
        ..LEADER
    };
    VoteRequest {
        vote: Vote {
            leader,
            committed: false,
        },
        last: Some(last),
        leadership_transfer,
    }
}

#[test]
fn a_follower_opened_again_gives_no_vote_for_a_lease() {
    runtime().block_on(async {
        for request in [Request::PreVote, Request::Vote] {
            let (alone, last) = follower_with(|options| options.times = patient()).await;
            let begun = Instant::now();
            let alone = alone.again(|options| options.times = patient()).await;
            let request = request(candidate(entry(last), false));
            let answer = alone.call(GROUP, replica_on(1), request).await;
            assert!(
                matches!(&answer, Response::Voted(answer) | Response::PreVoted(answer) if answer.granted),
                "{answer:?}"
            );
            let after = begun.elapsed();
            assert!(after >= patient().election_min, "it votes after {after:?}");
        }
    });
}

#[test]
fn a_vote_by_a_transfer_is_for_whom_its_own_leader_asked() {
    runtime().block_on(async {
        let (alone, last) = follower_with(|options| options.times = patient()).await;
        let by_another = EntryId {
            leader: LeaderId {
                replica: LEADER.replica + 1,
                ..LEADER
            },
            index: last + 1,
        };
        for (last, is_granted) in [(by_another, false), (entry(last), true)] {
            let request = Request::Vote(candidate(last, true));
            let answer = alone.call(GROUP, replica_on(1), request).await;
            let Response::Voted(answer) = answer else {
                panic!("a request for a vote is answered by {answer:?}")
            };
            assert_eq!(answer.granted, is_granted, "{answer:?}, last {last}");
        }
    });
}

fn leads(place: &Place) -> bool {
    place.state().is_some_and(|state: ReplicaState| state.leads)
}

#[test]
fn a_leader_with_a_lease_that_is_cut_off_reads_nothing_old() {
    let cluster = Arc::new(Cluster::adjusted(Simulated::Nothing, leased));
    let tally = Tally::new(2);
    let clients: Vec<_> = (0..3).map(|_| tally.keep_counting(&cluster)).collect();
    let more = |by: usize| {
        let answered = tally.answered();
        cluster.until("counting on", || {
            (tally.answered() >= answered + by).then_some(())
        });
    };
    for _ in 0..2 {
        more(20);
        let old = cluster.leader(|_| true);
        let replica = old.replica().unwrap();
        cluster.cut_off(old);
        let new = cluster.leader(|place| place.id != old.id);
        more(4);
        let answer = cluster.runtime.block_on(replica.execute(get(row(0))));
        assert!(
            !matches!(answer, Ok(Answer::Reply(_))),
            "node {} leads, and {answer:?}",
            new.id
        );
        let answer = cluster.runtime.block_on(read_applied(&replica, &row(0)));
        assert_eq!(answer, None, "node {} leads", new.id);
        cluster.heal(old);
        cluster.until("the old leader follows", || {
            old.state()
                .filter(|state| !state.leads && state.leader.is_some())
                .map(drop)
        });
    }
    tally.stop();
    for client in clients {
        cluster.runtime.block_on(client).unwrap();
    }
    cluster.check(&tally);
}

/// The one whose word the lease counts on starts again, and the third, which has heard nothing for long, asks for votes.
#[test]
fn a_follower_that_starts_again_elects_none_beside_a_lease() {
    // Longer than it takes to start a node and to elect a leader.
    let election_max = 3 * patient().election_max;
    let cluster = Cluster::adjusted(Simulated::Nothing, move |options| {
        leased(options);
        options.times.election_min *= 3;
        options.times.election_max = election_max;
    });
    let count = |replica: Arc<Replica>| cluster.runtime.block_on(replica.execute(incr(row(0))));
    let old = cluster.leader(Place::takes_commands);
    let mut others = cluster.places.iter().filter(|place| place.id != old.id);
    let (follower, third) = (others.next().unwrap(), others.next().unwrap());
    cluster.until("a count", || count(old.replica()?).ok());
    cluster.until("all entries on the third", || {
        (third.state()?.last == old.state()?.last).then_some(())
    });
    cluster.cut_off(third);
    // Nothing keeps the third from asking.
    std::thread::sleep(election_max);
    let replica = old.replica().unwrap();
    cluster.until("a lease", || {
        let read = cluster.runtime.block_on(read_applied(&replica, &row(0)));
        read.map(drop)
    });
    follower.kill();
    cluster.cut_off(old);
    cluster.heal(third);
    cluster.open(follower);
    let new = cluster.until("another leader", || {
        let stands = third.replica()?;
        // An error: its raft is not ready.
        _ = third.with(|_, runtime| runtime.block_on(stands.elect()));
        // Another attempt would end this one.
        std::thread::sleep(SOON);
        [third, follower].into_iter().find(|place| leads(place))
    });
    cluster.until("another count", || match count(new.replica()?) {
        Ok(Answer::Reply(count)) => Some(count),
        _ => None,
    });
    let read = async {
        let read = timeout(SOON, read_applied(&replica, &row(0))).await;
        read.unwrap_or(None)
    };
    let answer = cluster.runtime.block_on(read);
    assert_eq!(answer, None, "node {} leads", new.id);
}
