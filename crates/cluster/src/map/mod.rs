//! The map of the cluster: its nodes, its partitions, and where their replicas are. It is in the rows
//! of group 0, and changes only by entries of that group.
//!
//! Nothing here does I/O, reads a clock or draws at random. `docs/design/formats/cluster.md` draws the rows.

mod rules;
mod whole;

pub use rules::{Founding, JoinRequest, Placement, found, join, place, voters};
pub use whole::{
    Changes, ClusterRecord, LEVEL, Map, MapError, MapMember, MapRow, NOWHERE, NodeRecord, PartitionRecord,
};

use crate::ids::GroupId;

/// The group that the map is in.
pub const MAP_GROUP: GroupId = 0;
