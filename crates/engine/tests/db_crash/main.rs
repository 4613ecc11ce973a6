//! The engine across deaths, power cuts and failing calls: on a simulated device, and on a file
//! system that forgets.

#[path = "../common/mod.rs"]
mod common;
mod earlier_manifest;
mod families;
mod histories;
mod log_full;
mod lost_end;
mod manifest;
mod power;
mod recovery_modes;
mod store;
mod table_faults;
mod unrecorded;
mod wal_flush;
