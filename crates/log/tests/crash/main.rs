//! The log on a simulated device: crash images, power cuts and deaths at every operation, calls
//! that fail, full disks.

mod archive;
mod cut_short;
mod decisions;
mod fail_operation;
mod faults;
mod full_disk;
mod fuzz;
mod headers;
mod images;
mod modes;
mod moments;
mod names;
mod overlap;
mod pad;
mod reads;
mod release;
mod setbacks;
mod skip_damaged;

/// Whether all of a long enumeration is run, with `COLLIE_THOROUGH=1`, as CI does; else a part of
/// it that is spread evenly.
fn thorough() -> bool {
    std::env::var_os("COLLIE_THOROUGH").is_some_and(|text| text == "1")
}
