//! Replacing the whole content of a store.

use std::path::Path;

use collie_log::Lsn;

use crate::{Db, Error, Result, catalog};

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
    /// of themselves); a damaged block of data shows when it is read. Waits for a commit that is being applied,
    /// and blocks for syncs of all files, which cost little where they are durable already.
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
        let staged = catalog::Staged::read(store.device(), dir.as_ref())?;
        let adopted = store.relieve(|| catalog::adopt(store, &staged, &turn));
        store.fill_reserve();
        let family = adopted?;
        let flushed = family.flushed().get();
        self.replace_default_family(family);
        drop(turn);
        external.tell_flushed(flushed);
        Ok(flushed - 1)
    }
}
