//! The committed end of a file, and whether the log has it.
//!
//! Pages behind the committed end are written at home, over and over, so a crash may leave any mix of
//! their versions. A reader afterwards may rely on older ones: PostgreSQL's recovery replays
//! what was done to a page before its file was cut or removed, and the file has grown again since.
//! So recovery cuts a file at its committed end, and before anything but zeros is behind that the
//! log has a record of it: the file is *mapped*, displaced pages or not. A page is whole or not there.
//!
//! PostgreSQL's redo begins at the last checkpoint's redo point. A page that is missing or zeros it
//! passes over, a torn one stops it, unless every record since then begins with one that initialises
//! the page. The mount cannot find that out: redo reads records from before
//!
//! * the cut, where `VACUUM` cut the file and it grew again;
//! * the removal, where a file was removed and its name made anew, renamed to or linked;
//! * the drop, where redo made the file again and a second recovery follows;
//! * any of these, on a standby between two restartpoints or in a copied database.
//!
//! Zeros tear into nothing else, as long as the device has no older bytes there. So a file that grows
//! by zeros, as PostgreSQL's tables do, waits for nothing before the first content is written.

use super::PageFile;
use super::commit::{Committed, Writers};
use super::name::{Committer, Mapping, Name};
use crate::FrontError;
use crate::disk::record::Record;

impl PageFile {
    /// Whether these bytes may be written only once the log has the end. `writing` is held.
    pub(super) fn needs_known_end(&self, bytes: &[u8], offset: u64) -> bool {
        let page_bytes = self.shared.page_bytes;
        self.pages.lock().needs_known_end(bytes, offset, page_bytes) && !self.is_unlinked()
    }

    /// Records the committed end in the log.
    pub(crate) fn map(&self) -> Result<Committed, FrontError> {
        let mut committer = self.committer.lock();
        self.check()?;
        if committer.mapping != Mapping::Plain || self.is_unlinked() {
            return Ok(Committed::Done);
        }
        let (end, is_durable) = {
            let pages = self.pages.lock();
            (pages.stable, pages.is_end_durable)
        };
        if matches!(self.name(), Name::Lost(_)) {
            return Ok(Committed::Nameless);
        }
        if end > 0 && !is_durable {
            self.sync_home()?;
        }
        // Without bytes it is cut to nothing, whatever a crash leaves by its only name: not a file that
        // had the name before and has another one now.
        if end > 0 || self.links()? > 1 {
            self.sync_name_if_new(&committer)?;
        } else {
            let path = self.path();
            self.shared
                .settle_names(path.parent().unwrap_or(&self.shared.root))?;
        }
        self.write_first_record(&mut committer, end, Vec::new())?;
        Ok(Committed::Done)
    }

    /// To be called before it gets another name: makes the name in its record durable, or recovery might
    /// find it by the other one alone.
    pub(crate) fn keep_name(&self, committer: &Committer) -> Result<(), FrontError> {
        match committer.mapping {
            Mapping::Plain => Ok(()),
            Mapping::Mapped(_) => self.sync_name_if_new(committer),
        }
    }

    /// Whether the log has nothing of it but where it ended before it grew, and it was not changed since
    /// the last call.
    pub(crate) fn is_quiet(&self) -> bool {
        let mut pages = self.pages.lock();
        let changes = pages.home_changes;
        let is_unchanged = std::mem::replace(&mut pages.changes_seen, changes) == changes;
        is_unchanged && pages.is_end_known && pages.known.is_empty()
    }

    /// Ends the mapping of a file without displaced pages, unless it has grown behind its committed
    /// end.
    pub(super) fn end_mapping(
        &self,
        committer: &mut Committer,
        writers: Writers<'_>,
    ) -> Result<(), FrontError> {
        let Mapping::Mapped(id) = committer.mapping else {
            return Ok(());
        };
        let is_home_dirty = {
            let _writing = self.stop_writers(writers);
            let mut pages = self.pages.lock();
            if !pages.is_all_at_home() {
                return Ok(());
            }
            // A write behind the end from here on waits for the committer.
            pages.is_end_known = false;
            pages.is_home_dirty
        };
        // Recovery cuts it at its end no more: a truncation has to be on the device.
        let synced = if is_home_dirty { self.sync_home() } else { Ok(()) };
        let ended = synced.and_then(|()| self.shared.record(&Record::Drop { id }).map(drop));
        match ended {
            Ok(()) => committer.mapping = Mapping::Plain,
            Err(_) => self.pages.lock().is_end_known = true,
        }
        ended
    }

    /// Ends the mapping of a file whose last name was removed: once that is durable, so that the
    /// name does not come back without its displaced pages.
    pub(crate) fn forget(&self, committer: &mut Committer) -> Result<(), FrontError> {
        let Mapping::Mapped(id) = committer.mapping else {
            return Ok(());
        };
        self.shared.sync_removal(self.name().path())?;
        self.shared.record(&Record::Drop { id })?;
        committer.mapping = Mapping::Plain;
        Ok(())
    }
}
