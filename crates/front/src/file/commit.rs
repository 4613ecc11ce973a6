//! What changes what records say of a file: commits, truncations, drains.
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
use std::path::PathBuf;

use super::PageFile;
use super::pages::{Active, Coverage, Version};
use crate::FrontError;
use crate::disk::record::{Entry, FileId, Place, Record, Slot};

/// What the log knows of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mapping {
    /// Nothing: no page is displaced, and the file at home is all of it.
    Plain,
    /// Its committed end, and which pages are displaced.
    Mapped(FileId),
}

/// What a file's records are written with.
#[derive(Debug)]
pub(crate) struct Committer {
    pub(crate) mapping: Mapping,
    /// Where it is, from the volume's root.
    pub(crate) path: PathBuf,
    /// Whether a crash may take its name.
    pub(crate) is_name_new: bool,
    /// Whether its last name was removed: it writes no more records but the one that says so.
    pub(crate) is_unlinked: bool,
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

/// A frozen version.
struct Frozen {
    page: u32,
    version: Version,
    coverage: Coverage,
    /// Whether the version before it is displaced.
    was_displaced: bool,
}

impl Frozen {
    /// What the record says of it: nothing where the page is at home as before.
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

impl PageFile {
    /// Commits what was written. Where it fails and [`PageFile::check`] does not, it can be
    /// repeated.
    pub(crate) fn commit(&self, scope: Scope) -> Result<(), FrontError> {
        self.commit_as(&mut self.committer.lock(), scope)
    }

    pub(crate) fn commit_as(&self, committer: &mut Committer, scope: Scope) -> Result<(), FrontError> {
        self.check()?;
        if committer.is_unlinked {
            return Ok(());
        }
        let mut freeze = self.freeze(scope)?;
        let done = self.sync_frozen(committer, scope, &mut freeze);
        let done = done.and_then(|()| self.write_records(committer, &mut freeze));
        if done.is_err() {
            self.thaw(freeze);
        }
        done
    }

