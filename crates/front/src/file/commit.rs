//! Commits and truncations: what changes a file's state in the log.
//!
//! A commit, under the file's `committer`:
//!
//! 1. waits for writes under way and freezes the active versions;
//! 2. syncs the shadow file and the file at home, as far as they hold frozen versions;
//! 3. appends the record and waits until it is durable;
//! 4. makes the frozen versions the committed ones and gives back the slots of those before.
//!
//! So a record never refers to what is not on the device, and a slot is used again only when the
//! record that frees it is durable.

use std::collections::BTreeMap;

use parking_lot::MutexGuard;

use super::PageFile;
use super::name::{Committer, Mapping, Name};
use super::pages::{Active, Coverage, Version};
use crate::FrontError;
use crate::disk::record::{Entry, Place, Record, Slot};

/// What writers of a file do while it is committed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Writers<'w> {
    /// They continue, but for moments.
    GoOn,
    /// They wait until the caller releases the lock.
    Wait(&'w MutexGuard<'w, ()>),
}

/// What a commit takes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scope {
    /// Everything that was written: what a sync of the file promises.
    All,
    /// Pages below the committed end, without those of which a part was written and the rest not
    /// yet. What daemons do by themselves, so that a sync finds little to do. The end stays where
    /// it is: a page that grew with zeros is written in place when its first content comes.
    Steady,
}

/// How a commit that did not fail ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Committed {
    /// What it was to take is committed.
    Done,
    /// Nothing was done: it needs a name of the file, and the one that was known is lost. Never so of
    /// a mapped file.
    Nameless,
}

/// A frozen version.
struct Frozen {
    page: u32,
    version: Version,
    coverage: Coverage,
    /// Whether the version before it is displaced.
    was_displaced: bool,
}

impl Frozen {
    /// Its entry in the record: none where the page is at home as before.
    fn entry(&self) -> Option<Entry> {
        let (place, crc) = (self.version.place, self.version.crc.unwrap_or(0));
        let is_said = self.was_displaced || place != Place::Home;
        is_said.then_some(Entry {
            page: self.page,
            place,
            crc,
        })
    }
}

/// What a commit is about to make the committed state.
struct Freeze {
    frozen: Vec<Frozen>,
    end: u64,
    is_home_dirty: bool,
}

impl Freeze {
    fn is_any_displaced(&self) -> bool {
        self.frozen
            .iter()
            .any(|frozen| frozen.version.place != Place::Home)
    }
}

impl PageFile {
    /// Commits what was written. Where it fails and [`PageFile::check`] does not, it can be
    /// repeated.
    pub(crate) fn commit(&self, scope: Scope) -> Result<Committed, FrontError> {
        self.commit_as(&mut self.committer.lock(), scope, Writers::GoOn)
    }

    pub(super) fn commit_as(
        &self,
        committer: &mut Committer,
        scope: Scope,
        writers: Writers<'_>,
    ) -> Result<Committed, FrontError> {
        self.check()?;
        if self.is_unlinked() {
            return self.sync_elsewhere(scope).map(|()| Committed::Done);
        }
        let mut freeze = self.freeze(scope, writers)?;
        let is_any_displaced = freeze.is_any_displaced();
        let needs_name = is_any_displaced || scope == Scope::All;
        if needs_name && matches!(self.name(), Name::Lost(_)) {
            self.thaw(freeze, writers);
            return Ok(Committed::Nameless);
        }
        let done = self.sync_frozen(committer, scope, &mut freeze);
        let done = done.and_then(|()| self.write_records(committer, &mut freeze));
        if done.is_err() {
            self.thaw(freeze, writers);
        } else if is_any_displaced {
            self.show_time(writers);
        }
        done.map(|()| Committed::Done)
    }

