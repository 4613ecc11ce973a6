//! What a file holds: as programs see it, as the device has it, and what lies between the two.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

/// The unit that a device writes whole or not at all, in bytes.
pub const SECTOR: usize = 512;
/// How many unsynced versions of one sector are remembered; beyond it one from the middle is
/// forgotten, which makes the set of possible crash images a little smaller and nothing else.
const VERSIONS_MAX: usize = 16;

pub(crate) type Sector = Arc<[u8; SECTOR]>;

/// One shared sector of zeros: preallocated files are full of them.
static ZEROS: LazyLock<Sector> = LazyLock::new(|| Arc::new([0; SECTOR]));

/// A sector with these bytes, which shares memory where it is all zeros.
pub(crate) fn sector(bytes: [u8; SECTOR]) -> Sector {
    if bytes == **ZEROS {
        Arc::clone(&ZEROS)
    } else {
        Arc::new(bytes)
    }
}

/// Bytes by sector; `None` is a hole and reads as zeros. Cloning costs one counter.
#[derive(Debug, Clone, Default)]
pub(crate) struct Content {
    sectors: Arc<Vec<Option<Sector>>>,
    /// How many of them are not holes.
    filled: usize,
    len: u64,
}

impl Content {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Sector> {
        self.sectors.get(index).and_then(Option::as_ref)
    }

    /// The bytes of one sector.
    pub(crate) fn bytes(&self, index: usize) -> [u8; SECTOR] {
        self.get(index).map_or([0; SECTOR], |s| **s)
    }

    /// The places of all sectors that are not holes.
    pub(crate) fn filled(&self) -> Vec<usize> {
        let filled = self.sectors.iter().enumerate();
        filled.filter_map(|(i, s)| s.as_ref().map(|_| i)).collect()
    }

    pub(crate) fn put(&mut self, index: usize, data: Option<Sector>) {
        let sectors = Arc::make_mut(&mut self.sectors);
        if sectors.len() <= index {
            if data.is_none() {
                return;
            }
            sectors.resize(index + 1, None);
        }
        if let Some(slot) = sectors.get_mut(index) {
            self.filled += usize::from(data.is_some());
            self.filled -= usize::from(slot.is_some());
            *slot = data;
        }
    }

    /// Sets the length; what lies beyond is forgotten, as after a truncation.
    pub(crate) fn set_len(&mut self, len: u64) {
        let whole = sectors_in(len);
        if self.sectors.len() > whole {
            let cut_off = self.sectors.iter().skip(whole);
            self.filled -= cut_off.filter(|sector| sector.is_some()).count();
            Arc::make_mut(&mut self.sectors).truncate(whole);
        }
        let tail = to_usize(len) % SECTOR;
        if tail != 0
            && self
                .get(whole - 1)
                .is_some_and(|s| s.iter().skip(tail).any(|&b| b != 0))
        {
            let mut bytes = self.bytes(whole - 1);
            bytes.iter_mut().skip(tail).for_each(|b| *b = 0);
            self.put(whole - 1, Some(sector(bytes)));
        }
        self.len = len;
    }

    /// Copies bytes from `offset` and returns their number: less than asked for at the end.
    pub(crate) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let wanted = to_usize((buf.len() as u64).min(self.len.saturating_sub(offset)));
        let (mut rest, _) = buf.split_at_mut(wanted);
        let mut at = to_usize(offset);
        while !rest.is_empty() {
            let (index, skip) = (at / SECTOR, at % SECTOR);
            let n = (SECTOR - skip).min(rest.len());
            let (to, behind) = rest.split_at_mut(n);
            match self.get(index).and_then(|data| data.get(skip..skip + n)) {
                Some(from) => to.copy_from_slice(from),
                None => to.fill(0),
            }
            (at, rest) = (at + n, behind);
        }
        wanted
    }
}

/// A state of one sector that was written and not synced.
#[derive(Debug, Clone)]
pub(crate) struct Version {
    /// The operation that wrote it.
    pub(crate) op: u64,
    pub(crate) data: Option<Sector>,
}

/// What a written sector does on its way to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// It will be durable at the next sync.
    Straight,
    /// The device says that it has it, and has not.
    Nowhere,
    /// It lands in another sector of the file.
    To(usize),
}

