//! A family's tables: `lsm-tree`, used without its memtable and without its version history.
//!
//! Rules, each from reading or trying version 3.1.10 (the dependency is pinned to it):
//!
//! * Its memtable stays empty. Memtables are ours; a flush hands over a sorted stream.
//! * Reads go through [`Pinned`], which holds one version of the tree. The tree's own lookups find a
//!   version by sequence number under a lock that is write-held for as long as a manifest write or the end
//!   of a compaction takes (0.5 to 14 ms), and panic when the version is forgotten; a pinned version needs
//!   neither lock nor history, so the history is forgotten at once (`KEEP_NONE`).
//! * What makes that right: all entries of a pinned version lie below every LSN at which the view that
//!   pins it is read (see `view.rs`). So a table holds only each key's newest version, compaction may drop
//!   whatever is shadowed, and no snapshot's watermark enters into it.
//! * An entry keeps its LSN (`zero_seqnos` is off). A compaction into the last level drops every tombstone that
//!   nothing older stands behind, and no watermark keeps it: see `transaction/removals.rs`.
//! * Each tree has counters of its own; its sequence numbers order its versions and nothing else.
//! * It trusts its manifest without looking at the checksum: [`verify`] looks, before it is opened.

use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

use collie_io::{Device, File, OpenMode, Opener, read_exact_at, write_all_at};
use collie_log::Lsn;
use lsm_tree::compaction::{CompactionFilter, Factory, ItemAccessor, Leveled, Verdict, filter::Context};
use lsm_tree::config::{
    BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry,
};
use lsm_tree::table::filter::standard_bloom::Builder as Bloom;
use lsm_tree::{
    AbstractTree, AnyTree, Cache, CompressionType, Config, DescriptorTable, InternalValue,
    SequenceNumberCounter, Slice, Tree,
};

use crate::garbage::Garbage;
use crate::litter::Litter;
use crate::{Compression, Error, FamilyOptions, MAX_KEY_BYTES, Result};

/// The watermark that keeps no old version: all that read them hold them themselves.
const KEEP_NONE: u64 = u64::MAX >> 1;

type TableResult<T> = std::result::Result<T, lsm_tree::Error>;
type PointRead = dyn Fn(&[u8], Lsn) -> TableResult<Option<InternalValue>> + Send + Sync;
type RangeRead = dyn Fn(Bound<Slice>, Bound<Slice>, Lsn) -> TableIter + Send + Sync;
type RangeSince = dyn Fn((Bound<Slice>, Bound<Slice>), Lsn) -> TableResult<bool> + Send + Sync;

/// Live entries of the tables, in order, from either end.
pub(crate) type TableIter = Box<dyn DoubleEndedIterator<Item = TableResult<InternalValue>> + Send + 'static>;

/// What all trees of a store share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) cache: Arc<Cache>,
    pub(crate) descriptors: Arc<DescriptorTable>,
    /// Set when the store closes: running compactions give up.
    pub(crate) stop: Arc<AtomicBool>,
}

/// A family's directory. Where the family was dropped, the directory goes with the last user.
pub(crate) struct TreeDir {
    path: PathBuf,
    dropped: AtomicBool,
    garbage: Sender<Garbage>,
}

impl Drop for TreeDir {
    fn drop(&mut self) {
        if *self.dropped.get_mut() {
            // Where the receiver is gone, the next open removes the directory: its id is in no manifest.
            drop(
                self.garbage
                    .send(Garbage::Directory(std::mem::take(&mut self.path))),
            );
        }
    }
}

/// The tables of one family.
pub(crate) struct Tables {
    tree: Tree,
    strategy: Arc<Leveled>,
    table_bytes: u64,
    /// The highest sequence number in any table when it was opened.
    highest: Lsn,
    litter: Litter,
    /// How many [`Unrecorded`] there are.
    unrecorded: Arc<AtomicUsize>,
    dir: Arc<TreeDir>,
}

