//! Segment files that are not part of the log, and whether what stands in them proves that the log
//! went further.

use std::path::PathBuf;
use std::sync::Arc;

use collie_io::File;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::Lsn;
use crate::error::{At, LogError, corrupt_at};
use crate::format::{ALIGN, BLOCK, FRAME_HEADER, FrameHeader, SEGMENT_HEAD, Salt, SegmentHeader};
use crate::segments::files::read_or_zeros;
use crate::segments::frames::{WINDOW, header_at};
use crate::segments::run::{Run, SegmentFile};

/// A file that is not part of the chain: prepared and never used, renamed and not yet given its
/// header, or made by a recovery that did not come to its end. Or a damaged one: `scan` searches
/// it for proof of that.
#[derive(Debug)]
pub(crate) struct Stray {
    pub(crate) number: u64,
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn File>,
    pub(crate) len: u64,
    /// A good header, of an epoch whose first segment never got its own.
    pub(crate) header: Option<SegmentHeader>,
    /// Its header under the number that it had before, where it was to be used again and never got
    /// its own.
    pub(crate) before: Option<SegmentHeader>,
}

/// Where the data of a segment without a header may begin.
const DATA_AT: [u64; 2] = [BLOCK as u64, SEGMENT_HEAD as u64];

impl Stray {
    /// Fails where the file has the header of a segment that was never released. The oldest ones are, and get
    /// a larger number: so it is smaller than the file's, and than that of `first`, the oldest that is there.
    pub(crate) fn refuse_renamed(&self, first: &SegmentFile) -> Result<(), LogError> {
        let Some(header) = &self.before else {
            return Ok(());
        };
        if header.log_id == first.header.log_id && header.number < first.number().min(self.number) {
            return Ok(());
        }
        let expected = format!("the header of segment {}", self.number);
        let found = format!(
            "that of segment {}: was the file copied, renamed or swapped with another?",
            header.number
        );
        Err(corrupt_at(&self.path, 0, header.first_lsn.get(), expected, found))
    }

    /// Fails where frames stand behind the header's block, others than those of its use under the
    /// header `before`. Anything else may: blocks of a file that was never synced hold what was on
    /// the device before.
    pub(crate) fn refuse_frames(&self, before: Option<&SegmentHeader>) -> Result<(), LogError> {
        let mut chunk = vec![0; 1 << 18];
        let mut offset = BLOCK as u64;
        while offset < self.len {
            read_or_zeros(&*self.file, &mut chunk, offset).at("read", &self.path)?;
            for (index, head) in chunk.chunks_exact(ALIGN as usize).enumerate() {
                let place = offset + index as u64 * ALIGN;
                if head != [0; ALIGN as usize] && self.has_frames_at(place, before)? {
                    return Err(LogError::Corrupt {
                        path: self.path.clone(),
                        offset: 0,
                        lsn: 0,
                        expected: "a segment header before the segment's frames".to_owned(),
                        found: "damage in both copies of it".to_owned(),
                    });
                }
            }
            offset += chunk.len() as u64;
        }
        Ok(())
    }

    /// Whether a frame's header stands at `place`, and where it ends another that goes on from it;
    /// behind the file's very first frame there may be nothing. (Without a segment header there is
    /// no salt for a checksum.)
    fn has_frames_at(&self, place: u64, before: Option<&SegmentHeader>) -> Result<bool, LogError> {
        let header = self.frame_header(place)?;
        let lsn = header.lsn.get();
        let was_at = before.map(|before| (before.first_lsn.get() + place).wrapping_sub(before.data_at()));
        let plausible = was_at != Some(lsn)
            && (1 << 32..1 << 62).contains(&lsn)
            && lsn.is_multiple_of(ALIGN)
            && header.durable_mark <= header.lsn
            && header.epoch > 0
            && header.epoch < 1 << 24
            && place + (header.stored_len() as u64) < self.len;
        if !plausible {
            return Ok(false);
        }
        let next = self.frame_header(place + header.end() - lsn)?;
        let goes_on = next.lsn == header.end() && next.epoch == header.epoch;
        Ok(goes_on || DATA_AT.contains(&place) && next.as_bytes().iter().all(|byte| *byte == 0))
    }

    /// Whether this header at `place` and what follows it are a frame.
    fn has_frame(&self, header: &FrameHeader, place: u64, salt: Salt) -> Result<bool, LogError> {
        let (lsn, epoch) = (header.lsn.get(), header.epoch.get());
        let end = lsn.saturating_add(self.len - place);
        if header_at(header.as_bytes(), lsn, epoch, end).is_err() {
            return Ok(false);
        }
        let mut payload = vec![0; header.stored_len()];
        let payload_at = place + FRAME_HEADER as u64;
        read_or_zeros(&*self.file, &mut payload, payload_at).at("read", &self.path)?;
        Ok(header.matches(salt, &payload))
    }

    fn frame_header(&self, place: u64) -> Result<FrameHeader, LogError> {
        let mut header = FrameHeader::new_zeroed();
        read_or_zeros(&*self.file, header.as_mut_bytes(), place).at("read", &self.path)?;
        Ok(header)
    }
}

