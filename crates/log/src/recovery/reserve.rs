//! The room that is kept back in the log's directory for the next opening.

use std::path::Path;

use collie_io::Reserve;

use super::copy_forward::ready;
use crate::format::BLOCK;
use crate::options::LogOptions;

/// Its file, which holds nothing.
pub(crate) const RESERVE: &str = "RESERVE";

/// The room that openings may need: for what the ring holds, and for the beginning of a segment,
/// once more where one was interrupted.
pub(crate) fn reserve(dir: &Path, options: &LogOptions) -> Reserve {
    let beginning = 2 * (ready(options) + 4 * BLOCK as u64);
    let room = options
        .reserve_bytes
        .unwrap_or(options.ring_bytes as u64 + beginning);
    Reserve::new(dir.join(RESERVE), room)
}
