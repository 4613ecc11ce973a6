//! How a node is started.

use std::sync::Arc;

use collie_io::Clock;

use crate::raft::{GroupLimits, GroupTimes};
use crate::raftlog::{NodeLog, NodeStoreOptions};
use crate::replica_store::MachineOptions;
use crate::transport::PeersOptions;

/// Called with a log that is open. It must not block.
pub type LogOpened = Arc<dyn Fn(&NodeLog) + Send + Sync>;

/// How a node is started.
#[derive(Clone)]
pub struct NodeOptions {
    /// Its logs, and the disks that they and its state machines are on.
    pub store: NodeStoreOptions,
    /// How it speaks to others.
    pub peers: PeersOptions,
    /// The clock that entries are stamped by.
    pub clock: Arc<dyn Clock>,
    /// How each state machine is opened.
    pub machine: MachineOptions,
    /// How long anything of a group may take.
    pub times: GroupTimes,
    /// How much there may be of anything of a group.
    pub limits: GroupLimits,
    /// Gets each log when it is open, on the runtime of the node. A log without threads has to be
    /// flushed by a task that this spawns: for simulations. Default: none.
    pub log_opened: Option<LogOpened>,
}
