//! Who a node is, durably: a small store in its directory, and a mark on each of its disks.

mod error;
mod mark;
mod store;

pub use error::IdentityError;
pub use mark::MARK;
pub(crate) use mark::{NodeDisks, check_disks, check_free, mark_disks};
pub use store::{Asked, LossRecord, NodeIdentity, is_node};
pub(crate) use store::{IdentityStore, LayoutRecord};
