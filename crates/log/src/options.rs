//! How a log is opened.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use collie_io::{Device, RealDevice, Scheduler};

use crate::Lsn;
use crate::error::LogError;
use crate::format::{BLOCK, FRAME_HEADER, LogId, RING_DIR_MAX};
use crate::recovery::RingOutcome;
use crate::set::LogSet;

/// Where LSNs start: high enough that no small number is mistaken for one.
pub const FIRST_LSN: Lsn = 1 << 32;

/// What a frame survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub enum Level {
    /// Copied into the ring. Nothing is promised; it reaches the device within about
    /// [`LogOptions::flush_interval`] as long as the process lives.
    Buffered,
    /// Survives the death of the process (a crash, SIGKILL) within the same boot: complete in the
    /// shared ring or, where the ring is private, handed to the kernel. A container restart that
    /// takes `/dev/shm` along loses it.
    Process,
    /// On the device; survives the loss of power.
    #[default]
    Disk,
}

/// Where the ring lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RingMode {
    /// In a file of this directory, which must be on tmpfs to be worth it. Where the ring cannot be
    /// made there the log runs with a private one and says so in its
    /// [`RecoveryReport`](crate::RecoveryReport).
    Shared {
        /// The directory, `/dev/shm` by default.
        dir: PathBuf,
    },
    /// In plain memory. [`Level::Process`] then costs a write call per group.
    Private,
}

impl Default for RingMode {
    fn default() -> Self {
        Self::Shared {
            dir: PathBuf::from("/dev/shm"),
        }
    }
}

/// Worker slots beyond those of the log's users: the background flusher's, and the one that closes
/// the log.
const OWN_WORKERS: usize = 2;

/// The largest ring, in bytes.
pub(crate) const MAX_RING_BYTES: usize = 1 << 30;

/// Whether payloads are compressed, each by itself, before they are appended. What is read back is
/// what was appended; a log may hold frames of both sorts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum Compression {
    /// As they are.
    #[default]
    None,
    /// As an LZ4 block, where that is smaller; payloads below 64 bytes never are tried.
    Lz4,
}

/// How flushed groups are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WritePath {
    /// The faster of the two on this device, found out at each open with a few writes of a block
    /// ([`RecoveryReport::probe`](crate::RecoveryReport::probe)): [`WritePath::Direct`], unless the
    /// other takes less than four fifths of its time. Where no zeroed block is free to try it on,
    /// that is taken untried, and so it is on a device whose clock stands still (a simulated one).
    #[default]
    Auto,
    /// Write to the page cache, then `fdatasync`.
    FdataSync,
    /// Write past the page cache, durable on return (`O_DIRECT | O_DSYNC`), where the file system
    /// can; else as [`WritePath::FdataSync`], with a warning in the report. With a private ring,
    /// too, as [`WritePath::FdataSync`]: there [`Level::Process`] means a write call, which must
    /// not wait for the device.
    Direct,
}

/// What an open does about damage. The names are RocksDB's, but for [`RecoveryMode::SkipDamaged`],
/// which is not for a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum RecoveryMode {
    /// What stands incomplete at the log's end, and is not known to have been durable, is truncated
    /// and reported ([`RecoveryReport::torn`](crate::RecoveryReport::torn)); so is a last file that is
    /// shorter than the log made it. Damage in what was durable refuses to open.
    #[default]
    TolerateCorruptedTailRecords,
    /// As the first, and an incomplete end refuses to open, too; so does a ring that
    /// is lost, or cannot be used any more, within one boot.
    AbsoluteConsistency,
    /// The log is truncated at its first damage, even in what was durable, and opens with what stood
    /// before. What was cut off is kept in files beside it, which the
    /// [`RecoveryReport`](crate::RecoveryReport) names. It does not truncate below
    /// [`LogOptions::min_lsn`]: what the caller holds would be of a later time.
    PointInTimeRecovery,
    /// Damage in what was durable is passed over: the opening goes on at the next good frame, and
    /// reports what lies in between ([`RecoveryReport::damaged`](crate::RecoveryReport::damaged)).
    /// [`Log::open_with`](crate::Log::open_with), readers and tails pass over it as well;
    /// [`Log::get`](crate::Log::get) answers [`LogError::Corrupt`] there. The log's end means what it
    /// means in the first mode.
    ///
    /// **It loses acknowledged frames, and what is left is no prefix of the commit order.** So it is
    /// only for a caller whose frames each name the one before, and that can have what is lost from
    /// elsewhere: Collie's replicas, which share one log, and of which damage in one must not stop
    /// the others. A database on one log must not use it: it would miss a commit in the middle.
    ///
    /// What cannot be passed over refuses to open as in the first mode: a segment of which both
    /// copies of the header are damaged, one that is missing, and a damaged frame at
    /// [`LogOptions::resume_at`].
    SkipDamaged,
}

