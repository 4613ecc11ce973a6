//! The messages: of the connection, of raft, of a process that wants to become a node, and refusals.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::ids::{EntryId, GroupId, LeaderId, ReplicaId, Vote};
use crate::transport::wire::ids::{ClusterId, NodeId, Payload, list};
use crate::transport::wire::kind::{Kind, VERSION, WireError};
use crate::transport::wire::map::MapRequest;
use crate::transport::wire::snapshot::{FILES_MAX, Installed, Offer, Piece, SnapshotEnd, Stored, Wanted};

/// Entries in one append. An empty entry takes 4 bytes of a frame and 56 of memory.
pub const ENTRIES_MAX: usize = 65_536;
/// What an entry has beside its payload in a log, and the frame that it may have for itself, at most.
const ENTRY_HEAD: u64 = 128;
/// Groups that a node may say it leads: more than a cluster has.
pub const LED_MAX: usize = 8192;
/// Bytes of a text that explains a refusal.
pub const TEXT_MAX: usize = 1024;

/// A message with all that belongs to it but its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// [`Kind::Hello`].
    Hello(Hello),
    /// [`Kind::Refused`].
    Refused(Refused),
    /// [`Kind::Ping`].
    Ping(Ping),
    /// [`Kind::Pong`].
    Pong(Pong),
    /// [`Kind::Leads`].
    Leads(Leads),
    /// [`Kind::Join`].
    Join(Join),
    /// [`Kind::Joined`].
    Joined(Joined),
    /// What wants an answer.
    Request(Request),
    /// An answer.
    Response(Response),
}

/// What one node asks of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// [`Kind::Append`].
    Append(Append),
    /// [`Kind::Vote`].
    Vote(VoteRequest),
    /// [`Kind::PreVote`].
    PreVote(VoteRequest),
    /// [`Kind::Transfer`].
    Transfer(TransferLeader),
    /// [`Kind::Offer`].
    Offer(Offer),
    /// [`Kind::Piece`].
    Piece(Piece),
    /// [`Kind::SnapshotEnd`].
    SnapshotEnd(SnapshotEnd),
    /// [`Kind::Room`].
    Room(Room),
    /// [`Kind::HandOver`].
    HandOver(HandOver),
    /// [`Kind::MayLead`].
    MayLead,
    /// [`Kind::ChangeMap`].
    ChangeMap(MapRequest),
    /// [`Kind::Park`].
    Park(Park),
    /// [`Kind::Wake`].
    Wake,
    /// [`Kind::LastEntry`].
    LastEntry,
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    /// [`Kind::Appended`].
    Appended(Appended),
    /// [`Kind::Voted`].
    Voted(VoteAnswer),
    /// [`Kind::PreVoted`].
    PreVoted(VoteAnswer),
    /// [`Kind::Transferred`]: the request was taken; whether there is an election shows later.
    Transferred,
    /// [`Kind::Wanted`].
    Wanted(Wanted),
    /// [`Kind::Stored`].
    Stored(Stored),
    /// [`Kind::Installed`].
    Installed(Installed),
    /// [`Kind::HasRoom`]: it has. Otherwise the request is refused.
    HasRoom,
    /// [`Kind::HandingOver`]: the other replica was asked to lead; whether it does shows later.
    HandingOver,
    /// [`Kind::Ready`]: it could. Otherwise the request is refused.
    Ready,
    /// [`Kind::MapChanged`]: it is as was asked for. Otherwise the request is refused.
    MapChanged,
    /// [`Kind::Parked`]: it is. Otherwise the request is refused.
    Parked,
    /// [`Kind::Awake`].
    Awake,
    /// [`Kind::LastEntryIs`].
    LastEntry(LastEntry),
    /// [`Kind::Refusal`].
    Refusal(Refusal),
}

/// Which of the two connections to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Lane {
    /// Messages of raft, and pings, which must not wait behind files.
    Raft,
    /// Files.
    Bulk,
}

