//! A family's tables: `lsm-tree`, used without its memtable and without its version history.
//!
//! Rules, each from reading or trying version 3.1.10 (the dependency is pinned to it):
//!
//! * Its memtable stays empty. Memtables are ours; a flush hands over a sorted stream.
//! * Reads go through [`Pinned`], which holds one version of the tree. The tree's own lookups find
//!   a version by sequence number under a lock that is write-held for as long as a manifest write
//!   or the end of a compaction takes (0.5 to 14 ms), and panic when the version is forgotten; a
//!   pinned version needs neither lock nor history, so the history is forgotten at once
//!   (`KEEP_NONE`).
//! * What makes that right: all entries of a pinned version lie below every LSN at which the view
//!   that pins it is read (see `view.rs`). So a table holds only each key's newest version,
//!   compaction may drop all that is shadowed, and snapshots set no watermark.
//! * An entry keeps its LSN (`zero_seqnos` is off). A compaction into the last level drops every
//!   tombstone that hides no older entry, whatever the watermark: see `transaction/registry.rs`.
//! * Each tree has counters of its own; its sequence numbers order its versions and nothing else.
//! * It does not check its manifest's checksum: [`verify`] does, before the tree is opened.
//!
//! # Workarounds for lsm-tree 3.1.10
//!
//! What the table library does, and *what `tables` in collie-db does about it*.
//!
//! * The checksum in `current` is never compared: *compared before opening*.
//! * A table file's end is trusted (one bit: 85 GB allocated), its checksum never compared; anything
//!   but files in `tables` panics: *compared before opening (decision 35)*.
//! * Read errors do not name the file: *found by reading*.
//! * Opening removes tables that `current` does not name: *`Home`, only under the store's lock*.
//! * Opening without `current` makes an empty tree: *refused if in the manifest*.
//! * A replaced table removes its file by name, late: *locked while a version is pinned*.
//! * 256 runs in a level lose tables: *merged at 200; larger `level0_stop` refused*.
//! * A failed flush leaves its tables: *removed*.
//! * After a failed `persist_version` or directory sync the next one fills the same `vN`: *removed
//!   first, else no writes until reopened*.
//! * Locks are released before a failure is known: *flushes and compactions take our lock first*.
//! * Recovery removes all other versions, even after a failed sync of `current`: *`current` replaced
//!   and synced again first*.
//! * A version below all sequence numbers, or bounds above 65,535 bytes, panic: *pinned; cut*.
//! * Compaction goes by sizes: tombstones miss what they hide: *whole families merged
//!   (decision 33)*.
//! * An empty level between others fails a debug assertion: *closed before (`levels`)*.
//! * Dropped trees stay in the cache of open files: *the family's last user removes them*.
//! * A running compaction cannot be stopped: *a filter that fails at close*.

mod compaction;
mod current;
mod hidden;
mod home;
pub(crate) mod link;
mod pace;
mod pinned;
mod verified;
mod version_lock;

use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use collie_io::Device;
use collie_log::Lsn;
use lsm_tree::compaction::{CompactionStrategy, Leveled, MoveDown};
use lsm_tree::config::{
    BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry,
};
use lsm_tree::{AbstractTree, AnyTree, CompressionType, Config, InternalValue, SequenceNumberCounter, Tree};

use crate::error::table::is_damage;
use crate::recovery::store_lock::StoreLock;
use crate::tables::compaction::DuringCompactions;
use crate::tables::current::{read_file, refuse_leftovers, verify};
use crate::tables::hidden::Hidden;
pub(crate) use crate::tables::hidden::Sampled;
pub(crate) use crate::tables::home::{
    DIRECTORY, Home, TableResult, TreeContext, TreeDir, directory_in, has_files,
};
use crate::tables::pace::Pace;
pub(crate) use crate::tables::pinned::{Pinned, TableIter};
use crate::tables::verified::{Verified, find_damaged, table_path};
use crate::tables::version_lock::{Orphans, Poisoned, VersionGuard, VersionLock};
use crate::{Compression, Error, FamilyOptions, Result};

/// The watermark that keeps no old version: readers of old versions pin them.
const KEEP_NONE: u64 = u64::MAX >> 1;

/// What is in all tables of a family.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Content {
    /// Rows and tombstones.
    pub(crate) entries: u64,
    pub(crate) tombstones: u64,
    pub(crate) bytes: u64,
    /// Of the bytes, those that tombstones hide, as estimated.
    pub(crate) hidden: u64,
    /// Of the others, those that later rows replace, at most.
    pub(crate) replaced: u64,
}

