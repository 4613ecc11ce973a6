//! Duplication of a cluster's rows to another cluster, asynchronously: how far each partition is, what it sends, and
//! the other cluster as its clients see it.
//!
//! A row has the time at which it was written and the cluster that wrote it, its stamp, also where it was removed; the
//! greater stamp wins. So what is sent may be sent again, late and in any order, and rows may go both ways.
//! `docs/design/decisions/0043-duplication.md` has the rules:
//!
//! 1. A partition sends only rows that it wrote or removed behind the entry with which its stamps began, or whose state
//!    then it has copied.
//! 2. What is sent of a changed row is its state at that time, not that of the entry.
//! 3. Rows that the other cluster wrote are not sent back to it.
//! 4. The position moves on only behind what the other cluster has said to have.
//! 5. Marks of removed rows stay until all targets have them, and for an hour.

mod sender;
mod target;

pub(crate) use sender::{RunningSender, Sender, SenderState, Senders, note};
pub(crate) use target::{TargetCluster, own_id};
pub use target::{TargetConnection, TargetNetwork, TargetReply};