/// Options of [`Log::open`](crate::Log::open).
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// Where files live; the machine's file systems by default.
    pub device: Arc<dyn Device>,
    /// Where the ring lives.
    pub ring: RingMode,
    /// Size of the ring in bytes, a power of two, at least 8 KiB. A frame may take half of it.
    /// Default 32 MiB.
    pub ring_bytes: usize,
    /// Size of a segment in bytes, header included; a multiple of 4,096, at least 32 KiB. Default
    /// 64 MiB.
    pub segment_bytes: u64,
    /// How many [`Worker`](crate::Worker)s may exist at once. Default 256.
    pub max_workers: usize,
    /// The first LSN to hand out is at least this: above everything that the caller's tables hold.
    /// With [`LogOptions::resume_at`], which says that the log has what they lack, a log that ends
    /// below has lost what was durable: [`LogError::Corrupt`], in every mode. Without, its LSNs go on
    /// from here.
    pub min_lsn: Lsn,
    /// Where the caller will read from. A frame must start exactly there, or it must be the log's
    /// end; what lies before is not verified. `None`: from the oldest segment on.
    pub resume_at: Option<Lsn>,
    /// Which log it is: a new one gets this id, and one that has another is refused. `None`:
    /// whichever is there, and a random id for a new one.
    pub log_id: Option<LogId>,
    /// Whether payloads are compressed. Default: not.
    pub compression: Compression,
    /// What is done about damage.
    pub recovery_mode: RecoveryMode,
    /// How flushed groups are written.
    pub write_path: WritePath,
    /// Every write group ends with a block of 4,096 bytes, with a filler where there is no more to
    /// write, so that no block that holds acknowledged bytes is ever written again. Without it the
    /// last, partly filled block is, which assumes of the device that rewriting a block never
    /// damages the leading bytes that stay the same. It costs up to a block of the log per group:
    /// a lone committer writes 4,096 bytes for each of its small commits. The ring has at least 16
    /// KiB then, and a frame takes a block less than half of it. Default: false.
    pub pad_to_block: bool,
    /// Released segments are moved to the directory `archive` in the log's, and removed when they
    /// have been there for so long by the wall clock. Zero: see [`LogOptions::archive_bytes`].
    /// Recovery does not look there; readers, tails and [followers](crate::follow) do, and so does
    /// [`inspect`](crate::inspect::inspect) of that directory. None of them keeps a segment there:
    /// one that is removed before it was read is [`LogError::Missing`]. Default: zero.
    pub archive_ttl: Duration,
    /// Released segments are moved to the archive, and the oldest removed when all take more than
    /// so many bytes. 0: any number of bytes for [`LogOptions::archive_ttl`]; if that is zero too,
    /// there is no archive: released segments are used again, and what an earlier open archived is
    /// removed. A full device gives up what is archived, oldest first, before an append is refused.
    /// Default: 0.
    pub archive_bytes: u64,
    /// How long appended bytes may stay in the ring before they are flushed although no thread
    /// waits; at least a millisecond. Default 50 ms.
    pub flush_interval: Duration,
    /// What no thread waits for stays in the ring until it is flushed by hand or half the ring is
    /// full: [`LogOptions::flush_interval`] does not apply. With a private ring a full one is
    /// handed to the kernel and not synced. Default: false.
    pub manual_flush: bool,
    /// Room that is kept back in the log's directory, in a file that holds nothing, in bytes: it is
    /// given up for an opening that finds the device full, and taken again as soon as there is
    /// room. `None`, the default: the ring's size and twice the beginning of a segment (4 MiB, in a
    /// [set](LogOptions::set) less), so that the log can be opened, also
    /// after an opening that was interrupted. 0: none is kept. As much as the file system's size is refused.
    pub reserve_bytes: Option<u64>,
    /// Where each write and each sync of what was appended is announced, so that other I/O on the device
    /// can make room for it. Default: nowhere.
    pub scheduler: Option<Arc<Scheduler>>,
    /// Whether background threads flush, seal and prepare segments. Without them everything happens
    /// on callers' threads, and only when they wait or flush: for simulations.
    /// [`Log::wait_async`](crate::Log::wait_async) then needs another thread that flushes.
    pub threads: bool,
    /// The set whose threads work for the log, instead of threads of its own. Default: none.
    pub set: Option<LogSet>,
    /// Called by an opening that finds the ring of the process before gone, or not to be used, before it changes
    /// anything. Default: none.
    pub on_lost_ring: Option<OnLostRing>,
    /// Called once, when the log stops for good. Default: none.
    pub on_poisoned: Option<OnPoisoned>,
}

/// Learns that what was acknowledged at [`Level::Process`] and not yet flushed may be lost. The next opening finds the
/// ring of this one, and nothing that is missing: so what is to be remembered must be stored when this returns. An
/// error of it ends the opening, as [`LogError::Io`].
#[derive(Clone)]
pub struct OnLostRing(pub Arc<NoteRing>);

