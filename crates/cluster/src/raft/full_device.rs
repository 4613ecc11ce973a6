//! Waiting for room on the device of a replica's tables, or of its log.

use std::io;
use std::time::Duration;

use crate::ids::EntryId;
use crate::replica_store::MachineError;

/// From one look for room on a full device to the next.
pub(super) const ROOM_PAUSE: Duration = Duration::from_millis(200);

/// Does something up to an entry as soon as the device of the tables has room for it; blocks.
pub(super) fn when_there_is_room<T>(
    id: &EntryId,
    waits: &impl Fn() -> bool,
    mut attempt: impl FnMut() -> Result<T, MachineError>,
) -> io::Result<T> {
    let mut reported = false;
    loop {
        match attempt() {
            Err(error) if error.is_no_room() && waits() => {
                if !std::mem::replace(&mut reported, true) {
                    tracing::error!(%id, %error, "a replica waits until there is room for its tables");
                }
                std::thread::sleep(ROOM_PAUSE);
            }
            done => return done.map_err(failed),
        }
    }
}

/// Whether it says that a device is full, also that of a log which cannot be opened for that.
pub(super) fn is_full(error: &MachineError) -> bool {
    match error {
        MachineError::Log(error) => error.is_full_disk(),
        error => error.is_no_room(),
    }
}

pub(super) fn failed(error: MachineError) -> io::Error {
    io::Error::other(error)
}
