//! A node's connections, as the rest of it uses them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout_at};

use crate::beat::Beat;
use crate::ids::{GroupId, ReplicaId};
use crate::transport::dispatch::{Dispatch, Incoming, Load, Reply, haste};
use crate::transport::error::{End, PeerError};
use crate::transport::inbound::accept;
use crate::transport::link::{Link, watch_pulse};
use crate::transport::liveness::{LedByNode, NodeStates, Pulse};
use crate::transport::network::Network;
use crate::transport::options::PeersOptions;
use crate::transport::outbox::{PendingSlot, Unawaited};
use crate::transport::shared::PeersInner;
use crate::transport::wire::{Frame, Kind, Lane, Message, NodeId, Request, Response, encode};

/// The connections of a node to its peers, and those that peers make to it.
///
/// Dropped, they end, with what is queued; [`close`](Self::close) waits for it.
pub struct Peers {
    shared: Arc<PeersInner>,
    peers: Mutex<BTreeMap<NodeId, Peer>>,
    address: SocketAddr,
    /// What replicas of this node have in flight to others of it.
    own: Arc<Load>,
    /// Checks an address, and runs the links of a new peer.
    network: Box<dyn Connect>,
}

#[derive(Debug)]
struct Peer {
    raft: Arc<Link>,
    bulk: Arc<Link>,
    pulse: Arc<Pulse>,
    /// Dropped, the links end.
    address: watch::Sender<SocketAddr>,
}

/// A request to a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The peer.
    pub node: NodeId,
    /// The group.
    pub group: GroupId,
    /// The replica that asks.
    pub from: ReplicaId,
    /// The replica that is asked.
    pub to: ReplicaId,
    /// What it asks.
    pub request: Request,
    /// How long it may take, the wait for room included.
    pub within: Duration,
}

/// An answer that is waited for. Dropped, the request is given up, though it may be carried out.
#[derive(Debug)]
#[must_use = "a request whose answer is dropped is given up"]
pub struct PendingResponse {
    receiver: oneshot::Receiver<Result<Response, End>>,
    /// None where this node asks itself.
    _place: Option<PendingSlot>,
    node: NodeId,
    lane: Lane,
    kind: Kind,
    within: Duration,
    deadline: Instant,
}

#[cfg(feature = "testing")]
/// What was sent, on all connections since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeersStats {
    /// Frames.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Writes that took them.
    pub writes: u64,
}

/// A network without its types.
trait Connect: Send + Sync {
    fn check(&self, address: SocketAddr) -> Result<(), String>;
    fn run(&self, link: Arc<Link>, shared: &Arc<PeersInner>, address: watch::Receiver<SocketAddr>);
}

impl<N: Network> Connect for Arc<N> {
    fn check(&self, address: SocketAddr) -> Result<(), String> {
        (**self).check(address)
    }

    fn run(&self, link: Arc<Link>, shared: &Arc<PeersInner>, address: watch::Receiver<SocketAddr>) {
        shared.spawn(link.run(Arc::clone(self), Arc::clone(shared), address));
    }
}

impl Peers {
    /// Takes connections of peers, whose requests go to `dispatch`. To be called on a tokio
    /// runtime, which then runs all connections.
    ///
    /// # Errors
    /// [`PeerError::Address`], [`PeerError::Bind`].
    pub async fn start<N: Network>(
        network: N,
        options: PeersOptions,
        dispatch: Arc<dyn Dispatch>,
    ) -> Result<Self, PeerError> {
        let network = Arc::new(network);
        network
            .check(options.listen)
            .map_err(|problem| PeerError::Address { problem })?;
        let bind = |error: std::io::Error| PeerError::Bind {
            address: options.listen,
            problem: error.to_string(),
        };
        let listener = network.bind(options.listen).await.map_err(bind)?;
        let address = network.local_address(&listener).map_err(bind)?;
        let shared = PeersInner::new(options, dispatch);
        shared.spawn(accept(Arc::clone(&network), listener, Arc::clone(&shared)));
        Ok(Self {
            own: Load::new(shared.lane),
            shared,
            peers: Mutex::default(),
            address,
            network: Box::new(network),
        })
    }

    /// When the periodic tasks of this node tick. It has begun when the connections did.
    pub(crate) fn beat(&self) -> Beat {
        self.shared.beat
    }

