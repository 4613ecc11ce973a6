//! How a store, its families, and single reads and writes behave.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use collie_io::{Device, RealDevice};
use collie_log::{LogOptions, LogSet, RingMode};

use crate::background::threads::shared;
use crate::store::reserve::StoreReserve;
use crate::{DiskReserve, Error, Journal, Listener, Result, Shared};

/// How much a write survives when the call that made it returns; see [`collie_log::Level`].
pub use collie_log::Level as Durability;

/// How background I/O shares the device with that of commits; see [`Options::background_io`].
pub use collie_io::Policy as IoPolicy;

/// What opening does about damage in the log; see [`collie_log::RecoveryMode`].
pub use collie_log::RecoveryMode as WalRecoveryMode;

/// How a store is opened. All sizes are in bytes.
#[derive(Debug, Clone)]
pub struct Options {
    /// Create the store where the directory is missing or empty. Default: true.
    pub create_if_missing: bool,
    /// Where the store's own files live; another device than the real one is for tests. The table
    /// files are opened by the table library and do not go through it.
    pub device: Arc<dyn Device>,
    /// No log at all: a crash loses what was not flushed to tables. Default: false.
    pub disable_wal: bool,
    /// Who keeps the commits that are in no table yet: the store, in a log of its own, or the caller
    /// in another one. A store is opened the same way ever after. Default: [`Journal::Own`].
    pub journal: Journal,
    /// Background threads, caches and a budget of memory that many stores have together. What it has
    /// is in force, and not `cache_bytes`, `max_memtable_bytes`, `max_open_files`, `flush_threads`,
    /// `compaction_threads` and `background_io` of these options. Default: none.
    pub shared: Option<Shared>,
    /// The log's directory; by default `log` inside the store. No two stores can share one.
    pub wal_dir: Option<PathBuf>,
    /// Other logs whose background threads are also those of this store's log. Default: it has its own.
    pub log_set: Option<LogSet>,
    /// What `put` and `delete` without options wait for. Default: [`Durability::Disk`].
    pub durability: Durability,
    /// Where the log's ring lives.
    pub ring: RingMode,
    /// The ring's size. A commit that takes more than half of it goes to the log in parts. Default:
    /// 32 MiB.
    pub ring_bytes: usize,
    /// The largest commit, in bytes as the log has it; a larger one is refused with
    /// [`Error::BatchTooLarge`]. While one is made that takes more than half of the ring, it takes two
    /// to four times its size in memory (the batch, and its memtables, which need some 50 bytes for
    /// each entry), and about as much when an opening replays it. It waits for earlier ones whose
    /// memtables are not flushed yet where those take a memtable of one of its families, are as many
    /// as [`FamilyOptions::max_write_buffers`] there, or all together take
    /// [`Options::max_memtable_bytes`]. From 1 KiB to 4 GiB less a
    /// byte; 0: as much as one frame of the log takes, half of the ring. Default: 1 GiB.
    pub max_commit_bytes: u64,
    /// The size of one log segment, a multiple of 4,096 from 32 KiB to 1 TiB. Default: 64 MiB. A segment takes a 32nd of its file system at most,
    /// or 2 MiB: the log is released in whole ones.
    pub segment_bytes: u64,
    /// How many threads append at the same instant, from 2 to 65,535; more of them wait for a free
    /// appender. Default: 64.
    pub max_workers: usize,
    /// The log is flushed by hand, by [`Db::flush_wal`](crate::Db::flush_wal), and not every 50 ms.
    /// With a private ring a write at [`Durability::Process`] then ends with its copy in memory,
    /// without a write call: a crash of the process loses what came after the last flush. With a
    /// shared ring it costs no call anyway and keeps what it promises; a power cut loses what came
    /// after the last flush. With this option too, writes at [`Durability::Disk`] are synced, and
    /// so is the log up to the end of a memtable that is flushed; half a ring of writes is written
    /// to the kernel without a call. Default: false.
    pub manual_wal_flush: bool,
    /// Compression of commits in the log, each by itself; what does not become smaller is stored as
    /// it is. A log may hold both. Default: none.
    pub wal_compression: Compression,
    /// No block of the log that holds acknowledged commits is ever written again; see
    /// [`collie_log::LogOptions::pad_to_block`] for what is assumed of the device without it. It
    /// costs up to 4,096 bytes of the log per flush of it. The ring has at least 16 KiB then. Default:
    /// false.
    pub pad_to_block: bool,
    /// Segments of the log that are released are kept for so long, by the wall clock, in the
    /// directory `archive` inside the log's. Zero, and [`Options::wal_size_limit`] 0: there is no
    /// archive. Default: zero.
    pub wal_ttl: Duration,
    /// Such segments are kept as long as all of them take no more than so many bytes; the oldest go
    /// first. 0: as many as [`Options::wal_ttl`] keeps. Without both what an earlier open archived
    /// is removed. A full device gives the archive up before it refuses a write. Default: 0.
    pub wal_size_limit: u64,
    /// What opening does about damage in the log. [`WalRecoveryMode::PointInTimeRecovery`] refuses
    /// where a family has been flushed beyond the damage: its tables would be of a later time than
    /// the rest. [`WalRecoveryMode::SkipDamaged`] is no choice for a database, and refused.
    pub wal_recovery_mode: WalRecoveryMode,
    /// Past this much live log, in bytes, the families are flushed for which its oldest segment is
    /// retained, even if it is the only one. `None` or 0: twice what all memtables together may take
    /// (the sum over all families of `write_buffer_bytes` × `max_write_buffers`, and no more than
    /// [`Options::max_memtable_bytes`]), a quarter of the log's file system at most, and at least four
    /// segments: 512 MiB for one family with its defaults, 2 GiB for 16. It changes as families come
    /// and go. Never more than 256 segments, all of which an opening has open. The
    /// least is two segments; a limit below the families' write buffers is accepted with a warning
    /// ([`Stats::warnings`](crate::Stats::warnings)): memtables are then flushed before they are
    /// full. [`Stats::max_total_wal_size`](crate::Stats::max_total_wal_size) is the limit in force.
    pub max_total_wal_size: Option<u64>,
    /// How much of the memtables a clean close brings to tables, in bytes, so that the next opening
    /// reads little of the log: those that hold its oldest part first, where that is more than 1 MiB.
    /// 0: only what no log holds, as RocksDB does. Default: 256 MiB, all memtables of a family with its
    /// defaults.
    pub close_flush_bytes: u64,
    /// Room that is kept back in the store's directory, in bytes, in a file `RESERVE` without
    /// content. When the device is full it is given up for work that makes room: flushes,
    /// compactions, dropping a family, an opening. Until it is complete again only writes that
    /// remove data are admitted: deletes, and batches of deletes only
    /// ([`Batch::is_relief`](crate::Batch::is_relief)). `None`, the default: 4 MiB and the largest
    /// of [`Options::ring_bytes`] and the `write_buffer_bytes` of the default family and of those
    /// in [`Options::family_options`]; 68 MiB where all have their defaults. 0: none is kept. A log
    /// with a directory of its own ([`Options::wal_dir`]) keeps the ring's size and 4 MiB there,
    /// too, unless this is 0. What is missing is taken as far as the device has it, from all that use
    /// it; as much as the file system's size is refused.
    pub reserve_bytes: Option<u64>,
    /// Of a store with an external journal: the reserve that it has in common with other stores on its
    /// device, in the place of one of its own. Default: none.
    pub disk_reserve: Option<DiskReserve>,
    /// Size of the block cache that all families share. Default: 32 MiB.
    pub cache_bytes: u64,
    /// The most that all memtables together take, in bytes (RocksDB: `db_write_buffer_size`). From
    /// half of it on the largest are flushed, whatever the options of their families say; at all of
    /// it writes stop until that is done. What threads are committing by then comes on top. Those of
    /// commits that are larger than a frame of the log may take as much again, before the next such
    /// commit waits. What is flushed and still read by a snapshot does not count, nor what an opening
    /// replays. At least 64 KiB. `None`, the
    /// default: 1 GiB, or four times what a family's options allow it, if that is more.
    pub max_memtable_bytes: Option<u64>,
    /// How many table files are kept open. Default: 256.
    pub max_open_files: usize,
    /// Threads that write memtables to tables, 256 at most. Default: 1.
    pub flush_threads: usize,
    /// Threads that merge tables, 256 at most, beside one for
    /// [whole families](crate::FamilyStats::whole_merges). Default: 1.
    pub compaction_threads: usize,
    /// How flushes and compactions share the device with the log's syncs. They write in pieces of
    /// 512 KiB. [`IoPolicy::Classes`], the default: a piece begins while no commit is being synced,
    /// or when it has waited four times as long as its last one took; without waiting when writes
    /// would soon be delayed. [`IoPolicy::Fair`]: one piece at a time. [`IoPolicy::None`]: a whole
    /// table at once. A log on a device of its own ([`Options::wal_dir`]) gains nothing by it.
    pub background_io: IoPolicy,
    /// Row locks that transactions, writes and [`RowLocks`](crate::RowLocks) may hold or wait for,
    /// all together; a range or a family counts once. A write outside of transactions, and the commit
    /// of an optimistic one, that writes more rows than an eighth of it in one family locks the range
    /// from the first of them to the last instead; so does a pessimistic transaction that has locked
    /// so many, if no other owner has a lock between them then. Also how many flushed removals are kept
    /// in memory to detect conflicts of open transactions. Default: 1,048,576.
    pub max_row_locks: usize,
    /// How long a write outside of transactions waits for a locked row. Default: one second.
    pub lock_timeout: Duration,
    /// Options of the family `default`, at every open.
    pub default_family: FamilyOptions,
    /// Options for other families that replace, at this open, those that they were created with.
    pub family_options: Vec<(String, FamilyOptions)>,
    /// What is called with the store's events: flushes, compactions, stalls, failures. Default: none.
    pub listener: Option<Listener>,
}

