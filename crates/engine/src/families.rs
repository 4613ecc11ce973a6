//! Families come and go.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use collie_io::Device;
use collie_log::{Level, Lsn};
use parking_lot::{Mutex, MutexGuard};

use crate::core::{Core, FamilyState, GATE_OPEN};
use crate::db::DEFAULT_FAMILY;
use crate::manifest::{Edit, FamilyRecord};
use crate::manifest_file::{ManifestError, ManifestFile};
use crate::registered::Flushed;
use crate::stats::FamilyCounters;
use crate::tables::Tables;
use crate::view::View;
use crate::{Error, FamilyOptions, Result};

/// The directory of the families' directories.
pub(crate) const DIRECTORY: &str = "families";
/// Names are short: the log's holders carry them.
const LONGEST_NAME: usize = 200;

/// Where a family's tables are.
pub(crate) fn directory(core: &Core, id: u32) -> PathBuf {
    core.path.join(DIRECTORY).join(id.to_string())
}

fn check_name(name: &str) -> Result<()> {
    let reason = if name.is_empty() {
        "it is empty"
    } else if name.len() > LONGEST_NAME {
        "it is longer than 200 bytes"
    } else if name.chars().any(char::is_control) {
        "it has a control character"
    } else {
        return Ok(());
    };
    Err(Error::FamilyName {
        name: name.into(),
        reason,
    })
}

/// Opens the tables of a family, with an empty memtable. A family that the manifest knows has tables; that
/// they are missing is damage.
pub(crate) fn load(core: &Core, record: &FamilyRecord, known: bool) -> Result<Arc<FamilyState>> {
    let garbage = core.garbage_sender();
    let path = directory(core, record.id);
    let tables = Tables::open(
        &path,
        known,
        &record.options,
        &core.shared,
        &*core.device,
        garbage,
    )?;
    let pinned = core.pin(&tables);
    let view = View {
        active: Arc::new(core.new_mem(record.flushed, &record.options)),
        sealed: Vec::new(),
        tables: pinned,
    };
    Ok(Arc::new(FamilyState {
        store: core.id,
        id: record.id,
        name: record.name.as_str().into(),
        options: record.options.clone(),
        level0: AtomicUsize::new(tables.level0_runs()),
        tables,
        view: ArcSwap::from_pointee(view),
        edit: Mutex::new(()),
        rotating: AtomicBool::new(false),
        publish: Mutex::new(()),
        flushing: Mutex::default(),
        compacting: Mutex::new(()),
        gate: AtomicU8::new(GATE_OPEN),
        flush_queued: AtomicBool::new(false),
        compaction_queued: AtomicBool::new(false),
        dropped: AtomicBool::new(false),
        flushed: Flushed::found(record.flushed),
        flush_error: Mutex::new(None),
        compaction_error: Mutex::new(None),
        flush_failures: AtomicU32::new(0),
        compaction_failures: AtomicU32::new(0),
        counters: FamilyCounters::default(),
    }))
}

/// Creates a family, which must not be there.
pub(crate) fn create(core: &Core, name: &str, options: FamilyOptions) -> Result<Arc<FamilyState>> {
    check_name(name)?;
    options.check()?;
    let manifest = core.manifest.lock();
    if manifest.families.iter().any(|family| family.name == name) {
        return Err(Error::FamilyExists { name: name.into() });
    }
    create_in(core, manifest, name, options)
}

/// Finds a family, or creates it. Of several that call it at once, one creates.
pub(crate) fn open(core: &Core, name: &str, options: FamilyOptions) -> Result<Arc<FamilyState>> {
    check_name(name)?;
    options.check()?;
    let find = || core.families.read().by_name.get(name).map(Arc::clone);
    // Before the manifest is waited for, which a flush may keep for as long as a sync takes.
    if let Some(family) = find() {
        return Ok(family);
    }
    reach!("no such family");
    let manifest = core.manifest.lock();
    match find() {
        Some(family) => Ok(family),
        None => create_in(core, manifest, name, options),
    }
}