    /// Adds a peer, or says where it is now. Connections to it are made in the background.
    ///
    /// # Errors
    /// [`PeerError::Address`].
    pub fn set_peer(&self, node: NodeId, address: SocketAddr) -> Result<(), PeerError> {
        self.network
            .check(address)
            .map_err(|problem| PeerError::Address { problem })?;
        if node == self.shared.options.identity.node {
            let problem = format!("node {node} is this node, and not its own peer");
            return Err(PeerError::Address { problem });
        }
        let mut peers = self.peers.lock();
        if let Some(peer) = peers.get(&node) {
            peer.address
                .send_if_modified(|at| std::mem::replace(at, address) != address);
            return Ok(());
        }
        let times = &self.shared.options.times;
        let pulse = Arc::new(Pulse::new(node, times.suspect, self.shared.states.clone()));
        let (sender, receiver) = watch::channel(address);
        let link = |lane| Link::new(node, lane, Arc::clone(&pulse), &self.shared);
        let (raft, bulk) = (link(Lane::Raft), link(Lane::Bulk));
        for link in [&raft, &bulk] {
            self.network.run(Arc::clone(link), &self.shared, receiver.clone());
        }
        let over = {
            let (shared, mut address) = (Arc::clone(&self.shared), receiver);
            async move {
                let removed = async { while address.changed().await.is_ok() {} };
                tokio::select! {
                    biased;
                    () = shared.closed() => {}
                    () = removed => {}
                }
            }
        };
        self.shared
            .spawn(watch_pulse(Arc::clone(&pulse), self.beat(), times.ping, over));
        peers.insert(
            node,
            Peer {
                raft,
                bulk,
                pulse,
                address: sender,
            },
        );
        Ok(())
    }

    /// Ends the connections to a peer and from it, and forgets it. It may connect again.
    pub fn remove_peer(&self, node: NodeId) {
        if let Some(peer) = self.peers.lock().remove(&node) {
            peer.pulse.retire();
            self.shared.slots.end(node);
        }
    }

    /// Which peers answer. The receiver is woken when that, or what else is known of one, changes.
    pub fn states(&self) -> watch::Receiver<NodeStates> {
        self.shared.states.subscribe()
    }

    /// By how many milliseconds the clocks of the peers' machines are ahead of this node's time, as of
    /// the last ping of each. That it took some time is not counted. A peer that is silent or gone
    /// may be among them.
    pub fn machine_clocks(&self) -> BTreeMap<NodeId, i64> {
        self.shared.machine_clocks.lock().clone()
    }

    /// The feature level of the cluster, as this node knows it.
    pub fn level(&self) -> u32 {
        self.shared.level()
    }

    /// The cluster has this feature level by now.
    pub fn set_level(&self, level: u32) {
        self.shared.set_level(level);
    }

    /// Tells all peers that this node leads these groups, each in its term, and no others.
    pub fn set_led(&self, groups: Vec<(GroupId, u64)>) {
        self.shared.leaders.set(groups);
    }

    /// What the peers lead, by their own word.
    pub fn leaders(&self) -> watch::Receiver<LedByNode> {
        self.shared.leaders.heard.subscribe()
    }

