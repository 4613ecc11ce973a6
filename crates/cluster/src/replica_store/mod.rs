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

mod adopt;
mod apply;
mod description;
pub mod effects;
mod error;
mod fields;
mod journal;
mod keys;
mod meta;
mod open;
mod positions;
mod proposals;
mod rows;
mod staging;
mod store;
mod transfer;

pub use adopt::Unsettled;
pub use apply::{Change, Outcome};
pub use description::{Described, Description};
pub use error::{FieldError, MachineError};
pub use keys::{SLOTS, data_key, sequence_number};
pub use positions::{Membership, Position};
pub use proposals::{Proposals, Runs, Verdict};
pub use rows::{DataPart, DataRow};
pub use staging::{Missing, Staged, Staging};
pub use store::{Machine, MachineOptions, OnFlush};
pub use transfer::{PIECE_BYTES, Transfer};