/// Who speaks. `version` stands first in every version, so that a node of another version can say
/// what is the matter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u16,
    /// The cluster that the speaker is in.
    pub cluster: ClusterId,
    /// The speaker.
    pub node: NodeId,
    /// Whom it speaks to, as it believes.
    pub to: NodeId,
    /// What the connection is for.
    pub lane: Lane,
    /// The feature level of the cluster, as the speaker knows it.
    pub level: u32,
    /// Drawn at random when the speaker's process started.
    pub boot: [u8; 16],
}

/// Why a connection is not taken; it is closed after this.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// For the operator.
    pub reason: String,
}

/// A ping. The frame's request number pairs it with its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ping {
    /// The clock of the speaker's machine, in milliseconds since 1970.
    pub wall_ms: u64,
}

/// The answer to a ping.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pong {
    /// The time that the speaker goes by, in milliseconds since 1970.
    pub wall_ms: u64,
}

/// The groups that a node leads, and no others: what it has said before is over. It says so once a
/// majority of the group has answered it lately.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leads {
    /// How often its process has said it.
    pub count: u64,
    /// Each with the term.
    #[serde(deserialize_with = "list::<_, _, LED_MAX>")]
    pub groups: Vec<(GroupId, u64)>,
}

/// An entry on its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// The entry.
    pub id: EntryId,
    /// What it holds, as the log has it.
    pub payload: Payload,
}

/// Entries for a follower; without any, a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Append {
    /// The leader's vote.
    pub vote: Vote,
    /// The entry before the first; none: the first begins the log.
    pub previous: Option<EntryId>,
    /// The last entry that is known to be committed.
    pub committed: Option<EntryId>,
    /// The entries.
    #[serde(deserialize_with = "list::<_, _, ENTRIES_MAX>")]
    pub entries: Vec<LogEntry>,
}

/// What became of an append.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Appended {
    /// All entries are in the follower's log.
    Success,
    /// Those up to this one are; none: the previous entry only.
    Partial(Option<EntryId>),
    /// The previous entry is not in the follower's log.
    Conflict,
    /// The follower has voted for another.
    HigherVote(Vote),
}

/// A request for a vote, or for what would be answered to one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoteRequest {
    /// What the candidate has voted for, which is itself.
    pub vote: Vote,
    /// Its last entry.
    pub last: Option<EntryId>,
    /// The leader asked it to become leader, so the leader's lease does not stand against it.
    pub leadership_transfer: bool,
}

/// The answer to a request for a vote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoteAnswer {
    /// What the answering replica has voted for.
    pub vote: Vote,
    /// Whether the candidate got it.
    pub granted: bool,
    /// The last entry of the answering replica.
    pub last: Option<EntryId>,
}

/// Leadership is handed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferLeader {
    /// The vote of the leader that hands over.
    pub vote: Vote,
    /// Who is to become leader.
    pub to: ReplicaId,
    /// What its log must have by then.
    pub last: Option<EntryId>,
}

/// Whether there is room for tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// About as many bytes as they have.
    pub bytes: u64,
}

/// The leader is asked to hand over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOver {
    /// To this replica.
    pub to: ReplicaId,
}

/// A leader that has nothing to do sends no more heartbeats, if all members agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Park {
    /// The leader's vote.
    pub vote: Vote,
    /// Its last entry, which is applied there.
    pub last: EntryId,
}

/// The last entry of a replica's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastEntry {
    /// The entry, if there was any.
    pub last: Option<EntryId>,
    /// As whose the replica leads, if it does: then it had this entry, or more, as that leader.
    pub leads: Option<LeaderId>,
}

/// Why a request was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The replica was on this node and was removed for good.
    Gone,
    /// This node knows no such replica.
    Unknown,
    /// More is in flight than this node takes, or its log is far beyond its limit; worth another attempt.
    Busy,
    /// The request failed.
    Failed(String),
    /// The disk of the replica's log is full; worth another attempt later.
    NoRoom,
}

impl Refused {
    /// A refusal whose reason is cut to [`TEXT_MAX`] bytes.
    pub fn new(reason: impl Into<String>) -> Self {
        Self {
            reason: cut(reason.into()),
        }
    }
}