impl Default for Options {
    fn default() -> Self {
        let log = LogOptions::default();
        Self {
            create_if_missing: true,
            device: Arc::new(RealDevice::new()),
            disable_wal: false,
            journal: Journal::Own,
            shared: None,
            wal_dir: None,
            log_set: None,
            durability: Durability::Disk,
            ring: log.ring,
            ring_bytes: log.ring_bytes,
            max_commit_bytes: 1 << 30,
            segment_bytes: log.segment_bytes,
            max_workers: 64,
            manual_wal_flush: false,
            wal_compression: Compression::None,
            pad_to_block: false,
            wal_ttl: Duration::ZERO,
            wal_size_limit: 0,
            wal_recovery_mode: WalRecoveryMode::default(),
            max_total_wal_size: None,
            close_flush_bytes: 256 << 20,
            reserve_bytes: None,
            disk_reserve: None,
            cache_bytes: 32 << 20,
            max_memtable_bytes: None,
            max_open_files: 256,
            flush_threads: 1,
            compaction_threads: 1,
            background_io: IoPolicy::default(),
            max_row_locks: 1 << 20,
            lock_timeout: Duration::from_secs(1),
            default_family: FamilyOptions::default(),
            family_options: Vec::new(),
            listener: None,
        }
    }
}

/// How a family keeps its data. Stored with the family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FamilyOptions {
    /// Memory of one memtable, in bytes; a fuller one is sealed and flushed. Default: 64 MiB. (A
    /// store keeps up to 64 MiB of freed memtables for the next ones, for some seconds.)
    pub write_buffer_bytes: u64,
    /// Memtables in memory, the active one included; writes stop when all are full. As many again of
    /// commits that are larger than a frame of the log, before the next such commit waits. Default: 4.
    pub max_write_buffers: usize,
    /// Size of a table's data blocks, in bytes. Default: 4096.
    pub block_bytes: u32,
    /// Bits per key of the bloom filters; 0 for none. Default: 10.
    pub bloom_bits: u8,
    /// Compression of tables. Default: none.
    pub compression: Compression,
    /// Target size of a table, in bytes, from 4,096 to 2^40. Default: 64 MiB.
    pub table_bytes: u64,
    /// Level-0 runs that start a compaction. Default: 4.
    pub level0_compaction: u8,
    /// Level-0 runs from which writes are delayed. Default: 20.
    pub level0_slowdown: usize,
    /// Level-0 runs at which writes stop; some 160 while a manual compaction keeps level 0 from
    /// draining, and until it has drained. Default: 36.
    pub level0_stop: usize,
}

