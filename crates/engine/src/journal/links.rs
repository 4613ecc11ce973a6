//! A copy of a store that shares its table files.

use std::path::Path;
use std::sync::Arc;

use collie_log::Lsn;

use crate::background::flush::{self, Flush, record};
use crate::manifest::file::ManifestFile;
use crate::manifest::{FamilyRecord, LogState, Manifest};
use crate::recovery::inspect::{self, DirectoryContent};
use crate::store::Store;
use crate::store::family::FamilyState;
use crate::store::view::FlushCause;
use crate::tables::directory_in;
use crate::{DEFAULT_FAMILY, Db, Error, Result};

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
        if inspect::inspect(store.device(), dir)? == DirectoryContent::Store {
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
            options: family.options().clone(),
            later: Vec::new(),
        }],
        ..Manifest::new(store.manifest().log_id)
    };
    // Last: a directory with a manifest is a store.
    ManifestFile::new(manifest).write(store.device(), dir)?;
    Ok(flushed - 1)
}
