//! Damage: what proves that it is some, and going on behind it,
//! [`RecoveryMode::SkipDamaged`](crate::RecoveryMode::SkipDamaged).
//!
//! **What is taken for the next frame is one.** It is searched for at every position behind the
//! damage, and most of what stands there is the payload of a frame that cannot be read, which a user
//! chose. A frame counts if its header gives its own position as its LSN and the epoch of its
//! segments, and if its checksum is right, which is seeded with the epoch's salt:
//!
//! * bytes that were made up for the place do not have the checksum: the salt is random, was drawn
//!   when the epoch began, and is not given out;
//! * a copy of a frame of this log, within a payload, was made after the frame was, so it stands at
//!   a higher LSN than it gives; and the LSNs of what was torn off are given out again by a later
//!   epoch only, under another salt;
//! * what a segment held before it was used again gives lower LSNs, too.
//!
//! **Nothing of what is passed over is moved.** The damaged part was durable, so all before it was.
//! The durable mark rises to its end: what lies below stays in its segments, and the copy forward
//! begins there or behind. The next opening comes to the same damage, by the end that the epoch
//! after it records.

use super::chain::stray_proves;
use super::old_ring::OldRing;
use super::report::Damaged;
use super::scan::Walk;
use crate::Lsn;
use crate::error::LogError;
use crate::format::ALIGN;
use crate::segments::run::{Run, SegmentFile};

impl Walk<'_> {
    /// Whether a frame further on shows that this position was durable.
    pub(super) fn proven_by_later_frames(&mut self, run: &Run) -> Result<bool, LogError> {
        let at = self.at;
        let claimed = self.window.claimed(run, at)?.map(|header| header.end());
        if self.chain.goes_on_at.is_some() && self.chain.goes_on_at == claimed {
            // The rest of it stands in the next segment, which says so; what stands here of it is
            // payload.
            return Ok(false);
        }
        if self
            .window
            .find(run, at + ALIGN, |h| h.durable_mark.get() > at)?
            .is_some()
        {
            return Ok(true);
        }
        for stray in &self.chain.strays {
            let last = run.segments.last().map_or(0, SegmentFile::number);
            let follows_stray = self.chain.strays.iter().any(|s| s.number + 1 == stray.number);
            if stray.number > last && stray_proves(run, stray, !follows_stray, at)? {
                return Ok(true);
            }
        }
        // A ring that cannot be used may still show it.
        Ok(match self.ring {
            OldRing::Usable(left) if self.next_run().is_none() && left.written > at => {
                let first = left
                    .frame(left.written)
                    .map(|_| left.written)
                    .or_else(|| left.next_frame(left.written));
                first
                    .and_then(|lsn| left.frame(lsn))
                    .is_some_and(|(h, _)| h.durable_mark.get() > at)
            }
            _ => false,
        })
    }

    /// Passes over `damage`, which is at the current position, to the next good frame or to where
    /// the run is known to end.
    ///
    /// # Errors
    /// `damage`, where there is neither. So it is where a segment's header or all of its file is
    /// lost: its frames may all be there, and must not be removed as another log's.
    pub(super) fn pass_over(&mut self, run: &Run, damage: LogError) -> Result<(), LogError> {
        let LogError::Corrupt {
            path,
            offset,
            lsn: from,
            expected,
            found,
        } = damage
        else {
            return Err(damage);
        };
        let Some(to) = self.goes_on_at(run)?.filter(|to| *to <= run.end()) else {
            return Err(LogError::Corrupt {
                path,
                offset,
                lsn: from,
                expected: format!("{expected} (nothing of the log was found behind it)"),
                found,
            });
        };
        if self.found.frames == 0 {
            self.found.first_frame = to;
        }
        // What comes to be the oldest segment says where its first frame begins. Of one that the
        // damage reaches into that is not said here: so it is released with the one before, and the
        // damage is reported as long as a part of it is there.
        self.found.past_mark.clear();
        self.found.durable_mark = to;
        self.found.end = to;
        self.at = to;
        self.closed = false;
        self.found.damaged.push(Damaged {
            path,
            offset,
            from,
            to,
            why: format!("expected {expected}, found {found}"),
        });
        Ok(())
    }

    /// Where the log goes on behind the damage at the current position; `None` where that is not
    /// known.
    fn goes_on_at(&mut self, run: &Run) -> Result<Option<Lsn>, LogError> {
        let at = self.at;
        let recorded_end = self.next_run().map(Run::predecessor_end);
        // What lies beyond that end is not the log.
        let next = self.window.find(run, at + ALIGN, |header| {
            recorded_end.is_none_or(|end| header.end() <= end)
        })?;
        if recorded_end.is_some() {
            return Ok(next.or(recorded_end).filter(|end| *end > at));
        }
        // The newest epoch. Where it is known to have been durable, or written, the next step looks
        // at what is there; so it does where the ring begins to have all.
        let (mut written, mut in_ring) = (None, None);
        if let OldRing::Usable(left) = self.ring {
            written = Some(left.written);
            in_ring = left
                .first_frame(at + ALIGN, next.unwrap_or(left.written))
                .filter(|lsn| left.bridges(*lsn));
        }
        // A file that was cut short held something up to where it must have gone.
        let cut_off = self.cut_short(run).map(|(_, to)| to);
        let ends = [next, in_ring, written, Some(run.copied_end()), cut_off];
        Ok(ends.into_iter().flatten().filter(|end| *end > at).min())
    }
}