/// Stores what became of a ring, or says why it cannot.
pub type NoteRing = dyn Fn(&RingOutcome) -> io::Result<()> + Send + Sync;

/// Learns why the log stopped for good, on the thread that met the failure: it must not block, nor call the log.
#[derive(Clone)]
pub struct OnPoisoned(pub Arc<dyn Fn(&LogError) + Send + Sync>);

impl fmt::Debug for OnPoisoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnPoisoned").finish_non_exhaustive()
    }
}

impl fmt::Debug for OnLostRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnLostRing").finish_non_exhaustive()
    }
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            device: Arc::new(RealDevice::new()),
            ring: RingMode::default(),
            ring_bytes: 32 << 20,
            segment_bytes: 64 << 20,
            max_workers: 256,
            min_lsn: FIRST_LSN,
            resume_at: None,
            log_id: None,
            compression: Compression::default(),
            recovery_mode: RecoveryMode::default(),
            write_path: WritePath::default(),
            pad_to_block: false,
            archive_ttl: Duration::ZERO,
            archive_bytes: 0,
            flush_interval: Duration::from_millis(50),
            manual_flush: false,
            reserve_bytes: None,
            scheduler: None,
            threads: true,
            set: None,
            on_lost_ring: None,
            on_poisoned: None,
        }
    }
}

impl LogOptions {
    /// Whether a log can be opened with these options, as far as they tell by themselves.
    /// [`Log::open`](crate::Log::open) asks that before it touches the directory.
    ///
    /// # Errors
    /// [`LogError::Options`] for the first that is out of its range.
    pub fn check(&self) -> Result<(), LogError> {
        if !self.ring_bytes.is_power_of_two() || !(2 * BLOCK..=MAX_RING_BYTES).contains(&self.ring_bytes) {
            let reason = "it must be a power of two from 8 KiB to 1 GiB";
            return bad("ring_bytes", self.ring_bytes, reason);
        }
        if self.pad_to_block && self.ring_bytes < 4 * BLOCK {
            let reason = "it must be at least 16 KiB with `pad_to_block`";
            return bad("ring_bytes", self.ring_bytes, reason);
        }
        if !self.segment_bytes.is_multiple_of(BLOCK as u64)
            || !(8 * BLOCK as u64..=1 << 40).contains(&self.segment_bytes)
        {
            let reason = "it must be a multiple of 4096 from 32 KiB to 1 TiB";
            return bad("segment_bytes", self.segment_bytes, reason);
        }
        if !(2..=1 << 16).contains(&self.max_workers) {
            return bad("max_workers", self.max_workers, "it must be from 2 to 65536");
        }
        if !self.min_lsn.is_multiple_of(8) || self.min_lsn >= 1 << 62 {
            return bad("min_lsn", self.min_lsn, "it must be a multiple of 8 below 2^62");
        }
        if let RingMode::Shared { dir } = &self.ring
            && dir.as_os_str().len() > RING_DIR_MAX
        {
            let reason = format!("the path of its directory is longer than {RING_DIR_MAX} bytes");
            return bad("ring", dir.display(), &reason);
        }
        if self.flush_interval < Duration::from_millis(1) {
            let interval = format!("{:?}", self.flush_interval);
            return bad("flush_interval", interval, "the least is 1 ms");
        }
        if self.set.is_some() && !self.threads {
            let reason = "its threads cannot work for a log without `threads`";
            return bad("set", "given", reason);
        }
        Ok(())
    }

    /// Refuses a reserve that its file system can never hold.
    pub(crate) fn check_reserve(&self, disk: u64) -> Result<(), LogError> {
        match self.reserve_bytes {
            Some(bytes) if bytes >= disk => {
                let reason = format!("the log's file system has {disk} bytes");
                bad("reserve_bytes", bytes, &reason)
            }
            _ => Ok(()),
        }
    }

    /// How many workers there may be, the log's own included.
    pub(crate) fn all_workers(&self) -> usize {
        self.max_workers + OWN_WORKERS
    }

    /// Whether released segments are kept in an archive.
    pub(crate) fn archives(&self) -> bool {
        self.archive_ttl > Duration::ZERO || self.archive_bytes > 0
    }

    /// The largest payload in bytes, before compression: as it is, its frame takes at most half the
    /// ring, or a block less with [`LogOptions::pad_to_block`].
    #[must_use]
    pub fn max_payload(&self) -> usize {
        let block = if self.pad_to_block { BLOCK } else { 0 };
        self.ring_bytes / 2 - block - FRAME_HEADER
    }
}

fn bad(option: &'static str, value: impl ToString, reason: &str) -> Result<(), LogError> {
    Err(LogError::Options {
        option,
        value: value.to_string(),
        reason: reason.into(),
    })
}
