//! The shadow file: slots of one page each, and which of them are free.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use collie_io::{Device, File, OpenMode, read_exact_at, write_all_at};
use parking_lot::Mutex;

use super::dirty_ranges::DirtyRanges;
use super::group_sync::GroupSync;
use super::map::REMEDY;
use super::record::Slot;
use crate::FrontError;

/// The shadow file begins with this many bytes that are left free.
pub(crate) const HEADER: u64 = 4096;

/// Takes room from `from` on, and writes zeros there: the first write to room that was only
/// allocated changes the file's metadata, which makes the sync after it slower.
fn take_room(file: &dyn File, from: u64, len: u64) -> io::Result<()> {
    match file.allocate(len) {
        // The zeros take it.
        Err(e) if e.kind() == io::ErrorKind::Unsupported => {}
        allocated => allocated?,
    }
    const PIECE: u64 = 1 << 20;
    let zeros = vec![0; PIECE.min(len - from) as usize];
    let mut at = from;
    while at < len {
        let (piece, _) = zeros.split_at(PIECE.min(len - at) as usize);
        write_all_at(file, piece, at)?;
        at += piece.len() as u64;
    }
    Ok(())
}

/// The slots that are free.
#[derive(Debug)]
struct Free {
    slots: BTreeSet<u32>,
    /// The slot after the one that was taken last.
    next: u32,
}

impl Free {
    /// Takes the next one in the order of the file: pages that are written one after the other, as a
    /// checkpoint writes them, lie one after the other, and are read so.
    fn take(&mut self) -> Option<Slot> {
        let next = self.slots.range(self.next..).next();
        let slot = *next.or_else(|| self.slots.first())?;
        self.slots.remove(&slot);
        self.next = slot + 1;
        Some(Slot(slot))
    }
}

/// The open shadow file.
#[derive(Debug)]
pub(crate) struct Shadow {
    path: PathBuf,
    file: Arc<dyn File>,
    page_bytes: u32,
    slots: u32,
    free: Mutex<Free>,
    /// How often slots were given back.
    given_back: AtomicU64,
    syncs: GroupSync,
    written: DirtyRanges,
}

impl Shadow {
    /// Bytes of a shadow file with so many slots.
    pub(crate) fn bytes(page_bytes: u32, slots: u32) -> u64 {
        HEADER + u64::from(slots) * u64::from(page_bytes)
    }

    /// Bytes of the shadow file that is there, none where there is none.
    pub(crate) fn len(device: &dyn Device, path: &Path) -> Result<u64, FrontError> {
        match device.stat(path) {
            Ok(stat) => Ok(stat.len),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(e) => Err(FrontError::io("stat", path)(e)),
        }
    }