    /// Waits for writes under way and makes active versions frozen ones.
    fn freeze(&self, scope: Scope) -> Result<Freeze, FrontError> {
        let _writing = self.writing.lock();
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
        let below = self.shared.pages(end);
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
        let mut is_any_displaced = false;
        for Frozen { version, .. } in &mut freeze.frozen {
            if let Place::Slot(slot) = version.place {
                is_any_displaced = true;
                if version.crc.is_none() {
                    version.crc = Some(self.checksum(slot)?);
                }
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
        if self.is_path_gone() && is_first {
            return Err(self.path_gone(committer));
        }
        if committer.is_name_new && !self.is_path_gone() && (scope == Scope::All || is_first) {
            self.sync_name(committer)?;
        }
        Ok(())
    }

    /// Writes records, as many as are needed for frames of the log's size, and after each makes
    /// committed what it says. What is left in `freeze` then was not committed.
    fn write_records(&self, committer: &mut Committer, freeze: &mut Freeze) -> Result<(), FrontError> {
        let limit = self.shared.entries(&committer.path);
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
            Mapping::Plain => {
                let id = self.shared.new_id();
                let path = committer.path.clone();
                self.shared.record(&Record::File {
                    id,
                    path,
                    end,
                    entries,
                })?;
                committer.mapping = Mapping::Mapped(id);
                Ok(())
            }
            Mapping::Mapped(_) if entries.is_empty() && !is_end_new => Ok(()),
            Mapping::Mapped(id) => self.shared.record(&Record::Commit { id, end, entries }).map(drop),
        }
    }

    /// Syncs the file at home. It is never tried again.
    fn sync_home(&self) -> Result<(), FrontError> {
        // Before the sync: what is written meanwhile makes it dirty again.
        self.pages.lock().is_home_dirty = false;
        self.home
            .sync_data()
            .map_err(|e| self.poison(FrontError::io("sync", &self.path())(e)))
    }

    /// Makes the file's name durable.
    fn sync_name(&self, committer: &mut Committer) -> Result<(), FrontError> {
        let path = self.shared.root.join(&committer.path);
        let dir = path.parent().unwrap_or(&self.shared.root);
        let synced = self.shared.device.sync_dir(dir);
        // Names of other files may be lost with this one, and the next sync would not say so.
        synced.map_err(|e| self.shared.poison(FrontError::io("sync", dir)(e)))?;
        committer.is_name_new = false;
        Ok(())
    }

    /// No record can say where the file is.
    fn path_gone(&self, committer: &Committer) -> FrontError {
        FrontError::Mismatch {
            path: self.shared.root.join(&committer.path),
            problem: "this name of the file was removed; open the file by another of its names".to_owned(),
        }
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
    fn thaw(&self, freeze: Freeze) {
        let _writing = self.writing.lock();
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
        if committer.is_unlinked {
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

    fn set_home_len(&self, len: u64) -> Result<(), FrontError> {
        self.home
            .set_len(len)
            .map_err(FrontError::io("set the length of", &self.path()))?;
        let mut pages = self.pages.lock();
        pages.home_len = len;
        pages.is_home_dirty = true;
        pages.is_touched = true;
        Ok(())
    }

    /// Rewrites at most `limit` displaced pages to their homes, and commits that. Returns how many
    /// there were; fewer than `limit` when no page at rest is displaced any more.
    pub(crate) fn drain(&self, limit: usize) -> Result<usize, FrontError> {
        let mut committer = self.committer.lock();
        self.drain_as(&mut committer, limit)
    }

    pub(crate) fn drain_as(&self, committer: &mut Committer, limit: usize) -> Result<usize, FrontError> {
        self.check()?;
        if committer.is_unlinked {
            return Ok(0);
        }
        let mut displaced = self.pages.lock().displaced();
        displaced.truncate(limit);
        let count = displaced.len();
        let mut bytes = vec![0; self.shared.page_bytes as usize];
        for (page, slot, crc) in displaced {
            let _writing = self.writing.lock();
            let len = {
                let pages = self.pages.lock();
                let known = pages.known.get(&page);
                if known.is_none_or(|page| page.active.is_some() || page.committed != Some((slot, crc))) {
                    continue;
                }
                pages.len.saturating_sub(self.shared.offset(page))
            };
            let version = Version {
                place: Place::Slot(slot),
                crc: Some(crc),
            };
            self.read_version(page, &version, 0, &mut bytes)?;
            let len = len.min(u64::from(self.shared.page_bytes)) as usize;
            self.write_place(page, Place::Home, 0, bytes.get(..len).unwrap_or_default())?;
            if let Some(known) = self.pages.lock().known.get_mut(&page) {
                known.active = Some(Active {
                    version: Version {
                        place: Place::Home,
                        crc: None,
                    },
                    coverage: Coverage::Whole,
                });
            }
        }
        if count > 0 {
            self.commit_as(committer, Scope::Steady)?;
        }
        self.unmap(committer)?;
        Ok(count)
    }

    /// Ends the mapping of a file without displaced pages.
    fn unmap(&self, committer: &mut Committer) -> Result<(), FrontError> {
        let (is_displaced, is_home_dirty) = {
            let pages = self.pages.lock();
            let is_displaced = pages.known.values().any(|page| page.committed.is_some());
            (is_displaced, pages.is_home_dirty)
        };
        if let (Mapping::Mapped(id), false) = (committer.mapping, is_displaced) {
            // Recovery cuts it at its end no more: a truncation has to be on the device.
            if is_home_dirty {
                self.sync_home()?;
            }
            self.shared.record(&Record::Drop { id })?;
            committer.mapping = Mapping::Plain;
        }
        Ok(())
    }

    /// Ends the mapping of a file whose last name was removed: once that is durable, so that the
    /// name does not come back without its displaced pages.
    pub(crate) fn forget(&self, committer: &mut Committer) -> Result<(), FrontError> {
        let Mapping::Mapped(id) = committer.mapping else {
            return Ok(());
        };
        self.shared.sync_removal(&committer.path)?;
        self.shared.record(&Record::Drop { id })?;
        committer.mapping = Mapping::Plain;
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
