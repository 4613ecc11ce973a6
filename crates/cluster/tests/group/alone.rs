//! A node with one replica, whose peers are played by the test.

use std::net::SocketAddr;
use std::sync::Arc;

use collie_cluster::testing::transport::{Call, Dispatch, Incoming, NodeStates, Peers, PlainTcp, Reply};
use collie_cluster::testing::wire::{Request, Response};
use collie_cluster::testing::{Node, NodeOptions, Replica};
use collie_sim::SimDevice;
use tempfile::TempDir;
use tokio::sync::mpsc;

use crate::cluster::{CAP, GROUP, log_options, members, node_options, peers_options, replica_on};

/// Hands requests to the test.
struct Handed(mpsc::UnboundedSender<(Incoming, Reply)>);

impl Dispatch for Handed {
    fn dispatch(&self, incoming: Incoming, reply: Reply) {
        // The test may be over.
        let _over = self.0.send((incoming, reply));
    }
}

/// A node, and its two peers, of which the second is never there.
pub(crate) struct Alone {
    pub(crate) node: Node,
    pub(crate) replica: Arc<Replica>,
    pub(crate) peer: Peers,
    pub(crate) requests: mpsc::UnboundedReceiver<(Incoming, Reply)>,
    pub(crate) log: SimDevice,
    pub(crate) dir: TempDir,
}

fn options(dir: &TempDir, log: &SimDevice) -> NodeOptions {
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut options = log_options();
    options.device = Arc::new(log.clone());
    node_options(dir.path(), options, peers_options(1, anywhere))
}

async fn connect(node: &Node, replica: &Replica, peer: &Peers) {
    node.set_peer(2, peer.address()).unwrap();
    peer.set_peer(1, node.address()).unwrap();
    replica.opened().await.unwrap();
}

impl Alone {
    pub(crate) async fn new(begin: bool) -> Self {
        Self::adjusted(begin, |_| {}).await
    }

    pub(crate) async fn adjusted(begin: bool, adjust: impl FnOnce(&mut NodeOptions)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let (sender, requests) = mpsc::unbounded_channel();
        let handed = Arc::new(Handed(sender));
        let peer = Peers::start(PlainTcp, peers_options(2, anywhere), handed)
            .await
            .unwrap();
        let log = SimDevice::new(1);
        let mut options = options(&dir, &log);
        adjust(&mut options);
        let node = Node::start(PlainTcp, options).await.unwrap();
        let replica = node.create(GROUP, replica_on(1), 0).await.unwrap();
        connect(&node, &replica, &peer).await;
        if begin {
            let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
            let members = members(&[(1, node.address()), (2, peer.address()), (3, nowhere)]);
            replica.initialize(members).await.unwrap();
        }
        Self {
            node,
            replica,
            peer,
            requests,
            log,
            dir,
        }
    }

    /// The node ends, and starts again.
    pub(crate) async fn again(self, adjust: impl FnOnce(&mut NodeOptions)) -> Self {
        let Self {
            node,
            replica,
            peer,
            requests,
            log,
            dir,
        } = self;
        let boot = |states: &NodeStates| states.get(&1).and_then(|state| state.boot);
        let before = boot(&peer.states().borrow());
        drop(replica);
        node.close().await.unwrap();
        let mut options = options(&dir, &log);
        adjust(&mut options);
        let node = Node::start(PlainTcp, options).await.unwrap();
        let replica = node.replica(replica_on(1)).unwrap();
        connect(&node, &replica, &peer).await;
        let mut states = peer.states();
        let hears = states.wait_for(|states| boot(states).is_some_and(|boot| Some(boot) != before));
        drop(tokio::time::timeout(CAP, hears).await.unwrap().unwrap());
        Self {
            node,
            replica,
            peer,
            requests,
            log,
            dir,
        }
    }

    pub(crate) async fn request(&mut self) -> (Incoming, Reply) {
        let next = tokio::time::timeout(CAP, self.requests.recv()).await;
        next.unwrap_or_else(|_| panic!("it asks for nothing")).unwrap()
    }

    pub(crate) async fn call(&self, group: u64, to: u64, request: Request) -> Response {
        let call = Call {
            node: 1,
            group,
            from: replica_on(2),
            to,
            request,
            within: CAP,
        };
        let mut states = self.peer.states();
        let alive = states.wait_for(|states| states.get(&1).is_some_and(|state| state.is_alive()));
        drop(tokio::time::timeout(CAP, alive).await.unwrap().unwrap());
        self.peer.call(call).await.unwrap()
    }
}
