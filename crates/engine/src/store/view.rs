//! A view is what a read searches: a family's memtables and one version of its tables, at one
//! moment.
//!
//! # Why a read sees exactly the commits below its boundary
//!
//! A family's current [`View`] is replaced as a whole: by a rotation (a new active memtable), by a
//! flush (a version with its table replaces the oldest sealed memtable) and by a compaction
//! (another version of the same entries). A read loads the view, then its boundary `V`, then the
//! view again, and starts over if that is another one.
//!
//! *Nothing below `V` is missing.* A commit below `V` is in the memtable that its LSN belongs to. A
//! rotation at `R` publishes the new memtable before any commit above `R` may be applied to the
//! family, so if one of them lies below `V`, the view was replaced before `V` was read and the
//! second load sees that. A flush replaces a memtable by a table with the same entries in one step.
//!
//! *Nothing is hidden.* A table holds only the newest version of each key in its memtable. The
//! memtable ends at `R`, and it is flushed only when both the visible and the durable boundary are
//! past `R`; so every read that finds the table in its view has a `V` above all of the table's
//! entries, also one at the durable boundary, which a failed log does not move any more
//! (`read_point.rs`). A snapshot keeps the views that it was taken with, old memtables and old
//! tables alike.
//!
//! A snapshot does the same with the views of all families ([`AllViews`]): a family's view is replaced
//! there in the same step, before any commit above a rotation's `R` may be applied.
//!
//! A large commit brings memtables of its own, one for each of its families. Each is linked as a
//! rotation at the commit's LSN `L` would be: what is below `L` is sealed, the commit's memtable
//! follows as a sealed one, and a new active one begins at the commit's end. All of it is in the
//! views before the visible boundary passes `L`, so the argument is that of a rotation.
//!
//! So `V` decides only among memtable entries, tables never need old versions, and compaction may
//! drop all that is shadowed.

use std::sync::Arc;

use arc_swap::ArcSwap;
use collie_log::Lsn;
use parking_lot::Mutex;
use rpds::HashTrieMapSync;

use crate::FamilyOptions;
use crate::events::FlushCause;
use crate::memtable::{At, Mem};
use crate::tables::Pinned;

/// What a memtable takes beside its entries, about: the rest of its first chunk, a leaf, a directory.
const MEM_LEAST: u64 = 8 << 10;

/// A memtable that no later commit belongs to.
#[derive(Clone)]
pub(crate) struct Sealed {
    pub(crate) mem: Arc<Mem>,
    /// The rotation's LSN `R`: commits in the memtable start below it. For a large commit's own
    /// memtable its end, where the next frame starts, or the log ends.
    pub(crate) until: Lsn,
    /// The end of the rotation's frame: once the log is durable up to here, recovery finds a frame
    /// at `R`.
    pub(crate) until_end: Lsn,
    pub(crate) cause: FlushCause,
}

/// What a read of a family searches, at one moment.
pub(crate) struct View {
    pub(crate) active: Arc<Mem>,
    /// From the oldest to the newest.
    pub(crate) sealed: Vec<Sealed>,
    pub(crate) tables: Arc<Pinned>,
}

impl View {
    /// This view with the active memtable sealed at `at` and replaced by `mem`.
    pub(crate) fn sealed_at(&self, at: At, cause: FlushCause, mem: Mem) -> Self {
        let mut sealed = self.sealed.clone();
        sealed.push(Sealed {
            mem: Arc::clone(&self.active),
            until: at.start,
            until_end: at.end,
            cause,
        });
        Self {
            active: Arc::new(mem),
            sealed,
            tables: Arc::clone(&self.tables),
        }
    }

    /// This view with a large commit's own memtable: what was committed before is sealed at the
    /// commit's start, and `mem` begins at its end.
    pub(crate) fn with_commit(&self, at: At, commit: Mem, mem: Mem) -> Self {
        let mut view = self.sealed_at(at, FlushCause::LargeCommit, mem);
        view.sealed.push(Sealed {
            mem: Arc::new(commit),
            until: at.end,
            until_end: at.end,
            cause: FlushCause::LargeCommit,
        });
        view
    }

