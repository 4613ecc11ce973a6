//! Nodes for the tests, a network in memory, and a peer that a test drives frame by frame.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use collie_cluster::testing::transport::{
    Call, Dispatch, Identity, Incoming, Network, NodeState, NodeStates, Peers, PeersOptions, Reply,
};
use collie_cluster::testing::wire::{
    Append, Appended, Frame, HEAD, Hello, Lane, LogEntry, Message, NodeId, Payload, Pong, Request, Response,
    VERSION, VoteAnswer, VoteRequest, decode, encode, frame_len,
};
use collie_cluster::testing::{EntryId, LeaderId, Vote};
use collie_io::{Clock, Nanos};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

pub(crate) const CLUSTER: [u8; 16] = *b"cluster of tests";
/// Only a hang takes so long.
pub(crate) const CAP: Duration = Duration::from_secs(60);

/// A wall clock that a test sets.
#[derive(Debug, Default)]
pub(crate) struct TestClock(pub(crate) AtomicU64);

impl Clock for TestClock {
    fn monotonic(&self) -> Nanos {
        0
    }

    fn wall_ms(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

pub(crate) fn identity(node: NodeId) -> Identity {
    Identity {
        cluster: CLUSTER,
        node,
        boot: [node as u8; 16],
        level: 1,
        spoken: 1..=2,
    }
}

pub(crate) fn options(node: NodeId) -> PeersOptions {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    PeersOptions::new(identity(node), listen, Arc::new(TestClock::default()), node)
}

/// Answers appends and votes at once, all others as unknown.
pub(crate) struct Yes;

impl Dispatch for Yes {
    fn dispatch(&self, incoming: Incoming, reply: Reply) {
        reply.send(yes(&incoming.request));
    }
}

pub(crate) fn yes(request: &Request) -> Response {
    match request {
        Request::Append(_) => Response::Appended(Appended::Success),
        Request::Vote(asked) => Response::Voted(VoteAnswer {
            vote: asked.vote,
            granted: true,
            last: asked.last,
        }),
        _ => Response::Refusal(collie_cluster::testing::wire::Refusal::Unknown),
    }
}

/// Hands requests to the test, which answers them when it likes.
pub(crate) struct Handed(mpsc::UnboundedSender<(Incoming, Reply)>);

pub(crate) type Requests = mpsc::UnboundedReceiver<(Incoming, Reply)>;

pub(crate) fn handed() -> (Arc<Handed>, Requests) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Arc::new(Handed(sender)), receiver)
}

impl Dispatch for Handed {
    fn dispatch(&self, incoming: Incoming, reply: Reply) {
        // The test may be over.
        let _ = self.0.send((incoming, reply));
    }
}

pub(crate) fn vote() -> Vote {
    Vote {
        leader: LeaderId { term: 3, replica: 11 },
        committed: true,
    }
}

/// An append whose only entry has this index, and a payload of so many bytes.
pub(crate) fn append(index: u64, bytes: usize) -> Request {
    let id = EntryId {
        leader: vote().leader,
        index,
    };
    let entry = LogEntry {
        id,
        payload: Payload(vec![7; bytes]),
    };
    Request::Append(Append {
        vote: vote(),
        previous: None,
        committed: None,
        entries: vec![entry],
    })
}

/// The index of the only entry.
pub(crate) fn index_of(request: &Request) -> u64 {
    match request {
        Request::Append(append) => append.entries[0].id.index,
        other => panic!("expected an append, found {other:?}"),
    }
}

pub(crate) fn ask_vote() -> Request {
    Request::Vote(VoteRequest {
        vote: vote(),
        last: None,
        leadership_transfer: false,
    })
}

pub(crate) fn call(node: NodeId, group: u64, request: Request) -> Call {
    Call {
        node,
        group,
        from: 11,
        to: 12,
        request,
        within: CAP,
    }
}

/// Waits for a state of a node.
pub(crate) async fn until(
    states: &mut watch::Receiver<NodeStates>,
    node: NodeId,
    is: impl Fn(&NodeState) -> bool,
) -> NodeState {
    let is = |states: &NodeStates| states.get(&node).is_some_and(&is);
    let found = timeout(CAP, states.wait_for(is))
        .await
        .map(|states| states.unwrap()[&node].clone());
    found.unwrap_or_else(|_| {
        panic!(
            "node {node} does not become what is waited for: {:?}",
            states.borrow()
        )
    })
}

pub(crate) async fn alive(peers: &Peers, node: NodeId) -> NodeState {
    until(&mut peers.states(), node, NodeState::is_alive).await
}

