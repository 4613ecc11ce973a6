//! Opening: the lock, the manifest, the tables, and the log's part that is not in them.
//!
//! | manifest | log wanted | what happens |
//! |---|---|---|
//! | none, directory empty | either | a manifest without families is written first, then as below |
//! | none, directory not empty | either | refused, nothing touched |
//! | log off | off | tables only |
//! | log off | on | a log that starts above all tables; frames from before are not read |
//! | any | on, but the log's directory holds another store's | refused, nothing touched there |
//! | log on | on | the log is replayed from the lowest `flushed` of all families |
//! | log on | off | opened with the log, everything brought to tables, then the log goes |

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use collie_io::{Device, File};
use collie_log::{Log, LogError, LogId, LogOptions};
use lsm_tree::{Cache, DescriptorTable};
use parking_lot::Mutex;

use crate::core::{Core, FamilyState, Start};
use crate::db::{DEFAULT_FAMILY, Handle};
use crate::journal::Journal;
use crate::lock::Found;
use crate::manifest::{LogState, Manifest};
use crate::manifest_file::ManifestFile;
use crate::memtable::Chunks;
use crate::reserve::Reserve;
use crate::tables::Shared;
use crate::view::FlushCause;
use crate::{
    Compression, Error, Options, Result, compaction, families, flush, garbage, lock, replay, wal_size,
};

const LOG_DIRECTORY: &str = "log";
/// Who holds the log while the families' holds are set.
const OPENING: &str = "opening";

pub(crate) fn open(path: &Path, options: Options) -> Result<Handle> {
    options.check()?;
    let device = Arc::clone(&options.device);
    if lock::look(&*device, path)? == Found::Nothing {
        if !options.create_if_missing {
            return Err(Error::NotFound { path: path.into() });
        }
        device
            .create_dir_all(path)
            .map_err(|e| Error::io("create", path, e))?;
    }
    let held = lock::lock(&*device, path)?;
    let reserve = Reserve::new(path, &options);
    let manifest = match ManifestFile::read(&*device, path)? {
        Some(mut manifest) => {
            families::pass_over_leftovers(&*device, path, &mut manifest)?;
            // It may be in the page cache alone: of a process that was killed before its sync, or whose sync failed, after
            // which no later one writes it. So it is written anew before the log is released that it has no need of, and
            // before commits are acknowledged to families that it names.
            reserve.relieve(|| manifest.write(&*device, path))?;
            manifest
        }
        None => {
            let mut log_id = [0; 16];
            device
                .random(&mut log_id)
                .map_err(|e| Error::io("get random bytes for", path, e))?;
            let mut manifest = ManifestFile::new(Manifest::new(log_id));
            manifest.write(&*device, path)?;
            manifest
        }
    };
    let manifest = if manifest.log == LogState::On && options.disable_wal {
        leave_log(path, &options, manifest, &held)?
    } else {
        manifest
    };
    start(path, options, manifest, reserve, &held)
}

fn log_directory(path: &Path, options: &Options) -> PathBuf {
    options
        .wal_dir
        .clone()
        .unwrap_or_else(|| path.join(LOG_DIRECTORY))
}