/// A file's bytes: `cached` is what every program sees, `durable` what a power cut leaves for
/// certain, `pending` and `lengths` what it may leave besides, oldest first.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileData {
    pub(crate) cached: Content,
    pub(crate) durable: Content,
    pub(crate) pending: BTreeMap<usize, Vec<Version>>,
    pub(crate) lengths: Vec<(u64, u64)>,
    /// Space promised by `allocate`.
    pub(crate) promised: Promised,
    /// Whether it lives in memory only: nothing is pending, and a power cut takes all of it.
    pub(crate) volatile: bool,
}

impl FileData {
    /// Puts one sector into the cache and onto its way to the device.
    pub(crate) fn store(&mut self, op: u64, index: usize, data: Option<Sector>, route: Route) {
        self.cached.put(index, data.clone());
        if self.volatile {
            return;
        }
        let place = match route {
            Route::Straight => index,
            Route::To(other) => other,
            Route::Nowhere => return,
        };
        let versions = self.pending.entry(place).or_default();
        if versions.len() >= VERSIONS_MAX {
            versions.remove(VERSIONS_MAX / 2);
        }
        versions.push(Version { op, data });
    }

    /// Writes `buf` at `offset`, sector by sector; `route` says where each goes.
    pub(crate) fn write(&mut self, op: u64, buf: &[u8], offset: u64, mut route: impl FnMut(usize) -> Route) {
        let (mut rest, mut at) = (buf, to_usize(offset));
        while !rest.is_empty() {
            let (index, skip) = (at / SECTOR, at % SECTOR);
            let (from, behind) = rest.split_at((SECTOR - skip).min(rest.len()));
            let mut bytes = self.cached.bytes(index);
            if let Some(to) = bytes.get_mut(skip..skip + from.len()) {
                to.copy_from_slice(from);
            }
            self.store(op, index, Some(sector(bytes)), route(index));
            (at, rest) = (at + from.len(), behind);
        }
        let end = offset + buf.len() as u64;
        if end > self.cached.len() {
            self.set_cached_len(op, end);
        }
    }

    /// Sets the length as programs see it; bytes that a truncation cut off read as zeros
    /// afterwards.
    pub(crate) fn set_len(&mut self, op: u64, len: u64) {
        let old = self.cached.clone();
        self.set_cached_len(op, len);
        if self.volatile || len >= old.len() {
            return;
        }
        // A sector that the length ends with, and not in, stays as it is.
        for index in to_usize(len) / SECTOR..sectors_in(old.len()) {
            if old.get(index).is_some() {
                let data = self.cached.get(index).cloned();
                self.store(op, index, data, Route::Straight);
            }
        }
    }

    fn set_cached_len(&mut self, op: u64, len: u64) {
        self.cached.set_len(len);
        if !self.volatile {
            self.lengths.push((op, len));
        }
    }

    /// Makes durable what operations up to `op` left.
    pub(crate) fn sync(&mut self, op: u64) {
        let mut pending = std::mem::take(&mut self.pending);
        pending.retain(|&index, versions| {
            let done = versions.partition_point(|v| v.op <= op);
            if let Some(last) = versions.drain(..done).next_back() {
                self.durable.put(index, last.data);
            }
            !versions.is_empty()
        });
        self.pending = pending;
        let done = self.lengths.partition_point(|&(o, _)| o <= op);
        if let Some((_, len)) = self.lengths.drain(..done).next_back() {
            self.durable.set_len(len);
        }
    }

    /// Makes durable what operation `op` left and nothing else: a write that syncs itself.
    pub(crate) fn sync_own(&mut self, op: u64) {
        let durable = &mut self.durable;
        self.pending.retain(|&index, versions| {
            let own = versions.pop_if(|v| v.op == op);
            if let Some(own) = own {
                durable.put(index, own.data);
                // What was written to the sector before cannot come back.
                versions.clear();
            }
            !versions.is_empty()
        });
        if let Some((_, len)) = self.lengths.drain(..).next_back() {
            self.durable.set_len(len);
        }
    }

    /// A sync that fails: of what is pending each sector becomes durable or not as `kept` says, and
    /// all of it is clean from now on, so that no later sync writes it.
    pub(crate) fn fail_sync(&mut self, mut kept: impl FnMut() -> bool) {
        for (index, mut versions) in std::mem::take(&mut self.pending) {
            if let Some(last) = versions.pop()
                && kept()
            {
                self.durable.put(index, last.data);
            }
        }
        let last = self.lengths.last().map(|&(_, len)| len);
        self.lengths.clear();
        if let Some(len) = last
            && kept()
        {
            self.durable.set_len(len);
        }
    }

