//! What is openraft's: no other part of the crate names it, and nothing of it is on disk or on the
//! wire. An upgrade of it runs all that `docs/design/decisions/0023-raft-log-store.md` names.
//!
//! Rules of groups:
//!
//! 1. A message names replica and group, or is refused.
//! 2. Only `ForwardToLeader` is a refusal; all else is unknown.
//! 3. A restarted leader never resumes its term.
//! 4. A purge never passes raft's snapshot.
//! 5. A third failure in ten minutes quarantines the replica.
//! 6. Want of room is waited for; a failed sync is final.
//! 7. A leader hearing no majority for 1.5 s counts as none.
//! 8. A node 500 ms off most clocks leads nothing.
//! 9. A parked follower counts on its leader's node and on that node's word.
//! 10. A replica that is opened gives no vote for one lease; see `leases` for what leases need.
//! 11. One that may have lost what it acknowledged votes when it has all of its leader; see `losses`.

mod batching;
mod beside;
mod body;
mod commands;
mod elections;
mod error;
mod followers;
mod full_device;
mod leases;
mod links;
mod log_store;
mod losses;
mod machine;
mod members;
mod messages;
mod network;
mod options;
mod parking;
mod partition;
mod regaining;
mod replica;
mod running;
mod snapshots;
mod splits;
mod stamps;
mod tasks;
mod ticks;
mod transfers;
mod types;
mod votes;
mod waking;

pub use beside::{Claim, Claims, SplitHost};
pub(crate) use commands::count;
pub use commands::{Row, Value};
pub use elections::ElectionCause;
pub use error::{CommandError, ReplicaError};
pub use followers::FullDisks;
pub use leases::LEVEL_OF_LEASES;
pub use losses::{LEVEL_OF_LOSSES, Losses, NoteLosses};
pub use machine::{SnapshotBuilder, SnapshotData, open_machine};
pub use members::AppliedRows;
pub use options::{GroupLimits, GroupTimes, ReplicaOptions};
pub use replica::{Executed, Replica, Rows};
pub use splits::NewGroup;
pub use stamps::ChangedRows;
pub use transfers::{Sending, Transfers};
#[cfg(feature = "testing")]
pub use types::seed_draws;
pub use types::{EncodedEffects, Groups, Member, Members, ReplicaState};