impl Default for FamilyOptions {
    fn default() -> Self {
        Self {
            write_buffer_bytes: 64 << 20,
            max_write_buffers: 4,
            block_bytes: 4096,
            bloom_bits: 10,
            compression: Compression::None,
            table_bytes: 64 << 20,
            level0_compaction: 4,
            level0_slowdown: 20,
            level0_stop: 36,
        }
    }
}

/// How table blocks, and commits in the log, are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// LZ4: fast, moderate.
    Lz4,
}

/// How one write behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// What the write waits for before it returns.
    pub durability: Durability,
    /// Keep the write out of the log: it has its position in the order, a crash loses it unless it
    /// was flushed to a table, and `durability` does not apply.
    pub disable_wal: bool,
    /// Write without row locks, although transactions are in use: the caller holds them
    /// ([`Db::lock_rows`](crate::Db::lock_rows)), or knows that no other owner uses these rows.
    pub skip_row_locks: bool,
    /// Which stalls it waits for.
    pub throttle: ThrottleMode,
}

/// What a write waits for while background work lags behind ([`Stall`](crate::Stall)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ThrottleMode {
    /// All that delays or stops writes.
    #[default]
    Full,
    /// Only what keeps memory bounded: the caller holds locks, and calls
    /// [`Family::throttle`](crate::Family::throttle) when it has released them. Such writes wait from
    /// an eighth above [`Options::max_memtable_bytes`], or half a memtable or eight runs of level 0
    /// above where writes of the family stop. Large commits do not wait for each other either.
    HardLimitsOnly,
}

