//! What the programs `collie` and `collie-lab` have in common: how a command ends and what it
//! prints, a client of servers, and the allocator.

mod allocator;
pub mod output;
pub mod resp;

pub use allocator::Allocator;
pub use output::Outcome;