impl Refusal {
    /// [`Refusal::Failed`] with its text cut to [`TEXT_MAX`] bytes.
    pub fn failed(text: impl Into<String>) -> Self {
        Self::Failed(cut(text.into()))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the replica was removed from the node"),
            Self::Unknown => f.write_str("there is no such replica on the node"),
            Self::Busy => f.write_str("the node has more in flight, or in its log, than it takes"),
            Self::Failed(text) => write!(f, "the request failed: {text:?}"),
            Self::NoRoom => f.write_str("the disk of the replica's log is full"),
        }
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Raft => "raft",
            Self::Bulk => "bulk",
        })
    }
}

impl LogEntry {
    /// About as many bytes as it has in a log.
    pub fn bytes(&self) -> u64 {
        self.payload.0.len() as u64 + ENTRY_HEAD
    }
}

impl Request {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Append(_) => Kind::Append,
            Self::Vote(_) => Kind::Vote,
            Self::PreVote(_) => Kind::PreVote,
            Self::Transfer(_) => Kind::Transfer,
            Self::Offer(_) => Kind::Offer,
            Self::Piece(_) => Kind::Piece,
            Self::SnapshotEnd(_) => Kind::SnapshotEnd,
            Self::Room(_) => Kind::Room,
            Self::HandOver(_) => Kind::HandOver,
            Self::MayLead => Kind::MayLead,
            Self::ChangeMap(_) => Kind::ChangeMap,
            Self::Park(_) => Kind::Park,
            Self::Wake => Kind::Wake,
            Self::LastEntry => Kind::LastEntry,
        }
    }

    /// The connection that it is sent on.
    pub fn lane(&self) -> Lane {
        match self {
            Self::Append(_)
            | Self::Vote(_)
            | Self::PreVote(_)
            | Self::Transfer(_)
            | Self::Room(_)
            | Self::MayLead
            | Self::ChangeMap(_)
            | Self::Park(_)
            | Self::Wake
            | Self::LastEntry
            | Self::HandOver(_) => Lane::Raft,
            Self::Offer(_) | Self::Piece(_) | Self::SnapshotEnd(_) => Lane::Bulk,
        }
    }
}

impl Response {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Appended(_) => Kind::Appended,
            Self::Voted(_) => Kind::Voted,
            Self::PreVoted(_) => Kind::PreVoted,
            Self::Transferred => Kind::Transferred,
            Self::Wanted(_) => Kind::Wanted,
            Self::Stored(_) => Kind::Stored,
            Self::Installed(_) => Kind::Installed,
            Self::HasRoom => Kind::HasRoom,
            Self::HandingOver => Kind::HandingOver,
            Self::Ready => Kind::Ready,
            Self::MapChanged => Kind::MapChanged,
            Self::Parked => Kind::Parked,
            Self::Awake => Kind::Awake,
            Self::LastEntry(_) => Kind::LastEntryIs,
            Self::Refusal(_) => Kind::Refusal,
        }
    }
}

