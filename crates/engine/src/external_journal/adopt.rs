//! A copy of a store that shares its table files, and a store whose whole content such a copy
//! replaces.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use collie_io::Device;
use collie_log::Lsn;

use crate::background::flush::{self, Flush, record};
use crate::events::FlushCause;
use crate::manifest::file::{ManifestError, ManifestFile};
use crate::manifest::{Edit, FamilyRecord, LogState, Manifest};
use crate::recovery::{self, DirectoryContent};
use crate::store::Store;
use crate::store::family::FamilyState;
use crate::tables::directory_in;
use crate::tables::link::link_closed;
use crate::write::order::Turn;
use crate::{DEFAULT_FAMILY, Db, Error, FamilyOptions, Result, catalog};

impl Db {
    /// Makes a store in `dir` of all that was applied before the call: flushes the memtable, links
    /// the table files of one version there, and writes a manifest that names exactly these. Returns
    /// the sequence number that the new store is flushed to. It can be opened there, or taken over by
    /// [`Db::adopt`] in another store; neither changes the other, for table files are never written
    /// again, and each store removes its own names only.
    ///
    /// `dir` is missing or empty, and on the same file system. Everything in it is durable on return,
    /// its own name too. Writes go on meanwhile; where another thread adopts a store, it is made of
    /// what was there before or of what is there since. Blocks for the flush (and so for the journal to
    /// become durable up to there) and for some syncs, not for the size of the tables.
    ///
    /// # Errors
    /// [`Error::OwnJournal`], [`Error::WrongDirectory`]; those of [`Family::flush`](crate::Family::flush);
    /// [`Error::Io`] where the file system cannot link a file to there (another file system, too many
    /// links): nothing is copied instead. What was made by then stays: without a manifest it is no
    /// store, and the caller removes it.
    pub fn links(&self, dir: impl AsRef<Path>) -> Result<Lsn> {
        let dir = dir.as_ref();
        let store = self.store();
        let _used = store.use_directory()?;
        if store.sequencer().external().is_none() {
            return Err(Error::OwnJournal { refused: "links" });
        }
        if recovery::inspect(store.device(), dir)? == DirectoryContent::Store {
            return Err(Error::WrongDirectory {
                path: dir.into(),
                found: "a store; `links` makes a new one".into(),
            });
        }
        loop {
            // The store has the new family before `adopt` drops the old one.
            let family = store.family(DEFAULT_FAMILY).ok_or(Error::Closed)?;
            match link_one(store, &family, dir) {
                Err(Error::FamilyDropped { .. }) if family.is_dropped() => {}
                linked => return linked,
            }
        }
    }
}

/// As [`Db::links`], of one family. Makes nothing where `adopt` has dropped it.
fn link_one(store: &Store, family: &Arc<FamilyState>, dir: &Path) -> Result<Lsn> {
    flush::flush_all_of(store, family, FlushCause::Manual)?;
    // Without other flushes the tree holds what the manifest calls flushed, and no more.
    let mut flushes = [Flush::of(store, family)];
    record(store, &mut flushes)?;
    reach!("what is to be linked is flushed");
    family.check_not_dropped()?;
    let flushed = family.flushed().get();
    let id = 0;
    family.tables().link(&directory_in(dir, id), store.device())?;
    drop(flushes);
    let manifest = Manifest {
        next_family: id + 1,
        log: LogState::External,
        floor: flushed,
        families: vec![FamilyRecord {
            id,
            name: family.name().to_string(),
            flushed,
            options: FamilyOptions::clone(&family.options()),
            later: Vec::new(),
        }],
        ..Manifest::new(store.manifest().log_id)
    };
    // Last: a directory with a manifest is a store.
    ManifestFile::new(manifest).write(store.device(), dir)?;
    Ok(flushed - 1)
}