/// Answers once the bulk connection stands as well.
pub(crate) async fn connected(peers: &Peers, node: NodeId) {
    alive(peers, node).await;
    let piece = collie_cluster::testing::wire::SnapshotEnd {
        vote: vote(),
        snapshot: 0,
    };
    while peers
        .call(call(node, 0, Request::SnapshotEnd(piece.clone())))
        .await
        .is_err()
    {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A network in memory: no time passes in it but tokio's, paused or not.
#[derive(Clone, Default)]
pub(crate) struct Memory(Arc<Mutex<HashMap<SocketAddr, mpsc::UnboundedSender<DuplexStream>>>>);

impl Memory {
    pub(crate) fn address(node: NodeId) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, node as u8], 1))
    }

    /// The connections that are made to an address, for a test to drive.
    pub(crate) fn listen(&self, address: SocketAddr) -> mpsc::UnboundedReceiver<DuplexStream> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.lock().unwrap().insert(address, sender);
        receiver
    }

    pub(crate) fn options(node: NodeId) -> PeersOptions {
        PeersOptions {
            listen: Self::address(node),
            ..options(node)
        }
    }
}

impl Network for Memory {
    type Stream = DuplexStream;
    type Listener = (
        SocketAddr,
        tokio::sync::Mutex<mpsc::UnboundedReceiver<DuplexStream>>,
    );
    type Accepted = DuplexStream;

    fn check(&self, _: SocketAddr) -> Result<(), String> {
        Ok(())
    }

    async fn bind(&self, address: SocketAddr) -> io::Result<Self::Listener> {
        Ok((address, tokio::sync::Mutex::new(self.listen(address))))
    }

    fn local_address(&self, listener: &Self::Listener) -> io::Result<SocketAddr> {
        Ok(listener.0)
    }

    async fn accept(&self, listener: &Self::Listener) -> io::Result<(DuplexStream, SocketAddr)> {
        match listener.1.lock().await.recv().await {
            Some(stream) => Ok((stream, Self::address(0))),
            None => std::future::pending().await,
        }
    }

    async fn secure(&self, accepted: DuplexStream) -> io::Result<DuplexStream> {
        Ok(accepted)
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<DuplexStream> {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let (near, far) = duplex(64 << 10);
        let listener = self
            .0
            .lock()
            .unwrap()
            .get(&address)
            .cloned()
            .ok_or_else(refused)?;
        listener.send(far).map_err(|_| refused())?;
        Ok(near)
    }
}

/// One connection, driven by hand.
pub(crate) struct Wire<S> {
    pub(crate) stream: S,
    bytes: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            bytes: Vec::new(),
        }
    }

    pub(crate) async fn send(&mut self, frame: &Frame) {
        self.stream.write_all(&encode(frame).unwrap()).await.unwrap();
    }

    /// The next frame; `None` once the other side has closed the connection.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(len) = frame_len(&self.bytes, collie_cluster::testing::wire::FRAME_MAX).unwrap()
                && self.bytes.len() >= len
            {
                let rest = self.bytes.split_off(len);
                return Some(decode(&std::mem::replace(&mut self.bytes, rest)).unwrap());
            }
            match timeout(CAP, self.stream.read_buf(&mut self.bytes))
                .await
                .expect("a frame or the end")
            {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// Whether the other side closes the connection, whatever it sends before.
    pub(crate) async fn ends(&mut self) {
        while self.next().await.is_some() {}
    }

    /// Greets as a node would.
    pub(crate) async fn greet(&mut self, hello: Hello) -> Option<Frame> {
        self.send(&Frame::of_connection(0, Message::Hello(hello))).await;
        self.next().await
    }

    /// Takes a greeting and answers it as node `node`; `None` if the other side has given up.
    pub(crate) async fn be_greeted(&mut self, node: NodeId) -> Option<Lane> {
        let Message::Hello(theirs) = self.next().await?.message else {
            panic!("expected a hello")
        };
        let answer = Hello {
            lane: theirs.lane,
            ..hello(node, theirs.node)
        };
        let frame = Frame::of_connection(0, Message::Hello(answer));
        self.stream.write_all(&encode(&frame).unwrap()).await.ok()?;
        Some(theirs.lane)
    }

    /// Answers a ping.
    pub(crate) async fn pong(&mut self, request: u64, wall_ms: u64) {
        self.send(&Frame::of_connection(request, Message::Pong(Pong { wall_ms })))
            .await;
    }
}

/// Takes the raft connection that a node makes next to node 2, which the test is. Others that it
/// makes before are put into `others`.
pub(crate) async fn next_raft(
    listener: &mut mpsc::UnboundedReceiver<DuplexStream>,
    others: &mut Vec<Wire<DuplexStream>>,
) -> Wire<DuplexStream> {
    loop {
        let mut wire = Wire::new(listener.recv().await.unwrap());
        match wire.be_greeted(2).await {
            Some(Lane::Raft) => return wire,
            Some(Lane::Bulk) => others.push(wire),
            None => {}
        }
    }
}

pub(crate) fn hello(node: NodeId, to: NodeId) -> Hello {
    let boot = [node as u8; 16];
    Hello {
        version: VERSION,
        cluster: CLUSTER,
        node,
        to,
        lane: Lane::Raft,
        level: 1,
        boot,
    }
}

pub(crate) fn request_frame(number: u64, group: u64, request: Request) -> Frame {
    Frame {
        group,
        from: 11,
        to: 12,
        request: number,
        message: Message::Request(request),
    }
}

const _: () = assert!(HEAD == 42);
