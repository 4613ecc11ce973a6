//! Walking the frames from the oldest segment to the log's end, and the search behind a bad one.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::path::Path;

use super::chain::Chain;
use super::decide::{Decision, Evidence, decide};
use super::old_ring::{OldRing, UsableRing};
use super::report::{Damaged, RingOutcome, TornTail};
use crate::append::compress;
use crate::error::{LogError, corrupt_at};
use crate::format::{ALIGN, FIRST_OWN_KIND, FRAME_HEADER, FrameHeader, KIND_CLOSE, KIND_FILLER};
use crate::segments::frames::{Bad, Window, corrupt, payload_of};
use crate::segments::run::{Run, RunBeginning, SegmentFile};
use crate::{FrameRef, Lsn};

/// Where a piece of the log past the durable mark is to be copied from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopySource {
    /// The run with this index.
    Run(usize),
    Ring,
    /// A hole that a dead process left.
    Hole,
}

/// A frame, or a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CopyPiece {
    pub(crate) start: Lsn,
    pub(crate) end: Lsn,
    pub(crate) source: CopySource,
}

/// A frame that the walk took, as its caller sees it.
#[derive(Debug)]
pub(crate) struct Seen<'a> {
    pub(crate) header: FrameHeader,
    pub(crate) payload: &'a [u8],
    /// The segment and the byte in it; `None` for the ring's.
    pub(crate) place: Option<(&'a SegmentFile, u64)>,
}

impl Seen<'_> {
    /// Whether it is one of the log's own, which users do not get.
    pub(crate) fn is_own(&self) -> bool {
        self.header.kind() >= FIRST_OWN_KIND
    }

    /// Its payload as it was appended. The ring has no path here: `dir` is the log's.
    pub(crate) fn appended(&self, dir: &Path) -> Result<Cow<'_, [u8]>, LogError> {
        payload_of(&self.header, self.payload).map_err(|found| {
            let place = self.place.map(|(segment, offset)| (&*segment.path, offset));
            let (path, offset) = place.unwrap_or((dir, 0));
            corrupt_at(path, offset, self.header.lsn.get(), compress::EXPECTED, found)
        })
    }

    /// As a log's user gets it.
    pub(crate) fn given<'a>(&self, payload: &'a [u8]) -> FrameRef<'a> {
        FrameRef {
            start: self.header.lsn.get(),
            end: self.header.end(),
            stream: self.header.stream(),
            kind: self.header.kind(),
            payload,
        }
    }
}

/// What the walk found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) first_frame: Lsn,
    /// The log's end.
    pub(crate) end: Lsn,
    /// Everything below was durable.
    pub(crate) durable_mark: Lsn,
    /// What lies between the durable mark and the end.
    pub(crate) past_mark: VecDeque<CopyPiece>,
    pub(crate) frames: u64,
    /// Of segments that were walked into, by number: where the first frame begins that begins there
    /// or behind.
    pub(crate) beginnings: Vec<(u64, Lsn)>,
    pub(crate) torn: Option<TornTail>,
    /// What was passed over, lowest first.
    pub(crate) damaged: Vec<Damaged>,
    /// Damage in the segments that the ring made good.
    pub(crate) mended: Option<TornTail>,
    pub(crate) ring: RingOutcome,
}

/// Sees each frame that a walk takes, in order. Its error ends the walk.
pub(crate) type Visit<'a> = dyn FnMut(Seen<'_>) -> Result<(), LogError> + 'a;

/// Walks the log. `resume_at` vouches that everything below it was durable; `passing` says to go on
/// behind damage.
///
/// # Errors
/// Damage before a durable point that is not passed over, a read error, a log that does not reach
/// `resume_at`, and those of `visit`.
pub(crate) fn walk(
    chain: &Chain,
    ring: &OldRing,
    resume_at: Option<Lsn>,
    passing: bool,
    visit: &mut Visit<'_>,
) -> Result<Found, LogError> {
    let mut walk = Walk::begin(chain, ring, resume_at)?;
    walk.passing = passing;
    while walk.step(visit)? {}
    Ok(walk.found)
}