impl Tables {
    /// Opens the tables in `path`, or creates them where they are not `known`.
    pub(crate) fn open(
        path: &Path,
        known: bool,
        options: &FamilyOptions,
        shared: &Shared,
        device: &dyn Device,
        garbage: Sender<Garbage>,
    ) -> Result<Self> {
        if known {
            verify(path, device)?;
        } else {
            refuse_leftovers(path, device)?;
        }
        let compression = match options.compression {
            Compression::None => CompressionType::None,
            Compression::Lz4 => CompressionType::Lz4,
        };
        let filter = match options.bloom_bits {
            0 => FilterPolicyEntry::None,
            bits => FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(f32::from(bits))),
        };
        let counter = SequenceNumberCounter::new;
        let tree = Config::new(path, counter(1), counter(1))
            .use_cache(Arc::clone(&shared.cache))
            .use_descriptor_table(Some(Arc::clone(&shared.descriptors)))
            .data_block_compression_policy(CompressionPolicy::all(compression))
            .data_block_size_policy(BlockSizePolicy::all(options.block_bytes))
            .filter_policy(FilterPolicy::all(filter))
            .with_compaction_filter_factory(Some(Arc::new(StopFactory(Arc::clone(&shared.stop)))))
            .open()
            .map_err(|e| Error::table("open", path, e))?;
        let AnyTree::Standard(tree) = tree else {
            return Err(Error::Corrupt {
                path: path.into(),
                offset: 0,
                expected: "tables without blob files".into(),
                found: "tables with blob files".into(),
            });
        };
        let strategy = Leveled::default()
            .with_l0_threshold(options.level0_compaction)
            .with_table_target_size(options.table_bytes);
        let dir = TreeDir {
            path: path.into(),
            dropped: AtomicBool::new(false),
            garbage,
        };
        let highest = tree.get_highest_persisted_seqno().unwrap_or(0);
        Ok(Self {
            highest,
            tree,
            strategy: Arc::new(strategy),
            table_bytes: options.table_bytes,
            litter: Litter::default(),
            unrecorded: Arc::default(),
            dir: Arc::new(dir),
        })
    }

    /// The newest version, held until the last user of the result is gone. Takes the tree's version lock:
    /// for background threads.
    pub(crate) fn pin(&self, lock: Option<Arc<dyn File>>) -> Pinned {
        let whole = self.tree.get_version_history_lock().latest_version();
        let version = self.tree.current_version();
        let tables = version.clone();
        let since = move |bounds: (Bound<Slice>, Bound<Slice>), since: Lsn| {
            for run in tables.iter_levels().flat_map(|level| level.iter()) {
                let overlapping = run.range_overlap_indexes::<Slice, _>(&bounds);
                let overlapping = overlapping.and_then(|(low, high)| run.get(low..=high));
                let newer = overlapping.into_iter().flatten();
                for table in newer.filter(|table| table.get_highest_seqno() >= since) {
                    for item in table.range(bounds.clone()) {
                        if item?.key.seqno >= since {
                            return Ok(true);
                        }
                    }
                }
            }
            Ok(false)
        };
        let point = move |key: &[u8], below: Lsn| {
            let hash = Bloom::get_hash(key);
            for level in version.iter_levels() {
                for run in level.iter() {
                    if let Some(table) = run.get_for_key(key)
                        && let Some(item) = table.get(key, below, hash)?
                    {
                        return Ok(Some(item));
                    }
                }
            }
            Ok(None)
        };
        let range = move |low, high, below| -> TableIter {
            let bounds: (Bound<Slice>, Bound<Slice>) = (low, high);
            Box::new(Tree::create_internal_range(whole.clone(), &bounds, below, None))
        };
        Pinned {
            point: Box::new(point),
            range: Box::new(range),
            since: Box::new(since),
            dir: Some(Arc::clone(&self.dir)),
            opener: Opener::here(),
            _lock: lock,
        }
    }

    /// To be called before tables are written, and kept until they are part of the tree or never will be.
    pub(crate) fn writing<'a>(&'a self, device: &'a dyn Device) -> Writing<'a> {
        self.litter.begin(self.tree.next_table_id());
        Writing { tables: self, device }
    }

    /// Writes a memtable's entries, sorted and each key once, to new tables, durable but not yet part of
    /// the tree. May be tried again after an error: it always writes new files.
    pub(crate) fn write(&self, entries: impl Iterator<Item = InternalValue>) -> Result<Written> {
        let written = self
            .tree
            .flush_to_tables(entries.map(Ok))
            .map_err(|e| Error::table("write", &self.dir.path, e))?;
        Ok(Written(written.map_or_else(Vec::new, |(tables, _)| tables)))
    }

    /// Makes written tables part of the tree, durably. After an error the version in force does not
    /// name them; what the tree's manifest on disk names is asked of
    /// [`Tables::take_back_next_version`].
    pub(crate) fn register(&self, written: &Written) -> Result<Unrecorded> {
        // Before the tree can show them to a compaction.
        let unrecorded = Unrecorded::new(&self.unrecorded);
        if written.0.is_empty() {
            return Ok(unrecorded);
        }
        self.tree
            .register_tables(&written.0, None, None, &[], KEEP_NONE)
            .map_err(|e| Error::table("register", &self.dir.path, e))?;
        // Not taken from the newest version: a compaction may have replaced them by now.
        self.litter.name(written.0.iter().map(lsm_tree::Table::id));
        Ok(unrecorded)
    }

    /// Whether the tree has tables, or is about to have, that the manifest does not know of.
    pub(crate) fn has_unrecorded(&self) -> bool {
        // Acquire pairs with the Release in `Unrecorded::new`; who finds none may still meet some
        // that come right after.
        self.unrecorded.load(Ordering::Acquire) > 0
    }

    /// Merges what the strategy finds most urgent, if anything.
    pub(crate) fn compact(&self) -> Result<()> {
        let strategy = Arc::clone(&self.strategy);
        let done = self.tree.compact(strategy, KEEP_NONE);
        self.compacted(done)
    }

    /// Merges everything into the last level.
    pub(crate) fn compact_all(&self) -> Result<()> {
        let done = self.tree.major_compact(self.table_bytes, KEEP_NONE);
        self.compacted(done)
    }

    fn compacted<T>(&self, done: TableResult<T>) -> Result<()> {
        // One compaction runs at a time, so what it made is in the newest version, if it came to that.
        let version = self.tree.current_version();
        self.litter.name(version.iter_tables().map(lsm_tree::Table::id));
        done.map_err(|e| Error::table("compact", &self.dir.path, e))
            .map(drop)
    }

    /// The number of the version that is in force.
    pub(crate) fn version(&self) -> u64 {
        self.tree.current_version().id()
    }

    /// After a failure, and while nobody else writes a version: takes away what there is of the
    /// next one. Where that cannot be, or the tree's manifest on disk may name it, returns `false`,
    /// and no version must be written any more.
    pub(crate) fn take_back_next_version(&self, device: &dyn Device) -> bool {
        self.is_unchanged_on_disk(device) && self.remove_next_version(device).is_ok()
    }

    /// After a failure: whether the tree's manifest on disk is still that of the version in force. If not,
    /// the next version would be written over the one that it names.
    fn is_unchanged_on_disk(&self, device: &dyn Device) -> bool {
        match read_file(device, &self.dir.path.join("current")) {
            Ok(current) => current.get(..8) == Some(&self.version().to_le_bytes()),
            // On a simulated device, which the tables are not on.
            Err(Error::Io { source, .. }) => source.kind() == std::io::ErrorKind::NotFound,
            Err(_) => false,
        }
    }

    /// After a failure that left the tree's manifest on disk as it was, and while nobody else writes a version: takes
    /// away what there is of the next one. Where a sync of the directory failed, the name of that file may be lost for
    /// good. Another attempt would fill the same file, sync a directory in which nothing is new, and rely on it.
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

    /// Whether a table has a write of `key` that is not older than `start`: a table that was registered
    /// right before a crash and that the manifest does not know of. For recovery.
    pub(crate) fn has_newer(&self, key: &[u8], start: Lsn) -> Result<bool> {
        if self.highest < start {
            return Ok(false);
        }
        let hash = Bloom::get_hash(key);
        for table in self.tree.current_version().iter_tables() {
            let item = table
                .get(key, Lsn::MAX >> 1, hash)
                .map_err(|e| Error::table("read", &self.dir.path, e))?;
            if item.is_some_and(|item| item.key.seqno >= start) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Runs in level 0: what a read has to look through.
    pub(crate) fn level0_runs(&self) -> usize {
        self.tree.l0_run_count()
    }

    pub(crate) fn table_count(&self) -> usize {
        self.tree.table_count()
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        self.tree.disk_space()
    }

    /// The directory goes when its last user, a snapshot perhaps, is gone.
    pub(crate) fn remove_when_unused(&self) {
        // Relaxed: read in `drop`, which the reference count orders after this.
        self.dir.dropped.store(true, Ordering::Relaxed);
    }
}

/// A flush or a compaction that may begin tables; removes what failed ones have left when the last one ends.
pub(crate) struct Writing<'a> {
    tables: &'a Tables,
    device: &'a dyn Device,
}

