//! Opening: the lock, the manifest, the tables, and the part of the log that is not in them.
//!
//! | manifest | log wanted | what happens |
//! |---|---|---|
//! | none, directory empty | either | a manifest without families is written first, then as below |
//! | none, directory not empty | either | refused, nothing touched |
//! | log off | off | tables only |
//! | log off | on | a log that starts above all tables; frames from before are not read |
//! | any | on, but the log's directory holds another store's | refused, nothing touched there |
//! | log on | on | the log is replayed from the lowest `flushed` of all families |
//! | log on | off | opened with the log, everything is flushed, then the log is removed |
//! | external journal | external | tables only: the journal's owner applies what they lack |
//! | external journal | another | refused, nothing touched |
//! | log on or off, with families | external | refused, nothing touched |

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use collie_io::{Device, Scheduler, file_system_bytes};
use collie_log::{Log, LogError, LogId, LogOptions, Lsn, OnPoisoned};
use parking_lot::Mutex;

use crate::background::threads::shared::Resources;
use crate::background::threads::{Handle, start_threads};
use crate::background::{flush, wal_limit};
use crate::events::{Events, FlushCause};
use crate::manifest::file::ManifestFile;
use crate::manifest::{LogState, Manifest};
use crate::recovery::store_lock::{self, StoreLock};
use crate::recovery::{self, DirectoryContent, replay};
use crate::store::family::FamilyState;
use crate::store::reserve::StoreReserve;
use crate::store::{Start, Store};
use crate::tables::{self, Home, Tables};
use crate::write::order::Sequencer;
use crate::{DEFAULT_FAMILY, Error, Journal, Options, Result, SharedOptions, catalog};

const LOG_DIRECTORY: &str = "log";
/// The name under which the log is retained until it is retained for each family.
const OPENING: &str = "opening";

pub(crate) fn open(path: &Path, options: Options) -> Result<Handle> {
    options.check()?;
    let device = Arc::clone(&options.device);
    options.check_reserve(file_system_bytes(&*device, path))?;
    if recovery::inspect(&*device, path)? == DirectoryContent::Nothing {
        if !options.create_if_missing {
            return Err(Error::NotFound { path: path.into() });
        }
        device
            .create_dir_all(path)
            .map_err(|e| Error::io("create", path, e))?;
    }
    let held = store_lock::lock(&*device, path)?;
    let reserve = options.reserve(path);
    let manifest = match ManifestFile::read(&*device, path)? {
        Some(manifest) => {
            let mut manifest = check_journal(manifest, &options)?;
            // It may be in the page cache alone: its process was killed before the sync, or the
            // sync failed, after which no later sync writes it. So it is written anew before log is
            // released that it does not need, and before commits to families that it names are
            // acknowledged.
            reserve.relieve(None, || manifest.write(&*device, path))?;
            manifest
        }
        None => {
            let mut log_id = [0; 16];
            device
                .random(&mut log_id)
                .map_err(|e| Error::io("get random bytes for", path, e))?;
            let mut manifest = check_journal(ManifestFile::new(Manifest::new(log_id)), &options)?;
            manifest.write(&*device, path)?;
            manifest
        }
    };
    let manifest = if manifest.log == LogState::On && options.disable_wal {
        switch_log_off(path, &options, manifest, &held)?
    } else {
        manifest
    };
    start(path, options, manifest, reserve, &held)
}

/// Refuses options that are for another kind of store.
fn check_journal(mut manifest: ManifestFile, options: &Options) -> Result<ManifestFile> {
    let refused = |value: &str, reason: &str| Err(Error::invalid_option("journal", value, reason));
    match (&options.journal, manifest.log) {
        (Journal::Own, LogState::Off | LogState::On) | (Journal::External(_), LogState::External) => {}
        (Journal::External(_), _) if manifest.families.is_empty() => {
            manifest.amend(|manifest| manifest.log = LogState::External);
        }
        (Journal::Own, LogState::External) => {
            return refused("Own", "what the store's tables lack is in an external journal");
        }
        (Journal::External(_), LogState::Off | LogState::On) => {
            return refused(
                "External",
                "the store was made with a log of its own, or without one",
            );
        }
    }
    Ok(manifest)
}

fn log_directory(path: &Path, options: &Options) -> PathBuf {
    options
        .wal_dir
        .clone()
        .unwrap_or_else(|| path.join(LOG_DIRECTORY))
}

