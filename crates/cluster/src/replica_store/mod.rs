//! The state machine of a replica: a [`collie_db`] store whose journal is the replica's log.
//!
//! An entry is applied by one batch, which holds its effects, the entry's id as `applied`, and what
//! else the entry changes. All of that is in one memtable, and then in one table: what the tables
//! call `applied` is exactly what they hold. There is no second log, and no second record of how far
//! the store is.
//!
//! * [`Machine`] opens the store, applies entries, and says what is flushed: that is the snapshot.
//! * [`effects`] is what an entry does to the data, encoded.
//! * [`Transfer`] links the files of a snapshot and hands them out; [`Staging`] receives them, and
//!   [`Machine::adopt`] makes them the content.
//! * [`Proposals`] decides which entries with effects are taken: [`Runs`], by the rules of
//!   [`crate::proposals`].
//!
//! All calls block but those that say otherwise. The layouts are drawn in `docs/design/formats/cluster.md`.

mod apply;
mod commit;
mod duplicated;
pub mod effects;
mod error;
mod keys;
mod open;
mod parts;
mod positions;
mod proposals;
mod split;
mod staging;
mod store;
mod transfer;

pub use apply::{ApplyOutcome, Change};
pub(crate) use duplicated::{SentTo, sent_key};
pub use error::{FieldError, MachineError};
pub use keys::{SLOTS, data_key, sequence_number};
pub use open::Unsettled;
pub use positions::{Membership, Position};
pub use proposals::{Proposals, Runs, Verdict};
pub use split::Beside;
pub(crate) use staging::stays_free;
pub use staging::{Missing, Staged, Staging};
pub(crate) use store::GroupSlots;
pub use store::{DataPart, DataRow, Machine, MachineOptions, OnFlush};
pub use transfer::{Described, Description, PIECE_BYTES, Transfer};