impl Writing<'_> {
    /// It failed, and may be tried again: the tree's manifest on disk names nothing that it wrote.
    pub(crate) fn failed(&self) {
        self.tables.litter.failed();
    }

    /// It failed, and what the tree's manifest on disk names is not known.
    pub(crate) fn failed_in_doubt(&self) {
        self.tables.litter.doubt();
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let tables = self.tables;
        let Some(nobodys) = tables.litter.end(|| tables.tree.next_table_id()) else {
            return;
        };
        for number in &nobodys.numbers {
            let path = tables.dir.path.join("tables").join(number.to_string());
            match self.device.remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), %error, "a useless table stays until the next open");
                }
                _ => {}
            }
        }
    }
}

/// Held while the tree has tables, or is about to have, that the manifest does not know of.
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
        // Release: who finds none left sees that the manifest knows them.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Tables that are durable but not yet part of the tree.
pub(crate) struct Written(Vec<lsm_tree::Table>);

/// One version of the tables. The files that it names stay until it is dropped.
///
/// A table that a compaction has replaced removes its own file, by name, when the last version that names
/// it is dropped. Another owner of the directory would use the name again, so as long as a version is
/// pinned the store's lock is held.
pub(crate) struct Pinned {
    point: Box<PointRead>,
    range: Box<RangeRead>,
    since: Box<RangeSince>,
    dir: Option<Arc<TreeDir>>,
    opener: Opener,
    /// Dropped last.
    _lock: Option<Arc<dyn File>>,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if !self.opener.is_here() {
            // A child's copy of the last version that names a table must not take the file from its parent.
            let nothing = Self::nothing();
            std::mem::forget(std::mem::replace(self, nothing));
        }
    }
}

