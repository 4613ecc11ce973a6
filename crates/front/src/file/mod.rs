//! A file of pages: reading and writing.

mod attributes;
mod commit;
mod drain;
mod end;
mod name;
mod pages;

use std::sync::{Arc, OnceLock};

use collie_io::{File, write_all_at};
use parking_lot::{Mutex, MutexGuard};

use crate::FrontError;
use crate::disk::dirty_ranges::DirtyRanges;
use crate::disk::record::{Place, Slot};
use crate::shared::Shared;

pub(crate) use commit::Committed;
pub use commit::Scope;
pub(crate) use name::{Committer, Mapping, Name};
use pages::{Active, Coverage, Page, Pages, Version};

/// How a write that did not fail ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Wrote {
    Done,
    /// Nothing was written: a record of the committed end is needed first.
    EndUnknown,
}

/// How often a read is tried beside changes before it excludes them.
const READS_BESIDE: usize = 8;
/// A read of so many bytes is one of a scan: the kernel reads ahead.
const SCAN: usize = 64 << 10;
/// So far ahead of a scan the device begins to read.
const AHEAD: u64 = 512 << 10;

/// So far behind a scan what was read may still be in the system's cache.
const BEHIND: u64 = 2 << 20;

/// A file whose pages are written atomically. Opened by a [`Volume`](crate::Volume), which also
/// reads and writes it. All threads may use it.
///
/// Lock order: `committer`, `writing`, `pages`; `name` beside any of them.
#[derive(Debug)]
pub struct PageFile {
    shared: Arc<Shared>,
    home: Arc<dyn File>,
    /// Held by whatever changes the file's state in the log: commits, truncations, drains, its removal, its
    /// renaming.
    committer: Mutex<Committer>,
    /// Held while bytes of the file are written: a commit waits for these, and one writer does not
    /// copy the version that another one is changing.
    writing: Mutex<()>,
    pages: Mutex<Pages>,
    /// Held for moments, and nothing is locked meanwhile.
    name: Mutex<Name>,
    poison: OnceLock<FrontError>,
    /// What was written at home.
    written: DirtyRanges,
}

/// Bytes of one page within a read or a write.
struct Piece {
    page: u32,
    /// Where they begin in the page.
    from: u32,
    /// Where they begin in the caller's buffer.
    at: usize,
    len: usize,
}

impl PageFile {
    /// A file as it was found on the device, with the displaced pages that recovery has found, or a new
    /// one.
    pub(crate) fn open(
        shared: Arc<Shared>,
        home: Arc<dyn File>,
        mapping: Mapping,
        name: Name,
        len: u64,
        displaced: impl IntoIterator<Item = (u32, (Slot, u32))>,
        is_new: bool,
    ) -> PageFile {
        let known = displaced.into_iter().map(|(number, committed)| {
            let page = Page {
                committed: Some(committed),
                ..Page::default()
            };
            (number, page)
        });
        let pages = Pages {
            len,
            stable: len,
            freezing: None,
            is_end_known: mapping != Mapping::Plain,
            is_end_durable: is_new,
            home_len: len,
            // Who wrote it before may not have synced it.
            is_home_dirty: true,
            is_touched: false,
            home_changes: 0,
            changes_seen: 0,
            displaced_at: None,
            is_in_place: false,
            version: 0,
            known: known.collect(),
        };
        PageFile {
            shared,
            home,
            committer: Mutex::new(Committer { mapping }),
            writing: Mutex::new(()),
            pages: Mutex::new(pages),
            name: Mutex::new(name),
            poison: OnceLock::new(),
            written: DirtyRanges::default(),
        }
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.pages.lock().len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn committer(&self) -> MutexGuard<'_, Committer> {
        self.committer.lock()
    }