/// The tables of one family.
pub(crate) struct Tables {
    tree: Tree,
    strategy: Arc<Leveled>,
    table_bytes: u64,
    /// The highest sequence number in any table when it was opened.
    highest: Lsn,
    orphans: Orphans,
    version_lock: Arc<VersionLock>,
    pace: Arc<Pace>,
    verified: Verified,
    /// The table file that is damaged, once a merge has met it.
    damaged: OnceLock<Option<PathBuf>>,
    /// How many [`Unrecorded`] live.
    unrecorded: Arc<AtomicUsize>,
    /// The merge that runs, if one does, is of all tables.
    whole: Arc<AtomicBool>,
    hidden: Hidden,
    dir: Arc<TreeDir>,
}

impl Tables {
    /// Opens the tables of a family, or creates them where they are not `known`.
    pub(crate) fn open(home: &Home<'_>, id: u32, known: bool, options: &FamilyOptions) -> Result<Self> {
        let Home { lock, shared, .. } = home;
        let path = &*directory_in(lock.dir(), id);
        let version = match known {
            true => verify(path, home.device)?,
            false => refuse_leftovers(path, home.device).map(|()| None)?,
        };
        let verified = Verified::check(path, version.as_ref(), home.device)?;
        let compression = match options.compression {
            Compression::None => CompressionType::None,
            Compression::Lz4 => CompressionType::Lz4,
        };
        let filter = match options.bloom_bits {
            0 => FilterPolicyEntry::None,
            bits => FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(f32::from(bits))),
        };
        let version_lock = Arc::new(VersionLock::default());
        let pace = Arc::new(Pace::new(Arc::clone(&shared.scheduler), path.join("tables")));
        let (dropped, whole) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let during = DuringCompactions {
            dropped: Arc::clone(&dropped),
            stop: Arc::clone(&shared.stop),
            short: Arc::clone(&shared.short),
            whole: Arc::clone(&whole),
            version_lock: Arc::clone(&version_lock),
            pace: Arc::clone(&pace),
            journal: AssertUnwindSafe(shared.journal.clone()),
        };
        let counter = SequenceNumberCounter::new;
        let opened = Config::new(path, counter(1), counter(1))
            .use_cache(Arc::clone(&shared.cache))
            .use_descriptor_table(Some(Arc::clone(&shared.descriptors)))
            .data_block_compression_policy(CompressionPolicy::all(compression))
            .data_block_size_policy(BlockSizePolicy::all(options.block_bytes))
            .filter_policy(FilterPolicy::all(filter))
            .with_compaction_filter_factory(Some(Arc::new(during)))
            .open();
        let tree = opened.map_err(|error| {
            let tables = version.iter().flat_map(|version| &version.tables);
            let mut tables = tables.map(|(id, checksum)| (table_path(path, *id), *checksum));
            let damaged = is_damage(&error).then(|| find_damaged(&mut tables, home.device));
            Error::table("open", damaged.flatten().unwrap_or_else(|| path.into()), error)
        })?;
        let AnyTree::Standard(tree) = tree else {
            return Err(Error::Corrupt {
                path: path.into(),
                offset: 0,
                expected: "tables without blob files".into(),
                found: "tables with blob files".into(),
            });
        };
        pace.number_by(tree.0.table_id_counter.clone());
        let strategy = Leveled::default()
            .with_l0_threshold(options.level0_compaction)
            .with_table_target_size(options.table_bytes);
        let dir = TreeDir {
            path: path.into(),
            dropped,
            reclaim: home.reclaim.clone(),
            tree: tree.clone(),
            descriptors: Arc::clone(&shared.descriptors),
        };
        let version = tree.current_version();
        verified.note(version.id(), version.iter_tables(), home.device);
        drop(version);
        let highest = tree.get_highest_persisted_seqno().unwrap_or(0);
        // Not known until flushes have looked; no more than that, if rows are alike.
        let (rows, tombstones) = (tree.approximate_len() as u64, tree.tombstone_count());
        let of_each = tree.disk_space() / rows.saturating_sub(tombstones).max(1);
        let may_be_hidden = of_each.saturating_mul(tombstones);
        Ok(Self {
            highest,
            tree,
            strategy: Arc::new(strategy),
            table_bytes: options.table_bytes,
            orphans: Orphans::default(),
            version_lock,
            pace,
            verified,
            damaged: OnceLock::new(),
            unrecorded: Arc::default(),
            whole,
            hidden: Hidden::new(may_be_hidden),
            dir: Arc::new(dir),
        })
    }

    /// Pins the newest version until the result is dropped. Takes the tree's version lock: for
    /// background threads.
    pub(crate) fn pin(&self, lock: Option<StoreLock>) -> Pinned {
        Pinned::of(&self.tree, Arc::clone(&self.dir), lock)
    }

    /// To be called before tables are written, and kept until they are part of the tree or never
    /// will be.
    pub(crate) fn writing<'a>(&'a self, device: &'a dyn Device) -> Writing<'a> {
        self.orphans.begin(self.tree.next_table_id());
        Writing { tables: self, device }
    }

    /// Writes a memtable's entries, sorted and each key once, to new tables, durable but not yet
    /// part of the tree. May be tried again after an error: it always writes new files.
    pub(crate) fn write(&self, entries: impl Iterator<Item = InternalValue>) -> Result<WrittenTables> {
        let mut pieces = self.pace.pieces();
        let entries = entries.inspect(|entry| pieces.pass(entry.key.user_key.len() + entry.value.len()));
        let written = self
            .tree
            .flush_to_tables(entries.map(Ok))
            .map_err(|e| Error::table("write", &self.dir.path, e))?;
        Ok(WrittenTables(written.map_or_else(Vec::new, |(tables, _)| tables)))
    }

    /// Makes written tables part of the tree, durably.
    pub(crate) fn register(
        &self,
        written: &WrittenTables,
        writing: &Writing<'_>,
    ) -> Result<Unrecorded, Unwritten> {
        // Before the tree can show them to a compaction.
        let unrecorded = Unrecorded::new(&self.unrecorded);
        if written.0.is_empty() {
            return Ok(unrecorded);
        }
        let guard = self
            .version_lock
            .lock()
            .map_err(|poisoned| refused(poisoned, writing))?;
        let done = self.tree.register_tables(&written.0, None, None, &[], KEEP_NONE);
        done.map_err(|e| self.unwritten(Error::table("register", &self.dir.path, e), guard, writing))?;
        // Not taken from the newest version: a compaction may have replaced them by now.
        self.orphans.name(written.0.iter().map(lsm_tree::Table::id));
        self.note_verified(writing.device);
        Ok(unrecorded)
    }

    /// For a family without anything to register: all that its memtables had is in registered
    /// tables.
    pub(crate) fn nothing_registered(&self) -> Unrecorded {
        Unrecorded::new(&self.unrecorded)
    }

    /// Whether the tree has tables, or is about to have, that the manifest does not record.
    pub(crate) fn has_unrecorded(&self) -> bool {
        // Acquire pairs with the Release in `Unrecorded::new`. Some may be registered right after
        // this.
        self.unrecorded.load(Ordering::Acquire) > 0
    }

    /// Merges what the strategy finds most urgent, if anything. Does nothing, and returns `false`,
    /// while there are tables that the manifest does not record.
    pub(crate) fn compact(&self, writing: &Writing<'_>) -> Result<bool, Unwritten> {
        // Flushes change level 0 only, and no other compaction runs.
        let strategy: Arc<dyn CompactionStrategy> = match compaction::above_a_gap(&self.tree) {
            Some(level) => Arc::new(MoveDown(level, level + 1)),
            None => Arc::clone(&self.strategy) as _,
        };
        self.compact_by(writing, || self.tree.compact(strategy, KEEP_NONE))
    }

    /// Merges everything into the last level. Returns `false` as [`Tables::compact`]; else keeps what
    /// `begin` returns until it ends.
    pub(crate) fn compact_all<T>(
        &self,
        writing: &Writing<'_>,
        begin: impl FnOnce() -> T,
    ) -> Result<bool, Unwritten> {
        let found = self.hidden.sums();
        self.compact_by(writing, || {
            let _begun = begin();
            // Relaxed: read by this thread, when the merge begins.
            self.whole.store(true, Ordering::Relaxed);
            let merged = self.tree.major_compact(self.table_bytes, KEEP_NONE);
            self.whole.store(false, Ordering::Relaxed);
            merged
        })
        .inspect(|merged| {
            if *merged {
                self.hidden.merged(found);
            }
        })
    }

    /// One compaction runs at a time. None takes tables that the manifest does not record: after a
    /// crash the log, or an external journal, brings commits once more that such a table holds. What
    /// its tombstones hide must stay hidden until then, also where a delete was kept out of the log,
    /// and its highest sequence number says at the next opening up to where all is there.
    fn compact_by(
        &self,
        writing: &Writing<'_>,
        run: impl FnOnce() -> TableResult<()>,
    ) -> Result<bool, Unwritten> {
        self.version_lock
            .lock_for_compaction()
            .map_err(|poisoned| refused(poisoned, writing))?;
        // With the lock: a flush that registers tables waits for it, and these are not chosen.
        if self.has_unrecorded() {
            drop(self.version_lock.take_compaction_guard());
            return Ok(false);
        }
        // The compaction filter unwinds where no version may be written: all that the library
        // touched is dropped, or not used again.
        let done = panic::catch_unwind(AssertUnwindSafe(run));
        let guard = self.version_lock.take_compaction_guard();
        // The newest version names the tables that it wrote, if it succeeded.
        let version = self.tree.current_version();
        self.orphans.name(version.iter_tables().map(lsm_tree::Table::id));
        match done {
            Ok(Ok(())) => {
                self.note_verified(writing.device);
                Ok(true)
            }
            Ok(Err(error)) => {
                let error = self.naming_the_file("compact", error, writing.device);
                let guard = match guard {
                    Some(guard) => guard,
                    // It failed while it merged.
                    None => self
                        .version_lock
                        .lock()
                        .map_err(|poisoned| refused(poisoned, writing))?,
                };
                Err(self.unwritten(error, guard, writing))
            }
            Err(payload) => match payload.downcast::<Poisoned>() {
                Ok(poisoned) => Err(refused(*poisoned, writing)),
                Err(panic) => {
                    // The panic is caught here, so dropping the guard would not poison the lock.
                    if let Some(guard) = guard {
                        guard.poison(Poisoned::panicked().cause);
                    }
                    panic::resume_unwind(panic)
                }
            },
        }
    }

    /// A version of the tables is there. Of two that are noted at once the later one stays.
    fn note_verified(&self, device: &dyn Device) {
        let version = self.tree.current_version();
        self.verified.note(version.id(), version.iter_tables(), device);
    }

    /// An error of the table library, with the file's name where one is damaged. That is searched for
    /// once, in all tables.
    fn naming_the_file(&self, op: &'static str, error: lsm_tree::Error, device: &dyn Device) -> Error {
        let damaged = is_damage(&error).then(|| {
            let version = self.tree.current_version();
            let tables = version.iter_tables();
            let tables = tables.map(|table| (table.path.to_path_buf(), table.checksum().into_u128()));
            let find = || find_damaged(tables, device);
            self.damaged.get_or_init(find).clone()
        });
        let path = damaged.flatten().unwrap_or_else(|| self.dir.path.clone());
        Error::table(op, path, error)
    }

    /// Writing a version failed with `error`. Removes what is left of it, or poisons the lock, so
    /// that no other version is written.
    fn unwritten(&self, error: Error, guard: VersionGuard<'_>, writing: &Writing<'_>) -> Unwritten {
        let device = writing.device;
        if self.is_unchanged_on_disk(device) && self.remove_next_version(device).is_ok() {
            writing.failed();
            return Unwritten::MayBeRepeated(error);
        }
        guard.poison(error.to_string());
        writing.failed_in_doubt();
        Unwritten::NoneAfterIt(error)
    }

    /// The number of the version that is in force.
    pub(crate) fn version(&self) -> u64 {
        self.tree.current_version().id()
    }

    /// After a failure: whether the tree's manifest on disk is still that of the version in force.
    /// If not, the next version would be written over the one that it names.
    fn is_unchanged_on_disk(&self, device: &dyn Device) -> bool {
        match read_file(device, &self.dir.path.join("current")) {
            Ok(current) => current.get(..8) == Some(&self.version().to_le_bytes()),
            // On a simulated device, which the tables are not on.
            Err(Error::Io { source, .. }) => source.kind() == std::io::ErrorKind::NotFound,
            Err(_) => false,
        }
    }

    /// Removes the file of the next version, after a failure that left the tree's manifest on disk
    /// as it was and while the caller has the version lock. Where a sync of the directory failed,
    /// the name of that file may be lost for good. Another attempt would fill the same file, sync a
    /// directory in which nothing is new, and rely on it.
    fn remove_next_version(&self, device: &dyn Device) -> Result<()> {
        let path = self.dir.path.join(format!("v{}", self.version() + 1));
        match device.remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", path, e)),
            _ => Ok(()),
        }
    }

    /// The highest LSN in any table when they were opened; 0 where there is none.
    pub(crate) fn highest(&self) -> Lsn {
        self.highest
    }

    /// Whether what is written to tables goes to the device without waiting for its turn.
    pub(crate) fn set_urgent(&self, urgent: bool) {
        self.pace.set_urgent(urgent);
    }

    /// Runs in level 0, all of which a read has to search.
    pub(crate) fn level0_runs(&self) -> usize {
        self.tree.l0_run_count()
    }

    pub(crate) fn table_count(&self) -> usize {
        self.tree.table_count()
    }

    pub(crate) fn content(&self) -> Content {
        let mut content = Content::default();
        // Of one version.
        for table in self.tree.current_version().iter_tables() {
            content.entries += table.metadata.item_count;
            content.tombstones += table.tombstone_count();
            content.bytes += table.metadata.file_size;
        }
        content.hidden = self.hidden.estimate(content.tombstones).min(content.bytes);
        content.replaced = self.hidden.replaced().min(content.bytes - content.hidden);
        content
    }

    /// Of the bytes of all tables what tombstones hide at most, if rows are alike: for tables whose
    /// tombstones no flush of this opening has written.
    pub(crate) fn may_be_hidden(&self) -> u64 {
        let (rows, tombstones) = (self.tree.approximate_len() as u64, self.tree.tombstone_count());
        let of_each = self.tree.disk_space() / rows.saturating_sub(tombstones).max(1);
        of_each.saturating_mul(tombstones).min(self.tree.disk_space())
    }

    /// A merge that was to make room found less than there would be if so much was replaced.
    pub(crate) fn forget_replaced(&self) {
        self.hidden.forget_replaced();
    }

    /// These tables have what a flush has sampled.
    pub(crate) fn note_sampled(&self, sampled: &Sampled, written: &WrittenTables) {
        let bytes = written.0.iter().map(|table| table.metadata.file_size);
        self.hidden.keep(sampled, bytes.sum());
    }

    /// The last user of the directory, which may be a snapshot, removes it.
    pub(crate) fn remove_when_unused(&self) {
        // Relaxed: read in `drop`, which the reference count orders after this.
        self.dir.dropped.store(true, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn is_to_be_removed(&self) -> bool {
        self.dir.dropped.load(Ordering::Relaxed)
    }

    /// Nothing of this store removes the directory any more: the next opening does, if the manifest
    /// does not name it.
    pub(crate) fn leave_to_next_opening(&self) {
        // Relaxed, as above.
        self.dir.dropped.store(false, Ordering::Relaxed);
    }
}

/// A flush or a compaction that may create tables. When the last one ends, orphaned tables are
/// removed.
pub(crate) struct Writing<'a> {
    tables: &'a Tables,
    device: &'a dyn Device,
}

