//! Following a log from outside: another process may write it meanwhile, and is not asked.
//!
//! A [`Follower`] takes no lock, writes nothing and retains nothing. It gives a frame once the
//! files prove that it was durable: a later frame records that, or the header of a later epoch
//! records it. (An open log that falls idle writes such a frame within two of its flush intervals,
//! and so does one that is closed.) What is only in the ring, or was left above every durable mark
//! by a process that died, is not given; what of that survives is given once the next open has
//! copied it forward.
//!
//! Each frame proves itself: its checksum is seeded by its epoch and covers its LSN, so what stands
//! in a file that was released and used again, or is being written this moment, is never taken for
//! it. Since nothing retains the log for a follower, one that is slow may find that its place is
//! gone: that is [`LogError::Missing`], never a gap. A reader that needs the log retained follows
//! from inside, with [`Log::tail`](crate::Log::tail). Where the log has an archive
//! ([`LogOptions::archive_ttl`](crate::LogOptions::archive_ttl)), released segments are read there,
//! and are gone once they leave it; only then, and only as far as it is needed, is the archive's
//! directory listed.
//!
//! What was given stays so, over crashes and new epochs alike: it was durable, and recovery keeps
//! it under its LSN. Only `repair` can truncate it again; that is noticed, and ends the follower
//! with [`LogError::Corrupt`].
//!
//! Two positions move through the frames. The *scout* goes from frame to whole frame and raises
//! the durable mark; the *giver* follows up to it. So memory is bounded by two windows, however far
//! the mark lags.

mod view;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::Device;

use crate::append::compress;
use crate::error::{LogError, corrupt_at};
use crate::format::ALIGN;
use crate::segments::frames::{Window, given};
use crate::segments::run::{Piece, is_reached_from};
use crate::{Frame, Lsn};
use view::View;

/// How much is read first after nothing was found: where little is written, little is read.
const FIRST: usize = 4 << 10;

/// A frame as a follower gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Followed {
    /// The frame.
    pub frame: Frame,
    /// The epoch that wrote it, or copied it forward.
    pub epoch: u32,
    /// Everything below was durable when it was written; 0: it records nothing.
    pub durable_mark: Lsn,
    /// The segment that it starts in.
    pub segment: PathBuf,
    /// The byte there.
    pub offset: u64,
}

/// Durable frames in order, read from outside the process that writes them: it takes no lock, writes
/// nothing and retains nothing.
#[derive(Debug)]
pub struct Follower {
    view: View,
    /// All frames below are whole.
    scout: Lsn,
    scouting: Window,
    /// Where the next frame to be given starts.
    giver: Lsn,
    giving: Window,
    /// Everything below was durable, as frames and headers say.
    durable_mark: Lsn,
    /// How far was searched beyond the scout for a proof that it stands at damage.
    ahead: Lsn,
    searching: Window,
}

impl Follower {
    /// Follows the log in `dir` from `from` on, which is the start of a frame or any frame's end,
    /// archived or not; `None`: from the oldest whole frame, that of the archive where there is
    /// one.
    ///
    /// # Errors
    /// [`LogError::Missing`] where there is no log, or none that reaches from before `from` up to
    /// it; and those of [`Follower::poll`].
    pub fn open(device: &Arc<dyn Device>, dir: &Path, from: Option<Lsn>) -> Result<Self, LogError> {
        let mut view = View::new(Arc::clone(device), dir.to_owned());
        view.refresh(from.unwrap_or(0))?;
        let mut follower = Self {
            durable_mark: view.durable_mark,
            view,
            scout: 0,
            scouting: Window::growing_from(FIRST),
            giver: 0,
            giving: Window::growing_from(FIRST),
            ahead: 0,
            searching: Window::growing_from(FIRST),
        };
        let start = match from {
            Some(from) => follower.start_at(from)?,
            None => follower.oldest_frame()?,
        };
        follower.go_to(start);
        Ok(follower)
    }

    /// Where the next frame starts: hand it to [`Follower::open`] to go on from here.
    #[must_use]
    pub fn resume_at(&self) -> Lsn {
        self.giver
    }

    /// The next frame that is known to be durable. `None`: there is none now; ask again in a while.
    ///
    /// # Errors
    /// [`LogError::Missing`]: its place was released before it was read. [`LogError::Corrupt`]:
    /// what was durable is damaged, or was truncated by a repair. [`LogError::LogIdMismatch`],
    /// [`LogError::Version`]: the directory holds another log now, or a newer version writes it.
    /// [`LogError::Io`].
    pub fn poll(&mut self) -> Result<Option<Followed>, LogError> {
        let mut refreshed = false;
        loop {
            if let Some(given) = self.give()? {
                return Ok(Some(given));
            }
            if self.advance()? {
                refreshed = false;
                continue;
            }
            // Nothing in what was read: it may have been written meanwhile, or in a new segment.
            if !refreshed {
                self.refresh()?;
                refreshed = true;
                continue;
            }
            if self.scout < self.durable_mark {
                return Err(self.damage(self.scout)?);
            }
            if !self.search_ahead()? {
                return Ok(None);
            }
            refreshed = false;
        }
    }

