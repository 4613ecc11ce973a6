//! A commit's way into the log: its bytes, its position in the order, and when it is visible.

pub(crate) mod appenders;
pub(crate) mod codec;
pub(crate) mod external;
pub(crate) mod parts;
pub(crate) mod sequencer;
pub(crate) mod visible;
