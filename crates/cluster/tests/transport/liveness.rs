//! When a node is suspected, and when it is not any more; in paused time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use collie_cluster::testing::transport::{Liveness, NodeState, Peers, PeersOptions};
use collie_cluster::testing::wire::Message;
use tokio::io::DuplexStream;
use tokio::time::{Instant, sleep};

use super::support::{Memory, TestClock, Wire, Yes, alive, next_raft, until};

/// A node, its clock, and what is to be a peer of it.
async fn node(network: &Memory) -> (Peers, Arc<TestClock>) {
    let clock = Arc::new(TestClock::default());
    clock.0.store(1_000_000, Ordering::SeqCst);
    let options = PeersOptions {
        clock: Arc::clone(&clock) as _,
        ..Memory::options(1)
    };
    let peers = Peers::start(network.clone(), options, Arc::new(Yes))
        .await
        .unwrap();
    (peers, clock)
}

/// Answers one ping, and returns when it came.
async fn answer_ping(wire: &mut Wire<DuplexStream>, wall_ms: u64) -> Instant {
    loop {
        let frame = wire.next().await.unwrap();
        if let Message::Ping(_) = frame.message {
            wire.pong(frame.request, wall_ms).await;
            return Instant::now();
        }
    }
}

fn is_suspect(state: &NodeState) -> bool {
    matches!(state.liveness, Liveness::Suspect { .. })
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_is_suspected_until_its_next_frame() {
    let network = Memory::default();
    let mut listener = network.listen(Memory::address(2));
    let mut others = Vec::new();
    let (one, _clock) = node(&network).await;
    one.set_peer(2, Memory::address(2)).unwrap();
    let mut states = one.states();
    let mut wire = next_raft(&mut listener, &mut others).await;
    for round in 0..5 {
        let mut pings = Vec::new();
        for _ in 0..10 {
            pings.push(answer_ping(&mut wire, 1_000_000).await);
        }
        let gap = pings[9] - pings[8];
        assert_eq!(gap, Duration::from_millis(500), "from ping to ping");
        assert!(states.borrow_and_update()[&2].is_alive(), "round {round}");
        let silent = pings[9];
        let suspect = until(&mut states, 2, is_suspect).await;
        assert_eq!(silent.elapsed(), Duration::from_millis(1400), "round {round}");
        assert_eq!(suspect.liveness, Liveness::Suspect { since: silent });
        // Its connection stands, and one frame ends the suspicion.
        let answered = answer_ping(&mut wire, 1_000_000).await;
        until(&mut states, 2, NodeState::is_alive).await;
        assert_eq!(answered.elapsed(), Duration::ZERO, "alive only later");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_stays_silent_is_unreachable_and_connected_anew() {
    let network = Memory::default();
    let mut listener = network.listen(Memory::address(2));
    let mut others = Vec::new();
    let (one, _clock) = node(&network).await;
    one.set_peer(2, Memory::address(2)).unwrap();
    let mut states = one.states();
    let mut silent = next_raft(&mut listener, &mut others).await;
    let heard = answer_ping(&mut silent, 1_000_000).await;
    until(&mut states, 2, is_suspect).await;
    let state = until(&mut states, 2, |state| {
        matches!(state.liveness, Liveness::Unreachable { .. })
    })
    .await;
    assert_eq!(state.liveness, Liveness::Unreachable { since: heard });
    assert!(heard.elapsed() >= Duration::from_secs(3) && heard.elapsed() < Duration::from_millis(3200));
    assert!(
        state
            .problem
            .as_ref()
            .is_some_and(|problem| problem.contains("nothing came for 3s")),
        "{state:?}"
    );
    let mut wire = next_raft(&mut listener, &mut others).await;
    answer_ping(&mut wire, 1_000_000).await;
    until(&mut states, 2, NodeState::is_alive).await;
    // A connection that ends is no reason for suspicion, a second of silence is.
    drop(wire);
    sleep(Duration::from_millis(20)).await;
    assert!(states.borrow_and_update()[&2].is_alive(), "{:?}", states.borrow());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_never_heard_is_unreachable_from_the_start() {
    let network = Memory::default();
    let (one, _clock) = node(&network).await;
    let start = Instant::now();
    one.set_peer(2, Memory::address(2)).unwrap();
    let mut states = one.states();
    sleep(Duration::from_secs(10)).await;
    let state = states.borrow_and_update()[&2].clone();
    assert_eq!(state.liveness, Liveness::Unreachable { since: start });
    assert!(state.problem.is_some_and(|problem| problem.contains("refused")));
    let two = Peers::start(network.clone(), Memory::options(2), Arc::new(Yes))
        .await
        .unwrap();
    // The longest pause before an attempt is two seconds.
    let from = Instant::now();
    alive(&one, 2).await;
    assert!(from.elapsed() <= Duration::from_secs(2));
    drop(two);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_differs_by_more_than_half_a_second_is_seen() {
    let network = Memory::default();
    let mut listener = network.listen(Memory::address(2));
    let mut others = Vec::new();
    let (one, clock) = node(&network).await;
    one.set_peer(2, Memory::address(2)).unwrap();
    let mut states = one.states();
    let mut wire = next_raft(&mut listener, &mut others).await;
    for (theirs, ahead, excessive) in [
        (1_000_000, 0, false),
        (1_000_501, 501, true),
        (1_000_500, 500, false),
        (999_000, -1000, true),
    ] {
        answer_ping(&mut wire, theirs).await;
        let state = until(&mut states, 2, |state| {
            state
                .skew
                .is_some_and(|skew| skew.is_excessive() == excessive && skew.ahead_ms == ahead)
        });
        assert_eq!(state.await.skew.unwrap().doubt_ms, 0);
    }
    // An answer that takes 400 ms leaves 200 of doubt: a difference of 600 is not certain.
    let request = loop {
        let frame = wire.next().await.unwrap();
        if let Message::Ping(_) = frame.message {
            break frame.request;
        }
    };
    sleep(Duration::from_millis(400)).await;
    clock.0.store(1_000_400, Ordering::SeqCst);
    wire.pong(request, 1_000_800).await;
    let state = until(&mut states, 2, |state| {
        state.skew.is_some_and(|skew| skew.doubt_ms > 0)
    })
    .await;
    let skew = state.skew.unwrap();
    assert_eq!(
        (skew.ahead_ms, skew.doubt_ms, skew.is_excessive()),
        (600, 200, false)
    );
}
