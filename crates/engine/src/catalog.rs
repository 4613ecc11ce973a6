//! Creating, opening and dropping families.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::Device;

use crate::events::Event;
use crate::manifest::file::ManifestError;
use crate::manifest::{Edit, FamilyRecord};
use crate::store::family::FamilyState;
use crate::store::{ManifestGuard, Store};
use crate::tables::{DIRECTORY, directory_in};
use crate::{DEFAULT_FAMILY, Error, FamilyOptions, Result};

/// In bytes: a name is part of the name under which the log is retained for the family.
const LONGEST_NAME: usize = 200;

/// Where a family's tables are.
pub(crate) fn directory(store: &Store, id: u32) -> PathBuf {
    directory_in(store.path(), id)
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

/// Creates a family, which must not exist.
pub(crate) fn create(store: &Store, name: &str, options: FamilyOptions) -> Result<Arc<FamilyState>> {
    check_name(name)?;
    options.check()?;
    let manifest = store.manifest();
    if manifest.families.iter().any(|family| family.name == name) {
        return Err(Error::FamilyExists { name: name.into() });
    }
    create_in(store, manifest, name, options)
}

/// Finds a family, or creates it. Of concurrent callers one creates it and all get it.
pub(crate) fn open(store: &Store, name: &str, options: FamilyOptions) -> Result<Arc<FamilyState>> {
    check_name(name)?;
    options.check()?;
    let find = || store.family(name);
    // Before the manifest is locked: a flush may hold it for as long as a sync takes.
    if let Some(family) = find() {
        return Ok(family);
    }
    reach!("no such family");
    let manifest = store.manifest();
    match find() {
        Some(family) => Ok(family),
        None => create_in(store, manifest, name, options),
    }
}

/// Creates a family. Where the device is full, room is looked for, as after a write.
fn create_in(
    store: &Store,
    manifest: ManifestGuard<'_>,
    name: &str,
    options: FamilyOptions,
) -> Result<Arc<FamilyState>> {
    create_at(store, manifest, name, options).inspect_err(|error| {
        if let Error::StorageFull { .. } = error {
            store.request_room();
        }
    })
}

/// The synced manifest names the family before any write can find it.
fn create_at(
    store: &Store,
    mut manifest: ManifestGuard<'_>,
    name: &str,
    options: FamilyOptions,
) -> Result<Arc<FamilyState>> {
    if name != DEFAULT_FAMILY {
        store.sequencer().check_own("another family")?;
    }
    let id = manifest.next_family;
    let birth = store.durable_mark()?;
    let record = FamilyRecord {
        id,
        name: name.into(),
        flushed: birth,
        options,
        later: Vec::new(),
    };
    let family = create_tables(store, &record).inspect_err(|_| retire_id(store, &mut manifest, id))?;
    store.sequencer().retain(name, birth);
    let edit = Edit {
        next_family: id + 1,
        // Without a log nothing else keeps the next open's commits at or above it.
        floor: birth,
        created: Some(record),
        ..Edit::default()
    };
    if let Err(error) = manifest.try_commit(&edit) {
        store.sequencer().release(name);
        match &error {
            ManifestError::NotWritten(_) => retire_id(store, &mut manifest, id),
            // If the manifest names it, the family is there, empty, after the next open.
            ManifestError::InDoubt(_) => manifest.amend(|manifest| manifest.next_family = id + 1),
        }
        return Err(store.manifest_failed(error));
    }
    store.publish_family(&family);
    store.events().tell(|| Event::FamilyCreated {
        family: Arc::clone(family.name()),
    });
    crate::background::wal_limit::schedule_check(store);
    crate::background::wal_limit::warn_of_short_limit(store);
    Ok(family)
}

/// Creates an empty family's directory and tables, durably.
fn create_tables(store: &Store, record: &FamilyRecord) -> Result<Arc<FamilyState>> {
    let path = directory(store, record.id);
    store
        .device()
        .create_dir_all(&path)
        .map_err(|e| Error::io("create", &path, e))?;
    store.load_family(record, store.open_tables(record, false)?)
}

/// Retires the id of a family that could not be created: a sync of its files may have failed, and a
/// later sync would report success without them. Its files are removed when the manifest has the
/// next id. Where the device has no room for that, they stay until the next opening, which takes
/// them as the sign that the id was used.
pub(crate) fn retire_id(store: &Store, manifest: &mut ManifestGuard<'_>, id: u32) {
    let path = directory(store, id);
    let edit = Edit {
        next_family: id + 1,
        ..Edit::default()
    };
    let committed = manifest.try_commit(&edit);
    let retired = committed
        .map_err(Error::from)
        .and_then(|()| match store.device().remove_dir_all(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::io("remove", &path, e)),
            _ => Ok(()),
        });
    if let Err(error) = retired {
        tracing::warn!(path = %path.display(), %error, "the files of a family that was not created stay until the next open");
        manifest.amend(|manifest| manifest.next_family = manifest.next_family.max(id + 1));
    }
}

