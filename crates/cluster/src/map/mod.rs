//! The map of the cluster: its nodes, its partitions, and where their replicas are. It is in the rows
//! of group 0, and changes only by entries of that group.
//!
//! Nothing here does I/O, reads a clock or draws at random. `docs/design/formats/cluster.md` draws the rows.
//! Refused, and the earlier map kept: another version, bytes left over, a record under another's key, a
//! replica twice or not below the next, members of a partition on one node, or on a missing node or
//! disk, a slot in two partitions. Only a member that goes and the one in its place may be on two disks
//! of one node.
//!
//! Rules of the map and of those who read it:
//!
//! 1. A process stores its token before it asks to join.
//! 2. Numbers are given out once; a replica is made once.
//! 3. Disk marks are compared before anything opens.
//! 4. A node's addresses change by its own word alone.
//! 5. Voters are an odd number.
//! 6. An unreadable map is not followed.
//! 7. A node's time follows jumps only when most confirm them.

mod disks;
mod duplications;
mod moves;
mod records;
mod rules;
mod splits;
mod targets;
mod whole;

pub use disks::{disks_from, set_disk};
pub use duplications::{
    duplicate, duplication_from, end_duplication, pause_duplication, receive, resume_duplication,
};
pub use moves::{Moved, Nodes, Stuck, known_node, leave, moved, plan, set_role, stuck, unchanged};
pub use records::{
    ClusterRecord, LEVEL, LEVEL_OF_DISKS, LEVEL_OF_DUPLICATION, LEVEL_OF_MOVES, LEVEL_OF_SPLITS, MapError,
    MapMember, NodeRecord, NodeRole, PartitionRecord, SplitRecord,
};
pub use rules::{Founding, JoinRequest, describe, found, join, place, raise, voters};
pub use splits::{Has, has_split, is_made_by_split, split, splits_from};
pub use targets::{Duplications, TargetRecord, origin_of};
pub use whole::{Changes, Map, MapRow, NOWHERE};

use crate::ids::GroupId;

/// The group that the map is in.
pub const MAP_GROUP: GroupId = 0;
