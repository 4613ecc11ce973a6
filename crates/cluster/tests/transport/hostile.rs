//! Programs on the port that are no peers, and peers that do not keep to the rules: their
//! connections end, and no other connection notices.

use std::sync::Arc;
use std::time::Duration;

use collie_cluster::testing::transport::{Peers, PlainTcp};
use collie_cluster::testing::wire::{
    Appended, Frame, GREETING_MAX, Hello, Lane, Message, Ping, Response, encode,
};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::support::{CAP, Wire, Yes, alive, append, ask_vote, call, hello, options, request_frame};

/// A node, and a peer that keeps on calling it.
struct Town {
    victim: Peers,
    good: Peers,
}

impl Town {
    async fn new() -> Self {
        let mut limited = options(1);
        limited.times.greeting = Duration::from_millis(300);
        limited.times.frame = Duration::from_millis(300);
        limited.limits.strangers = 4;
        limited.times.silence = CAP;
        let victim = Peers::start(PlainTcp, limited, Arc::new(Yes)).await.unwrap();
        // A busy machine is no reason for suspicion here.
        let mut patient = options(2);
        (patient.times.suspect, patient.times.silence) = (CAP, CAP);
        let good = Peers::start(PlainTcp, patient, Arc::new(Yes)).await.unwrap();
        good.set_peer(1, victim.address()).unwrap();
        alive(&good, 1).await;
        Self { victim, good }
    }

    async fn stranger(&self) -> Wire<TcpStream> {
        Wire::new(TcpStream::connect(self.victim.address()).await.unwrap())
    }

    /// A peer that has greeted as node 3.
    async fn peer(&self, lane: Lane) -> Wire<TcpStream> {
        let mut wire = self.stranger().await;
        let answer = wire.greet(Hello { lane, ..hello(3, 1) }).await.unwrap();
        assert!(matches!(answer.message, Message::Hello(_)), "{answer:?}");
        wire
    }

    /// The good peer's connection is the one that it had, and works.
    async fn unharmed(&self) {
        let answer = self.good.call(call(1, 5, append(1, 100))).await.unwrap();
        assert_eq!(answer, Response::Appended(Appended::Success));
        assert!(self.good.states().borrow()[&1].is_alive());
    }
}

#[tokio::test]
async fn bytes_that_are_no_greeting_end_the_connection() {
    let town = Town::new().await;
    let vote = encode(&request_frame(1, 5, ask_vote())).unwrap();
    let mut rotten = encode(&Frame::of_connection(0, Message::Hello(hello(3, 1)))).unwrap();
    rotten[20] ^= 1;
    let huge = u32::MAX.to_le_bytes().to_vec();
    let longer_than_a_greeting = (GREETING_MAX as u32).to_le_bytes().to_vec();
    let half = rotten[..30].to_vec();
    let garbage: Vec<u8> = (0..4000u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let http = b"GET / HTTP/1.1\r\nHost: collie\r\n\r\n".to_vec();
    for bytes in [
        garbage,
        http,
        vote,
        rotten,
        huge,
        longer_than_a_greeting,
        half,
        Vec::new(),
    ] {
        let mut wire = town.stranger().await;
        // It may be closed while it is written.
        let _ = wire.stream.write_all(&bytes).await;
        let answer = wire.next().await;
        assert!(answer.is_none(), "{bytes:?} was answered {answer:?}");
        town.unharmed().await;
    }
}

#[tokio::test]
async fn strangers_take_no_place_for_long_and_no_peers_place() {
    let town = Town::new().await;
    let mut silent = Vec::new();
    for _ in 0..12 {
        silent.push(town.stranger().await);
    }
    for wire in &mut silent {
        wire.ends().await;
    }
    town.unharmed().await;
    town.peer(Lane::Raft).await;
}

#[tokio::test]
async fn a_peer_that_breaks_the_rules_loses_its_connection_alone() {
    let town = Town::new().await;
    let frame = |frame: &Frame| encode(frame).unwrap();
    let mut rotten = frame(&request_frame(1, 5, append(1, 1000)));
    rotten[500] ^= 1;
    let answer = Message::Response(Response::Appended(Appended::Success));
    let cases = [
        ("a wrong checksum", rotten),
        ("a huge length", (u32::MAX).to_le_bytes().to_vec()),
        ("a length of nothing", 0u32.to_le_bytes().to_vec()),
        (
            "half a frame that is never ended",
            frame(&request_frame(1, 5, append(1, 1000)))[..700].to_vec(),
        ),
        (
            "an answer to nothing",
            frame(&Frame {
                message: answer,
                ..request_frame(1, 5, ask_vote())
            }),
        ),
        (
            "a second greeting",
            frame(&Frame::of_connection(0, Message::Hello(hello(3, 1)))),
        ),
    ];
    for (what, bytes) in cases {
        let mut wire = town.peer(Lane::Raft).await;
        wire.stream.write_all(&bytes).await.unwrap();
        let answered = wire.next().await;
        assert!(answered.is_none(), "{what} was answered {answered:?}");
        town.unharmed().await;
    }
    let mut bulk = town.peer(Lane::Bulk).await;
    bulk.send(&request_frame(1, 5, append(1, 10))).await;
    assert!(bulk.next().await.is_none(), "an append among files");
    town.unharmed().await;
}

#[tokio::test]
async fn a_slow_sender_loses_its_connection() {
    let town = Town::new().await;
    let mut wire = town.peer(Lane::Raft).await;
    let bytes = encode(&request_frame(1, 5, append(1, 1 << 20))).unwrap();
    let trickle = async {
        for byte in bytes.chunks(100) {
            if wire.stream.write_all(byte).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // The whole frame would take 200 seconds.
    tokio::time::timeout(CAP, trickle)
        .await
        .expect("the connection ends");
    town.unharmed().await;
}

#[tokio::test]
async fn a_peer_that_takes_no_answers_loses_its_connection() {
    let town = Town::new().await;
    let mut wire = town.peer(Lane::Raft).await;
    let ping = encode(&Frame::of_connection(1, Message::Ping(Ping { wall_ms: 0 }))).unwrap();
    let vote = encode(&request_frame(2, 5, ask_vote())).unwrap();
    let many: Vec<u8> = [ping, vote].concat().repeat(2000);
    let flood = async { while wire.stream.write_all(&many).await.is_ok() {} };
    tokio::time::timeout(CAP, flood)
        .await
        .expect("the connection ends");
    town.unharmed().await;
}