impl Pinned {
    /// No tables: what a closed store's views show.
    pub(crate) fn nothing() -> Self {
        Self {
            point: Box::new(|_, _| Ok(None)),
            range: Box::new(|_, _, _| Box::new(std::iter::empty())),
            since: Box::new(|_, _| Ok(false)),
            dir: None,
            opener: Opener::here(),
            _lock: None,
        }
    }

    /// The key's entry, a tombstone included.
    pub(crate) fn get(&self, key: &[u8], below: Lsn) -> Result<Option<InternalValue>> {
        (self.point)(key, below).map_err(|e| Error::table("read", self.path(), e))
    }

    /// Live entries between the bounds, which may be longer than any key.
    pub(crate) fn range(&self, low: Bound<Slice>, high: Bound<Slice>, below: Lsn) -> TableIter {
        (self.range)(cut(low, Bound::Excluded), cut(high, Bound::Included), below)
    }

    /// Whether there is an entry between the bounds that is not older than `since`, tombstones included, as far as
    /// they were not dropped. Tables that have nothing so new are not looked into.
    pub(crate) fn has_newer(&self, low: Bound<Slice>, high: Bound<Slice>, since: Lsn) -> Result<bool> {
        let bounds = (cut(low, Bound::Excluded), cut(high, Bound::Included));
        (self.since)(bounds, since).map_err(|e| Error::table("read", self.path(), e))
    }