    /// Opens the file, and takes its room on the device. All slots are free. Refused where it does
    /// not reach to the end of slot `last`, which has a page.
    pub(crate) fn open(
        device: &dyn Device,
        path: &Path,
        page_bytes: u32,
        slots: u32,
        last: Option<Slot>,
    ) -> Result<Shadow, FrontError> {
        let file = device
            .open(path, OpenMode::OpenOrCreate)
            .map_err(FrontError::io("open", path))?;
        let len = Shadow::bytes(page_bytes, slots);
        let has = file.stat().map_err(FrontError::io("stat", path))?.len;
        let used = last.map_or(0, |last| HEADER + (u64::from(last.0) + 1) * u64::from(page_bytes));
        if has < used {
            return Err(FrontError::Corrupt {
                path: path.to_owned(),
                expected: format!("at least {used} bytes, with the displaced pages of the map; {REMEDY}"),
                found: format!("{has} bytes"),
            });
        }
        if has < len {
            take_room(&*file, has, len).map_err(|error| {
                // What was taken of it is of use to others. Where this fails it is taken the next time.
                let _ = file.set_len(has);
                FrontError::io("take room for", path)(error)
            })?;
            file.sync_data().map_err(FrontError::io("sync", path))?;
            // These zeros are not read.
            file.wont_need(has, len - has);
        }
        Ok(Shadow {
            path: path.to_owned(),
            file,
            page_bytes,
            slots,
            free: Mutex::new(Free {
                slots: (0..slots).collect(),
                next: 0,
            }),
            given_back: AtomicU64::new(0),
            syncs: GroupSync::default(),
            written: DirtyRanges::default(),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    /// Leaves free what `is_used` is false of. For recovery.
    pub(crate) fn keep(&self, is_used: impl Fn(Slot) -> bool) {
        self.free.lock().slots.retain(|slot| !is_used(Slot(*slot)));
    }

    pub(crate) fn take(&self) -> Option<Slot> {
        self.free.lock().take()
    }

    /// Gives slots back. No committed page, no commit under way and no record that is not durable
    /// yet may refer to them.
    pub(crate) fn give_back(&self, slots: impl IntoIterator<Item = Slot>) {
        let mut free = self.free.lock();
        let before = free.slots.len();
        for slot in slots {
            let is_new = free.slots.insert(slot.0);
            debug_assert!(is_new, "{slot:?} was free already");
        }
        if free.slots.len() > before {
            // Relaxed: it is compared with itself, by one who then takes the lock.
            self.given_back.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often slots were given back.
    pub(crate) fn given_back(&self) -> u64 {
        self.given_back.load(Ordering::Relaxed)
    }

    /// How many slots are free.
    pub(crate) fn free(&self) -> u32 {
        // Never more than there are.
        self.free.lock().slots.len() as u32
    }

    fn offset(&self, slot: Slot) -> u64 {
        HEADER + u64::from(slot.0) * u64::from(self.page_bytes)
    }

    /// Reads from a page in a slot, from its byte `from` on.
    pub(crate) fn read(&self, slot: Slot, from: u32, buf: &mut [u8]) -> Result<(), FrontError> {
        read_exact_at(&*self.file, buf, self.offset(slot) + u64::from(from))
            .map_err(FrontError::io("read from", &self.path))
    }

    /// Has the device begin to read so many slots.
    pub(crate) fn will_need(&self, first: Slot, slots: usize) {
        let len = slots as u64 * u64::from(self.page_bytes);
        self.file.will_need(self.offset(first), len);
    }

    /// Writes into a page in a slot, from its byte `from` on.
    pub(crate) fn write(&self, slot: Slot, from: u32, bytes: &[u8]) -> Result<(), FrontError> {
        let at = self.offset(slot) + u64::from(from);
        write_all_at(&*self.file, bytes, at).map_err(FrontError::io("write to", &self.path))?;
        self.written.add(at, bytes.len());
        Ok(())
    }

    /// Writes out about `limit` bytes of what was written, unless a sync does. Returns how many
    /// there were. A failure is as final as a sync's.
    pub(crate) fn write_out(&self, limit: u64) -> Result<u64, FrontError> {
        if self.syncs.is_running() {
            return Ok(0);
        }
        let done = self.written.write_out(&*self.file, limit);
        let ranges = done.map_err(FrontError::io("write out", &self.path))?;
        Ok(ranges.iter().map(|(_, len)| len).sum())
    }

    /// Makes durable what was written before the call. A failure is final.
    pub(crate) fn sync(&self) -> Result<(), FrontError> {
        self.syncs
            .sync(|| self.file.sync_data().map_err(FrontError::io("sync", &self.path)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_taken_in_the_order_of_the_file() {
        let mut free = Free {
            slots: (0..8).collect(),
            next: 0,
        };
        let take = |free: &mut Free, count| -> Vec<u32> {
            (0..count).map_while(|_| free.take()).map(|slot| slot.0).collect()
        };
        assert_eq!(take(&mut free, 5), [0, 1, 2, 3, 4]);
        free.slots.extend([1, 3]);
        assert_eq!(take(&mut free, 9), [5, 6, 7, 1, 3]);
        free.slots.insert(4);
        assert_eq!(take(&mut free, 9), [4]);
    }
}
