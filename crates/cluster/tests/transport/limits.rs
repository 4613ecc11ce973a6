//! How much may be in flight. No time passes: what waits is seen to wait once all tasks are idle.

use std::sync::Arc;
use std::time::Duration;

use collie_cluster::testing::transport::{Network, PeerError, Peers, PeersOptions};
use collie_cluster::testing::wire::{Appended, Message, Refusal, Response};
use tokio::time::{sleep, timeout};

use super::support::{
    Memory, Requests, Wire, Yes, alive, append, ask_vote, call, handed, hello, index_of, next_raft,
    request_frame, until, yes,
};

/// Two nodes, of which the second answers what the test lets it.
async fn two(change: impl FnOnce(&mut PeersOptions)) -> (Memory, Peers, Peers, Requests) {
    let network = Memory::default();
    let mut options = Memory::options(1);
    change(&mut options);
    let one = Peers::start(network.clone(), options, Arc::new(Yes))
        .await
        .unwrap();
    let (dispatch, requests) = handed();
    let two = Peers::start(network.clone(), Memory::options(2), dispatch)
        .await
        .unwrap();
    one.set_peer(2, Memory::address(2)).unwrap();
    alive(&one, 2).await;
    (network, one, two, requests)
}

/// Whether a request is sent by the time that nothing else happens. Paused time goes on only then.
async fn is_sent(peers: &Peers, group: u64, bytes: usize) -> bool {
    match timeout(
        Duration::from_millis(50),
        peers.send(call(2, group, append(0, bytes))),
    )
    .await
    {
        // Its answer is given up, so its room comes back once it is written.
        Ok(sent) => sent.map(drop).is_ok(),
        Err(_) => false,
    }
}

#[tokio::test(start_paused = true)]
async fn the_seventeenth_append_of_a_group_waits_for_an_answer() {
    let (_network, one, _two, mut requests) = two(|_| {}).await;
    let mut answers = Vec::new();
    for index in 0..16 {
        answers.push(one.send(call(2, 7, append(index, 10))).await.unwrap());
    }
    assert!(!is_sent(&one, 7, 10).await, "a seventeenth append is in flight");
    assert!(is_sent(&one, 8, 10).await, "another group waits");
    assert!(
        one.send(call(2, 7, ask_vote())).await.is_ok(),
        "a vote waits behind appends"
    );
    let (incoming, reply) = requests.recv().await.unwrap();
    reply.send(yes(&incoming.request));
    answers.remove(0).wait().await.unwrap();
    assert!(
        is_sent(&one, 7, 10).await,
        "the room of an answered append is not given back"
    );
}

#[tokio::test(start_paused = true)]
async fn bytes_of_a_group_and_of_a_peer_have_limits() {
    let limits = |options: &mut PeersOptions| {
        // Each connection has half: 10,000 and 15,000.
        (options.limits.group_bytes, options.limits.peer_bytes) = (20_000, 30_000);
    };
    let (_network, one, _two, mut requests) = two(limits).await;
    let first = one.send(call(2, 7, append(1, 9_000))).await.unwrap();
    assert!(
        !is_sent(&one, 7, 2_000).await,
        "a group has more in flight than its limit"
    );
    let second = one.send(call(2, 8, append(2, 5_000))).await.unwrap();
    assert!(
        !is_sent(&one, 9, 2_000).await,
        "a peer has more in flight than its limit"
    );
    for answer in [first, second] {
        let (incoming, reply) = requests.recv().await.unwrap();
        reply.send(yes(&incoming.request));
        answer.wait().await.unwrap();
    }
    // One that is larger than the limit goes alone.
    let large = one.send(call(2, 7, append(3, 50_000))).await.unwrap();
    assert!(!is_sent(&one, 9, 100).await);
    let (incoming, reply) = requests.recv().await.unwrap();
    assert_eq!(index_of(&incoming.request), 3);
    reply.send(yes(&incoming.request));
    large.wait().await.unwrap();
    assert!(
        is_sent(&one, 9, 100).await,
        "the room of answered requests is not given back"
    );
}

