//! One frame by its LSN, without a reader: the place of its segment is known, so no more is read
//! than the frame.

use std::sync::Arc;

use crate::append::compress;
use crate::core::Core;
use crate::error::{LogError, corrupt_at};
use crate::format::{ALIGN, FrameHeader};
use crate::read::reader::{Durable, corrupt};
use crate::read::source::{Source, missing};
use crate::segments::frames::{Window, given};
use crate::segments::segment::Segment;
use crate::{Frame, Lsn};

/// How much is read at first, in bytes: a header and a small payload. A larger frame takes a second
/// read.
const FIRST_READ: usize = 4 << 10;

const EXPECTED: &str = "a frame of the log's user, which begins at this LSN";

/// See [`Log::get`](crate::Log::get).
pub(crate) fn get(core: &Core, lsn: Lsn) -> Result<Frame, LogError> {
    core.check_process()?;
    if core.has_ended() {
        // The directory may be another log's by now.
        return Err(LogError::Closed);
    }
    let mut moved = None;
    loop {
        let end = core.durable();
        if lsn >= end {
            return Err(missing(core, lsn, core.segments.oldest()));
        }
        let mut source = Source::default();
        let Some(segment) = source.at_or_after(core, lsn)? else {
            return Err(missing(core, lsn, core.segments.oldest()));
        };
        if lsn < segment.first_lsn {
            let found = format!(
                "the gap between two epochs, the later of which begins at LSN {}",
                segment.first_lsn
            );
            return Err(corrupt_at(&segment.path, 0, lsn, EXPECTED, found));
        }
        if let Some(damaged) = core.report.damaged_at(lsn) {
            let found = format!(
                "damage from LSN {} to {}: {}",
                damaged.from, damaged.to, damaged.why
            );
            return Err(corrupt(&segment, lsn, EXPECTED, found));
        }
        match read(core, &mut source, &segment, lsn, end) {
            // Nothing keeps the segment for this: it may have been released meanwhile, and used
            // again. The next round finds it where it is now, or that it is gone.
            Err(LogError::Corrupt { .. })
                if segment.first_lsn < core.segments.oldest() && moved != Some(segment.number) =>
            {
                moved = Some(segment.number);
            }
            read => return read,
        }
    }
}

fn read(
    core: &Core,
    source: &mut Source,
    segment: &Arc<Segment>,
    lsn: Lsn,
    end: Lsn,
) -> Result<Frame, LogError> {
    if !lsn.is_multiple_of(ALIGN) {
        let found = format!("an LSN that is no multiple of {ALIGN}");
        return Err(corrupt(segment, lsn, EXPECTED, found));
    }
    let mut window = Window::growing_from(FIRST_READ);
    let durable = Durable {
        core,
        source,
        segment,
        end,
    };
    let (header, payload) = match window.frame(durable, lsn)? {
        Ok(frame) => frame,
        Err(bad) => return Err(corrupt(segment, lsn, EXPECTED, bad)),
    };
    let frame = given(&header, payload).map_err(|found| corrupt(segment, lsn, compress::EXPECTED, found))?;
    frame.ok_or_else(|| corrupt(segment, lsn, EXPECTED, own(&header)))
}

fn own(header: &FrameHeader) -> String {
    format!("a frame of the log's own, of kind {}", header.kind())
}
