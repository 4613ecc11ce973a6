//! What is under way when a connection ends.

use std::net::SocketAddr;
use std::sync::Arc;

use collie_cluster::testing::transport::{Network, PeerError, Peers};
use collie_cluster::testing::wire::{Appended, Response};
use tokio::io::copy_bidirectional;
use tokio::task::JoinSet;

use super::support::{Memory, Yes, append, call, handed, until, yes};

/// Stands between two nodes, and can drop what goes through it.
struct Relay {
    network: Memory,
    address: SocketAddr,
    to: SocketAddr,
    carried: JoinSet<()>,
}

impl Relay {
    fn new(network: &Memory, to: SocketAddr) -> Self {
        let address = SocketAddr::from(([10, 0, 1, 1], 1));
        let mut relay = Self {
            network: network.clone(),
            address,
            to,
            carried: JoinSet::new(),
        };
        relay.begin();
        relay
    }

    /// Ends all connections, and takes new ones.
    fn cut(&mut self) {
        self.carried.abort_all();
        self.begin();
    }

    fn begin(&mut self) {
        let (network, to) = (self.network.clone(), self.to);
        let mut listener = network.listen(self.address);
        self.carried.spawn(async move {
            let mut streams = JoinSet::new();
            while let Some(mut near) = listener.recv().await {
                let mut far = network.connect(to).await.unwrap();
                streams.spawn(async move { drop(copy_bidirectional(&mut near, &mut far).await) });
            }
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_reaches_no_request_of_a_later_connection() {
    let network = Memory::default();
    let (dispatch, mut requests) = handed();
    let _two = Peers::start(network.clone(), Memory::options(2), dispatch)
        .await
        .unwrap();
    let one = Peers::start(network.clone(), Memory::options(1), Arc::new(Yes))
        .await
        .unwrap();
    let mut relay = Relay::new(&network, Memory::address(2));
    one.set_peer(2, relay.address).unwrap();
    let mut states = one.states();
    for round in 0..5 {
        until(&mut states, 2, |state| {
            state.is_alive() && state.problem.is_none()
        })
        .await;
        let first = one.send(call(2, 7, append(1, 10))).await.unwrap();
        let (_, late) = requests.recv().await.unwrap();
        relay.cut();
        let lost = first.wait().await.unwrap_err();
        assert!(matches!(lost, PeerError::Lost { .. }), "{lost}");
        assert!(
            lost.to_string()
                .contains("whether the append was carried out is not known"),
            "{lost}"
        );
        until(&mut states, 2, |state| {
            state.is_alive() && state.problem.is_none()
        })
        .await;
        let second = one.send(call(2, 7, append(2, 10))).await.unwrap();
        let (incoming, reply) = requests.recv().await.unwrap();
        late.send(Response::Appended(Appended::Conflict));
        reply.send(yes(&incoming.request));
        let answer = second.wait().await.unwrap();
        assert_eq!(
            answer,
            Response::Appended(Appended::Success),
            "round {round}: the answer to another request"
        );
    }
}