    /// Goes on with [`Follower::poll`] until what is there now is given or proven to be damaged:
    /// `None` is the end of what is durable.
    ///
    /// # Errors
    /// As [`Follower::poll`].
    pub fn poll_to_end(&mut self) -> Result<Option<Followed>, LogError> {
        loop {
            let from = self.ahead;
            match self.poll()? {
                None if self.ahead > from => {}
                answer => return Ok(answer),
            }
        }
    }

    fn go_to(&mut self, lsn: Lsn) {
        (self.giver, self.scout, self.ahead) = (lsn, lsn, lsn);
    }

    /// The frame at the giver, if it is below the durable mark; frames of the log's own are passed
    /// over.
    fn give(&mut self) -> Result<Option<Followed>, LogError> {
        loop {
            let Some(piece) = self.view.at_or_after(self.giver).cloned() else {
                return Ok(None);
            };
            let at = self.giver.max(piece.start());
            if at >= self.scout {
                return Ok(None);
            }
            if self.giving.frame(self.view.epoch_of(&piece), at)?.is_err() {
                // What is in memory may be from before the frame was written.
                self.giving.clear();
            }
            let Ok((header, stored)) = self.giving.frame(self.view.epoch_of(&piece), at)? else {
                // The scout saw it a while ago.
                return Err(self.damage(at)?);
            };
            let end = header.end();
            if end > self.durable_mark || end > self.scout {
                return Ok(None);
            }
            let frame =
                given(&header, stored).map_err(|found| corrupt(&piece, at, compress::EXPECTED, &found))?;
            self.giver = end;
            if let Some(frame) = frame {
                return Ok(Some(Followed {
                    frame,
                    epoch: piece.header.epoch.get(),
                    durable_mark: header.durable_mark.get(),
                    offset: piece.offset(at),
                    segment: piece.path,
                }));
            }
        }
    }

    /// Takes the scout over the next frame, or into the next epoch; `false` where neither is to be
    /// seen.
    fn advance(&mut self) -> Result<bool, LogError> {
        let Some(piece) = self.view.at_or_after(self.scout).cloned() else {
            return Ok(false);
        };
        let at = self.scout.max(piece.start());
        if at > self.scout {
            // An epoch may begin above the end of the one before. Otherwise the scout's place is
            // gone, as the next listing will show.
            let begins_epoch = piece.header.begins_epoch();
            if begins_epoch {
                self.scout = at;
            }
            return Ok(begins_epoch);
        }
        let Ok((header, _)) = self.scouting.frame(self.view.epoch_of(&piece), at)? else {
            self.scouting.clear();
            return Ok(false);
        };
        self.scout = header.end();
        self.ahead = self.ahead.max(self.scout);
        self.durable_mark = self.durable_mark.max(header.durable_mark.get());
        Ok(true)
    }

    /// Lists the directory again. In a new epoch the scout starts over: what it saw of the old one
    /// above the durable mark may have been written anew.
    fn refresh(&mut self) -> Result<(), LogError> {
        let epoch = self.view.epoch;
        self.view.refresh(self.giver)?;
        self.durable_mark = self.durable_mark.max(self.view.durable_mark);
        if self.view.epoch == epoch {
            return self.check_place();
        }
        self.scouting.clear();
        self.giving.clear();
        self.searching.clear();
        if self.view.copied_end < self.giver {
            let piece = self
                .view
                .pieces
                .iter()
                .find(|p| p.header.epoch == self.view.epoch);
            return Err(LogError::Corrupt {
                path: piece.map_or(self.view.dir().to_owned(), |p| p.path.clone()),
                offset: 0,
                lsn: self.giver,
                expected: format!("an epoch that goes on at LSN {}, which was durable", self.giver),
                found: format!(
                    "one that goes on at {}: the log was truncated",
                    self.view.copied_end
                ),
            });
        }
        self.go_to(self.giver);
        self.check_place()
    }

    /// Fails where the giver's place is gone. Segments go oldest first.
    fn check_place(&self) -> Result<(), LogError> {
        match self.view.at_or_after(self.giver) {
            Some(piece) if is_reached_from(&piece.header, self.giver) => Ok(()),
            // The last segment is full, and the next one not made yet.
            None if self.giver == self.view.bounds().1 && self.giver > 0 => Ok(()),
            _ => Err(self.missing(self.giver)),
        }
    }