#[tokio::test(start_paused = true)]
async fn appends_that_wait_for_room_keep_the_order_of_their_calls() {
    let limits = |options: &mut PeersOptions| options.limits.group_bytes = 2_000;
    let (_network, one, _two, mut requests) = two(limits).await;
    let one = Arc::new(one);
    let mut calls = Vec::new();
    for index in 0..60 {
        let one = Arc::clone(&one);
        // Small ones fit where large ones do not, and still wait for their turn.
        let bytes = if index % 3 == 0 { 700 } else { 10 };
        calls.push(tokio::spawn(async move {
            one.call(call(2, 7, append(index, bytes))).await
        }));
        tokio::task::yield_now().await;
    }
    for index in 0..60 {
        let (incoming, reply) = requests.recv().await.unwrap();
        assert_eq!(index_of(&incoming.request), index);
        reply.send(yes(&incoming.request));
    }
    for call in calls {
        assert_eq!(
            call.await.unwrap().unwrap(),
            Response::Appended(Appended::Success)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_given_up_gives_its_room_back() {
    let network = Memory::default();
    let one = Peers::start(network.clone(), Memory::options(1), Arc::new(Yes))
        .await
        .unwrap();
    let mut listener = network.listen(Memory::address(2));
    one.set_peer(2, Memory::address(2)).unwrap();
    let mut bulk = Vec::new();
    let mut wire = next_raft(&mut listener, &mut bulk).await;
    // A peer that answers nothing but pings.
    tokio::spawn(async move {
        while let Some(frame) = wire.next().await {
            if let Message::Ping(_) = frame.message {
                wire.pong(frame.request, 0).await;
            }
        }
    });
    alive(&one, 2).await;
    for _ in 0..3 {
        let mut answers = Vec::new();
        for index in 0..16 {
            let mut short = call(2, 7, append(index, 10));
            short.within = Duration::from_millis(80);
            answers.push(one.send(short).await.unwrap());
        }
        let mut waiting = call(2, 7, append(16, 10));
        waiting.within = Duration::from_millis(40);
        assert!(
            matches!(one.call(waiting).await, Err(PeerError::Late { .. })),
            "there was room for a seventeenth"
        );
        for answer in answers {
            assert!(matches!(answer.wait().await, Err(PeerError::Late { .. })));
        }
    }
    assert!(
        is_sent(&one, 7, 10).await,
        "the room of requests that were given up is not given back"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_gives_back_its_room_at_once() {
    let network = Memory::default();
    let one = Peers::start(network.clone(), Memory::options(1), Arc::new(Yes))
        .await
        .unwrap();
    let mut listener = network.listen(Memory::address(2));
    one.set_peer(2, Memory::address(2)).unwrap();
    let mut bulk = Vec::new();
    for _ in 0..3 {
        let mut wire = next_raft(&mut listener, &mut bulk).await;
        until(&mut one.states(), 2, |state| {
            state.is_alive() && state.problem.is_none()
        })
        .await;
        let mut answers = Vec::new();
        for index in 0..16 {
            answers.push(one.send(call(2, 7, append(index, 10))).await.unwrap());
        }
        while !matches!(wire.next().await.unwrap().message, Message::Request(_)) {}
        drop(wire);
        for answer in answers {
            let lost = timeout(Duration::from_secs(1), answer.wait())
                .await
                .expect("a request outlives its connection");
            assert!(matches!(lost, Err(PeerError::Lost { .. })), "{lost:?}");
        }
    }
}

/// A peer that keeps to no limit is answered `busy`, and what it had in flight is still answered.
#[tokio::test(start_paused = true)]
async fn a_peer_above_the_limits_is_answered_busy() {
    let (network, _one, _two, mut requests) = two(|_| {}).await;
    let mut wire = Wire::new(network.connect(Memory::address(2)).await.unwrap());
    wire.greet(hello(3, 2)).await.unwrap();
    for number in 0..18 {
        wire.send(&request_frame(number, 7, append(number, 10))).await;
    }
    for number in 16..18 {
        let frame = wire.next().await.unwrap();
        assert_eq!(
            (frame.request, frame.message),
            (number, Message::Response(Response::Refusal(Refusal::Busy)))
        );
        assert_eq!(
            (frame.group, frame.from, frame.to),
            (7, 12, 11),
            "the answer's address is turned round"
        );
    }
    for number in 0..16 {
        let (incoming, reply) = requests.recv().await.unwrap();
        assert_eq!((incoming.node, index_of(&incoming.request)), (3, number));
        reply.send(yes(&incoming.request));
    }
    for number in 0..16 {
        assert_eq!(wire.next().await.unwrap().request, number);
    }
    wire.send(&request_frame(50, 7, append(50, 10))).await;
    let (incoming, _reply) = requests.recv().await.unwrap();
    assert_eq!(
        index_of(&incoming.request),
        50,
        "room is given back with the answer"
    );
    sleep(Duration::ZERO).await;
}