/// Brings everything to tables and does away with the log.
fn leave_log(
    path: &Path,
    options: &Options,
    manifest: ManifestFile,
    lock: &Arc<dyn File>,
) -> Result<ManifestFile> {
    let with_log = Options {
        disable_wal: false,
        ..options.clone()
    };
    let reserve = Reserve::new(path, options);
    let handle = start(path, with_log, manifest, reserve, lock)?;
    let all = handle.core.families.read().all();
    all.iter()
        .try_for_each(|family| flush::flush_all_of(&handle.core, family, FlushCause::Close))?;
    handle.close()?;
    let mut manifest = handle.core.manifest.lock().detached();
    manifest.amend(|manifest| {
        manifest.log = LogState::Off;
        manifest.floor = manifest.floor.max(handle.core.journal.reserved());
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
    options: Options,
    mut manifest: ManifestFile,
    reserve: Reserve,
    lock: &Arc<dyn File>,
) -> Result<Handle> {
    let device = Arc::clone(&options.device);
    remove_orphans(&*device, path, &manifest)?;
    manifest.amend(|manifest| use_options(manifest, &options));
    let journal = reserve.relieve(|| open_journal(path, &options, &manifest))?;
    // What the opening took of it was the log's before, and is free again.
    reserve.fill(Some(&journal));
    let chunks = Arc::new(Chunks::default());
    let (garbage, _thread) = garbage::start(Arc::clone(&device), Arc::clone(&chunks))?;
    let shared = Shared {
        cache: Arc::new(Cache::with_capacity_bytes(options.cache_bytes)),
        descriptors: Arc::new(DescriptorTable::new(options.max_open_files)),
        stop: Arc::new(AtomicBool::new(false)),
    };
    let adopt = manifest.log == LogState::Off && !options.disable_wal;
    let log_dir = log_directory(path, &options);
    let start = Start {
        path: path.into(),
        options,
        journal,
        manifest,
        reserve,
        garbage,
        chunks,
        shared,
        lock: Arc::clone(lock),
    };
    let core = Arc::new(Core::new(start)?);
    let mut threads = Vec::new();
    let filled = if adopt { adopt_log(&core) } else { Ok(()) }
        .and_then(|()| start_threads(&core, &mut threads))
        .and_then(|()| fill(&core, adopt, &log_dir));
    match filled {
        Ok(default_family) => Ok(Handle {
            core,
            threads: Mutex::new(threads),
            default_family,
        }),
        Err(error) => {
            core.set_closed();
            core.shared.stop.store(true, Ordering::Relaxed);
            core.tasks.stop();
            for thread in threads {
                drop(thread.join());
            }
            core.release();
            // The error that matters is the one in hand.
            drop(core.journal.close());
            Err(error)
        }
    }
}

/// The options of this opening, where it brings some, replace those that a family was created with.
fn use_options(manifest: &mut Manifest, options: &Options) {
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

/// Removes what no manifest names: families that were dropped, or whose creation was cut off.
fn remove_orphans(device: &dyn Device, path: &Path, manifest: &Manifest) -> Result<()> {
    let named: HashSet<u32> = manifest.families.iter().map(|family| family.id).collect();
    for id in families::directories(device, path)? {
        if !named.contains(&id) {
            remove_tree(device, &path.join(families::DIRECTORY).join(id.to_string()))?;
        }
    }
    Ok(())
}

fn open_journal(path: &Path, options: &Options, manifest: &Manifest) -> Result<Journal> {
    if options.disable_wal {
        return Ok(Journal::virtual_from(manifest.floor));
    }
    let dir = log_directory(path, options);
    let resume_at = match manifest.log {
        LogState::On => manifest.families.iter().map(|family| family.flushed).min(),
        // What lies in the directory, if anything, is from before and in the tables; half of it may be gone.
        LogState::Off if options.wal_dir.is_none() => {
            remove_tree(&*options.device, &dir)?;
            None
        }
        LogState::Off => None,
    };
    if resume_at.is_some() {
        refuse_missing_log(&*options.device, &dir)?;
    }
    let opened = Log::open(
        &dir,
        LogOptions {
            device: Arc::clone(&options.device),
            ring: options.ring.clone(),
            ring_bytes: options.ring_bytes,
            segment_bytes: options.segment_bytes,
            // One more than hands: closing takes one.
            max_workers: options.max_workers + 1,
            min_lsn: manifest.floor,
            resume_at,
            log_id: Some(LogId(manifest.log_id)),
            manual_flush: options.manual_wal_flush,
            pad_to_block: options.pad_to_block,
            archive_ttl: options.wal_ttl,
            archive_bytes: options.wal_size_limit,
            // The store's own serves both where they share a device.
            reserve_bytes: match options.wal_dir {
                Some(_) if options.reserve_bytes != Some(0) => None,
                _ => Some(0),
            },
            recovery_mode: options.wal_recovery_mode,
            compression: match options.wal_compression {
                Compression::None => collie_log::Compression::None,
                Compression::Lz4 => collie_log::Compression::Lz4,
            },
            ..LogOptions::default()
        },
    );
    let log = opened.map_err(|error| match error {
        LogError::OtherLog {
            path: log,
            expected,
            found,
        } => Error::OtherLog {
            path: path.into(),
            log,
            expected,
            found,
        },
        other => other.into(),
    })?;
    if resume_at.is_some() && log.recovery().epoch == 1 {
        return missing_log(&dir, "a log that was never used".into());
    }
    Ok(Journal::Log(log))
}

/// The manifest says that commits are in the log; without its directory it would start empty.
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

/// Turns a store without a log into one with a log: from this mark on, everything is in the log.
fn adopt_log(core: &Core) -> Result<()> {
    let mark = families::durable_mark(core)?;
    let mut manifest = core.manifest.lock();
    manifest.amend(|manifest| {
        for record in &mut manifest.families {
            record.flushed = mark;
        }
        manifest.log = LogState::On;
    });
    Ok(manifest.write(&*core.device, &core.path)?)
}

fn start_threads(core: &Arc<Core>, threads: &mut Vec<JoinHandle<()>>) -> Result<()> {
    for n in 0..core.options.flush_threads {
        threads.push(start_thread(core, format!("collie-flush-{n}"), flush::run)?);
    }
    for n in 0..core.options.compaction_threads {
        threads.push(start_thread(core, format!("collie-merge-{n}"), compaction::run)?);
    }
    Ok(())
}

/// A background thread; should it panic, writes are refused from then on.
pub(crate) fn start_thread(core: &Arc<Core>, name: String, run: fn(&Core)) -> Result<JoinHandle<()>> {
    let core = Arc::clone(core);
    std::thread::Builder::new()
        .name(name.clone())
        .spawn(move || {
            // Dropped by a panic too: nobody else would notice that a thread of these is gone.
            let _watch = Watch(&core);
            run(&core);
        })
        .map_err(|e| Error::io("start the thread", name, e))
}

/// Refuses writes when a background thread panics.
struct Watch<'a>(&'a Core);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("of the background").to_owned();
            self.0.fail(Error::Background {
                cause: format!("the thread {name} panicked"),
            });
        }
    }
}

