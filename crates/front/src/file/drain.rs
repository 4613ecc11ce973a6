//! Bringing displaced pages home.

use super::PageFile;
use super::commit::{Committed, Writers};
use super::name::{Committer, Mapping};
use super::pages::{Active, Coverage, Version};
use crate::FrontError;
use crate::disk::record::{Place, Slot};
use crate::file::Scope;

impl PageFile {
    /// Rewrites displaced pages from page `from` on to their homes, at most `limit` and only those at
    /// rest, and commits that. Returns where to continue, if there is more. After a failure the
    /// same call commits what it brought home.
    pub(crate) fn drain(&self, from: u32, limit: usize) -> Result<Option<u32>, FrontError> {
        self.drain_as(&mut self.committer.lock(), from, limit, Writers::GoOn)
    }

    fn drain_as(
        &self,
        committer: &mut Committer,
        from: u32,
        limit: usize,
        writers: Writers<'_>,
    ) -> Result<Option<u32>, FrontError> {
        self.check()?;
        if self.is_unlinked() {
            return Ok(None);
        }
        let mut displaced = self.pages.lock().displaced(from);
        let next = displaced.get(limit).map(|(page, ..)| *page);
        displaced.truncate(limit);
        let time = match displaced.is_empty() {
            true => None,
            false => self.home_time(writers),
        };
        for (page, slot, crc) in displaced {
            let _writing = self.stop_writers(writers);
            self.copy_home(page, slot, crc)?;
        }
        let comes_home = self.pages.lock().comes_home();
        if comes_home {
            let done = self.commit_as(committer, Scope::Steady, writers)?;
            debug_assert_eq!(done, Committed::Done, "it is mapped");
        }
        if let Some(time) = time {
            self.keep_home_time(time, writers);
        }
        self.end_mapping(committer, writers)?;
        Ok(next)
    }

    /// Makes the home of a displaced page its active version, unless it was written meanwhile.
    /// `writing` is held.
    fn copy_home(&self, page: u32, slot: Slot, crc: u32) -> Result<(), FrontError> {
        {
            let pages = self.pages.lock();
            let known = pages.known.get(&page);
            if known.is_none_or(|page| page.active.is_some() || page.committed != Some((slot, crc))) {
                return Ok(());
            }
        }
        let version = Version {
            place: Place::Slot(slot),
            crc: Some(crc),
        };
        self.write_home(page, &version)?;
        if let Some(known) = self.pages.lock().known.get_mut(&page) {
            known.active = Some(Active {
                version: Version {
                    place: Place::Home,
                    crc: None,
                },
                coverage: Coverage::Whole,
            });
        }
        Ok(())
    }

    /// Writes a version of a page, as far as the file reaches, to its home. `writing` is held.
    fn write_home(&self, page: u32, version: &Version) -> Result<(), FrontError> {
        let mut bytes = vec![0; self.shared.page_bytes as usize];
        self.read_version(page, version, 0, &mut bytes)?;
        let len = self.len().saturating_sub(self.shared.offset(page));
        let len = len.min(u64::from(self.shared.page_bytes)) as usize;
        self.write_place(page, Place::Home, 0, bytes.get(..len).unwrap_or_default())
    }

    /// Brings all pages home, so that the log has nothing of the file: before a name of it changes. Most
    /// of them beside its writers, which may write as fast as it is drained; what they wrote by then while
    /// they wait, so that it ends.
    pub(crate) fn unmap(&self, committer: &mut Committer) -> Result<(), FrontError> {
        if committer.mapping == Mapping::Plain {
            return Ok(());
        }
        self.drain_as(committer, 0, usize::MAX, Writers::GoOn)?;
        if committer.mapping == Mapping::Plain {
            return Ok(());
        }
        let writing = self.writing.lock();
        let writers = Writers::Wait(&writing);
        let done = self.commit_as(committer, Scope::All, writers)?;
        debug_assert_eq!(done, Committed::Done, "it is mapped");
        self.drain_as(committer, 0, usize::MAX, writers)?;
        Ok(())
    }

    /// For a file that no crash brings back, and of which the log has nothing: from here on it is written
    /// in place, so that it needs no slots, however long it is open.
    pub(crate) fn give_up_slots(&self, committer: &Committer) -> Result<(), FrontError> {
        let is_gone = self.is_unlinked() && committer.mapping == Mapping::Plain;
        let _writing = self.writing.lock();
        let known: Vec<u32> = self.pages.lock().known.keys().copied().collect();
        for page in known.into_iter().filter(|_| is_gone) {
            let version = self.pages.lock().current(page);
            if version.place != Place::Home {
                self.write_home(page, &version)?;
            }
            let freed = self.pages.lock().forget(page);
            self.shared.shadow.give_back(freed);
        }
        self.pages.lock().is_in_place |= is_gone;
        Ok(())
    }
}