impl From<SegmentFile> for Stray {
    fn from(segment: SegmentFile) -> Self {
        let SegmentFile {
            header,
            path,
            file,
            len,
        } = segment;
        Self {
            number: header.number.get(),
            path,
            file,
            len,
            header: Some(header),
            before: None,
        }
    }
}

/// Whether a file outside the chain shows that the log was durable at `at`: its header is damaged,
/// or it is a later epoch's whose first header is. Frames that were copied forward record nothing,
/// so what an interrupted recovery left proves nothing.
///
/// `begins_epoch`: no other such file stands before it, so it may be its epoch's first segment.
pub(crate) fn stray_proves(run: &Run, stray: &Stray, begins_epoch: bool, at: Lsn) -> Result<bool, LogError> {
    if stray.before.is_some() {
        // It was to be used again: nothing of its new use was written before both copies of its new
        // header were there.
        return Ok(false);
    }
    if stray.header.as_ref().is_some_and(is_behind_copy) {
        return Ok(true);
    }
    if stray.header.is_none() && begins_epoch {
        for data_at in DATA_AT {
            if headerless_proves(run, stray, data_at, at)? {
                return Ok(true);
            }
        }
    }
    let (epoch, salt) = match &stray.header {
        Some(known) => (known.epoch.get(), Salt(known.salt.get())),
        None => (run.epoch(), run.salt()),
    };
    let mut chunk = vec![0; WINDOW];
    let mut offset = BLOCK as u64;
    while offset + FRAME_HEADER as u64 <= stray.len {
        let n = WINDOW.min((stray.len - offset) as usize);
        let Some(part) = chunk.get_mut(..n) else { break };
        read_or_zeros(&*stray.file, part, offset).at("read", &stray.path)?;
        for (index, head) in part.windows(FRAME_HEADER).step_by(ALIGN as usize).enumerate() {
            let Ok(header) = FrameHeader::read_from_bytes(head) else {
                continue;
            };
            let place = offset + index as u64 * ALIGN;
            if header.epoch == epoch
                && proves_durable(&header, run, at)
                && stray.has_frame(&header, place, salt)?
            {
                return Ok(true);
            }
        }
        offset += (n - FRAME_HEADER) as u64 / ALIGN * ALIGN + ALIGN;
    }
    Ok(false)
}

/// Whether a segment was begun when its epoch was in force: behind the segments of what was copied forward,
/// of which the last may begin where the copy ends. An epoch in force proves all of the one before.
fn is_behind_copy(header: &SegmentHeader) -> bool {
    header.number != header.epoch_first && header.first_lsn > header.copied_end
}

/// A segment whose header is destroyed, of an epoch whose salt went with it. An epoch's first
/// segment begins with a frame, so its frames can be followed by their lengths from there: LSN and
/// epoch must agree at each step, which no payload can arrange. Garbage in blocks that were never
/// synced must not pass either: the first frame lies within reach of what is known. (Far within:
/// every open begins an epoch, also those that leave no segment; and an LSN goes on above tables
/// that were written without a log.)
fn headerless_proves(run: &Run, stray: &Stray, data_at: u64, at: Lsn) -> Result<bool, LogError> {
    const EPOCHS_AHEAD: u32 = 1 << 24;
    const BYTES_AHEAD: u64 = 1 << 48;
    let within_reach = |header: &FrameHeader| {
        let (lsn, durable_mark) = (header.lsn.get(), header.durable_mark.get());
        header.epoch.get().wrapping_sub(run.epoch()) < EPOCHS_AHEAD
            && lsn.wrapping_sub(run.first_lsn()) < BYTES_AHEAD
            && lsn.is_multiple_of(ALIGN)
            && durable_mark.is_multiple_of(ALIGN)
    };
    let mut head = [0; FRAME_HEADER];
    let mut place = data_at;
    let mut first: Option<FrameHeader> = None;
    while place + FRAME_HEADER as u64 <= stray.len {
        read_or_zeros(&*stray.file, &mut head, place).at("read", &stray.path)?;
        let Ok(header) = FrameHeader::read_from_bytes(&head) else {
            break;
        };
        let begin = first.get_or_insert(header);
        let expected = begin.lsn.get().wrapping_add(place - data_at);
        let epoch = header.epoch.get();
        let follows = header.lsn == expected && header.epoch == begin.epoch;
        if !follows || !within_reach(&header) || epoch <= run.epoch() || header.lsn == 0 {
            break;
        }
        if proves_durable(&header, run, at) {
            return Ok(true);
        }
        place += header.end() - header.lsn.get();
    }
    Ok(false)
}

/// Whether a header, if it is one, says that `at` was durable.
fn proves_durable(header: &FrameHeader, run: &Run, at: Lsn) -> bool {
    let (durable_mark, epoch) = (header.durable_mark.get(), header.epoch.get());
    let later = if epoch == run.epoch() {
        durable_mark > at
    } else {
        epoch > run.epoch() && durable_mark >= at
    };
    durable_mark > 0 && durable_mark <= header.lsn.get() && header.lsn.get() >= at && later
}