/// Flushes everything and removes the log.
fn switch_log_off(
    path: &Path,
    options: &Options,
    manifest: ManifestFile,
    lock: &StoreLock,
) -> Result<ManifestFile> {
    let with_log = Options {
        disable_wal: false,
        ..options.clone()
    };
    let reserve = options.reserve(path);
    let handle = start(path, with_log, manifest, reserve, lock)?;
    for family in handle.store.families() {
        flush::flush_all_of(&handle.store, &family, FlushCause::Close)?;
    }
    handle.close()?;
    let mut manifest = handle.store.manifest().detached();
    manifest.amend(|manifest| {
        manifest.log = LogState::Off;
        manifest.floor = manifest.floor.max(handle.store.sequencer().appended());
    });
    manifest.write(&*options.device, path)?;
    if options.wal_dir.is_none() {
        remove_tree(&*options.device, &log_directory(path, options))?;
    }
    Ok(manifest)
}

fn remove_tree(device: &dyn Device, path: &Path) -> Result<()> {
    match device.remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", path, e)),
        _ => Ok(()),
    }
}

/// Opens a store whose lock is held and whose manifest fits the options.
fn start(
    path: &Path,
    mut options: Options,
    mut manifest: ManifestFile,
    reserve: StoreReserve,
    lock: &StoreLock,
) -> Result<Handle> {
    let device = Arc::clone(&options.device);
    if let Journal::External(_) = options.journal {
        // For who applies, and for rotations.
        options.max_workers = 2;
    }
    let log_disk_bytes = file_system_bytes(&*device, &log_directory(path, &options));
    options.segment_bytes = segment_bytes(options.segment_bytes, log_disk_bytes);
    remove_dropped(&*device, path, &manifest)?;
    manifest.amend(|manifest| apply_options(manifest, &options));
    let parts = match &options.shared {
        Some(shared) => shared.parts().clone(),
        None => Resources::new(&of_its_own(&options))?,
    };
    let shared = shared_by_trees(&parts, &reserve, &options.journal);
    let home = Home {
        lock,
        shared: &shared,
        device: &*device,
        reclaim: parts.reclaim.clone(),
    };
    let trees = open_trees(&home, &manifest)?;
    let end = manifest.floor.max(end_of(trees.values()));
    let events = Arc::new(Events::start(options.listener.as_ref())?);
    let sequencer = reserve.relieve(None, || {
        open_sequencer(path, &options, &manifest, end, &parts.scheduler, &events)
    })?;
    // The opening of the log may have used it, for frames that were in the ring.
    reserve.fill(Some(&sequencer));
    let adopt = manifest.log == LogState::Off && !options.disable_wal;
    let log_dir = log_directory(path, &options);
    let start = Start {
        path: path.into(),
        log_disk_bytes,
        options,
        events,
        sequencer,
        manifest,
        reserve,
        parts,
        shared,
        lock: lock.clone(),
    };
    let store = Arc::new(Store::new(start)?);
    let mut threads = None;
    let filled = if adopt { switch_log_on(&store) } else { Ok(()) }
        .and_then(|()| start_threads(&store).map(|own| threads = own))
        .and_then(|()| load_and_replay(&store, trees, adopt, &log_dir));
    match filled {
        Ok(default_family) => Ok(Handle {
            store,
            threads: Mutex::new(threads),
            default_family: ArcSwap::new(default_family),
        }),
        Err(error) => {
            // The first error is the one to report.
            drop(store.begin_close().and_then(|()| store.finish_close()));
            Err(error)
        }
    }
}

/// The options of this opening replace those that a family was created with.
fn apply_options(manifest: &mut Manifest, options: &Options) {
    for record in &mut manifest.families {
        let replacement = options
            .family_options
            .iter()
            .find(|(name, _)| *name == record.name);
        if let Some((_, replacement)) = replacement {
            record.options = replacement.clone();
        } else if record.name == DEFAULT_FAMILY {
            record.options = options.default_family.clone();
        }
    }
}

/// Removes the directories of families that were dropped. One with an id that the manifest has not
/// given is of a creation that was cut off, and stays until the log was replayed
/// ([`catalog::retire_leftovers`]); with tables in it, the manifest is of an earlier time, but for an
/// adoption that was cut off.
fn remove_dropped(device: &dyn Device, path: &Path, manifest: &Manifest) -> Result<()> {
    let named: HashSet<u32> = manifest.families.iter().map(|family| family.id).collect();
    let unnamed = catalog::directories(device, path)?.into_iter();
    for id in unnamed.filter(|id| !named.contains(id)) {
        let dir = tables::directory_in(path, id);
        if id < manifest.next_family {
            remove_tree(device, &dir)?;
        } else if manifest.log != LogState::External && tables::has_files(&dir, device)? {
            return Err(Error::Corrupt {
                path: path.join(crate::manifest::file::FILE),
                offset: 0,
                expected: format!("the family {id}, which has tables in {}", dir.display()),
                found: format!(
                    "families below {} (the file is of an earlier time: bring back the latest)",
                    manifest.next_family
                ),
            });
        }
    }
    Ok(())
}

