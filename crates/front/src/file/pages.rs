//! Where the versions of a file's pages are.
//!
//! A page has up to three versions: *committed* (C), which a crash leaves; *frozen* (F), which a
//! commit under way makes the committed one; *active* (A), which writes go to. A new version goes
//! to a place that is neither C's nor F's: home where that is free, else a slot. So a write never
//! touches what a crash, before or after the end of a commit under way, has to find.
//!
//! Only what is displaced or about to be is kept here. Any other page is at home: below the stable
//! end as its committed version, beyond it as what was written and never promised. Recovery cuts
//! that off, where the log has the end; where it has not, only zeros are behind it.

use std::collections::BTreeMap;

use crate::disk::record::{Place, Slot};

/// A version of a page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Version {
    pub(crate) place: Place,
    /// CRC-32C of the whole page, where it is known.
    pub(crate) crc: Option<u32>,
}

/// Which bytes of a version are new.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Coverage {
    /// All: it is a version that a writer wrote.
    Whole,
    /// These, in order and apart: between two writes of one page, it is half of each.
    Parts(Vec<(u32, u32)>),
}

impl Coverage {
    /// What is covered when `from..to` is written on top.
    pub(crate) fn with(self, from: u32, to: u32, page_bytes: u32) -> Coverage {
        // A part that is written once more is of the next version, and so is any after a whole one.
        let mut parts = match self {
            Coverage::Parts(parts) if parts.iter().all(|&(begin, end)| to <= begin || end <= from) => parts,
            Coverage::Parts(_) | Coverage::Whole => Vec::new(),
        };
        parts.push((from, to));
        parts.sort_unstable();
        let mut joined: Vec<(u32, u32)> = Vec::with_capacity(parts.len());
        for (from, to) in parts {
            match joined.last_mut() {
                Some((_, end)) if from == *end => *end = to,
                _ => joined.push((from, to)),
            }
        }
        if joined == [(0, page_bytes)] {
            Coverage::Whole
        } else {
            Coverage::Parts(joined)
        }
    }
}

/// The version that writes go to.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) version: Version,
    pub(crate) coverage: Coverage,
}

/// The versions of a page that is not simply at home.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// Its slot, if the committed version is displaced, and its checksum.
    pub(crate) committed: Option<(Slot, u32)>,
    pub(crate) frozen: Option<Version>,
    pub(crate) active: Option<Active>,
}

impl Page {
    fn is_home(&self) -> bool {
        self.committed.is_none() && self.frozen.is_none() && self.active.is_none()
    }

    fn slots(&self) -> impl Iterator<Item = Slot> {
        let frozen = self.frozen.as_ref().map(|version| version.place);
        let active = self.active.as_ref().map(|active| active.version.place);
        let in_slot = [frozen, active]
            .into_iter()
            .flatten()
            .filter_map(|place| match place {
                Place::Slot(slot) => Some(slot),
                Place::Home => None,
            });
        self.committed.map(|(slot, _)| slot).into_iter().chain(in_slot)
    }
}

/// A file's length and its pages.
#[derive(Debug)]
pub(crate) struct Pages {
    /// The length that readers see.
    pub(crate) len: u64,
    /// The committed end; what is below it and not displaced is at home.
    pub(crate) stable: u64,
    /// The end that a commit under way makes the committed one.
    pub(crate) freezing: Option<u64>,
    /// Whether the log has the committed end.
    pub(crate) is_end_known: bool,
    /// Whether the device has all that is below the committed end, and nothing but zeros behind it,
    /// as long as the log does not have it. Not so of a file as it was found, nor of one that was
    /// cut, before a sync.
    pub(crate) is_end_durable: bool,
    /// How far the file at home reaches, at most.
    pub(crate) home_len: u64,
    /// Whether the file at home has changes that no commit has synced.
    pub(crate) is_home_dirty: bool,
    /// Whether it was changed since it was opened.
    pub(crate) is_touched: bool,
    /// How often users changed the file at home.
    pub(crate) home_changes: u64,
    /// The value of `home_changes` at the daemon's last check.
    pub(crate) changes_seen: u64,
    /// When a page was last written to a slot, in nanoseconds since the Unix epoch, if the file at
    /// home does not show it.
    pub(crate) displaced_at: Option<i64>,
    /// Whether no crash brings the file back: all of it is at home, and written in place.
    pub(crate) is_in_place: bool,
    /// Counts changes after which a place may hold something else. A reader that finds another
    /// count than it began with reads again.
    pub(crate) version: u64,
    pub(crate) known: BTreeMap<u32, Page>,
}