    /// For errors.
    pub(crate) fn path(&self) -> &Path {
        self.dir.as_ref().map_or(Path::new(""), |dir| &dir.path)
    }
}

/// The table library refuses bounds that cannot be keys. All keys are on the same side of a longer bound
/// as of its first bytes; those themselves, if they are a key, are before it.
fn cut(bound: Bound<Slice>, as_bound: fn(Slice) -> Bound<Slice>) -> Bound<Slice> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) if key.len() > MAX_KEY_BYTES => {
            as_bound(Slice::from(&key[..MAX_KEY_BYTES]))
        }
        bound => bound,
    }
}

/// Compares the tree's manifest with the checksum that `current` gives for it, and makes sure of `current`.
fn verify(path: &Path, device: &dyn Device) -> Result<()> {
    const CURRENT_BYTES: usize = 25;
    let current = path.join("current");
    match device.stat(&current) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return refuse_missing(path, &current);
        }
        Err(e) => return Err(Error::io("look at", current, e)),
        Ok(_) => {}
    }
    let bytes = read_file(device, &current)?;
    let corrupt = |path: PathBuf, expected: String, found: String| {
        Err(Error::Corrupt {
            path,
            offset: 0,
            expected,
            found,
        })
    };
    let (Some(id), Some(sum), CURRENT_BYTES) = (bytes.first_chunk::<8>(), bytes.get(8..24), bytes.len())
    else {
        return corrupt(
            current,
            format!("{CURRENT_BYTES} bytes"),
            format!("{} bytes", bytes.len()),
        );
    };
    let id = u64::from_le_bytes(*id);
    let manifest = path.join(format!("v{id}"));
    let found = xxhash_rust::xxh3::xxh3_128(&read_file(device, &manifest)?);
    if found.to_le_bytes() != sum {
        let expected = sum.iter().rev().map(|byte| format!("{byte:02x}")).collect();
        return corrupt(manifest, expected, format!("{found:032x}"));
    }
    settle_current(path, id, &bytes, device)
}

/// Opening the tree removes every version but the one that `current` names. Where there are others, whoever replaced
/// `current` may have failed to sync the directory afterwards, and then no later sync need bring that renaming to the
/// disk, where `current` would go on to name what was removed. So it is replaced once more, by itself, before they go.
fn settle_current(path: &Path, id: u64, bytes: &[u8], device: &dyn Device) -> Result<()> {
    let entries = device.list(path).map_err(|e| Error::io("list", path, e))?;
    let is_other = |name: &str| {
        let number = name
            .strip_prefix('v')
            .and_then(|number| number.parse::<u64>().ok());
        number.is_some_and(|number| number != id)
    };
    if !entries.iter().any(|entry| is_other(&entry.name)) {
        return Ok(());
    }
    let (current, temporary) = (path.join("current"), path.join("current.tmp"));
    match device.remove_file(&temporary) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(Error::io("remove", temporary, e)),
        _ => {}
    }
    device
        .open(&temporary, OpenMode::CreateNew)
        .and_then(|file| {
            write_all_at(&*file, bytes, 0)?;
            file.sync_data()
        })
        .map_err(|e| Error::io("write", &temporary, e))?;
    device
        .rename(&temporary, &current)
        .map_err(|e| Error::io("rename to", current, e))?;
    device.sync_dir(path).map_err(|e| Error::io("sync", path, e))
}

/// A new family begins with nothing: what an earlier creation left may not be durable, whatever a
/// sync says now.
fn refuse_leftovers(path: &Path, device: &dyn Device) -> Result<()> {
    let entries = device.list(path).map_err(|e| Error::io("list", path, e))?;
    match entries.first() {
        None => Ok(()),
        Some(entry) => Err(Error::Corrupt {
            path: path.into(),
            offset: 0,
            expected: "an empty directory for a new family".into(),
            found: format!("{:?} in it", entry.name),
        }),
    }
}