impl WriteOptions {
    /// Returns when the write is visible; nothing about durability is promised yet.
    #[must_use]
    pub fn buffered() -> Self {
        Self::waiting_for(Durability::Buffered)
    }

    /// Returns when the write survives the death of the process; with a private ring and
    /// [`Options::manual_wal_flush`] it does from the next flush of the log on.
    #[must_use]
    pub fn process() -> Self {
        Self::waiting_for(Durability::Process)
    }

    /// Returns when the write survives a power cut.
    #[must_use]
    pub fn disk() -> Self {
        Self::waiting_for(Durability::Disk)
    }

    /// Leaves the log out.
    #[must_use]
    pub fn without_wal() -> Self {
        Self {
            disable_wal: true,
            ..Self::buffered()
        }
    }

    fn waiting_for(durability: Durability) -> Self {
        Self {
            durability,
            ..Self::default()
        }
    }
}

/// How one read behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadOptions {
    /// Read the newest state below which the log is durable on disk, instead of the newest state.
    /// Writes that were kept out of the log are in that state too, and are not durable.
    pub durable: bool,
}

/// In a reserve, for changes of the manifest and the first segment of an opening, beside a memtable's
/// flush.
const SMALL_WORK: u64 = 4 << 20;

impl Options {
    /// The reserve of the store in `dir`.
    pub(crate) fn reserve(&self, dir: &Path) -> StoreReserve {
        if let (Some(of_disk), Journal::External(_)) = (&self.disk_reserve, &self.journal) {
            return StoreReserve::of_disk(of_disk);
        }
        let bytes = self.reserve_bytes.unwrap_or_else(|| self.default_reserve_bytes());
        StoreReserve::in_dir(Arc::clone(&self.device), dir, bytes, self.wal_dir.is_none())
    }

    fn default_reserve_bytes(&self) -> u64 {
        let families = self.family_options.iter().map(|(_, family)| family);
        let buffers = families
            .chain([&self.default_family])
            .map(|family| family.write_buffer_bytes);
        // A table is about as large as its memtable. An opening copies frames from the ring that no
        // segment has.
        let ring = match self.journal {
            Journal::Own => self.ring_bytes as u64,
            Journal::External(_) => 0,
        };
        buffers.max().unwrap_or(0).max(ring) + SMALL_WORK
    }

    /// The largest commit that is one frame of the log with this ring, in bytes; a larger one goes
    /// there in parts.
    pub(crate) fn one_frame_bytes(&self) -> usize {
        self.of_log().max_payload()
    }

    /// What the log is opened with, as far as the options say.
    pub(crate) fn of_log(&self) -> LogOptions {
        LogOptions {
            device: Arc::clone(&self.device),
            ring: self.ring.clone(),
            ring_bytes: self.ring_bytes,
            segment_bytes: self.segment_bytes,
            // One more than appenders: closing takes one.
            max_workers: self.max_workers.saturating_add(1),
            manual_flush: self.manual_wal_flush,
            pad_to_block: self.pad_to_block,
            archive_ttl: self.wal_ttl,
            archive_bytes: self.wal_size_limit,
            // The store's reserve serves both where they share a device.
            reserve_bytes: match self.wal_dir {
                Some(_) if self.reserve_bytes != Some(0) => None,
                _ => Some(0),
            },
            recovery_mode: self.wal_recovery_mode,
            set: self.log_set.clone(),
            compression: match self.wal_compression {
                Compression::None => collie_log::Compression::None,
                Compression::Lz4 => collie_log::Compression::Lz4,
            },
            ..LogOptions::default()
        }
    }

