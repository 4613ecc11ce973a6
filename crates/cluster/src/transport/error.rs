//! What can go wrong between nodes.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::transport::wire::{Kind, Lane, NodeId, WireError};

/// A request that has no answer, or a node that cannot take part.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// An address that nodes must not use.
    #[error("address of a node: {problem}")]
    Address {
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// The node cannot take connections.
    #[error("cannot take connections of other nodes at {address}: {problem}; is another node running there?")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// The system's words.
        problem: String,
    },
    /// The node is not among the peers.
    #[error("node {node} is not among the peers of this node")]
    NoPeer {
        /// The node.
        node: NodeId,
    },
    /// There is no connection. The request was not sent.
    #[error("no {lane} connection to node {node}: {problem}; the request was not sent")]
    Unreachable {
        /// The node.
        node: NodeId,
        /// Which connection.
        lane: Lane,
        /// Why.
        problem: String,
    },
    /// The connection ended before the answer. The request may have been carried out.
    #[error(
        "the {lane} connection to node {node} ended: {problem}; whether the {kind} was carried out is not known"
    )]
    Lost {
        /// The node.
        node: NodeId,
        /// Which connection.
        lane: Lane,
        /// What was sent.
        kind: Kind,
        /// Why it ended.
        problem: String,
    },
    /// There was no answer in time. The request may have been carried out.
    #[error(
        "node {node} did not answer the {kind} within {after:?}; whether it was carried out is not known"
    )]
    Late {
        /// The node.
        node: NodeId,
        /// What was to be sent.
        kind: Kind,
        /// What time there was.
        after: Duration,
    },
    /// Too many requests have no answer yet. The request was not sent.
    #[error("{limit} requests to node {node} have no answer yet; the request was not sent")]
    Busy {
        /// The node.
        node: NodeId,
        /// The limit.
        limit: usize,
    },
    /// The request cannot be a frame. It was not sent.
    #[error("a request to node {node}: {error}")]
    Request {
        /// The node.
        node: NodeId,
        /// What is wrong with it.
        error: WireError,
    },
}

impl PeerError {
    /// Whether what was requested may have been carried out, or may still be.
    #[must_use]
    pub fn may_be_done(&self) -> bool {
        matches!(self, Self::Lost { .. } | Self::Late { .. })
    }
}

/// Why a connection is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum GreetingError {
    #[error(
        "node {node} is of cluster {found}, and this node of cluster {own}: give this node the peers of its own \
         cluster, or take its directory away and let it join the other"
    )]
    Cluster {
        node: NodeId,
        own: String,
        found: String,
    },
    #[error(
        "expected node {expected} at this address, found node {found}: correct the address of node {expected}, or take \
         the directory of the one that runs there away if it was copied from another node"
    )]
    Node { expected: NodeId, found: NodeId },
    #[error(
        "the peer says that it is node {node}, which this node is: of two nodes with one number, stop one"
    )]
    Own { node: NodeId },
    #[error(
        "node {node} was removed from the cluster: stop it, and let it join anew with an empty directory"
    )]
    Removed { node: NodeId },
    #[error("the peer looks for node {found}, and this is node {own}: correct its address of node {found}")]
    Misdirected { own: NodeId, found: NodeId },
    #[error(
        "node {node} has feature level {found}, and this version speaks levels {} to {}: run a version on both nodes \
         that speaks the cluster's level",
        spoken.start(), spoken.end()
    )]
    Level {
        node: NodeId,
        found: u32,
        spoken: RangeInclusive<u32>,
    },
    #[error(
        "another process that is node {node} is connected: of two nodes with one number or on one directory, stop one"
    )]
    SecondBoot { node: NodeId },
    #[error("expected a {expected} connection, found {found}")]
    Lane { expected: Lane, found: Lane },
    #[error("{limit} connections of peers are open, the most that there may be")]
    Connections { limit: usize },
}

/// Why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum End {
    #[error("{0}")]
    Io(String),
    #[error("the peer closed it")]
    Eof,
    #[error("the peer closed it after {found} bytes of a frame")]
    HalfFrame { found: usize },
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Greeting(#[from] GreetingError),
    #[error(
        "the peer speaks TLS, and this node does not: give every node of the cluster a certificate, or none"
    )]
    Tls,
    #[error("the peer refused it: {0:?}")]
    Refused(String),
    #[error("expected {expected}, found a frame of kind {found}")]
    Unexpected { expected: &'static str, found: Kind },
    #[error("nothing came for {0:?}")]
    Silent(Duration),
    #[error("{found} bytes of a frame came in {within:?}, and not the rest")]
    Slow { found: usize, within: Duration },
    #[error("the two sides did not say within {0:?} who they are")]
    Greeted(Duration),
    #[error("the peer took nothing for {0:?}")]
    Stalled(Duration),
    #[error("the peer does not take its answers: {bytes} bytes are queued")]
    Unread { bytes: usize },
    #[error("the answer to request {request} is a {found}, and the request a {asked}, or another replica's")]
    Mismatch { request: u64, asked: Kind, found: Kind },
    #[error("a newer connection of the peer takes its place")]
    Replaced,
    #[error("its address has changed")]
    Readdressed,
    #[error("this node is closing its connections")]
    Closing,
}

impl From<std::io::Error> for End {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error.to_string())
    }
}
