//! Appending: admission, the reservation of an LSN, the copy into the ring, and how far what is
//! there is complete.

#[cfg(not(loom))]
pub(crate) mod admission;
pub(crate) mod boundary;
#[cfg(not(loom))]
pub(crate) mod compress;
#[cfg(not(loom))]
pub(crate) mod counts;
pub(crate) mod limit;
#[cfg(not(loom))]
pub(crate) mod ring;
#[cfg(not(loom))]
pub(crate) mod worker;