    /// Refuses a reserve that its file system can never hold: what there is would be taken from all
    /// others, and no write admitted.
    pub(crate) fn check_reserve(&self, disk: u64) -> Result<()> {
        match self.reserve_bytes {
            Some(bytes) if bytes >= disk => {
                let reason = format!("the store's file system has {disk} bytes");
                Err(Error::invalid_option("reserve_bytes", bytes, &reason))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if !(2..WORKERS_OF_LOG).contains(&self.max_workers) {
            return Err(Error::invalid_option(
                "max_workers",
                self.max_workers,
                "it must be from 2 to 65535",
            ));
        }
        shared::check_threads("flush_threads", self.flush_threads, 1)?;
        shared::check_threads("compaction_threads", self.compaction_threads, 1)?;
        shared::check_open_files(self.max_open_files)?;
        if self.disable_wal && matches!(self.journal, Journal::External(_)) {
            let reason = "an external journal takes the log's place; leave it false";
            return Err(Error::invalid_option("disable_wal", true, reason));
        }
        if self.wal_recovery_mode == WalRecoveryMode::SkipDamaged {
            let reason = "a database whose log has a hole is not the one that it was; PointInTimeRecovery \
                          truncates at the damage";
            return Err(Error::invalid_option("wal_recovery_mode", "SkipDamaged", reason));
        }
        if self.max_commit_bytes != 0 && !(1 << 10..=u64::from(u32::MAX)).contains(&self.max_commit_bytes) {
            let reason = "it must be from 1 KiB to 4 GiB less a byte, or 0 for one frame of the log";
            return Err(Error::invalid_option(
                "max_commit_bytes",
                self.max_commit_bytes,
                reason,
            ));
        }
        shared::check_budget(self.max_memtable_bytes)?;
        if let Some(limit) = self.max_total_wal_size
            && limit > 0
            && limit < self.segment_bytes.saturating_mul(2)
        {
            let reason = format!(
                "the log is released in whole segments of {} bytes, so a limit below two of them would \
                 flush without end and free nothing; raise it or lower segment_bytes",
                self.segment_bytes
            );
            return Err(Error::invalid_option("max_total_wal_size", limit, &reason));
        }
        self.of_log().check()?;
        self.default_family.check()?;
        self.family_options
            .iter()
            .try_for_each(|(_, options)| options.check())
    }
}

/// How many workers a log may have.
const WORKERS_OF_LOG: usize = 1 << 16;
/// The most that a table may be asked to have.
const TABLE_MOST: u64 = 1 << 40;
/// The most that `level0_stop` may be.
const LEVEL0_MOST: usize = 200;
/// The most that a memtable may take, and how many there may be.
const WRITE_BUFFER_MOST: u64 = 1 << 40;
const WRITE_BUFFERS_MOST: usize = 1 << 10;

impl FamilyOptions {
    pub(crate) fn check(&self) -> Result<()> {
        if self.max_write_buffers < 2 {
            let reason = "one memtable is written while another is flushed, so two are the least";
            return Err(Error::invalid_option(
                "max_write_buffers",
                self.max_write_buffers,
                reason,
            ));
        }
        if self.max_write_buffers > WRITE_BUFFERS_MOST {
            let reason = "every read looks through all of them; the most is 1024";
            return Err(Error::invalid_option(
                "max_write_buffers",
                self.max_write_buffers,
                reason,
            ));
        }
        if self.write_buffer_bytes > WRITE_BUFFER_MOST {
            return Err(Error::invalid_option(
                "write_buffer_bytes",
                self.write_buffer_bytes,
                "the most is 2^40",
            ));
        }
        if self.write_buffer_bytes < 4096 {
            return Err(Error::invalid_option(
                "write_buffer_bytes",
                self.write_buffer_bytes,
                "the least is 4096",
            ));
        }
        if !(512..=1 << 20).contains(&self.block_bytes) {
            return Err(Error::invalid_option(
                "block_bytes",
                self.block_bytes,
                "it must lie in 512..=1048576",
            ));
        }
        if self.level0_compaction < 2 || usize::from(self.level0_compaction) > self.level0_slowdown {
            let reason = "it must be at least 2 and at most level0_slowdown";
            return Err(Error::invalid_option(
                "level0_compaction",
                self.level0_compaction,
                reason,
            ));
        }
        if self.level0_stop > LEVEL0_MOST {
            let reason = "the table library counts at most 255 runs of a level, and some come unasked";
            return Err(Error::invalid_option("level0_stop", self.level0_stop, reason));
        }
        if self.level0_stop < self.level0_slowdown {
            let reason = "it must not be below level0_slowdown";
            return Err(Error::invalid_option("level0_stop", self.level0_stop, reason));
        }
        if !(4096..=TABLE_MOST).contains(&self.table_bytes) {
            let reason = "it must be from 4096 to 2^40";
            return Err(Error::invalid_option("table_bytes", self.table_bytes, reason));
        }
        Ok(())
    }
}