    /// Space that the file takes, in bytes.
    pub(crate) fn space(&self) -> u64 {
        let promised = self.promised.0.iter().cloned().flatten();
        let holes = promised.filter(|&index| self.cached.get(index).is_none());
        (self.cached.filled + holes.count()) as u64 * SECTOR as u64
    }
}

/// Sectors that room was promised for: ranges in their order, which do not touch.
#[derive(Debug, Clone, Default)]
pub(crate) struct Promised(Vec<Range<usize>>);

impl Promised {
    /// Promises room for `len` bytes from `offset` on.
    pub(crate) fn add(&mut self, offset: u64, len: u64) {
        let mut new = to_usize(offset) / SECTOR..sectors_in(offset.saturating_add(len));
        self.0.retain(|old| {
            let apart = old.end < new.start || new.end < old.start;
            if !apart {
                new = new.start.min(old.start)..new.end.max(old.end);
            }
            apart
        });
        let at = self.0.partition_point(|old| old.start < new.start);
        self.0.insert(at, new);
    }

    /// Takes back what lies beyond `len` bytes.
    pub(crate) fn cut(&mut self, len: u64) {
        let end = sectors_in(len);
        self.0.iter_mut().for_each(|range| range.end = range.end.min(end));
        self.0.retain(|range| range.start < range.end);
    }
}

/// Number of sectors that `len` bytes touch.
pub(crate) fn sectors_in(len: u64) -> usize {
    to_usize(len.div_ceil(SECTOR as u64))
}

/// Offsets of simulated files fit into memory, since the files do.
pub(crate) fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn straight(_: usize) -> Route {
        Route::Straight
    }

    #[test]
    fn unaligned_writes_are_read_back_and_cuts_zero_the_tail() {
        let mut file = FileData::default();
        file.write(1, &[7; 1_000], 100, straight);
        let mut buf = [9; 1_200];
        assert_eq!(file.cached.read(&mut buf, 0), 1_100);
        assert!(buf[..100].iter().all(|&b| b == 0));
        assert!(buf[100..1_100].iter().all(|&b| b == 7));
        file.set_len(2, 600);
        file.set_len(3, 1_100);
        assert_eq!(file.cached.read(&mut buf, 0), 1_100);
        assert!(buf[100..600].iter().all(|&b| b == 7));
        assert!(buf[600..1_100].iter().all(|&b| b == 0));
    }

    #[test]
    fn a_sync_covers_what_came_before_it_and_no_more() {
        let mut file = FileData::default();
        file.write(1, &[1; SECTOR], 0, straight);
        file.write(2, &[2; SECTOR], 0, straight);
        file.write(5, &[5; SECTOR], 0, straight);
        file.sync(3);
        assert_eq!(file.durable.bytes(0), [2; SECTOR]);
        assert_eq!(file.pending[&0].len(), 1);
        file.sync(9);
        assert_eq!(file.durable.bytes(0), [5; SECTOR]);
        assert!(file.pending.is_empty());
    }

    #[test]
    fn promised_room_is_counted_once_and_goes_with_a_truncation() {
        let mut file = FileData::default();
        let sectors = |file: &FileData| file.space() / SECTOR as u64;
        let unit = SECTOR as u64;
        file.promised.add(4 * unit, 2 * unit);
        file.promised.add(10 * unit, 1);
        assert_eq!(sectors(&file), 3);
        file.promised.add(5 * unit, 5 * unit);
        assert_eq!(sectors(&file), 7);
        file.write(1, &[1; 2 * SECTOR], 3 * unit, straight);
        assert_eq!(sectors(&file), 8);
        file.promised.cut(8 * unit);
        assert_eq!(sectors(&file), 5);
        file.set_len(2, 0);
        file.promised.cut(0);
        assert_eq!(sectors(&file), 0);
    }

    #[test]
    fn after_a_failed_sync_the_pages_are_clean() {
        let mut file = FileData::default();
        file.write(1, &[1; 2 * SECTOR], 0, straight);
        let mut first = true;
        file.fail_sync(|| std::mem::take(&mut first));
        file.sync(9);
        assert_eq!(file.durable.bytes(0), [1; SECTOR]);
        assert_eq!(file.durable.bytes(1), [0; SECTOR]);
        assert_eq!(file.cached.bytes(1), [1; SECTOR], "programs go on to read it");
    }
}