/// Opens the families, replays the log into them, and makes sure of the default family.
fn fill(core: &Arc<Core>, fresh_log: bool, log_dir: &Path) -> Result<Arc<FamilyState>> {
    let records = core.manifest.lock().families.clone();
    let mut by_id = HashMap::new();
    for record in &records {
        let family = families::load(core, record, true)?;
        by_id.insert(record.id, Arc::clone(&family));
        core.families
            .write()
            .by_name
            .insert(Arc::clone(&family.name), family);
    }
    refuse_tables_ahead(core, by_id.values(), log_dir)?;
    let resume = records.iter().map(|record| record.flushed).min();
    if let (Journal::Log(log), Some(resume)) = (&core.journal, resume) {
        // Until every family has its own hold, this one keeps what any of them needs.
        log.hold(OPENING, resume);
        for record in &records {
            core.journal.hold(&record.name, record.flushed);
        }
        if !fresh_log {
            core.replaying.store(true, Ordering::SeqCst);
            let replayed = replay::replay(core, log, resume, &by_id, log_dir)?;
            core.counters.note_replay(&replayed);
            core.replaying.store(false, Ordering::SeqCst);
        }
        log.unhold(OPENING);
    }
    let default_family = core.families.read().by_name.get(DEFAULT_FAMILY).cloned();
    let default_family = match default_family {
        Some(family) => family,
        None => families::create(core, DEFAULT_FAMILY, core.options.default_family.clone())?,
    };
    for family in core.families.read().all() {
        core.tasks.compact(&family);
    }
    wal_size::arm(core);
    wal_size::warn_of_a_short_limit(core);
    Ok(default_family)
}

/// No table is ever ahead of the log: it is registered when the log is durable that far. Where one is, the log
/// was cut or exchanged, and new commits would be hidden by what is in the table.
fn refuse_tables_ahead<'a>(
    core: &Core,
    families: impl IntoIterator<Item = &'a Arc<FamilyState>>,
    log_dir: &Path,
) -> Result<()> {
    let Some(end) = core.journal.recovery().map(|report| report.end) else {
        return Ok(());
    };
    for family in families {
        let highest = family.tables.highest();
        if highest >= end {
            return Err(Error::Corrupt {
                path: log_dir.into(),
                offset: 0,
                expected: format!(
                    "a log that reaches beyond the tables, which hold LSN {highest} of the family {}",
                    family.name
                ),
                found: format!("a log that ends at LSN {end}"),
            });
        }
    }
    Ok(())
}