    /// Sends a request, once there is room for it; it has been queued when this returns. A group's
    /// requests of one connection reach the peer in the order of the calls. What is for a replica of this node itself
    /// goes to it at once, without a connection.
    ///
    /// # Errors
    /// All but [`PeerError::Lost`]; of them only [`PeerError::Late`] leaves open whether the request
    /// was sent.
    pub async fn send(&self, call: Call) -> Result<PendingResponse, PeerError> {
        let Call {
            node,
            group,
            from,
            to,
            request,
            within,
        } = call;
        let deadline = Instant::now() + within;
        let (lane, kind) = (request.lane(), request.kind());
        if node == self.shared.options.identity.node {
            let receiver =
                self.send_to_own(call_frame((group, from, to), self.shared.next_request(), request))?;
            return Ok(PendingResponse {
                receiver,
                _place: None,
                node,
                lane,
                kind,
                within,
                deadline,
            });
        }
        let link = {
            let peers = self.peers.lock();
            let peer = peers.get(&node).ok_or(PeerError::NoPeer { node })?;
            Arc::clone(if lane == Lane::Raft {
                &peer.raft
            } else {
                &peer.bulk
            })
        };
        let frame = call_frame((group, from, to), self.shared.next_request(), request);
        let bytes = encode(&frame).map_err(|error| PeerError::Request { node, error })?;
        // At once, and not after a wait for room that has no meaning without a connection.
        drop(link.session()?);
        let late = || PeerError::Late {
            node,
            kind,
            after: within,
        };
        let room = match kind {
            // Small, and what gives a group its leader must not wait behind what one left.
            Kind::Vote
            | Kind::PreVote
            | Kind::Transfer
            | Kind::Room
            | Kind::HandOver
            | Kind::MayLead
            | Kind::Park
            | Kind::Wake
            | Kind::ChangeMap => None,
            _ => {
                let take = link.budget.take(group, bytes.len(), kind == Kind::Append);
                Some(timeout_at(deadline, take).await.map_err(|_| late())?)
            }
        };
        let permit = room.as_ref().map(|(_, permit)| Arc::clone(permit));
        let session = link.session()?;
        let limit = self.shared.lane.requests;
        let unreachable = |end: &End| PeerError::Unreachable {
            node,
            lane,
            problem: end.to_string(),
        };
        let (place, receiver) =
            session
                .pending
                .enter(&frame, permit.clone(), limit)
                .map_err(|unawaited| match unawaited {
                    Unawaited::Ended(end) => unreachable(&end),
                    Unawaited::Full => PeerError::Busy { node, limit },
                })?;
        if session.outbox.push(bytes, permit, haste(&frame.message)).is_err() {
            // Ended meanwhile, or full.
            drop(link.session()?);
            return Err(PeerError::Busy { node, limit });
        }
        drop(room);
        Ok(PendingResponse {
            receiver,
            _place: Some(place),
            node,
            lane,
            kind,
            within,
            deadline,
        })
    }

    /// Hands a request to a replica of this node. What is in flight is limited as if it came from a peer.
    fn send_to_own(&self, frame: Frame) -> Result<oneshot::Receiver<Result<Response, End>>, PeerError> {
        let node = self.shared.options.identity.node;
        let bytes = encode(&frame).map_err(|error| PeerError::Request { node, error })?;
        let (reply, receiver) = Reply::own(&frame, bytes.len(), &self.own);
        if let (Some(reply), Message::Request(request)) = (reply, frame.message) {
            let incoming = Incoming {
                node,
                group: frame.group,
                from: frame.from,
                to: frame.to,
                request,
            };
            self.shared.dispatch.dispatch(incoming, reply);
        }
        Ok(receiver)
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// All; of them [`PeerError::Lost`] and [`PeerError::Late`] leave open whether the request was
    /// carried out. A [`Response::Refusal`] is no error: the peer has answered.
    pub async fn call(&self, call: Call) -> Result<Response, PeerError> {
        self.send(call).await?.wait().await
    }

    /// Sends what is queued and ends all connections. Requests without an answer are lost.
    pub async fn close(self) {
        self.shared.begin_close();
        self.shared.join(self.shared.options.times.close).await;
    }
}

fn call_frame((group, from, to): (GroupId, ReplicaId, ReplicaId), number: u64, request: Request) -> Frame {
    Frame {
        group,
        from,
        to,
        request: number,
        message: Message::Request(request),
    }
}

impl PendingResponse {
    /// Waits for the answer.
    ///
    /// # Errors
    /// [`PeerError::Lost`], [`PeerError::Late`].
    pub async fn wait(self) -> Result<Response, PeerError> {
        let Self {
            receiver,
            _place,
            node,
            lane,
            kind,
            within,
            deadline,
        } = self;
        let lost = |problem: String| PeerError::Lost {
            node,
            lane,
            kind,
            problem,
        };
        match timeout_at(deadline, receiver).await {
            Ok(Ok(Ok(response))) => Ok(response),
            Ok(Ok(Err(end))) => Err(lost(end.to_string())),
            Ok(Err(_)) => Err(lost(End::Closing.to_string())),
            Err(_) => Err(PeerError::Late {
                node,
                kind,
                after: within,
            }),
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.shared.begin_close();
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers")
            .field("node", &self.shared.options.identity.node)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "testing")]
impl Peers {
    /// Where this node takes connections.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What was sent.
    pub fn stats(&self) -> PeersStats {
        let (frames, bytes, writes) = self.shared.written.read();
        PeersStats {
            frames,
            bytes,
            writes,
        }
    }
}