impl Writing<'_> {
    /// It failed, and may be tried again: the tree's manifest on disk names nothing that it wrote.
    pub(crate) fn failed(&self) {
        self.tables.orphans.failed();
    }

    /// It failed, and what the tree's manifest on disk names is not known.
    fn failed_in_doubt(&self) {
        self.tables.orphans.doubt();
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let tables = self.tables;
        let Some(unnamed) = tables.orphans.end(|| tables.tree.next_table_id()) else {
            return;
        };
        for number in &unnamed.numbers {
            let path = tables.dir.path.join("tables").join(number.to_string());
            match self.device.remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), %error, "an orphaned table stays until the next open");
                }
                _ => {}
            }
        }
    }
}

/// Lives while the tree has tables, or is about to have, that the manifest does not record.
pub(crate) struct Unrecorded(Arc<AtomicUsize>);

impl Unrecorded {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        // Release pairs with the Acquire in `has_unrecorded`.
        count.fetch_add(1, Ordering::Release);
        Self(Arc::clone(count))
    }
}

impl Drop for Unrecorded {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `has_unrecorded`: a thread that finds none left sees
        // that the manifest records them.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// A version of the tables that was not written.
pub(crate) enum Unwritten {
    /// Nothing on disk names it, and its file is removed.
    MayBeRepeated(Error),
    /// The tree's manifest on disk may name it: no version is written any more until the store is
    /// reopened.
    NoneAfterIt(Error),
}

fn refused(Poisoned { cause }: Poisoned, writing: &Writing<'_>) -> Unwritten {
    writing.failed_in_doubt();
    Unwritten::NoneAfterIt(Error::Background { cause })
}

/// Tables that are durable but not yet part of the tree.
#[derive(Default)]
pub(crate) struct WrittenTables(Vec<lsm_tree::Table>);