impl Message {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Hello(_) => Kind::Hello,
            Self::Refused(_) => Kind::Refused,
            Self::Ping(_) => Kind::Ping,
            Self::Pong(_) => Kind::Pong,
            Self::Leads(_) => Kind::Leads,
            Self::Join(_) => Kind::Join,
            Self::Joined(_) => Kind::Joined,
            Self::Request(request) => request.kind(),
            Self::Response(response) => response.kind(),
        }
    }

    /// Appends its body to a frame.
    pub(super) fn write(&self, to: Vec<u8>) -> Result<Vec<u8>, WireError> {
        let most = |found, unit, most| match found > most {
            true => Err(WireError::TooLarge {
                kind: self.kind(),
                found,
                unit,
                most,
            }),
            false => Ok(()),
        };
        match self {
            Self::Hello(body) => put(self.kind(), body, to),
            Self::Refused(body) => put(self.kind(), body, to),
            Self::Ping(body) => put(self.kind(), body, to),
            Self::Pong(body) => put(self.kind(), body, to),
            Self::Leads(body) => {
                most(body.groups.len(), "groups", LED_MAX)?;
                put(self.kind(), body, to)
            }
            Self::Join(body) => {
                most(body.disks.len(), "disks", DISKS_MAX)?;
                put(self.kind(), body, to)
            }
            Self::Joined(body) => put(self.kind(), body, to),
            Self::Request(request) => match request {
                Request::Append(body) => {
                    most(body.entries.len(), "entries", ENTRIES_MAX)?;
                    put(self.kind(), body, to)
                }
                Request::Vote(body) | Request::PreVote(body) => put(self.kind(), body, to),
                Request::Transfer(body) => put(self.kind(), body, to),
                Request::Offer(body) => {
                    most(body.files.len(), "files", FILES_MAX)?;
                    put(self.kind(), body, to)
                }
                Request::Piece(body) => put(self.kind(), body, to),
                Request::SnapshotEnd(body) => put(self.kind(), body, to),
                Request::Room(body) => put(self.kind(), body, to),
                Request::MayLead | Request::Wake | Request::LastEntry => Ok(to),
                Request::HandOver(body) => put(self.kind(), body, to),
                Request::ChangeMap(body) => put(self.kind(), body, to),
                Request::Park(body) => put(self.kind(), body, to),
            },
            Self::Response(response) => match response {
                Response::Appended(body) => put(self.kind(), body, to),
                Response::Voted(body) | Response::PreVoted(body) => put(self.kind(), body, to),
                Response::Transferred
                | Response::HasRoom
                | Response::HandingOver
                | Response::Ready
                | Response::MapChanged
                | Response::Parked
                | Response::Awake => Ok(to),
                Response::Wanted(body) => {
                    most(body.from.len(), "files", FILES_MAX)?;
                    put(self.kind(), body, to)
                }
                Response::LastEntry(body) => put(self.kind(), body, to),
                Response::Stored(body) => put(self.kind(), body, to),
                Response::Installed(body) => put(self.kind(), body, to),
                Response::Refusal(body) => put(self.kind(), body, to),
            },
        }
    }

    /// The message of a frame's body, and how many bytes behind it are left over.
    pub(super) fn read(kind: Kind, body: &[u8]) -> Result<(Self, usize), WireError> {
        let request = |(request, left)| (Self::Request(request), left);
        let response = |(response, left)| (Self::Response(response), left);
        if matches!(kind, Kind::Hello | Kind::Join | Kind::Joined) {
            let (found, _) = take::<u16, _>(kind, body, |version| version)?;
            if found != VERSION {
                return Err(WireError::Version { found });
            }
        }
        Ok(match kind {
            Kind::Hello => take(kind, body, Self::Hello)?,
            Kind::Refused => take(kind, body, Self::Refused)?,
            Kind::Ping => take(kind, body, Self::Ping)?,
            Kind::Pong => take(kind, body, Self::Pong)?,
            Kind::Leads => take(kind, body, Self::Leads)?,
            Kind::Join => take(kind, body, Self::Join)?,
            Kind::Joined => take(kind, body, Self::Joined)?,
            Kind::Append => request(take(kind, body, Request::Append)?),
            Kind::Vote => request(take(kind, body, Request::Vote)?),
            Kind::PreVote => request(take(kind, body, Request::PreVote)?),
            Kind::Transfer => request(take(kind, body, Request::Transfer)?),
            Kind::Offer => request(take(kind, body, Request::Offer)?),
            Kind::Piece => request(take(kind, body, Request::Piece)?),
            Kind::SnapshotEnd => request(take(kind, body, Request::SnapshotEnd)?),
            Kind::Room => request(take(kind, body, Request::Room)?),
            Kind::HandOver => request(take(kind, body, Request::HandOver)?),
            Kind::MayLead => request((Request::MayLead, body.len())),
            Kind::ChangeMap => request(take(kind, body, Request::ChangeMap)?),
            Kind::Park => request(take(kind, body, Request::Park)?),
            Kind::Wake => request((Request::Wake, body.len())),
            Kind::LastEntry => request((Request::LastEntry, body.len())),
            Kind::Appended => response(take(kind, body, Response::Appended)?),
            Kind::Voted => response(take(kind, body, Response::Voted)?),
            Kind::PreVoted => response(take(kind, body, Response::PreVoted)?),
            Kind::Transferred => response((Response::Transferred, body.len())),
            Kind::Wanted => response(take(kind, body, Response::Wanted)?),
            Kind::Stored => response(take(kind, body, Response::Stored)?),
            Kind::Installed => response(take(kind, body, Response::Installed)?),
            Kind::HasRoom => response((Response::HasRoom, body.len())),
            Kind::HandingOver => response((Response::HandingOver, body.len())),
            Kind::Ready => response((Response::Ready, body.len())),
            Kind::MapChanged => response((Response::MapChanged, body.len())),
            Kind::Parked => response((Response::Parked, body.len())),
            Kind::Awake => response((Response::Awake, body.len())),
            Kind::LastEntryIs => response(take(kind, body, Response::LastEntry)?),
            Kind::Refusal => response(take(kind, body, Response::Refusal)?),
        })
    }
}

