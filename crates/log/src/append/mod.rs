//! Appending: admission, the reservation of an LSN, the copy into the ring, and how far what is
//! there is complete.

pub(crate) mod compress;
pub(crate) mod ring;
pub(crate) mod sequence;
pub(crate) mod space;
pub(crate) mod worker;