/// Where a walk through the frames is, and what it has found so far.
pub(super) struct Walk<'a> {
    pub(super) chain: &'a Chain,
    pub(super) ring: &'a OldRing,
    run: usize,
    pub(super) at: Lsn,
    pub(super) window: Window,
    pub(super) found: Found,
    /// Goes on behind damage.
    passing: bool,
    /// Where the ring took over. What comes from there is not in the segments, whatever
    /// durable marks say.
    ring_from: Option<Lsn>,
    /// The last frame taken that is no filler closed the log.
    pub(super) closed: bool,
    /// What was taken for the first frame's place without a record of it: there may be none.
    guessed: Option<Lsn>,
}

impl<'a> Walk<'a> {
    fn begin(chain: &'a Chain, ring: &'a OldRing, resume_at: Option<Lsn>) -> Result<Self, LogError> {
        let first = chain.runs.first().map_or(0, Run::first_lsn);
        let mut walk = Self {
            chain,
            ring,
            run: 0,
            at: first,
            window: Window::default(),
            found: Found {
                first_frame: first,
                end: first,
                durable_mark: 0,
                past_mark: VecDeque::new(),
                frames: 0,
                beginnings: Vec::new(),
                torn: None,
                damaged: Vec::new(),
                mended: None,
                ring: ring.outcome(),
            },
            passing: false,
            ring_from: None,
            closed: false,
            guessed: None,
        };
        match resume_at {
            Some(wanted) => walk.start_at(wanted)?,
            None => walk.find_first_frame()?,
        }
        walk.found.first_frame = walk.at;
        walk.found.end = walk.at;
        walk.found.durable_mark = walk.at;
        Ok(walk)
    }

