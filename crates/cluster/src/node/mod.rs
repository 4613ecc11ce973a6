//! A node: its logs, its connections, and the replicas that run on it.

mod error;
mod options;
mod process;
mod reserve;
mod room;
mod router;

pub use error::NodeError;
pub use options::{LogOpened, NodeOptions};
pub use process::Node;