    /// Memtables that count for write stalls: all but those of large commits, which have limits of
    /// their own. Those that were sealed for a large commit before they were full count together, as
    /// many as their bytes fill.
    pub(crate) fn buffers(&self, options: &FamilyOptions) -> usize {
        let full = options.write_buffer_bytes.max(1);
        let (mut whole, mut early) = (0, 0);
        for sealed in self.sealed.iter().filter(|sealed| !sealed.mem.is_of_commit()) {
            match sealed.cause {
                FlushCause::LargeCommit => early += sealed.mem.bytes().min(full),
                _ => whole += 1,
            }
        }
        1 + whole + early.div_ceil(full) as usize
    }

    /// The memtables of large commits that wait to be flushed.
    fn large(&self) -> impl Iterator<Item = &Mem> {
        let mems = self.sealed.iter().map(|sealed| &*sealed.mem);
        mems.filter(|mem| mem.is_of_commit())
    }

    /// What they take, in bytes.
    pub(crate) fn large_bytes(&self) -> u64 {
        self.large().map(|mem| mem.bytes() + MEM_LEAST).sum()
    }

    /// What the sealed memtables take that count with others of the store, in bytes.
    pub(crate) fn sealed_bytes(&self) -> u64 {
        let sealed = self.sealed.iter().map(|sealed| &sealed.mem);
        sealed
            .filter(|mem| !mem.is_of_commit())
            .map(|mem| mem.bytes())
            .sum()
    }

    /// Whether they are as many as a family may have, or take as much as one of its memtables.
    pub(crate) fn is_full_of_large(&self, options: &FamilyOptions) -> bool {
        self.large().count() >= options.max_write_buffers || self.large_bytes() >= options.write_buffer_bytes
    }

    /// The memtable that a commit at `start` belongs to. The commit is not yet applied, so the
    /// visible boundary is not past it, so its memtable cannot have been flushed.
    pub(crate) fn mem_for(&self, start: Lsn) -> &Mem {
        if start >= self.active.from() {
            return &self.active;
        }
        let sealed = self.sealed.iter().rev().find(|sealed| start >= sealed.mem.from());
        // Another memtable would hide the commit from recovery and from older reads.
        assert!(sealed.is_some(), "the memtable for the commit at {start} is gone");
        sealed.map_or(&self.active, |sealed| &sealed.mem)
    }

    /// Memtables from the newest to the oldest.
    pub(crate) fn mems(&self) -> impl Iterator<Item = &Arc<Mem>> {
        std::iter::once(&self.active).chain(self.sealed.iter().rev().map(|sealed| &sealed.mem))
    }
}

/// Families by id, with what reads of them see. Persistent: a changed one shares all but a few
/// nodes with the one before.
pub(crate) type Views = HashTrieMapSync<u32, Arc<View>>;

/// The views of the families that reads find, which a snapshot takes with one load, however many
/// they are.
#[derive(Default)]
pub(crate) struct AllViews {
    current: ArcSwap<Views>,
    /// Held while a view is replaced.
    edit: Mutex<()>,
}

impl AllViews {
    pub(crate) fn load(&self) -> Arc<Views> {
        self.current.load_full()
    }

    /// Adds a family that reads find from now on.
    pub(super) fn add(&self, id: u32, view: Arc<View>) {
        let _edit = self.edit.lock();
        let views = self.current.load();
        self.current.store(Arc::new(views.insert(id, view)));
    }

    /// Replaces a family's view, if reads find the family.
    pub(super) fn replace(&self, id: u32, view: Arc<View>) {
        let _edit = self.edit.lock();
        let views = self.current.load();
        if views.contains_key(&id) {
            self.current.store(Arc::new(views.insert(id, view)));
        }
    }

    pub(super) fn remove(&self, id: u32) {
        let _edit = self.edit.lock();
        let views = self.current.load();
        self.current.store(Arc::new(views.remove(&id)));
    }
}
