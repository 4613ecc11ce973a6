//! Nodes over TCP on loopback.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use collie_cluster::testing::transport::{Network, PeerError, Peers, PlainTcp};
use collie_cluster::testing::wire::{Append, Appended, Refusal, Request, Response, SnapshotEnd};

use super::support::{
    Yes, alive, append, ask_vote, call, connected, handed, index_of, options, until, vote, yes,
};

async fn node(node: u64) -> Peers {
    Peers::start(PlainTcp, options(node), Arc::new(Yes))
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_call_each_other() {
    let nodes = [node(1).await, node(2).await, node(3).await];
    for a in &nodes {
        for (number, b) in (1..).zip(&nodes) {
            if a.address() != b.address() {
                a.set_peer(number, b.address()).unwrap();
            }
        }
    }
    for (own, a) in (1..).zip(&nodes) {
        for peer in (1..=3).filter(|&peer| peer != own) {
            let state = alive(a, peer).await;
            assert_eq!(
                (state.boot, state.level, state.problem),
                (Some([peer as u8; 16]), Some(1), None)
            );
            let response = a.call(call(peer, 9, ask_vote())).await.unwrap();
            assert!(matches!(response, Response::Voted(answer) if answer.granted));
        }
    }
    for node in nodes {
        node.close().await;
    }
}

#[tokio::test]
async fn addresses_off_loopback_are_refused_without_certificates() {
    let anywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let options_of = |listen| collie_cluster::testing::transport::PeersOptions { listen, ..options(1) };
    let refused = Peers::start(PlainTcp, options_of(anywhere), Arc::new(Yes))
        .await
        .unwrap_err();
    assert!(matches!(refused, PeerError::Address { .. }));
    assert!(
        refused
            .to_string()
            .contains("expected a loopback address, found 0.0.0.0:0"),
        "{refused}"
    );
    let one = node(1).await;
    assert!(matches!(
        one.set_peer(2, ([192, 0, 2, 1], 1).into()),
        Err(PeerError::Address { .. })
    ));
    assert!(
        matches!(one.set_peer(1, one.address()), Err(PeerError::Address { .. })),
        "its own peer"
    );
    let taken = Peers::start(PlainTcp, options_of(one.address()), Arc::new(Yes))
        .await
        .unwrap_err();
    assert!(matches!(taken, PeerError::Bind { .. }), "{taken}");
}

/// The other node answers in the opposite order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipelined_appends_arrive_in_order_and_each_has_its_answer() {
    let (dispatch, mut requests) = handed();
    let two = Peers::start(PlainTcp, options(2), dispatch).await.unwrap();
    let one = node(1).await;
    one.set_peer(2, two.address()).unwrap();
    alive(&one, 2).await;
    for round in 0..20 {
        let mut answers = Vec::new();
        for index in 0..16 {
            // Sizes of all kinds: some frames are written alone.
            let bytes = if index % 5 == 3 {
                300 << 10
            } else {
                1 + index as usize
            };
            answers.push(one.send(call(2, 7, append(index, bytes))).await.unwrap());
        }
        let mut came = Vec::new();
        for index in 0..16 {
            let (incoming, reply) = requests.recv().await.unwrap();
            assert_eq!(index_of(&incoming.request), index, "round {round}");
            assert_eq!(
                (incoming.node, incoming.group, incoming.from, incoming.to),
                (1, 7, 11, 12)
            );
            came.push((index, reply));
        }
        for (index, reply) in came.into_iter().rev() {
            let last = collie_cluster::testing::EntryId {
                leader: vote().leader,
                index,
            };
            reply.send(Response::Appended(Appended::Partial(Some(last))));
        }
        for (index, answer) in (0..).zip(answers) {
            match answer.wait().await.unwrap() {
                Response::Appended(Appended::Partial(Some(last))) => assert_eq!(last.index, index),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn one_write_takes_what_many_groups_have_queued() {
    let two = node(2).await;
    let one = node(1).await;
    one.set_peer(2, two.address()).unwrap();
    connected(&one, 2).await;
    let before = one.stats();
    let mut answers = Vec::new();
    // On this runtime's only thread the writer runs when this task waits, which it does not here.
    for group in 0..500 {
        answers.push(one.send(call(2, group, append(1, 100))).await.unwrap());
    }
    for answer in answers {
        assert_eq!(
            answer.wait().await.unwrap(),
            Response::Appended(Appended::Success)
        );
    }
    let (frames, writes) = (
        one.stats().frames - before.frames,
        one.stats().writes - before.writes,
    );
    assert!(
        frames >= 500 && writes * 10 < frames,
        "{frames} frames in {writes} writes"
    );
}

/// Each task that sends wakes the writer, which this runtime's thread would run next.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn heartbeats_of_many_groups_and_their_answers_are_few_writes() {
    let two = node(2).await;
    let one = Arc::new(node(1).await);
    one.set_peer(2, two.address()).unwrap();
    connected(&one, 2).await;
    let before = [one.stats(), two.stats()];
    let from = Arc::clone(&one);
    let heartbeats = (0..500).map(move |group| {
        let one = Arc::clone(&from);
        let heartbeat = Append {
            vote: vote(),
            previous: None,
            committed: None,
            entries: Vec::new(),
        };
        async move { one.call(call(2, group, Request::Append(heartbeat))).await }
    });
    // From within the runtime, so that all are there before the first one runs.
    let all = tokio::spawn(async move { heartbeats.map(tokio::spawn).collect::<Vec<_>>() });
    for answer in all.await.unwrap() {
        assert_eq!(
            answer.await.unwrap().unwrap(),
            Response::Appended(Appended::Success)
        );
    }
    for (before, after) in before.into_iter().zip([one.stats(), two.stats()]) {
        let (frames, writes) = (after.frames - before.frames, after.writes - before.writes);
        assert!(
            frames >= 500 && writes * 10 < frames,
            "{frames} frames in {writes} writes"
        );
    }
}

#[tokio::test]
async fn refusals_and_forgotten_replies_are_answers() {
    let (dispatch, mut requests) = handed();
    let two = Peers::start(PlainTcp, options(2), dispatch).await.unwrap();
    let one = node(1).await;
    one.set_peer(2, two.address()).unwrap();
    alive(&one, 2).await;
    for refusal in [Some(Refusal::Gone), Some(Refusal::Unknown), None] {
        let answer = one.send(call(2, 7, ask_vote())).await.unwrap();
        let (_, reply) = requests.recv().await.unwrap();
        match refusal.clone() {
            Some(refusal) => reply.send(Response::Refusal(refusal)),
            None => drop(reply),
        }
        let expected = refusal.unwrap_or_else(|| Refusal::failed("the node gave no answer"));
        assert_eq!(answer.wait().await.unwrap(), Response::Refusal(expected));
    }
}

#[tokio::test]
async fn a_request_without_peer_or_answer_fails() {
    let (dispatch, mut requests) = handed();
    let two = Peers::start(PlainTcp, options(2), dispatch).await.unwrap();
    let one = node(1).await;
    assert!(matches!(
        one.call(call(2, 7, ask_vote())).await,
        Err(PeerError::NoPeer { node: 2 })
    ));
    one.set_peer(2, two.address()).unwrap();
    let error = one.call(call(2, 7, ask_vote())).await.unwrap_err();
    assert!(matches!(error, PeerError::Unreachable { .. }), "{error}");
    alive(&one, 2).await;
    let mut short = call(2, 7, ask_vote());
    short.within = Duration::from_millis(20);
    assert!(matches!(one.call(short).await, Err(PeerError::Late { .. })));
    // Its answer comes to a request that is given up, and disturbs no other.
    let (incoming, reply) = requests.recv().await.unwrap();
    reply.send(yes(&incoming.request));
    let answer = one.send(call(2, 7, append(1, 1))).await.unwrap();
    let (incoming, reply) = requests.recv().await.unwrap();
    reply.send(yes(&incoming.request));
    assert_eq!(
        answer.wait().await.unwrap(),
        Response::Appended(Appended::Success)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_sends_what_is_queued_and_loses_what_has_no_answer() {
    let (dispatch, mut requests) = handed();
    let two = Peers::start(PlainTcp, options(2), dispatch).await.unwrap();
    let mut own = options(1);
    own.times.close = Duration::from_secs(20);
    let one = Peers::start(PlainTcp, own, Arc::new(Yes)).await.unwrap();
    one.set_peer(2, two.address()).unwrap();
    alive(&one, 2).await;
    let mut answers = Vec::new();
    for index in 0..16 {
        answers.push(one.send(call(2, 7, append(index, 100 << 10))).await.unwrap());
    }
    one.close().await;
    for index in 0..16 {
        let (incoming, _) = requests.recv().await.unwrap();
        assert_eq!(index_of(&incoming.request), index);
    }
    for answer in answers {
        assert!(matches!(answer.wait().await, Err(PeerError::Lost { .. })));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_sent_last_arrives_although_answers_are_on_their_way() {
    what_was_sent_last_arrives(|| PlainTcp).await;
}

/// Answers that come to a node that has closed must not take along what its peer has yet to read.
pub(crate) async fn what_was_sent_last_arrives<N: Network>(network: impl Fn() -> N) {
    for _ in 0..20 {
        let (dispatch, mut requests) = handed();
        let two = Peers::start(network(), options(2), dispatch).await.unwrap();
        let mut own = options(1);
        own.times.close = Duration::from_secs(20);
        let one = Peers::start(network(), own, Arc::new(Yes)).await.unwrap();
        one.set_peer(2, two.address()).unwrap();
        alive(&one, 2).await;
        let mut answers = Vec::new();
        for index in 0..16 {
            answers.push(one.send(call(2, 7, append(index, 100 << 10))).await.unwrap());
        }
        let (arrived, ()) = tokio::join!(
            async {
                let mut arrived = 0;
                while let Ok(Some((incoming, reply))) =
                    tokio::time::timeout(Duration::from_secs(20), requests.recv()).await
                {
                    reply.send(yes(&incoming.request));
                    arrived += 1;
                    if arrived == 16 {
                        break;
                    }
                }
                arrived
            },
            one.close()
        );
        assert_eq!(arrived, 16);
    }
}

#[tokio::test]
async fn a_removed_peer_is_forgotten_and_a_moved_one_found() {
    let (two, moved) = (node(2).await, node(2).await);
    let one = node(1).await;
    one.set_peer(2, two.address()).unwrap();
    connected(&one, 2).await;
    one.set_peer(2, moved.address()).unwrap();
    drop(two);
    let mut states = one.states();
    until(&mut states, 2, |state| state.problem.is_some()).await;
    until(&mut states, 2, |state| {
        state.is_alive() && state.problem.is_none()
    })
    .await;
    one.remove_peer(2);
    assert!(states.borrow().is_empty());
    let end = SnapshotEnd {
        vote: vote(),
        snapshot: 1,
    };
    assert!(matches!(
        one.call(call(2, 7, Request::SnapshotEnd(end))).await,
        Err(PeerError::NoPeer { .. })
    ));
    one.set_peer(2, moved.address()).unwrap();
    alive(&one, 2).await;
}
