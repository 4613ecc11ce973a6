//! Many logs in one process, with the threads of one.

use std::iter::repeat_n;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use collie_io::IoClass;

use crate::error::{At, LogError};
use crate::lockfree::sync::{Mutex, lock};
use crate::recovery::Probe;
use crate::threads::{JobHandle, ThreadPool};

/// Background threads that many logs share ([`LogOptions::set`](crate::LogOptions::set)): make one
/// set for each disk. Clones are the same set; its threads end with its last clone and its last log.
///
/// A log of its own has two or three threads. A set has [`LogSetOptions::flushers`] and two more,
/// however many logs there are. Its logs are written, synced and recovered as others are, each by
/// itself.
///
/// Logs of a set are meant to be small and many: they keep little prepared ahead before their first
/// append, and the way to write ([`WritePath::Auto`](crate::WritePath::Auto)) is found out once per
/// device. What makes one small is said when it is opened: `ring_bytes`, `segment_bytes`,
/// `max_workers`, `reserve_bytes`; see the example.
///
/// A log that is idle for forty flush intervals costs nothing: while all of a set are, no thread of
/// the set wakes up. That its directory was removed shows when it is appended to again, within twenty
/// flush intervals. (A log without a set wakes up once in twenty flush intervals to look.)
///
/// A waker that runs on a thread of the set must not wait for a future of any log of the set, for that
/// thread may be the one that would wake it; and there is one thread for the tasks that wait at
/// [`Level::Process`](crate::Level::Process) over private rings. A child that is forked has no threads,
/// and cannot open logs in the set.
///
/// A log that waits for its device holds up a thread of the set; the others go on as long as there
/// is another one. Threads of users that wait ([`Log::wait`](crate::Log::wait)) flush by
/// themselves, as ever.
///
/// ```
/// use collie_log::{Level, Log, LogOptions, LogSet, LogSetOptions, RingMode};
/// # let dir = tempfile::tempdir()?;
/// let set = LogSet::new(LogSetOptions::default())?;
/// let small = LogOptions {
///     set: Some(set),
///     ring: RingMode::Private,
///     ring_bytes: 64 << 10,
///     segment_bytes: 1 << 20,
///     max_workers: 4,
///     ..LogOptions::default()
/// };
/// let logs = (0..10).map(|n| (dir.path().join(format!("{n}")), small.clone()));
/// for log in Log::open_all(logs.collect(), 4) {
///     let log = log?;
///     let span = log.worker()?.append(0, 1, b"hello")?;
///     log.wait(span.end, Level::Disk)?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct LogSet(Arc<SetState>);

/// Options of [`LogSet::new`].
#[derive(Debug, Clone)]
pub struct LogSetOptions {
    /// How many threads flush, thus how many logs may be in a background sync at once. From 1 to
    /// 64. Default 4.
    pub flushers: usize,
    /// How often threads wake up for what is to be flushed or sealed. A log whose
    /// [`flush_interval`](crate::LogOptions::flush_interval) is not a multiple of it is looked at
    /// by the next larger one. At least 1 ms. Default 50 ms.
    pub period: Duration,
}

impl Default for LogSetOptions {
    fn default() -> Self {
        Self {
            flushers: 4,
            period: Duration::from_millis(50),
        }
    }
}

/// What the clones of a set share: its threads, and what was measured of devices.
#[derive(Debug)]
struct SetState {
    pools: Pools,
    /// What the ways to write took, by device.
    probes: Mutex<Vec<(u64, Probe)>>,
}

/// The threads of a set, or of one log, by what they do.
#[derive(Debug)]
pub(crate) struct Pools {
    pub(crate) flush: ThreadPool,
    pub(crate) write: ThreadPool,
    pub(crate) prepare: ThreadPool,
}

impl Pools {
    /// Their timers expire at multiples of `period`.
    pub(crate) fn start(flushers: usize, writers: usize, period: Duration) -> std::io::Result<Self> {
        let names = |name: &str, threads| repeat_n(name.to_owned(), threads);
        Ok(Self {
            flush: ThreadPool::start(names("collie-flush", flushers), period, || ())?,
            write: ThreadPool::start(names("collie-write", writers), period, || ())?,
            prepare: ThreadPool::start(names("collie-prepare", 1), period, || {
                // A commit that runs out of room waits for it.
                if let Err(error) = collie_io::set_io_class(IoClass::Foreground) {
                    tracing::debug!(%error, "no I/O classes here");
                }
            })?,
        })
    }
}

/// By which each of a log's jobs is called.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    /// Flushes what no thread waits for.
    pub(crate) flusher: Arc<JobHandle>,
    /// Writes for tasks while the flusher syncs.
    pub(crate) writer: Arc<JobHandle>,
    /// Prepares segments, and releases what no holder retains.
    pub(crate) preparer: Arc<JobHandle>,
}

impl Jobs {
    pub(crate) fn all(&self) -> [&Arc<JobHandle>; 3] {
        [&self.flusher, &self.writer, &self.preparer]
    }
}

impl LogSet {
    /// Starts the threads of a set without logs.
    ///
    /// # Errors
    /// [`LogError::Options`] where an option is out of its range, and [`LogError::Io`] where no
    /// thread can be started.
    pub fn new(options: LogSetOptions) -> Result<Self, LogError> {
        let LogSetOptions { flushers, period } = options;
        let bad = |option, value, reason: &str| {
            Err(LogError::Options {
                option,
                value,
                reason: reason.into(),
            })
        };
        if !(1..=64).contains(&flushers) {
            return bad("flushers", flushers.to_string(), "it must be from 1 to 64");
        }
        if period < Duration::from_millis(1) {
            return bad("period", format!("{period:?}"), "the least is 1 ms");
        }
        let pools = Pools::start(flushers, 1, period);
        Ok(Self(Arc::new(SetState {
            pools: pools.at("start threads for", Path::new("a set of logs"))?,
            probes: Mutex::new(Vec::new()),
        })))
    }

    /// The process that made it, where that is not this one: its threads are there.
    pub(crate) fn elsewhere(&self) -> Option<u32> {
        self.0.pools.flush.elsewhere()
    }

    pub(crate) fn pools(&self) -> &Pools {
        &self.0.pools
    }

    /// What a log of this set found on the device before.
    pub(crate) fn probe(&self, device: u64) -> Option<Probe> {
        let probes = lock(&self.0.probes);
        probes
            .iter()
            .find(|(dev, _)| *dev == device)
            .map(|(_, probe)| *probe)
    }

    pub(crate) fn note_probe(&self, device: u64, probe: Probe) {
        lock(&self.0.probes).push((device, probe));
    }
}