impl Pages {
    /// The version of a page that readers see.
    pub(crate) fn current(&self, page: u32) -> Version {
        let home = Version {
            place: Place::Home,
            crc: None,
        };
        let Some(known) = self.known.get(&page) else {
            return home;
        };
        // Without its checksum: it is written in place.
        let active = known.active.as_ref().map(|active| Version {
            crc: None,
            ..active.version
        });
        let committed = known.committed.map(|(slot, crc)| Version {
            place: Place::Slot(slot),
            crc: Some(crc),
        });
        active.or(known.frozen).or(committed).unwrap_or(home)
    }

    /// Whether the home of a page holds a version that a crash may have to find.
    pub(crate) fn is_home_taken(&self, page: u32, page_bytes: u32) -> bool {
        if self.is_in_place {
            return false;
        }
        let known = self.known.get(&page);
        if known.is_some_and(|page| page.frozen.is_some_and(|version| version.place == Place::Home)) {
            return true;
        }
        if known.is_some_and(|page| page.committed.is_some()) {
            return false;
        }
        let end = self.stable.max(self.freezing.unwrap_or(0));
        u64::from(page) < end.div_ceil(u64::from(page_bytes))
    }

    /// Whether bytes may be written at home behind the committed end only once the log has that.
    pub(crate) fn needs_known_end(&self, bytes: &[u8], offset: u64, page_bytes: u32) -> bool {
        if self.is_end_known || self.is_in_place {
            return false;
        }
        let end = self.stable.max(self.freezing.unwrap_or(0));
        let behind = end.next_multiple_of(u64::from(page_bytes)).saturating_sub(offset);
        let behind = usize::try_from(behind).ok().and_then(|from| bytes.get(from..));
        // No bytes are zeros as well.
        behind.is_some_and(|bytes| !is_zero(bytes) || (!self.is_end_durable && !bytes.is_empty()))
    }

    /// Whether all of the file is at home, and no page is behind the committed end.
    pub(crate) fn is_all_at_home(&self) -> bool {
        let is_displaced = self.known.values().any(|page| page.committed.is_some());
        !is_displaced && self.len.max(self.home_len) <= self.stable
    }

    /// Forgets the pages from `first` on. Returns their slots.
    pub(crate) fn truncate(&mut self, first: u64) -> Vec<Slot> {
        self.version += 1;
        let Ok(first) = u32::try_from(first) else {
            return Vec::new();
        };
        let gone = self.known.split_off(&first);
        gone.values().flat_map(Page::slots).collect()
    }

    /// Forgets what is known of a page. Returns its slots.
    pub(crate) fn forget(&mut self, page: u32) -> Vec<Slot> {
        self.version += 1;
        let gone = self.known.remove(&page);
        gone.iter().flat_map(Page::slots).collect()
    }

    /// A user changed the file at home.
    pub(crate) fn home_changed(&mut self) {
        self.is_home_dirty = true;
        self.is_touched = true;
        self.home_changes += 1;
    }

    /// Whether a page is brought home, or was written there, that is displaced or was.
    pub(crate) fn comes_home(&self) -> bool {
        let mut known = self.known.values();
        known.any(|page| {
            page.active
                .as_ref()
                .is_some_and(|active| active.version.place == Place::Home)
        })
    }

    /// How many pages are displaced, and how many have a version that is not committed.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let displaced = self.known.values().filter(|page| page.committed.is_some());
        let active = self.known.values().filter(|page| page.active.is_some());
        (displaced.count(), active.count())
    }

    /// The pages from `from` on that are displaced and not being written.
    pub(crate) fn displaced(&self, from: u32) -> Vec<(u32, Slot, u32)> {
        let at_rest = self
            .known
            .range(from..)
            .filter(|(_, page)| page.active.is_none() && page.frozen.is_none());
        at_rest
            .filter_map(|(&number, page)| page.committed.map(|(slot, crc)| (number, slot, crc)))
            .collect()
    }

    /// Removes what is known of a page that is simply at home.
    pub(crate) fn settle(&mut self, page: u32) {
        if self.known.get(&page).is_some_and(Page::is_home) {
            self.known.remove(&page);
        }
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<16>();
    words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_whole_when_its_parts_are() {
        let none = Coverage::Parts(Vec::new());
        let half = none.with(4096, 8192, 8192);
        assert_eq!(half, Coverage::Parts(vec![(4096, 8192)]));
        let gap = half.with(0, 4095, 8192);
        assert_eq!(gap, Coverage::Parts(vec![(0, 4095), (4096, 8192)]));
        let whole = gap.with(4095, 4096, 8192);
        assert_eq!(whole, Coverage::Whole);
        let next = Coverage::Parts(vec![(100, 8192)]).with(0, 101, 8192);
        assert_eq!(
            next,
            Coverage::Parts(vec![(0, 101)]),
            "written twice: of another version"
        );
        assert_eq!(whole.with(0, 1, 8192), Coverage::Parts(vec![(0, 1)]));
        assert_eq!(Coverage::Whole.with(0, 8192, 8192), Coverage::Whole);
    }
}