/// Opens the tables of all families, before the log: it must reach as far as they do, and an opening
/// of it that did not know that would go on where it ends.
fn open_trees(home: &Home<'_>, manifest: &Manifest) -> Result<HashMap<u32, Tables>> {
    let families = manifest.families.iter();
    families
        .map(|record| Ok((record.id, Tables::open(home, record.id, true, &record.options)?)))
        .collect()
}

/// The least LSN that is above all that is in tables, and at which a frame can start. Tables are
/// registered before the manifest records how far they go.
fn end_of<'a>(trees: impl Iterator<Item = &'a Tables>) -> Lsn {
    trees
        .map(|tables| (tables.highest() + 1).next_multiple_of(8))
        .max()
        .unwrap_or(0)
}

/// `end`: tables hold nothing at or above it.
fn open_sequencer(
    path: &Path,
    options: &Options,
    manifest: &Manifest,
    end: Lsn,
    scheduler: &Arc<Scheduler>,
    events: &Arc<Events>,
) -> Result<Sequencer> {
    if let Journal::External(journal) = &options.journal {
        let flushed = manifest.families.iter().map(|family| family.flushed).max();
        let next = flushed.unwrap_or(manifest.floor);
        return Ok(Sequencer::of_journal(
            Arc::clone(journal),
            options.max_workers,
            next,
        ));
    }
    if options.disable_wal {
        return Ok(Sequencer::unlogged(options.max_workers, manifest.floor));
    }
    let dir = log_directory(path, options);
    let resume_at = match manifest.log {
        LogState::On => manifest.families.iter().map(|family| family.flushed).min(),
        // What the directory has, if anything, is in the tables already; a part of it may be
        // removed.
        LogState::Off if options.wal_dir.is_none() => {
            remove_tree(&*options.device, &dir)?;
            None
        }
        LogState::Off | LogState::External => None,
    };
    if resume_at.is_some() {
        refuse_missing_log(&*options.device, &dir)?;
    }
    let events = Arc::downgrade(events);
    let refuse = move |poisoned: &LogError| {
        if let Some(events) = events.upgrade() {
            events.refuse(&poisoned.clone().into());
        }
    };
    let opened = Log::open(
        &dir,
        LogOptions {
            on_poisoned: Some(OnPoisoned(Arc::new(refuse))),
            min_lsn: end,
            resume_at,
            log_id: Some(LogId(manifest.log_id)),
            scheduler: Some(Arc::clone(scheduler)),
            ..options.of_log()
        },
    );
    let log = opened.map_err(|error| match error {
        LogError::LogIdMismatch {
            path: log,
            expected,
            found,
        } => Error::LogIdMismatch {
            path: path.into(),
            log,
            expected,
            found,
        },
        other => other.into(),
    })?;
    Ok(Sequencer::Log(log))
}