    /// What is wrong where a frame was durable and is not to be seen.
    fn damage(&mut self, at: Lsn) -> Result<LogError, LogError> {
        // A file that is used again for other frames got its new name before: then the place is
        // gone.
        self.view.refresh(self.giver)?;
        self.check_place()?;
        let place = self.view.at_or_after(at).filter(|p| p.start() <= at);
        Ok(match place {
            Some(piece) => corrupt(piece, at, "a whole frame, which was durable", "something else"),
            None => self.missing(at),
        })
    }

    /// Searches a window's length further for a frame that records that the scout's place was
    /// durable. Gives whether it found one.
    fn search_ahead(&mut self) -> Result<bool, LogError> {
        let scout = self.scout;
        let Some(piece) = self.view.at_or_after(scout).cloned() else {
            return Ok(false);
        };
        let from = self.ahead.max(scout + ALIGN).max(piece.start());
        self.searching.clear();
        let epoch = self.view.epoch_of(&piece);
        let (proof, searched) = self
            .searching
            .find_near(epoch, from, |h| h.durable_mark.get() > scout)?;
        // At the end it begins again: the log may have grown meanwhile.
        self.ahead = if searched > from { searched } else { scout };
        let Some(proof) = proof else {
            return Ok(false);
        };
        self.durable_mark = self.durable_mark.max(proof.durable_mark.get());
        // What was being written when it was read is whole by now, or never will be.
        self.scouting.clear();
        Ok(true)
    }

    /// The first frame of the oldest segments. After a release the oldest one may begin in
    /// mid-frame, and says where the first one is.
    fn oldest_frame(&mut self) -> Result<Lsn, LogError> {
        let Some(first) = self.view.pieces.first().cloned() else {
            return Err(self.missing(0));
        };
        let epoch = |piece: &&Piece| piece.header.epoch == first.header.epoch;
        let mut epoch = self.view.pieces.iter().take_while(epoch);
        let known = epoch.find_map(|piece| piece.header.first_frame());
        if let Some(known) = known {
            return Ok(known);
        }
        if first.header.is_one_block() {
            return Ok(self.first_frame_from(&first)?.unwrap_or(first.start()));
        }
        Err(LogError::BeginningUnknown {
            lsn: self.view.bounds().0,
            path: first.path,
            why: "the segment that comes before it is not there or damaged".to_owned(),
        })
    }

    /// What seems to be the first whole frame at or above a piece's start, in the same epoch.
    fn first_frame_from(&mut self, piece: &Piece) -> Result<Option<Lsn>, LogError> {
        let epoch = self.view.epoch_of(piece);
        self.searching.find(epoch, piece.start(), |_| true)
    }

    /// `from`, if a frame starts or ends there.
    fn start_at(&mut self, from: Lsn) -> Result<Lsn, LogError> {
        let Some(piece) = self.view.at_or_after(from).cloned() else {
            return Err(self.missing(from));
        };
        if from < piece.start() {
            return if is_reached_from(&piece.header, from) {
                Ok(from)
            } else {
                Err(self.missing(from))
            };
        }
        if from.is_multiple_of(ALIGN) && self.searching.frame(self.view.epoch_of(&piece), from)?.is_ok() {
            return Ok(from);
        }
        // Not the start of a frame. To find the end of one, frames are followed from before it.
        self.view.refresh(0)?;
        let before: Vec<Piece> = self
            .view
            .pieces
            .iter()
            .filter(|p| p.start() <= from)
            .cloned()
            .collect();
        for piece in before.iter().rev() {
            let first = match piece.header.first_frame() {
                Some(first) => Some(first),
                None => self.first_frame_from(piece)?,
            };
            // What was found need not be one: then an earlier segment shows it.
            if let Some(first) = first.filter(|first| *first <= from)
                && self.searching.follow(self.view.epoch_of(piece), first, from)? == from
            {
                return Ok(from);
            }
        }
        Err(self.missing(from))
    }

    fn missing(&self, wanted: Lsn) -> LogError {
        let oldest = self.view.bounds().0;
        LogError::Missing {
            path: self.view.dir().to_owned(),
            wanted,
            oldest,
            end: self.scout.max(self.durable_mark).max(oldest),
        }
    }
}

fn corrupt(piece: &Piece, lsn: Lsn, expected: &str, found: &str) -> LogError {
    corrupt_at(&piece.path, piece.offset(lsn), lsn, expected, found)
}
