//! The background threads of a store, or of many that share them: which tasks they do, and how an
//! open store closes.

pub(crate) mod pool;
pub(crate) mod queue;
pub(crate) mod shared;

use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use collie_log::threads::{Cause, Job, JobHandle, Next, ThreadPool};
use parking_lot::Mutex;

use crate::background::flush::{self, flush_at_close};
use crate::background::threads::pool::{Member, Threads};
use crate::background::threads::queue::FlushTask;
use crate::background::threads::shared::Shared;
use crate::background::{compaction, make_room, wal_limit};
use crate::events::FlushCause;
use crate::store::Store;
use crate::store::family::FamilyState;
use crate::{Error, Result};

/// What all handles of a store share. The last one closes it.
pub(crate) struct Handle {
    pub(crate) store: Arc<Store>,
    /// Of the store's own.
    pub(crate) threads: Mutex<Option<Threads>>,
    /// Replaced by `Db::adopt` alone.
    pub(crate) default_family: ArcSwap<FamilyState>,
}

impl Handle {
    pub(crate) fn close(&self) -> Result<()> {
        let store = &self.store;
        store.begin_close()?;
        let alone = store.wait_for_calls();
        let flushed = flush_at_close(store);
        let closed = store.finish_close();
        let threads = self.threads.lock().take();
        drop((threads, alone));
        store.events().close();
        flushed
            .and(closed)
            .and_then(|()| store.failed().map_or(Ok(()), Err))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.store.check_process().is_err() {
            // Files and locks are the parent's, and so are table files that are removed with their
            // last user. The child must not remove any of them.
            std::mem::forget(Arc::clone(&self.store));
            return;
        }
        if !self.store.is_closed()
            && let Err(error) = self.close()
        {
            tracing::error!(path = %self.store.path().display(), %error, "the store did not close cleanly");
        }
    }
}

/// Starts the store's background threads, or has those that it shares work for it.
pub(crate) fn start_threads(store: &Arc<Store>) -> Result<Option<Threads>> {
    let member: Weak<Store> = Arc::downgrade(store);
    store.join_budget(member);
    let options = store.options();
    let (own, flushes) = match &options.shared {
        // A flush may wait for the store's log, and a second one would wait for the same.
        Some(_) => (None, 1),
        None => {
            let own = Threads::start(options.flush_threads, options.compaction_threads)?;
            (Some(own), options.flush_threads)
        }
    };
    if let Some(threads) = own.as_ref().or(options.shared.as_ref().map(Shared::threads)) {
        serve(store, threads, flushes);
    }
    Ok(own)
}

/// Has the threads do a store's tasks, so many flushes at once.
fn serve(store: &Arc<Store>, threads: &Threads, flushes: usize) {
    let handles = |count| -> Vec<Arc<JobHandle>> { (0..count).map(|_| Arc::default()).collect() };
    let (flushes, whole_merges) = (handles(flushes), handles(1));
    let compactions = handles(threads.compactions.threads().max(1));
    store.queue().done_by(&flushes, &compactions, &whole_merges);
    let start = |handles: Vec<Arc<JobHandle>>, pool: &ThreadPool, run| {
        for handle in handles {
            pool.add(&handle, Box::new(StoreJob::new(store, run)));
        }
    };
    start(flushes, &threads.flushes, run_flush);
    start(compactions, &threads.compactions, compaction::run);
    start(whole_merges, &threads.whole_merges, compaction::run_whole_merges);
}

/// Does one task of the flush queue.
fn run_flush(store: &Store) -> Next {
    match store.queue().next_flush() {
        Ok(FlushTask::Family(family)) => {
            let _running = family.flushes().dequeue();
            flush::flush_in_turn(store, &family);
        }
        Ok(FlushTask::WalSize) => wal_limit::flush_for_wal_size(store),
        Ok(FlushTask::Room) => make_room::make_room(store),
        Err(pause) => return Next::Sleep(pause),
    }
    Next::Again
}

/// Does a store's tasks of one kind, one after the other.
pub(crate) struct StoreJob {
    store: Weak<Store>,
    /// Does one task that is due.
    run: fn(&Store) -> Next,
}

impl StoreJob {
    pub(crate) fn new(store: &Arc<Store>, run: fn(&Store) -> Next) -> Self {
        let store = Arc::downgrade(store);
        Self { store, run }
    }
}

impl Job for StoreJob {
    fn run(&mut self, _cause: Cause) -> Next {
        self.store
            .upgrade()
            .map_or(Next::Stop, |store| (self.run)(&store))
    }

    /// Stopped writers would wait for work that is not done any more.
    fn panicked(&self) {
        if let Some(store) = self.store.upgrade() {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("of the background");
            store.fail(Error::Background {
                cause: format!("the thread {name} panicked"),
            });
        }
    }
}

impl Member for Store {
    fn active_mems(&self) -> Vec<(u64, u32)> {
        // Replay seals by itself.
        if self.is_replaying() {
            return Vec::new();
        }
        let families = self.families();
        let sizes = families
            .iter()
            .map(|family| (family.view().active.bytes(), family.id()));
        sizes.collect()
    }

    fn waiting_mem_bytes(&self) -> u64 {
        if !self.waits_for_log() {
            return 0;
        }
        let families = self.families();
        let sealed = families.iter().map(|family| family.view().sealed_bytes());
        sealed.sum()
    }

    fn seal(&self, family: u32) -> bool {
        let families = self.families();
        let Some(family) = families.iter().find(|found| found.id() == family) else {
            return false;
        };
        let options = family.options();
        let rotated = self.rotate(family, FlushCause::Memory, |view| {
            view.active.bytes() > 0 && view.buffers(&options) < options.max_write_buffers
        });
        match rotated {
            Ok(Some(_)) => {
                self.queue().flush(family);
                self.update_stall(family);
                true
            }
            Ok(None) => false,
            Err(error) => {
                tracing::debug!(family = %family.name(), %error, "a large memtable is not sealed yet");
                false
            }
        }
    }
}
