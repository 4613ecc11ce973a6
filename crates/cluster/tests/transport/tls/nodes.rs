//! Whole nodes over TLS.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use collie_cluster::testing::transport::{Network, Peers, PeersOptions, PlainTcp};
use collie_cluster::testing::wire::{Appended, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing_subscriber::fmt::MakeWriter;

use super::{Held, says};
use crate::certificates::Authority;
use crate::loopback::what_was_sent_last_arrives;
use crate::support::{CAP, Yes, alive, append, call, connected, options, until};

/// A node that a busy machine does not make suspicious.
fn patient(node: u64) -> PeersOptions {
    let mut options = options(node);
    (options.times.suspect, options.times.silence) = (CAP, CAP);
    options
}

async fn start(network: impl Network, options: PeersOptions) -> Peers {
    Peers::start(network, options, Arc::new(Yes)).await.unwrap()
}

/// What a node says of a peer to which it does not get a connection.
async fn problem(peers: &Peers, node: u64) -> String {
    let mut states = peers.states();
    let state = until(&mut states, node, |state| {
        let problem = state.problem.as_deref();
        problem.is_some_and(|problem| problem.contains(": "))
    });
    state.await.problem.unwrap()
}

#[tokio::test]
async fn two_nodes_speak_over_tls() {
    let ca = Authority::new("ours");
    let one = start(Held::of(&ca).network, patient(1)).await;
    let two = start(Held::of(&ca).network, patient(2)).await;
    one.set_peer(2, two.address()).unwrap();
    two.set_peer(1, one.address()).unwrap();
    connected(&one, 2).await;
    connected(&two, 1).await;
    for (index, bytes) in [0, 1, 16_383, 70_000, 1 << 20, 7 << 20].into_iter().enumerate() {
        let sent = one.call(call(2, 5, append(index as u64, bytes))).await.unwrap();
        assert_eq!(sent, Response::Appended(Appended::Success));
    }
    two.close().await;
    one.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_sent_last_arrives_over_tls() {
    let held = Held::of(&Authority::new("ours"));
    what_was_sent_last_arrives(|| held.network.clone()).await;
}

/// Passes on what two nodes send, and keeps it.
async fn relay(listener: TcpListener, to: std::net::SocketAddr, kept: Arc<Mutex<Vec<u8>>>) {
    let mut ways = JoinSet::new();
    while let Ok((near, _)) = listener.accept().await {
        let (mut from, mut back) = near.into_split();
        let (mut answers, mut on) = TcpStream::connect(to).await.unwrap().into_split();
        let kept = Arc::clone(&kept);
        ways.spawn(async move {
            let mut bytes = vec![0; 64 << 10];
            loop {
                let read = from.read(&mut bytes).await?;
                if read == 0 {
                    return on.shutdown().await;
                }
                kept.lock().unwrap().extend_from_slice(&bytes[..read]);
                on.write_all(&bytes[..read]).await?;
            }
        });
        ways.spawn(async move { tokio::io::copy(&mut answers, &mut back).await.map(drop) });
    }
}

#[tokio::test]
async fn what_nodes_say_cannot_be_read_on_the_way() {
    async fn on_the_way(one: impl Network, two: impl Network) -> Vec<u8> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let kept = Arc::new(Mutex::new(Vec::new()));
        let (one, two) = (start(one, patient(1)).await, start(two, patient(2)).await);
        let relay = tokio::spawn(relay(listener, two.address(), Arc::clone(&kept)));
        one.set_peer(2, address).unwrap();
        alive(&one, 2).await;
        one.call(call(2, 5, append(1, 100_000))).await.unwrap();
        relay.abort();
        std::mem::take(&mut *kept.lock().unwrap())
    }
    // The payload, and the cluster's id of the greeting.
    let shows = |bytes: &[u8]| {
        let has = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
        [has(&[7; 32]), has(b"cluster of tests")]
    };
    assert_eq!(shows(&on_the_way(PlainTcp, PlainTcp).await), [true, true]);
    let ca = Authority::new("ours");
    let secured = on_the_way(Held::of(&ca).network, Held::of(&ca).network).await;
    assert!(secured.len() > 100_000);
    assert_eq!(shows(&secured), [false, false]);
}

#[tokio::test]
async fn nodes_with_and_without_certificates_say_so_on_both_sides() {
    let secured = start(Held::of(&Authority::new("ours")).network, patient(1)).await;
    let plain = start(PlainTcp, patient(2)).await;
    plain.set_peer(1, secured.address()).unwrap();
    says(
        &problem(&plain, 1).await,
        &[
            "the peer speaks TLS, and this node does not: give every node of the cluster a certificate, or none",
        ],
    );
    secured.set_peer(2, plain.address()).unwrap();
    says(
        &problem(&secured, 2).await,
        &["closed the connection during the TLS handshake: it may be a node without certificates"],
    );
}

#[tokio::test]
async fn a_node_that_is_refused_for_its_certificate_shows_the_reason() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let one = start(Held::of(&ours).network, patient(1)).await;
    // It accepts node 1, which does not accept it: the reason comes after its own handshake.
    let all = format!("{}{}", ours.pem, theirs.pem);
    let two = start(Held::new(&all, &theirs.node(), super::NOW).network, patient(2)).await;
    two.set_peer(1, one.address()).unwrap();
    says(
        &problem(&two, 1).await,
        &["the peer does not accept this node's certificate: it is signed by another CA than the peer's"],
    );
}

