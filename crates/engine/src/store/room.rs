//! Whether the device has room for writes that bring data, and when more is looked for; work that
//! makes room, and may use what is kept back.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use collie_io::Nanos;

use crate::store::Store;
use crate::store::reserve::StoreReserve;
use crate::{Error, Result};

/// How long after the first removal room is looked for: others come with it.
const AFTER_REMOVAL: Duration = Duration::from_millis(100);
/// A look at what was removed, on a device that is nearly full, is made no sooner than after so many
/// times what the last one took.
const LOOKS_APART: u64 = 16;
/// How long after an attempt that did not make enough: this, twice that, and so on up to the last.
const AGAIN_FIRST: Duration = Duration::from_millis(100);
const AGAIN_DOUBLED: u32 = 5;
/// In so many attempts in a row a merge is waited for that is to make room: some seconds. After that
/// writes go on beside it, as far as there is room.
const MERGE_AWAITED: u32 = 6;
/// So much has to be available, in bytes, for the device to count as not full: the log takes room in
/// steps of half of it.
const AVAILABLE_LEAST: u64 = 4 << 20;

/// The room on the device: what is kept back of it, and whether more is looked for.
pub(super) struct RoomWatch {
    pub(super) reserve: StoreReserve,
    /// A write was refused for want of room, or the reserve is missing, and the flush thread has not
    /// found since that there is room.
    short: AtomicBool,
    /// Since the flush thread last looked: data was removed, a write was refused, one that brings
    /// data was taken.
    removed: AtomicBool,
    refused: AtomicBool,
    taken: AtomicBool,
    /// Attempts in a row that did not make enough room.
    attempts: AtomicU32,
    /// When the next look may be made at what was removed, unless room is short.
    look_again: AtomicU64,
}

impl RoomWatch {
    pub(super) fn new(reserve: StoreReserve) -> Self {
        Self {
            reserve,
            short: AtomicBool::new(false),
            // What an opening replays may have been.
            removed: AtomicBool::new(true),
            refused: AtomicBool::new(false),
            taken: AtomicBool::new(false),
            attempts: AtomicU32::new(0),
            look_again: AtomicU64::new(0),
        }
    }
}

impl Store {
    /// Whether room is being looked for.
    pub(crate) fn is_short_of_room(&self) -> bool {
        // Relaxed, as all accesses: what is decided by it is only done earlier or later.
        self.room.short.load(Ordering::Relaxed) || self.room.reserve.is_missing()
    }

    /// A write was refused for want of room: the flush thread is to make some.
    pub(crate) fn request_room(&self) {
        self.room.refused.store(true, Ordering::Relaxed);
        // Of several threads one sets the flag, and the flush thread goes on until it is cleared.
        if !self.room.short.swap(true, Ordering::Relaxed) {
            self.room.attempts.store(0, Ordering::Relaxed);
            self.queue.make_room_after(Duration::ZERO);
        }
    }

    /// Looks for room where the reserve is missing.
    pub(crate) fn watch_room(&self) {
        if self.room.reserve.is_missing() {
            self.request_room();
        }
    }

    /// Looks for room in a store that was just opened on a device with less than the reserve besides:
    /// what was removed is to make room before writes replace the tombstones.
    pub(crate) fn watch_room_at_open(&self) {
        if self.room.reserve.is_missing() || self.available() < self.room.reserve.bytes() {
            self.request_room();
        }
    }

    /// A commit removed data. Where room is being looked for, this may make some; else it does when
    /// it is.
    pub(crate) fn note_removal(&self) {
        // Looked at first to keep the cache line shared.
        if self.room.removed.load(Ordering::Relaxed) || self.room.removed.swap(true, Ordering::Relaxed) {
            return;
        }
        // Of removals in a row one looks. A device that is nearly full is to have room before writes
        // replace the tombstones, also where the log still has some and none was refused.
        let mut pause = AFTER_REMOVAL;
        if self.is_short_of_room() {
            self.room.short.store(true, Ordering::Relaxed);
        } else if self.available() < self.room.reserve.bytes() {
            let again = self.room.look_again.load(Ordering::Relaxed);
            pause = pause.max(Duration::from_nanos(again.saturating_sub(self.now())));
        } else {
            return;
        }
        self.room.attempts.store(0, Ordering::Relaxed);
        self.queue.make_room_after(pause);
    }

    /// A commit brought data.
    pub(crate) fn note_taken(&self) {
        if self.room.short.load(Ordering::Relaxed) {
            self.room.taken.store(true, Ordering::Relaxed);
        }
    }