    /// Stops writers, if the caller has not.
    pub(super) fn stop_writers(&self, writers: Writers<'_>) -> Option<MutexGuard<'_, ()>> {
        match writers {
            Writers::GoOn => Some(self.writing.lock()),
            Writers::Wait(held) => {
                debug_assert!(std::ptr::eq(MutexGuard::mutex(held), &raw const self.writing));
                None
            }
        }
    }

    /// Waits for writes under way and makes active versions frozen ones.
    fn freeze(&self, scope: Scope, writers: Writers<'_>) -> Result<Freeze, FrontError> {
        let _writing = self.stop_writers(writers);
        let (len, home_len) = {
            let pages = self.pages.lock();
            (pages.len, pages.home_len)
        };
        if scope == Scope::All && home_len != len {
            // Its end is in a slot, or a write behind it failed half way.
            self.set_home_len(len)?;
        }
        let mut pages = self.pages.lock();
        let end = match scope {
            Scope::All => pages.len,
            Scope::Steady => pages.stable,
        };
        // A page with the end in it goes beyond it by now: it is committed with the next end.
        let below = match end == pages.len {
            true => self.shared.pages(end),
            false => end / u64::from(self.shared.page_bytes),
        };
        let mut frozen = Vec::new();
        for (&page, known) in &mut pages.known {
            let is_taken = |active: &mut Active| {
                let is_ready = u64::from(page) < below && active.coverage == Coverage::Whole;
                scope == Scope::All || is_ready
            };
            if let Some(Active { version, coverage }) = known.active.take_if(is_taken) {
                known.frozen = Some(version);
                frozen.push(Frozen {
                    page,
                    version,
                    coverage,
                    was_displaced: known.committed.is_some(),
                });
            }
        }
        let is_home_dirty = pages.is_home_dirty;
        if scope == Scope::All {
            pages.freezing = Some(end);
            pages.is_home_dirty = false;
        }
        Ok(Freeze {
            frozen,
            end,
            is_home_dirty,
        })
    }

    /// Puts on the device what the record will refer to.
    fn sync_frozen(
        &self,
        committer: &mut Committer,
        scope: Scope,
        freeze: &mut Freeze,
    ) -> Result<(), FrontError> {
        let is_any_displaced = freeze.is_any_displaced();
        for Frozen { version, .. } in &mut freeze.frozen {
            if let (Place::Slot(slot), None) = (version.place, version.crc) {
                version.crc = Some(self.checksum(slot)?);
            }
        }
        if is_any_displaced {
            self.shared.shadow.sync().map_err(|e| self.shared.poison(e))?;
        }
        let stable = self.pages.lock().stable;
        let comes_home = freeze.frozen.iter().any(|f| f.version.place == Place::Home);
        let is_first = is_any_displaced && committer.mapping == Mapping::Plain;
        let is_asked = scope == Scope::All && (freeze.is_home_dirty || freeze.end != stable);
        if is_asked || comes_home || is_first {
            self.sync_home()?;
        }
        match is_first || scope == Scope::All {
            true => self.sync_name_if_new(committer),
            false => Ok(()),
        }
    }

    /// Writes records, as many as are needed for frames of the log's size, and after each makes
    /// committed what it contains. What is left in `freeze` then was not committed.
    fn write_records(&self, committer: &mut Committer, freeze: &mut Freeze) -> Result<(), FrontError> {
        let limit = self.shared.entries(self.name().path());
        loop {
            let stable = self.pages.lock().stable;
            let rest = freeze.frozen.split_off(limit.min(freeze.frozen.len()));
            let entries: Vec<Entry> = freeze.frozen.iter().filter_map(Frozen::entry).collect();
            // The parts before the last one leave the end where it was.
            let end = if rest.is_empty() { freeze.end } else { stable };
            let recorded = self.write_record(committer, entries, end, end != stable);
            if let Err(error) = recorded {
                freeze.frozen.extend(rest);
                return Err(error);
            }
            self.swap(&freeze.frozen, end);
            freeze.frozen = rest;
            if freeze.frozen.is_empty() {
                self.pages.lock().freezing = None;
                return Ok(());
            }
        }
    }

    fn write_record(
        &self,
        committer: &mut Committer,
        entries: Vec<Entry>,
        end: u64,
        is_end_new: bool,
    ) -> Result<(), FrontError> {
        match committer.mapping {
            Mapping::Plain if entries.is_empty() => Ok(()),
            Mapping::Plain => self.write_first_record(committer, end, entries),
            Mapping::Mapped(_) if entries.is_empty() && !is_end_new => Ok(()),
            Mapping::Mapped(id) => self.shared.record(&Record::Commit { id, end, entries }).map(drop),
        }
    }

    /// The record that maps a file.
    pub(super) fn write_first_record(
        &self,
        committer: &mut Committer,
        end: u64,
        entries: Vec<Entry>,
    ) -> Result<(), FrontError> {
        let id = self.shared.new_id();
        let path = self.name().path().to_owned();
        self.shared.record(&Record::File {
            id,
            path,
            end,
            entries,
        })?;
        committer.mapping = Mapping::Mapped(id);
        self.pages.lock().is_end_known = true;
        Ok(())
    }

    /// Syncs the file at home. It is never tried again.
    pub(super) fn sync_home(&self) -> Result<(), FrontError> {
        // Before the sync: what is written meanwhile makes it dirty again.
        self.pages.lock().is_home_dirty = false;
        self.home
            .sync_data()
            .map_err(|e| self.poison(FrontError::io("sync", &self.path())(e)))?;
        self.pages.lock().is_end_durable = true;
        Ok(())
    }

    /// Makes the file's name durable, where it may not be.
    pub(super) fn sync_name_if_new(&self, committer: &Committer) -> Result<(), FrontError> {
        let Name::Known {
            path,
            is_durable: false,
        } = self.name()
        else {
            return Ok(());
        };
        let path = self.shared.root.join(path);
        let dir = path.parent().unwrap_or(&self.shared.root);
        self.shared.sync_names(dir)?;
        self.shared.sync_above(dir)?;
        self.named_for_good(committer);
        Ok(())
    }

    /// Of a file without a name in the volume nothing has to survive; but if it has one elsewhere. It
    /// is written in place then.
    fn sync_elsewhere(&self, scope: Scope) -> Result<(), FrontError> {
        let is_wanted = scope == Scope::All && {
            let pages = self.pages.lock();
            pages.is_in_place && pages.is_home_dirty
        };
        if is_wanted && self.links()? > 0 {
            self.sync_home()?;
        }
        Ok(())
    }

    fn checksum(&self, slot: Slot) -> Result<u32, FrontError> {
        let mut bytes = vec![0; self.shared.page_bytes as usize];
        self.shared.shadow.read(slot, 0, &mut bytes)?;
        Ok(crc32c::crc32c(&bytes))
    }

    /// Makes frozen versions the committed ones.
    fn swap(&self, frozen: &[Frozen], end: u64) {
        let mut freed = Vec::new();
        let mut pages = self.pages.lock();
        for Frozen { page, version, .. } in frozen {
            let Some(known) = pages.known.get_mut(page) else {
                continue;
            };
            known.frozen = None;
            let before = match version.place {
                Place::Home => known.committed.take(),
                Place::Slot(slot) => known.committed.replace((slot, version.crc.unwrap_or(0))),
            };
            freed.extend(before.map(|(slot, _)| slot));
            pages.settle(*page);
        }
        pages.stable = end;
        pages.version += 1;
        drop(pages);
        self.shared.shadow.give_back(freed);
    }

    /// After a commit that failed: frozen versions are active again, but where there is a newer
    /// one. If the file takes no more writes they stay what readers see. Waits for writes under way:
    /// one may be about to make such a newer version.
    fn thaw(&self, freeze: Freeze, writers: Writers<'_>) {
        let _writing = self.stop_writers(writers);
        let is_final = self.check().is_err();
        let mut freed = Vec::new();
        let mut pages = self.pages.lock();
        pages.freezing = None;
        pages.is_home_dirty = true;
        for Frozen {
            page,
            version,
            coverage,
            ..
        } in freeze.frozen
        {
            let Some(known) = pages.known.get_mut(&page).filter(|_| !is_final) else {
                continue;
            };
            known.frozen = None;
            match (&known.active, version.place) {
                (None, _) => known.active = Some(Active { version, coverage }),
                (Some(_), Place::Slot(slot)) => freed.push(slot),
                (Some(_), Place::Home) => {}
            }
        }
        pages.version += 1;
        drop(pages);
        self.shared.shadow.give_back(freed);
    }

    /// Cuts the file, or lets it grow with zeros.
    pub(crate) fn set_len(&self, len: u64) -> Result<(), FrontError> {
        self.check_end(len)?;
        let mut committer = self.committer.lock();
        let _writing = self.writing.lock();
        self.check()?;
        let (before, stable, is_any_cut) = {
            let pages = self.pages.lock();
            let known = pages.known.iter();
            let mut cut = known.filter(|(page, _)| u64::from(**page) >= self.shared.pages(len));
            (
                pages.len,
                pages.stable,
                cut.any(|(_, page)| page.committed.is_some()),
            )
        };
        if len >= before {
            self.fill_gap(len)?;
            self.set_home_len(len)?;
            self.pages.lock().len = len;
            return Ok(());
        }
        if self.is_unlinked() {
            self.forget(&mut committer)?;
        }
        if let Mapping::Mapped(id) = committer.mapping
            // A commit in parts that failed leaves committed pages behind the committed end.
            && (len < stable || is_any_cut)
        {
            self.shared.record(&Record::Cut { id, end: len })?;
        }
        let freed = {
            let mut pages = self.pages.lock();
            pages.len = len;
            pages.stable = stable.min(len);
            pages.truncate(self.shared.pages(len))
        };
        self.shared.shadow.give_back(freed);
        // Once the record is durable, recovery cuts it too.
        self.set_home_len(len).map_err(|e| match committer.mapping {
            Mapping::Plain => e,
            Mapping::Mapped(_) => self.poison(e),
        })?;
        Ok(())
    }

    pub(super) fn set_home_len(&self, len: u64) -> Result<(), FrontError> {
        self.home
            .set_len(len)
            .map_err(FrontError::io("set the length of", &self.path()))?;
        let mut pages = self.pages.lock();
        pages.is_end_durable &= len >= pages.home_len;
        pages.home_len = len;
        pages.home_changed();
        Ok(())
    }

    /// The committed end and the displaced pages.
    pub(crate) fn committed(&self) -> (u64, BTreeMap<u32, (Slot, u32)>) {
        let pages = self.pages.lock();
        let displaced = pages.known.iter();
        let displaced = displaced.filter_map(|(&page, known)| Some((page, known.committed?)));
        (pages.stable, displaced.collect())
    }

    /// Whether there is something that a commit would take.
    pub(crate) fn is_dirty(&self) -> bool {
        // A write under way has a slot already, to which no page refers yet.
        let _writing = self.writing.lock();
        let pages = self.pages.lock();
        pages.known.values().any(|page| page.active.is_some())
    }
}