/// The tables of a family that the manifest names are gone. (A device that does not have the directory
/// either is a simulated one, which the tables are not on; there the table library looks by itself.)
fn refuse_missing(path: &Path, current: &Path) -> Result<()> {
    if current.exists() {
        return Ok(());
    }
    Err(Error::Corrupt {
        path: path.into(),
        offset: 0,
        expected: "the tables of a family that the manifest names".into(),
        found: "none".into(),
    })
}

fn read_file(device: &dyn Device, path: &Path) -> Result<Vec<u8>> {
    let failed = |e| Error::io("read", path, e);
    let file = device.open(path, OpenMode::Read).map_err(failed)?;
    let len = file.stat().map_err(failed)?.len;
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
    read_exact_at(&*file, &mut bytes, 0).map_err(failed)?;
    Ok(bytes)
}

/// Lets compactions give up when the store closes: the tree offers no other way.
struct StopFactory(Arc<AtomicBool>);

impl Factory for StopFactory {
    fn name(&self) -> &'static str {
        "stop-on-close"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        Box::new(StopFilter(Arc::clone(&self.0)))
    }
}

struct StopFilter(Arc<AtomicBool>);

impl CompactionFilter for StopFilter {
    fn filter_item(&mut self, _: ItemAccessor<'_>, _: &Context) -> TableResult<Verdict> {
        // Relaxed: nothing is read on the strength of it.
        if self.0.load(Ordering::Relaxed) {
            let why = std::io::Error::new(std::io::ErrorKind::Interrupted, "the store is closing");
            return Err(why.into());
        }
        Ok(Verdict::Keep)
    }
}

#[cfg(test)]
mod tests {
    use collie_sim::{Fault, FaultKind, PowerCut, SimDevice};

    use super::*;

    fn write(device: &SimDevice, path: &Path, bytes: &[u8]) {
        let file = device.open(path, OpenMode::CreateNew).unwrap();
        write_all_at(&*file, bytes, 0).unwrap();
        file.sync_data().unwrap();
    }

    /// As the table library replaces its manifest; whether the directory's last sync succeeded.
    fn persist(device: &SimDevice, dir: &Path, version: u64) -> bool {
        let bytes = version.to_string().into_bytes();
        write(device, &dir.join(format!("v{version}")), &bytes);
        device.sync_dir(dir).unwrap();
        let sum = xxhash_rust::xxh3::xxh3_128(&bytes);
        let current = [&version.to_le_bytes()[..], &sum.to_le_bytes()[..], &[0]].concat();
        write(device, &dir.join("new"), &current);
        device.rename(&dir.join("new"), &dir.join("current")).unwrap();
        device.sync_dir(dir).is_ok()
    }

    /// Such a store did not open any more: the version that the disk still named had been removed.
    #[test]
    fn a_manifest_whose_renaming_may_be_lost_is_named_once_more_before_the_others_go() {
        let dir = Path::new("/tables");
        let mut cut_off = 0;
        for seed in 0..16 {
            let device = SimDevice::new(seed);
            device.create_dir_all(dir).unwrap();
            device.sync_dir(Path::new("/")).unwrap();
            assert!(persist(&device, dir, 1));
            // The syncs of the version's file, of the directory, and of the file that `current` becomes succeed.
            device.inject(Fault::new(FaultKind::SyncFails).after(3).once());
            assert!(!persist(&device, dir, 2));
            cut_off += u32::from(device.fired(FaultKind::SyncFails) > 0);
            verify(dir, &device).unwrap();
            // The table library opens the version that `current` names, and removes the others.
            device.remove_file(&dir.join("v1")).unwrap();
            device.sync_dir(dir).unwrap();
            for (how, way) in PowerCut::WAYS {
                let left = device.snapshot().power_cut(way, seed).device();
                verify(dir, &left).unwrap_or_else(|e| panic!("seed {seed}, {how}: {e}"));
            }
        }
        assert_eq!(cut_off, 16);
    }
}