/// Silent ones, and some that begin a handshake.
#[tokio::test]
async fn strangers_in_their_handshake_keep_no_node_out() {
    let ca = Authority::new("ours");
    let mut limited = patient(1);
    limited.times.greeting = Duration::from_millis(500);
    let limit = limited.limits.strangers;
    let victim = start(Held::of(&ca).network, limited).await;
    let mut strangers = Vec::new();
    for n in 0..2 * limit {
        let mut stranger = TcpStream::connect(victim.address()).await.unwrap();
        if n % 2 == 1 {
            // The begin of a handshake's record of 256 bytes. Above the limit it is closed already.
            let _closed = stranger.write_all(&[22, 3, 1, 1, 0, 1]).await;
        }
        strangers.push(stranger);
    }
    let good = start(Held::of(&ca).network, patient(2)).await;
    good.set_peer(1, victim.address()).unwrap();
    alive(&good, 1).await;
    for mut stranger in strangers {
        // A record of TLS may come first: what ends a handshake.
        let end = timeout(CAP, async {
            while stranger.read(&mut [0; 64]).await? > 0 {}
            io::Result::Ok(())
        });
        // Reset or closed.
        let _ended = end.await.expect("the end of a stranger's connection");
    }
    good.call(call(1, 5, append(1, 100))).await.unwrap();
}

/// What is logged.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn strangers_do_not_flood_the_log() {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_ansi(false)
        .with_writer(lines.clone())
        .finish();
    // All tasks of this test run on its thread.
    let _logged = tracing::subscriber::set_default(subscriber);
    let victim = start(Held::of(&Authority::new("ours")).network, patient(1)).await;
    for _ in 0..100 {
        // Another test may come to this line of the log for the first time at the same moment, and have
        // it found then that none listens.
        tracing::callsite::rebuild_interest_cache();
        let mut stranger = TcpStream::connect(victim.address()).await.unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        stranger.shutdown().await.unwrap();
        let mut rest = Vec::new();
        // Reset or closed.
        let _ended = timeout(CAP, stranger.read_to_end(&mut rest)).await.unwrap();
    }
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let refused = text.lines().filter(|line| line.contains("is refused")).count();
    // Two periods, if the machine is slow.
    assert!((1..=20).contains(&refused), "{refused} lines:\n{text}");
    says(&text, &["the peer does not speak TLS, and this node does"]);
}
