//! What many stores of one process may have in common: background threads, caches, and a budget of
//! memory. A store by itself has the same parts for itself.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use collie_io::{Device, Policy, RealDevice, Scheduler};
use collie_log::threads::ThreadPool;
use lsm_tree::{Cache, DescriptorTable};

use crate::background::threads::pool::Threads;
use crate::memtable::Chunks;
use crate::memtable::chunks::{self, Reclaim};
use crate::write::stall::Budget;
use crate::{Error, Result};

/// One set of background threads, one block cache, one table of open files and one budget of memory
/// for memtables, for many stores ([`Options::shared`](crate::Options::shared)). A thousand stores
/// then have the threads of one.
///
/// Stores take turns, in the order in which work came up. A store has one flush thread at a time,
/// also where it has many families. A flush waits for its store's log to be durable, and meanwhile
/// has that thread. So a log that stands still takes one flush thread, whatever its store has to
/// flush, and the other stores go on with the rest. **As many such logs as there are flush threads
/// stop the flushes of all stores**: have one thread more than there are devices with logs.
///
/// Where the budget is half used, the largest memtables of all stores are flushed, and where it is
/// used up, writes to all of them wait. A store whose log stands still keeps what it has in memory:
/// of each family up to `max_write_buffers` memtables of `write_buffer_bytes`, and large commits,
/// which do not count. A budget that is set has to be larger than that, or such a store uses it up;
/// the default has room for four such families.
///
/// Clones are handles to the same; it lives as long as they and the stores that use it.
///
/// ```
/// use collie_db::{Db, Options, Shared, SharedOptions};
/// # let dir = tempfile::tempdir().unwrap();
/// let shared = Shared::new(SharedOptions::default())?;
/// let stores = ["a", "b", "c"].map(|name| {
///     let options = Options { shared: Some(shared.clone()), reserve_bytes: Some(0), ..Options::default() };
///     (dir.path().join(name), options)
/// });
/// for db in Db::open_all(stores.into(), 2) {
///     db?.put("key", "value")?;
/// }
/// # Ok::<(), collie_db::Error>(())
/// ```
#[derive(Clone)]
pub struct Shared(Arc<SharedState>);

struct SharedState {
    threads: Threads,
    parts: Resources,
}

/// What a [`Shared`] has. All sizes are in bytes.
#[derive(Debug, Clone)]
pub struct SharedOptions {
    /// Threads that write memtables to tables. Default: 1. Where this and the next are 0, what they
    /// would do is done by [`Shared::work`].
    pub flush_threads: usize,
    /// Threads that merge tables, beside one for
    /// [whole families](crate::FamilyStats::whole_merges). Default: 1.
    pub compaction_threads: usize,
    /// Size of the block cache. Default: 32 MiB.
    pub cache_bytes: u64,
    /// How many table files are kept open. Default: 256.
    pub max_open_files: usize,
    /// The most that the memtables of all stores together take; as
    /// [`Options::max_memtable_bytes`](crate::Options::max_memtable_bytes). `None`, the default:
    /// 1 GiB, or four times what a family's options allow it, if that is more.
    pub max_memtable_bytes: Option<u64>,
    /// How flushes and compactions share the device; as
    /// [`Options::background_io`](crate::Options::background_io).
    pub background_io: Policy,
    /// The device of the stores.
    pub device: Arc<dyn Device>,
}

impl Default for SharedOptions {
    fn default() -> Self {
        Self {
            flush_threads: 1,
            compaction_threads: 1,
            cache_bytes: 32 << 20,
            max_open_files: 256,
            max_memtable_bytes: None,
            background_io: Policy::default(),
            device: Arc::new(RealDevice::new()),
        }
    }
}

/// The parts that a store uses, of its own or shared.
#[derive(Clone)]
pub(crate) struct Resources {
    pub(crate) cache: Arc<Cache>,
    pub(crate) descriptors: Arc<DescriptorTable>,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) chunks: Arc<Chunks>,
    pub(crate) reclaim: Sender<Reclaim>,
    pub(crate) budget: Arc<Budget>,
}

impl Resources {
    /// Parts as the options say; the numbers of threads do not matter here. One thread frees memory
    /// as long as they live.
    pub(crate) fn new(options: &SharedOptions) -> Result<Self> {
        let chunks = Arc::new(Chunks::default());
        let (reclaim, _thread) = chunks::start_reclaim(Arc::clone(&options.device), Arc::clone(&chunks))?;
        Ok(Self {
            cache: Arc::new(Cache::with_capacity_bytes(options.cache_bytes)),
            descriptors: Arc::new(DescriptorTable::new(options.max_open_files)),
            scheduler: Arc::new(Scheduler::new(options.background_io)),
            chunks,
            reclaim,
            budget: Arc::new(Budget::new(options.max_memtable_bytes)),
        })
    }
}

/// The most threads of one kind.
const THREADS_MOST: usize = 256;

/// Whether so many threads of a kind can be started.
pub(crate) fn check_threads(option: &'static str, threads: usize, least: usize) -> Result<()> {
    match threads {
        n if n < least => Err(Error::invalid_option(option, threads, "at least one is needed")),
        n if n > THREADS_MOST => Err(Error::invalid_option(option, threads, "the most is 256")),
        _ => Ok(()),
    }
}

/// Whether so many open files are enough to begin with.
pub(crate) fn check_open_files(files: usize) -> Result<()> {
    match files {
        0 => Err(Error::invalid_option(
            "max_open_files",
            files,
            "at least one is needed",
        )),
        _ => Ok(()),
    }
}

/// Whether so much memory for memtables is enough to begin with.
pub(crate) fn check_budget(limit: Option<u64>) -> Result<()> {
    match limit {
        Some(limit) if limit < 64 << 10 => Err(Error::invalid_option(
            "max_memtable_bytes",
            limit,
            "the least is 65536",
        )),
        _ => Ok(()),
    }
}

impl Shared {
    /// Starts the threads.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] where there would be no thread of one kind alone, or no open file, or a
    /// budget below 64 KiB;
    /// [`Error::Io`] where one does not start.
    pub fn new(options: SharedOptions) -> Result<Self> {
        // None at all, for simulations, or of each kind.
        let least = usize::from(options.flush_threads.max(options.compaction_threads) > 0);
        check_threads("flush_threads", options.flush_threads, least)?;
        check_threads("compaction_threads", options.compaction_threads, least)?;
        check_open_files(options.max_open_files)?;
        check_budget(options.max_memtable_bytes)?;
        Ok(Self(Arc::new(SharedState {
            threads: Threads::start(options.flush_threads, options.compaction_threads)?,
            parts: Resources::new(&options)?,
        })))
    }

    /// Does one task that is due, on this thread: a flush, or else a compaction. Says whether there
    /// was one. Blocks. For simulations, whose `Shared` has no threads: a write that waits for a flush
    /// then waits for ever, so memtables must be larger than what is written between two calls.
    pub fn work(&self) -> bool {
        let threads = &self.0.threads;
        [&threads.flushes, &threads.compactions, &threads.whole_merges]
            .into_iter()
            .any(ThreadPool::work_once)
    }

    /// How its flushes and compactions share the device: for
    /// [`collie_log::LogOptions::scheduler`], so that they give way to a log's syncs.
    #[must_use]
    pub fn scheduler(&self) -> &Arc<Scheduler> {
        &self.0.parts.scheduler
    }

    pub(crate) fn parts(&self) -> &Resources {
        &self.0.parts
    }

    pub(crate) fn threads(&self) -> &Threads {
        &self.0.threads
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}
