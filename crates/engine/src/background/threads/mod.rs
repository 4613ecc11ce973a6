//! The background threads: of a store by itself, which has its own, or of many stores that share
//! them. An open store with its threads, and how it closes.

pub(crate) mod pool;
pub(crate) mod queue;
pub(crate) mod shared;

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::background::compaction;
use crate::background::flush::{self, flush_at_close};
use crate::background::threads::pool::{Member, TaskKind};
use crate::store::Store;
use crate::store::family::FamilyState;
use crate::store::view::FlushCause;
use crate::{Error, Result};

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

/// Starts the background threads, or joins those that it shares.
pub(crate) fn start_threads(store: &Arc<Store>, threads: &mut Vec<JoinHandle<()>>) -> Result<()> {
    let member: Weak<Store> = Arc::downgrade(store);
    store.join_budget(member.clone());
    if let Some(shared) = &store.options().shared {
        store.queue().join(Arc::clone(shared.pool()), member);
        return Ok(());
    }
    for n in 0..store.options().flush_threads {
        threads.push(start_thread(store, format!("collie-flush-{n}"), flush::run)?);
    }
    for n in 0..store.options().compaction_threads {
        threads.push(start_thread(store, format!("collie-merge-{n}"), compaction::run)?);
    }
    threads.push(start_thread(
        store,
        "collie-merge-all".into(),
        compaction::run_whole_merges,
    )?);
    Ok(())
}

/// Starts a background thread. If it panics, writes are refused from then on.
pub(crate) fn start_thread(store: &Arc<Store>, name: String, run: fn(&Store)) -> Result<JoinHandle<()>> {
    let store = Arc::clone(store);
    std::thread::Builder::new()
        .name(name.clone())
        .spawn(move || {
            // Dropped by a panic too, which no other thread would notice.
            let _watch = Watch(&store);
            run(&store);
        })
        .map_err(|e| Error::io("start the thread", name, e))
}

/// Refuses writes when a background thread panics.
struct Watch<'a>(&'a Store);

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

impl Member for Store {
    fn do_one(&self, kind: TaskKind) {
        match kind {
            TaskKind::Flush => {
                if let Some((task, _running)) = self.queue().try_flush() {
                    flush::run_task(self, task);
                }
            }
            TaskKind::Compaction => {
                if let Some((family, _running)) = self.queue().try_compaction() {
                    compaction::run_task(self, &family);
                }
            }
            TaskKind::WholeMerge => {
                if let Some((family, _running)) = self.queue().try_whole_merge() {
                    compaction::run_whole_merge(self, &family);
                }
            }
        }
    }

    fn panicked(&self, thread: &str) {
        self.fail(Error::Background {
            cause: format!("the thread {thread} panicked"),
        });
    }

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
            view.active.bytes() > 0 && view.buffers(options) < options.max_write_buffers
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