    /// A look at what was removed took so long.
    pub(crate) fn note_looked(&self, took: Nanos) {
        let again = self.now() + LOOKS_APART * took;
        self.room.look_again.store(again, Ordering::Relaxed);
    }

    /// Whether data was removed since the last call.
    pub(crate) fn take_removed(&self) -> bool {
        self.room.removed.swap(false, Ordering::Relaxed)
    }

    /// The flush thread made an attempt to make room: looks whether there is some, or has it make
    /// another attempt. A merge that is to make some finds the device as it is now: writes that bring
    /// data wait for it.
    pub(crate) fn note_attempt(&self, is_merging: bool) {
        let attempts = self.room.attempts.fetch_add(1, Ordering::Relaxed);
        self.room
            .reserve
            .await_merge(is_merging && attempts < MERGE_AWAITED);
        self.room.reserve.fill(Some(self.sequencer()));
        if !self.is_short_of_room() {
            return;
        }
        let since = |flag: &AtomicBool| flag.swap(false, Ordering::Relaxed);
        let (refused, taken) = (since(&self.room.refused), since(&self.room.taken));
        // A write that is larger than what is available is refused again.
        let has_room = || taken || self.available() >= AVAILABLE_LEAST;
        let is_complete = !self.room.reserve.is_missing() && self.sequencer().setback().is_none();
        if !is_merging && !refused && is_complete && has_room() {
            self.room.short.store(false, Ordering::Relaxed);
            return;
        }
        let pause = AGAIN_FIRST * (1 << attempts.min(AGAIN_DOUBLED));
        self.queue.make_room_after(pause);
    }

    /// A merge that was to make room has ended, or was none: another attempt is made.
    pub(crate) fn note_merge_for_room(&self) {
        self.room.reserve.await_merge(false);
        self.queue.make_room_after(Duration::ZERO);
    }

    /// What is available on the store's device. One that does not say is taken to have room.
    pub(crate) fn available(&self) -> u64 {
        let room = self.device().statfs(&self.path);
        room.map_or(u64::MAX, |room| room.available.saturating_mul(room.block_size))
    }

    /// The size of the reserve, and whether it is complete.
    pub(crate) fn reserve_status(&self) -> (u64, bool) {
        (self.room.reserve.bytes(), !self.room.reserve.is_missing())
    }

    /// How much of the reserve is there, in bytes.
    pub(crate) fn reserve_held(&self) -> u64 {
        self.room.reserve.held()
    }

    /// Why writes that bring data may be refused for want of room, while more is looked for.
    pub(crate) fn no_room(&self) -> Option<Error> {
        match self.room.reserve.is_missing() {
            true => Some(self.room.reserve.lack()),
            false if self.is_short_of_room() => {
                Some(self.sequencer().setback().unwrap_or(Error::StorageFull {
                    needed: "for the log".to_owned(),
                    path: self.path.clone(),
                }))
            }
            false => None,
        }
    }

    /// Does a commit that removes data, in the reserve's room where the log has none for it.
    pub(crate) fn relieve_commit<T>(&self, mut commit: impl FnMut() -> Result<T>) -> Result<T> {
        match self.room.reserve.serves_log() {
            true => self.relieve(commit),
            false => commit(),
        }
    }

    /// Does work that makes room, once more with the reserve's room where the device is full.
    /// [`Store::fill_reserve`] is to follow.
    pub(crate) fn relieve<T>(&self, work: impl FnMut() -> Result<T>) -> Result<T> {
        self.room.reserve.relieve(Some(self.sequencer()), work)
    }

    /// Does a flush, which may have the reserve's room where the device is full. From a reserve of several
    /// stores it gets some only if it `makes_room`: what others remove is to have it, too.
    pub(crate) fn relieve_flush<T>(
        &self,
        mut work: impl FnMut() -> Result<T>,
        makes_room: impl FnOnce() -> bool,
    ) -> Result<T> {
        if !self.room.reserve.is_of_disk() {
            return self.relieve(work);
        }
        match work() {
            Err(crate::Error::StorageFull { .. }) if makes_room() => self.in_reserve(work),
            done => done,
        }
    }

    /// Does work that makes room in the reserve's room from the beginning; as [`Store::relieve`].
    pub(crate) fn in_reserve<T>(&self, work: impl FnOnce() -> T) -> T {
        self.room.reserve.in_its_room(Some(self.sequencer()), work)
    }

    /// Takes the room back that the reserve gave up, as far as the device has it.
    pub(crate) fn fill_reserve(&self) {
        self.room.reserve.fill(Some(self.sequencer()));
        self.watch_room();
    }
}
