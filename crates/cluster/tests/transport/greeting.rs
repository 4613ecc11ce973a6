//! Who is refused, and what is said of it.

use std::sync::Arc;

use collie_cluster::testing::transport::{Admission, Admitted, MapChanged, Peers, PeersOptions};
use collie_cluster::testing::wire::{Frame, Hello, Join, JoinAnswer, Lane, MapRequest, Message, NodeId};

use super::support::{Memory, Wire, Yes, alive, hello, until};

async fn node(network: &Memory, options: PeersOptions) -> Peers {
    Peers::start(network.clone(), options, Arc::new(Yes))
        .await
        .unwrap()
}

/// What node 1 says of node 2 where node 2 is as `change` makes it.
async fn problem(change: impl FnOnce(&mut PeersOptions)) -> String {
    let network = Memory::default();
    let one = node(&network, Memory::options(1)).await;
    let mut options = Memory::options(2);
    change(&mut options);
    let _two = node(&network, options).await;
    one.set_peer(2, Memory::address(2)).unwrap();
    let said = |problem: &Option<String>| {
        problem
            .as_ref()
            .is_some_and(|problem| !problem.contains("refused (os"))
    };
    until(&mut one.states(), 2, |state| said(&state.problem))
        .await
        .problem
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn another_cluster_is_refused_by_both_sides() {
    let problem = problem(|options| options.identity.cluster = [9; 16]).await;
    assert!(problem.contains("is of cluster"), "{problem}");
    assert!(
        problem.contains("let it join the other"),
        "says what to do: {problem}"
    );
}

type Change = fn(&mut Hello);

/// The side that connects compares too: the other may be of a kind that does not.
#[tokio::test(start_paused = true)]
async fn an_answer_of_another_cluster_node_or_level_is_refused() {
    let changes: [(Change, &str); 5] = [
        (|hello| hello.cluster = [9; 16], "is of cluster"),
        (
            |hello| hello.node = 3,
            "expected node 2 at this address, found node 3",
        ),
        (|hello| hello.to = 5, "looks for node 5"),
        (
            |hello| hello.level = 9,
            "has feature level 9, and this version speaks levels 1 to 2",
        ),
        (|hello| hello.lane = flipped(hello.lane), "connection, found"),
    ];
    for (change, said) in changes {
        let network = Memory::default();
        let mut listener = network.listen(Memory::address(2));
        let one = node(&network, Memory::options(1)).await;
        one.set_peer(2, Memory::address(2)).unwrap();
        tokio::spawn(async move {
            while let Some(stream) = listener.recv().await {
                let mut wire = Wire::new(stream);
                let Some(Frame {
                    message: Message::Hello(theirs),
                    ..
                }) = wire.next().await
                else {
                    continue;
                };
                let mut answer = Hello {
                    lane: theirs.lane,
                    ..hello(2, 1)
                };
                change(&mut answer);
                wire.send(&Frame::of_connection(0, Message::Hello(answer))).await;
                wire.ends().await;
            }
        });
        let mut states = one.states();
        let state = until(&mut states, 2, |state| {
            state
                .problem
                .as_ref()
                .is_some_and(|problem| problem.contains(said))
        });
        assert!(!state.await.is_alive());
    }
}

fn flipped(lane: Lane) -> Lane {
    match lane {
        Lane::Raft => Lane::Bulk,
        Lane::Bulk => Lane::Raft,
    }
}

#[tokio::test(start_paused = true)]
async fn another_node_at_the_address_is_refused() {
    let problem = problem(|options| options.identity.node = 3).await;
    assert!(
        problem.contains("looks for node 2, and this is node 3"),
        "{problem}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_feature_level_that_is_not_spoken_is_refused() {
    let problem = problem(|options| (options.identity.level, options.identity.spoken) = (3, 3..=4)).await;
    assert!(
        problem.contains("has feature level 1, and this version speaks levels 3 to 4"),
        "{problem}"
    );
}

/// What node 1 answers to a greeting.
async fn answer(network: &Memory, to: NodeId, hello: Hello) -> Option<String> {
    use collie_cluster::Network;
    let mut wire = Wire::new(network.connect(Memory::address(to)).await.unwrap());
    match wire.greet(hello).await?.message {
        Message::Refused(refused) => {
            assert!(wire.next().await.is_none(), "a refused connection is closed");
            Some(refused.reason)
        }
        other => panic!("expected a refusal, found {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn each_wrong_greeting_is_answered_with_its_reason() {
    let network = Memory::default();
    let _one = node(&network, Memory::options(1)).await;
    let said = |hello: Hello| answer(&network, 1, hello);
    let right = hello(2, 1);
    assert!(
        said(Hello {
            cluster: [9; 16],
            ..right.clone()
        })
        .await
        .unwrap()
        .contains("is of cluster")
    );
    assert!(
        said(Hello {
            node: 1,
            ..right.clone()
        })
        .await
        .unwrap()
        .contains("of two nodes with one number, stop one")
    );
    assert!(
        said(Hello {
            to: 7,
            ..right.clone()
        })
        .await
        .unwrap()
        .contains("looks for node 7")
    );
    assert!(
        said(Hello {
            level: 9,
            ..right.clone()
        })
        .await
        .unwrap()
        .contains("feature level 9")
    );
    let version = said(Hello {
        version: 2,
        ..right.clone()
    })
    .await
    .unwrap();
    assert!(
        version.contains("version 2 of the protocol between nodes, and this one version 1"),
        "{version}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_second_process_with_the_number_of_a_live_one_is_refused() {
    use collie_cluster::Network;
    let network = Memory::default();
    let one = node(&network, Memory::options(1)).await;
    let first = node(&network, Memory::options(2)).await;
    first.set_peer(1, Memory::address(1)).unwrap();
    alive(&first, 1).await;
    let mut second = hello(2, 1);
    second.boot = [99; 16];
    let said = answer(&network, 1, second.clone()).await.unwrap();
    assert!(
        said.contains("another process that is node 2 is connected"),
        "{said}"
    );
    first.close().await;
    // Its connections have ended, so the next process is welcome: a node that was started anew.
    loop {
        let mut wire = Wire::new(network.connect(Memory::address(1)).await.unwrap());
        match wire.greet(second.clone()).await.unwrap().message {
            Message::Hello(_) => break,
            _ => tokio::task::yield_now().await,
        }
    }
    drop(one);
}

/// Asks node 1 to join, as a stranger would, and waits for all that it answers.
async fn asked(network: &Memory, join: Join) -> (Option<Message>, bool) {
    use collie_cluster::Network;
    let mut wire = Wire::new(network.connect(Memory::address(1)).await.unwrap());
    wire.send(&Frame::of_connection(0, Message::Join(join))).await;
    let answer = wire.next().await.map(|frame| frame.message);
    (answer, wire.next().await.is_none())
}

fn join() -> Join {
    Join {
        version: collie_cluster::testing::wire::VERSION,
        known: None,
        token: [5; 16],
        peer: Memory::address(5),
        client: Memory::address(6),
        disks: vec![[7; 16]; collie_cluster::testing::wire::DISKS_MAX],
        least: 1,
        most: 1,
        wall_ms: 0,
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_takes_no_others_refuses_a_stranger() {
    let network = Memory::default();
    let _one = node(&network, Memory::options(1)).await;
    let (answer, ended) = asked(&network, join()).await;
    match answer {
        Some(Message::Refused(refused)) => assert!(refused.reason.contains("takes no other nodes")),
        other => panic!("expected a refusal, found {other:?}"),
    }
    assert!(ended, "the connection ends behind the answer");
}

/// Never answers.
struct Never;

impl Admission for Never {
    fn join(&self, _: Join) -> Admitted {
        Box::pin(std::future::pending())
    }

    fn was_removed(&self, _: NodeId) -> bool {
        false
    }

    fn change_map(&self, _: MapRequest) -> MapChanged {
        Box::pin(std::future::pending())
    }
}

#[tokio::test(start_paused = true)]
async fn a_stranger_without_an_answer_is_sent_away_in_time() {
    let network = Memory::default();
    let mut options = Memory::options(1);
    options.admission = Some(Arc::new(Never));
    options.limits.strangers = 1;
    let within = options.times.join;
    let _one = node(&network, options).await;
    let begun = tokio::time::Instant::now();
    let first = asked(&network, join());
    let second = async {
        tokio::time::sleep(within / 2).await;
        asked(&network, join()).await
    };
    let ((answer, ended), (none, _)) = tokio::join!(first, second);
    assert!(matches!(&answer, Some(Message::Joined(joined)) if joined.answer == JoinAnswer::Elsewhere(None)));
    assert!(ended && begun.elapsed() >= within);
    assert_eq!(none, None, "there is one place for strangers");
}