/// Refuses to open without the log's directory where the manifest says that commits are in the log.
fn refuse_missing_log(device: &dyn Device, dir: &Path) -> Result<()> {
    match device.list(dir) {
        Ok(entries) if entries.is_empty() => missing_log(dir, "an empty directory".into()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => missing_log(dir, "no directory".into()),
        Ok(_) => Ok(()),
        Err(e) => Err(Error::io("list", dir, e)),
    }
}

fn missing_log<T>(dir: &Path, found: String) -> Result<T> {
    let expected = "the log that the manifest relies on (is `wal_dir` right, and mounted?)";
    Err(Error::Corrupt {
        path: dir.into(),
        offset: 0,
        expected: expected.into(),
        found,
    })
}

/// Turns a store without a log into one with a log, which has everything from a mark on.
fn switch_log_on(store: &Store) -> Result<()> {
    let mark = store.durable_mark()?;
    store.manifest().rewrite(|manifest| {
        for record in &mut manifest.families {
            record.flushed = mark;
        }
        manifest.log = LogState::On;
    })
}

/// The parts of a store that shares none.
fn of_its_own(options: &Options) -> SharedOptions {
    SharedOptions {
        flush_threads: options.flush_threads,
        compaction_threads: options.compaction_threads,
        cache_bytes: options.cache_bytes,
        max_open_files: options.max_open_files,
        max_memtable_bytes: options.max_memtable_bytes,
        background_io: options.background_io,
        device: Arc::clone(&options.device),
    }
}

/// What a store's trees use of its parts.
fn shared_by_trees(parts: &Resources, reserve: &StoreReserve, journal: &Journal) -> tables::TreeContext {
    tables::TreeContext {
        cache: Arc::clone(&parts.cache),
        descriptors: Arc::clone(&parts.descriptors),
        scheduler: Arc::clone(&parts.scheduler),
        stop: Arc::default(),
        short: reserve.missing(),
        journal: match journal {
            Journal::External(journal) => Some(Arc::clone(journal)),
            Journal::Own => None,
        },
    }
}

/// Opens the families, replays the log into them, and creates the default family where it does not
/// exist.
fn load_and_replay(
    store: &Arc<Store>,
    mut trees: HashMap<u32, Tables>,
    fresh_log: bool,
    log_dir: &Path,
) -> Result<Arc<FamilyState>> {
    let mut by_id = HashMap::new();
    for record in &store.manifest().families.clone() {
        if let Some(tables) = trees.remove(&record.id) {
            let family = store.load_family(record, tables)?;
            store.publish_family(&family);
            by_id.insert(record.id, family);
        }
    }
    record_found(store)?;
    let records = store.manifest().families.clone();
    let resume = records.iter().map(|record| record.flushed).min();
    if let (Sequencer::Log(log), Some(resume)) = (store.sequencer(), resume) {
        // Retains what any family needs until the log is retained for each of them, and the parts of
        // large commits, which may lie before the place from which the log is read.
        log.retain(OPENING, log.oldest().min(resume));
        for record in &records {
            store.sequencer().retain(&record.name, record.flushed);
        }
        if !fresh_log {
            let replayed = store.replay(|| replay::replay(store, log, resume, &by_id, log_dir))?;
            store.note_replayed(replayed);
        }
        log.release(OPENING);
    }
    catalog::retire_leftovers(store)?;
    let default_family = match store.family(DEFAULT_FAMILY) {
        Some(family) => family,
        None => {
            let options = &store.options().default_family;
            store.relieve(|| catalog::create(store, DEFAULT_FAMILY, options.clone()))?
        }
    };
    for family in store.families() {
        store.queue().compact(&family);
    }
    wal_limit::schedule_check(store);
    wal_limit::warn_of_short_limit(store);
    store.watch_room_at_open();
    Ok(default_family)
}

/// Records tables that were registered, by a flush that a crash cut off before its record. Until then
/// nothing is merged nor replayed: only a record keeps that crash's log from being replayed over
/// them once more, when what was merged hides less than it does now.
fn record_found(store: &Store) -> Result<()> {
    let families = store.families();
    let mut manifest = store.manifest();
    let is_ahead = |family: &Arc<FamilyState>| {
        let recorded = manifest.families.iter().find(|record| record.id == family.id());
        recorded.is_some_and(|record| record.flushed < family.flushed().get())
    };
    if families.iter().any(is_ahead) {
        manifest.rewrite(|manifest| {
            for family in &families {
                let found = family.flushed().get();
                manifest.floor = manifest.floor.max(found);
                let records = manifest.families.iter_mut();
                for record in records.filter(|record| record.id == family.id()) {
                    record.flushed = found;
                }
            }
        })?;
    }
    drop(manifest);
    let end = families.iter().map(|family| family.flushed().get()).max();
    end.map_or(Ok(()), |end| store.go_on_at(end))
}

/// A log is released in whole segments, so one that is a large part of its file system might not be
/// released before that is full.
const SEGMENTS_OF_DISK: u64 = 32;
/// A segment is prepared in steps of this.
const SEGMENT_LEAST: u64 = 2 << 20;

/// The size of a segment where `asked` is wanted.
pub(super) fn segment_bytes(asked: u64, disk: u64) -> u64 {
    let most = (disk / SEGMENTS_OF_DISK).max(SEGMENT_LEAST);
    match asked <= most {
        true => asked,
        false => 1 << most.ilog2(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_a_small_part_of_its_disk() {
        const MIB: u64 = 1 << 20;
        for (disk, expected) in [
            (64, 2),
            (122, 2),
            (160, 4),
            (400, 8),
            (800, 16),
            (2048, 64),
            (1 << 20, 64),
        ] {
            assert_eq!(segment_bytes(64 * MIB, disk * MIB), expected * MIB, "{disk} MiB");
        }
        assert_eq!(
            segment_bytes(64 << 10, 1 << 20),
            64 << 10,
            "what was asked for is less"
        );
        assert_eq!(segment_bytes(64 * MIB, u64::MAX), 64 * MIB);
    }
}