/// Creates a family. It is in the synced manifest before anybody can write to it.
fn create_in(
    core: &Core,
    mut manifest: MutexGuard<'_, ManifestFile>,
    name: &str,
    options: FamilyOptions,
) -> Result<Arc<FamilyState>> {
    let id = manifest.next_family;
    let birth = durable_mark(core)?;
    let record = FamilyRecord {
        id,
        name: name.into(),
        flushed: birth,
        options,
    };
    let family = make(core, &record).inspect_err(|_| burn(core, &mut manifest, id))?;
    core.journal.hold(name, birth);
    let edit = Edit {
        next_family: id + 1,
        // Without a log nothing else keeps the next open's commits at or above it.
        floor: birth,
        created: Some(record),
        ..Edit::default()
    };
    if let Err(error) = manifest.commit(&*core.device, &core.path, &edit) {
        core.journal.unhold(name);
        match &error {
            ManifestError::NotWritten(_) => burn(core, &mut manifest, id),
            // If the manifest names it, the family is there, empty, after the next open.
            ManifestError::InDoubt(_) => manifest.amend(|manifest| manifest.next_family = id + 1),
        }
        return Err(core.manifest_failed(error));
    }
    core.families
        .write()
        .by_name
        .insert(Arc::clone(&family.name), Arc::clone(&family));
    crate::wal_size::arm(core);
    crate::wal_size::warn_of_a_short_limit(core);
    Ok(family)
}

/// Makes an empty family's directory and tables, durably.
fn make(core: &Core, record: &FamilyRecord) -> Result<Arc<FamilyState>> {
    let path = directory(core, record.id);
    core.device
        .create_dir_all(&path)
        .map_err(|e| Error::io("create", path, e))?;
    load(core, record, false)
}

/// The id of a family that could not be made is never used again: a sync of what was made may have
/// failed, and one that comes later would report success without it. What there is goes when the
/// manifest says so. Where it has no room to, that stays until the next opening, which knows by it
/// that the id was used.
fn burn(core: &Core, manifest: &mut ManifestFile, id: u32) {
    let path = directory(core, id);
    let edit = Edit {
        next_family: id + 1,
        ..Edit::default()
    };
    let committed = manifest.commit(&*core.device, &core.path, &edit);
    let burnt = committed
        .map_err(Error::from)
        .and_then(|()| match core.device.remove_dir_all(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::io("remove", &path, e)),
            _ => Ok(()),
        });
    if let Err(error) = burnt {
        tracing::warn!(path = %path.display(), %error, "what was made of a family stays until the next open");
        manifest.amend(|manifest| manifest.next_family = manifest.next_family.max(id + 1));
    }
}

/// Passes over the ids of directories that no manifest names: of creations that were cut off, or
/// failed where the manifest could not say so.
pub(crate) fn pass_over_leftovers(
    device: &dyn Device,
    store: &Path,
    manifest: &mut ManifestFile,
) -> Result<()> {
    let used = directories(device, store)?.into_iter().max();
    if let Some(next) = used.and_then(|id| id.checked_add(1))
        && next > manifest.next_family
    {
        manifest.amend(|manifest| manifest.next_family = next);
    }
    Ok(())
}

/// The ids of the families that have a directory.
pub(crate) fn directories(device: &dyn Device, store: &Path) -> Result<Vec<u32>> {
    let dir = store.join(DIRECTORY);
    match device.list(&dir) {
        Ok(entries) => Ok(entries
            .iter()
            .filter_map(|entry| entry.name.parse().ok())
            .collect()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(Error::io("list", dir, e)),
    }
}

/// An LSN of its own, where recovery will find a frame.
pub(crate) fn durable_mark(core: &Core) -> Result<Lsn> {
    let mark = core.mark()?;
    core.journal.wait(mark.end, Level::Disk)?;
    Ok(mark.start)
}

/// Drops a family: first in the synced manifest, then in memory; its files go with their last user.
pub(crate) fn remove(core: &Core, family: &Arc<FamilyState>) -> Result<()> {
    if &*family.name == DEFAULT_FAMILY {
        let reason = "every store keeps its default family";
        return Err(Error::FamilyName {
            name: DEFAULT_FAMILY.into(),
            reason,
        });
    }
    let mut manifest = core.manifest.lock();
    if family.is_dropped() {
        return Err(Error::FamilyDropped {
            name: family.name.to_string(),
        });
    }
    let edit = Edit {
        dropped: Some(family.id),
        ..Edit::default()
    };
    manifest
        .commit(&*core.device, &core.path, &edit)
        .map_err(|e| core.manifest_failed(e))?;
    family.dropped.store(true, Ordering::Relaxed);
    core.families.write().by_name.remove(&family.name);
    core.journal.unhold(&family.name);
    family.tables.remove_when_unused();
    core.open_gates();
    // The default limit goes down with the families.
    crate::wal_size::arm(core);
    Ok(())
}
