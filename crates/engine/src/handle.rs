//! An open store with its threads, and how it closes.

use std::sync::Arc;
use std::thread::JoinHandle;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::Result;
use crate::background::at_close::flush_at_close;
use crate::store::Store;
use crate::store::family::FamilyState;

/// What all handles of a store share. The last one closes it.
pub(crate) struct Handle {
    pub(crate) store: Arc<Store>,
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
    /// Replaced by `Db::adopt` alone.
    pub(crate) default_family: ArcSwap<FamilyState>,
}

impl Handle {
    pub(crate) fn close(&self) -> Result<()> {
        let store = &self.store;
        store.begin_close()?;
        let alone = store.wait_for_calls();
        let flushed = flush_at_close(store);
        let threads = std::mem::take(&mut *self.threads.lock());
        let closed = store.finish_close(threads);
        drop(alone);
        flushed.and(closed)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.store.check_process().is_err() {
            // Threads, files and locks are the parent's, and so are table files that are removed
            // with their last user. The child must not end or remove any of them.
            std::mem::forget(Arc::clone(&self.store));
            std::mem::forget(std::mem::take(&mut *self.threads.lock()));
            return;
        }
        if !self.store.is_closed()
            && let Err(error) = self.close()
        {
            tracing::error!(path = %self.store.path().display(), %error, "the store did not close cleanly");
        }
    }
}