fn put<T: Serialize>(kind: Kind, body: &T, to: Vec<u8>) -> Result<Vec<u8>, WireError> {
    postcard::to_extend(body, to).map_err(|error| WireError::Body {
        kind,
        bytes: 0,
        problem: error.to_string(),
    })
}

fn take<'a, T: Deserialize<'a>, M>(
    kind: Kind,
    body: &'a [u8],
    of: fn(T) -> M,
) -> Result<(M, usize), WireError> {
    match postcard::take_from_bytes(body) {
        Ok((message, left)) => Ok((of(message), left.len())),
        Err(error) => Err(WireError::Body {
            kind,
            bytes: body.len(),
            problem: error.to_string(),
        }),
    }
}

fn cut(mut text: String) -> String {
    let end = (0..=TEXT_MAX.min(text.len()))
        .rev()
        .find(|&at| text.is_char_boundary(at))
        .unwrap_or(0);
    text.truncate(end);
    text
}

/// Disks of one node.
pub const DISKS_MAX: usize = 64;
/// Addresses in one answer, which is as short as a greeting. The map has all of them.
pub const PEERS_MAX: usize = 64;

/// A process asks to become a node, or says that it is one and asks whether it is at the right
/// cluster. `version` stands first in every version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// [`VERSION`](super::VERSION).
    pub version: u16,
    /// The cluster and the number of a node that has joined before.
    pub known: Option<(ClusterId, NodeId)>,
    /// Drawn at random and stored before the first attempt: all attempts of one process have the
    /// same, also after a restart.
    pub token: [u8; 16],
    /// Where other nodes will reach it.
    pub peer: SocketAddr,
    /// Where clients will reach it.
    pub client: SocketAddr,
    /// The identities of its disks, in their order.
    #[serde(deserialize_with = "list::<_, _, DISKS_MAX>")]
    pub disks: Vec<[u8; 16]>,
    /// The lowest feature level that it speaks.
    pub least: u32,
    /// The highest.
    pub most: u32,
    /// Its wall clock, in milliseconds since 1970.
    pub wall_ms: u64,
}

/// Answers a [`Join`] that was not refused. `version` stands first in every version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// [`VERSION`](super::VERSION).
    pub version: u16,
    /// The answer.
    pub answer: JoinAnswer,
}

/// What becomes of a [`Join`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JoinAnswer {
    /// The map has the node.
    Taken(Place),
    /// This node does not lead the group of the map, or cannot say at the moment what became of the
    /// request. It is to be sent again: to this address, if there is one.
    Elsewhere(Option<SocketAddr>),
    /// The clocks differ by too much, unless the request took long. This is the wall clock of the node
    /// that answers, in milliseconds since 1970.
    Clock(u64),
    /// The node is known. This one is the one that answers.
    Known {
        /// Its number.
        node: NodeId,
        /// Where other nodes reach it.
        peer: SocketAddr,
    },
}

/// What a node is in its cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The cluster.
    pub cluster: ClusterId,
    /// The node's number.
    pub node: NodeId,
    /// Its replica of the group of the map.
    pub replica: ReplicaId,
    /// The feature level of the cluster.
    pub level: u32,
    /// Numbers and peer addresses of nodes, this one's included.
    #[serde(deserialize_with = "list::<_, _, PEERS_MAX>")]
    pub peers: Vec<(NodeId, SocketAddr)>,
}