impl Db {
    /// Replaces everything in this store by the store in `dir`, which [`Db::links`] made, here or
    /// elsewhere: its table files are linked into this store's directory and synced, and one record
    /// of the manifest makes them the content. After a crash at any moment the next opening finds
    /// either the old content or the new one, and removes the files of the other. Returns the
    /// sequence number that the store is flushed to from then on; commits go on above it.
    ///
    /// What was applied and not flushed is dropped with the old tables. Snapshots and iterators that
    /// are open go on showing the old content, and keep its files. [`Family`](crate::Family) handles
    /// from before, and batches that were filled with them, fail with [`Error::FamilyDropped`]; ask
    /// [`Db::default_family`] for a new one. The options of the family stay those of this store.
    ///
    /// `dir` is on the same file system, and is left as it is: the caller removes it, also after an
    /// error, unless it wants to try again. It must not be open, here or in another process; that is
    /// not checked. Of its files only what an opening reads is verified (manifests, and what tables say
    /// of themselves); a damaged block of data shows when it is read. Waits for a commit that is
    /// being applied, and blocks for syncs of all files, which cost little where they are durable
    /// already.
    ///
    /// # Errors
    /// [`Error::OwnJournal`]; [`Error::WrongDirectory`] where `dir` is not such a store;
    /// [`Error::SeqOutOfOrder`] where it does not reach as far as what was applied here;
    /// [`Error::Corrupt`], [`Error::Version`], [`Error::Table`], [`Error::Io`],
    /// [`Error::StorageFull`], [`Error::Closed`], [`Error::Forked`]: nothing was changed.
    /// [`Error::Background`] from now on where it is not certain whether the record of the manifest is
    /// durable: the next opening decides.
    pub fn adopt(&self, dir: impl AsRef<Path>) -> Result<Lsn> {
        let store = self.store();
        let _used = store.use_directory()?;
        let external = store
            .sequencer()
            .external()
            .ok_or(Error::OwnJournal { refused: "adopt" })?;
        let turn = external.turn();
        if let Some(refusal) = store.refusal() {
            return Err(refusal);
        }
        let staged = Staged::read(store.device(), dir.as_ref())?;
        let adopted = store.relieve(|| adopt_staged(store, &staged, &turn));
        store.fill_reserve();
        let family = adopted?;
        let flushed = family.flushed().get();
        self.replace_default_family(family);
        drop(turn);
        external.tell_flushed(flushed);
        Ok(flushed - 1)
    }
}

/// A store that is to become the content of another: not open, with an external journal, and so with
/// one family.
struct Staged {
    family: FamilyRecord,
    tables: PathBuf,
}

impl Staged {
    /// Reads its manifest.
    fn read(device: &dyn Device, dir: &Path) -> Result<Self> {
        let wrong = |found: &str| Error::WrongDirectory {
            path: dir.into(),
            found: found.into(),
        };
        let manifest = ManifestFile::read(device, dir)?.ok_or_else(|| wrong("no manifest"))?;
        match &manifest.families[..] {
            [family] if manifest.log == LogState::External && family.name == DEFAULT_FAMILY => Ok(Self {
                tables: directory_in(dir, family.id),
                family: family.clone(),
            }),
            _ => Err(wrong("a store that `links` did not make")),
        }
    }
}

/// Replaces the default family by a staged one: its files first, then one change of the manifest,
/// then in memory. The old family's files are removed with their last user.
fn adopt_staged(store: &Store, staged: &Staged, turn: &Turn<'_>) -> Result<Arc<FamilyState>> {
    let mut manifest = store.manifest();
    let old = store.family(DEFAULT_FAMILY).ok_or(Error::Closed)?;
    let id = manifest.next_family;
    let record = FamilyRecord {
        id,
        options: FamilyOptions::clone(&old.options()),
        ..staged.family.clone()
    };
    let path = catalog::directory(store, id);
    let linked = link_closed(&staged.tables, &path, store.device())
        .and_then(|()| store.load_family(&record, store.open_tables(&record, true)?))
        // What it is flushed to is known only now, if its last flush was not recorded.
        .and_then(|family| turn.check_end(family.flushed().get()).map(|()| family));
    let family = linked.inspect_err(|_| catalog::retire_id(store, &mut manifest, id))?;
    let flushed = family.flushed().get();
    let edit = Edit {
        next_family: id + 1,
        floor: flushed,
        created: Some(FamilyRecord { flushed, ..record }),
        dropped: Some(old.id()),
        ..Edit::default()
    };
    reach!("the staged tables are open");
    if let Err(error) = manifest.try_commit(&edit) {
        match &error {
            ManifestError::NotWritten(_) => catalog::retire_id(store, &mut manifest, id),
            ManifestError::InDoubt(_) => manifest.amend(|manifest| manifest.next_family = id + 1),
        }
        return Err(store.manifest_failed(error));
    }
    // Before a read can find the new tables, whose entries lie below. Nothing is applied meanwhile,
    // so what is visible stays the same until then.
    store.go_on_at(flushed)?;
    store.replace_family(&old, &family);
    store.queue().compact(&family);
    Ok(family)
}