    fn current(&self) -> Result<&'a Run, LogError> {
        self.chain.runs.get(self.run).ok_or(LogError::Closed)
    }

    pub(super) fn next_run(&self) -> Option<&'a Run> {
        self.chain.runs.get(self.run + 1)
    }

    /// Starts in the run that holds `wanted`: the last one that begins at or below it.
    fn start_at(&mut self, wanted: Lsn) -> Result<(), LogError> {
        let held = self
            .chain
            .runs
            .iter()
            .rposition(|r| r.predecessor_end() <= wanted || r.first_lsn() <= wanted);
        let (oldest, end) = (self.at, self.chain.last().map_or(0, Run::end));
        match held {
            Some(run) if wanted >= oldest && wanted <= end => {
                self.run = run;
                // An epoch may begin above the end of the one before.
                self.at = wanted.max(if run > 0 {
                    self.current()?.first_lsn()
                } else {
                    oldest
                });
                let ends_at = self.log_end_unless_frame()?;
                if ends_at == self.at {
                    self.at = self.mendable_from()?.unwrap_or(self.at);
                    return Ok(());
                }
                Err(self.missing(wanted, oldest, ends_at))
            }
            _ => Err(self.missing(wanted, oldest, end)),
        }
    }

    /// The current position where a frame stands there, in the segments or in the ring, or where it
    /// is the first of the run; else where the frames of this run end, which is the current
    /// position if it is the log's end.
    fn log_end_unless_frame(&mut self) -> Result<Lsn, LogError> {
        let (run, at) = (self.current()?, self.at);
        let in_ring = |lsn| matches!(self.ring, OldRing::Usable(left) if left.frame(lsn).is_some());
        let first = at == run.first_lsn();
        if first || self.window.frame(run, at)?.is_ok() || self.next_run().is_none() && in_ring(at) {
            return Ok(at);
        }
        self.at = run.first_lsn();
        self.find_first_frame()?;
        let mut end = self.window.follow(run, self.at, Lsn::MAX)?;
        if self.next_run().is_none()
            && let OldRing::Usable(left) = self.ring
        {
            end = left.follow(end, at);
        }
        self.at = at;
        // What follows in the next epoch is found from there.
        let recorded_end = self.next_run().map(Run::predecessor_end);
        Ok(if recorded_end == Some(at) { at } else { end })
    }

    /// Where, before the current position, the segments are damaged and the ring has all from there
    /// on: then the log is mended from there on, or no reader that begins earlier could read it
    /// any more, although nothing is lost. Goes no further back than the ring does.
    fn mendable_from(&mut self) -> Result<Option<Lsn>, LogError> {
        let (run, wanted) = (self.current()?, self.at);
        let OldRing::Usable(left) = self.ring else {
            return Ok(None);
        };
        if self.next_run().is_some() {
            return Ok(None);
        }
        let begin = run.first_lsn().max(run.copied_end());
        let Some(at) = left.first_frame(begin, wanted) else {
            return Ok(None);
        };
        let at = self.window.follow(run, at, wanted)?;
        // Not where the position is unknown to the ring: then the segments are right and it is not.
        Ok((at < wanted && left.follow(at, wanted) == wanted && left.bridges(at)).then_some(at))
    }

    fn missing(&self, wanted: Lsn, oldest: Lsn, end: Lsn) -> LogError {
        let segment = self.chain.runs.iter().find_map(|run| run.segments.first());
        let dir = segment.and_then(|s| s.path.parent()).unwrap_or(Path::new(""));
        LogError::Missing {
            path: dir.to_owned(),
            wanted,
            oldest,
            end,
        }
    }

    /// After a release the oldest segment may begin in mid-frame, and its header says where the
    /// first frame begins.
    ///
    /// Formats 1 and 2 do not say it. There the first place where a frame of this epoch seems to
    /// stand is the first. It need not be a good one: where it is damaged, or torn, that is for the
    /// next step to judge, and not to be passed over as the end of a frame that began before.
    /// (Where the damage hit the few bytes that give its place and epoch, it is.) Or it is part
    /// of a payload; that cannot be known.
    fn find_first_frame(&mut self) -> Result<(), LogError> {
        let run = self.current()?;
        let end = self.next_run().map_or(run.end(), Run::predecessor_end);
        if let RunBeginning::Known(first) = run.beginning()? {
            if first > end {
                let expected = format!("the log to go on up to LSN {first}, where its first frame begins");
                return Err(corrupt(run, end, &expected, "its end"));
            }
            self.at = first;
            return Ok(());
        }
        let limit = match self.ring {
            OldRing::Usable(left) if self.next_run().is_none() => left.written.min(end),
            _ => end,
        };
        let found = self.window.first_place(run, self.at)?.unwrap_or(limit).min(limit);
        if let OldRing::Usable(left) = self.ring
            && self.next_run().is_none()
            && left.began_between(self.at, found)
        {
            return Err(guess_failed(
                run,
                format!("the ring knows of a frame before LSN {found}"),
            ));
        }
        self.at = found;
        self.guessed = Some(found);
        Ok(())
    }

    /// Decides at one position; `false` at the log's end.
    fn step(&mut self, visit: &mut Visit<'_>) -> Result<bool, LogError> {
        let run = self.current()?;
        let recorded_end = self.next_run().map(Run::predecessor_end);
        let at = self.at;
        let frame = self.window.frame(run, at)?.map(|(header, _)| header);
        let good = frame.as_ref().ok().copied();
        let mut evidence = Evidence {
            epoch_ends_here: recorded_end == Some(at),
            frame: good.is_some(),
            frame_crosses_end: good.zip(recorded_end).is_some_and(|(f, end)| f.end() > end),
            below_recorded_end: recorded_end.is_some_and(|end| at < end) || at < run.copied_end(),
            below_mark: false,
            cut_short: false,
            ring: good.is_none() && self.usable_ring().is_some(),
        };
        if good.is_none() && !evidence.ring {
            evidence.below_mark = self.proven_by_later_frames(run)?;
            evidence.cut_short = self.cut_short(run).is_some();
        }
        match decide(evidence) {
            Decision::NextEpoch => {
                self.run += 1;
                self.closed = false;
                self.at = self.current()?.first_lsn();
                self.window.clear();
            }
            Decision::Take => {
                if let Some(header) = good {
                    self.take(run, header, visit)?;
                }
            }
            Decision::Corrupt(proof) => {
                let found = frame
                    .err()
                    .map_or_else(|| "a frame that goes beyond".to_owned(), |bad| bad.to_string());
                if self.guessed == Some(at) {
                    return Err(guess_failed(run, format!("LSN {at} holds {found}")));
                }
                let damage = corrupt(run, at, &proof.to_string(), found);
                if !self.passing {
                    return Err(damage);
                }
                self.pass_over(run, damage)?;
            }
            Decision::Ring => {
                self.end_in_segments(run, something(frame.err()));
                self.follow_ring(run, visit)?;
                return Ok(false);
            }
            Decision::CutShort => {
                let Some((segment, to)) = self.cut_short(run) else {
                    return Ok(false);
                };
                let (least, len) = (segment.offset(to), segment.len);
                let found = format!("the end of the file, of {len} bytes, which once had {least} at least");
                if self.passing {
                    self.pass_over(run, corrupt(run, at, "a frame, or room for one", found))?;
                    return Ok(true);
                }
                self.end_in_segments(run, Some(found));
                self.explain_ring();
                return Ok(false);
            }
            Decision::End => {
                let found = match something(frame.err()) {
                    None => self.behind_zeros(run)?,
                    found => found,
                };
                self.end_in_segments(run, found);
                self.explain_ring();
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn take(&mut self, run: &Run, header: FrameHeader, visit: &mut Visit<'_>) -> Result<(), LogError> {
        let mut stretch = run;
        let payload_at = self.at + FRAME_HEADER as u64;
        let payload = self.window.bytes(&mut stretch, payload_at, header.stored_len())?;
        let segment = run.segments.iter().find(|s| s.header.end() > header.lsn.get());
        let place = segment.map(|s| (s, s.offset(header.lsn.get())));
        visit(Seen {
            header,
            payload,
            place,
        })?;
        if segment.is_some_and(|segment| segment.header.end() <= header.end()) {
            let entered = |s: &&SegmentFile| (self.at + 1..=header.end()).contains(&s.first_lsn());
            let entered = run.segments.iter().filter(entered);
            let beginnings = entered.map(|segment| (segment.number(), header.end()));
            self.found.beginnings.extend(beginnings);
        }
        self.note_close(header.kind());
        self.accept(header, CopySource::Run(self.run));
        self.raise_mark(run.copied_end().max(run.predecessor_end()));
        Ok(())
    }

    /// Whether the log was closed: nothing follows but what fills the close's block.
    fn note_close(&mut self, kind: u8) {
        self.closed = kind == KIND_CLOSE || self.closed && kind == KIND_FILLER;
    }

    fn accept(&mut self, header: FrameHeader, source: CopySource) {
        let piece = CopyPiece {
            start: header.lsn.get(),
            end: header.end(),
            source,
        };
        self.found.past_mark.push_back(piece);
        self.found.frames += 1;
        self.found.end = piece.end;
        self.at = piece.end;
        self.raise_mark(header.durable_mark.get());
    }

    /// Everything below `lsn` was durable: it need not be copied.
    fn raise_mark(&mut self, lsn: Lsn) {
        let in_segments = self.ring_from.unwrap_or(self.found.end);
        self.found.durable_mark = self.found.durable_mark.max(lsn.min(in_segments));
        while self
            .found
            .past_mark
            .front()
            .is_some_and(|piece| piece.end <= self.found.durable_mark)
        {
            self.found.past_mark.pop_front();
        }
        // No writer marks a part of a frame as durable; where that was forged, all of it is copied.
        if let Some(first) = self.found.past_mark.front() {
            self.found.durable_mark = self.found.durable_mark.min(first.start);
        }
    }

    fn usable_ring(&self) -> Option<&'a UsableRing> {
        match self.ring {
            OldRing::Usable(left) if self.next_run().is_none() && left.bridges(self.at) => Some(left),
            _ => None,
        }
    }

    /// The segment at the current position, where its file is shorter than it was when the frames
    /// reached up to here, and up to where it must have gone. Not behind a close, which nothing
    /// follows, nor before another epoch, which records where this one ends, and has its room back.
    pub(super) fn cut_short<'r>(&self, run: &'r Run) -> Option<(&'r SegmentFile, Lsn)> {
        let may_be_shorter = self.closed || self.chain.is_archive || self.next_run().is_some();
        run.cut_short(self.at).filter(|_| !may_be_shorter)
    }

    /// Where there is nothing, it still is no clean end if something follows: blocks that were
    /// written together reach the device in any order.
    fn behind_zeros(&mut self, run: &Run) -> Result<Option<String>, LogError> {
        let at = self.at;
        if let Some(next) = self.window.find(run, at + ALIGN, |_| true)? {
            return Ok(Some(format!("zeros, and a frame behind them at LSN {next}")));
        }
        Ok(match self.ring {
            OldRing::Usable(left) if self.next_run().is_none() && left.written > at => Some(format!(
                "zeros, where the ring records that all was written up to LSN {}",
                left.written
            )),
            _ => None,
        })
    }

    fn end_in_segments(&mut self, run: &Run, found: Option<String>) {
        // Behind a close lies at most a part of a frame whose appender got an error because the log
        // was closed, or what the segment held before it was used again.
        if !self.closed
            && let Some(found) = found
        {
            self.found.torn = self.tail(run, found);
        }
    }

    fn tail(&self, run: &Run, found: String) -> Option<TornTail> {
        let segment = run.segments.iter().find(|s| s.header.end() > self.at)?;
        Some(TornTail {
            path: segment.path.clone(),
            offset: segment.offset(self.at),
            lsn: self.at,
            found,
        })
    }

    /// Takes the frames that only the ring has. A complete frame behind a hole counts: what
    /// belonged in the hole was never applied nor seen, so nothing depends on it.
    fn follow_ring(&mut self, run: &Run, visit: &mut Visit<'_>) -> Result<(), LogError> {
        let Some(left) = self.usable_ring() else {
            return Ok(());
        };
        if self.at < left.written {
            let zeros = self.tail(run, "zeros".into());
            self.found.mended = self.found.torn.take().or(zeros);
        }
        self.ring_from = Some(self.at);
        let (mut frames, mut holes) = (0, 0);
        loop {
            if let Some((header, payload)) = left.frame(self.at) {
                visit(Seen {
                    header,
                    payload: &payload,
                    place: None,
                })?;
                self.note_close(header.kind());
                self.accept(header, CopySource::Ring);
                frames += 1;
                continue;
            }
            let Some(next) = left.next_frame(self.at) else {
                break;
            };
            // A hole has room for whole frames; anything smaller is not one that we know of.
            if next - self.at < FRAME_HEADER as u64 {
                break;
            }
            self.found.past_mark.push_back(CopyPiece {
                start: self.at,
                end: next,
                source: CopySource::Hole,
            });
            holes += 1;
            self.at = next;
        }
        if frames > 0 {
            // The segments' tail is not the log's end.
            self.found.torn = None;
        }
        let spent = self.closed && frames == 0;
        self.found.ring = if spent {
            RingOutcome::Closed
        } else {
            RingOutcome::Recovered { frames, holes }
        };
        Ok(())
    }

    fn explain_ring(&mut self) {
        if let OldRing::Usable(left) = self.ring
            && self.next_run().is_none()
        {
            let reason = format!(
                "the segments are good up to LSN {} only, and the ring goes on at {}; what was acknowledged at \
                 the process level in between may be lost",
                self.at, left.written
            );
            self.found.ring = RingOutcome::Refused { reason };
        }
        if self.closed {
            self.found.ring = RingOutcome::Closed;
        }
    }
}

/// What stands where there is no frame, if anything does.
fn something(bad: Option<Bad>) -> Option<String> {
    bad.filter(|bad| *bad != Bad::Nothing).map(|bad| bad.to_string())
}

/// What was taken for the first frame is none, and may be a damaged one or part of another's
/// payload.
fn guess_failed(run: &Run, found: String) -> LogError {
    LogError::BeginningUnknown {
        path: run.segments.first().map(|s| s.path.clone()).unwrap_or_default(),
        lsn: run.first_lsn(),
        why: format!("a segment of format 1 or 2 does not record it, and {found}"),
    }
}