/// Retires the ids of directories that the manifest does not name, and removes these: a crash cut
/// their creation off, or it failed and the manifest could not be written. After replay: a commit to
/// such a family shows that the manifest is of an earlier time.
pub(crate) fn retire_leftovers(store: &Store) -> Result<()> {
    let mut manifest = store.manifest();
    let leftover = |id: &u32| *id >= manifest.next_family;
    let ids: Vec<_> = directories(store.device(), store.path())?
        .into_iter()
        .filter(leftover)
        .collect();
    let Some(next) = ids.iter().max().and_then(|id| id.checked_add(1)) else {
        return Ok(());
    };
    manifest.rewrite(|manifest| manifest.next_family = next)?;
    for id in ids {
        let path = directory(store, id);
        match store.device().remove_dir_all(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(Error::io("remove", path, e)),
            _ => {}
        }
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

/// Replaces a family by an empty one of its name and options, in one change of the manifest: after a
/// crash there is the one or the other. The old one's files are removed with their last user.
pub(crate) fn clear(store: &Store, old: &Arc<FamilyState>) -> Result<Arc<FamilyState>> {
    store.sequencer().check_own("clear")?;
    // What is in doubt may be lost, and nothing that came later may be kept beside it.
    if let Some(failure) = store.failure() {
        return Err(failure);
    }
    let mut manifest = store.manifest();
    old.check_not_dropped()?;
    let id = manifest.next_family;
    let birth = store.durable_mark()?;
    let record = FamilyRecord {
        id,
        name: old.name().to_string(),
        flushed: birth,
        options: FamilyOptions::clone(&old.options()),
        later: Vec::new(),
    };
    let family = create_tables(store, &record).inspect_err(|_| retire_id(store, &mut manifest, id))?;
    let edit = Edit {
        next_family: id + 1,
        floor: birth,
        created: Some(record),
        dropped: Some(old.id()),
        ..Edit::default()
    };
    reach!("the tables of a cleared family are made");
    if let Err(error) = manifest.try_commit(&edit) {
        match &error {
            ManifestError::NotWritten(_) => retire_id(store, &mut manifest, id),
            ManifestError::InDoubt(_) => manifest.amend(|manifest| manifest.next_family = id + 1),
        }
        return Err(store.manifest_failed(error));
    }
    store.replace_family(old, &family);
    // Up to here the log was retained for the old one, from an earlier place on.
    store.sequencer().retain(old.name(), birth);
    store.release_parts();
    store.events().tell(|| Event::FamilyCleared {
        family: Arc::clone(family.name()),
    });
    crate::background::wal_limit::schedule_check(store);
    Ok(family)
}

/// Replaces the options of a family: first in the synced manifest, then in memory.
pub(crate) fn set_options(store: &Store, family: &Arc<FamilyState>, options: FamilyOptions) -> Result<()> {
    options.check()?;
    if let Some(failure) = store.failure() {
        return Err(failure);
    }
    let mut manifest = store.manifest();
    family.check_not_dropped()?;
    let changed = manifest.try_change(|manifest| {
        if let Some(record) = manifest.family(family.id()) {
            record.options = options.clone();
        }
    });
    changed.map_err(|error| store.manifest_failed(error))?;
    family.set_options(options);
    drop(manifest);
    store.fit_budget(&family.options());
    // What was full may have room now, and what had some may be full.
    store.update_stall(family);
    store.queue().compact(family);
    crate::background::wal_limit::schedule_check(store);
    crate::background::wal_limit::warn_of_short_limit(store);
    Ok(())
}

/// Drops a family: first in the synced manifest, then in memory. Its files are removed with their
/// last user.
pub(crate) fn remove(store: &Store, family: &Arc<FamilyState>) -> Result<()> {
    if &**family.name() == DEFAULT_FAMILY {
        let reason = "every store keeps its default family";
        return Err(Error::FamilyName {
            name: DEFAULT_FAMILY.into(),
            reason,
        });
    }
    // What is in doubt may be lost, and nothing that came later may be kept beside it.
    if let Some(failure) = store.failure() {
        return Err(failure);
    }
    let mut manifest = store.manifest();
    family.check_not_dropped()?;
    let edit = Edit {
        dropped: Some(family.id()),
        ..Edit::default()
    };
    manifest.commit(&edit)?;
    store.withdraw_family(family);
    store.events().tell(|| Event::FamilyDropped {
        family: Arc::clone(family.name()),
    });
    // The default limit depends on the number of families.
    crate::background::wal_limit::schedule_check(store);
    Ok(())
}