    /// Its committer, if nothing is under way.
    pub(crate) fn committer_if_free(&self) -> Option<MutexGuard<'_, Committer>> {
        self.committer.try_lock()
    }

    /// Whether nothing is lost when it is closed and opened again: all of it is at home, and what
    /// was changed since it was opened is synced.
    pub(crate) fn is_idle(&self, committer: &Committer) -> bool {
        let pages = self.pages.lock();
        let is_name_new = matches!(
            *self.name.lock(),
            Name::Known {
                is_durable: false,
                ..
            }
        );
        let is_clean = !pages.is_touched || !(pages.is_home_dirty || is_name_new);
        is_clean && committer.mapping == Mapping::Plain && pages.known.is_empty()
    }

    /// The volume that it is a file of.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// How many pages are displaced, and how many have a version that is not committed.
    pub(crate) fn counts(&self) -> (usize, usize) {
        self.pages.lock().counts()
    }

    /// Why it takes no more writes, if a failure of its own is why.
    pub(crate) fn failure(&self) -> Option<&FrontError> {
        self.poison.get()
    }

    fn check(&self) -> Result<(), FrontError> {
        self.shared.check()?;
        match self.poison.get() {
            None => Ok(()),
            Some(cause) => Err(FrontError::Poisoned {
                path: self.path(),
                cause: Box::new(cause.clone()),
            }),
        }
    }

    fn poison(&self, cause: FrontError) -> FrontError {
        let _ = self.poison.set(cause.clone());
        cause
    }

    /// The bytes `offset..offset + len`, page by page.
    fn pieces(&self, offset: u64, len: usize) -> Result<Vec<Piece>, FrontError> {
        let page_bytes = u64::from(self.shared.page_bytes);
        let mut pieces = Vec::new();
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let from = at % page_bytes;
            let take = (page_bytes - from).min((len - done) as u64) as usize;
            self.check_end(at.saturating_add(take as u64))?;
            let page = (at / page_bytes) as u32;
            // A page is far below 4 GiB.
            pieces.push(Piece {
                page,
                from: from as u32,
                at: done,
                len: take,
            });
            done += take;
        }
        Ok(pieces)
    }

    /// Refuses what lies behind the last page.
    fn check_end(&self, end: u64) -> Result<(), FrontError> {
        if end <= u64::from(self.shared.page_bytes) << 32 {
            return Ok(());
        }
        let path = self.path();
        Err(FrontError::TooLong { path, end })
    }

    /// Reads up to `buf.len()` bytes at `offset`; fewer only at the end of the file.
    pub(crate) fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, FrontError> {
        for attempt in 0..READS_BESIDE {
            let (version, len, plan, ahead) = {
                let pages = self.pages.lock();
                let (len, plan) = self.plan(&pages, buf.len(), offset)?;
                let ahead = match attempt == 0 && buf.len() >= SCAN {
                    // Nothing depends on it.
                    true => {
                        self.plan(&pages, buf.len(), offset.saturating_add(AHEAD))
                            .unwrap_or_default()
                            .1
                    }
                    false => Vec::new(),
                };
                (pages.version, len, plan, ahead)
            };
            if attempt == 0 {
                self.hint(&plan);
                self.hint(&ahead);
            }
            let read = self.read_pieces(&plan, buf);
            // A slot that was read may be another page's by now, and its checksum then another.
            if self.pages.lock().version == version {
                self.let_go(&plan, buf.len());
                return read.map(|()| len);
            }
        }
        let pages = self.pages.lock();
        let (len, plan) = self.plan(&pages, buf.len(), offset)?;
        self.read_pieces(&plan, buf).map(|()| len)
    }

    /// From where to read what.
    fn plan(
        &self,
        pages: &Pages,
        wanted: usize,
        offset: u64,
    ) -> Result<(usize, Vec<(Piece, Version)>), FrontError> {
        let len = pages.len.saturating_sub(offset).min(wanted as u64) as usize;
        let pieces = self.pieces(offset, len)?;
        let plan = pieces.into_iter().map(|piece| {
            let version = pages.current(piece.page);
            (piece, version)
        });
        Ok((len, plan.collect()))
    }

    fn read_pieces(&self, plan: &[(Piece, Version)], buf: &mut [u8]) -> Result<(), FrontError> {
        let is_home = |(_, version): &(Piece, Version)| version.place == Place::Home;
        // Pages at home that follow each other are read at once.
        for run in plan.chunk_by(|one, next| is_home(one) && is_home(next)) {
            let ((first, version), (last, _)) = (&run[0], &run[run.len() - 1]);
            let Some(into) = buf.get_mut(first.at..last.at + last.len) else {
                continue;
            };
            self.read_version(first.page, version, first.from, into)?;
        }
        Ok(())
    }

    /// Starts to read all pieces at once, where there are several: displaced pages lie anywhere, and one
    /// would wait for the other. Those at home are read with what lies between. Of a scan the pages ahead
    /// are read, too.
    fn hint(&self, plan: &[(Piece, Version)]) {
        if plan.len() < 2 {
            return;
        }
        let (mut homes, mut slots) = (Vec::new(), Vec::new());
        for (piece, version) in plan {
            match version.place {
                Place::Home => homes.push(piece.page),
                Place::Slot(slot) => slots.push(slot.0),
            }
        }
        if let (Some(first), Some(last)) = (homes.first(), homes.last()) {
            let pages = u64::from(last - first) + 1;
            let len = pages * u64::from(self.shared.page_bytes);
            self.home.will_need(self.shared.offset(*first), len);
        }
        for run in slots.chunk_by(|one, next| one + 1 == *next) {
            self.shared.shadow.will_need(Slot(run[0]), run.len());
        }
    }

    /// Drops what was read at home from the system's cache, since the reader has it in its own. Of a scan
    /// with what was read before: the system drops only whole pieces, larger than one read. Not where
    /// something is to be written out: the call would wait for that.
    fn let_go(&self, plan: &[(Piece, Version)], wanted: usize) {
        let mut homes = plan
            .iter()
            .filter(|(_, version)| version.place == Place::Home)
            .map(|(piece, _)| self.shared.offset(piece.page));
        let Some(first) = homes.next() else {
            return;
        };
        let end = homes.next_back().unwrap_or(first) + u64::from(self.shared.page_bytes);
        let start = match wanted >= SCAN {
            true => first.saturating_sub(BEHIND),
            false => first,
        };
        if !self.written.has_any(start, end - start) {
            self.home.wont_need(start, end - start);
        }
    }

    /// Compares every displaced page with its checksum. Adds an error for each that is damaged.
    pub(crate) fn verify(&self, damaged: &mut Vec<FrontError>) -> Result<(), FrontError> {
        // Held, so that no slot is given to another page meanwhile.
        let _committer = self.committer.lock();
        let mut page = vec![0; self.shared.page_bytes as usize];
        for (number, (slot, crc)) in self.committed().1 {
            let version = Version {
                place: Place::Slot(slot),
                crc: Some(crc),
            };
            match self.read_version(number, &version, 0, &mut page) {
                Err(error @ FrontError::Corrupt { .. }) => damaged.push(error),
                read => read?,
            }
        }
        Ok(())
    }

    /// Reads bytes of one version of a page, or of pages at home from it on; zeros where the file at
    /// home ends.
    fn read_version(
        &self,
        page: u32,
        version: &Version,
        from: u32,
        into: &mut [u8],
    ) -> Result<(), FrontError> {
        match version.place {
            Place::Home => {
                let offset = self.shared.offset(page) + u64::from(from);
                let mut done = 0;
                while done < into.len() {
                    let rest = into.get_mut(done..).unwrap_or_default();
                    match self.home.read_at(rest, offset + done as u64) {
                        Ok(0) => {
                            rest.fill(0);
                            break;
                        }
                        Ok(n) => done += n,
                        Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                        Err(e) => return Err(FrontError::io("read", &self.path())(e)),
                    }
                }
                Ok(())
            }
            Place::Slot(slot) => match version.crc {
                Some(crc) => self.read_checked(page, slot, crc, from, into),
                None => self.shared.shadow.read(slot, from, into),
            },
        }
    }

    /// Reads bytes of a page in a slot, and the rest of it with them: the checksum is of all.
    fn read_checked(
        &self,
        page: u32,
        slot: Slot,
        crc: u32,
        from: u32,
        into: &mut [u8],
    ) -> Result<(), FrontError> {
        let page_bytes = self.shared.page_bytes as usize;
        let mut whole = Vec::new();
        let is_part = into.len() != page_bytes;
        if is_part {
            whole.resize(page_bytes, 0);
        }
        let bytes = if is_part { &mut whole[..] } else { &mut *into };
        self.shared.shadow.read(slot, 0, bytes)?;
        let found = crc32c::crc32c(bytes);
        if found != crc {
            return Err(FrontError::Corrupt {
                path: self.shared.shadow.path().to_owned(),
                expected: format!(
                    "page {page} of {} in slot {}, with checksum {crc:08x}",
                    self.path().display(),
                    slot.0
                ),
                found: format!("checksum {found:08x}"),
            });
        }
        let from = from as usize;
        if let Some(part) = whole.get(from..from + into.len()) {
            into.copy_from_slice(part);
        }
        Ok(())
    }

    /// Writes bytes; the file grows where they end behind its end. Where it fails,
    /// the first bytes are written, as many as the error contains.
    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<Wrote, (usize, FrontError)> {
        let pieces = self.pieces(offset, bytes.len()).map_err(|e| (0, e))?;
        if pieces.is_empty() {
            return Ok(Wrote::Done);
        }
        let _writing = self.writing.lock();
        self.check().map_err(|e| (0, e))?;
        if self.needs_known_end(bytes, offset) {
            return Ok(Wrote::EndUnknown);
        }
        self.fill_gap(offset).map_err(|e| (0, e))?;
        for piece in pieces {
            let part = bytes.get(piece.at..piece.at + piece.len).unwrap_or_default();
            self.write_piece(piece.page, piece.from, part)
                .map_err(|e| (piece.at, self.cut_rest(e)))?;
        }
        Ok(Wrote::Done)
    }

    /// After a write that failed: what it left at home behind the end is cut off, so that no crash
    /// shows half a page there. Where that fails too, the next write or commit does it.
    fn cut_rest(&self, error: FrontError) -> FrontError {
        let (len, home_len) = {
            let pages = self.pages.lock();
            (pages.len, pages.home_len)
        };
        if home_len > len {
            let _ = self.set_home_len(len);
        }
        error
    }

    /// Sets what lies between the end and `to`, which is behind it, to zeros. `writing` is held.
    fn fill_gap(&self, to: u64) -> Result<(), FrontError> {
        let (len, home_len, is_displaced) = {
            let pages = self.pages.lock();
            let last = u32::try_from(pages.len / u64::from(self.shared.page_bytes));
            let place = last.map(|page| pages.current(page).place);
            (pages.len, pages.home_len, place != Ok(Place::Home))
        };
        if to <= len {
            return Ok(());
        }
        if home_len > len {
            // A write beyond the end that failed left something there.
            self.home
                .set_len(len)
                .map_err(FrontError::io("set the length of", &self.path()))?;
            self.pages.lock().home_len = len;
        }
        let in_page = len % u64::from(self.shared.page_bytes);
        if in_page > 0 && is_displaced {
            let zeros = (u64::from(self.shared.page_bytes) - in_page).min(to - len) as usize;
            let page = (len / u64::from(self.shared.page_bytes)) as u32;
            self.write_piece(page, in_page as u32, &vec![0; zeros])?;
        }
        Ok(())
    }

    /// Writes bytes of one page. `writing` is held.
    fn write_piece(&self, page: u32, from: u32, bytes: &[u8]) -> Result<(), FrontError> {
        let page_bytes = self.shared.page_bytes;
        let to = from + bytes.len() as u32;
        let end = self.shared.offset(page) + u64::from(to);
        let is_whole = from == 0 && to == page_bytes;
        let pages = self.pages.lock();
        let len = pages.len.max(end);
        let current = pages.current(page);
        let is_active = pages.known.get(&page).is_some_and(|page| page.active.is_some());
        let is_home_taken = pages.is_home_taken(page, page_bytes);
        drop(pages);

        let place = match (is_active, is_home_taken) {
            (true, _) => current.place,
            (false, false) => Place::Home,
            (false, true) => {
                Place::Slot(self.shared.shadow.take().ok_or_else(|| FrontError::ShadowFull {
                    path: self.shared.shadow.path().to_owned(),
                    slots: self.shared.shadow.slots(),
                })?)
            }
        };
        let is_new = !is_active && place != current.place;
        let copied = if is_new && !is_whole {
            let mut copy = self.copy_with(page, &current, from, bytes).map(Some);
            if let (Ok(Some(copy)), Place::Home) = (&mut copy, place) {
                copy.truncate((len - self.shared.offset(page)).min(u64::from(page_bytes)) as usize);
            }
            copy
        } else {
            Ok(None)
        };
        let written = copied.and_then(|copied| {
            let (from, bytes) = copied.as_deref().map_or((from, bytes), |copied| (0, copied));
            self.write_place(page, place, from, bytes)?;
            let is_all = bytes.len() as u64 == u64::from(page_bytes);
            Ok(is_all.then(|| crc32c::crc32c(bytes)))
        });
        let mut pages = self.pages.lock();
        let crc = match (written, place) {
            (Ok(crc), _) => crc,
            // The active version may be half of each.
            (Err(error), _) if is_active => return Err(self.poison(error)),
            // Nothing refers to the place, or it is at home behind the stable end, of which nothing
            // was promised.
            (Err(error), place) => {
                if let Place::Slot(slot) = place {
                    self.shared.shadow.give_back([slot]);
                }
                return Err(error);
            }
        };
        pages.len = len;
        match place {
            Place::Home => pages.home_changed(),
            Place::Slot(_) => {
                pages.is_touched = true;
                pages.displaced_at = Some(self.shared.now());
            }
        }
        if place != Place::Home || is_active || is_new {
            let known = pages.known.entry(page).or_default();
            let before = known.active.take().map(|active| active.coverage);
            let coverage = before.unwrap_or(Coverage::Parts(Vec::new()));
            known.active = Some(Active {
                version: Version { place, crc },
                coverage: coverage.with(from, to, page_bytes),
            });
        }
        Ok(())
    }

    /// The current version of a page with `bytes` on top.
    fn copy_with(
        &self,
        page: u32,
        current: &Version,
        from: u32,
        bytes: &[u8],
    ) -> Result<Vec<u8>, FrontError> {
        let page_bytes = self.shared.page_bytes as usize;
        let begin = self.shared.offset(page);
        let old_len = self.pages.lock().len.saturating_sub(begin).min(page_bytes as u64) as usize;
        let mut copy = vec![0; page_bytes];
        self.read_version(page, current, 0, &mut copy)?;
        // Behind the end a slot holds what was there before a truncation.
        copy.get_mut(old_len..).unwrap_or_default().fill(0);
        if let Some(into) = copy.get_mut(from as usize..from as usize + bytes.len()) {
            into.copy_from_slice(bytes);
        }
        Ok(copy)
    }

    /// Writes bytes of a page at a place; at home never behind the file's end.
    fn write_place(&self, page: u32, place: Place, from: u32, bytes: &[u8]) -> Result<(), FrontError> {
        match place {
            Place::Slot(slot) => self.shared.shadow.write(slot, from, bytes),
            Place::Home => {
                let at = self.shared.offset(page) + u64::from(from);
                let mut pages = self.pages.lock();
                pages.home_len = pages.home_len.max(at + bytes.len() as u64);
                drop(pages);
                let done = write_all_at(&*self.home, bytes, at);
                done.map_err(FrontError::io("write to", &self.path()))?;
                self.written.add(at, bytes.len());
                Ok(())
            }
        }
    }
}

impl PageFile {
    /// Whether there is nothing for [`PageFile::write_out`].
    pub(crate) fn is_written_out(&self) -> bool {
        self.written.is_empty()
    }

    /// Writes out about `limit` bytes of what was written at home. Returns how many there were. A
    /// failure is as final as a sync's.
    pub(crate) fn write_out(&self, limit: u64) -> Result<u64, FrontError> {
        self.check()?;
        let done = self.written.write_out(&*self.home, limit);
        let ranges = done.map_err(|e| self.poison(FrontError::io("write out", &self.path())(e)))?;
        for &(offset, len) in &ranges {
            self.home.wont_need(offset, len);
        }
        Ok(ranges.iter().map(|(_, len)| len).sum())
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        let slots = self.pages.get_mut().truncate(0);
        self.shared.shadow.give_back(slots);
    }
}
