//! Appending: admission, the reservation of an LSN, the copy into the ring, and how far what is
//! there is complete.

pub(crate) mod admission;
pub(crate) mod compress;
pub(crate) mod counts;
pub(crate) mod ring;
pub(crate) mod worker;
