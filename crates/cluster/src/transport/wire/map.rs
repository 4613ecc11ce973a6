//! What nodes ask each other of the map, and of themselves.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::ids::{GroupId, ReplicaId};
use crate::layouts::Layout;
use crate::transport::wire::ids::{ClusterId, NodeId, list};

/// Replicas of a group, at most.
pub const MEMBERS_MAX: usize = 64;

/// A cluster that is to get rows has at most so many addresses.
pub const ADDRESSES_MAX: usize = 16;

/// What is to change in the map, or in what nodes know of it. Asked for again, it changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MapRequest {
    /// A group has these replicas, and raft no others.
    Moved {
        /// The group.
        group: GroupId,
        /// Its replicas.
        #[serde(deserialize_with = "list::<_, _, MEMBERS_MAX>")]
        replicas: Vec<ReplicaId>,
        /// The epoch with which the map had these.
        changed: u64,
    },
    /// A node is to have replicas.
    Serve(NodeId),
    /// The replicas of a node move to others.
    Drain(NodeId),
    /// The replicas of a node move to others; then it is removed.
    Remove(NodeId),
    /// The replicas of a node move to another one; then it is removed.
    Replace {
        /// The node.
        node: NodeId,
        /// The other one.
        by: NodeId,
    },
    /// Whether a group is to have the replicas that it was to have with an epoch. The map does not change.
    IsUnchanged {
        /// The group.
        group: GroupId,
        /// The epoch.
        changed: u64,
    },
    /// A group cannot be brought to the replicas that it was to have with an epoch: another node may be able to take
    /// the new one.
    Hangs {
        /// The group.
        group: GroupId,
        /// The epoch.
        changed: u64,
    },
    /// A node is elsewhere, by its own word.
    Describe {
        /// The node.
        node: NodeId,
        /// Where.
        site: Site,
    },
    /// Whether the node that is asked speaks a feature level.
    Speaks(u32),
    /// The cluster may have a feature level from now on: the node that is asked notes it.
    Note(u32),
    /// The cluster is to have a feature level that all nodes speak.
    Finalize(u32),
    /// The replicas of the node that is asked have their logs so. The map does not change.
    Layout {
        /// Which replicas.
        of: LayoutOf,
        /// Which logs.
        layout: Layout,
    },
    /// The partition that has a slot gives it, and all behind it, to a new one.
    Split(u16),
    /// The leader of a group has applied its split, which the map asked for with an epoch.
    HasSplit {
        /// The group.
        group: GroupId,
        /// The epoch.
        changed: u64,
    },
    /// The cluster's rows go to another one, too.
    Duplicate(Target),
    /// They go to the other one of this name no more.
    EndDuplication(String),
    /// The cluster gets the rows of another one.
    Receive(ClusterId),
    /// The replicas on a disk of a node move to its other disks.
    DrainDisk {
        /// The node.
        node: NodeId,
        /// The disk, counted from 0.
        disk: u32,
    },
    /// A disk of a node is to have replicas again.
    ServeDisk {
        /// The node.
        node: NodeId,
        /// The disk, counted from 0.
        disk: u32,
    },
    /// What replicas of the node that is asked may have lost is lost: they vote with what they have. The map does not
    /// change.
    AcceptLoss,
    /// The other one of this name gets nothing for now.
    PauseDuplication(String),
    /// It gets again what it lacks.
    ResumeDuplication(String),
}

/// A cluster that is to get rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Its name.
    pub name: String,
    /// Its id.
    pub cluster: ClusterId,
    /// Where clients reach nodes of it.
    #[serde(deserialize_with = "list::<_, _, ADDRESSES_MAX>")]
    pub addresses: Vec<String>,
}

/// The replicas of a node that a layout is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayoutOf {
    /// All.
    Node,
    /// Those on a disk, counted from 0.
    Disk(u32),
    /// That of a group.
    Group(GroupId),
}

/// Where a node is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// Where other nodes reach it.
    pub peer: SocketAddr,
    /// Where clients reach it.
    pub client: SocketAddr,
    /// The name of its host that clients are sent to; empty: to its address.
    pub host: String,
    /// Its zone; empty: none.
    pub zone: String,
}
